"""A cluster whose controllers are of two builds from the beginning: it begins at the level that all understand."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_core.limits import FEATURE_LEVEL
from penstock_proto.v1 import controller_pb2 as api
from penstock_runtime.grpc_tools import ChannelPool
from support.controllers import Controllers
from upgrade.builds import base_commit, unpack

PATIENCE_S = 180

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


async def test_a_new_quorum_of_two_builds_begins_at_the_lower_level(tmp_path: Path) -> None:
    build = unpack(base_commit(), tmp_path / "build")
    assert build.check() < FEATURE_LEVEL
    controllers = Controllers(tmp_path, 3, raft_silence_ms=3_000)
    controllers.environment_of[3] = build.environment
    channels = ChannelPool()
    try:
        # The build of before is slower to start where modules are compiled first; it is there when the others come.
        controllers.start(3)
        async with asyncio.timeout(PATIENCE_S):
            while not listens(controllers.raft_ports[2]):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
            controllers.start(1)
            controllers.start(2)
            while await controllers.active_id(channels) < 0:  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.05)
            request = api.AllocateProducerIdsRequest(owner="test")
            await controllers.client(channels).call("AllocateProducerIds", request, PATIENCE_S * 1000)
        done = await asyncio.to_thread(
            subprocess.run,
            [
                *(sys.executable, "-m", "penstock.cli.main", "cluster", "upgrade", "--dry-run", "--json"),
                *("--controllers", ",".join(controllers.addresses)),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert json.loads(done.stdout)["level"] == build.check(), done
        # Whoever founded it, the one of before takes part.
        assert all(process.poll() is None for process in controllers.processes.values())
        version = (await controllers.describe(channels, await controllers.active_id(channels))).version
        async with asyncio.timeout(PATIENCE_S):
            while (await controllers.describe(channels, 3)).version < version:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        await channels.close()
        controllers.kill_all()
