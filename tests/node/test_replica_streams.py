"""The two ends of a Replicate stream, each alone: credit, falling behind, turns, sessions."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from penstock_core.errors import ErrorCode
from penstock_core.ids import LeaderEpoch, NodeId
from penstock_proto.fast.pieces import Piece
from penstock_proto.fast.primitives import MalformedMessage
from penstock_storage_node.replication.receiver import FollowerReceiver, SlotState
from penstock_storage_node.replication.sender import LeaderSender, PieceSizes, ReplicationSession
from unit.storage_node.replication.replica_model import ENTRY_BYTES
from unit.storage_node.replication.test_leadership import STATE, Leader, nodes


class Sending:
    """A leader with one stream; `credit` in entries."""

    def __init__(self, credit: int, pieces: PieceSizes | None = None) -> None:
        self.leader = Leader()
        self.sender = LeaderSender(
            NodeId(2), 1, credit * ENTRY_BYTES, self.leader.effects, pieces=pieces or PieceSizes()
        )

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


PIECES_OF_TWO = PieceSizes(3 * ENTRY_BYTES, 2 * ENTRY_BYTES)
"""Batches of more than three entries go in pieces of two."""


def push_large(s: Sending, session: ReplicationSession, entries: int) -> None:
    pushed = [s.leader.log.append(5, 0) for _ in range(entries)]
    buffers = [buffer for _, _, part, _ in pushed for buffer in part]
    s.sender.on_append(session, pushed[0][0], pushed[-1][1], buffers, sum(size for *_, size in pushed))


def test_a_large_batch_goes_in_pieces_and_others_have_their_turn_between() -> None:
    s = Sending(6, PIECES_OF_TWO)
    large, small = s.sender.open(1, s.leader.replica, 0), s.sender.open(2, s.leader.replica, 0)
    s.sender.take(1 << 20)
    push_large(s, large, 7)
    s.append(small)  # beside it there is credit for three: it counts as half
    s.append(small)
    sent = []
    while s.sender.more:
        sent += [(f.session, f.piece_of, f.size_bytes // ENTRY_BYTES) for f in s.sender.take(ENTRY_BYTES)]
    whole, entry = 7 * ENTRY_BYTES, ENTRY_BYTES
    assert [row for row in sent if row[0] == 1] == [
        (1, (whole, 0), 2),
        (1, (whole, 2 * entry), 2),
        (1, (whole, 4 * entry), 2),
        (1, (whole, 6 * entry), 1),
    ]
    assert sum(row[2] for row in sent[:-1] if row[0] == 2) == 2, (
        "the other one did not wait for the last piece"
    )
    assert sent[-1][0] == 1
    assert small.live
    s.sender.on_ack(1, 7)
    s.sender.on_ack(2, 9)
    assert s.sender.outstanding_bytes == 0


def test_a_session_that_ends_amid_its_pieces_gives_the_credit_back() -> None:
    s = Sending(6, PIECES_OF_TWO)
    session = s.sender.open(1, s.leader.replica, 0)
    push_large(s, session, 7)
    assert s.sender.outstanding_bytes == 3 * ENTRY_BYTES
    assert [f.piece_of for f in s.sender.take(ENTRY_BYTES)] == [(7 * ENTRY_BYTES, 0)]
    s.sender.close(1)
    assert s.sender.outstanding_bytes == 0
    assert s.take() == []


def test_two_large_batches_are_under_way_at_most_and_one_is_read_at_a_time() -> None:
    s = Sending(6, PIECES_OF_TWO)
    sessions = [s.sender.open(number, s.leader.replica, 0) for number in (1, 2, 3)]
    for session in sessions:
        push_large(s, session, 7)
    assert [session.live for session in sessions] == [True, True, False]
    assert s.sender.outstanding_bytes == 6 * ENTRY_BYTES
    s = Sending(60, PIECES_OF_TWO)
    for _ in range(7):
        s.append()
    for number in (1, 2):
        s.sender.open(number, s.leader.replica, 0)
    asked: list[ReplicationSession] = []
    s.sender.reads(lambda session, _: asked.append(session))
    assert [session.number for session in asked] == [1]
    s.sender.reads(lambda session, _: asked.append(session))
    assert [session.number for session in asked] == [1]
    s.sender.close(1)  # whose read ends with it
    s.sender.reads(lambda session, _: asked.append(session))
    assert [session.number for session in asked] == [1, 2]


def test_pieces_are_put_together_by_session() -> None:
    leader = Leader()
    receiver = FollowerReceiver()
    replica = leader.replica
    receiver.follow(replica)
    slot = receiver._slots[replica]
    slot.state, slot.session = SlotState.OPEN, 1
    receiver._sessions[1] = replica
    assert bytes(receiver.batches_of(replica, memoryview(b"plain"), None) or b"") == b"plain"
    assert receiver.batches_of(replica, None, None) is None
    assert receiver.batches_of(replica, None, Piece(4, 6, 0, b"abc")) is None
    assert receiver.batches_of(replica, None, None) is None  # a frame that tells the high watermark alone
    assert bytes(receiver.batches_of(replica, None, Piece(4, 6, 3, b"def")) or b"") == b"abcdef"
    assert receiver.batches_of(replica, None, Piece(4, 6, 0, b"abc")) is None
    with pytest.raises(MalformedMessage, match="other batches come before the last piece"):
        receiver.batches_of(replica, memoryview(b"plain"), None)
    for end in (receiver.disconnected, lambda: receiver.hold(replica)):
        slot.state = SlotState.OPEN
        receiver._sessions[1] = replica
        assert receiver.batches_of(replica, None, Piece(4, 6, 0, b"abc")) is None
        end()
        assert slot.assembly is None


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


class Many:
    """A leader of several partitions with one stream; `credit` in entries."""

    def __init__(self, credit: int, partitions: int) -> None:
        self.leaders = [Leader() for _ in range(partitions)]
        self.sender = LeaderSender(NodeId(2), 1, credit * ENTRY_BYTES, self.leaders[0].effects)
        self.sessions = [
            self.sender.open(number, leader.replica, 0) for number, leader in enumerate(self.leaders)
        ]

    def append(self, number: int) -> None:
        self.sender.on_append(self.sessions[number], *self.leaders[number].log.append(5, 0))

    def read(self, session: ReplicationSession, max_bytes: int) -> None:
        log = self.leaders[session.number].log
        self.sender.on_read(session, *log.read(session.next_offset, max_bytes))

    def pass_on(self, stuck: set[int]) -> None:
        """One message to the follower, which acknowledges all of it but for its stuck logs."""
        self.sender.reads(self.read)
        self.sender.take(1 << 20)
        for session in self.sessions:
            if session.number not in stuck and session.in_flight:
                self.sender.on_ack(session.number, session.in_flight[-1][0])

    def lag(self, number: int) -> int:
        """Entries that the follower has not acknowledged."""
        session = self.sessions[number]
        end = self.leaders[number].log.log_end_offset
        return end - session.next_offset + session.held_bytes // ENTRY_BYTES


@pytest.mark.parametrize("before", [True, False])
def test_a_log_of_the_follower_that_does_not_write_keeps_no_other_partition_from_it(before: bool) -> None:
    """It took all of the credit while it was alone, or as it fell behind with the others."""
    s = Many(credit=8, partitions=4)
    for round_ in range(30):
        for number in range(4) if round_ >= 10 or not before else range(1):
            s.append(number)
        s.pass_on(stuck={0})
    assert not s.sessions[0].live
    for _ in range(30):
        s.pass_on(stuck={0})
    assert [s.lag(number) for number in (1, 2, 3)] == [0, 0, 0]
    assert all(s.sessions[number].live for number in (1, 2, 3))
    # What the stuck log holds stays within the credit, and all of it within a quarter more.
    assert s.sessions[0].held_bytes <= 8 * ENTRY_BYTES
    assert s.sender.outstanding_bytes <= 10 * ENTRY_BYTES
    # When it goes on, so does its partition.
    for _ in range(30):
        s.pass_on(stuck=set())
    assert s.lag(0) == 0
    assert s.sender.outstanding_bytes == 0


def test_a_stuck_batch_larger_than_the_credit_keeps_no_large_batch_of_others() -> None:
    s = Many(credit=4, partitions=3)
    for number in (0, 1, 2):
        s.leaders[number].log.append(5, 0)
        s.sender.on_append(s.sessions[number], 0, 1, [bytes(100 * ENTRY_BYTES)], 100 * ENTRY_BYTES)
    s.pass_on(stuck={0})
    assert s.sessions[1].held_bytes == 0
    s.pass_on(stuck={0})  # the third came by a read, after the second
    s.pass_on(stuck={0})
    assert [s.lag(number) for number in (1, 2)] == [0, 0]


def test_reads_under_way_count_as_what_they_may_bring() -> None:
    s = Many(credit=8, partitions=6)
    asked: list[tuple[ReplicationSession, int]] = []
    for number in range(6):
        for _ in range(20):
            s.leaders[number].log.append(5, 0)
        s.sender.close(number)
        s.sessions[number] = s.sender.open(number, s.leaders[number].replica, 0)
    s.sender.reads(lambda session, most: asked.append((session, most)))
    s.sender.reads(lambda session, most: asked.append((session, most)))
    half, quarter = 4 * ENTRY_BYTES, 2 * ENTRY_BYTES
    assert asked[0][1] == half
    assert sum(most for _, most in asked[1:]) <= quarter
    # A session that ends before its read does gives back what was set aside for it, and others are told.
    s.leaders[0].effects.sending.clear()
    for session, _ in asked:
        s.sender.close(session.number)
    assert s.sender in s.leaders[0].effects.sending
    again: list[int] = []
    s.sender.reads(lambda _, most: again.append(most))
    assert again[0] == half
    for session, most in asked:
        s.read(session, most)
    assert s.sender.outstanding_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_credit_is_the_sum_of_what_sessions_hold(seed: int) -> None:
    rng = random.Random(seed)
    s = Many(credit=rng.randint(1, 12), partitions=5)
    under_way: list[tuple[ReplicationSession, int]] = []
    for step in range(400):
        number = rng.randrange(5)
        session = s.sessions[number]
        match rng.randrange(7):
            case 0 | 1:
                s.append(number)
            case 2:
                s.sender.reads(s.read if rng.random() < 0.5 else lambda *asked: under_way.append(asked))
            case 3 if under_way:
                s.read(*under_way.pop(rng.randrange(len(under_way))))
            case 4:
                s.sender.take(rng.randint(1, 10) * ENTRY_BYTES)
            case 5 if session.in_flight:
                s.sender.on_ack(number, rng.choice(session.in_flight)[0])
            case 6 if rng.random() < 0.2:
                s.sender.close(number)
                at = rng.randint(0, s.leaders[number].log.log_end_offset)
                s.sessions[number] = s.sender.open(number, s.leaders[number].replica, at)
        s.sender.validate()
        held = [each.held_bytes for each in s.sessions]
        assert s.sender.outstanding_bytes == sum(held), (seed, step)
    while under_way:
        s.read(*under_way.pop())
    for _ in range(3_000):
        s.pass_on(stuck=set())
    assert [s.lag(number) for number in range(5)] == [0] * 5, seed


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
