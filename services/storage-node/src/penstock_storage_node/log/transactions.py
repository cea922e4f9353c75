"""Where a log's transactions begin and end: what bounds a reader that wants decided records only. Pure.

Last stable offset = the lowest of: the high watermark; the first offset of any open transaction; the first
offset of any transaction whose marker lies at or above the high watermark. (Kafka:
UnifiedLog.fetchLastStableOffsetMetadata, ProducerStateManager.ongoingTxns and unreplicatedTxns. Kafka forgets the
second kind at a cut and lets the offset run ahead; here they are put back.)

Transactions of one log begin at rising offsets, so the open ones stand in the order in which they began. The ended
ones stand in the order of their markers, until the watermark has passed these; beside them goes the usual queue of
a sliding minimum, so that asking costs nothing however many there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class AbortedTransaction(NamedTuple):
    """A row of the aborted index (Kafka: AbortedTxn)."""

    producer_id: int
    first_offset: int
    """Of its first record in this log."""
    last_offset: int
    """Of its marker."""
    last_stable_offset: int
    """First offset of the oldest other transaction that was open at the marker; the offset after the marker without
    one. No transaction that began below it has its row further on."""


class EndedTransaction(NamedTuple):
    """One that is decided in this log, though perhaps not below the high watermark."""

    first_offset: int
    marker_offset: int


class TransactionOffsets:
    """The transactions of one log that may bound its last stable offset."""

    __slots__ = ("_ended", "_lowest", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """First offset by producer id, in rising order of offsets."""
        self._ended: deque[EndedTransaction] = deque()
        """By rising marker."""
        self._lowest: deque[EndedTransaction] = deque()
        """Of `_ended` those that no later one lies below: the front has the lowest first offset of all."""

    @property
    def is_idle(self) -> bool:
        """None is open, and none waits for the high watermark: that alone bounds readers."""
        return not self._open and not self._ended

    @property
    def first_open(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self._open.values()), None)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def open_transactions(self) -> Iterator[tuple[int, int]]:
        """(producer id, first offset), the oldest first."""
        return iter(self._open.items())

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A producer has written the first batch of a transaction."""
        self._open.setdefault(producer_id, first_offset)

    def end(self, producer_id: int, marker_offset: int) -> int | None:
        """A marker was written; returns where the transaction began, None when nothing was open."""
        first_offset = self._open.pop(producer_id, None)
        if first_offset is not None:
            self._add_ended(EndedTransaction(first_offset, marker_offset))
        return first_offset

    def forget(self, producer_id: int) -> None:
        """Its open transaction, if any, counts no more."""
        self._open.pop(producer_id, None)

    def _add_ended(self, ended: EndedTransaction) -> None:
        self._ended.append(ended)
        lowest = self._lowest
        while lowest and lowest[-1].first_offset >= ended.first_offset:
            lowest.pop()
        lowest.append(ended)

    def first_undecided(self, high_watermark: int) -> int | None:
        """First offset of all that are open or end at or above the high watermark; forgets the others.

        High watermarks have to rise from call to call, but for cuts (see `put_back`).
        """
        ended, lowest = self._ended, self._lowest
        while ended and ended[0].marker_offset < high_watermark:
            ended.popleft()
        while lowest and lowest[0].marker_offset < high_watermark:
            lowest.popleft()
        first = self.first_open
        if lowest and (first is None or lowest[0].first_offset < first):
            return lowest[0].first_offset
        return first

    def last_stable_offset(self, high_watermark: int, log_start_offset: int) -> int:
        """See the module; not below the log start, for a beginning that was deleted bounds nobody."""
        if self.is_idle:
            return high_watermark
        first = self.first_undecided(high_watermark)
        return high_watermark if first is None else max(min(first, high_watermark), log_start_offset)

    def ended_below(self, end_offset: int) -> list[EndedTransaction]:
        """Those whose markers a cut at `end_offset` leaves, for `put_back`."""
        return [ended for ended in self._ended if ended.marker_offset < end_offset]

    def put_back(self, ended: Iterable[EndedTransaction]) -> None:
        """Ended ones that a replay from a later point on did not see."""
        rows = sorted({*ended, *self._ended}, key=lambda row: row.marker_offset)
        self._ended.clear()
        self._lowest.clear()
        for row in rows:
            self._add_ended(row)

    def replace_open(self, transactions: Iterable[tuple[int, int]]) -> None:
        """These, (producer id, first offset), are open, as a snapshot says; nothing is known of ended ones."""
        self.clear()
        self._open.update(sorted(transactions, key=lambda row: row[1]))

    def clear(self) -> None:
        self._open.clear()
        self._ended.clear()
        self._lowest.clear()


__all__ = ["AbortedTransaction", "EndedTransaction", "TransactionOffsets"]
