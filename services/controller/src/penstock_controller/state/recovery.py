"""Who leads what the metadata lost: topics that only the nodes' logs know, and partitions of a restored backup.

The rule is Raft's: of two logs the one whose last batch is of the later leader epoch is ahead, of the same epoch the
longer one. The one that is ahead of all holds every acknowledged record, as long as one member of the last ISR is among
those that are compared; so nobody is elected before all who may have it have told, unless an operator says so.

Epochs go on above all that any log has seen, since logs refuse older ones.

So do producer ids, above all that the logs of a taken topic may have, in their batches or as what a transaction
coordinator gave: one that is given twice makes new records pass for repeated ones, and ends the transactions of
another. Which those are would take a reading of every record. The time in ms is above all: whoever gave them, Kafka
maybe, gave less than a thousand a second since 1970.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from penstock_controller.state.coordinator_topics import COORDINATOR_TOPICS
from penstock_controller.state.generation import (
    Context,
    Generated,
    config_record,
    make_error,
    partition_record,
)
from penstock_controller.state.nodes import SCAN_COUNT, is_active
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.restore import EPOCHS_UP
from penstock_core.topics import check_topic_name
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api

ADOPTED_PARTITION_EPOCH: Final = 1_000_000
"""Of a partition that the metadata did not know; no log says how far it was."""


class Offer(NamedTuple):
    """One replica, as its node tells of it. The greater one is ahead."""

    last_epoch: int
    end_offset: int
    node_id: NodeId
    set_aside_ms: int = 0
    """0: it is where it was."""


@dataclass(slots=True)
class NodeOffers:
    """What one node told."""

    node_epoch: int
    version: int = -1
    """Of the metadata by which all of it was looked at; -1 until all of it was told."""
    rows: dict[TopicPartition, Offer] = field(default_factory=dict)
    names: dict[TopicId, str] = field(default_factory=dict)


class Offers:
    """Of all nodes: soft state of the active controller."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, NodeOffers] = {}

    def take(self, node_id: NodeId, node_epoch: int, report: api.NodeReport) -> None:
        """A node of this registration reports."""
        state = self._nodes.get(node_id)
        if report.first_of_unknown or state is None or state.node_epoch != node_epoch:
            if not report.first_of_unknown:
                self._nodes.pop(node_id, None)
                return
            state = self._nodes[node_id] = NodeOffers(node_epoch)
        for each in report.unknown_replicas:
            key = TopicPartition(TopicId(each.topic_id), each.partition)
            offer = Offer(each.last_leader_epoch, each.flushed_end_offset, node_id, each.set_aside_ms)
            old = state.rows.get(key)
            # One in its place is what the node opens; else the one that is ahead, as the node takes it.
            if old is None or (not offer.set_aside_ms, *offer) > (not old.set_aside_ms, *old):
                state.rows[key] = offer
            state.names[key.topic_id] = each.topic
        if report.last_of_unknown:
            state.version = report.unknown_version

    def clear(self) -> None:
        """A new term begins."""
        self._nodes.clear()

    def missing(self, image: MetadataImage, node_ids: Iterable[NodeId]) -> list[NodeId]:
        """Those of the nodes who have not told everything since the metadata were restored."""
        return sorted(
            n
            for n in node_ids
            if (state := self._nodes.get(n)) is None
            or state.version < image.restored_version
            or (node := image.nodes.get(n)) is None
            or state.node_epoch != node.node_epoch
        )

    def of(self, key: TopicPartition) -> list[Offer]:
        """Replicas of one partition, the one that is ahead first."""
        return sorted((row for state in self._nodes.values() if (row := state.rows.get(key))), reverse=True)

    def topics(self) -> dict[TopicId, tuple[str, set[int]]]:
        """Name and partitions of every topic that is offered."""
        found: dict[TopicId, tuple[str, set[int]]] = {}
        for state in self._nodes.values():
            for key in state.rows:
                found.setdefault(key.topic_id, (state.names[key.topic_id], set()))[1].add(key.partition)
        return found


# --- partitions of a backup --------------------------------------------------------------


def scan_unconfirmed(image: MetadataImage) -> Iterator[PartitionImage | None]:
    """Partitions that nobody has led since the metadata were restored; None once in a while."""
    if not image.restored_version:
        return
    seen = 0
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            if partition.unconfirmed:
                yield partition
            seen += 1
            if seen % SCAN_COUNT == 0:
                yield None


def confirm(ctx: Context, keys: Collection[TopicPartition], offers: Offers) -> Generated[int]:
    """Give leaders to partitions of a restored backup. The reply counts them."""
    records = []
    for key in keys:
        partition = ctx.image.partition(key.topic_id, key.partition)
        if partition is not None and partition.unconfirmed:
            new = confirmed(ctx.image, partition, offers.of(key))
            if new is not None:
                records.append(partition_record(new))
    return Generated(len(records), records)


def confirmed(image: MetadataImage, partition: PartitionImage, offers: list[Offer]) -> PartitionImage | None:
    """The partition led by the replica that is ahead; None while nobody has told of one.

    Where a node is ahead that the backup does not name, for replicas were moved since, it takes the place of
    one that offers least.
    """
    if not offers:
        return None
    ahead = offers[0]
    replicas = partition.replicas
    shape = partition
    if ahead.node_id not in replicas:
        ranks = {offer.node_id: offer for offer in offers}
        kept = sorted(replicas, key=lambda n: ranks.get(n, Offer(-1, -1, n)), reverse=True)
        stay = set(kept[: max(0, partition.factor - 1)])
        replicas = (ahead.node_id, *(n for n in replicas if n in stay))
        shape = replace(partition, replicas=replicas, adding_replicas=(), removing_replicas=())
    return _led(
        image, shape, offers, max(partition.leader_epoch, ahead.last_epoch) + 1, partition.partition_epoch + 1
    )


def _led(
    image: MetadataImage,
    partition: PartitionImage,
    offers: list[Offer],
    leader_epoch: int,
    partition_epoch: int,
) -> PartitionImage:
    """Led by the first of the offers; who is as far as that one is in the ISR with it."""
    ahead = offers[0]
    equal = {
        o.node_id for o in offers if (o.last_epoch, o.end_offset) == (ahead.last_epoch, ahead.end_offset)
    }
    isr = tuple(n for n in partition.replicas if n == ahead.node_id or (n in equal and is_active(image, n)))
    return replace(
        partition,
        isr=isr,
        leader=ahead.node_id if is_active(image, ahead.node_id) else NO_NODE,
        last_known_leader=ahead.node_id,
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=partition_epoch,
    )


# --- topics that the metadata do not know ------------------------------------------------


def offered(image: MetadataImage, offers: Offers, wanted: Collection[str]) -> list[api.RecoveredTopic]:
    """What can be taken of the offered topics, by name; those with an `error` cannot. `wanted` empty: all."""
    found: dict[str, list[tuple[tuple[int, int], TopicId, set[int]]]] = {}
    for topic_id, (name, told) in offers.topics().items():
        # Nodes may have told it before it was taken.
        partitions = {p for p in told if (state := image.partition(topic_id, p)) is None or state.unconfirmed}
        if partitions and name and (not wanted or name in wanted):
            # In its place before set aside, the latest one first.
            asides = [offers.of(TopicPartition(topic_id, p))[0].set_aside_ms for p in partitions]
            age = (0, 0) if min(asides) == 0 else (1, -max(asides))
            found.setdefault(name, []).append((age, topic_id, partitions))
    topics = []
    for name, candidates in sorted(found.items()):
        known = image.topic_ids.get(name)
        candidates.sort(key=lambda each: (each[1] != known, each[0], each[1]))
        for number, (_, topic_id, partitions) in enumerate(candidates):
            topics.append(_offered_one(image, offers, name, topic_id, partitions, is_newest=number == 0))
    for name in sorted(set(wanted) - found.keys()):
        error = make_error(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{name}: no node that is there offers it; start the nodes that had it"
            if name not in image.topic_ids
            else f"{name}: the metadata know all of it that nodes have",
        )
        topics.append(api.RecoveredTopic(name=name, error=error))
    return topics


def _offered_one(
    image: MetadataImage,
    offers: Offers,
    name: str,
    topic_id: TopicId,
    partitions: set[int],
    *,
    is_newest: bool,
) -> api.RecoveredTopic:
    told = api.RecoveredTopic(name=name, topic_id=topic_id)
    for index in sorted(partitions):
        rows = offers.of(TopicPartition(topic_id, index))
        told.partitions.add(
            partition=index, replicas=[o.node_id for o in rows], log_end_offset=rows[0].end_offset
        )
    known = image.topic_ids.get(name)
    have = image.topics[topic_id].partitions.keys() if topic_id in image.topics else set()
    missing = sorted(set(range(max(partitions) + 1)) - partitions - have)
    if known is not None and known != topic_id:
        told.error.CopyFrom(
            make_error(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                f"{name}: there is another topic of that name; delete that one first, if this is the one to keep",
            )
        )
    elif not is_newest:
        told.error.CopyFrom(
            make_error(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                f"{name}: nodes have a later topic of that name, which is taken",
            )
        )
    elif missing:
        names = ", ".join(f"{name}-{p}" for p in missing)
        told.error.CopyFrom(
            make_error(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{name}: no node that is there has {names}; start the nodes that had it",
            )
        )
    else:
        try:
            check_topic_name(name)
        except PenstockError as error:
            told.error.CopyFrom(make_error(error.code, error.message))
    return told


def adopt(ctx: Context, told: api.RecoveredTopic, offers: Offers) -> Generated[bool]:
    """Take one offered topic into the metadata: its missing partitions, and leaders for those without one."""
    image, topic_id = ctx.image, TopicId(told.topic_id)
    records: list[pb.MetadataRecord] = []
    topic = image.topics.get(topic_id)
    if topic is None:
        if told.name in image.topic_ids:
            return Generated(False)
        records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=told.name)))
        for key, value in COORDINATOR_TOPICS.get(told.name, {}).items():
            records.append(config_record("topic", told.name, key, value))
    for each in told.partitions:
        rows = offers.of(TopicPartition(topic_id, each.partition))
        old = None if topic is None else topic.partitions.get(each.partition)
        if not rows or (old is not None and not old.unconfirmed):
            continue
        new = _adopted(image, topic_id, each.partition, rows) if old is None else confirmed(image, old, rows)
        if new is not None:
            records.append(partition_record(new))
    if records and image.next_producer_id < ctx.now_ms:
        passed = pb.ProducerIdsRecord(next_producer_id=ctx.now_ms)
        records.append(pb.MetadataRecord(producer_ids=passed))
    return Generated(bool(records), records)


def _adopted(image: MetadataImage, topic_id: TopicId, index: int, offers: list[Offer]) -> PartitionImage:
    empty = PartitionImage(
        topic_id=topic_id,
        partition=index,
        replicas=tuple(dict.fromkeys(o.node_id for o in offers)),
        isr=(),
        leader=NO_NODE,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
    )
    return _led(image, empty, offers, offers[0].last_epoch + EPOCHS_UP, ADOPTED_PARTITION_EPOCH)


__all__ = ["Offer", "Offers", "adopt", "confirm", "confirmed", "offered", "scan_unconfirmed"]
