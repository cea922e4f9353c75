"""Records of `__consumer_offsets`, byte for byte as Kafka's coordinator writes them.

Keys and values begin with an int16: for keys it says the kind, for values the version. Written are what Kafka
4.3 writes: OffsetCommit key 1 and value 4, which has the topic's id (1 where it expires, 3 where the id is not known),
GroupMetadata key 2 and value 3; read are all that Kafka ever wrote (values 0-4). Kinds that are unknown here (share and
streams groups) decode to None and are left alone.

Source: Kafka's schemas OffsetCommitKey/Value, GroupMetadataKey/Value, ConsumerGroup*Key/Value
(group-coordinator/src/main/resources/common/message).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock_core.ids import TopicId
from penstock_kafka.wire.primitives import (
    INT8,
    INT16,
    INT32,
    INT64,
    UUID_BYTES,
    Malformed,
    Reader,
    put_count,
    put_string,
    uvarint,
)

OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2
CONSUMER_GROUP: Final = 3
CONSUMER_MEMBER: Final = 5
TARGET_EPOCH: Final = 6
TARGET_MEMBER: Final = 7
CURRENT_MEMBER: Final = 8

_VALUE_VERSION_MAX: Final = 4
_FLEXIBLE_SINCE: Final = 4
_WRITTEN_VERSION: Final = 3
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"
"""One tagged field, number 0, of 16 bytes."""

_NO_TOPIC_ID: Final = TopicId(bytes(UUID_BYTES))

TopicKey = tuple[str, int]
"""Topic name and partition."""
Assignment = dict[TopicId, tuple[int, ...]]
"""Partitions by topic id."""
_UNKNOWN: Final[Assignment] = {}


class Record(NamedTuple):
    """One record to write; `value` None is a tombstone."""

    key: bytes
    value: bytes | None


class Key(NamedTuple):
    """What a record is about. `kind` is one of the constants above."""

    kind: int
    group_id: str
    topic: str = ""
    partition: int = -1
    member_id: str = ""


class OffsetValue(NamedTuple):
    """A committed offset. Times in ms since 1970; -1 for none."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    record_offset: int = -1
    """Where its record stands in the partition; not a part of the record."""
    topic_id: TopicId | None = None
    """Of which topic it is: another one may have the name by now. None where the record does not say."""


class MemberValue(NamedTuple):
    """A member of a classic group, as it is stored."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A generation of a classic group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


class ConsumerMemberValue(NamedTuple):
    """What a member of a consumer group (KIP-848) has said of itself."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: tuple[int, tuple[tuple[str, bytes], ...]] | None = None
    """(session timeout in ms, protocols) of a member that speaks the classic protocol."""


class CurrentValue(NamedTuple):
    """What a member of a consumer group owns."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Assignment
    revoking: Assignment
    assigned_since: Assignment = _UNKNOWN
    """In which epoch each of these was assigned, in their order; a topic is left out where that is not known."""
    revoking_since: Assignment = _UNKNOWN


# -- keys -------------------------------------------------------------------------


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Key of a committed offset."""
    return _key(OFFSET_COMMIT, group_id, topic) + INT32.pack(partition)


def group_key(group_id: str) -> bytes:
    """Key of a classic group."""
    return _key(GROUP_METADATA, group_id)


def consumer_key(kind: int, group_id: str, member_id: str | None = None) -> bytes:
    """Key of one of the records of a consumer group."""
    return _key(kind, group_id) if member_id is None else _key(kind, group_id, member_id)


def _key(kind: int, *texts: str) -> bytes:
    return INT16.pack(kind) + b"".join(put_string(text, False) for text in texts)


_WITH_MEMBER: Final = frozenset({CONSUMER_MEMBER, TARGET_MEMBER, CURRENT_MEMBER})
_WITHOUT: Final = frozenset({GROUP_METADATA, CONSUMER_GROUP, TARGET_EPOCH})


def read_key(data: bytes) -> Key | None:
    """The key, None for a kind that is not known. Raises Malformed."""
    reader = Reader(data, 0, False)
    kind = reader.int16()
    if kind in (0, OFFSET_COMMIT):
        return Key(OFFSET_COMMIT, reader.string(), reader.string(), reader.int32())
    if kind in _WITHOUT:
        return Key(kind, reader.string())
    if kind in _WITH_MEMBER:
        return Key(kind, reader.string(), member_id=reader.string())
    return None


# -- values of the classic protocol ---------------------------------------------------


def put_offset(value: OffsetValue) -> bytes:
    """The value of an offset; with an expiry (OffsetCommit requests 2-4) in version 1, as Kafka does, where topic ids
    have no place."""
    if value.topic_id is not None and value.expire_ms < 0:
        return b"".join(
            (
                INT16.pack(_FLEXIBLE_SINCE),
                INT64.pack(value.offset),
                INT32.pack(value.leader_epoch),
                put_string(value.metadata, True),
                INT64.pack(value.commit_ms),
                _TOPIC_ID_TAG,
                value.topic_id,
            )
        )
    text = put_string(value.metadata, False)
    if value.expire_ms >= 0:
        return b"".join(
            (
                INT16.pack(1),
                INT64.pack(value.offset),
                text,
                INT64.pack(value.commit_ms),
                INT64.pack(value.expire_ms),
            )
        )
    return b"".join(
        (
            INT16.pack(_WRITTEN_VERSION),
            INT64.pack(value.offset),
            INT32.pack(value.leader_epoch),
            text,
            INT64.pack(value.commit_ms),
        )
    )


def _value_reader(data: bytes) -> tuple[int, Reader]:
    version = INT16.unpack_from(data)[0] if len(data) >= INT16.size else -1
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise Malformed(f"value of version {version}")
    return version, Reader(data, INT16.size, version >= _FLEXIBLE_SINCE)


def read_offset(data: bytes) -> OffsetValue:
    """Raises Malformed."""
    version, reader = _value_reader(data)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_ms = reader.int64()
    expire_ms = reader.int64() if version == 1 else -1
    topic_id = _read_topic_id(reader) if version >= _FLEXIBLE_SINCE else None
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id=topic_id)


def _read_topic_id(reader: Reader) -> TopicId | None:
    found = None
    for _ in range(reader.uvarint()):
        tag, size = reader.uvarint(), reader.uvarint()
        start = reader.take(size)
        if tag == 0 and size == UUID_BYTES:
            found = TopicId(bytes(reader.view[start : start + size]))
    return None if found == _NO_TOPIC_ID else found


def put_group(value: GroupValue) -> bytes:
    """The value of a classic group."""
    out = [
        INT16.pack(_WRITTEN_VERSION),
        put_string(value.protocol_type, False),
        INT32.pack(value.generation),
        put_string(value.protocol, False),
        put_string(value.leader, False),
        INT64.pack(value.state_ms),
        INT32.pack(len(value.members)),
    ]
    for member in value.members:
        out += (
            put_string(member.member_id, False),
            put_string(member.instance_id, False),
            put_string(member.client_id, False),
            put_string(member.client_host, False),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            INT32.pack(len(member.subscription)),
            member.subscription,
            INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(out)


def read_group(data: bytes) -> GroupValue:
    """Raises Malformed."""
    version, reader = _value_reader(data)
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    state_ms = reader.int64() if version >= 2 else -1
    members = []
    for _ in range(reader.array(8)):
        member_id = reader.string()
        instance_id = reader.nullable_string() if version >= 3 else None
        client_id, client_host = reader.string(), reader.string()
        rebalance_ms = reader.int32() if version >= 1 else -1
        session_ms = reader.int32()
        members.append(
            MemberValue(
                member_id,
                instance_id,
                client_id,
                client_host,
                rebalance_ms if version >= 1 else session_ms,
                session_ms,
                bytes(reader.nullable_bytes() or b""),
                bytes(reader.nullable_bytes() or b""),
            )
        )
        reader.skip_tags()
    return GroupValue(protocol_type, generation, protocol, leader, state_ms, tuple(members))


# -- values of the consumer protocol, all flexible -----------------------------------------

_ZERO: Final = INT16.pack(0)


def put_epoch(epoch: int) -> bytes:
    """Value of CONSUMER_GROUP and TARGET_EPOCH."""
    return _ZERO + INT32.pack(epoch) + b"\x00"


def read_epoch(data: bytes) -> int:
    """Raises Malformed."""
    return Reader(data, INT16.size, True).int32()


def put_consumer_member(value: ConsumerMemberValue) -> bytes:
    """Value of CONSUMER_MEMBER."""
    out = [
        _ZERO,
        put_string(value.instance_id, True),
        put_string(value.rack_id, True),
        put_string(value.client_id, True),
        put_string(value.client_host, True),
        put_count(len(value.topics), True),
        *(put_string(topic, True) for topic in value.topics),
        put_string(value.regex, True),
        INT32.pack(value.rebalance_timeout_ms),
        put_string(value.assignor, True),
    ]
    if value.classic is None:
        out.append(b"\x00")
    else:
        session_ms, protocols = value.classic
        inner = [b"\x01", INT32.pack(session_ms), put_count(len(protocols), True)]
        for name, metadata in protocols:
            inner += (put_string(name, True), put_count(len(metadata), True), metadata, b"\x00")
        inner.append(b"\x00")
        body = b"".join(inner)
        out += (b"\x01\x00", uvarint(len(body)), body)
    return b"".join(out)


def read_consumer_member(data: bytes) -> ConsumerMemberValue:
    """Raises Malformed."""
    reader = Reader(data, INT16.size, True)
    instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    topics = tuple(reader.string() for _ in range(reader.array(1)))
    regex = reader.nullable_string()
    rebalance_ms, assignor = reader.int32(), reader.nullable_string()
    classic = None
    for _ in range(reader.uvarint()):
        tag, size = reader.uvarint(), reader.uvarint()
        start = reader.take(size)
        if tag == 0:
            inner = Reader(reader.view[start : start + size], 0, True)
            if inner.int8() >= 0:
                classic = _read_classic(inner)
    return ConsumerMemberValue(
        instance_id, rack_id, client_id, client_host, topics, regex, rebalance_ms, assignor, classic
    )


def _read_classic(reader: Reader) -> tuple[int, tuple[tuple[str, bytes], ...]]:
    session_ms = reader.int32()
    protocols = []
    for _ in range(reader.array(3)):
        protocols.append((reader.string(), bytes(reader.nullable_bytes() or b"")))
        reader.skip_tags()
    return session_ms, tuple(protocols)


def _put_assignment(assignment: Assignment) -> bytes:
    out = [put_count(len(assignment), True)]
    for topic_id in sorted(assignment):
        partitions = assignment[topic_id]
        out += (topic_id, put_count(len(partitions), True), *(INT32.pack(p) for p in partitions), b"\x00")
    return b"".join(out)


def _read_assignment(reader: Reader) -> Assignment:
    assignment: Assignment = {}
    for _ in range(reader.array(18)):
        topic_id = reader.uuid()
        assignment[topic_id] = tuple(reader.int32() for _ in range(reader.array(4)))
        reader.skip_tags()
    return assignment


def _put_owned(assignment: Assignment, since: Assignment) -> bytes:
    """As `_put_assignment`, with the epochs of KIP-1251 in a tagged field."""
    out = [put_count(len(assignment), True)]
    for topic_id in sorted(assignment):
        partitions, epochs = assignment[topic_id], since.get(topic_id)
        out += (topic_id, put_count(len(partitions), True), *(INT32.pack(p) for p in partitions))
        if epochs is None:
            out.append(b"\x00")
        else:
            body = put_count(len(epochs), True) + b"".join(INT32.pack(epoch) for epoch in epochs)
            out += (b"\x01\x00", uvarint(len(body)), body)
    return b"".join(out)


def _read_owned(reader: Reader) -> tuple[Assignment, Assignment]:
    assignment: Assignment = {}
    since: Assignment = {}
    for _ in range(reader.array(18)):
        topic_id = reader.uuid()
        assignment[topic_id] = partitions = tuple(reader.int32() for _ in range(reader.array(4)))
        since.pop(topic_id, None)
        for _ in range(reader.uvarint()):
            tag, size = reader.uvarint(), reader.uvarint()
            start = reader.take(size)
            if tag == 0:
                inner = Reader(reader.view[start : start + size], 0, True)
                epochs = tuple(inner.int32() for _ in range(inner.nullable_array(4) or 0))
                if len(epochs) == len(partitions):
                    since[topic_id] = epochs
    return assignment, since


def put_target(assignment: Assignment) -> bytes:
    """Value of TARGET_MEMBER."""
    return _ZERO + _put_assignment(assignment) + b"\x00"


def read_target(data: bytes) -> Assignment:
    """Raises Malformed."""
    return _read_assignment(Reader(data, INT16.size, True))


def put_current(value: CurrentValue) -> bytes:
    """Value of CURRENT_MEMBER."""
    return b"".join(
        (
            _ZERO,
            INT32.pack(value.epoch),
            INT32.pack(value.previous_epoch),
            INT8.pack(value.state),
            _put_owned(value.assigned, value.assigned_since),
            _put_owned(value.revoking, value.revoking_since),
            b"\x00",
        )
    )


def read_current(data: bytes) -> CurrentValue:
    """Raises Malformed."""
    reader = Reader(data, INT16.size, True)
    epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
    assigned, assigned_since = _read_owned(reader)
    revoking, revoking_since = _read_owned(reader)
    return CurrentValue(epoch, previous_epoch, state, assigned, revoking, assigned_since, revoking_since)


# -- the consumer's embedded protocol --------------------------------------------------------


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Topics in a ConsumerProtocolSubscription (any version); None when it cannot be read."""
    try:
        reader = Reader(subscription, 0, False)
        reader.int16()
        return frozenset(reader.string() for _ in range(reader.array(2)))
    except Malformed:
        return None


def offset_tombstones(group_id: str, keys: Sequence[tuple[str, int]]) -> list[Record]:
    """Records that remove committed offsets."""
    return [Record(offset_key(group_id, topic, partition), None) for topic, partition in keys]
