"""Whether idempotence costs a producer speed: the same load with and without it, in turns.

kcat (librdkafka, C) sends records of 1 KiB with replication factor 3, acks=all and five requests in flight, as
in `bench.compare`: to twelve partitions, and to one. To one the client itself is slower with idempotence,
whatever the broker: librdkafka holds *messages* in flight of a partition against the window of five
requests, so that it has one large batch at a time under way. The speed there is a batch per round
trip; the row with many partitions says what the broker makes of it.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.groups.systems import System, create_topic, settle_disk

RECORD_BYTES: Final = 1024
RUN_TIMEOUT_S: Final = 300


@dataclass
class ProducePlan:
    """How much, how often."""

    megabytes: int = 150
    rounds: int = 5
    partitions: tuple[int, ...] = (12, 1)


@dataclass
class Produced:
    """Each run's speed in MB/s and CPU seconds of the cluster per GB, by "idempotent" and "plain"."""

    system: str
    way: str
    partitions: int
    mb_per_s: dict[str, list[float]] = field(default_factory=lambda: {"plain": [], "idempotent": []})
    cpu_s_per_gb: dict[str, list[float]] = field(default_factory=lambda: {"plain": [], "idempotent": []})

    @property
    def ratio(self) -> float:
        """Speed with idempotence over speed without: the median of the pairs."""
        pairs = zip(self.mb_per_s["idempotent"], self.mb_per_s["plain"], strict=True)
        return statistics.median(a / b for a, b in pairs)

    @property
    def cpu_ratio(self) -> float:
        """CPU time with idempotence over CPU time without, likewise."""
        pairs = zip(self.cpu_s_per_gb["idempotent"], self.cpu_s_per_gb["plain"], strict=True)
        return statistics.median(a / b for a, b in pairs)


def measure_produce(
    system: System, way: str, records: Path, partitions: int, plan: ProducePlan, note: Callable[[str], None]
) -> Produced:
    """Pairs of runs, each first in every second pair, after one that warms up."""
    found = Produced(system.name, way, partitions)
    bootstrap = system.bootstraps[way]
    topic = f"produce-{way}-{partitions}"
    create_topic(bootstrap, topic, partitions, {"min.insync.replicas": "2"})
    megabytes = records.stat().st_size / (RECORD_BYTES + 1) * RECORD_BYTES / 1e6
    _produce(bootstrap, topic, records, idempotent=True)
    for number in range(plan.rounds):
        kinds = ("plain", "idempotent") if number % 2 else ("idempotent", "plain")
        for kind in kinds:
            settle_disk()
            before = sum(system.cpu_s().values())
            took_s = _produce(bootstrap, topic, records, idempotent=kind == "idempotent")
            cpu_s = sum(system.cpu_s().values()) - before
            found.mb_per_s[kind].append(megabytes / took_s)
            found.cpu_s_per_gb[kind].append(cpu_s / (megabytes / 1000))
            speed = f"{found.mb_per_s[kind][-1]:.1f} MB/s"
            note(f"{system.name} {way}: {partitions} partitions, {kind} run {number + 1}: {speed}")
    return found


def write_records(file: Path, megabytes: int) -> None:
    """Lines for kcat, `megabytes` MiB of them."""
    with file.open("wb") as out:
        for _ in range(megabytes):
            out.write((b"x" * RECORD_BYTES + b"\n") * 1024)


def need_kcat() -> None:
    """Say so when the client is missing."""
    if shutil.which("kcat") is None:
        raise SystemExit(
            "kcat is the producer of these runs: install the package kcat, or leave `produce` out"
        )


def _produce(bootstrap: str, topic: str, records: Path, *, idempotent: bool) -> float:
    command = ["kcat", "-P", "-b", bootstrap, "-t", topic, "-X", "acks=all", "-X", "linger.ms=5",
               "-X", "max.in.flight.requests.per.connection=5",
               "-X", f"enable.idempotence={str(idempotent).lower()}", "-X", "batch.size=1000000",
               "-X", "queue.buffering.max.kbytes=262144", "-l", str(records)]  # fmt: skip
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, timeout=RUN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SystemExit("kcat failed: " + done.stderr.decode(errors="replace")[-500:])
    return time.perf_counter() - begin
