"""What is kept of a bench beside Spark's connector: a document for an occasion, with every run of every round.

An occasion is one commit with one size. A bench that was interrupted, or had no more time, goes on where its document
ends: what has a run in a round is done. Rows are not kept but follow from the runs; they stand in the document for who
reads it.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.connector.goals import BOTH, GOALS, JVM, KIB, MICRO_BATCH, Goal, Key

FORM: Final = 1
CONNECTOR: Final = "kafka"


@dataclass(frozen=True)
class Run:
    """One run of one system in one round. `value`: s, or ms of a micro-batch."""

    job: str
    size: str
    mode: str
    """`kafka`, or a mode of Penstock's."""
    round: int
    records: int
    value: float
    cpu_s: float


@dataclass(frozen=True)
class Memory:
    """A session of its own, after its last read."""

    system: str
    """`kafka` or `penstock`."""
    jvm_peak_mb: float
    worker_mb: tuple[float, ...]
    """The largest Python worker after each read; 0 where there is none."""


@dataclass(frozen=True)
class Spent:
    """A function of the Python side. Seconds are of a run under the profiler, of all tasks together."""

    function: str
    calls: int
    own_s: float
    total_s: float


@dataclass(frozen=True)
class Profile:
    """What the Python side of a row's run spent its time on: the most of it first."""

    job: str
    size: str
    mode: str
    seconds: float
    """Of all tasks under the profiler."""
    top: tuple[Spent, ...]


@dataclass
class Row:
    """One line of the table. `kafka` and `penstock`: records a second, ms of a micro-batch, MB of a JVM."""

    job: str
    size: str
    mode: str
    kafka: float
    penstock: float
    ratio: float
    cpu_ratio: float
    kafka_cpu_s: float
    """CPU seconds of Spark's JVM and its workers, a million records; 0 where it was not looked at."""
    penstock_cpu_s: float
    rounds: int
    goal: str
    missed: str
    """What of the goal is not reached, or ""."""

    @property
    def key(self) -> Key:
        return self.job, self.size, self.mode


@dataclass
class Document:
    """An occasion."""

    commit: str
    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    size: str = "full"
    runs: list[Run] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)

    def fits(self, other: Document) -> str:
        """Why runs of `other` may not join those of this one, or ""."""
        for name in ("commit", "size"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"its {name} is {mine}, and this bench's {theirs}"
        return ""

    def rounds_done(self, job: str, size: str, modes: tuple[str, ...]) -> set[int]:
        """Rounds in which every one of these modes has its run."""
        found = [
            {run.round for run in self.runs if (run.job, run.size, run.mode) == (job, size, mode)}
            for mode in modes
        ]
        return set.intersection(*found) if found else set()

    def memory_of(self, system: str) -> Memory | None:
        return next((one for one in self.memory if one.system == system), None)

    @property
    def worker_mb(self) -> list[float]:
        """Of Penstock's session."""
        found = self.memory_of("penstock")
        return list(found.worker_mb) if found is not None else []

    def rows(self) -> list[Row]:
        """In the order of the goals, and what has none behind them."""
        measured = dict.fromkeys((run.job, run.size, run.mode) for run in self.runs if run.mode != CONNECTOR)
        found = [self._row(key) for key in _in_order(list(measured))]
        if (jvm := self._jvm()) is not None:
            found.append(jvm)
        return found

    def _row(self, key: Key) -> Row:
        job, size, _ = key
        ours = [run for run in self.runs if (run.job, run.size, run.mode) == key]
        # In pairs: a round that has but one of them is not there.
        rounds = {run.round for run in ours}
        theirs = [
            run
            for run in self.runs
            if (run.job, run.size, run.mode) == (job, size, CONNECTOR) and run.round in rounds
        ]
        rounds &= {run.round for run in theirs}
        ours = [run for run in ours if run.round in rounds]
        value, base = (statistics.median(run.value for run in runs) for runs in (ours, theirs))
        cpu_s, base_cpu_s = (
            statistics.median(run.cpu_s / run.records * 1e6 for run in runs) for runs in (ours, theirs)
        )
        if job == MICRO_BATCH:
            return _judged(key, base, value, value / base, 0.0, 0.0, len(rounds))
        return _judged(
            key, ours[0].records / base, ours[0].records / value, base / value, base_cpu_s, cpu_s, len(rounds)
        )  # fmt: skip

    def _jvm(self) -> Row | None:
        ours, theirs = self.memory_of("penstock"), self.memory_of(CONNECTOR)
        if ours is None or theirs is None:
            return None
        ratio = ours.jvm_peak_mb / theirs.jvm_peak_mb
        return _judged((JVM, KIB, BOTH), theirs.jvm_peak_mb, ours.jvm_peak_mb, ratio, 0.0, 0.0, 1)

    def to_json(self) -> dict[str, Any]:
        return {
            "form": FORM,
            "rows": [asdict(row) for row in self.rows()],
            "worker_mb": self.worker_mb,
            **asdict(self),
        }


def _in_order(keys: list[Key]) -> list[Key]:
    known = list(GOALS)
    return sorted(keys, key=lambda key: known.index(key) if key in known else len(known))


def _judged(
    key: Key, kafka: float, penstock: float, ratio: float, kafka_cpu_s: float, cpu_s: float, rounds: int
) -> Row:
    goal = GOALS.get(key, Goal())
    ratio, cpu_s = round(ratio, 2), round(cpu_s, 2)
    cpu_ratio = round(cpu_s / kafka_cpu_s, 2) if kafka_cpu_s else 0.0
    return Row(
        *key, round(kafka, 1), round(penstock, 1), ratio, cpu_ratio, round(kafka_cpu_s, 2), cpu_s, rounds,
        goal.text, goal.missed(ratio, cpu_s),
    )  # fmt: skip


def from_json(held: Any) -> Document:
    """Raises ValueError, with what is wrong, for something else."""
    if not isinstance(held, dict) or held.get("form") != FORM:
        raise ValueError(f"no document of a bench beside Spark's connector, of form {FORM}")
    try:
        return Document(
            commit=held["commit"],
            date=held["date"],
            machine=held["machine"],
            versions=held["versions"],
            size=held["size"],
            runs=[Run(**one) for one in held["runs"]],
            memory=[Memory(**{**one, "worker_mb": tuple(one["worker_mb"])}) for one in held["memory"]],
            profiles=[
                Profile(**{**one, "top": tuple(Spent(**each) for each in one["top"])})
                for one in held["profiles"]
            ],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a document of a bench lacks something, or has too much: {error}") from None


def load(file: Path) -> Document:
    """Raises ValueError, with the file's name."""
    try:
        return from_json(json.loads(file.read_text()))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def save(document: Document, file: Path) -> None:
    """Whole, or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(document.to_json(), indent=1) + "\n")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
