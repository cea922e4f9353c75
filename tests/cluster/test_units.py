"""Exactly-once units by real processes: stages, one decision for all of them, losers, and a coordinator that dies
between the decision and its end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import grpc
import pytest

from penstock.local.cluster import LocalCluster
from penstock_core.errors import ErrorCode
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.groups import transaction_partition
from penstock_proto.v1 import gateway_pb2, gateway_pb2_grpc
from penstock_proto.v1 import sinks_pb2 as pb
from support.cluster import running_cluster, start_ready
from support.kafka import create_topic, describe
from support.transactions import is_decided, read_to_end
from support.waiting import wait_for

STATE_PARTITIONS = 8
PARTITIONS = 3
TIMEOUT_S = 60.0
DONE, WRITE = pb.UNIT_VERDICT_DONE, pb.UNIT_VERDICT_WRITE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


class Native:
    """Native calls, and rows as a task writes them."""

    def __init__(self, cluster: LocalCluster, channel: grpc.Channel) -> None:
        self.cluster = cluster
        self.stub: Any = gateway_pb2_grpc.GatewayStub(channel)
        self._requests = count(1)

    def begin(self, unit: pb.SinkUnit, partition: int = 0, attempt: int = 0, **more: Any) -> Any:
        request = pb.BeginStageRequest(
            unit=unit, partition=partition, attempt=attempt, timeout_ms=600_000, **more
        )
        return self._told(self.stub.BeginStage(request, timeout=TIMEOUT_S))

    def commit(self, unit: pb.SinkUnit, *triples: pb.StageTriple, **more: Any) -> Any:
        request = pb.CommitUnitRequest(unit=unit, triples=triples, **more)
        return self._told(self.stub.CommitUnit(request, timeout=TIMEOUT_S))

    def abort(self, sink: str, triple: pb.StageTriple) -> None:
        self._told(self.stub.AbortStage(pb.AbortStageRequest(sink=sink, triple=triple), timeout=TIMEOUT_S))

    def describe(self, sink: str) -> Any:
        return self._told(self.stub.DescribeSink(pb.DescribeSinkRequest(sink=sink), timeout=TIMEOUT_S)).sink

    def stage(
        self,
        unit: pb.SinkUnit,
        topic: str,
        rows: Mapping[int, Sequence[str]],
        partition: int = 0,
        attempt: int = 0,
    ) -> pb.StageTriple:
        """A task: begins a stage, and writes these rows by partition of the topic."""
        begun = self.begin(unit, partition, attempt)
        assert begun.verdict == WRITE, begun
        for number, values in rows.items():
            error = self.write(begun.triple, topic, number, values)
            assert not error.code, error
        triple: pb.StageTriple = begun.triple
        return triple

    def write(self, triple: pb.StageTriple, topic: str, partition: int, values: Sequence[str]) -> Any:
        batch = build_batch(
            [NewRecord(None, value.encode(), int(time.time() * 1000)) for value in values],
            producer_id=triple.producer_id,
            producer_epoch=triple.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        request = gateway_pb2.ProduceRequest(
            request_id=next(self._requests),
            topic=topic,
            partition=partition,
            records=batch,
            acks=-1,
            transactional_id=triple.transactional_id,
        )
        [response] = self.stub.Produce(iter([request]), timeout=TIMEOUT_S)
        return response.error

    def _told(self, response: Any) -> Any:
        assert not response.error.code, response.error
        return response


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Native]:
    settings = {"controller": {"transaction_state_log_num_partitions": str(STATE_PARTITIONS)}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_FAILPOINTS", "@faults")
        patch.setenv("PENSTOCK_ALLOW_FAILPOINTS", "true")
        directory = tmp_path_factory.mktemp("units")
        with (
            running_cluster(directory, controllers=1, nodes=3, settings=settings, steady=True) as cluster,
            grpc.insecure_channel(cluster.gateways_alive("grpc")[0]) as channel,
        ):
            yield Native(cluster, channel)


def unit_of(sink: str, epoch: int = 0, query: str = "q") -> pb.SinkUnit:
    return pb.SinkUnit(sink=sink, query=query, epoch=epoch)


def rows(word: str, size: int = 3) -> dict[int, list[str]]:
    return {partition: [f"{word}-{partition}-{n}" for n in range(size)] for partition in range(PARTITIONS)}


def seen(native: Native, topic: str) -> list[str]:
    """What a reader of committed records finds, once nothing of the topic is open."""
    bootstrap = native.cluster.bootstrap
    wait_for(lambda: is_decided(bootstrap, topic, PARTITIONS), "nothing is open")
    found = Counter(
        value for values in read_to_end(bootstrap, topic, "read_committed").values() for value in values
    )
    assert not [value for value, times in found.items() if times > 1], "a row is there twice"
    return sorted(found)


def all_of(*words: str) -> list[str]:
    return sorted(value for word in words for values in rows(word).values() for value in values)


def test_a_unit_counts_at_once_and_what_it_leaves_over_never_does(native: Native) -> None:
    sink = topic = "whole"
    create_topic(native.cluster.bootstrap, topic, PARTITIONS)
    assert not native.describe(sink).sink
    first = unit_of(sink)
    one, two = native.stage(first, topic, rows("one"), 0), native.stage(first, topic, rows("two"), 1)
    empty = native.stage(first, topic, {}, 2)
    loser = native.stage(first, topic, rows("loser"), 1, attempt=1)
    aborted = native.stage(first, topic, rows("aborted"), 0, attempt=1)
    assert len({triple.transactional_id for triple in (one, two, empty, loser, aborted)}) == 5
    native.abort(sink, aborted)
    native.abort(sink, aborted)
    state = native.describe(sink)
    assert not state.HasField("last")
    assert {stage.triple.transactional_id: stage.started_at_ms > 0 for stage in state.open} == {
        one.transactional_id: True,
        two.transactional_id: True,
        empty.transactional_id: False,
        loser.transactional_id: True,
    }
    counted = [pb.UnitRows(topic=topic, partition=0, rows=6)]
    done = native.commit(first, one, two, empty, rows=counted)
    assert (done.verdict, done.last) == (DONE, first)
    assert seen(native, topic) == all_of("one", "two")
    state = native.describe(sink)
    assert (state.last, list(state.rows), list(state.open)) == (first, counted, [])
    wait_for(lambda: native.describe(sink).ending_stages == 0, "all its markers are written")
    # The loser's task goes on, and hears that it may not.
    assert native.write(loser, topic, 0, ["late"]).code in (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    )
    # A driver that did not hear of it asks again; its tasks need not write.
    assert native.commit(first, one, two, empty).verdict == DONE
    assert native.begin(first).verdict == DONE
    assert native.begin(unit_of(sink, 0, "other")).verdict == pb.UNIT_VERDICT_FOREIGN
    second = unit_of(sink, 1)
    three = native.stage(second, topic, rows("three"), 0)
    assert three.transactional_id == one.transactional_id
    lost = native.commit(second, three, one)
    assert (lost.verdict, lost.lost, lost.last) == (pb.UNIT_VERDICT_LOST, one, first)
    assert native.commit(second, three).verdict == DONE
    assert native.commit(first).verdict == pb.UNIT_VERDICT_STALE
    assert native.begin(unit_of(sink, 0, "other"), takeover=True).verdict == WRITE
    assert seen(native, topic) == all_of("one", "two", "three")
    listed = native.stub.ListSinks(pb.ListSinksRequest(), timeout=TIMEOUT_S)
    assert not listed.error.code
    assert [(each.sink, each.last.epoch) for each in listed.sinks] == [(sink, 1)]


@pytest.mark.parametrize("failpoint", ["transactions.unit.after_append", "transactions.unit.covered"])
def test_a_coordinator_dies_between_the_decision_and_its_end(native: Native, failpoint: str) -> None:
    cluster = native.cluster
    sink = topic = failpoint.rpartition(".")[2].replace("_", "-")
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    unit = unit_of(sink)
    triples = [native.stage(unit, topic, rows(f"task{n}"), n) for n in range(3)]
    loser = native.stage(unit, topic, rows("loser"), 0, attempt=1)
    assert loser.transactional_id
    partition = transaction_partition(sink, STATE_PARTITIONS)
    victim = f"node-{describe(cluster.bootstrap, TRANSACTIONS_TOPIC)[partition].leader}"
    faults = cluster.directory / victim / "faults"
    faults.write_text(f"{failpoint}=kill")
    try:
        # The gateway asks the next coordinator, which may find it decided, or decides it.
        assert native.commit(unit, *triples).verdict == DONE
        wait_for(lambda: victim not in cluster.alive(), "it is dead")
    finally:
        faults.unlink()
    assert seen(native, topic) == all_of("task0", "task1", "task2")
    assert native.commit(unit, *triples).verdict == DONE
    start_ready(cluster, victim)
    assert native.describe(sink).last == unit


@pytest.mark.parametrize(
    ("call", "request_of", "words"),
    [
        ("BeginStage", pb.BeginStageRequest(timeout_ms=1), "sink has no name"),
        ("BeginStage", pb.BeginStageRequest(unit=unit_of("a b"), timeout_ms=1), "letters, digits"),
        ("BeginStage", pb.BeginStageRequest(unit=unit_of("a" * 201), timeout_ms=1), "201 bytes"),
        ("BeginStage", pb.BeginStageRequest(unit=unit_of("a", -1), timeout_ms=1), "epochs are 0 or more"),
        ("BeginStage", pb.BeginStageRequest(unit=unit_of("a"), partition=-1, timeout_ms=1), "0 or more"),
        (
            "CommitUnit",
            pb.CommitUnitRequest(unit=unit_of("a"), triples=[pb.StageTriple(transactional_id="b-0-0-0")]),
            "no stage of sink a",
        ),
        ("AbortStage", pb.AbortStageRequest(sink="a"), "no stage of sink a"),
        ("DescribeSink", pb.DescribeSinkRequest(), "sink has no name"),
    ],
)
def test_what_nobody_may_ask_is_refused_in_one_line(
    native: Native, call: str, request_of: Any, words: str
) -> None:
    with pytest.raises(grpc.RpcError) as told:
        getattr(native.stub, call)(request_of, timeout=TIMEOUT_S)
    error: Any = told.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.details()
    assert "\n" not in error.details()


def test_a_stage_of_no_time_is_refused_with_the_limit(native: Native) -> None:
    response = native.stub.BeginStage(pb.BeginStageRequest(unit=unit_of("a")), timeout=TIMEOUT_S)
    assert response.error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert "transaction.max.timeout.ms" in response.error.message
