"""Offsets that are committed in transactions: who may, when they count, what they hold up; then random histories
against a model that knows the log alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_storage_node.groups import records as rec
from penstock_storage_node.groups.consumer.group import NOTHING
from penstock_storage_node.groups.consumer.protocol import ConsumerHeartbeat, ConsumerHeartbeatResult
from penstock_storage_node.groups.offsets import OffsetStore
from penstock_storage_node.groups.transactional_offsets import TransactionalOffsets
from penstock_storage_node.settings import GroupSettings
from unit.storage_node.groups.group_rig import FakeMarker, Open, Rig, fresh_seeds

E = ErrorCode
DAY_MS = 24 * 60 * 60 * 1000
P, Q = (7, 0), (8, 0)
"""Producers: id, epoch."""


def consumer_member(rig: Rig) -> int:
    """Member `a` of consumer group `g`; its epoch."""
    answers: list[ConsumerHeartbeatResult] = []
    joins = ConsumerHeartbeat("g", "a", 0, rebalance_timeout_ms=30_000, topics=("t",), owned=NOTHING)
    rig.shard.consumer_heartbeat(joins, answers.append)
    rig.settle()
    return answers[0].epoch


# -- the end of a transaction ----------------------------------------------------------------------


def test_an_offset_counts_once_the_commit_marker_is_safe() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1})
    assert rig.commit_in(P, "g", {("t", 0): 5, ("t", 1): 6}) == [[E.NONE, E.NONE]]
    assert rig.offsets("g") == {("t", 0): 1}
    rig.log.hold = True
    rig.mark(7, commits=True)
    assert rig.offsets("g") == {("t", 0): 1}
    assert rig.stable_offsets("g", ("t", 0)) == [(E.NONE, {}, {("t", 0)})]
    rig.log.advance()
    assert rig.offsets("g") == {("t", 0): 5, ("t", 1): 6}
    assert len(rig.shard.transactional_offsets) == 0
    rig.fail_over()
    assert rig.offsets("g") == {("t", 0): 5, ("t", 1): 6}


def test_an_aborted_offset_never_was() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1})
    rig.commit_in(P, "g", {("t", 0): 5})
    rig.commit_in(P, "new", {("t", 0): 5})
    assert rig.shard.describe("new") is not None
    rig.mark(7, commits=False)
    assert rig.offsets("g") == {("t", 0): 1}
    # Nothing but that request ever made it.
    assert list(rig.shard.groups) == ["g"]
    rig.fail_over()
    assert (rig.offsets("g"), list(rig.shard.groups)) == ({("t", 0): 1}, ["g"])


def test_a_marker_ends_the_transactions_of_its_own_producer() -> None:
    rig = Rig()
    rig.commit_in(P, "g", {("t", 0): 5})
    rig.commit_in(Q, "g", {("t", 0): 6, ("t", 1): 6})
    rig.mark(7, commits=True)
    assert rig.offsets("g") == {("t", 0): 5}
    assert rig.stable_offsets("g") == [(E.NONE, {}, {("t", 0)})]
    rig.mark(9, commits=True)  # of a producer that committed nothing here
    rig.mark(8, commits=True)
    assert rig.offsets("g") == {("t", 0): 6, ("t", 1): 6}


def test_the_later_commit_of_a_transaction_takes_the_place_of_the_earlier_one() -> None:
    rig = Rig()
    rig.commit_in(P, "g", {("t", 0): 5, ("t", 1): 5})
    rig.commit_in(P, "g", {("t", 0): 6})
    rig.mark(7, commits=True)
    assert rig.offsets("g") == {("t", 0): 6, ("t", 1): 5}


def test_an_offset_is_put_in_place_by_the_order_of_the_log() -> None:
    """Compaction keeps the last record of a key, whenever its transaction ended."""
    rig = Rig()
    rig.commit_in(P, "g", {("t", 0): 5})
    rig.commit("g", "", -1, {("t", 0): 9})
    rig.mark(7, commits=True)
    assert rig.offsets("g") == {("t", 0): 9}
    rig.commit_in(P, "g", {("t", 1): 1})
    rig.commit_in(Q, "g", {("t", 1): 2})
    rig.mark(8, commits=True)
    rig.mark(7, commits=True)
    assert rig.offsets("g") == {("t", 0): 9, ("t", 1): 2}
    rig.fail_over()
    assert rig.offsets("g") == {("t", 0): 9, ("t", 1): 2}


def test_a_marker_leaves_the_next_transaction_of_its_producer_alone() -> None:
    """It is told once it is safe: the next transaction may have begun before that."""
    rig = Rig()
    rig.log.hold = True
    rig.commit_in(P, "g", {("t", 0): 5})
    rig.mark(7, commits=True)
    rig.commit_in((7, 1), "g", {("t", 0): 6})
    rig.log.advance(2)
    assert rig.offsets("g") == {("t", 0): 5}
    assert rig.stable_offsets("g", ("t", 0))[0][2] == {("t", 0)}
    rig.log.advance()
    rig.mark(7, commits=False)
    rig.log.advance()
    assert rig.offsets("g") == {("t", 0): 5}


def test_open_transactions_outlive_their_coordinator() -> None:
    rig = Rig()
    rig.commit_in(P, "g", {("t", 0): 5})
    rig.fail_over()
    assert rig.stable_offsets("g", ("t", 0)) == [(E.NONE, {}, {("t", 0)})]
    rig.commit_in(P, "g", {("t", 1): 6})
    rig.mark(7, commits=True)
    assert rig.offsets("g") == {("t", 0): 5, ("t", 1): 6}


def test_a_marker_that_comes_while_the_log_is_read_waits_for_the_end_of_that() -> None:
    rig = Rig()
    rig.commit_in(P, "g", {("t", 0): 5})
    rig.log.hold = True
    shard = rig.make()
    rig.log.append_marker(FakeMarker(7, commits=True), lambda _: None)
    shard.end_transaction(7, 1, commits=True)
    record = rig.log.records[0]
    assert isinstance(record, rec.Record)
    shard.replay(record.key, record.value, 0, 7)
    shard.resume()
    assert shard.fetch("g", None, -1, [("t", 0)])[1][0][1] is not None
    assert len(shard.transactional_offsets) == 0


def test_a_commit_that_is_refused_waits_for_nothing() -> None:
    rig = Rig()
    for refusal, told in (
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
        (E.MESSAGE_TOO_LARGE, E.INVALID_COMMIT_OFFSET_SIZE),
    ):
        rig.log.refuse = refusal
        assert rig.commit_in(P, "g", {("t", 0): 1}) == [[told]]
    rig.log.refuse = None
    rig.log.epochs[7] = 3
    assert rig.commit_in((7, 2), "g", {("t", 0): 1}) == [[E.INVALID_PRODUCER_EPOCH]]
    assert (rig.shard.groups, len(rig.shard.transactional_offsets)) == ({}, 0)
    assert rig.stable_offsets("g", ("t", 0)) == [(E.NONE, {}, set())]


# -- who may ----------------------------------------------------------------------------------------


def test_members_of_a_classic_group_are_held_to_their_generation() -> None:
    rig = Rig()
    assert rig.commit_in(P, "g", {("t", 0): 1}, member_id="x", generation=1) == [[E.ILLEGAL_GENERATION]]
    a = rig.join("g", instance_id="i")[0].member_id
    item = {("t", 0): 1}
    for values, code in (
        ({}, E.NONE),
        ({"member_id": a, "generation": 1}, E.NONE),
        ({"member_id": a, "generation": 1, "instance_id": "i"}, E.NONE),
        ({"member_id": a, "generation": 0}, E.ILLEGAL_GENERATION),
        ({"member_id": a, "generation": 2}, E.ILLEGAL_GENERATION),
        ({"member_id": a}, E.ILLEGAL_GENERATION),
        ({"member_id": "x", "generation": 1}, E.UNKNOWN_MEMBER_ID),
        ({"generation": 1}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "x", "generation": 1, "instance_id": "i"}, E.FENCED_INSTANCE_ID),
        ({"member_id": a, "generation": 1, "instance_id": "j"}, E.UNKNOWN_MEMBER_ID),
    ):
        assert rig.commit_in(P, "g", item, **values) == [[code]], values


def test_a_group_that_waits_for_its_assignment_takes_transactional_commits() -> None:
    rig = Rig()
    (a,) = rig.stable("g", 1)
    rig.enter("g")
    rig.join("g", a)
    group = rig.shard.groups["g"]
    assert str(group.state) == "CompletingRebalance"
    assert rig.commit("g", a, 2, {("t", 0): 1}) == [[E.REBALANCE_IN_PROGRESS]]
    assert rig.commit_in(P, "g", {("t", 0): 1}, member_id=a, generation=2) == [[E.NONE]]
    assert rig.commit_in(P, "g", {("t", 0): 1}) == [[E.NONE]]


def test_members_of_a_consumer_group_are_held_to_their_epoch() -> None:
    rig = Rig()
    rig.topics.set(t=1)
    epoch = consumer_member(rig)
    item = {("t", 0): 1}
    for values, code in (
        ({}, E.NONE),
        ({"member_id": "a", "generation": epoch}, E.NONE),
        ({"member_id": "a", "generation": epoch - 1}, E.ILLEGAL_GENERATION),
        ({"member_id": "a"}, E.ILLEGAL_GENERATION),
        ({"member_id": "b", "generation": epoch}, E.UNKNOWN_MEMBER_ID),
        ({"generation": epoch}, E.UNKNOWN_MEMBER_ID),
    ):
        assert rig.commit_in(P, "g", item, **values) == [[code]], values


def test_a_transactional_commit_is_no_sign_of_life() -> None:
    rig = Rig()
    (a,) = rig.stable("g", 1)
    for _ in range(2):
        rig.pass_ms(6_000)
        rig.commit_in(P, "g", {("t", 0): 1}, member_id=a, generation=1)
    assert rig.heartbeat("g", a, 1) is E.UNKNOWN_MEMBER_ID


def test_too_much_metadata_fails_alone() -> None:
    from penstock_storage_node.groups.offsets import CommitRequest, NewOffset
    from penstock_storage_node.groups.store import InTransaction

    rig = Rig(GroupSettings(offset_metadata_bytes_max=0))
    answers: list[object] = []
    items = [NewOffset("t", 0, 4, -1, "x"), NewOffset("t", 1, 4, -1, None)]
    rig.shard.commit(
        CommitRequest("g", "", None, -1, items, transaction=InTransaction(*P, Open())), answers.append
    )
    rig.settle()
    rig.mark(7, commits=True)
    assert answers == [[E.OFFSET_METADATA_TOO_LARGE, E.NONE]]
    assert rig.offsets("g") == {("t", 1): 4}


# -- stable offsets ----------------------------------------------------------------------------------


def test_a_pending_offset_is_unstable_from_its_append_on() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1, ("t", 1): 1})
    rig.log.hold = True
    rig.commit_in(P, "g", {("t", 0): 5})
    answer = (E.NONE, {("t", 1): 1}, {("t", 0)})
    assert rig.stable_offsets("g", ("t", 0), ("t", 1)) == [answer]
    assert rig.stable_offsets("g") == [answer]
    assert rig.stable_offsets("other", ("t", 0)) == [(E.NONE, {}, set())]
    assert rig.offsets("g") == {("t", 0): 1, ("t", 1): 1}


def test_a_stable_answer_waits_for_commits_that_were_written_before() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1, ("t", 1): 1})
    rig.log.hold = True
    rig.commit("g", "", -1, {("t", 0): 2})
    waits = rig.stable_offsets("g", ("t", 0))
    every = rig.stable_offsets("g")
    assert (waits, every) == ([], [])
    assert rig.stable_offsets("g", ("t", 1)) == [(E.NONE, {("t", 1): 1}, set())]
    rig.log.advance()
    assert waits == [(E.NONE, {("t", 0): 2}, set())]
    assert every == [(E.NONE, {("t", 0): 2, ("t", 1): 1}, set())]
    rig.commit("g", "", -1, {("t", 0): 3})
    lost = rig.stable_offsets("g", ("t", 0))
    rig.log.lose(rig.log.committed)
    assert lost == [(E.NOT_COORDINATOR, {}, set())]


def test_a_node_in_doubt_tells_no_stable_offsets_before_a_write_of_its_own_is_safe() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1})
    rig.log.hold = True
    asked = rig.stable_offsets("g", ("t", 0), in_doubt=True)
    assert (asked, rig.stable_offsets("g", ("t", 0))) == ([], [(E.NONE, {("t", 0): 1}, set())])
    rig.log.advance()
    assert asked == [(E.NONE, {("t", 0): 1}, set())]
    deposed = rig.stable_offsets("g", ("t", 0), in_doubt=True)
    rig.log.lose(rig.log.committed)
    assert deposed == [(E.NOT_COORDINATOR, {}, set())]


def test_what_a_node_in_doubt_writes_changes_nothing() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1})
    rig.commit_in(P, "g", {("t", 1): 5})
    rig.stable_offsets("nobody", in_doubt=True)
    rig.settle()
    rig.fail_over()
    assert (rig.offsets("g"), set(rig.shard.groups)) == ({("t", 0): 1}, {"g"})
    assert rig.stable_offsets("g", ("t", 0), ("t", 1)) == [(E.NONE, {("t", 0): 1}, {("t", 1)})]


# -- expiry and deletion beside them -------------------------------------------------------------------


def test_pending_offsets_keep_what_they_are_about() -> None:
    rig = Rig()
    rig.commit("g", "", -1, {("t", 0): 1, ("t", 1): 1})
    rig.commit_in(P, "g", {("t", 0): 5})
    rig.commit_in(P, "h", {("t", 0): 5})
    rig.clock.now_ms += 8 * DAY_MS
    rig.shard.expire()
    rig.settle()
    assert rig.offsets("g") == {("t", 0): 1}
    assert set(rig.shard.groups) == {"g", "h"}
    rig.mark(7, commits=True)
    assert (rig.offsets("g"), rig.offsets("h")) == ({("t", 0): 5}, {("t", 0): 5})
    # Their time counts from the commit.
    rig.shard.expire()
    rig.settle()
    assert rig.shard.groups == {}


def test_deleting_offsets_takes_pending_ones_too() -> None:
    rig = Rig()
    rig.commit_in(P, "g", {("t", 0): 5, ("t", 1): 5})
    answers: list[object] = []
    rig.shard.delete_offsets("g", [("t", 0), ("t", 2)], lambda *a: answers.append(a))
    rig.settle()
    assert answers == [(E.NONE, [E.NONE, E.NONE])]
    assert rig.stable_offsets("g", ("t", 0), ("t", 1)) == [(E.NONE, {}, {("t", 1)})]
    rig.commit_in(P, "g", {("t", 2): 7})
    rig.mark(7, commits=True)
    assert rig.offsets("g") == {("t", 1): 5, ("t", 2): 7}
    rig.fail_over()
    assert rig.offsets("g") == {("t", 1): 5, ("t", 2): 7}


def test_a_tombstone_takes_nothing_that_was_written_behind_it() -> None:
    rig = Rig()
    rig.commit_in(P, "g", {("t", 0): 5})
    rig.log.hold = True
    codes: list[ErrorCode] = []
    rig.shard.delete_group("g", codes.append)
    assert rig.commit_in(P, "g", {("t", 0): 6}) == []
    rig.log.advance()
    assert codes == [E.NONE]
    rig.mark(7, commits=True)
    rig.log.advance()
    assert rig.offsets("g") == {("t", 0): 6}


def test_deleting_a_group_or_a_topic_takes_pending_offsets_too() -> None:
    rig = Rig()
    codes: list[ErrorCode] = []
    rig.commit_in(P, "g", {("t", 0): 5})
    rig.commit_in(P, "h", {("t", 0): 5, ("u", 0): 5})
    rig.shard.delete_group("g", codes.append)
    rig.settle()
    assert codes == [E.NONE]
    rig.shard.forget_topics(frozenset({"u"}))
    rig.settle()
    rig.mark(7, commits=True)
    assert (rig.offsets("g"), rig.offsets("h")) == ({}, {("t", 0): 5})
    assert list(rig.shard.groups) == ["h"]
    rig.fail_over()
    assert (rig.offsets("g"), rig.offsets("h")) == ({}, {("t", 0): 5})


# -- random histories --------------------------------------------------------------------------------

Place = tuple[str, str, int]
Entry = tuple[int, rec.Record | FakeMarker, int]
"""Offset, record or marker, and the producer's id."""


class Truth:
    """What a log says. An offset is what the last record of its key says, of those that count: plain ones, tombstones,
    and those of transactions that were committed."""

    def __init__(self, entries: list[Entry], end: int) -> None:
        self.committed: dict[Place, int] = {}
        self.unstable: set[Place] = set()
        self.fates: dict[int, bool | None] = {}
        """By offset of a transaction's record: whether it was committed; None while that is not safe."""
        ends: dict[int, list[tuple[int, bool]]] = {}
        for offset, record, _ in entries:
            if isinstance(record, FakeMarker) and offset < end:
                ends.setdefault(record.producer_id, []).append((offset, record.commits))
        tombstones: dict[Place, int] = {}
        for offset, record, producer_id in entries:
            place = place_of(record)
            if place is None:
                continue
            assert isinstance(record, rec.Record)
            counts: bool | None = offset < end
            if producer_id >= 0:
                later = (commits for at, commits in ends.get(producer_id, ()) if at > offset)
                counts = self.fates[offset] = next(later, None)
                if counts is None:
                    self.unstable.add(place)
            if not counts:
                continue
            if record.value is None:
                self.committed.pop(place, None)
                tombstones[place] = offset
            else:
                self.committed[place] = rec.read_offset(record.value).offset
        # A tombstone speaks for pending records ahead of it as well.
        self.unstable = {
            place
            for offset, record, producer_id in entries
            if (place := place_of(record)) in self.unstable
            and place is not None
            and producer_id >= 0
            and self.fates[offset] is None
            and offset > tombstones.get(place, -1)
        }


def place_of(record: rec.Record | FakeMarker) -> Place | None:
    if isinstance(record, FakeMarker):
        return None
    key = rec.read_key(record.key)
    return (key.group_id, key.topic, key.partition) if key and key.kind == rec.OFFSET_COMMIT else None


def compacted(entries: list[Entry], rng: random.Random) -> list[Entry]:
    """As the cleaner leaves it, up to the last stable offset or to somewhere below."""
    truth = Truth(entries, len(entries))
    undecided = [offset for offset, fate in truth.fates.items() if fate is None]
    bound = rng.randint(0, min([len(entries), *undecided]))
    last: dict[bytes, int] = {}
    for offset, record, _ in entries:
        if isinstance(record, rec.Record) and truth.fates.get(offset, True):
            last[record.key] = max(offset, last.get(record.key, -1)) if offset < bound else offset
    kept = [
        (offset, record, producer_id)
        for offset, record, producer_id in entries
        if offset >= bound
        or isinstance(record, FakeMarker)
        or (truth.fates.get(offset, True) and last[record.key] <= offset)
    ]
    # A marker may go once nothing of its transaction is left.
    out: list[Entry] = []
    for at, (offset, record, producer_id) in enumerate(kept):
        if isinstance(record, FakeMarker) and offset < bound and rng.random() < 0.5:
            before = [each for each in kept[:at] if each[2] == producer_id]
            if not before or isinstance(before[-1][1], FakeMarker):
                continue
        out.append((offset, record, producer_id))
    return out


GROUPS, TOPICS, PRODUCERS = ("g", "h"), ("t", "u"), (1, 2, 3)


WORLDS: list[World] = []
"""The newest is the one that runs."""


class World:
    """Random requests to one shard, and what its log says of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(hold=True)
        self.rig.topics.set(t=2, u=2)
        self.offset = 0
        WORLDS.append(self)

    def entries(self) -> list[Entry]:
        log = self.rig.log
        return list(zip(range(len(log.records)), log.records, log.producers, strict=True))

    def items(self) -> dict[tuple[str, int], int]:
        keys = [(topic, partition) for topic in TOPICS for partition in range(2)]
        chosen = self.rng.sample(keys, self.rng.randint(1, 3))
        self.offset += 1
        return dict.fromkeys(chosen, self.offset)

    def step(self) -> None:
        rng, rig = self.rng, self.rig
        group, producer_id = rng.choice(GROUPS), rng.choice(PRODUCERS)
        rig.log.refuse = E.NOT_ENOUGH_REPLICAS if rng.random() < 0.05 else None
        action = rng.random()
        if action < 0.2:
            rig.commit(group, "", -1, self.items())
        elif action < 0.5:
            rig.commit_in((producer_id, 0), group, self.items())
        elif action < 0.65:
            rig.log.refuse = None
            rig.mark(producer_id, commits=rng.random() < 0.6)
        elif action < 0.7:
            rig.shard.delete_offsets(group, list(self.items()), lambda *_: None)
        elif action < 0.73:
            rig.shard.delete_group(group, lambda _: None)
        elif action < 0.75:
            rig.shard.forget_topics(frozenset({rng.choice(TOPICS)}))
        elif action < 0.78:
            rig.clock.now_ms += rng.randint(1, 5) * DAY_MS
            rig.shard.expire()
        elif action < 0.95:
            rig.log.advance(rig.log.whole(rng.randint(rig.log.committed, len(rig.log.records))))
        else:
            rig.log.refuse = None
            rig.fail_over(rng.randint(rig.log.committed, len(rig.log.records)))
        self.check()

    def check(self) -> None:
        rig = self.rig
        truth = Truth(self.entries(), rig.log.committed)
        assert _committed(rig) == truth.committed
        unstable = set()
        for group in GROUPS:
            for topic in TOPICS:
                for partition in range(2):
                    pending = rig.shard.pending_commits.get(group, {})
                    answers = rig.stable_offsets(group, (topic, partition))
                    assert bool(answers) == ((topic, partition) not in pending)
                    if (topic, partition) in rig.shard.transactional_offsets.keys(group):
                        unstable.add((group, topic, partition))
                    if answers:
                        assert bool(answers[0][2]) == ((group, topic, partition) in truth.unstable)
        assert unstable == truth.unstable
        # What has an offset, or may get one, has a group.
        written = {place[0] for place in truth.committed} | {place[0] for place in truth.unstable}
        if rig.log.committed == len(rig.log.records):
            assert written <= rig.shard.groups.keys()

    def check_compacted(self) -> None:
        """Whoever reads the compacted log knows the same."""
        self.rig.fail_over()
        entries = self.entries()
        other = Rig()
        for offset, record, producer_id in compacted(entries, self.rng):
            if isinstance(record, FakeMarker):
                other.shard.replay_marker(record.producer_id, offset, commits=record.commits)
            else:
                other.shard.replay(record.key, record.value, offset, producer_id)
        other.shard.resume()
        other.shard.validate()
        assert _committed(other) == _committed(self.rig)
        for group in GROUPS:
            known = self.rig.shard.transactional_offsets.keys(group)
            assert other.shard.transactional_offsets.keys(group) == known


def _committed(rig: Rig) -> dict[Place, int]:
    return {
        (group, topic, partition): value.offset
        for group, offsets in rig.shard.offsets.items()
        for (topic, partition), value in offsets.items()
    }


def test_random_histories_say_what_the_log_says() -> None:
    for seed in fresh_seeds(25):
        print(f"seed {seed}")
        world = World(seed)
        for _ in range(120):
            world.step()
        world.check_compacted()


# -- planted faults: the model finds each ------------------------------------------------------------


def _counted_at_the_watermark(patch: pytest.MonkeyPatch) -> None:
    put = TransactionalOffsets.put

    def late(offsets: TransactionalOffsets, *what: Any) -> None:
        rig = WORLDS[-1].rig
        rig.log.on_advance.append(lambda: put(offsets, *what))

    patch.setattr(TransactionalOffsets, "put", late)


def _applied_at_the_append(patch: pytest.MonkeyPatch) -> None:
    def mark(rig: Rig, producer_id: int, *, commits: bool) -> None:
        offset = rig.log.append_marker(FakeMarker(producer_id, commits), lambda _: None)
        rig.shard.end_transaction(producer_id, offset, commits=commits)

    patch.setattr(Rig, "mark", mark)


def _in_place_as_transactions_end(patch: pytest.MonkeyPatch) -> None:
    def put(store: OffsetStore, group_id: str, key: tuple[str, int], value: rec.OffsetValue) -> None:
        store.store.offsets.setdefault(group_id, {})[key] = value

    patch.setattr(OffsetStore, "_put_in_place", put)


def _a_marker_ends_all(patch: pytest.MonkeyPatch) -> None:
    end = TransactionalOffsets.end
    patch.setattr(
        TransactionalOffsets, "end", lambda offsets, producer_id, _: end(offsets, producer_id, 1 << 62)
    )


def _a_tombstone_takes_all(patch: pytest.MonkeyPatch) -> None:
    drop = TransactionalOffsets.drop
    patch.setattr(
        TransactionalOffsets, "drop", lambda offsets, group_id, keys, _=None: drop(offsets, group_id, keys)
    )


def _a_tombstone_takes_none(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalOffsets, "drop", lambda *_: None)


def _an_abort_commits(patch: pytest.MonkeyPatch) -> None:
    end = OffsetStore.end_transaction
    patch.setattr(
        OffsetStore,
        "end_transaction",
        lambda store, producer_id, offset, *, commits: end(store, producer_id, offset, commits=True),
    )


def _forgotten_at_a_hand_over(patch: pytest.MonkeyPatch) -> None:
    replay = OffsetStore.replay
    patch.setattr(
        OffsetStore,
        "replay",
        lambda store, about, value, offset=-1, producer_id=-1: (
            None if producer_id >= 0 and value else replay(store, about, value, offset, producer_id)
        ),
    )


def _replayed_as_plain_commits(patch: pytest.MonkeyPatch) -> None:
    """What a coordinator of before this change reads (decision 0071)."""
    replay = OffsetStore.replay
    patch.setattr(
        OffsetStore,
        "replay",
        lambda store, about, value, offset=-1, producer_id=-1: replay(store, about, value, offset),
    )


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [
    _counted_at_the_watermark,
    _applied_at_the_append,
    _in_place_as_transactions_end,
    _a_marker_ends_all,
    _a_tombstone_takes_all,
    _a_tombstone_takes_none,
    _an_abort_commits,
    _forgotten_at_a_hand_over,
    _replayed_as_plain_commits,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seeds = fresh_seeds(30)
    print(f"seeds {seeds}")
    for seed in seeds:
        world = World(seed)
        try:
            for _ in range(120):
                world.step()
            world.check_compacted()
        except (AssertionError, InvariantBroken, KeyError):
            return
    pytest.fail("nobody has seen it")
