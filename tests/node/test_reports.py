"""What a node tells the controller of its disk and its replicas, and the times of requests that it counts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from node.harness import KEY, MiniCluster, eventually, make_batch
from node.test_forward import Gateway, fetch_frame, produce_frame
from penstock_core.limits import PRODUCE_LATENCY_BOUNDS_S
from penstock_kafka.wire.frames import parse_request_header
from penstock_proto.v1 import controller_pb2
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.cluster.node_reporter import NodeReporter
from penstock_storage_node.kafka.request_context import RequestContext


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = await MiniCluster(tmp_path).start(1)
    made.make_topic(isr=[1])
    await eventually(lambda: KEY in made.nodes[1].manager.registry.partitions)
    await eventually(lambda: made.nodes[1].partition.replica.leadership is not None)
    yield made
    await made.stop()


def log_files_bytes(cluster: MiniCluster) -> int:
    return sum(p.stat().st_size for p in cluster.nodes[1].path.glob("*-0/*.log"))


async def test_a_report_tells_the_disk_and_each_replicas_files(cluster: MiniCluster) -> None:
    node = cluster.nodes[1]
    limits: list[int] = []
    reporter = NodeReporter(node.manager, node.directory, limits.append)
    for _ in range(3):
        await node.produce_batch(make_batch(os.urandom(40_000)))
    await reporter.look()
    reporter.begin()
    assert reporter.next_report() is None, "a controller of an older build wants none"
    reporter.answered(
        controller_pb2.NodeHeartbeatReply(
            report_interval_ms=1_000, want_all_sizes=True, catch_up_bytes_per_s=7
        )
    )
    assert limits == [7]
    report = reporter.next_report()
    assert report is not None and report.first_of_all and report.last_of_all
    room = os.statvfs(node.path)
    assert report.disk_total_bytes == (room.f_blocks - room.f_bfree + room.f_bavail) * room.f_frsize
    assert 0 < report.disk_free_bytes < report.disk_total_bytes
    (size,) = report.sizes
    assert (size.topic_id, size.partition) == KEY
    assert size.size_bytes == report.log_bytes == log_files_bytes(cluster) > 120_000
    assert sum(report.produce_counts) == 3
    assert (report.received_bytes, report.sent_bytes) == (node.manager.metrics.produced_bytes, 0)
    assert report.received_bytes > 3 * 40_000
    assert report.loop_cpu_ms > 0
    assert len(report.produce_counts) == len(PRODUCE_LATENCY_BOUNDS_S) + 1
    assert reporter.next_report() is None
    # Nothing has changed: the next one is as short as can be.
    await reporter.look()
    report = reporter.next_report()
    assert report is not None and not report.sizes and not report.first_of_all
    # More is written, then the topic goes.
    await node.produce_batch(make_batch(os.urandom(40_000)))
    await reporter.look()
    report = reporter.next_report()
    assert report is not None and [s.size_bytes for s in report.sizes] == [log_files_bytes(cluster)]
    cluster.change(pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=KEY.topic_id)))
    await reporter.look()
    report = reporter.next_report()
    assert report is not None and [s.size_bytes for s in report.sizes] == [0] and report.log_bytes == 0


async def test_deleted_segments_count_no_more(cluster: MiniCluster) -> None:
    node = cluster.nodes[1]
    reporter = NodeReporter(node.manager, node.directory, lambda _: None)
    small = pb.ConfigRecord(resource_type="topic", resource_name="events", key="segment.bytes", value="65536")
    short = pb.ConfigRecord(resource_type="topic", resource_name="events", key="retention.bytes", value="1")
    cluster.change(pb.MetadataRecord(config=small), pb.MetadataRecord(config=short))
    for _ in range(6):
        await node.produce_batch(make_batch(os.urandom(40_000)))
    await reporter.look()
    before = node.manager.sizes.total_bytes
    work = node.manager.log_starts.drop_old_segments(node.partition)
    assert work is not None
    await work
    await reporter.look()
    assert node.manager.sizes.total_bytes == log_files_bytes(cluster) < before


async def test_requests_are_timed_by_api_and_by_way(cluster: MiniCluster) -> None:
    node = cluster.nodes[1]
    gateway = Gateway(cluster)
    try:
        for number, acks in enumerate((-1, 1, -1)):
            await gateway.send(number, produce_frame(b"x", acks=acks))
            await gateway.next()
        await gateway.send(9, fetch_frame(0))
        await gateway.next()
    finally:
        await gateway.close()
    frame = bytearray(produce_frame(b"x", acks=-1, topic="nowhere"))
    header = parse_request_header(frame)
    node.data.handle(RequestContext(listener="DIRECT"), header, frame)
    registry = CollectorRegistry()
    node.metrics.register(registry)

    def count(api: str, via: str) -> float | None:
        return registry.get_sample_value("penstock_node_request_seconds_count", {"api": api, "via": via})

    assert count("Produce", "forward") == 3
    assert count("Fetch", "forward") == 1
    assert count("Produce", "direct") == 1
    assert count("Heartbeat", "direct") == 0
    # What was refused, or waited for less, says nothing of how long acks take.
    assert sum(node.metrics.produce_counts) == 2
    bounds = {
        s.labels["le"]
        for family in registry.collect()
        if family.name == "penstock_node_request_seconds"
        for s in family.samples
        if s.name.endswith("_bucket")
    }
    assert bounds == {*map(str, PRODUCE_LATENCY_BOUNDS_S), "+Inf"}
