"""BeginStage, CommitUnit, AbortStage, DescribeSink, ListSinks: units of the sinks that this node coordinates.

Gateways ask, and say for whom; rights are asked for once more here. An answer waits for the high watermark ANSWER_MS at
most, then the gateway is told COORDINATOR_NOT_AVAILABLE and asks again: every call may be repeated. What is held for a
call that is gone is not begun any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import (
    ANONYMOUS,
    Authorizer,
    Identity,
    Operation,
    Principal,
    ResourceType,
    client_identity,
)
from penstock_kafka.wire.groups import transaction_partition
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import sinks_pb2 as pb
from penstock_storage_node.transactions.host import TransactionHost
from penstock_storage_node.transactions.questions import Question
from penstock_storage_node.transactions.shard import Shard
from penstock_storage_node.transactions.state import Answer
from penstock_storage_node.transactions.unit_records import INPUT_BYTES_MAX, Rows, SinkEntry, Unit, merged
from penstock_storage_node.transactions.units import AbortStage, CommitUnit, SinkState, Triple

ANSWER_MS: Final = 5_000
SINKS_AT_ONCE: Final = 200
"""Sinks that a listing describes before others do anything."""
_SAYINGS: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS: "another step of it is under way, ask again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "its coordinator cannot write at this moment, ask again",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is being loaded, ask again",
    ErrorCode.NOT_COORDINATOR: "its coordinator has moved, ask again",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "the node has as many transactional ids as transactional_ids_max allows",
}


T = TypeVar("T")


class Asking(Protocol):
    """A request with its caller."""

    @property
    def caller(self) -> pb.SinkCaller:
        """For whom the gateway asks."""


class UnitsService:
    """Handlers of the calls."""

    def __init__(self, host: TransactionHost, authorizer: Authorizer) -> None:
        self._host = host
        self._authorizer = authorizer

    async def begin_stage(self, request: pb.BeginStageRequest, context: object) -> pb.BeginStageResponse:
        """A stage of a unit, or why there is none."""
        del context
        name = request.transactional_id
        try:
            unit = _unit(request.unit)
            shard = self._shard(request, Operation.WRITE, unit.sink)
            self._check_stage(unit.sink, name)
            answer = await _answer_of(
                shard,
                lambda reply: shard.stage(name, unit, request.timeout_ms, reply, takeover=request.takeover),
            )
            _check(answer, unit.sink)
        except PenstockError as e:
            return pb.BeginStageResponse(error=_error(e))
        verdict = answer.verdict
        if verdict is not None:
            return pb.BeginStageResponse(verdict=_said(verdict.said), last=_last(unit.sink, verdict.last))
        return pb.BeginStageResponse(
            verdict=pb.UNIT_VERDICT_WRITE,
            triple=_put_triple(Triple(name, answer.producer_id, answer.producer_epoch)),
            last=_last(unit.sink, shard.units.last(unit.sink)),
        )

    async def commit_unit(self, request: pb.CommitUnitRequest, context: object) -> pb.CommitUnitResponse:
        """Decides a unit with all its stages, or says why not."""
        del context
        try:
            unit = _unit(request.unit)
            wanted = CommitUnit(
                unit,
                tuple(map(_triple, request.triples)),
                request.takeover,
                merged(Rows(row.topic, row.partition, row.rows) for row in request.rows),
                request.once,
                request.unit.input,
            )
            shard = self._shard(request, Operation.WRITE, unit.sink)
            answer = await _answer_of(shard, lambda reply: shard.unit(unit.sink, wanted, reply))
            _check(answer, unit.sink)
        except PenstockError as e:
            return pb.CommitUnitResponse(error=_error(e))
        verdict = answer.verdict
        assert verdict is not None
        response = pb.CommitUnitResponse(verdict=_said(verdict.said), last=_last(unit.sink, verdict.last))
        for triple in request.triples:
            if triple.transactional_id == verdict.lost:
                response.lost.CopyFrom(triple)
        return response

    async def abort_stage(self, request: pb.AbortStageRequest, context: object) -> pb.AbortStageResponse:
        """Ends a stage that is not decided."""
        del context
        sink = request.sink
        try:
            shard = self._shard(request, Operation.WRITE, sink)
            self._check_stage(sink, request.triple.transactional_id)
            wanted = AbortStage(sink, _triple(request.triple))
            answer = await _answer_of(shard, lambda reply: shard.unit(sink, wanted, reply))
            _check(answer, sink)
        except PenstockError as e:
            return pb.AbortStageResponse(error=_error(e))
        return pb.AbortStageResponse()

    async def describe_sink(
        self, request: pb.DescribeSinkRequest, context: object
    ) -> pb.DescribeSinkResponse:
        """What a sink has decided last, and its open stages."""
        del context
        found: asyncio.Future[tuple[ErrorCode, SinkState | None]] = asyncio.get_running_loop().create_future()

        def reply(error: ErrorCode, state: SinkState | None) -> None:
            if not found.done():
                found.set_result((error, state))

        try:
            self._shard(request, Operation.DESCRIBE, request.sink).describe_sink(request.sink, reply)
            error, state = await _within(found)
            _check(Answer(error), request.sink)
        except PenstockError as e:
            return pb.DescribeSinkResponse(error=_error(e))
        return pb.DescribeSinkResponse(sink=None if state is None else _state(state))

    async def list_sinks(self, request: pb.ListSinksRequest, context: object) -> pb.ListSinksResponse:
        """All that this node coordinates and the caller may describe; their rows are DescribeSink's to tell, since
        those of many sinks together have no bound."""
        del context
        response = pb.ListSinksResponse()
        if not self._host.is_whole:
            response.error.code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            response.error.message = "sinks are being read, ask again"
            return response
        who, allows = _caller(request), self._authorizer.allows
        for shard in list(self._host.shards()):
            for number, name in enumerate(shard.units.names()):
                state = shard.units.describe(name)
                if state is not None and allows(who, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
                    response.sinks.append(_state(state, with_rows=False))
                if number % SINKS_AT_ONCE == SINKS_AT_ONCE - 1:
                    await asyncio.sleep(0)
        return response

    def _shard(self, request: Asking, operation: Operation, sink: str) -> Shard:
        who = _caller(request)
        if not self._authorizer.authorize(who, operation, ResourceType.TRANSACTIONAL_ID, sink):
            raise PenstockError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                f"{who.principal} has no right to {operation.name} transactional id {sink}",
            )
        return self._host.find(sink)

    def _check_stage(self, sink: str, name: str) -> None:
        """Raises INVALID_REQUEST for an id that is no stage's, or is coordinated elsewhere."""
        count = self._host.partition_count(self._host.topic)
        if not name.startswith(f"{sink}-") or (
            count and transaction_partition(name, count) != transaction_partition(sink, count)
        ):
            raise PenstockError(
                ErrorCode.INVALID_REQUEST, f"transactional id {name} is none of a stage of sink {sink}"
            )


async def _answer_of(shard: Shard, ask: Callable[[Callable[[Answer], None]], Question]) -> Answer:
    """What a shard answers. Raises COORDINATOR_NOT_AVAILABLE when it takes too long."""
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def reply(answer: Answer) -> None:
        if not answered.done():
            answered.set_result(answer)

    question = ask(reply)
    try:
        return await _within(answered)
    finally:
        if question.reply is not None:
            shard.drop(question)


async def _within(future: asyncio.Future[T]) -> T:
    try:
        return await asyncio.wait_for(future, ANSWER_MS / 1000)
    except TimeoutError:
        raise PenstockError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no answer within {ANSWER_MS / 1000:g} s, ask again"
        ) from None


def _check(answer: Answer, sink: str) -> None:
    """Raises what it says of the call itself."""
    if answer.error:
        words = answer.reason or _SAYINGS.get(answer.error) or answer.error.name
        raise PenstockError(answer.error, f"sink {sink}: {words}")


def _caller(request: Asking) -> Identity:
    """Who asks, as the gateway says."""
    caller = request.caller
    if not caller.principal_type:
        return client_identity(ANONYMOUS, caller.client_host)
    return client_identity(Principal(caller.principal_type, caller.principal_name), caller.client_host)


def _unit(unit: pb.SinkUnit) -> Unit:
    """Raises INVALID_REQUEST for what no gateway lets through, and no coordinator could read again."""
    if not unit.sink or unit.epoch < 0 or len(unit.input) > INPUT_BYTES_MAX:
        raise PenstockError(ErrorCode.INVALID_REQUEST, f"unit {unit.epoch} of sink {unit.sink!r}")
    return Unit(unit.sink, unit.query, unit.epoch)


def _triple(triple: pb.StageTriple) -> Triple:
    return Triple(triple.transactional_id, triple.producer_id, triple.producer_epoch)


def _put_triple(triple: Triple) -> pb.StageTriple:
    return pb.StageTriple(
        transactional_id=triple.transactional_id,
        producer_id=triple.producer_id,
        producer_epoch=triple.producer_epoch,
    )


def _said(said: int) -> pb.UnitVerdict.ValueType:
    return pb.UnitVerdict.ValueType(int(said))


def _last(sink: str, entry: SinkEntry | None) -> pb.SinkUnit | None:
    if entry is None:
        return None
    return pb.SinkUnit(sink=sink, query=entry.query, epoch=entry.epoch, input=entry.input)


def _state(state: SinkState, *, with_rows: bool = True) -> pb.SinkState:
    entry = state.entry
    rows = entry.rows if entry is not None and with_rows else ()
    return pb.SinkState(
        sink=state.sink,
        last=_last(state.sink, entry),
        decided_at_ms=0 if entry is None else entry.decided_ms,
        ending_stages=state.ending,
        rows=[pb.UnitRows(topic=row.topic, partition=row.partition, rows=row.rows) for row in rows],
        open=[
            pb.OpenStage(
                triple=_put_triple(stage.triple),
                unit=pb.SinkUnit(sink=stage.unit.sink, query=stage.unit.query, epoch=stage.unit.epoch),
                started_at_ms=stage.start_ms,
            )
            for stage in state.open
        ],
        once=entry is not None and entry.once,
    )


def _error(error: PenstockError) -> common_pb2.Error:
    return common_pb2.Error(code=error.code, message=error.message)
