"""Topics: placement, validation with Kafka's errors, settings."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_controller.state import configs, topics
from penstock_controller.state.generation import Context, Defaults
from penstock_controller.state.placement import Load, place_steps
from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId
from penstock_core.limits import PARTITIONS_PER_REQUEST_MAX
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.turns import all_at_once


def spread(counts: Counter[NodeId], nodes: list[NodeId]) -> int:
    values = [counts[n] for n in nodes]
    return max(values) - min(values)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    node_count=st.integers(1, 12),
    partitions=st.integers(1, 40),
    factor=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_replicas_and_leaders_are_even(node_count: int, partitions: int, factor: int, seed: int) -> None:
    nodes = [NodeId(n) for n in range(1, node_count + 1)]
    factor = min(factor, node_count)
    placed = all_at_once(
        place_steps(dict.fromkeys(nodes, ""), partitions, factor, Load(), Load(), random.Random(seed))
    )
    load = Load()
    for replicas in placed:
        assert len(set(replicas)) == factor
        load.add(replicas)
    assert spread(load.replicas, nodes) <= 1
    assert spread(load.leaders, nodes) <= 1


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rack_count=st.integers(2, 5),
    per_rack=st.integers(1, 4),
    partitions=st.integers(1, 30),
    factor=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_racks_are_spread_and_nodes_stay_even(
    rack_count: int, per_rack: int, partitions: int, factor: int, seed: int
) -> None:
    racks = {NodeId(r * per_rack + i + 1): f"r{r}" for r in range(rack_count) for i in range(per_rack)}
    factor = min(factor, len(racks))
    placed = all_at_once(place_steps(racks, partitions, factor, Load(), Load(), random.Random(seed)))
    load = Load()
    for replicas in placed:
        load.add(replicas)
        used = Counter(racks[n] for n in replicas)
        assert max(used.values()) - min(used[f"r{r}"] for r in range(rack_count)) <= 1
    if factor <= rack_count:
        assert spread(load.replicas, list(racks)) <= 1
        assert spread(load.leaders, list(racks)) <= 1


def test_many_small_topics_fill_the_cluster_evenly() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    nodes = [NodeId(n) for n in range(1, 8)]
    load = Load()
    for _ in range(100):
        for replicas in all_at_once(
            place_steps(dict.fromkeys(nodes, ""), rng.randrange(1, 4), 3, load, Load(), rng)
        ):
            load.add(replicas)
    assert spread(load.replicas, nodes) <= 2
    assert spread(load.leaders, nodes) <= 2


def test_unequal_racks_still_spread() -> None:
    racks = {NodeId(1): "a", NodeId(2): "a", NodeId(3): "a", NodeId(4): "b"}
    for replicas in all_at_once(place_steps(racks, 12, 2, Load(), Load(), random.Random(1))):
        assert {racks[n] for n in replicas} == {"a", "b"}


# --- requests --------------------------------------------------------------------------


def image(node_count: int = 3, fenced: tuple[int, ...] = ()) -> MetadataImage:
    records = [pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=b"c" * 16))]
    for n in range(1, node_count + 1):
        records.append(
            pb.MetadataRecord(node=pb.NodeRecord(node_id=n, directory_id=bytes([n]) * 16, fenced=n in fenced))
        )
    return MetadataImage.from_records(records, 10)


def context(of: MetadataImage, defaults: Defaults | None = None) -> Context:
    return Context(of, random.Random(5), defaults or Defaults())


def new(name: str, count: int = -1, factor: int = -1, **configs: str) -> api.NewTopic:
    topic = api.NewTopic(name=name, partition_count=count, replication_factor=factor)
    for key, value in configs.items():
        topic.configs[key.replace("_", ".")] = value
    return topic


def create(
    of: MetadataImage, *wanted: api.NewTopic, defaults: Defaults | None = None, validate_only: bool = False
) -> tuple[MetadataImage, api.CreateTopicsResponse]:
    request = api.CreateTopicsRequest(topics=wanted, validate_only=validate_only)
    made = topics.create_topics(context(of, defaults), request)
    return (of.apply(made.all_records(), of.version + 1) if made.further else of), made.reply


def test_defaults() -> None:
    of, reply = create(image(5), new("t"))
    assert (reply.topics[0].partition_count, reply.topics[0].replication_factor) == (1, 3)
    of, reply = create(image(2), new("t"))
    assert reply.topics[0].replication_factor == 2
    of, reply = create(image(5), new("t"), defaults=Defaults(6, 2))
    assert (reply.topics[0].partition_count, reply.topics[0].replication_factor) == (6, 2)
    topic = of.topic("t")
    assert topic is not None
    assert topic.topic_id == reply.topics[0].topic_id
    for partition in topic.partitions.values():
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]


def assigned(name: str, *lists: list[int]) -> api.NewTopic:
    topic = new(name)
    for node_ids in lists:
        topic.assignments.add(node_ids=node_ids)
    return topic


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        (new(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
        (new("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "a/b"),
        (new("have.it"), ErrorCode.TOPIC_ALREADY_EXISTS, "have.it"),
        (new("have_it"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides"),
        (new("t", 0), ErrorCode.INVALID_PARTITIONS, "0 partitions"),
        (new("t", -5), ErrorCode.INVALID_PARTITIONS, "-5"),
        (new("t", PARTITIONS_PER_REQUEST_MAX + 1), ErrorCode.POLICY_VIOLATION, "at most"),
        (new("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "factor 0"),
        (new("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR, r"3 storage node\(s\) are live"),
        (new("t", 1, 1, retention_ms="soon"), ErrorCode.INVALID_CONFIG, "retention.ms"),
        (new("t", 1, 1, no_such="1"), ErrorCode.INVALID_CONFIG, "no.such"),
        (assigned("t", [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "twice"),
        (assigned("t", [1, 9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no node has id 9"),
        (assigned("t", [1, 2], [3]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "1 replicas"),
        (assigned("t", []), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no node"),
        (assigned("t", [4]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "fenced"),
    ],
)
def test_refused_topics(wanted: api.NewTopic, code: ErrorCode, words: str) -> None:
    of, _ = create(image(4, fenced=(4,)), new("have.it"))
    after, reply = create(of, wanted, new("good"))
    assert reply.topics[0].error.code == code
    assert re.search(words, reply.topics[0].error.message)
    # The others of the request are created.
    assert not reply.topics[1].error.code
    assert set(after.topic_ids) == {"have.it", "good"}


def test_counts_and_assignments_exclude_each_other() -> None:
    wanted = assigned("t", [1])
    wanted.partition_count = 1
    assert create(image(), wanted)[1].topics[0].error.code == ErrorCode.INVALID_REQUEST


def test_doubled_and_colliding_within_a_request() -> None:
    of, reply = create(image(), new("a"), new("a"), new("x.y"), new("x_y"))
    assert [t.error.code for t in reply.topics] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert set(of.topic_ids) == {"x.y"}


def test_validate_only_creates_nothing() -> None:
    of, reply = create(image(), new("t", 4), validate_only=True)
    assert not of.topics
    assert (reply.topics[0].partition_count, reply.topics[0].error.code) == (4, 0)


def test_manual_assignment_leaves_fenced_nodes_out_of_the_isr() -> None:
    of, _ = create(image(3, fenced=(1,)), assigned("t", [1, 2, 3]))
    topic = of.topic("t")
    assert topic is not None
    assert (topic.partitions[0].isr, topic.partitions[0].leader) == ((2, 3), 2)


def test_many_partitions_are_placed_in_steps_and_only_what_is_asked_for_is_looked_at() -> None:
    """10,000 partitions held a controller's loop for half a second."""
    request = api.CreateTopicsRequest(topics=[new("t", 1_000, 2), new("t!", 5), new("u", 3, 1)])
    made = topics.create_topics(context(image()), request)
    assert [(t.partition_count, t.replication_factor) for t in made.reply.topics] == [
        (1_000, 2),
        (0, 0),
        (3, 1),
    ]
    assert not made.records and made.further is not None
    steps = list(made.further)
    placed = next(index for index, record in enumerate(steps) if record is not None)
    assert placed >= 1_000 // 20 - 1
    kinds = [str(record.WhichOneof("record")) for record in steps if record is not None]
    assert kinds == ["topic", *["partition"] * 1_000, "topic", *["partition"] * 3]


def grow(of: MetadataImage, *wanted: api.NewPartitions) -> tuple[MetadataImage, api.CreatePartitionsResponse]:
    made = topics.create_partitions(context(of), api.CreatePartitionsRequest(topics=wanted))
    return (of.apply(made.all_records(), of.version + 1) if made.further else of), made.reply


def test_more_partitions() -> None:
    of, _ = create(image(), new("t", 2, 2))
    of, reply = grow(of, api.NewPartitions(name="t", total_count=6))
    topic = of.topic("t")
    assert topic is not None
    assert sorted(topic.partitions) == list(range(6))
    leaders = Counter(p.replicas[0] for p in topic.partitions.values())
    assert set(leaders.values()) == {2}
    assert reply.topics[0].partition_count == 6


def test_refused_growth() -> None:
    of, _ = create(image(), new("t", 2, 2))
    lists = [api.ReplicaList(node_ids=[1, 2])]
    wanted = [
        (api.NewPartitions(name="t", total_count=2), ErrorCode.INVALID_PARTITIONS),
        (api.NewPartitions(name="u", total_count=2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (api.NewPartitions(name="t", total_count=4, assignments=lists), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ]
    for request, code in wanted:
        after, reply = grow(of, request)
        assert reply.topics[0].error.code == code
        assert after is of


def test_delete() -> None:
    of, made = create(image(), new("a", retention_ms="1"), new("b"))
    refs = [
        api.TopicRef(name="a"),
        api.TopicRef(topic_id=made.topics[1].topic_id),
        api.TopicRef(name="a"),
        api.TopicRef(name="zz"),
        api.TopicRef(topic_id=b"z" * 16),
    ]
    result = topics.delete_topics(context(of), api.DeleteTopicsRequest(topics=refs))
    assert [t.error.code for t in result.reply.topics] == [
        0,
        0,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    after = of.apply(result.records, of.version + 1)
    assert not after.topics
    assert not after.configs
    assert result.reply.topics[1].name == "b"


def alter(
    of: MetadataImage, *resources: api.ConfigResource
) -> tuple[MetadataImage, api.AlterConfigsResponse]:
    made = configs.alter_configs(context(of), api.AlterConfigsRequest(resources=resources))
    records = made.all_records()
    return (of.apply(records, of.version + 1) if records else of), made.reply


def change(key: str, value: str | None) -> api.ConfigChange:
    return api.ConfigChange(key=key) if value is None else api.ConfigChange(key=key, value=value)


def test_settings_are_set_and_removed_all_or_nothing() -> None:
    of, _ = create(image(), new("t"))
    good = api.ConfigResource(
        resource_type="topic",
        resource_name="t",
        changes=[change("retention.ms", "5"), change("segment.ms", "7")],
    )
    of, reply = alter(of, good)
    assert of.config("topic", "t") == {"retention.ms": "5", "segment.ms": "7"}
    assert reply.results[0].code == 0
    bad = api.ConfigResource(
        resource_type="topic", resource_name="t", changes=[change("retention.ms", None), change("nope", "7")]
    )
    after, reply = alter(of, bad)
    assert reply.results[0].code == ErrorCode.INVALID_CONFIG
    assert after is of
    of, _ = alter(
        of,
        api.ConfigResource(resource_type="topic", resource_name="t", changes=[change("retention.ms", None)]),
    )
    assert of.config("topic", "t") == {"segment.ms": "7"}
    for kind, name, code in (
        ("topic", "u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("node", "77", ErrorCode.INVALID_REQUEST),
        ("moon", "", ErrorCode.INVALID_REQUEST),
    ):
        _, reply = alter(of, api.ConfigResource(resource_type=kind, resource_name=name))
        assert reply.results[0].code == code


def test_settings_that_contradict_each_other_are_refused() -> None:
    lags = {"min_compaction_lag_ms": "1001", "max_compaction_lag_ms": "1000"}
    of, made = create(image(), new("t", -1, -1, **lags), new("u", min_compaction_lag_ms="1001"))
    assert [t.error.code for t in made.topics] == [ErrorCode.INVALID_CONFIG, 0]
    resource = api.ConfigResource(resource_type="topic", resource_name="u")
    resource.changes.append(change("max.compaction.lag.ms", "1000"))
    after, reply = alter(of, resource)
    assert after is of and reply.results[0].code == ErrorCode.INVALID_CONFIG
    resource.changes.append(change("min.compaction.lag.ms", None))
    of, reply = alter(of, resource)
    assert reply.results[0].code == 0 and of.config("topic", "u") == {"max.compaction.lag.ms": "1000"}


def test_lower_min_isr_clears_the_elr() -> None:
    of, made = create(image(), assigned("t", [1, 2, 3]))
    topic_id = made.topics[0].topic_id
    below = pb.PartitionRecord(
        topic_id=topic_id,
        replicas=[1, 2, 3],
        isr=[1],
        elr=[2],
        leader=1,
        partition_epoch=3,
        last_known_leader=1,
    )
    of = of.apply([pb.MetadataRecord(partition=below)], of.version + 1)
    of, _ = alter(
        of,
        api.ConfigResource(
            resource_type="topic", resource_name="t", changes=[change("min.insync.replicas", "1")]
        ),
    )
    topic = of.topic("t")
    assert topic is not None
    assert (topic.partitions[0].elr, topic.partitions[0].partition_epoch) == ((), 4)


def test_unclean_election_gives_a_leader_when_it_is_switched_on() -> None:
    of, made = create(image(3, fenced=(1,)), assigned("t", [1, 2]))
    gone = pb.PartitionRecord(
        topic_id=made.topics[0].topic_id,
        replicas=[1, 2],
        elr=[1],
        leader=-1,
        partition_epoch=3,
        last_known_leader=1,
    )
    of = of.apply([pb.MetadataRecord(partition=gone)], of.version + 1)
    of, _ = alter(
        of,
        api.ConfigResource(
            resource_type="topic",
            resource_name="t",
            changes=[change("unclean.leader.election.enable", "true")],
        ),
    )
    topic = of.topic("t")
    assert topic is not None
    assert (topic.partitions[0].leader, topic.partitions[0].recovering) == (2, True)


def append(key: str, value: str, *, subtract: bool = False) -> api.ConfigChange:
    operation = api.CONFIG_OPERATION_SUBTRACT if subtract else api.CONFIG_OPERATION_APPEND
    return api.ConfigChange(key=key, value=value, operation=operation)


def of_topic(*changes: api.ConfigChange, replace_all: bool = False) -> api.ConfigResource:
    return api.ConfigResource(
        resource_type="topic", resource_name="t", changes=changes, replace_all=replace_all
    )


def test_lists_grow_and_shrink() -> None:
    of, _ = create(image(), new("t"))
    of, _ = alter(of, of_topic(append("cleanup.policy", "compact")))
    assert of.config("topic", "t") == {"cleanup.policy": "delete,compact"}
    of, _ = alter(of, of_topic(append("cleanup.policy", "delete", subtract=True)))
    assert of.config("topic", "t") == {"cleanup.policy": "compact"}
    emptied, _ = alter(of, of_topic(append("cleanup.policy", "compact", subtract=True)))
    assert emptied.config("topic", "t") == {"cleanup.policy": ""}  # all is kept for ever
    for bad in (append("cleanup.policy", "shred"), append("retention.ms", "5")):
        after, reply = alter(of, of_topic(bad))
        assert (after, reply.results[0].code) == (of, ErrorCode.INVALID_CONFIG)


def test_replacing_removes_what_is_not_named() -> None:
    of, _ = create(image(), new("t"))
    of, _ = alter(of, of_topic(change("retention.ms", "5"), change("segment.ms", "7")))
    of, _ = alter(of, of_topic(change("segment.ms", "8"), replace_all=True))
    assert of.config("topic", "t") == {"segment.ms": "8"}


def test_removing_what_was_never_set_is_no_error() -> None:
    of, _ = create(image(), new("t"))
    after, reply = alter(of, of_topic(change("leader.replication.throttled.replicas", None)))
    assert (after, reply.results[0].code) == (of, 0)
