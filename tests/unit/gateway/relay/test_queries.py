"""ListOffsets and OffsetForLeaderEpoch taken apart and joined, against kio's schemas."""

from __future__ import annotations

import importlib
import io
from datetime import timedelta
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from penstock_core.errors import ErrorCode
from penstock_gateway.relay.queries import LeaderEpochQuery, ListOffsetsQuery, Query, encode_list_offsets
from penstock_kafka.wire.frames import parse_request_header, request_header, response_header

KINDS: list[tuple[type[Query], str, int]] = [
    *((ListOffsetsQuery, "list_offsets", v) for v in range(1, 11)),
    *((LeaderEpochQuery, "offset_for_leader_epoch", v) for v in range(2, 5)),
]


def schema(name: str, version: int, side: str) -> Any:
    return importlib.import_module(f"kio.schema.{name}.v{version}.{side}")


def write(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def read(cls: Any, data: bytes) -> Any:
    entity, rest = entity_reader(cls)(data, 0)
    assert rest == len(data)
    return entity


def request(name: str, version: int) -> Any:
    m = schema(name, version, "request")
    if name == "list_offsets":
        epoch = {"current_leader_epoch": 3} if version >= 4 else {}
        topics = tuple(
            m.ListOffsetsTopic(
                name=t,
                partitions=tuple(
                    m.ListOffsetsPartition(partition_index=p, timestamp=1000 + p, **epoch) for p in ps
                ),
            )
            for t, ps in (("a", (0, 1)), ("b", (5,)))
        )
        extra: dict[str, Any] = {"isolation_level": 1} if version >= 2 else {}
        if version >= 10:
            extra["timeout"] = timedelta(milliseconds=77)
        return m.ListOffsetsRequest(replica_id=-1, topics=topics, **extra)
    topics = tuple(
        m.OffsetForLeaderTopic(
            topic=t,
            partitions=tuple(
                m.OffsetForLeaderPartition(partition=p, current_leader_epoch=4, leader_epoch=3) for p in ps
            ),
        )
        for t, ps in (("a", (0, 1)), ("b", (5,)))
    )
    extra = {"replica_id": -1} if version >= 3 else {}
    return m.OffsetForLeaderEpochRequest(topics=topics, **extra)


@pytest.mark.parametrize(("kind", "name", "version"), KINDS)
def test_parts_and_joined_answers_are_what_kafka_schemas_say(
    kind: type[Query], name: str, version: int
) -> None:
    entity = request(name, version)
    frame = request_header(kind.api_key, version, 42, "me") + write(entity)
    header = parse_request_header(frame)
    query = kind(header, frame, lambda _: None)
    assert [(t, p) for t, _, p in query.names()] == [("a", 0), ("a", 1), ("b", 5)]
    whole = b"".join(query.encode([0, 1, 2], 1))
    assert whole == frame
    part = b"".join(query.encode([1, 2], 1))
    body = part[parse_request_header(part).body_offset :]
    got = read(type(entity), body)
    assert len(got.topics) == 2
    assert got.topics[1] == entity.topics[1]
    assert got.topics[0].partitions == entity.topics[0].partitions[1:]

    failures = [query.failure(i, ErrorCode.NOT_LEADER_OR_FOLLOWER) for i in range(3)]
    data = b"".join(query.join(failures))
    head = response_header(kind.api_key, version, 42)
    assert data.startswith(head)
    m = schema(name, version, "response")
    cls = next(c for c in vars(m).values() if getattr(c, "__type__", None) and c.__type__.name == "response")
    response = read(cls, data[len(head) :])
    codes = [int(p.error_code) for t in response.topics for p in t.partitions]
    assert codes == [6, 6, 6]
    assert [(a.named.topic, a.named.partition, a.error) for a in query.decode(data)] == [
        ("a", 0, 6),
        ("a", 1, 6),
        ("b", 5, 6),
    ]


def test_the_native_apis_own_request() -> None:
    frame = encode_list_offsets([("a", 0, -1), ("b", 2, -2), ("a", 1, -3)])
    header = parse_request_header(frame)
    m = schema("list_offsets", 7, "request")
    got = read(m.ListOffsetsRequest, frame[header.body_offset :])
    assert [(t.name, [(p.partition_index, p.timestamp) for p in t.partitions]) for t in got.topics] == [
        ("a", [(0, -1), (1, -3)]),
        ("b", [(2, -2)]),
    ]
