"""Committed offsets: who may commit, when they are seen, when they go."""

from __future__ import annotations

import pytest

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId
from penstock_storage_node.groups import records as rec
from penstock_storage_node.settings import GroupSettings
from unit.storage_node.groups.group_rig import Rig

E = ErrorCode
DAY_MS = 24 * 60 * 60 * 1000


def test_a_standalone_consumer_commits_without_a_group() -> None:
    rig = Rig()
    assert rig.commit("g", "", -1, {("t", 0): 5, ("u", 1): 7}) == [[E.NONE, E.NONE]]
    assert rig.offsets("g") == {("t", 0): 5, ("u", 1): 7}
    assert rig.shard.fetch("g", None, -1, [("t", 0), ("t", 9)])[1][1] == (("t", 9), None)
    assert rig.offsets("nobody") == {}
    view = rig.shard.describe("g")
    assert view is not None
    assert (view.state, view.protocol_type, view.kind) == ("Empty", "", "classic")
    rig.fail_over()
    assert rig.offsets("g") == {("t", 0): 5, ("u", 1): 7}
    assert [v.group_id for v in rig.shard.list_groups()] == ["g"]


def test_an_offset_is_seen_when_it_is_safe() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1})
    rig.log.hold = True
    first = rig.commit("g", "", -1, {("t", 0): 2})
    second = rig.commit("g", "", -1, {("t", 0): 3})
    assert (first, second, rig.offsets("g")) == ([], [], {("t", 0): 1})
    rig.log.advance(2)
    assert (first, second, rig.offsets("g")) == ([[E.NONE]], [], {("t", 0): 2})
    rig.log.advance()
    assert rig.offsets("g") == {("t", 0): 3}


def test_codes_of_writes_that_are_refused() -> None:
    rig = Rig()
    for refusal, told in (
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.INVALID_COMMIT_OFFSET_SIZE),
    ):
        rig.log.refuse = refusal
        assert rig.commit("g", "", -1, {("t", 0): 1}) == [[told]]
    assert rig.shard.groups == {}
    assert rig.shard.pending_commits == {}


def test_too_much_metadata_fails_alone() -> None:
    rig = Rig(GroupSettings(offset_metadata_bytes_max=0))
    assert rig.commit("g", "", -1, {("t", 0): 1}) == [[E.NONE]]
    from penstock_storage_node.groups.offsets import CommitRequest, NewOffset

    answers: list[object] = []
    items = [NewOffset("t", 0, 4, -1, "x"), NewOffset("t", 1, 4, -1, None)]
    rig.shard.commit(CommitRequest("g", "", None, -1, items), answers.append)
    rig.settle()
    assert answers == [[E.OFFSET_METADATA_TOO_LARGE, E.NONE]]
    assert rig.offsets("g") == {("t", 0): 1, ("t", 1): 4}


def test_a_commit_keeps_a_session_alive_and_waits_for_the_assignment() -> None:
    rig = Rig()
    (a,) = rig.stable("g", 1)
    for _ in range(4):
        rig.pass_ms(6_000)
        assert rig.commit("g", a, 1, {("t", 0): 1}) == [[E.NONE]]
    b, _ = rig.enter("g")
    assert rig.commit("g", a, 1, {("t", 0): 2}) == [[E.NONE]]
    rig.join("g", a)
    assert rig.commit("g", a, 2, {("t", 0): 3}) == [[E.REBALANCE_IN_PROGRESS]]
    assert rig.commit("g", b, 1, {("t", 0): 3}) == [[E.ILLEGAL_GENERATION]]


def test_deleting_offsets() -> None:
    rig = Rig()
    answers: list[object] = []
    rig.shard.delete_offsets("g", [("t", 0)], lambda *a: answers.append(a))
    assert answers.pop() == (E.GROUP_ID_NOT_FOUND, ())
    (a,) = rig.stable("g", 1)
    rig.commit("g", a, 1, {("t", 0): 1, ("other", 0): 2})
    rig.shard.delete_offsets("g", [("t", 0), ("other", 0)], lambda *a: answers.append(a))
    rig.settle()
    assert answers.pop() == (E.NONE, [E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE])
    assert rig.offsets("g") == {("t", 0): 1}
    other = Rig()
    other.stable("g", 1, protocol_type="connect", protocols=(("default", b""),))
    other.shard.delete_offsets("g", [("t", 0)], lambda *a: answers.append(a))
    assert answers.pop() == (E.NON_EMPTY_GROUP, ())


def test_deleting_a_group() -> None:
    rig = Rig()
    codes: list[ErrorCode] = []
    rig.shard.delete_group("g", codes.append)
    assert codes.pop() is E.GROUP_ID_NOT_FOUND
    (a,) = rig.stable("g", 1)
    rig.commit("g", a, 1, {("t", 0): 1})
    rig.shard.delete_group("g", codes.append)
    assert codes.pop() is E.NON_EMPTY_GROUP
    rig.shard.leave("g", [(a, None)])
    rig.log.hold = True
    rig.commit("g", "", -1, {("t", 1): 1})
    rig.shard.delete_group("g", codes.append)
    assert codes == []
    rig.log.advance()
    assert codes == [E.NONE]
    assert (rig.shard.groups, rig.shard.offsets, rig.shard.pending_commits) == ({}, {}, {})
    rig.fail_over()
    assert (rig.shard.groups, rig.shard.offsets) == ({}, {})


def test_a_deletion_that_is_refused_leaves_the_deadlines_of_ids_that_were_given_out() -> None:
    rig = Rig()
    codes: list[ErrorCode] = []
    rig.commit("g", "", -1, {("t", 0): 1})
    (given,) = rig.join("g")
    rig.log.refuse = E.NOT_ENOUGH_REPLICAS
    rig.shard.delete_group("g", codes.append)
    assert (given.error, codes) == (E.MEMBER_ID_REQUIRED, [E.COORDINATOR_NOT_AVAILABLE])
    rig.log.refuse = None
    rig.pass_ms(11_000)  # the id was never used: nobody waits for it any longer
    _, other = rig.stable("g", 2)
    assert rig.heartbeat("g", other, 2) is E.NONE


def test_a_group_of_more_offsets_than_one_batch_holds_is_deleted_and_expires() -> None:
    rig = Rig()
    rig.log.batch_bytes_max = 1_000_000
    name = "g" * 16_000

    def fill() -> None:
        for number in range(3):
            rig.commit(name, "", -1, {("t", 50 * number + each): 1 for each in range(50)})
        assert len(rig.offsets(name)) == 150

    codes: list[ErrorCode] = []
    fill()
    rig.shard.delete_group(name, codes.append)
    rig.settle()
    assert (codes, rig.shard.groups, rig.shard.offsets) == ([E.NONE], {}, {})
    fill()
    rig.clock.now_ms += 8 * DAY_MS
    rig.shard.expire()
    rig.settle()
    assert (rig.shard.groups, rig.shard.offsets) == ({}, {})
    fill()
    rig.shard.forget_topics(frozenset({"t"}))
    rig.settle()
    assert rig.shard.offsets == {}
    # Somebody joins behind the tombstones, and finds nothing.
    fill()
    rig.log.hold = True
    rig.shard.delete_group(name, codes.append)
    rig.join(name)
    rig.join(name, member_id_required=False)
    rig.log.hold = False
    rig.settle()
    assert (codes, rig.shard.offsets) == ([E.NONE, E.NONE], {})
    assert rig.shard.groups[name].members


@pytest.mark.parametrize("expires", [False, True])
def test_what_is_committed_behind_the_tombstones_of_a_large_group_stays(expires: bool) -> None:
    rig = Rig()
    name = "g" * 16_000
    rig.commit(name, "", -1, {("t", each): 1 for each in range(100)})
    rig.clock.now_ms += 8 * DAY_MS
    rig.log.hold = True
    codes: list[ErrorCode] = []
    if expires:
        rig.shard.expire()
    else:
        rig.shard.delete_group(name, codes.append)
    told = rig.commit(name, "", -1, {("t", 0): 7})
    rig.log.hold = False
    rig.settle()
    assert (told, codes) == ([[E.NONE]], [] if expires else [E.NONE])
    assert rig.offsets(name) == {("t", 0): 7}
    rig.fail_over()
    assert rig.offsets(name) == {("t", 0): 7}


def test_offsets_of_an_empty_group_expire() -> None:
    rig = Rig()
    (a,) = rig.stable("g", 1)
    rig.commit("g", a, 1, {("t", 0): 1, ("left", 0): 1})
    for _ in range(8):
        rig.clock.now_ms += DAY_MS
        rig.heartbeat("g", a, 1)
    # Long after the commit: what the member reads stays, what it no longer reads goes.
    rig.shard.expire()
    rig.settle()
    assert rig.offsets("g") == {("t", 0): 1}
    rig.shard.leave("g", [(a, None)])
    rig.settle()
    rig.clock.now_ms += 6 * DAY_MS
    rig.shard.expire()
    assert rig.offsets("g") == {("t", 0): 1}
    rig.commit("g", "", -1, {("t", 1): 4})
    rig.clock.now_ms += 2 * DAY_MS
    rig.shard.expire()
    rig.settle()
    assert rig.offsets("g") == {("t", 1): 4}
    rig.clock.now_ms += 6 * DAY_MS
    rig.shard.expire()
    rig.settle()
    assert (rig.shard.groups, rig.shard.offsets) == ({}, {})
    assert rig.log.records[-1] == rec.Record(rec.group_key("g"), None)


def test_an_expiry_that_the_client_asked_for() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1}, retention_ms=1_000)
    rig.fail_over()
    rig.clock.now_ms += 999
    rig.shard.expire()
    assert rig.offsets("g") == {("t", 0): 1}
    rig.clock.now_ms += 1
    rig.shard.expire()
    rig.settle()
    assert rig.offsets("g") == {}


def test_expiry_goes_in_slices() -> None:
    rig = Rig()
    for number in range(450):
        rig.commit(f"g{number:03}", "", -1, {("t", 0): 1})
    rig.clock.now_ms += 8 * DAY_MS
    assert rig.shard.expire() == "g199"
    assert rig.shard.expire("g199") == "g399"
    assert rig.shard.expire("g399") == ""
    rig.settle()
    assert rig.shard.groups == {}


def test_offsets_go_with_their_topic() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1, ("u", 0): 1})
    rig.shard.forget_topics(frozenset({"t"}))
    rig.settle()
    assert rig.offsets("g") == {("u", 0): 1}


def test_a_topic_that_was_made_anew_has_no_offsets_of_the_old_one() -> None:
    rig = Rig()
    rig.topics.set(t=1, u=1)
    rig.commit("g", "", -1, {("t", 0): 7, ("u", 0): 8})
    rig.shard.close()
    # Deleted and made again while nobody coordinates: the names are all there.
    rig.topics.remade["t"] = TopicId(b"another topic t!")
    rig.fail_over()
    assert rig.offsets("g") == {("u", 0): 8}
    assert rig.shard.fetch("g", None, -1, [("t", 0)])[1] == [(("t", 0), None)]
    rig.shard.forget_deleted(lambda name: name in rig.topics.counts)
    rig.settle()
    assert rig.shard.offsets["g"].keys() == {("u", 0)}
    assert rig.commit("g", "", -1, {("t", 0): 1}) == [[E.NONE]]
    rig.fail_over()
    rig.shard.forget_deleted(lambda name: name in rig.topics.counts)
    assert rig.offsets("g") == {("t", 0): 1, ("u", 0): 8}


@pytest.mark.parametrize("commits", [True, False])
def test_an_offset_of_the_old_topic_goes_without_what_a_transaction_has_for_the_new_one(
    commits: bool,
) -> None:
    rig = Rig()
    rig.topics.set(t=1)
    rig.commit("g", "", -1, {("t", 0): 7})
    rig.topics.remade["t"] = TopicId(b"another topic t!")
    rig.commit_in((7, 0), "g", {("t", 0): 1})
    rig.fail_over()
    rig.shard.forget_deleted(lambda name: name in rig.topics.counts)
    rig.settle()
    assert rig.offsets("g") == {}
    rig.mark(7, commits=commits)
    rig.shard.expire()
    rig.settle()
    expected = {("t", 0): 1} if commits else {}
    assert {key: value.offset for key, value in rig.shard.offsets.get("g", {}).items()} == expected
    rig.fail_over()
    assert rig.offsets("g") == expected


def test_a_commit_that_is_not_safe_yet_goes_with_its_topic() -> None:
    rig = Rig()
    rig.log.hold = True
    rig.commit("g", "", -1, {("t", 0): 1})
    rig.shard.forget_topics(frozenset({"t"}))
    rig.log.hold = False
    rig.settle()
    assert rig.shard.offsets == {}


def test_offsets_of_a_deleted_topic_go_later_where_the_log_takes_nothing() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1, ("t", 1): 1, ("u", 0): 1})
    rig.log.refuse = E.NOT_ENOUGH_REPLICAS
    rig.shard.forget_topics(frozenset({"t"}))
    rig.shard.expire()
    rig.log.refuse = None
    # A topic of that name is there again, and has an offset of its own by now.
    rig.commit("g", "", -1, {("t", 1): 5})
    rig.log.hold = True
    rig.commit("g", "", -1, {("t", 0): 6})
    rig.shard.expire()
    assert rig.offsets("g") == {("t", 0): 1, ("t", 1): 5, ("u", 0): 1}
    rig.log.hold = False
    rig.settle()
    rig.shard.expire()
    rig.settle()
    assert rig.offsets("g") == {("t", 0): 6, ("t", 1): 5, ("u", 0): 1}
    rig.log.refuse = E.NOT_ENOUGH_REPLICAS
    rig.shard.forget_topics(frozenset({"t"}))
    rig.log.refuse = None
    rig.shard.expire()
    rig.settle()
    assert rig.offsets("g") == {("u", 0): 1}
    rig.fail_over()
    assert rig.offsets("g") == {("u", 0): 1}


def test_listing_filters() -> None:
    rig = Rig()
    rig.stable("s", 1)
    rig.commit("e", "", -1, {("t", 0): 1})
    assert {v.group_id for v in rig.shard.list_groups()} == {"s", "e"}
    assert [v.group_id for v in rig.shard.list_groups(["stable"])] == ["s"]
    assert [v.group_id for v in rig.shard.list_groups(["Empty"], ["CLASSIC"])] == ["e"]
    assert rig.shard.list_groups((), ["consumer"]) == []
    described = rig.shard.describe("s")
    assert described is not None
    assert (described.state, described.protocol, len(described.members)) == ("Stable", "range", 1)
    assert rig.shard.describe("nobody") is None
