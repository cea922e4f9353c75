"""Calls of exactly-once units: whom they are asked of, what is repeated, what nobody may ask, and rights."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from penstock_core.errors import ErrorCode
from penstock_core.metadata.levels import TRANSACTIONS_LEVEL
from penstock_core.security.principal import Identity, user
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_frontend.authorizer import AllowAll
from penstock_gateway.rpc import units
from penstock_gateway.rpc.units import SMALL_NUMBERS, BadUnit, UnitRelay, stage_id
from penstock_kafka.wire.groups import transaction_partition
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import sinks_pb2 as pb
from support.denials import Denying

Rig = Any
ALICE = Identity(user("alice"), "10.0.0.1")
UNIT = pb.SinkUnit(sink="s", query="q", epoch=3)
WRITE = pb.BeginStageResponse(
    verdict=pb.UNIT_VERDICT_WRITE, triple=pb.StageTriple(transactional_id="s-0-0-0", producer_id=7)
)


def failed(code: ErrorCode, kind: Any = pb.BeginStageResponse) -> Any:
    return kind(error=common_pb2.Error(code=code, message="as the script says"))


@pytest.fixture
def asked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> UnitRelay:
    """Of a rig whose state topic has three partitions, led by 1, 2 and 1."""
    monkeypatch.setattr(units, "level_of", lambda _: TRANSACTIONS_LEVEL)
    rig.topics[TRANSACTIONS_TOPIC] = b"s" * 16
    rig.publish()
    return UnitRelay(rig.relay, None)


def home(rig: Rig, sink: str = "s") -> Any:
    """The node that coordinates a sink."""
    return rig.nodes[rig.leaders[transaction_partition(sink, 3)]]


async def begin(asked: UnitRelay, left_s: float | None = None, **changes: Any) -> pb.BeginStageResponse:
    wanted: dict[str, Any] = {"unit": UNIT, "partition": 4, "attempt": 1, "timeout_ms": 9, **changes}
    return await asked.begin_stage(pb.BeginStageRequest(**wanted), ALICE, left_s)


async def test_a_stage_is_asked_of_the_sinks_coordinator_for_its_caller(rig: Rig, asked: UnitRelay) -> None:
    home(rig).unit_script = [WRITE]
    forged = pb.SinkCaller(principal_type="User", principal_name="root", client_host="x")
    assert await begin(asked, caller=forged, transactional_id="s-forged") == WRITE
    [request] = home(rig).unit_calls
    assert request.transactional_id == stage_id("s", 4, 1, 3)
    caller = request.caller
    assert (caller.principal_type, caller.principal_name, caller.client_host) == ("User", "alice", "10.0.0.1")
    assert (request.unit, request.partition, request.attempt, request.timeout_ms) == (UNIT, 4, 1, 9)


@pytest.mark.parametrize("partition_count", [1, 3, 8, 31, 50, 62])
def test_all_ids_of_a_sink_lie_in_its_partition(partition_count: int) -> None:
    for sink in ("s", "4f8a9c1e-1d3b-4c55-9d0f-0c9a1b2c3d4e", "a-1"):
        found = {
            stage_id(sink, partition, attempt, partition_count)
            for partition in range(5)
            for attempt in range(2)
        }
        assert len(found) == 10
        for name in found:
            home = transaction_partition(sink, partition_count)
            assert transaction_partition(name, partition_count) == home
            assert re.fullmatch(rf"{sink}-\d+-\d+-\d+", name)


def test_a_stages_id_has_the_smallest_number_that_fits() -> None:
    name = stage_id("s", 0, 0, 50)
    number = int(name.rpartition("-")[2])
    assert number < SMALL_NUMBERS
    home = transaction_partition("s", 50)
    assert [n for n in range(number + 1) if transaction_partition(f"s-0-0-{n}", 50) == home] == [number]


@pytest.mark.parametrize(
    "passing",
    [
        failed(ErrorCode.NOT_COORDINATOR),
        failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        failed(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        failed(ErrorCode.CONCURRENT_TRANSACTIONS),
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
    ],
    ids=str,
)
async def test_what_passes_is_waited_for(rig: Rig, asked: UnitRelay, passing: Any) -> None:
    home(rig).unit_script = [passing, passing, WRITE]
    assert await begin(asked) == WRITE
    assert len(home(rig).unit_calls) == 3


async def test_a_call_goes_on_at_the_next_coordinator(rig: Rig, asked: UnitRelay) -> None:
    old, partition = home(rig), transaction_partition("s", 3)

    async def moves(request: Any, context: Any) -> Any:
        del request, context
        rig.move(partition, 3 - old.node_id)
        rig.publish()
        home(rig).unit_script = [WRITE]
        return failed(ErrorCode.NOT_COORDINATOR)

    await old.die()
    old.BeginStage = moves
    await old.start()
    rig.publish()
    assert await begin(asked) == WRITE
    assert home(rig) is not old


async def test_at_the_end_of_its_time_a_call_says_what_held_it_up(
    rig: Rig, asked: UnitRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "CALL_MS", 100)
    home(rig).unit_script = [grpc.StatusCode.UNIMPLEMENTED] * 20
    response = await begin(asked)
    assert response.error.code == ErrorCode.NOT_COORDINATOR
    assert "older build" in response.error.message
    rig.leaders = [-1, -1, -1]
    rig.publish()
    response = await begin(asked, left_s=0.1)
    assert response.error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "no leader" in response.error.message


async def test_what_does_not_pass_is_told_at_once(rig: Rig, asked: UnitRelay) -> None:
    home(rig).unit_script = [failed(ErrorCode.INVALID_TRANSACTION_TIMEOUT)]
    assert (await begin(asked)).error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


async def test_rights_are_asked_before_anything_else(rig: Rig, asked: UnitRelay) -> None:
    rig.relay.authorizer = Denying(lambda *_: True)
    for answer in (
        await begin(asked),
        await asked.commit_unit(pb.CommitUnitRequest(unit=UNIT), ALICE, None),
        await asked.abort_stage(
            pb.AbortStageRequest(sink="s", triple=pb.StageTriple(transactional_id="s-0-0-0")), ALICE, None
        ),
        await asked.describe_sink(pb.DescribeSinkRequest(sink="s"), ALICE, None),
    ):
        assert answer.error.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert "User:alice" in answer.error.message
    assert not any(node.unit_calls for node in rig.nodes.values())


async def test_sinks_are_listed_from_all_nodes_and_who_says_nothing_is_named(
    rig: Rig, asked: UnitRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "CALL_MS", 100)
    rig.nodes[1].unit_script = [pb.ListSinksResponse(sinks=[pb.SinkState(sink="z"), pb.SinkState(sink="a")])]
    rig.nodes[2].unit_script = [pb.ListSinksResponse(sinks=[pb.SinkState(sink="k")])]
    response = await asked.list_sinks(pb.ListSinksRequest(), ALICE, None)
    assert [state.sink for state in response.sinks] == ["a", "k", "z"]
    assert not response.error.code
    rig.nodes[1].unit_script = [pb.ListSinksResponse(sinks=[pb.SinkState(sink="a"), pb.SinkState(sink="b")])]
    rig.nodes[2].unit_script = [grpc.StatusCode.UNAVAILABLE] * 20
    rig.relay.authorizer = Denying(lambda _operation, _kind, name: name == "b")
    response = await asked.list_sinks(pb.ListSinksRequest(), ALICE, None)
    assert [state.sink for state in response.sinks] == ["a"]
    assert "node 2" in response.error.message


async def test_without_the_state_topic_there_is_nothing_to_describe_or_abort(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "level_of", lambda _: TRANSACTIONS_LEVEL)
    asked = UnitRelay(rig.relay, None)
    assert not (await asked.describe_sink(pb.DescribeSinkRequest(sink="s"), ALICE, None)).HasField("sink")
    triple = pb.StageTriple(transactional_id="s-0-0-0")
    aborted = await asked.abort_stage(pb.AbortStageRequest(sink="s", triple=triple), ALICE, None)
    assert not aborted.error.code
    assert not (await asked.list_sinks(pb.ListSinksRequest(), ALICE, None)).sinks
    assert (await begin(asked)).error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_cluster_of_a_lower_level_has_no_units(rig: Rig) -> None:
    assert isinstance(rig.relay.authorizer, AllowAll)
    response = await begin(UnitRelay(rig.relay, None))
    assert response.error.code == ErrorCode.UNSUPPORTED_VERSION
    assert "penstock cluster upgrade" in response.error.message


def _stage(**changes: Any) -> Callable[[UnitRelay], Any]:
    return lambda asked: begin(asked, **changes)


def _commit(*triples: pb.StageTriple, **changes: Any) -> Callable[[UnitRelay], Any]:
    request = pb.CommitUnitRequest(unit=UNIT, triples=triples, **changes)
    return lambda asked: asked.commit_unit(request, ALICE, None)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (_stage(unit=pb.SinkUnit(query="q")), "the sink has no name"),
        (_stage(unit=pb.SinkUnit(sink="s")), "the query has no name"),
        (_stage(unit=pb.SinkUnit(sink="é" * 101, query="q")), "202 bytes"),
        (_stage(unit=pb.SinkUnit(sink="a b", query="q")), "letters, digits"),
        (_stage(unit=pb.SinkUnit(sink="a", query="q\n")), "cannot be shown"),
        (_stage(unit=pb.SinkUnit(sink="a", query="q", epoch=-1)), "0 or more"),
        (
            _stage(unit=pb.SinkUnit(sink="a", query="q", input=b"d" * 65)),
            "an input of 65 bytes, the most is 64",
        ),
        (_stage(partition=-1), "0 or more"),
        (_stage(attempt=-1), "0 or more"),
        (_commit(pb.StageTriple(transactional_id="t-0-0-0")), "no stage of sink s"),
        (_commit(pb.StageTriple(transactional_id="s-1-0-0-0")), "no stage of sink s"),
        (_commit(pb.StageTriple(transactional_id="s-0-0-x")), "no stage of sink s"),
        (_commit(pb.StageTriple(transactional_id="s-0-0-0", producer_id=-1)), "BeginStage"),
        (_commit(pb.StageTriple(transactional_id="s-0-0-0", producer_epoch=32_768)), "BeginStage"),
        (_commit(rows=[pb.UnitRows(topic="t", rows=-1)]), "-1 rows"),
    ],
)
async def test_what_nobody_may_ask_is_refused_in_one_line(
    asked: UnitRelay, call: Callable[[UnitRelay], Any], words: str
) -> None:
    with pytest.raises(BadUnit) as told:
        await call(asked)
    assert words in str(told.value)
    assert "\n" not in str(told.value)
