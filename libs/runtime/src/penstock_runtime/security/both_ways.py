"""A gRPC port that takes TLS and plaintext, for the time in which a cluster goes from one to the other.

gRPC's ports are one or the other. So the server has one of each, on sockets of the file system that only this user
reaches, and the port that others dial hands each connection over by its first byte: a TLS record of a handshake
begins with 0x16, HTTP/2 with "P". Bytes go through this process's event loop, which costs some; it is for the
steps of a rolling restart (decision 0044).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HANDSHAKE: Final = 0x16
"""The first byte of whoever begins a TLS handshake (RFC 8446, 5.1)."""
_CHUNK_BYTES: Final = 256 * 1024
_FIRST_BYTE_S: Final = 5.0


class BothWays:
    """The way from one port to two sockets."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-"))
        self.plain = self._directory / "plain"
        self.tls = self._directory / "tls"
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()

    async def open(self, sockets: Sequence[socket.socket]) -> None:
        """Hand over what is accepted there."""
        for each in sockets:
            self._servers.append(await asyncio.start_server(self._take, sock=each, limit=_CHUNK_BYTES))

    async def close(self) -> None:
        """Accept nothing more, and end what goes through."""
        for server in self._servers:
            server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        try:
            async with asyncio.timeout(_FIRST_BYTE_S):
                first = await reader.read(_CHUNK_BYTES)
            if first:
                path = self.tls if first[0] == HANDSHAKE else self.plain
                inner_reader, inner_writer = await asyncio.open_unix_connection(str(path), limit=_CHUNK_BYTES)
                await _join(first, (reader, writer), (inner_reader, inner_writer))
        except (OSError, TimeoutError):
            pass  # who dialled sees that the connection ends
        except asyncio.CancelledError:
            if not self._servers or self._servers[0].is_serving():
                raise
        finally:
            self._pumps.discard(task)
            writer.close()


Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(first: bytes, outer: Side, inner: Side) -> None:
    """Carry bytes both ways until either side ends."""
    inner[1].write(first)
    ways = [
        asyncio.create_task(_carry(outer[0], inner[1])),
        asyncio.create_task(_carry(inner[0], outer[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(OSError):
            await asyncio.wait_for(outer[1].drain(), _FIRST_BYTE_S)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        inner[1].close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
