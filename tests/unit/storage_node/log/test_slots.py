"""Slots: who takes which one, what becomes of retired ones, and which nobody has opened."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_core.errors import PenstockError
from penstock_core.ids import TopicId
from penstock_storage_node.log import DirectoryPorts, FileSystem, LogDirectory, slots
from penstock_storage_node.log.slots import UnclaimedSlots
from support.simulated_fs import SimulatedFileSystem, keep_synced
from unit.storage_node.log.log_model import NOW_MS, ROOT, SMALL, TOPIC_ID, new_disk

CLUSTER = bytes(range(16, 32))
OTHER_ID = TopicId(b"o" * 16)


def ports(fs: FileSystem) -> DirectoryPorts:
    return DirectoryPorts(fs, lambda: NOW_MS)


def claim(fs: FileSystem, node_id: int = -1) -> LogDirectory:
    return LogDirectory.claim_slot(ports(fs), ROOT, node_id=node_id)


def spare(fs: FileSystem) -> LogDirectory | None:
    return LogDirectory.claim_live_slot(ports(fs), ROOT)


def make(fs: FileSystem, count: int) -> list[LogDirectory]:
    """That many slots, each claimed by a process whose node has registered."""
    held = [claim(fs) for _ in range(count)]
    for number, directory in enumerate(held, 1):
        directory.set_identity(cluster_id=CLUSTER, node_id=number)
    return held


def test_a_live_slot_comes_before_a_retired_one_and_before_a_new_one() -> None:
    fs = new_disk()
    held = make(fs, 4)
    held[0].mark_retired(77)
    for directory in held:
        directory.close(clean=True)
    assert [claim(fs).slot for _ in range(3)] == [1, 2, 3], "live ones"
    anew = claim(fs)
    assert (anew.slot, anew.is_new, anew.node_id, anew.retired_by) == (0, True, -1, 0)
    assert anew.directory_id != held[0].directory_id, "the old id is refused for ever"
    assert claim(fs).slot == 4


def test_a_spare_takes_live_slots_alone() -> None:
    fs = new_disk()
    held = make(fs, 3)
    assert spare(fs) is None
    held[1].mark_retired(77)
    held[1].close(clean=False)
    assert spare(fs) is None, "it never begins a new node, and never in what is retired"
    held[2].close(clean=True)
    taken = spare(fs)
    assert taken is not None
    assert (taken.slot, taken.node_id, taken.was_clean) == (2, 3, True)
    assert taken.directory_id == held[2].directory_id
    assert spare(fs) is None


def test_a_node_that_is_named_takes_its_own_slot_or_a_new_one() -> None:
    fs = new_disk()
    for directory in make(fs, 2):
        directory.close(clean=True)
    mine = claim(fs, node_id=2)
    assert (mine.slot, mine.node_id) == (1, 2)
    other = claim(fs, node_id=9)
    assert (other.slot, other.node_id) == (2, -1)
    assert claim(fs).slot == 0, "and left the first one as it was"


def test_a_retired_slot_is_emptied_but_for_what_nobody_may_know_of() -> None:
    fs = new_disk()
    (directory,) = make(fs, 1)
    for topic, topic_id in (("known", TOPIC_ID), ("unknown", OTHER_ID)):
        directory.create_log(topic, 0, topic_id, SMALL).close(clean=True)
    directory.offsets.write([])
    directory.mark_retired(77)
    assert directory.drop_logs(lambda topic_id: topic_id == TOPIC_ID) == (1, 1)
    directory.close(clean=False)
    names = fs.list_directory(f"{ROOT}/slot-0")
    assert not [n for n in names if n.startswith("known")]
    assert [n for n in names if n.startswith("unknown-0.") and n.endswith("-stray")]
    anew = claim(fs)
    assert anew.scan() == []
    assert [n for n in fs.list_directory(str(anew.path)) if n.endswith("-stray")]
    assert not fs.exists(f"{anew.path}/retired")


def test_a_crash_at_any_moment_never_makes_a_retired_directory_live_again() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)

    def history(fs: SimulatedFileSystem, do: Callable[[], object], fail_after: int) -> bool:
        left = fail_after

        def fail(_call: str, _path: str) -> OSError | None:
            nonlocal left
            left -= 1
            return OSError(5, "power") if left < 0 else None

        fs.fail_on = fail
        try:
            do()
        except (OSError, PenstockError):
            return False
        finally:
            fs.fail_on = lambda _call, _path: None
        return True

    for _ in range(60):
        fs = new_disk()
        (directory,) = make(fs, 1)
        old_id = directory.directory_id
        directory.create_log("t", 0, TOPIC_ID, SMALL).close(clean=True)
        marked = history(fs, lambda directory=directory: directory.mark_retired(77), rng.randrange(12))  # type: ignore[misc]
        if marked:
            history(fs, lambda directory=directory: directory.drop_logs(lambda _: True), rng.randrange(12))  # type: ignore[misc]
        fs = fs.crash(keep_synced, keep_names=lambda count: rng.randrange(count + 1))
        state = spare(fs)
        if marked:
            assert state is None
            history(fs, lambda fs=fs: claim(fs), rng.randrange(30))  # type: ignore[misc]
            fs = fs.crash(keep_synced, keep_names=lambda count: rng.randrange(count + 1))
            again = claim(fs)
            assert (again.slot, again.node_id) == (0, -1)
            assert again.directory_id != old_id


def test_a_mark_that_cannot_be_read_counts(tmp_path: Path) -> None:
    (tmp_path / "retired").write_bytes(b"\xff")
    assert slots.retired_by(FileSystem(), str(tmp_path)) == -1


def test_slots_that_nobody_opened_are_found_without_taking_their_locks(tmp_path: Path) -> None:
    fs, root = FileSystem(), str(tmp_path)
    held = [LogDirectory.claim_slot(ports(fs), tmp_path) for _ in range(4)]
    for number, directory in enumerate(held[:3], 1):
        directory.set_identity(cluster_id=CLUSTER, node_id=number)
    held[1].mark_retired(77)
    (tmp_path / "slot-x").mkdir()
    assert slots.unclaimed(fs, root) == []
    for directory in held[1:]:
        directory.close(clean=True)
    assert slots.unclaimed(fs, root) == ["slot-2"], "neither the retired one nor the new one"
    assert slots.unclaimed(fs, f"{root}/absent") == []
    # Looking holds up nobody: another open of the lock, while it is asked for, gets it.
    again = LogDirectory.claim_live_slot(ports(fs), tmp_path)
    assert again is not None
    assert again.slot == 2
    assert slots.unclaimed(fs, root) == []
    again.close(clean=True)
    held[0].close(clean=True)


def test_a_slot_whose_process_just_starts_again_is_not_told() -> None:
    seen = UnclaimedSlots()
    assert not seen.note(["slot-1"])
    assert not seen.note([])
    assert not seen.note(["slot-1", "slot-2"])
    assert seen.note(["slot-2", "slot-3"])
    assert seen.names == ("slot-2",)
    assert not seen.note(["slot-2"])
    assert seen.note([])
    assert not seen.names


@pytest.mark.parametrize("name", ["slot-", "slot-01", "slot-1x", "slots-1", "slot-1000", "slot--1"])
def test_other_names_are_no_slots(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    assert slots.found(FileSystem(), str(tmp_path)) == []
