"""Findings of a check: gravest first, and troubles of many partitions in few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock_core.ids import NodeId
from penstock_proto.v1 import operations_pb2 as pb

ERROR: Final = "error"
"""Somebody is refused, or data is in danger, now."""
WARNING: Final = "warning"
"""One more fault and somebody would be; or it gets there by itself."""
INFO: Final = "info"
"""Good to know, and nothing that has to be done."""
SEVERITIES: Final = (ERROR, WARNING, INFO)

CODES: Final = (
    "offline",
    "under-min-isr",
    "disk-failed",
    "disk-full",
    "node-missing",
    "slot-unclaimed",
    "controller-not-voting",
    "under-replicated",
    "single-replica",
    "domain-unsafe",
    "disk-low",
    "operation-paused",
    "mixed-versions",
    "uneven-replicas",
    "uneven-leaders",
    "level-behind",
    "strays",
)
"""In the order in which they are told, within a severity."""

TOPICS_MAX: Final = 50
"""Topics that have a finding of their own, for each code."""
NAMED_MAX: Final = 10
"""Partitions, nodes or topics that one sentence names."""


def finding(severity: str, code: str, subject: str, detail: str, hint: str) -> pb.Finding:
    """One of them."""
    return pb.Finding(severity=severity, code=code, subject=subject, detail=detail, hint=hint)


def in_order(findings: Iterable[pb.Finding]) -> list[pb.Finding]:
    """Gravest first; those of one code as they came."""
    return sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), CODES.index(f.code)))


def some(names: Sequence[object]) -> str:
    """The first few of them, and how many more there are."""
    shown = ", ".join(map(str, names[:NAMED_MAX]))
    return shown if len(names) <= NAMED_MAX else f"{shown} and {len(names) - NAMED_MAX:,} more"


def nodes_text(node_ids: Iterable[NodeId]) -> str:
    """`node 3`, `nodes 3, 5`."""
    ids = sorted(set(node_ids))
    return f"node{'s' * (len(ids) != 1)} {some(ids)}"


@dataclass(slots=True)
class TopicTrouble:
    """Partitions of one topic that have the same trouble."""

    topic: str
    partition_count: int
    numbers: list[int] = field(default_factory=list)
    """Of those that have it."""

    @property
    def subject(self) -> str:
        """The partition, or the topic of several."""
        if len(self.numbers) == 1:
            return f"partition {self.topic}-{self.numbers[0]}"
        return f"topic {self.topic}"

    @property
    def which(self) -> str:
        """How many partitions of how many, and their numbers."""
        if len(self.numbers) == 1:
            return "it"
        return f"{len(self.numbers):,} of {self.partition_count:,} partitions ({some(self.numbers)})"


class Bounded:
    """Findings of one code, by topic: each of the first has one, all others share one."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._found: list[pb.Finding] = []
        self._others: list[str] = []
        self._partitions = 0
        self._worst = INFO
        self._hint = ""

    def add(self, trouble: TopicTrouble, tell: Callable[[], tuple[str, str, str]]) -> None:
        """`tell()`: severity, detail and hint."""
        severity, detail, hint = tell()
        if len(self._found) < TOPICS_MAX:
            self._found.append(finding(severity, self._code, trouble.subject, detail, hint))
            return
        self._others.append(trouble.topic)
        self._partitions += len(trouble.numbers)
        self._worst = min(self._worst, severity, key=SEVERITIES.index)
        self._hint = self._hint or hint

    def findings(self) -> list[pb.Finding]:
        """All of them."""
        if not self._others:
            return self._found
        subject = f"{len(self._others):,} further topics"
        detail = f"the same of {self._partitions:,} partitions of {some(self._others)}"
        return [*self._found, finding(self._worst, self._code, subject, detail, self._hint)]


__all__ = [
    "CODES",
    "ERROR",
    "INFO",
    "SEVERITIES",
    "TOPICS_MAX",
    "WARNING",
    "Bounded",
    "TopicTrouble",
    "finding",
    "in_order",
    "nodes_text",
    "some",
]
