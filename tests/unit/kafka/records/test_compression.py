"""Memory for what is uncompressed."""

from __future__ import annotations

import resource

from penstock_kafka.records.compression import fresh_memory

SIZE_BYTES = 64 * 1024 * 1024


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def test_large_memory_is_not_written_before_it_is_used() -> None:
    """Whoever asks for it holds the interpreter's lock; the codec that fills it does not."""
    before = faults()
    memory = fresh_memory(SIZE_BYTES)
    asked = faults()
    assert asked - before < SIZE_BYTES // resource.getpagesize() // 100
    memory[:] = bytes(SIZE_BYTES)
    assert memory[-1] == 0 and len(memory) == SIZE_BYTES


def test_views_of_memory_outlive_what_they_were_cut_from() -> None:
    for size in (100, 4 * 1024 * 1024):
        part = fresh_memory(size)[10:20]
        part[:] = b"0123456789"
        assert bytes(part) == b"0123456789"
