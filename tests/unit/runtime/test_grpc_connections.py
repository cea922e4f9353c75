"""Which connections of a gRPC port are ended when there are too many."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock_runtime import grpc_connections
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.grpc_calls import OpenCalls, Peer, PeerKey
from penstock_runtime.grpc_connections import Connection, GrpcConnections
from penstock_runtime.grpc_tools import serve
from penstock_runtime.lifecycle import Lifecycle
from security.http2 import Caller, call_headers
from security.target import dial, has_come
from support.waiting import eventually

METHOD = "/penstock.v1.Gateway/Produce"


class Port:
    """A port as gRPC has one: connections that somebody else has accepted."""

    def __init__(self, ends: contextlib.ExitStack, bounds: GrpcBounds) -> None:
        self._ends = ends
        self._listening = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.number = self._listening.getsockname()[1]
        self.calls = OpenCalls(bounds)
        self.connections = GrpcConnections(self.number, bounds, self.calls)
        self.accepted: dict[PeerKey, socket.socket] = {}

    def dial(self, host: str) -> PeerKey:
        where = ("127.0.0.1", self.number)
        own = self._ends.enter_context(socket.create_connection(where, 10, source_address=(host, 0)))
        key = PeerKey(*own.getsockname())
        self.accepted[key] = self._ends.enter_context(self._listening.accept()[0])
        return key

    def called(self, key: PeerKey, *, open_calls: int = 0, last_call: int = 1, is_ours: bool = False) -> None:
        peer = self.calls.peers[key] = Peer(key)
        peer.open_calls, peer.last_call, peer.is_ours = open_calls, last_call, is_ours

    async def left(self) -> list[PeerKey]:
        """Who is here after a look; the others are at their end."""
        here = {each.key for each in await self.connections.look()}
        for key, accepted in self.accepted.items():
            accepted.setblocking(False)
            if key in here:
                with pytest.raises(BlockingIOError):
                    accepted.recv(1)
            else:
                assert accepted.recv(1) == b""
        return [key for key in self.accepted if key in here]


@pytest.fixture
def ends() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


async def test_of_those_who_have_not_called_the_address_with_most_loses_its_oldest(
    ends: contextlib.ExitStack,
) -> None:
    port = Port(ends, GrpcBounds(strangers_max=4))
    oldest = port.dial("127.0.0.2")
    assert await port.left() == [oldest]
    younger = [port.dial("127.0.0.2") for _ in range(3)]
    assert await port.left() == [oldest, *younger]
    other = port.dial("127.0.0.3")
    assert await port.left() == [*younger, other]
    # Who has called is none of them.
    port.called(port.dial("127.0.0.2"))
    assert len(await port.left()) == 5


async def test_of_an_address_the_unused_go_first_then_the_newest_and_never_our_own(
    ends: contextlib.ExitStack,
) -> None:
    port = Port(ends, GrpcBounds(connections_per_address_max=3))
    ours, busy, used, unused = (port.dial("127.0.0.2") for _ in range(4))
    port.called(ours, is_ours=True, last_call=1)
    port.called(busy, open_calls=1, last_call=2)
    port.called(used, last_call=9)
    port.called(unused, last_call=3)
    elsewhere = port.dial("127.0.0.3")
    assert await port.left() == [ours, busy, used, elsewhere]
    new = port.dial("127.0.0.2")
    port.called(new, open_calls=1, last_call=20)
    assert await port.left() == [ours, busy, elsewhere, new]
    newest = port.dial("127.0.0.2")
    port.called(newest, open_calls=1, last_call=21)
    assert await port.left() == [ours, busy, elsewhere, new]
    more = [port.dial("127.0.0.2") for _ in range(5)]
    for key in more:
        port.called(key, is_ours=True)
    assert await port.left() == [ours, elsewhere, *more]


def here(*hosts: str) -> list[Connection]:
    return [Connection(n, n, PeerKey(host, n), n) for n, host in enumerate(hosts)]


def chosen_of(bounds: GrpcBounds, *hosts: str, strangers: bool = False) -> list[str]:
    calls = OpenCalls(bounds)
    connections = here(*hosts)
    for each in () if strangers else connections:
        peer = calls.peers[each.key] = Peer(each.key)
        peer.last_call = each.order
    return [each.key.host for each, _ in GrpcConnections(1, bounds, calls)._choose(connections)]


def test_addresses_of_one_64_are_one_where_somebody_has_to_go() -> None:
    many = [f"2001:db8::{n}" for n in range(5)]
    bounds = GrpcBounds(strangers_max=6, connections_max=6)
    for strangers in (True, False):
        gone = chosen_of(bounds, "192.0.2.1", "192.0.2.1", *many, "192.0.2.2", strangers=strangers)
        assert gone == many[:2]


def test_a_64_has_four_times_the_connections_of_one_of_its_addresses() -> None:
    bounds = GrpcBounds(connections_per_address_max=2)
    assert chosen_of(bounds, *["2001:db8::1"] * 3) == ["2001:db8::1"]
    assert chosen_of(bounds, *[f"2001:db8::{n}" for n in range(8)], "2001:db8:0:1::1") == []
    assert chosen_of(bounds, *[f"2001:db8::{n}" for n in range(9)]) == ["2001:db8::0"]
    connections = here(*[f"2001:db8::{n}" for n in range(9)])
    port = GrpcConnections(1, bounds, OpenCalls(bounds))
    assert port._which(connections).startswith(
        "9 are of 2001:db8::/64, and grpc_connections_per_address_max = 2"
    )
    assert port._room(connections[:7]) == 1


async def test_of_all_the_address_with_most_loses(ends: contextlib.ExitStack) -> None:
    port = Port(ends, GrpcBounds(connections_max=4))
    few = [port.dial(f"127.0.0.{n}") for n in (3, 4)]
    many = [port.dial("127.0.0.2") for _ in range(4)]
    for n, key in enumerate([*few, *many]):
        port.called(key, last_call=n)
    assert await port.left() == [*few, *many[2:]]


async def test_another_socket_with_the_number_of_one_that_is_gone_is_left_alone(
    ends: contextlib.ExitStack,
) -> None:
    port, other = Port(ends, GrpcBounds(strangers_max=1)), Port(ends, GrpcBounds())
    key = port.dial("127.0.0.2")
    (known,) = await port.connections.look()
    replaced = port.accepted.pop(key)
    mine = other.accepted[other.dial("127.0.0.2")]
    # As when it was closed and its number given away, after the look and before the end.
    os.dup2(mine.fileno(), replaced.fileno())
    assert not port.connections.ended
    assert not port.connections._end(known)
    port.dial("127.0.0.2")
    assert len(await port.left()) == 1
    replaced.setblocking(False)
    with pytest.raises(BlockingIOError):
        replaced.recv(1)


async def test_peers_that_are_gone_are_forgotten_unless_they_call(ends: contextlib.ExitStack) -> None:
    port = Port(ends, GrpcBounds())
    here, gone, came_since = port.dial("127.0.0.2"), PeerKey("127.0.0.9", 1), PeerKey("127.0.0.9", 2)
    port.calls.calls = 5
    port.called(here, last_call=3)
    port.called(gone, last_call=4)
    port.called(came_since, last_call=5)
    await port.connections.look()
    assert set(port.calls.peers) == {here, came_since}


async def never(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


def add(server: grpc.aio.Server) -> None:
    handlers = {"Produce": grpc.stream_stream_rpc_method_handler(never)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("penstock.v1.Gateway", handlers),))


@pytest.mark.parametrize("by_lifecycle", [False, True])
async def test_connections_to_a_server_that_call_nothing_make_room(by_lifecycle: bool) -> None:
    lifecycle = Lifecycle("test")
    if by_lifecycle:
        lifecycle.make_current()
        lifecycle.start_ticking()
    bounds = GrpcBounds(strangers_max=20)
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True, bounds=bounds)
    channel: Any = grpc.aio.insecure_channel(where.address)
    call = channel.stream_stream("/penstock.v1.Gateway/Produce")()
    await call.write(b"1")
    assert await call.read() == b"1"
    with contextlib.ExitStack() as ends:

        def connect() -> list[Caller]:
            callers = []
            for _ in range(100):
                raw = socket.create_connection((where.host, where.port), 30)
                callers.append(Caller(ends.enter_context(raw)))
            return callers

        callers = await asyncio.to_thread(connect)

        def held() -> int:
            for caller in callers:
                if caller.is_open:
                    caller.look()
            return sum(caller.is_open for caller in callers)

        await eventually(lambda: held() <= 20, "idle connections are ended")
        assert held() > 0
        await call.write(b"2")
        assert await call.read() == b"2"
    await channel.close(None)
    await server.stop(None)
    await server.stop(None)  # as by the role and by its lifecycle
    lifecycle.stop_ticking()
    await lifecycle.end_all()


async def test_clients_of_a_listener_make_nobody_look_for_those_of_grpc(
    ends: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = GrpcConnections.look

    async def counted(self: GrpcConnections) -> list[Connection]:
        looks.append(len(clients))
        return await look(self)

    monkeypatch.setattr(GrpcConnections, "look", counted)
    clients: list[socket.socket] = []
    lifecycle = Lifecycle("test")
    lifecycle.holds_descriptors(lambda: len(clients))
    lifecycle.make_current()
    port = Port(ends, GrpcBounds(strangers_max=20))
    port.connections.start()
    clients += [ends.enter_context(socket.socket()) for _ in range(200)]
    port.connections.tick()
    await asyncio.sleep(0)
    assert not looks
    for _ in range(30):
        port.dial("127.0.0.2")
    port.connections.tick()
    await eventually(lambda: bool(looks), "too many have come to the port itself")
    await eventually(lambda: port.connections._looking is None, "it has looked")
    assert len(await port.left()) == 20
    await port.connections.stop()


async def test_who_dials_for_nothing_waits_and_nobody_else_does() -> None:
    bounds = GrpcBounds(strangers_max=20)
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True, bounds=bounds)
    with contextlib.ExitStack() as ends:

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


async def test_no_filter_is_left_with_a_listener_that_nobody_ends(ends: contextlib.ExitStack) -> None:
    port = Port(ends, GrpcBounds(strangers_max=2))
    port.connections.start()
    for _ in range(9):
        port.dial("127.0.1.1")
    await port.connections.look()
    late = ends.enter_context(dial(f"127.0.0.1:{port.number}", "127.0.1.1"))
    assert not has_come(late)
    await port.connections.stop()
    assert has_come(ends.enter_context(dial(f"127.0.0.1:{port.number}", "127.0.1.1")))


async def test_whoever_calls_does_not_wait(ends: contextlib.ExitStack) -> None:
    port = Port(ends, GrpcBounds(connections_per_address_max=3))
    port.connections.start()
    for _ in range(9):
        port.called(port.dial("127.0.1.1"))
    assert len(await port.left()) == 3
    assert has_come(ends.enter_context(dial(f"127.0.0.1:{port.number}", "127.0.1.1")))
    await port.connections.stop()


async def test_a_stream_too_many_of_a_connection_is_refused_by_grpc() -> None:
    bounds = GrpcBounds(calls_per_address_max=50)
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True, bounds=bounds)
    with await asyncio.to_thread(socket.create_connection, (where.host, where.port), 30) as raw:
        caller = Caller(raw)
        for _ in range(40):
            await asyncio.to_thread(caller.begin, call_headers(METHOD), 10)
            caller.look()

        def left() -> int:
            caller.look()
            return caller.left

        await eventually(lambda: left() <= 50, "calls beyond the bound are ended")
        assert caller.is_open
    await server.stop(None)


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


async def test_with_no_descriptor_left_there_is_made_room_all_the_same(ends: contextlib.ExitStack) -> None:
    port = Port(ends, GrpcBounds(strangers_max=4))
    port.connections.start()
    before = [port.dial("127.0.0.2")]
    assert await port.left() == before
    more = [port.dial("127.0.0.2") for _ in range(7)]
    with no_descriptor_left():
        assert await port.left() == more[3:]
    await port.connections.stop()


async def test_what_cannot_be_looked_at_does_not_stop_the_ticks(
    ends: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifecycle = Lifecycle("test")
    lifecycle.make_current()
    port = Port(ends, GrpcBounds())
    port.connections.start()

    def none_left() -> int:
        # Before Linux 6.2 they are counted by listing them, which takes one.
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(grpc_connections, "_descriptor_count", none_left)
    lifecycle.start_ticking()
    await eventually(lambda: lifecycle.loop_ticks >= 3, "the lifecycle ticks")
    assert lifecycle.unhandled_errors._value.get() == 0
    lifecycle.stop_ticking()
    await port.connections.stop()


class OldProc(type(Path())):  # type: ignore[misc]
    """The directory before Linux 6.2, whose size is 0: descriptors are counted by listing them."""

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        return SimpleNamespace(st_size=0)


async def test_where_descriptors_are_counted_by_listing_them_that_is_seldom(
    ends: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, now_s = [], 0.0

    def descriptors() -> list[int]:
        listed.append(now_s)
        return list(range(20_000))

    monkeypatch.setattr(grpc_connections, "_DESCRIPTORS", OldProc("/proc/self/fd"))
    monkeypatch.setattr(grpc_connections, "_descriptors", descriptors)
    monkeypatch.setattr(grpc_connections, "_loop_s", lambda: now_s)
    port = Port(ends, GrpcBounds())
    Lifecycle("test").make_current()
    port.connections.start()
    listed.clear()
    # Each listing of so many keeps the loop for 17 ms.
    for tick in range(300):
        now_s = tick / 10
        port.connections.tick()
    assert 2 <= len(listed) <= 30
    await port.connections.stop()


async def test_connections_to_the_same_port_of_another_address_are_none_of_the_servers(
    ends: contextlib.ExitStack,
) -> None:
    bounds = GrpcBounds(strangers_max=1)
    server, where = await serve("127.0.0.1:0", add, allow_insecure_bind=True, bounds=bounds)

    def held(ones: list[socket.socket]) -> int:
        count = 0
        for one in ones:
            with contextlib.suppress(ConnectionError):
                try:
                    count += one.recv(1 << 16) != b""
                except BlockingIOError:
                    count += 1
        return count

    try:
        # Another listener of the process, or of another role in it: a Kafka one, say.
        listening = ends.enter_context(socket.create_server(("127.0.0.5", where.port)))
        dialled, others = [], []
        for _ in range(4):
            ends.enter_context(socket.create_connection(("127.0.0.5", where.port), 30))
            others.append(ends.enter_context(listening.accept()[0]))
        for _ in range(3):
            dialled.append(ends.enter_context(socket.create_connection((where.host, where.port), 30)))
        for each in (*dialled, *others):
            each.setblocking(False)
        await eventually(lambda: held(dialled) <= 1, "the server's own are ended")
        assert (held(dialled), held(others)) == (1, 4)
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ("", ""),
        ("0.0.0.0", ""),
        ("::", ""),
        ("localhost", ""),
        ("127.0.0.1", "127.0.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_an_address_that_a_port_is_bound_to_is_named_as_the_kernel_does(bound: str, told: str) -> None:
    assert grpc_connections._only_host(bound) == told
