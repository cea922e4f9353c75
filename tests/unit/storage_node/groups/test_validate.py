"""What must always hold of a shard: whatever is broken by hand is found, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_core.ids import TopicId
from penstock_storage_node.groups.classic.group import ClassicGroup, GroupState
from penstock_storage_node.groups.consumer.group import LEAVE_FOR_NOW, NOTHING, UNREVOKED, ConsumerGroup
from penstock_storage_node.groups.consumer.protocol import ConsumerHeartbeat
from unit.storage_node.groups.group_rig import Rig


def classic() -> tuple[Rig, ClassicGroup]:
    """Two members, one of them static, and an id that was given out."""
    rig = Rig()
    (joined,) = rig.join("g", instance_id="i")
    other, _ = rig.enter("g")
    rig.join("g", joined.member_id, instance_id="i")
    rig.sync("g", joined.member_id, 2, [(joined.member_id, b"all")], instance_id="i")
    rig.sync("g", other, 2)
    rig.join("g")
    group = rig.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert (group.state, len(group.members), len(group.pending)) == (GroupState.STABLE, 2, 1)
    return rig, group


def consumer() -> tuple[Rig, ConsumerGroup]:
    """`a` has to give partitions up, `b` waits for them."""
    rig = Rig()
    rig.topics.set(t=4)
    for member_id, instance_id, epoch in (("a", None, 0), ("b", "i", 0), ("a", None, 1)):
        said: dict[str, Any] = {}
        if epoch == 0:
            said = {"rebalance_timeout_ms": 30_000, "topics": ("t",), "owned": NOTHING}
        rig.shard.consumer_heartbeat(
            ConsumerHeartbeat("g", member_id, epoch, instance_id, **said), lambda result: None
        )
        rig.settle()
    group = rig.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    assert group.members["a"].state == UNREVOKED
    return rig, group


def first(group: ClassicGroup) -> Any:
    return next(iter(group.members.values()))


def no_members(group: ClassicGroup) -> None:
    group.members.clear()
    group.static.clear()
    group.leader = None


def still_syncing(group: ClassicGroup) -> None:
    no_members(group)
    group.state = GroupState.EMPTY
    group.pending_sync.add("who")


def half_joined(group: ClassicGroup) -> None:
    group.state = GroupState.COMPLETING
    first(group).awaiting_join = print


CLASSIC: dict[str, Callable[[ClassicGroup], object]] = {
    "a group that is there is not dead": lambda g: setattr(g, "state", GroupState.DEAD),
    "a generation is not negative": lambda g: setattr(g, "generation", -1),
    "generations are counted from 1": lambda g: setattr(g, "generation", 0),
    "the leader is a member": lambda g: setattr(g, "leader", "who"),
    "a generation has members": no_members,
    "members have a protocol in common": lambda g: setattr(first(g), "protocols", (("mine", b""),)),
    "all members know the protocol": lambda g: setattr(g, "protocol", "who"),
    "instance ids are those of members": lambda g: g.static.clear(),
    "a member stands under its own id": lambda g: setattr(first(g), "member_id", "who"),
    "a session is its member's": lambda g: setattr(first(g).session, "owner", ("g", "who")),
    "a member has a deadline, unless it waits for us": lambda g: first(g).session.cancel(),
    "for assignments one waits in COMPLETING": lambda g: setattr(first(g), "awaiting_sync", print),
    "a pending id has a deadline": lambda g: next(iter(g.pending.values())).cancel(),
    "an id is pending or a member's, not both": lambda g: g.pending.update(
        {first(g).member_id: first(g).session}
    ),
    "an empty group has no members": lambda g: setattr(g, "state", GroupState.EMPTY),
    "a rebalance, and nothing else, has an end": lambda g: setattr(g, "state", GroupState.PREPARING),
    "members that have to sync are of a generation": still_syncing,
    "COMPLETING has answered every join": half_joined,
    "only members sync": lambda g: g.pending_sync.add("who"),
    "members have a deadline to sync": lambda g: g.pending_sync.add(first(g).member_id),
    "a group stands under its own name": lambda g: setattr(g, "group_id", "h"),
}


@pytest.mark.parametrize("rule", CLASSIC)
def test_a_classic_group_that_may_not_be(rule: str) -> None:
    rig, group = classic()
    rig.shard.validate()
    CLASSIC[rule](group)
    with pytest.raises(InvariantBroken, match=f": {rule}: "):
        rig.shard.validate()


def change(member_id: str, **values: Any) -> Callable[[ConsumerGroup], object]:
    def changed(group: ConsumerGroup) -> None:
        group.members[member_id] = replace(group.members[member_id], **values)

    return changed


def rename(group: ConsumerGroup) -> None:
    group.members["b"] = replace(group.members["b"], member_id="who")


def settle_early(group: ConsumerGroup) -> None:
    """`a` has its target's epoch, but not its target."""
    a = group.members["a"]
    group.put(replace(a, state=0, epoch=group.assignment_epoch, assigned=NOTHING, revoking=NOTHING))


CONSUMER: dict[str, Callable[[ConsumerGroup], object]] = {
    "an assignment is of an epoch that was": lambda g: setattr(g, "assignment_epoch", g.epoch + 1),
    "every member, and nobody else, has a target": lambda g: g.targets.pop("a"),
    "a partition is in one target": lambda g: g.targets.update(a=g.targets["a"] | g.targets["b"]),
    "a partition has one owner": lambda g: change("b", assigned=g.members["a"].assigned)(g),
    "owners are the members that have the partition": lambda g: g.owners.popitem(),
    "instance ids are those of members": lambda g: g.static.clear(),
    "a member stands under its own id": rename,
    "a member that left is not there": change("b", epoch=-1),
    "a member is no further than the assignment": change("a", epoch=9),
    "only static members are to return": change("a", epoch=LEAVE_FOR_NOW),
    "UNREVOKED has to revoke": change("a", state=0),
    "what is revoked is not assigned": lambda g: change(
        "a", assigned=g.members["a"].assigned | g.members["a"].revoking
    )(g),
    "STABLE has its whole target": settle_early,
    "what is owned is so since an epoch": change("a", since={}),
}


@pytest.mark.parametrize("rule", CONSUMER)
def test_a_consumer_group_that_may_not_be(rule: str) -> None:
    rig, group = consumer()
    rig.shard.validate()
    CONSUMER[rule](group)
    with pytest.raises(InvariantBroken, match=f": {rule}: "):
        rig.shard.validate()


def test_a_member_of_a_consumer_group_without_deadlines() -> None:
    for kind in (0, 1):
        rig, _ = consumer()
        rig.shard._consumer._sessions["g", "a"][kind].cancel()
        with pytest.raises(InvariantBroken, match=("has a session", "deadline to revoke")[kind]):
            rig.shard.validate()
    rig, _ = consumer()
    rig.shard._consumer._sessions["g", "who"] = rig.shard._consumer._sessions["g", "a"]
    with pytest.raises(InvariantBroken, match="every member, and nobody else, has deadlines: 'who'"):
        rig.shard.validate()


def test_offsets_that_are_none() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1})
    store = rig.shard._store
    store.pending_commits["g"] = {("t", 0): 0}
    with pytest.raises(InvariantBroken, match="at least one commit"):
        rig.shard.validate()
    store.pending_commits.clear()
    store.pending_commits["h"] = {}
    with pytest.raises(InvariantBroken, match="no pending commits are kept as none"):
        rig.shard.validate()
    store.pending_commits.clear()
    store.offsets["g"].clear()
    with pytest.raises(InvariantBroken, match="no offsets are kept as none"):
        rig.shard.validate()


def test_a_deadline_that_the_queue_does_not_know_of_is_none() -> None:
    rig, group = classic()
    session = first(group).session
    session.armed_ms = session.deadline_ms + 1
    with pytest.raises(InvariantBroken, match="a member has a deadline"):
        rig.shard.validate()


def test_a_closed_shard_holds_nothing() -> None:
    rig, group = classic()
    rig.shard.close(ErrorCode.NOT_COORDINATOR)
    assert group.state is GroupState.DEAD
    rig.shard.validate()


def test_the_rig_looks_after_every_step() -> None:
    rig, group = consumer()
    group.owners[TopicId(b"x" * 16), 0] = "a"
    with pytest.raises(InvariantBroken, match=r"^group g: owners are"):
        rig.heartbeat("g", "a", 1)
