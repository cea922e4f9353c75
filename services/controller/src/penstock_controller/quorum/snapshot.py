"""Snapshots on disk, in the place of PySyncObj's forking, pickling serializer.

Writing runs on a thread of its own from the immutable image, in small slices with a
pause between them, so that neither the tick thread nor the event loop waits for it
(a pure-Python thread that never pauses costs the loop 5 ms a turn). A file gets its
name only when it is synced, and only when no newer snapshot has taken the name.

Wart: the method names of the first section are those of pysyncobj.serializer.Serializer,
`cancelTransmisstion` included.
"""

# ruff: noqa: N802, N803 - names are those of the base class
from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pysyncobj.config import SERIALIZER_STATE

from penstock_controller.quorum import snapshot_format as fmt
from penstock_controller.quorum.files import DamagedFile, sync_directory, write_all
from penstock_controller.quorum.journal_format import Entry
from penstock_controller.quorum.snapshot_format import Snapshot
from penstock_core.metadata import MetadataImage

SNAPSHOT_FILE = "raft-snapshot"
SNAPSHOT_BYTES_MAX = 1 << 30
"""Largest snapshot taken from a peer: bounds what a broken one can make us write."""
TRANSFER_CHUNK_BYTES = 256 * 1024
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
    ) -> None:
        self.path = directory / SNAPSHOT_FILE
        self._image = image
        self._on_error = on_error
        self._on_written_s = on_written_s
        self._lock = threading.Lock()
        self._state = SERIALIZER_STATE.NOT_SERIALIZING
        self._current_id = 0
        self._last_index = 0
        self._retry_at = 0.0
        self._sending: dict[object, io.BufferedReader] = {}
        self._receiving: io.BufferedWriter | None = None
        self._thread: threading.Thread | None = None
        for leftover in directory.glob(SNAPSHOT_FILE + ".*tmp"):
            leftover.unlink()

    def load(self) -> Snapshot | None:
        """The snapshot on disk, None when there is none. Raises DamagedFile."""
        if not self.path.exists():
            return None
        snapshot = fmt.decode(self.path.read_bytes(), str(self.path))
        self._last_index = snapshot.last_index
        return snapshot

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
        if self._state == SERIALIZER_STATE.SERIALIZING or time.monotonic() < self._retry_at:
            return
        if data[1][1] <= self._last_index:
            # Restarted with a long log that is not known to be committed yet: nothing new.
            return
        self._state = SERIALIZER_STATE.SERIALIZING
        self._current_id = id
        snapshot = Snapshot(previous=data[2], last=data[1], image=self._image())
        self._thread = threading.Thread(
            target=self._write, args=(snapshot,), name="raft-snapshot", daemon=True
        )
        self._thread.start()

    def getTransmissionData(self, transmissionID: object) -> Chunk | None:
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

    def receive(self, chunk: Chunk) -> Snapshot | None:
        """Take one part of the leader's snapshot; the whole one once it is complete and good.

        It has the snapshot's name then. A bad one is dropped: the leader sends again.
        """
        data, first, last = chunk
        if first:
            self.abort_receiving()
            self._receiving = self._install_path.open("wb")
        if self._receiving is None:
            return None
        self._receiving.write(data)
        if self._receiving.tell() > SNAPSHOT_BYTES_MAX:
            self.abort_receiving()
            return None
        if not last:
            return None
        self._receiving.flush()
        os.fsync(self._receiving.fileno())
        self._receiving.close()
        self._receiving = None
        try:
            snapshot = fmt.decode(self._install_path.read_bytes(), "snapshot from the leader")
        except DamagedFile:
            self._install_path.unlink()
            return None
        self._take_name(self._install_path, snapshot.last_index)
        self._stop_sending()
        return snapshot

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
            sync_directory(self.path.parent)
            self._last_index = last_index
            return True

    def _write(self, snapshot: Snapshot) -> None:
        started = time.monotonic()
        tmp = self.path.with_name(SNAPSHOT_FILE + ".write.tmp")
        try:
            fd = os.open(tmp, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write_slices(fd, snapshot)
                os.fsync(fd)
            finally:
                os.close(fd)
            named = self._take_name(tmp, snapshot.last_index)
        except OSError as error:
            # No space, say: the log stays whole, so nothing is lost; the next attempt may do.
            self._on_error(error)
            self._retry_at = time.monotonic() + _RETRY_S
            named = False
        if named and self._on_written_s is not None:
            self._on_written_s(time.monotonic() - started)
        with self._lock:
            self._state = SERIALIZER_STATE.SUCCESS if named else SERIALIZER_STATE.FAILED


def _write_slices(fd: int, snapshot: Snapshot) -> None:
    offset = 0
    slice_end = time.monotonic() + _SLICE_S
    for part in fmt.encode(snapshot):
        write_all(fd, part, offset)
        offset += len(part)
        if time.monotonic() > slice_end:
            time.sleep(_PAUSE_S)
            slice_end = time.monotonic() + _SLICE_S
