"""What the transaction coordinator reads: the records of `__transaction_state`, whole requests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any, Final

from fuzz.kafka_targets import VERSIONS, chosen, request_body
from fuzz.target import Target, expect
from penstock_core.errors import PenstockError
from penstock_frontend.authorizer import ANONYMOUS, AllowAll, Identity
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.primitives import Malformed
from penstock_runtime.turns import LoopTurns
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.kafka.transactions import TransactionHandler
from penstock_storage_node.transactions import records as rec
from penstock_storage_node.transactions import unit_records as unit_rec
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.shard import Shard
from unit.storage_node.transactions.transaction_rig import Rig

_PARTITIONS: Final = frozenset(
    {TopicPartitionName("a", 0), TopicPartitionName("a", 7), TopicPartitionName("topic", 1)}
)


def _key(data: bytes) -> None:
    name = rec.read_key(data)
    if name is not None:
        expect(rec.read_key(rec.put_key(name)) == name, "a key is read back")


def _value(data: bytes) -> None:
    value = rec.read_value(data)
    expect(rec.read_value(rec.put_value(value, 1)) == value, "a value is read back")


def _values() -> Iterator[rec.TransactionValue]:
    for status in rec.Status:
        if status is not rec.Status.DEAD:
            partitions = _PARTITIONS if 1 <= status <= 3 else rec.NO_PARTITIONS
            value = rec.TransactionValue(status, 5, 3, 60_000, 9, partitions, 8, 5, -1, 2, -1, 2)
            yield value
            yield value._replace(unit=unit_rec.Unit("s", "query", 5))
    yield rec.TransactionValue(
        rec.Status.PREPARE_ABORT, 5, 32_767, 60_000, 9, _PARTITIONS, 8, 5, 6, 2, 0, 32_766
    )


def _entry(data: bytes) -> None:
    entry = unit_rec.read_entry(data)
    expect(unit_rec.read_entry(unit_rec.put_entry(entry)) == entry, "an entry is read back")


def _entries() -> Iterator[bytes]:
    rows = (unit_rec.Rows("a", 0, 7), unit_rec.Rows("a", 3, 1), unit_rec.Rows("b", 1, 2))
    yield unit_rec.put_entry(unit_rec.SinkEntry("query", 5, 9, True, rows))
    yield unit_rec.put_entry(unit_rec.SinkEntry("q", 0, 9))
    yield unit_rec.put_entry(unit_rec.SinkEntry("q", 0, 9, input=b"\x01" + b"d" * 16))


def _value_seeds() -> Iterator[bytes]:
    for value in _values():
        yield rec.put_value(value, 0)
        yield rec.put_value(value, 1)


def _replay(data: bytes) -> None:
    """A coordinator reads its log, and carries out what it finds."""
    rig = Rig()
    rig.shard.close()
    rig.shard = rig.make_shard()
    position = 0
    while position + 2 <= len(data):
        key_bytes, value_bytes = data[position], data[position + 1]
        position += 2
        key = data[position : position + key_bytes]
        position += key_bytes
        value = None if value_bytes == 0xFF else data[position : position + value_bytes]
        position += 0 if value is None else value_bytes
        try:
            rig.shard.replay(key, value)
        except Malformed:
            continue
    rig.shard.loaded()
    rig.settle()


def _replay_seeds() -> Iterator[bytes]:
    def put(name: str, value: rec.TransactionValue | None, version: int = 1) -> bytes:
        key, body = rec.put_key(name), b"" if value is None else rec.put_value(value, version)
        return bytes((len(key), 0xFF if value is None else len(body))) + key + body

    values = list(_values())
    for number, value in enumerate(values):
        yield put("t", value, number % 2)
    yield b"".join(put(f"t{number}", value) for number, value in enumerate(values))
    yield put("t", values[1]) + put("t", values[2]) + put("t", None) + put("t", values[0])
    key = unit_rec.put_sink_key("s")
    for entry in _entries():
        sink = bytes((len(key), len(entry))) + key + entry
        yield sink
        yield b"".join(put(f"s-{number}-0-0", value) for number, value in enumerate(values)) + sink


# -- whole requests ------------------------------------------------------------------------------

_KEYS: Final = frozenset({22, 24, 25, 26, 65, 66})


class _Host:
    """One shard for all ids."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.is_whole = True
        self.make_topic = lambda _: None

    def find(self, _: str) -> Shard:
        return self.rig.shard

    def shards(self) -> list[Shard]:
        return [self.rig.shard]

    def exists(self, name: TopicPartitionName) -> bool:
        return name.partition in range(3)

    def partition_count(self, _: str) -> int:
        return 50

    @property
    def now_ms(self) -> int:
        return self.rig.wall_ms()


_LOOP: Final[list[asyncio.AbstractEventLoop]] = []


def _loop() -> asyncio.AbstractEventLoop:
    if not _LOOP:
        _LOOP.append(asyncio.new_event_loop())
    return _LOOP[0]


def _requests(data: bytes) -> None:
    """Some requests to one coordinator, one after another, each answered in a form that clients can read."""

    async def main() -> None:
        rig = Rig()
        handler = TransactionHandler(_Host(rig), Rights(AllowAll()), LoopTurns())  # type: ignore[arg-type]
        position = 0
        while position + 4 <= len(data):
            key, version = VERSIONS[int.from_bytes(data[position : position + 2], "big") % len(VERSIONS)]
            size = int.from_bytes(data[position + 2 : position + 4], "big")
            body = data[position + 4 : position + 4 + size]
            position += 4 + size
            if key in _KEYS:
                await _request(rig, handler, key, version, body)

    _loop().run_until_complete(main())


async def _request(rig: Rig, handler: TransactionHandler, key: int, version: int, body: bytes) -> None:
    frame = request_header(key, version, 9, "client") + body
    caller = RequestContext(Identity(ANONYMOUS, "1.2.3.4"), "client", "1.2.3.4:5")
    try:
        answer: Any = handler.handle(caller, parse_request_header(frame), frame)
    except Malformed:
        return
    if inspect.iscoroutine(answer):
        answer = await answer
    rig.settle()
    if asyncio.isfuture(answer):
        rig.pass_ms(1_000)
        expect(answer.done(), "nobody is held for longer than a second")
        answer = answer.result()
    codec.decode_response(key, version, b"".join(answer))


def _requests_seeds() -> Iterator[bytes]:
    def put(key: int, version: int) -> bytes:
        body = request_body(key, version)
        return chosen(key, version, len(body).to_bytes(2, "big") + body)

    newest = {}
    for key, version in VERSIONS:
        if key in _KEYS:
            newest[key] = put(key, version)
            yield newest[key]
    yield b"".join(newest.values())


REFUSED: Final = (PenstockError,)

TARGETS: Final = [
    Target(
        "transactions.record_key",
        _key,
        REFUSED,
        lambda: [rec.put_key("t"), b"\x00\x01\x00\x01x"],
        share=10,
        input_bytes_max=128,
    ),
    Target("transactions.record_value", _value, REFUSED, _value_seeds, share=20, input_bytes_max=512),
    Target(
        "transactions.sink_entry", _entry, REFUSED, lambda: list(_entries()), share=5, input_bytes_max=256
    ),
    Target("transactions.replay", _replay, REFUSED, _replay_seeds, share=15, input_bytes_max=2048),
    Target("transactions.requests", _requests, REFUSED, _requests_seeds, share=15, input_bytes_max=2048),
]
