"""DescribeProducers, and the requests about a node's own disk: DescribeLogDirs, AlterReplicaLogDirs.

A node has one log directory (decision 0024). Its requests name no node, so only a direct listener
answers them: behind a gateway nobody can tell which node was meant.

AlterReplicaLogDirs is answered by partition, as Kafka answers on a broker with one entry in log.dirs.
Nothing ever moves: the only directory that there is already has what is here.

    what                                                       code
    not authorized to alter the cluster                        CLUSTER_AUTHORIZATION_FAILED
    a name too long for the directory that a move would make   INVALID_TOPIC_EXCEPTION
    another directory than this node's                         LOG_DIR_NOT_FOUND
    this node's, whose disk failed                             KAFKA_STORAGE_ERROR
    no such topic or partition                                 UNKNOWN_TOPIC_OR_PARTITION
    a partition of which this node holds no replica            REPLICA_NOT_AVAILABLE
    a replica that is here                                     NONE

Deviation: Kafka keeps in memory where a replica shall be made that is not here yet; with one
directory there is nothing to keep.

Sources: KIP-113, KIP-664, KIP-827; ReplicaManager.describeLogDirs, alterReplicaLogDirs and
getPartitionOrException, LogManager.isLogDirOnline, UnifiedLog.logFutureDirName, and
AlterReplicaLogDirsRequest.partitionDirs (of a partition named twice the last directory counts) of
Apache Kafka 4.3.
"""

from __future__ import annotations

import os
from typing import Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.topics import check_topic_name
from penstock_frontend.authorizer import Operation, ResourceType
from penstock_frontend.listener.listener import Buffer, Response
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition

FILE_NAME_CHARS_MAX = 255
FUTURE_ENDING = f".{'0' * 32}-future"
"""As long as what Kafka adds to a partition's name for the directory that it moves to."""


class DescribeNodeHandler:
    """Answers for every way in."""

    def __init__(self, manager: ReplicaManager, rights: Rights) -> None:
        self._manager = manager
        self._rights = rights

    # -- producers ----------------------------------------------------------------

    def describe_producers(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Response:
        """The idempotent producers that a replica remembers, whatever its role."""
        request = codec.decode_request(header, frame)
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "TopicResponse")
        item_type = codec.entity_type(*version, "PartitionResponse")
        topics = []
        for topic in request.topics:
            items = []
            for index in topic.partition_indexes:
                code, message, producers = ErrorCode.NONE, None, ()
                try:
                    producers = self._producers(caller, header, topic.name, index)
                except PenstockError as e:
                    code, message = e.code, e.message
                    caller.note(code)
                items.append(
                    codec.build(
                        item_type,
                        partition_index=index,
                        error_code=code,
                        error_message=message,
                        active_producers=producers,
                    )
                )
            topics.append(codec.build(topic_type, name=topic.name, partitions=tuple(items)))
        return _encode(header, topics=tuple(topics))

    def _producers(
        self, caller: RequestContext, header: RequestHeader, topic: str, index: int
    ) -> tuple[Any, ...]:
        check_topic_name(topic)
        self._rights.require(caller, Operation.READ, ResourceType.TOPIC, topic)
        partition = self._manager.registry.locate(topic, None, index)
        state_type = codec.entity_type(header.api_key, header.api_version, "ProducerState")
        return tuple(
            codec.build(
                state_type,
                producer_id=producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.transaction_first_offset,
            )
            for producer_id, entry in partition.log.producers()
        )

    # -- the disk -----------------------------------------------------------------

    async def describe_log_dirs(
        self, caller: RequestContext, header: RequestHeader, frame: Buffer
    ) -> Response:
        """Sizes of this node's replicas, and the space of its disk."""
        request = codec.decode_request(header, frame)
        if not self._rights.may_cluster(caller, Operation.DESCRIBE):
            caller.note(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return _encode(header, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results=())
        asked: set[tuple[str, int]] | None = None
        if request.topics is not None:
            asked = {(t.topic, index) for t in request.topics for index in t.partitions}
        path = self._manager.directory.path
        code, total_bytes, usable_bytes = ErrorCode.NONE, -1, -1
        try:
            space = await self._manager.pool.run_read(lambda: os.statvfs(path))
            # With what is kept for root, as Kafka tells it (FileStore.getTotalSpace); `FileSystem.room` is without.
            total_bytes = space.f_frsize * space.f_blocks
            usable_bytes = space.f_frsize * space.f_bavail
        except OSError:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        if self._manager.health.failed:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        result = codec.build(
            codec.entity_type(header.api_key, header.api_version, "DescribeLogDirsResult"),
            error_code=code,
            log_dir=str(path),
            topics=() if code else self._replicas(header, asked),
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
        )
        return _encode(header, error_code=ErrorCode.NONE, results=(result,))

    def _replicas(self, header: RequestHeader, asked: set[tuple[str, int]] | None) -> tuple[Any, ...]:
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "DescribeLogDirsTopic")
        item_type = codec.entity_type(*version, "DescribeLogDirsPartition")
        topics: dict[str, list[Any]] = {}
        for partition in self._manager.registry.partitions.values():
            place = (partition.replica.topic, partition.key.partition)
            if asked is None or place in asked:
                item = codec.build(
                    item_type,
                    partition_index=place[1],
                    partition_size=partition.log.size_bytes,
                    offset_lag=_lag(partition),
                    is_future_key=False,
                )
                topics.setdefault(place[0], []).append(item)
        return tuple(
            codec.build(topic_type, name=name, partitions=tuple(found)) for name, found in topics.items()
        )

    def alter_log_dirs(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Response:
        """Whether each replica is in the directory where it is wanted; nothing moves."""
        request = codec.decode_request(header, frame)
        may = self._rights.may_cluster(caller, Operation.ALTER)
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "AlterReplicaLogDirTopicResult")
        item_type = codec.entity_type(*version, "AlterReplicaLogDirPartitionResult")
        wanted = {
            (topic.name, index): each.path
            for each in request.dirs
            for topic in each.topics
            for index in topic.partitions
        }
        topics: dict[str, list[Any]] = {}
        for (topic, index), path in wanted.items():
            code = self._placed(topic, index, path) if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            caller.note(code)
            item = codec.build(item_type, partition_index=index, error_code=code)
            topics.setdefault(topic, []).append(item)
        results = tuple(
            codec.build(topic_type, topic_name=name, partitions=tuple(items))
            for name, items in topics.items()
        )
        return _encode(header, results=results)

    def _placed(self, topic: str, index: int, path: str) -> ErrorCode:
        """Kafka's answer for a replica that is wanted in the directory `path`."""
        manager = self._manager
        if len(f"{topic}-{index}{FUTURE_ENDING}") > FILE_NAME_CHARS_MAX:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if path != str(manager.directory.path):
            return ErrorCode.LOG_DIR_NOT_FOUND
        if manager.health.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        try:
            manager.registry.locate(topic, None, index)
        except PenstockError as e:
            # For compatibility Kafka goes on to say it by this API's older name.
            not_here = e.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.REPLICA_NOT_AVAILABLE if not_here else e.code
        return ErrorCode.NONE


def _lag(partition: Partition) -> int:
    """Records that this replica lacks of those that it knows to be committed."""
    return max(0, partition.replica.high_watermark - partition.log.log_end_offset)


def _encode(header: RequestHeader, **values: Any) -> Response:
    return [codec.respond(header, **values)]
