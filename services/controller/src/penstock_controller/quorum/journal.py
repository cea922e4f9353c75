"""PySyncObj's journal on a durable, checksummed, append-only file.

Entries are buffered until `sync`, which writes them as one block and fdatasyncs: the
transport calls it before an acknowledgement or a vote leaves, the tick loop before
commits are counted (Raft thesis 10.2.1: a leader may send entries before its own disk
has them, as long as it counts itself only after).

Term and vote live in a file of their own that is replaced durably inside
`setCurrentTerm`. The commit index is not kept: a restarted controller learns it from
the leader, so nothing can be applied that is not committed.

Wart: method names are PySyncObj's.
"""

# ruff: noqa: N802, N803 - names are those of the base class
from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from pysyncobj.journal import Journal

from penstock_controller.quorum import journal_format as fmt
from penstock_controller.quorum.files import DamagedFile, replace_durably, write_all
from penstock_controller.quorum.journal_format import Entry

_META = struct.Struct("<8sIQH")
_META_MAGIC = b"PENSTRMT"
_META_VERSION = 1
_REWRITE_BLOCK_BYTES = 1 << 20

JOURNAL_FILE = "raft-journal"
META_FILE = "raft-meta"


class DurableJournal(Journal):  # type: ignore[misc]
    """The Raft log of one controller. All methods belong to the tick thread."""

    def __init__(self, directory: Path, on_sync_s: Callable[[float], None] | None = None) -> None:
        """Open or create the journal of `directory`.

        Raises DamagedFile when a file is damaged or one of the two is missing.
        """
        self._path = directory / JOURNAL_FILE
        self._meta_path = directory / META_FILE
        self._on_sync_s = on_sync_s
        has_journal, has_meta = self._path.exists(), self._meta_path.exists()
        self._term, self._vote = 0, ""
        if has_meta:
            self._term, self._vote = _read_meta(self._meta_path)
        if not has_journal:
            if has_meta and self._term > 0:
                raise DamagedFile(
                    f"{self._path}: missing beside {META_FILE}; wipe the directory to join anew"
                )
            replace_durably(self._path, [fmt.file_header()])
        if not has_meta:
            if has_journal and self._path.stat().st_size > fmt.HEADER_BYTES:
                raise DamagedFile(
                    f"{self._meta_path}: missing beside {JOURNAL_FILE}; wipe the directory to join anew"
                )
            self._store_meta()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        recovered = fmt.recover(self._path.read_bytes(), str(self._path))
        self._entries: list[Entry] = recovered.entries
        self._end = recovered.end
        self._sequence = recovered.next_sequence
        self._pending = bytearray()
        if os.fstat(self._fd).st_size > self._end:
            os.ftruncate(self._fd, self._end)
            os.fsync(self._fd)

    # --- PySyncObj's interface ---------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._entries.append((command, idx, term))
        self._pending += fmt.entry_op(command, idx, term)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        if entryFrom < len(self._entries):
            self._pending += fmt.truncate_op(self._entries[entryFrom][1])
            del self._entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:
        if entryTo > 0:
            self.replace(self._entries[entryTo:])

    def clear(self) -> None:
        self.replace([])

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    @property
    def entries(self) -> Sequence[Entry]:
        """The log, not to be changed. It is never empty once PySyncObj has opened it."""
        return self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Not kept; see the module's docstring."""

    def getRaftCommitIndex(self) -> int:
        return 1

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        if (term, votedForNodeId or "") != (self._term, self._vote):
            self._term, self._vote = term, votedForNodeId or ""
            self._store_meta()

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._vote or None

    def onOneSecondTimer(self) -> None:
        """Nothing is put off."""

    def _destroy(self) -> None:
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1

    # --- ours ----------------------------------------------------------------------

    @property
    def bytes_on_disk(self) -> int:
        return self._end

    def sync(self) -> None:
        """Make everything added so far durable. An I/O error is final: never retried."""
        if not self._pending:
            return
        started = time.perf_counter()
        data = fmt.block(self._sequence, self._pending)
        write_all(self._fd, data, self._end)
        os.fdatasync(self._fd)
        self._end += len(data)
        self._sequence += 1
        self._pending = bytearray()
        if self._on_sync_s is not None:
            self._on_sync_s(time.perf_counter() - started)

    def replace(self, entries: Sequence[Entry]) -> None:
        """Hold exactly `entries` from now on; copy and rename, so a crash leaves either log whole."""
        kept = list(entries)
        parts = [fmt.file_header()]
        body = bytearray()
        for entry in kept:
            body += fmt.entry_op(*entry)
            if len(body) >= _REWRITE_BLOCK_BYTES:
                parts.append(fmt.block(len(parts), body))
                body = bytearray()
        if body:
            parts.append(fmt.block(len(parts), body))
        replace_durably(self._path, parts)
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd = fd
        self._end = sum(map(len, parts))
        self._sequence = len(parts)
        self._entries = kept
        self._pending = bytearray()

    def align(self, previous: Entry, last: Entry) -> None:
        """Make the log start with a snapshot's last two entries, keeping what follows them.

        A crash between a snapshot's rename and the cut of the journal, or between the
        install of a peer's snapshot and the new journal, leaves them apart.
        """
        entries = self._entries
        if entries and entries[0][1] > last[1] + 1:
            raise DamagedFile(
                f"{self._path}: starts at {entries[0][1]} but the snapshot ends at {last[1]}; "
                "wipe the directory to join anew"
            )
        if len(entries) >= 2 and _same(entries[0], previous) and _same(entries[1], last):
            return
        at = last[1] - entries[0][1] if entries else 0
        following: list[Entry] = []
        if entries and 0 <= at < len(entries) and _same(entries[at], last):
            following = entries[at + 1 :]
        self.replace([previous, last, *following])

    def _store_meta(self) -> None:
        vote = self._vote.encode()
        data = _META.pack(_META_MAGIC, _META_VERSION, self._term, len(vote)) + vote
        replace_durably(self._meta_path, [data, struct.pack("<I", zlib.crc32(data))])


def _same(a: Entry, b: Entry) -> bool:
    """Raft's log matching: index and term say it all."""
    return a[1:] == b[1:]


def _read_meta(path: Path) -> tuple[int, str]:
    data = path.read_bytes()
    if len(data) < _META.size + 4 or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise DamagedFile(f"{path}: damaged; this controller may not vote. Wipe its directory to join anew")
    magic, version, term, length = _META.unpack_from(data)
    if magic != _META_MAGIC or version != _META_VERSION or len(data) != _META.size + length + 4:
        raise DamagedFile(f"{path}: of another format version; start the version that wrote it")
    return term, data[_META.size : _META.size + length].decode()
