"""What becomes of each partition of a Produce request, and the one response that they make.

A batch is refused, which is known at once, or appended; then its acks come, or do not. Each of these ends in a
`ProduceResult`, made whole and never changed. `ProduceInProgress` keeps them in the request's order, and is the one
place where a response is made of them: when the last one is there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.listener.listener import Response
from penstock_kafka.records.batch import BatchInfo
from penstock_kafka.records.check import InvalidRecords
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    Receipt,
    encode_produce_response,
)
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.leadership import Leadership

TIMEOUT_MS_MAX: Final = 600_000
"""Longest that a request may wait for its acks, whatever its client says."""

_UNACKNOWLEDGED_MESSAGES: Final = {
    ErrorCode.REQUEST_TIMED_OUT: "not acknowledged in time, or the leader changed; it may be written: retry",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "written here, but too few replicas are in sync: retry",
}


@dataclass(slots=True)
class AppendedBatch:
    """A batch that is in the leader's log, or was there already. It holds none of the request's bytes."""

    leadership: Leadership
    info: BatchInfo
    end_offset: int
    """Its acks must reach that."""
    result: ProduceResult
    """What it is answered with when they have."""
    partition: Partition | None = None
    """Where it was appended."""

    def note_acks(self, caller: RequestContext) -> None:
        """Its acks came: by then it had been written here for a while."""
        if self.partition is not None:
            done_s, flush_s = self.partition.local_done(self.end_offset)
            if done_s > caller.local_s:
                caller.local_s, caller.flush_s = done_s, flush_s

    def with_receipt(self) -> ProduceResult:
        """Its acks came: the result, and who has the batch."""
        held, flushed = self.leadership.holders(self.end_offset)
        return replace(self.result, receipt=Receipt(self.leadership.epoch, tuple(held), tuple(flushed)))

    def unacknowledged(self, code: ErrorCode) -> ProduceResult:
        """Its acks did not come."""
        return replace(
            self.result,
            error=code,
            base_offset=-1,
            log_append_time_ms=-1,
            error_message=_UNACKNOWLEDGED_MESSAGES.get(code),
        )


def refused(item: ProducePartition, error: PenstockError) -> ProduceResult:
    """Nothing of it was written."""
    return ProduceResult(
        item.topic,
        item.topic_id,
        item.partition,
        error.code,
        error_message=error.message,
        record_errors=error.record_errors if isinstance(error, InvalidRecords) else (),
    )


_UNSETTLED: Final = ProduceResult("", None, -1, ErrorCode.UNKNOWN_SERVER_ERROR)


class ProduceInProgress:
    """One request: what its batches share, and what became of each. It holds none of its bytes."""

    __slots__ = (
        "_future",
        "_header",
        "_left",
        "_results",
        "acks",
        "caller",
        "deadline_ms",
        "now_ms",
        "transactional_id",
        "version",
        "wall_ms",
        "want_receipt",
    )

    def __init__(
        self, caller: RequestContext, header: RequestHeader, skim: ProduceSkim, now_ms: int, wall_ms: int
    ) -> None:
        self.caller = caller
        self.version = header.api_version
        self.acks = skim.acks
        self.transactional_id = skim.transactional_id
        self.want_receipt = skim.want_receipt
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.deadline_ms = now_ms + min(max(skim.timeout_ms, 0), TIMEOUT_MS_MAX)
        self._header = header
        self._left = len(skim.partitions)
        self._results = [_UNSETTLED] * self._left
        self._future: asyncio.Future[Response] | None = None

    def settle(self, index: int, result: ProduceResult) -> None:
        """What became of the partition that stands there in the request; once each."""
        self._results[index] = result
        self._left -= 1
        future = self._future
        if future is not None and not self._left and not future.done():
            future.set_result(self.response())

    @property
    def is_settled(self) -> bool:
        """Whether it is known what became of each partition."""
        return not self._left

    @property
    def has_error(self) -> bool:
        """Whether a partition failed. Asked when all are settled."""
        return any(result.error for result in self._results)

    def response(self) -> Response:
        """The response; all partitions are settled."""
        return [encode_produce_response(self._header, self._results)]

    def when_settled(self) -> Response | asyncio.Future[Response]:
        """The response, or what it will be the result of. Asked once, after the last append."""
        if not self._left:
            return self.response()
        self._future = asyncio.get_running_loop().create_future()
        return self._future
