"""What the transaction coordinator reads: the records of `__transaction_state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fuzz.target import Target, expect
from penstock_core.errors import PenstockError
from penstock_kafka.wire.primitives import Malformed
from penstock_storage_node.transactions import records as rec
from penstock_storage_node.transactions.effects import TopicPartitionName
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
            yield rec.TransactionValue(status, 5, 3, 60_000, 9, partitions, 8, 5, -1, 2, -1, 2)
    yield rec.TransactionValue(
        rec.Status.PREPARE_ABORT, 5, 32_767, 60_000, 9, _PARTITIONS, 8, 5, 6, 2, 0, 32_766
    )


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
    Target("transactions.replay", _replay, REFUSED, _replay_seeds, share=15, input_bytes_max=2048),
]
