"""The partitions of this node, kept as the metadata want them: what `Placement` decides is carried out here.

This is also where the parts of the room are put together. Whoever needs one takes that one:
handlers the `registry`, streams the `drain` and the `roles`. Only what starts and ends a node
(its role, tests) takes the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from penstock_core.config.catalog import producer_expiration_ms
from penstock_core.config.topic import TopicConfig
from penstock_core.errors import InvariantBroken, PenstockError
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import MetadataImage, PartitionImage, TopicImage, is_whole_image
from penstock_proto.v1 import metadata_pb2
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.ports import Clocks
from penstock_storage_node.disk.health import DiskHealth, is_full, is_unreadable
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory, PartitionDirectory, PartitionLog
from penstock_storage_node.log.recovery import mark_damaged
from penstock_storage_node.metrics import NodeMetrics
from penstock_storage_node.replica.corruption import CorruptionHandler
from penstock_storage_node.replica.drain import EffectsDrain, LeaderStreamsPort
from penstock_storage_node.replica.failures import FailureHandler
from penstock_storage_node.replica.log_start import LogStarts
from penstock_storage_node.replica.memory_budget import MemoryBudget
from penstock_storage_node.replica.partition import Partition, PartitionPorts
from penstock_storage_node.replica.placement import (
    AwaitName,
    CreateLog,
    DeleteLog,
    Instruction,
    Name,
    OpenLog,
    ParkLog,
    Placement,
    TakeRole,
)
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.replica.roles import FollowerStreamsPort, Roles
from penstock_storage_node.replica.sizes import ReplicaSizes
from penstock_storage_node.replica.topic_config import DynamicTopicConfigs
from penstock_storage_node.replication.replica import PartitionReplica
from penstock_storage_node.replication.state import ReplicaState

FULL_RETRY_MS = 1000
"""How often what needs space tries again on a full disk."""


class ReplicaManager:
    """One per node. Lives on the event loop; `connect` comes before anything else."""

    def __init__(
        self,
        *,
        directory: LogDirectory,
        pool: DiskPool,
        lifecycle: Lifecycle,
        metrics: NodeMetrics,
        clocks: Clocks,
        lag_max_ms: int,
        replica_class: type[PartitionReplica] = PartitionReplica,
    ) -> None:
        self.pool = pool
        self.clocks = clocks
        self.clock_ms = clock_ms = clocks.ms
        self.wall_ms = clocks.wall_ms
        self.metrics = metrics
        self.lifecycle = lifecycle
        self.directory = directory
        self.registry = PartitionRegistry()
        self.drain = EffectsDrain(self.registry)
        self.budget = MemoryBudget()
        self.sizes = ReplicaSizes(self._log_of)
        self.health = DiskHealth(lifecycle, clock_ms)
        self.health.listeners.append(self._give_up)
        self.log_starts = LogStarts(
            pool,
            directory,
            lifecycle,
            self._on_removed,
            clocks.wall_ms,
            lambda: producer_expiration_ms(self.registry.image, self.registry.node_id),
        )
        self.configs = DynamicTopicConfigs(
            self.registry, clock_ms, self.drain.schedule, self.log_starts.mark_compacted
        )
        self.roles = Roles(self.registry, self.drain, self.health, directory, metrics, lifecycle, clock_ms)
        corruption = CorruptionHandler(
            self._has_others_in_sync, self._mark_damaged, self.health, metrics, lifecycle
        )
        failures = FailureHandler(self.health, corruption, metrics)
        self._ports = PartitionPorts(
            pool, directory, clock_ms, clocks.s, metrics, self.budget, self.drain, failures, self.sizes
        )
        self._placement = Placement()
        self._found: dict[Name, tuple[PartitionDirectory, PartitionLog]] = {}
        self._lag_max_ms = lag_max_ms
        self._replica_class = replica_class
        self._deleting = 0
        self._parking = 0
        self._loop = asyncio.get_running_loop()

    def connect(
        self,
        leader_streams: LeaderStreamsPort,
        follower_streams: FollowerStreamsPort,
        propose: Callable[[Iterable[ReplicaState]], None],
    ) -> None:
        """The ways to other nodes, which are made after this."""
        self.drain.connect(leader_streams, propose, follower_streams.on_progress)
        self.roles.followers = follower_streams

    # -- metadata -----------------------------------------------------------------

    def adopt(self, found: Iterable[tuple[PartitionDirectory, PartitionLog]]) -> None:
        """Logs that were found on the disk; metadata give them a role, or none."""
        for directory, log in found:
            name = (directory.topic, directory.partition)
            self._found[name] = (directory, log)
            self._placement.on_found(name, directory.topic_id)

    def on_metadata(
        self, old: MetadataImage, new: MetadataImage, records: Sequence[metadata_pb2.MetadataRecord]
    ) -> None:
        """Callback of the MetadataClient. Before registration the image is only kept."""
        self.registry.image = new
        if self.registry.node_id == NO_NODE:
            return
        if new.version != old.version + 1 or is_whole_image(records):
            self._apply_all(was_restored=0 < old.version < new.restored_version)
        else:
            self._apply(records)
        self.roles.followers.settle()
        self.drain.schedule()

    def start(self, node_id: NodeId, node_epoch: int) -> None:
        """The node is registered: take the roles that the metadata give it."""
        self.registry.node_id, self.registry.node_epoch = node_id, node_epoch
        self._apply_all()
        self.roles.followers.settle()
        self.drain.schedule()

    def _apply(self, records: Sequence[metadata_pb2.MetadataRecord]) -> None:
        image = self.registry.image
        for record in records:
            kind = record.WhichOneof("record")
            if kind == "partition":
                topic = image.topics.get(TopicId(record.partition.topic_id))
                state = topic.partitions.get(record.partition.partition) if topic else None
                if topic is not None and state is not None:
                    self._place(topic, state)
            elif kind == "topic_removed":
                self.configs.clear()  # another topic may take the name, without the settings
                topic_id = TopicId(record.topic_removed.topic_id)
                for key in [k for k in self.registry.partitions if k.topic_id == topic_id]:
                    self._delete(self._placement.on_gone(key))
            elif kind == "config":
                self.configs.on_record(record.config)

    def _apply_all(self, *, was_restored: bool = False) -> None:
        """As after a snapshot: look at everything.

        `was_restored`: these metadata were made of a backup since we last heard. That a partition is not ours says
        nothing then: its log stays.
        """
        registry = self.registry
        self.configs.clear()
        for key in list(registry.partitions):
            state = registry.image.partition(key.topic_id, key.partition)
            if state is None or registry.node_id not in state.replicas:
                if was_restored:
                    self._park(self._placement.park(key))
                else:
                    self._delete(self._placement.on_gone(key))
        for topic in registry.image.topics.values():
            for state in topic.partitions.values():
                self._place(topic, state)
            self.configs.update(topic.name)

    def _log_of(self, key: TopicPartition) -> PartitionLog | None:
        partition = self.registry.partitions.get(key)
        return None if partition is None else partition.log

    # -- placement ----------------------------------------------------------------

    def _place(self, topic: TopicImage, state: PartitionImage) -> None:
        is_mine = self.registry.node_id in state.replicas
        name = (topic.name, state.partition)
        self._carry_out(self._placement.on_state(state.key, name, is_mine=is_mine), topic, state)

    def _carry_out(self, instruction: Instruction | None, topic: TopicImage, state: PartitionImage) -> None:
        match instruction:
            case None:
                return
            case TakeRole(key):
                self.configs.before(state)
                self.roles.assign(self.registry.partitions[key], state)
            case OpenLog(_, name):
                directory, log = self._found.pop(name)
                log.update_settings(self.configs.of(topic, state))
                self._open(topic, state, log, directory.high_watermark)
            case AwaitName(key):
                self._note_creation(key)
            case CreateLog(key, name):
                self._note_creation(key)
                creation = self._create(instruction, topic, state)
                self.lifecycle.create_task(creation, f"create {name[0]}-{name[1]}")
            case DeleteLog():
                self._delete(instruction)
            case _:
                raise InvariantBroken(f"placement said {instruction} out of turn")

    def _newest(self, key: TopicPartition) -> tuple[TopicImage, PartitionImage] | None:
        """The partition as the metadata of now have it; None when they know none that is of this node."""
        topic = self.registry.image.topics.get(key.topic_id)
        state = topic.partitions.get(key.partition) if topic is not None else None
        if topic is None or state is None or self.registry.node_id not in state.replicas:
            return None
        return topic, state

    async def _create(self, wanted: CreateLog, topic: TopicImage, state: PartitionImage) -> None:
        key, (name, index) = wanted.key, wanted.name
        try:
            if wanted.stray:
                await self._set_aside(*self._found.pop(wanted.name))
            settings = self.configs.of(topic, state)
            log = await self.pool.run(lambda: self._make_log(topic, state, settings))
        except (PenstockError, OSError) as e:
            waiting = self._placement.on_free(wanted.name)
            if not is_full(e):
                self.health.fail(f"{name}-{index}", e)
                return
            self.health.note_full(f"{name}-{index}")
            self._loop.call_later(FULL_RETRY_MS / 1000, self._look_again, [key, *waiting])
            return
        finally:
            self._end_creation(key)
        # The metadata may have moved on meanwhile.
        newest = self._newest(key)
        self._placement.on_created(key, is_mine=newest is not None)
        if newest is None:
            remove = await self.pool.run(lambda: self.directory.delete_log(log))
            self._look_again(self._placement.on_free(wanted.name))
            await self.pool.run(remove)
            return
        log.update_settings(self.configs.of(*newest))
        self._open(*newest, log, 0)
        self.roles.followers.settle()
        self.drain.schedule()

    def _make_log(self, topic: TopicImage, state: PartitionImage, settings: TopicConfig) -> PartitionLog:
        """(pool) A log for a partition that has none here. Raises PenstockError and OSError.

        A member of the ISR is said to have all that was acknowledged: where its log was set aside before the
        metadata knew of it, it is taken back.
        """
        directory, name = self.directory, f"{topic.name}-{state.partition}"
        if self.registry.node_id in state.isr and directory.take_back(
            topic.name, state.partition, topic.topic_id
        ):
            self.lifecycle.log.info("took back a log that had been set aside", partition=name)
        return directory.create_log(topic.name, state.partition, topic.topic_id, settings)

    def _look_again(self, keys: Sequence[TopicPartition]) -> None:
        """The disk was full, or a directory's name was taken: see what the metadata want by now."""
        for key in keys:
            newest = self._newest(key)
            if newest is None:
                self._end_creation(key)
            elif not self.lifecycle.stopping.is_set():
                self._place(*newest)

    def _note_creation(self, key: TopicPartition) -> None:
        """Requests for this partition wait from now on."""
        if key not in self.registry.being_created:
            self.registry.being_created[key] = self._loop.create_future()

    def _end_creation(self, key: TopicPartition) -> None:
        """The partition is there, or was given up."""
        created = self.registry.being_created.pop(key, None)
        if created is not None:
            # Those who wait for it go on once this pass is over: the replica has its role then.
            self._loop.call_soon(created.set_result, None)

    def _open(self, topic: TopicImage, state: PartitionImage, log: PartitionLog, high_watermark: int) -> None:
        replica = self._replica_class(
            state.key,
            topic.name,
            self.registry.node_id,
            log,
            self.configs.of(topic, state),
            high_watermark=high_watermark,
            lag_max_ms=self._lag_max_ms,
            eligible=self.registry.is_eligible,
            is_full=self.registry.is_full,
            effects=self.drain.effects,
        )
        partition = Partition(self._ports, replica, log)
        self.registry.partitions[state.key] = partition
        partition.note_size()
        self.log_starts.mark_compacted(partition)
        self.roles.assign(partition, state)

    def _delete(self, wanted: DeleteLog | None) -> None:
        """The node is no replica any more, or the topic is gone."""
        if wanted is None:
            return
        partition, name = self.registry.partitions.pop(wanted.key), wanted.name
        partition.close()
        partition.note_size()
        self.roles.stop(partition, "it was deleted")
        partition.replica.step_down()
        self.drain.schedule()
        deleted = partition.exclusive(lambda: self.directory.delete_log(partition.log))
        self._deleting += 1

        def renamed(done: asyncio.Future[Callable[[], None]]) -> None:
            # The name is free now; the files go in their own time.
            partition.forget_staged()
            self._deleting -= 1
            self._look_again(self._placement.on_free(name))
            error = done.exception()
            if error is None:
                self.pool.write(done.result(), self._on_removed)
            elif is_full(error):
                self.lifecycle.log.warning("a deleted log stays until the next start", reason=str(error))
            else:
                self.health.fail(partition.name, error)

        deleted.add_done_callback(renamed)

    def _park(self, wanted: ParkLog | None) -> None:
        """The metadata were restored and do not give the partition to this node: keep its log, without a role."""
        if wanted is None:
            return
        key, name = wanted.key, wanted.name
        partition = self.registry.partitions.pop(key)
        partition.close()
        partition.note_size()
        self.roles.stop(partition, "the metadata were restored and do not know it")
        high_watermark = partition.replica.high_watermark
        partition.replica.step_down()
        self.drain.schedule()
        parked = partition.exclusive(lambda: self.directory.park(partition.log, high_watermark))
        self._parking += 1

        def done(parked: asyncio.Future[tuple[PartitionDirectory, PartitionLog]]) -> None:
            partition.forget_staged()
            self._parking -= 1
            error = parked.exception()
            if error is None:
                self._found[name] = parked.result()
                self.lifecycle.log.warning(
                    "the restored metadata do not give this log to this node: it is kept", log=partition.name
                )
                self._look_again(self._placement.on_parked(key, name))
                return
            # Its directory is there: the next start finds it, and so does who is to create it.
            self._look_again(self._placement.on_free(name))
            self.lifecycle.log.error("a log was not closed cleanly", log=partition.name, reason=str(error))
            if not is_full(error):
                self.health.fail(partition.name, error)

        parked.add_done_callback(done)

    def _on_removed(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self.lifecycle.log.warning("files of a deleted log remain", reason=str(error))
            if is_unreadable(error):
                self.health.fail("removal of files", error)

    # -- logs without a role ----------------------------------------------------------

    def set_aside_strays(self) -> list[asyncio.Future[None]]:
        """Logs on the disk that the metadata know nothing of: kept, under another name.

        To be called once the metadata are those of the registration, or newer.
        """
        image = self.registry.image

        def is_kept(key: TopicPartition) -> bool:
            # Restored metadata may be those of a time before this log.
            state = image.partition(key.topic_id, key.partition)
            return image.restored_version > 0 and (state is None or state.unconfirmed)

        strays = self._placement.strays(is_kept)
        futures = [self._set_aside(*self._found.pop(stray.name)) for stray in strays]
        for future in futures:
            future.add_done_callback(self._on_set_aside)
        return futures

    def _on_set_aside(self, done: asyncio.Future[None]) -> None:
        if done.cancelled() or (error := done.exception()) is None:
            return
        if is_full(error):
            self.lifecycle.log.warning(
                "a log that no topic owns stays until the next start", reason=str(error)
            )
        else:
            self.health.fail("a log that no topic owns", error)

    def take_unclaimed(self) -> list[PartitionLog]:
        """Logs that were found on the disk and never got a role."""
        self._placement.strays()
        logs = [log for _, log in self._found.values()]
        self._found = {}
        return logs

    def _set_aside(self, found: PartitionDirectory, log: PartitionLog) -> asyncio.Future[None]:
        def rename() -> None:
            log.close(clean=True)
            path = self.directory.set_aside(found, "the cluster's metadata do not know it")
            self.lifecycle.log.warning(
                "a log that the metadata do not give to this node was set aside: `penstock node strays` tells"
                " whether it goes after stray_retention_ms",
                path=str(path),
            )

        return asyncio.ensure_future(self.pool.run(rename))

    # -- the disk ---------------------------------------------------------------------

    def _has_others_in_sync(self, key: TopicPartition) -> bool:
        state = self.registry.image.partition(*key)
        return state is not None and any(node != self.registry.node_id for node in state.isr)

    def _mark_damaged(
        self, partition: Partition, offset: int, done: Callable[[object, BaseException | None], None]
    ) -> None:
        directory = str(partition.log.directory)
        self.pool.write(lambda: mark_damaged(self.directory.fs, directory, offset), done)

    def _give_up(self) -> None:
        """The disk failed: this node must not write, lead or acknowledge any more."""
        self.roles.give_up()
        self.budget.give_up()

    @property
    def unclaimed(self) -> list[tuple[PartitionDirectory, PartitionLog]]:
        """Logs in their places that have no role."""
        return list(self._found.values())

    @property
    def is_settled(self) -> bool:
        """Whether every log is either a partition's, or among the unclaimed, or set aside."""
        return not self._parking and not self.registry.being_created

    @property
    def deleting(self) -> bool:
        """Whether logs are being deleted, or taken out of use, whose names are not free yet."""
        return self._deleting > 0 or self._parking > 0

    def validate(self) -> None:
        """For tests and the simulator: raises InvariantBroken when what is kept twice differs."""
        self.budget.validate()
        partitions = self.registry.partitions
        for partition in partitions.values():
            partition.validate()
        logs = len(partitions) + self._deleting + self._parking
        if self.budget.share_count != logs:
            raise InvariantBroken(f"{self.budget.share_count} logs count as staged to, there are {logs}")
        if not self.registry.leading.keys() <= set(partitions.values()):
            raise InvariantBroken("a partition leads that is not here")
        self._placement.validate(partitions)
