"""What a step changed of a partition, as one line of an event: written by controllers, read back where a story is told.

    leader 2 -> 3, epoch 5, from ISR, ISR 1,2,3 -> 1,3

Only what changed is named. A reader passes over parts that it does not know. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock_core.ids import NO_NODE
from penstock_core.metadata import PartitionImage

LEADER: Final = "leader"
ISR: Final = "isr"
REPLICAS: Final = "replicas"
"""Kinds of events of a partition, by the most important thing that changed."""

FROM_ISR: Final = "ISR"
FROM_ELR: Final = "ELR"
UNCLEAN: Final = "outside"
_NONE: Final = "none"
_ARROW: Final = re.compile(r"(leader|ISR|ELR|replicas|adding|removing) (\S+) -> (\S+)")

Nodes = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """Before and after of what changed; None where it did not."""

    leader: tuple[int, int] | None = None
    epoch: int | None = None
    # Where the new leader was before: FROM_ISR, FROM_ELR or UNCLEAN; empty where nobody leads.
    elected_from: str = ""
    preferred: bool = False
    isr: tuple[Nodes, Nodes] | None = None
    elr: tuple[Nodes, Nodes] | None = None
    replicas: tuple[Nodes, Nodes] | None = None
    adding: tuple[Nodes, Nodes] | None = None
    removing: tuple[Nodes, Nodes] | None = None
    recovered: bool = False
    unknown: tuple[str, ...] = field(default=())

    @property
    def event(self) -> str:
        """Which kind of event it is; empty when nothing changed that anybody would tell."""
        if self.leader is not None or self.epoch is not None:
            return LEADER
        if self.replicas is not None or self.adding is not None or self.removing is not None:
            return REPLICAS
        return ISR if self.isr is not None or self.elr is not None or self.recovered else ""

    @classmethod
    def between(cls, old: PartitionImage, new: PartitionImage) -> PartitionChange:
        """What is not the same in two states of one partition."""
        elected = new.leader != NO_NODE and new.leader_epoch != old.leader_epoch
        source = ""
        if elected:
            source = FROM_ISR if new.leader in old.isr else FROM_ELR if new.leader in old.elr else UNCLEAN
            if new.recovering and not old.recovering:
                source = UNCLEAN
        return cls(
            leader=_pair(int(old.leader), int(new.leader)),
            epoch=new.leader_epoch if new.leader_epoch != old.leader_epoch else None,
            elected_from=source,
            preferred=elected and new.leader == new.replicas[0],
            isr=_pair(_nodes(old.isr), _nodes(new.isr)),
            elr=_pair(_nodes(old.elr), _nodes(new.elr)),
            replicas=_pair(_nodes(old.replicas), _nodes(new.replicas)),
            adding=_pair(_nodes(old.adding_replicas), _nodes(new.adding_replicas)),
            removing=_pair(_nodes(old.removing_replicas), _nodes(new.removing_replicas)),
            recovered=old.recovering and not new.recovering,
        )

    def text(self) -> str:
        """The line."""
        parts = []
        if self.leader is not None:
            before, after = (_NONE if n == NO_NODE else str(n) for n in self.leader)
            parts.append(f"leader {before} -> {after}")
        if self.epoch is not None:
            parts.append(f"epoch {self.epoch}")
        if self.elected_from:
            parts.append(f"from {self.elected_from}")
        if self.preferred:
            parts.append("preferred")
        for name, change in (
            ("ISR", self.isr),
            ("ELR", self.elr),
            ("replicas", self.replicas),
            ("adding", self.adding),
            ("removing", self.removing),
        ):
            if change is not None:
                parts.append(f"{name} {_list(change[0])} -> {_list(change[1])}")
        if self.recovered:
            parts.append("recovered")
        return ", ".join([*parts, *self.unknown])

    @classmethod
    def parse(cls, text: str) -> PartitionChange:
        """The change that a line tells of."""
        found: dict[str, tuple[str, str]] = {}
        epoch: int | None = None
        source = ""
        words: set[str] = set()
        unknown: list[str] = []
        for part in text.split(", "):
            if (match := _ARROW.fullmatch(part)) is not None:
                found[match[1]] = match[2], match[3]
            elif part.startswith("epoch ") and part[6:].isdecimal():
                epoch = int(part[6:])
            elif part.startswith("from "):
                source = part[5:]
            elif part in ("preferred", "recovered"):
                words.add(part)
            elif part:
                unknown.append(part)
        leader = found.get("leader")
        return cls(
            leader=None if leader is None else (_node(leader[0]), _node(leader[1])),
            epoch=epoch,
            elected_from=source,
            preferred="preferred" in words,
            isr=_read(found.get("ISR")),
            elr=_read(found.get("ELR")),
            replicas=_read(found.get("replicas")),
            adding=_read(found.get("adding")),
            removing=_read(found.get("removing")),
            recovered="recovered" in words,
            unknown=tuple(unknown),
        )


def _pair(old: T, new: T) -> tuple[T, T] | None:
    return None if old == new else (old, new)


def _nodes(nodes: Sequence[int]) -> Nodes:
    return tuple(int(n) for n in nodes)


def _list(nodes: Nodes) -> str:
    return ",".join(map(str, nodes)) or _NONE


def _node(text: str) -> int:
    return int(text) if text.isdecimal() else NO_NODE


def _read(pair: tuple[str, str] | None) -> tuple[Nodes, Nodes] | None:
    if pair is None:
        return None
    before, after = (tuple(int(n) for n in text.split(",") if n.isdecimal()) for text in pair)
    return before, after
