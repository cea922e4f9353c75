"""DescribeProducers, and the requests about a node's own disk: DescribeLogDirs, AlterReplicaLogDirs.

A node has one log directory. Its requests name no node, so only a direct listener answers them:
behind a gateway nobody can tell which node was meant. Nothing moves between directories:
AlterReplicaLogDirs to the one there is changes nothing, to any other LOG_DIR_NOT_FOUND.

Sources: KIP-113, KIP-664, KIP-827; ReplicaManager.describeLogDirs and alterReplicaLogDirs of
Apache Kafka 4.3.
"""

from __future__ import annotations

import os
from typing import Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import CLUSTER_NAME, Authorizer, Operation, ResourceType
from penstock_frontend.listener.listener import Buffer, Response
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition


class DescribeNodeHandler:
    """Answers for every way in."""

    def __init__(self, manager: ReplicaManager, authorizer: Authorizer) -> None:
        self._manager = manager
        self._authorizer = authorizer

    def _may_cluster(self, caller: RequestContext, operation: Operation) -> bool:
        return self._authorizer.authorize(caller.principal, operation, ResourceType.CLUSTER, CLUSTER_NAME)

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
        partition = self._manager.registry.locate(topic, None, index)
        if not self._authorizer.authorize(caller.principal, Operation.READ, ResourceType.TOPIC, topic):
            raise PenstockError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{caller.principal} may not read {topic}"
            )
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
        if not self._may_cluster(caller, Operation.DESCRIBE):
            caller.note(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return _encode(header, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results=())
        asked: set[tuple[str, int]] | None = None
        if request.topics is not None:
            asked = {(t.topic, index) for t in request.topics for index in t.partitions}
        path = self._manager.directory.path
        code, total_bytes, usable_bytes = ErrorCode.NONE, -1, -1
        try:
            space = await self._manager.pool.run_read(lambda: os.statvfs(path))
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
        """Nothing moves: there is one directory."""
        request = codec.decode_request(header, frame)
        may = self._may_cluster(caller, Operation.ALTER)
        here = str(self._manager.directory.path)
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "AlterReplicaLogDirTopicResult")
        item_type = codec.entity_type(*version, "AlterReplicaLogDirPartitionResult")
        results = []
        for wanted in request.dirs:
            for topic in wanted.topics:
                code = ErrorCode.NONE if wanted.path == here else ErrorCode.LOG_DIR_NOT_FOUND
                if not may:
                    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                caller.note(code)
                items = tuple(
                    codec.build(item_type, partition_index=p, error_code=code) for p in topic.partitions
                )
                results.append(codec.build(topic_type, topic_name=topic.name, partitions=items))
        return _encode(header, results=tuple(results))


def _lag(partition: Partition) -> int:
    """Records that this replica lacks of those that it knows to be committed."""
    return max(0, partition.replica.high_watermark - partition.log.log_end_offset)


def _encode(header: RequestHeader, **values: Any) -> Response:
    return [codec.respond(header, **values)]
