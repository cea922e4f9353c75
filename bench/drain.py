"""What a planned move costs producers, and whether it takes as long and copies as much as its plan says.

    .venv/bin/python -m bench.drain [--megabytes 1000] [--throttle 50MB/s] [--json FILE]

A local cluster of four nodes and a gateway, topics of replication factor 3. One node is emptied while records of
1 KiB are produced through the gateway at 1,000 a second (acks=all, confluent-kafka): the time of the plan beside the
real one, bytes per second of the node that sends or receives most, and the acks before and meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from penstock.local.cluster import LocalCluster

NODES, PARTITIONS = 4, 24
RATE_PER_S = 1_000
RECORD = b"x" * 1024
BEFORE_S = 40.0
TIMEOUT_S = 120


def penstock(*words: str) -> str:
    """What a command prints."""
    binary = Path(sys.executable).with_name("penstock")
    done = subprocess.run([str(binary), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"penstock {' '.join(words)}: {done.stderr}")
    return done.stdout


class Acks:
    """A producer at a steady rate in a thread, with the time that each ack took."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.took: list[tuple[float, float]] = []
        """When it came (monotonic clock) and how long it took, in seconds."""
        self.failed = 0
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="acks")

    def __enter__(self) -> Acks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.failed += self._producer.flush(TIMEOUT_S)

    def _run(self) -> None:
        begun, sent = time.monotonic(), 0
        while not self._stop.is_set():
            due = int((time.monotonic() - begun) * RATE_PER_S)
            while sent < due:
                sent += 1
                sent_s = time.monotonic()
                self._producer.produce(self._topic, RECORD, on_delivery=partial(self._ack, sent_s))
            self._producer.poll(0.001)

    def _ack(self, sent_s: float, error: object, _message: Message) -> None:
        now_s = time.monotonic()
        if error is not None:
            self.failed += 1
        else:
            self.took.append((now_s, now_s - sent_s))

    def p99_ms(self, begin_s: float, end_s: float) -> float:
        took = sorted(t for at, t in self.took if begin_s <= at < end_s)
        return 1000 * took[int(0.99 * len(took))] if took else float("nan")

    def gap_ms(self, begin_s: float, end_s: float) -> float:
        """The longest time without an ack."""
        times = [begin_s, *(at for at, _ in self.took if begin_s <= at < end_s), end_s]
        return 1000 * max(b - a for a, b in pairwise(times))


def fill(bootstrap: str, topic: str, megabytes: int, partitions: int = PARTITIONS) -> None:
    """So many megabytes, evenly over the partitions; of equal bytes, since nothing here compresses."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 200_000,
        }
    )
    value = b"y" * 10_000
    for number in range(megabytes * 100):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 100 == 0:
            producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise SystemExit("the topic could not be filled")


def copied(cluster: LocalCluster) -> dict[str, tuple[float, float]]:
    """By node, bytes of rebuilt replicas that came and went since its start."""
    found = {}
    for member in cluster.state.members:
        if member.name.startswith("node-"):
            url = f"http://127.0.0.1:{member.ports['http']}/metrics"
            with urllib.request.urlopen(url, timeout=10) as response:
                lines = dict(
                    line.rsplit(" ", 1)
                    for line in response.read().decode().splitlines()
                    if not line.startswith("#")
                )
            found[member.name] = tuple(
                float(lines.get(f"penstock_node_catch_up_{way}_bytes_total", 0)) for way in ("in", "out")
            )
    return found  # type: ignore[return-value]


def measure(cluster: LocalCluster, megabytes: int, throttle: str) -> Mapping[str, Any]:
    bootstrap, here = cluster.bootstrap, ("--gateway", cluster.gateway)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic("full", PARTITIONS, 3), NewTopic("live", 6, 3)]
    for made in admin.create_topics(topics, operation_timeout=TIMEOUT_S).values():
        made.result(TIMEOUT_S)
    fill(bootstrap, "full", megabytes)
    with Acks(bootstrap, "live") as acks:
        time.sleep(BEFORE_S)
        begin = copied(cluster)
        began_s = time.monotonic()
        words = ("node", "drain", "2", "--throttle", throttle, "--json")
        plan = json.loads(penstock(*words, "--dry-run", *here))
        started = json.loads(penstock(*words, "--yes", "--plan-id", plan["plan_id"], *here))
        number = str(started["operation_id"])
        json.loads(penstock("operation", "watch", number, *here, "--json") or "{}")
        ended_s = time.monotonic()
        end = copied(cluster)
        done = json.loads(penstock("operation", "show", number, "--json", *here))
        time.sleep(1)
    took_s = (done["finished_ms"] - done["started_ms"]) / 1000
    most = max(b - a for name in end for a, b in zip(begin[name], end[name], strict=True))
    sent = sum(end[name][1] - begin[name][1] for name in end)
    return {
        "state": done["state"],
        "throttle": throttle,
        "planned_bytes": plan["totals"]["bytes"],
        "copied_bytes": sent,
        "eta_s": plan["eta_s"],
        "took_s": took_s,
        "busiest_bytes_per_s": most / took_s,
        "p99_before_ms": acks.p99_ms(began_s - BEFORE_S / 2, began_s),
        "p99_meanwhile_ms": acks.p99_ms(began_s, ended_s),
        "longest_gap_ms": acks.gap_ms(began_s, ended_s),
        "failed": acks.failed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1_000, help="of the topic that moves")
    parser.add_argument("--throttle", default="50MB/s", help="auto, or a rate")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-drain-") as directory:
        penstock(
            "local", "up", "--dir", directory, "--nodes", str(NODES), "--controllers", "1", "--port", "26500"
        )
        cluster = LocalCluster(Path(directory))
        try:
            figures = measure(cluster, given.megabytes, given.throttle)
        finally:
            cluster.down()
    if given.json:
        given.json.write_text(json.dumps(figures))
    table = Table(
        "what", "figure", title=f"a node of {NODES} is emptied, {given.megabytes} MB, {given.throttle}"
    )
    for name, value in figures.items():
        table.add_row(name, f"{value:,.1f}" if isinstance(value, float) else str(value))
    Console().print(table)
    return 0 if figures["state"] == "done" and not figures["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
