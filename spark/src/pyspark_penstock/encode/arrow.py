"""Binary columns of Arrow as offsets and bytes, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

NO_BYTES: Bytes = np.empty(0, np.uint8)


def offsets_of(column: Any) -> NDArray[np.int32]:
    """One more than there are rows: where each begins in `data_of`, and where the last one ends."""
    if not len(column):
        return np.zeros(1, np.int32)
    whole: NDArray[np.int32] = np.frombuffer(column.buffers()[1], np.int32)
    return whole[column.offset : column.offset + len(column) + 1]


def data_of(column: Any) -> Bytes:
    buffer = column.buffers()[2]
    return NO_BYTES if buffer is None else np.frombuffer(buffer, np.uint8)


def lengths_of(column: Any) -> Ints:
    """Bytes of each row; 0 where it is null."""
    lengths: Ints = np.diff(offsets_of(column)).astype(np.int64)
    if column.null_count:
        lengths[nulls_of(column)] = 0  # an array may have bytes there
    return lengths


def nulls_of(column: Any) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def binary(offsets: NDArray[Any], data: Bytes) -> Any:
    """A column without nulls."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def to_binary(column: Any) -> Any:
    """A column of strings or bytes, with large offsets or without, as one of bytes."""
    if column.type == pa.large_string():
        column = column.cast(pa.large_binary())
    return column if column.type == pa.binary() else column.cast(pa.binary())
