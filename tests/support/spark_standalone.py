"""Spark of a master and two workers on host names of this machine; executors can import `support`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from penstock.local import ports
from support.spark import WAIT_S
from support.spark_sink_runs import members
from support.waiting import wait_for


@contextmanager
def standalone_spark(directory: Path) -> Iterator[str]:
    """Its address."""
    port = ports.choose_base()
    master = f"spark://127.0.0.1:{port}"
    words = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    with (
        _daemon(directory, "master", "127.0.0.1", words) as log,
        _daemon(directory, "worker-2", "127.0.0.2", [*_worker(directory, "127.0.0.2"), master]),
        _daemon(directory, "worker-3", "127.0.0.3", [*_worker(directory, "127.0.0.3"), master]),
    ):
        wait_for(lambda: log().count("Registering worker") >= 2, "two workers of Spark", WAIT_S)
        yield master


def _worker(directory: Path, host: str) -> list[str]:
    return [
        "worker.Worker", "--host", host, "--cores", "2", "--memory", "2g", "--webui-port", "0",
        "--work-dir", str(directory / host),
    ]  # fmt: skip


@contextmanager
def _daemon(directory: Path, name: str, host: str, words: list[str]) -> Iterator[Callable[[], str]]:
    """Its log."""
    path = directory / f"{name}.txt"
    with path.open("w") as log:
        process = subprocess.Popen(
            [str(Path(pyspark.__file__).parent / "bin/spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:]],
            env={
                **os.environ,
                "SPARK_LOCAL_IP": host,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
                "PYTHONPATH": str(Path(__file__).parents[1]),
            },
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield path.read_text
    finally:
        for pid in members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
