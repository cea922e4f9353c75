"""Zigzag varints of Kafka's records, a column at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyspark_penstock.encode.arrow import Bytes, Ints, binary

Zigzag = NDArray[np.uint64]

_LAST_SHIFT = 63


def zigzag(values: Ints) -> Zigzag:
    folded: Zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return folded


def sizes(folded: Zigzag) -> Ints:
    """Bytes of each: 1 to 10."""
    found: Ints = np.ones(len(folded), np.int64)
    top = int(folded.max()) if len(folded) else 0
    for shift in range(7, _LAST_SHIFT + 1, 7):
        if not top >> shift:
            break
        found += folded >= np.uint64(1 << shift)
    return found


def scatter(out: Bytes, positions: Ints, folded: Zigzag, widths: Ints) -> None:
    """Writes each varint at its position; `widths` are its `sizes`."""
    at, left, width = positions, folded, widths
    byte = 0
    while len(at):
        more = width > byte + 1
        out[at] = (left & np.uint64(0x7F)).astype(np.uint8) | (more.view(np.uint8) << np.uint8(7))
        if not more.any():
            return
        if not more.all():
            at, left, width = at[more], left[more], width[more]
        at, left, byte = at + 1, left >> np.uint64(7), byte + 1


def column(values: Ints) -> Any:
    """A binary column of the varints alone."""
    folded = zigzag(values)
    widths = sizes(folded)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(widths, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    scatter(data, offsets[:-1], folded, widths)
    return binary(offsets, data)
