"""Controller processes for tests: a quorum on loopback that can be killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc

from penstock.local.ports import choose_free
from penstock_proto.v1 import controller_pb2 as api
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool

END_TIMEOUT_S = 120
"""For a process to be gone: it may wait for a slow disk."""
DESCRIBE_TIMEOUT_S = 120


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, outside the range from which outgoing connections get theirs.

    Else a connection, even one of its own peers that try to reach it, could sit on a dead controller's port.
    """
    return choose_free(count, set())


class Controllers:
    """`count` controller processes; ids from 1."""

    def __init__(self, directory: Path, count: int, **settings: object) -> None:
        self.directory = directory
        self.count = count
        ports = free_ports(2 * count)
        self.raft_ports, self.grpc_ports = ports[:count], ports[count:]
        self.settings = settings
        self.settings_of: dict[int, dict[str, object]] = {}
        """What only some controllers are told, by id."""
        self.environment_of: dict[int, dict[str, str]] = {}
        """What only some have in their environment, by id: that of another build."""
        self.unheard: set[int] = set()
        """Controllers that cannot be asked with the certificate of this test."""
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.measure_stalls = False
        """Start controllers so that they measure how long they hold themselves up; see `stalls`."""

    @property
    def addresses(self) -> list[str]:
        return [f"{i}@127.0.0.1:{p}" for i, p in enumerate(self.grpc_ports, 1)]

    def start(self, controller_id: int) -> None:
        arguments = {
            "controller-id": controller_id,
            "data-dir": self.directory / f"controller-{controller_id}",
            "raft-bind": f"127.0.0.1:{self.raft_ports[controller_id - 1]}",
            "raft-peers": ",".join(f"{i}@127.0.0.1:{p}" for i, p in enumerate(self.raft_ports, 1)),
            "controllers": ",".join(self.addresses),
            "grpc-bind": f"127.0.0.1:{self.grpc_ports[controller_id - 1]}",
            **{key.replace("_", "-"): value for key, value in self.settings.items()},
            **{k.replace("_", "-"): v for k, v in self.settings_of.get(controller_id, {}).items()},
        }
        command = [sys.executable, "-P", "-m", "penstock_controller"]
        if self.measure_stalls:
            command = [sys.executable, "-m", "support.stalls", str(self._stalls_path(controller_id))]
        for key, value in arguments.items():
            command += [f"--{key}", str(value)]
        with self.log_path(controller_id).open("ab") as log:
            self.processes[controller_id] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                    **self.environment_of.get(controller_id, {}),
                },
            )

    def _stalls_path(self, controller_id: int) -> Path:
        return self.directory / f"stalls-{controller_id}.json"

    async def stalls(self, controller_id: int) -> dict[str, float | str]:
        """The longest holds since it was last asked; see `stalls`."""
        path = self._stalls_path(controller_id)
        path.unlink(missing_ok=True)
        self.processes[controller_id].send_signal(signal.SIGUSR2)
        async with asyncio.timeout(60):
            while not path.exists():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        found: dict[str, float | str] = json.loads(path.read_text())
        return found

    def start_all(self) -> None:
        for controller_id in range(1, self.count + 1):
            self.start(controller_id)

    def kill(self, controller_id: int, number: signal.Signals = signal.SIGKILL) -> None:
        process = self.processes.pop(controller_id)
        os.kill(process.pid, number)
        process.wait(timeout=END_TIMEOUT_S)

    def kill_all(self) -> None:
        """All at once, as a power cut does."""
        for process in self.processes.values():
            os.kill(process.pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait(timeout=END_TIMEOUT_S)
        self.processes.clear()

    def log_path(self, controller_id: int) -> Path:
        return self.directory / f"controller-{controller_id}.log"

    def log(self, controller_id: int) -> str:
        return self.log_path(controller_id).read_text()

    def client(self, channels: ChannelPool) -> ControllerClient:
        return ControllerClient(self.addresses, "test", channels)

    async def describe(self, channels: ChannelPool, controller_id: int) -> api.DescribeQuorumResponse:
        stub = self.client(channels).stub(f"127.0.0.1:{self.grpc_ports[controller_id - 1]}")
        async with asyncio.timeout(DESCRIBE_TIMEOUT_S):
            while True:
                try:
                    response: api.DescribeQuorumResponse = await stub.DescribeQuorum(
                        api.DescribeQuorumRequest(), timeout=DESCRIBE_TIMEOUT_S, wait_for_ready=True
                    )
                    return response
                except grpc.aio.AioRpcError as error:
                    # The channel may still have the connection to a process that was killed.
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                await asyncio.sleep(0.05)

    async def active_id(self, channels: ChannelPool) -> int:
        """Id of the active controller, -1 when nobody says that it is."""
        for controller_id in self.processes.keys() - self.unheard:
            response = await self.describe(channels, controller_id)
            if response.active_controller_id == controller_id:
                return controller_id
        return -1
