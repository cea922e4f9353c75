"""`penstock cluster upgrade`: the plan it prints, whom it asks, and who is in the way.

Controllers here have what a test says of them; whether a level may rise is decided by the real rule.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock_controller.state import features
from penstock_controller.state.generation import Context
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.levels import METADATA_LEVEL, level_of
from penstock_proto.v1 import common_pb2, metadata_pb2
from penstock_proto.v1 import controller_pb2 as pb
from unit.runtime.fake_controllers import Cluster, FakeController, controllers

pytestmark = pytest.mark.timeout(300)

PROCESS_TIMEOUT_S = 120.0


class Upgrade:
    """A cluster of level 1 with one controller, one node and one gateway, all of the new build."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = address

    @property
    def level(self) -> int:
        return level_of(self.cluster.image)

    async def run(self, *words: str, expect: int = 0) -> tuple[str, str]:
        """What the command prints without a terminal."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.cli.main", "cluster", "upgrade", *words),
            *("--controllers", self.address),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), PROCESS_TIMEOUT_S)
        assert process.returncode == expect, (words, process.returncode, out, err)
        return out.decode(), err.decode()


def info(level: int, version: str = "0.2.0") -> common_pb2.ProcessInfo:
    return common_pb2.ProcessInfo(version=version, feature_level=level)


@asynccontextmanager
async def cluster_of_level_1(
    monkeypatch: pytest.MonkeyPatch,
    *,
    controller: int = FEATURE_LEVEL,
    node: int = FEATURE_LEVEL,
    gateway: int = FEATURE_LEVEL,
) -> AsyncIterator[Upgrade]:
    async def describe(self: FakeController, _request: Any, _context: Any) -> pb.DescribeQuorumResponse:
        member = pb.QuorumMember(controller_id=1, grpc_address=self.endpoint.address, reachable=True)
        absent = pb.QuorumMember(controller_id=2, grpc_address="127.0.0.1:1")
        return pb.DescribeQuorumResponse(
            controller_id=1,
            active_controller_id=1,
            term=1,
            version=self.cluster.image.version,
            voter=True,
            process=info(controller) if controller else None,
            members=[member] if controller else [member, absent],
        )

    async def update(self: FakeController, request: Any, _context: Any) -> pb.UpdateFeaturesResponse:
        made = features.update_features(
            Context(self.cluster.image, random.Random(0)), request, {1: controller}
        )
        if made.records:
            made.reply.version = self.cluster.commit(*made.records)
        return made.reply

    monkeypatch.setattr(FakeController, "DescribeQuorum", describe)
    monkeypatch.setattr(FakeController, "UpdateFeatures", update, raising=False)
    async with controllers(1) as (cluster, (one,)):
        cluster.commit(
            metadata_pb2.MetadataRecord(
                cluster=metadata_pb2.ClusterRecord(cluster_id=bytes(15) + b"c"),
            ),
        )
        cluster.commit(
            metadata_pb2.MetadataRecord(
                node=metadata_pb2.NodeRecord(
                    node_id=7,
                    process=info(node, "0.2.0" if node > 1 else "0.1.0"),
                    grpc=common_pb2.Endpoint(host="h", port=1),
                )
            ),
            metadata_pb2.MetadataRecord(
                gateway=metadata_pb2.GatewayRecord(gateway_id="gw-1", process=info(gateway))
            ),
        )
        yield Upgrade(cluster, one.endpoint.address)


PLAN = """\
ROLE          NAME  VERSION  LEVEL  STATE
controller    1     0.2.0    4      ready
storage node  7     0.2.0    4      ready
gateway       gw-1  0.2.0    4      ready
"""


def test_a_level_is_raised_once_and_the_plan_shows_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with cluster_of_level_1(monkeypatch) as c:
            out, err = await c.run("--dry-run")
            assert (out, err) == (PLAN, "metadata.level would go from 1 to 4\n")
            assert c.level == 1
            out, err = await c.run("--yes")
            assert (out, err) == (PLAN, "metadata.level is 4 now; it was 1\n")
            assert c.level == 4
            out, err = await c.run("--yes", "--json")
            assert json.loads(out) == {
                "level": 4,
                "wanted": 4,
                "raised": False,
                "processes": [
                    {"role": role, "name": name, "version": "0.2.0", "level": 4, "state": "ready"}
                    for role, name in (("controller", "1"), ("storage node", "7"), ("gateway", "gw-1"))
                ],
                "in_the_way": [],
            }
            assert err == "metadata.level is 4 already\n"
            _, err = await c.run("--yes", "--level", "1", expect=1)
            assert "cannot go back" in err
            assert c.level == 4

    asyncio.run(main())


def test_without_a_terminal_and_without_a_word_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with cluster_of_level_1(monkeypatch) as c:
            for words in ((), ("--json",), ("--level", "2")):
                out, err = await c.run(*words, expect=2)
                assert out == ""
                assert "--yes" in err
                assert "--dry-run" in err
            assert c.level == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("levels", "named"),
    [
        ({"node": 1}, "storage node 7 (understands level 1)"),
        ({"gateway": 0}, "gateway gw-1 (understands level 1)"),
        ({"controller": 1}, "controller 1 (understands level 1)"),
        ({"controller": 0}, "controller 2 (does not answer)"),
    ],
)
def test_who_is_in_the_way_is_named_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch, levels: dict[str, int], named: str
) -> None:
    async def main() -> None:
        async with cluster_of_level_1(monkeypatch, **levels) as c:
            for word in ("--yes", "--dry-run"):
                out, err = await c.run(word, expect=1)
                assert "in the way" in out
                assert named in err
                assert err.count("\n") == 1
            out, _ = await c.run("--yes", "--json", expect=1)
            assert json.loads(out)["in_the_way"]
            _, err = await c.run("--yes", "--level", "1")
            assert err == "metadata.level is 1 already\n"
            assert METADATA_LEVEL not in c.cluster.image.features

    asyncio.run(main())
