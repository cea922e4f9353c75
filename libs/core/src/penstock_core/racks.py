"""Failure domains as a path: `zone-a/host-3` is a host in a zone. Pure.

A node's `rack` names what fails with it, from the outermost level inwards; the node itself is one level more. Kafka's
clients know no levels: they are told the outermost one alone, since all they do with it is to compare it with theirs.
"""

from __future__ import annotations

from typing import Final

LEVELS_MAX: Final = 3
"""Of a path. The node itself is one more."""

Domain = tuple[str, ...]
"""A domain's path, outermost first."""


def path_of(rack: str) -> Domain:
    """Levels of a rack; none for a node without. What is beyond LEVELS_MAX belongs to the last one."""
    return tuple(rack.split("/", LEVELS_MAX - 1)) if rack else ()


def client_rack(rack: str) -> str:
    """What Kafka's clients are told of it, and what `client.rack` is compared with: the first level."""
    return rack.partition("/")[0]


def check_rack(rack: str) -> str:
    """The rack as it is. Raises ValueError, with the mend, unless it is empty or a path of 1 to LEVELS_MAX names."""
    if not rack:
        return rack
    levels = rack.split("/")
    if len(levels) > LEVELS_MAX:
        raise ValueError(
            f"{rack!r} has {len(levels)} levels, at most {LEVELS_MAX} are looked at: write ZONE/HOST or ZONE/ROW/HOST"
        )
    if any(not level or level != level.strip() for level in levels):
        raise ValueError(
            f"{rack!r} has a level that is empty or begins or ends with a space: write ZONE, ZONE/HOST or ZONE/ROW/HOST"
        )
    return rack


__all__ = ["LEVELS_MAX", "Domain", "check_rack", "client_rack", "path_of"]
