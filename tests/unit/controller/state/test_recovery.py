"""Who leads what the metadata lost: the log that is ahead, and nobody before all have told."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from penstock_controller.state.generation import Context, partition_record
from penstock_controller.state.nodes import rules_for, unfence_node
from penstock_controller.state.partitions import change_partition
from penstock_controller.state.reassignments import reassign
from penstock_controller.state.recovery import Offers, adopt, confirm, confirmed, offered, scan_unconfirmed
from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.restore import EPOCHS_UP
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from unit.core.metadata.test_image import cluster, node, topic

T, U = TopicId(b"t" * 16), TopicId(b"u" * 16)
RESTORED = 1_000


def unconfirmed(*replicas: int, topic_id: bytes = T, index: int = 0, epoch: int = 1_004) -> pb.MetadataRecord:
    return pb.MetadataRecord(
        partition=pb.PartitionRecord(
            topic_id=topic_id,
            partition=index,
            replicas=replicas,
            leader=-1,
            last_known_leader=-1,
            leader_epoch=epoch,
            partition_epoch=1_009,
        )
    )


def image_of(*records: pb.MetadataRecord, nodes: tuple[int, ...] = (1, 2, 3)) -> MetadataImage:
    """A restored cluster in which all nodes live."""
    restored = cluster()
    restored.cluster.restored_version = RESTORED
    known = [node(n, fenced=False) for n in nodes]
    return MetadataImage.from_records([restored, *known, *records], RESTORED + 10)


def context(image: MetadataImage, now_ms: int = 0) -> Context:
    return Context(image, random.Random(1), alive=lambda _: True, now_ms=now_ms)


def replica(topic_id: bytes, index: int, epoch: int, end: int, **more: object) -> api.UnknownReplica:
    return api.UnknownReplica(
        topic_id=topic_id,
        partition=index,
        last_leader_epoch=epoch,
        flushed_end_offset=end,
        **{"topic": "t", **more},  # type: ignore[arg-type]
    )


def told(*nodes: tuple[int, list[api.UnknownReplica]], version: int = RESTORED) -> Offers:
    offers = Offers()
    for node_id, replicas in nodes:
        tell(offers, node_id, replicas, version)
    return offers


def tell(offers: Offers, node_id: int, replicas: list[api.UnknownReplica], version: int = RESTORED) -> None:
    report = api.NodeReport(
        unknown_replicas=replicas, first_of_unknown=True, last_of_unknown=True, unknown_version=version
    )
    offers.take(NodeId(node_id), 1, report)


def test_a_move_that_is_taken_back_before_nodes_have_told_costs_no_record() -> None:
    """The backup was made during a move from 1 to 3, which has ended since; the operator cancels what it shows."""
    during = unconfirmed(3, 1)
    during.partition.adding_replicas.append(3)
    during.partition.removing_replicas.append(1)
    image = image_of(topic(T, "t"), during)
    (old,) = [p for p in scan_unconfirmed(image) if p is not None]
    back = reassign(old, (NodeId(1),), rules_for(image, image.topics[T]))
    assert back is not None
    image = image.apply([partition_record(back)], image.version + 1)
    new = led(image, told((3, [replica(T, 0, 7, 500)]), (1, [])))
    assert (new.leader, new.isr) == (3, (3,))
    assert NodeId(3) in new.replicas, "node 3 would have deleted the only copy"
    # And it goes once node 1 has everything.
    done = change_partition(new, rules_for(image, image.topics[T]), isr=[NodeId(3), NodeId(1)])
    assert done is not None
    assert (done.replicas, done.leader) == ((1,), 1)


def led(image: MetadataImage, offers: Offers) -> PartitionImage:
    (partition,) = [p for p in scan_unconfirmed(image) if p is not None]
    generated = confirm(context(image), [partition.key], offers)
    assert generated.reply == 1
    new = image.apply(generated.records, image.version + 1).partition(*partition.key)
    assert new is not None
    return new


def test_the_later_epoch_leads_before_the_longer_log_and_equals_are_in_sync() -> None:
    image = image_of(topic(T, "t"), unconfirmed(1, 2, 3))
    offers = told((1, [replica(T, 0, 4, 900)]), (2, [replica(T, 0, 5, 30)]), (3, [replica(T, 0, 5, 30)]))
    new = led(image, offers)
    assert new.leader == 3 and new.isr == (2, 3)
    assert (new.leader_epoch, new.partition_epoch) == (1_005, 1_010)
    assert not new.unconfirmed


def test_who_is_behind_is_not_in_sync() -> None:
    image = image_of(topic(T, "t"), unconfirmed(1, 2, 3))
    offers = told((1, [replica(T, 0, 5, 29)]), (2, [replica(T, 0, 5, 30)]), (3, []))
    new = led(image, offers)
    assert (new.leader, new.isr, new.replicas) == (2, (2,), (1, 2, 3))


def test_epochs_go_on_above_those_of_every_log() -> None:
    image = image_of(topic(T, "t"), unconfirmed(1, epoch=1_004))
    new = led(image, told((1, [replica(T, 0, 7_000, 5)])))
    assert new.leader_epoch == 7_001


def test_a_node_that_the_backup_does_not_name_may_have_it_all() -> None:
    image = image_of(topic(T, "t"), unconfirmed(1, 2))
    offers = told((1, [replica(T, 0, -1, 0)]), (2, [replica(T, 0, 4, 10)]), (3, [replica(T, 0, 9, 40)]))
    new = led(image, offers)
    assert (new.leader, new.replicas, new.isr) == (3, (3, 2), (3,))


def test_a_leader_that_is_away_leads_when_it_is_back() -> None:
    image = image_of(topic(T, "t"), unconfirmed(1, 2))
    away = replace(image, nodes={**image.nodes, NodeId(2): replace(image.nodes[NodeId(2)], fenced=True)})
    new = led(away, told((1, [replica(T, 0, 4, 9)]), (2, [replica(T, 0, 4, 10)])))
    assert (new.leader, new.isr, new.last_known_leader) == (NO_NODE, (2,), 2)


def test_nobody_is_elected_by_coming_first() -> None:
    records = [topic(T, "t"), unconfirmed(1, 2)]
    unclean = pb.ConfigRecord(
        resource_type="topic", resource_name="t", key="unclean.leader.election.enable", value="true"
    )
    image = image_of(*records, pb.MetadataRecord(config=unclean))
    fenced = replace(image.nodes[NodeId(1)], fenced=True)
    image = replace(image, nodes={**image.nodes, NodeId(1): fenced})
    generated = unfence_node(context(image), NodeId(1), fenced.node_epoch)
    assert generated.reply
    assert not [r for r in generated.all_records() if r.HasField("partition")]


def test_all_must_have_told_by_the_restored_metadata_and_in_this_registration() -> None:
    image = image_of(topic(T, "t"), unconfirmed(1, 2))
    offers = told((1, []), (2, []))
    assert offers.missing(image, image.nodes) == [3]
    tell(offers, 3, [], version=RESTORED - 1)
    assert offers.missing(image, image.nodes) == [3]
    offers.take(NodeId(3), 1, api.NodeReport(first_of_unknown=True))
    assert offers.missing(image, image.nodes) == [3], "not to the end"
    offers.take(NodeId(3), 1, api.NodeReport(last_of_unknown=True, unknown_version=RESTORED))
    assert offers.missing(image, image.nodes) == []
    again = replace(image.nodes[NodeId(2)], node_epoch=7)
    assert offers.missing(replace(image, nodes={**image.nodes, NodeId(2): again}), image.nodes) == [2]


def test_an_unknown_topic_comes_back_with_all_who_have_it() -> None:
    image = image_of()
    offers = told(
        (1, [replica(T, 0, 5, 10), replica(T, 1, 5, 7)]),
        (2, [replica(T, 0, 5, 10)]),
        (3, [replica(T, 1, 6, 4)]),
    )
    (topic_told,) = offered(image, offers, [])
    assert not topic_told.error.code and topic_told.name == "t"
    assert [list(p.replicas) for p in topic_told.partitions] == [[2, 1], [3, 1]]
    generated = adopt(context(image), topic_told, offers)
    new = image.apply(generated.records, image.version + 1)
    first, second = new.topics[T].partitions[0], new.topics[T].partitions[1]
    assert (first.leader, set(first.isr)) == (2, {1, 2})
    assert (second.leader, second.isr, second.leader_epoch) == (3, (3,), 6 + EPOCHS_UP)
    assert not adopt(context(new), topic_told, offers).records, "once"
    assert [t.error.message for t in offered(new, offers, ["t"])] == [
        "t: the metadata know all of it that nodes have"
    ]


@pytest.mark.parametrize(("given", "now_ms", "next_id"), [(0, 70_000, 70_000), (3_000, 2_999, 3_000)])
def test_producer_ids_go_on_above_those_that_its_logs_may_have(given: int, now_ms: int, next_id: int) -> None:
    """Of a log of another cluster, Kafka's maybe, nobody knows which: none gives a thousand a second for ever."""
    ids = pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=given))
    image = image_of(*([ids] if given else []))
    offers = told((1, [replica(T, 0, 5, 10)]))
    (found,) = offered(image, offers, [])
    new = image.apply(adopt(context(image, now_ms), found, offers).records, image.version + 1)
    assert new.next_producer_id == next_id
    assert not adopt(context(new, 2 * now_ms), found, offers).records, "once"


def test_offsets_of_groups_come_back_compacted() -> None:
    name = "__consumer_offsets"
    offers = told((1, [replica(T, 0, 5, 10, topic=name)]))
    image = image_of()
    (found,) = offered(image, offers, [])
    new = image.apply(adopt(context(image), found, offers).records, image.version + 1)
    assert new.config("topic", name)["cleanup.policy"] == "compact"


def test_partitions_that_were_added_since_the_backup_come_back() -> None:
    image = image_of(topic(T, "t"), unconfirmed(1))
    offers = told((1, [replica(T, 0, 5, 10), replica(T, 1, 5, 3)]))
    (found,) = offered(image, offers, ["t"])
    new = image.apply(adopt(context(image), found, offers).records, image.version + 1)
    assert {p.leader for p in new.topics[T].partitions.values()} == {1}


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        ([(T, 1)], "no node that is there has t-0; start the nodes that had it"),
        ([(U, 0)], "there is another topic of that name"),
    ],
)
def test_what_cannot_be_taken_says_why(replicas: list[tuple[bytes, int]], words: str) -> None:
    image = image_of(topic(T, "t"), unconfirmed(1, index=1)) if replicas[0][0] == U else image_of()
    offers = told((1, [replica(topic_id, index, 5, 10) for topic_id, index in replicas]))
    (found,) = offered(image, offers, [])
    assert words in found.error.message and found.partitions


def test_a_topic_that_nobody_offers_is_named() -> None:
    (found,) = offered(image_of(), told((1, [])), ["gone"])
    assert found.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and "gone" in found.error.message


def test_of_two_topics_of_a_name_the_one_in_its_place_is_taken_then_the_later() -> None:
    old, new = replica(T, 0, 50, 99, set_aside_ms=5), replica(U, 0, 1, 2)
    found = offered(image_of(), told((1, [old, new])), [])
    assert [(t.topic_id, bool(t.error.code)) for t in found] == [(U, False), (T, True)]
    new = replica(U, 0, 1, 2, set_aside_ms=6)
    found = offered(image_of(), told((1, [old, new])), [])
    assert [(t.topic_id, bool(t.error.code)) for t in found] == [(U, False), (T, True)]


def test_a_node_opens_what_is_in_its_place_so_that_counts() -> None:
    aside = replica(T, 0, 9, 100, set_aside_ms=5)
    for order in ([aside, replica(T, 0, 4, 10)], [replica(T, 0, 4, 10), aside]):
        (offer,) = told((1, order)).of(TopicPartition(T, 0))
        assert (offer.last_epoch, offer.end_offset) == (4, 10)


def test_whoever_leads_has_every_record_that_a_member_of_the_last_isr_had() -> None:
    """Random histories: who was in sync has all that was acknowledged; others have less, of any older epoch."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(500):
        nodes = rng.sample(range(1, 8), rng.randrange(1, 6))
        in_sync = set(rng.sample(nodes, rng.randrange(1, len(nodes) + 1)))
        epoch, acknowledged = rng.randrange(1, 9), rng.randrange(100)
        rows = {}
        for each in nodes:
            if each in in_sync:
                rows[each] = (epoch, acknowledged + rng.randrange(5))
            elif rng.random() < 0.5:
                rows[each] = (epoch, rng.randrange(acknowledged + 5))
            else:
                rows[each] = (rng.randrange(epoch), rng.randrange(1_000))
        offers = told(*((n, [replica(T, 0, *row)]) for n, row in rows.items()))
        image = image_of(topic(T, "t"), unconfirmed(*nodes), nodes=tuple(nodes))
        partition = image.topics[T].partitions[0]
        new = confirmed(image, partition, offers.of(partition.key))
        assert new is not None
        for member in new.isr:
            assert rows[member][0] == epoch and rows[member][1] >= acknowledged
        assert new.leader in new.isr
