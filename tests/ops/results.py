"""Counts by line, and the table: for people as they read a terminal, for machines as JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ops.lines import Line

COLUMNS: Final = ("line", "what holds", "tests", "passed", "failed", "skipped", "seconds")
_RIGHT: Final = 2
"""From this column on there are numbers."""
_WHAT_WIDTH: Final = 60


@dataclass(frozen=True)
class Outcome:
    """One test, seed, planted bug or scenario: passed, failed or skipped, and why."""

    test: str
    outcome: str
    why: str = ""
    seconds: float = 0.0
    count: int = 1
    """How many it stands for (seeds)."""


@dataclass
class Result:
    """A row of the table."""

    line: Line
    outcomes: list[Outcome] = field(default_factory=list)
    begun: bool = False
    ended: bool = False

    def count(self, outcome: str) -> int:
        return sum(each.count for each in self.outcomes if each.outcome == outcome)

    @property
    def tests(self) -> int:
        return sum(each.count for each in self.outcomes)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.outcomes)

    @property
    def state(self) -> str:
        """`failed` also where nothing was run: a line without a test is shown by nothing."""
        if self.count("failed"):
            return "failed"
        if not self.ended:
            return "cut short" if self.begun else "not run"
        if not self.outcomes:
            return "failed"
        return "passed" if self.count("passed") else "skipped"


def table(results: Sequence[Result]) -> str:
    """The table, then each failure and why something was skipped."""
    rows = [(*COLUMNS, ""), *(_row(result) for result in results), _total(results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS) + 1)]
    lines = [_joined(row, widths) for row in rows]
    rule = "-" * max(map(len, lines))
    lines.insert(1, rule)
    lines.insert(-1, rule)
    return "\n".join(lines + list(_notes(results)))


def _row(result: Result) -> tuple[str, ...]:
    state = "" if result.state == "passed" else result.state
    if not result.begun:
        return (result.line.name, _short(result.line.what), "", "", "", "", "", state)
    counts = (result.tests, *(result.count(outcome) for outcome in ("passed", "failed", "skipped")))
    return (
        result.line.name,
        _short(result.line.what),
        *(f"{count:,}" for count in counts),
        f"{result.seconds:,.0f}",
        state,
    )


def _total(results: Sequence[Result]) -> tuple[str, ...]:
    counts = (
        sum(r.tests for r in results),
        *(sum(r.count(outcome) for r in results) for outcome in ("passed", "failed", "skipped")),
    )
    seconds = sum(r.seconds for r in results)
    return ("all", "", *(f"{count:,}" for count in counts), f"{seconds:,.0f}", "")


def _short(text: str) -> str:
    return textwrap.shorten(text, _WHAT_WIDTH, placeholder=" ...")


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.rjust(width) if _RIGHT <= i < len(COLUMNS) else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _notes(results: Iterable[Result]) -> Iterable[str]:
    for result in results:
        if result.ended and not result.outcomes:
            yield f"{result.line.name}: nothing was run"
        for each in result.outcomes:
            if each.outcome == "failed":
                yield f"{result.line.name}: FAILED {each.test}: {each.why}"
        reasons = Counter(each.why for each in result.outcomes if each.outcome == "skipped")
        for why, count in sorted(reasons.items()):
            yield f"{result.line.name}: skipped {count}: {why}"


def as_json(results: Sequence[Result], *, complete: bool) -> dict[str, Any]:
    """One document."""
    return {
        "complete": complete,
        "ok": complete and is_ok(results),
        "lines": [
            {
                "name": r.line.name,
                "what": r.line.what,
                "state": r.state.replace(" ", "-"),
                "tests": r.tests,
                "passed": r.count("passed"),
                "failed": r.count("failed"),
                "skipped": r.count("skipped"),
                "seconds": round(r.seconds, 1),
                "outcomes": [
                    {"test": o.test, "outcome": o.outcome, "why": o.why or None, "seconds": o.seconds}
                    for o in r.outcomes
                ],
            }
            for r in results
        ],
    }


def is_ok(results: Sequence[Result]) -> bool:
    """Whether all of them were run, and nothing failed."""
    return all(result.state in ("passed", "skipped") for result in results)
