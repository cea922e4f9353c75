"""Penstock's Spark source beside Spark's Kafka connector: the same session, the same minute, the same machine.

    make bench-spark                                       all rows, 5 rounds after one that is dropped
    make bench-spark BENCH="--quick --json"                small topics, 2 rounds; one JSON document on stdout
    make bench-spark BENCH="--only count"                  the jobs whose name has that in it; memory is one
    make bench-spark BENCH="--json FILE --minutes 30"      as far as that goes; the same command goes on with the rest
    make bench-spark BENCH="--json FILE --profile"         and what the rows that miss their goal spend their time on

Kafka 4.3.1 and a Penstock of one node and one gateway stand beside Spark on the same cores, with the same JSON records
in two partitions each. Every round runs every system once, one after another; medians are told, and their ratios. CPU
is that of Spark's JVM and its Python workers. Memory is that of a session of its own for the connector and for
Penstock, with 50 reads each: the most that its JVM had resident, and the largest Python worker after each read. No
number is a promise: read the ratios of one run.

With --json: `{"rows": [{"job", "size", "mode", "kafka", "penstock", "ratio", "cpu_ratio", ...}], "worker_mb": [...]}`,
and the runs that they follow from. `kafka` and `penstock` are records a second, in the job `micro-batch p50` ms, in
`JVM peak RSS` MB.
`tools/results.py spark FILE` puts the document's tables into docs/results/spark.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.connector.documents import Document, Run, load, save
from bench.connector.goals import GOALS, KIB, SMALL
from bench.connector.jobs import TASKS, Bench, Contender, Task
from bench.connector.memory import measured
from bench.connector.plan import memory_left, sizes_needed, tasks_left
from bench.connector.profiles import profiled
from bench.connector.sessions import session
from bench.connector.systems import Addresses, Sizes, chosen_sizes, systems, topic_of
from bench.connector.tables import HEAD, cells, profile_lines, workers
from bench.peer import KAFKA_VERSION
from bench.runner import machine
from bench.runner.page_cache import PageCache
from bench.runner.plan import has_time
from rich.console import Console
from rich.table import Table

from support.spark_connector import CONNECTOR_VERSION

FULL: Final[Sizes] = {KIB: (1024, 1_000_000), SMALL: (100, 4_000_000)}
"""By name: bytes of a value, and records."""
QUICK_DIVISOR: Final = 10
QUICK_ROUNDS: Final = 2
READS: Final = 50
QUICK_READS: Final = 10
STDOUT: Final = "-"

Say = Callable[[str], None]


class Session:
    """As much of a bench as there is time for."""

    def __init__(
        self, document: Document, keep: Callable[[], None], say: Say, minutes: float, cache: PageCache
    ) -> None:
        self.document = document
        self._cache = cache
        self._keep = keep
        self._say = say
        self._budget_s = 60 * minutes
        self._begun_s = time.monotonic()
        self._longest_s = 0.0
        self.left_out = 0

    def in_time(self, work: Callable[[], None]) -> bool:
        """Whether there was time for one more step as long as the longest so far."""
        begun_s = time.monotonic()
        if not has_time(begun_s - self._begun_s, self._longest_s, self._budget_s):
            self.left_out += 1
            return False
        work()
        self._longest_s = max(self._longest_s, time.monotonic() - begun_s)
        return True

    def rounds(self, bench: Bench, task: Task, left: Sequence[int]) -> None:
        """Interleaved; one is dropped ahead of them, in each session anew."""
        self._say(task.name)
        for number in (0, *left):
            if not self.in_time(lambda number=number: self._round(bench, task, number)):  # type: ignore[misc]
                self.left_out += len(left) - (list(left).index(number) + 1 if number else 0)
                return

    def _round(self, bench: Bench, task: Task, number: int) -> None:
        count = bench.sizes[task.size][1]
        runs = []
        for one in task.contenders:
            machine.settle(self._cache)
            took = task.run(bench, one)
            runs += [Run(job, task.size, one.mode, number, count, took.value, took.cpu_s) for job in one.jobs]
        told = ", ".join(
            f"{run.job if 'write' in run.job else ''} {run.mode} {run.value:.2f}".strip() for run in runs
        )
        self._say(f"  round {number}{'' if number else ' (dropped)'}: {told}")
        if number:
            self.document.runs += runs
            self._keep()

    def memory(self, at: Addresses, sizes: Sizes, system: str, reads: int) -> None:
        self._say(f"memory: {system}, {reads} reads")
        address = at.kafka if system == "kafka" else at.gateway
        found = measured(system, address, topic_of(KIB), sizes[KIB][1], reads)
        self.document.memory = [one for one in self.document.memory if one.system != system] + [found]
        self._keep()

    def profile(self, bench: Bench, task: Task, one: Contender) -> None:
        job = one.jobs[0]
        self._say(f"profile: {job}, {task.size}, {one.mode}")
        found = profiled(bench.spark, job, task.size, one.mode, lambda: task.run(bench, one))
        held = [
            each
            for each in self.document.profiles
            if (each.job, each.size, each.mode) != (job, task.size, one.mode)
        ]
        self.document.profiles = [*held, found]
        self._keep()


def measure(options: argparse.Namespace, document: Document, keep: Callable[[], None], say: Say) -> int:
    """What is left of it. Returns how many steps there was no time for."""
    sizes = {
        name: (size, count // (QUICK_DIVISOR if options.quick else 1)) for name, (size, count) in FULL.items()
    }
    left = tasks_left(options.only, options.rounds, document)
    memory = memory_left(options.only, options.reads, document)
    profiles = _to_profile(document, options.only) if options.profile else []
    if not left and not memory and not profiles:
        return 0
    needed = sizes_needed([task for task, _ in left] + [task for task, _ in profiles], memory)
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-", dir=options.scratch) as folder,
        PageCache(Path(folder)) as cache,
        systems(Path(folder), chosen_sizes(sizes, needed)) as at,
    ):
        run = Session(document, keep, say, options.minutes, cache)
        # Ahead of this process's own JVM, which would take memory beside them.
        for system in memory:
            run.in_time(lambda system=system: run.memory(at, sizes, system, options.reads))  # type: ignore[misc]
        if left or options.profile:
            with session() as spark:
                bench = Bench(spark, at, sizes)
                for task, rounds in left:
                    run.rounds(bench, task, rounds)
                for task, one in _to_profile(document, options.only) if options.profile else []:
                    run.in_time(lambda task=task, one=one: run.profile(bench, task, one))  # type: ignore[misc]
        return run.left_out


def _to_profile(document: Document, only: str) -> list[tuple[Task, Contender]]:
    """Rows that miss their goal, and have no profile yet."""
    missed = {row.key for row in document.rows() if row.missed and row.key in GOALS}
    done = {(one.job, one.size, one.mode) for one in document.profiles}
    return [
        (task, one)
        for task in TASKS
        for one in task.contenders
        if only in task.name and (one.jobs[0], task.size, one.mode) in missed - done and len(one.jobs) == 1
    ]


def _document(options: argparse.Namespace) -> Document:
    """A new one, or that of the file as far as it is. Raises ValueError."""
    versions = machine.versions(KAFKA_VERSION) | {
        "PySpark": version("pyspark"),
        "Spark's Kafka connector": CONNECTOR_VERSION,
    }
    new = Document(
        machine.commit(), datetime.date.today().isoformat(),  # noqa: DTZ011 - the reader's own day
        machine.facts(), versions, "quick" if options.quick else "full",
    )  # fmt: skip
    if options.json in (None, STDOUT) or not Path(options.json).exists():
        return new
    held = load(Path(options.json))
    if why := held.fits(new):
        raise ValueError(f"{options.json} is of another occasion: {why}; give --json another name")
    return held


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        document = _document(options)
    except ValueError as error:
        say(f"bench.spark: {error}")
        return 1

    def keep() -> None:
        if options.json not in (None, STDOUT):
            save(document, Path(options.json))

    left_out = measure(options, document, keep, say)
    if left_out:
        say(f"{left_out} steps were left out: no time for them; the same command goes on with them")
    if options.json == STDOUT:
        print(json.dumps(document.to_json()))
    else:
        show(document)
    return 0


def show(document: Document) -> None:
    """As a table."""
    table = Table(*HEAD, title=f"{document.commit}, {document.date}, {document.size}")
    for row in document.rows():
        table.add_row(*cells(row))
    Console(width=170).print(table)
    if document.worker_mb:
        print(workers(document.worker_mb))
    for profile in document.profiles:
        print("\n".join(profile_lines(profile)))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=0, help="after one that is dropped; default 5, 2 with --quick"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the records, 2 rounds, 10 reads for memory"
    )
    parser.add_argument("--reads", type=int, default=0, help="for memory; default 50, 10 with --quick")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="jobs whose name has these in it; memory is one"
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="one document on stdout; with FILE it is kept there after each round, and the next call goes on",
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="begin nothing that would end later")
    parser.add_argument(
        "--profile", action="store_true", help="rows that miss their goal once more, under Spark's profiler"
    )
    parser.add_argument(
        "--scratch", type=Path, help="where the systems have their data (the temporary folder)"
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else 5)
    options.reads = options.reads or (QUICK_READS if options.quick else READS)
    return options


if __name__ == "__main__":
    sys.exit(main())
