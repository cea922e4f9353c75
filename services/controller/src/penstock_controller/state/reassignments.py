"""Moving replicas: reassignments of partitions (KIP-455).

A reassignment gives the partition its wanted replicas at once, beside those of before: the
wanted ones that are new are *adding*, those that shall go are *removing*. New replicas fetch
and join the ISR like any follower; `change_partition` ends the reassignment in the very
change that brings the last wanted replica into the ISR. Nothing is removed before.

A second reassignment of the same partition takes the place of the first: additions that are
wanted no more are dropped at once, unless nobody else in the ISR could go on, or nobody is known to have
anything; such a one is then removed in the end. Cancelling is a reassignment to the replicas of before.

Deviations from Kafka 4.3 (ReplicationControlManager.changePartitionReassignment): dropped
additions leave at once rather than count as members of before, which a later cancel would
keep for ever; and a cancel is never refused.

What a request begins is also kept as an operation, and a partition that another operation moves is
left to the request (`operations.engine.reassigned`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from penstock_controller.state.causes import cause
from penstock_controller.state.generation import (
    Context,
    Generated,
    error_pb,
    make_error,
    partition_record,
)
from penstock_controller.state.nodes import rules_for
from penstock_controller.state.operations.engine.reassigned import Reaimed, reassigned
from penstock_controller.state.partitions import Rules, change_partition
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId, TopicId
from penstock_core.limits import PARTITIONS_PER_REQUEST_MAX
from penstock_core.metadata import MetadataImage, PartitionImage, TopicImage
from penstock_proto.v1 import controller_pb2 as api


def reassign(old: PartitionImage, wanted: Sequence[NodeId], rules: Rules) -> PartitionImage | None:
    """The partition on its way to `wanted` replicas, or there already; None when nothing changes."""
    if old.unconfirmed:
        # Who is ahead is told by the nodes' logs, also where unclean elections are allowed: see `recovery`.
        rules = replace(rules, unclean=False)
    before = [n for n in old.replicas if n not in old.adding_replicas]
    dropped = _droppable(old, wanted, rules)
    removing = tuple(n for n in old.replicas if n not in wanted and n not in dropped)
    begun = replace(
        old,
        replicas=(*wanted, *removing),
        adding_replicas=tuple(n for n in wanted if n not in before),
        removing_replicas=removing,
        isr=tuple(n for n in (*wanted, *removing) if n in old.isr),
        elr=tuple(n for n in old.elr if n not in dropped),
    )
    if set(begun.isr) == set(old.isr):
        begun = replace(begun, isr=old.isr)
    changed = change_partition(begun, rules)
    if changed is not None:
        return changed
    return None if begun == old else replace(begun, partition_epoch=old.partition_epoch + 1)


def _droppable(old: PartitionImage, wanted: Sequence[NodeId], rules: Rules) -> set[NodeId]:
    """Additions of an earlier reassignment that nobody wants now and nobody needs."""
    unwanted = {n for n in old.adding_replicas if n not in wanted}
    left = [n for n in old.isr if n not in unwanted]
    if old.leader in unwanted and not any(rules.active(n) for n in left):
        left = []
    if left:
        return unwanted
    # They may be the only ones that have everything; where nobody is known to, as after an import, any of them may, and
    # a node deletes the log of a replica that it has no more.
    return unwanted.difference(old.isr, old.elr) if old.isr or old.elr else set()


def _unknown(_partition: PartitionImage) -> int | None:
    return None


def alter_reassignments(
    ctx: Context,
    request: api.AlterReassignmentsRequest,
    now_ms: int,
    bytes_of: Callable[[PartitionImage], int | None] = _unknown,
) -> Generated[api.AlterReassignmentsResponse]:
    """Begin, change or cancel reassignments; each partition that cannot be carries its error.

    `now_ms`: wall clock. `bytes_of`: the size of a partition, as far as it is known.
    """
    reply = api.AlterReassignmentsResponse()
    if len(request.reassignments) > PARTITIONS_PER_REQUEST_MAX:
        reply.error.CopyFrom(
            make_error(
                ErrorCode.POLICY_VIOLATION,
                f"one request may move at most {PARTITIONS_PER_REQUEST_MAX} partitions; split it",
            )
        )
        return Generated(reply)
    asking = _Asking(ctx.image, allow_factor_change=request.allow_factor_change)
    changed: list[Reaimed] = []
    named: set[tuple[str, int]] = set()
    for asked in request.reassignments:
        result = reply.results.add()
        try:
            if (asked.topic, asked.partition) in named:
                raise PenstockError(
                    ErrorCode.INVALID_REQUEST, f"{asked.topic}-{asked.partition} is in the request twice"
                )
            named.add((asked.topic, asked.partition))
            new = asking.answer(asked)
        except PenstockError as error:
            result.CopyFrom(error_pb(error))
            continue
        if new is not None:
            changed.append(new)
    records, further = reassigned(ctx, changed, request.principal, now_ms, bytes_of)
    why = cause("move", "cluster", "reassignment", request.principal)
    made = chain((partition_record(each.new) for each in changed), further)
    return Generated(reply, records, made, why)


class _Asking:
    """One request, of which each partition is answered by itself."""

    def __init__(self, image: MetadataImage, *, allow_factor_change: bool) -> None:
        self._image = image
        self._allow_factor_change = allow_factor_change
        self._rules: dict[TopicId, Rules] = {}

    def answer(self, asked: api.Reassignment) -> Reaimed | None:
        """The partition as it is then; None when nothing changes. Raises PenstockError."""
        topic = self._image.topic(asked.topic)
        old = None if topic is None else topic.partitions.get(asked.partition)
        if topic is None or old is None:
            raise PenstockError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {asked.topic}-{asked.partition}"
            )
        name = f"{topic.name}-{old.partition}"
        if not asked.replicas:
            if not old.reassigning:
                raise PenstockError(
                    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name}: no reassignment is under way"
                )
            wanted = [n for n in old.replicas if n not in old.adding_replicas]
        else:
            wanted = [NodeId(n) for n in asked.replicas]
            _check_wanted(self._image, name, wanted)
            if not self._allow_factor_change and len(wanted) != old.factor:
                raise PenstockError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"{name}: {len(wanted)} replicas where there are {old.factor}, which the request does not allow",
                )
        new = reassign(old, wanted, self._rules_of(topic))
        return None if new is None else Reaimed(topic.name, old, new, cancels=not asked.replicas)

    def _rules_of(self, topic: TopicImage) -> Rules:
        """The settings of a topic are parsed once."""
        rules = self._rules.get(topic.topic_id)
        if rules is None:
            rules = self._rules[topic.topic_id] = rules_for(self._image, topic)
        return rules


def _check_wanted(image: MetadataImage, name: str, wanted: Sequence[NodeId]) -> None:
    if len(set(wanted)) != len(wanted):
        raise PenstockError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name}: a node is named twice: {list(wanted)}"
        )
    unknown = [n for n in wanted if n not in image.nodes]
    if unknown:
        raise PenstockError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{name}: no node has id {unknown[0]}; see `penstock node list`",
        )
