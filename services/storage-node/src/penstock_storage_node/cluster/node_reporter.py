"""What a node tells the active controller of its disk and its replicas, as often as that one wants to hear it.

Sizes and room are looked at by a task, in slices and in the disk pool; heartbeats take what it has found. A node whose
disk does not answer reports nothing: what was told before gets old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock_core.ids import TopicPartition
from penstock_proto.v1 import controller_pb2 as pb
from penstock_proto.v1.operations_pb2 import NodeReport
from penstock_runtime.turns import LoopTurns
from penstock_storage_node.cluster.inventory_telling import InventoryTelling
from penstock_storage_node.cluster.size_telling import SizePart, SizeTelling
from penstock_storage_node.log import LogDirectory, slots
from penstock_storage_node.log.slots import UnclaimedSlots
from penstock_storage_node.replica.inventory import Inventory
from penstock_storage_node.replica.manager import ReplicaManager

LOOK_MS = 5_000
"""How often sizes and room are looked at when no controller wants to hear of them."""
LOOK_MS_MIN = 100
LOOK_RESTORED_MS = 1_000
"""While the controllers wait for what this node has, since their metadata were restored."""


class NodeReporter:
    """One per node. Lives on the event loop."""

    def __init__(
        self, manager: ReplicaManager, directory: LogDirectory, catch_up_limit: Callable[[int], None]
    ) -> None:
        """`catch_up_limit(bytes_per_s)` is called with what each answer allows."""
        self._manager = manager
        self._directory = directory
        self._catch_up_limit = catch_up_limit
        self._sizes = manager.sizes
        self._telling = SizeTelling(lambda: self._sizes.sizes)
        self._inventory = Inventory(manager, directory)
        self._unknown = InventoryTelling()
        self._turns = LoopTurns.of(manager.lifecycle)
        self._interval_ms = 0
        self._soon = asyncio.Event()
        self._is_due = False
        self._is_measured = False
        self._is_room_known = True
        self._slots = UnclaimedSlots()
        self._is_watching_slots = True
        self.strays: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """How many logs were set aside, and what they take."""
        self.disk_total_bytes = 0
        """Of the file system with the data directory; 0 until it was asked for."""
        self.disk_free_bytes = 0

    # -- the session --------------------------------------------------------------

    def begin(self) -> None:
        """A new session; its controller says anew what it wants."""
        self._interval_ms = 0
        self._telling.begin()
        self._unknown.begin()

    def next_report(self) -> NodeReport | None:
        """What the next heartbeat carries, None for nothing."""
        part: SizePart | None = None
        if self._interval_ms and self._is_measured and (self._is_due or self._telling.has_more):
            self._is_due = False
            part = self._telling.next_part()
        self._telling.sent(part)
        unknown = self._unknown.next_part() if self._interval_ms else None
        if part is None and unknown is None:
            return None
        report = self._report(part or SizePart())
        if unknown is not None:
            report.unknown_replicas.extend(unknown.replicas)
            report.first_of_unknown, report.last_of_unknown = unknown.is_first, unknown.is_last
            report.unknown_version = unknown.version
        return report

    def answered(self, reply: pb.NodeHeartbeatReply) -> None:
        """The answer to the next heartbeat that has none yet."""
        self._catch_up_limit(reply.catch_up_bytes_per_s)
        self._telling.answered(wants_all=reply.want_all_sizes)
        interval_ms = reply.report_interval_ms
        if interval_ms and (not self._interval_ms or interval_ms < self._interval_ms):
            self._soon.set()
        self._interval_ms = interval_ms

    def _report(self, part: SizePart) -> NodeReport:
        metrics = self._manager.metrics
        report = NodeReport(
            disk_total_bytes=self.disk_total_bytes,
            disk_free_bytes=self.disk_free_bytes,
            log_bytes=self._sizes.total_bytes,
            first_of_all=part.first_of_all,
            last_of_all=part.last_of_all,
            produce_counts=metrics.produce_counts,
            catch_up_in_bytes=metrics.catch_up_in_bytes,
            catch_up_out_bytes=metrics.catch_up_out_bytes,
            unclaimed_slots=self._slots.names,
            received_bytes=metrics.produced_bytes,
            sent_bytes=metrics.fetched_bytes + metrics.range_bytes,
            loop_cpu_ms=int(self._turns.cpu_s() * 1000),
        )
        report.stray_logs, report.stray_bytes = self.strays()
        for (topic_id, partition), size in part.sizes:
            report.sizes.add(topic_id=topic_id, partition=partition, size_bytes=size)
        return report

    # -- looking ------------------------------------------------------------------

    async def run(self) -> None:
        """Look for ever."""
        while True:
            self._soon.clear()
            await self.look()
            pause_ms = max(min(self._interval_ms or LOOK_MS, LOOK_MS), LOOK_MS_MIN)
            if self._unknown.is_wanted(self._manager.registry.image.restored_version):
                pause_ms = min(pause_ms, LOOK_RESTORED_MS)
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._soon.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """See what the disk has and what replicas take; the next heartbeat may tell it."""
        fs, path = self._directory.fs, str(self._directory.path)
        try:
            self.disk_total_bytes, self.disk_free_bytes = await self._manager.pool.run_read(
                lambda: fs.room(path)
            )
        except OSError as e:
            if self._is_room_known:
                self._manager.lifecycle.log.warning(
                    "the room on the disk is not known: nothing is reported", path=path, reason=str(e)
                )
            self._is_room_known = False
            return
        self._is_room_known = True
        self._manager.health.note_room(self.disk_total_bytes, self.disk_free_bytes)
        await self._look_for_slots()
        await self._turns.run(self._sizes.look(self._note))
        await self._look_for_unknown()
        self._is_measured = self._is_due = True

    async def _look_for_unknown(self) -> None:
        try:
            found = await self._inventory.look()
        except OSError as e:
            self._manager.lifecycle.log.warning(
                "what the metadata do not know of the data directory cannot be told", reason=str(e)
            )
            return
        if found is not None:
            self._unknown.looked(*found, self._manager.registry.image.restored_version)

    @property
    def unclaimed_slots(self) -> tuple[str, ...]:
        """Live slots beside this node's that no process holds."""
        return self._slots.names

    async def _look_for_slots(self) -> None:
        directory = self._directory
        if directory.slot < 0:
            return
        fs, root = directory.fs, str(directory.path.parent)
        log = self._manager.lifecycle.log
        try:
            found = await self._manager.pool.run_read(lambda: slots.unclaimed(fs, root))
        except OSError as e:
            if self._is_watching_slots:
                log.warning("it is not known which slots nobody has opened", path=root, reason=str(e))
            self._is_watching_slots = False
            return
        self._is_watching_slots = True
        if self._slots.note(found):
            if self._slots.names:
                log.warning(
                    "slots of nodes that no process has opened: start as many processes more, or remove these nodes",
                    slots=", ".join(self._slots.names),
                    path=root,
                )
            else:
                log.info("every node's slot is opened again", path=root)

    def _note(self, key: TopicPartition) -> None:
        self._telling.changed(key)


__all__ = ["NodeReporter"]
