"""PySyncObj's journal on a durable, checksummed, append-only file.

Entries are buffered until `sync`, which writes them as one block and fdatasyncs: the
transport calls it before an acknowledgement or a vote leaves, the tick loop before
commits are counted (Raft thesis 10.2.1: a leader may send entries before its own disk
has them, as long as it counts itself only after).

Cutting the head off (after a snapshot) writes the rest anew. With a `spawn` that happens on
a thread: appends go on to the old file and are remembered, added to the new one once it is
whole and synced, and then it takes the name. Until then the old file, which only holds
more, is the log, also for a crash.

Term and vote live in a file of their own that is replaced durably inside
`setCurrentTerm`. The commit index is not kept: a restarted controller learns it from
the leader, so nothing can be applied that is not committed.

What is found at the start is made durable before anything else: entries and a vote that a
killed run wrote but had not synced are as good as any, until the power fails.

Wart: method names are PySyncObj's.
"""

# ruff: noqa: N802, N803 - names are those of the base class
from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pysyncobj.journal import Journal

from penstock_controller.quorum import journal_format as fmt
from penstock_controller.quorum.commands import NUMBER_END, find_poison
from penstock_controller.quorum.files import REAL_FILES, DamagedFile, Files
from penstock_controller.quorum.journal_format import Entry
from penstock_core.failpoints import hit, torn

_META = struct.Struct("<8sIQH")
_META_MAGIC = b"PENSTRMT"
_META_VERSION = 1
_REWRITE_BLOCK_BYTES = 256 * 1024

JOURNAL_FILE = "raft-journal"
META_FILE = "raft-meta"


class DurableJournal(Journal):  # type: ignore[misc]
    """The Raft log of one controller. All methods belong to the tick thread."""

    def __init__(
        self,
        directory: Path,
        on_sync_s: Callable[[float], None] | None = None,
        spawn: Callable[[Callable[[], None], str], None] | None = None,
        breathe: Callable[[], Callable[[], None]] = lambda: lambda: None,
        *,
        files: Files = REAL_FILES,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open or create the journal of `directory`.

        `spawn(job, name)` runs a job elsewhere, whose steps `breathe()()` parts; without one the
        head is cut off in one step.

        Raises DamagedFile when a file is damaged or one of the two is missing.
        """
        self._path = directory / JOURNAL_FILE
        self._meta_path = directory / META_FILE
        self._on_sync_s = on_sync_s
        self._files, self._os = files, files.system
        self._clock_s = clock_s
        self._spawn, self._breathe = spawn, breathe
        self._cut: _Cut | None = None
        self._cut_count = 0
        for leftover in directory.glob(JOURNAL_FILE + ".cut*"):
            leftover.unlink()
        has_journal, has_meta = self._path.exists(), self._meta_path.exists()
        self._term, self._vote = 0, ""
        if has_meta:
            self._term, self._vote = _read_meta(self._meta_path)
        if not has_journal:
            if has_meta and self._term > 0:
                raise DamagedFile(
                    f"{self._path}: missing beside {META_FILE}; wipe the directory to join anew"
                )
            files.replace_durably(self._path, [fmt.file_header()])
        if not has_meta:
            if has_journal and self._path.stat().st_size > fmt.HEADER_BYTES:
                raise DamagedFile(
                    f"{self._meta_path}: missing beside {JOURNAL_FILE}; wipe the directory to join anew"
                )
            self._store_meta()
        self._fd = self._os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        recovered = fmt.recover(self._path.read_bytes(), str(self._path))
        self._entries: list[Entry] = recovered.entries
        self._end = recovered.end
        self._sequence = recovered.next_sequence
        self._pending = bytearray()
        if self._os.fstat(self._fd).st_size > self._end:
            self._os.ftruncate(self._fd, self._end)
        # What was just read may be in the page cache only: the run that wrote it was killed before its
        # fsync, or between a rename and the directory's. We acknowledge it from here on, and the next
        # block must find the one before it on the disk.
        self._os.fsync(self._fd)
        files.sync_directory(directory)

    # --- PySyncObj's interface ---------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._entries.append((command, idx, term))
        self._pending += fmt.entry_op(command, idx, term)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        if entryFrom < len(self._entries):
            self._pending += fmt.truncate_op(self._entries[entryFrom][1])
            del self._entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:
        if entryTo <= 0:
            return
        if self._spawn is None:
            self.replace(self._entries[entryTo:])
            return
        # All of it is in the old file before the new one is begun.
        self.sync()
        del self._entries[:entryTo]
        self._begin_cut()

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
            hit("controller.term.before_store")
            self._store_meta()
            hit("controller.term.after_store")

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._vote or None

    def onOneSecondTimer(self) -> None:
        """Nothing is put off."""

    def _destroy(self) -> None:
        if self._fd >= 0:
            self.sync()
            self._cancel_cut()
            self._os.close(self._fd)
            self._fd = -1

    # --- ours ----------------------------------------------------------------------

    @property
    def bytes_on_disk(self) -> int:
        return self._end

    def sync(self) -> None:
        """Make everything added so far durable. An I/O error is final: never retried."""
        if self._pending:
            self._sync_pending()
        if self._cut is not None and self._cut.ended:
            self._end_cut(self._cut)

    def _sync_pending(self) -> None:
        started = self._clock_s()
        data = fmt.block(self._sequence, self._pending)
        hit("controller.journal.before_write")
        if torn("controller.journal.torn_write"):
            self._files.write_all(self._fd, data[: len(data) // 2], self._end)
            hit("controller.journal.torn_write")
        self._files.write_all(self._fd, data, self._end)
        hit("controller.journal.before_sync")
        self._os.fdatasync(self._fd)
        hit("controller.journal.after_sync")
        self._end += len(data)
        self._sequence += 1
        if self._cut is not None:
            self._cut.since += self._pending
        self._pending = bytearray()
        if self._on_sync_s is not None:
            self._on_sync_s(self._clock_s() - started)

    def replace(self, entries: Sequence[Entry]) -> None:
        """Hold exactly `entries` from now on; copy and rename, so a crash leaves either log whole."""
        self._cancel_cut()
        kept = list(entries)
        parts = list(_file_of(kept))
        hit("controller.compact.before_replace")
        self._files.replace_durably(self._path, parts)
        hit("controller.compact.after_replace")
        fd = self._os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._os.close(self._fd)
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

    def check(self, controller_id: int) -> None:
        """Look through what was found at the start, as through what peers send.

        An entry that cannot be applied would end each run anew, once it is committed; a term without successor would
        end every election. Builds of before took both from anybody. Raises DamagedFile with the place and the mend.
        """
        mend = (
            "restore this controller's data directory as it was before, or wipe it and "
            f"`penstock controller replace {controller_id}`, so that it copies its peers"
        )
        if self._term >= NUMBER_END - 1:
            raise DamagedFile(f"{self._meta_path}: term {self._term} is none that elections reach; {mend}")
        if poison := find_poison(self._entries):
            raise DamagedFile(f"{self._path}: {poison}; {mend}")

    # --- cutting on a thread ---------------------------------------------------------

    @property
    def is_cutting(self) -> bool:
        """Whether the file still holds entries that were cut off."""
        return self._cut is not None

    def _begin_cut(self) -> None:
        self._cancel_cut()
        self._cut_count += 1
        cut = self._cut = _Cut(self._path.with_name(f"{JOURNAL_FILE}.cut{self._cut_count}"), self._files)
        kept = list(self._entries)
        breathe = self._breathe()
        if self._spawn is not None:
            self._spawn(lambda: cut.write(kept, breathe), "raft-journal")

    def _end_cut(self, cut: _Cut) -> None:
        """The new file is whole but for what came since: add that, and let it take the name."""
        self._cut = None
        if cut.failed:
            # No space, say: the old file holds everything; the next snapshot tries again.
            return
        fd = self._os.open(cut.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if cut.since:
                data = fmt.block(cut.next_sequence, cut.since)
                self._files.write_all(fd, data, cut.end)
                self._os.fdatasync(fd)
                cut.end += len(data)
                cut.next_sequence += 1
            hit("controller.compact.before_replace")
            cut.path.replace(self._path)
            self._files.sync_directory(self._path.parent)
            hit("controller.compact.after_replace")
        except BaseException:
            self._os.close(fd)
            raise
        self._os.close(self._fd)
        self._fd, self._end, self._sequence = fd, cut.end, cut.next_sequence

    def _cancel_cut(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _store_meta(self) -> None:
        vote = self._vote.encode()
        data = _META.pack(_META_MAGIC, _META_VERSION, self._term, len(vote)) + vote
        self._files.replace_durably(self._meta_path, [data, struct.pack("<I", zlib.crc32(data))])


class _Cut:
    """A journal without its head, being written beside the one in use."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files, self._os = files, files.system
        self.since = bytearray()
        """Operations synced to the old file meanwhile (tick thread only)."""
        self.end = 0
        self.next_sequence = 1
        self.ended = False
        self.failed = False
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        if self.ended:
            self._remove()

    def write(self, kept: Sequence[Entry], breathe: Callable[[], None]) -> None:
        """On the thread: everything that is kept, durably. Never raises."""
        try:
            fd = self._os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                for count, data in enumerate(_file_of(kept)):
                    self._files.write_all(fd, data, self.end)
                    self.end += len(data)
                    self.next_sequence = count + 1
                    breathe()
                self._os.fsync(fd)
            finally:
                self._os.close(fd)
        except OSError:
            self.failed = True
        if self._cancelled or self.failed:
            self._remove()
        self.ended = True

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


def _file_of(entries: Sequence[Entry]) -> Iterator[bytes]:
    """A journal file that holds exactly `entries`: its header, then blocks in sequence from 1."""
    yield fmt.file_header()
    sequence, body = 1, bytearray()
    for entry in entries:
        body += fmt.entry_op(*entry)
        if len(body) >= _REWRITE_BLOCK_BYTES:
            yield fmt.block(sequence, body)
            sequence, body = sequence + 1, bytearray()
    if body:
        yield fmt.block(sequence, body)


def _same(a: Entry, b: Entry) -> bool:
    """Raft's log matching: index and term say it all."""
    return a[1:] == b[1:]


def stored_term(directory: Path) -> int:
    """The term that a stopped controller's directory is at. Raises DamagedFile, OSError."""
    return _read_meta(directory / META_FILE)[0]


def _read_meta(path: Path) -> tuple[int, str]:
    data = path.read_bytes()
    if len(data) < _META.size + 4 or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise DamagedFile(f"{path}: damaged; this controller may not vote. Wipe its directory to join anew")
    magic, version, term, length = _META.unpack_from(data)
    if magic != _META_MAGIC or version != _META_VERSION or len(data) != _META.size + length + 4:
        raise DamagedFile(f"{path}: of another format version; start the version that wrote it")
    return term, data[_META.size : _META.size + length].decode()
