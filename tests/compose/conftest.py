"""One compose stack for all tests of this folder, taken down with its volumes after them."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from compose import engine
from penstock.local.ports import choose_free
from penstock_core.process.credentials import load_client_file
from penstock_core.security.client_file import ClientFile
from support.kafka import Door

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "deploy" / "compose" / "compose.yaml"
PLAINTEXT_FILE = ROOT / "deploy" / "compose" / "compose.plaintext.yaml"
BUILT = ("secrets", "cli", "controller-1", "controller-2", "controller-3", "storage-node", "gateway", "spark")
READY_TIMEOUT_S = 300
ENGINE_STOP_TIMEOUT_S = 180


@dataclass
class Stack:
    """A running compose project and the addresses that it publishes."""

    client: docker.DockerClient
    project: str
    command: list[str]
    environment: dict[str, str]
    kafka_port: int
    http_port: int
    secrets: Path
    """The directory of this machine that client files come to."""
    plaintext: bool = False
    """Whether it was last started with the second file."""

    @property
    def client_file(self) -> ClientFile:
        return load_client_file(self.secrets / "admin.properties")

    @property
    def bootstrap(self) -> str:
        address = f"localhost:{self.kafka_port}"
        return address if self.plaintext else Door.of(address, self.client_file.librdkafka())

    def compose(self, *arguments: str) -> str:
        """Run compose on this project; a failure shows what it printed."""
        more = ["-f", str(PLAINTEXT_FILE)] if self.plaintext else []
        done = subprocess.run(
            [*self.command, *more, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.fail(
                f"compose {' '.join(arguments)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            )
        return done.stdout

    def containers(self, service: str) -> list[Any]:
        labels = [f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}"]
        return list(self.client.containers.list(all=True, filters={"label": labels}))

    def get_json(self, path: str) -> Any:
        request, context = urllib.request.Request(f"http://localhost:{self.http_port}{path}"), None
        if not self.plaintext:
            file = self.client_file
            request.full_url = f"https://localhost:{self.http_port}{path}"
            word = base64.b64encode(f"{file.username}:{file.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {word}")
            context = ssl.create_default_context(cafile=file.ca_file)
        with urllib.request.urlopen(request, timeout=20, context=context) as response:
            return json.load(response)

    def wait(self, what: str, holds: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until `holds`; an address that does not answer yet, or not all of it, counts as not holding."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(
                urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError
            ):
                if holds():
                    return
            time.sleep(0.2)
        logs = self.compose("logs", "--tail=40")
        pytest.fail(f"not within {timeout_s} s: {what}\n{logs[-6000:]}")

    def live_node_count(self) -> int:
        return sum(node["state"] == "live" for node in self.get_json("/v1/cluster")["nodes"])


def _compose_command() -> list[str]:
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    done = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if done.returncode == 0:
        return ["docker", "compose"]
    pytest.skip("neither docker-compose nor docker compose is installed")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    scratch = tmp_path_factory.mktemp("compose")
    command = _compose_command()
    try:
        client, started = engine.ensure_engine(scratch / "dockerd.log")
        base_image, edge_image = engine.ensure_base_image(client), engine.ensure_edge_image(client)
    except engine.EngineMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have a Docker Engine: {missing}")
        pytest.skip(str(missing))
    # Images that install packages may only reach a package index over the host's network.
    override = scratch / "override.yaml"
    override.write_text(json.dumps({"services": {name: {"build": {"network": "host"}} for name in BUILT}}))
    # Outside the range of outgoing connections: one of those may come while images are built, or between
    # the stack's end and its return.
    ports = dict(zip(("KAFKA", "GRPC", "HTTP"), choose_free(3, set()), strict=True))
    project = f"penstocktest{random.SystemRandom().randrange(10**6)}"
    secrets = scratch / "secrets"
    secrets.mkdir()
    environment = dict(os.environ) | {
        "BASE_IMAGE": base_image,
        "HAPROXY_IMAGE": edge_image,
        "DOCKER_BUILDKIT": "0",
        "COMPOSE_DOCKER_CLI_BUILD": "0",
        "PENSTOCK_VERSION": "test",
        "PENSTOCK_SECRETS": str(secrets),
        "PENSTOCK_ADVERTISED_TO_HOST": f"localhost:{ports['KAFKA']}",
        **{f"PENSTOCK_{name}_PORT": str(port) for name, port in ports.items()},
    }
    command += ["-p", project, "-f", str(COMPOSE_FILE), "-f", str(override)]
    running = Stack(client, project, command, environment, ports["KAFKA"], ports["HTTP"], secrets)
    try:
        # Those that share an image are built once.
        running.compose(
            "build", "--parallel", "--quiet", "secrets", "controller-1", "storage-node", "gateway"
        )
        running.compose("up", "-d")
        running.wait("three live nodes", lambda: running.live_node_count() == 3)
        yield running
    finally:
        running.compose("down", "--volumes", "--timeout", "5")
        client.close()
        if started is not None:
            started.send_signal(signal.SIGTERM)
            started.wait(timeout=ENGINE_STOP_TIMEOUT_S)
