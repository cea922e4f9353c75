"""Which moves may begin: few at each node, few in all, what matters most first.

A window instead of barriers: a move begins as soon as those who copy for it have room for one more, so that nobody
waits for the slowest of a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock_controller.state.operations.engine.ledger import Ledger
from penstock_controller.state.operations.engine.stages import Place, Slot, Stage
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata import MetadataImage


@dataclass(frozen=True, slots=True)
class Limits:
    """How much goes on at once."""

    moves_per_node: int = 4
    """At each node and direction: that it sends as the leader, and that it receives. Rates are of a direction too, so a
    node that sends all it may still has room for what it is to get."""
    moves_in_all: int = 50
    changes_per_step: int = 20
    """Partitions that one step changes."""
    free_bytes_least: int = 256 * 1024 * 1024
    """What a move leaves free on the disk of a node that it makes a replica on; of a small disk FREE_SHARE."""
    skip_after_ms: int = 30_000
    """How long a rebalance waits for a node that is to get a replica."""


LIMITS = Limits()
FREE_SHARE: Final = 20
"""This part of a disk is the most that is left free, as nodes have it for their reserve."""


def unfit(image: MetadataImage, node_id: NodeId) -> str:
    """Why a node gets no replica now, for people; empty when it may."""
    node = image.nodes.get(node_id)
    if node is None:
        return "is not there any more"
    if node.fenced:
        return "is fenced"
    if node.in_controlled_shutdown:
        return "is stopping"
    if node.disk_full:
        return "has a full disk"
    if image.operations.is_cordoned(node_id):
        return "is cordoned"
    return ""


class Window:
    """What goes on in one image, and what may begin beside it."""

    def __init__(
        self, image: MetadataImage, ledgers: Iterable[Ledger], reports: Reports, limits: Limits = LIMITS
    ) -> None:
        self._limits = limits
        self._reports = reports
        self.unfit = dict[NodeId, str]()
        """Nodes that get nothing now, with the reason."""
        self._image = image
        self._at: Counter[Place] = Counter()
        self._incoming: Counter[NodeId] = Counter()
        self._running = 0
        for ledger in ledgers:
            for slot in (*ledger.stages[Stage.RUNNING].values(), *ledger.stages[Stage.BACK].values()):
                self._add(slot)

    def choose(self, ledger: Ledger) -> list[Slot]:
        """Moves of an operation that may begin now, in the order of their worth."""
        for node_id in ledger.targets:
            if reason := unfit(self._image, node_id):
                self.unfit[node_id] = reason
        limits = self._limits
        most, slots = limits.moves_per_node, ledger.slots
        full = {place for place, count in self._at.items() if count >= most}
        inward = {(n, True) for n in ledger.targets}
        chosen: dict[int, Slot] = {}
        for rank, _, number in ledger.order:
            slot = slots[number]
            if slot.stage is not Stage.TODO or slot.rank != rank or number in chosen:
                continue
            if slot.added:
                if self._running >= limits.moves_in_all or full >= inward:
                    break
                if not full.isdisjoint(slot.places) or not self._can_copy(slot):
                    continue
            chosen[number] = slot
            self._add(slot)
            full.update(place for place in slot.places if self._at[place] >= most)
            if len(chosen) >= limits.changes_per_step:
                break
        return list(chosen.values())

    def lacks_room(self, slot: Slot) -> NodeId | None:
        """A node whose disk would be too full with the replica that the move makes there, as far as is known."""
        share = slot.move.bytes // max(1, len(slot.added))
        if share == 0:
            return None
        for node_id in slot.added:
            state = self._reports.node(node_id)
            if state is None or state.disk_total_bytes == 0:
                continue
            left = state.disk_free_bytes - self._incoming[node_id] - share
            if left < min(self._limits.free_bytes_least, state.disk_total_bytes // FREE_SHARE):
                return node_id
        return None

    def _can_copy(self, slot: Slot) -> bool:
        if slot.partition is None or slot.partition.leader == NO_NODE:
            return False
        if self.unfit and any(n in self.unfit for n in slot.added):
            return False
        return self.lacks_room(slot) is None

    def _add(self, slot: Slot) -> None:
        if not slot.added:
            return
        self._running += 1
        self._at.update(slot.places)
        share = slot.move.bytes // len(slot.added)
        for node_id in slot.added:
            done = self._reports.replica_bytes(node_id, slot.move.key) or 0
            self._incoming[node_id] += max(0, share - done)
