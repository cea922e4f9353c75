"""Each service installs from its own requirements into an empty environment, and starts there.

One shared environment hides an import that a service does not declare; this does not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from penstock.local.ports import choose_free
from support.packages import Packages, new_environment, pip

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 120

pytestmark = pytest.mark.timeout(1200)


def install(service: str, folder: Path, packages: Packages) -> Path:
    """A new environment that holds one service; returns its bin folder."""
    python = new_environment(folder)
    requirements = ROOT / "services" / service / "requirements.txt"
    pip(python, "install", "--no-deps", "--require-hashes", "-r", str(requirements))
    kafka = [] if service == "controller" else ["libs/kafka", "libs/frontend"]
    needed = ["proto", "libs/core", "libs/runtime", *kafka, f"services/{service}"]
    packages.install(python, needed)
    return python.parent


def arguments(service: str, folder: Path, http_port: int) -> list[str]:
    grpc_port, raft_port, kafka_port = choose_free(3, {http_port})
    common = ["--http-bind", f"127.0.0.1:{http_port}", "--grpc-bind", f"127.0.0.1:{grpc_port}"]
    data = ["--data-dir", str(folder / "data")]
    if service == "controller":
        return [
            *(*common, *data, "--controller-id", "1", "--raft-bind", f"127.0.0.1:{raft_port}"),
            *("--raft-peers", f"1@127.0.0.1:{raft_port}", "--controllers", f"1@127.0.0.1:{grpc_port}"),
        ]
    nowhere = ["--controllers", f"127.0.0.1:{raft_port}"]
    mode = "direct" if service == "storage-node" else "proxy"
    listener = f'[{{"name": "L", "bind": "127.0.0.1:{kafka_port}", "mode": "{mode}"}}]'
    if service == "gateway":
        return [*common, *nowhere, "--listeners", listener, "--gateway-id", "alone"]
    return [*common, *nowhere, *data, "--listeners", listener]


@pytest.mark.parametrize("service", ["controller", "storage-node", "gateway"])
def test_service_installs_and_starts_alone(service: str, tmp_path: Path, packages: Packages) -> None:
    bin_folder = install(service, tmp_path / "env", packages)
    if service == "controller":
        installed = pip(bin_folder / "python", "list", "--format", "freeze").lower()
        assert "pysyncobj==" in installed
        assert [name for name in ("aiokafka", "kio", "cramjam", "crc32c") if f"{name}==" in installed] == []
    command = str(bin_folder / f"penstock-{service}")
    shown = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "--http-bind" in shown.stdout

    (http_port,) = choose_free(1, set())
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "PYTHON"))}
    process = subprocess.Popen([command, *arguments(service, tmp_path, http_port)], env=environment)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert process.poll() is None, f"{service} ended with {process.returncode}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/healthz", timeout=20) as response:
                    assert response.status == 200
                break
            except OSError:
                assert time.monotonic() < deadline, f"{service} did not answer"
                time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=STOP_TIMEOUT_S) == 0
