"""What runs beside what: visits to one system each, in an order in which neither is always first. Pure.

A round of a group visits every system once, started anew, so that two systems never run at the same time and a
pair is as close in time as their starts allow. Every second round turns the order of the systems and of the
contenders around: what drifts (a disk that fills, a machine that warms) falls on all of them alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from bench.runner.rows import Contender, Kind, Layout, Row

T = TypeVar("T")

TRIES: Final = 2
"""How often a run that was void is tried in one visit."""
PAIRS_MIN: Final = 5
"""Fewer pairs than these give no interval worth its name, and tables say so."""


class Run(NamedTuple):
    """One figure to be: a contender's, in one round."""

    row: str
    contender: str
    round: int


@dataclass(frozen=True)
class Step:
    """One contender of one row."""

    row: Row
    contender: Contender


@dataclass(frozen=True)
class Visit:
    """One start of one system, and what is measured while it runs."""

    round: int
    system: str
    layout: Layout
    steps: tuple[Step, ...]

    def runs(self) -> tuple[Run, ...]:
        """What this visit is for."""
        return tuple(Run(step.row.name, step.contender.name, self.round) for step in self.steps)


def visits(rows: Sequence[Row], rounds: int, done: Collection[Run] = ()) -> Iterator[Visit]:
    """In their order; what is `done` is left out, and a visit that has nothing left too.

    All rows have a first round before one has a second: a bench that is cut short has something of everything, and the
    pairs of a row lie far enough apart that one bad quarter of an hour does not have them all.
    """
    groups = _groups(rows)
    for number in range(rounds):
        for group in groups:
            systems = list(dict.fromkeys(system for row in group for system in row.systems))
            for system in _turned(systems, number):
                steps = tuple(
                    step for step in _steps(group, system, number)
                    if Run(step.row.name, step.contender.name, number) not in done
                )  # fmt: skip
                if steps:
                    yield Visit(number, system, group[0].layout, steps)


def has_time(elapsed_s: float, longest_s: float, budget_s: float) -> bool:
    """Whether one more visit, as long as the longest one so far, ends within the budget; 0 is without end."""
    return budget_s <= 0 or elapsed_s + longest_s <= budget_s


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that share a visit: of one group, one layout. Those without a group are alone."""
    found: dict[tuple[str, Layout], list[Row]] = {}
    for row in rows:
        if row.kind is not Kind.ELSEWHERE:
            found.setdefault((row.group or row.name, row.layout), []).append(row)
    return list(found.values())


def _steps(group: Iterable[Row], system: str, number: int) -> Iterator[Step]:
    kinds = list(Kind)
    for row in sorted(group, key=lambda row: kinds.index(row.kind)):
        mine = [contender for contender in row.contenders if contender.system == system]
        for contender in _turned(mine, number):
            yield Step(row, contender)


def _turned(items: Sequence[T], number: int) -> Sequence[T]:
    return items if number % 2 == 0 else list(reversed(items))


@dataclass(frozen=True)
class Size:
    """How much one run is."""

    megabytes: int
    """MB (10^6 bytes) of records of a throughput run; below a gigabyte, so that it is the page cache that is
    written to."""
    latency_s: float
    """Of a latency run, the part that is thrown away included."""
    idle_s: float
    warm_up_megabytes: int

    def records(self, record_bytes: int, clients: int = 1) -> int:
        """Of each client. Small records are many: a quarter of the bytes is as long a run."""
        megabytes = self.megabytes if record_bytes >= 512 else self.megabytes / 4
        return max(1, round(megabytes * 1e6 / record_bytes / clients))


FULL: Final = Size(megabytes=500, latency_s=12.0, idle_s=20.0, warm_up_megabytes=60)
QUICK: Final = Size(megabytes=150, latency_s=5.0, idle_s=8.0, warm_up_megabytes=30)
TINY: Final = Size(megabytes=5, latency_s=1.5, idle_s=1.0, warm_up_megabytes=2)
"""Says that a row works, and nothing about speed."""
