"""Runs of stored batches as Fetch gives them, by their headers alone: where they end, and which are aborted.

Checks of what is in them are the decoder's. A batch cut off at the end of a run (Kafka may send a part of one) is left
away; it comes whole with the next question.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from pyspark_penstock.errors import CorruptRecordsError

_LENGTH_END: Final = 12
_HEADER_BYTES: Final = 61
_HEAD: Final = struct.Struct(">qi9xhi16xq")
"""Base offset, length, attributes, last offset delta, producer id."""
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_ABORT: Final = 0
_MARKER_KEY: Final = struct.Struct(">hh")


def whole(run: memoryview) -> tuple[memoryview, int]:
    """The whole batches of a run, and the first offset behind them; -1 when there is none.

    Raises CorruptRecordsError for lengths that no batch has.
    """
    position, next_offset, size = 0, -1, len(run)
    while size - position >= _HEADER_BYTES:
        base, length, _attributes, last_delta, _producer = _HEAD.unpack_from(run, position)
        end = position + _LENGTH_END + length
        if length < _HEADER_BYTES - _LENGTH_END or last_delta < 0:
            raise CorruptRecordsError(
                f"batch at offset {base} says {length} bytes and {last_delta + 1} offsets"
            )
        if end > size:
            break
        position, next_offset = end, base + last_delta + 1
    return run[:position], next_offset


def without_aborted(run: memoryview, aborted: Iterable[tuple[int, int]]) -> memoryview:
    """Whole batches but for those of aborted transactions: of a producer, from its first offset to its abort marker.

    Markers stay, as a node's own answers to readers of committed records have them.
    """
    waiting = sorted(aborted, key=lambda each: each[1], reverse=True)
    if not waiting:
        return run
    open_ids: set[int] = set()
    kept: list[tuple[int, int]] = []
    position = 0
    while position < len(run):
        base, length, attributes, last_delta, producer_id = _HEAD.unpack_from(run, position)
        end = position + _LENGTH_END + length
        while waiting and waiting[-1][1] <= base + last_delta:
            open_ids.add(waiting.pop()[0])
        is_marker = bool(attributes & _CONTROL)
        if is_marker and producer_id in open_ids and _is_abort(run[position + _HEADER_BYTES : end]):
            open_ids.discard(producer_id)
        if is_marker or not attributes & _TRANSACTIONAL or producer_id not in open_ids:
            if kept and kept[-1][1] == position:
                kept[-1] = kept[-1][0], end
            else:
                kept.append((position, end))
        position = end
    if len(kept) == 1:
        first, end = kept[0]
        return run[first:end]
    return memoryview(b"".join(run[first:end] for first, end in kept))


def _is_abort(record: memoryview) -> bool:
    """Whether a control batch's one record ends a transaction by aborting it: the second number of its key."""
    try:
        at = 0
        for _ in range(5):  # length, attributes (one byte), timestamp, offset, length of the key
            while record[at] & 0x80:
                at += 1
            at += 1
        _, kind = _MARKER_KEY.unpack_from(record, at)
    except (IndexError, struct.error):
        raise CorruptRecordsError("a transaction's marker has no key") from None
    return bool(kind == _ABORT)
