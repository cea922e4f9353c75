"""Every partition of this node, kept as the metadata want it.

The manager owns the partitions, turns metadata changes into roles, and once per turn of the
event loop carries out what the state machines asked for: start write jobs, wake streams to
followers, answer producers, wake readers, send ISR proposals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from penstock_core.config.topic import LONG_MAX
from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import MetadataImage, PartitionImage, TopicImage
from penstock_proto.v1 import metadata_pb2
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk.health import DiskHealth, is_full, is_unreadable
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory, LogState, PartitionDirectory, PartitionLog
from penstock_storage_node.metrics import NodeMetrics
from penstock_storage_node.replica import log_start
from penstock_storage_node.replica.corruption import CorruptionHandler
from penstock_storage_node.replica.memory_budget import MemoryBudget
from penstock_storage_node.replica.partition import LeadershipWatcher, Partition
from penstock_storage_node.replica.topic_config import DynamicTopicConfigs
from penstock_storage_node.replication.effects import Effects
from penstock_storage_node.replication.following import Truncation
from penstock_storage_node.replication.replica import Change, PartitionReplica
from penstock_storage_node.replication.sender import LeaderSender, SenderSession

FULL_RETRY_MS = 1000
"""How often what needs space tries again on a full disk."""

TICK_MS = 100
"""How often waits expire."""
ISR_TICKS = 5
"""The ISR of each partition is looked at every that many ticks."""


class FollowerStreamsPort(Protocol):
    """The streams to the nodes that lead partitions of this one (see `api.link`)."""

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


class LeaderStreamsPort(Protocol):
    """The streams of this node's followers (see `api.replicate`)."""

    def wake(self, sender: LeaderSender) -> None:
        """There is something to send."""

    def tell_later(self, session: SenderSession) -> None:
        """The high watermark rose: tell soon, along with data if any go out meanwhile."""


class ReplicaManager:
    """All partitions of the node. Lives on the event loop."""

    def __init__(
        self,
        *,
        directory: LogDirectory,
        pool: DiskPool,
        lifecycle: Lifecycle,
        metrics: NodeMetrics,
        clock_ms: Callable[[], int],
        lag_max_ms: int,
    ) -> None:
        self.pool = pool
        self.clock_ms = clock_ms
        self.metrics = metrics
        self.lifecycle = lifecycle
        self.directory = directory
        self.node_id = NO_NODE
        self.node_epoch = -1
        self.image = MetadataImage()
        self.on_link_lost: Callable[[NodeId], None] = lambda _: None
        """Told of a leader whose replication stream broke."""
        self.in_touch: Callable[[], bool] = lambda: True
        """Whether the controllers were heard of lately: else another node may lead what this one leads."""
        self.partitions: dict[TopicPartition, Partition] = {}
        self.leading: dict[Partition, None] = {}
        self.effects = Effects()
        self.links: FollowerStreamsPort
        self.streams: LeaderStreamsPort
        self.watchers: list[LeadershipWatcher] = []
        self.propose: Callable[[Iterable[PartitionReplica]], None]
        self.health = DiskHealth(lifecycle, clock_ms)
        self.health.listeners.append(self._give_up_roles)
        self.damage = CorruptionHandler(self)
        self.budget = MemoryBudget()
        self._lag_max_ms = lag_max_ms
        self._found: dict[tuple[str, int], tuple[PartitionDirectory, PartitionLog]] = {}
        self._creating: dict[TopicPartition, asyncio.Future[None]] = {}
        self._deleting: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._dirty: dict[Partition, None] = {}
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self._tick_count = 0
        self.settings = DynamicTopicConfigs(self)

    # -- looking up ---------------------------------------------------------------

    def locate(self, topic: str, topic_id: TopicId | None, index: int) -> Partition:
        """The partition that a client names. Raises PenstockError with the code for it.

        UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID when the metadata know no such thing;
        NOT_LEADER_OR_FOLLOWER when they do and it isn't here (yet).
        """
        wanted = topic_id
        if wanted is None:
            wanted = self.image.topic_ids.get(topic)
            if wanted is None:
                raise PenstockError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
        partition = self.partitions.get(TopicPartition(wanted, index))
        if partition is not None:
            return partition
        known = self.image.topics.get(wanted)
        if known is None:
            raise PenstockError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {wanted.hex()}")
        if index not in known.partitions:
            raise PenstockError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {known.name} has {len(known.partitions)} partitions, none is {index}",
            )
        raise PenstockError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self.node_id} holds no {known.name}-{index}"
        )

    def opening(self, topic: str, topic_id: TopicId | None, index: int) -> asyncio.Future[None] | None:
        """For a partition whose directory is being made: what ends when it is there, or could not be made."""
        wanted = self.image.topic_ids.get(topic) if topic_id is None else topic_id
        return None if wanted is None else self._creating.get(TopicPartition(wanted, index))

    def topic_name(self, topic_id: TopicId) -> str:
        """Name of a topic, "" when unknown."""
        topic = self.image.topics.get(topic_id)
        return "" if topic is None else topic.name

    # -- metadata -----------------------------------------------------------------

    def adopt(self, found: Iterable[tuple[PartitionDirectory, PartitionLog]]) -> None:
        """Logs that were found on the disk; metadata give them a role, or none."""
        for directory, log in found:
            self._found[directory.topic, directory.partition] = (directory, log)

    def on_metadata(
        self, old: MetadataImage, new: MetadataImage, records: Sequence[metadata_pb2.MetadataRecord]
    ) -> None:
        """Callback of the MetadataClient. Before registration the image is only kept."""
        self.image = new
        if self.node_id == NO_NODE:
            return
        if new.version != old.version + 1:
            self._apply_all()
        else:
            self._apply(records)
        self.links.settle()
        self.schedule()

    def start(self, node_id: NodeId, node_epoch: int) -> None:
        """The node is registered: take the roles that the metadata give it."""
        self.node_id, self.node_epoch = node_id, node_epoch
        self._apply_all()
        self.links.settle()
        self.schedule()

    def _apply(self, records: Sequence[metadata_pb2.MetadataRecord]) -> None:
        for record in records:
            kind = record.WhichOneof("record")
            if kind == "partition":
                topic = self.image.topics.get(TopicId(record.partition.topic_id))
                state = topic.partitions.get(record.partition.partition) if topic else None
                if topic is not None and state is not None:
                    self._ensure(topic, state)
            elif kind == "topic_removed":
                self.settings.clear()  # another topic may take the name, without the settings
                topic_id = TopicId(record.topic_removed.topic_id)
                for key in [k for k in self.partitions if k.topic_id == topic_id]:
                    self._delete(self.partitions[key])
            elif kind == "config":
                self.settings.on_record(record.config)

    def _apply_all(self) -> None:
        """As after a snapshot: look at everything."""
        self.settings.clear()
        for key, partition in list(self.partitions.items()):
            state = self.image.partition(key.topic_id, key.partition)
            if state is None or self.node_id not in state.replicas:
                self._delete(partition)
        for topic in self.image.topics.values():
            for state in topic.partitions.values():
                self._ensure(topic, state)
            self.settings.update(topic.name)

    def set_aside_strays(self) -> list[asyncio.Future[None]]:
        """Logs on the disk that the metadata know nothing of: kept, under another name.

        To be called once the metadata are those of the registration, or newer.
        """
        strays, self._found = list(self._found.values()), {}
        return [self._set_aside(*stray) for stray in strays]

    def take_unclaimed(self) -> list[PartitionLog]:
        """Logs that were found on the disk and never got a role."""
        logs = [log for _, log in self._found.values()]
        self._found = {}
        return logs

    def _set_aside(self, found: PartitionDirectory, log: PartitionLog) -> asyncio.Future[None]:
        def rename() -> None:
            log.close(clean=True)
            path = self.directory.set_aside(found, "the cluster's metadata do not know it")
            self.lifecycle.log.warning(
                "a log that no topic owns was set aside; delete it when nobody needs it", path=str(path)
            )

        return asyncio.ensure_future(self.pool.run(rename))

    def _ensure(self, topic: TopicImage, state: PartitionImage) -> None:
        key = state.key
        partition = self.partitions.get(key)
        if self.node_id not in state.replicas:
            if partition is not None:
                self._delete(partition)
            return
        if partition is not None:
            self.settings.before(state)
            self._assign(partition, state)
            return
        found = self._found.get((topic.name, state.partition))
        if found is not None and found[0].topic_id == state.topic_id:
            del self._found[topic.name, state.partition]
            found[1].update_settings(self.settings.of(topic, state))
            self._install(topic, state, found[1], found[0].high_watermark)
        elif key not in self._creating:
            self._creating[key] = self._loop.create_future()
            self.lifecycle.create_task(self._create(topic, state), f"create {topic.name}-{state.partition}")

    async def _create(self, topic: TopicImage, state: PartitionImage) -> None:
        name, index, key = topic.name, state.partition, state.key
        try:
            stray = self._found.pop((name, index), None)
            if stray is not None:
                await self._set_aside(*stray)
            deleting = self._deleting.get((name, index))
            if deleting is not None:
                await asyncio.wait([deleting])
            settings = self.settings.of(topic, state)
            log = await self.pool.run(
                lambda: self.directory.create_log(name, index, topic.topic_id, settings)
            )
        except (PenstockError, OSError) as e:
            if not is_full(e):
                self.health.fail(f"{name}-{index}", e)
                return
            self.health.note_full(f"{name}-{index}")
            self._loop.call_later(FULL_RETRY_MS / 1000, self._create_again, key)
            return
        finally:
            created = self._creating.pop(key)
            # Those who wait for it go on once this turn is over: the replica has its role then.
            self._loop.call_soon(created.set_result, None)
        # The metadata may have moved on meanwhile.
        newest_topic = self.image.topics.get(topic.topic_id)
        newest = newest_topic.partitions.get(index) if newest_topic is not None else None
        if newest_topic is None or newest is None or self.node_id not in newest.replicas:
            remove = await self.pool.run(lambda: self.directory.delete_log(log))
            await self.pool.run(remove)
            return
        log.update_settings(self.settings.of(newest_topic, newest))
        self._install(newest_topic, newest, log, 0)
        self.links.settle()
        self.schedule()

    def _create_again(self, key: TopicPartition) -> None:
        """The disk was full; see what the metadata want by now."""
        topic = self.image.topics.get(key.topic_id)
        state = topic.partitions.get(key.partition) if topic is not None else None
        if topic is not None and state is not None and not self.lifecycle.stopping.is_set():
            self._ensure(topic, state)

    def _install(
        self, topic: TopicImage, state: PartitionImage, log: PartitionLog, high_watermark: int
    ) -> None:
        replica = PartitionReplica(
            state.key,
            topic.name,
            self.node_id,
            log,
            self.settings.of(topic, state),
            high_watermark=high_watermark,
            lag_max_ms=self._lag_max_ms,
            eligible=self._eligible,
            effects=self.effects,
        )
        partition = Partition(self, replica, log)
        self.partitions[state.key] = partition
        log_start.mark_compacted(self, partition)
        self._assign(partition, state)

    def _eligible(self, node: NodeId, node_epoch: int) -> bool:
        known = self.image.nodes.get(node)
        return known is not None and known.active and node_epoch in (-1, known.node_epoch)

    def _delete(self, partition: Partition) -> None:
        """The node is no replica any more, or the topic is gone."""
        name = (partition.replica.topic, partition.key.partition)
        partition.closed = True
        del self.partitions[partition.key]
        self._stop_role(partition, "it was deleted")
        partition.replica.step_down()
        self.schedule()
        deleted = partition.exclusive(lambda: self.directory.delete_log(partition.log))
        future: asyncio.Future[None] = self._loop.create_future()
        self._deleting[name] = future

        def renamed(done: asyncio.Future[Callable[[], None]]) -> None:
            partition.forget_staged()
            # The name is free now; the files go in their own time.
            self._deleting.pop(name, None)
            future.set_result(None)
            error = done.exception()
            if error is None:
                self.pool.write(done.result(), self.on_removed)
            elif is_full(error):
                self.lifecycle.log.warning("a deleted log stays until the next start", reason=str(error))
            else:
                self.health.fail(partition.name, error)

        deleted.add_done_callback(renamed)

    def on_removed(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self.lifecycle.log.warning("files of a deleted log remain", reason=str(error))
            if is_unreadable(error):
                self.health.fail("removal of files", error)

    # -- roles --------------------------------------------------------------------

    def _assign(self, partition: Partition, state: PartitionImage) -> None:
        replica = partition.replica
        change = replica.plan(state, self.clock_ms())
        if change is Change.NONE:
            return
        self._stop_role(partition, f"leader epoch {state.leader_epoch} began")
        if partition.log.state is LogState.FAILED or self.health.failed:
            replica.step_down()
            return
        if change is Change.LEAD:
            hit("replica.become_leader.before")
            self._lead_when_free(partition, state)
        elif change is Change.FOLLOW:
            hit("replica.become_follower.before")
            self.links.follow(partition, NodeId(state.leader))

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
                self.health.fail(partition.name, error)
                return
            # The role may be over by now. Its epoch, noted all the same (or at another time by the pool),
            # would stand over batches of an earlier one that the next leader sends, and when this node
            # leads for real, followers would be told to cut what is committed.
            replica, newest = partition.replica, self.image.partition(*partition.key)
            if partition.closed or self.health.failed or newest is None:
                return
            if (replica.leader, replica.leader_epoch) == (self.node_id, epoch):
                self._lead_when_free(partition, newest)

        partition.exclusive(lambda: None).add_done_callback(free)

    def _lead(self, partition: Partition, state: PartitionImage) -> None:
        partition.replica.lead(state, self.clock_ms())
        if partition.replica.leadership is not None:
            self.leading[partition] = None
            for watcher in self.watchers:
                watcher.on_lead(partition)
            hit("replica.become_leader.after")
        self.schedule()

    def _stop_role(self, partition: Partition, why: str) -> None:
        self.leading.pop(partition, None)
        for watcher in self.watchers:
            watcher.on_stop(partition)
        self.links.unfollow(partition)
        if partition.sessions:
            partition.end_sessions(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.name}: {why}")
        partition.wake_readers()
        self._loop.call_soon(partition.wake_log_start)  # once the role has ended

    def truncate(self, partition: Partition, cut: Truncation) -> None:
        """Cut a follower's log as its leader asks, then open a session anew."""
        hit("replication.truncate.received")
        log = partition.log
        before = log.log_end_offset

        def run() -> None:
            if cut.start_over:
                log.truncate_fully_and_start_at(cut.offset)
            else:
                log.truncate_to(cut.offset)

        partition.replica.cuts_under_way += 1

        def done(result: asyncio.Future[None]) -> None:
            partition.replica.cuts_under_way -= 1
            error = result.exception()
            if error is not None:
                if is_full(error) and log.state is not LogState.FAILED:
                    # Nothing was cut yet; the leader will ask for it again.
                    self.links.reopen(partition, pause=True)
                return
            partition.saved_log_start_offset = min(partition.saved_log_start_offset, log.log_start_offset)
            self.metrics.truncations += 1
            if partition.replica.on_truncated():
                self.metrics.truncations_below_high_watermark += 1
            if log.log_end_offset < before:
                self.lifecycle.log.info(
                    "log cut to follow its leader",
                    partition=partition.name,
                    from_offset=before,
                    to_offset=log.log_end_offset,
                )
            self.links.reopen(partition, pause=False)

        partition.exclusive(run).add_done_callback(done)

    # -- the turn -----------------------------------------------------------------

    def touch(self, partition: Partition) -> None:
        """`partition` has something to write."""
        self._dirty[partition] = None
        if not self._scheduled:
            self.schedule()

    def schedule(self) -> None:
        """Carry out effects before the loop waits again."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            partition.kick()
        effects = self.effects
        # Each step may lead to another one; what comes up late waits for the next turn.
        if effects.reopen:
            reopen, effects.reopen = effects.reopen, []
            for replica, node in reopen:
                self._end_session(replica, node)
        if effects.sending:
            sending, effects.sending = effects.sending, {}
            for sender in sending:
                self.streams.wake(sender)
        if effects.advanced:
            hit("replication.watermark.advanced")
            advanced, effects.advanced = effects.advanced, {}
            for replica in advanced:
                partition_ = self.partitions.get(replica.key)
                if partition_ is not None:
                    self._on_advanced(partition_)
        if effects.answers:
            hit("produce.before_answer")
            answers, effects.answers = effects.answers, []
            for waiter, error in answers:
                waiter.acknowledge(error)
        if effects.proposals:
            proposals, effects.proposals = effects.proposals, {}
            self.propose(proposals)
        if not effects.empty:
            self.schedule()

    def _end_session(self, replica: PartitionReplica, node: NodeId) -> None:
        partition = self.partitions.get(replica.key)
        if partition is None:
            return
        for session in [s for s in partition.sessions if s.sender.node == node]:
            session.sender.end(session, ErrorCode.REPLICA_NOT_AVAILABLE, "left the ISR: open again")
            del partition.sessions[session]

    def _on_advanced(self, partition: Partition) -> None:
        if partition.readers:
            partition.wake_readers()
        for session in partition.sessions:
            self.streams.tell_later(session)

    def on_written(self, partition: Partition, now_ms: int) -> None:
        """A write job of `partition` is done."""
        self._on_progress(partition, now_ms)

    def on_flushed(self, partition: Partition) -> None:
        """A flush of `partition` is done."""
        self._on_progress(partition, self.clock_ms())

    def _on_progress(self, partition: Partition, now_ms: int) -> None:
        leadership = partition.replica.leadership
        if leadership is not None:
            leadership.on_local_progress(now_ms)
        elif partition.replica.following is not None:
            self.links.on_progress(partition)
        self.schedule()

    def on_write_failed(self, partition: Partition, error: BaseException) -> None:
        """A write, a flush or a change of `partition`'s files failed."""
        self.metrics.write_failures += 1
        if partition.log.state is not LogState.FAILED and is_full(error):
            self.health.note_full(partition.name)
        else:
            self.health.fail(partition.name, error)

    def on_read_failed(self, partition: Partition, error: BaseException) -> None:
        """A read met an error of the disk itself: others must serve what this one can't."""
        self.health.fail(partition.name, error)

    @property
    def disk_failed(self) -> bool:
        """This node must not write, lead or acknowledge any more."""
        return self.health.failed

    def _give_up_roles(self) -> None:
        """The disk failed. Waiting producers hear "timed out": their records may be kept elsewhere."""
        for partition in list(self.partitions.values()):
            self._stop_role(partition, "the disk under its leader failed")
            partition.replica.step_down()
        self.budget.give_up()
        self.links.settle()
        self.schedule()

    @property
    def deleting(self) -> bool:
        """Whether logs are being deleted whose names are not free yet."""
        return bool(self._deleting)

    def validate(self) -> None:
        """For tests and the simulator: raises InvariantBroken when what is kept twice differs."""
        self.budget.validate()
        logs = len(self.partitions) + len(self._deleting)
        if self.budget.share_count != logs:
            raise InvariantBroken(f"{self.budget.share_count} logs count as staged to, there are {logs}")

    # -- time ---------------------------------------------------------------------

    def tick(self) -> None:
        """Every TICK_MS."""
        now_ms = self.clock_ms()
        self._tick_count += 1
        turn = self._tick_count % ISR_TICKS
        for index, partition in enumerate(self.leading):
            leadership = partition.replica.leadership
            if leadership is None:
                continue
            if index % ISR_TICKS == turn:
                leadership.tick(now_ms)
            elif leadership.waiting_count:
                leadership.expire(now_ms)
        if self._tick_count % 10 == 0:
            for partition in self.partitions.values():
                if partition.log.state is LogState.FULL:
                    partition.kick()
                elif partition.log.settings.flush_ms < LONG_MAX:
                    partition.flush_if_due(now_ms)
        if not self.effects.empty:
            self.schedule()
