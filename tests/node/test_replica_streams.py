"""The two ends of a Replicate stream, each alone: credit, falling behind, turns, sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock_core.errors import ErrorCode
from penstock_core.ids import LeaderEpoch, NodeId
from penstock_storage_node.replication.receiver import FollowerReceiver
from penstock_storage_node.replication.sender import LeaderSender, ReplicationSession
from unit.storage_node.replication.replica_model import ENTRY_BYTES
from unit.storage_node.replication.test_leadership import STATE, Leader, nodes


class Sending:
    """A leader with one stream; `credit` in entries."""

    def __init__(self, credit: int) -> None:
        self.leader = Leader()
        self.sender = LeaderSender(NodeId(2), 1, credit * ENTRY_BYTES, self.leader.effects)

    def append(self, *sessions: ReplicationSession) -> None:
        pushed = self.leader.log.append(5, 0)
        for session in sessions:
            self.sender.on_append(session, *pushed)

    def read(self, session: ReplicationSession, max_bytes: int) -> None:
        self.sender.on_read(session, *self.leader.log.read(session.next_offset, max_bytes))

    def take(self) -> list[tuple[int, int]]:
        """(base offset, entries) of every data frame of one message."""
        frames = self.sender.take(1 << 20)
        return [(f.base_offset, f.size_bytes // ENTRY_BYTES) for f in frames if f.size_bytes]


def test_live_sessions_are_pushed_without_a_read() -> None:
    s = Sending(credit=100)
    session = s.sender.open(1, s.leader.replica, 0)
    assert s.sender.more  # the empty first frame
    for _ in range(3):
        s.append(session)
    s.sender.reads(lambda *_: pytest.fail("no read is needed"))
    assert s.take() == [(0, 3)]
    assert s.take() == []


def test_without_credit_a_session_falls_behind_and_comes_back() -> None:
    s = Sending(credit=4)
    session = s.sender.open(1, s.leader.replica, 0)
    for _ in range(10):
        s.append(session)
    assert not session.live
    assert s.take() == [(0, 4)]
    s.sender.reads(s.read)
    assert s.take() == []  # no credit, no read
    s.sender.on_ack(1, 4)
    s.sender.reads(s.read)
    assert s.take() == [(4, 2)]  # half of the credit for what is behind
    for end in (6, 8, 10):
        s.sender.on_ack(1, end)
        s.sender.reads(s.read)
        s.take()
    assert session.next_offset == 10
    s.append(session)
    assert s.take() == [(10, 1)]


def test_one_batch_may_exceed_the_credit() -> None:
    s = Sending(credit=0)
    session = s.sender.open(1, s.leader.replica, 0)
    s.append(session)
    assert s.take() == [(0, 1)]


def test_closing_a_session_frees_its_credit() -> None:
    s = Sending(credit=4)
    one = s.sender.open(1, s.leader.replica, 0)
    for _ in range(4):
        s.append(one)
    s.take()
    assert s.sender.outstanding_bytes == 4 * ENTRY_BYTES
    s.sender.close(1)
    assert s.sender.outstanding_bytes == 0
    assert s.sender.on_ack(1, 4) is None
    # A read that comes back late changes nothing.
    s.read(one, 100)
    assert s.sender.outstanding_bytes == 0


def test_ends_are_told() -> None:
    s = Sending(credit=4)
    session = s.sender.open(1, s.leader.replica, 0)
    s.sender.end(session, ErrorCode.NOT_LEADER_OR_FOLLOWER, "gone")
    (frame,) = s.sender.take(1000)
    assert frame.error == (ErrorCode.NOT_LEADER_OR_FOLLOWER, "gone")
    assert not s.sender.more


def test_watermarks_go_alone_only_when_they_moved() -> None:
    s = Sending(credit=4)
    session = s.sender.open(1, s.leader.replica, 0)
    (first,) = s.sender.take(1000)
    assert (first.high_watermark, first.base_offset) == (0, -1)
    s.sender.mark(session)
    assert s.sender.take(1000) == []
    s.leader.replica.state.high_watermark = 1
    s.sender.mark(session)
    (frame,) = s.sender.take(1000)
    assert frame.high_watermark == 1


def test_live_data_go_before_catching_up() -> None:
    s = Sending(credit=100)
    for _ in range(20):
        s.append()
    behind = s.sender.open(1, s.leader.replica, 0)
    live = s.sender.open(2, s.leader.replica, 20)
    s.sender.take(1000)
    s.sender.reads(s.read)
    s.append(behind, live)
    frames = [f.session for f in s.sender.take(1 << 20) if f.size_bytes]
    assert frames == [2, 1] or not behind.queue


def follower() -> tuple[Leader, FollowerReceiver]:
    side = Leader()
    side.replica.plan(replace(STATE, leader=NodeId(2), leader_epoch=LeaderEpoch(6), isr=nodes(1, 2, 3)), 0)
    receiver = FollowerReceiver()
    receiver.follow(side.replica)
    return side, receiver


def test_opens_once_and_never_reuses_a_session() -> None:
    side, receiver = follower()
    ((number, replica, asked),) = receiver.take(0).opens
    assert replica is side.replica
    assert asked.leader_epoch == 6
    assert receiver.take(0).empty
    receiver.disconnected()
    assert receiver.replica_of(number) is None
    ((again, _, _),) = receiver.take(0).opens
    assert again > number


def test_opens_wait_for_the_disk() -> None:
    side, receiver = follower()
    side.log.append(5, 1)
    assert receiver.take(0).empty
    side.log.write()
    assert receiver.take(0).opens


def test_opens_wait_for_a_cut() -> None:
    """Else the next leader asks for the same cut again, and takes away what came in between
    (found by the simulator: an acknowledged record gone from a follower)."""
    leader, receiver = follower()
    leader.replica.state.cuts_under_way = 1
    receiver.follow(leader.replica)
    assert receiver.take(0).opens == []
    leader.replica.state.cuts_under_way = 0
    assert len(receiver.take(0).opens) == 1


def test_pauses_grow_and_end_with_data() -> None:
    side, receiver = follower()
    now, pauses = 0, []
    for _ in range(8):
        receiver.take(now)
        receiver.reopen(side.replica, now, pause=True)
        start = now
        while not receiver.take(now).opens:
            now += 1
        pauses.append(now - start)
    assert pauses == [20, 40, 80, 160, 320, 640, 1000, 1000]
    receiver.on_data(side.replica)
    receiver.reopen(side.replica, now, pause=True)
    assert not receiver.take(now + 19).opens
    assert receiver.take(now + 20).opens


def test_acks_are_joined_and_die_with_their_session() -> None:
    side, receiver = follower()
    ((number, _, _),) = receiver.take(0).opens
    for _ in range(3):
        receiver.on_progress(side.replica)
    assert [n for n, _ in receiver.take(0).acks] == [number]
    receiver.on_progress(side.replica)
    receiver.hold(side.replica)
    out = receiver.take(0)
    assert out.acks == []
    assert out.closes == [number]
    receiver.on_progress(side.replica)
    assert receiver.take(0).empty
    receiver.unfollow(side.replica)
    assert len(receiver) == 0
    assert receiver.take(0).empty
