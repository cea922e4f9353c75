"""The follower's end of the stream to one leader node: sessions to open, acks to send.

A replica is always in one of four states here: to be opened (perhaps after a pause), open,
held (its log is being cut), or gone. Session numbers are never used twice, so frames of a
session that was given up are told apart by their number alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock_core.limits import BATCH_BYTES_MAX
from penstock_proto.fast.pieces import Assembly, Piece
from penstock_proto.fast.primitives import MalformedMessage
from penstock_storage_node.replication.following import OpenRequest
from penstock_storage_node.replication.replica import PartitionReplica

REOPEN_PAUSE_MS_MIN = 20
REOPEN_PAUSE_MS_MAX = 1000


class SlotState(Enum):
    """Where one replica stands on its stream."""

    WAITING = "waiting"
    OPEN = "open"
    HELD = "held"


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.WAITING
    session: int = 0
    open_at_ms: int = 0
    pause_ms: int = 0
    is_fed: bool = False
    """The open session has had its first frame."""
    assembly: Assembly | None = None
    """Of a batch that comes in pieces."""


@dataclass(slots=True)
class Outgoing:
    """What the next message to the leader says."""

    opens: list[tuple[int, PartitionReplica, OpenRequest]]
    acks: list[tuple[int, PartitionReplica]]
    closes: list[int]

    @property
    def empty(self) -> bool:
        return not (self.opens or self.acks or self.closes)


class FollowerReceiver:
    """Replicas of this node that one other node leads."""

    def __init__(self) -> None:
        self._slots: dict[PartitionReplica, _Slot] = {}
        self._sessions: dict[int, PartitionReplica] = {}
        self._waiting: dict[PartitionReplica, None] = {}
        self._acks: dict[int, PartitionReplica] = {}
        self._closes: list[int] = []
        self._next_session = 1

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, replica: PartitionReplica) -> bool:
        return replica in self._slots

    @property
    def open_count(self) -> int:
        """Sessions that are on."""
        return len(self._sessions)

    @property
    def replicas(self) -> list[PartitionReplica]:
        """Every replica that follows by this stream."""
        return list(self._slots)

    def follow(self, replica: PartitionReplica) -> None:
        """This replica follows the stream's leader from now on, or under a later epoch."""
        self._give_up(replica)
        self._slots[replica] = _Slot()
        self._waiting[replica] = None

    def unfollow(self, replica: PartitionReplica) -> None:
        """This replica follows another leader, leads, or is gone."""
        self._give_up(replica)
        self._slots.pop(replica, None)

    def _give_up(self, replica: PartitionReplica) -> None:
        slot = self._slots.get(replica)
        if slot is not None and slot.state is SlotState.OPEN:
            slot.assembly = None
            del self._sessions[slot.session]
            self._acks.pop(slot.session, None)
            self._closes.append(slot.session)
        self._waiting.pop(replica, None)

    def disconnected(self) -> None:
        """The stream broke: every session ended with it."""
        self._sessions.clear()
        self._acks.clear()
        self._closes.clear()
        for replica, slot in self._slots.items():
            slot.assembly = None
            if slot.state is SlotState.OPEN:
                slot.state = SlotState.WAITING
                slot.open_at_ms = 0
                self._waiting[replica] = None

    def replica_of(self, session: int) -> PartitionReplica | None:
        """The replica that a frame is for; None drops the frame."""
        return self._sessions.get(session)

    def batches_of(
        self, replica: PartitionReplica, records: memoryview | None, piece: Piece | None
    ) -> memoryview | None:
        """What a frame brings to append: its batches, or the batch that its piece completes.

        Raises MalformedMessage when pieces of a batch are missing, and for one that doesn't come next.
        """
        slot = self._slots[replica]
        assembly = slot.assembly
        if piece is None:
            if records is not None and assembly is not None:
                slot.assembly = None
                raise MalformedMessage("other batches come before the last piece of one")
            return records
        if assembly is None:
            assembly = slot.assembly = Assembly(BATCH_BYTES_MAX)
        try:
            batch = assembly.add(piece)
        except MalformedMessage:
            slot.assembly = None
            raise
        if batch is None:
            return None
        slot.assembly = None
        return memoryview(batch)

    def on_data(self, replica: PartitionReplica) -> bool:
        """The leader feeds this session: a later failure starts with a short pause again. True at first."""
        slot = self._slots[replica]
        slot.pause_ms = 0
        is_first, slot.is_fed = not slot.is_fed, True
        return is_first

    def reopen(self, replica: PartitionReplica, now_ms: int, *, pause: bool) -> None:
        """The session ended; open another one, after a growing pause when `pause`."""
        slot = self._slots.get(replica)
        if slot is None:
            return
        self._give_up(replica)
        slot.state = SlotState.WAITING
        slot.open_at_ms = 0
        if pause:
            slot.pause_ms = min(max(slot.pause_ms * 2, REOPEN_PAUSE_MS_MIN), REOPEN_PAUSE_MS_MAX)
            slot.open_at_ms = now_ms + slot.pause_ms
        self._waiting[replica] = None

    def hold(self, replica: PartitionReplica) -> None:
        """No session while the log is cut; `reopen` goes on."""
        slot = self._slots.get(replica)
        if slot is not None:
            self._give_up(replica)
            slot.state = SlotState.HELD

    def on_progress(self, replica: PartitionReplica) -> None:
        """The replica's log was written or flushed further: acknowledge it."""
        slot = self._slots.get(replica)
        if slot is not None and slot.state is SlotState.OPEN:
            self._acks[slot.session] = replica

    def take(self, now_ms: int, opens_max: int = 2000) -> Outgoing:
        """What to send now."""
        opens: list[tuple[int, PartitionReplica, OpenRequest]] = []
        for replica in list(self._waiting):
            slot = self._slots[replica]
            following = replica.following
            if following is None or slot.open_at_ms > now_ms or not following.may_open:
                continue
            if len(opens) >= opens_max:
                break
            del self._waiting[replica]
            slot.state, slot.session = SlotState.OPEN, self._next_session
            slot.is_fed = False
            self._next_session += 1
            self._sessions[slot.session] = replica
            opens.append((slot.session, replica, following.open_request()))
        acks, self._acks = list(self._acks.items()), {}
        closes, self._closes = self._closes, []
        return Outgoing(opens, acks, closes)

    @property
    def waiting(self) -> bool:
        """True while some replica waits to be opened."""
        return bool(self._waiting)
