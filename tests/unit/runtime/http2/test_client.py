"""A channel against servers of grpcio and of our own: calls of every kind, how they end, and the connection's life."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock_proto.v1 import controller_pb2 as api
from penstock_runtime.http2 import client, frames
from penstock_runtime.http2.client import SOCKET_CLOSED, Channel, ChannelLimits
from penstock_runtime.http2.server import Server
from penstock_runtime.security.role_tls import RoleContexts
from penstock_runtime.security.tls_files import TlsFiles
from support.certificates import ClusterCa
from support.loops import run
from support.waiting import eventually

__all__ = ["run"]

READY, IDLE = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE
FAILURE = grpc.ChannelConnectivity.TRANSIENT_FAILURE
CONNECTING = grpc.ChannelConnectivity.CONNECTING
SHUTDOWN = grpc.ChannelConnectivity.SHUTDOWN
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
MESSAGE_BYTES_MOST = 1 << 20
PATIENCE_S = 60


class Service:
    """What the servers here do."""

    def __init__(self) -> None:
        self.open = 0
        self.ended: list[str] = []
        self.metadata: dict[str, str] = {}

    async def reverse(self, request: bytes, context: Any) -> bytes:
        self.metadata = dict(context.invocation_metadata())
        await context.send_initial_metadata((("first", "1"),))
        context.set_trailing_metadata((("last", "2"),))
        return request[::-1]

    async def refuse(self, request: bytes, context: Any) -> bytes:
        await context.abort(
            grpc.StatusCode.UNAVAILABLE, "not I", trailing_metadata=(("penstock-active-controller", "h:1"),)
        )
        return b""

    async def count(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield str(number).encode()

    async def sum(self, requests: Any, _: Any) -> bytes:
        return str(sum([int(request) async for request in requests])).encode()

    async def echo(self, requests: Any, _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def hang(self, request: bytes, _: Any) -> bytes:
        self.open += 1
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        finally:
            self.open -= 1
        return b""

    async def drip(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            yield b"first"
            await asyncio.sleep(PATIENCE_S)
        finally:
            self.open -= 1

    async def large(self, request: bytes, _: Any) -> bytes:
        return bytes(int(request))

    def handler(self) -> Any:
        kinds: dict[str, Any] = {
            "Reverse": grpc.unary_unary_rpc_method_handler(self.reverse),
            "Refuse": grpc.unary_unary_rpc_method_handler(self.refuse),
            "Count": grpc.unary_stream_rpc_method_handler(self.count),
            "Sum": grpc.stream_unary_rpc_method_handler(self.sum),
            "Echo": grpc.stream_stream_rpc_method_handler(self.echo),
            "Hang": grpc.unary_unary_rpc_method_handler(self.hang),
            "Drip": grpc.unary_stream_rpc_method_handler(self.drip),
            "Large": grpc.unary_unary_rpc_method_handler(self.large),
        }
        return grpc.method_handlers_generic_handler("test.Test", kinds)


class Serving:
    """A server that can be stopped, and be there again at its port."""

    def __init__(self, kind: str, tls: TlsFiles | None = None, streams_max: int = 100) -> None:
        self.service = Service()
        self.port = 0
        self.streams_max = streams_max
        self.server: Any = None
        self._kind = kind
        self._tls = tls
        self._listening: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        if self._kind == "own":
            self.server = Server(message_bytes_most=1 << 26, streams_max=self.streams_max)
            self.server.add_generic_rpc_handlers((self.service.handler(),))
            self._listening = await asyncio.get_running_loop().create_server(
                self.server.protocol,
                "127.0.0.1",
                self.port,
                ssl=None if self._tls is None else self._tls.current.server,
            )
            self.port = self._listening.sockets[0].getsockname()[1]
            return
        options = (("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", self.streams_max))
        self.server = grpc.aio.server(options=options)
        self.server.add_generic_rpc_handlers((self.service.handler(),))
        if self._tls is None:
            self.port = self.server.add_insecure_port(self.address)
        else:
            of = self._tls.settings
            chain = of.key.read_bytes(), of.cert.read_bytes()
            credentials = grpc.ssl_server_credentials([chain], of.ca.read_bytes(), True)
            self.port = self.server.add_secure_port(self.address, credentials)
        await self.server.start()

    async def stop(self, grace_s: float | None = None) -> None:
        if self._listening is not None:
            self._listening.close()
        if self.server is not None:
            await self.server.stop(grace_s)
        self.server = None


@contextlib.asynccontextmanager
async def serving(kind: str, **how: Any) -> AsyncIterator[Serving]:
    server = Serving(kind, **how)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def dial(server: Serving | str, **how: Any) -> Channel:
    limits = how.pop("limits", {})
    return Channel(
        server if isinstance(server, str) else server.address,
        message_bytes_most=MESSAGE_BYTES_MOST,
        limits=ChannelLimits(**limits),
        **how,
    )


@pytest.fixture(params=["grpcio", "own"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Serving]:
    async with serving(request.param) as found:
        yield found


@pytest.fixture
async def channel(server: Serving) -> AsyncIterator[Channel]:
    async with dial(server) as found:
        yield found


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, PATIENCE_S)
    return caught.value


async def over(call: Any) -> str:
    """How it ended, of one that is cancelled or fails."""
    try:
        await call
    except asyncio.CancelledError:
        return "cancelled"
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# -- calls -----------------------------------------------------------------------------------------


async def test_calls_of_every_kind(server: Serving, channel: Channel) -> None:
    unary = channel.unary_unary("/test.Test/Reverse", bytes, bytes)
    for _ in range(2):  # the second time by the connection that is there
        call = unary(b"abc", timeout=PATIENCE_S, metadata=(("key", "value"),))
        assert await call == b"cba"
        assert await call == b"cba"
        assert (await call.code(), await call.details(), call.done()) == (grpc.StatusCode.OK, "", True)
        assert ("first", "1") in list(await call.initial_metadata())
        assert ("last", "2") in list(await call.trailing_metadata())
    assert server.service.metadata["key"] == "value"

    counted = channel.unary_stream("/test.Test/Count")
    assert [int(m) async for m in counted(b"300")] == list(range(300))
    read = counted(b"2")
    assert [await read.read() for _ in range(4)] == [b"0", b"1", EOF, EOF]

    async def numbers() -> AsyncIterator[bytes]:
        for number in range(100):
            yield str(number).encode()

    summed = channel.stream_unary("/test.Test/Sum")
    assert await summed(numbers()) == b"4950"
    assert await summed([b"1", b"2"]) == b"3"
    written = summed()
    await written.write(b"5")
    await written.done_writing()
    assert await written == b"5"

    echoed = channel.stream_stream("/test.Test/Echo")
    assert len([m async for m in echoed(numbers())]) == 100
    both = echoed()
    for size in (0, 1, 70_000, MESSAGE_BYTES_MOST):
        await both.write(bytes(size))
        assert len(await both.read()) == size
    await both.done_writing()
    with pytest.raises(asyncio.InvalidStateError, match="half closed"):
        await both.write(b"more")
    assert await both.read() is EOF
    with pytest.raises(asyncio.InvalidStateError, match="already finished"):
        await both.write(b"more")
    assert not both.cancel()


async def test_large_requests_and_responses_of_one_message(channel: Channel) -> None:
    reverse = channel.unary_unary("/test.Test/Reverse")
    for size in (60_000, 70_000, MESSAGE_BYTES_MOST):
        assert len(await reverse(bytes(size))) == size
    error = await failure(reverse(bytes(MESSAGE_BYTES_MOST + 1)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = await failure(channel.unary_unary("/test.Test/Large")(b"1048577"))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "1048577 bytes" in str(error.details())
    assert await reverse(b"ab") == b"ba"


async def test_a_refusal_brings_its_metadata(channel: Channel) -> None:
    error = await failure(channel.unary_unary("/test.Test/Refuse")(b""))
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "not I")
    trailing: Any = error.trailing_metadata()
    assert ("penstock-active-controller", "h:1") in list(trailing)
    assert "grpc-status" not in [key for key, _ in trailing]
    assert (await failure(channel.unary_unary("/test.Test/No")(b""))).code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_ends_a_call_there_too(server: Serving, channel: Channel) -> None:
    error = await failure(channel.unary_unary("/test.Test/Hang")(b"", timeout=0.2))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: not server.service.open, "the handler ends")
    dripping = channel.unary_stream("/test.Test/Drip")(b"", timeout=0.3)
    assert await dripping.read() == b"first"
    assert (await failure(dripping.read())).code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_whose_task_is_cancelled_ends_the_call(server: Serving, channel: Channel) -> None:
    service = server.service
    for begin in (
        lambda: channel.unary_unary("/test.Test/Hang")(b""),
        lambda: channel.stream_stream("/test.Test/Echo")(),
    ):
        call: Any = begin()
        waiting = asyncio.ensure_future(call.read() if hasattr(call, "read") else over(call))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert call.cancelled()
        assert await call.code() is grpc.StatusCode.CANCELLED
    await eventually(lambda: not service.open, "the handler ends")
    assert service.ended == ["cancelled"]


async def test_a_call_that_is_cancelled_tells_who_waits(channel: Channel) -> None:
    call = channel.unary_unary("/test.Test/Hang")(b"")
    waiting = asyncio.create_task(over(call))
    await asyncio.sleep(0.05)
    assert call.cancel()
    assert not call.cancel()
    assert await waiting == "cancelled"
    early = channel.stream_stream("/test.Test/Echo")()
    early.cancel()
    assert await over(early.write(b"1")) == "cancelled"
    assert await over(early.read()) == "cancelled"


async def test_who_lets_go_of_a_stream_ends_it(server: Serving, channel: Channel) -> None:
    async for message in channel.unary_stream("/test.Test/Drip")(b""):
        assert message == b"first"
        break
    gc.collect()
    await eventually(lambda: not server.service.open, "the handler ends")
    hanging = asyncio.create_task(over(channel.unary_unary("/test.Test/Hang")(b"")))
    await eventually(lambda: server.service.open, "it is called")
    gc.collect()
    await asyncio.sleep(0.05)
    assert server.service.open == 1
    hanging.cancel()
    await asyncio.wait([hanging])


async def test_requests_that_cannot_be_made_end_the_call(channel: Channel) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"1"
        raise ValueError("no more of them")

    error = await failure(channel.stream_unary("/test.Test/Sum")(broken()))
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert "no more of them" in str(error.details())


async def test_a_single_request_goes_in_one_piece(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    reverse = channel.unary_unary("/test.Test/Reverse")
    await reverse(b"abc")
    line = channel._line
    assert line is not None
    pieces: list[bytes] = []
    written = line._transport.writelines

    def write(buffers: list[bytes]) -> None:
        pieces.append(b"".join(buffers))
        written(buffers)

    monkeypatch.setattr(
        line,
        "_transport",
        Spy(line._transport, write),
    )
    before = len(asyncio.all_tasks())
    call = reverse(b"abc")
    assert len(asyncio.all_tasks()) == before
    (piece,) = pieces
    assert piece.endswith(frames.frame(frames.DATA, frames.END_STREAM, 3))
    assert await call == b"cba"
    assert len(pieces) == 1


class Spy:
    """A transport whose writes are seen."""

    def __init__(self, transport: Any, writelines: Callable[..., Any]) -> None:
        self._transport = transport
        self.writelines = writelines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_generated_stubs_take_it(server: Serving, channel: Channel) -> None:
    from penstock_proto.v1 import controller_pb2_grpc

    stub: Any = controller_pb2_grpc.ControllerStub(channel)
    error = await failure(stub.DescribeQuorum(api.DescribeQuorumRequest(), timeout=PATIENCE_S))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_end_without_a_response_is_none() -> None:
    """What a server says in the place of one that forgets to answer."""

    def answer(transport: Any, number: int) -> None:
        import hpack

        head = hpack.Encoder().encode(
            [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0")], huffman=False
        )
        flags = frames.END_HEADERS | frames.END_STREAM
        transport.write(frames.frame(frames.HEADERS, flags, number, head))

    async with Fake(answer) as fake, dial(fake.address) as channel:
        error = await failure(channel.unary_unary("/test.Test/Any")(b""))
        assert error.code() is grpc.StatusCode.INTERNAL


class Fake:
    """A server that says its settings, and of each call what it is told to."""

    def __init__(
        self,
        on_call: Callable[[Any, int], None] = lambda transport, number: None,
        settings: dict[int, int] | None = None,
    ) -> None:
        self._on_call = on_call
        self._settings = settings or {}
        self.address = ""
        self.calls: list[int] = []
        self.transports: list[asyncio.StreamWriter] = []
        self.pings = 0
        self.is_deaf = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.transports.append(writer)
        writer.write(frames.settings(self._settings))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(len(frames.PREFACE))
            while True:
                header = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
                kind, flags, number = header[3], header[4], frames.u32(header, 5)
                if self.is_deaf:
                    continue
                if kind == frames.PING and not flags & frames.ACK:
                    self.pings += 1
                    writer.write(frames.frame(frames.PING, frames.ACK, 0, payload))
                elif kind == frames.HEADERS:
                    self.calls.append(number)
                    self._on_call(writer, number)

    async def __aenter__(self) -> Fake:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for transport in self.transports:
            transport.close()


# -- the connection --------------------------------------------------------------------------------


async def test_a_channel_that_is_closed_cancels_its_calls(server: Serving) -> None:
    channel = dial(server)
    echo = channel.stream_stream("/test.Test/Echo")()
    await echo.write(b"1")
    assert await echo.read() == b"1"
    waiting = [
        asyncio.create_task(over(echo.read())),
        asyncio.create_task(over(channel.unary_unary("/test.Test/Hang")(b""))),
    ]
    watching = asyncio.create_task(channel.wait_for_state_change(READY))
    await asyncio.sleep(0.05)
    await channel.close()
    assert [await each for each in waiting] == ["cancelled", "cancelled"]
    assert channel.get_state() is SHUTDOWN
    with pytest.raises(grpc.aio.UsageError):
        await watching
    with pytest.raises(grpc.aio.UsageError):
        await channel.wait_for_state_change(SHUTDOWN)
    with pytest.raises(grpc.aio.UsageError):
        channel.unary_unary("/test.Test/Hang")(b"")
    await channel.close()
    await eventually(lambda: not server.service.open, "the handlers end")


async def test_a_channel_that_is_closed_while_it_connects() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        channel = dial("{}:{}".format(*silent.getsockname()))
        call = asyncio.create_task(over(channel.unary_unary("/a/b")(b"")))
        await asyncio.sleep(0.05)
        assert channel.get_state() is CONNECTING
        await channel.close()
        assert await call == "cancelled"


async def test_a_server_that_dies_and_is_back(server: Serving, channel: Channel) -> None:
    reverse, echo = channel.unary_unary("/test.Test/Reverse"), channel.stream_stream("/test.Test/Echo")
    open_one = echo()
    await open_one.write(b"1")
    assert await open_one.read() == b"1"
    await server.stop()
    code = (await failure(open_one.read())).code()
    assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    await eventually(lambda: channel.get_state() is not READY, "it is known")
    error = await failure(reverse(b"ab"))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == f"{server.address}: Connection refused"
    waits = asyncio.create_task(over(reverse(b"ab", wait_for_ready=True)))
    await asyncio.sleep(0.2)
    await server.start()
    assert await waits == "OK"
    assert await reverse(b"ab") == b"ba"


async def test_during_the_backoff_calls_fail_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with dial(address, limits={"backoff_first_s": 0.3, "backoff_most_s": 0.3}) as channel:
        reverse = channel.unary_unary("/test.Test/Reverse")
        assert channel.get_state() is IDLE
        call = reverse(b"")
        assert channel.get_state() is CONNECTING
        assert not call.done()
        assert (await failure(call)).details() == f"{address}: Connection refused"
        assert channel.get_state() is FAILURE
        call = reverse(b"")
        assert call.done()
        assert (await failure(call)).details() == f"{address}: Connection refused"
        # That call wants it: the channel tries again by itself.
        await channel.wait_for_state_change(FAILURE)
        assert channel.get_state() is CONNECTING
        await channel.wait_for_state_change(CONNECTING)
        # Now nobody does.
        await channel.wait_for_state_change(FAILURE)
        assert channel.get_state() is IDLE
        await asyncio.sleep(0.1)
        assert channel.get_state() is IDLE
        assert channel.get_state(try_to_connect=True) is CONNECTING
        await channel.wait_for_state_change(CONNECTING)
        assert channel.get_state(try_to_connect=True) is FAILURE
        await channel.wait_for_state_change(FAILURE)
        assert channel.get_state() is CONNECTING


async def test_who_takes_a_connection_and_says_nothing_is_not_there() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = "{}:{}".format(*silent.getsockname())
        async with dial(address, limits={"connect_s": 0.1}) as channel:
            error = await failure(channel.unary_unary("/a/b")(b""))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert error.details() == f"{address}: no connection in time"


async def test_who_closes_at_once_or_speaks_something_else_is_named() -> None:
    said = b""

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        async with dial(address) as channel:
            error = await failure(channel.unary_unary("/a/b")(b""))
            assert error.details() == f"{address}: {SOCKET_CLOSED}"
        said = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        async with dial(address) as channel:
            error = await failure(channel.unary_unary("/a/b")(b""))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert address in str(error.details())


async def test_every_address_of_a_name_is_tried(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(0, 0, 0, "", (host, server.port)) for host in ("127.0.0.9", "127.0.0.1")]

    async with dial(f"somewhere.test:{server.port}") as channel:
        monkeypatch.setattr(channel.loop, "getaddrinfo", resolve)
        assert await channel.unary_unary("/test.Test/Reverse")(b"ab") == b"ba"
    monkeypatch.undo()
    async with dial("no.such.host.invalid:1") as channel:
        error = await failure(channel.unary_unary("/a/b")(b""))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert str(error.details()).startswith("no.such.host.invalid:1: ")


@pytest.mark.parametrize("kind", ["grpcio", "own"])
async def test_calls_beyond_what_the_server_takes_wait_in_line(kind: str) -> None:
    async with serving(kind, streams_max=3) as server, dial(server) as channel:
        await channel.channel_ready()
        hanging = [channel.unary_unary("/test.Test/Hang")(b"") for _ in range(3)]
        await eventually(lambda: server.service.open == 3, "they are open")
        order: list[int] = []

        async def one(number: int) -> None:
            assert await channel.unary_unary("/test.Test/Reverse")(b"ab", timeout=PATIENCE_S) == b"ba"
            order.append(number)

        more = [asyncio.create_task(one(number)) for number in range(20)]
        late = asyncio.create_task(over(channel.unary_unary("/test.Test/Hang")(b"", timeout=0.1)))
        given_up = asyncio.create_task(over(channel.unary_unary("/test.Test/Hang")(b"")))
        await asyncio.sleep(0.05)
        given_up.cancel()
        assert await late == "DEADLINE_EXCEEDED"
        assert not order
        hanging[0].cancel()
        await asyncio.gather(*more)
        assert order == list(range(20))
        assert channel.get_state() is READY
        assert not channel._waiting
        for call in hanging:
            call.cancel()


async def test_calls_in_line_go_by_the_next_connection(server: Serving) -> None:
    async with (
        Fake(settings={frames.SETTING_MAX_CONCURRENT_STREAMS: 1}) as fake,
        dial(fake.address) as channel,
    ):
        first = asyncio.create_task(over(channel.unary_unary("/a/b")(b"")))
        second = asyncio.create_task(over(channel.unary_unary("/a/b")(b"", timeout=PATIENCE_S)))
        await eventually(lambda: fake.calls == [1], "the first is called")
        fake.transports[0].close()
        assert await first == "UNAVAILABLE"
        await eventually(lambda: fake.calls == [1, 1], "the second is called")
        assert not second.done()
        second.cancel()
        await asyncio.wait([second])


async def test_an_idle_connection_ends_and_comes_back(server: Serving) -> None:
    async with dial(server, limits={"idle_s": 0.3}) as channel:
        reverse = channel.unary_unary("/test.Test/Reverse")
        echo = channel.stream_stream("/test.Test/Echo")()
        await echo.write(b"1")
        assert await echo.read() == b"1"
        await asyncio.sleep(0.6)
        assert channel.get_state() is READY
        await echo.done_writing()
        assert await echo.read() is EOF
        await asyncio.wait_for(channel.wait_for_state_change(READY), PATIENCE_S)
        assert channel.get_state() is IDLE
        await eventually(lambda: not channel._lines, "it is closed")
        assert await reverse(b"ab") == b"ba"
        # Nobody calls after it is connected.
        await asyncio.wait_for(channel.wait_for_state_change(READY), PATIENCE_S)
        channel.get_state(try_to_connect=True)
        await channel.wait_for_state_change(CONNECTING)
        assert channel.get_state() is READY
        await asyncio.wait_for(channel.wait_for_state_change(READY), PATIENCE_S)


async def test_who_goes_away_ends_what_it_has_begun(server: Serving) -> None:
    async with dial(server) as channel:
        echo = channel.stream_stream("/test.Test/Echo")()
        await echo.write(b"1")
        assert await echo.read() == b"1"
        stopping = asyncio.create_task(server.stop(PATIENCE_S))
        await asyncio.wait_for(channel.wait_for_state_change(READY), PATIENCE_S)
        assert channel.get_state() is IDLE
        await echo.write(b"2")
        assert await echo.read() == b"2"
        await echo.done_writing()
        assert await echo.read() is EOF
        await asyncio.wait_for(stopping, PATIENCE_S)
        await eventually(lambda: not channel._lines, "the connection is closed")


async def test_calls_that_who_goes_away_has_not_seen_fail() -> None:
    def refuse(transport: Any, number: int) -> None:
        if number == 1:
            return
        if number == 3:
            transport.write(frames.rst_stream(number, frames.REFUSED_STREAM))
            return
        transport.write(frames.goaway(1, frames.NO_ERROR, b"enough"))

    async with Fake(refuse) as fake, dial(fake.address) as channel:
        begin = channel.unary_unary("/a/b")
        first = begin(b"")
        assert (await failure(begin(b""))).code() is grpc.StatusCode.UNAVAILABLE
        error = await failure(begin(b""))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "enough" in str(error.details())
        assert not first.done()
        other = asyncio.create_task(over(begin(b"")))
        await eventually(lambda: fake.calls == [1, 3, 5, 1], "the next goes by another connection")
        assert not first.done()
        first.cancel()
        await eventually(lambda: len(channel._lines) == 1, "the old connection is closed")
        other.cancel()


async def test_who_answers_no_ping_is_gone() -> None:
    limits = {"ping_every_s": 0.1, "ping_answer_s": 0.1}
    async with Fake() as fake, dial(fake.address, limits=limits) as channel:
        call = asyncio.create_task(over(channel.unary_unary("/a/b")(b"")))
        await eventually(lambda: fake.pings > 3, "it is pinged")
        assert not call.done()
        fake.is_deaf = True
        assert await asyncio.wait_for(call, PATIENCE_S) == "UNAVAILABLE"
        pings = fake.pings
        await channel.channel_ready()
        await asyncio.sleep(0.3)
        assert fake.pings == pings  # no call, no ping


async def test_a_process_that_slept_reads_before_it_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side's answer lies there; libuv looks at its clock first."""
    monkeypatch.setattr(client, "_SECOND_LOOK_S", 0.2)
    limits = {"ping_every_s": 0.1, "ping_answer_s": 0.1}
    async with Fake() as fake, dial(fake.address, limits=limits) as channel:
        call = channel.unary_unary("/a/b")(b"")
        await eventually(lambda: fake.pings, "it is pinged")
        line = channel._line
        assert line is not None
        line._judge(line.received_bytes)
        await eventually(lambda: fake.pings > 5, "it goes on")
        assert not call.done()
        call.cancel()


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ca() -> ClusterCa:
    return ClusterCa()


@pytest.mark.parametrize("kind", ["grpcio", "own"])
async def test_over_tls_the_other_side_is_looked_at(kind: str, tmp_path: Path, ca: ClusterCa) -> None:
    there = ca.files(tmp_path / "s", "controller", "1")
    here = ca.files(tmp_path / "c", "gateway", "g").current
    seen: list[Any] = []
    fault = ""

    def check(made: ssl.SSLObject) -> str:
        certificate: Any = made.getpeercert()
        seen.append(
            ("URI", f"spiffe://{there.current.identity.trust_domain}/controller/1")
            in certificate["subjectAltName"]
        )
        return fault

    async with serving(kind, tls=there) as server:
        async with dial(server, tls=lambda: here.client, check=check) as channel:
            assert await channel.unary_unary("/test.Test/Reverse")(b"ab") == b"ba"
            assert len(await channel.unary_unary("/test.Test/Reverse")(bytes(500_000))) == 500_000
        fault = "it is nobody we know"
        async with dial(server, tls=lambda: here.client, check=check) as channel:
            error = await failure(channel.unary_unary("/test.Test/Reverse")(b"ab"))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert error.details() == f"{server.address}: it is nobody we know"
            assert channel.get_state() is FAILURE
            assert not channel._lines or all(line.gone.done() for line in channel._lines)
    assert seen == [True, True]


@pytest.mark.parametrize("kind", ["grpcio", "own"])
async def test_over_tls_what_went_wrong_is_told(kind: str, tmp_path: Path, ca: ClusterCa) -> None:
    there = ca.files(tmp_path / "s", "controller", "1")
    here = ca.files(tmp_path / "c", "gateway", "g").current
    stranger = ClusterCa().files(tmp_path / "o", "gateway", "g").current

    async def told(server: Serving, tls: RoleContexts | None) -> str:
        async with dial(server, tls=None if tls is None else lambda: tls.client) as channel:
            error = await failure(channel.unary_unary("/test.Test/Reverse")(b"ab"))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert channel.get_state() is FAILURE
            return str(error.details()).removeprefix(f"{server.address}: ")

    async with serving(kind, tls=there) as server:
        assert (await told(server, stranger)).startswith("its certificate is refused (")
        assert await told(server, None) == SOCKET_CLOSED
        # TLS 1.3: who is refused hears of it after the handshake.
        refused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        refused.check_hostname = False
        refused.load_verify_locations(cafile=there.settings.ca)
        refused.set_alpn_protocols(["h2"])
        no_certificate = await told(server, here._replace(client=refused))
        assert no_certificate == SOCKET_CLOSED or "certificate" in no_certificate
    async with serving(kind) as server:
        assert await told(server, here) in ("the TLS handshake fails (wrong version number)", SOCKET_CLOSED)


# -- the other event loop --------------------------------------------------------------------------


def test_on_both_kinds_of_event_loop(run: Any, tmp_path: Path, ca: ClusterCa) -> None:
    there = ca.files(tmp_path / "s", "controller", "1")
    here = ca.files(tmp_path / "c", "gateway", "g").current

    async def main() -> None:
        for tls in (None, there):
            async with serving("own", tls=tls) as server:
                context = None if tls is None else lambda: here.client
                async with dial(server, tls=context, limits={"idle_s": 0.2}) as channel:
                    reverse = channel.unary_unary("/test.Test/Reverse")
                    assert await reverse(b"ab") == b"ba"
                    await asyncio.wait_for(channel.wait_for_state_change(READY), PATIENCE_S)
                    await asyncio.gather(*(reverse(bytes(100_000)) for _ in range(50)))
                    hanging = asyncio.create_task(over(channel.unary_unary("/test.Test/Hang")(b"")))
                    await eventually(lambda: server.service.open, "it is called")
                    begun_s = time.monotonic()
                    await channel.close()
                    assert time.monotonic() - begun_s < PATIENCE_S / 2
                    assert await hanging == "cancelled"
                refused = dial(f"127.0.0.1:{free_port()}", tls=context)
                error = await failure(refused.unary_unary("/a/b")(b""))
                assert "Connection refused" in str(error.details())
                await refused.close()

    run(main())
