"""What a transaction costs, stage by stage: CPU by process and kind of thread, how often each slept, flushes.

    make bench-transaction-stages
    make bench-transaction-stages STAGES="--clients java --durabilities fsync"
    make bench-transaction-stages STAGES="--seconds 20 --json stages.json"

A cluster of 3+3+1 processes for each durability; both clients of the bench: librdkafka, in which the client adds
partitions, and Kafka's own in Java, for which leaders add them. Transactions of one record: by one producer back to
back, by a hundred at once, and 20 a second with a record in each of one partition and of ten. Figures are per
transaction. Where there is one producer and one partition, the data's leader, the coordinator and the follower of both
are three nodes; with more, nodes are shown together. A thread that sleeps and is woken is a hop of the transaction's
way, or one of the cluster's own beats. Flushes are those of appended data, of any log, and how long one took.
Needs Linux, gcc, and for the Java client java, javac and mvn.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.runner import java
from bench.runner.driver import AT_ONCE, ClientFailed, Driver, Told, build
from bench.runner.machine import Missing, commit, need, need_space, settle
from bench.runner.rows import Layout
from bench.runner.systems import Running, SystemFailed, penstock
from bench.runner.transactions import coordinated_elsewhere, coordinators, leaders
from bench.stages import DURABILITIES, Snapshot, snapshot, spent
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from penstock.local.cluster import LocalCluster

CLIENTS: Final = ("librdkafka", "java")
SECONDS: Final = 10.0
WARM_UP_S: Final = 4.0
LOOKED_AT_S: Final = 1.0
TIMEOUT_S: Final = 240
RATE_PER_S: Final = 20
RECORD_BYTES: Final = 1024
FLUSHES: Final = "penstock_node_flush_seconds"


@dataclass(frozen=True)
class Load:
    """`producers` back to back, or one at a rate."""

    name: str
    producers: int = 1
    partitions: int = 1
    rate_per_s: int = 0

    @property
    def alone(self) -> bool:
        """Whether leader, coordinator and follower are one node each."""
        return self.producers == self.partitions == 1


LOADS: Final = (
    Load("one producer, back to back"),
    Load("100 producers, back to back", producers=100, partitions=12),
    Load("20 a second", rate_per_s=RATE_PER_S),
    Load("20 a second, 10 partitions", partitions=10, rate_per_s=RATE_PER_S),
)


@dataclass(frozen=True)
class Look:
    """All that is counted, at CLOCK_MONOTONIC's time; flushes and their seconds by stage."""

    at_ns: int
    threads: Snapshot
    flushes: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Cost:
    """What threads of one kind at one stage took for a transaction."""

    stage: str
    kind: str
    cpu_us: float
    system_us: float
    sleeps: float


@dataclass(frozen=True)
class Flushes:
    """Of one stage: how many for a transaction, and how long one took."""

    count: float
    took_ms: float


@dataclass(frozen=True)
class Run:
    """One load by one client."""

    load: str
    client: str
    durability: str
    per_s: float
    commit_ms: Sequence[float]
    """50, 99, 99.9 and 100 %: of the call that commits; told at a rate alone."""
    transaction_ms: Sequence[float]
    """From when it was begun, or due, until it was committed."""
    client_us: float
    disk_bytes: Mapping[str, float]
    """Handed to the disk for a transaction, by stage."""
    loopback_bytes: float
    flushes: Mapping[str, Flushes]
    costs: Sequence[Cost]


def made_of(load: Load, client: str, durability: str, told: Told, looks: Sequence[Look]) -> Run:
    """From the looks that fall into the time in which the client measured. Raises ClientFailed for one or
    none."""
    within = [look for look in looks if told.begin_ns <= look.at_ns <= told.end_ns]
    if len(within) < 2 or not told.transactions:
        raise ClientFailed(f"{load.name}: too short to be looked at twice, give more --seconds")
    first, last = within[0], within[-1]
    share = (last.at_ns - first.at_ns) / (told.end_ns - told.begin_ns)
    count = told.transactions * share
    before, after = first.threads.disk_bytes, last.threads.disk_bytes
    flushes = {
        stage: Flushes((number - old[0]) / count, 1e3 * (seconds - old[1]) / (number - old[0]))
        for stage, (number, seconds) in last.flushes.items()
        if number > (old := first.flushes.get(stage, (0.0, 0.0)))[0]
    }
    return Run(
        load.name,
        client,
        durability,
        told.transactions / told.elapsed_s,
        told.commit_ms,
        told.transaction_ms,
        1e6 * told.cpu_s / told.transactions,
        {stage: (size - before.get(stage, 0)) / count for stage, size in after.items()},
        (last.threads.loopback_bytes - first.threads.loopback_bytes) / count,
        flushes,
        [
            Cost(
                one.stage,
                one.kind,
                1e6 * one.cpu_s / count,
                1e6 * one.system_s / count,
                one.sleeps / count,
            )
            for one in spent(first.threads, last.threads)
        ],
    )


def flushes_of(text: str) -> tuple[float, float]:
    """How many flushes of appended data a node tells of in its metrics, and the seconds that they took."""
    number = seconds = 0.0
    for family in text_string_to_metric_families(text):
        if family.name == FLUSHES:
            for sample in family.samples:
                number += sample.value if sample.name == f"{FLUSHES}_count" else 0.0
                seconds += sample.value if sample.name == f"{FLUSHES}_sum" else 0.0
    return number, seconds


class _Profile:
    """One cluster under each load by each client."""

    def __init__(self, running: Running, driver: Driver, durability: str, seconds: float) -> None:
        self._running = running
        self._driver = driver
        self._durability = durability
        self._seconds = seconds
        self._ports = {
            member.name: member.ports["http"]
            for member in LocalCluster(running.data).state.members
            if member.name.startswith("node-")
        }

    def runs(self, clients: Sequence[str]) -> Iterator[Run]:
        nodes = coordinators(self._running)
        for number, load in enumerate(LOADS):
            topic = f"transactions-{number}"
            config = {"min.insync.replicas": "2", "penstock.durability": self._durability}
            self._running.create_topic(topic, load.partitions, 3, config)
            leader = leaders(self._running, topic)[0]
            for client in clients:
                name, parts = f"{topic}-{client}", dict.fromkeys(self._ports, "nodes")
                if load.alone:
                    # Producers back to back are numbered.
                    ending = "" if load.rate_per_s else "-0"
                    name, coordinator = coordinated_elsewhere(name, nodes, leader, ending=ending)
                    parts = {f"node-{leader}": "leader", f"node-{coordinator}": "coordinator"}
                settle(None)
                with self._looking(parts) as looks:
                    told = self._load(load, client, topic, name)
                yield made_of(load, client, self._durability, told, looks)

    def _load(self, load: Load, client: str, topic: str, name: str) -> Told:
        common: dict[str, Any] = {
            "topic": topic, "partitions": load.partitions, "record_bytes": RECORD_BYTES, "transactional_id": name,
            "timeout_s": TIMEOUT_S,
        }  # fmt: skip
        driver, way = self._driver.by(client), self._running.bootstraps["direct"]
        if not load.rate_per_s:
            return driver.run(
                "repeat", way, AT_ONCE[client], producers=load.producers, warm_up_ms=round(1e3 * WARM_UP_S),
                measure_ms=round(1e3 * self._seconds), **common,
            )  # fmt: skip
        skip = round(load.rate_per_s * WARM_UP_S)
        return driver.run(
            "commits", way, AT_ONCE[client], records=skip + round(load.rate_per_s * self._seconds), skip=skip,
            rate_per_s=load.rate_per_s, **common,
        )  # fmt: skip

    @contextmanager
    def _looking(self, parts: Mapping[str, str]) -> Iterator[list[Look]]:
        looks: list[Look] = []
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOKED_AT_S):
                flushes: dict[str, tuple[float, float]] = {}
                for name, port in self._ports.items():
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                        number, seconds = flushes_of(response.read().decode())
                    stage = parts.get(name, "followers")
                    old = flushes.get(stage, (0.0, 0.0))
                    flushes[stage] = (old[0] + number, old[1] + seconds)
                looks.append(Look(time.monotonic_ns(), snapshot(self._running, parts), flushes))

        thread = threading.Thread(target=look, name="looks")
        thread.start()
        try:
            yield looks
        finally:
            over.set()
            thread.join()


def show(run: Run) -> Table:
    """For a terminal."""
    flushes = "; ".join(
        f"{stage} {one.count:.2f} flushes of {one.took_ms:.2f} ms" for stage, one in run.flushes.items()
    )
    written = ", ".join(f"{stage} {size / 1e3:.1f}" for stage, size in run.disk_bytes.items() if size >= 50)
    table = Table(
        "stage", "threads", "CPU us", "of it system", "sleeps",
        title=f"{run.load}, {run.client}, {run.durability}: {run.per_s:.1f} transactions/s",
        caption=f"{_told('commit', run.commit_ms)}{_told('whole', run.transaction_ms)}servers "
        f"{sum(one.cpu_us for one in run.costs):.0f} us, client {run.client_us:.0f}; loopback "
        f"{run.loopback_bytes / 1e3:.1f} kB; disk, kB: {written or 'none'}; {flushes or 'no flushes'}",
    )  # fmt: skip
    for one in run.costs:
        if one.cpu_us >= 1:
            table.add_row(
                one.stage, one.kind, f"{one.cpu_us:.0f}", f"{one.system_us:.0f}", f"{one.sleeps:.1f}"
            )
    return table


def _told(what: str, ms: Sequence[float]) -> str:
    return f"{what} p50 {ms[0]:.2f} ms, p99 {ms[1]:.2f}; " if ms else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all runs came to their end."""
    parser = argparse.ArgumentParser(
        prog="make bench-transaction-stages", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--durabilities", nargs="+", choices=DURABILITIES, default=list(DURABILITIES))
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each run ({SECONDS:.0f})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    options = parser.parse_args(arguments)
    if not 3 <= options.seconds <= 120:
        parser.error("--seconds has to be from 3 to 120")
    made: list[Run] = []
    console = Console(width=110)
    try:
        by_java = "java" in options.clients
        need(kafka=False, compiler=True, java_client=by_java)
        program, entry = build(), java.build() if by_java else ()
        with tempfile.TemporaryDirectory(prefix="penstock-stages-") as name:
            need_space(Path(name))
            for durability in options.durabilities:
                folder = Path(name) / durability
                folder.mkdir()
                with penstock(folder, Layout(), False) as running:
                    driver = Driver(program, folder, running.client, entry)
                    for run in _Profile(running, driver, durability, options.seconds).runs(options.clients):
                        made.append(run)
                        console.print(show(run))
    except (Missing, SystemFailed, ClientFailed) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if options.json and made:
            held = {"commit": commit(), "runs": [asdict(one) for one in made]}
            options.json.write_text(json.dumps(held, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
