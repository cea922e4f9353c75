"""What groups may hold: each bound, whom it meets, and that what is gone counts no more. Each step of the rig checks
that what is counted is what is there."""

from __future__ import annotations

import random
from dataclasses import replace

from penstock_core.errors import ErrorCode
from penstock_core.security.principal import ANONYMOUS, Identity, user
from penstock_storage_node.groups.consumer.group import NOTHING
from penstock_storage_node.groups.consumer.protocol import ConsumerHeartbeat, ConsumerHeartbeatResult
from penstock_storage_node.groups.holdings import Holdings, NodeHoldings, owner_of
from penstock_storage_node.settings import GroupSettings
from unit.storage_node.groups.group_rig import Rig, fresh_seeds, subscription

E = ErrorCode
BAD, GOOD = user("mallory"), user("alice")
SMALL = GroupSettings(initial_rebalance_delay_ms=0)


def beat(rig: Rig, group: str, member_id: str, epoch: int, **values: object) -> ConsumerHeartbeatResult:
    answers: list[ConsumerHeartbeatResult] = []
    if epoch == 0:
        values = {"rebalance_timeout_ms": 30_000, "topics": ("t",), "owned": NOTHING} | values
    request = replace(ConsumerHeartbeat(group, member_id, epoch), **values)  # type: ignore[arg-type]
    rig.shard.consumer_heartbeat(request, answers.append)
    rig.settle()
    return answers[0]


def refused(rig: Rig) -> dict[str, int]:
    return dict(rig.shard._store.node.refused)


def test_an_owner_is_who_signed_in_else_the_address() -> None:
    assert owner_of(Identity(BAD, "192.0.2.1")) == BAD
    assert owner_of(Identity(ANONYMOUS, "192.0.2.1")) == "192.0.2.1"
    assert owner_of(Identity(ANONYMOUS, "")) == ""


def test_all_addresses_of_a_64_are_one_owner_with_four_shares() -> None:
    near, same = (owner_of(Identity(ANONYMOUS, f"2001:db8::{n}")) for n in (1, 2))
    assert near == same != owner_of(Identity(ANONYMOUS, "2001:db8:0:1::1"))
    node = NodeHoldings(replace(SMALL, members_per_principal_max=3, groups_per_principal_max=2))
    shard = node.open(())
    for owner, members, groups in ((near, 12, 8), ("192.0.2.1", 3, 2), (BAD, 3, 2)):
        for number in range(members):
            assert node.has_room(owner, 1, 10, 10), number
            shard.take(owner, 10)
        assert not node.has_room(owner, 1, 10, 10)
        for number in range(groups):
            assert node.may_make(owner), number
            shard.make(f"{owner}-{number}", owner)
        assert not node.may_make(owner)


def test_a_member_may_say_so_much_of_itself() -> None:
    rig = Rig(replace(SMALL, member_bytes_max=1_000))
    assert rig.join("g", protocols=(("range", b"x" * 996),))[0].error is E.INVALID_REQUEST
    two = (("a", b"x" * 500), ("b", b"x" * 499))
    assert rig.join("g", protocols=two)[0].error is E.INVALID_REQUEST
    assert rig.join("g", protocols=(("range", b"x" * 995),))[0].error is E.MEMBER_ID_REQUIRED
    rig.topics.set(t=1)
    assert beat(rig, "h", "a", 0, topics=("t" * 1_001,)).error is E.INVALID_REQUEST
    assert beat(rig, "h", "a", 0, topics=("t" * 1_000,)).error is E.NONE
    # What it had before is not added up with what it says now.
    assert beat(rig, "h", "a", 1, topics=("s" * 1_000,)).error is E.NONE
    assert refused(rig) == {"group_member_max_bytes": 3}


def test_a_member_is_assigned_so_much() -> None:
    rig = Rig(replace(SMALL, member_bytes_max=1_000))
    member, (joined,) = rig.enter("g")
    found = rig.sync("g", member, joined.generation, [(member, b"x" * 1_001)])
    assert found[0].error is E.INVALID_REQUEST
    found = rig.sync("g", member, joined.generation, [(member, b"x" * 1_000)])
    assert (found[0].error, len(found[0].assignment)) == (E.NONE, 1_000)


def test_a_group_holds_so_much() -> None:
    rig = Rig(replace(SMALL, group_bytes_max=2_000))
    protocols = (("range", subscription("t") + b"x" * 800),)
    rig.enter("g", protocols=protocols)
    rig.enter("g", protocols=protocols)
    assert rig.join("g", protocols=protocols)[0].error is E.GROUP_MAX_SIZE_REACHED
    assert rig.join("other", protocols=protocols)[0].error is E.MEMBER_ID_REQUIRED
    rig.topics.set(t=1)
    for member in ("a", "b"):
        assert beat(rig, "h", member, 0, topics=("t" * 900,)).error is E.NONE
    assert beat(rig, "h", "c", 0, topics=("t" * 900,)).error is E.GROUP_MAX_SIZE_REACHED
    assert beat(rig, "h", "b", 0, topics=("t" * 1_101,)).error is E.GROUP_MAX_SIZE_REACHED
    assert refused(rig) == {"group_max_bytes": 3}


def test_a_principal_has_so_many_members_and_others_have_theirs() -> None:
    rig = Rig(replace(SMALL, members_per_principal_max=3, initial_rebalance_delay_ms=3_000))
    assert rig.join("a", owner=BAD, member_id_required=False) == []
    given = rig.join("b", owner=BAD)[0].member_id
    assert beat(rig, "c", "m", 0, owner=BAD).error is E.NONE
    for group in "abd":
        assert rig.join(group, owner=BAD)[0].error is E.GROUP_MAX_SIZE_REACHED
    assert "d" not in rig.shard.groups
    assert beat(rig, "c", "n", 0, owner=BAD).error is E.GROUP_MAX_SIZE_REACHED
    # Who has a place keeps it, and an id that was given out is a place.
    assert beat(rig, "c", "m", 1, owner=BAD).error is E.NONE
    assert rig.join("b", given, owner=BAD) == []
    assert rig.join("b", owner=GOOD)[0].error is E.MEMBER_ID_REQUIRED
    # One leaves, another comes.
    rig.shard.leave("b", [(given, None)])
    assert rig.join("d", owner=BAD)[0].error is E.MEMBER_ID_REQUIRED
    assert rig.join("e", owner=BAD)[0].error is E.GROUP_MAX_SIZE_REACHED
    # Ids that nobody came back with, and members that are silent, are places again.
    rig.pass_ms(400_000, step_ms=5_000)
    assert rig.join("e", owner=BAD)[0].error is E.MEMBER_ID_REQUIRED


def test_a_node_bears_so_much_and_a_principal_has_a_quarter() -> None:
    rig = Rig(replace(SMALL, memory_bytes_max=8_000))
    protocols = (("range", subscription("t") + b"x" * 900),)
    rig.enter("a", protocols=protocols, owner=BAD)
    rig.enter("b", protocols=protocols, owner=BAD)
    assert rig.join("c", protocols=protocols, owner=BAD)[0].error is E.GROUP_MAX_SIZE_REACHED
    for number in range(6):
        rig.enter(f"g{number}", protocols=protocols, owner=user(f"u{number}"))
    assert rig.join("h", protocols=protocols, owner=GOOD)[0].error is E.GROUP_MAX_SIZE_REACHED
    assert refused(rig) == {"group_memory_max_bytes": 2}


def test_a_principal_makes_so_many_groups() -> None:
    rig = Rig(replace(SMALL, groups_per_principal_max=2))
    for group, error in (("a", E.NONE), ("b", E.NONE), ("c", E.GROUP_MAX_SIZE_REACHED), ("a", E.NONE)):
        assert rig.commit(group, "", -1, {("t", 0): 1}, owner=BAD) == [[error]]
    assert rig.join("c", owner=BAD)[0].error is E.GROUP_MAX_SIZE_REACHED
    assert beat(rig, "c", "m", 0, owner=BAD).error is E.GROUP_MAX_SIZE_REACHED
    assert "c" not in rig.shard.groups
    assert rig.commit("c", "", -1, {("t", 0): 1}, owner=GOOD) == [[E.NONE]]
    rig.shard.delete_group("a", lambda _: None)
    rig.settle()
    assert rig.join("d", owner=BAD)[0].error is E.MEMBER_ID_REQUIRED


def test_a_node_has_so_many_groups() -> None:
    rig = Rig(replace(SMALL, groups_max=1))
    assert rig.commit("a", "", -1, {("t", 0): 1}) == [[E.NONE]]
    assert rig.commit("b", "", -1, {("t", 0): 1}) == [[E.GROUP_MAX_SIZE_REACHED]]
    assert refused(rig) == {"groups_max": 1}


def test_a_group_too_many_costs_a_producer_its_transaction_and_not_its_life() -> None:
    """At GROUP_MAX_SIZE_REACHED in a TxnOffsetCommit Java and kafka-python end; at these every client aborts."""
    rig = Rig(replace(SMALL, groups_max=1))
    assert rig.commit("a", "", -1, {("t", 0): 1}) == [[E.NONE]]
    for version, code in ((3, E.GROUP_AUTHORIZATION_FAILED), (4, E.TRANSACTION_ABORTABLE)):
        assert rig.commit_in((7, 0), "b", {("t", 0): 1}, version=version) == [[code]]
    assert rig.commit_in((7, 0), "a", {("t", 0): 2}) == [[E.NONE]]


def test_a_commit_of_nothing_leaves_no_group() -> None:
    rig = Rig(replace(SMALL, offset_metadata_bytes_max=0))
    assert rig.commit("a", "", -1, {}) == [[]]
    assert rig.shard.groups == {}


def test_groups_that_were_read_are_nobodys_until_they_are_heard_of() -> None:
    rig = Rig(replace(SMALL, members_per_principal_max=1))
    (member,) = rig.stable("g", 1, owner=BAD)
    rig.fail_over()
    node = rig.shard._store.node
    assert node.member_count == 1 and node.held_bytes > 0
    rig.join("g", member, owner=BAD, protocols=(("range", subscription("t", "u")),))
    assert rig.join("h", owner=BAD)[0].error is E.GROUP_MAX_SIZE_REACHED


def test_a_shard_that_is_closed_counts_no_more() -> None:
    node = NodeHoldings(SMALL)
    first, second = node.open(()), node.open(())
    first.take(BAD, 10)
    second.take(BAD, 20)
    assert (node.member_count, node.held_bytes) == (2, 30)
    node.close(first)
    node.close(first)
    assert (node.member_count, node.held_bytes) == (1, 20)


def test_what_is_given_back_leaves_nothing() -> None:
    held = Holdings()
    held.take(BAD, 7)
    held.resize(BAD, -2)
    held.give(BAD, 5)
    held.make("g", BAD)
    held.make("g", GOOD)
    held.forget("g")
    held.forget("g")
    assert not held.members and not held.bytes and not held.made and not held.all_bytes


def test_who_joins_and_leaves_again_and_again_leaves_no_timer_behind() -> None:
    rig = Rig(SMALL)
    for _ in range(3_000):
        member, _answers = rig.enter("g")
        rig.shard.leave("g", [(member, None)])
    assert len(rig.shard._store.timers._heap) < 2_500


def test_what_is_counted_is_what_is_there() -> None:
    for seed in fresh_seeds(6):
        print(f"seed {seed}")
        _count_at_random(seed)


def _count_at_random(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(replace(SMALL, members_per_principal_max=4, group_bytes_max=400, groups_per_principal_max=3))
    rig.topics.set(t=3, u=2)
    known: list[tuple[str, str]] = []
    for _ in range(150):
        owner, group = rng.choice((BAD, GOOD, "192.0.2.1", "")), rng.choice("abcd")
        topics = rng.choice((("t",), ("t", "u"), ("u" * 150,)))
        group, member = rng.choice(known) if known and rng.random() < 0.6 else (group, "")
        what = rng.randrange(7)
        if what <= 1:
            protocols = ((rng.choice(("range", "sticky")), subscription(*topics)),)
            instance = rng.choice((None, None, "static"))
            found = rig.join(group, member, owner=owner, protocols=protocols, instance_id=instance)
            known += [(group, each.member_id) for each in found if each.member_id]
        elif what == 2:
            view = rig.shard.groups.get(group)
            generation = getattr(view, "generation", 0)
            rig.sync(group, member, generation, [(member, b"x" * rng.choice((5, 100, 500)))])
        elif what == 3:
            member = member or f"m{rng.randrange(5)}"
            beat(rig, group, member, rng.choice((0, 0, 1, 2, -1)), owner=owner, topics=topics)
            known.append((group, member))
        elif what == 4:
            rig.commit(group, "", -1, {("t", 0): 1}, owner=owner)
        elif what == 5:
            rig.shard.leave(group, [(member, None)])
        else:
            rng.choice(
                (
                    lambda: rig.pass_ms(20_000, step_ms=1_000),
                    lambda group=group: rig.shard.delete_group(group, lambda _: None),
                    rig.fail_over,
                )
            )()
            rig.settle()
