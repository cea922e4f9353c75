"""What is asked for by a PlanRequest: checked against the image, and put in its terms.

Whatever cannot be meant is refused with a PenstockError that names it and says what would help. What only planning can
tell (too few nodes, no room) is left to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from penstock_controller.state.operations.planner.moves import Goal
from penstock_controller.state.operations.plans.gates import check_allowed
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage, TopicImage
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb


class Kind(StrEnum):
    """Kinds that are planned. "reassignment" is not: there somebody else says where replicas go."""

    NODE_ADD = "node-add"
    NODE_DRAIN = "node-drain"
    NODE_UNCORDON = "node-uncordon"
    NODE_REPLACE = "node-replace"
    NODE_REMOVE = "node-remove"
    SET_REPLICATION_FACTOR = "set-replication-factor"
    REBALANCE = "rebalance"
    LEADER_ELECT = "leader-elect"
    ROLLING_RESTART = "rolling-restart"


_TAKES: Final[Mapping[Kind, frozenset[str]]] = MappingProxyType(
    {
        Kind.NODE_ADD: frozenset({"node_ids"}),
        Kind.NODE_DRAIN: frozenset({"node_ids"}),
        Kind.NODE_UNCORDON: frozenset({"node_ids"}),
        Kind.NODE_REPLACE: frozenset({"node_ids", "replacement_node_id"}),
        Kind.NODE_REMOVE: frozenset({"node_ids"}),
        Kind.SET_REPLICATION_FACTOR: frozenset({"topics", "replication_factor"}),
        Kind.REBALANCE: frozenset({"goals", "topics", "excluded_node_ids", "max_bytes"}),
        Kind.LEADER_ELECT: frozenset({"topics", "partitions"}),
        Kind.ROLLING_RESTART: frozenset({"roles", "process_names", "step_timeout_s"}),
    }
)
"""Parameters that each kind understands."""

EVEN: Final = frozenset({Goal.REPLICAS, Goal.LEADERS})
"""What is evened out unless something else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request whose nodes and topics are there."""

    kind: Kind
    node_ids: frozenset[NodeId] = frozenset()
    replacement: NodeId | None = None
    topics: tuple[TopicImage, ...] = ()
    """None: all."""
    topic_names: frozenset[str] = frozenset()
    factor: int = 0
    goals: frozenset[Goal] = frozenset()
    excluded: frozenset[NodeId] = frozenset()
    max_bytes: int | None = None
    partitions: frozenset[int] = frozenset()
    """Of the one topic of an election; none: all."""

    @property
    def coming(self) -> frozenset[NodeId]:
        """Nodes that take replicas again, though they may still be cordoned."""
        return self.node_ids if self.kind is Kind.NODE_ADD else frozenset()

    @property
    def leaving(self) -> frozenset[NodeId]:
        """Nodes that keep nothing."""
        gives = self.kind in (Kind.NODE_DRAIN, Kind.NODE_REMOVE) or self.replacement is not None
        return self.node_ids if gives else frozenset()

    @property
    def refilled(self) -> frozenset[NodeId]:
        """Nodes that come back with an empty directory and fetch what they held."""
        return self.node_ids if self.kind is Kind.NODE_REPLACE and self.replacement is None else frozenset()

    @property
    def mended(self) -> frozenset[NodeId]:
        """Nodes whose replicas go elsewhere or are made anew: that they are missing is no reason to wait."""
        return self.node_ids if self.leaving or self.kind is Kind.NODE_REPLACE else frozenset()

    @property
    def moves_replicas(self) -> bool:
        """Whether replicas may go anywhere at all."""
        if self.kind is Kind.NODE_REPLACE:
            return self.replacement is not None
        return self.kind not in (Kind.NODE_UNCORDON, Kind.LEADER_ELECT, Kind.ROLLING_RESTART)

    def covers(self, topic: str) -> bool:
        """Whether it is about a topic."""
        return not self.topic_names or topic in self.topic_names


def check_request(image: MetadataImage, request: pb.PlanRequest, alive: Callable[[NodeId], bool]) -> Asked:
    """What is asked for. Raises PenstockError."""
    kind = _kind(request.kind)
    parameters = request.parameters
    for field, _ in parameters.ListFields():
        if field.name not in _TAKES[kind]:
            raise _invalid(f"{kind} has no parameter {field.name}; it has {', '.join(sorted(_TAKES[kind]))}")
    check_allowed(request.allowed_gates)
    if request.throttle.auto and request.throttle.bytes_per_s:
        raise _invalid(
            f"the throttle is both auto and {request.throttle.bytes_per_s:,} bytes/s; choose one of them"
        )
    node_ids = _nodes(image, "node_ids", parameters.node_ids)
    if "node_ids" in _TAKES[kind]:
        _check_nodes(image, kind, node_ids, alive)
    topics = _topics(image, parameters.topics)
    asked = Asked(
        kind=kind,
        node_ids=node_ids,
        replacement=_replacement(image, parameters, node_ids, alive),
        topics=topics,
        topic_names=frozenset(topic.name for topic in topics),
        factor=_factor(parameters, topics) if kind is Kind.SET_REPLICATION_FACTOR else 0,
        goals=_goals(kind, parameters),
        excluded=_nodes(image, "excluded_node_ids", parameters.excluded_node_ids),
        max_bytes=parameters.max_bytes if parameters.HasField("max_bytes") else None,
        partitions=_partitions(parameters.partitions, topics),
    )
    if asked.max_bytes is not None and Goal.BYTES not in asked.goals:
        raise _invalid('max_bytes bounds what the goal "bytes" moves; add that goal, or leave max_bytes out')
    return asked


def may_serve(image: MetadataImage, node_id: NodeId, alive: Callable[[NodeId], bool]) -> bool:
    """Whether a node is live, as the metadata and its session say."""
    node = image.nodes.get(node_id)
    return node is not None and node.active and alive(node_id)


def _kind(name: str) -> Kind:
    try:
        return Kind(name)
    except ValueError:
        raise _invalid(f"there is no operation of kind {name!r}; there are {', '.join(Kind)}") from None


def _nodes(image: MetadataImage, what: str, numbers: Sequence[int]) -> frozenset[NodeId]:
    node_ids = [NodeId(n) for n in numbers]
    _check_once(what, [str(n) for n in node_ids])
    for node_id in node_ids:
        _check_registered(image, node_id)
    return frozenset(node_ids)


def _check_nodes(
    image: MetadataImage, kind: Kind, node_ids: frozenset[NodeId], alive: Callable[[NodeId], bool]
) -> None:
    if not node_ids:
        raise _invalid(f"{kind} needs the id of a node (node_ids); see `penstock node list`")
    if kind is Kind.NODE_ADD:
        for node_id in sorted(node_ids):
            _check_live(image, node_id, alive)
    if kind is Kind.NODE_REPLACE and len(node_ids) > 1:
        raise _invalid(f"one node is replaced at a time, not {_named(node_ids)}; plan one for each of them")
    if kind in (Kind.NODE_DRAIN, Kind.NODE_REMOVE):
        others = [n for n in image.nodes if n not in node_ids and may_serve(image, n, alive)]
        if all(image.operations.is_cordoned(n) for n in others):
            raise PenstockError(
                ErrorCode.POLICY_VIOLATION,
                f"without {_named(node_ids)} no live storage node is left that takes replicas; start another one, or "
                "uncordon one, first",
            )


def _replacement(
    image: MetadataImage,
    parameters: meta.OperationParameters,
    node_ids: frozenset[NodeId],
    alive: Callable[[NodeId], bool],
) -> NodeId | None:
    if not parameters.replacement_node_id:
        return None
    node_id = NodeId(parameters.replacement_node_id)
    _check_registered(image, node_id)
    if node_id in node_ids:
        raise _invalid(
            f"node {node_id} cannot take its own place; name another node, or leave replacement_node_id out"
        )
    _check_live(image, node_id, alive)
    if image.nodes[node_id].disk_full:
        raise PenstockError(
            ErrorCode.POLICY_VIOLATION,
            f"the disk of node {node_id} is full; free space there, or name another node",
        )
    if image.operations.is_cordoned(node_id):
        raise PenstockError(
            ErrorCode.POLICY_VIOLATION,
            f"node {node_id} is cordoned and takes no replicas; run `penstock node uncordon {node_id}`",
        )
    return node_id


def _topics(image: MetadataImage, names: Sequence[str]) -> tuple[TopicImage, ...]:
    _check_once("topics", names)
    found = []
    for name in names:
        topic = image.topic(name)
        if topic is None:
            raise PenstockError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}; see `penstock topic list`"
            )
        found.append(topic)
    return tuple(found)


def _factor(parameters: meta.OperationParameters, topics: tuple[TopicImage, ...]) -> int:
    if not topics:
        raise _invalid("set-replication-factor needs the names of topics (topics)")
    if parameters.replication_factor < 1:
        raise PenstockError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication_factor is {parameters.replication_factor}; use 1 or more",
        )
    return parameters.replication_factor


def _goals(kind: Kind, parameters: meta.OperationParameters) -> frozenset[Goal]:
    """A factor is changed with as few moves as can be; the rest leaves things even."""
    if kind in (Kind.NODE_ADD, Kind.NODE_DRAIN, Kind.NODE_REMOVE):
        return EVEN
    if kind is not Kind.REBALANCE:
        return frozenset()
    known = {goal.value: goal for goal in Goal}
    for name in parameters.goals:
        if name not in known:
            raise _invalid(f"there is no goal {name!r}; there are {', '.join(known)}")
    return frozenset(known[name] for name in parameters.goals) or EVEN


def _partitions(numbers: Sequence[int], topics: tuple[TopicImage, ...]) -> frozenset[int]:
    if not numbers:
        return frozenset()
    if len(topics) != 1:
        raise _invalid(f"partitions are those of one topic, and {len(topics)} are named; name one (topics)")
    _check_once("partitions", [str(n) for n in numbers])
    for number in numbers:
        if number not in topics[0].partitions:
            raise PenstockError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no partition {topics[0].name}-{number}; the topic has {len(topics[0].partitions)}",
            )
    return frozenset(numbers)


def _check_registered(image: MetadataImage, node_id: NodeId) -> None:
    if node_id not in image.nodes:
        raise PenstockError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"no storage node has the id {node_id}; see `penstock node list`",
        )


def _check_live(image: MetadataImage, node_id: NodeId, alive: Callable[[NodeId], bool]) -> None:
    if not may_serve(image, node_id, alive):
        raise PenstockError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"node {node_id} is not live and can get no replicas; start it, or wait until it is up",
        )


def _check_once(what: str, names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise _invalid(f"{what}: {name} is named twice")
        seen.add(name)


def _named(node_ids: Iterable[NodeId]) -> str:
    found = sorted(node_ids)
    return f"node{'s' * (len(found) > 1)} {', '.join(map(str, found))}"


def _invalid(message: str) -> PenstockError:
    return PenstockError(ErrorCode.INVALID_REQUEST, message)
