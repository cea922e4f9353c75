"""`rows=batches`: a row per stored batch, out of headers alone; records are neither unpacked nor decoded.

A batch belongs to the range in which its last offset lies, so that splits of a range, and a log that now starts
inside a batch, show each batch once. What transactions have aborted and their markers are rows too (`isolation`
says what FetchRange sends). A batch whose CRC is wrong is a row with `crcOk` false, and no error.

Columns beyond the default ones, to be had by naming them in the schema:

`topic`        of the batch
`controlType`  of a control batch the kind of its marker (0 abort, 1 commit), else null
`unreadable`   why offsets `baseOffset` to `lastOffset` could not be had; null for a batch. Whoever names it gets such a
               row where a read would otherwise fail: an audit goes on behind a damaged batch

Source of the layout: Kafka's DefaultRecordBatch and ControlRecordType.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_penstock.decode import Decoder
from pyspark_penstock.decode.batches import HEADER, HEADER_BYTES
from pyspark_penstock.decode.columns import timestamp_column
from pyspark_penstock.errors import CorruptRecordsError, GatewayError, OptionError
from pyspark_penstock.tiling import OffsetRange

DEFAULT_COLUMNS: dict[str, DataType] = {
    "partition": IntegerType(),
    "baseOffset": LongType(),
    "lastOffset": LongType(),
    "records": IntegerType(),
    "bytes": LongType(),
    "codec": StringType(),
    "timestampType": IntegerType(),
    "baseTimestamp": TimestampType(),
    "maxTimestamp": TimestampType(),
    "leaderEpoch": IntegerType(),
    "producerId": LongType(),
    "producerEpoch": ShortType(),
    "baseSequence": IntegerType(),
    "isTransactional": BooleanType(),
    "isControl": BooleanType(),
    "crcOk": BooleanType(),
}
COLUMNS: dict[str, DataType] = DEFAULT_COLUMNS | {
    "topic": StringType(),
    "controlType": IntegerType(),
    "unreadable": StringType(),
}
_ARROW: dict[str, Any] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "smallint": pa.int16(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the number in a batch's attributes; others are shown as that number."""

_CRC_START = 21
_LENGTH_END = 12
_PROBE_STEPS_MAX = 64

Row = tuple[Any, ...]
_FIELDS = (
    "baseOffset", "lastOffset", "records", "bytes", "codec", "timestampType", "baseTimestamp", "maxTimestamp",
    "leaderEpoch", "producerId", "producerEpoch", "baseSequence", "isTransactional", "isControl", "crcOk",
    "controlType", "unreadable",
)  # fmt: skip


def spark_schema() -> StructType:
    """What `rows=batches` gives where no schema is named."""
    return StructType([StructField(name, kind) for name, kind in DEFAULT_COLUMNS.items()])


def arrow_schema(schema: StructType) -> Any:
    """The Arrow schema of a projection. Raises OptionError for a column or type that isn't there."""
    if not schema.fields:
        raise OptionError(f"the schema has no column; name some of: {', '.join(COLUMNS)}")
    fields = []
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            raise OptionError(f"no column {field.name!r} with rows=batches; it has: {', '.join(COLUMNS)}")
        kind = expected.simpleString()
        if field.dataType.simpleString() != kind:
            raise OptionError(
                f"column {field.name!r} has type {kind}, not {field.dataType.simpleString()}; "
                "read it so and cast it in the query"
            )
        fields.append(pa.field(field.name, _ARROW[kind], nullable=field.nullable))
    names = [field.name for field in schema.fields]
    if len(set(names)) != len(names):
        raise OptionError(f"a column is named twice in the schema: {', '.join(names)}")
    return pa.schema(fields)


class BatchDecoder(Decoder):
    """Runs of batches to rows about them, one partition's. `reached` is the offset behind the last row."""

    def __init__(self, topic: str, partition: int, schema: Any) -> None:
        super().__init__(topic, partition, schema)
        self._topic, self._partition = topic, partition
        self.reached = 0

    def decode(self, run: bytes | bytearray | memoryview, from_offset: int, to_offset: int) -> Iterator[Any]:
        rows = [row for row in describe(run) if from_offset <= row[1] < to_offset]
        if rows:
            self.reached = rows[-1][1] + 1
            yield self.table(rows)

    def table(self, rows: list[Row]) -> Any:
        """One Arrow batch."""
        by_name = dict(zip(_FIELDS, zip(*rows, strict=True), strict=True))
        by_name["topic"] = (self._topic,) * len(rows)
        by_name["partition"] = (self._partition,) * len(rows)
        arrays = []
        for field in self._schema:
            values = by_name[field.name]
            if pa.types.is_timestamp(field.type):
                arrays.append(timestamp_column(np.array(values, np.int64)))
            else:
                arrays.append(pa.array(values, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def describe(run: bytes | bytearray | memoryview) -> Iterator[Row]:
    """The batches of a run, in the order of `_FIELDS`. Raises CorruptRecordsError where none can be made out."""
    view, size, position = np.frombuffer(run, np.uint8), len(run), 0
    while position < size:
        if size - position < HEADER_BYTES:
            raise CorruptRecordsError(
                f"{size - position} bytes left where a batch header of {HEADER_BYTES} was to come"
            )
        fields = HEADER.unpack_from(run, position)
        base, length, epoch, _magic, crc, attributes, last_delta, base_time, max_time = fields[:9]
        producer_id, producer_epoch, sequence, count = fields[9:13]
        end = position + _LENGTH_END + length
        if length < HEADER_BYTES - _LENGTH_END or end > size:
            raise CorruptRecordsError(
                f"batch at offset {base} says {length} bytes, {size - position - _LENGTH_END} are there"
            )
        codec = attributes & 0x07
        is_control = bool(attributes & 0x20)
        crc_ok = google_crc32c.value(view[position + _CRC_START : end]) == crc
        yield (
            base, base + last_delta, count, end - position, CODECS[codec] if codec < len(CODECS) else str(codec),
            (attributes >> 3) & 1, base_time, max_time, epoch, producer_id, producer_epoch, sequence,
            bool(attributes & 0x10), is_control, crc_ok,
            _marker_kind(run, position + HEADER_BYTES, end) if is_control and crc_ok else None, None,
        )  # fmt: skip
        position = end


def _marker_kind(run: bytes | bytearray | memoryview, at: int, end: int) -> int | None:
    """0 for abort, 1 for commit: the second number in the key of a control batch's record."""
    try:
        for _ in range(5):  # length, attributes (one byte, below 128), timestamp, offset, key length
            key_bytes, at = _varint(run, at)
        if key_bytes < 4 or at + 4 > end:
            return None
        _, kind = struct.unpack_from(">hh", run, at)
    except (IndexError, struct.error):
        return None
    return int(kind)


def _varint(run: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = run[at]
        raw |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at


ReadRange = Callable[[OffsetRange, BatchDecoder], Iterator[Any]]
"""Reads a range through a decoder: `RangeReader.batches`."""


class TellingReader:
    """Reads a range and tells of what can't be read, instead of ending there.

    A node that finds a batch damaged gives none of it, whatever offset in it is asked for. So the reader goes near in
    steps that double, and behind the damage finds by halving where the next good batch begins. A read that failed
    after `patience_s`, because nobody answers, is not tried offset by offset: what is left is told as one range.
    """

    def __init__(
        self, wanted: OffsetRange, decoder: BatchDecoder, read: ReadRange, patience_s: float
    ) -> None:
        self._wanted = wanted
        self._decoder = decoder
        self._read = read
        self._patience_s = patience_s

    def batches(self) -> Iterator[Any]:
        """Arrow batches in order. Raises DataLossError as a plain read does."""
        position, end = self._wanted.start, self._wanted.end
        width = end - position
        while position < end:
            upto = min(position + width, end)
            self._decoder.reached = position
            begun_s = time.monotonic()
            try:
                yield from self._read(self._part(position, upto), self._decoder)
            except (GatewayError, CorruptRecordsError) as error:
                is_damage = _is_damage(error)
                if not is_damage and time.monotonic() - begun_s < self._patience_s:
                    raise
                if self._decoder.reached > position:
                    position = self._decoder.reached
                elif not is_damage:
                    yield self._row(position, end, error)
                    return
                elif width > 1:
                    width = 1
                else:
                    good = self._next_good(position)
                    yield self._row(position, good, error)
                    position, width = good, end - good
                continue
            position = max(upto, self._decoder.reached)
            width *= 2

    def _part(self, start: int, end: int) -> OffsetRange:
        wanted = self._wanted
        return OffsetRange(wanted.topic, wanted.partition, start, end, wanted.topic_id)

    def _row(self, start: int, end: int, error: Exception) -> Any:
        row = dict.fromkeys(_FIELDS) | {"baseOffset": start, "lastOffset": end - 1, "records": 0, "bytes": 0}
        row |= {"baseTimestamp": -1, "maxTimestamp": -1, "unreadable": str(error), "crcOk": False}
        row |= {"isControl": False, "isTransactional": False}
        return self._decoder.table([tuple(row[name] for name in _FIELDS)])

    def _next_good(self, bad: int) -> int:
        """First offset behind `bad` of which something can be had; the range's end if there is none."""
        step = 1
        good = min(bad + step, self._wanted.end)
        for _ in range(_PROBE_STEPS_MAX):
            if good >= self._wanted.end or self._is_good(good):
                break
            bad, step = good, step * 2
            good = min(good + step, self._wanted.end)
        while good - bad > 1:
            middle = (bad + good) // 2
            if self._is_good(middle):
                good = middle
            else:
                bad = middle
        return good

    def _is_good(self, offset: int) -> bool:
        probe = BatchDecoder(self._wanted.topic, self._wanted.partition, arrow_schema(spark_schema()))
        try:
            for _ in self._read(self._part(offset, offset + 1), probe):
                pass
        except (GatewayError, CorruptRecordsError):
            return False
        return True


def _is_damage(error: Exception) -> bool:
    """Whether the node, or we, found stored bytes to be wrong; Kafka's CORRUPT_MESSAGE is 2."""
    return isinstance(error, CorruptRecordsError) or "Kafka error 2," in str(error)


__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "BatchDecoder",
    "TellingReader",
    "arrow_schema",
    "describe",
    "spark_schema",
]
