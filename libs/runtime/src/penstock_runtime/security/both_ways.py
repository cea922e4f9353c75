"""A gRPC port that takes TLS and plaintext, for the time in which a cluster goes from one to the other.

gRPC's ports are one or the other. So the server has one of each, on sockets of the file system that only this user
reaches, and the port that others dial hands each connection over by its first byte: a TLS record of a handshake
begins with 0x16, HTTP/2 with "P". Bytes go through this process's event loop, which costs some; it is for the
steps of a rolling restart (decision 0044).

What bounds connections elsewhere (`grpc_connections`) sees nothing of who comes this way, so the port looks at the same
settings itself: of those who have said nothing the oldest of the address with most goes, an address has so many, and
when all places are taken the newest of the address with most goes for one with fewer. Nobody's role is known here: who
comes to a port of this kind has as many connections as before it and after it, no fewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock_core.security.login_limits import network, shares_of
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.logs import CONSTANT, get_log

HANDSHAKE: Final = 0x16
"""The first byte of whoever begins a TLS handshake (RFC 8446, 5.1)."""
_CHUNK_BYTES: Final = 256 * 1024
_FIRST_BYTE_S: Final = 5.0


class BothWays:
    """The way from one port to two sockets."""

    def __init__(self, bounds: GrpcBounds) -> None:
        self._bounds = bounds
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-"))
        self.plain = self._directory / "plain"
        self.tls = self._directory / "tls"
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._places: dict[asyncio.Task[None], str] = {}
        """The address of each connection, the oldest first."""
        self._silent: dict[asyncio.Task[None], str] = {}
        """Those that have said nothing."""
        self._held: Counter[str] = Counter()
        """Connections by address."""

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
            peer = writer.get_extra_info("peername")
            if not self._find_place(task, network(str(peer[0]) if peer else "")):
                return
            async with asyncio.timeout(_FIRST_BYTE_S):
                first = await reader.read(_CHUNK_BYTES)
            self._silent.pop(task, None)
            if first:
                path = self.tls if first[0] == HANDSHAKE else self.plain
                inner_reader, inner_writer = await asyncio.open_unix_connection(str(path), limit=_CHUNK_BYTES)
                await _join(first, (reader, writer), (inner_reader, inner_writer))
        except (OSError, TimeoutError):
            pass  # who dialled sees that the connection ends
        except asyncio.CancelledError:
            made_room = task not in self._places
            if not made_room and (not self._servers or self._servers[0].is_serving()):
                raise
        finally:
            self._pumps.discard(task)
            self._leave(task)
            writer.close()

    def _find_place(self, task: asyncio.Task[None], address: str) -> bool:
        """Whether there is one for somebody who has come; somebody else may have to go for it."""
        bounds, held = self._bounds, self._held[address]
        if held >= bounds.connections_per_address_max * shares_of(address):
            _tell(
                f"{held} are of {address}", "connections_per_address_max", bounds.connections_per_address_max
            )
            return False
        if len(self._places) >= bounds.connections_max:
            _tell(f"there are {len(self._places)}", "connections_max", bounds.connections_max)
            whose, most = self._held.most_common(1)[0]
            # With one more the other would have fewer than this one: they would take it from each other for ever.
            if most <= held + 1:
                return False
            self._end(next(each for each in reversed(self._places) if self._places[each] == whose))
        self._places[task] = self._silent[task] = address
        self._held[address] += 1
        if len(self._silent) > bounds.strangers_max:
            _tell(f"{len(self._silent)} have said nothing", "strangers_max", bounds.strangers_max)
            whose = Counter(self._silent.values()).most_common(1)[0][0]
            self._end(next(each for each in self._silent if self._silent[each] == whose))
        return task in self._places

    def _end(self, task: asyncio.Task[None]) -> None:
        self._leave(task)
        if task is not asyncio.current_task():
            task.cancel()

    def _leave(self, task: asyncio.Task[None]) -> None:
        """Its place is free. Safe to call twice."""
        self._silent.pop(task, None)
        address = self._places.pop(task, None)
        if address is not None:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]


def _tell(why: str, setting: str, most: int) -> None:
    text = (
        f"a connection to a gRPC port that takes TLS and plaintext ended: {why}, and grpc_{setting} = {most}"
    )
    get_log().warning(
        text,
        **{CONSTANT: "connections to a gRPC port that takes TLS and plaintext ended: there are too many"},
    )


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
