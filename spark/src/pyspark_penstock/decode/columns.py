"""Turns positions of fields into Arrow arrays.

Bytes are moved once, by Arrow: the buffer is described as one binary array of alternating
gaps and fields (gap, field, gap, field, ...) with no copy, and `take` of the odd entries
copies the fields together. Spark wants `binary`, so a view without any copy is impossible.

Rule: positions were checked against the bounds of their record before they come here;
Arrow trusts the offsets that it is given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_penstock.decode.records import Bytes, Ints, read_varints
from pyspark_penstock.errors import CorruptRecordsError

_MS_MAX = (1 << 63) // 1000 - 1


def binary_column(data: Bytes, starts: Ints, lengths: Ints, *, kind: Any = None) -> Any:
    """Fields at `starts` (ascending) of `lengths` bytes, null where the length is -1."""
    count = len(starts)
    kind = kind or pa.binary()
    nulls = lengths < 0
    any_null = bool(nulls.any())
    if any_null and bool(nulls.all()):
        return pa.nulls(count, kind)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0] = 0
    offsets[1::2] = starts
    np.add(starts, np.maximum(lengths, 0) if any_null else lengths, out=offsets[2::2], casting="unsafe")
    gaps_and_fields = pa.Array.from_buffers(
        kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    odd = np.arange(1, 2 * count, 2, dtype=np.int32)
    return gaps_and_fields.take(pa.array(odd, mask=nulls if any_null else None))


def int64_column(values: Ints) -> Any:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def int32_column(values: NDArray[np.int32]) -> Any:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def timestamp_column(timestamps_ms: Ints) -> Any:
    """Microseconds in UTC from ms since 1970. -1 (no timestamp) stays what Kafka's connector shows:
    one ms before 1970."""
    if len(timestamps_ms) and (int(timestamps_ms.max()) > _MS_MAX or int(timestamps_ms.min()) < -_MS_MAX):
        raise CorruptRecordsError(
            "a record's timestamp is outside what Spark's timestamps hold; "
            "give a schema without the column timestamp to read past it"
        )
    micros = timestamps_ms * 1000
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(micros), [None, pa.py_buffer(micros)])


class Constants:
    """Columns that hold one value in every row, built once at the largest size and sliced."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic.encode()
        self._partition = partition
        self._rows = 0
        self._topics: Any = None
        self._partitions: Any = None

    def _grow(self, rows: int) -> None:
        if self._topics is not None and rows <= self._rows:
            return
        rows = max(1024, 1 << (rows - 1).bit_length())
        offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(self._topic))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._topic * rows)]
        self._topics = pa.Array.from_buffers(pa.string(), rows, buffers)
        self._partitions = int32_column(np.full(rows, self._partition, np.int32))
        self._rows = rows

    def topics(self, rows: int) -> Any:
        self._grow(rows)
        return self._topics.slice(0, rows)

    def partitions(self, rows: int) -> Any:
        self._grow(rows)
        return self._partitions.slice(0, rows)


def headers_column(data: Bytes, starts: Ints, ends: Ints, kind: Any) -> Any:
    """`array<struct<key,value>>`; a record with no headers is null, as in Kafka's connector.

    `starts` are the positions of the header counts. Walks the records' headers in lockstep:
    one numpy step per header of the record that has most.
    """
    counts, position = read_varints(data, starts)
    if bool((counts < 0).any()) or bool((counts > ends - starts).any()):
        raise CorruptRecordsError("a record says a number of headers that it has no room for")
    first = np.concatenate([[0], np.cumsum(counts)])
    total = int(first[-1])
    key_start, key_length, value_start, value_length = (np.zeros(total, np.int64) for _ in range(4))
    todo = np.flatnonzero(counts)
    position = position.copy()
    index = 0
    while len(todo):
        row = first[todo] + index
        length, at = read_varints(data, position[todo])
        if bool((length < 0).any()):
            raise CorruptRecordsError("a header has a null key")
        key_start[row], key_length[row] = at, length
        if bool((at + length >= ends[todo]).any()):
            raise CorruptRecordsError("a header's key reaches past its record")
        length, at = read_varints(data, at + length)
        value_start[row], value_length[row] = at, np.maximum(length, -1)
        after = at + np.maximum(length, 0)
        if bool((after > ends[todo]).any()):
            raise CorruptRecordsError("a header's value reaches past its record")
        position[todo] = after
        index += 1
        todo = todo[counts[todo] > index]
    if bool((position != ends).any()):
        raise CorruptRecordsError("a record doesn't end behind its last header")
    keys = _utf8(binary_column(data, key_start, key_length))
    values = binary_column(data, value_start, value_length)
    element = kind.value_type
    structs = pa.StructArray.from_arrays([keys, values], fields=[element.field(0), element.field(1)])
    present = pa.array(first.astype(np.int32), mask=np.append(counts == 0, False))
    return pa.ListArray.from_arrays(present, structs, type=kind)


def _utf8(keys: Any) -> Any:
    """Header keys as strings; bytes that are no UTF-8 become U+FFFD, as Java decodes them."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
