"""A controller's disk after a power cut at every call: nothing it promised is gone, and it always starts.

The calls of journal, term and vote, snapshot and compaction are recorded in a real process
(`controller_script`), and at each of them the disk is cut in several ways: everything
unsynced gone, kept, cut short, zeroed or in any order, names too.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.controller_script import command
from crash.disk_model import Directory, cut, walk
from crash.power_cut import MKDIR, PowerCut, Record, write_tree
from penstock_controller.quorum.journal import DurableJournal
from penstock_controller.quorum.snapshot import SnapshotStore
from penstock_core.metadata import MetadataImage

SEED = int(os.environ.get("PENSTOCK_CRASH_SEED", "20251121"))
FATES = ("none", "all", "cut", "zeros", "sectors", "sectors", None)


class Promise:
    """What others may rely on at some moment."""

    def __init__(self) -> None:
        self.terms: dict[int, int] = {}
        """Term by index of all entries that were acknowledged."""
        self.term = 0

    def take(self, mark: str) -> None:
        words = mark.split("-")[2:]
        if words[0] == "term":
            self.term = int(words[1])
        else:
            first, last, term = map(int, words[1:])
            self.terms.update(dict.fromkeys(range(first, last + 1), term))

    def check(self, place: Path) -> None:
        """Start from `place` as `Quorum` does. Raises AssertionError or DamagedFile."""
        journal = DurableJournal(place)
        try:
            snapshot = SnapshotStore(place, MetadataImage, _fail).load()
            if snapshot is not None:
                journal.align(snapshot.previous, snapshot.last)
            entries = {index: (data, term) for data, index, term in journal.entries}
            covered = 0 if snapshot is None else snapshot.last_index
            for index, term in self.terms.items():
                if index > covered:
                    assert entries.get(index) == (command(index, term), term), f"entry {index} is lost"
            indexes = list(entries)
            assert indexes == list(range(indexes[0], indexes[0] + len(indexes))) if indexes else True
            assert all(data == command(index, term) for index, (data, term) in entries.items())
            assert journal.getCurrentTerm() >= self.term, (
                "a term is forgotten: a second vote in it is possible"
            )
            if journal.getCurrentTerm() == self.term and self.term:
                assert journal.getVotedForNodeId() == str(self.term % 3)
        finally:
            journal._destroy()


def _fail(error: BaseException) -> None:
    raise error


def record(tmp_path: Path, seed: int, *arguments: str) -> tuple[PowerCut, list[Record]]:
    """The calls of the script."""
    member = tmp_path / "cluster" / "controller-1"
    member.mkdir(parents=True)
    with PowerCut(tmp_path / "cluster", tmp_path / "scratch") as power:
        subprocess.run(
            [sys.executable, "-m", "crash.controller_script", str(member / "data"), str(seed), *arguments],
            check=True,
            timeout=600,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return power, power.take_records()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder where a sync costs nothing: the cuts are made on paper."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as place:
        yield Path(place)


@pytest.mark.timeout(1200)
@pytest.mark.skipif(shutil.which("gcc") is None and shutil.which("cc") is None, reason="recording needs gcc")
@pytest.mark.parametrize("disk_speed", ["fast", "slow"])
def test_a_power_cut_at_every_call(tmp_path: Path, memory: Path, disk_speed: str) -> None:
    print(f"PENSTOCK_CRASH_SEED={SEED}")
    dice = random.Random(SEED)
    power, records = record(tmp_path, SEED, disk_speed)
    place = memory / "data"
    place.mkdir()
    promise, tried = Promise(), 0
    for call in records:
        name = Path(os.fsdecode(call[5])).name
        if call[2] == MKDIR and name.startswith("mark-"):
            promise.take(name)
            continue
        power.apply(call)
        disk = power.disks.get("controller-1")
        if disk is None or not any(node.pending for node in [disk, *(node for _, node in walk(disk))]):
            continue
        for fate in FATES:
            after = copy.deepcopy(disk)
            cut(after, dice, fate)
            put(place, after)
            try:
                promise.check(place)
                promise.check(place)
            except BaseException:
                print(f"call {call[:5]} {call[5][:80]!r}, fate {fate}")
                raise
            tried += 1
    assert tried > 1_000
    assert len(promise.terms) > 60
    print(f"{tried} power cuts at {len(records)} calls")


def put(place: Path, disk: Directory) -> None:
    """The files of `disk`, and nothing else, under `place`."""
    write_tree(place, {}, dict(walk(disk)), set())
