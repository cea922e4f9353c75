"""bench.runner.plan: who is visited when, in which order, and what is left out because it is done."""

from __future__ import annotations

from itertools import pairwise

import pytest
from bench.runner.plan import FULL, QUICK, TINY, Run, Size, Visit, has_time, visits
from bench.runner.rows import FSYNC, KAFKA, REPLICATED, ROWS, Kind, Layout, Load, Row


def row(name: str, group: str = "", kind: Kind = Kind.PRODUCE, layout: Layout | None = None) -> Row:
    return Row(
        name, name, kind, ("mb_per_s",), (KAFKA, REPLICATED, FSYNC), Load(), layout or Layout(), group=group
    )


def names(visit: Visit) -> list[tuple[str, str]]:
    return [(step.row.name, step.contender.name) for step in visit.steps]


def test_a_round_visits_each_system_once_and_the_next_one_the_other_way_round() -> None:
    found = list(visits([row("a")], 3))
    assert [(one.round, one.system) for one in found] == [
        *((0, "kafka"), (0, "penstock")),
        *((1, "penstock"), (1, "kafka")),
        *((2, "kafka"), (2, "penstock")),
    ]
    assert names(found[1]) == [("a", "replicated"), ("a", "fsync")]
    assert names(found[2]) == [("a", "fsync"), ("a", "replicated")]


def test_rows_of_a_group_share_a_visit_unless_their_processes_differ() -> None:
    rows = [row("a", "g"), row("b", "g"), row("c", "g", layout=Layout(1)), row("d")]
    found = [one for one in visits(rows, 1) if one.system == "kafka"]
    assert [[name for name, _ in names(one)] for one in found] == [["a", "b"], ["c"], ["d"]]
    assert [one.layout.nodes for one in found] == [3, 1, 3]


def test_what_wants_a_fresh_system_comes_first() -> None:
    rows = [row("read", "g", Kind.CONSUME), row("write", "g"), row("still", "g", Kind.IDLE)]
    assert [name for name, _ in names(next(visits(rows, 1)))] == ["still", "write", "read"]


def test_all_rows_have_a_first_round_before_one_has_a_second() -> None:
    rounds = [one.round for one in visits([row("a"), row("b")], 2)]
    assert all(earlier <= later for earlier, later in pairwise(rounds))


def test_what_is_done_is_left_out_and_so_is_a_visit_with_nothing_left() -> None:
    done = {Run("a", "kafka", 0), Run("a", "fsync", 0), Run("a", "kafka", 1)}
    found = list(visits([row("a")], 2, done))
    assert [(one.round, one.system) for one in found] == [(0, "penstock"), (1, "penstock")]
    assert found[0].runs() == (Run("a", "replicated", 0),)
    everything = {run for one in visits([row("a")], 2) for run in one.runs()}
    assert list(visits([row("a")], 2, everything)) == []


def test_every_row_but_those_of_modules_is_visited_with_every_contender() -> None:
    planned = {run for one in visits(ROWS, 1) for run in one.runs()}
    wanted = {
        Run(one.name, contender.name, 0)
        for one in ROWS
        if one.kind is not Kind.ELSEWHERE
        for contender in one.contenders
    }
    assert planned == wanted


@pytest.mark.parametrize(
    ("elapsed_s", "longest_s", "budget_s", "so"),
    [(0, 0, 60, True), (50, 10, 60, True), (51, 10, 60, False), (999, 10, 0, True)],
)
def test_a_visit_begins_when_one_as_long_as_the_longest_would_end_in_time(
    elapsed_s: float, longest_s: float, budget_s: float, so: bool
) -> None:
    assert has_time(elapsed_s, longest_s, budget_s) is so


@pytest.mark.parametrize("size", [FULL, QUICK, TINY])
def test_a_run_is_below_a_gigabyte_however_many_clients_share_it(size: Size) -> None:
    for clients in (1, 3, 10):
        for record_bytes in (100, 1024):
            assert 0 < size.records(record_bytes, clients) * record_bytes * clients < 1e9
