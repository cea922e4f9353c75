"""The records that a step of an operation is made of."""

from __future__ import annotations

from penstock_controller.state.generation import partition_record
from penstock_controller.state.nodes import rules_for
from penstock_controller.state.operations.engine.stages import Slot
from penstock_controller.state.partitions import Rules
from penstock_controller.state.reassignments import reassign
from penstock_core.ids import NodeId, TopicId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb

Records = list[pb.MetadataRecord]


class Changes:
    """Makes them, from one image, for one operation."""

    def __init__(self, image: MetadataImage, record: pb.OperationRecord) -> None:
        self._image = image
        self._record = record
        self._rules: dict[TopicId, Rules] = {}

    def rules_of(self, topic_id: TopicId) -> Rules:
        """For partitions of a topic; its settings are parsed once."""
        rules = self._rules.get(topic_id)
        if rules is None:
            rules = self._rules[topic_id] = rules_for(self._image, self._image.topics[topic_id])
        return rules

    def aim(self, slot: Slot, wanted: tuple[NodeId, ...]) -> Records:
        """The partition on its way to these replicas; nothing where its ISR would be too small for that now."""
        old = slot.partition
        if old is None:
            return []
        rules = self.rules_of(old.topic_id)
        new = reassign(old, wanted, rules)
        if new is None or len(new.isr) < min(len(old.isr), rules.effective_min_isr(new)):
            return []
        return [partition_record(new)]

    def skip(self, slot: Slot, why: str) -> pb.MetadataRecord:
        """The move is left out from now on."""
        record = slot.move.to_pb(self._record.operation_id)
        record.skipped = why
        return pb.MetadataRecord(operation_move=record)

    def phase(self, phase: str) -> Records:
        """What the operation is about now, where that is new."""
        return self.now(self._record.state, phase=phase, reason=self._record.reason)

    def now(
        self,
        state: pb.OperationState.ValueType,
        *,
        phase: str = "",
        reason: str = "",
        started_ms: int = 0,
    ) -> Records:
        """The operation's record where it changes; without a phase it keeps the one it has."""
        record = pb.OperationRecord()
        record.CopyFrom(self._record)
        record.state = state
        record.phase = phase or record.phase
        record.reason = reason
        record.started_ms = record.started_ms or started_ms
        return [] if record == self._record else [pb.MetadataRecord(operation=record)]
