"""Snapshots on disk, in the place of PySyncObj's forking, pickling serializer.

Nothing here takes long on the tick thread. Writing an image, and checking and loading one
that came from the leader, run on threads of their own, in slices of about a millisecond
with a pause between them, so that neither the tick thread nor the event loop waits for
them (a pure-Python thread that never pauses costs the loop 5 ms a turn). Sending reads
one chunk a turn, and only when the link has taken the one before. A file gets its name
only when it is synced, and only when no newer snapshot has taken the name.

Wart: the method names of the first section are those of pysyncobj.serializer.Serializer,
`cancelTransmisstion` included.
"""

# ruff: noqa: N802, N803 - names are those of the base class
from __future__ import annotations

import contextlib
import io
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pysyncobj.config import SERIALIZER_STATE

from penstock_controller.quorum import snapshot_format as fmt
from penstock_controller.quorum.files import REAL_FILES, DamagedFile, Files
from penstock_controller.quorum.journal_format import Entry
from penstock_controller.quorum.snapshot_format import Snapshot
from penstock_core.failpoints import hit
from penstock_core.metadata import MetadataImage

SNAPSHOT_FILE = "raft-snapshot"
SNAPSHOT_BYTES_MAX = 1 << 30
"""Largest snapshot taken from a peer: bounds what a broken one can make us write."""
TRANSFER_CHUNK_BYTES = 128 * 1024
_RETRY_S = 10.0
_SLICE_S = 0.001
_PAUSE_S = 0.002

Chunk = tuple[bytes, bool, bool]
"""(data, is first, is last), PySyncObj's form."""


class SnapshotStore:
    """The one snapshot of a controller, being written, read, sent or received."""

    def __init__(
        self,
        directory: Path,
        image: Callable[[], MetadataImage],
        on_error: Callable[[BaseException], None],
        on_written_s: Callable[[float], None] | None = None,
        *,
        spawn: Callable[[Callable[[], None], str], None] | None = None,
        slicer: Callable[[], Slicer] | None = None,
        files: Files = REAL_FILES,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spawn(job, name)` runs a job, on a thread unless a simulation has other ideas."""
        self._spawn = spawn or start_thread
        self._slicer = slicer or Slicer
        self._files, self._os = files, files.system
        self._clock_s = clock_s
        self.path = directory / SNAPSHOT_FILE
        self._image = image
        self._on_error = on_error
        self._on_written_s = on_written_s
        self._lock = threading.Lock()
        self._state = SERIALIZER_STATE.NOT_SERIALIZING
        self._current_id = 0
        self._last_index = 0
        self._retry_at = 0.0
        self.size_bytes = 0
        """Of the newest snapshot; 0: there is none."""
        self.written_s = 0.0
        """When its file was written, in s since 1970."""
        self._sending: dict[object, io.BufferedReader] = {}
        self._receiving: io.BufferedWriter | None = None
        self._may_begin: Callable[[], bool] = lambda: True
        self._may_send: Callable[[Any], bool] = lambda _: True
        self._sent_this_turn: set[object] = set()
        self.checking = False
        """A received snapshot is being checked; `take_received` ends that."""
        self._checked: queue.SimpleQueue[Snapshot | BaseException | None] = queue.SimpleQueue()
        for leftover in directory.glob(SNAPSHOT_FILE + ".*tmp"):
            leftover.unlink()

    def load(self) -> Snapshot | None:
        """The snapshot on disk, None when there is none. Raises DamagedFile."""
        if not self.path.exists():
            return None
        if self.path.stat().st_mode & 0o077:
            # Builds of before left those that they had of a leader open to others of the machine. Another user's file
            # that we may read by our group (pods have got another user, their volume not) is no reason not to run.
            with contextlib.suppress(PermissionError):
                self.path.chmod(0o600)
        snapshot = fmt.decode(self.path.read_bytes(), str(self.path))
        self._last_index = snapshot.last_index
        self._note_file()
        return snapshot

    def connect(self, may_begin: Callable[[], bool], may_send: Callable[[Any], bool]) -> None:
        """`may_begin`: whether the image is that of the last applied entry; `may_send`: to this peer."""
        self._may_begin, self._may_send = may_begin, may_send

    @property
    def last_index(self) -> int:
        """Of the last entry that the snapshot on disk holds; 0 where there is none."""
        return self._last_index

    # --- PySyncObj's interface, on the tick thread ---------------------------------

    def checkSerializing(self) -> tuple[int, int | None]:
        with self._lock:
            state = self._state
            if state in (SERIALIZER_STATE.SUCCESS, SERIALIZER_STATE.FAILED):
                self._state = SERIALIZER_STATE.NOT_SERIALIZING
        if state == SERIALIZER_STATE.SUCCESS:
            self._stop_sending()
        return state, self._current_id

    def serialize(self, data: tuple[object, Entry, Entry, object], id: int) -> None:
        """Start writing the image. `data` is (unused, last entry, the one before, members)."""
        if self._state == SERIALIZER_STATE.SERIALIZING or self._clock_s() < self._retry_at:
            return
        if not self._may_begin():
            # Between the parts of a large command: the image lacks entries that are applied.
            return
        if data[1][1] <= self._last_index:
            # Restarted with a long log that is not known to be committed yet: nothing new.
            return
        self._state = SERIALIZER_STATE.SERIALIZING
        self._current_id = id
        snapshot = Snapshot(previous=data[2], last=data[1], image=self._image())
        self._spawn(lambda: self._write(snapshot), "raft-snapshot")

    def getTransmissionData(self, transmissionID: object) -> Chunk | None:
        """One chunk a turn and peer; None asks PySyncObj to go on another time."""
        if transmissionID in self._sent_this_turn or not self._may_send(transmissionID):
            return None
        self._sent_this_turn.add(transmissionID)
        reader = self._sending.get(transmissionID)
        if reader is None:
            try:
                reader = self._sending[transmissionID] = self.path.open("rb")
            except FileNotFoundError:
                return None
        first = reader.tell() == 0
        data = reader.read(TRANSFER_CHUNK_BYTES)
        if not data:
            self.cancelTransmisstion(transmissionID)
        return data, first, not data

    def cancelTransmisstion(self, id: object) -> None:
        reader = self._sending.pop(id, None)
        if reader is not None:
            reader.close()

    # --- ours, on the tick thread ------------------------------------------------

    def begin_turn(self) -> None:
        """A tick begins: each peer may be sent one more chunk."""
        self._sent_this_turn.clear()

    @property
    def sending(self) -> bool:
        """Whether a snapshot is on its way to somebody."""
        return bool(self._sending)

    def receive(self, chunk: Chunk) -> None:
        """Take one part of the leader's snapshot; the last one starts the check of the whole."""
        data, first, last = chunk
        if self.checking:
            return
        if first:
            self.abort_receiving()
            self._receiving = self._open_private()
        if self._receiving is None:
            return
        self._receiving.write(data)
        if self._receiving.tell() > SNAPSHOT_BYTES_MAX:
            self.abort_receiving()
            return
        if last:
            receiving, self._receiving = self._receiving, None
            receiving.flush()
            self.checking = True
            self._spawn(lambda: self._check(receiving), "raft-install")

    def take_received(self) -> Snapshot | None:
        """A whole and good snapshot of the leader, once; it has the snapshot's name then.

        A damaged one is dropped: the leader sends again. Raises the OSError of a failed disk.
        """
        if not self.checking or self._checked.empty():
            return None
        result = self._checked.get()
        self.checking = False
        if isinstance(result, BaseException):
            raise result
        if result is not None:
            self._stop_sending()
        return result

    def abort_receiving(self) -> None:
        """The leader or its link is gone."""
        if self._receiving is not None:
            self._receiving.close()
            self._receiving = None

    def close(self) -> None:
        self.abort_receiving()
        self._stop_sending()

    # --- inside ---------------------------------------------------------------------

    @property
    def _install_path(self) -> Path:
        return self.path.with_name(SNAPSHOT_FILE + ".install.tmp")

    def _open_private(self) -> io.BufferedWriter:
        """For the owner alone: a snapshot has what users prove themselves by. Its mode is that of its making."""
        path = self._install_path
        self._os.close(self._os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        return path.open("wb")

    def _stop_sending(self) -> None:
        for transmission in list(self._sending):
            self.cancelTransmisstion(transmission)

    def _take_name(self, tmp: Path, last_index: int) -> bool:
        """Durably rename, unless a newer snapshot has the name."""
        with self._lock:
            if last_index <= self._last_index:
                tmp.unlink()
                return False
            tmp.replace(self.path)
            hit("controller.snapshot.after_rename")
            self._files.sync_directory(self.path.parent)
            self._last_index = last_index
            self._note_file()
            return True

    def _note_file(self) -> None:
        found = self.path.stat()
        self.size_bytes, self.written_s = found.st_size, found.st_mtime

    def _check(self, received: io.BufferedWriter) -> None:
        try:
            self._os.fsync(received.fileno())
            received.close()
            slicer = self._slicer()
            try:
                snapshot = fmt.decode(
                    self._install_path.read_bytes(), "snapshot from the leader", slicer.breathe
                )
            except DamagedFile:
                self._install_path.unlink()
                self._checked.put(None)
                return
            hit("controller.snapshot.received")
            self._take_name(self._install_path, snapshot.last_index)
            self._checked.put(snapshot)
        except Exception as error:  # handed to the tick thread, where it is final
            self._checked.put(error)

    def _write(self, snapshot: Snapshot) -> None:
        started_s = self._clock_s()
        hit("controller.snapshot.begin")
        tmp = self.path.with_name(SNAPSHOT_FILE + ".write.tmp")
        try:
            fd = self._os.open(tmp, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write_slices(self._files, fd, snapshot, self._slicer())
                hit("controller.snapshot.before_sync")
                self._os.fsync(fd)
            finally:
                self._os.close(fd)
            hit("controller.snapshot.before_rename")
            named = self._take_name(tmp, snapshot.last_index)
        except OSError as error:
            # No space, say: the log stays whole, so nothing is lost; the next attempt may do.
            self._on_error(error)
            self._retry_at = self._clock_s() + _RETRY_S
            named = False
        if named and self._on_written_s is not None:
            self._on_written_s(self._clock_s() - started_s)
        with self._lock:
            self._state = SERIALIZER_STATE.SUCCESS if named else SERIALIZER_STATE.FAILED


class Slicer:
    """Rests a thread often enough for the others to run."""

    def __init__(self) -> None:
        self._ends_at = time.monotonic() + _SLICE_S

    def breathe(self) -> None:
        """To be called between steps of well under a millisecond."""
        if time.monotonic() > self._ends_at:
            time.sleep(_PAUSE_S)
            self._ends_at = time.monotonic() + _SLICE_S


def start_thread(job: Callable[[], None], name: str) -> None:
    """Run a job beside the tick; the process does not wait for it at its end."""
    threading.Thread(target=job, name=name, daemon=True).start()


def _write_slices(files: Files, fd: int, snapshot: Snapshot, slicer: Slicer) -> None:
    offset = 0
    for part in fmt.encode(snapshot):
        files.write_all(fd, part, offset)
        offset += len(part)
        slicer.breathe()
