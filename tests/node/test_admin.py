"""A node's answers about its disk, its producers and positions; settings by layers; the nearest replica."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.harness import KEY, TOPIC, TOPIC_ID, MiniCluster, MiniNode, eventually, ids
from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_frontend.authorizer import AllowAll, Operation, ResourceType
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import SUPPORTED, ApiKey, Route
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_proto.v1 import common_pb2, storage_pb2
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.kafka.dispatch import DataApis
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.reporting.group_lag import Lag
from penstock_storage_node.rpc.log_ends import LogEndsService
from penstock_storage_node.settings import GroupSettings
from support.denials import Denying
from support.kafka_specs import change_spec

RACKS = {1: "a", 2: "b", 3: "b"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    cluster = await MiniCluster(tmp_path).start(3)
    yield cluster
    await cluster.stop()


@pytest.mark.parametrize(
    ("route", "with_groups"),
    [
        (Route.PARTITION_LEADER, False),
        (Route.PARTITION_LEADER, True),
        (Route.GROUP_COORDINATOR, True),
        (Route.SCATTER, True),
        (Route.TRANSACTION_COORDINATOR, False),
        (Route.NODE, False),
    ],
)
async def test_an_api_that_no_handler_of_a_node_answers_is_found_at_the_start(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch, route: Route, with_groups: bool
) -> None:
    node = cluster.nodes[1]
    groups = GroupHost(node.manager, node.lifecycle, GroupSettings(), expiry_interval_ms=3_600_000)

    def build() -> DataApis:
        return DataApis(node.manager, AllowAll(), lambda: True, groups if with_groups else None)

    assert build().handles(ApiKey.JOIN_GROUP) == with_groups
    change_spec(monkeypatch, ApiKey.METADATA, route=route)
    with pytest.raises(InvariantBroken, match=r"^handlers of DataApis: Metadata .* has no entry"):
        build()


async def make_topic(cluster: MiniCluster) -> None:
    """A topic that node 1 leads, and all three hold."""
    cluster.make_topic()
    nodes = cluster.nodes.values()
    await eventually(lambda: all(KEY in node.manager.registry.partitions for node in nodes))
    await eventually(lambda: cluster.nodes[1].partition.replica.leadership is not None)


async def call(node: MiniNode, key: ApiKey, version: int, /, **values: Any) -> Any:
    """One request through the node's handlers."""
    body = codec.encode_body(codec.build(codec.request_type(key, version), **values))
    frame = bytearray(request_header(key, version, 1, "test") + body)
    answer = node.data.handle(RequestContext(), parse_request_header(frame), frame)
    if isinstance(answer, Awaitable):
        answer = await answer
    assert isinstance(answer, list)
    return codec.decode_response(key, version, b"".join(answer))[1]


def of(key: ApiKey, version: int, kind: str, /, **values: Any) -> Any:
    return codec.build(codec.entity_type(key, version, kind, request=True), **values)


async def test_log_directories(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    node = cluster.nodes[1]
    await node.produce(b"x" * 1_000)
    low, high = SUPPORTED[ApiKey.DESCRIBE_LOG_DIRS]
    for version in range(low, high + 1):
        key = (ApiKey.DESCRIBE_LOG_DIRS, version)
        nothing = of(*key, "DescribableLogDirTopic", topic="no-such", partitions=(0,))
        mine = of(*key, "DescribableLogDirTopic", topic=TOPIC, partitions=(0, 9))
        for topics, count in ((None, 1), ((mine,), 1), ((nothing,), 0), ((), 0)):
            (found,) = (await call(node, *key, topics=topics)).results
            assert (int(found.error_code), found.log_dir) == (0, str(node.path))
            assert len(found.topics) == count
        (found,) = (await call(node, *key, topics=None)).results
        (partition,) = found.topics[0].partitions
        assert partition.partition_size == node.partition.log.size_bytes > 1_000
        assert partition.offset_lag == 0
        if version >= 4:
            assert found.total_bytes > found.usable_bytes > 0


async def alter_log_dirs(
    node: MiniNode, version: int, *dirs: tuple[str, str, tuple[int, ...]]
) -> dict[tuple[str, int], int]:
    """Codes by partition for (path, topic, partitions); every partition is answered once."""
    key = (ApiKey.ALTER_REPLICA_LOG_DIRS, version)
    wanted = tuple(
        of(
            *key,
            "AlterReplicaLogDir",
            path=path,
            topics=(of(*key, "AlterReplicaLogDirTopic", name=topic, partitions=partitions),),
        )
        for path, topic, partitions in dirs
    )
    found = await call(node, *key, dirs=wanted)
    names = [topic.topic_name for topic in found.results]
    assert len(set(names)) == len(names)
    items = [
        (t.topic_name, p.partition_index, int(p.error_code)) for t in found.results for p in t.partitions
    ]
    codes = {(topic, index): code for topic, index, code in items}
    assert len(codes) == len(items)
    return codes


@pytest.mark.parametrize("version", range(1, 3))
async def test_each_partition_that_shall_change_its_directory_is_answered_as_kafka_does(
    cluster: MiniCluster, version: int
) -> None:
    await make_topic(cluster)
    node, here = cluster.nodes[1], str(cluster.nodes[1].path)
    assert await alter_log_dirs(node, version, (here, TOPIC, (0, 9)), (here, "no-such", (0,))) == {
        (TOPIC, 0): ErrorCode.NONE,
        (TOPIC, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    # The directory comes first: Kafka looks at it before it looks for the partition.
    assert await alter_log_dirs(node, version, ("/elsewhere", TOPIC, (0, 9))) == {
        (TOPIC, 0): ErrorCode.LOG_DIR_NOT_FOUND,
        (TOPIC, 9): ErrorCode.LOG_DIR_NOT_FOUND,
    }
    long = "x" * 214
    assert await alter_log_dirs(node, version, ("/elsewhere", long, (0,))) == {
        (long, 0): ErrorCode.INVALID_TOPIC_EXCEPTION
    }
    assert await alter_log_dirs(node, version, (here, long[1:], (0,))) == {
        (long[1:], 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    twice = await alter_log_dirs(node, version, ("/elsewhere", TOPIC, (0,)), (here, TOPIC, (0,)))
    assert twice == {(TOPIC, 0): ErrorCode.NONE}, "the last directory counts"
    assert await alter_log_dirs(node, version) == {}


async def test_a_replica_on_another_node_is_not_available_for_a_move(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    node, state = cluster.nodes[2], cluster.state
    moved = replace(state, replicas=ids(1, 3), isr=ids(1, 3), partition_epoch=state.partition_epoch + 1)
    cluster.change(pb.MetadataRecord(partition=moved.to_pb()))
    await eventually(lambda: not node.manager.registry.partitions)
    assert await alter_log_dirs(node, 2, (str(node.path), TOPIC, (0,))) == {
        (TOPIC, 0): ErrorCode.REPLICA_NOT_AVAILABLE
    }


async def test_a_failed_disk_is_told_to_who_moves_replicas(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    node = cluster.nodes[3]
    node.manager.health.fail("test", OSError(errno.EIO, "gone"))
    assert await alter_log_dirs(node, 2, (str(node.path), TOPIC, (0,)), ("/elsewhere", TOPIC, (1,))) == {
        (TOPIC, 0): ErrorCode.KAFKA_STORAGE_ERROR,
        (TOPIC, 1): ErrorCode.LOG_DIR_NOT_FOUND,
    }


async def test_who_may_not_alter_the_cluster_moves_nothing_and_learns_nothing(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    node = cluster.nodes[1]
    node.data = DataApis(
        node.manager, Denying(lambda *what: what[:2] == (Operation.ALTER, ResourceType.CLUSTER)), lambda: True
    )
    refused = await alter_log_dirs(node, 2, ("/elsewhere", TOPIC, (0, 9)), (str(node.path), "no-such", (0,)))
    assert set(refused.values()) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


async def test_producers_are_described_by_any_replica(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    await cluster.nodes[1].produce(b"a", b"b", producer_id=7, producer_epoch=3, base_sequence=0)
    key = (ApiKey.DESCRIBE_PRODUCERS, 0)
    topics = (
        of(*key, "TopicRequest", name=TOPIC, partition_indexes=(0, 5)),
        of(*key, "TopicRequest", name="no-such", partition_indexes=(0,)),
    )
    for number in (1, 2):
        found = await call(cluster.nodes[number], *key, topics=topics)
        mine, other = found.topics
        (producer,) = mine.partitions[0].active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 3, 1)
        assert producer.last_timestamp > 0
        unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert [int(p.error_code) for p in (mine.partitions[1], other.partitions[0])] == [unknown, unknown]


async def test_positions_tell_how_far_behind(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    leader = cluster.nodes[1]
    for _ in range(4):
        await leader.produce(b"x")
    service = LogEndsService(leader.manager.registry)

    async def find(offset: int, service: LogEndsService = service) -> storage_pb2.PositionAnswer:
        position = storage_pb2.Position(topic_id=TOPIC_ID, partition=0, offset=offset)
        return (await service.find(storage_pb2.PositionsRequest(positions=[position]))).answers[0]

    behind, none, all_read = await find(1), await find(0), await find(4)
    assert (behind.high_watermark, behind.error.code) == (4, 0)
    assert 0 < behind.before_ms <= behind.newest_ms
    assert (none.before_ms, all_read.high_watermark, all_read.newest_ms) == (-1, 4, -1)
    assert 0 < none.waiting_ms <= behind.waiting_ms
    assert not all_read.HasField("waiting_ms")
    lag = Lag()
    lag.add(1, behind)
    lag.add(4, all_read)
    assert (lag.records, lag.behind_s(behind.waiting_ms + 1_500)) == (3, 1.5)
    assert lag.behind_s(behind.waiting_ms - 1_500) == 0
    unknown = Lag()
    unknown.add(
        0, storage_pb2.PositionAnswer(high_watermark=4, newest_ms=7, before_ms=-1)
    )  # of a node of before
    assert (unknown.records, unknown.behind_s(9)) == (4, None)
    unknown.add(1, behind)
    assert unknown.behind_s(behind.waiting_ms + 10) == 0.01
    follower = await find(1, LogEndsService(cluster.nodes[2].manager.registry))
    assert follower.error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_settings_of_node_and_cluster_count_at_once(cluster: MiniCluster) -> None:
    await make_topic(cluster)

    def put(kind: str, name: str, key: str, value: str | None) -> None:
        record = pb.ConfigRecord(resource_type=kind, resource_name=name, key=key)
        if value is not None:
            record.value = value
        cluster.change(pb.MetadataRecord(config=record))

    def sizes() -> list[int]:
        return [n.partition.replica.settings.segment_bytes for n in cluster.nodes.values()]

    put("cluster", "", "log.segment.bytes", "4096")
    assert sizes() == [4096, 4096, 4096]
    put("node", "2", "log.segment.bytes", "8192")
    assert sizes() == [4096, 8192, 4096]
    assert cluster.nodes[2].partition.log.settings.segment_bytes == 8192
    put("topic", TOPIC, "segment.bytes", "2048")
    assert sizes() == [2048] * 3
    put("topic", TOPIC, "segment.bytes", None)
    put("cluster", "", "log.segment.bytes", None)
    assert sizes() == [1024**3, 8192, 1024**3]


async def test_a_topic_that_is_made_anew_has_nothing_of_the_old_one(cluster: MiniCluster) -> None:
    cluster.make_topic(retention_ms="5")
    nodes = cluster.nodes.values()
    await eventually(lambda: all(KEY in node.manager.registry.partitions for node in nodes))
    assert cluster.nodes[1].partition.replica.settings.retention_ms == 5
    cluster.change(pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=TOPIC_ID)))
    await eventually(lambda: not any(node.manager.registry.partitions for node in nodes))
    await make_topic(cluster)
    assert cluster.nodes[1].partition.replica.settings.retention_ms == 7 * 24 * 60 * 60 * 1000


async def test_min_isr_follows_the_replication_factor(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    leader = cluster.nodes[1].partition.replica

    def move(*replicas: int, adding: tuple[int, ...] = (), isr: tuple[int, ...]) -> None:
        new = replace(
            cluster.state,
            replicas=ids(*replicas),
            adding_replicas=ids(*adding),
            isr=ids(*isr),
            partition_epoch=cluster.state.partition_epoch + 1,
        )
        cluster.change(pb.MetadataRecord(partition=new.to_pb()))

    assert leader.settings.min_insync_replicas == 2
    move(1, isr=(1,))
    assert leader.settings.min_insync_replicas == 1
    await eventually(lambda: not cluster.nodes[2].manager.registry.partitions)
    move(1, 2, 3, adding=(2, 3), isr=(1,))
    assert leader.settings.min_insync_replicas == 1
    assert (await cluster.nodes[1].produce(b"while they are added")).error == 0
    move(1, 2, 3, isr=(1, 2, 3))
    assert leader.settings.min_insync_replicas == 2
    await eventually(lambda: cluster.nodes[3].manager.registry.partitions)
    assert (await cluster.nodes[1].produce(b"afterwards")).error == 0


# --- the nearest replica --------------------------------------------------------------------


def give_racks(cluster: MiniCluster, racks: dict[int, str] | None = None) -> None:
    """Racks, and a listener that every node has."""
    for number, rack in (racks or RACKS).items():
        node = cluster.image.nodes[ids(number)[0]].to_pb()
        node.rack = rack
        node.listeners.append(common_pb2.Endpoint(listener="DIRECT", host="h", port=1))
        cluster.change(pb.MetadataRecord(node=node))


async def fetch(
    node: MiniNode,
    offset: int = 0,
    *,
    rack: str = "b",
    listener: str = "DIRECT",
    epoch: int = -1,
    wait_ms: int = 0,
) -> Any:
    item = FetchPartition(TOPIC, None, 0, epoch, offset, -1, -1, 1 << 20)
    request = FetchRequest(wait_ms, 1, 1 << 20, partitions=[item])
    request.rack_id = rack
    frame = bytearray(encode_fetch_request(11, 8, "test", request))
    answer = node.data.handle(RequestContext(listener=listener), parse_request_header(frame), frame)
    if isinstance(answer, Awaitable):
        answer = await answer
    assert isinstance(answer, list)
    return decode_fetch_response(b"".join(answer), 11).results[0]


async def test_a_consumer_is_sent_to_its_rack(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    give_racks(cluster)
    leader, near = cluster.nodes[1], cluster.nodes[2]
    await leader.produce(b"x" * 100)
    sent = await fetch(leader)
    assert (sent.error, sent.preferred_replica, sent.records) == (0, 2, [])
    await eventually(lambda: near.partition.replica.high_watermark == 1)
    found = await fetch(near)
    assert (found.error, found.preferred_replica, found.high_watermark) == (0, -1, 1)
    assert sum(map(len, found.records)) > 100
    # A replica out of the ISR is not named, another one of the rack is; none at all: the leader.
    cluster.set_isr(1, 3)
    assert (await fetch(leader)).preferred_replica == 3
    cluster.set_isr(1)
    assert (await fetch(leader)).preferred_replica == -1


async def test_a_consumer_knows_the_first_level_of_a_path_alone(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    give_racks(cluster, {1: "a/h1", 2: "b/h2", 3: "b/h3"})
    leader = cluster.nodes[1]
    await leader.produce(b"x")
    assert (await fetch(leader)).preferred_replica in (2, 3)
    assert (await fetch(leader, rack="a")).preferred_replica == -1
    assert (await fetch(leader, rack="a/h2")).preferred_replica == -1, "in the leader's own zone"


async def test_a_consumer_is_not_sent_where_its_metadata_name_nobody(cluster: MiniCluster) -> None:
    """As while listeners go from plaintext to TLS, node by node: it would come back for ever, and read nothing."""
    await make_topic(cluster)
    give_racks(cluster)
    leader = cluster.nodes[1]
    await leader.produce(b"x")
    assert (await fetch(leader)).preferred_replica == 2
    for number in (2, 3):
        node = cluster.image.nodes[ids(number)[0]].to_pb()
        node.listeners[0].security = "SSL"
        cluster.change(pb.MetadataRecord(node=node))
    found = await fetch(leader)
    assert found.preferred_replica == -1
    assert found.records


async def test_others_read_from_the_leader(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    give_racks(cluster)
    leader, near = cluster.nodes[1], cluster.nodes[2]
    await leader.produce(b"x")
    for more in ({"rack": ""}, {"rack": "a"}, {"rack": "c"}, {"listener": ""}, {"listener": "OTHER"}):
        found = await fetch(leader, **more)  # type: ignore[arg-type]
        assert (found.error, found.preferred_replica) == (0, -1), more
        assert found.records, more
    # Through a gateway, or without a rack, a follower is no place to read from.
    for more in ({"rack": ""}, {"listener": ""}):
        found = await fetch(near, **more)  # type: ignore[arg-type]
        assert found.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await fetch(near, epoch=7)).error == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (await fetch(near, 99)).error == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_follower_wakes_who_waits_for_records(cluster: MiniCluster) -> None:
    await make_topic(cluster)
    give_racks(cluster)
    near = cluster.nodes[2]
    await eventually(lambda: near.partition.replica.following is not None)
    task = asyncio.ensure_future(fetch(near, wait_ms=60_000))
    await eventually(lambda: near.partition.readers)
    await cluster.nodes[1].produce(b"news")
    found = await asyncio.wait_for(task, 50)
    assert found.records
