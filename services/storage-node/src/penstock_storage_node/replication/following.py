"""What a follower does with what its leader sends: open, append, truncate.

Rules (Kafka 4.3, `AbstractFetcherThread`, `UnifiedLog`; KIP-101, 279, 320, 595):

* A session starts with where this log ends and its latest epoch; the leader checks that this
  is a prefix of its own log before it sends anything. The latest epoch may be one that this
  node led without writing anything: the leader then calls it diverging, and the truncation,
  which cuts no data, takes the empty epoch out. Without it the epoch cache would go wrong.
* On divergence: truncate to min(own end of that epoch, leader's end of it), then open again.
* Batches are appended only where the leader says that this log's end is; the first of them may
  begin later, and there may be gaps between them: those records were compacted away. Where an epoch
  begins that lost its first batches so, the leader says (Kafka's doesn't: there a copy takes the first
  batch that is left for the beginning, and later keeps what a returning follower has in the gap).
* The follower's high watermark is min(leader's, own end), set after the append.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.errors import InvariantBroken
from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata.image import PartitionImage
from penstock_storage_node.replication.state import ReplicaState


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What a follower says when it opens a session; see ReplicaOpen of the contract."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    flushed_offset: int


@dataclass(frozen=True, slots=True)
class Truncation:
    """Cut the log to `offset`; `start_over` empties it and goes on from there."""

    offset: int
    start_over: bool = False
    tombstones_gone_below: int = 0
    """Not 0: it starts over because it may hold what these were for."""


class Following:
    """One term of following one leader."""

    def __init__(self, state: ReplicaState, term: PartitionImage) -> None:
        """`term` is the metadata's word on who leads, in which epoch."""
        self._state = state
        self.leader = NodeId(term.leader)
        self.epoch = term.leader_epoch

    @property
    def may_open(self) -> bool:
        """False while appended data is still on its way to the file: what the open says of
        this log must be true of the disk. Nor while a cut is under way, perhaps one that an
        earlier leader asked for: the next leader would ask for one as well, of a log that is no
        more, and that would take away what was appended, and acknowledged, in between."""
        log = self._state.log
        return log.written_offset == log.log_end_offset and not self._state.cuts_under_way

    def open_request(self) -> OpenRequest:
        """What to say to the leader now."""
        log = self._state.log
        return OpenRequest(
            self.epoch, log.log_end_offset, log.latest_epoch, log.log_start_offset, log.flushed_offset
        )

    def on_batches(
        self, base_offset: int, records: bytes | memoryview, epoch_starts: Sequence[tuple[int, int]] = ()
    ) -> bool:
        """Append. False when the batches don't fit this log's end: open again.

        `epoch_starts`: what the leader knows of where epochs begin among these offsets.
        Raises PenstockError CORRUPT_MESSAGE when they are damaged, KAFKA_STORAGE_ERROR when
        this log can take nothing.
        """
        log = self._state.log
        if base_offset != log.log_end_offset:
            return False
        log.append_as_follower(records, self.epoch, base_offset=base_offset, epoch_starts=epoch_starts)
        return True

    def on_watermarks(self, leader_high_watermark: int, leader_log_start_offset: int) -> bool:
        """Take over the leader's high watermark and log start. True when the former rose."""
        state = self._state
        log = state.log
        if leader_log_start_offset > log.log_start_offset:
            log.raise_log_start(min(leader_log_start_offset, log.log_end_offset))
        high_watermark = min(leader_high_watermark, log.log_end_offset)
        if high_watermark <= state.high_watermark:
            return False
        state.high_watermark = high_watermark
        return True

    def on_diverging(self, epoch: int, leader_end_offset: int, tombstones_gone_below: int = 0) -> Truncation:
        """The leader's log parted from ours after `leader_end_offset` of `epoch`."""
        if epoch < 0:
            # The leader knows no epoch as old as ours, or let go of tombstones that we lack: nothing here is of use.
            return Truncation(leader_end_offset, True, tombstones_gone_below)
        own_epoch, own_end = self._state.log.end_offset_for_epoch(epoch)
        if own_epoch < 0:
            return Truncation(leader_end_offset)
        return Truncation(min(own_end, leader_end_offset))

    def on_out_of_range(self, leader_log_start_offset: int, leader_log_end_offset: int) -> Truncation:
        """Our end lies outside the leader's log."""
        if self._state.log.log_end_offset > leader_log_end_offset:
            return Truncation(leader_log_end_offset)
        return Truncation(leader_log_start_offset, start_over=True)

    def validate(self) -> None:
        """Raises InvariantBroken when nobody can be followed like this; for tests and the simulator."""
        state = self._state
        if self.leader in (NO_NODE, state.node_id) or self.epoch < 0:
            raise InvariantBroken(
                f"{state.name}: node {state.node_id} follows node {self.leader} in epoch {self.epoch}"
            )
