"""Gates: what must hold before an operation may begin or go on. Each is decided apart, from an image and a plan.

`quorum`, `disk-room`, `conflict` and `versions` are never allowed away; the others are when a person says so.
`single-replica` and `min-isr` are about processes that stop: of moves alone they always hold.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock_controller.state.nodes import rules_for
from penstock_controller.state.operations.planner.domains import Domains
from penstock_controller.state.operations.planner.moves import PlannedMove
from penstock_controller.state.operations.planner.shape import FILL_MOST, PlanNode
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.levels import level_of
from penstock_core.metadata.operations import ENDED, OperationMove
from penstock_proto.v1 import operations_pb2 as pb

QUORUM: Final = "quorum"
DISK_ROOM: Final = "disk-room"
CONFLICT: Final = "conflict"
VERSIONS: Final = "versions"
MIN_ISR: Final = "min-isr"
RACKS: Final = "racks"
HEALTH: Final = "health"
SINGLE_REPLICA: Final = "single-replica"

ALLOWABLE: Final = frozenset({MIN_ISR, RACKS, HEALTH, SINGLE_REPLICA})
"""Gates that a person may allow away."""
OPERATIONS_LEVEL: Final = 3
"""`metadata.level` that operations came with."""
ITEMS_MAX: Final = 100
_A_STEP: Final = 64
"""Partitions or moves looked at between two steps."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a gate looked at; it holds where there is no `detail`."""

    name: str
    detail: str = ""
    items: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return not self.detail

    def to_pb(self, allowed: Collection[str]) -> pb.Gate:
        """The gate, once it is known what was allowed."""
        blocking = not self.ok and not (self.name in ALLOWABLE and self.name in allowed)
        items = self.items[:ITEMS_MAX]
        return pb.Gate(name=self.name, ok=self.ok, blocking=blocking, detail=self.detail, items=items)


def check_allowed(names: Iterable[str]) -> None:
    """Raises INVALID_REQUEST for a gate that is not there, or that nobody may allow away."""
    never = {QUORUM, DISK_ROOM, CONFLICT, VERSIONS, "plan-changed"}
    for name in names:
        if name not in ALLOWABLE:
            why = "cannot be allowed away" if name in never else "is not there"
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                f"gate {name!r} {why}; these may be allowed: {', '.join(sorted(ALLOWABLE))}",
            )


def quorum(state: tuple[bool, str]) -> Finding:
    """Enough controllers are there: as the quorum itself says, with the reason."""
    ok, why = state
    return Finding(QUORUM, "" if ok else why or "too few controllers are there and up to date; start them")


def versions(image: MetadataImage) -> Finding:
    """Every process knows what operations are."""
    level = level_of(image)
    if level >= OPERATIONS_LEVEL:
        return Finding(VERSIONS)
    return Finding(
        VERSIONS,
        f"operations need metadata.level {OPERATIONS_LEVEL}, the cluster has {level}; run `penstock cluster upgrade`",
    )


def disk_room(
    nodes: Iterable[PlanNode],
    moves: Sequence[PlannedMove],
    untold: Collection[TopicPartition],
    undecided: Sequence[str] = (),
) -> Generator[None, None, Finding]:
    """No target is filled beyond its reserve with what leaves it still there.

    What is not known does not pass: sizes of what is copied (`untold`: all that nobody told), disks of targets, and
    `undecided`, partitions by whose size it was to be decided what moves.
    """
    incoming: dict[NodeId, int] = {}
    unknown = [f"{name} (size unknown)" for name in undecided]
    for count, move in enumerate(moves, 1):
        new = set(move.after) - set(move.before)
        if new and move.partition.key in untold and not undecided:
            unknown.append(f"{_name(move)} (size unknown)")
        for node_id in new:
            incoming[node_id] = incoming.get(node_id, 0) + move.partition.size_bytes
        if count % _A_STEP == 0:
            yield
    short, silent = [], []
    for node in nodes:
        size = incoming.get(node.node_id)
        if size is None:
            continue
        if node.disk_total_bytes is None:
            silent.append(f"node {node.node_id} (disk unknown)")
        elif size and node.disk_used_bytes + size > FILL_MOST * node.disk_total_bytes:
            lacks = node.disk_used_bytes + size - int(FILL_MOST * node.disk_total_bytes)
            short.append(f"node {node.node_id} (lacks {lacks:,} bytes)")
    said = []
    if short:
        said.append(
            f"disks would be filled to more than {FILL_MOST:.0%} while old and new copies lie side by side; add nodes, "
            "free space, or move less at once"
        )
    if silent or unknown:
        said.append(
            "nodes have not told yet what their disks and replicas hold; try again in some seconds, and see that "
            "they are up"
        )
    return Finding(DISK_ROOM, "; ".join(said), (*short, *silent, *unknown))


def conflict(
    image: MetadataImage,
    moves: Mapping[TopicPartition, str],
    node_ids: Collection[NodeId] = (),
    leaving: Collection[NodeId] = (),
    operation_id: int = 0,
) -> Generator[None, None, Finding]:
    """No partition of the plan, and no node it is about, is in another operation's hands. `moves`: names by key.

    `leaving`: of those nodes the ones to be emptied. A move onto one of them that has yet to begin would wait until
    somebody takes the node back.
    """
    items = []
    others: dict[TopicPartition, int] = {}
    count = 0
    for other, operation in image.operations.operations.items():
        if other == operation_id or operation.state in ENDED:
            continue
        for node_id in sorted({*operation.parameters.node_ids, operation.parameters.replacement_node_id}):
            if node_id in node_ids:
                items.append(f"node {node_id} (operation {other})")
        for key, move in image.operations.moves.get(other, {}).items():
            if not move.skipped:
                others[key] = other
                if key not in moves and not set(leaving).isdisjoint(move.replicas):
                    items.append(onto(image, move, other))
            count += 1
            if count % _A_STEP == 0:
                yield
    for key, name in moves.items():
        partition = image.partition(key.topic_id, key.partition)
        if key in others:
            items.append(f"{name} (operation {others[key]})")
        elif partition is not None and partition.reassigning:
            items.append(f"{name} (being reassigned)")
        count += 1
        if count % _A_STEP == 0:
            yield
    if not items:
        return Finding(CONFLICT)
    return Finding(
        CONFLICT,
        "something else is moving them already; wait until it is done, or cancel it (`penstock operation list`)",
        tuple(items),
    )


def onto(image: MetadataImage, move: OperationMove, operation_id: int) -> str:
    """Names a move onto a node that is to be emptied."""
    topic = image.topics.get(move.key.topic_id)
    name = move.key.topic_id.hex() if topic is None else topic.name
    return f"{name}-{move.key.partition} (operation {operation_id})"


def racks(domains: Domains, moves: Sequence[PlannedMove]) -> Generator[None, None, Finding]:
    """No partition is spread over its domains worse than now."""
    items = []
    for count, move in enumerate(moves, 1):
        if domains.level_count and _is_worse(domains, move.before, move.after):
            items.append(_name(move))
        if count % _A_STEP == 0:
            yield
    if not items:
        return Finding(RACKS)
    return Finding(
        RACKS,
        "replicas would share racks more than now; add nodes in racks that lack some, or allow it (`--allow racks`)",
        tuple(items),
    )


def _is_worse(domains: Domains, before: Sequence[NodeId], after: Sequence[NodeId]) -> bool:
    if len(before) == len(after):
        return domains.cost(after) > domains.cost(before)
    for level in range(1, domains.level_count + 1):
        had = len({domains.of[n][:level] for n in before})
        if len({domains.of[n][:level] for n in after}) < min(had, len(after)):
            return True
    return False


def health(
    image: MetadataImage, mended: Collection[NodeId] = (), emptied: Collection[NodeId] = ()
) -> Generator[None, None, Finding]:
    """Every partition has a leader and is not below min ISR.

    Partitions that only lack nodes in `mended`, whose replicas the operation makes anew, do not count. Such do that are
    in sync on nodes in `emptied` alone, which are to come back without data.
    """
    items: list[str] = []
    count = 0
    for topic in sorted(image.topics.values(), key=lambda t: t.name):
        rules = None
        for number in sorted(topic.partitions):
            partition = topic.partitions[number]
            rules = rules or rules_for(image, topic)
            why = _illness(partition, rules.effective_min_isr(partition), mended, emptied)
            if why:
                items.append(f"{topic.name}-{number} ({why})")
            count += 1
            if count % _A_STEP == 0:
                yield
    if not items:
        return Finding(HEALTH)
    return Finding(
        HEALTH,
        "partitions are offline or have fewer replicas in sync than they need; bring their nodes back first, or allow "
        "it (`--allow health`)",
        tuple(items),
    )


def _illness(
    partition: PartitionImage, min_isr: int, mended: Collection[NodeId], emptied: Collection[NodeId]
) -> str:
    holders = {*partition.isr, *partition.elr}
    if holders and holders <= set(emptied):
        return f"single copy, on node {min(holders)}, which is to come back empty"
    if partition.leader == NO_NODE:
        if holders and holders <= set(mended):
            return f"single copy, on node {min(holders)}, which is down"
        return "offline"
    if len(partition.isr) >= min_isr:
        return ""
    away = {n for n in partition.replicas if n not in partition.isr and n not in partition.adding_replicas}
    return "" if away <= set(mended) else f"{len(partition.isr)} in sync of {min_isr} that it needs"


def _name(move: PlannedMove) -> str:
    return f"{move.partition.topic}-{move.partition.key.partition}"
