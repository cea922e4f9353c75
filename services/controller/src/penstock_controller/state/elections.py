"""Leadership that moves though its leader lives: back to preferred leaders, and elections by hand (KIP-460).

Elections that follow from a node's coming or going are part of that change (`nodes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from penstock_controller.state.causes import cause
from penstock_controller.state.generation import Context, Generated, error_pb, partition_record
from penstock_controller.state.nodes import SCAN_COUNT, is_full, is_last_choice, rules_for
from penstock_controller.state.partitions import Rules, change_partition
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage, TopicImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

ELECTIONS_PER_COMMAND_MAX = 10_000


# --- preferred leaders -------------------------------------------------------------------


def elect_preferred(
    ctx: Context,
    wanted: set[TopicPartition] | None,
    may_lead: Callable[[NodeId], bool],
    changes_max: int,
) -> Generated[int]:
    """Move leadership to the first replica of the assignment where that one is in the ISR.

    `wanted` None means every partition. The reply counts the changes, at most `changes_max`.
    """
    chosen = None if wanted is None else (_partition_of(ctx.image, key) for key in wanted)
    return elect_preferred_among(ctx, chosen or scan_not_preferred(ctx.image), may_lead, changes_max)


def elect_preferred_among(
    ctx: Context,
    partitions: Iterable[PartitionImage | None],
    may_lead: Callable[[NodeId], bool],
    changes_max: int,
) -> Generated[int]:
    """The same among these partitions, as they are in the context's image."""
    records: list[pb.MetadataRecord] = []
    for named in partitions:
        partition = None if named is None else _partition_of(ctx.image, named.key)
        if partition is None or not _is_misled(partition) or not may_lead(partition.replicas[0]):
            continue
        if is_last_choice(ctx.image, partition.replicas[0]):
            continue
        topic = ctx.image.topics[partition.topic_id]
        new = change_partition(partition, rules_for(ctx.image, topic), prefer_first=True)
        if new is not None:
            records.append(partition_record(new))
        if len(records) >= changes_max:
            break
    return Generated(len(records), records, causes=cause("election", "cluster", "preferred"))


def scan_not_preferred(image: MetadataImage) -> Iterator[PartitionImage | None]:
    """Partitions that their first replica could lead and does not; None once in a while."""
    seen = 0
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            if _is_misled(partition):
                yield partition
            seen += 1
            if seen % SCAN_COUNT == 0:
                yield None


def _is_misled(partition: PartitionImage) -> bool:
    first = partition.replicas[0]
    return partition.leader != first and first in partition.isr


def _partition_of(image: MetadataImage, key: TopicPartition) -> PartitionImage | None:
    return image.partition(key.topic_id, key.partition)


# --- elections by hand -------------------------------------------------------------------


def elect_leaders(ctx: Context, request: api.ElectLeadersRequest) -> Generated[api.ElectLeadersResponse]:
    """Give partitions their preferred leader, or any live one; those that need none say so.

    Of a request that names none, only partitions where there was something to do are answered.
    """
    image = ctx.image
    reply = api.ElectLeadersResponse()
    records: list[pb.MetadataRecord] = []
    keys = [(TopicId(p.topic_id), p.partition) for p in request.partitions]
    everywhere = not keys
    if everywhere:
        keys = _in_need(image, unclean=request.unclean)
    for topic_id, index in dict.fromkeys(keys):
        result = reply.results.add(topic_id=topic_id, partition=index)
        try:
            new = _elected(image, topic_id, index, unclean=request.unclean)
        except PenstockError as error:
            result.error.CopyFrom(error_pb(error))
            continue
        records.append(partition_record(new))
        reply.changed += 1
    detail = "unclean, by hand" if request.unclean else "preferred, by hand"
    return Generated(reply, records, causes=cause("election", "cluster", detail, request.principal))


def _in_need(image: MetadataImage, *, unclean: bool) -> list[tuple[TopicId, int]]:
    if unclean:
        found = [p for t in image.topics.values() for p in t.partitions.values() if p.leader == NO_NODE]
    else:
        found = [p for p in scan_not_preferred(image) if p is not None]
    return [(p.topic_id, p.partition) for p in found[:ELECTIONS_PER_COMMAND_MAX]]


def _elected(image: MetadataImage, topic_id: TopicId, index: int, *, unclean: bool) -> PartitionImage:
    topic = image.topics.get(topic_id)
    old = None if topic is None else topic.partitions.get(index)
    if topic is None or old is None:
        raise PenstockError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
    name = f"{topic.name}-{index}"
    rules = rules_for(image, topic)
    if unclean:
        return _elected_unclean(topic, old, rules, name)
    first = old.replicas[0]
    if old.leader == first:
        raise PenstockError(ErrorCode.ELECTION_NOT_NEEDED, f"{name}: its preferred leader {first} leads")
    new = change_partition(old, rules, prefer_first=True)
    if new is None or new.leader != first:
        why = "is not live and in sync"
        if rules.active(first) and first in old.isr:
            why = "has a full disk; free space there" if is_full(image, first) else "is cordoned or drained"
        raise PenstockError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"{name}: its preferred leader {first} {why}"
        )
    return new


def _elected_unclean(topic: TopicImage, old: PartitionImage, rules: Rules, name: str) -> PartitionImage:
    if old.leader != NO_NODE:
        raise PenstockError(ErrorCode.ELECTION_NOT_NEEDED, f"{name}: node {old.leader} leads")
    new = change_partition(old, replace(rules, unclean=True))
    if new is None or new.leader == NO_NODE:
        raise PenstockError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{name}: none of its replicas is live; start one"
        )
    return new
