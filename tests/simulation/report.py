"""Running many seeds on several cores, and what is told of them."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from simulation.world import Result, run_seed

SEEDS_PER_PROCESS = 16
"""No garbage is collected within a run, nor between these few: the process ends instead."""
SEED_CPU_S_MAX = 240.0
"""A seed takes one or two. Code that never lets the loop go on would take for ever."""
_runs = 0


class SeedNeverEnds(BaseException):
    """Raised in the middle of whatever runs; no `except Exception` stops it."""


def command(seed: int, planted: str = "") -> str:
    """What replays a seed."""
    bug = f" PLANTED={planted}" if planted else ""
    return f"make simulate SEED={seed}{bug}"


def run_one(seed: int) -> Result:
    """One seed in a worker process; never raises."""
    global _runs
    _runs += 1
    started = time.process_time()
    signal.signal(signal.SIGVTALRM, _never_ends)
    signal.setitimer(signal.ITIMER_VIRTUAL, SEED_CPU_S_MAX)
    try:
        result, world = run_seed(seed)
    except (Exception, SeedNeverEnds):
        result = Result(seed, False, 0, 0, 0.0, traceback.format_exc(), "the simulator itself")
    else:
        del world
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if _runs > SEEDS_PER_PROCESS:
        _runs = 0
        gc.collect()
    result.cpu_s = time.process_time() - started
    return result


def _never_ends(_signal: int, _frame: object) -> None:
    raise SeedNeverEnds(f"it took {SEED_CPU_S_MAX:.0f} s of a processor")


def quiet() -> None:
    """Product code logs what it refuses; nobody reads that here."""
    logging.disable(logging.CRITICAL)
    gc.freeze()


def run_many(seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    """Results as they come."""
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, initializer=quiet, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(run_one, seeds, chunksize=1)


class Totals:
    """Sums over seeds."""

    def __init__(self) -> None:
        self.seeds = self.events = 0
        self.simulated_s = self.cpu_s = 0.0
        self.counts: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.failures: list[Result] = []
        self.least_events = 1 << 60
        self._started = time.monotonic()

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.events += result.events
        self.simulated_s += result.simulated_s
        self.cpu_s += result.cpu_s
        self.counts.update(result.counts)
        self.injected.update(result.injected)
        self.errors.update(result.errors)
        if result.ok:
            self.least_events = min(self.least_events, result.events)
        else:
            self.failures.append(result)

    @property
    def wall_s(self) -> float:
        return max(time.monotonic() - self._started, 1e-6)

    def line(self) -> str:
        """Progress, one line."""
        return (
            f"{self.seeds} seeds, {len(self.failures)} failed, {self.events / 1e6:.1f} M events, "
            f"{self.events / self.wall_s:,.0f} events/s, {self.simulated_s / self.wall_s:,.0f} x time"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "failed": [asdict(r) for r in self.failures],
            "events": self.events,
            "least_events": self.least_events,
            "events_per_s": round(self.events / self.wall_s),
            "events_per_cpu_s": round(self.events / max(self.cpu_s, 1e-9)),
            "simulated_s": round(self.simulated_s),
            "cpu_s": round(self.cpu_s, 1),
            "wall_s": round(self.wall_s, 1),
            "counts": dict(sorted(self.counts.items())),
            "injected": dict(sorted(self.injected.items())),
            "errors": dict(sorted(self.errors.items())),
        }

    def text(self) -> str:
        """The summary for people."""
        lines = [
            self.line(),
            f"simulated {self.simulated_s / 3600:.1f} h in {self.wall_s:.0f} s "
            f"({self.cpu_s / max(self.seeds, 1):.2f} s of CPU a seed)",
            "injected: " + ", ".join(f"{k} {v}" for k, v in self.injected.most_common()),
            "happened: " + ", ".join(f"{k} {v}" for k, v in sorted(self.counts.items())),
            "answers that were errors: " + ", ".join(f"{k} {v}" for k, v in self.errors.most_common()),
        ]
        return "\n".join(lines)


def describe(result: Result) -> str:
    """One seed."""
    counts, injected = result.counts, result.injected
    verdict = "ok" if result.ok else "FAILED"
    return (
        f"seed {result.seed}: {verdict}, {result.events} events in {result.simulated_s:.0f} simulated s,"
        f" digest {result.digest:016x}\n"
        f"  elections {counts.get('raft elections', 0)} of controllers, "
        f"{counts.get('partition elections', 0)} of partitions; truncations {counts.get('truncations', 0)}; "
        f"ISR changes {counts.get('ISR changes', 0)}; acked batches {counts.get('acked batches', 0)}; "
        f"records read {counts.get('records read', 0)}\n"
        f"  injected: {', '.join(f'{k} {v}' for k, v in sorted(injected.items())) or 'nothing'}"
    )


def fail_text(result: Result, planted: str = "") -> str:
    """What a failing seed prints."""
    return f"seed {result.seed}: {result.violation}\n  replay: {command(result.seed, planted)}"


def cores() -> int:
    """How many processes to run."""
    return max(1, len(os.sched_getaffinity(0)))


def write_json(path: str, data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=1)
    if path == "-":
        sys.stdout.write(text + "\n")
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
