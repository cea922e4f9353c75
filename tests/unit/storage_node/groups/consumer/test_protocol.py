"""The consumer protocol (KIP-848): step by step, and random lives with invariants."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups import records as rec
from penstock_storage_node.groups.consumer.group import NOTHING, ConsumerGroup, Parts
from penstock_storage_node.groups.consumer.protocol import ConsumerHeartbeat, ConsumerHeartbeatResult
from penstock_storage_node.groups.consumer.subscribed_regexes import RIGHTS_AGAIN_MS, RegexRights
from penstock_storage_node.groups.consumer.subscription import put_assignment, read_assignment
from penstock_storage_node.groups.offsets import CommitRequest, NewOffset
from penstock_storage_node.settings import GroupSettings
from unit.storage_node.groups.group_rig import FakeTopics, Rig, fresh_seeds, subscription

E = ErrorCode


def beat(rig: Rig, member_id: str, epoch: int, **values: Any) -> list[ConsumerHeartbeatResult]:
    """A heartbeat of group `g`; the list gets its answer."""
    answers: list[ConsumerHeartbeatResult] = []
    if epoch == 0:
        values = {"rebalance_timeout_ms": 30_000, "topics": ("t",), "owned": NOTHING} | values
    rig.shard.consumer_heartbeat(ConsumerHeartbeat("g", member_id, epoch, **values), answers.append)
    rig.settle()
    return answers


def one(rig: Rig, member_id: str, epoch: int, **values: Any) -> ConsumerHeartbeatResult:
    (answer,) = beat(rig, member_id, epoch, **values)
    return answer


def group_of(rig: Rig) -> ConsumerGroup:
    group = rig.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    return group


def parts(topic: str, *numbers: int) -> Parts:
    return frozenset((FakeTopics.id_of(topic), n) for n in numbers)


def rig_with(**counts: int) -> Rig:
    rig = Rig()
    rig.topics.set(**counts)
    return rig


def test_a_group_has_a_session_timeout_of_its_own() -> None:
    rig = rig_with(t=1)
    rig.own_settings["g", "consumer.session.timeout.ms"] = 60_000
    rig.own_settings["g", "consumer.heartbeat.interval.ms"] = 9_000
    one(rig, "a", 0)
    rig.pass_ms(50_000, step_ms=1_000)  # longer than the default
    assert group_of(rig).members
    rig.pass_ms(11_000, step_ms=1_000)
    assert not group_of(rig).members
    assert (rig.shard.heartbeat_ms("g"), rig.shard.heartbeat_ms("h")) == (9_000, 5_000)


def test_members_come_and_share() -> None:
    rig = rig_with(t=4)
    a = one(rig, "a", 0)
    assert (a.error, a.member_id, a.epoch, a.assignment) == (E.NONE, "a", 1, parts("t", 0, 1, 2, 3))
    assert one(rig, "a", 1) == ConsumerHeartbeatResult(member_id="a", epoch=1)
    # b waits for what a has to give up.
    b = one(rig, "b", 0)
    assert (b.epoch, b.assignment) == (2, NOTHING)
    assert group_of(rig).state == "Reconciling"
    a = one(rig, "a", 1)
    assert (a.epoch, a.assignment) == (1, parts("t", 0, 1))
    assert one(rig, "b", 2).assignment is None
    # Until it says that it gave them up, nothing moves.
    assert one(rig, "a", 1).assignment is None
    a = one(rig, "a", 1, owned=parts("t", 0, 1))
    assert (a.epoch, a.assignment) == (2, None)
    b = one(rig, "b", 2)
    assert (b.epoch, b.assignment) == (2, parts("t", 2, 3))
    assert group_of(rig).state == "Stable"
    left = one(rig, "b", -1)
    assert (left.error, left.epoch) == (E.NONE, -1)
    assert one(rig, "a", 2).assignment == parts("t", 0, 1, 2, 3)


def test_a_lost_answer_is_told_again() -> None:
    rig = rig_with(t=2)
    one(rig, "a", 0)
    again = one(rig, "a", 0)
    assert (again.epoch, again.assignment) == (1, parts("t", 0, 1))
    full = one(rig, "a", 1, rebalance_timeout_ms=30_000, topics=("t",), owned=NOTHING)
    assert full.assignment == parts("t", 0, 1)
    rig.topics.set(t=3)
    assert one(rig, "a", 1).epoch == 2
    # The epoch before is taken from a member that owns no more than it may.
    assert one(rig, "a", 1, owned=parts("t", 0, 1)).epoch == 2
    assert one(rig, "a", 1).error is E.FENCED_MEMBER_EPOCH
    assert one(rig, "a", 9).error is E.FENCED_MEMBER_EPOCH


def test_requests_that_are_refused() -> None:
    rig = rig_with(t=1)
    for values, code in (
        ({"member_id": ""}, E.INVALID_REQUEST),
        ({"epoch": -3}, E.INVALID_REQUEST),
        ({"epoch": -2}, E.INVALID_REQUEST),
        ({"instance_id": ""}, E.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, E.INVALID_REQUEST),
        ({"owned": None}, E.INVALID_REQUEST),
        ({"topics": None}, E.INVALID_REQUEST),
        ({"assignor": "mine"}, E.UNSUPPORTED_ASSIGNOR),
        ({"regex": "("}, E.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 5}, E.GROUP_ID_NOT_FOUND),
    ):
        request: dict[str, Any] = {"member_id": "a", "epoch": 0, **values}
        assert one(rig, request.pop("member_id"), request.pop("epoch"), **request).error is code, values
    assert rig.shard.groups == {}
    one(rig, "a", 0)
    assert one(rig, "b", 5).error is E.UNKNOWN_MEMBER_ID
    assert one(rig, "b", -1).error is E.UNKNOWN_MEMBER_ID
    old: list[ConsumerHeartbeatResult] = []
    rig.shard.consumer_heartbeat(
        ConsumerHeartbeat("g", "", 0, rebalance_timeout_ms=9, topics=("t",), owned=NOTHING, version=0),
        old.append,
    )
    rig.settle()
    assert old[0].member_id == "id1"


def test_who_subscribes_to_nothing_yet_joins_all_the_same() -> None:
    """A Java consumer with a `java.util.regex.Pattern` that matches no topic so far says an empty list; it ends at
    INVALID_REQUEST."""
    rig = rig_with(t=1)
    joined = one(rig, "a", 0, topics=())
    assert (joined.error, joined.epoch, joined.assignment) == (E.NONE, 1, NOTHING)
    assert one(rig, "b", 0, topics=None, regex="").error is E.NONE
    assert one(rig, "a", 1, topics=("t",)).assignment == parts("t", 0)
    # So does one of the classic protocol, in a group that is none of those any more.
    member_id, (classic,) = rig.enter("g", protocols=owning(topics=()))
    assert classic.error is E.NONE
    assert placed(rig.sync("g", member_id, classic.generation)[0].assignment) == frozenset()


def test_an_answer_without_records_waits_for_those_of_an_earlier_one() -> None:
    """A heartbeat that comes again, since its answer was lost, changes nothing: all the same it must not be
    told what the next coordinator may not find in its log."""
    rig = rig_with(t=2)
    rig.log.hold = True
    first, again = beat(rig, "a", 0), beat(rig, "a", 0)
    assert (first, again) == ([], [])
    rig.log.advance()
    assert first == again == [ConsumerHeartbeatResult(member_id="a", epoch=1, assignment=parts("t", 0, 1))]
    # Members at rest are told what they know: nothing of that waits.
    rig.shard.commit(CommitRequest("other", "", None, -1, [NewOffset("t", 0, 1, -1, "")]), lambda _: None)
    assert beat(rig, "a", 1) == [ConsumerHeartbeatResult(member_id="a", epoch=1)]
    # A leadership that ends meanwhile: nobody knows what became of it.
    left, again = beat(rig, "b", 0), beat(rig, "b", 0)
    rig.log.lose(rig.log.committed)
    assert [a.error for a in (*left, *again)] == [E.NOT_COORDINATOR] * 2


def test_topics_by_regex_come_and_go() -> None:
    rig = rig_with(t1=1, t2=1, x=1)
    a = one(rig, "a", 0, topics=None, regex="t.*")
    assert a.assignment == parts("t1", 0) | parts("t2", 0)
    rig.topics.set(t1=2, x=1, t3=1)
    a = one(rig, "a", 1)
    assert a.assignment == parts("t1", 0)
    a = one(rig, "a", 1, owned=parts("t1", 0))
    assert (a.epoch, a.assignment) == (2, parts("t1", 0, 1) | parts("t3", 0))
    a = one(rig, "a", 2, regex="", topics=("x",))
    assert one(rig, "a", 2, owned=NOTHING).assignment == parts("x", 0)


def test_topics_that_change_while_no_coordinator_is_there_are_assigned_by_the_next_one() -> None:
    rig = rig_with(t=2)
    one(rig, "a", 0, topics=("t", "u"))
    rig.fail_over()
    assert one(rig, "a", 1) == ConsumerHeartbeatResult(
        member_id="a", epoch=1
    )  # nothing has changed: no rebalance
    rig.topics.set(t=3)
    rig.fail_over()
    assert one(rig, "a", 1).assignment == parts("t", 0, 1, 2)
    rig.topics.set(t=3, u=1)
    rig.fail_over()
    found = one(rig, "a", 2)
    assert (found.epoch, found.assignment) == (3, parts("t", 0, 1, 2) | parts("u", 0))
    rig.topics.set(u=1)
    rig.fail_over()
    assert one(rig, "a", 3).assignment == parts("u", 0)
    assert one(rig, "a", 3, owned=parts("u", 0)).epoch == 4


def test_a_regex_matches_internal_topics_as_any_other() -> None:
    """Kafka leaves that to the pattern: `exclude.internal.topics` is of classic consumers' own matching."""
    rig = rig_with(t=1, __consumer_offsets=2)
    assert one(rig, "a", 0, topics=None, regex="__.*").assignment == parts("__consumer_offsets", 0, 1)
    everything = parts("t", 0) | parts("__consumer_offsets", 0, 1)
    assert one(rig, "a", 1, regex=".*", owned=parts("__consumer_offsets", 0, 1)).assignment == everything
    rig = rig_with(t=1, __consumer_offsets=2)
    assert one(rig, "b", 0, topics=None, regex="[^_].*").assignment == parts("t", 0)


class Describes:
    """Rights to describe topics; `but` hides some."""

    def __init__(self, *but: str) -> None:
        self.hide(*but)

    def hide(self, *but: str) -> None:
        hidden = set(but)
        self.now = RegexRights(lambda names: [n for n in names if n not in hidden], object())


def test_a_regex_sees_only_what_may_be_described() -> None:
    rig, rights = rig_with(a=1, b=1, secret=2), Describes("secret")
    first = one(rig, "m", 0, topics=None, regex=".*", rights=rights.now)
    assert first.assignment == parts("a", 0) | parts("b", 0)
    assert one(rig, "m", 1, rights=rights.now).assignment is None
    # A new topic is seen with the next heartbeat, a hidden one is not.
    rig.topics.set(a=1, b=1, c=1, secret=2, secret2=1)
    rights.hide("secret", "secret2")
    found = one(rig, "m", 1, rights=rights.now)
    assert (found.epoch, found.assignment) == (2, parts("a", 0) | parts("b", 0) | parts("c", 0))


def test_rights_that_change_are_seen_after_a_while() -> None:
    rig, rights = rig_with(a=1, b=1), Describes("b")
    one(rig, "m", 0, topics=None, regex=".*", rights=rights.now)
    rights.hide()
    assert one(rig, "m", 1, rights=rights.now).assignment is None
    rig.pass_ms(RIGHTS_AGAIN_MS, step_ms=1_000)
    assert one(rig, "m", 1, rights=rights.now).assignment == parts("a", 0) | parts("b", 0)
    rights.hide("a")
    rig.pass_ms(RIGHTS_AGAIN_MS, step_ms=1_000)
    assert one(rig, "m", 2, rights=rights.now).assignment == parts("b", 0)
    assert one(rig, "m", 2, rights=rights.now, owned=parts("b", 0)).epoch == 3
    # Another version of the same rights makes no rebalance.
    rights.hide("a")
    rig.pass_ms(RIGHTS_AGAIN_MS, step_ms=1_000)
    assert one(rig, "m", 3, rights=rights.now).assignment is None
    assert group_of(rig).epoch == 3


def test_what_another_member_may_read_is_not_given_to_one_that_may_not() -> None:
    rig, rights = rig_with(a=1, secret=1), Describes("secret")
    one(rig, "m", 0, topics=None, regex=".*", rights=rights.now)
    one(rig, "n", 0, topics=("secret",), rights=Describes().now)
    rig.pass_ms(1_000, step_ms=1_000)
    one(rig, "m", 1, rights=rights.now)
    assert group_of(rig).targets == {"m": parts("a", 0), "n": parts("secret", 0)}


def test_a_new_coordinator_gives_nothing_away_before_it_hears_who_asks() -> None:
    rig, rights = rig_with(a=1, secret=1, x=1), Describes("secret")
    one(rig, "m", 0, topics=None, regex="[as].*", rights=rights.now)
    one(rig, "n", 0, topics=("x",), rights=rights.now)
    one(rig, "m", 1, rights=rights.now)
    rig.fail_over()
    one(rig, "n", 2, rights=rights.now)
    assert group_of(rig).targets == {"m": parts("a", 0), "n": parts("x", 0)}
    one(rig, "m", 2, rights=rights.now)
    assert group_of(rig).targets == {"m": parts("a", 0), "n": parts("x", 0)}


def test_a_static_member_comes_back_to_its_partitions() -> None:
    rig = rig_with(t=4)
    one(rig, "a", 0, instance_id="i")
    assert one(rig, "b", 0, instance_id="i").error is E.UNRELEASED_INSTANCE_ID
    assert one(rig, "b", 3, instance_id="i").error is E.FENCED_INSTANCE_ID
    assert one(rig, "a", -2, instance_id="i").epoch == -2
    back = one(rig, "b", 0, instance_id="i")
    assert (back.error, back.assignment) == (E.NONE, parts("t", 0, 1, 2, 3))
    assert set(group_of(rig).members) == {"b"}
    rig.fail_over()
    assert set(group_of(rig).members) == {"b"}
    one(rig, "b", -2, instance_id="i")
    rig.pass_ms(46_000, 1_000)
    assert group_of(rig).state == "Empty"


def test_a_static_member_that_left_for_now_comes_back_by_the_same_member_id() -> None:
    # Kafka 4.3: what the name's holder must have sent is -2, whatever member id comes with it now.
    rig = rig_with(t=4)
    one(rig, "a", 0, instance_id="i")
    one(rig, "a", -2, instance_id="i")
    back = one(rig, "a", 0, instance_id="i")
    assert (back.error, back.member_id, back.assignment) == (E.NONE, "a", parts("t", 0, 1, 2, 3))
    assert back.epoch == group_of(rig).epoch == 1, "the others notice nothing"
    rig.fail_over()
    assert set(group_of(rig).members) == {"a"}
    assert one(rig, "a", back.epoch, instance_id="i") == ConsumerHeartbeatResult(member_id="a", epoch=1)
    # Away again, it is not there by any other epoch than 0.
    one(rig, "a", -2, instance_id="i")
    assert one(rig, "a", 1, instance_id="i").error is E.FENCED_MEMBER_EPOCH


def test_a_static_member_that_comes_back_by_the_same_id_waits_for_what_others_hold_meanwhile() -> None:
    rig = rig_with(t=4)
    one(rig, "a", 0, instance_id="i")
    b = one(rig, "b", 0)
    a = one(rig, "a", 1, instance_id="i")
    a = one(rig, "a", 1, instance_id="i", owned=a.assignment)
    assert one(rig, "b", b.epoch).assignment == parts("t", 2, 3)
    one(rig, "a", -2, instance_id="i")
    rig.topics.set(t=6)
    one(rig, "b", 2, owned=parts("t", 2, 3))
    back = one(rig, "a", 0, instance_id="i")
    assert (back.error, back.epoch) == (E.NONE, group_of(rig).epoch)
    rig.fail_over()
    group_of(rig).validate()
    one(rig, "b", group_of(rig).members["b"].epoch, owned=group_of(rig).members["b"].assigned)
    members = group_of(rig).members
    assert members["a"].assigned | members["b"].assigned == parts("t", *range(6))


def test_a_member_of_the_consumer_protocol_takes_the_name_of_a_classic_one() -> None:
    # A rolling upgrade: the classic client never said -2 (Kafka asks only members of the same kind for it).
    rig = rig_with(t=2)
    one(rig, "n", 0)
    old = rig.join("g", protocols=owning(), instance_id="i")[0]
    new = one(rig, "new", 0, instance_id="i")
    assert (new.error, new.member_id) == (E.NONE, "new")
    assert set(group_of(rig).members) == {"n", "new"}
    assert rig.shard.heartbeat("g", old.member_id, "i", old.generation) is E.FENCED_INSTANCE_ID


def test_silence_and_clinging_end_a_membership() -> None:
    rig = rig_with(t=2)
    one(rig, "a", 0, rebalance_timeout_ms=10_000)
    one(rig, "b", 0)
    one(rig, "a", 1)
    for _ in range(5):
        rig.pass_ms(3_000)
        one(rig, "b", 2)
        beat(rig, "a", 1)
    assert set(group_of(rig).members) == {"b"}
    assert one(rig, "a", 1).error is E.UNKNOWN_MEMBER_ID
    rig.pass_ms(46_000, 1_000)
    assert group_of(rig).members == {}


def test_each_revocation_has_a_rebalance_timeout_of_its_own() -> None:
    rig = rig_with(t=6)
    one(rig, "a", 0)
    one(rig, "b", 0)
    assert one(rig, "a", 1).assignment == parts("t", 0, 1, 2)
    rig.pass_ms(25_000, step_ms=1_000)
    one(rig, "c", 0)
    # It has given up what it was to, and is to give up more.
    assert one(rig, "a", 1, owned=parts("t", 0, 1, 2)).assignment == parts("t", 0, 1)
    rig.pass_ms(25_000, step_ms=1_000)
    assert one(rig, "a", 1).error is E.NONE
    rig.pass_ms(6_000, step_ms=1_000)
    assert one(rig, "a", 1).error is E.UNKNOWN_MEMBER_ID


def test_offsets_are_fenced_by_member_epoch() -> None:
    rig = rig_with(t=1)
    one(rig, "a", 0)
    assert rig.commit("g", "a", 1, {("t", 0): 5}) == [[E.NONE]]
    assert rig.commit("g", "a", 0, {("t", 0): 6}) == [[E.STALE_MEMBER_EPOCH]]
    assert rig.commit("g", "b", 1, {("t", 0): 6}) == [[E.UNKNOWN_MEMBER_ID]]
    assert rig.commit("g", "a", 1, {("t", 0): 6}, version=8) == [[E.UNSUPPORTED_VERSION]]
    assert rig.shard.fetch("g", "a", 1, None)[0] is E.NONE
    assert rig.shard.fetch("g", "a", 2, None)[0] is E.STALE_MEMBER_EPOCH
    assert rig.shard.fetch("g", "z", 1, None)[0] is E.UNKNOWN_MEMBER_ID
    assert rig.offsets("g") == {("t", 0): 5}


def test_a_commit_that_a_heartbeat_has_overtaken_counts_where_the_member_has_its_partitions_still() -> None:
    """KIP-1251: a heartbeat of the background thread raised the epoch while the commit was on its way."""
    rig = rig_with(t=4)
    one(rig, "a", 0)
    one(rig, "b", 0)
    one(rig, "a", 1)
    assert one(rig, "a", 1, owned=parts("t", 0, 1)).epoch == 2
    assert rig.commit("g", "a", 1, {("t", 0): 5, ("t", 1): 5}) == [[E.NONE, E.NONE]]
    assert rig.commit_in((7, 0), "g", {("t", 0): 6}, member_id="a", generation=1) == [[E.NONE]]
    rig.mark(7, commits=True)
    # One partition of another member, or of nobody, refuses the whole.
    stale = E.STALE_MEMBER_EPOCH
    assert rig.commit("g", "a", 1, {("t", 0): 7, ("t", 2): 7}) == [[stale, stale]]
    assert rig.commit("g", "a", 1, {("gone", 0): 7}) == [[stale]]
    refused = rig.commit_in((7, 0), "g", {("t", 2): 7}, member_id="a", generation=1)
    assert refused == [[E.ILLEGAL_GENERATION]]
    assert rig.commit("g", "a", 3, {("t", 0): 7}) == [[stale]]
    # b has had its partitions since epoch 2 and no longer, whatever epoch it says.
    assert one(rig, "b", 2).assignment == parts("t", 2, 3)
    assert one(rig, "b", -1).error is E.NONE
    assert one(rig, "a", 2).assignment == parts("t", 0, 1, 2, 3)
    assert rig.commit("g", "a", 2, {("t", 2): 7}) == [[stale]]
    rig.fail_over()
    assert rig.commit("g", "a", 2, {("t", 2): 7}) == [[stale]]
    assert rig.commit("g", "a", 1, {("t", 0): 8}) == [[E.NONE]]
    assert rig.offsets("g") == {("t", 0): 8, ("t", 1): 5}


def test_a_member_that_was_stored_without_assignment_epochs_commits_in_its_own_epoch() -> None:
    rig = rig_with(t=1)
    one(rig, "a", 0)
    rig.topics.set(t=2)
    assert one(rig, "a", 1).epoch == 2
    for offset, record in enumerate(rig.log.records):
        assert isinstance(record, rec.Record)
        about = rec.read_key(record.key)
        if about is not None and about.kind == rec.CURRENT_MEMBER and record.value is not None:
            before = rec.read_current(record.value)._replace(assigned_since={}, revoking_since={})
            rig.log.records[offset] = rec.Record(record.key, rec.put_current(before))
    rig.fail_over()
    assert rig.commit("g", "a", 1, {("t", 0): 5}) == [[E.STALE_MEMBER_EPOCH]]
    assert rig.commit("g", "a", 2, {("t", 0): 5}) == [[E.NONE]]


def test_a_group_changes_its_kind_while_it_is_empty() -> None:
    rig = rig_with(t=1)
    (classic,) = rig.stable("g", 1)
    rig.commit("g", classic, 1, {("t", 0): 5})
    assert one(rig, "a", 0).error is E.GROUP_ID_NOT_FOUND
    rig.shard.leave("g", [(classic, None)])
    rig.settle()
    assert one(rig, "a", 0).error is E.NONE
    assert rig.join("g", protocol_type="connect")[0].error is E.INCONSISTENT_GROUP_PROTOCOL
    assert [(v.kind, v.state) for v in rig.shard.list_groups()] == [("consumer", "Stable")]
    assert rig.shard.describe("g") is None
    rig.fail_over()
    assert group_of(rig).state == "Stable"
    one(rig, "a", -1)
    assert rig.offsets("g") == {("t", 0): 5}
    assert rig.join("g", "ghost")[0].error is E.UNKNOWN_MEMBER_ID
    rig.stable("g", 1)
    rig.fail_over()
    assert [(v.kind, v.state) for v in rig.shard.list_groups()] == [("classic", "Stable")]
    assert rig.offsets("g") == {("t", 0): 5}


@pytest.mark.parametrize("moves", [False, True])
def test_offsets_of_a_group_count_from_its_last_member_on(moves: bool) -> None:
    """A member that reads a quiet topic commits nothing for weeks: its restart is not the end of its offsets."""
    day_ms = 24 * 60 * 60 * 1000
    rig = rig_with(t=1)
    one(rig, "a", 0)
    assert rig.commit("g", "a", 1, {("t", 0): 5}) == [[E.NONE]]
    rig.clock.now_ms += 30 * day_ms
    one(rig, "a", -1)
    if moves:
        rig.clock.now_ms += day_ms
        rig.fail_over()
    rig.shard.expire()
    rig.settle()
    assert rig.offsets("g") == {("t", 0): 5}
    rig.clock.now_ms += 6 * day_ms
    rig.shard.expire()
    rig.settle()
    assert rig.offsets("g") == ({} if moves else {("t", 0): 5})
    rig.clock.now_ms += day_ms
    rig.shard.expire()
    rig.settle()
    assert (rig.shard.groups, rig.shard.offsets) == ({}, {})


def test_an_empty_group_is_deleted_with_all_that_it_had() -> None:
    rig = rig_with(t=1)
    one(rig, "a", 0)
    rig.commit("g", "a", 1, {("t", 0): 5})
    codes: list[ErrorCode] = []
    rig.shard.delete_group("g", codes.append)
    one(rig, "a", -1)
    rig.shard.delete_group("g", codes.append)
    rig.settle()
    assert codes == [E.NON_EMPTY_GROUP, E.NONE]
    rig.fail_over()
    assert (rig.shard.groups, rig.shard.offsets) == ({}, {})


def test_a_refused_write_leaves_nothing_behind() -> None:
    rig = rig_with(t=2)
    one(rig, "a", 0)
    before = group_of(rig)
    rig.log.refuse = E.NOT_ENOUGH_REPLICAS
    assert one(rig, "b", 0).error is E.COORDINATOR_NOT_AVAILABLE
    assert group_of(rig) is before
    rig.pass_ms(46_000, 1_000)
    assert group_of(rig) is before
    rig.log.refuse = None
    rig.pass_ms(2_000)
    assert group_of(rig).members == {}


def test_a_heartbeat_without_news_writes_nothing() -> None:
    rig = rig_with(t=2)
    one(rig, "a", 0)
    count = len(rig.log.records)
    for _ in range(5):
        one(rig, "a", 1)
    rig.topics.set(t=2, other=5)
    one(rig, "a", 1)
    assert len(rig.log.records) == count


def owning(*owned: tuple[str, int], topics: tuple[str, ...] = ("t",)) -> tuple[tuple[str, bytes], ...]:
    """Protocols of a cooperative classic member that has these partitions (subscription version 1)."""
    places: dict[str, list[int]] = {}
    for topic, partition in owned:
        places.setdefault(topic, []).append(partition)
    data = b"\0\1" + subscription(*topics)[2:] + put_assignment(1, places)[2:-4]
    return (("cooperative-sticky", data),)


def placed(assignment: bytes) -> frozenset[tuple[str, int]]:
    found = read_assignment(assignment)
    assert found is not None
    return found


def classic_alone(rig: Rig, count: int) -> str:
    """A classic member that owns all `count` partitions of topic t."""
    member_id, (joined,) = rig.enter("g", protocols=owning())
    mine = put_assignment(1, {"t": range(count)})
    rig.sync("g", member_id, joined.generation, [(member_id, mine)])
    return member_id


def test_a_classic_group_is_upgraded_while_it_works() -> None:
    rig = rig_with(t=4)
    old = classic_alone(rig, 4)
    assert rig.heartbeat("g", old, 1) is E.NONE
    new = one(rig, "n", 0)
    assert (new.error, new.epoch, new.assignment) == (E.NONE, 2, NOTHING)
    assert [(v.kind, v.state) for v in rig.shard.list_groups()] == [("consumer", "Reconciling")]
    rig.fail_over()
    # The classic member hears of it, joins, and is told what it keeps.
    everything = tuple(("t", n) for n in range(4))
    assert rig.heartbeat("g", old, 1) is E.REBALANCE_IN_PROGRESS
    assert rig.commit("g", old, 1, {("t", 0): 7}) == [[E.NONE]]
    (joined,) = rig.join("g", old, protocols=owning(*everything))
    assert (joined.error, joined.generation, joined.leader, joined.members) == (E.NONE, 1, "", ())
    (synced,) = rig.sync("g", old, 1, protocol="cooperative-sticky", protocol_type="consumer")
    assert placed(synced.assignment) == {("t", 0), ("t", 1)}
    assert one(rig, "n", 2).assignment is None
    # It gave the others up: joins again to say so, and is done.
    assert rig.heartbeat("g", old, 1) is E.REBALANCE_IN_PROGRESS
    (joined,) = rig.join("g", old, protocols=owning(("t", 0), ("t", 1)))
    assert joined.generation == 2
    assert placed(rig.sync("g", old, 2)[0].assignment) == {("t", 0), ("t", 1)}
    assert one(rig, "n", 2).assignment == parts("t", 2, 3)
    assert rig.heartbeat("g", old, 2) is E.NONE
    assert group_of(rig).state == "Stable"
    # What it has given up it does not commit any more; what it had in that generation, and has, it does.
    assert rig.commit("g", old, 1, {("t", 2): 8}) == [[E.ILLEGAL_GENERATION]]
    assert rig.commit("g", old, 1, {("t", 1): 8}) == [[E.NONE]]
    assert rig.commit("g", old, 3, {("t", 1): 9}) == [[E.ILLEGAL_GENERATION]]
    assert rig.heartbeat("g", old, 1) is E.ILLEGAL_GENERATION
    assert rig.sync("g", old, 1)[0].error is E.ILLEGAL_GENERATION
    assert rig.sync("g", old, 2, protocol="range")[0].error is E.INCONSISTENT_GROUP_PROTOCOL
    assert rig.shard.leave("g", [(old, None), ("who", None)]) == (E.NONE, [E.NONE, E.UNKNOWN_MEMBER_ID])
    rig.settle()
    assert one(rig, "n", 2).assignment == parts("t", 0, 1, 2, 3)
    assert rig.offsets("g") == {("t", 0): 7, ("t", 1): 8}


def test_who_waits_in_the_classic_group_joins_again() -> None:
    rig = rig_with(t=2)
    classic_alone(rig, 2)
    _, waiting = rig.enter("g", protocols=owning())
    assert waiting == []
    assert one(rig, "n", 0).error is E.NONE
    assert waiting[0].error is E.REBALANCE_IN_PROGRESS


def test_an_upgrade_that_is_refused_leaves_the_classic_group_alone() -> None:
    rig = rig_with(t=2)
    old = classic_alone(rig, 2)
    rig.log.refuse = E.NOT_ENOUGH_REPLICAS
    assert one(rig, "n", 0).error is E.COORDINATOR_NOT_AVAILABLE
    rig.log.refuse = None
    assert rig.heartbeat("g", old, 1) is E.NONE
    assert rig.shard.list_groups()[0].kind == "classic"


def test_classic_members_of_a_consumer_group_have_sessions_and_deadlines() -> None:
    rig = rig_with(t=2)
    one(rig, "n", 0)
    a, (joined,) = rig.enter("g", protocols=owning(), rebalance_timeout_ms=20_000)
    assert joined.generation == 2
    rig.pass_ms(11_000)
    one(rig, "n", 1)
    assert set(group_of(rig).members) == {"n"}
    b, _ = rig.enter("g", protocols=owning(), rebalance_timeout_ms=20_000)
    assert a != b
    generation = group_of(rig).members[b].epoch
    rig.topics.set(t=3)
    for _ in range(5):
        # It lives, but never joins again.
        rig.heartbeat("g", b, generation)
        one(rig, "n", group_of(rig).members["n"].epoch, owned=group_of(rig).members["n"].assigned)
        rig.pass_ms(5_000)
    assert set(group_of(rig).members) == {"n"}
    static = rig.join("g", protocols=owning(), instance_id="i")[0]
    again = rig.join("g", protocols=owning(), instance_id="i")[0]
    assert (again.error, again.member_id != static.member_id) == (E.NONE, True)
    assert rig.shard.heartbeat("g", static.member_id, "i", static.generation) is E.FENCED_INSTANCE_ID
    assert rig.shard.leave("g", [("", "i"), ("", "j")])[1] == [E.NONE, E.UNKNOWN_MEMBER_ID]


def test_a_classic_static_member_that_was_replaced_does_not_take_its_name_back() -> None:
    rig = rig_with(t=2)
    one(rig, "n", 0)
    old = rig.join("g", protocols=owning(), instance_id="i")[0]
    new = rig.join("g", protocols=owning(), instance_id="i")[0]
    # It was paused, and its JoinGroup comes before any Heartbeat of it.
    again = rig.join("g", old.member_id, protocols=owning(), instance_id="i")[0]
    assert again.error is E.FENCED_INSTANCE_ID
    assert group_of(rig).static == {"i": new.member_id}
    assert rig.join("g", "who", protocols=owning(), instance_id="j")[0].error is E.UNKNOWN_MEMBER_ID


def test_topics_that_changed_while_nobody_coordinated_are_noticed() -> None:
    rig = rig_with(t=2, u=1)
    one(rig, "a", 0, topics=("t", "u"))
    rig.topics.set(t=4, u=1)
    rig.fail_over()
    assert one(rig, "a", 1).assignment == parts("t", 0, 1, 2, 3) | parts("u", 0)
    assert group_of(rig).epoch == 2
    # A new coordinator that finds topics as they were has nothing to change.
    rig.fail_over()
    assert one(rig, "a", 2) == ConsumerHeartbeatResult(member_id="a", epoch=2)
    assert group_of(rig).epoch == 2


def test_a_new_coordinator_knows_at_once_what_members_read() -> None:
    rig = rig_with(t=2)
    one(rig, "a", 0, topics=(), regex="t|u")
    rig.commit("g", "a", 1, {("t", 0): 1})
    rig.topics.set(t=2, u=1)
    rig.fail_over()
    answers: list[Any] = []
    rig.shard.delete_offsets("g", [("t", 0)], lambda *a: answers.append(a))
    assert answers == [(E.NONE, [E.GROUP_SUBSCRIBED_TO_TOPIC])]
    assert one(rig, "a", 1).assignment == parts("t", 0, 1) | parts("u", 0)


class ClassicMember:
    """A cooperative classic client that behaves."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.member_id = ""
        self.epoch = -1
        self.owned: Parts = NOTHING
        self.state = "out"
        self.answers: list[Any] = []

    def step(self, rig: Rig, rng: random.Random) -> None:
        if self.state == "out":
            owned = [(rig.topics.topic_name(t) or "gone", p) for t, p in self.owned]
            self.answers = rig.join("g", self.member_id, protocols=owning(*owned, topics=("t", "u")))
            self.state = "joining"
        elif self.state in ("joining", "syncing") and self.answers:
            answer = self.answers[0]
            if answer.error is E.MEMBER_ID_REQUIRED:
                self.member_id, self.state = answer.member_id, "out"
            elif answer.error:
                self.failed(answer.error)
            elif self.state == "joining":
                self.member_id, self.epoch = answer.member_id, answer.generation
                given = []
                if answer.members:
                    ids = [m[0] for m in answer.members]
                    for i, each in enumerate(ids):
                        mine = {
                            t: [p for p in range(n) if p % len(ids) == i]
                            for t, n in rig.topics.counts.items()
                        }
                        given.append((each, put_assignment(1, {t: mine[t] for t in ("t", "u") if t in mine})))
                self.answers = rig.sync("g", self.member_id, self.epoch, given)
                self.state = "syncing"
            else:
                self.owned = frozenset((FakeTopics.id_of(t), p) for t, p in placed(answer.assignment))
                self.state = "in"
        elif self.state == "in":
            error = rig.heartbeat("g", self.member_id, self.epoch)
            if error:
                self.failed(error)

    def failed(self, error: ErrorCode) -> None:
        if error is not E.NOT_COORDINATOR or self.state != "in":
            self.state = "out"
        if error in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION):
            self.owned = NOTHING
            if error is E.UNKNOWN_MEMBER_ID:
                self.member_id = ""


class Member:
    """A client that behaves: it gives up what it must, then says so."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.member_id = f"m{number}"
        self.epoch = 0
        self.owned: Parts = NOTHING
        self.told: Parts | None = None
        self.waiting: list[ConsumerHeartbeatResult] | None = None
        self.topics = tuple(rng.sample(("t", "u", "v"), rng.randint(1, 3)))
        self.assignor = rng.choice((None, "range", "uniform"))

    def step(self, rig: Rig, rng: random.Random) -> None:
        if self.waiting is None:
            values: dict[str, Any] = {"topics": self.topics, "assignor": self.assignor}
            if self.epoch and (self.told != self.owned or rng.random() < 0.2):
                values = {"owned": self.owned, "topics": self.topics, "rebalance_timeout_ms": 30_000}
            elif self.epoch:
                values = {}
            if self.epoch == 0:
                self.owned = NOTHING
            self.told = self.owned
            self.waiting = beat(rig, self.member_id, self.epoch, **values)
        if not self.waiting:
            return
        (answer,), self.waiting = self.waiting, None
        if answer.error in (E.UNKNOWN_MEMBER_ID, E.FENCED_MEMBER_EPOCH, E.GROUP_ID_NOT_FOUND):
            self.epoch, self.owned, self.told = 0, NOTHING, None
        elif not answer.error:
            self.epoch = answer.epoch
            if answer.assignment is not None:
                self.owned = answer.assignment


def live(seed: int) -> None:
    """Members, topics, sessions and leaders come and go: nothing is ever owned twice, and in the end
    everything that is read has one owner."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    rig = Rig(GroupSettings(), hold=True)
    rig.topics.set(t=3, u=2)
    members: list[Member | ClassicMember] = []
    mixed = rng.random() < 0.6
    count = 0
    for _ in range(600):
        dice = rng.random()
        if dice < 0.6 and members:
            rng.choice(members).step(rig, rng)
        elif dice < 0.8:
            rig.log.advance(rng.randint(rig.log.committed, len(rig.log.records)))
        elif dice < 0.9:
            rig.pass_ms(rng.choice((100, 2_000)), 500)
        elif dice < 0.94 and len(members) < 5:
            count += 1
            members.append(ClassicMember(count) if mixed and rng.random() < 0.5 else Member(count, rng))
        elif dice < 0.96 and members:
            gone = members.pop(rng.randrange(len(members)))
            if rng.random() < 0.5:
                if isinstance(gone, ClassicMember):
                    rig.shard.leave("g", [(gone.member_id, None)] if gone.member_id else [])
                elif gone.epoch > 0:
                    beat(rig, gone.member_id, -1)
        elif dice < 0.98:
            rig.topics.set(
                t=rng.randint(1, 4), u=rng.randint(1, 3), **({"v": 2} if rng.random() < 0.5 else {})
            )
        else:
            rig.fail_over(rng.randint(rig.log.committed, len(rig.log.records)))
        rig.shard.validate()
    rig.log.hold = False
    rig.settle()
    for _ in range(60):
        for member in members:
            member.step(rig, rng)
            rig.settle()
        rig.pass_ms(3_000, 1_000)
    if any(isinstance(m, Member) for m in members):
        group = group_of(rig)
        assert group.state == "Stable"
        assert {m.member_id: m.owned for m in members} == {k: m.assigned for k, m in group.members.items()}
        counts = rig.topics.counts
        wanted = {
            (FakeTopics.id_of(t), p)
            for t in {t for m in members for t in getattr(m, "topics", ("t", "u")) if t in counts}
            for p in range(counts[t])
        }
        assert {p for m in members for p in m.owned} == wanted
        before = {k: (m.epoch, m.assigned) for k, m in group.members.items()}
        rig.fail_over()
        assert {k: (m.epoch, m.assigned) for k, m in group_of(rig).members.items()} == before


@pytest.mark.parametrize("seed", [*range(20), 1191])
def test_random_lives(seed: int) -> None:
    live(seed)


def test_random_lives_that_nobody_has_seen_yet() -> None:
    for seed in fresh_seeds(5):
        live(seed)


def test_nobody_is_told_what_was_written_in_vain() -> None:
    """Leadership is lost a moment before the shard is closed: in that moment it still has what never came to be."""
    rig = Rig(hold=True)
    rig.topics.set(t=2)
    first = beat(rig, "a", 0)
    rig.log.lose(0)
    assert [answer.error for answer in first] == [E.NOT_COORDINATOR]
    again = one(rig, "a", 0)
    assert (again.error, again.assignment) == (E.NOT_COORDINATOR, None)
