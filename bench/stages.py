"""What a record's way costs, stage by stage: CPU by process and kind of thread, how often each slept, bytes moved.

    make bench-stages
    make bench-stages STAGES="--megabytes 100 --ways gateway --durabilities fsync"
    make bench-stages STAGES="--record-bytes 100 --json stages.json"
    make bench-stages STAGES="--rates 100 1000 --only-rates"

A cluster of 3+3+1 processes for each run, one partition of RF 3, acks=all, librdkafka driven from C; what was written
is read from the start, and then records are sent one by one at fixed rates. Figures are per gigabyte, or per megabyte,
of records, and per record at a rate. A thread that sleeps and is woken is a change of thread, and for a loop a turn
that had to wait; a loop that always has something to do never sleeps. At a rate a sleep is one hop of a record's way,
or one of the cluster's own beats. Bytes over loopback are those of the whole machine: nothing else should use it.
Needs Linux, gcc.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from bench.runner.driver import LATENCY, THROUGHPUT, ClientFailed, Driver, Told, build
from bench.runner.machine import Missing, commit, need, need_space, settle
from bench.runner.page_cache import PageCache
from bench.runner.rows import Layout
from bench.runner.systems import Running, SystemFailed, penstock
from rich.console import Console
from rich.table import Table

TIMEOUT_S: Final = 240
WARM_UP_MEGABYTES: Final = 30
PACED_S: Final = 10.0
RATES: Final = (100, 1_000)
WAYS: Final = ("direct", "gateway")
DURABILITIES: Final = ("replicated", "fsync")
_CLOCK_TICK_S: Final = 0.01
"""Of utime and stime; Linux has no other on the machines that Python runs on."""
_NS: Final = 1e9


@dataclass(frozen=True)
class Thread:
    """One thread, at one moment."""

    kind: str
    cpu_s: float
    system_s: float
    sleeps: int


@dataclass(frozen=True)
class Snapshot:
    """Threads by (stage, pid, tid), bytes to disk by stage, bytes over loopback."""

    threads: Mapping[tuple[str, int, int], Thread]
    disk_bytes: Mapping[str, int]
    loopback_bytes: int


@dataclass(frozen=True)
class Spent:
    """What threads of one kind at one stage took, all of them together."""

    stage: str
    kind: str
    cpu_s: float
    system_s: float
    sleeps: int


@dataclass(frozen=True)
class Cost:
    """What threads of one kind at one stage took, all of them together, over the records' bytes."""

    stage: str
    kind: str
    cpu_s_per_gb: float
    system_s_per_gb: float
    sleeps_per_mb: float


@dataclass(frozen=True)
class Run:
    """One load."""

    what: str
    way: str
    durability: str
    mb_per_s: float
    client_cpu_s_per_gb: float
    loopback_ratio: float
    """Bytes over loopback, of anybody, by those of records."""
    disk_ratio: Mapping[str, float]
    """Bytes handed to the disk by a stage, by those of records."""
    costs: Sequence[Cost]
    record_bytes: int
    rate_per_s: int = 0
    """At which records were sent one by one; 0: as many as went."""
    ack_ms: Sequence[float] = ()
    """50, 99, 99.9 and 100 %, at a rate."""


def kind_of(name: str, *, is_main: bool) -> str:
    """What a thread is for, by the name that the kernel has of it."""
    if is_main:
        return "loop"
    if name.startswith(("event_engine", "grpc", "resolver", "timer_")):
        return "gRPC"
    return "others"


def stage_of(command: Sequence[str], parts: Mapping[str, str]) -> str:
    """A process's part, by the folder of its settings (`node-2`); `parts` says what nodes are that do not follow."""
    folder = next((Path(word).parent.name for word in command if word.endswith("settings.toml")), "")
    if folder.startswith("node-"):
        return parts.get(folder, "followers")
    return folder.rstrip("0123456789").rstrip("-") + ("s" if folder.startswith("controller") else "")


def spent(before: Snapshot, after: Snapshot) -> list[Spent]:
    """By stage and kind of thread, in the order of the stages' CPU; threads that came meanwhile count whole."""
    sums: dict[tuple[str, str], Spent] = {}
    for (stage, pid, tid), thread in after.threads.items():
        old = before.threads.get((stage, pid, tid), Thread(thread.kind, 0.0, 0.0, 0))
        found = sums.get((stage, thread.kind), Spent(stage, thread.kind, 0.0, 0.0, 0))
        sums[stage, thread.kind] = Spent(
            stage,
            thread.kind,
            found.cpu_s + thread.cpu_s - old.cpu_s,
            found.system_s + thread.system_s - old.system_s,
            found.sleeps + thread.sleeps - old.sleeps,
        )
    whole: dict[str, float] = {}
    for one in sums.values():
        whole[one.stage] = whole.get(one.stage, 0.0) + one.cpu_s
    return sorted(sums.values(), key=lambda one: (-whole[one.stage], one.stage, -one.cpu_s))


def costs(before: Snapshot, after: Snapshot, size_bytes: int) -> list[Cost]:
    """What was spent over so many bytes of records."""
    gigabytes, megabytes = size_bytes / 1e9, size_bytes / 1e6
    return [
        Cost(one.stage, one.kind, one.cpu_s / gigabytes, one.system_s / gigabytes, one.sleeps / megabytes)
        for one in spent(before, after)
    ]


def snapshot(running: Running, parts: Mapping[str, str]) -> Snapshot:
    """Now. `parts`: as `stage_of` wants it."""
    threads: dict[tuple[str, int, int], Thread] = {}
    disk: dict[str, int] = {}
    for _, process in running.processes():
        stage, pid = stage_of(process.cmdline(), parts), process.pid
        disk[stage] = disk.get(stage, 0) + process.io_counters().write_bytes
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                thread = _thread(task, is_main=int(task.name) == pid)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            threads[stage, pid, int(task.name)] = thread
    return Snapshot(threads, disk, psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


def _thread(task: Path, *, is_main: bool) -> Thread:
    on_cpu_ns = int((task / "schedstat").read_text().split()[0])
    stat = (task / "stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    name = (task / "comm").read_text().strip()
    return Thread(
        kind_of(name, is_main=is_main),
        on_cpu_ns / _NS,
        int(stat[12]) * _CLOCK_TICK_S,
        int(status["voluntary_ctxt_switches"]),
    )


class _Profile:
    """One cluster, written to and read from."""

    def __init__(
        self, running: Running, driver: Driver, cache: PageCache, way: str, durability: str, record_bytes: int
    ) -> None:
        self._running = running
        self._driver = driver
        self._cache = cache
        self._way = way
        self._durability = durability
        self._record_bytes = record_bytes
        self._parts: dict[str, str] = {}

    def runs(self, megabytes: float, rates: Sequence[int]) -> Iterator[Run]:
        """Of 0 megabytes those at a rate alone."""
        self._running.create_topic(
            "stages", 1, 3, {"min.insync.replicas": "2", "penstock.durability": self._durability}
        )
        metadata = self._running.admin().list_topics("stages", timeout=60)
        self._parts = {f"node-{metadata.topics['stages'].partitions[0].leader}": "leader"}
        for what in ("produce", "consume") if megabytes else ():
            self._load(what, WARM_UP_MEGABYTES)
            yield self._run(what, 0, partial(self._load, what, megabytes))
        for rate_per_s in rates:
            self._paced(rate_per_s, PACED_S / 2)
            yield self._run("produce", rate_per_s, partial(self._paced, rate_per_s, PACED_S))

    def _load(self, what: str, megabytes: float) -> Told:
        return self._driver.run(
            what, self._running.bootstraps[self._way],
            {**THROUGHPUT, **({"producer:acks": "all"} if what == "produce" else {})},
            topic="stages", partitions=1, records=max(1, round(megabytes * 1e6 / self._record_bytes)),
            record_bytes=self._record_bytes, timeout_s=TIMEOUT_S,
        )  # fmt: skip

    def _paced(self, rate_per_s: int, seconds: float) -> Told:
        return self._driver.run(
            "latency", self._running.bootstraps[self._way], {**LATENCY, "producer:acks": "all"},
            topic="stages", partitions=1, records=max(20, round(rate_per_s * seconds)), skip=0,
            record_bytes=self._record_bytes, rate_per_s=rate_per_s, with_reader=0, timeout_s=TIMEOUT_S,
        )  # fmt: skip

    def _run(self, what: str, rate_per_s: int, load: Callable[[], Told]) -> Run:
        settle(self._cache)
        before = snapshot(self._running, self._parts)
        told = load()
        after = snapshot(self._running, self._parts)
        size_bytes = told.size_bytes
        written = {
            stage: after.disk_bytes[stage] - before.disk_bytes.get(stage, 0) for stage in after.disk_bytes
        }
        return Run(
            what,
            self._way,
            self._durability,
            size_bytes / 1e6 / told.elapsed_s,
            told.cpu_s / (size_bytes / 1e9),
            (after.loopback_bytes - before.loopback_bytes) / size_bytes,
            {stage: size / size_bytes for stage, size in written.items() if size},
            costs(before, after, size_bytes),
            self._record_bytes,
            rate_per_s,
            told.ack_ms,
        )


def show(run: Run) -> Table:
    """For a terminal."""
    return _show_rate(run) if run.rate_per_s else _show_load(run)


def _show_rate(run: Run) -> Table:
    # A figure over a gigabyte times this is one over a record, in millionths.
    record = run.record_bytes / 1e3
    table = Table(
        "stage", "threads", "CPU us/record", "of it system", "sleeps/record",
        title=f"{run.what}, {run.way}, {run.durability}: {run.rate_per_s} records/s",
        caption=f"ack p50 {run.ack_ms[0]:.2f} ms, p99 {run.ack_ms[1]:.2f} ms; all stages "
        f"{record * sum(one.cpu_s_per_gb for one in run.costs):.0f} us, client "
        f"{record * run.client_cpu_s_per_gb:.0f} us; bytes by those of records: loopback {run.loopback_ratio:.2f}",
    )  # fmt: skip
    for one in run.costs:
        if one.cpu_s_per_gb * record >= 1:
            table.add_row(
                one.stage,
                one.kind,
                f"{one.cpu_s_per_gb * record:.0f}",
                f"{one.system_s_per_gb * record:.0f}",
                f"{one.sleeps_per_mb * record / 1e3:.1f}",
            )
    return table


def _show_load(run: Run) -> Table:
    disk = ", ".join(f"{stage} {ratio:.2f}" for stage, ratio in run.disk_ratio.items()) or "nobody"
    table = Table(
        "stage", "threads", "CPU s/GB", "of it system", "sleeps/MB",
        title=f"{run.what}, {run.way}, {run.durability}: {run.mb_per_s:.0f} MB/s",
        caption=f"client {run.client_cpu_s_per_gb:.2f} s/GB; bytes by those of records: loopback "
        f"{run.loopback_ratio:.2f}, disk {disk}",
    )  # fmt: skip
    for one in run.costs:
        if one.cpu_s_per_gb >= 0.005:
            table.add_row(
                one.stage,
                one.kind,
                f"{one.cpu_s_per_gb:.2f}",
                f"{one.system_s_per_gb:.2f}",
                f"{one.sleeps_per_mb:.1f}",
            )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all runs came to their end."""
    parser = argparse.ArgumentParser(
        prog="make bench-stages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=500, help="of records in each load (500)")
    parser.add_argument("--record-bytes", type=int, default=1024, help="of each record (1024)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--durabilities", nargs="+", choices=DURABILITIES, default=list(DURABILITIES))
    parser.add_argument(
        "--rates", nargs="*", type=int, default=list(RATES), metavar="N",
        help="records a second that are sent one by one (100 and 1000; none: no such runs)",
    )  # fmt: skip
    parser.add_argument("--only-rates", action="store_true", help="no loads as fast as they go")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    options = parser.parse_args(arguments)
    if options.megabytes <= 0 or not 1 <= options.record_bytes <= 1_000_000:
        parser.error("--megabytes has to be above 0, and --record-bytes from 1 to 1000000")
    if any(not 1 <= rate <= 100_000 for rate in options.rates):
        parser.error("--rates have to be from 1 to 100000")
    if options.rates and options.record_bytes < 8:
        parser.error("--record-bytes of at least 8 for --rates: a record has its time in it")
    made: list[Run] = []
    console = Console(width=110)
    try:
        need(kafka=False, compiler=True)
        program = build()
        with (
            tempfile.TemporaryDirectory(prefix="penstock-stages-") as name,
            PageCache(Path(name)) as cache,
        ):
            need_space(Path(name))
            for durability in options.durabilities:
                for way in options.ways:
                    folder = Path(name) / f"{way}-{durability}"
                    folder.mkdir()
                    with penstock(folder, Layout(), False) as running:
                        driver = Driver(program, folder, running.client)
                        profile = _Profile(running, driver, cache, way, durability, options.record_bytes)
                        megabytes = 0 if options.only_rates else options.megabytes
                        for run in profile.runs(megabytes, options.rates):
                            made.append(run)
                            console.print(show(run))
    except (Missing, SystemFailed, ClientFailed) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if options.json and made:
            held = {
                "commit": commit(),
                "record_bytes": options.record_bytes,
                "runs": [asdict(one) for one in made],
            }
            options.json.write_text(json.dumps(held, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
