"""One partition on this node: which role it has, and its high watermark.

The role changes with the leader epoch of the metadata, and a leader begins to lead only
after its log holds the start of the new epoch (`PartitionLog.start_epoch`, which must wait for
a cut of the log that is under way, so the shell does it between `plan` and `lead`, if `plan` has
not told it of another role meanwhile).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_core.metadata.image import PartitionImage
from penstock_storage_node.replication.effects import Effects
from penstock_storage_node.replication.following import Following, OpenRequest, Truncation
from penstock_storage_node.replication.leadership import Leadership
from penstock_storage_node.replication.state import ReplicaLog, ReplicaState


class Change(Enum):
    """What a new state of the partition asks of the shell."""

    NONE = "none"
    LEAD = "lead"  # fail waits (done), record the epoch's start, then call `lead`
    FOLLOW = "follow"  # follow another leader or a later epoch
    IDLE = "idle"  # no leader: wait


@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """A leader's answer to an open: all None means the session is on."""

    error: PenstockError | None = None
    diverging: tuple[int, int] | None = None
    out_of_range: tuple[int, int] | None = None
    tombstones_gone_below: int = 0
    """With `diverging`: it is for these that the follower has to start over."""


_ACCEPTED = OpenAnswer()


class PartitionReplica:
    """State machine of one replica. Hashable by identity."""

    def __init__(
        self,
        key: TopicPartition,
        topic: str,
        node_id: NodeId,
        log: ReplicaLog,
        settings: TopicConfig,
        *,
        high_watermark: int,
        lag_max_ms: int,
        eligible: Callable[[NodeId, int], bool],
        is_full: Callable[[NodeId], bool],
        effects: Effects,
    ) -> None:
        self.state = ReplicaState(key, topic, node_id, log, settings, high_watermark)
        """Shared with the present role."""
        self.key = key
        self.topic = topic
        self.node_id = node_id
        self.log = log
        self.leader_epoch = -1
        self.leader = NO_NODE
        self.leadership: Leadership | None = None
        self.following: Following | None = None
        self._lag_max_ms = lag_max_ms
        self._eligible = eligible
        self._is_full = is_full
        self._effects = effects

    @property
    def name(self) -> str:
        """`topic-partition`, for people."""
        return self.state.name

    @property
    def settings(self) -> TopicConfig:
        """The topic's settings, for this replica."""
        return self.state.settings

    @property
    def high_watermark(self) -> int:
        """Everything below is committed, as far as this replica knows."""
        return self.state.high_watermark

    @property
    def wants_fsync(self) -> bool:
        """Whether the topic's settings ask for a flush before an offset counts."""
        return self.state.wants_fsync

    @property
    def fsync(self) -> bool:
        """Whether offsets count by their flush now."""
        return self.state.fsync

    @property
    def cuts_under_way(self) -> int:
        """Truncations that the shell has been asked for and has not finished; it does the counting."""
        return self.state.cuts_under_way

    @cuts_under_way.setter
    def cuts_under_way(self, count: int) -> None:
        self.state.cuts_under_way = count

    def validate(self) -> None:
        """Raises InvariantBroken when the role does not fit what was planned; for tests and the simulator."""
        self.state.validate()
        leadership, following = self.leadership, self.following
        if leadership is not None:
            if following is not None or self.leader != self.node_id or leadership.epoch != self.leader_epoch:
                raise InvariantBroken(
                    f"{self.name}: node {self.node_id} leads epoch {leadership.epoch},"
                    f" node {self.leader} is to lead epoch {self.leader_epoch}"
                )
            leadership.validate()
            return
        if self.fsync is not self.wants_fsync:
            raise InvariantBroken(f"{self.name}: only a leader may put off counting by the flush")
        if following is not None:
            if following.leader != self.leader or following.epoch != self.leader_epoch:
                raise InvariantBroken(
                    f"{self.name}: follows node {following.leader} in epoch {following.epoch},"
                    f" node {self.leader} leads epoch {self.leader_epoch}"
                )
            following.validate()

    # -- roles --------------------------------------------------------------------

    def plan(self, state: PartitionImage, now_ms: int) -> Change:
        """Take in a state of the metadata; ends the present role when the epoch is newer.

        States of an older leader epoch are ignored. After LEAD the shell calls `lead`.
        """
        if state.leader_epoch < self.leader_epoch:
            return Change.NONE
        if state.leader_epoch == self.leader_epoch and state.leader == self.leader:
            if self.leadership is not None:
                self.leadership.update(state, now_ms)
            return Change.NONE
        self.step_down()
        self.leader_epoch, self.leader = state.leader_epoch, state.leader
        if state.leader == self.node_id:
            return Change.LEAD
        if state.leader == NO_NODE:
            return Change.IDLE
        self.following = Following(self.state, state)
        return Change.FOLLOW

    def lead(self, state: PartitionImage, now_ms: int) -> None:
        """Start to lead: the log holds the epoch's start. `state` may be newer than the one
        planned with, of the same leader epoch."""
        if state.leader_epoch != self.leader_epoch or state.leader != self.node_id:
            return
        self.leadership = Leadership(
            self.state,
            state,
            epoch_start_offset=self.log.log_end_offset,
            now_ms=now_ms,
            lag_max_ms=self._lag_max_ms,
            eligible=self._eligible,
            is_full=self._is_full,
            effects=self._effects,
        )

    def step_down(self) -> None:
        """End the present role, if any."""
        if self.leadership is not None:
            self.leadership.resign()
            self.leadership = None
        self.following = None
        self.state.fsync = self.state.wants_fsync

    def update_settings(self, settings: TopicConfig, now_ms: int) -> None:
        """New topic settings. They count from here on, but for a leader's switch to fsync,
        which takes effect once every ISR member has flushed past the high watermark."""
        mine = self.state
        mine.settings = settings
        mine.wants_fsync = settings.durability == "fsync"
        if self.leadership is None or not mine.wants_fsync:
            mine.fsync = mine.wants_fsync
        if self.leadership is not None:
            self.leadership.on_local_progress(now_ms)

    def on_truncated(self) -> bool:
        """The log was cut. True when it was cut below the high watermark, which only an
        unclean election explains."""
        mine, end = self.state, self.log.log_end_offset
        below = end < mine.high_watermark
        mine.high_watermark = max(min(mine.high_watermark, end), self.log.log_start_offset)
        return below

    # -- leader -------------------------------------------------------------------

    def require_leader(self, current_leader_epoch: int = -1) -> Leadership:
        """The leadership, or NOT_LEADER_OR_FOLLOWER; a caller's epoch is checked (KIP-320)."""
        leadership = self.leadership
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise PenstockError(
                    ErrorCode.FENCED_LEADER_EPOCH,
                    f"{self.name}: leader epoch {current_leader_epoch} is over, it is {self.leader_epoch} now",
                )
            raise PenstockError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{self.name}: leader epoch {current_leader_epoch} is not known here yet"
                f" (here: {self.leader_epoch})",
            )
        if leadership is None:
            raise PenstockError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"node {self.node_id} does not lead {self.name}, node {self.leader} does",
            )
        return leadership

    def on_open(self, node: NodeId, node_epoch: int, request: OpenRequest, now_ms: int) -> OpenAnswer:
        """A follower asks for a session: is its log a prefix of ours?"""
        try:
            leadership = self.require_leader(request.leader_epoch)
        except PenstockError as e:
            return OpenAnswer(error=e)
        if node not in leadership.followers:
            message = f"node {node} is no replica of {self.name}"
            return OpenAnswer(error=PenstockError(ErrorCode.REPLICA_NOT_AVAILABLE, message))
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        is_empty = request.log_start_offset == request.fetch_offset
        # Where our start lies inside a batch, an empty log begins before it, to have that batch whole.
        if request.fetch_offset < (log.first_segment_offset if is_empty else start):
            return OpenAnswer(out_of_range=(start, end))
        if request.last_fetched_epoch >= 0:
            epoch, epoch_end = log.end_offset_for_epoch(request.last_fetched_epoch)
            if epoch < 0:
                return OpenAnswer(diverging=(-1, start))
            if epoch < request.last_fetched_epoch or epoch_end < request.fetch_offset:
                return OpenAnswer(diverging=(epoch, epoch_end))
        if request.fetch_offset > end:
            return OpenAnswer(out_of_range=(start, end))
        if not is_empty and leadership.misses_tombstones(node, node_epoch, request.fetch_offset):
            # It starts over (decision 0027).
            return OpenAnswer(diverging=(-1, start), tombstones_gone_below=log.tombstones_gone_below)
        leadership.on_follower_open(
            node, node_epoch, request.fetch_offset, request.flushed_offset, now_ms, is_empty=is_empty
        )
        return _ACCEPTED


__all__ = [
    "Change",
    "OpenAnswer",
    "OpenRequest",
    "PartitionReplica",
    "ReplicaLog",
    "ReplicaState",
    "Truncation",
]
