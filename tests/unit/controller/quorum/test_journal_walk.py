"""The Raft journal on a disk that forgets: kills, power cuts, and both one after the other.

What a controller has synced it has acknowledged, and what it found when it opened its files it
acknowledges too, without writing it again: neither may be gone after any crash, and no crash
leaves files that are refused.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock_controller.quorum import journal_format
from penstock_controller.quorum.files import Files
from penstock_controller.quorum.journal import JOURNAL_FILE, DurableJournal
from simulation.sim_os import Disks, SimOs, SimPath
from support.simulated_fs import SimulatedCrash, SimulatedFileSystem, keep_random, keep_synced

ROUNDS = int(os.environ.get("PENSTOCK_JOURNAL_ROUNDS", "150"))
SEED = int(os.environ.get("PENSTOCK_JOURNAL_SEED", "20251121"))

Entry = tuple[bytes, int, int]


class Machine:
    """A controller's disk, and its journal while it runs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disks = Disks()
        self.disks.by_host["c1"] = SimulatedFileSystem(self.rng)
        self.fs.make_directory("/c1")
        self.fs.sync_directory("/")
        self.os = SimOs(self.disks)
        self.jobs: list[Callable[[], None]] = []
        self.power_cuts = 0

    @property
    def fs(self) -> SimulatedFileSystem:
        return self.disks.by_host["c1"]

    def open(self) -> DurableJournal:
        self.jobs.clear()
        path = cast(Path, SimPath(self.os, self.disks, "/c1"))
        spawn = None if self.rng.random() < 0.3 else lambda job, _name: self.jobs.append(job)
        return DurableJournal(path, spawn=spawn, files=Files(self.os))

    def kill(self) -> None:
        self.disks.by_host["c1"] = self.fs.restart()

    def cut_power(self, *, strict: bool = False) -> None:
        self.power_cuts += 1
        content = keep_synced if strict else keep_random(self.rng)
        names: Any = (lambda _: 0) if strict else (lambda count: self.rng.randint(0, count))
        self.disks.by_host["c1"] = self.fs.crash(content, keep_names=names)


def test_what_was_read_when_it_opened_survives_a_power_cut() -> None:
    """Killed between write and flush: the next run has the entry, acknowledges it, and may lose power then."""
    machine = Machine(1)
    first = machine.open()
    first.add(b"c1", 1, 1)
    first.sync()
    first.add(b"c2", 2, 1)
    machine.fs.crash_countdown = 1
    with pytest.raises(SimulatedCrash):
        first.sync()
    machine.kill()
    held = list(machine.open().entries)
    assert [index for _, index, _ in held] == [1, 2]
    machine.cut_power(strict=True)
    assert list(machine.open().entries) == held


@pytest.mark.parametrize("change", ["term", "replace"])
def test_names_that_were_read_survive_a_power_cut(change: str) -> None:
    """Killed between a rename and the directory's flush."""
    machine = Machine(1)
    first = machine.open()
    first.add(b"c1", 1, 1)
    first.sync()
    machine.fs.fail_on = lambda call, _path: OSError(5, "killed") if call == "sync_directory" else None
    run: Callable[[], None] = {
        "term": lambda: first.setCurrentTerm(7, "1"),
        "replace": lambda: first.replace([(b"c8", 8, 1), (b"c9", 9, 1)]),
    }[change]
    with pytest.raises(OSError, match="killed"):
        run()
    machine.kill()
    second = machine.open()
    second.add(b"c", second.entries[-1][1] + 1, 1)
    second.sync()
    held = list(second.entries), second.getCurrentTerm(), second.getVotedForNodeId()
    assert (len(held[0]), held[1]) == ((2, 7) if change == "term" else (3, 0))
    machine.cut_power(strict=True)
    third = machine.open()
    assert (list(third.entries), third.getCurrentTerm(), third.getVotedForNodeId()) == held


class Walk:
    """Random operations and crashes; `promised` is what others count on, by index."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.rng = machine, machine.rng
        self.promised: dict[int, Entry] = {}
        self.term = 0
        self.start()

    def start(self) -> None:
        self.journal = self.machine.open()
        found = {entry[1]: entry for entry in self.journal.entries}
        lost = [index for index, entry in self.promised.items() if found.get(index) != entry]
        assert not lost, f"entries {lost} are gone, {len(found)} are there"
        assert self.journal.getCurrentTerm() >= self.term
        self.promised, self.term = found, self.journal.getCurrentTerm()

    def sync(self) -> None:
        self.journal.sync()
        self.promised = {entry[1]: entry for entry in self.journal.entries}

    def step(self) -> None:
        at, rng = self.journal, self.rng
        what = rng.choice(("add", "add", "sync", "sync", "sync", "undo", "head", "align", "term", "job"))
        if what == "add":
            following = at.entries[-1][1] + 1 if len(at) else 1
            for index in range(following, following + rng.randint(1, 3)):
                size = rng.choice((rng.randrange(40), rng.randrange(1500)))
                at.add(rng.randbytes(size), index, self.term)
        elif what == "sync":
            self.sync()
        elif what == "undo" and len(at) > 1:
            count = rng.randrange(1, len(at))
            self.forget(lambda index: index >= at.entries[count][1])
            at.deleteEntriesFrom(count)
        elif what == "head" and len(at) > 3:
            self.sync()
            self.forget(lambda index: index < at.entries[-2][1])
            at.deleteEntriesTo(len(at) - 2)
        elif what == "align" and len(at) > 3:
            self.sync()
            previous, last = at.entries[1:3]
            self.forget(lambda index: index < previous[1])
            at.align(previous, last)
        elif what == "term":
            at.setCurrentTerm(self.term + 1, "1")
            self.term += 1
        elif self.machine.jobs:
            self.machine.jobs.pop(0)()

    def forget(self, is_forgotten: Callable[[int], bool]) -> None:
        """Nobody counts on these from now on."""
        self.promised = {index: entry for index, entry in self.promised.items() if not is_forgotten(index)}

    def crash(self) -> None:
        """One crash or several, also while the files are opened again."""
        machine, rng = self.machine, self.rng
        while True:
            if rng.random() < 0.4:
                machine.kill()
            else:
                machine.cut_power(strict=rng.random() < 0.3)
            machine.fs.short_write_chance = rng.choice((0.0, 0.2))
            machine.fs.crash_countdown = rng.choice((None, None, rng.randrange(6)))
            try:
                self.start()
            except SimulatedCrash:
                continue
            machine.fs.crash_countdown = rng.randrange(60)
            return


def test_crashes_at_any_change_of_the_disk() -> None:
    print(f"PENSTOCK_JOURNAL_SEED={SEED}")
    entries = cuts = 0
    for seed in range(SEED, SEED + ROUNDS):
        machine = Machine(seed)
        walk = Walk(machine)
        machine.fs.crash_countdown = machine.rng.randrange(60)
        for _ in range(80):
            try:
                walk.step()
            except SimulatedCrash:
                walk.crash()
            except BaseException:
                print(f"seed {seed}")
                raise
        entries, cuts = entries + len(walk.promised), cuts + machine.power_cuts
    assert entries > ROUNDS
    assert cuts > ROUNDS


def test_a_torn_block_is_a_tear_whichever_sectors_reached_the_disk() -> None:
    """The block shares its first sector with the one before, and its last one with nothing yet."""
    print(f"PENSTOCK_JOURNAL_SEED={SEED}")
    rng = random.Random(SEED)
    for _ in range(ROUNDS):
        body = journal_format.entry_op(rng.randbytes(rng.randrange(1100)), 1, 1)
        synced = journal_format.file_header() + journal_format.block(1, body)
        body = journal_format.entry_op(rng.randbytes(rng.choice((0, 3, 470, 2000))), 2, 1)
        whole = synced + journal_format.block(2, body)
        sectors = range(len(synced) // 512, -(-len(whole) // 512))
        for there in range(1 << len(sectors)):
            data = bytearray(synced)
            for number, sector in enumerate(sectors):
                if there >> number & 1:
                    data.extend(bytes(max(sector * 512 - len(data), 0)))
                    data[sector * 512 :] = whole[sector * 512 : (sector + 1) * 512]
            for size in (len(data), -(-len(data) // 512) * 512, len(whole)):
                # The size of the file may be that before, that after, or round.
                torn = bytes(data) + bytes(max(size - len(data), 0))
                recovered = journal_format.recover(torn, JOURNAL_FILE)
                found = [index for _, index, _ in recovered.entries]
                assert found == ([1, 2] if torn[: len(whole)] == whole else [1])
