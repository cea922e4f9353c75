"""Produce: check, append, answer when the acks are there.

Order of checks: Kafka's (`KafkaApis.handleProduceRequest`, `ReplicaManager`, `Partition`, `UnifiedLog`):
acks, authorization, partition and leader, ISR for acks=all, the batch itself, producer state. Appends
happen inside the call, so requests of one connection are appended in the order they arrive; only the
answer waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import Authorizer, Operation, ResourceType
from penstock_frontend.listener.listener import CLOSE, NO_RESPONSE, Buffer, Response
from penstock_kafka.records.batch import BatchInfo
from penstock_kafka.records.check import InvalidRecords, accept_produced
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.metadata import INTERNAL_TOPICS
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    Receipt,
    encode_produce_response,
    skim_produce,
)
from penstock_storage_node.kafka.deferred_appends import DeferredAppend, DeferredAppends
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.retry_gate import RetryGate
from penstock_storage_node.log import Appended, LogState
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replication.leadership import Leadership

ACKS_ALL = -1
ADMIN_CLIENT_ID = "__admin_client"
"""Kafka's own tools may write to internal topics under that name."""
TIMEOUT_MS_MAX = 600_000
STAGED_BYTES_SOFT_MAX = 16 * 1024 * 1024
"""Above that many bytes in memory even acks=0 requests count as unanswered until the disk has
caught up, so that their connections' own bounds hold them back."""


class _Appended(NamedTuple):
    """A batch that is in the leader's log, or was there already."""

    leadership: Leadership
    end_offset: int
    """Its acks must reach that."""
    info: BatchInfo


class _Pending:
    """One request whose acks are not all there. Waits are acknowledged from the manager's
    turn, never while the request is still being appended."""

    __slots__ = ("_header", "_results", "caller", "future", "left")

    def __init__(self, caller: RequestContext, header: RequestHeader, results: list[ProduceResult]) -> None:
        self.caller = caller
        self._header = header
        self._results = results
        self.left = 0
        self.future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def one_done(self) -> None:
        self.left -= 1
        if self.left == 0 and not self.future.done():
            self.future.set_result([encode_produce_response(self._header, self._results)])


class _Wait:
    """One partition of a request, waiting for its acks."""

    __slots__ = ("_appended", "_handler", "_pending", "_result", "_want_receipt")

    def __init__(
        self,
        handler: ProduceHandler,
        pending: _Pending,
        result: ProduceResult,
        appended: _Appended,
        want_receipt: bool,
    ) -> None:
        self._handler = handler
        self._pending = pending
        self._result = result
        self._appended = appended
        self._want_receipt = want_receipt

    def acknowledge(self, error: ErrorCode) -> None:
        if error:
            self._handler.not_acknowledged(self._pending.caller, self._result, self._appended.info, error)
        elif self._want_receipt:
            leadership, end_offset, _ = self._appended
            held, flushed = leadership.holders(end_offset)
            self._result.receipt = Receipt(leadership.epoch, tuple(held), tuple(flushed))
        self._pending.one_done()


_MESSAGES = {
    ErrorCode.REQUEST_TIMED_OUT: "not acknowledged in time, or the leader changed; it may be written: retry",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "written here, but too few replicas are in sync: retry",
}


class ProduceHandler:
    """Answers Produce for every way in."""

    def __init__(self, manager: ReplicaManager, authorizer: Authorizer, in_touch: Callable[[], bool]) -> None:
        self._in_touch = in_touch
        """Whether the controllers were heard of lately: else another node may lead what this one leads."""
        self._manager = manager
        self._authorizer = authorizer
        self._retry_gate = RetryGate()
        self._turns = DeferredAppends(manager.registry)

    def handle(
        self, caller: RequestContext, header: RequestHeader, frame: Buffer
    ) -> Response | asyncio.Future[Response]:
        """Answer one request. `frame` must stay as it is until it is written to disk."""
        self._manager.metrics.produce_requests += 1
        skim = skim_produce(frame, header)
        turn = self._turns.take_turn(skim.partitions)
        if turn is not None:
            task = asyncio.ensure_future(self._handle_in_turn(turn, caller, header, skim))
            # Cancelled before its first step, a task runs nothing, no `finally` either.
            task.add_done_callback(lambda _: turn.end())
            return task
        return self._handle_now(caller, header, skim)

    async def _handle_in_turn(
        self, turn: DeferredAppend, caller: RequestContext, header: RequestHeader, skim: ProduceSkim
    ) -> Response:
        """Batches are in another codec than the topic's, or come after such: appended a little later."""
        try:
            await turn.come()
            result = self._handle_now(caller, header, skim)
        finally:
            turn.end()
        return await result if isinstance(result, asyncio.Future) else result

    def _handle_now(
        self, caller: RequestContext, header: RequestHeader, skim: ProduceSkim
    ) -> Response | asyncio.Future[Response]:
        manager = self._manager
        results: list[ProduceResult] = []
        pending = _Pending(caller, header, results)
        now_ms, wall_ms = manager.clock_ms(), time.time_ns() // 1_000_000
        deadline_ms = now_ms + min(max(skim.timeout_ms, 0), TIMEOUT_MS_MAX)
        for item in skim.partitions:
            result = ProduceResult(item.topic, item.topic_id, item.partition)
            results.append(result)
            try:
                appended = self._append(caller, item, result, header.api_version, skim.acks, now_ms, wall_ms)
            except PenstockError as e:
                if e.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self._in_touch():
                    e = _gap_of_a_deposed_leader(e)
                manager.metrics.rejected_batches += 1
                result.error, result.error_message = e.code, e.message
                caller.note(e.code)
                self._retry_gate.note(item, e.code, now_ms)
                if isinstance(e, InvalidRecords):
                    result.record_errors = e.record_errors
                continue
            if skim.acks == 0:
                continue
            pending.left += 1
            leadership = appended.leadership
            wait = leadership.wait_all if skim.acks == ACKS_ALL else leadership.wait_one
            wait(appended.end_offset, deadline_ms, _Wait(self, pending, result, appended, skim.want_receipt))
        if not manager.drain.effects.empty:
            manager.drain.schedule()
        if skim.acks == 0:
            return self._no_response(caller, header, results)
        if pending.left == 0:
            return [encode_produce_response(header, results)]
        return pending.future

    def not_acknowledged(
        self, caller: RequestContext, result: ProduceResult, info: BatchInfo, error: ErrorCode
    ) -> None:
        """The acks of a batch that was appended did not come."""
        result.error = error
        result.base_offset = result.log_append_time_ms = -1
        result.error_message = _MESSAGES.get(error)
        caller.note(error)
        self._retry_gate.note_unacknowledged(result, info, self._manager.clock_ms())

    def _append(
        self,
        caller: RequestContext,
        item: ProducePartition,
        result: ProduceResult,
        version: int,
        acks: int,
        now_ms: int,
        wall_ms: int,
    ) -> _Appended:
        """Append one batch."""
        manager = self._manager
        if acks not in (ACKS_ALL, 0, 1):
            raise PenstockError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} is not known: use 0, 1 or all (-1)"
            )
        partition = manager.registry.locate(item.topic, item.topic_id, item.partition)
        replica, log = partition.replica, partition.log
        if not self._authorizer.authorize(
            caller.principal, Operation.WRITE, ResourceType.TOPIC, replica.topic
        ):
            raise PenstockError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{caller.principal} may not write to {replica.topic}"
            )
        if replica.topic in INTERNAL_TOPICS and caller.client_id != ADMIN_CLIENT_ID:
            raise PenstockError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{replica.topic} is written by the cluster alone"
            )
        if log.state is LogState.FAILED or manager.health.failed:
            raise PenstockError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the disk under {replica.name} failed on node {manager.registry.node_id}",
            )
        leadership = replica.require_leader()
        settings = replica.settings
        if acks == ACKS_ALL and leadership.under_min_isr:
            raise PenstockError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{replica.name} has {len(leadership.isr)} replicas in sync,"
                f" min.insync.replicas is {settings.min_insync_replicas}",
            )
        batch, info = accept_produced(item.records, settings, wall_ms, produce_version=version)
        if self._retry_gate and info.producer_id >= 0:
            self._retry_gate.check(item, info, log.is_next_of_producer(info), now_ms)
        appended = partition.append(batch, info, now_ms)
        if isinstance(appended, Appended):
            manager.metrics.produced_bytes += appended.size_bytes
        else:
            manager.metrics.duplicate_batches += 1
        result.base_offset = appended.base_offset
        result.log_append_time_ms = appended.log_append_time_ms
        result.log_start_offset = log.log_start_offset
        return _Appended(leadership, appended.last_offset + 1, info)

    def _no_response(
        self, caller: RequestContext, header: RequestHeader, results: list[ProduceResult]
    ) -> Response | asyncio.Future[Response]:
        if any(result.error for result in results):
            if caller.concerns_router and not caller.listener:
                # For the gateway, which routes again what was refused.
                return [encode_produce_response(header, results)]
            return CLOSE
        if self._manager.budget.staged_bytes > STAGED_BYTES_SOFT_MAX:
            return self._manager.budget.when_written(NO_RESPONSE)
        return NO_RESPONSE


def _gap_of_a_deposed_leader(error: PenstockError) -> PenstockError:
    """What a node says of a gap when it may have been deposed unheard: the batches in it may be its successor's.

    They are when a client comes back to the old leader: by a gateway that is cut off from the controllers
    as this node is, or by metadata of a node that is. Produce tells no leader epoch, so nothing else shows
    it. Kafka answers 45 all the same; librdkafka then bumps its epoch for every partition, and what was
    written and not acknowledged is written twice. 6 says as truly that nothing was written, and is retried.
    """
    return PenstockError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"{error.message}; another node may lead it, no controller has answered here lately: retry",
    )
