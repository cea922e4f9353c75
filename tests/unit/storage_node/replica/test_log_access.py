"""Which work on a log runs beside which."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock_core.errors import InvariantBroken
from penstock_storage_node.replica.log_access import LogAccess, Verdict, Work, table

LIVES = Path(__file__).parents[4] / "docs" / "lives.md"


def test_the_table_in_the_docs_is_that_of_the_code() -> None:
    assert table() in LIVES.read_text()


def test_what_stands_in_line_runs_in_order_and_by_itself() -> None:
    access = LogAccess()
    access.is_writing = True
    access.stand_in_line(Work.SWAP)
    access.stand_in_line(Work.ALONE)
    assert access.next_alone() is None, "a write is out"
    access.is_writing = False
    assert access.ask(Work.WRITE) is Verdict.QUEUE, "nothing starts before the line is empty"
    assert access.next_alone() is Work.SWAP
    assert access.next_alone() is None
    assert access.is_busy, "a cut waits"
    access.end_alone()
    assert access.next_alone() is Work.ALONE
    access.end_alone()
    assert access.ask(Work.WRITE) is Verdict.RUN
    assert access.ask(Work.READ) is Verdict.RUN


def test_only_what_runs_alone_stands_in_line() -> None:
    with pytest.raises(InvariantBroken):
        LogAccess().stand_in_line(Work.WRITE)
    with pytest.raises(InvariantBroken):
        LogAccess().end_alone()


@pytest.mark.parametrize("seed", range(100))
def test_nothing_runs_beside_what_runs_alone_and_everything_comes_to_its_turn(seed: int) -> None:
    rng = random.Random(seed)
    access = LogAccess()
    asked, ran = 0, 0

    def end_something() -> None:
        if access.alone is not None:
            access.end_alone()
        elif access.is_writing and rng.random() < 0.5:
            access.is_writing = False
        elif access.is_flushing:
            access.is_flushing = False
        elif access.looking:
            access.looking -= 1
        else:
            access.is_writing = False

    for _ in range(300):
        work = rng.choice(list(Work))
        if work in (Work.ALONE, Work.SWAP):
            access.stand_in_line(work)
            asked += 1
        elif access.ask(work) is Verdict.RUN:
            assert access.alone is None or work is Work.LOOK
            if work is Work.WRITE:
                assert not access.is_writing
                access.is_writing = True
            elif work is Work.FLUSH:
                assert not access.is_flushing
                access.is_flushing = True
            else:
                access.looking += 1
        if access.next_alone() is not None:
            assert not (access.is_writing or access.is_flushing or access.looking)
            ran += 1
        access.validate()
        if rng.random() < 0.6:
            end_something()
    while access.has_waiting or access.alone is not None:
        end_something()
        ran += access.next_alone() is not None
    assert ran == asked
