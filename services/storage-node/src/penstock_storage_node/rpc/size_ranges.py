"""SizeRanges: how many bytes ranges of offsets take, and where they may be cut. No record is read for it."""

from __future__ import annotations

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import storage_pb2 as pb
from penstock_storage_node.log import SizedRange
from penstock_storage_node.replica.registry import PartitionRegistry

RANGES_MAX = 10_000
"""Of one call; more are refused."""
CUTS_DEFAULT = 1_000
CUTS_MAX = 10_000
CUTS_IN_ALL_MAX = 100_000
"""Of all ranges of one call: 10,000 of each would be 800 MB. Later ranges have fewer, or none."""


class SizeRangesService:
    """Handler of the call."""

    def __init__(self, registry: PartitionRegistry) -> None:
        self._registry = registry

    async def size_ranges(
        self, request: pb.NodeSizeRangesRequest, context: object
    ) -> pb.NodeSizeRangesResponse:
        """Answer a gateway."""
        del context
        response = pb.NodeSizeRangesResponse()
        cuts_max = min(request.cuts_max or CUTS_DEFAULT, CUTS_MAX)
        cuts_left = CUTS_IN_ALL_MAX
        for index, wanted in enumerate(request.ranges):
            answer = response.ranges.add()
            try:
                if index >= RANGES_MAX:
                    raise PenstockError(ErrorCode.INVALID_REQUEST, f"ask for {RANGES_MAX} ranges at most")
                cut_bytes = request.cut_bytes if cuts_left else 0
                found = await self._size(wanted, cut_bytes, min(cuts_max, cuts_left))
            except PenstockError as e:
                answer.error.CopyFrom(common_pb2.Error(code=e.code, message=e.message))
            except OSError as e:
                answer.error.CopyFrom(common_pb2.Error(code=ErrorCode.KAFKA_STORAGE_ERROR, message=str(e)))
            else:
                answer.size_bytes = found.size_bytes
                answer.cuts.extend(found.cuts)
                cuts_left -= len(found.cuts)
        return response

    async def _size(self, wanted: pb.NodeRange, cut_bytes: int, cuts_max: int) -> SizedRange:
        partition = self._registry.locate("", TopicId(wanted.topic_id), wanted.partition)
        partition.replica.require_leader()
        log = partition.log
        start = max(wanted.start, log.log_start_offset)
        end = min(wanted.end, partition.replica.high_watermark)
        if start >= end:
            return SizedRange(0, [])
        found: SizedRange = await partition.look_up(lambda: log.size_range(start, end, cut_bytes, cuts_max))
        return found
