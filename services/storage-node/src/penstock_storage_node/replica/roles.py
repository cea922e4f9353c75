"""The roles of this node's partitions: when one leads, follows, or does neither, and what that starts and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock_core.errors import ErrorCode
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId
from penstock_core.metadata.image import PartitionImage
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk.health import DiskHealth, is_full
from penstock_storage_node.log import LogDirectory, LogState
from penstock_storage_node.metrics import NodeMetrics
from penstock_storage_node.replica.drain import EffectsDrain
from penstock_storage_node.replica.partition import LeadershipWatcher, Partition
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.replication.following import Truncation
from penstock_storage_node.replication.replica import Change


class FollowerStreamsPort(Protocol):
    """The streams to the nodes that lead partitions of this one (see `rpc.replicate_follower`)."""

    def follow(self, partition: Partition, leader: NodeId) -> None:
        """Replicate `partition` from `leader` from now on."""

    def unfollow(self, partition: Partition) -> None:
        """Replicate it no more."""

    def on_progress(self, partition: Partition) -> None:
        """The log of `partition` was written further."""

    def reopen(self, partition: Partition, *, pause: bool) -> None:
        """Open a session for it anew."""

    def settle(self) -> None:
        """A metadata change was carried out: end streams without partitions."""


_TOO_LATE = "log emptied to be copied anew: compaction has let go of tombstones that it lacks"


class Roles:
    """Carries out what `PartitionReplica.plan` says. Lives on the event loop."""

    def __init__(
        self,
        registry: PartitionRegistry,
        drain: EffectsDrain,
        health: DiskHealth,
        directory: LogDirectory,
        metrics: NodeMetrics,
        lifecycle: Lifecycle,
        clock_ms: Callable[[], int],
    ) -> None:
        self.watchers: list[LeadershipWatcher] = []
        self.followers: FollowerStreamsPort
        """Set by `ReplicaManager.connect`."""
        self._registry = registry
        self._drain = drain
        self._health = health
        self._directory = directory
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()

    def assign(self, partition: Partition, state: PartitionImage) -> None:
        """Take the role that the metadata give `partition`."""
        self._take(partition, state)
        partition.tell_damage()  # others may be in sync by now

    def _take(self, partition: Partition, state: PartitionImage) -> None:
        replica = partition.replica
        change = replica.plan(state, self._clock_ms())
        if change is Change.NONE:
            return
        self.stop(partition, f"leader epoch {state.leader_epoch} began")
        if partition.log.state is LogState.FAILED or self._health.failed:
            replica.step_down()
            return
        if change is Change.LEAD:
            hit("replica.become_leader.before")
            self._lead_when_free(partition, state)
        elif change is Change.FOLLOW:
            hit("replica.become_follower.before")
            self.followers.follow(partition, NodeId(state.leader))

    def _lead_when_free(self, partition: Partition, state: PartitionImage) -> None:
        """Lead as `state` says; once an earlier cut of the log, which may hang, is over."""
        if not partition.busy:
            partition.log.start_epoch(state.leader_epoch)
            self._lead(partition, state)
            return
        epoch = state.leader_epoch

        def free(done: asyncio.Future[None]) -> None:
            error = done.exception()
            if error is not None:
                self._health.fail(partition.name, error)
                return
            # The role may be over by now. Its epoch, noted all the same (or at another time by the pool),
            # would stand over batches of an earlier one that the next leader sends, and when this node
            # leads for real, followers would be told to cut what is committed.
            registry = self._registry
            replica, newest = partition.replica, registry.image.partition(*partition.key)
            if partition.closed or self._health.failed or newest is None:
                return
            if (replica.leader, replica.leader_epoch) == (registry.node_id, epoch):
                self._lead_when_free(partition, newest)

        partition.exclusive(lambda: None).add_done_callback(free)

    def _lead(self, partition: Partition, state: PartitionImage) -> None:
        partition.replica.lead(state, self._clock_ms())
        if partition.replica.leadership is not None:
            self._registry.leading[partition] = None
            for watcher in self.watchers:
                watcher.on_lead(partition)
            hit("replica.become_leader.after")
        self._drain.schedule()

    def stop(self, partition: Partition, why: str) -> None:
        """End what the present role has started; the state machine is told by the caller."""
        self._registry.leading.pop(partition, None)
        for watcher in self.watchers:
            watcher.on_stop(partition)
        self.followers.unfollow(partition)
        if partition.sessions:
            partition.end_sessions(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name}: {why}")
        partition.wake_readers()
        self._loop.call_soon(partition.wake_log_start)  # once the role has ended

    def give_up(self) -> None:
        """The disk failed. Waiting producers hear "timed out": their records may be kept elsewhere."""
        for partition in list(self._registry.partitions.values()):
            self.stop(partition, "the disk under its leader failed")
            partition.replica.step_down()
        self.followers.settle()
        self._drain.schedule()

    def note_tombstones_gone(self, partition: Partition, below: int) -> bool:
        """Before a follower takes what its leader sends: tombstones below an offset may be missing in that.

        True: it is being put on disk, and the session has to be opened anew. Were it taken first, this replica
        might lead one day and not know that others, which come back to it, may hold what is deleted.
        """
        log = partition.log
        if below <= max(log.log_end_offset, log.tombstones_gone_below):
            return False

        def done(result: asyncio.Future[None]) -> None:
            error = result.exception()
            if error is None or (is_full(error) and log.state is not LogState.FAILED):
                self.followers.reopen(partition, pause=error is not None)

        partition.exclusive(
            lambda: self._directory.offsets.note_tombstones_gone(log, below)
        ).add_done_callback(done)
        return True

    def truncate(self, partition: Partition, cut: Truncation) -> None:
        """Cut a follower's log as its leader asks, then open a session anew."""
        hit("replication.truncate.received")
        log = partition.log
        before = log.log_end_offset
        was_empty = before == log.log_start_offset

        def run() -> None:
            if cut.start_over:
                log.truncate_fully_and_start_at(cut.offset)
            else:
                log.truncate_to(cut.offset)
            self._directory.offsets.cap_tombstones_gone(log)
            self._directory.offsets.note_tombstones_gone(log, cut.tombstones_gone_below)

        partition.replica.cuts_under_way += 1

        def done(result: asyncio.Future[None]) -> None:
            partition.replica.cuts_under_way -= 1
            error = result.exception()
            if error is not None:
                if is_full(error) and log.state is not LogState.FAILED:
                    # Nothing was cut yet; the leader will ask for it again.
                    self.followers.reopen(partition, pause=True)
                elif not (self._health.failed or partition.closed):
                    # Cut, but not noted: nobody would ask this replica to go on, of a node that seems well.
                    self._health.fail(partition.name, error)
                return
            # What is emptied has a file that begins there; any other cut lowers what is on the disk, at most.
            saved = log.log_start_offset if cut.start_over else partition.saved_log_start_offset
            partition.saved_log_start_offset = min(saved, log.log_start_offset)
            self._metrics.truncations += 1
            # An empty log may begin lower: where the leader's log start lies inside a batch.
            is_rebuilt = cut.tombstones_gone_below > 0
            if partition.replica.on_truncated() and not was_empty and not is_rebuilt:
                self._metrics.truncations_below_high_watermark += 1
            if log.log_end_offset < before:
                self._lifecycle.log.info(
                    "log cut to follow its leader" if not is_rebuilt else _TOO_LATE,
                    partition=partition.name,
                    from_offset=before,
                    to_offset=log.log_end_offset,
                )
            self.followers.reopen(partition, pause=False)
            partition.tell_damage()

        partition.exclusive(run).add_done_callback(done)
