"""How a thing is now, and what would make it well."""

from __future__ import annotations

from penstock_core.history import now
from penstock_core.ids import NodeId, TopicId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api

TOPIC = TopicId(b"t" * 16)


def image_of(
    *,
    replicas: str = "123",
    isr: str = "123",
    leader: int = 1,
    fenced: str = "",
    elr: str = "",
    adding: str = "",
    **more: str,
) -> MetadataImage:
    records = [
        pb.MetadataRecord(node=pb.NodeRecord(node_id=n, node_epoch=n, fenced=str(n) in fenced))
        for n in range(1, 5)
    ]
    records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=TOPIC, name="t")))
    partition = pb.PartitionRecord(
        topic_id=TOPIC, partition=0, leader=leader, leader_epoch=5, last_known_leader=1,
        replicas=map(int, replicas), isr=map(int, isr), elr=map(int, elr), adding_replicas=map(int, adding),
    )  # fmt: skip
    records.append(pb.MetadataRecord(partition=partition))
    for operation_id, node_id in more.items():
        record = pb.OperationRecord(
            operation_id=int(operation_id[1:]), kind="node-drain", state=pb.OPERATION_STATE_RUNNING
        )
        records.append(pb.MetadataRecord(operation=record))
        move = pb.OperationMoveRecord(
            operation_id=record.operation_id, topic_id=TOPIC, replicas=[int(node_id)]
        )
        records.append(pb.MetadataRecord(operation_move=move))
    return MetadataImage().apply(records, 1)


def summary(image: MetadataImage) -> str:
    return now.of_partition(image, "t", image.topics[TOPIC].partitions[0]).summary


def test_partitions() -> None:
    assert summary(image_of()) == "t-0 is well: its preferred leader leads, and all replicas are in sync"
    assert "its preferred leader, node 1, gets it back by itself" in summary(image_of(leader=2))
    assert summary(image_of(isr="12", fenced="3")) == (
        "t-0 takes records, but lacks node 3 in sync; it is well again once node 3 is started"
    )
    assert summary(image_of(isr="1", fenced="3")) == (
        "t-0 takes no acks=all: 1 of 2 needed replicas are in sync; it is well again once node 3 is started "
        "and node 2 has caught up"
    )
    assert "it needs one of nodes 1, 2 back" in summary(image_of(isr="", leader=-1, elr="12", fenced="123"))
    assert "it needs node 1 back" in summary(image_of(isr="", leader=-1, fenced="123"))
    assert "waits for node 4 to be in sync" in summary(image_of(replicas="1234", adding="4"))


def test_a_move_is_named_with_its_operation() -> None:
    image = image_of(replicas="1234", adding="4", _7="4")
    lines = now.of_partition(image, "t", image.topics[TOPIC].partitions[0]).lines
    assert "being moved by operation 7: comes to 4, leaves none" in lines


def of_node(image: MetadataImage, node_id: int) -> now.Now:
    counts = now.NodeCounts()
    list(counts.look(image, NodeId(node_id)))
    return now.of_node(image, image.nodes[NodeId(node_id)], counts, None)


def test_nodes() -> None:
    assert of_node(image_of(), 1).summary == "node 1 is well: all of its 1 replicas are in sync"
    gone = of_node(image_of(isr="", leader=-1, elr="1", fenced="123"), 1)
    assert (
        gone.summary
        == "node 1 is fenced: start it, or look at its log if it runs; 1 partitions have no leader until it is back"
    )
    assert "no leader until it is back: t-0" in gone.lines
    assert "1 of its 1 replicas are not in sync yet" in of_node(image_of(isr="12"), 3).summary


def of_operation(image: MetadataImage, **record: object) -> now.Now:
    look = now.OperationLook()
    list(look.look(image, 7))
    made = pb.OperationRecord(operation_id=7, kind="node-drain", **record)  # type: ignore[arg-type]
    return now.of_operation(image, api.Operation(record=made), look, 9_000)


def test_operations() -> None:
    image = image_of(replicas="1234", adding="4", _7="4")
    runs = of_operation(image, state=pb.OPERATION_STATE_RUNNING, created_ms=2_000, created_by="User:ann")
    assert runs.summary == "operation 7 (node-drain) is running; it waits for node 4 to catch up with t-0"
    assert "recorded 7.0 s ago by User:ann" in runs.lines
    lost = image_of(replicas="1234", adding="4", fenced="4", _7="4")
    assert (
        "waits for node 4, to which replicas go: start it"
        in of_operation(lost, state=pb.OPERATION_STATE_RUNNING).summary
    )
    paused = of_operation(
        image, state=pb.OPERATION_STATE_PAUSED, reason="paused by User:ann", paused_by_hand=True
    )
    assert (
        paused.summary
        == "operation 7 (node-drain) is paused: by User:ann; `penstock operation resume 7` lets it go on"
    )
    gate = of_operation(
        image, state=pb.OPERATION_STATE_PAUSED, reason="health: t-0 below min.insync.replicas"
    )
    assert gate.summary.endswith("is paused: health: t-0 below min.insync.replicas")
    assert (
        of_operation(image, state=pb.OPERATION_STATE_DONE).summary
        == "operation 7 (node-drain) has ended: done"
    )
    about = pb.OperationParameters(node_ids=[2], replacement_node_id=3)
    replaced = of_operation(image, state=pb.OPERATION_STATE_DONE, parameters=about)
    assert replaced.summary == "operation 7 (node-drain of node 2 by node 3) has ended: done"
    step = pb.OperationStep(
        name="node-1", state=pb.OPERATION_STEP_STATE_RUNNING, reason="node-1 is not back; see its log"
    )
    late = of_operation(image, state=pb.OPERATION_STATE_PAUSED, reason=step.reason, steps=[step])
    assert late.summary.endswith("see its log: mend it, then `penstock operation resume 7 --via ...` goes on")
