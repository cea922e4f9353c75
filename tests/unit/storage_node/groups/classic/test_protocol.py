"""The classic group protocol, step by step in simulated time."""

from __future__ import annotations

import pytest

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups.classic.group import ClassicGroup, GroupState
from penstock_storage_node.groups.records import Record, group_key, read_group
from penstock_storage_node.settings import GroupSettings
from unit.storage_node.groups.group_rig import Rig, subscription

E = ErrorCode


def group_of(rig: Rig, name: str = "g") -> ClassicGroup:
    group = rig.shard.groups[name]
    assert isinstance(group, ClassicGroup)
    return group


def test_one_member_gets_its_own_assignment() -> None:
    rig = Rig()
    member_id, (joined,) = rig.enter("g")
    assert (joined.error, joined.generation, joined.leader) == (E.NONE, 1, member_id)
    assert (joined.protocol_type, joined.protocol) == ("consumer", "range")
    assert joined.members == [(member_id, None, subscription("t"))]
    (synced,) = rig.sync("g", member_id, 1, [(member_id, b"mine")])
    assert (synced.error, synced.assignment, synced.protocol) == (E.NONE, b"mine", "range")
    assert group_of(rig).state is GroupState.STABLE
    assert rig.heartbeat("g", member_id, 1) is E.NONE
    # Asked again, the assignment is still there.
    assert rig.sync("g", member_id, 1)[0].assignment == b"mine"


def test_an_assignment_waits_until_it_is_safe() -> None:
    rig = Rig(hold=True)
    member_id, _ = rig.enter("g")
    answer = rig.sync("g", member_id, 1, [(member_id, b"mine")])
    assert answer == []
    rig.log.advance()
    assert answer[0].assignment == b"mine"


def test_a_generation_has_the_assignment_that_its_leader_sent_first() -> None:
    """A leader whose SyncGroup is not answered in time joins again, and assigns once more: by other metadata, maybe."""
    rig = Rig()
    a, _ = rig.enter("g")
    b, _ = rig.enter("g")
    rig.join("g", a)
    rig.sync("g", b, 2)
    rig.log.hold = True
    rig.sync("g", a, 2, [(a, b"a1"), (b, b"b1")])
    assert rig.join("g", a)[0].generation == 2
    again = rig.sync("g", a, 2, [(a, b"a2"), (b, b"b2")])
    rig.log.hold = False
    rig.settle()
    assert [each.assignment for each in again] == [b"a1"]
    rig.fail_over()
    assert [rig.sync("g", each, 2)[0].assignment for each in (a, b)] == [b"a1", b"b1"]


def test_a_write_that_is_refused_begins_another_rebalance() -> None:
    rig = Rig()
    member_id, _ = rig.enter("g")
    rig.log.refuse = E.NOT_ENOUGH_REPLICAS
    (answer,) = rig.sync("g", member_id, 1, [(member_id, b"mine")])
    assert answer.error is E.COORDINATOR_NOT_AVAILABLE
    assert rig.heartbeat("g", member_id, 1) is E.REBALANCE_IN_PROGRESS
    rig.log.refuse = None
    (again,) = rig.join("g", member_id)
    assert again.generation == 2


def test_the_first_rebalance_waits_for_latecomers() -> None:
    rig = Rig(GroupSettings(initial_rebalance_delay_ms=3_000))
    a, first = rig.enter("g")
    rig.pass_ms(2_000)
    b, second = rig.enter("g")
    rig.pass_ms(1_500)
    assert first == second == []
    rig.pass_ms(3_000)
    assert first[0].generation == second[0].generation == 1
    assert {first[0].leader, second[0].leader} == {a}
    assert [m[0] for m in first[0].members] == [a, b]
    assert second[0].members == ()


def test_members_that_do_not_come_back_are_out() -> None:
    rig = Rig()
    a, b = rig.stable("g", 2)
    c, joined = rig.enter("g")
    rig.join("g", a)
    assert joined == []
    for _ in range(12):
        # c is new and a waits: neither needs heartbeats. b only says that it lives.
        assert rig.heartbeat("g", b, group_of(rig).generation) is E.REBALANCE_IN_PROGRESS
        rig.pass_ms(5_000)
    assert joined[0].error is E.NONE
    assert set(group_of(rig).members) == {a, c}
    assert rig.heartbeat("g", b, joined[0].generation) is E.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_out_after_its_session() -> None:
    rig = Rig()
    a, b = rig.stable("g", 2)
    generation = group_of(rig).generation
    for _ in range(2):
        assert rig.heartbeat("g", a, generation) is E.NONE
        rig.pass_ms(4_000)
    rig.pass_ms(3_000)
    assert rig.heartbeat("g", a, generation) is E.REBALANCE_IN_PROGRESS
    assert rig.heartbeat("g", b, generation) is E.UNKNOWN_MEMBER_ID
    (joined,) = rig.join("g", a)
    assert (joined.generation, joined.leader) == (generation + 1, a)


def test_a_group_leaves_the_log_without_members() -> None:
    """Simulation, seed 5421: the log took no record while the last members fell silent, and took the removal later."""
    rig = Rig()
    rig.stable("g", 2)
    rig.log.refuse = E.NOT_ENOUGH_REPLICAS
    rig.pass_ms(11_000)
    rig.pass_ms(61_000)
    assert group_of(rig).is_empty
    rig.log.refuse = None
    rig.shard.expire()
    rig.settle()
    *_, emptied, removed = (record for record in rig.log.records if isinstance(record, Record))
    assert emptied.key == removed.key == group_key("g")
    assert emptied.value is not None and removed.value is None
    value = read_group(emptied.value)
    assert (value.generation, value.members) == (3, ())
    rig.fail_over()
    assert "g" not in rig.shard.groups


def test_a_member_that_never_syncs_is_out() -> None:
    rig = Rig()
    a, _ = rig.enter("g", rebalance_timeout_ms=20_000)
    b, second = rig.enter("g", rebalance_timeout_ms=20_000)
    (first,) = rig.join("g", a, rebalance_timeout_ms=20_000)
    generation = second[0].generation
    rig.sync("g", first.leader, generation, [(a, b"a"), (b, b"b")])
    other = b if first.leader == a else a
    for _ in range(5):
        rig.heartbeat("g", a, generation)
        rig.heartbeat("g", b, generation)
        rig.pass_ms(5_000)
    assert set(group_of(rig).members) == {first.leader}
    assert rig.heartbeat("g", other, generation) is E.UNKNOWN_MEMBER_ID


def test_a_pending_member_is_forgotten_and_so_is_its_group() -> None:
    rig = Rig()
    (answer,) = rig.join("g")
    assert answer.error is E.MEMBER_ID_REQUIRED
    rig.pass_ms(11_000)
    assert rig.shard.groups == {}
    assert rig.join("g", answer.member_id)[0].error is E.UNKNOWN_MEMBER_ID


def test_generations_fence() -> None:
    rig = Rig()
    (a,) = rig.stable("g", 1)
    assert rig.heartbeat("g", a, 0) is E.ILLEGAL_GENERATION
    assert rig.sync("g", a, 7)[0].error is E.ILLEGAL_GENERATION
    assert rig.commit("g", a, 0, {("t", 0): 1}) == [[E.ILLEGAL_GENERATION]]
    assert rig.commit("g", "who", 1, {("t", 0): 1}) == [[E.UNKNOWN_MEMBER_ID]]
    assert rig.commit("g", "", -1, {("t", 0): 1}) == [[E.UNKNOWN_MEMBER_ID]]
    assert rig.commit("g", a, 1, {("t", 0): 1}) == [[E.NONE]]


def test_joins_that_are_refused() -> None:
    rig = Rig(GroupSettings(initial_rebalance_delay_ms=0, group_size_max=1))
    assert rig.join("")[0].error is E.INVALID_GROUP_ID
    assert rig.join("g", session_timeout_ms=5_999)[0].error is E.INVALID_SESSION_TIMEOUT
    assert rig.join("g", session_timeout_ms=1_800_001)[0].error is E.INVALID_SESSION_TIMEOUT
    assert rig.join("g", "ghost")[0].error is E.UNKNOWN_MEMBER_ID
    assert rig.join("g", protocols=())[0].error is E.INCONSISTENT_GROUP_PROTOCOL
    assert rig.join("g", protocol_type="")[0].error is E.INCONSISTENT_GROUP_PROTOCOL
    assert rig.shard.groups == {}
    (a,) = rig.stable("g", 1)
    assert rig.join("g")[0].error is E.GROUP_MAX_SIZE_REACHED
    assert rig.heartbeat("g", a, 1) is E.NONE
    roomy = Rig()
    roomy.stable("g", 1)
    assert roomy.join("g", protocol_type="connect")[0].error is E.INCONSISTENT_GROUP_PROTOCOL
    assert roomy.join("g", protocols=(("other", b""),))[0].error is E.INCONSISTENT_GROUP_PROTOCOL


def test_old_clients_need_no_member_id_first() -> None:
    rig = Rig()
    (joined,) = rig.join("g", member_id_required=False)
    assert (joined.error, joined.generation) == (E.NONE, 1)


def test_the_protocol_that_most_like_best_is_chosen() -> None:
    rig = Rig()
    only = subscription("t")
    both, other = (("range", only), ("sticky", only)), (("sticky", only), ("range", only))
    a, _ = rig.enter("g", protocols=both)
    b, _ = rig.enter("g", protocols=other)
    rig.join("g", a, protocols=both)
    c, joined = rig.enter("g", protocols=other)
    rig.join("g", a, protocols=both)
    rig.join("g", b, protocols=other)
    assert joined[0].protocol == "sticky"
    assert rig.sync("g", c, joined[0].generation, protocol="range")[0].error is E.INCONSISTENT_GROUP_PROTOCOL
    assert rig.sync("g", c, joined[0].generation, protocol_type="x")[0].error is E.INCONSISTENT_GROUP_PROTOCOL


def test_leaving_and_emptying() -> None:
    rig = Rig()
    a, b = rig.stable("g", 2)
    assert rig.shard.leave("g", [(a, None), ("who", None)]) == (E.NONE, [E.NONE, E.UNKNOWN_MEMBER_ID])
    generation = group_of(rig).generation
    assert rig.heartbeat("g", b, generation) is E.REBALANCE_IN_PROGRESS
    (joined,) = rig.join("g", b)
    assert (joined.generation, joined.leader) == (generation + 1, b)
    rig.shard.leave("g", [(b, None)])
    rig.settle()
    assert group_of(rig).state is GroupState.EMPTY
    rig.fail_over()
    assert (group_of(rig).state, group_of(rig).generation) == (GroupState.EMPTY, generation + 2)
    assert rig.shard.leave("nobody", [("x", None)]) == (E.NONE, [E.UNKNOWN_MEMBER_ID])
    assert rig.shard.leave("nobody", []) == (E.NONE, [])
    assert rig.shard.leave("", [("x", None)])[0] is E.INVALID_GROUP_ID


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    rig = Rig()
    (first,) = rig.join("g", instance_id="one")
    old = first.member_id
    rig.sync("g", old, 1, [(old, b"mine")], instance_id="one")
    (second,) = rig.join("g", instance_id="one")
    new = second.member_id
    assert new != old
    assert (second.error, second.generation, second.leader) == (E.NONE, 1, new)
    assert second.skip_assignment
    assert [m[:2] for m in second.members] == [(new, "one")]
    assert rig.sync("g", new, 1, instance_id="one")[0].assignment == b"mine"
    assert rig.shard.heartbeat("g", old, "one", 1) is E.FENCED_INSTANCE_ID
    assert rig.commit("g", old, 1, {("t", 0): 1}, instance_id="one") == [[E.FENCED_INSTANCE_ID]]
    rig.fail_over()
    assert rig.shard.heartbeat("g", new, "one", 1) is E.NONE
    # Without its member id, as the admin client removes it.
    assert rig.shard.leave("g", [("", "one"), ("", "two")])[1] == [E.NONE, E.UNKNOWN_MEMBER_ID]


def test_an_older_static_leader_is_not_told_that_it_leads() -> None:
    rig = Rig()
    (first,) = rig.join("g", instance_id="one", can_skip_assignment=False)
    rig.sync("g", first.member_id, 1, [(first.member_id, b"mine")], instance_id="one")
    (second,) = rig.join("g", instance_id="one", can_skip_assignment=False)
    assert (second.leader, second.members, second.skip_assignment) == (first.member_id, (), False)


def test_a_replacement_that_cannot_be_stored_is_undone() -> None:
    rig = Rig()
    (first,) = rig.join("g", instance_id="one")
    rig.sync("g", first.member_id, 1, [(first.member_id, b"mine")], instance_id="one")
    rig.log.refuse = E.NOT_ENOUGH_REPLICAS
    (second,) = rig.join("g", instance_id="one")
    assert second.error is E.COORDINATOR_NOT_AVAILABLE
    assert rig.shard.heartbeat("g", first.member_id, "one", 1) is E.NONE


def test_a_static_member_that_is_away_keeps_its_place_for_a_session() -> None:
    rig = Rig()
    (first,) = rig.join("g", instance_id="one")
    a = first.member_id
    rig.sync("g", a, 1, [(a, b"mine")], instance_id="one")
    b, joined = rig.enter("g", session_timeout_ms=100_000)
    assert joined == []
    rig.pass_ms(11_000)
    assert joined[0].error is E.NONE
    assert set(group_of(rig).members) == {b}


def test_a_new_leader_finds_the_last_generation() -> None:
    rig = Rig()
    a, b = rig.stable("g", 2)
    generation = group_of(rig).generation
    rig.fail_over()
    assert rig.heartbeat("g", a, generation) is E.NONE
    assert rig.sync("g", b, generation)[0].assignment == b.encode()
    rig.pass_ms(11_000)
    assert group_of(rig).state is GroupState.EMPTY


def test_who_waits_is_sent_away_when_leadership_is_lost() -> None:
    rig = Rig()
    (a,) = rig.stable("g", 1)
    _, joining = rig.enter("g")
    committing = rig.commit("g", a, 1, {("t", 0): 5})
    rig.log.hold = True
    held = rig.commit("g", a, 1, {("t", 0): 6})
    rig.fail_over(kept=rig.log.committed)
    assert joining[0].error is E.NOT_COORDINATOR
    assert committing == [[E.NONE]]
    assert held == [[E.NOT_COORDINATOR]]
    assert rig.offsets("g") == {("t", 0): 5}


def test_an_identical_join_is_answered_again() -> None:
    rig = Rig()
    a, b = rig.stable("g", 2)
    generation = group_of(rig).generation
    # A follower whose answer was lost; the leader in contrast asks for a rebalance.
    assert rig.join("g", b)[0].generation == generation
    assert group_of(rig).state is GroupState.STABLE
    rig.join("g", a)
    assert group_of(rig).state is GroupState.PREPARING


def test_cooperative_members_keep_what_they_have_through_a_rebalance() -> None:
    # What a member owns travels in its metadata: a change of it is a rebalance.
    rig = Rig()
    a, b = rig.stable("g", 2, protocols=(("cooperative-sticky", subscription("t")),))
    generation = group_of(rig).generation
    changed = (("cooperative-sticky", subscription("t") + b"owned"),)
    assert rig.join("g", b, protocols=changed) == []
    (joined,) = rig.join("g", a, protocols=changed)
    assert joined.generation == generation + 1
    assert {m[0]: m[2] for m in joined.members}[b] == subscription("t") + b"owned"


@pytest.mark.parametrize("version", [8, 9])
def test_commits_to_groups_that_are_not_there(version: int) -> None:
    rig = Rig()
    code = E.GROUP_ID_NOT_FOUND if version >= 9 else E.ILLEGAL_GENERATION
    assert rig.commit("g", "m", 3, {("t", 0): 1}, version=version) == [[code]]
    assert rig.shard.groups == {}


def test_a_static_member_has_a_session_again_however_long_its_return_took_to_be_written() -> None:
    rig = Rig()
    (joined,) = rig.join("g", instance_id="s")
    rig.sync("g", joined.member_id, 1, [(joined.member_id, b"mine")], instance_id="s")
    rig.log.hold = True
    again = rig.join("g", instance_id="s")
    rig.pass_ms(15_000)  # longer than its session: it waits for us, so it stays
    assert (again, list(group_of(rig).members)) == ([], [group_of(rig).leader])
    rig.log.advance()
    assert again[0].error is E.NONE
    rig.pass_ms(11_000)
    assert group_of(rig).members == {}
