"""Who may stay on the Raft port, and who of two with one name; which directories count."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_controller.quorum import commands
from penstock_controller.quorum.admission import (
    CONTEST_S,
    LOG_LINES_MAX,
    RIVAL_SILENCE_S,
    UNKNOWN_MAX,
    UNKNOWN_PER_ADDRESS_MAX,
    Contests,
    LogBudget,
    Standing,
    WaitingRoom,
)
from penstock_controller.quorum.files import DamagedFile
from penstock_controller.quorum.identity import PEERS_FILE, PeerMemory
from penstock_controller.quorum.journal import DurableJournal

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
NOBODY = bytes(16)


def test_the_oldest_of_an_address_makes_room_and_then_the_oldest_of_all() -> None:
    room: WaitingRoom[int] = WaitingRoom()
    for link in range(UNKNOWN_PER_ADDRESS_MAX):
        assert room.leaves_for("crowd") is None
        room.add(link, "crowd")
    assert room.leaves_for("crowd") == 0
    assert room.leaves_for("other") is None
    for link in range(UNKNOWN_PER_ADDRESS_MAX, UNKNOWN_MAX):
        room.add(link, f"address {link}")
    assert room.leaves_for("other") == 0
    room.discard(0)
    assert room.leaves_for("other") is None
    assert room.leaves_for("crowd") is None
    assert (room.address_of(3), room.address_of(0)) == ("crowd", "")


EQUAL = Standing(is_member=True, is_at_home=True)


def test_one_that_is_there_keeps_its_place_but_not_for_ever() -> None:
    contests = Contests()
    assert not contests.is_won(3, 0.0, 0.1, EQUAL, EQUAL)
    tried = 0.0
    while tried < CONTEST_S - 0.2:
        tried += 0.1
        assert not contests.is_won(3, tried, 0.1, EQUAL, EQUAL)
    assert contests.is_won(3, CONTEST_S, 0.1, EQUAL, EQUAL)
    assert not contests.is_won(3, CONTEST_S + 0.1, 0.1, EQUAL, EQUAL), "a new contest"


def test_a_single_hello_now_and_then_wins_nothing() -> None:
    contests = Contests()
    assert not any(contests.is_won(3, 2.0 * n, 0.1, EQUAL, EQUAL) for n in range(10))


def test_what_speaks_for_a_link_decides_at_once() -> None:
    contests = Contests()
    stranger = Standing(is_member=False, is_at_home=True)
    far = Standing(is_member=True, is_at_home=False)
    assert contests.is_won(3, 0.0, 0.0, stranger, far)
    assert contests.is_won(3, 0.0, 0.0, far, EQUAL)
    for n in range(100):
        assert not contests.is_won(3, n / 10, 0.0, far, stranger), "however long it tries"
    assert contests.is_won(3, 11.0, RIVAL_SILENCE_S, EQUAL, stranger), "the one that was there is gone"


def test_strangers_cannot_fill_the_log() -> None:
    budget = LogBudget()
    assert sum(budget.take(5.0 + n / 1000) for n in range(1000)) == LOG_LINES_MAX
    assert budget.take(70.0)


# --- directories --------------------------------------------------------------------------------------


def memory(path: Path, own: bytes = A) -> PeerMemory:
    return PeerMemory(path, 1, own)


def test_only_the_log_replaces_a_directory(tmp_path: Path) -> None:
    one = memory(tmp_path)
    one.on_records({1: A, 2: B})
    one.on_hello(2, C, NOBODY)
    one.on_hello(2, b"x" * 16, NOBODY)
    assert one.directory_of(2) == B
    assert not one.is_former(2, B)
    one.on_records({1: A, 2: C})
    assert one.directory_of(2) == C
    assert one.is_former(2, B)


def test_a_snapshot_of_before_takes_nothing_back(tmp_path: Path) -> None:
    """After a restart only the snapshot is applied: two controllers that were replaced since could not elect."""
    one = memory(tmp_path)
    one.on_records({1: C, 2: B})
    one.on_records({1: A, 2: B})
    one.on_records({1: A, 2: C})
    again = memory(tmp_path)
    again.on_records({1: C, 2: B})
    assert (again.own, again.directory_of(2)) == (A, C)
    assert again.is_former(2, B)


def test_a_file_of_before_that_hellos_had_spoiled_is_mended_by_the_log(tmp_path: Path) -> None:
    (tmp_path / PEERS_FILE).write_text(
        f'{{"joined": true, "directories": {{"2": "{C.hex()}"}}, "former": {{"2": ["{B.hex()}"]}}}}'
    )
    one = memory(tmp_path)
    assert one.is_former(2, B)
    one.on_records({1: A, 2: B})
    assert one.directory_of(2) == B
    assert not one.is_former(2, B)


def test_what_a_peer_remembers_of_us_is_what_it_said_last(tmp_path: Path) -> None:
    one = memory(tmp_path)
    found = []
    for peer_id, remembered in ((2, C), (2, NOBODY), (3, C)):
        one.on_hello(peer_id, B, remembered)
        found.append(one.joining)
    one.on_records({1: A})
    assert [*found, one.joining] == [True, False, True, False], "the log knows better than any peer"


def test_in_a_new_cluster_what_somebody_said_ends_with_a_restart(tmp_path: Path) -> None:
    one = memory(tmp_path)
    one.on_hello(2, B, NOBODY)
    assert memory(tmp_path).directory_of(2) == NOBODY
    one.mark_joined()
    assert memory(tmp_path).directory_of(2) == B


# --- what a start finds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "fault"),
    [(b"", "is empty"), (b"\0\xff", "is no metadata command"), (b"\7", "is of the unknown kind 7")],
)
def test_a_poison_in_the_log_is_named_with_its_mend(tmp_path: Path, command: bytes, fault: str) -> None:
    journal = DurableJournal(tmp_path)
    journal.add(b"\1", 1, 0)
    journal.add(b"\0", 2, 4)
    journal.check(3)
    journal.add(command, 3, 4)
    journal._destroy()
    journal = DurableJournal(tmp_path)
    with pytest.raises(DamagedFile, match=f"raft-journal: entry 3 of term 4 {fault}; restore .* replace 3"):
        journal.check(3)
    journal._destroy()


def test_a_term_that_no_election_follows_is_named_with_its_mend(tmp_path: Path) -> None:
    journal = DurableJournal(tmp_path)
    journal.setCurrentTerm(2**64 - 1, None)
    with pytest.raises(
        DamagedFile, match=f"raft-meta: term {2**64 - 1} is none that elections reach; restore"
    ):
        journal.check(3)
    journal._destroy()


def test_entries_above_the_bounds_are_poison() -> None:
    assert commands.find_poison([(b"\1", 5, 2)]) == ""
    assert "has a number" in commands.find_poison([(b"\1", 2**62, 2)])
    assert "has a number" in commands.find_poison([(b"\1", 5, 2**62)])
    assert "the most is" in commands.fault_of(b"\0" + bytes(commands.COMMAND_BYTES_MAX + 1))
