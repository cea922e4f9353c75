"""Reassignments: Kafka's cases one by one, then any order of events against a model.

The model knows which replicas hold everything that was acknowledged; a leader that was not elected
uncleanly must always be one of them.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_controller.state import configs, reassignments
from penstock_controller.state.generation import Context
from penstock_controller.state.partitions import Rules, change_partition
from penstock_controller.state.reassignments import reassign
from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicId
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

TOPIC_ID = TopicId(b"t" * 16)


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(n) for n in numbers)


def partition(*replicas: int, **changes: object) -> PartitionImage:
    base = PartitionImage(
        topic_id=TOPIC_ID,
        partition=0,
        replicas=ids(*replicas),
        isr=ids(*replicas),
        leader=NodeId(replicas[0]),
        leader_epoch=LeaderEpoch(5),
        partition_epoch=9,
        last_known_leader=NodeId(replicas[0]),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def rules(*active: int, min_isr: int = 0) -> Rules:
    return Rules(lambda n: n in active, min_isr)


ALL = rules(1, 2, 3, 4, 5, 6)


def moved(old: PartitionImage, *wanted: int, by: Rules = ALL) -> PartitionImage:
    new = reassign(old, ids(*wanted), by)
    assert new is not None
    assert new.partition_epoch == old.partition_epoch + 1
    return new


def with_isr(old: PartitionImage, *isr: int, by: Rules = ALL) -> PartitionImage:
    new = change_partition(old, by, isr=ids(*isr))
    assert new is not None
    return new


def test_replicas_are_added_before_any_is_removed() -> None:
    begun = moved(partition(1, 2, 3), 4, 5, 6)
    assert begun.replicas == ids(4, 5, 6, 1, 2, 3)
    assert (begun.adding_replicas, begun.removing_replicas) == (ids(4, 5, 6), ids(1, 2, 3))
    assert (begun.leader, begun.leader_epoch, begun.isr) == (1, 5, ids(1, 2, 3))
    nearly = with_isr(begun, 1, 2, 3, 4, 5)
    assert nearly.reassigning
    done = with_isr(nearly, 1, 2, 3, 4, 5, 6)
    assert (done.replicas, done.isr, done.leader, done.leader_epoch) == (ids(4, 5, 6), ids(4, 5, 6), 4, 6)
    assert not done.reassigning


def test_fewer_replicas_go_at_once_when_the_rest_is_in_sync() -> None:
    done = moved(partition(1, 2, 3), 2)
    assert (done.replicas, done.isr, done.leader, done.reassigning) == (ids(2), ids(2), 2, False)
    waiting = moved(partition(1, 2, 3, isr=ids(1, 3)), 2)
    assert (waiting.replicas, waiting.removing_replicas, waiting.leader) == (ids(2, 1, 3), ids(1, 3), 1)


def test_another_order_is_a_change_and_the_same_one_is_none() -> None:
    assert moved(partition(1, 2), 2, 1).replicas == ids(2, 1)
    assert reassign(partition(1, 2), ids(1, 2), ALL) is None


def test_more_replicas_raise_min_isr_only_when_they_are_there() -> None:
    begun = moved(partition(1), 1, 2, 3)
    assert ALL.effective_min_isr(begun) == 1
    done = with_isr(begun, 1, 2, 3)
    assert (done.factor, ALL.effective_min_isr(done)) == (3, 2)


def test_a_cancel_brings_back_what_was_there() -> None:
    begun = moved(partition(1, 2, 3), 4, 2)
    back = moved(begun, *(n for n in begun.replicas if n not in begun.adding_replicas))
    assert (set(back.replicas), back.reassigning, back.isr) == (set(ids(1, 2, 3)), False, ids(1, 2, 3))


def test_a_second_reassignment_drops_additions_of_the_first() -> None:
    first = with_isr(moved(partition(1, 2), 3, 4), 1, 2, 3)
    second = moved(first, 1, 5)
    assert (second.replicas, second.adding_replicas, second.removing_replicas) == (
        ids(1, 5, 2),
        ids(5),
        ids(2),
    )
    assert set(second.isr) == set(ids(1, 2))


def test_an_addition_that_alone_is_in_sync_stays_until_another_is() -> None:
    # 1 and 2 fell behind while 3, which nobody wants any more, led.
    alone = replace(moved(partition(1, 2), 3, 4), isr=ids(3), leader=NodeId(3), last_known_leader=NodeId(3))
    back = moved(alone, 1, 2)
    assert (back.leader, back.isr, back.removing_replicas) == (3, ids(3), ids(3))
    done = with_isr(with_isr(back, 3, 1), 3, 1, 2)
    assert (done.replicas, done.leader, done.reassigning) == (ids(1, 2), 1, False)


def test_an_addition_stays_where_nobody_is_known_to_have_anything() -> None:
    """Its log may hold all that there is, and a node deletes the log of a replica that it has no more."""
    nobody: dict[str, Any] = {"isr": (), "elr": (), "leader": NO_NODE}
    for wanted in ((1,), (1, 2)):
        # 3 led alone, and lost its unflushed end with its power: it leads again once it is back.
        cut = replace(moved(partition(1, 2), 3), **nobody, last_known_leader=NodeId(3))
        back = moved(cut, *wanted, by=rules(1, 2))
        assert set(back.replicas) == {1, 2, 3}
        assert NodeId(3) in back.removing_replicas
        again = change_partition(back, ALL)
        assert again is not None
        assert (again.leader, again.recovering) == (3, True)
        # Restored from a backup that is older than the end of the move: 3 may have had it for itself for long.
        restored = replace(cut, last_known_leader=NO_NODE)
        back = moved(restored, *wanted)
        assert (set(back.replicas), back.unconfirmed) == ({1, 2, 3}, True)
        assert NodeId(3) in back.removing_replicas


def test_whoever_reassigns_what_was_restored_elects_nobody() -> None:
    """Not for a topic with unclean elections either: nodes have yet to tell who is ahead."""
    restored = partition(1, 2, isr=(), leader=NO_NODE, last_known_leader=NO_NODE)
    new = moved(restored, 2, 3, by=Rules(lambda _: True, 0, unclean=True))
    assert new.unconfirmed


# --- any order ---------------------------------------------------------------------------


class Model:
    """One partition with nodes that come and go."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.up = set(ids(1, 2, 3, 4, 5))
        self.min_isr = rng.choice((0, 0, 1, 2))
        self.state = partition(*rng.sample(range(1, 6), rng.choice((1, 2, 3))))
        self.holders = set(self.state.isr)

    @property
    def rules(self) -> Rules:
        return Rules(lambda n: n in self.up, self.min_isr)

    def adopt(self, new: PartitionImage | None) -> None:
        if new is None:
            return
        assert new.partition_epoch == self.state.partition_epoch + 1
        assert (new.leader_epoch == self.state.leader_epoch) == (new.leader == self.state.leader)
        if new.recovering and not self.state.recovering:
            pool = {*self.state.isr, *self.state.elr}
            assert not self.holders & pool & self.up, "unclean, although one that has everything was there"
            self.holders = {new.leader}  # unclean: its log is the truth now
        self.state = replace(new, recovering=False)

    def step(self) -> None:
        getattr(
            self,
            self.rng.choice(("ack", "ack", "expand", "expand", "shrink", "fence", "start", "move", "cancel")),
        )()
        self.check()

    def ack(self) -> None:
        state = self.state
        if state.leader in self.up and len(state.isr) >= self.rules.effective_min_isr(state):
            self.holders = set(state.isr)

    def expand(self) -> None:
        state = self.state
        outside = [n for n in state.replicas if n not in state.isr and n in self.up]
        if state.leader in self.up and outside:
            joined = self.rng.choice(outside)
            self.holders.add(joined)
            self.adopt(
                change_partition(
                    state, self.rules, isr=[n for n in state.replicas if n in (*state.isr, joined)]
                )
            )

    def shrink(self) -> None:
        state = self.state
        others = [n for n in state.isr if n != state.leader]
        if state.leader in self.up and others:
            gone = self.rng.choice(others)
            self.adopt(change_partition(state, self.rules, isr=[n for n in state.isr if n != gone]))

    def fence(self) -> None:
        if len(self.up) > 1:
            gone = self.rng.choice(sorted(self.up))
            self.up.discard(gone)
            if gone in self.state.isr:
                isr = [n for n in self.state.isr if n != gone]
                self.adopt(change_partition(self.state, self.rules, isr=isr))

    def start(self) -> None:
        down = sorted(set(ids(1, 2, 3, 4, 5)) - self.up)
        if down:
            self.up.add(self.rng.choice(down))
            if self.state.leader == NO_NODE:
                self.adopt(change_partition(self.state, self.rules))

    def move(self) -> None:
        wanted = self.rng.sample(range(1, 6), self.rng.choice((1, 2, 3)))
        self.adopt(reassign(self.state, ids(*wanted), self.rules))

    def cancel(self) -> None:
        before = [n for n in self.state.replicas if n not in self.state.adding_replicas]
        self.adopt(reassign(self.state, before, self.rules))

    def check(self) -> None:
        state = self.state
        assert len(set(state.replicas)) == len(state.replicas)
        assert state.factor >= 1
        for some in (state.isr, state.elr, state.adding_replicas, state.removing_replicas):
            assert set(some) <= set(state.replicas), state
        assert not set(state.isr) & set(state.elr)
        assert self.holders & set(state.replicas), "nobody is left who has everything"
        staying = set(state.replicas) - set(state.removing_replicas)
        assert staying, state
        if state.leader != NO_NODE:
            assert state.leader in state.isr
            assert state.leader in self.up
            assert state.leader in self.holders, (state, self.holders)
            if state.reassigning:
                assert not staying <= set(state.isr) or not staying & self.up
        if state.leader == NO_NODE and not state.reassigning:
            assert state.isr or state.elr or state.last_known_leader != NO_NODE


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_no_order_of_events_elects_a_replica_that_lacks_acknowledged_records(seed: int) -> None:
    model = Model(random.Random(seed))
    for _ in range(60):
        model.step()


# --- requests ---------------------------------------------------------------------------


def image(*partitions: PartitionImage, live: int = 5, fenced: tuple[int, ...] = ()) -> MetadataImage:
    records = [
        pb.MetadataRecord(node=pb.NodeRecord(node_id=n, node_epoch=n, fenced=n in fenced))
        for n in range(1, live + 1)
    ]
    records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=TOPIC_ID, name="t")))
    records += [
        pb.MetadataRecord(partition=replace(p, partition=i).to_pb()) for i, p in enumerate(partitions)
    ]
    return MetadataImage().apply(records, 1)


def context(of: MetadataImage) -> Context:
    return Context(of, random.Random(1))


def ask(
    of: MetadataImage, *wanted: api.Reassignment, factor_change: bool = True
) -> tuple[MetadataImage, list[int]]:
    request = api.AlterReassignmentsRequest(reassignments=wanted, allow_factor_change=factor_change)
    made = reassignments.alter_reassignments(context(of), request, 0)
    records = made.all_records()
    after = of.apply(records, of.version + 1) if records else of
    return after, [r.code for r in made.reply.results]


def to(index: int, *nodes: int) -> api.Reassignment:
    return api.Reassignment(topic="t", partition=index, replicas=nodes)


def test_each_partition_has_its_own_outcome() -> None:
    of = image(partition(1, 2), partition(2, 3), partition(3, 1), partition(1, 2))
    after, codes = ask(of, to(0, 4, 5), to(1, 2, 2), to(2, 99), to(3), to(7, 1), to(0, 1))
    assert codes == [
        0,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    ]
    topic = after.topic("t")
    assert topic is not None
    assert topic.partitions[0].adding_replicas == ids(4, 5)
    assert topic.partitions[1].replicas == ids(2, 3)
    _, codes = ask(of, to(0, 4, 5, 1), factor_change=False)
    assert codes == [ErrorCode.INVALID_REPLICATION_FACTOR]


# --- settings of the cluster ---------------------------------------------------------------


def set_for_all(of: MetadataImage, key: str, value: str | None) -> MetadataImage:
    change = api.ConfigChange(key=key) if value is None else api.ConfigChange(key=key, value=value)
    resource = api.ConfigResource(resource_type="cluster", changes=[change])
    made = configs.alter_configs(context(of), api.AlterConfigsRequest(resources=[resource]))
    assert not made.reply.results[0].code, made.reply.results[0].message
    return of.apply(made.all_records(), of.version + 1)


def test_a_higher_min_isr_ends_older_proposals() -> None:
    of = set_for_all(image(partition(1, 2)), "min.insync.replicas", "2")
    topic = of.topic("t")
    assert topic is not None
    assert topic.partitions[0].partition_epoch == 10
    lower = set_for_all(of, "min.insync.replicas", None).topic("t")
    assert lower is not None
    assert lower.partitions[0].partition_epoch == 10


def test_unclean_election_for_the_whole_cluster_gives_leaders() -> None:
    of = image(partition(4, 5, isr=(), elr=ids(4), leader=NO_NODE), fenced=(4,))
    topic = set_for_all(of, "unclean.leader.election.enable", "true").topic("t")
    assert topic is not None
    assert topic.partitions[0].leader == 5


def test_settings_elect_nobody_for_what_was_restored() -> None:
    """Nodes have yet to tell who is ahead: somebody who restores settings as well must not cost them that."""
    of = image(partition(4, 5, isr=(), leader=NO_NODE, last_known_leader=NO_NODE))
    for key, value in (("unclean.leader.election.enable", "true"), ("min.insync.replicas", "2")):
        of = set_for_all(of, key, value)
        topic = of.topic("t")
        assert topic is not None
        assert topic.partitions[0].unconfirmed, key
