"""Events say what changed and why: from the image before, the image after, and the causes in the command."""

from __future__ import annotations

import pytest

from penstock_controller.state import configs, directories, elections, gateways, nodes, topics
from penstock_controller.state.causes import CAUSES_PER_COMMAND_MAX, DETAIL_LENGTH_MAX, bounded, cause, of_isr
from penstock_controller.state.generation import Generated
from penstock_controller.state.history.memory import EventMemory
from penstock_core.history.changes import PartitionChange
from penstock_core.ids import NodeId
from penstock_core.limits import FEATURE_LEVEL
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as operations
from support.told_cluster import BEGAN_MS, ToldCluster

PROCESS = common.ProcessInfo(version="1.0", feature_level=FEATURE_LEVEL)
Told = list[tuple[str, str, str]]


def told(events: list[operations.ClusterEvent]) -> Told:
    return [(e.event, e.subject, e.change) for e in events]


@pytest.fixture
def cluster() -> ToldCluster:
    made = ToldCluster(1, 2, 3)
    made.create("t", (1, 2, 3), (2, 3, 1))
    return made


def test_a_silent_node_is_told_with_each_partition_that_it_led_or_followed(cluster: ToldCluster) -> None:
    made = cluster.fence(1)
    assert told(made) == [
        ("leader", "partition t-0", "leader 1 -> 2, epoch 1, from ISR, ISR 1,2,3 -> 2,3"),
        ("isr", "partition t-1", "ISR 2,3,1 -> 2,3"),
        ("node", "node 1", "fenced; it led 1 partition; it left 2 ISRs"),
    ]
    for event in made:
        assert (event.cause.kind, event.cause.subject) == ("fence", "node 1")
        assert event.cause.detail == "silent for 2100 ms"
        assert event.version == cluster.image.version
        assert event.time_ms == cluster.now_ms > BEGAN_MS


def test_what_has_no_leader_left_is_counted(cluster: ToldCluster) -> None:
    cluster.create("alone", (3,))
    made = cluster.fence(3)
    assert ("leader", "partition alone-0", "leader 3 -> none, epoch 1, ISR 3 -> none, ELR none -> 3") in told(
        made
    )
    assert made[-1].change == "fenced; it led 1 partition, 1 of them has no leader now; it left 3 ISRs"
    back = cluster.unfence(3)
    assert (
        "leader",
        "partition alone-0",
        "leader none -> 3, epoch 2, from ELR, preferred, ISR none -> 3, ELR 3 -> none",
    ) in told(back)
    assert back[0].cause.kind == "unfence"


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"clean_shutdown": True}, "after a clean stop"),
        ({}, "after an unclean stop"),
        ({"damaged": [api.TopicPartitionId(partition=1)]}, "with 1 damaged replicas"),
    ],
)
def test_how_a_node_comes_back(cluster: ToldCluster, fields: dict[str, object], detail: str) -> None:
    made = cluster.register(2, **fields)
    assert {e.cause.detail for e in made} == {detail}
    assert made[-1].change.startswith("registered with epoch ")


def test_a_new_directory_and_a_new_node_are_named(cluster: ToldCluster) -> None:
    cluster.fence(2)
    (*_, event) = cluster.register(2, directory_id=b"n" * 16)
    assert event.cause.detail == "with a new directory"
    # The old one is told of when it is refused for good.
    made = cluster.do(Generated(True, directories.replaced(cluster.image, [NodeId(2)], 77)))
    assert told(made) == [("node", "node 2", "a directory that it had before was retired")]
    (event,) = cluster.register(9)
    assert event.cause.detail == "new"


def test_a_stop_and_a_failed_disk_are_not_the_same(cluster: ToldCluster) -> None:
    assert {e.cause.detail for e in cluster.drain(1)} == {"TERM"}
    made = cluster.drain(2, disk_failed=True)
    assert {e.cause.detail for e in made} == {"disk failed"}
    assert made[-1].change.startswith("stopping; disk failed")


def test_a_leader_says_why_it_wants_another_isr(cluster: ToldCluster) -> None:
    said = {"reason": "node 3 lagging", "lag_ms": 31_000, "lag_bytes": 5_242_880}
    (event,) = cluster.propose("t-0", (1, 2), **said)
    assert told([event]) == [("isr", "partition t-0", "ISR 1,2,3 -> 1,2")]
    assert event.cause.detail == "leader 1: node 3 lagging, 31000 ms, 5242880 bytes"
    (event,) = cluster.propose("t-0", (1, 2, 3), reason="node 3 caught up")
    assert event.cause.detail == "leader 1: node 3 caught up"


def test_topics_settings_gateways_and_elections_are_told_with_who_asked(cluster: ToldCluster) -> None:
    (event,) = cluster.create("u", (1, 2), (2, 1))
    assert told([event]) == [("topic", "topic u", "created with 2 partitions, replication factor 2")]
    assert event.cause.principal == "User:ann"
    request = api.CreatePartitionsRequest(
        topics=[api.NewPartitions(name="u", total_count=3)], principal="User:bob"
    )
    (event,) = cluster.do(topics.create_partitions(cluster.ctx, request))
    assert (event.change, event.cause.principal) == ("grown from 2 to 3 partitions", "User:bob")
    change = api.ConfigChange(key="retention.ms", value="5000")
    resource = api.ConfigResource(resource_type="topic", resource_name="u", changes=[change])
    made = cluster.do(
        configs.alter_configs(cluster.ctx, api.AlterConfigsRequest(resources=[resource], principal="User:c"))
    )
    assert told(made) == [("config", "topic u", "retention.ms = 5000")]
    assert made[0].cause.principal == "User:c"
    gateway = api.RegisterGatewayRequest(gateway_id="g", process=PROCESS)
    assert told(cluster.do(gateways.register_gateway(cluster.ctx, gateway))) == [
        ("gateway", "gateway g", "registered")
    ]
    epoch = cluster.image.gateways["g"].gateway_epoch
    (event,) = cluster.do(gateways.remove_gateway(cluster.ctx, "g", epoch, "it is stopping"))
    assert event.cause.detail == "it is stopping"
    cluster.fence(1)
    cluster.unfence(1)
    cluster.propose("t-0", (1, 2, 3))
    (event,) = cluster.do(elections.elect_leaders(cluster.ctx, api.ElectLeadersRequest(principal="User:d")))
    assert event.change == "leader 2 -> 1, epoch 2, from ISR, preferred"
    assert (event.cause.detail, event.cause.principal) == ("preferred, by hand", "User:d")
    refs = [api.TopicRef(name="u")]
    (event,) = cluster.do(
        topics.delete_topics(cluster.ctx, api.DeleteTopicsRequest(topics=refs, principal="User:e"))
    )
    assert (event.subject, event.change, event.cause.principal) == ("topic u", "deleted", "User:e")


def test_an_older_build_says_no_cause_and_the_nodes_own_records_stand_in(cluster: ToldCluster) -> None:
    made = cluster.do(nodes.fence_node(cluster.ctx, NodeId(1), cluster.epoch(1), "x"), with_causes=False)
    assert {(e.cause.kind, e.cause.subject, e.cause.detail) for e in made} == {("fence", "node 1", "")}


def test_each_of_two_nodes_in_one_command_is_the_cause_of_its_own_changes(cluster: ToldCluster) -> None:
    first = nodes.fence_node(cluster.ctx, NodeId(1), cluster.epoch(1), "a")
    after = cluster.ctx.after(first.all_records())
    second = nodes.fence_node(after, NodeId(2), cluster.epoch(2), "b")
    first = nodes.fence_node(cluster.ctx, NodeId(1), cluster.epoch(1), "a")
    both = type(first)(
        True, [*first.all_records(), *second.all_records()], causes=(*first.causes, *second.causes)
    )
    made = {e.subject: e for e in cluster.do(both)}
    assert made["node 1"].cause.detail == "a"
    assert made["node 2"].cause.detail == "b"
    assert made["partition t-0"].cause.detail in ("a", "b")


def test_causes_are_bounded() -> None:
    many = [c for n in range(1_000) for c in cause("topic", f"topic {n}", "x" * 5_000)]
    kept = bounded([*many[:3], *many])
    assert len(kept) == CAUSES_PER_COMMAND_MAX
    assert all(len(c.detail) == DETAIL_LENGTH_MAX for c in kept)
    proposals = [api.IsrProposal(partition=n, reason="node 3 lagging", lag_ms=n) for n in range(1_000)]
    (one,) = of_isr([f"t-{n}" for n in range(1_000)], proposals, NodeId(1))
    assert one.detail == "leader 1: node 3 lagging, 999 ms"


def test_a_change_is_read_as_it_was_written(cluster: ToldCluster) -> None:
    made = [*cluster.fence(1), *cluster.fence(2), *cluster.unfence(2)]
    for event in made:
        if event.subject.startswith("partition "):
            change = PartitionChange.parse(event.change)
            assert (change.text(), change.event) == (event.change, event.event)
    newer = PartitionChange.parse("leader 1 -> 2, moon full, epoch 3")
    assert (newer.leader, newer.epoch, newer.unknown) == ((1, 2), 3, ("moon full",))


def event(number: int, subject: str, operation_id: int = 0) -> operations.ClusterEvent:
    return operations.ClusterEvent(
        version=number,
        time_ms=number,
        event="isr",
        subject=subject,
        cause=pb.Cause(operation_id=operation_id),
    )


def test_the_newest_events_are_found_by_what_they_are_about() -> None:
    memory = EventMemory(events_max=5)
    for number in range(1, 9):
        memory.add(event(number, f"partition t-{number % 2}", operation_id=number if number == 7 else 0))
    assert len(memory) == 5
    assert [e.version for e in memory.newest((), 0, 100)] == [8, 7, 6, 5, 4]
    assert [e.version for e in memory.newest(["partition t-1"], 0, 100)] == [7, 5]
    assert [e.version for e in memory.newest(["partition t-1", "partition t-0"], 0, 3)] == [8, 7, 6]
    assert [e.version for e in memory.newest(["operation 7", "partition t-1"], 6, 100)] == [7]
    assert not list(memory.newest(["node 1"], 0, 100))
    assert memory.incomplete_before_ms == 4, "what was dropped is not known any more"
    memory.forget_before(8)
    assert [e.version for e in memory.newest((), 0, 100)] == [8]
