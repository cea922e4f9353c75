"""Requests of transactions by hand against the same through kio, in every version."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey as K
from penstock_kafka.wire.frames import RequestHeader, parse_request_header, request_header
from penstock_kafka.wire.primitives import Malformed
from penstock_kafka.wire.transactions import (
    BATCHED_SINCE,
    put_add_offsets,
    put_added,
    put_all_added,
    put_end,
    read_add_offsets,
    read_add_partitions,
    read_end,
)

VERSIONS = [
    *((K.ADD_PARTITIONS_TO_TXN, version) for version in range(6)),
    *((K.ADD_OFFSETS_TO_TXN, version) for version in range(5)),
    *((K.END_TXN, version) for version in range(6)),
]
READ: dict[K, Any] = {
    K.ADD_PARTITIONS_TO_TXN: read_add_partitions,
    K.ADD_OFFSETS_TO_TXN: read_add_offsets,
    K.END_TXN: read_end,
}
MUTANTS = 150


def item(key: K, version: int, kind: str, **values: Any) -> Any:
    return codec.build(codec.entity_type(key, version, kind, request=True), **values)


def sample(rng: random.Random, key: K, version: int) -> Any:
    name = rng.choice(("x", "", "transactional-\u00e4", "y" * 200))
    producer = {"producer_id": rng.choice((0, -1, 2**62)), "producer_epoch": rng.choice((0, -1, 32_766))}
    if key is K.ADD_OFFSETS_TO_TXN:
        values: dict[str, Any] = {"transactional_id": name, "group_id": rng.choice(("g", "")), **producer}
    elif key is K.END_TXN:
        values = {"transactional_id": name, "committed": rng.random() < 0.5, **producer}
    else:
        topics = tuple(
            item(
                key,
                version,
                "AddPartitionsToTxnTopic",
                name=f"topic-{number}",
                partitions=tuple(rng.randrange(2**31) for _ in range(rng.randrange(4))),
            )
            for number in range(rng.randrange(4))
        )
        if version < BATCHED_SINCE:
            values = {
                "v3_and_below_transactional_id": name,
                "v3_and_below_producer_id": producer["producer_id"],
                "v3_and_below_producer_epoch": producer["producer_epoch"],
                "v3_and_below_topics": topics,
            }
        else:
            one = {"transactional_id": name, "verify_only": rng.random() < 0.5, "topics": topics, **producer}
            rows = [
                item(key, version, "AddPartitionsToTxnTransaction", **one) for _ in range(rng.randrange(3))
            ]
            values = {"transactions": tuple(rows)}
    return codec.build(codec.request_type(key, version), **values)


def told(key: K, version: int, entity: Any) -> Any:
    """What kio has read, as the hand gives it."""
    if key is K.ADD_OFFSETS_TO_TXN:
        return (entity.transactional_id, entity.producer_id, entity.producer_epoch, entity.group_id)
    if key is K.END_TXN:
        return (entity.transactional_id, entity.producer_id, entity.producer_epoch, entity.committed)
    if version < BATCHED_SINCE:
        rows = [
            (
                entity.v3_and_below_transactional_id,
                entity.v3_and_below_producer_id,
                entity.v3_and_below_producer_epoch,
                False,
                entity.v3_and_below_topics,
            )
        ]
    else:
        rows = [
            (t.transactional_id, t.producer_id, t.producer_epoch, t.verify_only, t.topics)
            for t in entity.transactions
        ]
    return [(*row, [(topic.name, list(topic.partitions)) for topic in topics]) for *row, topics in rows]


def frame_of(key: K, version: int, entity: Any) -> bytes:
    return request_header(key, version, 9, "client") + codec.encode_body(entity)


def outcome(read: Any, header: RequestHeader, frame: bytes) -> Any:
    try:
        return read(header, frame)
    except Malformed as error:
        # To Kafka any byte but 0 is true; kio takes 1 alone.
        return None if "boolean" in str(error) else Malformed


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_requests_are_read_as_by_kio_also_when_they_are_broken(key: K, version: int) -> None:
    rng = random.Random(f"{key} {version}")
    for _ in range(20):
        frame = frame_of(key, version, sample(rng, key, version))
        header = parse_request_header(frame)
        assert READ[key](header, frame) == told(key, version, codec.decode_request(header, frame))
        for _ in range(MUTANTS // 20):
            broken = bytearray(frame)
            at = rng.randrange(header.body_offset, len(frame))
            if rng.random() < 0.3:
                del broken[at:]
            else:
                broken[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            by_hand = outcome(READ[key], header, bytes(broken))
            by_kio = outcome(codec.decode_request, header, bytes(broken))
            if by_kio is not None:
                expected = Malformed if by_kio is Malformed else told(key, version, by_kio)
                assert by_hand == expected, broken.hex()


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_responses_are_the_bytes_of_kio(key: K, version: int) -> None:
    header = parse_request_header(frame_of(key, version, sample(random.Random(1), key, version)))
    if key is K.ADD_OFFSETS_TO_TXN:
        assert put_add_offsets(header, 51) == codec.respond(header, error_code=51)
        return
    if key is K.END_TXN:
        expected = codec.respond(header, error_code=90, producer_id=2**40, producer_epoch=-1)
        assert put_end(header, 90, 2**40, -1) == expected
        return
    topics = [("a", [0, 7]), ("b", []), ("\u00e4", [2**31 - 1])]

    def code_of(topic: str, number: int) -> int:
        return (0, 3, 55)[(len(topic) + number) % 3]

    results = tuple(
        codec.item(
            header,
            "AddPartitionsToTxnTopicResult",
            name=topic,
            results_by_partition=tuple(
                codec.item(
                    header,
                    "AddPartitionsToTxnPartitionResult",
                    partition_index=number,
                    partition_error_code=code_of(topic, number),
                )
                for number in numbers
            ),
        )
        for topic, numbers in topics
    )
    if version < BATCHED_SINCE:
        assert put_added(header, topics, code_of) == codec.respond(
            header, results_by_topic_v3_and_below=results
        )
        return
    rows = tuple(
        codec.item(header, "AddPartitionsToTxnResult", transactional_id=name, topic_results=results)
        for name in ("x", "")
    )
    by_hand = put_all_added(header, 31, [("x", topics, code_of), ("", topics, code_of)])
    assert by_hand == codec.respond(header, error_code=31, results_by_transaction=rows)
    assert put_all_added(header, 0, []) == codec.respond(header, error_code=0, results_by_transaction=())


def test_more_items_than_a_request_may_have_are_refused() -> None:
    rng = random.Random(2)
    for key, version in VERSIONS:
        if key is not K.ADD_PARTITIONS_TO_TXN:
            continue
        topics = (item(key, version, "AddPartitionsToTxnTopic", name="t", partitions=tuple(range(50))),)
        producer = {"producer_id": 1, "producer_epoch": 0}
        values: dict[str, Any] = {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": topics,
        }
        if version >= BATCHED_SINCE:
            one = {"transactional_id": "x", "verify_only": False, "topics": topics, **producer}
            values = {"transactions": (item(key, version, "AddPartitionsToTxnTransaction", **one),)}
        frame = frame_of(key, version, codec.build(codec.request_type(key, version), **values))
        assert read_add_partitions(parse_request_header(frame, 60), frame)
        with pytest.raises(Malformed, match="request_items_max"):
            read_add_partitions(parse_request_header(frame, 50), frame)
    assert rng
