"""Penstock beside Apache Kafka: one runner for all rows.

    make bench                                          every row, five pairs: hours
    make bench BENCH=--quick                            the rows that say most, ten minutes
    make bench ONLY=produce ROUNDS=5                    rows of which the name matches
    make bench ONLY=latency SECURE=1                    TLS, SCRAM-SHA-512 and ACLs on both
    make bench BENCH=--list                             the rows
    make bench BENCH="--systems penstock"               without Java

Each visit starts one system on free ports, never two at once; the client is librdkafka driven from C. A run
that others disturbed is void and tried once more (see bench/runner/noise.py). Samples are in bench/results/
after each run: the same command goes on where it was interrupted. Pictures lie beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import errno
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from bench.peer import KAFKA_VERSION, fetch_jars
from bench.runner import elsewhere, java, machine, store
from bench.runner.charts import charts
from bench.runner.documents import Document, Sample, summaries
from bench.runner.driver import build
from bench.runner.machine import Missing
from bench.runner.page_cache import PageCache
from bench.runner.pictures import draw
from bench.runner.plan import FULL, PAIRS_MIN, QUICK, TINY, Size, has_time, visits
from bench.runner.rows import KAFKA_SYSTEM, PENSTOCK_SYSTEM, Kind, Row, choose
from bench.runner.session import Keep, make_visit
from bench.runner.suites import BENCH, Suite
from bench.runner.systems import SystemFailed
from bench.runner.tables import GOALS_HEAD, HEAD, goal_line, lines, origin
from rich.console import Console
from rich.table import Table

from penstock.errors import CommandError

SIZES: Final = {"full": FULL, "quick": QUICK, "tiny": TINY}
QUICK_ROUNDS: Final = 2
QUICK_MINUTES: Final = 9.0
"""The last visit and the pictures come after it."""


def main(arguments: Sequence[str] | None = None, suite: Suite = BENCH, text: str = __doc__) -> int:
    """0 when all was measured, 1 with one line when something is missing, 130 when it was interrupted. `text` is what
    --help says of the suite."""
    options = _options(arguments, suite, text)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        rows = _rows(options)
        if options.list:
            _list(rows, suite)
            return 0
        return _bench(options, rows)
    except (Missing, SystemFailed, CommandError, LookupError, ValueError) as error:
        return _say_last(str(error))
    except subprocess.CalledProcessError as error:
        return _say_last(f"{error.cmd[0]} ended with {error.returncode}: see what it says above")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return _say_last("the disk is full: make room, or give --scratch a folder on another disk")
        return _say_last(str(error))
    except KeyboardInterrupt:
        _say_last("interrupted; the same command goes on with what is left")
        return 130


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _say_last(text: str) -> int:
    print(f"bench: {text}", file=sys.stderr, flush=True)
    return 1


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None, suite: Suite, text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=suite.command, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="rows of which the name matches (ONLY=)")
    parser.add_argument(
        "--rounds", type=int, help=f"pairs ({PAIRS_MIN}, {QUICK_ROUNDS} with --quick) (ROUNDS=)"
    )
    parser.add_argument(
        "--secure", action="store_true", help="TLS, SCRAM-SHA-512 and ACLs on both (SECURE=1)"
    )
    parser.add_argument("--quick", action="store_true", help="few rows, short runs, ten minutes")
    parser.add_argument("--size", choices=SIZES, help="of a run; tiny says only that a row works")
    parser.add_argument("--megabytes", type=int, help="MB of records of a throughput run, below 1000")
    parser.add_argument("--minutes", type=float, help="begin no visit that would end later")
    parser.add_argument("--systems", default=f"{KAFKA_SYSTEM},{PENSTOCK_SYSTEM}", help="one of them or both")
    parser.add_argument("--accept-noise", action="store_true", help="void runs count; the tables say so")
    parser.add_argument(
        "--scratch", type=Path, help="where the systems have their data (the temporary folder)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="the document, instead of bench/results/..."
    )
    parser.add_argument("--list", action="store_true", help="show the rows")
    options = parser.parse_args(arguments)
    options.suite = suite
    options.size = options.size or ("quick" if options.quick else "full")
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else PAIRS_MIN)
    options.systems = options.systems.split(",")
    if unknown := sorted(set(options.systems) - {KAFKA_SYSTEM, PENSTOCK_SYSTEM}):
        parser.error(f"no such system: {unknown[0]}; there are {KAFKA_SYSTEM} and {PENSTOCK_SYSTEM}")
    if options.megabytes is not None and not 1 <= options.megabytes < 1000:
        parser.error(
            f"--megabytes {options.megabytes}: a run is below a gigabyte, or the disk is what is measured"
        )
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least one")
    return options


def _rows(options: argparse.Namespace) -> tuple[Row, ...]:
    suite: Suite = options.suite
    rows = choose(options.only, quick=options.quick, rows=suite.rows, command=suite.command)
    kept = (
        replace(row, contenders=tuple(one for one in row.contenders if one.system in options.systems))
        for row in rows
    )
    return tuple(row for row in kept if row.contenders)


def _list(rows: Sequence[Row], suite: Suite) -> None:
    title = f"rows of {suite.command} (q: --quick too)"
    table = Table("row", "what", "processes", "contenders", "goals", title=title)
    for row in rows:
        goals = "\n".join(f"{goal.contender}: {goal.figure} {goal.text}" for goal in row.goals)
        name = f"{row.name} (q)" if row.quick else row.name
        table.add_row(name, row.title, row.layout.text, ", ".join(one.name for one in row.contenders), goals)
    Console(width=170).print(table)


def _size(options: argparse.Namespace) -> Size:
    size = SIZES[options.size]
    return size if options.megabytes is None else replace(size, megabytes=options.megabytes)


def _document(options: argparse.Namespace) -> tuple[Document, Path]:
    """A new one, or that of this occasion as far as it is."""
    size = options.size if options.megabytes is None else f"{options.size}-{options.megabytes}MB"
    new = Document(
        machine.commit(), datetime.date.today().isoformat(),  # noqa: DTZ011 - the reader's own day
        machine.facts(), machine.versions(KAFKA_VERSION), size, options.secure, options.accept_noise,
        options.suite.name,
    )  # fmt: skip
    file = options.json or store.RESULTS / store.file_name(new)
    if not file.exists():
        return new, file
    held = store.load(file)
    if why := held.fits(new):
        raise ValueError(f"{file} is of another occasion: {why}; move it away, or give --json another name")
    return held, file


def _bench(options: argparse.Namespace, rows: Sequence[Row]) -> int:
    needs_kafka = any(KAFKA_SYSTEM in row.systems for row in rows)
    here = [row for row in rows if row.kind is not Kind.ELSEWHERE]
    by_java = any(row.client == "java" for row in here)
    for row in rows:
        machine.need(kafka=needs_kafka, compiler=bool(here), module=row.module, java_client=by_java)
    program = build() if here else Path()
    client = java.build() if by_java else ()
    if needs_kafka:
        fetch_jars()
    document, file = _document(options)
    budget_s = 60 * (options.minutes or (QUICK_MINUTES if options.quick else 0))

    def keep(sample: Sample) -> None:
        document.samples.append(sample)
        store.save(document, file)

    left_out = 0
    try:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.scratch) as name,
            contextlib.ExitStack() as held,
        ):
            scratch = Path(name)
            # Runs of --tiny write too little to meet memory that is dear.
            cache = held.enter_context(PageCache(scratch)) if here and options.size != "tiny" else None
            begin, longest_s = time.monotonic(), 0.0
            for visit in visits(here, options.rounds, document.done()):
                begun = time.monotonic()
                if not has_time(begun - begin, longest_s, budget_s):
                    left_out += len(visit.steps)
                    continue
                if options.size != "tiny":
                    machine.need_space(scratch)
                make_visit(
                    visit, program, scratch, _size(options), java=client, cache=cache,
                    secure=options.secure, accept_noise=options.accept_noise, keep=keep, say=_say,
                )  # fmt: skip
                longest_s = max(longest_s, time.monotonic() - begun)
            _modules(options, [row for row in rows if row.kind is Kind.ELSEWHERE], document, keep, scratch)
    finally:
        if document.samples:
            _show(document, rows, file)
    if left_out:
        _say(f"{left_out} runs were left out: no time for them; the same command goes on with them")
    return 0


def _modules(
    options: argparse.Namespace, rows: Sequence[Row], document: Document, keep: Keep, scratch: Path
) -> None:
    done = {run.row for run in document.done()}
    for row in rows:
        if row.name in done:
            continue
        _say(f"{row.name}: {row.module}")
        try:
            found = elsewhere.run(
                row, options.rounds, quick=options.size != "full", folder=scratch, systems=options.systems
            )
        except elsewhere.ModuleFailed as error:
            _say(f"{row.name}: failed: {error}")
        else:
            for sample in found:
                keep(sample)


def _show(document: Document, rows: Sequence[Row], file: Path) -> None:
    names = {row.name for row in rows}
    found = [one for one in summaries(document) if one.row.name in names]
    table = Table(*HEAD, title="medians of the runs; ratios within pairs")
    goals = Table(*GOALS_HEAD, title="goals")
    for one in found:
        for cells in lines(one):
            table.add_row(*cells)
        for judged in one.goals:
            goals.add_row(*goal_line(one.row, judged))
    console = Console(width=150)
    console.print(table)
    if goals.row_count:
        console.print(goals)
    console.print(origin(document))
    made = draw(charts(document), file.parent, file.stem)
    kept = ", ".join(str(path) for path in (file, *made))
    print(f"kept: {kept}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
