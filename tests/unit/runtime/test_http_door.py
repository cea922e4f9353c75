"""What an HTTP connection may take: few connections, small headers, a short time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock_core.metadata.image import Endpoint
from penstock_runtime import http_door
from penstock_runtime.http import HttpServer
from penstock_runtime.lifecycle import Lifecycle
from security.target import dial, has_come
from support.secure import ListenerFiles
from support.waiting import eventually

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Endpoint]:
    http = HttpServer("127.0.0.1:0", Lifecycle("test"))
    try:
        yield await http.start()
    finally:
        await http.stop()


async def opened(where: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(where.host, where.port)


async def status(reader: asyncio.StreamReader) -> bytes:
    """Of one answer, which is read whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    await reader.readexactly(int(length.split(b":")[1]))
    return head.split(b" ")[1]


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 60) == b""
    except ConnectionError:
        return True


async def test_requests_in_pieces_and_several_at_once_are_answered() -> None:
    async with serving() as where:
        reader, writer = await opened(where)
        for n in range(len(GET)):
            writer.write(GET[n : n + 1])
            await writer.drain()
        assert await status(reader) == b"200"
        writer.write(GET + GET[:10])
        assert await status(reader) == b"200"
        writer.write(GET[10:])
        assert await status(reader) == b"200"
        writer.close()


async def test_a_header_that_does_not_end_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "REQUEST_TIMEOUT_S", 0.2)
    async with serving() as where:
        for sent in (b"", GET[:-1], GET + GET[:5]):
            reader, writer = await opened(where)
            writer.write(sent)
            if sent.startswith(GET):
                assert await status(reader) == b"200"
            assert await is_closed(reader)
            writer.close()


async def test_a_large_header_is_refused() -> None:
    async with serving() as where:
        reader, writer = await opened(where)
        writer.write(GET[:-2] + b"X-Large: " + b"x" * 10_000)
        assert await status(reader) == b"431"
        assert await is_closed(reader)
        writer.close()


async def test_one_connection_too_many_is_closed_and_room_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "CONNECTIONS_MAX", 2)
    async with serving() as where:
        pairs = [await opened(where) for _ in range(3)]
        assert await is_closed(pairs[2][0])
        pairs[1][1].write(GET)
        assert await status(pairs[1][0]) == b"200"
        pairs[0][1].close()
        await pairs[0][1].wait_closed()
        for _ in range(1000):
            reader, writer = await opened(where)
            writer.write(GET)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                assert await status(reader) == b"200"
                break
        else:
            pytest.fail("no room came back")
        writer.close()
        for _, each in pairs[1:]:
            each.close()


async def opened_by(host: str, where: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(where.host, where.port, local_addr=(host, 0))


async def test_an_address_with_every_connection_makes_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_door, "CONNECTIONS_MAX", 4)
    async with serving() as where:
        asked_first, silent, asked_last = [await opened_by("127.0.0.66", where) for _ in range(3)]
        for reader, writer in (asked_first, asked_last):
            writer.write(GET)
            assert await status(reader) == b"200"
        one = await opened_by("127.0.0.67", where)
        two = await opened_by("127.0.0.68", where)
        for reader, writer in (one, two):
            writer.write(GET)
            assert await status(reader) == b"200"
        assert await is_closed(silent[0])  # who has not asked goes first
        three = await opened_by("127.0.0.69", where)
        three[1].write(GET)
        assert await status(three[0]) == b"200"
        assert await is_closed(asked_first[0])
        # All have one: who has none gets in, who has one gets no second.
        four = await opened_by("127.0.0.70", where)
        four[1].write(GET)
        assert await status(four[0]) == b"200"
        again = await opened_by("127.0.0.70", where)
        assert await is_closed(again[0])
        for _, writer in (asked_first, silent, asked_last, one, two, three, four, again):
            writer.close()


async def test_who_does_not_finish_a_handshake_makes_room_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(http_door, "CONNECTIONS_MAX", 4)
    made = ListenerFiles(tmp_path)
    files, client = made.table(), ssl.create_default_context(cafile=str(made.ca))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files["cert"], files["key"])
    http = HttpServer("127.0.0.1:0", Lifecycle("test"), tls=lambda: server)
    where = await http.start()
    try:
        silent = [await opened_by("127.0.0.66", where) for _ in range(4)]
        for n in (67, 68, 69):
            reader, writer = await asyncio.open_connection(
                where.host,
                where.port,
                local_addr=(f"127.0.0.{n}", 0),
                ssl=client,
                server_hostname="localhost",
            )
            writer.write(GET)
            assert await status(reader) == b"200"
            silent.append((reader, writer))
        for reader, _ in silent[:3]:
            assert await is_closed(reader)
        for _, writer in silent:
            writer.close()
    finally:
        await http.stop()


@pytest.mark.parametrize("over_tls", [False, True])
async def test_who_dials_for_nothing_waits_and_nobody_else_does(over_tls: bool, tmp_path: Path) -> None:
    files = ListenerFiles(tmp_path).table()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    http = HttpServer("127.0.0.1:0", Lifecycle("test"), tls=(lambda: context) if over_tls else None)
    where = await http.start()
    with contextlib.ExitStack() as ends:

        def dialled(source: str) -> socket.socket:
            return ends.enter_context(dial(where.address, source))

        late = dialled("127.0.1.1")

        def is_kept_out() -> bool:
            nonlocal late
            for _ in range(20):
                late = dialled("127.0.1.1")
            return not has_come(late)  # loopback answers at once

        await eventually(is_kept_out, "it has to wait")
        other = dialled("127.0.1.2")
        await eventually(lambda: has_come(other), "another address is let in")
        await eventually(lambda: has_come(late), "it is let in when it has waited")
    await http.stop()
