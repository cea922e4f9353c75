"""What one active controller remembers of operations, to be quick. Made anew with each of its terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock_controller.state.operations.engine.kinds import (
    LEADER_ELECT,
    drained_by,
    live_operations,
    refilled_by,
)
from penstock_controller.state.operations.engine.ledger import Ledgers
from penstock_controller.state.operations.engine.scan import SCAN_PARTITIONS, Scan
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_proto.v1 import metadata_pb2 as pb


class EngineState:
    """Of all operations. A new one changes nothing but how long a rebalance has waited for a node."""

    def __init__(self, scan_partitions: int | None = SCAN_PARTITIONS) -> None:
        self.ledgers = Ledgers()
        self._scan_partitions = scan_partitions
        self._scans: dict[int, Scan] = {}
        self._unfit_since: dict[tuple[int, NodeId], int] = {}

    def scan(self, image: MetadataImage, record: pb.OperationRecord) -> Scan:
        """The scan for partitions that an operation still has to do with."""
        found = self._scans.get(record.operation_id)
        if found is None:
            for ended in self._scans.keys() - {o.operation_id for o in live_operations(image)}:
                self.forget(ended)
            found = self._scans[record.operation_id] = Scan(_of_interest_to(record), self._scan_partitions)
        return found

    def unfit_ms(self, operation_id: int, node_id: NodeId, now_ms: int) -> int:
        """How long a node has been seen unfit without a break; 0 the first time."""
        return now_ms - self._unfit_since.setdefault((operation_id, node_id), now_ms)

    def fit_again(self, operation_id: int, still_unfit: Iterable[NodeId]) -> None:
        """All other nodes are fit."""
        still = set(still_unfit)
        for key in [k for k in self._unfit_since if k[0] == operation_id and k[1] not in still]:
            del self._unfit_since[key]

    def forget(self, operation_id: int) -> None:
        """It has ended."""
        self._scans.pop(operation_id, None)
        self.fit_again(operation_id, ())


def _of_interest_to(record: pb.OperationRecord) -> Callable[[PartitionImage], bool]:
    if record.kind == LEADER_ELECT:
        return lambda p: p.leader != p.replicas[0] and p.replicas[0] in p.isr
    refilled, drained = refilled_by(record), drained_by(record)
    if refilled:
        return lambda p: any(n in p.replicas and n not in p.isr for n in refilled)
    return lambda p: any(n in p.replicas for n in drained)
