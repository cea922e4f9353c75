"""How far each move of an operation is, as the image tells it.

A ledger is a cache: it looks again only at what changed between two images, and one made anew says the same. What it
remembers beside that (a move was seen on its way) is a courtesy to those who interfere, and nothing else.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock_controller.state.nodes import wanted_min_isr
from penstock_controller.state.operations.engine.kinds import (
    REASSIGNMENT,
    drained_by,
    live_operations,
    mended_by,
)
from penstock_controller.state.operations.engine.stages import Rank, Slot, Stage, stage_of
from penstock_controller.state.operations.planner.domains import Domains
from penstock_controller.state.partitions import Rules
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage, TopicImage
from penstock_core.metadata.operations import OperationMove
from penstock_proto.v1 import metadata_pb2 as pb

Order = tuple[int, int, int]

_SLICE: Final = 64
"""Moves looked at between two chances for others to run."""


def _nobody(_node_id: NodeId) -> bool:
    return False


_NO_RULES = Rules(_nobody, 0)


@dataclass(slots=True)
class _Topic:
    slots: list[Slot]
    image: TopicImage | None = None
    rules: Rules = _NO_RULES
    stale: bool = True


@dataclass(slots=True)
class Ledger:
    """All moves of one operation."""

    record: pb.OperationRecord
    slots: list[Slot] = field(default_factory=list)
    stages: dict[Stage, dict[int, Slot]] = field(default_factory=lambda: {s: {} for s in Stage})
    """Moves by stage and number."""
    unwell: dict[int, Slot] = field(default_factory=dict)
    """Moves whose partition is offline or below min ISR, though not for want of a node that the operation is about."""
    led: dict[NodeId, dict[int, Slot]] = field(default_factory=lambda: defaultdict(dict))
    """Moves by the leader of their partition."""
    targets: set[NodeId] = field(default_factory=set)
    """Every node that gets a replica."""
    order: list[Order] = field(default_factory=list)
    """Moves to do, what goes first at the front: (rank, -bytes, number). Those whose
    rank is not the move's any more are of the past."""
    skipped: int = 0
    bytes_done: int = 0
    _moves: Mapping[TopicPartition, OperationMove] = field(default_factory=dict)
    _topics: dict[TopicId, _Topic] = field(default_factory=dict)
    _configs: object = None
    _image: MetadataImage | None = None
    _unsorted: bool = False
    _drains: bool = False
    _mended: frozenset[NodeId] = frozenset()

    def update(self, image: MetadataImage, record: pb.OperationRecord) -> None:
        """Look at what changed, all at once."""
        for _ in self.update_steps(image, record):
            pass

    def update_steps(self, image: MetadataImage, record: pb.OperationRecord) -> Iterator[None]:
        """The same in slices well below a millisecond. Until it has ended the ledger is no good."""
        self.record = record
        if image is self._image:
            return
        moves = image.operations.moves.get(record.operation_id, {})
        if moves is not self._moves:
            yield from self._take_moves(image, moves)
        if image.configs is not self._configs:
            self._take_configs(image)
        yield from self._take_topics(image)
        if self._unsorted or len(self.order) > 2 * len(self.stages[Stage.TODO]) + 100:
            self._unsorted = False
            self.order = sorted(self._entry(s) for s in self.stages[Stage.TODO].values())
        self._image = image

    def count(self, stage: Stage) -> int:
        """Moves at a stage."""
        return len(self.stages[stage])

    @property
    def open(self) -> bool:
        """Whether a move is to do or on its way."""
        return bool(self.stages[Stage.TODO] or self.stages[Stage.RUNNING] or self.stages[Stage.BACK])

    def _take_moves(
        self, image: MetadataImage, moves: Mapping[TopicPartition, OperationMove]
    ) -> Iterator[None]:
        self._image = None
        if [slot.move.key for slot in self.slots] == list(moves):
            for slot, move in zip(self.slots, moves.values(), strict=True):
                if slot.move is not move:
                    slot.move = move
                    self._topics[move.key.topic_id].stale = True
        else:
            yield from self._begin(image, moves)
        self._moves = moves
        self.skipped = sum(1 for slot in self.slots if slot.move.skipped)

    def _begin(self, image: MetadataImage, moves: Mapping[TopicPartition, OperationMove]) -> Iterator[None]:
        self.slots, self.order, self.bytes_done = [], [], 0
        self.stages, self.unwell, self.led = {s: {} for s in Stage}, {}, defaultdict(dict)
        self.targets, self._topics, self._unsorted = set(), {}, True
        self._drains, self._mended = bool(drained_by(self.record)), mended_by(self.record)
        racks = {node_id: node.rack for node_id, node in image.nodes.items()}
        has_domains = any(racks.values())
        for number, move in enumerate(moves.values()):
            added = tuple(n for n in move.replicas if n not in move.replicas_before)
            improves = has_domains and _improves(move, racks)
            slot = Slot(number, move, added, improves)
            self.slots.append(slot)
            self.targets.update(added)
            topic = self._topics.get(move.key.topic_id)
            if topic is None:
                topic = self._topics[move.key.topic_id] = _Topic([])
            topic.slots.append(slot)
            if number % _SLICE == 0:
                yield

    def _take_topics(self, image: MetadataImage) -> Iterator[None]:
        looked = 0
        for topic_id, topic in self._topics.items():
            now = image.topics.get(topic_id)
            if now is topic.image and not topic.stale:
                continue
            if topic.stale and now is not None:
                topic.rules = Rules(_nobody, wanted_min_isr(image, now.name))
            partitions = {} if now is None else now.partitions
            for slot in topic.slots:
                partition = partitions.get(slot.move.key.partition)
                if topic.stale or partition is not slot.partition:
                    slot.topic = slot.topic if now is None else now.name
                    self._place(slot, partition, topic.rules)
                    looked += 1
                    if looked % _SLICE == 0:
                        yield
            topic.image, topic.stale = now, False

    def _take_configs(self, image: MetadataImage) -> None:
        self._configs = image.configs
        for topic in self._topics.values():
            if topic.image is not None and topic.rules.min_isr != wanted_min_isr(image, topic.image.name):
                topic.stale = True

    def _place(self, slot: Slot, partition: PartitionImage | None, rules: Rules) -> None:
        """The partition of a move is this now."""
        number, old = slot.number, slot.partition
        if old is not None:
            self.led[old.leader].pop(number, None)
        if self.stages[slot.stage].pop(number, None) is not None and slot.stage is Stage.DONE:
            self.bytes_done -= slot.move.bytes
        self.unwell.pop(number, None)
        old_entry = self._entry(slot) if slot.stage is Stage.TODO and old is not None else None
        slot.partition = partition
        slot.stage = stage_of(slot.move, partition)
        if partition is not None:
            self.led[partition.leader][number] = slot
            self._weigh(slot, partition, rules)
        if slot.stage is Stage.RUNNING:
            slot.seen_running = True
        elif (
            slot.stage is Stage.TODO
            and slot.seen_running
            and self.record.state != pb.OPERATION_STATE_CANCELLING
        ):
            # It was on its way, and only somebody else takes it back while the operation runs.
            slot.stage = Stage.FOREIGN
        self.stages[slot.stage][number] = slot
        if slot.stage is Stage.DONE:
            self.bytes_done += slot.move.bytes
        if slot.stage is Stage.TODO and (entry := self._entry(slot)) != old_entry and not self._unsorted:
            insort(self.order, entry)

    def _weigh(self, slot: Slot, partition: PartitionImage, rules: Rules) -> None:
        needed = rules.effective_min_isr(partition)
        if partition.leader == NO_NODE or len(partition.isr) < needed:
            slot.rank = Rank.BELOW_MIN_ISR
            away = {*partition.replicas} - {*partition.isr, *partition.adding_replicas}
            if partition.leader == NO_NODE or not away <= self._mended:
                self.unwell[slot.number] = slot
        elif partition.under_replicated:
            slot.rank = Rank.BELOW_FACTOR
        elif slot.improves_domains:
            slot.rank = Rank.DOMAINS
        else:
            slot.rank = Rank.DRAIN if self._drains else Rank.EVENNESS
        if not slot.added:
            slot.rank = Rank.FREE
        else:
            slot.places = tuple((n, True) for n in slot.added)
            if partition.leader != NO_NODE and slot.added != (partition.leader,):
                slot.places += ((partition.leader, False),)

    def _entry(self, slot: Slot) -> Order:
        return slot.rank, -slot.move.bytes, slot.number


def _improves(move: OperationMove, racks: Mapping[NodeId, str]) -> bool:
    """Whether as many replicas are spread over domains better than before."""
    if len(move.replicas) != len(move.replicas_before):
        return False
    domains = Domains({n: racks.get(n, "") for n in (*move.replicas, *move.replicas_before)})
    return domains.cost(move.replicas) < domains.cost(move.replicas_before)


class Ledgers:
    """The ledgers of one active controller, by operation. A new one of these changes nothing."""

    def __init__(self) -> None:
        self._ledgers: dict[int, Ledger] = {}

    def prepare(self, image: MetadataImage, record: pb.OperationRecord) -> Generator[None, None, None]:
        """Make the ledger of an operation in slices, where there is none: 10,000 moves take a tenth of a second."""
        if record.operation_id not in self._ledgers:
            ledger = Ledger(record)
            yield from ledger.update_steps(image, record)
            self._ledgers[record.operation_id] = ledger

    def of(self, image: MetadataImage, record: pb.OperationRecord) -> Ledger:
        """The ledger of an operation, as of this image."""
        ledger = self._ledgers.get(record.operation_id)
        if ledger is None:
            for ended in self._ledgers.keys() - image.operations.moves.keys():
                del self._ledgers[ended]
            ledger = self._ledgers[record.operation_id] = Ledger(record)
        ledger.update(image, record)
        return ledger

    def in_window(self, image: MetadataImage) -> list[Ledger]:
        """Of all operations whose moves share the window: all that ever began, paused and waiting again or not."""
        return [
            self.of(image, record)
            for record in live_operations(image)
            if record.kind != REASSIGNMENT and record.started_ms
        ]
