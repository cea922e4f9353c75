"""Shortest ways from a node that has too much to one that has too little, over others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from penstock_core.ids import NodeId

Step = TypeVar("Step")


class Place(NamedTuple):
    """Where a path has come to: a node that has one more now. `owes`: of that topic one has to go on, since the node
    has as many as it may; `origin`: as many as that topic's first one in the path had, where that counts."""

    node_id: NodeId
    owes: str | None = None
    origin: int = 0


def walk_back(came: Mapping[Place, tuple[Place, Step] | None], end: Place) -> list[Step]:
    """The steps of the path that ends there, first one first. `came`: by place, from where and by which step."""
    path: list[Step] = []
    at = end
    while (before := came[at]) is not None:
        at = before[0]
        path.append(before[1])
    return path[::-1]
