"""What acks mean by a topic's durability, and how a switch takes effect; receipts; unflushed bytes."""

from __future__ import annotations

from dataclasses import replace

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode
from penstock_core.ids import LeaderEpoch, NodeId
from penstock_storage_node.replication.replica import Change
from unit.storage_node.replication.test_leadership import STATE, Leader, Waiter, nodes


def settings(durability: str) -> TopicConfig:
    return TopicConfig.from_config({"penstock.durability": durability, "min.insync.replicas": "2"}, 3)


def fsync_counts(leader: Leader) -> bool:
    """By a call, so that a type checker does not take an earlier answer for today's."""
    return leader.replica.fsync


def write_all(leader: Leader, end: int) -> None:
    """Everybody has written, nobody has flushed."""
    leader.log.write(flush=False)
    leader.term.on_local_progress(0)
    for node in (2, 3):
        leader.term.on_follower_ack(NodeId(node), end, 0, 0)


def test_acks_1_waits_for_the_leaders_flush() -> None:
    leader, waiter = Leader(), Waiter()
    end = leader.append()
    leader.term.wait_one(end, 1000, waiter)
    leader.log.write(flush=False)
    leader.term.on_local_progress(0)
    leader.drain()
    assert waiter.error() is None
    leader.flush()
    leader.drain()
    assert waiter.error() is ErrorCode.NONE
    assert leader.replica.high_watermark == 0


def test_acks_1_of_a_replicated_topic_waits_for_the_write_alone() -> None:
    leader, waiter = Leader(durability="replicated"), Waiter()
    end = leader.append()
    leader.term.wait_one(end, 1000, waiter)
    leader.drain()
    assert waiter.error() is None
    leader.log.write(flush=False)
    leader.term.on_local_progress(0)
    leader.drain()
    assert waiter.error() is ErrorCode.NONE


def test_a_switch_to_fsync_waits_until_the_isr_has_flushed_past_the_high_watermark() -> None:
    leader = Leader(durability="replicated")
    end = leader.append()
    write_all(leader, end)
    assert leader.replica.high_watermark == end
    leader.replica.update_settings(settings("fsync"), 0)
    assert leader.replica.wants_fsync
    assert not fsync_counts(leader)
    # Until then an ack means what it meant, and the high watermark goes on.
    second, waiter = leader.append(), Waiter()
    leader.term.wait_all(second, 1000, waiter)
    write_all(leader, second)
    leader.drain()
    assert waiter.error() is ErrorCode.NONE
    assert not fsync_counts(leader)
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), second, second, 0)
    leader.term.on_follower_ack(NodeId(3), second, second - 1, 0)
    assert not fsync_counts(leader)
    leader.term.on_follower_ack(NodeId(3), second, second, 0)
    assert fsync_counts(leader)
    # From here on only flushed offsets count.
    third, late = leader.append(), Waiter()
    leader.term.wait_all(third, 1000, late)
    leader.log.write(flush=False)
    leader.term.on_local_progress(0)
    for node in (2, 3):
        leader.term.on_follower_ack(NodeId(node), third, second, 0)
    leader.drain()
    assert late.error() is None
    assert leader.replica.high_watermark == second
    leader.flush()
    for node in (2, 3):
        leader.term.on_follower_ack(NodeId(node), third, third, 0)
    leader.drain()
    assert late.error() is ErrorCode.NONE


def test_a_replica_outside_the_isr_does_not_hold_the_switch_up() -> None:
    leader = Leader(replace(STATE, isr=nodes(1, 2)), durability="replicated")
    end = leader.append()
    leader.log.write(flush=False)
    leader.term.on_local_progress(0)
    leader.term.on_follower_ack(NodeId(2), end, 0, 0)
    leader.replica.update_settings(settings("fsync"), 0)
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 0)
    assert fsync_counts(leader)


def test_a_switch_on_an_idle_and_flushed_topic_takes_effect_at_once() -> None:
    leader = Leader(durability="replicated")
    end = leader.append()
    leader.flush()
    for node in (2, 3):
        leader.term.on_follower_ack(NodeId(node), end, end, 0)
    leader.replica.update_settings(settings("fsync"), 0)
    assert fsync_counts(leader)


def test_a_switch_to_replicated_counts_at_once_and_never_goes_back() -> None:
    leader, waiter = Leader(), Waiter()
    end = leader.append()
    leader.term.wait_all(end, 1000, waiter)
    write_all(leader, end)
    assert leader.replica.high_watermark == 0
    leader.replica.update_settings(settings("replicated"), 0)
    leader.drain()
    assert not fsync_counts(leader)
    assert leader.replica.high_watermark == end
    assert waiter.error() is ErrorCode.NONE
    leader.replica.update_settings(settings("fsync"), 0)
    assert leader.replica.high_watermark == end


def test_a_new_leader_of_a_switched_topic_is_strict_from_the_start() -> None:
    leader = Leader(durability="replicated")
    write_all(leader, leader.append())
    leader.replica.update_settings(settings("fsync"), 0)
    assert not fsync_counts(leader)
    newer = replace(STATE, leader_epoch=LeaderEpoch(6), partition_epoch=8)
    assert leader.replica.plan(newer, 0) is Change.LEAD
    assert fsync_counts(leader)


def test_a_follower_takes_a_switch_over_at_once() -> None:
    leader = Leader(durability="replicated")
    away = replace(STATE, leader=NodeId(2), leader_epoch=LeaderEpoch(6), partition_epoch=8)
    assert leader.replica.plan(away, 0) is Change.FOLLOW
    leader.replica.update_settings(settings("fsync"), 0)
    assert fsync_counts(leader)


def test_a_receipt_names_who_holds_and_who_has_flushed() -> None:
    leader = Leader()
    end = leader.append()
    assert leader.term.holders(end) == ([], [])
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), end, end, 0)
    leader.term.on_follower_ack(NodeId(3), end, 0, 0)
    assert leader.term.holders(end) == ([1, 2, 3], [1, 2])
    assert leader.term.holders(end + 1) == ([], [])


def test_acked_and_unflushed_is_nothing_in_fsync_mode() -> None:
    leader = Leader()
    for _ in range(3):
        end = leader.append()
        leader.term.wait_one(end, 1000, Waiter())
        write_all(leader, end)
        low, high = leader.term.acked_unflushed()
        assert low == high
        leader.flush()
        low, high = leader.term.acked_unflushed()
        assert low == high
        leader.term.on_follower_ack(NodeId(2), end, end, 0)
        low, high = leader.term.acked_unflushed()
        assert low == high


def test_acked_and_unflushed_in_replicated_mode_is_what_a_power_cut_would_take() -> None:
    leader = Leader(durability="replicated")
    end = leader.append()
    write_all(leader, end)
    assert leader.term.acked_unflushed() == (0, end)
    second = leader.append()
    leader.term.wait_one(second, 1000, Waiter())
    leader.log.write(flush=False)
    leader.term.on_local_progress(0)  # acks=1 is answered, the followers have not got it
    assert leader.term.acked_unflushed() == (0, second)
    leader.flush()
    leader.term.on_follower_ack(NodeId(2), second, end, 0)
    assert leader.term.acked_unflushed() == (second, second) or leader.replica.high_watermark < second
    leader.term.on_follower_ack(NodeId(2), second, second, 0)
    low, high = leader.term.acked_unflushed()
    assert low == high
