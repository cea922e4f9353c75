"""How many calls may be open at a gRPC port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock_core.security.identity import PeerIdentity
from penstock_runtime.grpc_bounds import STREAMS_MAX, GrpcBounds
from penstock_runtime.grpc_calls import OpenCalls, PeerKey, kernel_key, peer_key
from penstock_runtime.security.callers import set_caller

STREAM, ANSWER, AUTHENTICATE = (
    "/penstock.v1.Gateway/Produce",
    "/x.Y/Answer",
    "/penstock.v1.Gateway/Authenticate",
)


class AsOurs(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """What the guard does who knows the caller by a certificate."""

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if ("ours", "yes") not in details.invocation_metadata:
            return handler

        async def behaviour(requests: Any, context: Any) -> AsyncIterator[bytes]:
            set_caller(PeerIdentity("t", "gateway", "g"))
            async for response in handler.stream_stream(requests, context):
                yield response

        return grpc.stream_stream_rpc_method_handler(behaviour)


async def echo(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def answer(request: bytes, context: Any) -> bytes:
    if request == b"fail":
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
    return request


class Server:
    """One with these bounds, and channels to it."""

    def __init__(self, bounds: GrpcBounds) -> None:
        self.calls = OpenCalls(bounds)
        self.server = grpc.aio.server(interceptors=[AsOurs(), self.calls])
        stream = grpc.stream_stream_rpc_method_handler(echo)
        gateway = {"Produce": stream, "Authenticate": stream}
        other = {"Answer": grpc.unary_unary_rpc_method_handler(answer)}
        self.server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("penstock.v1.Gateway", gateway),
                grpc.method_handlers_generic_handler("x.Y", other),
            )
        )

    async def __aenter__(self) -> Server:
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        self.channel: Any = grpc.aio.insecure_channel(self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close(None)
        await self.server.stop(None)

    async def begun(self, method: str = STREAM, **metadata: str) -> Any:
        """A stream that was served once."""
        call = self.channel.stream_stream(method)(metadata=tuple(metadata.items()))
        await call.write(b"1")
        assert await call.read() == b"1"
        return call

    async def refusal(self) -> str:
        call = self.channel.stream_stream(STREAM)()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return str(error.value.details())


async def done(call: Any) -> None:
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]


async def test_an_address_has_so_many_calls_and_the_next_one_hears_of_the_bound() -> None:
    async with Server(GrpcBounds(calls_per_address_max=2)) as server:
        first, second = await server.begun(), await server.begun()
        refusal = await server.refusal()
        assert "2 calls of 127.0.0.1 are open" in refusal
        assert "grpc_calls_per_address_max = 2" in refusal
        with pytest.raises(grpc.aio.AioRpcError, match="grpc_calls_per_address_max"):
            await server.channel.unary_unary(ANSWER)(b"1")
        await done(first)
        third = await server.begun()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second.read()
        await done(third)
        # However a call ends, it is counted no more.
        for _ in range(5):
            assert await server.channel.unary_unary(ANSWER)(b"1") == b"1"
            with pytest.raises(grpc.aio.AioRpcError, match="no such thing"):
                await server.channel.unary_unary(ANSWER)(b"fail")
        assert (server.calls.open, server.calls.by_address) == (0, {})
        (peer,) = server.calls.peers.values()
        assert (peer.open_calls, peer.is_ours, peer.key.host) == (0, False, "127.0.0.1")


async def test_a_64_has_four_times_the_calls_of_one_of_its_addresses() -> None:
    calls = OpenCalls(GrpcBounds(calls_per_address_max=2))

    def come(host: str) -> str:
        if not (refusal := calls._refusal(host)):
            calls._counts(host, 1)
        return refusal

    hosts = [f"2001:db8::{n}" for n in range(1, 5)]
    for host in (*hosts, *hosts):
        assert not come(host)
    assert "2 calls of 2001:db8::1 are open" in come("2001:db8::1")
    assert "8 calls of 2001:db8::/64 are open" in come("2001:db8::9")
    assert not come("2001:db8:0:1::1")
    for host in (*hosts, *hosts, "2001:db8:0:1::1"):
        calls._counts(host, -1)
    assert calls.by_address == {}


async def test_all_together_have_so_many_calls_and_our_own_roles_are_not_counted() -> None:
    async with Server(GrpcBounds(calls_max=1)) as server:
        ours = [await server.begun(ours="yes") for _ in range(3)]
        one = await server.begun()
        assert "1 calls are open, and grpc_calls_max = 1" in await server.refusal()
        ours.append(await server.begun(ours="yes"))
        for call in (one, *ours):
            await done(call)
        assert server.calls.open == 0


async def test_without_a_bound_calls_still_tell_who_is_no_stranger() -> None:
    bounds = GrpcBounds(calls_max=0, calls_per_address_max=1)
    assert bounds.streams_max == STREAMS_MAX
    assert GrpcBounds(calls_per_address_max=7).streams_max == 107
    async with Server(bounds) as server:
        signing_in = await server.begun(AUTHENTICATE)
        assert not server.calls.peers
        calls = [await server.begun() for _ in range(3)]
        (peer,) = server.calls.peers.values()
        assert (peer.open_calls, peer.last_call, server.calls.open) == (3, 3, 0)
        for call in (signing_in, *calls):
            await done(call)
        assert peer.open_calls == 0


def test_grpc_and_the_kernel_name_the_same_peer() -> None:
    assert (
        peer_key("ipv4:192.0.2.1:5000") == kernel_key("::ffff:192.0.2.1", 5000) == PeerKey("192.0.2.1", 5000)
    )
    assert peer_key("ipv6:%5B2001:db8::1%5D:7") == kernel_key("2001:db8::1", 7)
    assert peer_key("ipv6:%5Bfe80::1%25eth0%5D:7") == kernel_key("fe80::1%eth0", 7) == PeerKey("fe80::1", 7)
    assert peer_key("unix:") is None
