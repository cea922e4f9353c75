"""Processes that a process with open gRPC calls starts: Spark's JVM beside our own channels."""

from __future__ import annotations

import subprocess
import sys

import pytest

STARTS_CHILDREN = """
import concurrent.futures, signal, subprocess
import {package}
import grpc

def before_exec():  # as Spark starts its JVM
    signal.signal(signal.SIGINT, signal.SIG_IGN)

server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channels = [grpc.insecure_channel(f"127.0.0.1:{{port}}") for _ in range(8)]
for channel in channels:
    grpc.channel_ready_future(channel).result(30)
ended = [subprocess.run(["true"], preexec_fn=before_exec).returncode for _ in range(200)]
print(sum(map(bool, ended)))
for channel in channels:
    channel.close()
server.stop(None).wait()
"""


@pytest.mark.parametrize("package", ["penstock_runtime", "pyspark_penstock", "penstock"])
def test_children_of_a_process_with_open_channels_live(package: str) -> None:
    """With gRPC's fork handlers about one of ten died between fork and exec, of SIGSEGV or SIGABRT."""
    ran = subprocess.run(
        [sys.executable, "-c", STARTS_CHILDREN.format(package=package)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ran.stdout.strip() == "0"
