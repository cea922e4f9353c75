"""A bit of old data flips on the leader's disk: no client sees it, and the node mends itself at its next start."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster, start_ready, wait_until_ready
from support.kafka import busiest_leader, create_topic, describe, produce, read_all, wait_for_full_isr
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

TOPIC = "events"
RECORDS = 12_000


def detail_of(cluster: LocalCluster, name: str) -> str:
    return next(p.detail for p in cluster.status().processes if p.name == name)


def segments_of(directory: Path, name: str) -> list[Path]:
    return sorted((directory / name / "data" / f"{TOPIC}-0").glob("*.log"))


def test_wrong_bits_in_old_data_reach_nobody(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with running_cluster(tmp_path, gateways=1, steady=True) as cluster:
        bootstrap = cluster.bootstrap
        create_topic(bootstrap, TOPIC, 1, 3, segment_bytes=str(1 << 20))
        produce(bootstrap, TOPIC, RECORDS, value_bytes=200)
        wait_for_full_isr(bootstrap, TOPIC)
        right = [record.value for record in read_all(bootstrap, TOPIC)]
        assert len(right) == RECORDS
        victim = busiest_leader(bootstrap, TOPIC)
        number = int(victim.rpartition("-")[2])

        # A clean stop: the next start trusts all that is below its checkpoints.
        cluster.kill(victim, signal.SIGTERM, timeout_s=120)
        old = segments_of(tmp_path, victim)[0]
        data = bytearray(old.read_bytes())
        position = dice.randrange(len(data) // 4, len(data))
        data[position] ^= 1 << dice.randrange(8)
        old.write_bytes(data)
        start_ready(cluster, victim)
        wait_for_full_isr(bootstrap, TOPIC)
        wait_for(lambda: describe(bootstrap, TOPIC)[0].leader == number, f"{victim} leads again")

        # This client would take what it is given.
        assert [r.value for r in read_all(bootstrap, TOPIC, **{"check.crcs": False})] == right
        wait_for(lambda: "is damaged" in detail_of(cluster, victim), f"{victim} says what it met")
        assert describe(bootstrap, TOPIC)[0].leader != number

        cluster.kill(victim)
        start_ready(cluster, victim)
        wait_for_full_isr(bootstrap, TOPIC)
        wait_until_ready(cluster)
        wait_for(lambda: describe(bootstrap, TOPIC)[0].leader == number, f"{victim} leads again")
        assert [r.value for r in read_all(bootstrap, TOPIC)] == right
        names = ["node-1", "node-2", "node-3"]
        for name in names:
            cluster.kill(name, signal.SIGTERM, timeout_s=120)
        assert len({b"".join(p.read_bytes() for p in segments_of(tmp_path, name)) for name in names}) == 1
