"""What is kept of a bench: one document for an occasion, with every sample, void ones too. Pure.

An occasion is one commit on one day with one set of options. A bench that was interrupted goes on where its
document ends: what has a sample that counts is done. Summaries are not kept: they follow from the samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bench.runner.figures import Ratio, Spread, ratio, spread, verdict
from bench.runner.noise import Noise
from bench.runner.plan import Run
from bench.runner.rows import Goal, Row
from bench.runner.suites import rows_of

FORM: Final = 1


@dataclass(frozen=True)
class Sample:
    """One run that came to its end. Failed runs leave none."""

    row: str
    contender: str
    round: int
    figures: Mapping[str, float]
    noise: Noise | None = None
    void: str = ""
    """Why it does not count, or ""."""

    @property
    def run(self) -> Run:
        return Run(self.row, self.contender, self.round)


@dataclass
class Document:
    """An occasion. `machine`: facts by name; `accepted_noise`: void samples count, and tables say so; `suite`: of
    bench.runner.suites."""

    commit: str
    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    size: str = "full"
    secure: bool = False
    accepted_noise: bool = False
    suite: str = ""
    samples: list[Sample] = field(default_factory=list)

    def counting(self) -> Iterator[Sample]:
        """Samples that count, the last one of each run."""
        last: dict[Run, Sample] = {}
        for sample in self.samples:
            if not sample.void or self.accepted_noise:
                last[sample.run] = sample
        yield from last.values()

    def done(self) -> set[Run]:
        """Runs that need not be done again."""
        return {sample.run for sample in self.counting()}

    def fits(self, other: Document) -> str:
        """Why samples of `other` may not join those of this document, or ""."""
        for name in ("commit", "suite", "size", "secure", "accepted_noise"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"its {name.replace('_', ' ')} is {mine}, and this bench's {theirs}"
        return ""

    def to_json(self) -> dict[str, Any]:
        return {"form": FORM, **asdict(self)}


def from_json(held: Any) -> Document:
    """Raises ValueError, with what is wrong, for something else."""
    if not isinstance(held, dict) or held.get("form") != FORM:
        raise ValueError(f"no document of a bench of form {FORM}")
    try:
        samples = [
            Sample(**{**one, "noise": None if one["noise"] is None else Noise(**one["noise"])})
            for one in held["samples"]
        ]
        rest = {name: value for name, value in held.items() if name not in ("form", "samples")}
        return Document(**rest, samples=samples)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a document of a bench lacks something, or has too much: {error}") from None


@dataclass(frozen=True)
class Judged:
    """A goal, and what came of it."""

    goal: Goal
    found: Ratio
    verdict: str


@dataclass(frozen=True)
class Summary:
    """A row with all that was measured of it: spreads by (contender, figure), goals, ratios to the first
    contender."""

    row: Row
    spreads: Mapping[tuple[str, str], Spread]
    ratios: Mapping[tuple[str, str], Ratio]
    goals: tuple[Judged, ...]
    void: int
    """How many runs were thrown away."""

    @property
    def contenders(self) -> tuple[str, ...]:
        """Those that were measured, in the row's order."""
        measured = {name for name, _ in self.spreads}
        return tuple(one.name for one in self.row.contenders if one.name in measured)


def summaries(document: Document, rows: Sequence[Row] = ()) -> list[Summary]:
    """Of each row that has a sample that counts, in the order of `rows`, or of the document's suite."""
    rows = rows or rows_of(document.suite)
    counting = list(document.counting())
    return [
        _summary(row, [one for one in counting if one.row == row.name], document)
        for row in rows
        if any(one.row == row.name for one in counting)
    ]


def _summary(row: Row, samples: Sequence[Sample], document: Document) -> Summary:
    def values(contender: str, figure: str) -> dict[int, float]:
        return {
            one.round: one.figures[figure]
            for one in samples
            if one.contender == contender and figure in one.figures
        }

    names = [one.name for one in row.contenders if any(s.contender == one.name for s in samples)]
    figures = list(dict.fromkeys(figure for one in samples for figure in one.figures))
    spreads = {
        (name, figure): spread(list(found.values()))
        for name in names
        for figure in figures
        if (found := values(name, figure))
    }
    base = row.contenders[0].name
    ratios = {}
    for name in names:
        for figure in row.figures:
            if name != base and (pairs := _pairs(values(name, figure), values(base, figure))):
                ratios[name, figure] = ratio(pairs)
    goals = []
    for goal in row.goals:
        mine = values(goal.contender, goal.figure)
        theirs = values(goal.against, goal.figure) if goal.against else dict.fromkeys(mine, 1.0)
        if pairs := _pairs(mine, theirs):
            judged = ratio(pairs)
            goals.append(Judged(goal, judged, verdict(judged, goal.bound, at_most=goal.at_most)))
    void = sum(bool(one.void) for one in document.samples if one.row == row.name)
    return Summary(row, spreads, ratios, tuple(goals), void)


def _pairs(mine: Mapping[int, float], theirs: Mapping[int, float]) -> list[tuple[float, float]]:
    return [(mine[number], theirs[number]) for number in sorted(mine) if theirs.get(number, 0) > 0]
