"""The file of events beside the journal: `events.log`, and `events.log.1` before it. Blocking calls, for a thread.

It is never synced: what a crash takes of it, the journal gives again, or it shows as a gap.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from penstock_controller.state.history.frames import Frame, frames, size_bytes
from penstock_controller.state.history.memory import KEPT_MS

NAME: Final = "events.log"
OLD_NAME: Final = "events.log.1"
FILE_BYTES_MAX: Final = 32 * 1024 * 1024


class Kept(NamedTuple):
    """What the files held."""

    # Oldest first; whole commands only.
    frames: list[Frame]
    # What was before it is not all there: something in the midst of them could not be read. ms since 1970, or 0.
    gap_ms: int


class EventsFile:
    """Appends to the newer of two files and lets the older one go."""

    def __init__(self, directory: Path, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = directory / NAME
        self._old_path = directory / OLD_NAME
        self._max = file_bytes_max
        self._size = 0
        self._began_ms = 0
        self._fd = -1

    def open(self, now_ms: int) -> Kept:
        """Read what is there, cut off what is torn. `now_ms`: wall clock. Raises OSError."""
        old, torn = self._read(self._old_path)
        new, _ = self._read(self._path)
        kept_bytes = sum(size_bytes(frame) for frame in new)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, kept_bytes)
        self._size = kept_bytes
        self._began_ms = _first_ms(new) or now_ms
        if old and _last_ms(old) < now_ms - KEPT_MS:
            self._old_path.unlink(missing_ok=True)
            old = []
        return Kept([*old, *new], (_first_ms(new) or now_ms) if torn and old else 0)

    def append(self, data: bytes, now_ms: int) -> None:
        """Whole commands' frames. Raises OSError."""
        too_old = now_ms - self._began_ms > KEPT_MS // 2
        if self._size and (self._size + len(data) > self._max or too_old):
            self._rotate(now_ms)
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self._size += written
            view = view[written:]

    def close(self) -> None:
        """Write no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rotate(self, now_ms: int) -> None:
        self._path.replace(self._old_path)
        self.close()
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = 0
        self._began_ms = now_ms

    @staticmethod
    def _read(path: Path) -> tuple[list[Frame], bool]:
        """(frames, whether there was more than could be read)."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return [], False
        found, end = frames(data)
        torn = end < len(data)
        # Of a command's frames all count or none.
        while found and found[-1].more:
            found.pop()
            torn = True
        return found, torn


def _first_ms(found: list[Frame]) -> int:
    return next((events[0].time_ms for frame in found if (events := frame.events())), 0)


def _last_ms(found: list[Frame]) -> int:
    return next((events[-1].time_ms for frame in reversed(found) if (events := frame.events())), 0)
