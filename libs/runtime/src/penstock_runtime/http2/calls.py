"""Calls of a channel, with as much of the face of grpc.aio's as callers see.

A call is two objects: its exchange, which the connection knows, and the `Call` that its caller holds. Who lets go of an
unfinished stream of responses ends it so, as with grpc.aio.

A call that failed raises AioRpcError; one that this side cancelled (it is told to end, whoever waits for it is
cancelled, its channel is closed) raises CancelledError: see `grpc_tools.was_cut_off`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Callable, Generator, Iterable
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio

from penstock_runtime.http2.exchange import Carrier, Exchange, metadata_of
from penstock_runtime.http2.inbound import Buffer
from penstock_runtime.http2.status import CONTENT_TYPE

Metadata = Iterable[tuple[str, str]]
Serializer = Callable[[Any], Buffer]
Deserializer = Callable[[bytes], Any]

EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]
_FINISHED: Final = "RPC already finished."
_HALF_CLOSED: Final = 'RPC is half closed after calling "done_writing".'


class Call:
    """What every kind of call has."""

    __slots__ = ("_deserializer", "_exchange", "_serializer")

    def __init__(
        self, exchange: Exchange, serializer: Serializer | None, deserializer: Deserializer | None
    ) -> None:
        self._exchange = exchange
        self._serializer = serializer
        self._deserializer = deserializer

    async def write(self, message: Any) -> None:
        """Send a message; returns when it is on its way. Raises InvalidStateError when the call has ended well, or
        `done_writing` was called."""
        exchange = self._exchange
        try:
            while exchange.stream is None and exchange.status is None:
                await exchange.until_writable()
            stream, line = exchange.stream, exchange.line
            if exchange.status is not None or stream is None or line is None:
                exchange.raise_if_failed()
                raise asyncio.InvalidStateError(_FINISHED)
            if exchange.ends:
                raise asyncio.InvalidStateError(_HALF_CLOSED)
            data: Buffer = message if self._serializer is None else self._serializer(message)
            if not exchange.is_sendable(data):
                exchange.raise_if_failed()
            if not stream.connection.send(stream, data):
                while stream.unsent and exchange.status is None:
                    await exchange.until_writable()
                exchange.raise_if_failed()
            room = line.room
            if room is not None:
                await asyncio.shield(room)
        except asyncio.CancelledError:
            exchange.cancel()
            raise

    async def done_writing(self) -> None:
        """Say that no more comes."""
        self._exchange.half_close()

    def send_all(self, messages: Iterable[Any] | AsyncIterable[Any]) -> None:
        """Write them beside what else the caller does."""
        loop = asyncio.get_running_loop()
        self._exchange.sending = loop.create_task(self._send_all(messages), name="requests of a call")

    async def _send_all(self, messages: Iterable[Any] | AsyncIterable[Any]) -> None:
        try:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                if isinstance(messages, AsyncIterable):
                    async for message in messages:
                        await self.write(message)
                else:
                    for message in messages:
                        await self.write(message)
                await self.done_writing()
        except Exception as error:
            self._exchange.end(grpc.StatusCode.UNKNOWN, f"the requests ended with {error!r}")

    def cancel(self) -> bool:
        """End the call, if it goes on."""
        return self._exchange.cancel()

    def cancelled(self) -> bool:
        """Whether it ended as cancelled, by either side."""
        status = self._exchange.status
        return status is not None and status[0] is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Whether it is over."""
        return self._exchange.status is not None

    async def code(self) -> grpc.StatusCode:
        """How it ended."""
        return (await self._exchange.until_over())[0]

    async def details(self) -> str:
        """With what words."""
        return (await self._exchange.until_over())[1]

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """What the other side said before its responses."""
        exchange = self._exchange
        while exchange.first is None and exchange.status is None:
            await exchange.until_news()
        return metadata_of(exchange.first or ())

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """What it said at the end."""
        await self._exchange.until_over()
        return metadata_of(self._exchange.last)

    def _decoded(self, message: Buffer) -> Any:
        if self._deserializer is None:
            return message
        return self._deserializer(message if isinstance(message, bytes) else bytes(message))


C = TypeVar("C", bound=Call)


class OneResponse(Call):
    """A call that is awaited."""

    __slots__ = ("_response",)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._received().__await__()

    async def _received(self) -> Any:
        exchange = self._exchange
        try:
            while exchange.status is None:
                await exchange.until_news()
        except asyncio.CancelledError:
            exchange.cancel()
            raise
        exchange.raise_if_failed()
        message = exchange.take()
        if message is not None:
            self._response = self._decoded(message)
        return self._response


class Responses(Call):
    """A call whose responses are read one by one."""

    __slots__ = ()

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""
        exchange = self._exchange
        while (message := exchange.take()) is None:
            if exchange.status is not None:
                exchange.raise_if_failed()
                return EOF
            try:
                await exchange.until_news()
            except asyncio.CancelledError:
                exchange.cancel()
                raise
        return self._decoded(message)

    def __aiter__(self) -> Responses:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is EOF:
            raise StopAsyncIteration
        return message

    def __del__(self) -> None:
        exchange = self._exchange
        if exchange.status is None:
            # The collector comes by in any thread, and when the loop is closed.
            with contextlib.suppress(RuntimeError):
                exchange.loop.call_soon_threadsafe(exchange.drop)


class Method(Generic[C]):
    """Makes calls of one method (grpc.aio's multicallables)."""

    __slots__ = ("_channel", "_deserializer", "_head", "_kind", "_serializer")

    def __init__(
        self,
        kind: type[C],
        channel: Carrier,
        path: str,
        serializer: Serializer | None,
        deserializer: Deserializer | None,
    ) -> None:
        """`kind`: by how many responses there are."""
        self._kind = kind
        self._channel = channel
        self._serializer = serializer
        self._deserializer = deserializer
        self._head = (
            (":method", "POST"),
            (":scheme", channel.scheme),
            (":path", path),
            (":authority", channel.authority),
            ("te", "trailers"),
            ("content-type", CONTENT_TYPE),
        )

    def _begin(
        self, request: Buffer | None, timeout_s: float | None, metadata: Metadata | None, waits: bool | None
    ) -> C:
        head = self._head if metadata is None else (*self._head, *metadata)
        wants_one = self._kind is OneResponse
        exchange = Exchange(self._channel, head, request, timeout_s, wants_one=wants_one, waits=bool(waits))
        if request is None or exchange.is_sendable(request):
            self._channel.carry(exchange)
        return self._kind(exchange, self._serializer, self._deserializer)


class OneRequest(Method[C]):
    """With a request that is there."""

    __slots__ = ()

    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        wait_for_ready: bool | None = None,
    ) -> C:
        data: Buffer = request if self._serializer is None else self._serializer(request)
        return self._begin(data, timeout, metadata, wait_for_ready)


class ManyRequests(Method[C]):
    """With requests that are written, or come of an iterator."""

    __slots__ = ()

    def __call__(
        self,
        request_iterator: Iterable[Any] | AsyncIterable[Any] | None = None,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        wait_for_ready: bool | None = None,
    ) -> C:
        call = self._begin(None, timeout, metadata, wait_for_ready)
        if request_iterator is not None:
            call.send_all(request_iterator)
        return call


__all__ = ["Call", "ManyRequests", "Metadata", "OneRequest", "OneResponse", "Responses"]
