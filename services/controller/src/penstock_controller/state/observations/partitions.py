"""What is amiss with partitions: who cannot be read or written, who lacks copies, who would not outlive a loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock_controller.state.nodes import wanted_min_isr
from penstock_controller.state.observations.findings import (
    ERROR,
    INFO,
    WARNING,
    Bounded,
    TopicTrouble,
    nodes_text,
)
from penstock_controller.state.observations.spread import NODE, Losses, Spread, present
from penstock_controller.state.partitions import Rules
from penstock_core.config.topic import default_min_insync_replicas
from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata import MetadataImage, PartitionImage, TopicImage
from penstock_proto.v1 import operations_pb2 as pb

_A_STEP: Final = 50
"""Partitions looked at between two steps: less than a millisecond."""
_FACTOR: Final = 3
"""Replicas that a hint asks for, where there are as many nodes."""

_CODES: Final = ("offline", "under-min-isr", "under-replicated", "single-replica", "domain-unsafe")


@dataclass(slots=True)
class Seen:
    """What a look at all partitions found beside troubles."""

    replicas: Counter[NodeId] = field(default_factory=Counter)
    leaders: Counter[NodeId] = field(default_factory=Counter)
    preferred: Counter[NodeId] = field(default_factory=Counter)
    """Partitions whose first replica a node is."""


def look(
    image: MetadataImage, spread: Spread, takers: Collection[NodeId]
) -> Generator[None, None, tuple[list[pb.Finding], Seen]]:
    """All partitions, in slices. `takers`: nodes that may get replicas."""
    seen = Seen()
    found = {code: Bounded(code) for code in _CODES}
    places = _Places(spread, takers)
    work = 0
    for name in sorted(image.topic_ids):
        topic = image.topics[image.topic_ids[name]]
        view = _Topic(image, topic, spread, places)
        for number in sorted(topic.partitions):
            partition = topic.partitions[number]
            view.add(partition)
            seen.replicas.update(partition.replicas)
            seen.preferred[partition.replicas[0]] += 1
            if partition.leader != NO_NODE:
                seen.leaders[partition.leader] += 1
            work += 1
            if work % _A_STEP == 0:
                yield
        view.tell(found)
    return [each for code in _CODES for each in found[code].findings()], seen


class _Places:
    """Where replicas can be put."""

    def __init__(self, spread: Spread, takers: Collection[NodeId]) -> None:
        self.count = len(takers)
        self._spread = spread
        self._takers = takers
        self._known: dict[tuple[int, int], int] = {}

    def best_left(self, level: int, factor: int) -> int:
        """As Spread has it; looked up once."""
        known = self._known.get((level, factor))
        if known is None:
            known = self._known[level, factor] = self._spread.best_left(level, factor, self._takers)
        return known


class _Topic:
    """Troubles of one topic."""

    def __init__(self, image: MetadataImage, topic: TopicImage, spread: Spread, places: _Places) -> None:
        self._image = image
        self._name = topic.name
        self._count = len(topic.partitions)
        self._spread = spread
        self._places = places
        self._wanted = wanted_min_isr(image, topic.name)
        self._rules = Rules(lambda _: False, self._wanted)
        self._by_code: dict[str, list[PartitionImage]] = {}
        self._worst: tuple[tuple[bool, bool, int], PartitionImage, Losses] | None = None
        """Of those that do not outlive a loss: the one with the gravest."""

    def add(self, partition: PartitionImage) -> None:
        """Look at one. Of not being led, written or copied the gravest alone is told."""
        min_isr = self._rules.effective_min_isr(partition)
        if partition.leader == NO_NODE:
            self._note("offline", partition)
        elif len(partition.isr) < min_isr:
            self._note("under-min-isr", partition)
        elif partition.under_replicated:
            self._note("under-replicated", partition)
        if partition.factor == 1:
            self._note("single-replica", partition)
        replicas = present(partition)
        if not self._spread.is_safe(replicas, min_isr):
            self._note("domain-unsafe", partition)
            losses = self._spread.losses(replicas, min_isr)
            # Data before writes, what can be mended before what cannot, an inner level before an outer one.
            gravity = (
                losses.data is not None,
                self._is_mended_by_moves(partition, losses, min_isr),
                losses.writes.level if losses.writes is not None else -1,
            )
            if self._worst is None or gravity > self._worst[0]:
                self._worst = (gravity, partition, losses)

    def _note(self, code: str, partition: PartitionImage) -> None:
        self._by_code.setdefault(code, []).append(partition)

    def tell(self, found: dict[str, Bounded]) -> None:
        """Each trouble as one finding."""
        tellers = {
            "offline": self._offline,
            "under-min-isr": self._under_min_isr,
            "under-replicated": self._under_replicated,
            "single-replica": self._single_replica,
            "domain-unsafe": self._domain_unsafe,
        }
        for code, partitions in self._by_code.items():
            trouble = TopicTrouble(self._name, self._count, [p.partition for p in partitions])
            tell = tellers[code]
            found[code].add(trouble, lambda tell=tell, t=trouble, p=partitions: tell(t, p))  # type: ignore[misc]

    # --- one sentence each ---------------------------------------------------------------------

    def _offline(self, trouble: TopicTrouble, partitions: Sequence[PartitionImage]) -> tuple[str, str, str]:
        holders = {n for p in partitions for n in _who_may_lead(p)}
        detail = f"{_has(trouble, 'no leader, so no reads and no writes')}"
        if not holders:
            return ERROR, detail, "start the nodes that hold it; `penstock node list` shows who is absent"
        return (
            ERROR,
            f"{detail}; what was acknowledged is on {nodes_text(holders)}",
            f"start {nodes_text(holders)} again",
        )

    def _under_min_isr(
        self, trouble: TopicTrouble, partitions: Sequence[PartitionImage]
    ) -> tuple[str, str, str]:
        first = partitions[0]
        detail = (
            f"{_has(trouble, 'fewer replicas in sync than min.insync.replicas, so acks=all is refused')}; "
            f"partition {first.partition} has {len(first.isr)} of {self._rules.effective_min_isr(first)}"
        )
        return ERROR, detail, self._bring_back(partitions)

    def _under_replicated(
        self, trouble: TopicTrouble, partitions: Sequence[PartitionImage]
    ) -> tuple[str, str, str]:
        lacking = {n for p in partitions for n in p.replicas if n not in p.isr and n not in p.adding_replicas}
        detail = f"{_has(trouble, 'replicas that are not in sync')}: {nodes_text(lacking)}"
        return WARNING, detail, self._bring_back(partitions)

    def _bring_back(self, partitions: Sequence[PartitionImage]) -> str:
        lacking = {n for p in partitions for n in p.replicas if n not in p.isr and n not in p.adding_replicas}
        away = {n for n in lacking if (node := self._image.nodes.get(n)) is None or node.fenced}
        if away:
            return (
                f"start {nodes_text(away)} again; "
                f"`penstock node replace {min(away)}` when what it held is lost for good"
            )
        return f"{nodes_text(lacking)} lives and catches up; `penstock cluster check --wait 60` waits for it"

    def _single_replica(
        self, trouble: TopicTrouble, _partitions: Sequence[PartitionImage]
    ) -> tuple[str, str, str]:
        detail = _has(trouble, "a single copy: dark while that node is away, gone with its disk")
        if self._places.count < 2:
            return INFO, detail, "start another storage node, then `penstock topic set-replication-factor`"
        return WARNING, detail, self._more_copies(min(_FACTOR, self._places.count))

    def _domain_unsafe(
        self, trouble: TopicTrouble, partitions: Sequence[PartitionImage]
    ) -> tuple[str, str, str]:
        del partitions
        assert self._worst is not None
        _, partition, losses = self._worst
        replicas, min_isr = present(partition), self._rules.effective_min_isr(partition)
        loss = losses.data or losses.writes
        assert loss is not None
        level = self._spread.levels[loss.level]
        lost = "all" if losses.data else str(loss.replicas_lost)
        comes_to = (
            "its records are lost with them"
            if losses.data
            else f"too few stay to take acks=all (min.insync.replicas {min_isr})"
        )
        is_one = len(trouble.numbers) == 1
        detail = (
            f"{trouble.which} {'does' if is_one else 'do'} not outlive the loss of one {level}: "
            f"{lost} of the {len(replicas)} replicas of partition {partition.partition} are on "
            f"{self._spread.domain(loss.level, loss.node_id)}, {comes_to}"
        )
        severity = WARNING if partition.factor > 1 else INFO
        if partition.factor > 1 and self._is_mended_by_moves(partition, losses, min_isr):
            return severity, detail, f"`penstock cluster rebalance --topic {self._name}` spreads its replicas"
        factor = self._enough(loss.level, 1 if losses.data else 0, partition.factor)
        if factor is None:
            return INFO, detail, f"start storage nodes in another {level}"
        if level != NODE:
            severity = INFO
        return severity, detail, self._more_copies(factor)

    def _more_copies(self, factor: int) -> str:
        return f"`penstock topic set-replication-factor {self._name} {factor}`"

    def _enough(self, level: int, least: int, factor: int) -> int | None:
        """Replicas with which enough are left whatever domain of a level is lost; None when no number does it."""
        for more in range(factor + 1, self._places.count + 1):
            min_isr = least or min(self._wanted or default_min_insync_replicas(more), more)
            if self._places.best_left(level, more) >= min_isr:
                return more
        return None

    def _is_mended_by_moves(self, partition: PartitionImage, losses: Losses, min_isr: int) -> bool:
        """Whether as many replicas elsewhere would outlive what these do not."""
        for loss, least in ((losses.data, 1), (losses.writes, min_isr)):
            if loss is not None and self._places.best_left(loss.level, partition.factor) >= least:
                return True
        return False


def _has(trouble: TopicTrouble, what: str) -> str:
    return f"{trouble.which} {'has' if len(trouble.numbers) == 1 else 'have'} {what}"


def _who_may_lead(partition: PartitionImage) -> Sequence[NodeId]:
    """Replicas that have all that was acknowledged."""
    if partition.isr or partition.elr:
        return (*partition.isr, *partition.elr)
    return () if partition.last_known_leader == NO_NODE else (partition.last_known_leader,)


__all__ = ["Seen", "look"]
