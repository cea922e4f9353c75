"""Who leads a partition and where it can be dialled, as Describe tells; which nodes were out of reach lately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

AVOIDED_S: Final = 60.0
"""How long a node that could not be reached is left alone."""


@dataclass(frozen=True, slots=True)
class NodeListener:
    """A Kafka listener of a node."""

    host: str
    port: int
    security: str

    @property
    def address(self) -> str:
        """As it is shown."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition. Small and picklable: a plan hands it to the tasks."""

    node_id: int
    epoch: int
    listeners: tuple[NodeListener, ...]
    """That a client may dial; none where only gateways reach the node."""


def leaders(described: Any, wanted: Iterable[tuple[str, int]] | None = None) -> dict[tuple[str, int], Leader]:
    """By topic and partition, of a DescribeResponse. Partitions whose leader is not there are left out."""
    nodes = {each.node_id: _listeners(each) for each in described.nodes if not each.fenced}
    asked = None if wanted is None else set(wanted)
    return {
        (topic.name, part.partition): Leader(part.leader, part.leader_epoch, nodes[part.leader])
        for topic in described.topics
        for part in topic.partitions
        if part.leader in nodes and (asked is None or (topic.name, part.partition) in asked)
    }


def node(described: Any, node_id: int) -> Leader | None:
    """One node of a DescribeResponse as if it led; None when it is not there."""
    for each in described.nodes:
        if each.node_id == node_id and not each.fenced:
            return Leader(node_id, -1, _listeners(each))
    return None


def _listeners(described: Any) -> tuple[NodeListener, ...]:
    return tuple(NodeListener(each.host, each.port, each.security or "PLAINTEXT") for each in described.kafka)


class Reachability:
    """What this process knows of nodes' addresses."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._avoided: dict[tuple[str, int], tuple[float, str]] = {}
        self._reached: set[tuple[str, int]] = set()

    def avoided(self, host: str, port: int) -> str:
        """Why this address is left alone for now; "" when it is not."""
        until_s, reason = self._avoided.get((host, port), (0.0, ""))
        return reason if self._clock_s() < until_s else ""

    def failed(self, host: str, port: int, reason: str) -> None:
        """It did not take a connection."""
        self._avoided[host, port] = self._clock_s() + AVOIDED_S, reason

    def reached(self, host: str, port: int) -> None:
        """It took one."""
        self._avoided.pop((host, port), None)
        self._reached.add((host, port))

    def was_reached(self, host: str, port: int) -> bool:
        """Ever, from this process: then there is a way to it."""
        return (host, port) in self._reached


REACHABILITY: Final = Reachability()
"""That of this process."""
