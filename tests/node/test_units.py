"""Calls about units at a node: for whom they are, what they may ask, and how long they wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from node.harness import TOPIC, MiniCluster
from node.test_transaction_host import PLACE, Coordinator, coordinators
from penstock_core.errors import ErrorCode
from penstock_frontend.authorizer import AllowAll, Authorizer, Operation, ResourceType
from penstock_proto.v1 import sinks_pb2 as pb
from penstock_storage_node.rpc import units as rpc_units
from penstock_storage_node.rpc.units import UnitsService
from penstock_storage_node.transactions.host import TransactionHost
from penstock_storage_node.transactions.state import Add
from support.denials import Denying
from support.waiting import eventually

CALLER = pb.SinkCaller(principal_type="User", principal_name="alice", client_host="10.0.0.1")
UNIT = pb.SinkUnit(sink="s", query="q", epoch=4)
WRITE, DONE, LOST = pb.UNIT_VERDICT_WRITE, pb.UNIT_VERDICT_DONE, pb.UNIT_VERDICT_LOST


@pytest.fixture(autouse=True)
def _state_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionHost, "topic", TOPIC)


class Asked:
    """The service of a node, and its coordinator."""

    def __init__(self, coordinator: Coordinator, authorizer: Authorizer | None = None) -> None:
        self.coordinator = coordinator
        self.service = UnitsService(coordinator.host, authorizer or AllowAll())

    async def begin(self, name: str = "s-0-0-0", unit: pb.SinkUnit = UNIT) -> pb.BeginStageResponse:
        request = pb.BeginStageRequest(unit=unit, transactional_id=name, timeout_ms=60_000, caller=CALLER)
        return await self.service.begin_stage(request, None)

    async def staged(self, name: str) -> pb.StageTriple:
        """A stage with rows."""
        triple = (await self.begin(name)).triple
        wanted = Add(triple.producer_id, triple.producer_epoch, frozenset({PLACE}), 2)
        added = await self.coordinator.ask(lambda shard, reply: shard.add(name, wanted, reply))
        assert not added.error
        return triple

    async def commit(self, *triples: pb.StageTriple, unit: pb.SinkUnit = UNIT) -> pb.CommitUnitResponse:
        counted = [pb.UnitRows(topic="t", partition=0, rows=n) for n in (1, 2)]
        request = pb.CommitUnitRequest(unit=unit, triples=triples, rows=counted, caller=CALLER)
        return await self.service.commit_unit(request, None)

    async def abort(self, triple: pb.StageTriple, sink: str = "s") -> pb.AbortStageResponse:
        return await self.service.abort_stage(pb.AbortStageRequest(sink=sink, triple=triple), None)

    async def describe(self, sink: str = "s") -> pb.DescribeSinkResponse:
        return await self.service.describe_sink(pb.DescribeSinkRequest(sink=sink, caller=CALLER), None)

    async def list(self) -> pb.ListSinksResponse:
        return await self.service.list_sinks(pb.ListSinksRequest(caller=CALLER), None)


@pytest_asyncio.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[dict[int, Coordinator]]:
    """Three, of which 1 coordinates."""
    cluster = await MiniCluster(tmp_path).start(3)
    try:
        yield await coordinators(cluster)
    finally:
        await cluster.stop()


async def test_a_unit_of_a_sink_from_its_begin_to_its_end(nodes: dict[int, Coordinator]) -> None:
    asked = Asked(nodes[1])
    assert not (await asked.describe()).HasField("sink")
    begun = await asked.begin()
    assert begun.verdict == WRITE
    assert not begun.HasField("last")
    full, other = await asked.staged("s-1-0-0"), await asked.staged("s-2-0-0")
    assert not (await asked.abort(other)).error.code
    lost = await asked.commit(full, other)
    assert (lost.verdict, lost.lost) == (LOST, other)
    done = await asked.commit(begun.triple, full)
    assert (done.verdict, done.last) == (DONE, UNIT)
    assert [each.partitions for each in nodes[1].due if each.commit] == [(PLACE,)]
    state = (await asked.describe()).sink
    assert (state.last, state.ending_stages, list(state.open)) == (UNIT, 1, [])
    assert [(row.topic, row.partition, row.rows) for row in state.rows] == [("t", 0, 3)]
    nodes[1].write_markers()
    await eventually(lambda: not nodes[1].shard.markers(), "its end")
    again = await asked.begin()
    assert (again.verdict, again.last) == (DONE, UNIT)
    later = pb.SinkUnit(sink="s", query="q", epoch=5)
    assert (await asked.begin(unit=later)).last == UNIT
    [listed] = (await asked.list()).sinks
    assert (listed.sink, listed.last, list(listed.rows)) == ("s", UNIT, [])
    assert [stage.unit for stage in listed.open] == [later]


async def test_what_a_unit_was_made_of_is_told_with_what_the_sink_has_decided(
    nodes: dict[int, Coordinator],
) -> None:
    asked = Asked(nodes[1])
    made = pb.SinkUnit(sink="s", query="q", epoch=4, input=b"digest")
    for unit in (made, UNIT):
        done = await asked.commit(unit=unit)
        assert (done.verdict, done.last) == (DONE, made)
    assert (await asked.begin()).last == made
    assert (await asked.describe()).sink.last == made
    [listed] = (await asked.list()).sinks
    assert listed.last == made


async def test_each_call_asks_for_the_callers_right(nodes: dict[int, Coordinator]) -> None:
    authorizer = Denying(lambda *_: True)
    asked = Asked(nodes[1], authorizer)
    triple = pb.StageTriple(transactional_id="s-0-0-0")
    for answer in (
        await asked.begin(),
        await asked.commit(),
        await asked.abort(triple),
        await asked.describe(),
    ):
        assert answer.error.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    kind = ResourceType.TRANSACTIONAL_ID
    assert authorizer.told == [*[(Operation.WRITE, kind, "s")] * 3, (Operation.DESCRIBE, kind, "s")]
    assert (await Asked(nodes[1]).commit()).verdict == DONE
    assert not (await asked.list()).sinks
    assert len(authorizer.told) == 4  # what a list leaves out is not told of


async def test_another_node_says_that_it_is_not_the_coordinator(nodes: dict[int, Coordinator]) -> None:
    asked = Asked(nodes[2])
    triple = pb.StageTriple(transactional_id="s-0-0-0")
    for answer in (
        await asked.begin(),
        await asked.commit(),
        await asked.abort(triple),
        await asked.describe(),
    ):
        assert answer.error.code == ErrorCode.NOT_COORDINATOR
    assert not (await asked.list()).sinks


async def test_what_no_gateway_lets_through_changes_nothing(nodes: dict[int, Coordinator]) -> None:
    asked = Asked(nodes[1])
    for answer in (
        await asked.begin("other-0-0-0"),
        await asked.begin(unit=pb.SinkUnit(sink="s", epoch=-1)),
        await asked.commit(unit=pb.SinkUnit(query="q")),
        await asked.commit(unit=pb.SinkUnit(sink="s", query="q", input=b"d" * 65)),
        await asked.abort(pb.StageTriple(transactional_id="other-0-0-0")),
    ):
        assert answer.error.code == ErrorCode.INVALID_REQUEST
    assert nodes[1].shard.names() == []


async def test_an_answer_that_takes_too_long_is_given_up(
    nodes: dict[int, Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_units, "ANSWER_MS", 1)
    monkeypatch.setattr(nodes[1].shard, "_schedule", lambda: None)
    asked = Asked(nodes[1])
    answers: list[Any] = [await asked.begin(), await asked.commit(), await asked.describe("unknown")]
    assert [answer.error.code for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
