"""How fast this node feeds replicas that others rebuild, and is fed with its own: one budget for each direction.

A budget counts bytes, not times: the clock allows so many, and who sends claims the next ones. Claims are served in
the order in which they came, whatever number of streams there is, so all of them together keep to the rate and none
goes hungry; a rate that changes counts at once for those who wait. What nobody claimed is worth a tenth of a second.

Rates are the nodes' own settings (`leader.replication.throttled.rate`, `follower.replication.throttled.rate`, of a node
and not of a stream, as Kafka's), the one that the controllers tell with heartbeats, and those that operations have for
good, which a node reads in the metadata: their moves come by the same records, and may come before the next heartbeat
does. The lowest counts. Followers in sync never come here: they are on the live lane (see `replication_lanes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock_core.config.catalog import FOLLOWER_RATE, LEADER_RATE, throttled_rate
from penstock_core.config.topic import LONG_MAX
from penstock_core.metadata.operations import OperationsImage
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.replica.registry import PartitionRegistry

TOLD_S = 10.0
"""For how long the rate of an operation holds after it was heard, where the metadata know of none that copies."""
BURST_S = 0.1
"""What may go at once after a time in which little went, in terms of the rate; and what one message should carry."""
MARGIN = 0.02
"""What is left of a rate, so that a burst does not break the bound of any transfer of five seconds or more."""
MESSAGE_BYTES_MIN = 16 * 1024
"""No message is made smaller than that for the sake of the rate."""


class ByteBudget:
    """Bytes that a clock allows. Pure; times in seconds of any one clock that does not go back."""

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._rate = math.inf
        self._allowed = 0.0
        self._claimed = 0.0

    def set_rate(self, rate: float, now_s: float) -> None:
        """From now on so many bytes per second are allowed; infinite: any number."""
        self._pass(now_s)
        self._rate = rate

    def claim(self, size_bytes: int, now_s: float) -> float:
        """Get in line for so many bytes; returns the place, for `wait_s`."""
        self._pass(now_s)
        if not math.isinf(self._rate):
            self._claimed = max(self._claimed, self._allowed - self._rate * BURST_S)
        self._claimed += size_bytes
        return self._claimed

    def give_back(self, size_bytes: int) -> None:
        """Bytes that were claimed will not be used."""
        self._claimed -= size_bytes

    def wait_s(self, place: float, now_s: float) -> float:
        """How long until that place is allowed, as the rate is now."""
        self._pass(now_s)
        left = place - self._allowed
        # Of a byte nobody waits for the rest: sums of fractions are not exact.
        return left / self._rate if left > 0.5 else 0.0

    def is_held_up(self, now_s: float) -> bool:
        """Whether more is claimed than is allowed by now: somebody waits."""
        self._pass(now_s)
        return self._claimed - self._allowed > 0.5

    def _pass(self, now_s: float) -> None:
        if math.isinf(self._rate):
            self._allowed = max(self._allowed, self._claimed)
        else:
            self._allowed += (now_s - self._at_s) * self._rate
        self._at_s = now_s


class Direction:
    """What goes out, or comes in, on all catch-up streams of the node."""

    def __init__(
        self,
        rate: Callable[[float], int],
        clock_s: Callable[[], float],
        message_bytes_min: int = MESSAGE_BYTES_MIN,
    ) -> None:
        """`rate(now_s)`: bytes per second, LONG_MAX for no bound."""
        self._rate = rate
        self._clock_s = clock_s
        self._message_bytes_min = message_bytes_min
        self._budget = ByteBudget(clock_s())
        self.throttled_s = 0.0
        """For how long streams waited, all together."""

    @property
    def limit_bytes_per_s(self) -> int:
        """What counts now; 0 without a bound."""
        rate = self._rate(self._clock_s())
        return 0 if rate >= LONG_MAX else rate

    @property
    def is_held_up(self) -> bool:
        """Whether a stream waits now."""
        return self._budget.is_held_up(self._rerated())

    def message_bytes(self, most: int) -> int:
        """How large a message should be, so that the rate holds over short times."""
        rate = self._rate(self._clock_s())
        return most if rate >= LONG_MAX else min(most, max(int(rate * BURST_S), self._message_bytes_min))

    def claim(self, size_bytes: int) -> float:
        """Get in line for so many bytes; returns the place."""
        return self._budget.claim(size_bytes, self._rerated())

    def give_back(self, size_bytes: int) -> None:
        """Bytes that were claimed will not be used."""
        self._budget.give_back(size_bytes)

    def wait_s(self, place: float) -> float:
        """How long until it is that place's turn; to be asked again after a second, for rates change."""
        return self._budget.wait_s(place, self._rerated())

    def _rerated(self) -> float:
        now_s = self._clock_s()
        rate = self._rate(now_s)
        self._budget.set_rate(math.inf if rate >= LONG_MAX else max(rate, 1) * (1 - MARGIN), now_s)
        return now_s


class CatchUpThrottle:
    """Both directions of one node. Lives on the event loop."""

    def __init__(
        self,
        registry: PartitionRegistry,
        clock_s: Callable[[], float],
        message_bytes_min: int = MESSAGE_BYTES_MIN,
    ) -> None:
        self._registry = registry
        self._clock_s = clock_s
        self._told_bytes_per_s = 0
        self._told_until_s = -math.inf
        self._operations: OperationsImage | None = None
        self._fixed_bytes_per_s = 0
        self._copying = False
        self.out = Direction(lambda now_s: self._rate(LEADER_RATE, now_s), clock_s, message_bytes_min)
        self.into = Direction(lambda now_s: self._rate(FOLLOWER_RATE, now_s), clock_s, message_bytes_min)

    def hear(self, bytes_per_s: int) -> None:
        """What the active controller allows in each direction; 0: it sets no bound."""
        self._told_bytes_per_s = bytes_per_s
        self._told_until_s = self._clock_s() + TOLD_S

    def families(self) -> Iterator[Metric]:
        """For a scrape."""
        limit = GaugeMetricFamily(
            "penstock_node_catch_up_limit_bytes_per_second",
            "What replicas being rebuilt may take of this node now, by settings and by operations; 0 without a bound.",
            labels=("direction",),
        )
        throttled = CounterMetricFamily(
            "penstock_node_catch_up_throttled_seconds",
            "For how long streams of replicas being rebuilt waited for that bound, all streams together.",
            labels=("direction",),
        )
        for name, direction in (("in", self.into), ("out", self.out)):
            limit.add_metric((name,), float(direction.limit_bytes_per_s))
            throttled.add_metric((name,), direction.throttled_s)
        yield limit
        yield throttled

    def _rate(self, key: str, now_s: float) -> int:
        rate = throttled_rate(self._registry.image, self._registry.node_id, key)
        self._look_at(self._registry.image.operations)
        if self._fixed_bytes_per_s:
            rate = min(rate, self._fixed_bytes_per_s)
        told = self._told_bytes_per_s
        return min(rate, told) if told and (self._copying or now_s < self._told_until_s) else rate

    def _look_at(self, operations: OperationsImage) -> None:
        if operations is self._operations:
            return
        self._operations = operations
        copying = [record for record in operations.operations.values() if _copies(record)]
        self._copying = bool(copying)
        fixed = [record.throttle.bytes_per_s for record in copying if record.state in _BEGINS_MOVES]
        self._fixed_bytes_per_s = min((rate for rate in fixed if rate), default=0)


def _copies(operation: pb.OperationRecord) -> bool:
    """It has begun to move replicas, and has not ended (what `effective_bytes_per_s` of the controllers counts)."""
    return operation.moves_total > 0 and operation.state in _GOES_ON


_BEGINS_MOVES: Final = frozenset({pb.OPERATION_STATE_RUNNING, pb.OPERATION_STATE_CANCELLING})
"""Whose rate counts with the record. Of one that is paused the controllers know whether a move is still under way, and
tell its rate as long as that is so."""
_GOES_ON: Final = _BEGINS_MOVES | {pb.OPERATION_STATE_PAUSED}


__all__ = ["ByteBudget", "CatchUpThrottle", "Direction"]
