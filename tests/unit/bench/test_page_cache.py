"""bench.runner.page_cache: memory is filled until something is reclaimed for it, and not for ever."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bench.runner.page_cache import PageCache

MIB = 1024 * 1024


class _Memory:
    """Of which each portion read takes its size until `free_bytes` is at `least_bytes`."""

    def __init__(self, free_bytes: int, least_bytes: int, portion_bytes: int) -> None:
        self._free_bytes = free_bytes
        self._least_bytes = least_bytes
        self._portion_bytes = portion_bytes
        self.looks = 0

    def free_bytes(self) -> int:
        self.looks += 1
        told = self._free_bytes
        self._free_bytes = max(self._least_bytes, told - self._portion_bytes)
        return told


def test_it_is_read_until_pages_are_reclaimed_for_it(tmp_path: Path) -> None:
    memory = _Memory(40 * MIB, 10 * MIB, 4 * MIB)
    with PageCache(tmp_path, memory.free_bytes, 1000 * MIB, 4 * MIB) as cache:
        # 30 MiB are 7 portions and a half, and half a one still counts.
        assert cache.fill() == 9 * 4 * MIB
        # Once it is full, one portion tells so.
        assert cache.fill() == 4 * MIB


def test_where_reading_always_takes_memory_no_more_is_read_than_there_is(tmp_path: Path) -> None:
    memory = _Memory(10_000 * MIB, 0, 2 * MIB)
    with PageCache(tmp_path, memory.free_bytes, 20 * MIB, 2 * MIB) as cache:
        assert cache.fill() == 20 * MIB


def test_where_reading_takes_no_memory_it_ends_at_once(tmp_path: Path) -> None:
    with PageCache(tmp_path, lambda: 100 * MIB, 1000 * MIB, MIB) as cache:
        assert cache.fill() == MIB


def test_it_has_neither_a_name_nor_a_block_on_disk(tmp_path: Path) -> None:
    with PageCache(tmp_path, _Memory(64 * MIB, 0, 16 * MIB).free_bytes, 1000 * MIB, 16 * MIB) as cache:
        assert cache.fill() >= 64 * MIB
        assert list(tmp_path.iterdir()) == []
        (file,) = _open_files_of(tmp_path)
        assert file.stat().st_blocks == 0
    assert _open_files_of(tmp_path) == []


def _open_files_of(folder: Path) -> list[Path]:
    """Of this process, in /proc; what has no name is shown with the one that it had."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if entry.readlink().is_relative_to(folder):
                found.append(entry)
    return found
