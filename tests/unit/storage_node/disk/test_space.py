"""When a disk counts as full, and when as having room again."""

from __future__ import annotations

import errno

import pytest

from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk.health import DiskHealth
from penstock_storage_node.disk.space import (
    HOLD_MAX_MS,
    HOLD_MS,
    PROBE_BYTES,
    PROBE_FILE,
    RELAPSE_MS,
    DiskSpace,
    probe,
    reserve_bytes,
)
from unit.storage_node.log.log_model import ROOT, new_disk, open_directory


def full_at(now_ms: int) -> DiskSpace:
    space = DiskSpace()
    assert space.on_full(now_ms)
    return space


def is_full(space: DiskSpace) -> bool:
    """By a call, so that a type checker does not take an earlier state for today's."""
    return space.full


def test_a_disk_is_full_with_the_first_write_that_finds_no_space() -> None:
    space = DiskSpace()
    assert not is_full(space)
    assert not space.probe_is_due(10**9)
    assert space.on_full(1_000)
    assert is_full(space)
    assert not space.on_full(1_001), "said once"


def test_room_is_looked_for_when_nobody_has_met_a_full_disk_for_a_while() -> None:
    space = full_at(1_000)
    assert not space.probe_is_due(1_000 + HOLD_MS - 1)
    space.on_full(5_000)
    assert not space.probe_is_due(5_000 + HOLD_MS - 1)
    assert space.probe_is_due(5_000 + HOLD_MS)


def test_a_look_that_finds_room_ends_it_and_one_that_does_not_begins_the_wait_anew() -> None:
    space = full_at(0)
    assert not space.on_probe(HOLD_MS, HOLD_MS + 5, has_room=False)
    assert is_full(space)
    assert not space.probe_is_due(2 * HOLD_MS)
    assert space.probe_is_due(2 * HOLD_MS + 5)
    assert space.on_probe(2 * HOLD_MS + 5, 2 * HOLD_MS + 9, has_room=True)
    assert not is_full(space)
    assert not space.probe_is_due(10 * HOLD_MS)


def test_a_write_that_found_no_space_during_the_look_counts_more_than_the_look() -> None:
    space = full_at(0)
    space.on_full(HOLD_MS + 2)
    assert not space.on_probe(HOLD_MS, HOLD_MS + 5, has_room=True)
    assert space.full


def test_a_disk_that_is_full_again_soon_is_given_twice_the_time_and_at_last_the_most() -> None:
    space = full_at(0)
    now_ms, holds = 0, []
    for _ in range(8):
        holds.append(space.hold_ms)
        now_ms += space.hold_ms
        assert space.probe_is_due(now_ms)
        assert space.on_probe(now_ms, now_ms, has_room=True)
        now_ms += RELAPSE_MS - 1
        space.on_full(now_ms)
    assert holds[:3] == [HOLD_MS, 2 * HOLD_MS, 4 * HOLD_MS]
    assert holds[-1] == HOLD_MAX_MS
    space.on_probe(now_ms + HOLD_MAX_MS, now_ms + HOLD_MAX_MS, has_room=True)
    space.on_full(now_ms + HOLD_MAX_MS + RELAPSE_MS)
    assert space.hold_ms == HOLD_MS, "it was well for long enough"


def test_the_look_writes_a_file_and_leaves_none_whether_there_is_room_or_not() -> None:
    fs = new_disk()
    open_directory(fs)
    root = str(ROOT)
    path = f"{root}/{PROBE_FILE}"
    probe(fs, root)
    assert not fs.exists(path)
    fs.space_bytes = PROBE_BYTES - 1
    with pytest.raises(OSError, match="no space") as refused:
        probe(fs, root)
    assert refused.value.errno == errno.ENOSPC
    assert not fs.exists(path)
    fs.space_bytes = PROBE_BYTES
    probe(fs, root)


@pytest.mark.parametrize(
    ("wanted", "total", "reserve"),
    [(256, 100_000, 256), (256, 2_000, 100), (0, 2_000, 0), (256, 0, 0)],
)
def test_the_reserve_is_no_large_part_of_a_small_disk(wanted: int, total: int, reserve: int) -> None:
    assert reserve_bytes(wanted, total) == reserve


async def test_a_disk_below_its_reserve_is_full_until_twice_that_is_free() -> None:
    now_ms = 0
    told: list[bool] = []
    health = DiskHealth(Lifecycle("test"), lambda: now_ms)
    health.space_listeners.append(lambda: told.append(health.space.full))
    health.reserve_bytes = 1_000
    health.note_room(100_000, 1_000)
    assert not is_full(health.space)
    health.note_room(100_000, 999)
    assert is_full(health.space)
    now_ms = 5_000
    health.note_room(100_000, 500)
    assert not health.space.probe_is_due(HOLD_MS), "it was full just now"
    now_ms += HOLD_MS
    assert health.space.probe_is_due(now_ms)
    assert not health.has_room(100_000, 1_999)
    health.note_probe(now_ms, has_room=health.has_room(100_000, 1_999))
    assert is_full(health.space), "and neither full nor with room: it stays as it was"
    now_ms += HOLD_MS
    health.note_probe(now_ms, has_room=health.has_room(100_000, 2_000))
    assert not is_full(health.space)
    assert told == [True, False]
    health.reserve_bytes = 0
    health.note_room(100_000, 0)
    assert not is_full(health.space), "0: only a write that finds no space tells"
