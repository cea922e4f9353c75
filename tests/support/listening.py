"""A Kafka listener on loopback with a handler of the test's own, and raw clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from penstock_core.metadata.image import Endpoint
from penstock_core.security.principal import Identity, Principal
from penstock_frontend.listener.listener import (
    Connection,
    FrameHandler,
    KafkaListener,
    ListenerLimits,
    Response,
)
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.settings import ListenerSettings

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Answer = Callable[[Connection, bytearray], Response | Awaitable[Response]]


class Handler:
    """Calls a function per frame and remembers what it saw."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.frames: list[bytes] = []
        self.connections: list[Connection] = []

    def handle(self, connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
        self.frames.append(bytes(frame))
        self.connections.append(connection)
        return self.answer(connection, frame)


def echo(_: Connection, frame: bytearray) -> Response:
    return [frame[4:8], frame[8:]]


def request(correlation_id: int, body: bytes = b"", api_key: int = 3) -> bytes:
    """A length-prefixed frame that `echo` answers with its correlation id and body."""
    return struct.pack(">ihhi", 8 + len(body), api_key, 0, correlation_id) + body


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    frame = await reader.readexactly(length)
    return int.from_bytes(frame[:4], "big"), frame[4:]


@contextlib.asynccontextmanager
async def listening(
    answer: Answer,
    limits: ListenerLimits | None = None,
    doorkeeper: FrameHandler | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
    certified: Callable[[bytes | None, Connection], Principal] | None = None,
    quotas: QuotaGate | None = None,
    wall_s: Callable[[], float] = time.time,
    may_write: Callable[[Identity], bool] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[KafkaListener, Handler, Endpoint, Lifecycle]]:
    lifecycle = Lifecycle("test")
    handler = Handler(answer)
    bind = settings.pop("bind", "127.0.0.1:0")
    if "tls_settings" in settings:
        settings["tls"] = settings.pop("tls_settings")
    listener = KafkaListener(
        ListenerSettings(name="PROXY", bind=bind, **settings),
        handler,
        lifecycle,
        limits,
        doorkeeper=doorkeeper,
        tls=tls,
        certified=certified,
        quotas=quotas,
        may_write=may_write,
        wall_s=wall_s,
    )
    endpoint = await listener.start()
    try:
        yield listener, handler, endpoint, lifecycle
    finally:
        await listener.stop(timeout_ms=500)
        assert not listener.connections
        assert listener.memory.held_bytes == 0
        assert listener._doorway._admission.count == 0
        assert not len(listener._doorway._strangers)


@contextlib.asynccontextmanager
async def connected(
    endpoint: Endpoint, source: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(
        endpoint.host, endpoint.port, limit=2**20, local_addr=(source, 0)
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def closed_by_peer(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 60) == b""
    except ConnectionError:
        return True


PASSER_BY = 999
"""Correlation id of a request that handlers answer at once."""


async def passed_by(endpoint: Endpoint) -> None:
    """Requests of another client, come after all that was sent before, are answered.

    So whatever the listener would have taken of the others it has taken by now.
    """
    for _ in range(3):
        async with connected(endpoint) as (reader, writer):
            writer.write(request(PASSER_BY))
            assert (await read_response(reader))[0] == PASSER_BY


def metric(lifecycle: Lifecycle, name: str) -> float:
    """Sum of all samples of one metric."""
    return sum(s.value for f in lifecycle.registry.collect() for s in f.samples if s.name == name)
