"""Produce: check, append, answer when the acks are there (`produce_outcomes`).

Order of checks: Kafka's (`KafkaApis.handleProduceRequest`, `ReplicaManager`, `Partition`, `UnifiedLog`):
authorization, acks, partition and leader, ISR for acks=all, the batch itself, producer state. Appends
happen inside the call, so requests of one connection are appended in the order they arrive; only the
answer waits.

Long work: a request that takes more than a slice of time goes on in later turns of the loop, and batches of
very many records are walked in such turns before they are appended (rule "The loop stays free"). It then
stands in the lines of its partitions as one that has to be compressed anew does: the order of appends stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import Operation, ResourceType
from penstock_frontend.listener.listener import CLOSE, NO_RESPONSE, Buffer, Response
from penstock_kafka.records.batch import TRANSACTIONAL_BIT, BatchInfo, is_transactional
from penstock_kafka.records.check import accept_produced, accept_steps, declared_records, open_batch
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.metadata import INTERNAL_TOPICS
from penstock_kafka.wire.produce import ProducePartition, ProduceResult, ProduceSkim, skim_produce
from penstock_runtime.turns import SLICE_S, LoopTurns
from penstock_storage_node.kafka.deferred_appends import DeferredAppend, DeferredAppends
from penstock_storage_node.kafka.produce_outcomes import AppendedBatch, ProduceInProgress, refused
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.retry_gate import RetryGate
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.kafka.transactional_appends import HeldBatch, MustWait, TransactionalAppends
from penstock_storage_node.log import Appended, LogState, PartitionLog
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.leadership import Leadership
from penstock_storage_node.transactions.link import TransactionLink

ACKS_ALL = -1
_EMPTY: Final = memoryview(b"")
ADMIN_CLIENT_ID = "__admin_client"
"""Kafka's own tools may write to internal topics under that name."""
RECORDS_AT_ONCE_MAX = 10_000
"""Records of one batch that are walked at once: about half a millisecond's work, and librdkafka's largest batch."""
STAGED_BYTES_SOFT_MAX = 16 * 1024 * 1024
"""Above that many bytes in memory even acks=0 requests count as unanswered until the disk has
caught up, so that their connections' own bounds hold them back."""


_Checked = tuple[Buffer, BatchInfo, TopicConfig] | PenstockError
"""A batch that was checked before its append, with the settings that it was checked by; or what is wrong."""
_Answer = Response | asyncio.Future[Response]


class _AckWait:
    """One batch that waits for its acks. They come in the manager's turn, never while its request is still
    being appended."""

    __slots__ = ("_batch", "_handler", "_index", "_request")

    def __init__(
        self, handler: ProduceHandler, request: ProduceInProgress, index: int, batch: AppendedBatch
    ) -> None:
        self._handler = handler
        self._request = request
        self._index = index
        self._batch = batch

    def acknowledge(self, error: ErrorCode) -> None:
        request, batch = self._request, self._batch
        if error:
            result = self._handler.not_acknowledged(request.caller, batch, error)
        else:
            batch.note_acks(request.caller)
            result = batch.with_receipt() if request.want_receipt else batch.result
        request.settle(self._index, result)


class ProduceHandler:
    """Answers Produce for every way in."""

    def __init__(
        self,
        manager: ReplicaManager,
        rights: Rights,
        in_touch: Callable[[], bool],
        link: TransactionLink | None = None,
    ) -> None:
        """A node without `link` knows no transactions, and refuses their batches."""
        self._in_touch = in_touch
        """Whether the controllers were heard of lately: else another node may lead what this one leads."""
        self._manager = manager
        self._rights = rights
        self._retry_gate = RetryGate()
        self._turns = DeferredAppends(manager.registry)
        self._loop_turns = LoopTurns.of(manager.lifecycle)
        self._transactions = (
            None
            if link is None
            else TransactionalAppends(link, self, manager.clock_ms, manager.registry.verifies_partitions)
        )
        self._one_opened = asyncio.Lock()
        """A batch uncompressed is large: one at a time."""

    def handle(
        self, caller: RequestContext, header: RequestHeader, frame: Buffer
    ) -> Response | asyncio.Future[Response]:
        """Answer one request. `frame` must stay as it is until it is written to disk."""
        self._manager.metrics.produce_requests += 1
        skim = skim_produce(frame, header)
        if self._rights.is_enabled:
            refusal = self._look_through(caller, skim)
            if refusal is not None:
                return self._refuse_all(caller, header, skim, refusal)
        if self._transactions is not None and (refusal := self._transactions.refusal(skim)) is not None:
            return self._refuse_all(caller, header, skim, refusal)
        turn = self._turns.take_turn(skim.partitions)
        if turn is None and any(declared_records(i.records) > RECORDS_AT_ONCE_MAX for i in skim.partitions):
            turn = self._turns.line_up(skim.partitions)
        if turn is not None:
            return self._in_line(turn, self._handle_in_turn(turn, caller, header, skim))
        steps = self._append_steps(caller, header, skim, skim.partitions, {})
        clock_s = self._loop_turns.clock_s
        until_s = clock_s() + SLICE_S
        while True:
            try:
                next(steps)
            except StopIteration as end:
                answer: _Answer = end.value
                return answer
            if clock_s() >= until_s:
                turn = self._turns.line_up(skim.partitions)
                return self._in_line(turn, self._go_on(steps))

    def _look_through(self, caller: RequestContext, skim: ProduceSkim) -> PenstockError | None:
        """Why the whole request is refused, if it is. Batches for topics that the caller may not write to, or
        that nobody knows, are emptied: no work is done for them, and their rights are asked for when their turn comes.

        Who writes in a transaction needs the right to its id (Kafka: KafkaApis.handleProduceRequest).
        """
        rights, items, who = self._rights, skim.partitions, caller.identity
        in_transaction = False
        for index, item in enumerate(items):
            in_transaction = in_transaction or is_transactional(item.records)
            topic = item.topic
            if item.topic_id is not None:
                topic = self._manager.registry.topic_name(item.topic_id)
            if not topic or not rights.allows(who, Operation.WRITE, ResourceType.TOPIC, topic):
                items[index] = replace(item, records=_EMPTY)
        name = skim.transactional_id
        if not in_transaction or (
            name is not None and rights.may(caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        ):
            return None
        return PenstockError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"{caller.identity.principal} has no right to WRITE in the transaction",
        )

    def _refuse_all(
        self, caller: RequestContext, header: RequestHeader, skim: ProduceSkim, error: PenstockError
    ) -> Response | asyncio.Future[Response]:
        request = ProduceInProgress(caller, header, skim, self._manager.clock_ms(), self._manager.wall_ms())
        for index, item in enumerate(skim.partitions):
            request.settle(index, self._refuse(request, item, error))
        return self._without_acks(request) if skim.acks == 0 else request.when_settled()

    def _in_line(self, turn: DeferredAppend, rest: Coroutine[Any, Any, Response]) -> asyncio.Task[Response]:
        task = asyncio.ensure_future(rest)
        # Cancelled before its first step, a task runs nothing, no `finally` either.
        task.add_done_callback(lambda _: turn.end())
        return task

    async def _handle_in_turn(
        self, turn: DeferredAppend, caller: RequestContext, header: RequestHeader, skim: ProduceSkim
    ) -> Response:
        """Batches are in another codec than the topic's, or of very many records, or come after such: appended
        a little later."""
        try:
            items = await turn.come()
            checked = await self._check_large(items, header.api_version)
            answer = await self._loop_turns.run(
                self._append_steps(caller, header, skim, items, checked, deferred=True)
            )
        finally:
            turn.end()
        return await answer if isinstance(answer, asyncio.Future) else answer

    async def _go_on(self, steps: Generator[None, None, _Answer]) -> Response:
        """What was begun, in later turns."""
        await self._loop_turns.next()
        answer = await self._loop_turns.run(steps)
        return await answer if isinstance(answer, asyncio.Future) else answer

    async def _check_large(self, items: Sequence[ProducePartition], version: int) -> dict[int, _Checked]:
        """Check batches of very many records in turns; what came of each, by index."""
        checked: dict[int, _Checked] = {}
        for index, item in enumerate(items):
            partition = self._turns.find(item)
            if partition is None or declared_records(item.records) <= RECORDS_AT_ONCE_MAX:
                continue
            settings = partition.replica.settings
            async with self._one_opened:
                opened = await asyncio.get_running_loop().run_in_executor(
                    self._turns.executor, open_batch, item.records, settings
                )
                steps = accept_steps(
                    item.records,
                    opened,
                    settings,
                    self._manager.wall_ms(),
                    produce_version=version,
                    allow_transactional=self._transactions is not None,
                )
                try:
                    checked[index] = (*await self._loop_turns.run(steps, at_once=False), settings)
                except PenstockError as error:
                    checked[index] = error
        return checked

    def _append_steps(
        self,
        caller: RequestContext,
        header: RequestHeader,
        skim: ProduceSkim,
        items: Sequence[ProducePartition],
        checked: dict[int, _Checked],
        *,
        deferred: bool = False,
    ) -> Generator[None, None, _Answer]:
        """Append what may be appended, with a step after each batch but the last. `items`: the partitions of
        `skim`, in their topics' codecs; `checked`: those that are checked already;
        `deferred`: time has passed since their rights were asked for."""
        manager = self._manager
        request = ProduceInProgress(caller, header, skim, manager.clock_ms(), manager.wall_ms())
        for index, item in enumerate(items):
            if index:
                if not manager.drain.effects.empty:
                    manager.drain.schedule()
                yield
            try:
                batch = self._append(request, item, checked.get(index) if checked else None, deferred)
            except PenstockError as e:
                request.settle(index, self._refuse(request, item, e))
            except MustWait as wait:
                self._hold(request, index, item, wait)
            else:
                self._await_acks(request, index, batch)
        if not manager.drain.effects.empty:
            manager.drain.schedule()
        if request.acks:
            return request.when_settled()
        if request.is_settled:
            return self._without_acks(request)
        return asyncio.ensure_future(self._without_acks_later(request))

    def _await_acks(self, request: ProduceInProgress, index: int, batch: AppendedBatch) -> None:
        """A batch is in the log."""
        acks = request.acks
        if acks == 0:
            request.settle(index, batch.result)
        else:
            wait = batch.leadership.wait_all if acks == ACKS_ALL else batch.leadership.wait_one
            request.caller.acks_all = acks == ACKS_ALL
            wait(batch.end_offset, request.deadline_ms, _AckWait(self, request, index, batch))

    # -- in transactions -------------------------------------------------------------------------

    def _hold(self, request: ProduceInProgress, index: int, item: ProducePartition, wait: MustWait) -> None:
        assert self._transactions is not None
        self._transactions.hold(request, index, item, wait)

    def resume(self, held: HeldBatch) -> None:
        """See `Appender`."""
        request = held.request
        try:
            batch = self._append(request, held.item, held.checked, True, held)
        except PenstockError as error:
            self.give_up(held, error)
        else:
            self._await_acks(request, held.index, batch)
            if not self._manager.drain.effects.empty:
                self._manager.drain.schedule()

    def give_up(self, held: HeldBatch, error: PenstockError) -> None:
        """See `Appender`."""
        held.request.settle(held.index, self._refuse(held.request, held.item, error))

    def _refuse(
        self, request: ProduceInProgress, item: ProducePartition, error: PenstockError
    ) -> ProduceResult:
        """A batch is not appended."""
        if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self._in_touch():
            error = _gap_of_a_deposed_leader(error)
        self._manager.metrics.rejected_batches += 1
        request.caller.note(error.code)
        self._retry_gate.note(item, error.code, request.now_ms)
        return refused(item, error)

    def not_acknowledged(
        self, caller: RequestContext, batch: AppendedBatch, error: ErrorCode
    ) -> ProduceResult:
        """The acks of a batch that was appended did not come."""
        caller.note(error)
        result = batch.unacknowledged(error)
        self._retry_gate.note_unacknowledged(result, batch.info, self._manager.clock_ms())
        return result

    def _append(
        self,
        request: ProduceInProgress,
        item: ProducePartition,
        checked: _Checked | None,
        deferred: bool,
        held: HeldBatch | None = None,
    ) -> AppendedBatch:
        """Check and append one batch, which may have waited; raises PenstockError and MustWait."""
        partition = self._writable(request, item, deferred)
        replica, log = partition.replica, partition.log
        leadership, settings = replica.require_leader(), replica.settings
        if request.acks == ACKS_ALL and leadership.under_min_isr:
            raise PenstockError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{replica.name} has {len(leadership.isr)} replicas in sync,"
                f" min.insync.replicas is {settings.min_insync_replicas}",
            )
        if isinstance(checked, PenstockError):
            raise checked
        if checked is not None and checked[2] is settings:
            batch, info, _ = checked
        else:
            batch, info = accept_produced(
                item.records,
                settings,
                request.wall_ms,
                produce_version=request.version,
                allow_transactional=self._transactions is not None,
            )
        if info.producer_id >= 0 and (leadership.epoch or self._retry_gate):
            self._check_order(request, item, info, log, leadership)
        transactions = self._transactions if info.attributes & TRANSACTIONAL_BIT else None
        if transactions is not None:
            transactions.admit(request, partition, leadership, (batch, info, settings), held)
        appended = partition.append(batch, info, request.now_ms)
        if isinstance(appended, Appended):
            if transactions is not None:
                transactions.appended(partition, info, held)
            self._manager.metrics.produced_bytes += appended.size_bytes
            traffic = partition.traffic
            traffic.received_bytes += appended.size_bytes
            traffic.received_records += info.record_count
        else:
            self._manager.metrics.duplicate_batches += 1
        result = ProduceResult(
            item.topic,
            item.topic_id,
            item.partition,
            ErrorCode.NONE,
            appended.base_offset,
            appended.log_append_time_ms,
            log.log_start_offset,
        )
        return AppendedBatch(leadership, info, appended.last_offset + 1, result, partition)

    def _check_order(
        self,
        request: ProduceInProgress,
        item: ProducePartition,
        info: BatchInfo,
        log: PartitionLog,
        leadership: Leadership,
    ) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER for a batch that may have overtaken one before it (`retry_gate`)."""
        is_next = log.is_next_of_producer(info)
        came_again = self._retry_gate.check(item, info, is_next, request.now_ms)
        if (
            not is_next
            and not came_again
            and leadership.epoch
            and log.is_producer_new_since(info, leadership.epoch_start_offset)
        ):
            raise PenstockError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"producer {info.producer_id} begins with sequence {info.base_sequence} at the leader of epoch"
                f" {leadership.epoch}; those before it may be out to the leader before: retry",
            )

    def _writable(self, request: ProduceInProgress, item: ProducePartition, deferred: bool) -> Partition:
        """The partition that a batch is for, if its client may write to it and its disk works. Raises PenstockError."""
        manager, caller, acks = self._manager, request.caller, request.acks
        if self._rights.is_enabled and (deferred or item.records is _EMPTY):
            partition = self._rights.locate(
                manager.registry, caller, Operation.WRITE, item.topic, item.topic_id, item.partition
            )
        else:
            partition = manager.registry.locate(item.topic, item.topic_id, item.partition)
        if acks not in (ACKS_ALL, 0, 1):
            raise PenstockError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} is not known: use 0, 1 or all (-1)"
            )
        replica = partition.replica
        if replica.topic in INTERNAL_TOPICS and caller.client_id != ADMIN_CLIENT_ID:
            raise PenstockError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{replica.topic} is written by the cluster alone"
            )
        if partition.log.state is LogState.FAILED or manager.health.failed:
            raise PenstockError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the disk under {replica.name} failed on node {manager.registry.node_id}",
            )
        return partition

    async def _without_acks_later(self, request: ProduceInProgress) -> Response:
        settled = request.when_settled()
        if isinstance(settled, asyncio.Future):
            await settled
        answer = self._without_acks(request)
        return await answer if isinstance(answer, asyncio.Future) else answer

    def _without_acks(self, request: ProduceInProgress) -> Response | asyncio.Future[Response]:
        """What goes back to a client that waits for no answer."""
        if request.has_error:
            if request.caller.concerns_router and not request.caller.listener:
                # For the gateway, which routes again what was refused.
                return request.response()
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
