"""What `__transaction_state` has of units (decision 0073): a sink's entry, and the mark of a stage.

A sink's entry is a record with a key of our own: int16 1000 and the sink's name. Kafka's readers pass over versions of
keys that they do not know. Value: int16 version 0, flexible: query, epoch, when it was decided, flags, rows by topic
and partition, tagged fields: 0 is what the unit was made of, where that was said. No value is a tombstone: the entry
has expired. A stage's mark is a tagged field in the value of its transactional id: sink, query and epoch of its unit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from penstock_kafka.wire.primitives import (
    INT16,
    INT64,
    Buffer,
    Malformed,
    Reader,
    put_count,
    put_string,
    uvarint,
)

KEY_VERSION: Final = 1000
_VALUE_VERSION: Final = 0
_ONCE: Final = 1
_TAG_INPUT: Final = 0
INPUT_BYTES_MAX: Final = 64
_HEAD: Final = struct.Struct(">qqb")
"""Epoch, when it was decided, flags."""
_ROWS: Final = struct.Struct(">iq")
"""Partition and its rows."""


class Unit(NamedTuple):
    """What counts at once. Of one query units rise by epoch."""

    sink: str
    query: str
    epoch: int


class Rows(NamedTuple):
    """What a unit has in one partition, for operators."""

    topic: str
    partition: int
    rows: int


class SinkEntry(NamedTuple):
    """What a sink has decided last."""

    query: str
    epoch: int
    decided_ms: int
    """Since 1970."""
    once: bool = False
    """No other unit follows: it goes when transactional ids expire."""
    rows: tuple[Rows, ...] = ()
    """Sorted."""
    input: bytes = b""
    """Of what the unit was made, as whoever decided it has said; b"" for nothing."""


def put_sink_key(sink: str) -> bytes:
    """Key of a sink's entry."""
    return INT16.pack(KEY_VERSION) + put_string(sink, False)


def read_sink_key(data: bytes) -> str | None:
    """The sink, None for a kind that is not known. Raises Malformed."""
    reader = Reader(data, 0, False)
    return reader.string() if reader.int16() == KEY_VERSION else None


def put_entry(entry: SinkEntry) -> bytes:
    """The value."""
    out = [
        INT16.pack(_VALUE_VERSION),
        put_string(entry.query, True),
        _HEAD.pack(entry.epoch, entry.decided_ms, _ONCE if entry.once else 0),
    ]
    topics = [(topic, list(rows)) for topic, rows in groupby(sorted(entry.rows), key=lambda row: row.topic)]
    out.append(put_count(len(topics), True))
    for topic, rows in topics:
        out += (put_string(topic, True), put_count(len(rows), True))
        out += (_ROWS.pack(row.partition, row.rows) for row in rows)
        out.append(b"\x00")
    if entry.input:
        out += (b"\x01", uvarint(_TAG_INPUT), uvarint(len(entry.input)), entry.input)
    else:
        out.append(b"\x00")
    return b"".join(out)


def read_entry(data: bytes) -> SinkEntry:
    """Raises Malformed."""
    reader = Reader(data, 0, True)
    version = reader.int16()
    if version != _VALUE_VERSION:
        raise Malformed(f"a sink's entry of version {version}")
    query = reader.string()
    epoch, decided_ms, flags = reader.unpack(_HEAD)
    if epoch < 0:
        raise Malformed(f"a sink's entry of epoch {epoch}")
    found: list[Rows] = []
    for _ in range(reader.array(3)):
        topic = reader.string()
        found += (Rows(topic, *reader.unpack(_ROWS)) for _ in range(reader.array(_ROWS.size)))
        reader.skip_tags()
    said = b""
    for _ in range(reader.uvarint()):
        tag, size = reader.uvarint(), reader.uvarint()
        start = reader.take(size)
        if tag == _TAG_INPUT:
            said = bytes(reader.view[start : start + size])
    return SinkEntry(query, epoch, decided_ms, bool(flags & _ONCE), tuple(sorted(found)), said)


def put_mark(unit: Unit) -> bytes:
    """The tagged field of a stage."""
    return put_string(unit.sink, True) + put_string(unit.query, True) + INT64.pack(unit.epoch)


def read_mark(data: Buffer) -> Unit:
    """Raises Malformed."""
    reader = Reader(data, 0, True)
    unit = Unit(reader.string(), reader.string(), reader.int64())
    if unit.epoch < 0:
        raise Malformed(f"a stage of epoch {unit.epoch}")
    return unit


def merged(rows: Iterable[Rows]) -> tuple[Rows, ...]:
    """As an entry has them: one for each partition, sorted."""
    sums: dict[tuple[str, int], int] = {}
    for row in rows:
        sums[row.topic, row.partition] = sums.get((row.topic, row.partition), 0) + row.rows
    return tuple(Rows(*place, count) for place, count in sorted(sums.items()))


__all__ = [
    "INPUT_BYTES_MAX",
    "KEY_VERSION",
    "Rows",
    "SinkEntry",
    "Unit",
    "merged",
    "put_entry",
    "put_mark",
    "put_sink_key",
    "read_entry",
    "read_mark",
    "read_sink_key",
]
