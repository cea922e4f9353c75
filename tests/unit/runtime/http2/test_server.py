"""The server's side: refusals that are heard, floods that end their connection, who is not there any more."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock_runtime.http2 import frames, server
from penstock_runtime.http2.connection import Connection, Headers, Stream
from penstock_runtime.http2.inbound import Buffer
from penstock_runtime.http2.server import Server
from penstock_runtime.http2.wire import CallPace
from support.waiting import eventually

HEADERS = [(":method", "POST"), (":path", "/test.Test/Echo"), ("content-type", "application/grpc")]
MESSAGE_BYTES_MOST = 100_000
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


async def echo(_: Any, context: Any) -> None:
    while (message := await context.read()) is not EOF:
        await context.write(message)


class Deny(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses every call before it reads a message of it."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        async def refuse(_: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "it is not for you")

        return grpc.stream_stream_rpc_method_handler(refuse)


@contextlib.asynccontextmanager
async def serving(**how: Any) -> AsyncIterator[tuple[Server, str]]:
    made = Server(message_bytes_most=MESSAGE_BYTES_MOST, **how)
    handlers = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    listening = await asyncio.get_running_loop().create_server(made.protocol, "127.0.0.1", 0)
    yield made, "{}:{}".format(*listening.sockets[0].getsockname())
    listening.close()
    await made.stop(None)
    await made.stop(None)
    assert not made.peers


class Raw:
    """A client by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.over: dict[int, tuple[int, str] | None] = {}
        self.heads: dict[int, dict[str, str]] = {}
        self.is_gone = False
        self.connection = Connection(self, self._out, is_client=True, message_bytes_most=1 << 20)
        self.connection.begin()
        self._reading = asyncio.create_task(self._read())

    def _out(self, buffers: list[Buffer]) -> None:
        self.writer.write(b"".join(buffers))

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(1 << 16):
                self.connection.received(memoryview(data))
                while self.connection.is_behind:
                    self.connection.received(memoryview(b""))
        self.is_gone = True

    def opened(self, stream: Stream, headers: Headers) -> None: ...

    def going_away(self) -> None: ...

    def open(self, headers: Headers = HEADERS) -> Stream:
        stream = self.connection.open(headers)
        stream.owner = Owner(self, stream)
        return stream

    async def status(self, stream: Stream) -> str:
        await eventually(lambda: "grpc-status" in self.heads.get(stream.number, {}), "it has ended")
        return self.heads[stream.number]["grpc-status"]

    async def close(self) -> None:
        self.writer.close()
        await self._reading


class Owner:
    """Of one call of a `Raw`."""

    def __init__(self, raw: Raw, stream: Stream) -> None:
        self._raw, self._stream = raw, stream

    def answered(self, headers: Headers) -> None:
        self._raw.heads.setdefault(self._stream.number, {}).update(headers)

    def woken(self) -> None: ...

    def room(self) -> None: ...

    def broken(self, error: Exception) -> None:
        raise error


@contextlib.asynccontextmanager
async def raw_to(address: str) -> AsyncIterator[Raw]:
    host, _, port = address.rpartition(":")
    raw = Raw(*await asyncio.open_connection(host, int(port)))
    yield raw
    await raw.close()


async def test_whoever_is_refused_before_his_first_message_hears_why() -> None:
    """A grpcio client whose first write met the end of its call said "Internal error from Core", two of three times."""
    async with serving(interceptors=[Deny()]) as (_, address):
        channel: Any = grpc.aio.insecure_channel(address)
        found = []
        for _ in range(200):
            call = channel.stream_stream("/test.Test/Echo")()
            try:
                await call.write(b"1")
                await call.read()
            except grpc.aio.AioRpcError as error:
                found.append((error.code(), error.details()))
        assert found == [(grpc.StatusCode.PERMISSION_DENIED, "it is not for you")] * 200
        await channel.close()


async def test_who_says_nothing_is_told_after_a_while_and_when_too_many_do_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_FIRST_MESSAGE_S", 0.05)
    monkeypatch.setattr(server, "_UNHEARD_MOST", 3)
    async with serving(interceptors=[Deny()], streams_max=1_000) as (made, address), raw_to(address) as raw:
        await asyncio.sleep(0)
        calls = [raw.open() for _ in range(10)]
        await raw.status(calls[9])
        assert len(made.unheard) <= 3
        assert {await raw.status(each) for each in calls} == {"7"}
        assert not made.unheard
        # What comes of a call that is refused is dropped, however much it is.
        late = raw.open()
        raw.connection.send(late, b"x" * 60_000)
        assert await raw.status(late) == "7"


async def test_a_message_that_is_too_large_or_compressed_ends_its_call_alone() -> None:
    async with serving() as (_, address), raw_to(address) as raw:
        good, large, compressed = raw.open(), raw.open(), raw.open()
        encoded = raw.open([*HEADERS, ("grpc-encoding", "gzip")])
        prefix = struct.pack(">BI", 0, MESSAGE_BYTES_MOST + 1)
        raw.connection.say(frames.frame(frames.DATA, 0, large.number, prefix + b"x"))
        raw.connection.say(frames.frame(frames.DATA, 0, compressed.number, struct.pack(">BI", 1, 1) + b"x"))
        assert await raw.status(large) == "8"
        assert f"{MESSAGE_BYTES_MOST} are the most" in raw.heads[large.number]["grpc-message"]
        assert await raw.status(compressed) == "13"
        assert await raw.status(encoded) == "12"
        assert raw.heads[encoded.number]["grpc-accept-encoding"] == "identity"
        raw.connection.send(good, b"1")
        await eventually(lambda: good.inbound.is_unread, "it goes on")
        assert bytes(good.take() or b"") == b"1"


async def test_calls_that_are_begun_and_reset_end_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2023-44487: each costs the server more than its client."""
    async with serving(pace=CallPace(resets_most=100), streams_max=1_000) as (made, address):
        async with raw_to(address) as raw:
            for _ in range(150):
                stream = raw.open()
                raw.connection.send(stream, b"1")
                raw.connection.reset(stream, frames.CANCEL)
            await eventually(lambda: raw.is_gone, "it is ended")
        # Calls that have been there for a while may end as many at once as there are.
        monkeypatch.setattr(server, "_LOOK_S", 0.05)
        await eventually(lambda: not made.peers, "nobody is here")
        if made._looks is not None:
            made._looks.cancel()
            made._looks = None
        async with raw_to(address) as raw:
            streams = [raw.open() for _ in range(150)]
            await eventually(lambda: len(raw.heads) == 0 and len(made.peers) == 1, "they are begun")
            await asyncio.sleep(0.2)
            for stream in streams:
                raw.connection.reset(stream, frames.CANCEL)
            last = raw.open()
            raw.connection.send(last, b"1")
            await eventually(lambda: last.inbound.is_unread, "it is served")


async def test_who_says_nothing_or_answers_no_ping_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOOK_S", 0.05)
    monkeypatch.setattr(server, "_HELLO_S", 0.2)
    async with serving() as (made, address):
        host, _, port = address.rpartition(":")
        silent, silent_writer = await asyncio.open_connection(host, int(port))
        assert await silent.read() == b""
        # It begins, and reads nothing more: no answer to a ping.
        deaf, deaf_writer = await asyncio.open_connection(host, int(port))
        deaf_writer.write(frames.PREFACE + frames.settings({}))
        async with raw_to(address) as raw:
            await deaf.read()
            assert not raw.is_gone
            await asyncio.sleep(0.3)
            assert len(made.peers) == 1
        for writer in (silent_writer, deaf_writer):
            writer.close()


async def test_a_connection_without_calls_ends_after_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LOOK_S", 0.05)
    monkeypatch.setattr(server, "_IDLE_S", 0.3)
    async with serving() as (_, address), raw_to(address) as idle, raw_to(address) as busy:
        stream = busy.open()
        await eventually(lambda: idle.is_gone, "it is ended")
        assert idle.connection.is_gone
        assert not busy.is_gone
        busy.connection.send(stream, b"1")
        await eventually(lambda: stream.inbound.is_unread, "it is served")


async def test_a_thousand_calls_in_one_piece_hold_nobody_up_and_are_all_served() -> None:
    async with serving(streams_max=1_000) as (_, address), raw_to(address) as raw:
        held: list[Buffer] = []
        out = raw.connection._out
        raw.connection._out = held.extend
        streams = [raw.open() for _ in range(1_000)]
        for stream in streams:
            raw.connection.send(stream, b"1")
        raw.connection._out = out
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        turn()
        raw.writer.write(b"".join(held))
        await eventually(lambda: all(each.inbound.is_unread for each in streams), "all are answered")
        assert turns > 1_000 // 16


async def test_of_a_call_that_nobody_reads_small_messages_stay_as_they_came() -> None:
    async with serving(interceptors=[Idle()]) as (made, address), raw_to(address) as raw:
        stream = raw.open()
        await eventually(lambda: any(peer.calls for peer in made.peers.values()), "it is there")
        for _ in range(10_000):
            raw.connection.send(stream, b"")
        (theirs,) = (stream for peer in made.peers.values() for stream in peer.calls)
        await eventually(lambda: theirs.inbound.waiting_bytes == 50_000, "all have come")
        assert not theirs.inbound.messages
        assert theirs.take() == b""
        assert len(theirs.inbound.messages) == 9_999


class Idle(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Reads nothing."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        async def wait(_: Any, context: Any) -> None:
            await asyncio.Event().wait()

        return grpc.stream_stream_rpc_method_handler(wait)
