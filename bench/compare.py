"""Penstock beside Apache Kafka: the same client, the same minute, the same machine.

    .venv/bin/python -m bench.compare               all systems, three rounds
    .venv/bin/python -m bench.compare --rounds 1 --megabytes 200
    .venv/bin/python -m bench.compare --systems penstock-direct,penstock-gateway   (no Java needed)

Each round runs every system one after another (never two at once), so noise of the
machine falls on all of them; read the ratios. Records of 1 KiB go to one partition with
RF 3 and acks=all from kcat (librdkafka, C); then they are read back. Penstock runs with
its default, every ack flushed to disk, and again with `penstock.durability=replicated`,
which is what Kafka's default means. With `--secure` both have TLS everywhere, users and ACLs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import confluent_kafka
import psutil
from bench.peer import KafkaCluster
from bench.secure import make_door
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from penstock_core.process.credentials import load_client_file

ROOT = Path(__file__).resolve().parent.parent
RECORD_BYTES = 1024
START_TIMEOUT_S = 60
RUN_TIMEOUT_S = 300
LATENCY_RECORDS = 2000
LATENCY_RATE_PER_S = 1000
NOBODY: Mapping[str, str] = MappingProxyType({})
"""A client that does not sign in."""


@dataclass
class Running:
    """A started system: where to reach it and what it uses."""

    bootstrap: str
    client: dict[str, str]
    """librdkafka's settings to come in, without the bootstrap address."""
    rss_bytes: Callable[[], list[int]]
    cpu_seconds: Callable[[], float]


@dataclass
class Row:
    """What one system did in one round."""

    system: str
    durability: str
    start_to_ack_s: float
    produce_mb_per_s: float
    consume_mb_per_s: float
    ack_p50_ms: float
    ack_p99_ms: float
    cpu_s_per_gb: float
    node_rss_mb: float


@contextmanager
def kafka(folder: Path, *, secure: bool) -> Iterator[Running]:
    door = make_door(folder / "door") if secure else None
    cluster = KafkaCluster(folder, 3, door=door)
    try:
        cluster.start()
        client = door.client() if door else {}
        yield Running(cluster.bootstrap, client, cluster.rss_bytes, cluster.cpu_seconds)
    finally:
        cluster.stop()


@contextmanager
def penstock(folder: Path, address: str, *, secure: bool) -> Iterator[Running]:
    command = [str(ROOT / ".venv/bin/penstock"), "local"]
    directory = ["--dir", str(folder / "penstock")]
    try:
        done = subprocess.run(
            [*command, "up", *directory, "--port", "29092", "--json", *(["--secure"] if secure else [])],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"penstock local up failed: {done.stderr}")
        told = json.loads(done.stdout)
        processes = [psutil.Process(row["pid"]) for row in told["processes"]]
        nodes = [
            psutil.Process(row["pid"]) for row in told["processes"] if row["role"] in ("node", "storage-node")
        ]

        def cpu() -> float:
            return sum(sum(process.cpu_times()[:2]) for process in processes)

        client = load_client_file(Path(told["client_config"])).librdkafka() if secure else {}
        client.pop("bootstrap.servers", None)
        yield Running(told[address], client, lambda: [node.memory_info().rss for node in nodes], cpu)
    finally:
        subprocess.run([*command, "down", "--wipe", *directory], capture_output=True, check=False)


SYSTEMS: dict[str, tuple[Callable[[Path, bool], AbstractContextManager[Running]], str]] = {
    "kafka": (lambda folder, secure: kafka(folder, secure=secure), "replicated"),
    "penstock-direct": (
        lambda folder, secure: penstock(folder, "direct_bootstrap", secure=secure),
        "fsync",
    ),
    "penstock-direct-replicated": (
        lambda folder, secure: penstock(folder, "direct_bootstrap", secure=secure),
        "replicated",
    ),
    "penstock-gateway": (lambda folder, secure: penstock(folder, "bootstrap", secure=secure), "fsync"),
}


def create_topic(
    bootstrap: str,
    name: str,
    config: dict[str, str],
    partitions: int = 1,
    client: Mapping[str, str] = NOBODY,
) -> None:
    """Create, trying again while a cluster that has just been started is not ready."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **client})
    deadline = time.monotonic() + START_TIMEOUT_S
    topic = NewTopic(name, num_partitions=partitions, replication_factor=3, config=config)
    while True:
        future = admin.create_topics([topic], request_timeout=2)[name]
        try:
            future.result(3)
        except Exception as error:
            if "TOPIC_ALREADY_EXISTS" in str(error):
                return
            if time.monotonic() > deadline:
                raise
        else:
            return


def note_ack(took: list[float], sent: float, error: object, _message: object) -> None:
    if error is not None:
        raise SystemExit(f"a record was refused: {error}")
    took.append((time.perf_counter() - sent) * 1000)


def ack_latencies_ms(
    bootstrap: str, topic: str, count: int, client: Mapping[str, str] = NOBODY
) -> list[float]:
    """Acks at a fixed rate, at most 5 requests in flight, no lingering."""
    took: list[float] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0,
         "max.in.flight.requests.per.connection": 5, "log_level": 0, **client}
    )  # fmt: skip
    value = b"x" * RECORD_BYTES
    begin = time.perf_counter()
    for number in range(count):
        while time.perf_counter() < begin + number / LATENCY_RATE_PER_S:
            producer.poll(0.0002)
        sent = time.perf_counter()
        producer.produce(
            topic, value, partition=0,
            on_delivery=partial(note_ack, took, sent),
        )  # fmt: skip
    producer.flush(60)
    return sorted(took)


def kcat_seconds(*arguments: str) -> float:
    begin = time.perf_counter()
    # Debian's librdkafka 2.0.2 is refused as "invalid credentials" by Kafka and by us with SCRAM; that of the
    # Python package is newer, and kcat takes it.
    newer = next(Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka-*"), None)
    environment = os.environ | ({"LD_PRELOAD": str(newer)} if newer and "-F" in arguments else {})
    done = subprocess.run(
        ["kcat", *arguments], capture_output=True, timeout=RUN_TIMEOUT_S, check=False, env=environment
    )
    if done.returncode != 0:
        raise SystemExit("kcat failed: " + done.stderr.decode(errors="replace")[-500:])
    return time.perf_counter() - begin


def kcat_settings(folder: Path, client: Mapping[str, str]) -> list[str]:
    """kcat's flags to come in: by a file, which no list of processes shows."""
    if not client:
        return []
    path = folder / "kcat.properties"
    path.touch(0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in client.items()))
    return ["-F", str(path)]


def measure(name: str, folder: Path, records: Path, megabytes: int, *, secure: bool) -> Row:
    opener, durability = SYSTEMS[name]
    config = {"min.insync.replicas": "2"}
    if name.endswith("replicated"):
        config["penstock.durability"] = "replicated"
    begin = time.perf_counter()
    with opener(folder, secure) as running:
        client = running.client
        create_topic(running.bootstrap, "bench", config, client=client)
        ack_latencies_ms(running.bootstrap, "bench", 1, client)
        start_to_ack_s = time.perf_counter() - begin
        ack_latencies_ms(running.bootstrap, "bench", LATENCY_RECORDS, client)  # warms the peer's JVM
        took = ack_latencies_ms(running.bootstrap, "bench", LATENCY_RECORDS, client)
        way_in = kcat_settings(folder, client)
        # linger and batch size are librdkafka's throughput settings; equal for all.
        produce = [*way_in, "-P", "-b", running.bootstrap, "-t", "bench", "-p", "0", "-X", "acks=all",
                   "-X", "linger.ms=5", "-X", "batch.size=1000000",
                   "-X", "queue.buffering.max.kbytes=262144", "-l", str(records)]  # fmt: skip
        cpu_before = running.cpu_seconds()
        produce_s = kcat_seconds(*produce)
        cpu_s = running.cpu_seconds() - cpu_before
        count = str(megabytes * 1024 + 2 * LATENCY_RECORDS + 1)
        consume_s = kcat_seconds(*way_in, "-C", "-b", running.bootstrap, "-t", "bench", "-p", "0", "-o", "beginning",
                                 "-c", count, "-f", "", "-q")  # fmt: skip
        rss = max(running.rss_bytes()) / 1e6
    megabytes_sent = megabytes * 1024 * RECORD_BYTES / 1e6
    return Row(
        name, durability, start_to_ack_s, megabytes_sent / produce_s, megabytes_sent / consume_s,
        statistics.median(took), took[int(len(took) * 0.99)], cpu_s / (megabytes_sent / 1000), rss,
    )  # fmt: skip


def show(rows: list[Row], *, secure: bool) -> None:
    doors = "SASL_SSL with SCRAM-SHA-512, TLS between processes" if secure else "plaintext"
    table = Table(title=f"1 KiB records, one partition, RF 3, acks=all, {doors}, median of the rounds")
    columns = list(asdict(rows[0]))
    for column in columns:
        table.add_column(column, justify="left" if column in ("system", "durability") else "right")
    for system in dict.fromkeys(row.system for row in rows):
        same = [asdict(row) for row in rows if row.system == system]
        cells = [str(same[0]["system"]), str(same[0]["durability"])]
        cells += [f"{statistics.median(float(r[c]) for r in same):.2f}" for c in columns[2:]]
        table.add_row(*cells)
    Console(width=150).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=500, help="MiB of records a run, below 1000")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated: " + ", ".join(SYSTEMS))
    parser.add_argument(
        "--secure",
        action="store_true",
        help="TLS, SCRAM-SHA-512 and ACLs on all of them",
    )
    parser.add_argument("--json", type=Path, help="write every row here")
    options = parser.parse_args()
    if shutil.which("kcat") is None:
        raise SystemExit("kcat is the client of these runs: install the package kcat, then run this again")
    unknown = set(options.systems.split(",")) - SYSTEMS.keys()
    if unknown:
        raise SystemExit(f"no such system: {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        records = Path(scratch) / "records"
        line = b"x" * RECORD_BYTES + b"\n"
        with records.open("wb") as file:
            for _ in range(options.megabytes):
                file.write(line * 1024)
        for number in range(options.rounds):
            for name in options.systems.split(","):
                subprocess.run(["sync"], check=True)
                folder = Path(scratch) / f"{number}-{name}"
                folder.mkdir()
                rows.append(measure(name, folder, records, options.megabytes, secure=options.secure))
                print(json.dumps(asdict(rows[-1])), flush=True)
                shutil.rmtree(folder, ignore_errors=True)
    show(rows, secure=options.secure)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
