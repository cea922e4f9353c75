"""What it costs that every role is scraped: throughput with a scrape of all processes every 5 s, and without, in pairs.

    .venv/bin/python -m bench.scrape [--pairs 5] [--seconds 20] [--partitions 300] [--json FILE]

A local cluster of three controllers, three storage nodes and a gateway, and idle partitions beside those that are
written, since a scrape must not walk them. confluent-kafka produces records of 1 KiB (acks=all, replication factor 3)
through the gateway as fast as they are taken. Each pair is one run with and one without, in turn first; read the median
of their ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec

EVERY_S = 5.0
RECORD = b"x" * 1024
WARM_S = 3.0
TIMEOUT_S = 120


@contextmanager
def scraped(cluster: LocalCluster, sizes: list[int]) -> Iterator[None]:
    """Every process is asked for its metrics, as Prometheus does; how many bytes each time goes into `sizes`."""
    stop = threading.Event()
    urls = [f"http://127.0.0.1:{member.ports['http']}/metrics" for member in cluster.state.members]

    def run() -> None:
        while True:
            size = 0
            for url in urls:
                with urllib.request.urlopen(url, timeout=10) as response:
                    size += len(response.read())
            sizes.append(size)
            if stop.wait(EVERY_S):
                return

    thread = threading.Thread(target=run, name="scrapes")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def megabytes_per_s(bootstrap: str, topic: str, seconds: float) -> float:
    """Acknowledged in so many seconds, after a while to get warm."""
    acked = 0
    failed: list[str] = []

    def done(error: object, _message: object) -> None:
        nonlocal acked
        if error is None:
            acked += 1
        else:
            failed.append(str(error))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 262_144}
    )

    def until(end: float) -> None:
        while time.monotonic() < end:
            try:
                for _ in range(200):
                    producer.produce(topic, RECORD, on_delivery=done)
                producer.poll(0)
            except BufferError:
                producer.poll(0.01)

    until(time.monotonic() + WARM_S)
    before, begun = acked, time.monotonic()
    until(begun + seconds)
    took, got = time.monotonic() - begun, acked - before
    if producer.flush(TIMEOUT_S) or failed:
        raise SystemExit(f"records were not acknowledged: {failed[:3]}")
    return got * len(RECORD) / took / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--partitions", type=int, default=300, help="idle ones beside")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    sizes: list[int] = []
    with tempfile.TemporaryDirectory(prefix="penstock-scrape-") as directory:
        cluster = LocalCluster(Path(directory))
        cluster.up(ClusterSpec(controllers=3, nodes=3, gateways=1, port=26900))
        try:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            retention = {"retention.bytes": "100000000", "segment.bytes": "50000000"}
            new = [NewTopic("idle", given.partitions, 3), NewTopic("busy", 6, 3, config=retention)]
            for made in admin.create_topics(new, operation_timeout=TIMEOUT_S).values():
                made.result(TIMEOUT_S)
            megabytes_per_s(cluster.bootstrap, "busy", WARM_S)
            for number in range(given.pairs):
                found: dict[bool, float] = {}
                for is_scraped in (True, False) if number % 2 else (False, True):
                    if is_scraped:
                        with scraped(cluster, sizes):
                            found[is_scraped] = megabytes_per_s(cluster.bootstrap, "busy", given.seconds)
                    else:
                        found[is_scraped] = megabytes_per_s(cluster.bootstrap, "busy", given.seconds)
                pairs.append((found[True], found[False]))
                print(f"pair {number + 1}: {found[True] / found[False]:.3f}", file=sys.stderr, flush=True)
        finally:
            cluster.down()
    ratios = [with_it / without for with_it, without in pairs]
    if given.json:
        given.json.write_text(json.dumps({"pairs": pairs, "ratios": ratios, "scrape_bytes": sizes}))
    table = Table(
        "pair", "scraped, MB/s", "not, MB/s", "ratio",
        title=f"scraped every {EVERY_S:g} s, {statistics.median(sizes):,.0f} bytes of metrics each time",
    )  # fmt: skip
    for number, (with_it, without) in enumerate(pairs, 1):
        table.add_row(f"{number}", f"{with_it:.1f}", f"{without:.1f}", f"{with_it / without:.3f}")
    table.add_row("median", "", "", f"{statistics.median(ratios):.3f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
