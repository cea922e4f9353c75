"""Leader's rules: high watermark, ISR, acks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import PartitionImage
from penstock_storage_node.replication.effects import Effects
from penstock_storage_node.replication.leadership import FULL_LAG_MS, STEADY_MS, IsrProposal, Leadership
from penstock_storage_node.replication.replica import Change, OpenRequest, PartitionReplica
from unit.storage_node.replication.replica_model import ModelLog

TOPIC_ID = TopicId(bytes(15) + b"\x01")
LAG_MS = 10_000


def nodes(*ids: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(i) for i in ids)


STATE = PartitionImage(
    topic_id=TOPIC_ID,
    partition=0,
    replicas=nodes(1, 2, 3),
    isr=nodes(1, 2, 3),
    leader=NodeId(1),
    leader_epoch=LeaderEpoch(5),
    partition_epoch=7,
)


class Waiter:
    def __init__(self) -> None:
        self._error: ErrorCode | None = None

    def acknowledge(self, error: ErrorCode) -> None:
        assert self._error is None, "answered twice"
        self._error = error

    def error(self) -> ErrorCode | None:
        return self._error


class Leader:
    """A leading replica with its log, effects and ineligible nodes at hand."""

    def __init__(self, state: PartitionImage = STATE, *, durability: str = "fsync", now_ms: int = 0) -> None:
        self.log = ModelLog()
        self.effects = Effects()
        self.ineligible: set[int] = set()
        self.full: set[int] = set()
        config = {"penstock.durability": durability, "min.insync.replicas": "2"}
        self.replica = PartitionReplica(
            TopicPartition(TOPIC_ID, 0),
            "t",
            NodeId(1),
            self.log,
            TopicConfig.from_config(config, 3),
            high_watermark=0,
            lag_max_ms=LAG_MS,
            eligible=lambda node, _epoch: node not in self.ineligible,
            is_full=lambda node: node in self.full,
            effects=self.effects,
        )
        assert self.replica.plan(state, now_ms) is Change.LEAD
        self.log.start_epoch(state.leader_epoch)
        self.replica.lead(state, now_ms)

    @property
    def term(self) -> Leadership:
        assert self.replica.leadership is not None
        return self.replica.leadership

    def pending(self) -> IsrProposal | None:
        return self.term.pending

    def append(self, now_ms: int = 0) -> int:
        base, end, _, _ = self.log.append(self.replica.leader_epoch, 0)
        self.term.on_append(base, now_ms)
        return end

    def flush(self, now_ms: int = 0) -> None:
        self.log.write()
        self.term.on_local_progress(now_ms)

    def open(self, node: int, now_ms: int = 0, *, at: int = 0, epoch: int | None = None) -> None:
        last = self.log.entries[at - 1][0] if at else -1
        request = OpenRequest(epoch or self.replica.leader_epoch, at, last, 0, at)
        answer = self.replica.on_open(NodeId(node), 1, request, now_ms)
        assert answer.error is None
        assert answer.diverging is None
        assert answer.out_of_range is None

    def drain(self) -> None:
        answers, self.effects.answers = self.effects.answers, []
        for waiter, error in answers:
            waiter.acknowledge(error)
        self.replica.validate()


def test_who_waits_is_known_without_looking_at_every_partition() -> None:
    leader, other = Leader(), Leader()
    leader.open(2)
    leader.term.wait_all(leader.append(), 1000, Waiter())
    other.term.wait_one(other.append(), 1000, Waiter())
    assert list(leader.effects.waiting) == [leader.term]
    assert list(other.effects.waiting) == [other.term]
    assert leader.term.waiting_count == other.term.waiting_count == 1


def test_watermark_is_the_lowest_flushed_end_of_the_isr() -> None:
    leader = Leader()
    end = leader.append()
    waiter = Waiter()
    leader.term.wait_all(end, 1000, waiter)
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 0)
    # Node 3 has written it, but not flushed.
    leader.term.on_follower_ack(NodeId(3), end, 0, 0)
    leader.drain()
    assert leader.replica.high_watermark == 0
    assert waiter.error() is None
    leader.term.on_follower_ack(NodeId(3), end, end, 0)
    leader.drain()
    assert leader.replica.high_watermark == end
    assert waiter.error() is ErrorCode.NONE


def test_the_leaders_own_unflushed_data_do_not_count() -> None:
    leader = Leader()
    end = leader.append()
    leader.term.on_follower_ack(NodeId(2), end, end, 0)
    leader.term.on_follower_ack(NodeId(3), end, end, 0)
    leader.log.write(flush=False)
    leader.term.on_local_progress(0)
    assert leader.replica.high_watermark == 0
    leader.flush()
    assert leader.replica.high_watermark == end


def test_replicated_durability_counts_written_data() -> None:
    leader = Leader(durability="replicated")
    end = leader.append()
    one = Waiter()
    leader.term.wait_one(end, 1000, one)
    leader.term.on_follower_ack(NodeId(2), end, 0, 0)
    leader.term.on_follower_ack(NodeId(3), end, 0, 0)
    leader.drain()
    assert one.error() is None
    leader.log.write(flush=False)
    leader.term.on_local_progress(0)
    leader.drain()
    assert one.error() is ErrorCode.NONE
    assert leader.replica.high_watermark == end


def test_watermark_waits_for_members_that_never_spoke() -> None:
    leader = Leader()
    end = leader.append()
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 0)
    assert leader.replica.high_watermark == 0


def test_shrink_keeps_counting_the_member_until_the_controller_agrees() -> None:
    leader = Leader()
    end = leader.append(now_ms=0)
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 1)
    leader.term.tick(LAG_MS)
    assert leader.pending() is None
    leader.term.tick(LAG_MS + 1)
    proposal = leader.term.take_proposal()
    assert proposal is not None
    assert proposal.isr == (1, 2)
    assert leader.term.take_proposal() is None
    assert leader.replica.high_watermark == 0
    leader.term.update(replace(STATE, isr=nodes(1, 2), partition_epoch=8), LAG_MS + 5)
    assert leader.replica.high_watermark == end
    assert leader.pending() is None


def test_unknown_outcome_stays_pending_and_is_sent_again() -> None:
    leader = Leader()
    leader.append()
    leader.flush()
    leader.term.tick(LAG_MS + 1)
    proposal = leader.term.take_proposal()
    assert proposal is not None
    leader.term.on_proposal_unknown(proposal)
    assert leader.term.take_proposal() is proposal
    leader.term.on_proposal_refused(proposal, ErrorCode.INVALID_UPDATE_VERSION, LAG_MS + 2)
    assert leader.pending() is proposal  # newer metadata decides
    leader.term.update(replace(STATE, isr=nodes(1), partition_epoch=9), LAG_MS + 3)
    assert leader.pending() is None


def test_refused_proposal_is_held_back_a_while() -> None:
    leader = Leader()
    leader.append()
    leader.flush()
    leader.term.tick(LAG_MS + 1)
    proposal = leader.term.take_proposal()
    assert proposal is not None
    leader.term.on_proposal_refused(proposal, ErrorCode.INELIGIBLE_REPLICA, LAG_MS + 1)
    leader.term.tick(LAG_MS + 2)
    assert leader.pending() is None
    leader.term.tick(LAG_MS + 1000)
    assert leader.pending() is not None


def test_a_caught_up_idle_member_never_lags_and_gets_a_full_period_after_an_append() -> None:
    leader = Leader()
    leader.open(2)
    leader.open(3)
    leader.term.tick(50 * LAG_MS)
    assert leader.pending() is None
    now = 50 * LAG_MS
    leader.append(now_ms=now)
    leader.term.tick(now + LAG_MS)
    assert leader.pending() is None
    leader.term.tick(now + LAG_MS + 1)
    assert leader.pending() is not None


def test_a_member_behind_by_less_than_the_period_stays_under_steady_load() -> None:
    leader = Leader()
    leader.open(2)
    leader.open(3)
    ends: list[int] = []
    for now in range(0, 5 * LAG_MS, 100):
        ends.append(leader.append(now_ms=now))
        leader.flush(now)
        if len(ends) > 20:  # always two seconds behind, acks every 100 ms
            for node in (2, 3):
                leader.term.on_follower_ack(NodeId(node), ends[-20], ends[-20], now)
        leader.term.tick(now)
        assert leader.pending() is None


def test_expansion_needs_the_watermark_and_the_epochs_start() -> None:
    state = replace(STATE, isr=nodes(1, 2))
    leader = Leader(state)
    for _ in range(3):
        end = leader.append()
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 0)
    assert leader.replica.high_watermark == end
    leader.open(3)
    leader.term.on_follower_ack(NodeId(3), 2, 2, 5)
    assert leader.pending() is None
    leader.term.on_follower_ack(NodeId(3), end, end, 6)
    proposal = leader.term.take_proposal()
    assert proposal is not None
    assert proposal.isr == (1, 2, 3)
    # Pending additions hold the watermark back.
    end = leader.append()
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 7)
    assert leader.replica.high_watermark == end - 1


def test_acks_wait_for_members_and_for_who_is_about_to_join_and_for_nobody_else() -> None:
    leader = Leader(replace(STATE, isr=nodes(1, 2)))
    for _ in range(3):
        end = leader.append()
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 0)
    leader.open(3)
    leader.term.on_follower_ack(NodeId(3), 2, 2, 5)
    assert leader.term.waits_for(NodeId(2), 5)
    assert not leader.term.waits_for(NodeId(3), 5)
    assert not leader.term.waits_for(NodeId(4), 5)  # no replica
    leader.term.on_follower_ack(NodeId(3), end, end, 6)
    leader.append(now_ms=6)
    assert leader.term.waits_for(NodeId(3), 6)
    # The ISR shrinks when the controller says so, and not before.
    leader.term.tick(6 + LAG_MS + 1)
    assert leader.term.waits_for(NodeId(2), 6 + LAG_MS + 1)
    leader.term.update(replace(STATE, isr=nodes(1), partition_epoch=8), 6 + LAG_MS + 2)
    assert not leader.term.waits_for(NodeId(2), 6 + LAG_MS + 2)
    assert not leader.term.waits_for(NodeId(3), 6 + LAG_MS + 2)


def test_fenced_replicas_do_not_join() -> None:
    leader = Leader(replace(STATE, isr=nodes(1, 2)))
    leader.ineligible.add(3)
    leader.open(3)
    leader.term.tick(5)
    assert leader.pending() is None
    leader.ineligible.clear()
    leader.term.tick(6)
    assert leader.pending() is not None


def test_a_member_on_a_full_disk_that_lacks_something_is_not_waited_for_as_long_as_others() -> None:
    leader = Leader()
    leader.open(2)
    leader.open(3)
    leader.full.add(3)
    leader.term.tick(LAG_MS // 2)
    assert leader.pending() is None, "it has all that there is"
    now = LAG_MS // 2
    end = leader.append(now_ms=now)
    leader.flush(now)
    leader.term.on_follower_ack(NodeId(2), end, end, now)
    leader.term.tick(now + FULL_LAG_MS)
    assert leader.pending() is None, "its disk may be slow"
    leader.term.tick(now + FULL_LAG_MS + 1)
    proposal = leader.term.take_proposal()
    assert proposal is not None
    assert proposal.isr == (1, 2)
    leader.term.update(replace(STATE, isr=nodes(1, 2), partition_epoch=8), now + FULL_LAG_MS + 2)
    assert leader.replica.high_watermark == end


def test_members_on_full_disks_stay_where_min_isr_needs_them() -> None:
    leader = Leader()
    leader.open(2)
    leader.open(3)
    leader.full |= {2, 3}
    for _ in range(2):
        end = leader.append()
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end - 1, end - 1, 0)
    leader.term.tick(FULL_LAG_MS + 1)
    proposal = leader.term.take_proposal()
    assert proposal is not None
    assert proposal.isr == (1, 2), "that which has more of it stays"
    leader.term.update(replace(STATE, isr=nodes(1, 2), partition_epoch=8), FULL_LAG_MS + 2)
    leader.term.tick(LAG_MS)
    assert leader.pending() is None, "min.insync.replicas is 2"
    leader.term.tick(LAG_MS + 1)
    assert leader.pending() is not None, "as any other that lags"


def test_a_replica_on_a_full_disk_neither_joins_nor_is_waited_for_until_it_has_shown_room() -> None:
    leader = Leader(replace(STATE, isr=nodes(1, 2)))
    end = leader.append()
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 0)
    leader.full.add(3)
    leader.open(3, 1)
    # It found space for that much.
    leader.term.on_follower_ack(NodeId(3), end, end, 2)
    assert leader.pending() is None
    end = leader.append(now_ms=3)
    leader.flush(3)
    leader.term.on_follower_ack(NodeId(2), end, end, 3)
    assert leader.replica.high_watermark == end
    leader.term.on_follower_ack(NodeId(3), end, end, 4)
    leader.term.tick(STEADY_MS)
    assert leader.pending() is None, "its session began at 1"
    # Refused a batch, and opened another one.
    leader.open(3, STEADY_MS, at=end)
    leader.term.tick(2 * STEADY_MS - 1)
    assert leader.pending() is None
    leader.term.tick(2 * STEADY_MS)
    assert leader.pending() is not None


def test_a_replica_whose_disk_has_room_again_joins_at_once() -> None:
    leader = Leader(replace(STATE, isr=nodes(1, 2)))
    leader.full.add(3)
    leader.open(3)
    assert leader.pending() is None
    leader.full.clear()
    leader.term.tick(1)
    assert leader.pending() is not None


def test_a_replica_on_a_full_disk_joins_where_min_isr_needs_it() -> None:
    leader = Leader(replace(STATE, isr=nodes(1)))
    leader.full.add(3)
    leader.open(3)
    proposal = leader.term.take_proposal()
    assert proposal is not None
    assert proposal.isr == (1, 3)


def test_a_silent_replica_neither_joins_nor_holds_the_watermark() -> None:
    leader = Leader()
    leader.open(2)
    leader.open(3)
    end = leader.append()
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 1)
    # Fenced: out of the ISR at once. What it is owed will show whether it lives.
    leader.term.update(replace(STATE, isr=nodes(1, 2), partition_epoch=8), 1)
    assert not leader.effects.reopen
    assert leader.replica.high_watermark == end
    leader.term.tick(2)
    assert leader.pending() is None
    leader.open(3, 3, at=end)
    assert leader.pending() is not None
    # Where nothing is owed, a new session has to show it.
    leader.term.update(replace(STATE, isr=nodes(1, 2, 3), partition_epoch=9), 4)
    leader.term.update(replace(STATE, isr=nodes(1, 2), partition_epoch=10), 5)
    assert [node for _, node in leader.effects.reopen] == [3]


def test_watermark_stands_still_below_min_isr() -> None:
    leader = Leader(replace(STATE, isr=nodes(1)))
    waiter = Waiter()
    end = leader.append()
    leader.term.wait_all(end, 100, waiter)
    leader.flush()
    assert leader.replica.high_watermark == 0
    leader.term.tick(101)
    leader.drain()
    assert waiter.error() is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_timeouts_and_lost_leadership_say_maybe_written() -> None:
    leader = Leader()
    waiters = [Waiter() for _ in range(4)]
    end = leader.append()
    leader.term.wait_all(end, 100, waiters[0])
    leader.term.wait_all(end, 500, waiters[1])
    leader.term.wait_one(end, 100, waiters[2])
    leader.term.wait_one(end, 500, waiters[3])
    leader.term.tick(99)
    leader.drain()
    assert [w.error() for w in waiters] == [None] * 4
    leader.term.tick(100)
    leader.drain()
    assert waiters[0].error() is waiters[2].error() is ErrorCode.REQUEST_TIMED_OUT
    assert waiters[1].error() is waiters[3].error() is None
    state = replace(STATE, leader=NodeId(2), leader_epoch=LeaderEpoch(6), partition_epoch=9)
    assert leader.replica.plan(state, 200) is Change.FOLLOW
    leader.drain()
    assert waiters[1].error() is waiters[3].error() is ErrorCode.REQUEST_TIMED_OUT
    with pytest.raises(PenstockError) as refused:
        leader.replica.require_leader()
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_leader_epochs_of_callers() -> None:
    leader = Leader()
    for epoch, code in ((4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(PenstockError) as refused:
            leader.replica.require_leader(epoch)
        assert refused.value.code is code
        request = OpenRequest(epoch, 0, -1, 0, 0)
        answer = leader.replica.on_open(NodeId(2), 1, request, 0)
        assert answer.error is not None
        assert answer.error.code is code
    assert leader.replica.require_leader(5) is leader.term


def test_old_states_change_nothing() -> None:
    leader = Leader()
    leader.replica.plan(replace(STATE, isr=nodes(1), partition_epoch=6), 0)
    assert leader.term.isr == {1, 2, 3}
    old = replace(STATE, leader=NodeId(2), leader_epoch=LeaderEpoch(4), partition_epoch=99)
    assert leader.replica.plan(old, 0) is Change.NONE
    assert leader.replica.leadership is not None


def test_recovering_leader_tells_the_controller_once() -> None:
    leader = Leader(replace(STATE, isr=nodes(1), recovering=True))
    proposal = leader.term.take_proposal()
    assert proposal is not None
    assert proposal.recovered
    leader.term.update(replace(STATE, isr=nodes(1), partition_epoch=8), 0)
    assert leader.pending() is None


def test_diverging_and_out_of_range_opens() -> None:
    leader = Leader()
    log = leader.log
    log.entries = [(1, 0), (1, 1), (3, 2), (5, 3)]
    log.epochs = [(1, 0), (3, 2), (5, 3)]
    log.write()

    def ask(offset: int, epoch: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        answer = leader.replica.on_open(NodeId(2), 1, OpenRequest(5, offset, epoch, 0, offset), 0)
        assert answer.error is None
        return answer.diverging, answer.out_of_range

    assert ask(2, 1) == (None, None)
    assert ask(3, 1) == ((1, 2), None)  # holds more of epoch 1 than we do
    assert ask(3, 2) == ((1, 2), None)  # an epoch that we never had
    assert ask(9, 5) == ((5, 4), None)
    assert ask(9, -1) == (None, (0, 4))
    log.log_start_offset = 3
    assert ask(2, 1) == (None, (3, 4))
    log.epochs = [(5, 3)]
    assert ask(4, 2) == ((2, 3), None)  # older than anything kept: from the start of ours


# ---------------------------------------------------------------------- tombstones that are gone


def with_tombstones_gone(below: int) -> Leader:
    """Nodes 1 and 2 are in sync, up to 9."""
    leader = Leader(replace(STATE, isr=nodes(1, 2)))
    log = leader.log
    log.entries, log.epochs = [(5, n) for n in range(9)], [(5, 0)]
    leader.flush()
    log.tombstones_gone_below, log.clean_until = below, 7
    return leader


def starts_over(leader: Leader, node: int, at: int, *, empty: bool = False, node_epoch: int = 1) -> bool:
    request = OpenRequest(5, at, 5 if at else -1, at if empty else 0, at)
    answer = leader.replica.on_open(NodeId(node), node_epoch, request, 0)
    assert answer.error is None
    assert answer.out_of_range is None
    assert answer.diverging in (None, (-1, 0))
    assert bool(answer.tombstones_gone_below) == (answer.diverging is not None)
    return answer.diverging is not None


def test_a_replica_that_may_have_missed_tombstones_starts_over() -> None:
    leader = with_tombstones_gone(below=5)
    assert starts_over(leader, 3, 4)
    assert not starts_over(leader, 3, 5), "it was sent them all"
    assert not starts_over(leader, 3, 9)


def test_nobody_that_is_counted_on_starts_over() -> None:
    leader = with_tombstones_gone(below=5)
    assert not starts_over(leader, 2, 4), "in sync"
    leader.term.update(replace(STATE, isr=nodes(1), elr=nodes(3), partition_epoch=8), 0)
    assert not starts_over(leader, 3, 4), "it may lead next"
    assert starts_over(leader, 2, 4)


def test_a_copy_that_began_after_compaction_goes_on_where_it_was() -> None:
    """Else it would never be finished where keys are deleted all the time."""
    leader = with_tombstones_gone(below=5)
    assert not starts_over(leader, 3, 0, empty=True)
    leader.log.tombstones_gone_below = 7  # these had been cleaned before: what they were for was not copied
    assert not starts_over(leader, 3, 2)
    assert not leader.term.misses_tombstones(NodeId(3), 1, 2)
    leader.log.tombstones_gone_below = 8
    assert leader.term.misses_tombstones(NodeId(3), 1, 2)
    assert not leader.term.misses_tombstones(NodeId(3), 1, 8)
    assert starts_over(leader, 3, 2)


def test_a_process_that_was_started_anew_is_not_taken_for_that_copy() -> None:
    leader = with_tombstones_gone(below=5)
    assert not starts_over(leader, 3, 0, empty=True)
    assert starts_over(leader, 3, 2, node_epoch=2)


# ---------------------------------------------------------------------- log starts


def test_the_low_watermark_waits_for_who_may_lead_next() -> None:
    """A member of the ELR that is down may be elected as it comes back, with the log start that it has."""
    alone = replace(STATE, isr=nodes(1), elr=nodes(2))
    leader = Leader(alone)
    leader.ineligible = {2, 3}
    leader.log.log_start_offset = 5
    assert leader.term.low_watermark() < 5
    leader.term.on_follower_log_start(NodeId(2), 5)
    assert leader.term.low_watermark() == 5
    leader.term.on_follower_log_start(NodeId(2), 3)
    assert leader.term.low_watermark() == 3
    leader.term.update(replace(alone, elr=(), partition_epoch=STATE.partition_epoch + 1), 0)
    assert leader.term.low_watermark() == 5


def test_a_follower_joins_once_it_keeps_the_log_start() -> None:
    """Else it could lead with records that are deleted, or that nobody has compared with the leader's."""
    leader = Leader(replace(STATE, isr=nodes(1, 3)))
    log = leader.log
    log.entries, log.epochs = [(5, n) for n in range(6)], [(5, 0)]
    log.log_start_offset = 3
    leader.flush()
    leader.open(2, at=6)
    assert leader.pending() is None
    leader.term.on_follower_log_start(NodeId(2), 2)
    leader.term.on_follower_ack(NodeId(2), 6, 6, 0)
    assert leader.pending() is None
    log.log_start_offset = 4  # of no account: it was compared from 3 on
    leader.term.on_follower_log_start(NodeId(2), 3)
    leader.term.on_follower_ack(NodeId(2), 6, 6, 0)
    proposal = leader.pending()
    assert proposal is not None
    assert proposal.isr == nodes(1, 2, 3)


def test_duplicates_wait_like_the_original() -> None:
    leader = Leader()
    end = leader.append()
    first, again = Waiter(), Waiter()
    leader.term.wait_all(end, 1000, first)
    leader.term.wait_all(end, 1000, again)
    leader.flush()
    for node in (2, 3):
        leader.term.on_follower_ack(NodeId(node), end, end, 0)
    late = Waiter()
    leader.term.wait_all(end, 1000, late)
    leader.drain()
    assert first.error() is again.error() is late.error() is ErrorCode.NONE


def test_a_duplicate_is_answered_when_its_own_offset_is_safe_though_later_ones_still_wait() -> None:
    """The mark may stand between the two for long: they would wait with it, and its producer with them."""
    leader = Leader()
    first = leader.append()
    end = leader.append()
    leader.flush()
    last, duplicate = Waiter(), Waiter()
    leader.term.wait_all(end, 1000, last)
    leader.term.wait_all(first, 1000, duplicate)
    for node in (2, 3):
        leader.term.on_follower_ack(NodeId(node), first, first, 0)
    leader.drain()
    assert duplicate.error() is ErrorCode.NONE
    assert last.error() is None
