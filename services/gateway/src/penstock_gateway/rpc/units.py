"""Exactly-once units for native clients: checked here, and asked of the coordinator of the sink's partition.

A call is repeated, for as long as its client waits and `CALL_MS` at most, while the coordinator moves, loads, is too
old to know the call, or has another step of the sink under way: each may be repeated. What it comes to travels as Error
with Kafka's codes; what nobody may ask is the status INVALID_ARGUMENT with one line.

A stage's id gets the first last number with which it lies in the sink's partition of `__transaction_state`: of 0, 1, 2
and so on, about as many tries as there are partitions.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NoReturn, TypeVar

import grpc
import grpc.aio

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_core.metadata.levels import METADATA_LEVEL, TRANSACTIONS_LEVEL, level_of
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_frontend.authorizer import Identity, Operation, ResourceType
from penstock_gateway.relay.relay import Relay
from penstock_gateway.rpc.guard import identity_of
from penstock_kafka.wire.groups import transaction_partition
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import controller_pb2 as cpb
from penstock_proto.v1 import sinks_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.security.methods import STORAGE_NODE

CALL_MS: Final = 30_000
"""How long a call is tried at most."""
ATTEMPT_MS: Final = 10_000
"""A node answers within 5 s; after this it is taken for silent."""
RETRY_MS: Final = 50
RETRY_MS_MAX: Final = 500
MARGIN_MS: Final = 250
"""Of the client's deadline, so that it hears why."""
CREATE_MS: Final = 5_000
NAME_BYTES_MAX: Final = 200
"""Of a sink and of a query: they are in every stage's record, and the sink in every id."""
INPUT_BYTES_MAX: Final = 64
TRIPLES_MAX: Final = 100_000
EPOCH_MAX: Final = 32_767
SMALL_NUMBERS: Final = 1_000
_NAME: Final = re.compile(r"[A-Za-z0-9._:/@+-]+")
_AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
_GONE: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    }
)

R = TypeVar(
    "R",
    pb.BeginStageResponse,
    pb.CommitUnitResponse,
    pb.AbortStageResponse,
    pb.DescribeSinkResponse,
    pb.ListSinksResponse,
)
Q = TypeVar("Q")
Context = grpc.aio.ServicerContext[Any, Any]


class BadUnit(Exception):
    """What nobody may ask; `str` says why."""


class UnitRelay:
    """The calls, of one gateway."""

    def __init__(self, relay: Relay, controllers: ControllerClient | None) -> None:
        """`controllers` make `__transaction_state` when it is first asked for."""
        self._relay = relay
        self._controllers = controllers
        self._creation: asyncio.Task[str] | None = None

    # -- calls -------------------------------------------------------------------------------------

    async def begin_stage(
        self, request: pb.BeginStageRequest, who: Identity, left_s: float | None
    ) -> pb.BeginStageResponse:
        """Raises BadUnit."""
        _check_unit(request.unit)
        if request.partition < 0 or request.attempt < 0:
            raise BadUnit(
                f"a stage of partition {request.partition}, attempt {request.attempt}: give 0 or more"
            )
        sink = request.unit.sink

        def prepare(image: MetadataImage) -> None:
            topic = image.topic(TRANSACTIONS_TOPIC)
            assert topic is not None
            request.transactional_id = stage_id(
                sink, request.partition, request.attempt, len(topic.partitions)
            )

        return await self._ask(
            "BeginStage", sink, request, pb.BeginStageResponse, who, left_s, prepare, Operation.WRITE
        )

    async def commit_unit(
        self, request: pb.CommitUnitRequest, who: Identity, left_s: float | None
    ) -> pb.CommitUnitResponse:
        """Raises BadUnit."""
        _check_unit(request.unit)
        if len(request.triples) > TRIPLES_MAX:
            raise BadUnit(
                f"a unit of {len(request.triples)} stages: the most is {TRIPLES_MAX}, write by fewer tasks"
            )
        for triple in request.triples:
            _check_triple(request.unit.sink, triple)
        for row in request.rows:
            if row.rows < 0 or row.partition < 0 or not row.topic:
                raise BadUnit(f"{row.rows} rows in partition {row.topic!r}-{row.partition}: that is none")
        return await self._ask(
            "CommitUnit",
            request.unit.sink,
            request,
            pb.CommitUnitResponse,
            who,
            left_s,
            None,
            Operation.WRITE,
        )

    async def abort_stage(
        self, request: pb.AbortStageRequest, who: Identity, left_s: float | None
    ) -> pb.AbortStageResponse:
        """Raises BadUnit."""
        _check_name("sink", request.sink)
        _check_triple(request.sink, request.triple)
        return await self._ask(
            "AbortStage", request.sink, request, pb.AbortStageResponse, who, left_s, None, Operation.WRITE
        )

    async def describe_sink(
        self, request: pb.DescribeSinkRequest, who: Identity, left_s: float | None
    ) -> pb.DescribeSinkResponse:
        """Raises BadUnit."""
        _check_name("sink", request.sink)
        return await self._ask(
            "DescribeSink",
            request.sink,
            request,
            pb.DescribeSinkResponse,
            who,
            left_s,
            None,
            Operation.DESCRIBE,
        )

    async def list_sinks(
        self, request: pb.ListSinksRequest, who: Identity, left_s: float | None
    ) -> pb.ListSinksResponse:
        """Of all nodes; an error names the first one that did not tell, beside what the others have told."""
        image = self._relay.metadata.image
        topic = image.topic(TRANSACTIONS_TOPIC)
        response = pb.ListSinksResponse()
        if topic is None:
            return response
        _put_caller(request.caller, who)
        deadline_ms = self._deadline_ms(left_s)
        leaders = sorted(
            {partition.leader for partition in topic.partitions.values() if partition.leader >= 0}
        )
        if any(partition.leader < 0 for partition in topic.partitions.values()):
            response.error.CopyFrom(
                _error(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"a partition of {TRANSACTIONS_TOPIC} has no leader: its sinks are not among these",
                )
            )

        def node_of(leader: NodeId) -> Callable[[MetadataImage], NodeImage | None]:
            return lambda image: image.nodes.get(leader)

        answers = await asyncio.gather(
            *(
                self._repeat("ListSinks", request, pb.ListSinksResponse, node_of(leader), deadline_ms)
                for leader in leaders
            )
        )
        found: dict[str, pb.SinkState] = {}
        for answer in answers:
            if answer.error.code and not response.error.code:
                response.error.CopyFrom(answer.error)
            found.update((state.sink, state) for state in answer.sinks)
        may = self._relay.authorizer.permitted(
            who, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, sorted(found)
        )
        response.sinks.extend(found[name] for name in may)
        return response

    # -- asking ------------------------------------------------------------------------------------

    def _deadline_ms(self, left_s: float | None) -> int:
        most_ms = CALL_MS if left_s is None else min(CALL_MS, int(left_s * 1000) - MARGIN_MS)
        return self._relay.clock_ms() + max(1, most_ms)

    async def _ask(
        self,
        method: str,
        sink: str,
        request: Any,
        response_type: type[R],
        who: Identity,
        left_s: float | None,
        prepare: Callable[[MetadataImage], None] | None,
        operation: Operation,
    ) -> R:
        """Of the sink's coordinator; `prepare` gets the metadata that have the state's topic."""
        relay = self._relay
        if not relay.authorizer.authorize(who, operation, ResourceType.TRANSACTIONAL_ID, sink):
            return response_type(
                error=_error(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    f"{who.principal} has no right to {operation.name} transactional id {sink}, which is the sink's",
                )
            )
        deadline_ms = self._deadline_ms(left_s)
        if level_of(relay.metadata.image) < TRANSACTIONS_LEVEL:
            return response_type(
                error=_error(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"transactions need {METADATA_LEVEL} {TRANSACTIONS_LEVEL}: run `penstock cluster upgrade`",
                )
            )
        if relay.metadata.image.topic(TRANSACTIONS_TOPIC) is None:
            if method in ("AbortStage", "DescribeSink"):
                return response_type()
            problem = await self._make_topic(str(who.principal))
            if relay.metadata.image.topic(TRANSACTIONS_TOPIC) is None:
                return response_type(
                    error=_error(
                        ErrorCode.COORDINATOR_NOT_AVAILABLE,
                        f"topic {TRANSACTIONS_TOPIC} is not there: {problem or 'it is being made'}",
                    )
                )
        if prepare is not None:
            prepare(relay.metadata.image)
        _put_caller(request.caller, who)
        return await self._repeat(
            method, request, response_type, lambda image: _coordinator(image, sink), deadline_ms
        )

    async def _repeat(
        self,
        method: str,
        request: Any,
        response_type: type[R],
        node_of: Callable[[MetadataImage], NodeImage | None],
        deadline_ms: int,
    ) -> R:
        relay = self._relay
        pause_ms = RETRY_MS
        failed: R | None = None
        while True:
            node = node_of(relay.metadata.image)
            if node is None:
                failed = response_type(
                    error=_error(
                        ErrorCode.COORDINATOR_NOT_AVAILABLE,
                        f"a partition of {TRANSACTIONS_TOPIC} has no leader at this moment; try again",
                    )
                )
            else:
                left_ms = max(1, deadline_ms - relay.clock_ms())
                answer = await self._attempt(method, request, response_type, node, left_ms)
                if answer.error.code not in _AGAIN:
                    return answer
                failed = answer
            if relay.clock_ms() + pause_ms >= deadline_ms:
                return failed
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RETRY_MS_MAX)

    async def _attempt(
        self, method: str, request: Any, response_type: type[R], node: NodeImage, left_ms: int
    ) -> R:
        call: Any = self._relay.channels.get(node.grpc.address, STORAGE_NODE).unary_unary(
            f"/penstock.v1.Storage/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        try:
            response: R = await call(request, timeout=min(left_ms, ATTEMPT_MS) / 1000)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                why = "is of an older build and knows no units: upgrade it"
            else:
                why = f"at {node.grpc.address} does not answer ({error.code().name})"
            code = ErrorCode.NOT_COORDINATOR if error.code() in _GONE else ErrorCode.UNKNOWN_SERVER_ERROR
            return response_type(error=_error(code, f"storage node {node.node_id} {why}"))
        return response

    # -- the topic ---------------------------------------------------------------------------------

    async def _make_topic(self, principal: str) -> str:
        """Why it is not there now; "" when it is. Many may ask for it at once."""
        if self._controllers is None:
            return "nobody here can make it"
        creation = self._creation
        if creation is None or creation.done():
            creation = self._creation = asyncio.create_task(
                self._create(self._controllers, principal), name=f"create {TRANSACTIONS_TOPIC}"
            )
        return await asyncio.shield(creation)

    async def _create(self, controllers: ControllerClient, principal: str) -> str:
        deadline_ms = controllers.clock_ms() + CREATE_MS
        topic = cpb.NewTopic(name=TRANSACTIONS_TOPIC, partition_count=-1, replication_factor=-1)
        try:
            response = await controllers.call(
                "CreateTopics", cpb.CreateTopicsRequest(topics=[topic], principal=principal), CREATE_MS
            )
        except PenstockError as e:
            return e.message
        error = response.error if response.error.code else response.topics[0].error
        if error.code and error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            return str(error.message)
        if response.version:
            await self._relay.metadata.wait_for_version(
                response.version, deadline_ms - controllers.clock_ms()
            )
        return ""


class UnitMethods:
    """The calls as methods of the gRPC service `penstock.v1.Gateway`."""

    _units: UnitRelay

    async def _check_ready(self, method: str, context: Context) -> None:
        raise NotImplementedError

    async def _abort(self, method: str, context: Context, status: grpc.StatusCode, message: str) -> NoReturn:
        raise NotImplementedError

    def _count(self, method: str, status: str) -> None:
        raise NotImplementedError

    async def BeginStage(self, request: pb.BeginStageRequest, context: Context) -> pb.BeginStageResponse:  # noqa: N802
        """Begins a stage, or says why there is none to begin."""
        return await self._unit_call("BeginStage", self._units.begin_stage, request, context)

    async def CommitUnit(self, request: pb.CommitUnitRequest, context: Context) -> pb.CommitUnitResponse:  # noqa: N802
        """Decides a unit and all its stages."""
        return await self._unit_call("CommitUnit", self._units.commit_unit, request, context)

    async def AbortStage(self, request: pb.AbortStageRequest, context: Context) -> pb.AbortStageResponse:  # noqa: N802
        """Aborts a stage that is not decided."""
        return await self._unit_call("AbortStage", self._units.abort_stage, request, context)

    async def DescribeSink(  # noqa: N802
        self, request: pb.DescribeSinkRequest, context: Context
    ) -> pb.DescribeSinkResponse:
        """What a sink has decided last, and its open stages."""
        return await self._unit_call("DescribeSink", self._units.describe_sink, request, context)

    async def ListSinks(self, request: pb.ListSinksRequest, context: Context) -> pb.ListSinksResponse:  # noqa: N802
        """All sinks that the caller may describe."""
        return await self._unit_call("ListSinks", self._units.list_sinks, request, context)

    async def _unit_call(
        self,
        method: str,
        behaviour: Callable[[Q, Identity, float | None], Awaitable[R]],
        request: Q,
        context: Context,
    ) -> R:
        await self._check_ready(method, context)
        try:
            response = await behaviour(request, identity_of(context), context.time_remaining())
        except BadUnit as e:
            await self._abort(method, context, grpc.StatusCode.INVALID_ARGUMENT, str(e))
        self._count(method, "OK")
        return response

    def _unit_handlers(self) -> dict[str, Any]:
        return {
            name: grpc.unary_unary_rpc_method_handler(
                getattr(self, name),
                getattr(pb, f"{name}Request").FromString,
                getattr(pb, f"{name}Response").SerializeToString,
            )
            for name in ("BeginStage", "CommitUnit", "AbortStage", "DescribeSink", "ListSinks")
        }


def stage_id(sink: str, partition: int, attempt: int, partition_count: int) -> str:
    """The transactional id of a stage: with the smallest last number that puts it into the sink's partition."""
    home = transaction_partition(sink, partition_count)
    return next(
        name
        for name in (f"{sink}-{partition}-{attempt}-{number}" for number in _numbers())
        if transaction_partition(name, partition_count) == home
    )


def _numbers() -> Iterator[int]:
    """Where the number of partitions has the factor 31, which the hash of ids multiplies by, small ones reach few
    partitions; so scattered ones follow."""
    yield from range(SMALL_NUMBERS)
    number = SMALL_NUMBERS
    while True:
        number = (number * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % (1 << 64)
        yield number


def _coordinator(image: MetadataImage, sink: str) -> NodeImage | None:
    topic = image.topic(TRANSACTIONS_TOPIC)
    if topic is None:
        return None
    partition = topic.partitions.get(transaction_partition(sink, len(topic.partitions)))
    return None if partition is None else image.nodes.get(partition.leader)


def _check_name(what: str, name: str) -> None:
    """Raises BadUnit."""
    if not name:
        raise BadUnit(f"the {what} has no name")
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        raise BadUnit(f"{what} {name[:20]}...: a name of {size} bytes, the most is {NAME_BYTES_MAX}")
    if what == "sink" and not _NAME.fullmatch(name):
        raise BadUnit(f"sink {name!r}: letters, digits and . _ : / @ + - are possible in its name")
    if not name.isprintable():
        raise BadUnit(f"{what} {name!r}: there are characters in its name that cannot be shown")


def _check_unit(unit: pb.SinkUnit) -> None:
    _check_name("sink", unit.sink)
    _check_name("query", unit.query)
    if unit.epoch < 0:
        raise BadUnit(f"unit {unit.epoch} of sink {unit.sink}: epochs are 0 or more")
    if len(unit.input) > INPUT_BYTES_MAX:
        raise BadUnit(
            f"unit {unit.epoch} of sink {unit.sink}: an input of {len(unit.input)} bytes, the most is {INPUT_BYTES_MAX}"
        )


def _check_triple(sink: str, triple: pb.StageTriple) -> None:
    name = triple.transactional_id
    numbers = name.removeprefix(f"{sink}-").split("-")
    if not name.startswith(f"{sink}-") or len(numbers) != 3 or not all(map(_is_number, numbers)):
        raise BadUnit(f"{name[:300]!r} is no stage of sink {sink}: give what BeginStage has answered")
    if triple.producer_id < 0 or not 0 <= triple.producer_epoch <= EPOCH_MAX:
        raise BadUnit(
            f"stage {name} with producer {triple.producer_id}, epoch {triple.producer_epoch}: "
            "give what BeginStage has answered"
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _put_caller(caller: pb.SinkCaller, who: Identity) -> None:
    caller.Clear()
    caller.principal_type, caller.principal_name = who.principal
    caller.client_host = who.host


def _error(code: ErrorCode, message: str) -> common_pb2.Error:
    return common_pb2.Error(code=code, message=message)
