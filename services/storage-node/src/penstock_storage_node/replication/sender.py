"""The leader's end of one Replicate stream: sessions, credit, what goes out next.

Batches are pushed straight from the append: the buffers that wait to be written to this
node's own file wait here too, shared, not copied. A session that the credit has no room for
falls behind and is fed by reads of the log until it has caught up, when pushing goes on.
Live sessions come first in every message, and reads may use half of the credit only, so a
replica that is rebuilt never holds up live ones.

A batch above WHOLE_BATCH_BYTES_MAX goes in pieces, between which other sessions have their turn. It
counts as half of the credit, so that it may go at all and others go on beside it: two such batches
may be under way at most, and one is read at a time.

A log of the follower that does not write (a job of it hangs, a cut takes long) keeps what it was sent, which may be all
of the credit. So there is a reserve beside it, a quarter as large, for sessions that hold nothing: one batch or one
short read each. The others go on by it, at least by one batch at a time, whatever one log holds. Several logs of
one follower that hang while its disk does not may use up the reserve as well, each with one batch; a hung disk ends
the node's session. Large batches do not go by the reserve: two of them fill the memory of a follower as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_core.ids import NodeId
from penstock_core.limits import PIECE_BYTES, WHOLE_BATCH_BYTES_MAX
from penstock_proto.fast.pieces import cut
from penstock_storage_node.replication.effects import Effects
from penstock_storage_node.replication.replica import PartitionReplica

Buffer = bytes | bytearray | memoryview

SESSION_MESSAGE_BYTES_MAX = 1024 * 1024
"""Most bytes of one session in one message, so that sessions take turns."""

READ_BYTES_MAX = 1024 * 1024
"""Most bytes of one read for a session that is behind."""


@dataclass(frozen=True, slots=True)
class PieceSizes:
    """What goes whole, and the pieces of what does not."""

    whole_bytes: int = WHOLE_BATCH_BYTES_MAX
    piece_bytes: int = PIECE_BYTES


PIECE_SIZES = PieceSizes()


@dataclass(slots=True, eq=False)
class ReplicationSession:
    """One partition on one stream, as the leader sees it."""

    sender: LeaderSender
    number: int
    replica: PartitionReplica
    next_offset: int
    """Offset after the last batch queued: what comes next."""
    live: bool
    """True while appends are pushed; False while reads feed the session."""
    queue: deque[tuple[int, int, list[Buffer], int]] = field(default_factory=deque)
    """(base offset, end offset, buffers, bytes) to send."""
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """(end offset, bytes charged) sent and not acknowledged."""
    pieces: Iterator[tuple[list[memoryview], int]] | None = None
    """What is left to send of the first in the queue, when that goes in pieces."""
    pieces_sent_bytes: int = 0
    reading: bool = False
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1
    closed: bool = False
    is_fed: bool = False
    """Something was queued: the next batch begins at `next_offset`, or after a gap."""
    held_bytes: int = 0
    """Charged for what is queued and in flight."""
    asked_bytes: int = 0
    """Set aside for the read under way, in the credit."""
    reserved_bytes: int = 0
    """Set aside in the reserve: for the read under way, or for the oldest batch that it holds."""


@dataclass(slots=True)
class DataFrame:
    """One ReplicaData to send; without an event it carries only the two offsets."""

    session: int
    high_watermark: int = -1
    log_start_offset: int = -1
    tombstones_gone_below: int = 0
    """0 unless it lies above the offset that the frame is for."""
    base_offset: int = -1
    buffers: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    epoch_starts: Sequence[tuple[int, int]] = ()
    """(leader epoch, start offset) of those that begin among the offsets of `buffers` or in gaps before them."""
    piece_of: tuple[int, int] | None = None
    """`buffers` are a piece of one batch: (its bytes, how many of them came before)."""
    diverging: tuple[int, int] | None = None
    out_of_range: tuple[int, int] | None = None
    error: tuple[ErrorCode, str] | None = None
    move: int | None = None
    """Lane on which to open again."""


class LeaderSender:
    """State of one follower's stream. Hashable by identity."""

    def __init__(
        self,
        node: NodeId,
        node_epoch: int,
        credit_bytes: int,
        effects: Effects,
        *,
        catch_up: bool = False,
        read_bytes_max: int = READ_BYTES_MAX,
        takes_pieces: bool = True,
        pieces: PieceSizes = PIECE_SIZES,
    ) -> None:
        """`catch_up`: a stream for sessions that are behind. All of its credit goes to reads, and a
        session that has reached the end waits for its `move`, which the next read leads to.
        `takes_pieces`: the follower's build knows them."""
        self._takes_pieces = takes_pieces
        self._whole_bytes, self._piece_bytes = pieces.whole_bytes, pieces.piece_bytes
        self._large_read: ReplicationSession | None = None
        """Whose read may bring in a batch that goes in pieces."""
        self._catch_up = catch_up
        self._read_credit_bytes = credit_bytes if catch_up else credit_bytes // 2
        self.read_bytes_max = read_bytes_max
        """Most bytes of the next reads."""
        self.node = node
        self.node_epoch = node_epoch
        self._credit_bytes = credit_bytes
        self._effects = effects
        self.appended_bytes = 0
        """What producers have written to its partitions while it was open."""
        self._reserve_bytes = credit_bytes // 4
        self._shared_bytes = 0
        """What is outstanding within the credit."""
        self._asked_bytes = 0
        self._reserved_bytes = 0
        self._sessions: dict[int, ReplicationSession] = {}
        self._dirty: dict[ReplicationSession, None] = {}
        self._told: deque[DataFrame] = deque()
        self._behind: dict[int, ReplicationSession] = {}

    # -- sessions -----------------------------------------------------------------

    @property
    def sessions(self) -> Iterable[ReplicationSession]:
        """Every open session."""
        return self._sessions.values()

    @property
    def outstanding_bytes(self) -> int:
        """Queued and sent bytes that the follower has not acknowledged."""
        return sum(session.held_bytes for session in self._sessions.values())

    def validate(self) -> None:
        """Raises InvariantBroken when what is accounted for is not what sessions hold."""
        sessions = self._sessions.values()
        for session in sessions:
            queued = sum(self._charge(item[3]) for item in session.queue)
            queued += sum(charged for _, charged in session.in_flight)
            _must(session.held_bytes == queued, "a session holds what is queued and in flight", session)
            _must(session.reading or not session.asked_bytes, "only reads are set aside for", session)
            _must(not (session.reading and session.live), "what is live is not read", session)
        reserved = sum(s.reserved_bytes for s in sessions)
        in_reserve = sum(s.reserved_bytes for s in sessions if s.held_bytes)
        held = sum(s.held_bytes for s in sessions)
        _must(reserved == self._reserved_bytes, "the reserve is what sessions have of it", reserved)
        _must(held - in_reserve == self._shared_bytes, "the credit is what sessions hold of it", held)
        asked = sum(s.asked_bytes for s in sessions)
        _must(asked == self._asked_bytes, "what is set aside is for reads under way", asked)

    def open(self, number: int, replica: PartitionReplica, fetch_offset: int) -> ReplicationSession:
        """The leader has accepted an open; sending starts at `fetch_offset`."""
        live = fetch_offset == replica.log.log_end_offset
        session = ReplicationSession(self, number, replica, fetch_offset, live)
        self._sessions[number] = session
        if not live:
            self._behind[number] = session
        # An empty first frame tells the follower that the session is on.
        self.mark(session)
        return session

    def tell(self, frame: DataFrame) -> None:
        """Queue a frame that is no data: divergence, out of range, an error."""
        self._told.append(frame)
        self._effects.sending[self] = None

    def close(self, number: int) -> ReplicationSession | None:
        """Forget a session, e.g. because the follower gave it up."""
        session = self._sessions.pop(number, None)
        if session is None:
            return None
        session.closed = True
        self._behind.pop(number, None)
        self._dirty.pop(session, None)
        self._forget_read(session)
        self._release(session, session.held_bytes)
        session.queue.clear()
        session.in_flight.clear()
        session.pieces = None
        if self._large_read is session:
            self._large_read = None
        if self._behind:
            self._effects.sending[self] = None  # what it held is free
        return session

    def end(self, session: ReplicationSession, code: ErrorCode, message: str) -> None:
        """Close a session and tell the follower why."""
        if self.close(session.number) is not None:
            self.tell(DataFrame(session.number, error=(code, message)))

    def start_over(self, session: ReplicationSession, offset: int, log_end_offset: int) -> None:
        """Close a session: the follower is to empty its log and begin at `offset`."""
        if self.close(session.number) is not None:
            self.tell(DataFrame(session.number, out_of_range=(offset, log_end_offset)))

    def move(self, session: ReplicationSession, lane: int) -> None:
        """Close a session: the follower is to open it again on the pair's other stream."""
        if self.close(session.number) is not None:
            self.tell(DataFrame(session.number, move=lane))

    # -- what happens -------------------------------------------------------------

    def on_append(
        self, session: ReplicationSession, base_offset: int, end_offset: int, buffers: list[Buffer], size: int
    ) -> None:
        """The leader has appended: push it, or let the session fall behind."""
        self.appended_bytes += size
        if not session.live:
            return
        charged, used = self._charge(size), self._reserved_bytes
        is_over = self._shared_bytes > 0 and self._shared_bytes + charged > self._credit_bytes
        has_no_room = is_over and (
            session.held_bytes > 0
            or size > self._whole_bytes
            or (used > 0 and used + charged > self._reserve_bytes)
        )
        if has_no_room or not self.takes(size):
            session.live = False
            self._behind[session.number] = session
            return
        self._enqueue(session, base_offset, end_offset, buffers, size, is_reserved=is_over)

    def on_read(
        self, session: ReplicationSession, base_offset: int, end_offset: int, buffers: list[Buffer], size: int
    ) -> None:
        """A read for a session that is behind has come back."""
        session.reading = False
        if self._large_read is session:
            self._large_read = None
        if session.closed:
            return
        is_reserved = self._forget_read(session)
        if size:
            # The first batch begins later where compaction took what came before it.
            begin = min(base_offset, session.next_offset)
            self._enqueue(session, begin, end_offset, buffers, size, is_reserved=is_reserved)
        if session.next_offset == session.replica.log.log_end_offset and not self._catch_up:
            session.live = True
            self._behind.pop(session.number, None)

    def _forget_read(self, session: ReplicationSession) -> bool:
        """Nothing is set aside for a read any more; returns whether it was in the reserve."""
        self._asked_bytes -= session.asked_bytes
        session.asked_bytes = 0
        if session.held_bytes or not session.reserved_bytes:
            return False
        self._reserved_bytes -= session.reserved_bytes
        session.reserved_bytes = 0
        return True

    def _enqueue(
        self,
        session: ReplicationSession,
        base_offset: int,
        end_offset: int,
        buffers: list[Buffer],
        size: int,
        *,
        is_reserved: bool,
    ) -> None:
        charged = self._charge(size)
        session.held_bytes += charged
        if is_reserved:
            session.reserved_bytes = charged
            self._reserved_bytes += charged
        else:
            self._shared_bytes += charged
        session.queue.append((base_offset, end_offset, buffers, size))
        session.next_offset = end_offset
        session.is_fed = True
        self.mark(session)

    def _release(self, session: ReplicationSession, charged: int) -> None:
        """That much of what it holds, the oldest first, is acknowledged or forgotten."""
        session.held_bytes -= charged
        self._shared_bytes -= charged - session.reserved_bytes
        self._reserved_bytes -= session.reserved_bytes
        session.reserved_bytes = 0

    def _charge(self, size: int) -> int:
        """What so many bytes take of the credit."""
        return size if size <= self._whole_bytes else min(size, self._credit_bytes // 2)

    def takes(self, size: int) -> bool:
        """Whether the follower can be sent a batch of that size."""
        return size <= self._whole_bytes or self._takes_pieces

    def mark(self, session: ReplicationSession) -> None:
        """Something of this session is to be sent: data, or a new high watermark."""
        self._dirty[session] = None
        self._effects.sending[self] = None

    def on_ack(self, number: int, end_offset: int) -> ReplicationSession | None:
        """The follower has written up to `end_offset`; frees the credit of it."""
        session = self._sessions.get(number)
        if session is None:
            return None
        in_flight = session.in_flight
        freed = 0
        while in_flight and in_flight[0][0] <= end_offset:
            freed += in_flight.popleft()[1]
        if freed:
            self._release(session, freed)
        if self._behind:
            self._effects.sending[self] = None
        return session

    # -- what to do ---------------------------------------------------------------

    def take(self, max_bytes: int) -> list[DataFrame]:
        """Frames of the next message, live sessions first; at least one batch if any waits."""
        frames: list[DataFrame] = []
        while self._told and len(frames) < _FRAMES_MAX:
            frames.append(self._told.popleft())
        budget = max_bytes
        for wanted in (True, False) if self._behind else (None,):
            for session in [s for s in self._dirty if wanted is None or s.live == wanted]:
                if budget <= 0 or len(frames) >= _FRAMES_MAX:
                    return frames
                frame = self._frame(session, budget)
                if frame is not None:
                    frames.append(frame)
                    budget -= frame.size_bytes
                del self._dirty[session]
                if session.queue:
                    self._dirty[session] = None  # to the end of the line
        return frames

    def _frame(self, session: ReplicationSession, budget: int) -> DataFrame | None:
        replica = session.replica
        high_watermark, log_start = replica.high_watermark, replica.log.log_start_offset
        queue = session.queue
        if (
            not queue
            and session.sent_high_watermark == high_watermark
            and session.sent_log_start_offset == log_start
        ):
            return None
        frame = DataFrame(session.number, high_watermark, log_start)
        session.sent_high_watermark, session.sent_log_start_offset = high_watermark, log_start
        gone_below = replica.log.tombstones_gone_below
        if gone_below > (queue[0][0] if queue else session.next_offset):
            frame.tombstones_gone_below = gone_below
        if queue and queue[0][3] > self._whole_bytes:
            self._put_piece(session, frame)
            return frame
        limit = min(budget, SESSION_MESSAGE_BYTES_MAX)
        while queue and (not frame.size_bytes or frame.size_bytes + queue[0][3] <= limit):
            base, end, buffers, size = queue.popleft()
            if not frame.size_bytes:
                frame.base_offset = base
            frame.buffers.extend(buffers)
            frame.size_bytes += size
            session.in_flight.append((end, size))
        if frame.size_bytes:
            frame.epoch_starts = replica.log.epoch_starts_between(frame.base_offset, end)
        return frame

    def _put_piece(self, session: ReplicationSession, frame: DataFrame) -> None:
        """The next piece of the first in the queue."""
        base, end, buffers, total_bytes = session.queue[0]
        if session.pieces is None:
            session.pieces, session.pieces_sent_bytes = cut(buffers, self._piece_bytes), 0
        piece, size = next(session.pieces)
        frame.base_offset, frame.size_bytes = base, size
        frame.epoch_starts = session.replica.log.epoch_starts_between(base, end)
        frame.buffers.extend(piece)
        frame.piece_of = (total_bytes, session.pieces_sent_bytes)
        session.pieces_sent_bytes += size
        if session.pieces_sent_bytes == total_bytes:
            session.pieces = None
            session.queue.popleft()
            session.in_flight.append((end, self._charge(total_bytes)))

    @property
    def more(self) -> bool:
        """True when `take` would give something."""
        return bool(self._told or self._dirty)

    def reads(self, start: Callable[[ReplicationSession, int], None]) -> None:
        """Start reads for sessions that are behind, in turn, within their share of the credit.

        `start(session, max_bytes)` must lead to `on_read`, now or later, or to the session's end.
        """
        for number in list(self._behind):
            session = self._behind.get(number)
            if session is None or session.reading or session.queue:
                continue
            room = self._read_credit_bytes - self._shared_bytes - self._asked_bytes
            is_reserved = room <= 0
            if is_reserved:
                room = min(self._reserve_bytes - self._reserved_bytes, self._reserve_bytes // 4 + 1)
                if room <= 0:
                    return
                if session.held_bytes:
                    continue
            may_be_large = session.replica.settings.max_message_bytes > self._whole_bytes
            if may_be_large and (is_reserved or self._large_read is not None):
                continue
            # In turn: this one goes to the end of the line.
            del self._behind[number]
            self._behind[number] = session
            session.reading = True
            if may_be_large:
                self._large_read = session
            room = min(room, self.read_bytes_max)
            if is_reserved:
                session.reserved_bytes = room
                self._reserved_bytes += room
            else:
                session.asked_bytes = room
                self._asked_bytes += room
            start(session, room)


def _must(holds: bool, rule: str, found: object) -> None:
    if not holds:
        raise InvariantBroken(f"replication sender: {rule} ({found})")


_FRAMES_MAX = 4096
"""Frames of one message, beside its bytes: opening 10,000 partitions is many messages."""
