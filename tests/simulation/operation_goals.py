"""What operations must come to: domains, room on disks, even counts, levels; and, where nothing but planned steps
happens, that no client hears of them.

Part of `operation_checks`, which calls this in the step that applies a command. Racks, disks and builds are those that
`operations` has given the hosts of the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from penstock_controller.state.operations.engine.kinds import REASSIGNMENT
from penstock_controller.state.operations.plans.plan import PlanView, plan_steps
from penstock_controller.state.operations.reports import Reports
from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.turns import all_at_once

if TYPE_CHECKING:
    from simulation.invariants import Checker
    from simulation.operations import Operator

Change = tuple[PartitionImage, PartitionImage]

S: Final = 1_000_000
LEVELS_MAX: Final = 3
"""Of a path of domains."""
FULL_MOST: Final = 0.95
"""Of a disk; the rest is its reserve."""
SETTLED_US: Final = 2 * S
"""Before an operation began: whether its plan has seen what was changed."""
MOVED_US: Final = 1 * S
"""How long after a partition got another leader the old one's answers may be on their way."""
FULL_PATIENCE_US: Final = 6 * S
"""How long a full follower may stay in an ISR that can do without it, where nothing else happens."""
_LEVELS: Final = {
    **dict.fromkeys(("user_credential", "user_credential_removed", "acl", "acl_removed", "quota"), 2),
    **dict.fromkeys(("cluster_secret", "refused_certificate"), 2),
    **dict.fromkeys(("operation", "operation_removed", "operation_move", "node_policy"), 3),
    **dict.fromkeys(("retired_directory", "level_mark"), 3),
}
"""What older builds cannot read, by the level that brought it."""
_SILENT: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""What says that a client's metadata are old: every client asks for new ones, and nobody who uses it hears of that."""


def _is_clients(before: MetadataImage, image: MetadataImage, key: TopicPartition) -> bool:
    """Whether a client's own reassignment began to move it in this command, maybe to where an operation wants it."""
    return any(
        key in moves
        and operation_id not in before.operations.operations
        and image.operations.operations[operation_id].kind == REASSIGNMENT
        for operation_id, moves in image.operations.moves.items()
    )


class GoalChecks:
    """Of one run."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._racks: dict[NodeId, tuple[str, ...]] = {}
        """By node, also of those that were removed."""
        self._led_us: dict[TopicPartition, int] = {}
        """When a partition last got another leader."""
        self._shifted_us = 0
        """When something last changed that a plan goes by."""
        self._began_us: dict[int, int] = {}
        self._spoiled: set[int] = set()
        """Operations beside which something changed that a plan goes by."""

    @property
    def _operator(self) -> Operator | None:
        return self._checker.world.operator

    @property
    def _is_calm(self) -> bool:
        return self._operator is not None and self._operator.is_calm

    def _fail(self, name: str, message: str) -> None:
        self._checker.fail(name, message)

    def on_applied(
        self,
        before: MetadataImage,
        image: MetadataImage,
        records: Sequence[pb.MetadataRecord],
        changes: Sequence[Change],
    ) -> None:
        """As `OperationChecks`."""
        self._check_levels(before, records)
        if self._operator is None:
            return
        for record in records:
            if record.HasField("node"):
                self._racks[NodeId(record.node.node_id)] = tuple(record.node.rack.split("/"))
        self._follow(before, image, records, changes)
        for old, new in changes:
            if old.replicas != new.replicas:
                self._check_domains(before, old, new)
                self._check_targets(before, image, old, new)
            if old.leader_epoch != new.leader_epoch:
                self._led_us[new.key] = self._checker.world.scheduler.now_us
            if self._is_calm:
                self._check_min_isr(before, image, old, new)
        for record in records:
            if record.HasField("operation"):
                self._look_at(before, image, record.operation)

    # --- what a plan goes by

    def _follow(
        self,
        before: MetadataImage,
        image: MetadataImage,
        records: Iterable[pb.MetadataRecord],
        changes: Iterable[Change],
    ) -> None:
        for record in records:
            kind = record.WhichOneof("record")
            if kind in ("node", "node_removed", "node_policy", "topic", "topic_removed"):
                self._shift()
            elif kind == "operation":
                self._began_us.setdefault(record.operation.operation_id, self._checker.world.scheduler.now_us)
        moving = [operation for operation, moves in image.operations.moves.items() if moves]
        if len(moving) > 1:
            self._spoiled.update(moving)
        for old, new in changes:
            ours = any(new.key in moves for moves in before.operations.moves.values())
            if old.replicas != new.replicas and not ours:
                self._shift()

    def _shift(self) -> None:
        self._shifted_us = self._checker.world.scheduler.now_us

    # --- I3

    def _domains(self, nodes: Iterable[NodeId], level: int) -> int:
        return len({self._racks.get(n, ("",))[:level] for n in nodes})

    def _check_domains(self, before: MetadataImage, old: PartitionImage, new: PartitionImage) -> None:
        """I3: what holds the data stands in as many domains as before the move, or as after it."""
        for operation_id, moves in before.operations.moves.items():
            move = moves.get(new.key)
            if move is None or move.skipped:
                continue
            # What somebody else asks for meanwhile counts, whatever it is worth.
            target = {*new.replicas} - {*new.removing_replicas}
            if target not in ({*move.replicas}, {*move.replicas_before}):
                continue
            whole = [[n for n in s.replicas if n in s.isr or n not in s.adding_replicas] for s in (old, new)]
            for level in range(1, LEVELS_MAX + 1):
                had, has = (self._domains(nodes, level) for nodes in whole)
                wanted = min(
                    self._domains(move.replicas_before, level), self._domains(move.replicas, level), had
                )
                if has < wanted:
                    self._fail(
                        "the number of domains never falls below that of before and after",
                        f"operation {operation_id}: {old} becomes {new}: {has} domains at level {level}, {wanted}",
                    )

    # --- I4

    def _check_targets(
        self, before: MetadataImage, image: MetadataImage, old: PartitionImage, new: PartitionImage
    ) -> None:
        """I4: nothing begins to be copied onto a disk that is known to be full."""
        if _is_clients(before, image, new.key):
            return
        for operation_id, moves in before.operations.moves.items():
            move = moves.get(new.key)
            if move is None or new.key not in image.operations.moves.get(operation_id, {}):
                continue
            for node_id in {*new.adding_replicas} - {*old.replicas}:
                # What was taken away goes back to where it was, wherever that is.
                known = before.nodes.get(node_id)
                if node_id in move.replicas_before or known is None:
                    continue
                if known.disk_full:
                    self._fail(
                        "operations fill no disk beyond its reserve",
                        f"operation {operation_id} copies {new} to node {node_id}, which is full",
                    )

    def _check_room(self, image: MetadataImage, record: pb.OperationRecord) -> None:
        """I4: what is planned has room beside what lies there now, as disks and logs really are."""
        world = self._checker.world
        incoming: Counter[NodeId] = Counter()
        for key, move in image.operations.moves.get(record.operation_id, {}).items():
            state = image.partition(*key)
            if state is not None:
                size = self._size_bytes(key, state)
                incoming.update(dict.fromkeys({*move.replicas} - {*state.replicas}, size))
        for node_id, size in sorted(incoming.items()):
            host = world.host_of[f"n{node_id}"]
            if not size or host.disk_bytes is None or host.disk_fault or not host.is_up:
                continue
            used = host.used_bytes()
            if used + size > FULL_MOST * host.disk_bytes:
                self._fail(
                    "operations fill no disk beyond its reserve",
                    f"operation {record.operation_id} ({record.kind}) brings {size} bytes to node {node_id}, which "
                    f"has {used} of {host.disk_bytes} in use",
                )

    def _size_bytes(self, key: TopicPartition, state: PartitionImage) -> int:
        host = self._checker.world.host_of.get(f"n{state.leader}")
        if host is None or not host.is_up or host.process.manager is None:
            return 0
        partition = host.process.manager.registry.partitions.get(key)
        return 0 if partition is None else int(partition.log.size_bytes)

    # --- I1, where nothing but planned steps happens

    def _check_min_isr(
        self, before: MetadataImage, image: MetadataImage, old: PartitionImage, new: PartitionImage
    ) -> None:
        configs = (
            image.config("topic", image.topics[new.topic_id].name) if new.topic_id in image.topics else {}
        )
        lowest = min(len(old.replicas), len(new.replicas))
        needed = min(TopicConfig.from_config(configs, lowest).min_insync_replicas, lowest, len(old.isr))
        if len(new.isr) < needed:
            self._fail(
                "planned steps take nothing below min ISR", f"{old} becomes {new}, it needs {needed} in sync"
            )

    # --- I6

    def on_client_error(self, who: str, key: TopicPartition, error: ErrorCode) -> None:
        """A client was answered an error."""
        if not self._is_calm or error in _SILENT:
            return
        if error is ErrorCode.REQUEST_TIMED_OUT and self._was_moved(key):
            return
        self._fail("no client sees an error by planned steps", f"{who}: {error.name} for {key}")

    def _was_moved(self, key: TopicPartition) -> bool:
        """Whether "maybe written" is the answer of a leader that gives way, not one that is late: an idempotent
        producer sends again at once, and nobody who uses it hears of that."""
        return self._checker.world.scheduler.now_us - self._led_us.get(key, -MOVED_US) < MOVED_US

    def on_client_timeout(self, who: str) -> None:
        """A client has waited for an answer in vain."""
        if self._is_calm:
            self._fail("no client sees an error by planned steps", f"{who} was not answered in time")

    # --- I7

    def _look_at(self, before: MetadataImage, image: MetadataImage, record: pb.OperationRecord) -> None:
        old = before.operations.operations.get(record.operation_id)
        if old is None:
            self._check_room(image, record)
            return
        is_done = old.state != record.state and record.state == pb.OPERATION_STATE_DONE
        if is_done and record.kind == "rebalance":
            self._check_even(before, image, record)
        if record.steps:
            self._check_steps(image, old, record)

    def _check_even(self, before: MetadataImage, image: MetadataImage, record: pb.OperationRecord) -> None:
        """I7: replicas within one per topic and in all, preferred leaders too, and a second plan has nothing to do."""
        asked, moves = record.parameters, before.operations.moves.get(record.operation_id, {})
        began_us = self._began_us.get(record.operation_id, 0)
        is_partial = (
            asked.topics
            or asked.excluded_node_ids
            or {*asked.goals}
            not in (
                set(),
                {"replicas", "leaders"},
            )
        )
        is_quiet = self._is_calm and self._shifted_us < began_us - SETTLED_US
        if is_partial or not is_quiet or record.operation_id in self._spoiled:
            return
        if any(move.skipped for move in moves.values()):
            return
        # What another one still moves counts in a plan as if it were there already: nothing may be left to do.
        if any(theirs for each, theirs in before.operations.moves.items() if each != record.operation_id):
            return
        name = f"operation {record.operation_id}"
        self._checker.world.counts["rebalances looked at whole"] += 1
        nodes = [n for n, node in image.nodes.items() if node.active and not node.disk_full]
        has_racks = any(node.rack for node in image.nodes.values())
        if not has_racks and not any(image.operations.is_cordoned(n) for n in image.nodes):
            self._check_spread(image, nodes, name)
        request = api.PlanRequest(kind="rebalance", parameters=record.parameters)
        again = all_at_once(plan_steps(image, request, PlanView(reports=Reports(), alive=lambda _: True)))
        if again.moves:
            self._fail("after done counts are even", f"{name}: a second plan has {again.moves}")

    def _check_spread(self, image: MetadataImage, nodes: Sequence[NodeId], name: str) -> None:
        states = [s for topic in image.topics.values() for s in topic.partitions.values()]
        replicas = Counter(n for s in states for n in s.replicas)
        leaders = Counter(s.replicas[0] for s in states)
        told = [("replicas", replicas)]
        if len({len(s.replicas) for s in states}) == 1:
            told.append(("preferred leaders", leaders))
        for topic in image.topics.values():
            here = topic.partitions.values()
            told.append((f"replicas of {topic.name}", Counter(n for s in here for n in s.replicas)))
            told.append((f"preferred leaders of {topic.name}", Counter(s.replicas[0] for s in here)))
        for what, counts in told:
            each = [counts[n] for n in nodes]
            if max(each) - min(each) > 1:
                self._fail("after done counts are even", f"{name}: {what} are {dict(counts)}")

    # --- rolling restarts

    def _check_steps(self, image: MetadataImage, old: pb.OperationRecord, now: pb.OperationRecord) -> None:
        """One at a time, and a step is done when another process has the place: told by its boot id."""
        running = [step.name for step in now.steps if step.state == pb.OPERATION_STEP_STATE_RUNNING]
        if len(running) > 1:
            self._fail("one process is restarted at a time", f"operation {now.operation_id}: {running}")
        for was, step in zip(old.steps, now.steps, strict=True):
            is_new = was.state != step.state and step.state == pb.OPERATION_STEP_STATE_DONE
            if is_new and step.boot_id_before and self._boot_id(image, step) == step.boot_id_before:
                self._fail(
                    "a step is done when another process is there",
                    f"operation {now.operation_id}: {step.name} is the one of before",
                )
            if is_new:
                self._checker.world.counts[f"rolling steps done: {step.role}"] += 1

    def _boot_id(self, image: MetadataImage, step: pb.OperationStep) -> bytes:
        if step.role == "gateway":
            gateway = image.gateways.get(step.name)
            return b"" if gateway is None else gateway.record.process.boot_id
        if step.role == "storage-node":
            node = image.nodes.get(NodeId(int(step.name.removeprefix("node-"))))
            return b"" if node is None else node.boot_id
        host = self._checker.world.host_of["c" + step.name.removeprefix("controller-")]
        return bytes(host.process.boot_id) if host.is_up else b""

    # --- levels

    def _check_levels(self, before: MetadataImage, records: Iterable[pb.MetadataRecord]) -> None:
        """No record is of a kind that came with a higher level than the cluster has."""
        level = before.features.get("metadata.level", 1)
        if level >= 3:
            return
        for record in records:
            kind = record.WhichOneof("record") or ""
            if kind == "feature" and record.feature.name == "metadata.level":
                level = max(level, record.feature.level)
            elif before.version and _LEVELS.get(kind, 1) > level:
                self._fail("nothing is above the cluster's level", f"a record of {kind} at level {level}")

    def on_image(self, who: str, image: MetadataImage) -> None:
        """A node or gateway has new metadata."""
        level = image.features.get("metadata.level", 1)
        knows = self._checker.world.host_of[who].feature_level
        if level > knows:
            self._fail("nothing is above the cluster's level", f"{who} knows {knows}, the level is {level}")


class FullFollowers:
    """A full follower that lacks something leaves an ISR that can do without it at once: where nothing else happens,
    in some seconds. One that lacks nothing stays (decision 0023)."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._since_us: dict[tuple[TopicPartition, NodeId, int], int] = {}

    def look(self) -> None:
        """At the newest metadata."""
        world = self._checker.world
        now_us = world.scheduler.now_us
        image: MetadataImage = self._checker.images[max(self._checker.images)]
        found: dict[tuple[TopicPartition, NodeId, int], int] = {}
        for topic in image.topics.values():
            for state in topic.partitions.values():
                leader = image.nodes.get(state.leader)
                if leader is None or leader.disk_full or not self._is_well(f"n{state.leader}", now_us):
                    continue
                configs = image.config("topic", topic.name)
                needed = min(TopicConfig.from_config(configs, state.factor).min_insync_replicas, state.factor)
                for node_id in state.isr:
                    node = image.nodes.get(node_id)
                    if (
                        node_id == state.leader
                        or node is None
                        or not node.disk_full
                        or len(state.isr) <= needed
                        or self._lacks_nothing(state, node_id)
                    ):
                        continue
                    place = (state.key, node_id, state.leader_epoch)
                    found[place] = self._since_us.get(place, now_us)
        self._since_us = found
        for (key, node_id, _), since_us in found.items():
            if now_us - since_us > FULL_PATIENCE_US and self._are_controllers_well(now_us - FULL_PATIENCE_US):
                self._checker.fail(
                    "a full follower leaves the ISR", f"node {node_id} is full, and in sync for {key}"
                )

    def _lacks_nothing(self, state: PartitionImage, node_id: NodeId) -> bool:
        """As the leader sees it. Who has no session with it may lack anything."""
        registry = self._checker.world.host_of[f"n{state.leader}"].process.manager.registry
        partition = registry.partitions.get(state.key)
        led = None if partition is None else partition.replica.leadership
        if partition is None or led is None:
            return True
        end = partition.log.log_end_offset
        return any(follower == node_id and has >= end for follower, has, _ in led.lags(0))

    def _is_well(self, name: str, now_us: int) -> bool:
        world = self._checker.world
        host = world.host_of[name]
        is_slow = host.is_running and getattr(host.process.pool, "slowness", 1.0) > 1
        is_quiet = self._is_quiet(name, now_us - FULL_PATIENCE_US)
        return bool(host.is_running and not host.disk_fault and not is_slow and is_quiet)

    def _is_quiet(self, name: str, since_us: int) -> bool:
        network = self._checker.world.network
        blocked = any(name in ways for ways in network.blocked)
        return not blocked and network.disturbed_us.get(name, 0) < since_us

    def _are_controllers_well(self, since_us: int) -> bool:
        world = self._checker.world
        hosts = [host for host in world.hosts if host.kind == "c"]
        return all(h.is_running and self._is_quiet(h.name, since_us) for h in hosts)
