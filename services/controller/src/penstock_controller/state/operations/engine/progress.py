"""How far an operation is, how long it still takes, and what it waits for: for people."""

from __future__ import annotations

import math
from typing import Final

from penstock_controller.state.operations.engine.kinds import (
    RUN_AT_ONCE_MAX,
    ahead_of,
    is_rolling,
    refilled_by,
)
from penstock_controller.state.operations.engine.ledger import Ledger, Ledgers
from penstock_controller.state.operations.engine.stages import Slot, Stage
from penstock_controller.state.operations.engine.steps import named
from penstock_controller.state.operations.engine.throttle import AutoThrottle
from penstock_controller.state.operations.engine.window import Window, unfit
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NO_NODE
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api

RATE_S: Final = 30.0
"""How long a rate remembers."""


class RateMeter:
    """Bytes per second by an exponentially weighted mean over 30 s, unbiased from its start."""

    def __init__(self, over_s: float = RATE_S) -> None:
        self._over_s = over_s
        self._bytes = 0.0
        self._time_s = 0.0
        self._last: tuple[int, int] | None = None

    def take(self, total_bytes: int, now_ms: int) -> None:
        """So many bytes in all by now (ms, monotonic). Fewer than before (a copy begun again) count as none."""
        if self._last is not None and now_ms > self._last[1]:
            passed_s = (now_ms - self._last[1]) / 1000
            kept = math.exp(-passed_s / self._over_s)
            # Spread over the time that passed, of which the newest counts most.
            self._bytes = self._bytes * kept + max(0, total_bytes - self._last[0]) * (1 - kept) / (
                passed_s / self._over_s
            )
            self._time_s = self._time_s * kept + self._over_s * (1 - kept)
        if self._last is None or now_ms > self._last[1]:
            self._last = total_bytes, now_ms

    @property
    def bytes_per_s(self) -> float:
        """0 until it has seen some time pass."""
        return self._bytes / self._time_s if self._time_s else 0.0


class History:
    """What the active controller saw of one operation since it looks after it."""

    def __init__(self, auto: AutoThrottle | None = None, ledgers: Ledgers | None = None) -> None:
        self.meter = RateMeter()
        self.auto = auto
        self.limit_bytes_per_s = 0
        """What nodes are told now; 0 without bound."""
        self.moved_bytes = 0
        """The most that was copied at any time: it never goes back, though a copy is begun again."""
        self.ledgers = ledgers or Ledgers()

    def observe(
        self, image: MetadataImage, record: pb.OperationRecord, reports: Reports, now_ms: int
    ) -> None:
        """Once a second or so (ms, monotonic)."""
        done = bytes_done(self.ledgers.of(image, record), reports)
        self.meter.take(done, now_ms)
        self.moved_bytes = max(self.moved_bytes, done)


def bytes_done(ledger: Ledger, reports: Reports) -> int:
    """Copied so far: moves that are done as a whole, and the replicas that are being made as their nodes say."""
    done = ledger.bytes_done
    for slot in ledger.stages[Stage.RUNNING].values():
        isr = () if slot.partition is None else slot.partition.isr
        share = slot.move.bytes // max(1, len(slot.added))
        for node_id in slot.added:
            known = reports.replica_bytes(node_id, slot.move.key) or 0
            done += share if node_id in isr else min(known, share)
    return done


def progress_of(
    image: MetadataImage,
    record: pb.OperationRecord,
    reports: Reports,
    now_ms: int,
    history: History | None = None,
) -> api.OperationProgress:
    """Of an operation of this image. Without a history there are no rates."""
    if record.state in ENDED:
        return api.OperationProgress(
            moves_total=record.moves_total,
            moves_done=record.moves_done,
            moves_skipped=record.moves_skipped,
            bytes_total=record.bytes_total,
            bytes_done=record.bytes_done,
        )
    history = history or History()
    progress = measured(image, record, reports, history)
    progress.waiting_for = waiting_for(image, history.ledgers.of(image, record), reports, history.ledgers)
    _tell_latency(progress, history.auto)
    return progress


def measured(
    image: MetadataImage, record: pb.OperationRecord, reports: Reports, history: History
) -> api.OperationProgress:
    """What is quick to tell of an operation that goes on: nothing of what it waits for, nor of latencies."""
    ledger = history.ledgers.of(image, record)
    progress = api.OperationProgress(
        moves_total=record.moves_total,
        moves_done=ledger.count(Stage.DONE),
        moves_running=ledger.count(Stage.RUNNING) + ledger.count(Stage.BACK),
        moves_skipped=ledger.skipped + ledger.count(Stage.GONE) + ledger.count(Stage.FOREIGN),
        bytes_total=record.bytes_total,
        bytes_done=bytes_done(ledger, reports),
        limit_bytes_per_s=history.limit_bytes_per_s,
        measured_bytes_per_s=round(history.meter.bytes_per_s),
    )
    _tell_eta(progress, record, ledger)
    return progress


def _tell_eta(progress: api.OperationProgress, record: pb.OperationRecord, ledger: Ledger) -> None:
    # How long a process takes to come back, nobody knows.
    if record.state != pb.OPERATION_STATE_RUNNING or record.steps:
        return
    skipped = sum(slot.move.bytes for slot in ledger.slots if slot.move.skipped) if ledger.skipped else 0
    left = max(0, progress.bytes_total - progress.bytes_done - skipped)
    if left == 0:
        progress.eta_s = 0.0 if not ledger.open else 1.0
    elif progress.measured_bytes_per_s > 0:
        progress.eta_s = left / progress.measured_bytes_per_s


def _tell_latency(progress: api.OperationProgress, auto: AutoThrottle | None) -> None:
    if auto is None:
        return
    if auto.before_s is not None:
        progress.produce_p99_before_ms = auto.before_s * 1000
    if auto.now_s is not None:
        progress.produce_p99_now_ms = auto.now_s * 1000
    if auto.worst_s is not None:
        progress.produce_p99_worst_ms = auto.worst_s * 1000


# --- what it waits for -----------------------------------------------------------------------


def waiting_for(image: MetadataImage, ledger: Ledger, reports: Reports, ledgers: Ledgers) -> str:
    """For people; empty when it does not wait."""
    record = ledger.record
    if record.state == pb.OPERATION_STATE_PENDING:
        before = ahead_of(image, record)
        ahead = ", ".join(map(str, before))
        why = f"{RUN_AT_ONCE_MAX} that move data run side by side"
        if any(is_rolling(image.operations.operations[i]) for i in (record.operation_id, *before)):
            why = "while processes are restarted nothing else goes on"
        return f"operations {ahead}: {why}" if ahead else ""
    if record.state == pb.OPERATION_STATE_PAUSED:
        return record.reason
    stuck = _stuck(image, ledger)
    if stuck or record.state == pb.OPERATION_STATE_CANCELLING:
        return stuck
    if not ledger.count(Stage.TODO):
        return _refill(image, record)
    return _next(image, ledger, Window(image, ledgers.in_window(image), reports))


def _refill(image: MetadataImage, record: pb.OperationRecord) -> str:
    away = [n for n in refilled_by(record) if unfit(image, n)]
    return f"node {away[0]}, which {unfit(image, away[0])}: start it with an empty directory" if away else ""


def _stuck(image: MetadataImage, ledger: Ledger) -> str:
    """Moves on their way that cannot arrive now."""
    by_reason: dict[str, list[Slot]] = {}
    for slot in (*ledger.stages[Stage.RUNNING].values(), *ledger.stages[Stage.BACK].values()):
        partition = slot.partition
        if partition is None:
            continue
        if partition.leader == NO_NODE:
            by_reason.setdefault("a leader", []).append(slot)
            continue
        wanted = [n for n in partition.replicas if n not in partition.removing_replicas]
        for node_id in wanted:
            node = image.nodes.get(node_id)
            if node_id not in partition.isr and (node is None or node.fenced):
                why = f"node {node_id}, which {unfit(image, node_id)}"
                by_reason.setdefault(why, []).append(slot)
                break
    return _said(by_reason)


def _next(image: MetadataImage, ledger: Ledger, window: Window) -> str:
    """Moves that cannot begin, where none of them can and nothing is on its way."""
    if ledger.count(Stage.RUNNING) or window.choose(ledger):
        return ""
    by_reason: dict[str, list[Slot]] = {}
    for slot in ledger.stages[Stage.TODO].values():
        away = [n for n in slot.added if unfit(image, n)]
        if away:
            by_reason.setdefault(f"node {away[0]}, which {unfit(image, away[0])}", []).append(slot)
        elif slot.partition is not None and slot.partition.leader == NO_NODE:
            by_reason.setdefault("a leader", []).append(slot)
        elif (full := window.lacks_room(slot)) is not None:
            by_reason.setdefault(f"room on the disk of node {full}", []).append(slot)
        else:
            by_reason.setdefault("other operations' moves at the same nodes", []).append(slot)
    return _said(by_reason)


def _said(by_reason: dict[str, list[Slot]]) -> str:
    return "; ".join(f"{why} (for {named(slots)})" for why, slots in by_reason.items())


__all__ = ["History", "RateMeter", "measured", "progress_of"]
