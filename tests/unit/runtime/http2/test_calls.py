"""Calls by this package and by grpcio, each as client and as server of the other: they understand each other."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock_runtime.http2.client import Channel
from penstock_runtime.http2.server import Server
from penstock_runtime.http2.wire import WRITE_HIGH_BYTES
from support.waiting import eventually

MESSAGE_BYTES_MOST = 64 * 1024 * 1024
SIZES = (0, 1, 100, 16_379, 16_384, 65_535, 65_536, 100_000, 1 << 20, (5 << 20) + 3, 20 << 20)
OF_GRPCIO = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Its window would grow with the bandwidth that it measures, up to tens of megabytes on a quick machine.
    ("grpc.http2.bdp_probe", 0),
)
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


async def echo(_: Any, context: Any) -> None:
    while (message := await context.read()) is not EOF:
        await context.write(message)


async def refuse(_: Any, context: Any) -> None:
    await context.read()
    await context.abort(grpc.StatusCode.NOT_FOUND, "käse 100%\nno")


async def hang(_: Any, context: Any) -> None:
    await context.read()
    await asyncio.sleep(60)


async def pour(request: bytes, _: Any) -> AsyncIterator[bytes]:
    for _ in range(int(request)):
        yield b"x" * 1_000_000


async def reverse(request: bytes, context: Any) -> bytes:
    if request == b"fail":
        raise ValueError("no reason")
    left = context.time_remaining()
    return (
        request[::-1] if left is None else f"{left:.0e} {dict(context.invocation_metadata())['key']}".encode()
    )


async def count(messages: Any, _: Any) -> bytes:
    return str(sum([len(message) async for message in messages])).encode()


HANDLERS = {
    "Echo": grpc.stream_stream_rpc_method_handler(echo),
    "Refuse": grpc.stream_stream_rpc_method_handler(refuse),
    "Hang": grpc.stream_stream_rpc_method_handler(hang),
    "Pour": grpc.unary_stream_rpc_method_handler(pour),
    "Reverse": grpc.unary_unary_rpc_method_handler(reverse),
    "Count": grpc.stream_unary_rpc_method_handler(count),
}


@contextlib.asynccontextmanager
async def served(kind: str) -> AsyncIterator[tuple[str, Any]]:
    handlers = (grpc.method_handlers_generic_handler("test.Test", HANDLERS),)
    if kind == "grpcio":
        other = grpc.aio.server(options=OF_GRPCIO)
        port = other.add_insecure_port("127.0.0.1:0")
        other.add_generic_rpc_handlers(handlers)
        await other.start()
        yield f"127.0.0.1:{port}", other
        await other.stop(None)
        return
    server = Server(message_bytes_most=MESSAGE_BYTES_MOST)
    server.add_generic_rpc_handlers(handlers)
    listening = await asyncio.get_running_loop().create_server(server.protocol, "127.0.0.1", 0)
    yield "{}:{}".format(*listening.sockets[0].getsockname()), server
    listening.close()
    await server.stop(None)
    assert not server.peers


@contextlib.asynccontextmanager
async def dialled(kind: str, address: str) -> AsyncIterator[Any]:
    if kind == "grpcio":
        channel: Any = grpc.aio.insecure_channel(address, options=OF_GRPCIO)
    else:
        channel = Channel(address, message_bytes_most=MESSAGE_BYTES_MOST)
    yield channel
    await channel.close(None)


@pytest.fixture(params=["own to own", "own to grpcio", "grpcio to own"])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, Any]]:
    client, _, server = request.param.partition(" to ")
    async with served(server) as (address, serving), dialled(client, address) as channel:
        yield channel, serving


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await call.write(b"1")
        message = await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError(f"it was answered {message!r}")


async def test_messages_of_every_size_come_back(both: tuple[Any, Any]) -> None:
    call = both[0].stream_stream("/test.Test/Echo")()
    for size in SIZES:
        message = os.urandom(size)
        await call.write(message)
        assert await call.read() == message, size
    await call.done_writing()
    assert await call.read() is EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_calls_beside_each_other_do_not_mix(both: tuple[Any, Any]) -> None:
    async def one(number: int) -> None:
        call = both[0].stream_stream("/test.Test/Echo")()
        for turn in range(20):
            message = bytes([number]) * (number * 3_000 + turn)
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        assert await call.read() is EOF

    await asyncio.gather(*(one(number) for number in range(60)))


async def test_how_a_call_ended_is_told(both: tuple[Any, Any]) -> None:
    channel = both[0]
    refused = await failure(channel.stream_stream("/test.Test/Refuse")())
    assert refused == (grpc.StatusCode.NOT_FOUND, "käse 100%\nno")
    code, _ = await failure(channel.stream_stream("/test.Test/Nothing")())
    assert code is grpc.StatusCode.UNIMPLEMENTED
    code, _ = await failure(channel.stream_stream("/test.Test/Hang")(timeout=0.2))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_call_that_its_client_gives_up_ends_its_handler(both: tuple[Any, Any]) -> None:
    channel, serving = both
    call = channel.stream_stream("/test.Test/Hang")()
    await call.write(b"1")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.read()
    if isinstance(serving, Server):
        await eventually(lambda: not any(peer.calls for peer in serving.peers.values()), "its handler ends")


async def test_who_does_not_read_is_sent_no_more_than_its_window(both: tuple[Any, Any]) -> None:
    """The sender waits, others go on, and all is there once it is read."""
    channel = both[0]
    call = channel.stream_stream("/test.Test/Echo")()
    sent = 0

    async def send() -> None:
        nonlocal sent
        for _ in range(60):
            await call.write(b"x" * 1_000_000)
            sent += 1
        await call.done_writing()

    sending = asyncio.create_task(send())
    other = channel.stream_stream("/test.Test/Echo")()
    for _ in range(50):
        await other.write(b"there")
        assert await other.read() == b"there"
    assert sent * 1_000_000 < 50_000_000 + 2 * WRITE_HIGH_BYTES
    received = 0
    while (message := await call.read()) is not EOF:
        received += len(message)
    await sending
    assert received == 60_000_000


async def test_methods_of_every_kind_answer_grpcio() -> None:
    async with served("own") as (address, _), dialled("grpcio", address) as channel:
        unary = channel.unary_unary("/test.Test/Reverse")
        assert await unary(b"abc") == b"cba"
        assert await unary(b"", timeout=100, metadata=(("key", "value"),)) == b"1e+02 value"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(b"fail")
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        poured = [len(message) async for message in channel.unary_stream("/test.Test/Pour")(b"9")]
        assert poured == [1_000_000] * 9

        async def messages() -> AsyncIterator[bytes]:
            for size in range(100):
                yield b"x" * size

        assert await channel.stream_unary("/test.Test/Count")(messages()) == b"4950"


async def test_a_channel_connects_again_when_its_server_is_back() -> None:
    async with served("own") as (address, server):
        channel = Channel(address, message_bytes_most=MESSAGE_BYTES_MOST)
        call = channel.stream_stream("/test.Test/Hang")()
        await call.write(b"1")
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        for wire in list(server.peers):
            wire.abort("as if it had died")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        again = channel.stream_stream("/test.Test/Echo")()
        await again.write(b"2")
        assert await again.read() == b"2"
        await channel.close()


async def test_nobody_there_is_told_at_once() -> None:
    async with served("own") as (address, _):
        pass
    async with dialled("own", address) as channel:
        code, details = await failure(channel.stream_stream("/test.Test/Echo")())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert address in details
        assert channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
