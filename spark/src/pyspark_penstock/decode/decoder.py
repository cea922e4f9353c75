"""Runs of RecordBatch v2 in, Arrow record batches out.

Batches are gathered into units of about `chunk_bytes` of unpacked records. A unit of
uncompressed batches is decoded where it lies; compressed ones are unpacked into one new
buffer first, so that numpy's fixed costs are paid per unit and not per batch. Output is
cut to about `chunk_bytes` too: 256 KiB to 1 MiB moves best between Python and the JVM,
and a unit of one very large batch would be larger.

Rows whose offset lies outside [from_offset, to_offset) are dropped: a stored batch may
reach over either end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_penstock.decode.batches import Batch, Bytes, unpack, walk
from pyspark_penstock.decode.columns import (
    Constants,
    binary_column,
    headers_column,
    int32_column,
    int64_column,
    timestamp_column,
)
from pyspark_penstock.decode.records import Fields, Ints, RecordBuffer
from pyspark_penstock.errors import CorruptRecordsError

CHUNK_BYTES = 1024 * 1024
_OUTPUT_SLACK = 2
"""Output up to this many chunks long is left whole: an even cut isn't worth a tiny batch."""


@dataclass(slots=True)
class _Unit:
    """Batches that are decoded together, their records in one buffer."""

    batches: list[Batch] = field(default_factory=list)
    parts: list[Bytes] = field(default_factory=list)
    """Unpacked records per batch; empty while every batch can stay in the run."""
    bytes: int = 0


class Decoder:
    """Decodes one partition's batches into one Arrow schema. Not thread-safe."""

    def __init__(self, topic: str, partition: int, schema: Any, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._where = f"topic {topic} partition {partition}"
        self._schema = schema
        self._chunk_bytes = chunk_bytes
        self._constants = Constants(topic, partition)
        names = set(schema.names)
        self._payload = bool(names & {"key", "value", "headers"})
        self._required = [item.name for item in schema if not item.nullable]

    def decode(self, run: bytes | bytearray | memoryview, from_offset: int, to_offset: int) -> Iterator[Any]:
        """Arrow batches with the rows of `run` whose offset is in [from_offset, to_offset).

        Raises CorruptRecordsError, naming the partition, for anything but whole, valid batches.
        """
        data: Bytes = np.frombuffer(run, np.uint8)
        try:
            for unit in self._units(data, from_offset, to_offset):
                yield from self._slices(self._decode_unit(data, unit, from_offset, to_offset), unit.bytes)
        except CorruptRecordsError as error:
            raise CorruptRecordsError(f"{self._where}, offsets {from_offset}..{to_offset}: {error}") from None

    def _units(self, data: Bytes, from_offset: int, to_offset: int) -> Iterator[_Unit]:
        """Groups of batches, all compressed or all plain, of about a chunk each."""
        unit = _Unit()
        for batch in walk(data, from_offset, to_offset):
            records = unpack(data, batch) if batch.codec else None
            size = len(records) if records is not None else batch.end - batch.start
            full = unit.bytes + size > self._chunk_bytes
            if unit.batches and (full or bool(unit.parts) != (records is not None)):
                yield unit
                unit = _Unit()
            unit.batches.append(batch)
            unit.bytes += size
            if records is not None:
                unit.parts.append(records)
        if unit.batches:
            yield unit

    def _decode_unit(self, data: Bytes, unit: _Unit, from_offset: int, to_offset: int) -> Any:
        batches = unit.batches
        counts = np.array([batch.count for batch in batches], np.int64)
        if unit.parts:
            data = unit.parts[0] if len(unit.parts) == 1 else np.concatenate(unit.parts)
            ends = np.cumsum([len(part) for part in unit.parts], dtype=np.int64)
            starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        else:
            starts = np.array([batch.start for batch in batches], np.int64)
            ends = np.array([batch.end for batch in batches], np.int64)
        fields = RecordBuffer(data, starts, ends, counts).fields(payload=self._payload)
        offsets = _offsets(batches, counts, fields)
        first, last = np.searchsorted(offsets, [from_offset, to_offset])
        rows = slice(int(first), int(last))
        columns = [
            self._column(name, data, batches, counts, fields, offsets, rows) for name in self._schema.names
        ]
        for name in self._required:
            if columns[self._schema.get_field_index(name)].null_count:
                raise CorruptRecordsError(f"column {name} is declared not null, but a record has none")
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(
        self,
        name: str,
        data: Bytes,
        batches: list[Batch],
        counts: Ints,
        fields: Fields,
        offsets: Ints,
        rows: slice,
    ) -> Any:
        row_count = rows.stop - rows.start
        if name == "key":
            return binary_column(data, fields.key_start[rows], fields.key_length[rows])
        if name == "value":
            return binary_column(data, fields.value_start[rows], fields.value_length[rows])
        if name == "topic":
            return self._constants.topics(row_count)
        if name == "partition":
            return self._constants.partitions(row_count)
        if name == "offset":
            return int64_column(offsets[rows])
        if name == "timestamp":
            return timestamp_column(_timestamps_ms(batches, counts, fields)[rows])
        if name == "timestampType":
            kinds = np.array([batch.log_append_time for batch in batches], np.int32)
            return int32_column(np.repeat(kinds, counts)[rows])
        kind = self._schema.field(name).type
        return headers_column(data, fields.headers_start[rows], fields.ends[rows], kind)

    def _slices(self, batch: Any, size_bytes: int) -> Iterator[Any]:
        rows = batch.num_rows
        if not rows:
            return
        if size_bytes <= _OUTPUT_SLACK * self._chunk_bytes:
            yield batch
            return
        step = max(1, rows * self._chunk_bytes // size_bytes)
        for start in range(0, rows, step):
            yield batch.slice(start, step)


def _offsets(batches: list[Batch], counts: Ints, fields: Fields) -> Ints:
    """Offset of each record. Raises CorruptRecordsError unless they ascend within what the headers say."""
    base = np.array([batch.base_offset for batch in batches], np.int64)
    offsets: Ints = np.repeat(base, counts)
    offsets += fields.offset_delta
    last = np.cumsum(counts) - 1
    inside = bool((offsets[last - counts + 1] >= base).all())
    inside &= bool((offsets[last] <= np.array([batch.last_offset for batch in batches], np.int64)).all())
    if not inside or not bool((offsets[1:] > offsets[:-1]).all()):
        raise CorruptRecordsError("the offsets of the records aren't those that the batch header says")
    return offsets


def _timestamps_ms(batches: list[Batch], counts: Ints, fields: Fields) -> Ints:
    """Per record: base + delta, or the batch's append time when the topic stamps that."""
    base = np.array([batch.base_timestamp_ms for batch in batches], np.int64)
    timestamps: Ints = np.repeat(base, counts)
    with np.errstate(over="ignore"):
        timestamps += fields.timestamp_delta
    if any(batch.log_append_time for batch in batches):
        maxima = np.repeat(np.array([batch.max_timestamp_ms for batch in batches], np.int64), counts)
        stamped = np.repeat(np.array([batch.log_append_time for batch in batches], np.bool_), counts)
        timestamps = np.where(stamped, maxima, timestamps)
    return timestamps
