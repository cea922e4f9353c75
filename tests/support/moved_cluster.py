"""A cluster that is nothing but its metadata: replicas catch up, nodes die and return, people interfere, all when told.

Every change of a partition is held against what moving replicas promises: an operation takes no ISR below min ISR (I1),
and no replica goes before those that stay are in sync (I2).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from penstock_controller.state import nodes
from penstock_controller.state.generation import Context, partition_record
from penstock_controller.state.nodes import rules_for
from penstock_controller.state.operations.engine.ledger import Ledger
from penstock_controller.state.operations.engine.stages import Stage
from penstock_controller.state.operations.engine.start import control_operation, start_operation
from penstock_controller.state.operations.engine.steps import EngineState, next_steps
from penstock_controller.state.operations.engine.window import LIMITS, Limits
from penstock_controller.state.operations.reports import Reports
from penstock_controller.state.partitions import change_partition
from penstock_controller.state.reassignments import alter_reassignments, reassign
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import controller_pb2 as controller
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api

Replicas = Mapping[tuple[str, int], Sequence[int]]


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(n) for n in numbers)


def topic_id(name: str) -> TopicId:
    return TopicId(name.encode().ljust(16, b"-"))


class MovedCluster:
    """All partitions are in sync at first, and all nodes up."""

    def __init__(
        self,
        replicas: Replicas,
        node_count: int = 5,
        min_isr: int = 0,
        racks: Mapping[int, str] | None = None,
        limits: Limits = LIMITS,
        rng: random.Random | None = None,
    ) -> None:
        self.rng = rng or random.Random(1)
        self.reports = Reports()
        self.engine = EngineState()
        self.limits = limits
        self.now_ms = 1_000
        self.image = MetadataImage()
        records = [pb.MetadataRecord(feature=pb.FeatureRecord(name="metadata.level", level=3))]
        for n in range(1, node_count + 1):
            node = pb.NodeRecord(
                node_id=n, node_epoch=n, directory_id=bytes([n]) * 16, rack=(racks or {}).get(n, "")
            )
            records.append(pb.MetadataRecord(node=node))
        for name in sorted({topic for topic, _ in replicas}):
            records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id(name), name=name)))
        for (name, number), wanted in replicas.items():
            partition = PartitionImage(
                topic_id=topic_id(name),
                partition=number,
                replicas=ids(*wanted),
                isr=ids(*wanted),
                leader=NodeId(wanted[0]),
                leader_epoch=LeaderEpoch(1),
                partition_epoch=1,
                last_known_leader=NodeId(wanted[0]),
            )
            records.append(partition_record(partition))
        if min_isr:
            config = pb.ConfigRecord(
                resource_type="cluster", key="min.insync.replicas", value=str(min_isr), resource_name=""
            )
            records.append(pb.MetadataRecord(config=config))
        self._apply(records)

    # --- looking --------------------------------------------------------------------------------

    @property
    def ctx(self) -> Context:
        return Context(self.image, self.rng)

    def partition(self, topic: str, number: int) -> PartitionImage:
        found = self.image.partition(topic_id(topic), number)
        assert found is not None
        return found

    def partitions(self) -> list[PartitionImage]:
        return [p for topic in self.image.topics.values() for p in topic.partitions.values()]

    def operation(self, operation_id: int) -> pb.OperationRecord:
        return self.image.operations.operations[operation_id]

    def min_isr(self, partition: PartitionImage) -> int:
        topic = self.image.topics[partition.topic_id]
        return rules_for(self.image, topic).effective_min_isr(partition)

    # --- operations -----------------------------------------------------------------------------

    def plan(self, kind: str, moves: Replicas, size: int = 100, **parameters: object) -> api.Plan:
        plan = api.Plan(kind=kind, plan_id="ab" * 8, metadata_version=self.image.version, runnable=True)
        plan.parameters.CopyFrom(pb.OperationParameters(**parameters))  # type: ignore[arg-type]
        for (topic, number), wanted in moves.items():
            before = self.partition(topic, number).replicas
            move = plan.moves.add(topic=topic, topic_id=topic_id(topic), partition=number, to=wanted)
            getattr(move, "from").extend(before)
            move.bytes = size * len(set(wanted) - set(before))
        return plan

    def start(self, plan: api.Plan, allowed: Iterable[str] = ()) -> int:
        request = api.StartOperationRequest(principal="User:admin")
        request.request.allowed_gates.extend(allowed)
        made = start_operation(self.ctx, request, plan, self.now_ms)
        assert not made.reply.error.code, made.reply.error.message
        self._apply(made.all_records())
        assert made.reply.operation.record.operation_id == self.image.version
        return self.image.version

    def control(self, operation_id: int, what: api.OperationControl.ValueType) -> str:
        """The error's message, if there is one."""
        request = api.ControlOperationRequest(operation_id=operation_id, control=what, principal="User:admin")
        made = control_operation(self.ctx, request, self.now_ms)
        self._apply(made.all_records())
        return made.reply.error.message

    def step(self, operation_id: int) -> bool:
        """One step; a repeated look says the same, and what is remembered is what a first look finds."""
        made = next_steps(self.ctx, operation_id, self.reports, self.now_ms, self.engine, self.limits)
        again = next_steps(self.ctx, operation_id, self.reports, self.now_ms, self.engine, self.limits)
        assert made.records == again.records
        assert made.reply == bool(made.records)
        self._check_memory(operation_id)
        before = self.image
        self._apply(made.all_records(), ours=True)
        self._check_window(before)
        return made.reply

    def settle(self, operation_id: int, steps_max: int = 500) -> None:
        """Steps until there is nothing to do for now: a repeated step changes nothing (I5)."""
        for _ in range(steps_max):
            if not self.step(operation_id):
                return
        raise AssertionError(f"still something to do after {steps_max} steps")

    def finish(self, operation_id: int, rounds_max: int = 500) -> pb.OperationRecord:
        """Replicas catch up one after another until the operation ends."""
        for _ in range(rounds_max):
            self.settle(operation_id)
            if self.operation(operation_id).state in ENDED:
                return self.operation(operation_id)
            self.catch_up()
        raise AssertionError(f"it does not end:\n{self.operation(operation_id)}{self.partitions()}")

    def failover(self) -> None:
        """Another controller is active: it remembers nothing."""
        self.engine = EngineState()

    # --- what happens ---------------------------------------------------------------------------

    def catch_up(self, some: int | None = None) -> int:
        """Replicas that lag join their ISR, all that can or a few of them; how many did."""
        waiting = [
            (p, n)
            for p in self.partitions()
            if p.leader != NO_NODE
            for n in p.replicas
            if n not in p.isr and self.image.nodes[n].active
        ]
        if some is not None:
            waiting = self.rng.sample(waiting, min(some, len(waiting)))
        for old, node_id in waiting:
            partition = self.image.partition(old.topic_id, old.partition)
            if partition is not None and node_id in partition.replicas:
                self._change(partition, [n for n in partition.replicas if n in partition.isr or n == node_id])
        return len(waiting)

    def lag(self, topic: str, number: int, node_id: int) -> None:
        """A follower falls out of the ISR."""
        partition = self.partition(topic, number)
        self._change(partition, [n for n in partition.isr if n != node_id])

    def die(self, node_id: int) -> None:
        node = self.image.nodes[NodeId(node_id)]
        self._apply(nodes.fence_node(self.ctx, node.node_id, node.node_epoch).all_records())

    def rise(self, node_id: int) -> None:
        node = self.image.nodes[NodeId(node_id)]
        self._apply(nodes.unfence_node(self.ctx, node.node_id, node.node_epoch).all_records())

    def reassign(self, topic: str, number: int, *wanted: int) -> None:
        """Somebody else does."""
        partition = self.partition(topic, number)
        rules = rules_for(self.image, self.image.topics[partition.topic_id])
        new = reassign(partition, ids(*wanted), rules)
        if new is not None:
            self._apply([partition_record(new)])

    def alter(self, moves: Replicas) -> list[int]:
        """Somebody else does, by Kafka's request; no replicas take back what is under way. Error codes."""
        request = controller.AlterReassignmentsRequest(allow_factor_change=True, principal="User:tool")
        for (topic, number), wanted in moves.items():
            request.reassignments.add(topic=topic, partition=number, replicas=wanted)
        made = alter_reassignments(self.ctx, request, self.now_ms, self.reports.partition_bytes)
        self._apply(made.all_records())
        return [result.code for result in made.reply.results]

    def delete(self, topic: str) -> None:
        self._apply([pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=topic_id(topic)))])

    def _change(self, partition: PartitionImage, isr: Sequence[NodeId]) -> None:
        rules = rules_for(self.image, self.image.topics[partition.topic_id])
        new = change_partition(partition, rules, isr=isr)
        if new is not None:
            self._apply([partition_record(new)])

    # --- promises -------------------------------------------------------------------------------

    def _apply(self, records: list[pb.MetadataRecord], *, ours: bool = False) -> None:
        if not records:
            return
        before = self.image
        self.image = before.apply(records, before.version + 1)
        changed = [
            TopicPartition(TopicId(r.partition.topic_id), r.partition.partition)
            for r in records
            if r.WhichOneof("record") == "partition"
        ]
        assert len(changed) == len(set(changed)), "one step changes a partition twice"
        for key in changed:
            old, new = before.partition(*key), self.image.partition(*key)
            if old is not None and new is not None:
                self._check_change(old, new, ours=ours)
        if ours:
            assert len(changed) <= self.limits.changes_per_step

    def _check_change(self, old: PartitionImage, new: PartitionImage, *, ours: bool) -> None:
        assert new.partition_epoch == old.partition_epoch + 1
        assert set(new.isr) <= set(new.replicas)
        if ours:
            assert len(new.isr) >= min(len(old.isr), self.min_isr(new)), f"I1: {old} -> {new}"
            assert new.leader != NO_NODE or old.leader == NO_NODE, f"{old} -> {new}"
        removed = set(old.replicas) - set(new.replicas) - set(old.adding_replicas)
        if removed:
            assert set(new.replicas) <= set(new.isr), f"I2: {old} -> {new}"

    def _check_memory(self, operation_id: int) -> None:
        record = self.operation(operation_id)
        if record.state in ENDED:
            return
        kept, anew = self.engine.ledgers.of(self.image, record), Ledger(record)
        anew.update(self.image, record)
        for slot, other in zip(kept.slots, anew.slots, strict=True):
            by_memory = slot.seen_running and slot.stage is Stage.FOREIGN
            assert slot.stage is other.stage or by_memory, (slot, other)
            if slot.partition is not None:
                assert (slot.rank, slot.places, slot.name) == (other.rank, other.places, other.name)
        assert kept.unwell.keys() == anew.unwell.keys()
        assert (kept.bytes_done, kept.skipped) == (anew.bytes_done, anew.skipped)
        assert {n: s.keys() for n, s in kept.led.items() if s} == {
            n: s.keys() for n, s in anew.led.items() if s
        }
        todo = {slot.number for slot in kept.stages[Stage.TODO].values()}
        listed = [n for rank, _, n in kept.order if n in todo and kept.slots[n].rank == rank]
        assert set(listed) == todo
        assert kept.order == sorted(kept.order)

    def _check_window(self, before: MetadataImage) -> None:
        """What began just now found room at every node that copies for it, in its direction."""
        at: Counter[tuple[NodeId, str]] = Counter()
        begun: list[set[tuple[NodeId, str]]] = []
        running = 0
        for now in self.partitions():
            old = before.partition(now.topic_id, now.partition)
            adding = [n for n in now.adding_replicas if old is None or n not in old.isr]
            if old is None or not adding or not self._is_ours(now):
                continue
            where = {(n, "in") for n in adding}
            if old.leader not in adding:
                where.add((old.leader, "out"))
            running += 1
            at.update(where)
            if not old.reassigning:
                begun.append(where)
        for where in begun:
            assert all(at[n] <= self.limits.moves_per_node for n in where), (at, begun)
        assert not begun or running <= self.limits.moves_in_all

    def _is_ours(self, partition: PartitionImage) -> bool:
        """Whether the window is for it."""
        target = tuple(n for n in partition.replicas if n not in partition.removing_replicas)
        for operation_id, moves in self.image.operations.moves.items():
            move = moves.get(partition.key)
            if move is not None and not move.skipped and self.operation(operation_id).kind != "reassignment":
                return target == move.replicas or target == move.replicas_before
        return False


def all_up(cluster: MovedCluster) -> None:
    for node in cluster.image.nodes.values():
        if node.fenced:
            cluster.rise(node.node_id)
