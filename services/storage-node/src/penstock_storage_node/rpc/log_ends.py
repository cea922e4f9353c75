"""Positions: how far offsets lie behind the ends of partitions that this node leads.

Times are those of whole batches (their largest timestamp), from one header each: no record is
decoded. What lies below the log start has no time any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc.aio

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId, TopicId, TopicPartition
from penstock_kafka.records.batch import HEADER, HEADER_BYTES
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import storage_pb2 as pb
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.security.methods import STORAGE_NODE
from penstock_storage_node.log import ReadJob
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replica.registry import PartitionRegistry

POSITIONS_MAX = 2_000
"""Of one call; more are refused."""
_MAX_TIMESTAMP_FIELD = 8
_TIMEOUT_S: Final = 5.0
_METHOD: Final = "/penstock.v1.Storage/Positions"


class LogEndsService:
    """Handler of the call."""

    def __init__(self, registry: PartitionRegistry) -> None:
        self._registry = registry

    async def positions(self, request: pb.PositionsRequest, context: object) -> pb.PositionsResponse:
        """Answer another node."""
        del context
        return await self.find(request)

    async def find(self, request: pb.PositionsRequest) -> pb.PositionsResponse:
        """The answer to each position."""
        response = pb.PositionsResponse()
        newest: dict[TopicPartition, int] = {}
        for index, position in enumerate(request.positions):
            answer = response.answers.add(newest_ms=-1, before_ms=-1)
            try:
                if index >= POSITIONS_MAX:
                    raise PenstockError(
                        ErrorCode.INVALID_REQUEST, f"ask for {POSITIONS_MAX} positions at most"
                    )
                await self._answer(position, answer, newest)
            except PenstockError as e:
                answer.error.CopyFrom(common_pb2.Error(code=e.code, message=e.message))
            except OSError as e:
                error = common_pb2.Error(code=ErrorCode.KAFKA_STORAGE_ERROR, message=str(e))
                answer.error.CopyFrom(error)
        return response

    async def _answer(
        self, position: pb.Position, answer: pb.PositionAnswer, newest: dict[TopicPartition, int]
    ) -> None:
        key = TopicPartition(TopicId(position.topic_id), position.partition)
        partition = self._registry.locate("", key.topic_id, key.partition)
        partition.replica.require_leader()
        end = answer.high_watermark = partition.replica.high_watermark
        if position.offset >= end:
            return
        waiting_ms = await _time_of(partition, max(position.offset, partition.log.log_start_offset), end)
        if waiting_ms >= 0:
            answer.waiting_ms = waiting_ms
        # For nodes of before, which reckon by these.
        if key not in newest:
            newest[key] = await _time_of(partition, end - 1)
        answer.newest_ms = newest[key]
        answer.before_ms = await _time_of(partition, position.offset - 1)


class LogEnds:
    """The question, to whichever node leads."""

    def __init__(self, registry: PartitionRegistry, here: LogEndsService, channels: ChannelPool) -> None:
        self._registry = registry
        self._here = here
        self._channels = channels

    async def ask(self, leader: NodeId, request: pb.PositionsRequest) -> Sequence[pb.PositionAnswer]:
        """A leader's answers; none when it does not answer in time."""
        if leader == self._registry.node_id:
            return (await self._here.find(request)).answers
        channel = self._channels.get(self._registry.image.nodes[leader].grpc.address, STORAGE_NODE)
        call = channel.unary_unary(
            _METHOD,
            request_serializer=pb.PositionsRequest.SerializeToString,
            response_deserializer=pb.PositionsResponse.FromString,
        )
        try:
            response: pb.PositionsResponse = await call(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return ()
        return response.answers


async def _time_of(partition: Partition, offset: int, end: int | None = None) -> int:
    """Time of the batch that holds a record, or with `end` of the first one below it, in ms since 1970; -1 when
    there is none."""
    if offset < partition.log.log_start_offset:
        return -1
    found = partition.read(offset, HEADER_BYTES, offset + 1 if end is None else end)
    if isinstance(found, ReadJob):
        found = await partition.run_read(found)
    if found.size_bytes < HEADER_BYTES:
        return -1  # compaction may have left a gap
    head = b"".join(found.buffers)[:HEADER_BYTES]
    timestamp: int = HEADER.unpack(head)[_MAX_TIMESTAMP_FIELD]
    return timestamp
