"""What the active controller keeps of operations while it is active: rates, latencies, and what nodes are told.

Nothing of it decides what is moved where; another active controller begins with an empty one.
"""

from __future__ import annotations

from penstock_controller.state.operations.engine.kinds import live_operations
from penstock_controller.state.operations.engine.memory import EngineState
from penstock_controller.state.operations.engine.progress import History, measured, progress_of
from penstock_controller.state.operations.engine.stages import Stage
from penstock_controller.state.operations.engine.throttle import (
    AutoThrottle,
    ProduceLatency,
    effective_bytes_per_s,
)
from penstock_controller.state.operations.reports import Reports
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api


class OperationMeters:
    """Of all operations that go on. Times are in ms and never go back."""

    def __init__(self) -> None:
        self.engine = EngineState()
        self.limit_bytes_per_s = 0
        """What each node may copy per second and direction, as of the last look; 0 without bound."""
        self._has_looked = False
        self._latency = ProduceLatency()
        self._histories: dict[int, History] = {}

    def observe(self, image: MetadataImage, reports: Reports, now_ms: int) -> None:
        """At least every 2 s, also while nothing goes on: the next operation is measured by what it was then."""
        window = self._latency.take(reports, now_ms)
        going_on = [o for o in image.operations.operations.values() if o.state not in ENDED]
        for operation_id in self._histories.keys() - {o.operation_id for o in going_on}:
            del self._histories[operation_id]
        for record in going_on:
            history = self._history(record)
            if window is not None and history.auto is not None:
                history.auto.window(window)
            elif history.auto is not None:
                history.auto.look(self._latency.open)
            history.observe(image, record, reports, now_ms)
        self.rerate(image)

    def rerate(self, image: MetadataImage) -> None:
        """What counts now. Quick once the moves of each operation were looked at."""
        self._has_looked = True
        autos = {i: h.auto for i, h in self._histories.items() if h.auto is not None}
        copying = [record for record in live_operations(image) if not self._stands_still(image, record)]
        self.limit_bytes_per_s = effective_bytes_per_s(copying, autos)
        for history in self._histories.values():
            history.limit_bytes_per_s = self.limit_bytes_per_s

    def limit_to_tell(self, image: MetadataImage) -> int:
        """As of the last look. Before the first one nodes must not hear that there is no bound: they would copy at full
        speed what an earlier active controller had begun."""
        return (
            self.limit_bytes_per_s if self._has_looked else effective_bytes_per_s(live_operations(image), {})
        )

    def _stands_still(self, image: MetadataImage, record: pb.OperationRecord) -> bool:
        """Whether it is paused and none of its moves is under way: it copies nothing, so its rate is nobody's."""
        if record.state != pb.OPERATION_STATE_PAUSED:
            return False
        stages = self.engine.ledgers.of(image, record).stages
        return not (stages[Stage.RUNNING] or stages[Stage.BACK])

    @property
    def auto_bytes_per_s(self) -> int:
        """What the throttle "auto" is thought to come to: what it is now where operations go on by it, else by what is
        known of producers."""
        autos = [h.auto.bytes_per_s for h in self._histories.values() if h.auto is not None]
        return min((*autos, self._latency.expected_bytes_per_s))

    def measured(
        self, image: MetadataImage, record: pb.OperationRecord, reports: Reports
    ) -> tuple[api.OperationProgress, int]:
        """How far an operation that goes on is, without what it waits for; and what it copied, which never goes back.

        Quick once it was looked at as of this image.
        """
        history = self._history(record)
        return measured(image, record, reports, history), history.moved_bytes

    def progress(
        self, image: MetadataImage, record: pb.OperationRecord, reports: Reports, now_ms: int
    ) -> api.OperationProgress:
        """How far an operation of this image is."""
        history = None if record.state in ENDED else self._history(record)
        return progress_of(image, record, reports, now_ms, history)

    def _history(self, record: pb.OperationRecord) -> History:
        history = self._histories.get(record.operation_id)
        if history is None:
            auto = AutoThrottle(self._latency) if record.moves_total else None
            history = self._histories[record.operation_id] = History(auto, self.engine.ledgers)
        return history
