"""The two streams of a pair of nodes: live partitions, and replicas that are being rebuilt.

A follower opens every partition on the live lane. The leader, who alone knows how far behind it
is, sends those with much to fetch to the catch-up lane, and back when little is left. The lanes
are connections of their own with credits of their own, so that a rebuild, however large, holds
up no batch of a live partition; the catch-up lane is paced as well, for both share one disk.

A replica that acks=all waits for is never sent there, however far behind: its pace would be the
producers' pace, and what they go on sending would keep it behind (decision 0021). Kafka's throttle
spares members of the ISR as well (`ReplicaManager.shouldLeaderThrottle`). And the pace is never below what producers
write to the partitions that are rebuilt, or they would be so for ever. What an operator or an operation allows the node
as a whole is another matter (`catch_up_throttle`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from penstock_core.config.topic import LONG_MAX
from penstock_core.limits import REPLICA_CREDIT_BYTES
from penstock_proto.v1.storage_pb2 import ReplicaHello
from penstock_storage_node.replication.sender import PIECE_SIZES, PieceSizes

Lane: TypeAlias = ReplicaHello.Lane.ValueType
LIVE: Lane = ReplicaHello.LIVE
CATCH_UP: Lane = ReplicaHello.CATCH_UP


NEAR_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Who goes where, and how fast."""

    behind_bytes: int = REPLICA_CREDIT_BYTES
    """A replica with more than that to fetch, and for which no ack waits, leaves the live lane."""
    near_bytes: int = NEAR_BYTES
    """A replica with no more than that to fetch goes back to it."""
    credit_bytes: int = 1024 * 1024
    """What a follower lets be under way to it on a catch-up lane: sent and not written."""
    bytes_per_s: int = 64 * 1024 * 1024
    """How fast a leader feeds one follower's catch-up lane, unless producers write faster to what goes that way;
    0 = as fast as the credit allows."""
    pieces: PieceSizes = PIECE_SIZES
    """How a large batch goes."""

    def lane_after(
        self, lane: Lane, lag_bytes: int, *, is_waited_for: bool, is_throttled: bool = False
    ) -> Lane:
        """Where a replica that has `lag_bytes` to fetch belongs, seen from where it is;
        `is_waited_for`: the high watermark waits for it (`Leadership.waits_for`).

        `is_throttled`: there is a bound on what catching up may take, which is not to be passed by a move of many
        replicas that are each too small for the catch-up lane otherwise.
        """
        if is_waited_for:
            return LIVE
        if lane == LIVE:
            behind = min(self.behind_bytes, 2 * self.near_bytes) if is_throttled else self.behind_bytes
            return CATCH_UP if lag_bytes > behind else LIVE
        return LIVE if lag_bytes <= self.near_bytes else CATCH_UP

    def pace(self, appended_per_s: float, throttle: int = LONG_MAX) -> float:
        """Bytes/s for a catch-up lane to whose partitions producers write `appended_per_s`.

        `throttle` is an operator's bound (`follower.replication.throttled.rate`) and holds whatever is written, as
        in Kafka. Infinite where there is no bound.
        """
        own = max(self.bytes_per_s, GAIN * appended_per_s) if self.bytes_per_s else math.inf
        return min(own, max(throttle, 1) if throttle < LONG_MAX else math.inf)


GAIN = 1.25
"""How much faster than its producers a partition is fed: a lag of L bytes is gone after L / (0.25 x their rate)."""


class AppendRate:
    """How fast a total grows, as of the last two seconds."""

    WINDOW_S = 2.0
    STEP_S = 0.25

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_s(self, now_s: float, total: int) -> float:
        """Take in the total at `now_s`; returns its growth per second. A short time counts as two seconds: a burst is
        no rate."""
        seen = self._seen
        if not seen or now_s - seen[-1][0] >= self.STEP_S:
            seen.append((now_s, total))
        while len(seen) > 1 and now_s - seen[1][0] >= self.WINDOW_S:
            seen.popleft()
        begun_s, before = seen[0]
        return (total - before) / max(now_s - begun_s, self.WINDOW_S)


class Pace:
    """How long to rest, so that what is sent keeps to a rate on average, whatever sending and reading take."""

    def __init__(self, now_s: float, spare_bytes: int) -> None:
        """`spare_bytes`: most that may be sent at once after a time in which nothing was."""
        self._at_s = now_s
        self._owed_bytes = 0.0
        self._spare_bytes = spare_bytes

    def sent(self, size_bytes: int) -> None:
        """That much has gone."""
        self._owed_bytes += size_bytes

    def rest_s(self, now_s: float, rate: float) -> float:
        """How long to rest from now on at `rate` bytes/s; may be asked again meanwhile, with another rate."""
        if math.isinf(rate):
            self._owed_bytes = 0.0
        else:
            passed = (now_s - self._at_s) * rate
            self._owed_bytes = max(self._owed_bytes - passed, -float(self._spare_bytes))
        self._at_s = now_s
        return self._owed_bytes / rate if self._owed_bytes >= 1 else 0.0
