"""Who calls the native API, asked before anything of a call is read; and which methods there are to call.

`RIGHTS` says of every method of the contract what it takes. One without a row is for nobody. What a row asks of each
topic is asked by the method itself, or by the relay that it uses, with the caller's identity.

A call that relies on a password ends when the password does: the client hears UNAUTHENTICATED and signs in again.
Where nobody signs in a call goes to its handler as it is.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from penstock_frontend.authorizer import ANONYMOUS, Identity, Operation, ResourceType, client_identity
from penstock_frontend.sign_in.callers import Caller, CallerDoor, CutOff, NotLetIn
from penstock_gateway.rpc.describe import peer_host
from penstock_runtime.security.resumed_sessions import RESUMED_AFTER_END, is_resumed_after_end

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any


class Right(NamedTuple):
    """What a method takes of each thing that it is about (Kafka: KafkaApis, for the same deed)."""

    operation: Operation
    kind: ResourceType = ResourceType.TOPIC


OPEN: Final = None
"""Anybody may call it: it is how one signs in."""

RIGHTS: Final[Mapping[str, Right | None]] = {
    "/penstock.v1.Gateway/Authenticate": OPEN,
    # Metadata: what may not be described is left out, or looks as if it were not there.
    "/penstock.v1.Gateway/Describe": Right(Operation.DESCRIBE),
    "/penstock.v1.Gateway/ListOffsets": Right(Operation.DESCRIBE),
    "/penstock.v1.Gateway/SizeRanges": Right(Operation.DESCRIBE),
    "/penstock.v1.Gateway/EpochEnds": Right(Operation.DESCRIBE),
    # And of its topics, Describe for the first and Read for the second: the coordinator asks that.
    "/penstock.v1.Gateway/GroupOffsets": Right(Operation.DESCRIBE, ResourceType.GROUP),
    "/penstock.v1.Gateway/CommitGroup": Right(Operation.READ, ResourceType.GROUP),
    # Or of the cluster, as with Kafka's CreateTopics.
    "/penstock.v1.Gateway/CreateTopic": Right(Operation.CREATE),
    "/penstock.v1.Gateway/Produce": Right(Operation.WRITE),
    "/penstock.v1.Gateway/FetchRange": Right(Operation.READ),
    # Of the transactional id that is the sink's name. ListSinks leaves out what may not be described.
    "/penstock.v1.Gateway/BeginStage": Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
    "/penstock.v1.Gateway/CommitUnit": Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
    "/penstock.v1.Gateway/AbortStage": Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
    "/penstock.v1.Gateway/DescribeSink": Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
    "/penstock.v1.Gateway/ListSinks": Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
    # Plans, operations, nodes: of the cluster.
    "/penstock.v1.Admin/Plan": Right(Operation.DESCRIBE, ResourceType.CLUSTER),
    "/penstock.v1.Admin/StartOperation": Right(Operation.ALTER, ResourceType.CLUSTER),
    "/penstock.v1.Admin/ControlOperation": Right(Operation.ALTER, ResourceType.CLUSTER),
    "/penstock.v1.Admin/DescribeOperations": Right(Operation.DESCRIBE, ResourceType.CLUSTER),
    "/penstock.v1.Admin/DescribeNodes": Right(Operation.DESCRIBE, ResourceType.CLUSTER),
    "/penstock.v1.Admin/ExecuteOperation": Right(Operation.ALTER, ResourceType.CLUSTER),
    "/penstock.v1.Admin/CheckCluster": Right(Operation.DESCRIBE, ResourceType.CLUSTER),
    "/penstock.v1.Admin/DescribeCapacity": Right(Operation.DESCRIBE, ResourceType.CLUSTER),
    "/penstock.v1.Admin/Explain": Right(Operation.DESCRIBE, ResourceType.CLUSTER),
    "/penstock.v1.Admin/DescribeStrays": Right(Operation.DESCRIBE, ResourceType.CLUSTER),
    "/penstock.v1.Admin/DeleteStray": Right(Operation.ALTER, ResourceType.CLUSTER),
    # Names of all topics, groups and users, and with secrets what they prove themselves by.
    "/penstock.v1.Admin/ExportMetadata": Right(Operation.ALTER, ResourceType.CLUSTER),
    "/penstock.v1.Admin/RecoverTopics": Right(Operation.ALTER, ResourceType.CLUSTER),
    "/penstock.v1.Admin/DescribeQuorum": Right(Operation.DESCRIBE, ResourceType.CLUSTER),
    # Log lines name clients, topics, groups and users.
    "/penstock.v1.Admin/DescribeProcess": Right(Operation.ALTER, ResourceType.CLUSTER),
}

_caller: ContextVar[Identity | None] = ContextVar("native_caller", default=None)


def identity_of(context: Context) -> Identity:
    """Who makes the call that is handled in this task."""
    return _caller.get() or client_identity(ANONYMOUS, peer_host(context.peer()))


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets a call through to its handler once it is known who calls."""

    def __init__(
        self,
        door: CallerDoor,
        wall_ms: Callable[[], int],
        rights: Mapping[str, Right | None] = RIGHTS,
        on_call: Callable[[str, float], None] = lambda _method, _seconds: None,
        clock_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`on_call` is told of each call with one answer: its method, and how long it took in s."""
        self._on_call = on_call
        self._clock_s = clock_s
        self._door = door
        self._wall_ms = wall_ms
        self._rights = rights
        self._guarded: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The method's handler, with the question before it."""
        handler = await continuation(details)
        if handler is None:
            return None
        method = str(details.method)
        known = self._guarded.get(method)
        if known is None or known[0] is not handler:
            known = self._guarded[method] = handler, self._for(method, self._timed(method, handler))
        return known[1]

    def _for(self, method: str, handler: Handler) -> Handler:
        if method not in self._rights:
            return grpc.stream_stream_rpc_method_handler(_nobodys)
        door = self._door.settings
        if self._rights[method] is OPEN or not (door.has_sasl or door.takes_certificates):
            return handler
        # As a stream in any case: so the caller is known before its message is taken.
        return grpc.stream_stream_rpc_method_handler(
            self._guard(method, handler),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def _timed(self, method: str, handler: Handler) -> Handler:
        if handler.request_streaming or handler.response_streaming or method not in self._rights:
            return handler  # for as long as its client likes
        behaviour, on_call, clock_s = handler.unary_unary, self._on_call, self._clock_s
        name = method.rpartition("/")[2]

        async def timed(request: Any, context: Context) -> Any:
            begun_s = clock_s()
            try:
                return await behaviour(request, context)
            finally:
                on_call(name, clock_s() - begun_s)

        return grpc.unary_unary_rpc_method_handler(
            timed, handler.request_deserializer, handler.response_serializer
        )

    def _guard(self, method: str, handler: Handler) -> Callable[[Any, Context], AsyncIterator[Any]]:
        one_request, one_response = not handler.request_streaming, not handler.response_streaming
        behaviour = (
            (handler.unary_unary if one_response else handler.unary_stream)
            if one_request
            else (handler.stream_unary if one_response else handler.stream_stream)
        )
        api = method.rpartition("/")[2]
        assert one_response or inspect.isasyncgenfunction(behaviour)

        async def guarded(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            caller = await self._admit(context)
            _caller.set(self._door.asking(caller, peer_host(context.peer()), api))
            stay = _Stay()
            left_ms = None if caller.expires_at_ms is None else caller.expires_at_ms - self._wall_ms()
            with self._door.present.during(caller, stay.end, left_ms):
                said: Any = requests
                if one_request:
                    said = await stay.of(anext(requests), context)
                if one_response:
                    yield await stay.of(behaviour(said, context), context)
                    return
                responses = behaviour(said, context)
                try:
                    while True:
                        try:
                            response = await stay.of(anext(responses), context)
                        except StopAsyncIteration:
                            return
                        yield response
                finally:
                    await responses.aclose()

        return guarded

    async def _admit(self, context: Context) -> Caller:
        host = peer_host(context.peer())
        try:
            if is_resumed_after_end(context.auth_context(), self._wall_ms() / 1000):
                raise self._door.turned_away(host, RESUMED_AFTER_END)
            return await self._door.caller(_authorization(context), _certificate(context), host)
        except NotLetIn as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            raise AssertionError("abort raises") from None
        except CutOff as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise AssertionError("abort raises") from None


class _Stay:
    """Ends a call from outside, when its handler waits for something."""

    def __init__(self) -> None:
        self._reason = ""
        self._status = grpc.StatusCode.UNAUTHENTICATED
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._inside = False

    def end(self, reason: str, elsewhere: bool) -> None:
        """Now, or when the answer that is being sent is out. `elsewhere`: another gateway may serve it."""
        if self._reason:
            return
        self._reason = reason
        if elsewhere:
            self._status = grpc.StatusCode.UNAVAILABLE
        # Elsewhere gRPC itself would be cancelled, and the client would not hear why.
        if self._inside and self._task is not None:
            self._task.cancel()

    async def of(self, step: Awaitable[Any], context: Context) -> Any:
        """What comes of a step of the handler, unless the call has to end."""
        self._inside = True
        try:
            if not self._reason:
                return await step
        except asyncio.CancelledError:
            if not self._reason or self._task is None:
                raise
            self._task.uncancel()
        finally:
            self._inside = False
            if inspect.iscoroutine(step):
                step.close()
        await context.abort(self._status, self._reason)
        raise AssertionError("abort raises")


async def _nobodys(_requests: AsyncIterator[Any], context: Context) -> None:
    await context.abort(
        grpc.StatusCode.PERMISSION_DENIED, "this method has no row in the table of rights: nobody may call it"
    )


def _authorization(context: Context) -> str | None:
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    # Of two it would be anybody's guess which one counts.
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


def _certificate(context: Context) -> bytes | None:
    shown = list(context.auth_context().get("x509_pem_cert", ()))
    return ssl.PEM_cert_to_DER_cert(shown[0].decode("ascii")) if len(shown) == 1 else None
