"""ListOffsets and OffsetForLeaderEpoch.

Timestamps: -1 the end (high watermark), -2 the log start, -3 the record with the largest timestamp,
-4 the local log start (KIP-405), -5 the end of tiered storage, -6 the first record that is not yet there
(KIP-1023), of which there is none; others the first record at or after that time. One that the request's
version does not have yet is UNSUPPORTED_VERSION (Kafka: isListOffsetsTimestampUnsupported). After an
election the end is not known until the high watermark reaches the start of the leader's epoch, mostly
a moment later: the question waits ELECTION_WAIT_S for it, then it is OFFSET_NOT_AVAILABLE (KIP-207; Kafka
says so at once, and not every client asks again: librdkafka's `query_watermark_offsets` does not). To who reads
committed records alone the end is the last stable offset, and records at or above it are not there (Kafka:
Partition.fetchOffsetForTimestamp).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import CLUSTER_NAME, Operation, ResourceType
from penstock_frontend.listener.listener import Buffer, Response
from penstock_kafka.wire import codec
from penstock_kafka.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from penstock_kafka.wire.frames import RequestHeader
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.replica.partition import Partition, wait_for_change
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.replication.leadership import Leadership

ELECTION_WAIT_S: Final = 1.0
"""The longest that a request waits, well below clients' request timeouts: what else the client
asked on its connection is answered behind it."""

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SINCE_VERSION = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

_NOT_AVAILABLE_SINCE: Final = 5
"""Older versions do not know OFFSET_NOT_AVAILABLE; clients ask again at LEADER_NOT_AVAILABLE (Kafka:
ReplicaManager.fetchOffset)."""

_DENIED: Final = PenstockError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right to describe the topic")
_Found = tuple[int, int, int]
"""Timestamp, offset, leader epoch."""


class ListOffsetsHandler:
    """Answers the two for every way in."""

    def __init__(self, registry: PartitionRegistry, rights: Rights) -> None:
        self._registry = registry
        self._rights = rights

    def _led(self, topic: str, index: int, epoch: int) -> tuple[Partition, Leadership]:
        partition = self._registry.locate(topic, None, index)
        return partition, partition.replica.require_leader(epoch)

    async def list_offsets(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Response:
        """Answer a ListOffsets request."""
        request = codec.decode_request(header, frame)
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "ListOffsetsTopicResponse")
        item_type = codec.entity_type(*version, "ListOffsetsPartitionResponse")
        topics = []
        # Version 0 and 1 have no such field.
        isolation_level = getattr(request, "isolation_level", READ_UNCOMMITTED)
        deadline_s = asyncio.get_running_loop().time() + ELECTION_WAIT_S
        for topic in request.topics:
            items = []
            is_denied = not self._rights.may_topic(caller, Operation.DESCRIBE, topic.name)
            for p in topic.partitions:
                error, found = ErrorCode.NONE, (-1, -1, -1)
                try:
                    if is_denied:
                        raise _DENIED
                    _check_timestamp(p.timestamp, header.api_version)
                    epoch = getattr(p, "current_leader_epoch", -1)
                    partition, leadership = self._led(topic.name, p.partition_index, epoch)
                    found = await self._find(partition, leadership, p.timestamp, deadline_s, isolation_level)
                except PenstockError as e:
                    error = e.code
                    if error is ErrorCode.OFFSET_NOT_AVAILABLE and header.api_version < _NOT_AVAILABLE_SINCE:
                        error = ErrorCode.LEADER_NOT_AVAILABLE
                    caller.note(error)
                items.append(
                    codec.build(
                        item_type,
                        partition_index=p.partition_index,
                        error_code=error,
                        timestamp=found[0],
                        offset=found[1],
                        leader_epoch=found[2],
                    )
                )
            topics.append(codec.build(topic_type, name=topic.name, partitions=tuple(items)))
        return [_encode(header, topics)]

    async def _find(
        self,
        partition: Partition,
        leadership: Leadership,
        timestamp: int,
        deadline_s: float,
        isolation_level: int,
    ) -> _Found:
        replica, log = partition.replica, partition.log
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            offset = log.log_start_offset
            return -1, offset, max(log.epoch_at(offset), -1)
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return -1, -1, -1
        await _know_end(partition, leadership, deadline_s)
        high_watermark = upper = replica.high_watermark
        if isolation_level == READ_COMMITTED:
            upper = log.last_stable_offset(high_watermark)
        if timestamp == LATEST:
            return -1, upper, leadership.epoch
        if timestamp == MAX_TIMESTAMP:
            found = await partition.look_up(lambda: log.offset_of_max_timestamp(high_watermark))
            if found is not None and found[0] >= upper:
                return -1, -1, -1
        else:
            found = await partition.look_up(lambda: log.offset_for_timestamp(timestamp, upper))
        if found is None:
            return -1, -1, -1
        return found[1], found[0], log.epoch_at(found[0])

    async def offset_for_leader_epoch(
        self, caller: RequestContext, header: RequestHeader, frame: Buffer
    ) -> Response:
        """Answer an OffsetForLeaderEpoch request (KIP-320: consumers look for truncation)."""
        request = codec.decode_request(header, frame)
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "OffsetForLeaderTopicResult")
        item_type = codec.entity_type(*version, "EpochEndOffset")
        topics = []
        # First it was between brokers alone, so who may act for the cluster may ask (KIP-320).
        may_all = self._rights.may_see(caller, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        for topic in request.topics:
            items = []
            is_denied = not may_all and not self._rights.may_topic(caller, Operation.DESCRIBE, topic.topic)
            for p in topic.partitions:
                error, found = ErrorCode.NONE, (-1, -1)
                try:
                    if is_denied:
                        raise _DENIED
                    epoch = getattr(p, "current_leader_epoch", -1)
                    partition, _ = self._led(topic.topic, p.partition, epoch)
                    found = partition.log.end_offset_for_epoch(p.leader_epoch)
                except PenstockError as e:
                    error = e.code
                    caller.note(error)
                items.append(
                    codec.build(
                        item_type,
                        partition=p.partition,
                        error_code=error,
                        leader_epoch=found[0],
                        end_offset=found[1],
                    )
                )
            topics.append(codec.build(topic_type, topic=topic.topic, partitions=tuple(items)))
        return [_encode(header, topics)]


async def _know_end(partition: Partition, leadership: Leadership, deadline_s: float) -> None:
    """Wait until the end of the log is known since the leader's election."""
    replica, loop = partition.replica, asyncio.get_running_loop()
    while replica.high_watermark < leadership.epoch_start_offset:
        if loop.time() >= deadline_s:
            raise PenstockError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"the end of {replica.name} is not known yet after the election: ask again",
            )
        await wait_for_change([partition], deadline_s)
        if replica.leadership is not leadership:
            raise PenstockError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"leadership of {replica.name} ended: ask again"
            )


def _check_timestamp(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < _SINCE_VERSION.get(timestamp, version + 1):
        raise PenstockError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"timestamp {timestamp} means nothing in version {version} of ListOffsets",
        )


def _encode(header: RequestHeader, topics: list[Any]) -> bytes:
    return codec.respond(header, topics=tuple(topics))
