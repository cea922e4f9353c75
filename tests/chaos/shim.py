"""Disk and clock faults of one process, by a small library loaded beneath it (`shim.c`).

Fair because the process cannot tell: its flushes fail or take long and its wall clock is
off, at any moment, and nothing in it was changed. Unfair in one way: absolute waits on the
wall clock, which happen in the kernel, do not see the jump; Penstock waits on the monotonic one.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
CONTROL_BYTES = 4096
_FIELD = struct.Struct("=q")
_FLUSH_ERRNO, _FLUSH_DELAY_MS, _WALL_OFFSET_NS, _FLUSHES_HIT = range(0, 32, 8)


def missing() -> str:
    """Why there can be no shim here; empty when there can."""
    return "" if shutil.which("gcc") else "no gcc here (Debian: apt-get install gcc libc6-dev)"


class Shim:
    """The library, built into `directory`, and the control files of the processes that loaded it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._library = directory / "shim.so"
        flags = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
        command = ["gcc", *flags, str(SOURCE), "-o", str(self._library), "-ldl"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Processes that are started meanwhile load the library."""
        os.environ["LD_PRELOAD"] = str(self._library)
        os.environ["CHAOS_SHIM_DIR"] = str(self._directory)
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"], os.environ["CHAOS_SHIM_DIR"]

    def flush_errno(self, pid: int, number: int) -> None:
        """Every flush of the process fails with this errno from now on; 0 ends it."""
        self._write(pid, _FLUSH_ERRNO, number)

    def flush_delay_ms(self, pid: int, delay_ms: int) -> None:
        self._write(pid, _FLUSH_DELAY_MS, delay_ms)

    def wall_offset_ms(self, pid: int, offset_ms: int) -> None:
        self._write(pid, _WALL_OFFSET_NS, offset_ms * 1_000_000)

    def flushes_hit(self, pid: int) -> int:
        """How many flushes of the process failed or were delayed."""
        with self._mapped(pid) as control:
            number: int = _FIELD.unpack_from(control, _FLUSHES_HIT)[0]
            return number

    def _write(self, pid: int, position: int, value: int) -> None:
        with self._mapped(pid) as control:
            _FIELD.pack_into(control, position, value)

    @contextmanager
    def _mapped(self, pid: int) -> Iterator[mmap.mmap]:
        path = self._directory / str(pid)
        if not path.exists():
            scratch = path.with_suffix(".new")
            scratch.write_bytes(bytes(CONTROL_BYTES))
            scratch.rename(path)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), CONTROL_BYTES) as control:
            yield control
