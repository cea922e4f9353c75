"""The leaders' side of transactions on this node: admissions of the partitions led here, and their markers.

A marker is appended as acks=all is: refused where too few replicas are in sync, answered when the high watermark covers
it, without a deadline. It stands in no line: what a batch waits for may itself wait for a marker of the same partition.
One that comes before the metadata that it goes by waits for these, and is not written once who sent it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_kafka.records.markers import Marker
from penstock_storage_node.log import LogState
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.transactions.admission import Admission, MarkerOrder
from penstock_storage_node.transactions.effects import TopicPartitionName

WAITING_MAX: Final = 20_000
"""Markers that wait for metadata; beyond it they are refused, and come again."""
_NEVER_MS: Final = 1 << 62

Reply = Callable[[ErrorCode], None]


@dataclass(frozen=True, slots=True)
class WrittenMarker:
    """A marker that the high watermark covers."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    offset: int


MarkerHook = Callable[[Partition, WrittenMarker], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    order: MarkerOrder
    name: TopicPartitionName
    reply: Reply
    is_over: Callable[[], bool]


class _Covered:
    """A marker that waits for the high watermark."""

    __slots__ = ("_leaders", "_partition", "_reply", "_written")

    def __init__(
        self, leaders: LeadingSide, partition: Partition, written: WrittenMarker, reply: Reply
    ) -> None:
        self._leaders = leaders
        self._partition = partition
        self._written = written
        self._reply = reply

    def acknowledge(self, error: ErrorCode) -> None:
        # There is no deadline, so "timed out" says that leadership ended.
        if error is ErrorCode.REQUEST_TIMED_OUT:
            self._reply(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        hit("transactions.marker.covered")
        try:
            for hook in self._leaders.on_marker:
                hook(self._partition, self._written)
            self._reply(ErrorCode.NONE)
        except Exception as e:
            self._leaders.fail_with(e)


class LeadingSide:
    """Of one node; a watcher of its roles."""

    def __init__(self, manager: ReplicaManager) -> None:
        self.on_marker: list[MarkerHook] = []
        """Told of each marker once the high watermark covers it, in the order of the log."""
        self.on_end: list[Callable[[Partition], None]] = []
        """Told when a leadership is over."""
        self.fail_with: Final = manager.lifecycle.fail_with
        self._manager = manager
        self._admissions: dict[Partition, Admission] = {}
        self._waiting: list[_Waiting] = []
        self.marker_count = 0
        """Markers appended."""

    # -- leadership ------------------------------------------------------------------------------

    def on_lead(self, partition: Partition) -> None:
        """This node leads a partition from now on: nothing that was verified before counts."""
        self._admissions.pop(partition, None)

    def on_stop(self, partition: Partition) -> None:
        """It does no more."""
        self._admissions.pop(partition, None)
        for told in self.on_end:
            told(partition)

    def admission(self, partition: Partition) -> Admission:
        """Of a partition that is led here."""
        found = self._admissions.get(partition)
        if found is None:
            found = self._admissions[partition] = Admission(partition.name, partition.log)
        return found

    def expire(self, now_ms: int) -> None:
        """Let go of guards that have stood for nothing for long."""
        for partition, admission in list(self._admissions.items()):
            admission.guards.expire(now_ms)
            if not len(admission.guards):
                del self._admissions[partition]

    @property
    def guard_count(self) -> int:
        """Verifications that no batch has used."""
        return sum(len(admission.guards) for admission in self._admissions.values())

    # -- markers ---------------------------------------------------------------------------------

    def write(
        self, order: MarkerOrder, name: TopicPartitionName, reply: Reply, is_over: Callable[[], bool]
    ) -> None:
        """Write a marker. `reply` is told once: NONE when the high watermark covers it, else why it is not written,
        or may be lost; `is_over` says whether who asked has gone, and with it the order."""
        try:
            verdict = self._write(order, name, reply)
        except PenstockError as error:
            reply(error.code)
            return
        if verdict is ErrorCode.NONE:
            return
        if verdict is not None:
            reply(verdict)
        elif len(self._waiting) >= WAITING_MAX:
            reply(ErrorCode.NOT_ENOUGH_REPLICAS)
        else:
            self._waiting.append(_Waiting(order, name, reply, is_over))

    def metadata_changed(self) -> None:
        """Markers that wait for what these say are looked at again."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.is_over():
                self.write(each.order, each.name, each.reply, each.is_over)

    @property
    def waiting_count(self) -> int:
        """Markers that wait for metadata."""
        return len(self._waiting)

    def _state_epoch(self, state_partition: int | None) -> int | None:
        topic = self._manager.registry.image.topic(TRANSACTIONS_TOPIC)
        if topic is None or state_partition is None:
            return None
        state = topic.partitions.get(state_partition)
        return None if state is None else state.leader_epoch

    def _write(self, order: MarkerOrder, name: TopicPartitionName, reply: Reply) -> ErrorCode | None:
        """NONE when it is appended, else what `Admission.check_marker` says. Raises PenstockError."""
        manager = self._manager
        partition = manager.registry.locate(name.topic, None, name.partition)
        leadership = partition.replica.require_leader()
        if partition.log.state is LogState.FAILED or manager.health.failed:
            raise PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk under {partition.name} failed")
        admission = self.admission(partition)
        verdict = admission.check_marker(order, self._state_epoch(order.state_partition))
        if verdict is not ErrorCode.NONE:
            return verdict
        if leadership.under_min_isr:
            raise PenstockError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"{partition.name} has too few replicas in sync"
            )
        hit("transactions.marker.before_append")
        marker = Marker(order.commit, order.coordinator_epoch)
        appended = partition.append_marker(
            order.producer_id, order.producer_epoch, marker, manager.clock_ms()
        )
        admission.marker_appended(order)
        hit("transactions.marker.after_append")
        self.marker_count += 1
        written = WrittenMarker(
            order.producer_id,
            order.producer_epoch,
            order.commit,
            order.coordinator_epoch,
            appended.last_offset,
        )
        leadership.wait_all(appended.last_offset + 1, _NEVER_MS, _Covered(self, partition, written, reply))
        if not manager.drain.effects.empty:
            manager.drain.schedule()
        return ErrorCode.NONE


__all__ = ["LeadingSide", "MarkerHook", "WrittenMarker"]
