"""What steps of the replication state machines want done by the shell around them.

One `Effects` belongs to a whole node. The shell drains it once per turn of its loop, so
that many small steps become one answer, one proposal call, one frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId

if TYPE_CHECKING:
    from penstock_storage_node.replication.replica import PartitionReplica
    from penstock_storage_node.replication.sender import LeaderSender


class AckWaiter(Protocol):
    """Whoever waits for an append to be acknowledged."""

    def acknowledge(self, error: ErrorCode) -> None:
        """Called once, from the shell's drain, never from inside a step."""


@dataclass(slots=True)
class Effects:
    """Instructions gathered since the last drain; dicts are ordered sets."""

    answers: list[tuple[AckWaiter, ErrorCode]] = field(default_factory=list)
    """Waiters whose append is decided."""
    advanced: dict[PartitionReplica, None] = field(default_factory=dict)
    """Partitions whose high watermark moved: readers wake, followers are told."""
    proposals: dict[PartitionReplica, None] = field(default_factory=dict)
    """Partitions with an ISR proposal to send."""
    reopen: list[tuple[PartitionReplica, NodeId]] = field(default_factory=list)
    """Followers whose session is to end, so that they open another one."""
    sending: dict[LeaderSender, None] = field(default_factory=dict)
    """Streams to followers that have something to send."""
    isr_shrink_count: int = 0
    isr_expand_count: int = 0

    @property
    def empty(self) -> bool:
        """True when there is nothing to drain."""
        return not (self.answers or self.advanced or self.proposals or self.sending or self.reopen)
