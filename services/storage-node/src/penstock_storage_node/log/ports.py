"""What a log asks of its surroundings, and what they keep of it outside of its own directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock_storage_node.log.fs import FileSystem


class CheckpointPort(Protocol):
    """The rows of one log in the checkpoint files of its data directory."""

    def lower(self, offset: int) -> None:
        """Make it durable that nothing from `offset` on counts as flushed or compacted any more (pool).

        Called before anything below the recovery point is cut off. Raises OSError; the rows are then
        as they were.
        """

    def mark_gaps(self) -> None:
        """Make it durable that the log may have gaps, before the first one is written (pool). Raises OSError."""

    @property
    def cleaned_until(self) -> int:
        """Where the compacted part ends, 0 when there is none (never blocks)."""

    @property
    def tombstones_gone_below(self) -> int:
        """See `OffsetFiles.note_tombstones_gone`; 0 when none are (never blocks)."""


class NotCheckpointed:
    """For a log of which nothing is kept: its next start scans it."""

    def lower(self, offset: int) -> None:
        """Nothing to lower."""

    def mark_gaps(self) -> None:
        """Nobody to tell."""

    @property
    def cleaned_until(self) -> int:
        """Nothing is known to be."""
        return 0

    @property
    def tombstones_gone_below(self) -> int:
        """None."""
        return 0


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """What a data directory knows of a log before it is opened."""

    recovery_point: int | None = None
    """Everything below was flushed; None: not known, then all is scanned unless the stop was clean."""
    log_start_offset: int | None = None
    """None: where the first segment begins."""
    high_watermark: int = 0
    may_have_gaps: bool = False
    """It is or was compacted, or follows such a log."""
    is_clean: bool = False
    """The last process closed all logs: nothing needs a scan."""


@dataclass(frozen=True, slots=True)
class LogPorts:
    """The world outside of one log."""

    fs: FileSystem
    clock_ms: Callable[[], int]
    """Wall clock, ms since 1970."""
    checkpoints: CheckpointPort = field(default_factory=NotCheckpointed)
    steady_ms: Callable[[], int] | None = None
    """A clock that nobody sets; None where the wall clock is such a one."""

    def idle_clock_ms(self) -> int:
        """By which producers go idle."""
        return (self.steady_ms or self.clock_ms)()
