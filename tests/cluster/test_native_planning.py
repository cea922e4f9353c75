"""What a planner of reads asks a gateway: bytes of ranges, ends of epochs, offsets of groups; by real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, Producer

from penstock.local.cluster import LocalCluster
from penstock_proto.v1 import gateway_pb2 as pb
from penstock_proto.v1 import gateway_pb2_grpc

SMALL, LARGE = 10, 10 * 1024
HALF = 600


def penstock(cluster: LocalCluster, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments, "--bootstrap", cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def stub(shared_cluster: LocalCluster) -> Any:
    with grpc.insecure_channel(shared_cluster.gateway.split(",")[0]) as channel:
        yield gateway_pb2_grpc.GatewayStub(channel)


@pytest.fixture
def topic(shared_cluster: LocalCluster) -> str:
    """Half of its records are small, the other half large."""
    name = f"skewed-{uuid.uuid4().hex[:8]}"
    penstock(shared_cluster, "topic", "create", name, "-p", "1")
    producer = Producer({"bootstrap.servers": shared_cluster.bootstrap, "batch.size": 20_000, "linger.ms": 5})
    for size in (SMALL, LARGE):
        for _ in range(HALF):
            producer.produce(name, b"x" * size, partition=0)
        assert producer.flush(120) == 0
    return name


def test_bytes_of_ranges(stub: Any, topic: str) -> None:
    whole = pb.OffsetRange(topic=topic, start=0, end=2 * HALF)
    small = pb.OffsetRange(topic=topic, start=0, end=HALF)
    missing = pb.OffsetRange(topic=topic, partition=7, start=0, end=5)
    other = pb.OffsetRange(topic=topic, topic_id=b"x" * 16, start=0, end=5)
    request = pb.SizeRangesRequest(ranges=[whole, small, missing, other], cut_bytes=500_000)
    found = stub.SizeRanges(request).ranges
    assert [each.error.code for each in found] == [0, 0, 3, 103]
    assert HALF * LARGE < found[0].size_bytes < HALF * LARGE * 1.1
    assert found[1].size_bytes < 100_000
    assert not found[1].cuts
    cuts = list(found[0].cuts)
    assert 10 <= len(cuts) <= 15
    assert cuts == sorted(set(cuts))
    assert all(0 < cut < 2 * HALF for cut in cuts)
    assert "no partition" in found[2].error.message


def test_ends_of_epochs(stub: Any, topic: str) -> None:
    queries = [pb.EpochQuery(topic=topic, partition=p, leader_epoch=e) for p, e in ((0, 1000), (7, 0))]
    known, missing = stub.EpochEnds(pb.EpochEndsRequest(queries=queries)).ends
    assert known.error.code == 0
    assert missing.error.code == 3
    answer = stub.EpochEnds(pb.EpochEndsRequest(queries=[pb.EpochQuery(topic=topic, leader_epoch=0)])).ends[0]
    assert (answer.leader_epoch, answer.end_offset) == (0, 2 * HALF)


def test_a_group_without_members(shared_cluster: LocalCluster, stub: Any, topic: str) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    assert list(stub.GroupOffsets(pb.GroupOffsetsRequest(group=group)).offsets) == []
    offsets = [
        pb.GroupOffset(topic=topic, offset=2 * HALF, leader_epoch=-1, metadata="spark q 3"),
        pb.GroupOffset(topic=topic, partition=9, offset=1, leader_epoch=-1),
    ]
    done = stub.CommitGroup(pb.CommitGroupRequest(group=group, offsets=offsets))
    assert (done.error.code, [each.code for each in done.errors]) == (0, [0, 3])
    [found] = stub.GroupOffsets(pb.GroupOffsetsRequest(group=group, topics=[topic])).offsets
    assert (found.topic, found.partition, found.offset, found.metadata) == (topic, 0, 2 * HALF, "spark q 3")
    assert not stub.GroupOffsets(pb.GroupOffsetsRequest(group=group, topics=["other"])).offsets
    described = json.loads(penstock(shared_cluster, "group", "describe", group, "--json"))
    assert '"lag": 0' in json.dumps(described), described


def test_a_group_with_members_refuses(shared_cluster: LocalCluster, stub: Any, topic: str) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    consumer = Consumer(
        {
            "bootstrap.servers": shared_cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(120)
        assert message is not None
        assert message.error() is None
        offsets = [pb.GroupOffset(topic=topic, offset=5, leader_epoch=-1)]
        done = stub.CommitGroup(pb.CommitGroupRequest(group=group, offsets=offsets))
        assert done.error.code == 25
        assert "has members" in done.error.message
    finally:
        consumer.close()
