"""Requests and responses that are read and written by hand, against the codec, in every version."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_TOPIC_ID, TopicId
from penstock_frontend.authorizer import ANONYMOUS, Identity
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import SUPPORTED, ApiKey
from penstock_kafka.wire.frames import RequestHeader, parse_request_header, request_header
from penstock_kafka.wire.primitives import Malformed
from penstock_storage_node.groups.consumer.protocol import ConsumerHeartbeat, ConsumerHeartbeatResult
from penstock_storage_node.kafka.groups_codec import hot as hot
from penstock_storage_node.kafka.groups_codec.classic import to_ms
from penstock_storage_node.kafka.groups_codec.consumer import encode_consumer_heartbeat
from penstock_storage_node.kafka.request_context import RequestContext

CALLER = RequestContext(Identity(ANONYMOUS, "1.2.3.4"), "client", "1.2.3.4:5")
IDS = (TopicId(bytes(range(16))), TopicId(NO_TOPIC_ID), TopicId(b"\x01" * 16))
ROUNDS = 40
BROKEN_ROUNDS = 400
MALFORMED = "malformed"


def picked(rng: random.Random, *choices: Any) -> Any:
    return rng.choice(choices)


def item(key: ApiKey, version: int, kind: str, /, **values: Any) -> Any:
    return codec.build(codec.entity_type(key, version, kind, request=True), **values)


def heartbeat(rng: random.Random, version: int) -> dict[str, Any]:
    return {
        "group_id": picked(rng, "g", "", "größer" * 30),
        "generation_id": rng.randint(-(2**31), 2**31 - 1),
        "member_id": picked(rng, "m", "", "x" * 200),
        "group_instance_id": picked(rng, None, "", "i"),
    }


def commit(rng: random.Random, version: int) -> dict[str, Any]:
    key = ApiKey.OFFSET_COMMIT
    topics = tuple(
        item(
            key,
            version,
            "OffsetCommitRequestTopic",
            name=picked(rng, "t", "other", ""),
            topic_id=picked(rng, *IDS),
            partitions=tuple(
                item(
                    key,
                    version,
                    "OffsetCommitRequestPartition",
                    partition_index=rng.randint(-1, 2**31 - 1),
                    committed_offset=rng.randint(-1, 2**63 - 1),
                    committed_leader_epoch=rng.randint(-1, 9),
                    committed_metadata=picked(rng, None, "", "note"),
                )
                for _ in range(rng.randint(0, 3))
            ),
        )
        for _ in range(rng.randint(0, 3))
    )
    return heartbeat(rng, version) | {
        "generation_id_or_member_epoch": rng.randint(-2, 9),
        "retention_time": picked(rng, -1, 0, 86_400_000),
        "topics": topics,
    }


def txn_commit(rng: random.Random, version: int) -> dict[str, Any]:
    key = ApiKey.TXN_OFFSET_COMMIT
    topics = tuple(
        item(
            key,
            version,
            "TxnOffsetCommitRequestTopic",
            name=picked(rng, "t", "other", ""),
            partitions=tuple(
                item(
                    key,
                    version,
                    "TxnOffsetCommitRequestPartition",
                    partition_index=rng.randint(-1, 2**31 - 1),
                    committed_offset=rng.randint(-1, 2**63 - 1),
                    committed_leader_epoch=rng.randint(-1, 9),
                    committed_metadata=picked(rng, None, "", "note"),
                )
                for _ in range(rng.randint(0, 3))
            ),
        )
        for _ in range(rng.randint(0, 3))
    )
    return heartbeat(rng, version) | {
        "transactional_id": picked(rng, "x", "", "größer" * 30),
        "producer_id": rng.randint(-1, 2**63 - 1),
        "producer_epoch": rng.randint(-1, 2**15 - 1),
        "topics": topics,
    }


def consumer_beat(rng: random.Random, version: int) -> dict[str, Any]:
    key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    owned = tuple(
        item(key, version, "TopicPartitions", topic_id=picked(rng, *IDS), partitions=(0, rng.randint(1, 99)))
        for _ in range(rng.randint(0, 2))
    )
    return {
        "group_id": picked(rng, "g", ""),
        "member_id": picked(rng, "m", ""),
        "member_epoch": rng.randint(-3, 9),
        "instance_id": picked(rng, None, "", "i"),
        "rack_id": picked(rng, None, "r"),
        "rebalance_timeout": picked(rng, -1, 0, 300_000),
        "subscribed_topic_names": picked(rng, None, (), ("a", "b")),
        "subscribed_topic_regex": picked(rng, None, "", "a.*"),
        "server_assignor": picked(rng, None, "range"),
        "topic_partitions": picked(rng, None, owned),
    }


KINDS: dict[ApiKey, Callable[[random.Random, int], dict[str, Any]]] = {
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.OFFSET_COMMIT: commit,
    ApiKey.TXN_OFFSET_COMMIT: txn_commit,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_beat,
}


def by_hand(header: RequestHeader, frame: bytes) -> Any:
    """What the hand-written reader finds, as plain values."""
    if header.api_key == ApiKey.HEARTBEAT:
        return tuple(hot.read_heartbeat(header, frame))
    if header.api_key == ApiKey.OFFSET_COMMIT:
        return tuple(hot.read_commit(header, frame))
    if header.api_key == ApiKey.TXN_OFFSET_COMMIT:
        return tuple(hot.read_txn_commit(header, frame))
    return hot.read_consumer_heartbeat(CALLER, header, frame)


def by_codec(header: RequestHeader, frame: bytes) -> Any:
    """The same from the codec's entity."""
    found = codec.decode_request(header, frame)
    instance_id = getattr(found, "group_instance_id", None)
    if header.api_key == ApiKey.HEARTBEAT:
        return found.group_id, found.generation_id, found.member_id, instance_id
    if header.api_key == ApiKey.OFFSET_COMMIT:
        topics = [
            hot.TopicCommit(
                getattr(t, "name", None),
                (codec.topic_id(t.topic_id) or NO_TOPIC_ID) if header.api_version >= 10 else None,
                [
                    (
                        p.partition_index,
                        p.committed_offset,
                        getattr(p, "committed_leader_epoch", -1),
                        p.committed_metadata,
                    )
                    for p in t.partitions
                ],
            )
            for t in found.topics
        ]
        retention_ms = to_ms(found.retention_time) if header.api_version <= 4 else -1
        return (
            found.group_id,
            found.generation_id_or_member_epoch,
            found.member_id,
            instance_id,
            retention_ms,
            topics,
        )
    if header.api_key == ApiKey.TXN_OFFSET_COMMIT:
        return txn_commit_by_codec(found)
    owned = None
    if found.topic_partitions is not None:
        owned = frozenset(
            (codec.topic_id(t.topic_id) or NO_TOPIC_ID, p)
            for t in found.topic_partitions
            for p in t.partitions
        )
    return ConsumerHeartbeat(
        found.group_id,
        found.member_id,
        found.member_epoch,
        found.instance_id,
        found.rack_id,
        to_ms(found.rebalance_timeout),
        found.subscribed_topic_names,
        getattr(found, "subscribed_topic_regex", None),
        found.server_assignor,
        owned,
        "client",
        "/1.2.3.4",
        header.api_version,
        owner=CALLER.owner,
    )


def txn_commit_by_codec(found: Any) -> Any:
    topics = [
        hot.TopicCommit(
            t.name,
            None,
            [
                (
                    p.partition_index,
                    p.committed_offset,
                    getattr(p, "committed_leader_epoch", -1),
                    p.committed_metadata,
                )
                for p in t.partitions
            ],
        )
        for t in found.topics
    ]
    return (
        found.transactional_id,
        found.group_id,
        found.producer_id,
        found.producer_epoch,
        getattr(found, "generation_id", -1),
        getattr(found, "member_id", ""),
        getattr(found, "group_instance_id", None),
        topics,
    )


def outcome(read: Callable[[RequestHeader, bytes], Any], frame: bytes) -> Any:
    try:
        return read(parse_request_header(frame), frame)
    except Malformed:
        return MALFORMED


def every_version() -> list[tuple[ApiKey, int]]:
    return [(key, v) for key in KINDS for v in range(SUPPORTED[key][0], SUPPORTED[key][1] + 1)]


def frame_of(rng: random.Random, key: ApiKey, version: int) -> bytes:
    entity = codec.build(codec.request_type(key, version), **KINDS[key](rng, version))
    return request_header(key, version, 7, "client") + codec.encode_body(entity)


@pytest.mark.parametrize(("key", "version"), every_version())
def test_requests_are_read_as_the_codec_reads_them(key: ApiKey, version: int) -> None:
    rng = random.Random(f"{key} {version}")
    for _ in range(ROUNDS):
        frame = frame_of(rng, key, version)
        header = parse_request_header(frame)
        assert by_hand(header, frame) == by_codec(header, frame)


@pytest.mark.parametrize(("key", "version"), every_version())
def test_what_the_codec_takes_of_broken_requests_is_read_the_same(key: ApiKey, version: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(BROKEN_ROUNDS):
        frame = bytearray(frame_of(rng, key, version))
        body = parse_request_header(frame).body_offset
        for _ in range(rng.randint(1, 3)):
            frame[rng.randrange(body, len(frame))] = picked(
                rng, 0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)
            )
        cut = bytes(frame[: rng.randint(body, len(frame))] if rng.random() < 0.3 else frame)
        expected = outcome(by_codec, cut)
        # By hand any negative length is null, as for Kafka; the codec knows -1 alone.
        if expected != MALFORMED:
            assert outcome(by_hand, cut) == expected, cut.hex()


@pytest.mark.parametrize(("key", "version"), every_version())
def test_unknown_tagged_fields_are_skipped(key: ApiKey, version: int) -> None:
    frame = frame_of(random.Random(1), key, version)
    header = parse_request_header(frame)
    if not header.flexible:
        return
    tagged = frame[:-1] + b"\x01\x63\x02ab"  # one field, number 99, of two bytes
    assert by_hand(header, tagged) == by_hand(header, frame)


def header_of(key: ApiKey, version: int) -> RequestHeader:
    return RequestHeader(key, version, 7, "client", 0)


def read(header: RequestHeader, response: bytes) -> Any:
    correlation_id, entity = codec.decode_response(header.api_key, header.api_version, response)
    assert correlation_id == 7
    assert codec.encode_response(header, entity) == response
    return entity


def test_a_heartbeat_is_answered_in_every_version() -> None:
    for key, version in every_version():
        if key is ApiKey.HEARTBEAT:
            header = header_of(key, version)
            found = read(header, hot.put_heartbeat(header, ErrorCode.REBALANCE_IN_PROGRESS))
            assert int(found.error_code) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_is_answered_in_every_version() -> None:
    codes = [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.STALE_MEMBER_EPOCH]
    for key, version in every_version():
        if key is ApiKey.OFFSET_COMMIT:
            header = header_of(key, version)
            by_id = version >= 10
            topics = [
                hot.TopicCommit(None if by_id else name, topic_id if by_id else None, items)
                for name, topic_id, items in (
                    ("a", IDS[0], [(3, 0, -1, None), (4, 0, -1, None)]),
                    ("none", IDS[1], []),
                    ("b", IDS[2], [(0, 5, 1, "x")]),
                )
            ]
            found = read(header, hot.put_commit(header, topics, codes))
            told = [(p.partition_index, int(p.error_code)) for t in found.topics for p in t.partitions]
            assert told == list(zip((3, 4, 0), map(int, codes), strict=True))
            assert by_id or [t.name for t in found.topics] == ["a", "none", "b"]


def test_a_transactional_commit_is_answered_in_every_version() -> None:
    codes = [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TXN_STATE]
    items: list[list[tuple[int, int, int, str | None]]]
    items = [[(3, 0, -1, None), (4, 0, -1, None)], [], [(0, 5, 1, "x")]]
    topics = [hot.TopicCommit(name, None, each) for name, each in zip("abc", items, strict=True)]
    for key, version in every_version():
        if key is ApiKey.TXN_OFFSET_COMMIT:
            header = header_of(key, version)
            found = read(header, hot.put_txn_commit(header, topics, codes))
            told = [(p.partition_index, int(p.error_code)) for t in found.topics for p in t.partitions]
            assert told == list(zip((3, 4, 0), map(int, codes), strict=True))
            assert [t.name for t in found.topics] == ["a", "b", "c"]


def test_a_consumer_heartbeat_is_answered_in_every_version() -> None:
    results = (
        ConsumerHeartbeatResult(member_id="m", epoch=5),
        ConsumerHeartbeatResult(ErrorCode.FENCED_MEMBER_EPOCH, "rejoin"),
        ConsumerHeartbeatResult(member_id="m", epoch=5, assignment=frozenset({(IDS[0], 1)})),
    )
    for key, version in every_version():
        if key is ApiKey.CONSUMER_GROUP_HEARTBEAT:
            header = header_of(key, version)
            for result in results:
                found = read(header, encode_consumer_heartbeat(header, result, 3_000))
                assert (int(found.error_code), found.error_message) == (result.error, result.message)
                assert (found.member_id, found.member_epoch) == (result.member_id, result.epoch)
                assert to_ms(found.heartbeat_interval) == (0 if result.error else 3_000)
                assert (found.assignment is None) == (result.assignment is None)
