"""Rows to the records of batches, all batches of a run of rows at once.

A record is length, attributes, delta of time, delta of offset, key, value, headers (Kafka: DefaultRecord). What
stands before the key is one binary column, the length of the value another; Arrow joins them with the bytes of the
rows in one pass, and the data of the joined column are the records.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_penstock.encode import varints
from pyspark_penstock.encode.arrow import Bytes, Ints, binary, data_of, lengths_of, nulls_of, offsets_of

_NO_HEADERS = b"\x00"

_OVERHEAD_BYTES_MAX = 5 + 1 + 10 + 5 + 5 + 5
"""Length, attributes, time, offset, and the lengths of key and value, where each is longest."""


class Rows(NamedTuple):
    """Columns of equal length. A null key or value is a record with none."""

    key: Any | None
    """Binary; None: no row has one."""
    value: Any
    """Binary."""
    timestamps_ms: Ints
    """ms since 1970."""
    tails: Any | None = None
    """Of `header_tails`; None: no row has headers."""

    def take(self, indices: NDArray[Any]) -> Rows:
        chosen = pa.array(indices)
        return Rows(
            None if self.key is None else self.key.take(chosen),
            self.value.take(chosen),
            self.timestamps_ms[indices],
            None if self.tails is None else self.tails.take(chosen),
        )

    def size_bounds(self) -> Ints:
        """Most bytes that each record takes, whatever batch it comes into; up to 30 too many."""
        sizes = lengths_of(self.value)
        if self.key is not None:
            sizes += lengths_of(self.key)
        sizes += 1 if self.tails is None else lengths_of(self.tails)
        sizes += _OVERHEAD_BYTES_MAX
        return sizes


def encode_records(rows: Rows, firsts: Ints) -> tuple[Bytes, NDArray[np.int32]]:
    """The records, and where each begins (and the last one ends). `firsts`: rows with which batches begin, 0 first."""
    count = len(rows.value)
    per_batch = np.diff(np.append(firsts, count))
    offsets = varints.zigzag(np.arange(count, dtype=np.int64) - np.repeat(firsts, per_batch))
    times = varints.zigzag(rows.timestamps_ms - np.repeat(rows.timestamps_ms[firsts], per_batch))
    if rows.key is None:
        key_bytes: Ints = np.zeros(count, np.int64)
        key_lengths: Ints = np.full(count, -1, np.int64)
    else:
        key_bytes, key_lengths = _lengths(rows.key)
    value_bytes, value_lengths = _lengths(rows.value)
    fields = [times, offsets, varints.zigzag(key_lengths)]
    widths = [varints.sizes(field) for field in fields]
    value_widths = varints.sizes(varints.zigzag(value_lengths))
    body = 1 + sum(widths) + key_bytes + value_widths + value_bytes
    body += len(_NO_HEADERS) if rows.tails is None else lengths_of(rows.tails)
    parts: list[Any] = [_prefixes(varints.zigzag(body), fields, widths)]
    if rows.key is not None:
        parts.append(rows.key.fill_null(b"") if rows.key.null_count else rows.key)
    parts.append(varints.column(value_lengths))
    parts.append(rows.value.fill_null(b"") if rows.value.null_count else rows.value)
    parts.append(_NO_HEADERS if rows.tails is None else rows.tails)
    joined = pc.binary_join_element_wise(*parts, b"")
    return data_of(joined), offsets_of(joined)


def _lengths(column: Any) -> tuple[Ints, Ints]:
    """Bytes of each row, and what is written as its length: -1 for a null."""
    found = lengths_of(column)
    if not column.null_count:
        return found, found
    written = found.copy()
    written[nulls_of(column)] = -1
    return found, written


def _prefixes(body: varints.Zigzag, fields: list[varints.Zigzag], widths: list[Ints]) -> Any:
    """Length, attributes (0), time, offset and length of the key of each record."""
    body_widths = varints.sizes(body)
    ends = np.zeros(len(body) + 1, np.int64)
    np.cumsum(body_widths + 1 + sum(widths), out=ends[1:])
    out: Bytes = np.zeros(int(ends[-1]), np.uint8)
    at = ends[:-1].copy()
    varints.scatter(out, at, body, body_widths)
    at += body_widths + 1
    for field, width in zip(fields, widths, strict=True):
        varints.scatter(out, at, field, width)
        at += width
    return binary(ends, out)
