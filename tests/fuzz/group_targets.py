"""What the group coordinator reads: its records, clients' payloads, regular expressions, whole requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from fuzz.kafka_targets import VERSIONS, chosen, request_body
from fuzz.target import Target, expect
from penstock_core.errors import PenstockError
from penstock_core.ids import TopicId
from penstock_frontend.authorizer import ANONYMOUS, AllowAll, Identity
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.groups import group_partition
from penstock_kafka.wire.primitives import INT16, INT32, Malformed, put_string
from penstock_storage_node.groups import records as rec
from penstock_storage_node.groups.consumer import subscription
from penstock_storage_node.groups.consumer.regex import BadRegex, TopicRegex
from penstock_storage_node.groups.shard import Shard
from penstock_storage_node.kafka.groups import GroupHandler
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from unit.storage_node.groups.group_rig import Rig

_GROUP_KEYS: Final = frozenset({8, 9, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69})


# -- records of __consumer_offsets ---------------------------------------------------------------

_ASSIGNMENT: Final[rec.Assignment] = {TopicId(bytes(range(16))): (0, 1, 5)}
_MEMBER: Final = rec.MemberValue("m", "i", "c", "/1.2.3.4", 60_000, 10_000, b"\x00\x01", b"")
_CONSUMER: Final = rec.ConsumerMemberValue(
    None, "rack", "c", "h", ("a", "b"), "a.*", 5000, "uniform", (10_000, (("range", b"meta"),))
)

_VALUES: Final[Sequence[tuple[Callable[[bytes], Any], Callable[[Any], bytes]]]] = (
    (rec.read_offset, rec.put_offset),
    (rec.read_group, rec.put_group),
    (rec.read_epoch, rec.put_epoch),
    (rec.read_consumer_member, rec.put_consumer_member),
    (rec.read_target, rec.put_target),
    (rec.read_current, rec.put_current),
)


def _record_key(data: bytes) -> None:
    key = rec.read_key(data)
    if key is not None and key.kind == rec.OFFSET_COMMIT:
        expect(rec.read_key(rec.offset_key(*key[1:4])) == key, "a key is read back")


def _record_key_seeds() -> Iterator[bytes]:
    yield rec.offset_key("g", "topic", 3)
    yield rec.group_key("g")
    for kind in range(9):
        yield rec.consumer_key(kind, "g", "member")
    yield rec.consumer_key(rec.TARGET_EPOCH, "g")


def _record_value(data: bytes) -> None:
    if not data:
        return
    read, put = _VALUES[data[0] % len(_VALUES)]
    value = read(data[1:])
    if isinstance(value, rec.OffsetValue) and value.expire_ms < 0:
        value = value._replace(expire_ms=-1)
    expect(read(put(value)) == value, f"{read.__name__}: a value is read back")


def _record_value_seeds() -> Iterator[bytes]:
    group = rec.GroupValue("consumer", 4, "range", "m", 17, (_MEMBER, _MEMBER._replace(instance_id=None)))
    yield b"\x00" + rec.put_offset(rec.OffsetValue(5, 2, "meta", 17))
    yield b"\x00" + rec.put_offset(rec.OffsetValue(5, -1, "meta", 17, 99))
    yield b"\x01" + rec.put_group(group)
    yield b"\x02" + rec.put_epoch(7)
    yield b"\x03" + rec.put_consumer_member(_CONSUMER)
    yield b"\x03" + rec.put_consumer_member(_CONSUMER._replace(classic=None, regex=None))
    yield b"\x04" + rec.put_target(_ASSIGNMENT)
    yield b"\x05" + rec.put_current(rec.CurrentValue(3, 2, 1, _ASSIGNMENT, {}))


def _replay(data: bytes) -> None:
    """A coordinator reads its log: key and value of any kind, in any order, of producers too; an empty key is a
    marker."""
    shard = Rig().shard
    position = offset = 0
    while position + 3 <= len(data):
        key_bytes, value_bytes = data[position], int.from_bytes(data[position + 1 : position + 3], "big")
        position += 3
        key = data[position : position + key_bytes]
        position += key_bytes
        value = None if value_bytes == 0xFFFF else data[position : position + value_bytes]
        position += 0 if value is None else value_bytes
        offset += 1
        if not key_bytes:
            shard.replay_marker(value_bytes & 3, offset, commits=bool(value_bytes & 4))
            continue
        try:
            shard.replay(key, value, offset, offset % 4 - 1)
        except Malformed:
            continue
    shard.resume()
    shard.transactional_offsets.validate()


def _replay_seeds() -> Iterator[bytes]:
    def put(key: bytes, value: bytes | None) -> bytes:
        size = 0xFFFF if value is None else len(value)
        return bytes((len(key),)) + size.to_bytes(2, "big") + key + (value or b"")

    values = {seed[0]: seed[1:] for seed in _record_value_seeds()}
    offset = put(rec.offset_key("g", "t", 0), values[0])
    classic = put(rec.group_key("g"), values[1])
    consumer = b"".join(
        put(rec.consumer_key(kind, "c", member), values[value])
        for kind, member, value in (
            (rec.CONSUMER_MEMBER, "m", 3),
            (rec.CONSUMER_GROUP, None, 2),
            (rec.TARGET_MEMBER, "m", 4),
            (rec.TARGET_EPOCH, None, 2),
            (rec.CURRENT_MEMBER, "m", 5),
        )
    )
    yield offset
    yield offset * 4 + bytes((0, 0, 4)) + bytes((0, 0, 1)) + put(rec.offset_key("g", "t", 0), None)
    yield classic + offset
    yield consumer
    yield classic + offset + consumer + put(rec.group_key("g"), None)
    yield consumer + put(rec.consumer_key(rec.CURRENT_MEMBER, "c", "m"), None)


# -- payloads of clients -------------------------------------------------------------------------


def _subscription(data: bytes) -> None:
    found = subscription.read_subscription(data)
    topics = rec.subscribed_topics(data)
    if found is not None:
        expect(topics == frozenset(found.topics), "both readers find the same topics")


def _subscription_seeds() -> Iterator[bytes]:
    for version in range(4):
        out = INT16.pack(version) + INT32.pack(2) + put_string("a", False) + put_string("b", False)
        out += INT32.pack(-1)
        if version >= 1:
            out += INT32.pack(1) + put_string("a", False) + INT32.pack(2) + INT32.pack(0) + INT32.pack(1)
        if version >= 2:
            out += INT32.pack(5)
        yield out + (put_string("rack", False) if version >= 3 else b"")


def _assignment(data: bytes) -> None:
    found = subscription.read_assignment(data)
    if found:
        partitions: dict[str, list[int]] = {}
        for topic, partition in found:
            partitions.setdefault(topic, []).append(partition)
        expect(subscription.read_assignment(subscription.put_assignment(1, partitions)) == found, "read back")


def _assignment_seeds() -> Iterator[bytes]:
    yield subscription.put_assignment(0, {"a": (0, 1)})
    yield subscription.put_assignment(3, {"a": (0, 1), "topic": (7,)})


_TEXTS: Final = ("", "a", "a" * 249, "orders.eu-1", "aaab" * 60, "A_9", "topic\n")


def _regex(data: bytes) -> None:
    regex = TopicRegex(data.decode("utf-8", "replace"))
    for text in _TEXTS:
        regex.matches(text)


def _regex_seeds() -> Iterator[bytes]:
    for pattern in (
        "orders.*",
        "(a+)+b",
        "(a|aa)*$",
        "^[a-z0-9._-]{1,249}$",
        r"(?i)Orders\.(eu|us)-\d+",
        r"[^\s\w]|\D\S\W",
        "(?:x{0,3}y?){2,5}?",
        r"\Aa\Z",
        "(?s:.)",
        "((((a)*)*)*)*",
        "[a-\u00ff]+",
    ):
        yield pattern.encode()


_REGEX_WORDS: Final = (
    *(b"(?:", b"(?i)", b"(?a)", b"(?u)", b"(?L)", b"(?s)", b"(?x)", b"(?P<n>", b"(?P=n)", b"(?=", b"(?<!"),
    *(b"()", b"{0}", b"{1000}", b"{0,1000}", b"{100000000}", b"{,9}", b"*?", b"*+", b"++", b"\\d", b"\\N{"),
    *(b"[^", b"[]", b"]", b"\\b", b"\\1", b"|", b"\\x00", b"\\U0010ffff", b"(?#", b"(?(1)", b"(?>", b"$"),
)


def _group_partition(data: bytes) -> None:
    index = group_partition(data.decode("utf-8", "surrogatepass"), 50)
    expect(0 <= index < 50, "a group has a partition")


# -- whole requests ------------------------------------------------------------------------------


class _Host:
    """One shard for all groups."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.topics = rig.topics
        self.settings = rig.settings
        self.is_whole = True

    def find(self, group_id: str) -> Shard:
        return self.rig.shard

    def shards(self) -> list[Shard]:
        return [self.rig.shard]


_LOOP: Final[list[asyncio.AbstractEventLoop]] = []


def _loop() -> asyncio.AbstractEventLoop:
    if not _LOOP:
        _LOOP.append(asyncio.new_event_loop())
    return _LOOP[0]


def _requests(data: bytes) -> None:
    """Some requests to one coordinator, one after another, each answered in a form that clients can read."""

    async def main() -> None:
        rig = Rig()
        rig.topics.counts = {"name-1": 3, "t": 2}
        handler = GroupHandler(_Host(rig), Rights(AllowAll()))  # type: ignore[arg-type]
        position = 0
        while position + 4 <= len(data):
            key, version = VERSIONS[int.from_bytes(data[position : position + 2], "big") % len(VERSIONS)]
            size = int.from_bytes(data[position + 2 : position + 4], "big")
            body = data[position + 4 : position + 4 + size]
            position += 4 + size
            if key in _GROUP_KEYS:
                await _request(rig, handler, key, version, body)

    _loop().run_until_complete(main())


async def _request(rig: Rig, handler: GroupHandler, key: int, version: int, body: bytes) -> None:
    frame = request_header(key, version, 9, "client") + body
    caller = RequestContext(Identity(ANONYMOUS, "1.2.3.4"), "client", "1.2.3.4:5")
    try:
        answer: Any = handler.handle(caller, parse_request_header(frame), frame)
    except Malformed:
        return
    rig.settle()
    if asyncio.isfuture(answer):
        rig.pass_ms(100)
        if not answer.done():
            rig.pass_ms(70_000, 5_000)
        if not answer.done():
            # A SyncGroup may wait for as long as the leader's heartbeats come.
            answer.cancel()
            return
        answer = answer.result()
    codec.decode_response(key, version, b"".join(answer))


def _requests_seeds() -> Iterator[bytes]:
    def put(key: int, version: int) -> bytes:
        body = request_body(key, version)
        return chosen(key, version, len(body).to_bytes(2, "big") + body)

    newest = {}
    for key, version in VERSIONS:
        if key in _GROUP_KEYS:
            newest[key] = put(key, version)
            yield newest[key]
    yield newest[11] + newest[14] + newest[12] + newest[8] + newest[9] + newest[13]
    yield newest[68] + newest[68] + newest[69] + newest[15] + newest[16]


REFUSED: Final = (PenstockError,)

TARGETS: Final = [
    Target("groups.record_key", _record_key, REFUSED, _record_key_seeds, share=20, input_bytes_max=512),
    Target(
        "groups.record_value", _record_value, REFUSED, _record_value_seeds, share=30, input_bytes_max=1024
    ),
    Target("groups.replay", _replay, REFUSED, _replay_seeds, share=20, input_bytes_max=2048),
    Target("groups.subscription", _subscription, (), _subscription_seeds, share=20, input_bytes_max=1024),
    Target("groups.assignment", _assignment, (), _assignment_seeds, share=20, input_bytes_max=1024),
    Target(
        "groups.regex", _regex, (BadRegex,), _regex_seeds, share=10, input_bytes_max=1100, words=_REGEX_WORDS
    ),
    Target(
        "groups.partition",
        _group_partition,
        (UnicodeDecodeError,),
        lambda: [b"group", "gruppe-\u00e4-\U0001f600".encode()],
        share=10,
        input_bytes_max=64,
    ),
    Target("groups.requests", _requests, REFUSED, _requests_seeds, share=15, input_bytes_max=2048),
]
