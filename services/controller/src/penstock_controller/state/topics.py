"""Creating, growing and deleting topics, with Kafka's errors.

Source: ReplicationControlManager of Apache Kafka 4.3.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock_controller.state import causes
from penstock_controller.state.coordinator_topics import (
    CLUSTER_DEFAULT,
    DEFAULT_REPLICAS,
    check_may_grow,
    with_defaults,
)
from penstock_controller.state.features import require_batch_level
from penstock_controller.state.generation import (
    Context,
    Generated,
    author_of,
    config_record,
    error_pb,
    make_error,
    partition_record,
)
from penstock_controller.state.mutation_quotas import UNLIMITED, MutationBudget
from penstock_controller.state.nodes import is_active, is_full, is_last_choice
from penstock_controller.state.placement import Load, place_steps
from penstock_core.config.catalog import check_fixed
from penstock_core.config.topic import validate_topic_config, validate_topic_configs
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import LeaderEpoch, NodeId, TopicId
from penstock_core.limits import PARTITIONS_PER_REQUEST_MAX
from penstock_core.metadata import MetadataImage, PartitionImage, TopicImage
from penstock_core.topics import check_topic_name, collision_key
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

Assignment = list[list[NodeId]]


@dataclass(frozen=True, slots=True)
class _New:
    """Partitions that are to be made, all that could be wrong with them looked at."""

    count: int
    factor: int
    assignment: Assignment | None
    """Where their creator wants them; None: wherever there is room."""


@dataclass(frozen=True, slots=True)
class _Accepted:
    """New partitions of one topic."""

    topic_id: TopicId
    new: _New
    before: Sequence[pb.MetadataRecord] = ()
    after: Sequence[pb.MetadataRecord] = ()
    first: int = 0
    """Number of the first of them."""
    have: Sequence[Sequence[NodeId]] = ()
    """Replicas of the topic's other partitions."""


def _placed(ctx: Context, accepted: Sequence[_Accepted]) -> Iterator[pb.MetadataRecord | None]:
    """Records of what was accepted; None now and then, while it is decided where replicas go."""
    load = Load()
    if any(each.new.assignment is None for each in accepted):
        yield from load.add_all(_all_replicas(ctx.image))
    live = live_racks(ctx.image)
    for each in accepted:
        assignment = each.new.assignment
        if assignment is None:
            mine = Load()
            yield from mine.add_all(each.have)
            roomy = _with_room(ctx, live, each.new.factor)
            assignment = yield from place_steps(roomy, each.new.count, each.new.factor, load, mine, ctx.rng)
        yield from each.before
        for index, replicas in enumerate(assignment, start=each.first):
            load.add(replicas)
            yield _new_partition(ctx.image, each.topic_id, index, replicas)
        yield from each.after


def create_topics(
    ctx: Context, request: api.CreateTopicsRequest, mutations: MutationBudget = UNLIMITED
) -> Generated[api.CreateTopicsResponse]:
    """Create each topic that can be; the others carry their error. What is only validated counts too, as in Kafka."""
    reply = api.CreateTopicsResponse()
    doubled = _doubled(t.name for t in request.topics)
    accepted: list[_Accepted] = []
    author = author_of(ctx, request.principal)
    collisions = {collision_key(name): name for name in ctx.image.topic_ids}
    budget = PARTITIONS_PER_REQUEST_MAX
    for asked in request.topics:
        wanted = with_defaults(ctx, asked)
        result = reply.topics.add(name=wanted.name)
        try:
            if wanted.name in doubled:
                raise PenstockError(
                    ErrorCode.INVALID_REQUEST, f"topic {wanted.name} is named twice in the request"
                )
            _check_new_name(ctx.image, wanted.name, collisions)
            _check_configs(ctx.image, wanted)
            new = _new_topic(ctx, wanted, budget)
            mutations.spend(new.count)
        except PenstockError as error:
            result.error.CopyFrom(error_pb(error))
            continue
        budget -= new.count
        collisions[collision_key(wanted.name)] = wanted.name
        topic_id = TopicId(uuid.UUID(int=ctx.rng.getrandbits(128), version=4).bytes)
        result.topic_id = topic_id
        result.partition_count = new.count
        result.replication_factor = new.factor
        if request.validate_only:
            result.topic_id = bytes(16)
            continue
        topic = pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=wanted.name))
        configs = [
            config_record("topic", wanted.name, k, v, author) for k, v in sorted(wanted.configs.items())
        ]
        accepted.append(_Accepted(topic_id, new, before=[topic], after=configs))
    reply.throttle_ms = mutations.throttle_ms
    made = (t.name for t in reply.topics if not t.error.code)
    why = causes.of_topics("created", made, request.principal)
    return Generated(reply, further=_placed(ctx, accepted) if accepted else None, causes=why)


def _doubled(names: object) -> set[str]:
    counts: Counter[str] = Counter(names)  # type: ignore[call-overload]
    return {name for name, count in counts.items() if count > 1}


def _check_new_name(image: MetadataImage, name: str, collisions: dict[str, str]) -> None:
    check_topic_name(name)
    if name in image.topic_ids:
        raise PenstockError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
    other = collisions.get(collision_key(name))
    if other is not None:
        raise PenstockError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name!r} collides with existing topic {other!r}: '.' and '_' count as the same",
        )


def _check_configs(image: MetadataImage, wanted: api.NewTopic) -> None:
    for key, value in wanted.configs.items():
        validate_topic_config(key, value)
    validate_topic_configs(wanted.configs)
    check_fixed(wanted.name, wanted.configs)
    require_batch_level(image, wanted.configs)


def _new_topic(ctx: Context, wanted: api.NewTopic, budget: int) -> _New:
    if wanted.assignments:
        if wanted.partition_count != CLUSTER_DEFAULT or wanted.replication_factor != CLUSTER_DEFAULT:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                f"topic {wanted.name}: give either assignments or counts, not both (counts are then -1)",
            )
        _check_budget(wanted.name, len(wanted.assignments), budget)
        assignment = _check_assignments(ctx.image, wanted.name, wanted.assignments, None)
        return _New(len(assignment), len(assignment[0]), assignment)
    count = wanted.partition_count
    if count == CLUSTER_DEFAULT:
        count = ctx.defaults.partition_count
    if count <= 0:
        raise PenstockError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {wanted.name}: {count} partitions; use 1 or more, or -1 for the default",
        )
    _check_budget(wanted.name, count, budget)
    live = live_racks(ctx.image)
    factor = wanted.replication_factor
    if factor == CLUSTER_DEFAULT:
        factor = ctx.defaults.replication_factor
        if factor == CLUSTER_DEFAULT:
            factor = min(DEFAULT_REPLICAS, max(1, len(live)))
    _check_factor(wanted.name, factor, len(live))
    return _New(count, factor, None)


def _check_factor(name: str, factor: int, live_count: int) -> None:
    if factor <= 0:
        raise PenstockError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {name}: replication factor {factor}; use 1 or more, or -1 for the default",
        )
    if factor > live_count:
        raise PenstockError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {name}: replication factor {factor} cannot be reached, {live_count} storage node(s) are live; "
            "start more nodes or ask for fewer replicas",
        )


def _check_budget(name: str, count: int, budget: int) -> None:
    if count > budget:
        raise PenstockError(
            ErrorCode.POLICY_VIOLATION,
            f"topic {name}: one request may create at most {PARTITIONS_PER_REQUEST_MAX} partitions; split it",
        )


def live_racks(image: MetadataImage) -> dict[NodeId, str]:
    """Racks of the nodes that may get new replicas: live, and neither cordoned nor drained."""
    return {
        n.node_id: n.rack
        for n in sorted(image.nodes.values(), key=lambda n: n.node_id)
        if n.active and not image.operations.is_cordoned(n.node_id)
    }


def _with_room(ctx: Context, live: dict[NodeId, str], factor: int) -> dict[NodeId, str]:
    """Those of them whose disks are neither full nor low; all where that would be too few."""
    roomy = {n: rack for n, rack in live.items() if not is_full(ctx.image, n) and not ctx.low(n)}
    return roomy if len(roomy) >= factor else live


def _all_replicas(image: MetadataImage) -> Iterator[tuple[NodeId, ...]]:
    return (p.replicas for topic in image.topics.values() for p in topic.partitions.values())


def _check_assignments(
    image: MetadataImage, name: str, lists: Sequence[api.ReplicaList], factor: int | None
) -> Assignment:
    assignment = [[NodeId(n) for n in replicas.node_ids] for replicas in lists]
    for index, replicas in enumerate(assignment):
        where = f"topic {name}, partition {index} of the assignment"
        if not replicas:
            raise PenstockError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{where}: names no node")
        if len(set(replicas)) != len(replicas):
            raise PenstockError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{where}: names a node twice: {replicas}"
            )
        unknown = [n for n in replicas if n not in image.nodes]
        if unknown:
            raise PenstockError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{where}: no node has id {unknown[0]}")
        if len(replicas) != (factor or len(assignment[0])):
            raise PenstockError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{where}: {len(replicas)} replicas, others have {factor or len(assignment[0])}",
            )
        if not any(is_active(image, n) for n in replicas):
            raise PenstockError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{where}: all nodes of {replicas} are fenced or draining",
            )
    return assignment


def _new_partition(
    image: MetadataImage, topic_id: TopicId, number: int, replicas: Sequence[NodeId]
) -> pb.MetadataRecord:
    isr = tuple(n for n in replicas if is_active(image, n))
    leader = next((n for n in isr if not is_last_choice(image, n)), isr[0])
    partition = PartitionImage(
        topic_id=topic_id,
        partition=number,
        replicas=tuple(replicas),
        isr=isr,
        leader=leader,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
        last_known_leader=leader,
    )
    return partition_record(partition)


# --- more partitions ------------------------------------------------------------------


def create_partitions(
    ctx: Context, request: api.CreatePartitionsRequest, mutations: MutationBudget = UNLIMITED
) -> Generated[api.CreatePartitionsResponse]:
    """Grow topics to the wanted totals."""
    reply = api.CreatePartitionsResponse()
    doubled = _doubled(t.name for t in request.topics)
    accepted: list[_Accepted] = []
    budget = PARTITIONS_PER_REQUEST_MAX
    for wanted in request.topics:
        result = reply.topics.add(name=wanted.name)
        try:
            if wanted.name in doubled:
                raise PenstockError(
                    ErrorCode.INVALID_REQUEST, f"topic {wanted.name} is named twice in the request"
                )
            topic, new = _grown(ctx, wanted, budget)
            mutations.spend(new.count)
        except PenstockError as error:
            result.error.CopyFrom(error_pb(error))
            continue
        budget -= new.count
        result.topic_id = topic.topic_id
        result.partition_count = wanted.total_count
        result.replication_factor = new.factor
        if not request.validate_only:
            have = [p.replicas for p in topic.partitions.values()]
            accepted.append(_Accepted(topic.topic_id, new, first=len(topic.partitions), have=have))
    reply.throttle_ms = mutations.throttle_ms
    made = (t.name for t in reply.topics if not t.error.code)
    why = causes.of_topics("grown", made, request.principal)
    return Generated(reply, further=_placed(ctx, accepted) if accepted else None, causes=why)


def _grown(ctx: Context, wanted: api.NewPartitions, budget: int) -> tuple[TopicImage, _New]:
    topic = ctx.image.topic(wanted.name)
    if topic is None:
        raise PenstockError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic has the name {wanted.name!r}")
    check_may_grow(wanted.name)
    have = len(topic.partitions)
    extra = wanted.total_count - have
    if extra <= 0:
        raise PenstockError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {wanted.name} has {have} partitions, {wanted.total_count} is not more; they never get fewer",
        )
    _check_budget(wanted.name, extra, budget)
    factor = topic.partitions[0].factor
    if wanted.assignments:
        if len(wanted.assignments) != extra:
            raise PenstockError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"topic {wanted.name}: {extra} partitions are new but {len(wanted.assignments)} assignments are given",
            )
        assignment = _check_assignments(ctx.image, wanted.name, wanted.assignments, factor)
        return topic, _New(extra, factor, assignment)
    _check_factor(wanted.name, factor, len(live_racks(ctx.image)))
    return topic, _New(extra, factor, None)


# --- deleting ---------------------------------------------------------------------------


def delete_topics(
    ctx: Context, request: api.DeleteTopicsRequest, mutations: MutationBudget = UNLIMITED
) -> Generated[api.DeleteTopicsResponse]:
    """Delete topics by name or id."""
    reply = api.DeleteTopicsResponse()
    records: list[pb.MetadataRecord] = []
    gone: set[TopicId] = set()
    for ref in request.topics:
        result = reply.topics.add(name=ref.name, topic_id=ref.topic_id)
        topic = ctx.image.topic(ref.name) if ref.name else ctx.image.topics.get(TopicId(ref.topic_id))
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if ref.name else ErrorCode.UNKNOWN_TOPIC_ID
            what = f"the name {ref.name!r}" if ref.name else f"the id {ref.topic_id.hex()}"
            result.error.CopyFrom(make_error(code, f"no topic has {what}"))
            continue
        result.name, result.topic_id = topic.name, topic.topic_id
        if topic.topic_id in gone:
            result.error.CopyFrom(
                make_error(ErrorCode.INVALID_REQUEST, f"topic {topic.name} is named twice in the request")
            )
            continue
        try:
            mutations.spend(len(topic.partitions))
        except PenstockError as error:
            result.error.CopyFrom(error_pb(error))
            continue
        gone.add(topic.topic_id)
        removed = pb.TopicRemovedRecord(topic_id=topic.topic_id)
        records.append(pb.MetadataRecord(topic_removed=removed))
    reply.throttle_ms = mutations.throttle_ms
    deleted = (t.name for t in reply.topics if not t.error.code)
    return Generated(reply, records, causes=causes.of_topics("deleted", deleted, request.principal))
