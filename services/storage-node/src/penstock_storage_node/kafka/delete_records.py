"""DeleteRecords (KIP-107): raise a partition's log start.

Rules (Kafka: Partition.deleteRecordsOnLeader, DelayedDeleteRecords)
  * The new start lies between 0 and the high watermark; -1 means the high watermark. A lower one
    than the present changes nothing and is no error.
  * Answered with the low watermark, which is the least log start of the live replicas, once that
    has reached the new start; REQUEST_TIMED_OUT when it hasn't in time, NOT_LEADER_OR_FOLLOWER when
    the leadership ends before. Asking again is harmless.
  * A topic whose cleanup.policy lacks `delete` refuses: POLICY_VIOLATION.

Ours: the new start is on the disk of the leader and of the others before the answer (Kafka's checkpoint
is written once a minute), and members of ISR and ELR count though they are down, since they may lead
as they come back: deleted records do not come back by a crash. Whole segments below it go at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import Operation
from penstock_frontend.listener.listener import Buffer, Response
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_storage_node.disk.health import is_full
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.leadership import Leadership

TIMEOUT_MS_MAX = 600_000
NO_WATERMARK = -1
HIGH_WATERMARK = -1


@dataclass(slots=True)
class _Deletion:
    """One partition of a request, and what has become of it."""

    topic: str
    index: int
    error: ErrorCode = ErrorCode.NONE
    low_watermark: int = NO_WATERMARK


class DeleteRecordsHandler:
    """Answers DeleteRecords for every way in."""

    def __init__(self, manager: ReplicaManager, rights: Rights) -> None:
        self._manager = manager
        self._rights = rights

    async def handle(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Response:
        """Answer one request."""
        request = codec.decode_request(header, frame)
        timeout = request.timeout
        timeout_ms = timeout if isinstance(timeout, int) else timeout.total_seconds() * 1000
        timeout_s = min(max(timeout_ms, 0), TIMEOUT_MS_MAX) / 1000
        deletions, work = [], []
        for topic in request.topics:
            for p in topic.partitions:
                deletion = _Deletion(topic.name, p.partition_index)
                deletions.append(deletion)
                work.append(self._delete(caller, deletion, p.offset, timeout_s))
        await asyncio.gather(*work)
        return [_encode(header, deletions)]

    async def _delete(
        self, caller: RequestContext, deletion: _Deletion, offset: int, timeout_s: float
    ) -> None:
        try:
            partition, leadership = self._led(caller, deletion)
            wanted = self._raise(partition, offset)
            if wanted > partition.saved_log_start_offset:
                await self._save(partition)
            self._manager.log_starts.drop_old_segments(partition)
            deletion.low_watermark = await self._wait(partition, leadership, wanted, timeout_s)
            if deletion.low_watermark < wanted:
                raise PenstockError(
                    ErrorCode.REQUEST_TIMED_OUT, f"not every replica of {partition.name} follows yet"
                )
        except OSError:
            deletion.error = ErrorCode.KAFKA_STORAGE_ERROR
            caller.note(deletion.error)
        except PenstockError as e:
            deletion.error = e.code
            caller.note(e.code)

    async def _save(self, partition: Partition) -> None:
        try:
            await partition.save_log_start()
        except OSError as e:
            if is_full(e):
                # Refused for now; the next try will find the space that this frees.
                self._manager.log_starts.drop_old_segments(partition)
            raise

    def _led(self, caller: RequestContext, deletion: _Deletion) -> tuple[Partition, Leadership]:
        partition = self._rights.locate(
            self._manager.registry, caller, Operation.DELETE, deletion.topic, None, deletion.index
        )
        leadership = partition.replica.require_leader()
        if not partition.replica.settings.is_deleted_by_retention:
            raise PenstockError(
                ErrorCode.POLICY_VIOLATION,
                f"{partition.name} is compacted: set cleanup.policy=compact,delete to delete records",
            )
        return partition, leadership

    def _raise(self, partition: Partition, offset: int) -> int:
        high_watermark = partition.replica.high_watermark
        if offset == HIGH_WATERMARK:
            offset = high_watermark
        if not 0 <= offset <= high_watermark:
            raise PenstockError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {partition.name} is outside 0..{high_watermark}, its high watermark",
            )
        partition.raise_log_start(offset)
        return offset

    async def _wait(self, partition: Partition, leadership: Leadership, wanted: int, timeout_s: float) -> int:
        """The low watermark when it has reached `wanted`, or when the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                while (low := leadership.low_watermark()) < wanted:
                    await partition.log_start_change()
                    if partition.replica.leadership is not leadership:
                        raise PenstockError(
                            ErrorCode.NOT_LEADER_OR_FOLLOWER,
                            f"leadership of {partition.name} ended: ask again",
                        )
                return low
        except TimeoutError:
            return leadership.low_watermark()


def _encode(header: RequestHeader, deletions: list[_Deletion]) -> bytes:
    version = (header.api_key, header.api_version)
    topic_type = codec.entity_type(*version, "DeleteRecordsTopicResult")
    item_type = codec.entity_type(*version, "DeleteRecordsPartitionResult")
    topics: dict[str, list[object]] = {}
    for one in deletions:
        item = codec.build(
            item_type, partition_index=one.index, low_watermark=one.low_watermark, error_code=one.error
        )
        topics.setdefault(one.topic, []).append(item)
    rows = tuple(
        codec.build(topic_type, name=name, partitions=tuple(items)) for name, items in topics.items()
    )
    return codec.encode_response(header, codec.build(codec.response_type(*version), topics=rows))
