"""Finds the fields of every record of a buffer, with numpy.

A record (Kafka's DefaultRecord) is a chain of zigzag varints: only its length tells where
the next one starts, so a batch is a linked list. Three ways through it, chosen per buffer by what they cost there:

* lockstep: one cursor (lane) per batch, all advanced together, one numpy step per record
  of the longest lane: good for many small batches;
* split lockstep: long batches are cut into lanes at positions that look like the start of a
  record (zero attributes, the next record's offset delta one higher). A guess may be wrong,
  so the chain is proved afterwards: every record must end where the next one starts, from
  the first byte of each batch to its last, with as many records as the header says. If the
  proof fails, the guesses are dropped and the batch is walked plainly;
* one by one in Python, for buffers with too few records to repay numpy's fixed costs: small ones,
  and those of large records.

Varints are looked up by their first two bytes in tables of 65,536 entries; the rare longer
ones are finished byte by byte over the subset that has them.

Wart: `window` is an unaligned, overlapping uint16 view, which `take` would copy whole;
plain indexing gathers from it in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyspark_penstock.errors import CorruptRecordsError

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

VARINT_BYTES_MAX = 10
_RECORD_BODY_BYTES_MIN = 6

_SPLIT_COUNT_MIN = 512
"""Records in a buffer below which its batches can't be cut into lanes."""
_LANE_RECORDS_MAX = 64
"""Batches of at most so many records are lanes as they are."""
_SPLIT_RECORDS_PER_LANE = 32
_STRIP_RECORDS = 3
"""How many average records long the stretch is in which a lane's first record is looked for."""
_PLAIN_AVERAGE_BYTES = 512
"""Records of more bytes are walked where they lie: to copy them into `bytes`, which Python reads faster, costs more."""

# What the walks cost, in microseconds, on one core of 2024.
_PLAIN_US = 0.2
"""The plain walk, per record."""
_LOCKSTEP_US = 0.05
"""Lockstep, per record."""
_STEP_US = 5.0
"""Lockstep, per step, of which there are as many as records in the longest lane."""
_SPLIT_US = 1_000.0
"""Finding where to cut, and the steps of the lanes then."""
_SPLIT_BYTE_US = 50e-6
"""Finding where to cut, per byte of the buffer: a part of it is searched."""


class Walk(Enum):
    """A way through the records of a buffer."""

    PLAIN = 0
    LANES = 1
    SPLIT = 2


def choose_walk(total: int, longest: int, size_bytes: int) -> Walk:
    """The cheapest for so many records in all and in the longest batch, in so many bytes."""
    costs = {
        Walk.PLAIN: _PLAIN_US * total,
        Walk.LANES: _STEP_US * longest + _LOCKSTEP_US * total,
        Walk.SPLIT: _SPLIT_US + _LOCKSTEP_US * total + _SPLIT_BYTE_US * size_bytes,
    }
    return min(costs, key=lambda walk: costs[walk])


def _tables() -> tuple[Ints, NDArray[np.uint8], Ints]:
    """By the first two bytes (little-endian): zigzag value, size in bytes, and their sum.

    Size 0 marks a varint of three bytes or more.
    """
    word = np.arange(1 << 16, dtype=np.int64)
    first, second = word & 0xFF, word >> 8
    size = np.where(first < 0x80, 1, np.where(second < 0x80, 2, 0))
    raw = np.where(size == 1, first, (first & 0x7F) | (second & 0x7F) << 7)
    value = np.where(size == 0, 0, (raw >> 1) ^ -(raw & 1))
    return value.astype(np.int64), size.astype(np.uint8), (size + value).astype(np.int64)


_VALUE, _SIZE, _ADVANCE = _tables()


@dataclass(slots=True)
class Fields:
    """Where the fields of the records lie, one entry per record, in the order of the buffer."""

    timestamp_delta: Ints
    offset_delta: Ints
    key_start: Ints
    key_length: Ints
    """-1 for a null key."""
    value_start: Ints
    value_length: Ints
    headers_start: Ints
    """Position of the varint that counts the headers."""
    ends: Ints


class RecordBuffer:
    """Records of several batches lying in one buffer (with gaps between batches allowed)."""

    def __init__(self, data: Bytes, starts: Ints, ends: Ints, counts: Ints) -> None:
        """`starts[i]..ends[i]` holds `counts[i]` records; every count is at least 1."""
        self.data = data
        self._starts = starts
        self._ends = ends
        self._counts = counts
        self._window: Any = np.ndarray((max(len(data) - 1, 0),), "<u2", data, strides=(1,))

    def fields(self, *, payload: bool) -> Fields:
        """Positions of all fields; key, value and headers are left out when `payload` is false.

        Raises CorruptRecordsError when the bytes are not what the batch headers say.
        """
        try:
            starts = self._record_starts()
            return self._fields(starts, payload=payload)
        except IndexError:
            raise CorruptRecordsError("a record reaches past the end of its batch") from None

    # -- where records start ----------------------------------------------------------------

    def _record_starts(self) -> Ints:
        walk = choose_walk(
            int(self._counts.sum()), int(self._counts.max()), int(self._ends[-1] - self._starts[0])
        )
        lanes, limits = self._starts, self._ends
        if walk is Walk.SPLIT:
            lanes, limits = self._split_lanes()
        # Where no cut was found, long batches would be lanes of many steps.
        if walk is Walk.LANES or len(lanes) > len(self._starts):
            starts = self._lockstep(lanes, limits)
            if starts is not None:
                return starts
        starts = self._one_by_one()
        if not self._is_chain(starts):
            raise CorruptRecordsError("the records of a batch don't fill it as its header says")
        return starts

    def _lockstep(self, positions: Ints, limits: Ints) -> Ints | None:
        """Starts of all records in the lanes, ascending; None when they are no chain.

        The plain walk then finds out whether a guess was wrong or the batch is.
        """
        found: list[Ints] = []
        spare = int(self._counts.sum())
        try:
            while len(positions):
                found.append(positions)
                spare -= len(positions)
                if spare < 0:
                    return None
                following = positions + self._advance(positions)
                alive = following < limits
                if np.logical_and.reduce(alive):
                    positions = following
                else:
                    positions, limits = following[alive], limits[alive]
            starts = np.sort(np.concatenate(found))
            return starts if self._is_chain(starts) else None
        except (IndexError, CorruptRecordsError):
            return None

    def _advance(self, positions: Ints) -> Ints:
        advance: Ints = _ADVANCE.take(self._window[positions])
        if np.minimum.reduce(advance) <= _RECORD_BODY_BYTES_MIN:
            # Lengths of three bytes or more, and lengths that no record can have.
            odd = np.flatnonzero(advance <= _RECORD_BODY_BYTES_MIN)
            length, after = self._long_varints(positions[odd])
            if int(length.min()) < _RECORD_BODY_BYTES_MIN:
                raise CorruptRecordsError("a record says a length that no record can have")
            advance[odd] = length + after - positions[odd]
        return advance

    def _one_by_one(self) -> Ints:
        """Starts of all records by a plain walk. Stops at a record that can't be."""
        span = int(self._ends[-1] - self._starts[0])
        is_large = span > _PLAIN_AVERAGE_BYTES * int(self._counts.sum())
        data: Any = memoryview(self.data) if is_large else self.data.tobytes()  # type: ignore[arg-type]
        found: list[int] = []
        add = found.append
        for position, end, count in zip(
            self._starts.tolist(), self._ends.tolist(), self._counts.tolist(), strict=True
        ):
            # No more than the header says: unpacked zeros would be a record of no bytes each.
            for _ in range(count):
                if position >= end:
                    break
                add(position)
                length = data[position]
                position += 1
                if length & 0x80:
                    byte = data[position]
                    length = length & 0x7F | (byte & 0x7F) << 7
                    position, shift = position + 1, 14
                    while byte & 0x80:
                        byte = data[position]
                        length |= (byte & 0x7F) << shift
                        position, shift = position + 1, shift + 7
                if length & 1:
                    raise CorruptRecordsError("a record says a negative length")
                position += length >> 1
        return np.array(found, np.int64)

    def _is_chain(self, starts: Ints) -> bool:
        """True when the records fill every batch exactly, one behind the other, in the right number."""
        last = np.cumsum(self._counts) - 1
        if len(starts) != int(last[-1]) + 1:
            return False
        following = np.empty_like(starts)
        following[:-1] = starts[1:]
        following[last] = self._ends
        first = last - self._counts + 1
        return bool(
            (starts[first] == self._starts).all() and (starts + self._advance(starts) == following).all()
        )

    # -- cutting long batches ---------------------------------------------------------------

    def _split_lanes(self) -> tuple[Ints, Ints]:
        """Lanes (first position, limit): the batches, cut where records seem to start if that pays."""
        total = int(self._counts.sum())
        if total < _SPLIT_COUNT_MIN or int(self._counts.max()) <= _LANE_RECORDS_MAX:
            return self._starts, self._ends
        try:
            cuts = self._guess_starts(total)
        except (IndexError, CorruptRecordsError):
            return self._starts, self._ends
        starts = np.sort(np.concatenate([self._starts, cuts]))
        limits = np.empty_like(starts)
        limits[:-1] = starts[1:]
        limits[np.searchsorted(starts, self._starts[1:]) - 1] = self._ends[:-1]
        limits[-1] = self._ends[-1]
        return starts, limits

    def _guess_starts(self, total: int) -> Ints:
        """Positions inside batches that look like starts of records, about one per lane wanted."""
        start, end = int(self._starts[0]), int(self._ends[-1])
        lanes = total // _SPLIT_RECORDS_PER_LANE
        stride = (end - start) // lanes
        width = min(stride, _STRIP_RECORDS * (end - start) // total)
        # The buffer is cut evenly, whatever the batches; every lane but the first begins with a
        # strip of `width` bytes, all strips as one strided view. Zero bytes in them are the
        # candidates for a record's attributes.
        strips = np.lib.stride_tricks.as_strided(
            self.data[start + stride :], (lanes - 2, width), (stride, 1), writeable=False
        )
        lane, column = np.nonzero(strips == 0)
        attributes = start + stride + lane * stride + column
        found = [self._check_guesses(attributes - size, lane, size) for size in (1, 2)]
        positions = np.concatenate([item[0] for item in found])
        lane = np.concatenate([item[1] for item in found])
        order = np.argsort(positions, kind="stable")
        first: Ints = positions[order][np.unique(lane[order], return_index=True)[1]]
        return first

    def _check_guesses(self, positions: Ints, lane: Ints, size: int) -> tuple[Ints, Ints]:
        """Those positions where a record with a length varint of `size` bytes seems to start.

        It must lie inside a batch, and so must the next one, whose offset is one higher.
        """
        word = self._window[positions]
        following = positions + _ADVANCE.take(word)
        batch = np.searchsorted(self._starts, positions, side="right") - 1
        right = (_SIZE.take(word) == size) & (following > positions + _RECORD_BODY_BYTES_MIN)
        right &= positions > self._starts[batch]
        right &= following < self._ends[batch] - _RECORD_BODY_BYTES_MIN - 2
        positions, lane, following = positions[right], lane[right], following[right]
        body = following + np.maximum(_SIZE.take(self._window[following]), 1)
        right = self.data.take(body, mode="clip") == 0
        positions, lane, body = positions[right], lane[right], body[right]
        right = self._offset_deltas(body) == self._offset_deltas(positions + size) + 1
        return positions[right], lane[right]

    def _offset_deltas(self, body: Ints) -> Ints:
        """Offset deltas of records whose attributes stand at `body`; nonsense for guesses that are wrong."""
        _, after = read_varints(self.data, body + 1)
        return read_varints(self.data, after)[0]

    # -- fields -----------------------------------------------------------------------------

    def _fields(self, starts: Ints, *, payload: bool) -> Fields:
        ends = starts + self._advance(starts)
        _, position = self._varints(starts)
        timestamp_delta, position = self._varints(position + 1)
        offset_delta, position = self._varints(position)
        if not payload:
            if bool((position > ends).any()):
                raise CorruptRecordsError("a record's fields reach past its end")
            nothing = np.empty(0, np.int64)
            return Fields(timestamp_delta, offset_delta, nothing, nothing, nothing, nothing, nothing, ends)
        key_length, key_start = self._varints(position)
        np.maximum(key_length, -1, out=key_length)
        position = key_start + np.maximum(key_length, 0)
        if bool((position >= ends).any()):
            raise CorruptRecordsError("a record's key reaches past its end")
        value_length, value_start = self._varints(position)
        np.maximum(value_length, -1, out=value_length)
        headers_start = value_start + np.maximum(value_length, 0)
        if bool((headers_start >= ends).any()):
            raise CorruptRecordsError("a record's value reaches past its end")
        return Fields(
            timestamp_delta,
            offset_delta,
            key_start,
            key_length,
            value_start,
            value_length,
            headers_start,
            ends,
        )

    def _varints(self, positions: Ints) -> tuple[Ints, Ints]:
        """Zigzag varints at the positions: (values, positions after them)."""
        word = self._window[positions]
        size = _SIZE.take(word)
        value = _VALUE.take(word)
        after = positions + size
        if not size.all():
            long = np.flatnonzero(size == 0)
            value[long], after[long] = self._long_varints(positions[long])
        return value, after

    def _long_varints(self, positions: Ints) -> tuple[Ints, Ints]:
        return read_varints(self.data, positions)


def read_varints(data: Bytes, positions: Ints) -> tuple[Ints, Ints]:
    """Zigzag varints of any size, byte by byte over all positions at once.

    Reads past the end of `data` repeat its last byte; callers check positions against the
    record's end. Raises CorruptRecordsError for a varint of more than ten bytes.
    """
    value = np.zeros(len(positions), np.uint64)
    after = positions.copy()
    todo = np.arange(len(positions))
    for index in range(VARINT_BYTES_MAX):
        byte = data.take(after[todo], mode="clip")
        value[todo] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        after[todo] += 1
        todo = todo[byte >= 0x80]
        if not len(todo):
            break
    else:
        raise CorruptRecordsError("a varint has more than ten bytes")
    sign = (value & np.uint64(1)).astype(np.int64)
    return (value >> np.uint64(1)).astype(np.int64) ^ -sign, after
