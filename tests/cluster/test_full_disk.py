"""One of three disks runs full under load: its node hands its partitions on, nobody waits for it as a follower
either, and it gets them back when it has room."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.local.cluster import LocalCluster
from penstock.local.plan import NODE
from support.cluster import running_cluster
from support.kafka import (
    Ledger,
    Load,
    check_nothing_lost,
    client_config,
    create_topic,
    describe,
    read_all,
    wait_for_full_isr,
)
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.timeout(900)]

VICTIM = 1
PARTITIONS = 6
VALUE_BYTES = 4_000
PATIENCE_S = 300.0
ACKS_GO_ON_S = 2.0
"""What is promised of a leader whose disk runs full."""


@contextmanager
def small_disk(folder: Path, size_mib: int) -> Iterator[Path]:
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until the disk has no space left, not for a byte."""
    for step in (65_536, 1):
        with path.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(b"\0" * step):
                pass


def longest_silence_s(ledger: Ledger, partitions: set[int], begun_s: float, ended_s: float) -> float:
    """The longest time between two acknowledgements of one of these partitions, within a time."""
    times: dict[int, list[float]] = {partition: [begun_s] for partition in partitions}
    for (partition, _), at_s in zip(ledger.acked.values(), ledger.ack_times_s, strict=False):
        if partition in times and begun_s <= at_s <= ended_s:
            times[partition].append(at_s)
    gaps = [later - sooner for of in times.values() for sooner, later in pairwise([*of, ended_s])]
    return max(gaps)


def state_of_victim(cluster: LocalCluster) -> str:
    with urllib.request.urlopen(f"{cluster.http}/v1/cluster", timeout=20) as answer:
        nodes: list[dict[str, Any]] = json.load(answer)["nodes"]
    return str(next(n["state"] for n in nodes if n["node_id"] == VICTIM))


def leaders(cluster: LocalCluster, topic: str = "events") -> set[int]:
    return {p.leader for p in describe(cluster.bootstrap, topic).values()}


def send(cluster: LocalCluster, ledger: Ledger, count: int) -> None:
    """To every partition in turn; each record has to be acknowledged in the end."""
    config = {"acks": "all", "enable.idempotence": True, "delivery.timeout.ms": 240_000}
    producer = Producer(client_config(cluster.bootstrap, **config))
    for _ in range(count):
        number = len(ledger.values)
        value = b"%d:" % number + b"x" * VALUE_BYTES
        ledger.values[number] = value
        producer.produce(
            "events",
            value,
            partition=number % PARTITIONS,
            on_delivery=partial(ledger.delivered, number),
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_others_lead_while_a_disk_is_full_and_no_acknowledged_record_is_lost(tmp_path: Path) -> None:
    # Longer than the test lasts: if acks waited for the full node as for any that lags, they would not come.
    settings = {NODE: {"replica_lag_time_max_ms": "3600000"}}
    with (
        small_disk(tmp_path / "cluster" / f"node-{VICTIM}", 48) as disk,
        running_cluster(tmp_path / "cluster", controllers=1, steady=True, settings=settings) as cluster,
    ):
        create_topic(cluster.bootstrap, "events", PARTITIONS, 3)
        wait_for(lambda: leaders(cluster) == {1, 2, 3}, "a leader on every node")
        ledger = Ledger()
        send(cluster, ledger, 60)
        create_topic(cluster.bootstrap, "flow", PARTITIONS, 3)
        wait_for(lambda: leaders(cluster, "flow") == {1, 2, 3}, "a leader on every node")
        filler = disk / "filler"
        with Load(cluster.bootstrap, "flow", rate_per_s=200, value_bytes=VALUE_BYTES, acks="all") as load:
            load.wait_for_acks(200)
            led = {n for n, p in describe(cluster.bootstrap, "flow").items() if p.leader == VICTIM}
            quiet_s = time.monotonic()
            load.wait_for_acks(1_000)
            begun_s = time.monotonic()
            fill(filler)
            load.wait_for_acks(1_000)
            ended_s = time.monotonic()
        before_s = longest_silence_s(load.ledger, led, quiet_s, begun_s)
        silence_s = longest_silence_s(load.ledger, led, begun_s, ended_s)
        print(
            f"longest time between acks of a partition that the node led: {before_s:.2f} s, {silence_s:.2f} s "
            "while its disk runs full"
        )
        # What the machine itself holds up is seen beforehand.
        assert silence_s <= ACKS_GO_ON_S + before_s
        send(cluster, ledger, 300)
        wait_for(lambda: state_of_victim(cluster) == "disk full", "the node says that its disk is full")
        wait_for(lambda: leaders(cluster) == {2, 3}, "leaders with room alone")
        send(cluster, ledger, 60)
        assert leaders(cluster) == {2, 3}, "and they stay"
        filler.unlink()
        wait_for(lambda: state_of_victim(cluster) == "live", "room is found", PATIENCE_S)
        wait_for(lambda: VICTIM in leaders(cluster), "preferred leaders come back", PATIENCE_S)
        send(cluster, ledger, 60)
        for topic in ("events", "flow"):
            wait_for_full_isr(cluster.bootstrap, topic, PATIENCE_S)
        assert not ledger.errors
        check_nothing_lost(load.ledger, read_all(cluster.bootstrap, "flow"))
        check_nothing_lost(ledger, read_all(cluster.bootstrap, "events"))
