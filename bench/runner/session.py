"""A visit: one system started, measured step by step, ended; each sample is handed on as soon as it is there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.runner.documents import Sample
from bench.runner.driver import ClientFailed, Driver
from bench.runner.machine import Watch, settle
from bench.runner.measures import FAILURES, Bench
from bench.runner.measures import MEASURES as PLAIN_MEASURES
from bench.runner.page_cache import PageCache
from bench.runner.plan import TRIES, Size, Step, Visit
from bench.runner.rows import Kind
from bench.runner.systems import SYSTEMS
from bench.runner.transactions import TRANSACTION_MEASURES

Keep = Callable[[Sample], None]
Say = Callable[[str], None]
MEASURES: Final = {**PLAIN_MEASURES, **TRANSACTION_MEASURES}
_ONCE: Final = (Kind.START, Kind.PARTITIONS, Kind.FAULT)
"""What happens once in a visit: a start, many partitions that are made, a system that is hurt."""


def make_visit(
    visit: Visit,
    program: Path,
    scratch: Path,
    size: Size,
    *,
    java: Sequence[str] = (),
    cache: PageCache | None = None,
    secure: bool,
    accept_noise: bool,
    keep: Keep,
    say: Say,
) -> None:
    """All steps of it; `java` starts the Java client. A run that fails is said and left out; nothing of the system is
    left, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=f"{visit.system}-{visit.round}-", dir=scratch))
    try:
        settle(cache)
        with SYSTEMS[visit.system](folder, visit.layout, secure) as running:
            bench = Bench(running, Driver(program, folder, running.client, java), size, Watch(), cache)
            for step in visit.steps:
                _take(bench, step, visit.round, keep=keep, say=say, accept_noise=accept_noise)
    except FAILURES as error:
        say(f"round {visit.round + 1}: {visit.system} gave up: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _take(bench: Bench, step: Step, number: int, *, keep: Keep, say: Say, accept_noise: bool) -> None:
    name = f"round {number + 1}: {step.row.name}, {step.contender.name}"
    tries = 1 if step.row.kind in _ONCE or accept_noise else TRIES
    for attempt in range(tries):
        bench.watch.noise = None
        try:
            figures = MEASURES[step.row.kind](bench, step)
        except ClientFailed as error:
            say(f"{name}: failed: {error}")
            return
        seen = bench.watch.noise
        void = seen.verdict if seen is not None else ""
        keep(Sample(step.row.name, step.contender.name, number, figures, seen, void))
        first = step.row.figures[0]
        shown = ", ".join(f"{key} {figures[key]:.4g}" for key in step.row.figures if key in figures)
        say(f"{name}: {shown or first}" + (f"; void: {void}" if void else ""))
        if not void:
            return
        if attempt + 1 < tries:
            say(f"{name}: once more")
