"""The Raft journal: exact recovery at every tear, refusal of damage."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_controller.quorum import journal_format as fmt
from penstock_controller.quorum.files import DamagedFile
from penstock_controller.quorum.journal import JOURNAL_FILE, META_FILE, DurableJournal

Entry = tuple[bytes, int, int]


def filled(directory: Path, blocks: int = 6) -> tuple[DurableJournal, list[tuple[int, list[Entry]]]]:
    """A journal and, for each sync, (file length, entries then)."""
    journal = DurableJournal(directory)
    history: list[tuple[int, list[Entry]]] = [(journal.bytes_on_disk, [])]
    index = 0
    for block in range(blocks):
        for _ in range(block % 3 + 1):
            index += 1
            # With zeros in it, so that a zeroed tail must be told from data.
            journal.add(bytes([0, index % 256, 0]) * (index * 7 % 400), index, block)
        if block == 3:
            journal.deleteEntriesFrom(len(journal) - 1)
            index -= 1
        journal.sync()
        history.append((journal.bytes_on_disk, list(journal.entries)))
    return journal, history


def expected_at(history: list[tuple[int, list[Entry]]], length: int) -> list[Entry]:
    return [entries for end, entries in history if end <= length][-1]


@pytest.mark.parametrize("zero_fill", [False, True])
def test_exact_prefix_at_every_tear_point(tmp_path: Path, zero_fill: bool) -> None:
    journal, history = filled(tmp_path)
    journal._destroy()
    whole = (tmp_path / JOURNAL_FILE).read_bytes()
    for cut in range(fmt.HEADER_BYTES, len(whole)):
        # Only the last block was not synced: what lies before it cannot be torn.
        last_synced = max(end for end, _ in history if end <= cut)
        following = min((end for end, _ in history if end > cut), default=len(whole))
        torn = whole[:cut] + (bytes(following - cut) if zero_fill else b"")
        recovered = fmt.recover(torn, "journal")
        wanted = expected_at(history, cut)
        if recovered.end > last_synced:
            # The bytes that were cut away were zeros already.
            assert torn == whole[: len(torn)]
            wanted = expected_at(history, recovered.end)
        assert recovered.entries == wanted, cut


def test_torn_sector_inside_the_last_block_is_a_tear(tmp_path: Path) -> None:
    journal = DurableJournal(tmp_path)
    journal.add(b"a" * 100, 1, 1)
    journal.sync()
    start = journal.bytes_on_disk
    journal.add(b"b" * 4000, 2, 1)
    journal.sync()
    journal._destroy()
    data = bytearray((tmp_path / JOURNAL_FILE).read_bytes())
    sector = -(-start // 512) * 512 + 512
    data[sector : sector + 512] = bytes(512)
    recovered = fmt.recover(bytes(data), "journal")
    assert [e[1] for e in recovered.entries] == [1]


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    journal, history = filled(tmp_path, blocks=4)
    journal._destroy()
    whole = (tmp_path / JOURNAL_FILE).read_bytes()
    before_last = history[-2][0]
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(1500):
        at = rng.randrange(len(whole))
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        try:
            recovered = fmt.recover(bytes(data), "journal")
        except DamagedFile as error:
            assert "journal" in str(error)
            continue
        # A flip may look like a tear only in the last block, and then never yields wrong entries.
        assert at >= before_last, at
        assert recovered.entries == history[-2][1]


def test_reopens_with_what_was_synced_and_appends_after_a_tear(tmp_path: Path) -> None:
    journal, history = filled(tmp_path)
    journal._destroy()
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(b"\x00" * 37)
    again = DurableJournal(tmp_path)
    assert list(again.entries) == history[-1][1]
    following = again.entries[-1][1] + 1
    again.add(b"more", following, 9)
    again._destroy()
    assert DurableJournal(tmp_path).entries[-1] == (b"more", following, 9)


def test_unsynced_entries_are_gone_after_a_crash(tmp_path: Path) -> None:
    journal = DurableJournal(tmp_path)
    journal.add(b"kept", 1, 1)
    journal.sync()
    journal.add(b"lost", 2, 1)
    assert DurableJournal(tmp_path).entries == [(b"kept", 1, 1)]


def test_term_and_vote_survive(tmp_path: Path) -> None:
    journal = DurableJournal(tmp_path)
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (0, None)
    journal.setCurrentTerm(7, "2")
    again = DurableJournal(tmp_path)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (7, "2")
    again.setCurrentTerm(8, None)
    assert DurableJournal(tmp_path).getVotedForNodeId() is None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_damaged_term_and_vote_refuse_to_start(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    journal = DurableJournal(tmp_path)
    journal.add(b"x", 1, 1)
    journal.setCurrentTerm(3, "1")
    journal._destroy()
    damage(tmp_path / META_FILE)
    with pytest.raises(DamagedFile, match="raft-meta"):
        DurableJournal(tmp_path)


def test_missing_journal_refuses_to_start(tmp_path: Path) -> None:
    DurableJournal(tmp_path).setCurrentTerm(3, "1")
    (tmp_path / JOURNAL_FILE).unlink()
    with pytest.raises(DamagedFile, match="raft-journal"):
        DurableJournal(tmp_path)


def test_cutting_the_head_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, history = filled(tmp_path)
    entries = list(history[-1][1])
    journal.sync()
    path = tmp_path / JOURNAL_FILE
    before = path.read_bytes()

    def crash(_self: Path, _target: Path) -> Path:
        raise OSError("crash before the rename")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(OSError, match="crash"):
            journal.deleteEntriesTo(3)
    assert path.read_bytes() == before
    journal.deleteEntriesTo(3)
    assert list(journal.entries) == entries[3:]
    journal.add(b"next", entries[-1][1] + 1, 9)
    journal._destroy()
    assert list(DurableJournal(tmp_path).entries) == [*entries[3:], (b"next", entries[-1][1] + 1, 9)]


def entry(index: int, term: int = 1) -> Entry:
    return (b"c%d" % index, index, term)


@pytest.mark.parametrize(
    ("have", "previous", "last", "wanted"),
    [
        # Crash between the snapshot's rename and the cut.
        (range(1, 11), 5, 6, range(5, 11)),
        # Aligned already.
        (range(5, 11), 5, 6, range(5, 11)),
        # A peer's snapshot was taken, the journal is all older.
        (range(1, 4), 8, 9, [8, 9]),
        # The snapshot ends where the journal ends.
        (range(1, 7), 5, 6, [5, 6]),
    ],
)
def test_align(tmp_path: Path, have: range, previous: int, last: int, wanted: range | list[int]) -> None:
    journal = DurableJournal(tmp_path)
    for index in have:
        journal.add(*entry(index))
    journal.align(entry(previous), entry(last))
    assert list(journal.entries) == [entry(i) for i in wanted]
    journal._destroy()
    assert list(DurableJournal(tmp_path).entries) == [entry(i) for i in wanted]


def test_align_drops_a_log_that_parted_from_the_snapshot(tmp_path: Path) -> None:
    journal = DurableJournal(tmp_path)
    for index in range(1, 9):
        journal.add(*entry(index, term=1))
    journal.align(entry(5, term=2), entry(6, term=2))
    assert list(journal.entries) == [entry(5, 2), entry(6, 2)]


def test_align_refuses_a_gap(tmp_path: Path) -> None:
    journal = DurableJournal(tmp_path)
    journal.add(*entry(50))
    with pytest.raises(DamagedFile, match="snapshot ends at 6"):
        journal.align(entry(5), entry(6))


def test_sync_error_is_not_swallowed(tmp_path: Path) -> None:
    journal = DurableJournal(tmp_path)
    journal.add(b"x", 1, 1)
    os.close(journal._fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        journal.sync()
    journal._fd = -1


# --- cutting beside the tick -----------------------------------------------------------------


class Jobs:
    """Jobs that a test runs when it likes."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def spawn(self, job: Callable[[], None], _name: str) -> None:
        self.waiting.append(job)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def test_cut_on_a_thread_keeps_what_comes_meanwhile(tmp_path: Path) -> None:
    jobs = Jobs()
    journal = DurableJournal(tmp_path, spawn=jobs.spawn)
    wanted = [(b"c%d" % index, index, 1) for index in range(1, 101)]
    for entry in wanted[:60]:
        journal.add(*entry)
    journal.deleteEntriesTo(50)
    assert [e[1] for e in journal.entries] == list(range(51, 61))
    # Not there yet: a crash now finds the longer log.
    crashed = Path(shutil.copytree(tmp_path, tmp_path.with_name("crashed")))
    assert [e[1] for e in DurableJournal(crashed).entries] == list(range(1, 61))
    journal.add(b"other", 61, 1)
    journal.sync()
    journal.deleteEntriesFrom(10)
    for entry in wanted[60:80]:
        journal.add(*entry)
    journal.sync()
    size = journal.bytes_on_disk
    if not jobs.waiting:
        pytest.fail("nothing was spawned")
    jobs.run()
    for entry in wanted[80:]:
        journal.add(*entry)
    journal.sync()
    assert not journal.is_cutting
    assert journal.bytes_on_disk < size
    assert journal.entries == wanted[50:]
    # It goes on after the change of files, and both halves come back.
    journal.add(b"more", 101, 2)
    journal.sync()
    again = DurableJournal(tmp_path)
    assert again.entries == [*wanted[50:], (b"more", 101, 2)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["raft-journal", "raft-meta"]


def test_a_cut_is_given_up_for_a_whole_new_log(tmp_path: Path) -> None:
    jobs = Jobs()
    journal = DurableJournal(tmp_path, spawn=jobs.spawn)
    for index in range(1, 30):
        journal.add(b"c", index, 1)
    journal.deleteEntriesTo(10)
    journal.replace([(b"p", 40, 2), (b"l", 41, 2)])
    jobs.run()
    journal.add(b"n", 42, 2)
    journal.sync()
    assert [e[1] for e in DurableJournal(tmp_path).entries] == [40, 41, 42]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["raft-journal", "raft-meta"]


def test_a_cut_that_fails_leaves_the_longer_log(tmp_path: Path) -> None:
    jobs = Jobs()
    journal = DurableJournal(tmp_path, spawn=jobs.spawn)
    for index in range(1, 30):
        journal.add(b"c", index, 1)
    (tmp_path / "raft-journal.cut1").mkdir()
    journal.deleteEntriesTo(10)
    jobs.run()
    (tmp_path / "raft-journal.cut1").rmdir()
    journal.add(b"n", 30, 2)
    journal.sync()
    assert not journal.is_cutting
    assert [e[1] for e in journal.entries] == list(range(11, 31))
    assert [e[1] for e in DurableJournal(tmp_path).entries] == list(range(1, 31))
