"""The aborted transactions of one segment, in Kafka's form.

`<base offset>.txnindex` has one entry of 34 bytes for each abort marker in the segment whose transaction had
records in this log: version int16 0, producer id, first offset, offset of the marker, last stable offset, int64
each (Kafka: TransactionIndex, AbortedTxn). Commits have none. The file is made with its first entry, and only
then.

Whoever reads committed records takes from here what to leave out, and stops leaving out at the marker. So an
entry never outlives its marker, or committed records would be hidden; and it is written with the marker's data,
and flushed before these count as flushed. Below the recovery point the file is believed, above it is made anew.
It has no CRC: `decode_entries` believes nothing that can't be, and then the batches are asked
(`producer_replay`).
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from penstock_storage_node.log.transactions import AbortedTransaction

SUFFIX: Final = ".txnindex"
ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = ENTRY.size
VERSION: Final = 0

ROWS_MAX: Final = 100_000
"""Entries in memory, of all segments that are not being written together."""


class DamagedIndex(Exception):
    """The file isn't the aborted index of its segment."""


Rows = tuple[AbortedTransaction, ...]


def encode_entries(rows: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(ENTRY.pack(VERSION, *row) for row in rows)


def decode_entries(data: bytes, base_offset: int, end_offset: int) -> Rows:
    """All entries of the segment from `base_offset` up to `end_offset`, by rising markers. Raises DamagedIndex."""
    if len(data) % ENTRY_BYTES:
        raise DamagedIndex(f"{len(data)} bytes are no whole number of entries")
    rows: list[AbortedTransaction] = []
    last = base_offset - 1
    for version, *fields in ENTRY.iter_unpack(data):
        row = AbortedTransaction(*fields)
        if (
            version != VERSION
            or not last < row.last_offset < end_offset
            or not 0 <= row.first_offset < row.last_offset
            or row.producer_id < 0
            or not 0 <= row.last_stable_offset <= row.last_offset + 1
        ):
            raise DamagedIndex(f"entry {len(rows)} can't be: version {version}, {row}")
        last = row.last_offset
        rows.append(row)
    return tuple(rows)


class AbortedRows:
    """Least recently used cache of files' entries by path. Thread-safe."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._max = rows_max
        self._count = 0
        self._lock = threading.Lock()
        self._rows: OrderedDict[str, Rows] = OrderedDict()

    def get(self, path: str) -> Rows | None:
        with self._lock:
            rows = self._rows.get(path)
            if rows is not None:
                self._rows.move_to_end(path)
            return rows

    def put(self, path: str, rows: Rows) -> None:
        """Keep these; the last one put stays however many entries it has."""
        with self._lock:
            self._drop(path)
            self._rows[path] = rows
            self._count += len(rows)
            while self._count > self._max and len(self._rows) > 1:
                self._drop(next(iter(self._rows)))

    def forget(self, path: str) -> None:
        with self._lock:
            self._drop(path)

    def _drop(self, path: str) -> None:
        self._count -= len(self._rows.pop(path, ()))


class AbortedIndex:
    """What is known of one segment's file. Changed on the loop only; read from any thread.

    `rows` is exchanged or added to at its end, so a reader may walk what it took.
    """

    __slots__ = ("path", "rows", "saved_count")

    def __init__(self, path: str, saved_count: int = 0) -> None:
        self.path = path
        self.saved_count = saved_count
        """Entries that the file holds; without any there is no file."""
        self.rows: list[AbortedTransaction] | None = None if saved_count else []
        """All entries, None: the file has them."""

    @property
    def count(self) -> int:
        return self.saved_count if self.rows is None else len(self.rows)

    def append(self, row: AbortedTransaction) -> None:
        """An abort marker was staged. The entries that the file has must be at hand (`adopt`)."""
        if self.rows is None:
            raise ValueError(f"{self.path} was not read before it is added to")
        self.rows.append(row)

    def adopt(self, rows: Iterable[AbortedTransaction]) -> None:
        """The file holds exactly these."""
        self.rows = list(rows)
        self.saved_count = len(self.rows)

    def unsaved(self) -> bytes:
        """Entries that the file lacks, as they go there; they begin at `saved_count`."""
        return encode_entries(self.rows[self.saved_count :]) if self.rows else b""

    def mark_saved(self, count: int) -> None:
        """That many more are in the file."""
        self.saved_count += count

    def release(self) -> None:
        """Keep nothing in memory that is in the file (the segment was closed)."""
        if self.saved_count and self.saved_count == self.count:
            self.rows = None


__all__ = [
    "ENTRY_BYTES",
    "SUFFIX",
    "AbortedIndex",
    "AbortedRows",
    "DamagedIndex",
    "Rows",
    "decode_entries",
    "encode_entries",
]
