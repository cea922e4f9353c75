"""A gRPC port that takes TLS and plaintext: what goes where, and how many connections it bears."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock_runtime import grpc_tools
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.security.both_ways import BothWays
from penstock_runtime.security.role_tls import RoleTls
from penstock_runtime.security.tls_files import TlsFiles
from support.certificates import ClusterCa
from support.waiting import eventually

Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """One, with servers behind it that say which they are and then what they hear."""

    def __init__(self) -> None:
        self.ways = BothWays(GrpcBounds())
        self._came = self._dialled = 0
        take = self.ways._take

        async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._came += 1
            await take(reader, writer)

        self.ways._take = takes  # type: ignore[method-assign]
        self._inner: list[asyncio.Server] = []
        self._sides: list[Side] = []

    async def open(self) -> None:
        for path, name in ((self.ways.plain, b"p"), (self.ways.tls, b"t")):

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: bytes = name
            ) -> None:
                writer.write(name)
                while data := await reader.read(100):
                    writer.write(data)
                writer.close()

            self._inner.append(await asyncio.start_unix_server(serve, path))
        listening = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.number = listening.getsockname()[1]
        await self.ways.open([listening])

    async def close(self) -> None:
        for _, writer in self._sides:
            writer.close()
        await self.ways.close()
        for server in self._inner:
            server.close()

    def bound(self, **bounds: int) -> None:
        self.ways._bounds = GrpcBounds(**bounds)

    async def dial(self, host: str = "127.0.0.1", says: bytes = b"") -> Side:
        side = await asyncio.open_connection("127.0.0.1", self.number, local_addr=(host, 0))
        self._sides.append(side)
        self._dialled += 1
        if says:
            side[1].write(says)
            # It goes through, or it is refused: either is an answer.
            await self.answer(side, 2)
        else:
            await eventually(lambda: self._came == self._dialled, "it is taken")
        return side

    @staticmethod
    async def answer(side: Side, size: int) -> bytes:
        try:
            return await side[0].readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    await made.open()
    yield made
    await made.close()


async def is_served(side: Side) -> bool:
    side[1].write(b"x")
    return await Port.answer(side, 1) == b"x"


async def test_by_its_first_byte_a_connection_goes_where_that_is_spoken(port: Port) -> None:
    for says, answers in ((b"PRI", b"pPRI"), (b"\x16\x03\x01", b"t\x16\x03\x01")):
        side = await asyncio.open_connection("127.0.0.1", port.number)
        side[1].write(says)
        assert await port.answer(side, len(answers)) == answers
        side[1].close()


async def test_of_those_who_say_nothing_the_oldest_of_the_address_with_most_goes(
    port: Port,
) -> None:
    port.bound(strangers_max=3)
    speaks = await port.dial("127.0.0.2", says=b"P")
    few = await port.dial("127.0.0.3")
    many = [await port.dial("127.0.0.2") for _ in range(3)]
    assert await port.answer(many[0], 1) == b""
    for side in (few, *many[1:]):
        side[1].write(b"P")
        assert await port.answer(side, 2) == b"pP"
    assert await is_served(speaks)


async def test_an_address_has_so_many_and_others_have_theirs(
    port: Port,
) -> None:
    port.bound(connections_per_address_max=2)
    mine = [await port.dial("127.0.0.2", says=b"P") for _ in range(2)]
    with capture_logs() as lines:
        assert not await is_served(await port.dial("127.0.0.2", says=b"P"))
    (line,) = lines
    assert line["event"].endswith("2 are of 127.0.0.2, and grpc_connections_per_address_max = 2")
    assert await is_served(await port.dial("127.0.0.3", says=b"P"))
    mine[0][1].close()
    await eventually(lambda: len(port.ways._pumps) == 2, "it is gone")
    assert await is_served(await port.dial("127.0.0.2", says=b"P"))


async def test_of_all_the_newest_of_the_address_with_most_goes_for_another(
    port: Port,
) -> None:
    port.bound(connections_max=4)
    many = [await port.dial("127.0.0.2", says=b"P") for _ in range(3)]
    few = await port.dial("127.0.0.3", says=b"P")
    other = await port.dial("127.0.0.4", says=b"P")
    assert [await is_served(side) for side in (*many, few, other)] == [True, True, False, True, True]
    # Of two that have as many the one that is there stays.
    assert not await is_served(await port.dial("127.0.0.2", says=b"P"))
    silent = await port.dial("127.0.0.4")
    assert await port.answer(silent, 1) == b""


async def test_the_bounds_are_those_of_the_port_as_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has raised them for many processes behind one address is not shut out for two rounds of restarts."""
    made: list[BothWays] = []

    class Kept(BothWays):
        def __init__(self, bounds: GrpcBounds) -> None:
            super().__init__(bounds)
            made.append(self)

    monkeypatch.setattr(grpc_tools, "BothWays", Kept)
    tls = RoleTls(**ClusterCa().issue(tmp_path, "controller", "1"), mode="allow")  # type: ignore[arg-type]
    bounds = GrpcBounds(connections_per_address_max=700)
    server, _ = await grpc_tools.serve(
        "127.0.0.1:0",
        lambda _: None,
        allow_insecure_bind=False,
        tls=TlsFiles(tls, "controller"),
        bounds=bounds,
    )
    assert [ways._bounds for ways in made] == [bounds]
    await server.stop(None)
    await made[0].close()
