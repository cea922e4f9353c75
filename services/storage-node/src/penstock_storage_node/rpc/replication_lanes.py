"""The two streams of a pair of nodes: live partitions, and replicas that are being rebuilt.

A follower opens every partition on the live lane. The leader, who alone knows how far behind it
is, sends those with much to fetch to the catch-up lane, and back when little is left. The lanes
are connections of their own with credits of their own, so that a rebuild, however large, holds
up no batch of a live partition; the catch-up lane is paced as well, for both share one disk.

A replica that acks=all waits for is never sent there, however far behind: its pace would be the
producers' pace, and what they go on sending would keep it behind (decision 0021). Kafka's throttle
spares members of the ISR as well (`ReplicaManager.shouldLeaderThrottle`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock_core.config.topic import LONG_MAX
from penstock_core.limits import REPLICA_CREDIT_BYTES
from penstock_proto.v1.storage_pb2 import ReplicaHello

Lane: TypeAlias = ReplicaHello.Lane.ValueType
LIVE: Lane = ReplicaHello.LIVE
CATCH_UP: Lane = ReplicaHello.CATCH_UP


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Who goes where, and how fast."""

    behind_bytes: int = REPLICA_CREDIT_BYTES
    """A replica with more than that to fetch, and for which no ack waits, leaves the live lane."""
    near_bytes: int = 256 * 1024
    """A replica with no more than that to fetch goes back to it."""
    credit_bytes: int = 1024 * 1024
    """What a follower lets be under way to it on a catch-up lane: sent and not written."""
    bytes_per_s: int = 64 * 1024 * 1024
    """How fast a leader feeds one follower's catch-up lane; 0 = as fast as the credit allows."""

    def lane_after(self, lane: Lane, lag_bytes: int, *, is_waited_for: bool) -> Lane:
        """Where a replica that has `lag_bytes` to fetch belongs, seen from where it is;
        `is_waited_for`: the high watermark waits for it (`Leadership.waits_for`)."""
        if is_waited_for:
            return LIVE
        if lane == LIVE:
            return CATCH_UP if lag_bytes > self.behind_bytes else LIVE
        return LIVE if lag_bytes <= self.near_bytes else CATCH_UP

    def pause_s(self, lane: Lane, sent_bytes: int, throttle: int = LONG_MAX) -> float:
        """How long to rest after that many bytes; `throttle` is another bound, in bytes/s."""
        if lane != CATCH_UP:
            return 0.0
        rate = min(self.bytes_per_s or LONG_MAX, max(throttle, 1))
        return 0.0 if rate == LONG_MAX else sent_bytes / rate
