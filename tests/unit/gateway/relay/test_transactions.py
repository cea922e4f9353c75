"""Requests of transactions at the gateway: routed by id, split by coordinator or leader, joined, answered 16 when
a coordinator moves."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.build import request as build_request
from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId, TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock_gateway.relay.request import Outcome, Part, Relayed
from penstock_gateway.relay.transactions import TRANSACTION_CALLS, TransactionCall
from penstock_gateway.routing.flight import InFlight
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import SPECS, SUPPORTED, ApiKey, OnLoss
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.groups import group_partition, named_transaction, transaction_partition
from penstock_proto.v1 import metadata_pb2 as pb

E = ErrorCode
COUNT = 5
OFFSETS, STATE, DATA = (TopicId(letter * 16) for letter in (b"o", b"s", b"d"))


def image(*, missing: bool = False) -> MetadataImage:
    records = []
    for topic_id, name in ((OFFSETS, OFFSETS_TOPIC), (STATE, TRANSACTIONS_TOPIC), (DATA, "t")):
        if missing and topic_id != DATA:
            continue
        records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=name)))
        for index in range(COUNT):
            partition = pb.PartitionRecord(
                topic_id=topic_id, partition=index, leader=1, replicas=[1], isr=[1]
            )
            records.append(pb.MetadataRecord(partition=partition))
    return MetadataImage().apply(records, 1)


class Call:
    """One request, and what became of it."""

    def __init__(self, key: ApiKey, version: int, values: dict[str, Any], *, missing: bool = False) -> None:
        request = build_request(key.name.lower(), version, values)
        self.frame = bytearray(request_header(key, version, 3, "c") + codec.encode_body(request))
        self.header = parse_request_header(self.frame)
        self.outcomes: list[Outcome] = []
        kind: Any = TransactionCall if key is ApiKey.INIT_PRODUCER_ID else TRANSACTION_CALLS[key]
        self.request: Relayed[Any] = kind(self.header, self.frame, self.outcomes.append)
        self.flight: InFlight[Part] | None = self.request.start(image(missing=missing))

    def result(self) -> Any:
        (outcome,) = self.outcomes
        assert isinstance(outcome, list)
        return codec.decode_response(self.header.api_key, self.header.api_version, b"".join(outcome))[1]

    def sent(self, flight: InFlight[Part]) -> Any:
        data = b"".join(flight.payload.buffers())
        return codec.decode_request(parse_request_header(data), data)

    def answer(self, flight: InFlight[Part], **values: Any) -> None:
        self.request.answered(flight.payload, [codec.respond(self.header, **values)])

    def item(self, kind: str, **values: Any) -> Any:
        return codec.item(self.header, kind, **values)


TOPICS = [{"name": "t", "partitions": [0, 3]}]
ONE: dict[ApiKey, dict[str, Any]] = {
    ApiKey.INIT_PRODUCER_ID: {"transactional_id": "x1"},
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        "v3_and_below_transactional_id": "x1",
        "v3_and_below_topics": TOPICS,
        "transactional_id": "x1",
        "topics": TOPICS,
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {"transactional_id": "x1", "group_id": "g1"},
    ApiKey.END_TXN: {"transactional_id": "x1", "committed": True},
    ApiKey.TXN_OFFSET_COMMIT: {
        "transactional_id": "x1",
        "group_id": "g1",
        "topics": [{"name": "t", "partitions": [{"partition_index": 2, "committed_offset": 1}]}],
    },
}


def versions(key: ApiKey) -> range:
    return range(4) if key is ApiKey.ADD_PARTITIONS_TO_TXN else SPECS[key].readable


ONES = [(key, version) for key in ONE for version in versions(key)]


def codes(entity: Any) -> set[int]:
    from support.rights_table import error_codes

    found = set(error_codes(entity))
    for topic in getattr(entity, "results_by_topic_v3_and_below", None) or ():
        found |= {int(p.partition_error_code) for p in topic.results_by_partition}
    return found


@pytest.mark.parametrize(("key", "version"), ONES)
def test_one_id_goes_as_it_came(key: ApiKey, version: int) -> None:
    call = Call(key, version, ONE[key])
    assert call.flight is not None
    wanted = TopicPartition(STATE, transaction_partition("x1", COUNT))
    if key is ApiKey.TXN_OFFSET_COMMIT:
        wanted = TopicPartition(OFFSETS, group_partition("g1", COUNT))
    assert call.flight.partitions == [wanted]
    assert call.flight.on_loss is OnLoss.ASK_CLIENT
    assert call.flight.payload.buffers() == [call.frame]
    call.request.answered(call.flight.payload, [b"as it is"])
    assert call.outcomes == [[b"as it is"]]


@pytest.mark.parametrize(("key", "version"), ONES)
def test_a_coordinator_that_moves_is_told_as_such_and_never_as_a_time_out(key: ApiKey, version: int) -> None:
    for code in (E.NOT_LEADER_OR_FOLLOWER, E.REQUEST_TIMED_OUT):
        call = Call(key, version, ONE[key])
        assert call.flight is not None
        call.request.failed(call.flight.payload, code)
        assert codes(call.result()) - {0} == {E.NOT_COORDINATOR}


@pytest.mark.parametrize(("key", "version"), ONES)
def test_without_the_topic_there_is_no_coordinator(key: ApiKey, version: int) -> None:
    call = Call(key, version, ONE[key], missing=True)
    assert call.flight is None
    assert codes(call.result()) - {0} == {E.COORDINATOR_NOT_AVAILABLE}


@pytest.mark.parametrize("version", SPECS[ApiKey.INIT_PRODUCER_ID].readable)
def test_an_id_in_init_producer_id_is_seen(version: int) -> None:
    for name in (None, "", "x1"):
        request = build_request("init_producer_id", version, {"transactional_id": name})
        frame = request_header(ApiKey.INIT_PRODUCER_ID, version, 3, "c") + codec.encode_body(request)
        assert named_transaction(parse_request_header(frame), frame) == name


def adding(*ids: str) -> dict[str, Any]:
    return {
        "transactions": [
            {"transactional_id": each, "producer_id": 7, "verify_only": True, "topics": TOPICS}
            for each in ids
        ]
    }


@pytest.mark.parametrize("version", [4, 5])
def test_additions_for_several_ids_are_split_and_joined(version: int) -> None:
    call = Call(ApiKey.ADD_PARTITIONS_TO_TXN, version, adding("x0", "x1", "x2"))
    assert call.flight is not None
    assert [p.partition for p in call.flight.partitions] == [
        transaction_partition(name, COUNT) for name in ("x0", "x1", "x2")
    ]
    first, second = call.flight.split([[0, 2], [1]])
    sent = call.sent(first)
    assert [t.transactional_id for t in sent.transactions] == ["x0", "x2"]
    assert all(t.verify_only and t.producer_id == 7 for t in sent.transactions)
    results = tuple(
        call.item("AddPartitionsToTxnResult", transactional_id=name, topic_results=())
        for name in ("x0", "x2")
    )
    call.answer(first, error_code=0, results_by_transaction=results)
    call.request.failed(second.payload, E.NOT_LEADER_OR_FOLLOWER)
    result = call.result()
    assert int(result.error_code) == 0
    found = {each.transactional_id: each.topic_results for each in result.results_by_transaction}
    assert found.keys() == {"x0", "x1", "x2"}
    (topic,) = found["x1"]
    assert topic.name == "t"
    assert [(p.partition_index, int(p.partition_error_code)) for p in topic.results_by_partition] == [
        (0, E.NOT_COORDINATOR),
        (3, E.NOT_COORDINATOR),
    ]


def test_descriptions_are_split_and_joined() -> None:
    call = Call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x0", "x1"]})
    assert call.flight is not None
    first, second = call.flight.split([[0], [1]])
    assert call.sent(first).transactional_ids == ("x0",)
    call.request.failed(first.payload, E.REQUEST_TIMED_OUT)
    call.request.failed(second.payload, E.NOT_LEADER_OR_FOLLOWER)
    states = call.result().transaction_states
    assert {s.transactional_id: int(s.error_code) for s in states} == {
        "x0": E.NOT_COORDINATOR,
        "x1": E.NOT_COORDINATOR,
    }


@pytest.mark.parametrize("version", range(3))
def test_listings_are_joined(version: int) -> None:
    call = Call(ApiKey.LIST_TRANSACTIONS, version, {"state_filters": ["Odd"]})
    assert call.flight is not None
    assert [p.topic_id for p in call.flight.partitions] == [STATE] * COUNT
    first, second = call.flight.split([[0, 1], [2, 3, 4]])
    for flight, name in ((first, "x0"), (second, "x1")):
        state = call.item(
            "TransactionState", transactional_id=name, producer_id=7, transaction_state="Ongoing"
        )
        call.answer(flight, error_code=0, unknown_state_filters=("Odd",), transaction_states=(state,))
    result = call.result()
    assert (int(result.error_code), result.unknown_state_filters) == (0, ("Odd",))
    assert {s.transactional_id for s in result.transaction_states} == {"x0", "x1"}


def test_a_listing_that_lacks_a_node_says_so() -> None:
    call = Call(ApiKey.LIST_TRANSACTIONS, 2, {})
    assert call.flight is not None
    first, second = call.flight.split([[0, 1], [2, 3, 4]])
    call.answer(first, error_code=0, unknown_state_filters=(), transaction_states=())
    call.request.failed(second.payload, E.NOT_LEADER_OR_FOLLOWER)
    assert int(call.result().error_code) == E.COORDINATOR_NOT_AVAILABLE
    nothing = Call(ApiKey.LIST_TRANSACTIONS, 2, {}, missing=True).result()
    assert (int(nothing.error_code), nothing.transaction_states) == (0, ())


def marker(producer_id: int, *partitions: int, topic: str = "t") -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": 3,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": list(partitions)}],
        "coordinator_epoch": 9,
        "transaction_version": 2,
    }


@pytest.mark.parametrize("version", [1, 2])
def test_markers_are_split_by_leader_and_joined_by_producer(version: int) -> None:
    values = {"markers": [marker(1, 0, 4), marker(2, 0), marker(1, 2, topic="gone")]}
    call = Call(ApiKey.WRITE_TXN_MARKERS, version, values)
    assert call.flight is not None
    # The same partition twice, each for another producer; the topic that is gone goes nowhere.
    assert call.flight.partitions == [TopicPartition(DATA, n) for n in (0, 4, 0)]
    first, second = call.flight.split([[0, 2], [1]])
    sent = call.sent(first).markers
    assert [(m.producer_id, m.topics[0].partition_indexes, m.coordinator_epoch) for m in sent] == [
        (1, (0,), 9),
        (2, (0,), 9),
    ]
    assert all(getattr(m, "transaction_version", 2) == 2 for m in sent)

    def done(producer_id: int, partition: int, code: int) -> Any:
        one = call.item("WritableTxnMarkerPartitionResult", partition_index=partition, error_code=code)
        topic = call.item("WritableTxnMarkerTopicResult", name="t", partitions=(one,))
        return call.item("WritableTxnMarkerResult", producer_id=producer_id, topics=(topic,))

    call.answer(first, markers=(done(1, 0, 0), done(2, 0, 47)))
    call.request.failed(second.payload, E.NOT_LEADER_OR_FOLLOWER)
    found = {
        (m.producer_id, t.name, p.partition_index): int(p.error_code)
        for m in call.result().markers
        for t in m.topics
        for p in t.partitions
    }
    assert found == {
        (1, "t", 0): 0,
        (1, "t", 4): E.NOT_LEADER_OR_FOLLOWER,
        (2, "t", 0): 47,
        (1, "gone", 2): E.UNKNOWN_TOPIC_OR_PARTITION,
    }


def told_of_markers(response: Any) -> list[tuple[int, str, int, int]]:
    return [
        (m.producer_id, t.name, p.partition_index, int(p.error_code))
        for m in response.markers
        for t in m.topics
        for p in t.partitions
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_of_markers_of_several_producers_each_is_answered_though_a_leader_moved(version: int) -> None:
    """Partition 0 is another node's by now, partition 4 has answers for both producers."""
    call = Call(ApiKey.WRITE_TXN_MARKERS, version, {"markers": [marker(1, 4, 0), marker(2, 4)]})
    assert call.flight is not None

    def done(producer_id: int, *codes: tuple[int, int]) -> Any:
        parts = tuple(
            call.item("WritableTxnMarkerPartitionResult", partition_index=partition, error_code=code)
            for partition, code in codes
        )
        topic = call.item("WritableTxnMarkerTopicResult", name="t", partitions=parts)
        return call.item("WritableTxnMarkerResult", producer_id=producer_id, topics=(topic,))

    said = (done(1, (4, 0), (0, E.NOT_LEADER_OR_FOLLOWER)), done(2, (4, 47)))
    refusal = call.request.refused(call.flight.payload, [codec.respond(call.header, markers=said)])
    assert refusal.refused == [1]
    call.request.settle(refusal.results, 2)
    (again,) = call.flight.split([[1]])
    call.answer(again, markers=(done(1, (0, 0)),))
    assert told_of_markers(call.result()) == [(1, "t", 4, 0), (1, "t", 0, 0), (2, "t", 4, 47)]


@pytest.mark.parametrize("version", [1, 2])
def test_a_partition_that_a_producers_markers_name_twice_is_answered_once(version: int) -> None:
    call = Call(ApiKey.WRITE_TXN_MARKERS, version, {"markers": [marker(1, 0, 4), marker(1, 0)]})
    assert call.flight is not None
    first, second = call.flight.split([[0, 2], [1]])
    part = call.item("WritableTxnMarkerPartitionResult", partition_index=0, error_code=0)
    topic = call.item("WritableTxnMarkerTopicResult", name="t", partitions=(part,))
    one = call.item("WritableTxnMarkerResult", producer_id=1, topics=(topic,))
    call.answer(first, markers=(one,))
    call.request.failed(second.payload, E.NOT_LEADER_OR_FOLLOWER)
    assert told_of_markers(call.result()) == [(1, "t", 0, 0), (1, "t", 4, E.NOT_LEADER_OR_FOLLOWER)]


def test_no_markers_are_answered_here() -> None:
    assert Call(ApiKey.WRITE_TXN_MARKERS, 2, {"markers": []}).result().markers == ()


def test_every_api_of_transactions_is_relayed() -> None:
    assert TRANSACTION_CALLS.keys() == {
        int(key)
        for key in (
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.END_TXN,
            ApiKey.TXN_OFFSET_COMMIT,
            ApiKey.WRITE_TXN_MARKERS,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.LIST_TRANSACTIONS,
        )
    }
    assert TRANSACTION_CALLS.keys() <= SUPPORTED.keys()
