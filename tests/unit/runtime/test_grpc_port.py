"""The way in to a gRPC server: who is let in, who has to go, who waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.grpc_server import serve
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.security.role_tls import RoleTls
from penstock_runtime.security.tls_files import TlsFiles
from security.http2 import DATA, END_STREAM, OPENING, Caller, call_headers, http2_frame
from security.target import dial, has_come
from support.certificates import ClusterCa
from support.waiting import eventually

METHOD = "/penstock.v1.Gateway/Produce"


async def echo(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


def add(server: Any) -> None:
    handlers = {"Produce": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("penstock.v1.Gateway", handlers),))


@pytest.fixture
def ends() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


async def is_served(call: Any, message: bytes) -> bool:
    await call.write(message)
    return bool(await call.read() == message)


def callers_of(ends: contextlib.ExitStack, address: tuple[str, int], count: int) -> list[Caller]:
    made = []
    for _ in range(count):
        made.append(Caller(ends.enter_context(socket.create_connection(address, 30))))
    return made


def held(callers: list[Caller]) -> int:
    for caller in callers:
        if caller.is_open:
            caller.look()
    return sum(caller.is_open for caller in callers)


@pytest.mark.parametrize("by_lifecycle", [False, True])
async def test_connections_that_call_nothing_make_room(
    ends: contextlib.ExitStack, *, by_lifecycle: bool
) -> None:
    lifecycle = Lifecycle("test")
    if by_lifecycle:
        lifecycle.make_current()
    bounds = GrpcBounds(strangers_max=20)
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True, bounds=bounds)
    channel: Any = grpc.aio.insecure_channel(where.address)
    call = channel.stream_stream(METHOD)()
    assert await is_served(call, b"1")
    callers = await asyncio.to_thread(callers_of, ends, (where.host, where.port), 100)
    await eventually(lambda: held(callers) <= 20, "idle connections are ended")
    assert held(callers) > 0
    assert await is_served(call, b"2")
    await channel.close(None)
    await server.stop(None)
    await server.stop(None)  # as by the role and by its lifecycle
    await lifecycle.end_all()


async def test_who_dials_for_nothing_waits_and_nobody_else_does(ends: contextlib.ExitStack) -> None:
    bounds = GrpcBounds(strangers_max=20)
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True, bounds=bounds)

    def dialled(source: str) -> socket.socket:
        return ends.enter_context(dial(where.address, source))

    async def let_in(source: str) -> None:
        other = dialled(source)
        await eventually(lambda: has_come(other), "another address is let in")

    flood = [dialled("127.0.1.1") for _ in range(60)]
    late = flood[0]

    def is_kept_out() -> bool:
        nonlocal late
        late = dialled("127.0.1.1")
        return not has_come(late)  # loopback answers at once

    await eventually(is_kept_out, "it has to wait")
    await let_in("127.0.1.2")
    # It dials again by itself, and the kernel lets it in when it has waited.
    await eventually(lambda: has_come(late), "it is let in later")
    await server.stop(None)
    with socket.create_server((where.host, where.port)):
        pass  # nothing of ours holds the port


async def test_whoever_calls_does_not_wait(ends: contextlib.ExitStack) -> None:
    bounds = GrpcBounds(connections_per_address_max=3)
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True, bounds=bounds)
    calls = server._port._places._calls
    source = "127.0.1.1"
    callers = []

    def have_called(count: int) -> bool:
        return calls.calls == count and not any(peer.open_calls for peer in calls.peers.values())

    for number in range(1, 10):
        raw = socket.create_connection((where.host, where.port), 30, source_address=(source, 0))
        callers.append(Caller(ends.enter_context(raw)))
        callers[-1].begin(call_headers(METHOD), 1)
        raw.sendall(http2_frame(DATA, END_STREAM, 1))
        await eventually(partial(have_called, number), "it is served")
    assert len(server._port) == 3
    await eventually(lambda: held(callers) == 3, "six have had to go")
    # They had called, so it was not for nothing, and nobody waits.
    assert has_come(ends.enter_context(dial(where.address, source)))
    await server.stop(None)


async def test_a_stream_too_many_of_a_connection_is_refused(ends: contextlib.ExitStack) -> None:
    bounds = GrpcBounds(calls_per_address_max=50)
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True, bounds=bounds)
    (caller,) = await asyncio.to_thread(callers_of, ends, (where.host, where.port), 1)
    for _ in range(40):
        await asyncio.to_thread(caller.begin, call_headers(METHOD), 10)
        caller.look()

    def left() -> int:
        caller.look()
        return caller.left

    await eventually(lambda: left() <= 50, "calls beyond the bound are ended")
    assert caller.is_open
    await server.stop(None)


def is_greeted(client: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        client.send(OPENING)
    with contextlib.suppress(OSError):
        return client.recv(1) != b""
    return False


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """As when connections have taken all that the process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    taken = []
    try:
        # Of those below the limit one may have come free meanwhile.
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)


async def test_with_no_descriptor_left_a_stranger_makes_room(ends: contextlib.ExitStack) -> None:
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True)
    # Not gRPC's channel: it wants descriptors itself, and there are none in this process.
    strangers = callers_of(ends, (where.host, where.port), 5)
    (honest,) = callers_of(ends, (where.host, where.port), 1)
    honest.begin(call_headers(METHOD), 1)
    # Let in, and not waiting with the kernel.
    await eventually(lambda: len(server._port) == 6, "they are here")
    newcomers = [ends.enter_context(socket.socket()) for _ in range(5)]
    with no_descriptor_left():
        # One for each descriptor that something else in this process may have given back meanwhile.
        for each in newcomers:
            each.setblocking(False)
            each.connect_ex((where.host, where.port))
        await eventually(lambda: held(strangers) < 5, "one of them goes")
        await eventually(lambda: any(map(is_greeted, newcomers)), "a newcomer is let in")
    assert held([honest]) == 1
    await server.stop(None)


async def test_by_its_first_byte_a_connection_is_taken_with_tls_or_without(tmp_path: Path) -> None:
    ca = ClusterCa()
    tls = RoleTls(**ca.issue(tmp_path / "node", "storage-node", "1"), mode="allow")  # type: ignore[arg-type]
    files = TlsFiles(tls, "storage-node")
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=False, tls=files)
    client = TlsFiles(
        RoleTls(**ca.issue(tmp_path / "gateway", "gateway", "g")),  # type: ignore[arg-type]
        "gateway",
    )
    for context in (None, client.current.client):
        reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        header = await reader.readexactly(9)
        assert header[3] == 4  # SETTINGS
        writer.close()
    await server.stop(None)
    # What takes TLS alone ends who comes without.
    (directory := tmp_path / "strict").mkdir()
    strict = TlsFiles(
        RoleTls(**ca.issue(directory, "storage-node", "1")),  # type: ignore[arg-type]
        "storage-node",
    )
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=False, tls=strict)
    reader, writer = await asyncio.open_connection(where.host, where.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    # And who shows no certificate.
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        reader, writer = await asyncio.open_connection(where.host, where.port, ssl=nobody)
        assert await reader.read() == b""
    await server.stop(None)


async def test_a_server_that_stops_says_so_and_lets_calls_end() -> None:
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True)
    channel: Any = grpc.aio.insecure_channel(where.address)
    ends_in_time, goes_on = (channel.stream_stream(METHOD)() for _ in range(2))
    assert await is_served(ends_in_time, b"1")
    assert await is_served(goes_on, b"1")
    stopping = asyncio.create_task(server.stop(1.0))
    await asyncio.sleep(0)
    assert await is_served(ends_in_time, b"2")
    await ends_in_time.done_writing()
    assert await ends_in_time.read() is grpc.aio.EOF  # type: ignore[attr-defined]
    await stopping
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await goes_on.read()
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    await channel.close(None)
