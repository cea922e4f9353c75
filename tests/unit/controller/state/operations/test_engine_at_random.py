"""Any operation among any events: what it promises holds at every step, and it ends."""

from __future__ import annotations

import random

import pytest

from penstock_controller.state.operations.engine.window import Limits
from penstock_core.ids import TopicPartition
from penstock_core.metadata.operations import ENDED, OperationMove
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from support.moved_cluster import MovedCluster, Replicas, all_up

SMALL = Limits(moves_per_node=2, moves_in_all=4, changes_per_step=3, skip_after_ms=3_000)
KINDS = ("node-drain", "node-remove", "node-add", "node-replace", "rebalance", "set-replication-factor")


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.node_count = rng.randint(2, 6)
        replicas: dict[tuple[str, int], list[int]] = {}
        for _ in range(rng.randint(1, 20)):
            topic = rng.choice("abc")
            number = sum(1 for t, _ in replicas if t == topic)
            factor = rng.randint(1, min(3, self.node_count))
            replicas[topic, number] = self.rng.sample(range(1, self.node_count + 1), factor)
        self.cluster = MovedCluster(
            replicas, self.node_count, rng.choice((0, 0, 1, 2)), limits=SMALL, rng=rng
        )
        self.down: set[int] = set()
        self.touched: set[TopicPartition] = set()
        """Partitions that somebody else moved."""
        kind = rng.choice(KINDS)
        allowed = ["health"] if rng.random() < 0.3 else []
        self.ids = [self.cluster.start(plan, allowed) for plan in self.plans(kind, replicas)]
        moves = self.cluster.image.operations.moves
        self.moves: dict[int, dict[TopicPartition, OperationMove]] = {
            i: dict(moves.get(i, {})) for i in self.ids
        }

    def plans(self, kind: str, replicas: Replicas) -> list[api.Plan]:
        """One, or up to four of a kind that has nothing to do with nodes."""
        rng, everybody = self.rng, range(1, self.node_count + 1)
        moves: dict[tuple[str, int], list[int]] = {}
        if kind in ("node-drain", "node-remove", "node-replace"):
            gone = rng.choice(everybody)
            other = rng.choice([n for n in everybody if n != gone])
            for at, old in replicas.items():
                free = [n for n in everybody if n not in old and n != gone]
                if kind == "node-replace":
                    free = [other] if other in free else []
                if gone in old:
                    rest = [n for n in old if n != gone]
                    moves[at] = [*rest, rng.choice(free)] if free else rest or [other]
            chosen = {"replacement_node_id": other} if kind == "node-replace" else {}
            return [self.cluster.plan(kind, moves, node_ids=[gone], **chosen)]
        for at, old in replicas.items():
            factor = len(old)
            if kind == "set-replication-factor":
                factor = rng.randint(1, min(3, self.node_count))
            wanted = rng.sample(everybody, factor)
            if wanted != old and rng.random() < 0.8:
                moves[at] = wanted
        if kind == "node-add":
            return [self.cluster.plan(kind, moves, node_ids=[self.node_count])]
        count = rng.choice((1, 1, 2, 4))
        parts = [{at: to for i, (at, to) in enumerate(moves.items()) if i % count == k} for k in range(count)]
        return [self.cluster.plan(kind, part) for part in parts]

    def live(self) -> list[int]:
        return [i for i in self.ids if self.cluster.operation(i).state not in ENDED]

    def event(self) -> None:
        name = self.rng.choices(
            (
                "step",
                "catch_up",
                "lag",
                "die",
                "rise",
                "failover",
                "wait",
                "pause",
                "resume",
                "cancel",
                "foreign",
                "delete",
            ),
            (60, 30, 4, 5, 8, 4, 8, 1, 5, 0.6, 0.3, 0.1),
        )[0]
        cluster, some = self.cluster, self.rng.choice(self.live())
        if name == "step":
            cluster.step(some)
        elif name == "catch_up":
            cluster.catch_up(self.rng.randint(1, 4))
        elif name == "lag":
            self.lag()
        elif name == "failover":
            cluster.failover()
        elif name == "wait":
            cluster.now_ms += self.rng.randint(1, 2_000)
        elif name in ("die", "rise"):
            self.die_or_rise(name)
        elif name == "pause":
            if cluster.operation(some).state != pb.OPERATION_STATE_CANCELLING:
                assert not cluster.control(some, api.OPERATION_CONTROL_PAUSE)
        elif name == "resume":
            self.resume(some)
        elif name == "cancel":
            assert not cluster.control(some, api.OPERATION_CONTROL_CANCEL)
        elif name == "foreign":
            self.foreign()
        elif name == "delete" and cluster.image.topics:
            cluster.delete(self.rng.choice([t.name for t in cluster.image.topics.values()]))

    def die_or_rise(self, name: str) -> None:
        here = sorted(self.cluster.image.nodes)
        up = [n for n in here if n not in self.down]
        if name == "die" and len(up) > 1:
            gone = self.rng.choice(up)
            self.down.add(gone)
            self.cluster.die(gone)
        down = sorted(self.down & set(here))
        if name == "rise" and down:
            back = self.rng.choice(down)
            self.down.discard(back)
            self.cluster.rise(back)

    def lag(self) -> None:
        """A follower falls behind."""
        some = [(p, n) for p in self.cluster.partitions() for n in p.isr if p.leader not in (n, -1)]
        if some:
            partition, node_id = self.rng.choice(some)
            name = self.cluster.image.topics[partition.topic_id].name
            self.cluster.lag(name, partition.partition, node_id)

    def foreign(self) -> None:
        partitions = self.cluster.partitions()
        if not partitions:
            return
        some = self.rng.choice(partitions)
        here = sorted(self.cluster.image.nodes)
        wanted = self.rng.sample(here, self.rng.randint(1, min(3, len(here))))
        self.touched.add(some.key)
        self.cluster.reassign(self.cluster.image.topics[some.topic_id].name, some.partition, *wanted)

    def resume(self, some: int) -> None:
        if self.cluster.operation(some).state == pb.OPERATION_STATE_PAUSED:
            assert not self.cluster.control(some, api.OPERATION_CONTROL_RESUME)

    def go_to_the_end(self) -> None:
        all_up(self.cluster)
        for _ in range(400):
            for some in self.live():
                self.resume_what_waits_for_people(some)
                self.cluster.settle(some)
            if not self.live():
                return
            self.cluster.catch_up()
            self.cluster.now_ms += 1_000
        left = [self.cluster.operation(i) for i in self.live()]
        raise AssertionError(f"it does not end:\n{left}\n{self.cluster.partitions()}")

    def resume_what_waits_for_people(self, some: int) -> None:
        record = self.cluster.operation(some)
        if record.paused_by_hand or record.reason.startswith("conflict"):
            self.resume(some)

    def check_end(self) -> None:
        for some in self.ids:
            self.check_end_of(some)

    def check_end_of(self, some: int) -> None:
        image, record, moves = self.cluster.image, self.cluster.operation(some), self.moves[some]
        assert some not in image.operations.moves
        assert record.finished_ms
        assert record.moves_done + record.moves_skipped <= record.moves_total == len(moves)
        for key, move in moves.items():
            partition = image.partition(*key)
            if partition is None or key in self.touched:
                continue
            assert not partition.reassigning
            assert partition.replicas in (move.replicas_before, move.replicas)
        for node_id, policy in image.operations.policies.items():
            assert not policy.draining, node_id
            assert record.state != pb.OPERATION_STATE_CANCELLED, f"a cordon is left on {node_id}"
        named = record.parameters.node_ids
        if record.state == pb.OPERATION_STATE_DONE:
            if record.kind in ("node-drain", "node-remove", "node-replace"):
                assert not any(n in p.replicas for p in self.cluster.partitions() for n in named)
            if record.kind in ("node-remove", "node-replace"):
                assert not any(n in image.nodes for n in named)
                assert [r.node_id for r in image.operations.retired.values()] == list(named)
            found = [p for key in moves if (p := image.partition(*key)) is not None]
            if not self.touched and len(found) == len(moves):
                assert sum(p.replicas == moves[p.key].replicas for p in found) == record.moves_done
        elif record.state == pb.OPERATION_STATE_FAILED:
            assert "still hold" in record.reason


@pytest.mark.parametrize("some", range(10))
def test_every_operation_keeps_what_it_promises_and_ends(some: int) -> None:
    for seed in range(some * 40, some * 40 + 40):
        try:
            run = Run(seed)
            for _ in range(run.rng.choice((20, 100, 200))):
                if run.live():
                    run.event()
            run.go_to_the_end()
            run.check_end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
