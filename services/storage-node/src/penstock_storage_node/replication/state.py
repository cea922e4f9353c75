"""What every part of a replica's state machine knows: which partition, its log, its high watermark.

`PartitionReplica` owns one and hands it to its present `Leadership` or `Following`. Who changes what:

| field | changed by |
|---|---|
| `high_watermark` | the leader's rules, or what a follower's leader says; a cut lowers it |
| `fsync` | new settings and the end of a role; `Leadership` once its ISR has flushed |
| `settings`, `wants_fsync` | `PartitionReplica.update_settings` |
| `cuts_under_way` | the shell, which does the cuts |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import InvariantBroken
from penstock_core.ids import NodeId, TopicPartition


class ReplicaLog(Protocol):
    """What replication reads and does of a `PartitionLog`."""

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""

    @property
    def first_segment_offset(self) -> int:
        """Where the files begin, at or below the log start."""

    @property
    def log_end_offset(self) -> int:
        """Next offset to be given."""

    @property
    def written_offset(self) -> int:
        """End of what the operating system has."""

    @property
    def flushed_offset(self) -> int:
        """End of what is on the disk."""

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch known, -1 when none."""

    @property
    def tombstones_gone_below(self) -> int:
        """Below it tombstones may be missing, and no record is there that one of them was for; 0: none are."""

    @property
    def clean_until(self) -> int:
        """Below it no record is there for which a later tombstone was written below it."""

    def append_as_follower(
        self,
        records: bytes | memoryview,
        leader_epoch: int,
        *,
        base_offset: int | None = None,
        epoch_starts: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Append the leader's batches at the end of the log, which the leader takes to be `base_offset`.

        `epoch_starts`: (leader epoch, start offset) of those that begin among them or in the gaps before them.
        """

    def epoch_starts_between(self, from_offset: int, to_offset: int) -> tuple[tuple[int, int], ...]:
        """(leader epoch, start offset) of those that begin in from_offset <= start < to_offset."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch found, its end offset); (-1, -1) when unknown."""

    def raise_log_start(self, offset: int) -> None:
        """Forget what lies below `offset`."""


class ReplicaState:
    """Identity, log and the few numbers of one replica on this node. Hashable by identity."""

    __slots__ = (
        "cuts_under_way",
        "fsync",
        "high_watermark",
        "key",
        "log",
        "node_id",
        "settings",
        "topic",
        "wants_fsync",
    )

    def __init__(
        self,
        key: TopicPartition,
        topic: str,
        node_id: NodeId,
        log: ReplicaLog,
        settings: TopicConfig,
        high_watermark: int,
    ) -> None:
        self.key = key
        self.topic = topic
        self.node_id = node_id
        self.log = log
        self.settings = settings
        self.wants_fsync = settings.durability == "fsync"
        """What the topic's settings ask for."""
        self.fsync = self.wants_fsync
        """Whether offsets count by their flush now: a leader that is switched to it goes on
        counting written ones until `Leadership` finds the whole ISR flushed past the high watermark."""
        self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)
        self.cuts_under_way = 0
        """Truncations that the shell has been asked for and has not finished."""

    @property
    def name(self) -> str:
        """`topic-partition`, for people."""
        return f"{self.topic}-{self.key.partition}"

    @property
    def effective_end_offset(self) -> int:
        """End of what this replica may be counted on for: flushed, or written (rule "Flushed means flushed")."""
        return self.log.flushed_offset if self.fsync else self.log.written_offset

    def validate(self) -> None:
        """Raises InvariantBroken when these do not fit together; for tests and the simulator."""
        if self.cuts_under_way < 0:
            raise InvariantBroken(f"{self.name}: {self.cuts_under_way} cuts are under way")
        if self.fsync and not self.wants_fsync:
            raise InvariantBroken(f"{self.name}: offsets count by a flush that nobody asks for")
        if not self.cuts_under_way and self.high_watermark > self.log.log_end_offset:
            raise InvariantBroken(
                f"{self.name}: high watermark {self.high_watermark} above the log's end"
                f" {self.log.log_end_offset}"
            )
