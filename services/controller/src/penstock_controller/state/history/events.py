"""Events from the image before, the image after and the command between. Pure.

One event for each thing that changed: a partition (leader, ISR, replicas), a node, a gateway, a topic as a whole, the
settings of a resource, an operation. Users, ACLs and quotas are the audit log's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from penstock_controller.state.history.whose import Causes
from penstock_core.history.changes import PartitionChange
from penstock_core.history.now import what_of
from penstock_core.ids import NO_NODE, NodeId, TopicId
from penstock_core.metadata import MetadataImage, NodeImage
from penstock_core.operation_documents import STATES
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api

LOOKED_AT: Final = 64
"""Records between two chances for others to run."""
_VALUE_LENGTH_MAX: Final = 100


def events_of(
    before: MetadataImage,
    after: MetadataImage,
    records: Sequence[pb.MetadataRecord],
    time_ms: int,
    causes: Sequence[pb.Cause],
) -> Iterator[api.ClusterEvent | None]:
    """The events of one command, in its order, nodes last; None after every LOOKED_AT records.

    `time_ms`: of the command, ms since 1970.
    """
    return _Step(before, after, time_ms, Causes(causes, before, after)).events(records)


class _Step:
    def __init__(self, before: MetadataImage, after: MetadataImage, time_ms: int, causes: Causes) -> None:
        self._before = before
        self._after = after
        self._time_ms = time_ms
        self._causes = causes
        self._new_topics: Counter[TopicId] = Counter()
        self._skips: dict[int, list[str]] = {}
        self._settings: dict[tuple[str, str], list[str]] = {}
        self._nodes: dict[NodeId, None] = {}
        # Of each node: leaders lost, leaders won, ISRs left, ISRs joined.
        self._lost: Counter[NodeId] = Counter()
        self._won: Counter[NodeId] = Counter()
        self._leaderless: Counter[NodeId] = Counter()
        self._left: Counter[NodeId] = Counter()
        self._joined: Counter[NodeId] = Counter()

    def events(self, records: Sequence[pb.MetadataRecord]) -> Iterator[api.ClusterEvent | None]:
        seen: set[tuple[TopicId, int]] = set()
        for count, record in enumerate(records, 1):
            kind = record.WhichOneof("record")
            if kind == "partition":
                key = TopicId(record.partition.topic_id), record.partition.partition
                # One of two states in one command is never seen by anybody.
                if key not in seen:
                    seen.add(key)
                    yield from self._partition(*key)
            elif kind is not None:
                yield from self._other(kind, record)
            if count % LOOKED_AT == 0:
                yield None
        yield from self._topics()
        yield from self._resources()
        yield from self._skipped()
        for node_id in self._nodes:
            yield from self._node(node_id)

    def _event(
        self, event: str, subject: str, change: str, cause: pb.Cause | None = None
    ) -> api.ClusterEvent:
        return api.ClusterEvent(
            version=self._after.version,
            time_ms=self._time_ms,
            event=event,
            subject=subject,
            change=change,
            cause=self._causes.of(subject) if cause is None else cause,
        )

    # --- partitions -------------------------------------------------------------------------

    def _partition(self, topic_id: TopicId, index: int) -> Iterator[api.ClusterEvent]:
        new = self._after.partition(topic_id, index)
        if new is None:
            return
        old = self._before.partition(topic_id, index)
        if old is None:
            self._new_topics[topic_id] += 1
            return
        if new is old:
            return
        change = PartitionChange.between(old, new)
        if old.leader != new.leader:
            self._lost[old.leader] += 1
            self._won[new.leader] += 1
            self._leaderless[old.leader] += new.leader == NO_NODE
        for node_id in {*old.isr}.difference(new.isr):
            self._left[node_id] += 1
        for node_id in {*new.isr}.difference(old.isr):
            self._joined[node_id] += 1
        if change.event:
            name = f"{self._after.topics[topic_id].name}-{index}"
            cause = self._causes.of_partition(name, old, new)
            yield self._event(change.event, f"partition {name}", change.text(), cause)

    def _topics(self) -> Iterator[api.ClusterEvent]:
        for topic_id, count in self._new_topics.items():
            topic = self._after.topics[topic_id]
            known = self._before.topics.get(topic_id)
            if known is None:
                factor = next(iter(topic.partitions.values())).factor
                change = f"created with {_count(count, 'partition')}, replication factor {factor}"
            else:
                change = f"grown from {len(known.partitions)} to {_count(len(topic.partitions), 'partition')}"
            yield self._event("topic", f"topic {topic.name}", change)

    # --- everything else --------------------------------------------------------------------

    def _other(self, kind: str, record: pb.MetadataRecord) -> Iterator[api.ClusterEvent]:
        before = self._before
        if kind == "node":
            self._nodes[NodeId(record.node.node_id)] = None
        elif kind == "node_policy":
            self._nodes[NodeId(record.node_policy.node_id)] = None
        elif kind == "node_removed":
            yield self._event("node", f"node {record.node_removed.node_id}", "removed from the cluster")
        elif kind == "gateway":
            yield self._event("gateway", f"gateway {record.gateway.gateway_id}", "registered")
        elif kind == "gateway_removed":
            yield self._event("gateway", f"gateway {record.gateway_removed.gateway_id}", "named no more")
        elif kind == "topic_removed":
            topic = before.topics.get(TopicId(record.topic_removed.topic_id))
            if topic is not None:
                yield self._event("topic", f"topic {topic.name}", "deleted")
        elif kind == "config":
            self._config(record.config)
        elif kind == "operation":
            yield from self._operation(record.operation)
        elif kind == "operation_move":
            move = record.operation_move
            if move.skipped:
                topic = self._after.topics.get(TopicId(move.topic_id))
                name = f"{move.topic_id.hex() if topic is None else topic.name}-{move.partition}"
                self._skips.setdefault(move.operation_id, []).append(f"{name}: {move.skipped}")
        elif kind == "controller":
            yield self._event(
                "controller", f"controller {record.controller.controller_id}", "votes with its directory"
            )
        elif kind == "feature":
            change = f"{record.feature.name} is {record.feature.level}"
            yield self._event("level", "cluster", change)
        elif kind == "retired_directory":
            yield from self._retired(record.retired_directory)

    def _retired(self, record: pb.RetiredDirectoryRecord) -> Iterator[api.ClusterEvent]:
        # One that was only replaced is told of by the registration that did it.
        if record.operation_id:
            which = "a directory that it had before" if record.replaced_by else "its directory"
            yield self._event("node", f"node {record.node_id}", f"{which} was retired")

    def _config(self, record: pb.ConfigRecord) -> None:
        where = record.resource_type, record.resource_name
        old = self._before.config(*where).get(record.key)
        if record.HasField("value"):
            change = f"{record.key} = {record.value[:_VALUE_LENGTH_MAX]}"
            if old == record.value:
                return
        else:
            change = f"{record.key} removed"
        if old is not None:
            change += f" (was {old[:_VALUE_LENGTH_MAX]})"
        self._settings.setdefault(where, []).append(change)

    def _resources(self) -> Iterator[api.ClusterEvent]:
        for (kind, name), changes in self._settings.items():
            # A topic's first settings come with it.
            if kind == "topic" and name not in self._before.topic_ids and name in self._after.topic_ids:
                continue
            yield self._event("config", f"{kind} {name}".strip(), "; ".join(changes))

    def _operation(self, new: pb.OperationRecord) -> Iterator[api.ClusterEvent]:
        old = self._before.operations.operations.get(new.operation_id)
        said = []
        if old is None:
            said.append(f"recorded: {what_of(new)}, {_count(new.moves_total or len(new.steps), _unit(new))}")
        if old is None or old.state != new.state:
            said.append(STATES.get(new.state, "pending"))
        if new.phase not in ("", *said) and (old is None or old.phase != new.phase):
            said.append(new.phase)
        if new.reason and (old is None or old.reason != new.reason):
            said.append(f"because: {new.reason}")
        if old is not None and old.throttle != new.throttle:
            fixed = new.throttle.bytes_per_s
            said.append(f"throttle {f'{fixed:,} bytes/s' if fixed else 'auto'}")
        steps = {step.name: step for step in (old.steps if old is not None else ())}
        for step in new.steps:
            known = steps.get(step.name)
            if known is None or known.state == step.state:
                continue
            word = pb.OperationStepState.Name(step.state).removeprefix("OPERATION_STEP_STATE_").lower()
            said.append(f"{step.name} is {word}" + (f" ({step.reason})" if step.reason else ""))
        if said:
            yield self._event("operation", f"operation {new.operation_id}", "; ".join(said))

    def _skipped(self) -> Iterator[api.ClusterEvent]:
        for operation_id, skips in self._skips.items():
            more = f" and {len(skips) - 5} more" if len(skips) > 5 else ""
            change = f"leaves out {'; '.join(skips[:5])}{more}"
            yield self._event("operation", f"operation {operation_id}", change)

    # --- nodes ------------------------------------------------------------------------------

    def _node(self, node_id: NodeId) -> Iterator[api.ClusterEvent]:
        new = self._after.nodes.get(node_id)
        if new is None:
            return
        said = _states(self._before.nodes.get(node_id), new)
        old_policy = self._before.operations.policies.get(node_id)
        policy = self._after.operations.policies.get(node_id)
        if old_policy != policy:
            if policy is None:
                said.append("no longer cordoned")
            else:
                said.append("to be drained" if policy.draining else "cordoned")
        if not said:
            return
        if lost := self._lost[node_id]:
            without = self._leaderless[node_id]
            said.append(
                f"it led {_count(lost, 'partition')}"
                + (f", {without} of them {'have' if without > 1 else 'has'} no leader now" if without else "")
            )
        if won := self._won[node_id]:
            said.append(f"it leads {_count(won, 'partition')}")
        if left := self._left[node_id]:
            said.append(f"it left {_count(left, 'ISR')}")
        if joined := self._joined[node_id]:
            said.append(f"it joined {_count(joined, 'ISR')}")
        yield self._event("node", f"node {node_id}", "; ".join(said))


def _states(old: NodeImage | None, new: NodeImage) -> list[str]:
    said = []
    if old is None or old.node_epoch != new.node_epoch:
        said.append(f"registered with epoch {new.node_epoch}, build {new.version}")
    elif new.fenced != old.fenced:
        said.append("fenced" if new.fenced else "unfenced")
    if new.in_controlled_shutdown and (old is None or not old.in_controlled_shutdown):
        said.append("stopping")
    elif old is not None and old.in_controlled_shutdown and new.active:
        said.append("no longer stopping")
    if old is not None and old.disk_failed != new.disk_failed:
        said.append("disk failed" if new.disk_failed else "disk good")
    if old is not None and old.disk_full != new.disk_full:
        said.append("disk full" if new.disk_full else "disk has room")
    return said


def _unit(record: pb.OperationRecord) -> str:
    return "step" if record.steps else "move"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
