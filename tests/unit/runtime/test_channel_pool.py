"""The channels of a process: which there are, whom they take, and how they follow a new certificate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog

from penstock_core.limits import GRPC_MESSAGE_BYTES_MAX
from penstock_runtime import grpc_tools
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.http2.client import Channel, ChannelLimits
from penstock_runtime.http2.server import Server
from penstock_runtime.security.tls_files import TlsFiles
from support.certificates import DOMAIN, ClusterCa
from support.waiting import eventually

IDLE, READY = grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.READY
PATIENCE_S = 60


@pytest.fixture(scope="module")
def ca() -> ClusterCa:
    return ClusterCa()


async def reverse(request: bytes, _: Any) -> bytes:
    return request[::-1]


async def echo(requests: Any, _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


HANDLERS: dict[str, Any] = {
    "Reverse": grpc.unary_unary_rpc_method_handler(reverse),
    "Echo": grpc.stream_stream_rpc_method_handler(echo),
}


@contextlib.asynccontextmanager
async def serving(tls: TlsFiles | None = None) -> AsyncIterator[tuple[str, Server]]:
    server = Server(message_bytes_most=GRPC_MESSAGE_BYTES_MAX)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", HANDLERS),))
    listening = await asyncio.get_running_loop().create_server(
        server.protocol, "127.0.0.1", 0, ssl=None if tls is None else tls.current.server
    )
    try:
        yield "{}:{}".format(*listening.sockets[0].getsockname()), server
    finally:
        listening.close()
        await server.stop(None)


@contextlib.asynccontextmanager
async def pooled(**how: Any) -> AsyncIterator[ChannelPool]:
    pool = ChannelPool(**how)
    try:
        yield pool
    finally:
        await pool.close()


async def works(channel: Channel) -> None:
    assert await channel.unary_unary("/test.Test/Reverse")(b"ab", timeout=PATIENCE_S) == b"ba"


async def test_one_channel_for_each_address_role_and_lane() -> None:
    async with serving() as (address, server), pooled() as pool:
        first, bulk = pool.get(address, "storage-node"), pool.get(address, "storage-node", "bulk")
        assert first is pool.get(address, "storage-node")
        assert len({first, bulk, pool.get(address, "controller")}) == 3
        await works(first)
        await works(bulk)
        assert len(server.peers) == 2
        too_large = first.unary_unary("/test.Test/Reverse")(bytes(GRPC_MESSAGE_BYTES_MAX + 1))
        with pytest.raises(grpc.aio.AioRpcError, match="are the most"):
            await too_large
        await pool.drop(address)
        await eventually(lambda: not server.peers, "the connections end")
        assert pool.get(address, "storage-node") is not first
        await works(pool.get(address, "storage-node"))


async def test_what_may_be_under_way_is_the_pools() -> None:
    async with serving() as (address, _), pooled(limits=ChannelLimits(window_bytes=70_000)) as pool:
        channel = pool.get(address, "storage-node")
        await works(channel)
        assert channel._line is not None
        assert channel._line.connection.first_window_bytes == 70_000
        assert channel.limits.idle_s is None


async def test_a_server_is_of_the_role_that_is_wanted(tmp_path: Path, ca: ClusterCa) -> None:
    there = ca.files(tmp_path / "s", "storage-node", "1")
    here = ca.files(tmp_path / "c", "gateway", "g")
    async with serving(there) as (address, _), pooled(tls=here) as pool:
        await works(pool.get(address, "storage-node"))
        with structlog.testing.capture_logs() as lines:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await works(pool.get(address, "controller"))
            said = f"its certificate is that of spiffe://{DOMAIN}/storage-node/1, not of a controller of {DOMAIN}"
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert caught.value.details() == f"{address}: {said}"
            told = f"no TLS connection with the controller at {address}: {said}"
            await eventually(lambda: any(line["event"] == told for line in lines), "it is told")
    elsewhere = ca.files(tmp_path / "o", "storage-node", "1", domain="other.test")
    async with serving(elsewhere) as (address, _), pooled(tls=here) as pool:
        with pytest.raises(grpc.aio.AioRpcError, match=r"spiffe://other\.test/storage-node/1, not of a"):
            await works(pool.get(address, "storage-node"))


def trusting(directory: Path, ca: ClusterCa) -> TlsFiles:
    """Of a gateway that knows the CA, and whose own that one's servers do not know."""
    own = ClusterCa()
    files = own.files(directory, "gateway", "g")
    files.settings.ca.write_bytes(ca.pem + own.pem)
    assert files.reload()
    return files


async def test_a_refusal_by_the_other_side_is_told(tmp_path: Path, ca: ClusterCa) -> None:
    """With TLS 1.3 it comes after the handshake."""
    there = ca.files(tmp_path / "s", "controller", "1")
    here = trusting(tmp_path / "c", ca)
    async with serving(there) as (address, _), pooled(tls=here) as pool:
        with structlog.testing.capture_logs() as lines:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await works(pool.get(address, "controller"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await eventually(
                lambda: any("it refuses this process's certificate" in line["event"] for line in lines),
                "it is told",
            )


async def test_what_is_wrong_is_not_looked_for_at_each_attempt(
    tmp_path: Path, ca: ClusterCa, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def find(address: str, *_: Any) -> str:
        looks.append(address)
        return ""

    monkeypatch.setattr(grpc_tools, "find_fault", find)
    there = ca.files(tmp_path / "s", "storage-node", "1")
    async with serving(there) as (address, _), pooled(tls=ca.files(tmp_path / "c", "gateway", "g")) as pool:
        channel = pool.get(address, "controller")
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await works(channel)
            await asyncio.wait_for(channel.wait_for_state_change(channel.get_state()), PATIENCE_S)
        assert looks == [address]


async def test_channels_of_an_older_certificate_end_with_their_calls(
    tmp_path: Path, ca: ClusterCa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_tools, "TLS_IDLE_S", 0.3)
    monkeypatch.setattr(grpc_tools, "_OLD_LOOK_S", 0.05)
    there, here = ca.files(tmp_path / "s", "controller", "1"), ca.files(tmp_path / "c", "gateway", "g")
    async with serving(there) as (address, _), pooled(tls=here) as pool:
        first = pool.get(address, "controller")
        call = first.stream_stream("/test.Test/Echo")()
        await call.write(b"1")
        assert await call.read() == b"1"
        ca.issue(tmp_path / "c", "gateway", "g")
        assert here.reload()
        second = pool.get(address, "controller")
        assert second is not first
        await works(second)
        await asyncio.sleep(0.7)
        assert pool.old_count == 1
        await call.write(b"2")
        assert await call.read() == b"2"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]
        await eventually(lambda: not pool.old_count, "it is closed")
        with pytest.raises(grpc.aio.UsageError):
            await works(first)
        await works(second)


async def test_a_channel_of_an_older_certificate_is_closed_at_last(
    tmp_path: Path, ca: ClusterCa, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(grpc_tools, "_OLD_LOOK_S", 0.05)
    clock: Callable[[], float] = lambda: now_s  # noqa: E731
    there, here = ca.files(tmp_path / "s", "controller", "1"), ca.files(tmp_path / "c", "gateway", "g")
    async with serving(there) as (address, _), pooled(tls=here, clock_s=clock) as pool:
        call = pool.get(address, "controller").stream_stream("/test.Test/Echo")()
        await call.write(b"1")
        assert await call.read() == b"1"
        reading = asyncio.create_task(call.read())
        ca.issue(tmp_path / "c", "gateway", "g")
        assert here.reload()
        pool.get(address, "controller")
        await asyncio.sleep(0.2)
        assert not reading.done()
        now_s = grpc_tools.OLD_CHANNEL_S_MAX + 1
        await asyncio.wait([reading], timeout=PATIENCE_S)
        assert reading.cancelled()
        await eventually(lambda: not pool.old_count, "it is closed")
