"""Fetch: records up to the high watermark, or the last stable offset, waiting for them when there are too few.

Rules (KIP-74, ReplicaManager.fetchMessages): partitions are served in the order of the request;
the first that has anything gives at least one whole batch, whatever the limits; a request waits
up to max_wait_ms for min_bytes, or for as much as its limits let it have, but not when a partition has an error to
tell. Sessions (KIP-227) are declined. A consumer that says its rack may be sent to a nearer replica (`preferred`,
KIP-392). Waiting costs nothing: a rise of the high watermark wakes the request. Who reads committed records alone
gets what lies below the last stable offset, and the aborted transactions of what it gets (KIP-98): it leaves their
batches out itself. That offset rises with the high watermark only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import Operation
from penstock_frontend.listener.listener import Buffer, Response
from penstock_kafka.wire.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResult,
    decode_fetch,
    encode_fetch_response,
)
from penstock_kafka.wire.frames import RequestHeader
from penstock_storage_node.kafka.preferred_replica import NOBODY, check_follower, preferred_replica
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.log import AbortedJob, LogState, ReadData, ReadJob, Rows
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition, wait_for_change
from penstock_storage_node.replication.leadership import Leadership

RESPONSE_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of records in one response: what a slow client can make this process hold."""

WAIT_MS_MAX = 60_000
GATHER_MS = 5
"""Pause between looks of a request that wants more than one byte."""

FETCH_SESSION_ID_NOT_FOUND = 70


class FetchHandler:
    """Answers Fetch for every way in."""

    def __init__(self, manager: ReplicaManager, rights: Rights) -> None:
        self.manager = manager
        self.rights = rights

    def handle(
        self, caller: RequestContext, header: RequestHeader, frame: Buffer
    ) -> Response | Coroutine[Any, Any, Response]:
        """Answer one request: at once when the records are in memory, else as a coroutine."""
        self.manager.metrics.fetch_requests += 1
        request = decode_fetch(frame, header)
        if request.is_incremental:
            return encode_fetch_response(header, [], error=FETCH_SESSION_ID_NOT_FOUND)
        if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            return _all_failed(header, request, ErrorCode.UNKNOWN_SERVER_ERROR)
        if request.replica_id >= 0:
            if not self.rights.may_cluster(caller, Operation.CLUSTER_ACTION):
                return _all_failed(header, request, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE)
            # Followers are fed by Replicate; Kafka says this to a replica that it does not know.
            return _all_failed(header, request, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE)
        look = _Look(self, caller, request)
        if look.read_now() and look.satisfied(request):
            return look.encode(header)
        return self._wait(look, caller, header, request)

    async def _wait(
        self, look: _Look, caller: RequestContext, header: RequestHeader, request: FetchRequest
    ) -> Response:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
        while True:
            await look.read_on()
            if look.satisfied(request) or loop.time() >= deadline_s:
                return look.encode(header)
            caller.is_long_poll = True
            while not look.changed() and loop.time() < deadline_s:
                await wait_for_change(look.partitions, deadline_s)
                if request.isolation_level != READ_COMMITTED:
                    break
            if request.min_bytes > 1 and loop.time() < deadline_s:
                await asyncio.sleep(GATHER_MS / 1000)
            look = _Look(self, caller, request)
            look.read_now()


def _all_failed(
    header: RequestHeader, request: FetchRequest, code: ErrorCode, whole: ErrorCode | None = None
) -> Response:
    """Every partition answered with `code`; the request as a whole too, unless `whole` says otherwise."""
    results = [FetchResult(p.topic, p.topic_id, p.partition, code) for p in request.partitions]
    return encode_fetch_response(header, results, error=code if whole is None else whole)


class _Look:
    """One pass over the partitions of a request."""

    def __init__(self, handler: FetchHandler, caller: RequestContext, request: FetchRequest) -> None:
        self.partitions: list[Partition] = []
        """Those to wait on."""
        self._manager = handler.manager
        self._rights = handler.rights
        self._caller = caller
        self._items = request.partitions
        self._rack = request.rack_id if caller.listener else ""
        self._is_redirected = False
        self._isolation_level = request.isolation_level
        self._bytes_max = self._budget = min(max(request.max_bytes, 0), RESPONSE_BYTES_MAX)
        self._results: list[FetchResult] = []
        self._seen: list[tuple[Partition, Leadership | None, int]] = []
        """Those partitions, who led, and the end of what this reader may see."""
        self._size_bytes = 0
        self._ready_bytes = 0
        """As much as that, or up to a limit that kept more back: whole batches seldom fill one."""
        self._limits = (0, 0)
        """Of what is being read: most bytes, and the end of what this reader may see."""
        self._sent: list[tuple[Partition, int]] = []
        self._has_error = False
        self._next = 0
        self._job: tuple[ReadJob | AbortedJob, Partition, FetchResult] | None = None

    def read_now(self) -> bool:
        """Read as far as memory and page cache go; False when the disk must be waited for."""
        items = self._items
        while self._next < len(items):
            item = items[self._next]
            self._next += 1
            result = FetchResult(item.topic, item.topic_id, item.partition)
            self._results.append(result)
            try:
                self._read(item, result)
            except PenstockError as e:
                self._fail(result, e)
            if self._is_waiting():
                return False
        return True

    async def read_on(self) -> None:
        """Finish the pass, waiting for the disk where needed."""
        while self._job is not None:
            await self._run_job(*self._job)

    async def _run_job(self, job: ReadJob | AbortedJob, partition: Partition, result: FetchResult) -> None:
        self._job = None
        try:
            if isinstance(job, AbortedJob):
                self._name_aborted(result, await partition.look_up(job.run))
            else:
                self._take(result, partition, await partition.run_read(job))
        except PenstockError as e:
            self._fail(result, e)
        except OSError as e:
            self._fail(result, PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.name}: {e}"))
        if not self._is_waiting():
            self.read_now()

    def _is_waiting(self) -> bool:
        """Whether the disk must be waited for."""
        return self._job is not None

    def _read(self, item: FetchPartition, result: FetchResult) -> None:
        registry = self._manager.registry
        if self._rights.is_enabled:
            partition = self._rights.locate(
                registry, self._caller, Operation.READ, item.topic, item.topic_id, item.partition
            )
        else:
            partition = registry.locate(item.topic, item.topic_id, item.partition)
        replica, log = partition.replica, partition.log
        if log.state is LogState.FAILED or self._manager.health.failed:
            raise PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk under {replica.name} failed")
        if self._rack and replica.leadership is None:
            check_follower(partition, item.current_leader_epoch)
        else:
            leadership = replica.require_leader(item.current_leader_epoch)
            if self._rack and self._redirect(item, result, partition, leadership):
                return
        offset = item.fetch_offset
        upper_offset = self._describe(result, partition)
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise PenstockError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {replica.name} is not in {log.log_start_offset}..{log.log_end_offset}",
            )
        self.partitions.append(partition)
        self._seen.append((partition, replica.leadership, upper_offset))
        limit = min(item.max_bytes, self._budget)
        if offset >= upper_offset or (limit <= 0 and self._size_bytes):
            return
        self._limits = max(limit, 0), upper_offset
        found = partition.read(offset, max(limit, 0), upper_offset, min_one=not self._size_bytes)
        if isinstance(found, ReadJob):
            self._job = (found, partition, result)
        else:
            self._take(result, partition, found)

    def _describe(self, result: FetchResult, partition: Partition) -> int:
        """Say where the partition's log begins and ends; returns the end of what this reader may see."""
        log, high_watermark = partition.log, partition.replica.high_watermark
        result.high_watermark, result.log_start_offset = high_watermark, log.log_start_offset
        result.last_stable_offset = stable = log.last_stable_offset(high_watermark)
        if self._isolation_level != READ_COMMITTED:
            return high_watermark
        result.aborted = ()
        return stable

    def _redirect(
        self, item: FetchPartition, result: FetchResult, partition: Partition, leadership: Leadership
    ) -> bool:
        """Name a nearer replica in place of records, if there is one."""
        offset = item.fetch_offset
        result.preferred_replica = preferred_replica(
            self._manager.registry, partition, leadership, self._rack, self._caller.listener, offset
        )
        if result.preferred_replica == NOBODY:
            return False
        self._describe(result, partition)
        self._is_redirected = True
        return True

    def _take(self, result: FetchResult, partition: Partition, data: ReadData) -> None:
        self._sent.append((partition, data.size_bytes))
        result.records = data.buffers
        self._size_bytes += data.size_bytes
        self._budget -= data.size_bytes
        limit, upper_offset = self._limits
        cut_off = data.size_bytes and data.next_offset < upper_offset
        self._ready_bytes += max(data.size_bytes, limit) if cut_off else data.size_bytes
        if self._isolation_level == READ_COMMITTED:
            aborted = partition.log.aborted_between(data.base_offset, data.next_offset)
            if isinstance(aborted, AbortedJob):
                self._job = (aborted, partition, result)
            else:
                self._name_aborted(result, aborted)

    @staticmethod
    def _name_aborted(result: FetchResult, rows: Rows) -> None:
        result.aborted = [(row.producer_id, row.first_offset) for row in rows]

    def _fail(self, result: FetchResult, error: PenstockError) -> None:
        self._has_error = True
        self._caller.note(error.code)
        result.error = error.code
        result.high_watermark = result.last_stable_offset = result.log_start_offset = -1
        result.records = []

    def satisfied(self, request: FetchRequest) -> bool:
        """Whether to answer now; the time aside."""
        return (
            self._ready_bytes >= min(max(request.min_bytes, 0), self._bytes_max)
            or self._has_error
            or self._is_redirected
            or request.max_wait_ms <= 0
            or not self._items
        )

    def changed(self) -> bool:
        """Whether there is news for this reader since this pass looked. Beside an open transaction the high watermark
        rises with all that others write, and whoever reads committed records has nothing of that."""
        return any(
            partition.closed
            or partition.replica.leadership is not leadership
            or self._end_of(partition) != end_offset
            for partition, leadership, end_offset in self._seen
        )

    def _end_of(self, partition: Partition) -> int:
        high_watermark = partition.replica.high_watermark
        if self._isolation_level != READ_COMMITTED:
            return high_watermark
        return partition.log.last_stable_offset(high_watermark)

    def encode(self, header: RequestHeader) -> Response:
        self._manager.metrics.fetched_bytes += self._size_bytes
        for partition, size_bytes in self._sent:
            partition.traffic.sent_bytes += size_bytes
        return encode_fetch_response(header, self._results)
