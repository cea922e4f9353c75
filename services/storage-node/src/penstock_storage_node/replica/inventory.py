"""Logs that the metadata do not account for: those of topics that they do not know, wherever they lie, and those of
partitions that nobody leads since the metadata were restored (docs/decisions/0057).

The controllers choose leaders by what is said here, so it is said only while every log is where it belongs.
"""

from __future__ import annotations

from collections.abc import Generator

from penstock_core.ids import TopicId
from penstock_core.metadata.image import MetadataImage
from penstock_proto.v1.operations_pb2 import UnknownReplica
from penstock_runtime.turns import LoopTurns
from penstock_storage_node.log import LogDirectory, PartitionLog
from penstock_storage_node.log.set_aside_ends import SetAside, find
from penstock_storage_node.replica.manager import ReplicaManager

STRAYS_EVERY = 2
"""Looks between two readings of the data directory."""


class Inventory:
    """One per node. Lives on the event loop; the directory is read in the pool."""

    def __init__(self, manager: ReplicaManager, directory: LogDirectory) -> None:
        self._manager = manager
        self._directory = directory
        self._turns = LoopTurns.of(manager.lifecycle)
        self._known: dict[str, SetAside | None] = {}
        self._set_aside: list[SetAside] = []
        self._looks = 0

    async def look(self) -> tuple[int, list[UnknownReplica]] | None:
        """(metadata version, logs); None while logs change places. Raises OSError."""
        manager, directory = self._manager, self._directory
        if self._looks % STRAYS_EVERY == 0:
            fs, root = directory.fs, str(directory.path)
            self._set_aside = await manager.pool.run_read(lambda: find(fs, root, self._known))
        self._looks += 1
        image = manager.registry.image
        if not manager.is_settled:
            return None
        found = [
            _of(log, log.log_end_offset)
            for _, log in manager.unclaimed
            if _is_unaccounted(image, log.topic_id, log.partition)
        ]
        for each in self._set_aside:
            if _is_unaccounted(image, each.topic_id, each.partition):
                found.append(
                    UnknownReplica(
                        topic_id=each.topic_id,
                        partition=each.partition,
                        topic=each.topic,
                        last_leader_epoch=each.last_epoch,
                        log_start_offset=each.start_offset,
                        flushed_end_offset=each.end_offset,
                        size_bytes=each.size_bytes,
                        set_aside_ms=each.set_aside_ms,
                    )
                )
        if image.restored_version:
            await self._turns.run(self._unconfirmed(image, found))
        if manager.registry.image is not image or not manager.is_settled:
            return None
        return image.version, found

    def _unconfirmed(self, image: MetadataImage, found: list[UnknownReplica]) -> Generator[None, None, None]:
        for key, partition in list(self._manager.registry.partitions.items()):
            yield
            state = image.partition(key.topic_id, key.partition)
            if state is not None and state.unconfirmed and not partition.closed:
                log = partition.log
                # What counts as acknowledged, counts here: in `replicated` durability memory does.
                found.append(_of(log, log.flushed_offset if partition.replica.fsync else log.log_end_offset))


def _is_unaccounted(image: MetadataImage, topic_id: TopicId, partition: int) -> bool:
    state = image.partition(topic_id, partition)
    return state is None or state.unconfirmed


def _of(log: PartitionLog, end_offset: int) -> UnknownReplica:
    return UnknownReplica(
        topic_id=log.topic_id,
        partition=log.partition,
        topic=log.topic,
        last_leader_epoch=log.last_batch_epoch,
        log_start_offset=log.log_start_offset,
        flushed_end_offset=end_offset,
        size_bytes=log.size_bytes,
    )


__all__ = ["Inventory"]
