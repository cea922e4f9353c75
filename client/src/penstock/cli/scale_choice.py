"""What `penstock scale` is asked for, and which storage nodes go when there are to be fewer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import CommandError, ExitCode

SERVICES: Final = ("storage-node", "gateway")
COUNT_MAX: Final = 1_000


@dataclass(frozen=True)
class Candidate:
    """A storage node that may have to go."""

    node_id: int
    rack: str = ""
    """Its failure domains, `zone/host`; empty for none."""
    condition: str = "ok"
    """As `penstock node list` has it."""
    size_bytes: int | None = None
    """Of all its logs; None while it has not told."""
    replicas: int = 0


def parse_target(text: str) -> tuple[str, int]:
    """Service and count of `storage-node=5`. Raises a usage error."""
    service, _, number = text.partition("=")
    if service not in SERVICES:
        hint = "; controllers are a quorum of 1, 3 or 5 and stay" if service == "controller" else ""
        raise CommandError(f"{text!r}: write it as storage-node=N or gateway=N{hint}", ExitCode.USAGE)
    if not (number.isascii() and number.isdigit() and len(number) <= 6 and 1 <= int(number) <= COUNT_MAX):
        raise CommandError(f"{text!r}: give {service} a number from 1 to {COUNT_MAX:,}", ExitCode.USAGE)
    return service, int(number)


def choices(nodes: Iterable[Candidate], count: int, tries: int = 8) -> Iterator[list[int]]:
    """Ids of `count` nodes to remove, best first, at most `tries` ways.

    One is taken after another: first of those that hold nothing any more or are gone, then of the largest failure
    domain, so that as many domains stay as can, at each level; of these the one with fewest bytes. The further ways
    leave out one of the best choice in turn: what the controllers say of a plan may be about one node.
    """
    known = sorted(nodes, key=lambda node: node.node_id)
    best = _choose(known, count)
    told = [best]
    yield best
    for spared in reversed(best):
        others = [node for node in known if node.node_id != spared]
        if len(told) >= tries or len(others) < count:
            return
        found = _choose(others, count)
        if found not in told:
            told.append(found)
            yield found


def highest(nodes: Iterable[Candidate], count: int) -> list[int]:
    """The highest ids: what an orchestrator stops whose numbers are the identity, a StatefulSet's."""
    return sorted(node.node_id for node in nodes)[-count:]


def _choose(nodes: Sequence[Candidate], count: int) -> list[int]:
    left = list(nodes)
    chosen: list[int] = []
    for _ in range(count):
        in_domain = Counter(domain for node in left for domain in domains(node.rack))
        taken = min(left, key=lambda node: _cost(node, in_domain))
        left.remove(taken)
        chosen.append(taken.node_id)
    return sorted(chosen)


def domains(rack: str) -> list[str]:
    """`zone/host` -> `zone`, `zone/host`."""
    levels = rack.split("/") if rack else []
    return ["/".join(levels[: depth + 1]) for depth in range(len(levels))]


_STATES: Final = {"drained": 0, "draining": 1, "fenced": 2, "disk-failed": 3, "disk-full": 4, "cordoned": 5}
"""Whoever serves least goes first."""


def _cost(node: Candidate, in_domain: Counter[str]) -> tuple[int, list[int], float, int, int]:
    size = float("inf") if node.size_bytes is None else float(node.size_bytes)
    crowded = [-in_domain[domain] for domain in domains(node.rack)]
    # Of equal ones the youngest, which is the one with the highest id.
    return _STATES.get(node.condition, len(_STATES)), crowded, size, node.replicas, -node.node_id
