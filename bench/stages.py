"""What a record's way costs, stage by stage: CPU by process and kind of thread, how often each slept, bytes moved.

    make bench-stages
    make bench-stages STAGES="--megabytes 100 --ways gateway --durabilities fsync"
    make bench-stages STAGES="--record-bytes 100 --json stages.json"

A cluster of 3+3+1 processes for each run, one partition of RF 3, acks=all, librdkafka driven from C; then what was
written is read from the start. Figures are per gigabyte, or per megabyte, of records. A thread that sleeps and is woken
is a change of thread, and for a loop a turn that had to wait; a loop that always has something to do never sleeps.
Bytes over loopback are those of the whole machine: nothing else should use it. Needs Linux, gcc.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil
from bench.runner.driver import THROUGHPUT, ClientFailed, Driver, build
from bench.runner.machine import Missing, commit, need, need_space, settle
from bench.runner.rows import Layout
from bench.runner.systems import Running, SystemFailed, penstock
from rich.console import Console
from rich.table import Table

TIMEOUT_S: Final = 240
WARM_UP_MEGABYTES: Final = 30
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


def kind_of(name: str, *, is_main: bool) -> str:
    """What a thread is for, by the name that the kernel has of it."""
    if is_main:
        return "loop"
    if name.startswith(("event_engine", "grpc", "resolver", "timer_")):
        return "gRPC"
    return "others"


def stage_of(command: Sequence[str], leader: str) -> str:
    """A process's part, by the folder of its settings (`node-2`); `leader` is that of the partition's leader."""
    folder = next((Path(word).parent.name for word in command if word.endswith("settings.toml")), "")
    if folder.startswith("node-"):
        return "leader" if folder == leader else "followers"
    return folder.rstrip("0123456789").rstrip("-") + ("s" if folder.startswith("controller") else "")


def costs(before: Snapshot, after: Snapshot, size_bytes: int) -> list[Cost]:
    """By stage and kind of thread, in the order of the stages' CPU; threads that came meanwhile count whole."""
    sums: dict[tuple[str, str], list[float]] = {}
    for key, thread in after.threads.items():
        old = before.threads.get(key, Thread(thread.kind, 0.0, 0.0, 0))
        found = sums.setdefault((key[0], thread.kind), [0.0, 0.0, 0.0])
        found[0] += thread.cpu_s - old.cpu_s
        found[1] += thread.system_s - old.system_s
        found[2] += thread.sleeps - old.sleeps
    gigabytes = size_bytes / 1e9
    made = [
        Cost(stage, kind, cpu_s / gigabytes, system_s / gigabytes, sleeps / (size_bytes / 1e6))
        for (stage, kind), (cpu_s, system_s, sleeps) in sums.items()
    ]
    whole: dict[str, float] = {}
    for one in made:
        whole[one.stage] = whole.get(one.stage, 0.0) + one.cpu_s_per_gb
    return sorted(made, key=lambda one: (-whole[one.stage], one.stage, -one.cpu_s_per_gb))


def snapshot(running: Running, leader: str) -> Snapshot:
    """Now."""
    threads: dict[tuple[str, int, int], Thread] = {}
    disk: dict[str, int] = {}
    for _, process in running.processes():
        stage, pid = stage_of(process.cmdline(), leader), process.pid
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
        self, running: Running, driver: Driver, way: str, durability: str, record_bytes: int
    ) -> None:
        self._running = running
        self._driver = driver
        self._way = way
        self._durability = durability
        self._record_bytes = record_bytes
        self._leader = ""

    def runs(self, megabytes: float) -> Iterator[Run]:
        self._running.create_topic(
            "stages", 1, 3, {"min.insync.replicas": "2", "penstock.durability": self._durability}
        )
        metadata = self._running.admin().list_topics("stages", timeout=60)
        self._leader = f"node-{metadata.topics['stages'].partitions[0].leader}"
        self._load("produce", WARM_UP_MEGABYTES)
        yield self._run("produce", megabytes)
        self._load("consume", WARM_UP_MEGABYTES)
        yield self._run("consume", megabytes)

    def _load(self, what: str, megabytes: float) -> tuple[int, float, float]:
        told = self._driver.run(
            what, self._running.bootstraps[self._way],
            {**THROUGHPUT, **({"producer:acks": "all"} if what == "produce" else {})},
            topic="stages", partitions=1, records=max(1, round(megabytes * 1e6 / self._record_bytes)),
            record_bytes=self._record_bytes, timeout_s=TIMEOUT_S,
        )  # fmt: skip
        return told.size_bytes, told.elapsed_s, told.cpu_s

    def _run(self, what: str, megabytes: float) -> Run:
        settle()
        before = snapshot(self._running, self._leader)
        size_bytes, elapsed_s, cpu_s = self._load(what, megabytes)
        after = snapshot(self._running, self._leader)
        written = {
            stage: after.disk_bytes[stage] - before.disk_bytes.get(stage, 0) for stage in after.disk_bytes
        }
        return Run(
            what,
            self._way,
            self._durability,
            size_bytes / 1e6 / elapsed_s,
            cpu_s / (size_bytes / 1e9),
            (after.loopback_bytes - before.loopback_bytes) / size_bytes,
            {stage: size / size_bytes for stage, size in written.items() if size},
            costs(before, after, size_bytes),
        )


def show(run: Run) -> Table:
    """For a terminal."""
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    options = parser.parse_args(arguments)
    if options.megabytes <= 0 or not 1 <= options.record_bytes <= 1_000_000:
        parser.error("--megabytes has to be above 0, and --record-bytes from 1 to 1000000")
    made: list[Run] = []
    console = Console(width=110)
    try:
        need(kafka=False, compiler=True)
        program = build()
        with tempfile.TemporaryDirectory(prefix="penstock-stages-") as name:
            need_space(Path(name))
            for durability in options.durabilities:
                for way in options.ways:
                    folder = Path(name) / f"{way}-{durability}"
                    folder.mkdir()
                    with penstock(folder, Layout(), False) as running:
                        driver = Driver(program, folder, running.client)
                        profile = _Profile(running, driver, way, durability, options.record_bytes)
                        for run in profile.runs(options.megabytes):
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
