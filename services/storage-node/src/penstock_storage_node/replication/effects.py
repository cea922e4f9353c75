"""What steps of the replication state machines want done by the shell around them.

One `Effects` belongs to a whole node. The shell drains it once per turn of its loop, so
that many small steps become one answer, one proposal call, one frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId
from penstock_storage_node.replication.state import ReplicaState


class AckWaiter(Protocol):
    """Whoever waits for an append to be acknowledged."""

    def acknowledge(self, error: ErrorCode) -> None:
        """Called once, from the shell's drain, never from inside a step."""


class OutgoingStream(Protocol):
    """A leader's stream to one follower (`LeaderSender`). Hashable by identity."""

    node: NodeId

    @property
    def more(self) -> bool:
        """True when it has something to send."""
        ...


class AwaitedLeadership(Protocol):
    """A leadership (`Leadership`) of whose appends somebody waits for an ack. Hashable by identity."""

    @property
    def waiting_count(self) -> int:
        """Requests that wait."""
        ...

    def expire(self, now_ms: int) -> None:
        """Answer those whose time is up."""
        ...


@dataclass(slots=True)
class Effects:
    """Instructions gathered since the last drain; dicts are ordered sets."""

    answers: list[tuple[AckWaiter, ErrorCode]] = field(default_factory=list)
    """Waiters whose append is decided."""
    advanced: dict[ReplicaState, None] = field(default_factory=dict)
    """Partitions whose high watermark moved: readers wake, followers are told."""
    proposals: dict[ReplicaState, None] = field(default_factory=dict)
    """Partitions with an ISR proposal to send."""
    reopen: list[tuple[ReplicaState, NodeId]] = field(default_factory=list)
    """Followers whose session is to end, so that they open another one."""
    sending: dict[OutgoingStream, None] = field(default_factory=dict)
    """Streams to followers that have something to send."""
    waiting: dict[AwaitedLeadership, None] = field(default_factory=dict)
    """Those of which somebody waits, or did a moment ago. No drain takes them: `BackgroundJobs` does, by the clock."""
    isr_shrink_count: int = 0
    isr_expand_count: int = 0

    @property
    def empty(self) -> bool:
        """True when there is nothing to drain."""
        return not (self.answers or self.advanced or self.proposals or self.sending or self.reopen)
