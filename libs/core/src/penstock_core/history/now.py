"""How a partition, a node or an operation is now, and what would have to happen for it to be well. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock_core.config.catalog import topic_config
from penstock_core.config.topic import default_min_insync_replicas
from penstock_core.history.phrases import nodes, size, span
from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata import MetadataImage, NodeImage, PartitionImage
from penstock_core.metadata.operations import ENDED
from penstock_core.operation_documents import STATES
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api

LOOKED_AT: Final = 256
"""Partitions between two chances for others to run."""
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Now:
    """What is."""

    summary: str
    """One sentence: is it well, and if not what would have to happen."""
    lines: list[str] = field(default_factory=list)


# --- partitions -----------------------------------------------------------------------------


def of_partition(image: MetadataImage, topic: str, partition: PartitionImage) -> Now:
    """A partition of the topic of that name."""
    name = f"{topic}-{partition.partition}"
    in_sync, least = len(partition.isr), _min_isr(image, topic, partition)
    lines = []
    if partition.leader == NO_NODE:
        last = partition.last_known_leader
        lines.append("no node leads it" + ("" if last == NO_NODE else f"; the last one was node {last}"))
    else:
        lines.append(f"node {partition.leader} leads it since epoch {partition.leader_epoch}")
    lines.append(
        f"replicas on {_list(partition.replicas)}, in sync {_list(partition.isr)}, min.insync.replicas {least}"
    )
    if partition.elr:
        lines.append(f"may lead though outside the ISR (ELR): {_list(partition.elr)}")
    if partition.reassigning:
        mover = _mover(image, partition)
        by = f" by operation {mover}" if mover else ""
        lines.append(
            f"being moved{by}: comes to {_list(partition.adding_replicas)}, leaves {_list(partition.removing_replicas)}"
        )
    if partition.recovering:
        lines.append("its leader is recovering after an unclean election")
    lines += [f"node {n} {why}" for n in partition.replicas if (why := unwell(image, n))]
    return Now(f"{name} {_partition_summary(image, partition, in_sync, least)}", lines)


def _partition_summary(image: MetadataImage, partition: PartitionImage, in_sync: int, least: int) -> str:
    if partition.leader == NO_NODE:
        able = partition.isr or partition.elr
        if not able and partition.last_known_leader != NO_NODE:
            able = (partition.last_known_leader,)
        if able:
            any_of = "" if len(able) == 1 else "one of "
            return f"is offline: it needs {any_of}{nodes(_ids(able))} back, which may lead it without loss; start it"
        return "is offline, and no replica is known to be whole: see `penstock cluster recover` and unclean elections"
    missing = [n for n in partition.replicas if n not in partition.isr and n not in partition.adding_replicas]
    if in_sync < least:
        return (
            f"takes no acks=all: {in_sync} of {least} needed replicas are in sync; "
            f"it is well again once {_back(image, missing)}"
        )
    if missing:
        return f"takes records, but lacks {nodes(_ids(missing))} in sync; it is well again once {_back(image, missing)}"
    if partition.reassigning:
        return f"is well, and is being moved: it waits for {nodes(_ids(partition.adding_replicas))} to be in sync"
    if partition.leader != partition.replicas[0]:
        first = partition.replicas[0]
        return f"is well; its preferred leader, node {first}, gets it back by itself or by `penstock leader elect`"
    return "is well: its preferred leader leads, and all replicas are in sync"


def _back(image: MetadataImage, missing: Iterable[NodeId]) -> str:
    gone = [n for n in missing if (node := image.nodes.get(n)) is None or node.fenced]
    behind = [n for n in missing if n not in gone]
    said = []
    if gone:
        said.append(f"{nodes(_ids(gone))} {'is' if len(gone) == 1 else 'are'} started")
    if behind:
        said.append(f"{nodes(_ids(behind))} {'has' if len(behind) == 1 else 'have'} caught up")
    return " and ".join(said) or "its replicas are in sync"


def _min_isr(image: MetadataImage, topic: str, partition: PartitionImage) -> int:
    wanted = topic_config(image, topic).get("min.insync.replicas", "").strip()
    factor = max(1, partition.factor)
    return max(1, min(int(wanted) if wanted.isdecimal() else default_min_insync_replicas(factor), factor))


def _mover(image: MetadataImage, partition: PartitionImage) -> int:
    for operation_id, moves in image.operations.moves.items():
        move = moves.get(partition.key)
        if move is not None and not move.skipped:
            return operation_id
    return 0


# --- nodes ----------------------------------------------------------------------------------


def unwell(image: MetadataImage, node_id: NodeId) -> str:
    """What is the matter with a node, as the end of a sentence; empty when nothing is."""
    node = image.nodes.get(node_id)
    if node is None:
        return "is not there any more"
    if node.disk_failed:
        return "has a failed disk"
    if node.fenced:
        return "is fenced: nothing is heard of it, or it has not caught up"
    if node.in_controlled_shutdown:
        return "is stopping"
    return "has a full disk" if node.disk_full else ""


@dataclass(slots=True)
class NodeCounts:
    """What a node has to do with the cluster's partitions."""

    replicas: int = 0
    leaders: int = 0
    lacking: list[str] = field(default_factory=list)
    """Partitions that have a replica there which is not in sync."""
    lacking_count: int = 0
    waiting: list[str] = field(default_factory=list)
    """Partitions without a leader that it could lead."""
    waiting_count: int = 0

    def look(self, image: MetadataImage, node_id: NodeId) -> Generator[None, None, None]:
        """Count; gives others a chance to run at every `next`."""
        seen = 0
        for topic in image.topics.values():
            for partition in topic.partitions.values():
                if node_id in partition.replicas:
                    self._count(f"{topic.name}-{partition.partition}", partition, node_id)
                seen += 1
                if seen % LOOKED_AT == 0:
                    yield None

    def _count(self, name: str, partition: PartitionImage, node_id: NodeId) -> None:
        self.replicas += 1
        self.leaders += partition.leader == node_id
        if node_id not in partition.isr:
            self.lacking_count += 1
            self.lacking += [name] if len(self.lacking) < _NAMED_MAX else []
        could = node_id in (partition.isr or partition.elr or (partition.last_known_leader,))
        if partition.leader == NO_NODE and could:
            self.waiting_count += 1
            self.waiting += [name] if len(self.waiting) < _NAMED_MAX else []


def of_node(
    image: MetadataImage, node: NodeImage, counts: NodeCounts, condition: api.NodeCondition | None
) -> Now:
    """A storage node. `condition`: what the active controller says of it, if it could be asked."""
    node_id = node.node_id
    policy = image.operations.policies.get(node_id)
    lines = [
        f"registered since version {node.node_epoch}, build {node.version or 'unknown'}, at {node.grpc.address}"
        + (f", rack {node.rack}" if node.rack else ""),
        f"{counts.replicas} replicas, leads {counts.leaders}, not in sync with {counts.lacking_count}",
    ]
    if condition is not None:
        free = condition.HasField("disk_free_bytes")
        room = f", {size(condition.disk_free_bytes)} of its disk are free" if free else ""
        lines.append(f"condition {condition.condition}{room}")
    if counts.lacking:
        lines.append(f"not in sync: {_some(counts.lacking, counts.lacking_count)}")
    if counts.waiting:
        lines.append(f"no leader until it is back: {_some(counts.waiting, counts.waiting_count)}")
    if policy is not None:
        what = "being drained" if policy.draining else "cordoned"
        lines.append(what + (f" by operation {policy.operation_id}" if policy.operation_id else ""))
    for operation_id, record in image.operations.operations.items():
        if record.state not in ENDED and names_node(record, node_id):
            lines.append(f"operation {operation_id} ({record.kind}) is {STATES.get(record.state, 'pending')}")
    return Now(f"node {node_id} {_node_summary(image, node, counts)}", lines)


def _node_summary(image: MetadataImage, node: NodeImage, counts: NodeCounts) -> str:
    if node.disk_failed:
        return "has a failed disk: mend or replace it (`penstock node replace`), then start the node"
    if node.fenced:
        urgent = (
            f"; {counts.waiting_count} partitions have no leader until it is back"
            if counts.waiting_count
            else ""
        )
        return f"is fenced: start it, or look at its log if it runs{urgent}"
    if node.in_controlled_shutdown:
        return "is stopping: leadership and ISR membership go where others can take them"
    if node.disk_full:
        return "has a full disk: free space there or move replicas away (`penstock cluster rebalance`)"
    if counts.lacking_count:
        return f"is up and catches up: {counts.lacking_count} of its {counts.replicas} replicas are not in sync yet"
    if image.operations.is_cordoned(node.node_id):
        return f"is well, and takes no new replicas: `penstock node uncordon {node.node_id}` lets it take part again"
    return f"is well: all of its {counts.replicas} replicas are in sync"


def names_node(record: pb.OperationRecord, node_id: int) -> bool:
    """Whether an operation is about a node."""
    parameters = record.parameters
    if node_id in parameters.node_ids or node_id == parameters.replacement_node_id:
        return True
    return any(step.name == f"node-{node_id}" for step in record.steps)


# --- operations -------------------------------------------------------------------------------


@dataclass(slots=True)
class OperationLook:
    """Nodes that replicas of an operation are on their way to, with partitions by name."""

    lacking: dict[NodeId, list[str]] = field(default_factory=dict)
    counts: dict[NodeId, int] = field(default_factory=dict)

    def look(self, image: MetadataImage, operation_id: int) -> Generator[None, None, None]:
        """Look at its moves; gives others a chance to run at every `next`."""
        for seen, (key, move) in enumerate(image.operations.moves.get(operation_id, {}).items(), 1):
            topic = image.topics.get(key.topic_id)
            partition = None if topic is None else topic.partitions.get(key.partition)
            if topic is not None and partition is not None and not move.skipped:
                self._add(f"{topic.name}-{key.partition}", partition)
            if seen % LOOKED_AT == 0:
                yield None

    def _add(self, name: str, partition: PartitionImage) -> None:
        for node_id in partition.adding_replicas:
            if node_id in partition.isr:
                continue
            self.counts[node_id] = self.counts.get(node_id, 0) + 1
            names = self.lacking.setdefault(node_id, [])
            if len(names) < _NAMED_MAX:
                names.append(name)

    def waits(self) -> list[str]:
        """What each of them has to do."""
        return [
            f"node {n} to catch up with {_some(names, self.counts[n])}"
            for n, names in sorted(self.lacking.items())
        ]


def of_operation(image: MetadataImage, operation: api.Operation, look: OperationLook, now_ms: int) -> Now:
    """An operation. `now_ms`: wall clock, ms since 1970."""
    record, progress = operation.record, operation.progress
    state = STATES.get(record.state, "pending")
    by = f" by {record.created_by}" if record.created_by else ""
    lines = [
        f"{what_of(record)}, {state}" + (f": {record.phase}" if record.phase and state == "running" else "")
    ]
    if record.created_ms:
        lines.append(f"recorded {span(max(0, now_ms - record.created_ms))} ago{by}")
    if progress.moves_total:
        skipped = f", {progress.moves_skipped} left out" if progress.moves_skipped else ""
        lines.append(
            f"{progress.moves_done} of {progress.moves_total} moves done, {progress.moves_running} under way{skipped}; "
            f"{size(progress.bytes_done)} of {size(progress.bytes_total)}"
        )
    if record.steps:
        done = sum(
            s.state in (pb.OPERATION_STEP_STATE_DONE, pb.OPERATION_STEP_STATE_SKIPPED) for s in record.steps
        )
        running = [s.name for s in record.steps if s.state == pb.OPERATION_STEP_STATE_RUNNING]
        lines.append(
            f"{done} of {len(record.steps)} steps done" + (f", now {', '.join(running)}" if running else "")
        )
    if record.reason:
        lines.append(f"reason: {record.reason}")
    waits: list[str] = [progress.waiting_for] if progress.waiting_for else []
    waits += look.waits()
    lines += [f"waits for {each}" for each in waits]
    return Now(
        f"operation {record.operation_id} {_operation_summary(image, record, look, state, waits)}", lines
    )


def what_of(record: pb.OperationRecord) -> str:
    """Its kind, and the nodes that it is about: `node-replace of node 2 by node 7`."""
    parameters = record.parameters
    about = f" of {nodes(tuple(parameters.node_ids))}" if parameters.node_ids else ""
    by = f" by node {parameters.replacement_node_id}" if parameters.replacement_node_id else ""
    return f"{record.kind}{about}{by}"


def _operation_summary(
    image: MetadataImage, record: pb.OperationRecord, look: OperationLook, state: str, waits: list[str]
) -> str:
    number, what = record.operation_id, what_of(record)
    if record.state in ENDED:
        return f"({what}) has ended: {state}" + (f", {record.reason}" if record.reason else "")
    if state == "paused":
        why = record.reason or "no reason is known"
        if record.paused_by_hand:
            why = why.removeprefix("paused ")
            return f"({what}) is paused: {why}; `penstock operation resume {number}` lets it go on"
        if any(step.reason for step in record.steps if step.state == pb.OPERATION_STEP_STATE_RUNNING):
            why += f": mend it, then `penstock operation resume {number} --via ...` goes on"
        return f"({what}) is paused: {why}"
    if state == "pending":
        return f"({what}) waits for its turn: operations before it end first (`penstock operation list`)"
    gone = sorted(n for n in look.lacking if (node := image.nodes.get(n)) is None or node.fenced)
    if gone:
        return (
            f"({what}) waits for {nodes(_ids(gone))}, to which replicas go: start it, or cancel the operation"
        )
    said = f"; it waits for {waits[0]}" if waits else ""
    return f"({what}) is {state}{said}"


def _ids(ids: Iterable[NodeId]) -> tuple[int, ...]:
    return tuple(int(n) for n in ids)


def _list(ids: Iterable[NodeId]) -> str:
    return ", ".join(map(str, ids)) or "none"


def _some(names: list[str], count: int) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return ", ".join(names) + more
