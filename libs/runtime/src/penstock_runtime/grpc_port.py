"""The way in to a gRPC server: accept, bounds by who they are, TLS, then the connection.

Nothing is waited for in the accept loop: one that says nothing holds up none that comes after it. A handshake costs
half a millisecond of the loop and more, so it begins when its client's first bytes are there, and few in one turn; of
an address whose handshakes are for nothing they follow one another slowly (`HandshakePace`).

A port that takes TLS and plaintext, for the time in which a cluster goes from one to the other (decision 0044), looks
at the first byte, which stays unread: a TLS record of a handshake begins with 0x16, HTTP/2 with "P".

Whoever dials for nothing again and again waits with the kernel before he comes in (`KeptOut`, decision 0165).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock_runtime import syn_filter
from penstock_runtime.grpc_bounds import GrpcBounds
from penstock_runtime.grpc_calls import OpenCalls, kernel_key
from penstock_runtime.grpc_places import Place, Places
from penstock_runtime.handshakes import HandshakePace
from penstock_runtime.http2.server import Server
from penstock_runtime.http2.wire import Wire
from penstock_runtime.kept_out import KeptOut
from penstock_runtime.logs import CONSTANT, get_log
from penstock_runtime.memory import RoomForTls, Trimmer
from penstock_runtime.turns import LoopTurns

BACKLOG: Final = 32
"""Connections that the kernel has made and nobody has accepted: beyond, first packets are dropped, and come again a
second later."""
HANDSHAKE: Final = 0x16
"""The first byte of whoever begins a TLS handshake (RFC 8446, 5.1)."""
_HANDSHAKE_S: Final = 5.0
_SHUTDOWN_S: Final = 2.0
_TOGETHER: Final = 2
"""So many come in together while strangers are here,"""
_PAUSE_S: Final = 0.001
"""and then nobody for so long."""
_FEW: Final = 4
"""With fewer strangers than that newcomers do not wait for each other."""
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_DESCRIPTORS_PAUSE_S: Final = 0.1


class PortTls(NamedTuple):
    """How connections of a port are encrypted."""

    context: Callable[[], ssl.SSLContext]
    """That of the next one."""
    takes_plaintext: bool = False


class GrpcPort:
    """Lets connections in to one server, and counts them."""

    def __init__(
        self,
        server: Server,
        bounds: GrpcBounds,
        calls: OpenCalls,
        *,
        turns: LoopTurns,
        tls: PortTls | None = None,
        name: str = "gRPC port",
    ) -> None:
        """`calls` has to be among the server's interceptors. `name`: as people call the port."""
        self._server = server
        self._turns = turns
        self._tls = tls
        self._name = name
        self._loop = server.loop
        self._sockets: Sequence[socket.socket] = ()
        self._resting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._entering: set[asyncio.Task[None]] = set()
        self._places = Places(bounds, calls)
        self._pace = HandshakePace()
        self._kept_out = KeptOut(name, self._filter)
        self._trimmer = Trimmer()
        self._tls_room = RoomForTls()

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._places)

    def open(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on these listening sockets, which are the port's from now on."""
        self._sockets = sockets
        for each in sockets:
            self._watch(each)

    async def close(self) -> None:
        """Let nobody in any more. Safe to call twice."""
        for each in self._sockets:
            if (resting := self._resting.pop(each, None)) is None:
                self._loop.remove_reader(each)
            else:
                resting.cancel()
        tasks = list(self._entering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._kept_out.close()
        for each in self._sockets:
            each.close()
        self._sockets = ()

    def _filter(self, nobody_of: list[str], some_of: list[str]) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):  # a kernel that does not do it: the bounds are still there
                syn_filter.apply(each, nobody_of, some_of)

    def _watch(self, listening: socket.socket) -> None:
        self._resting.pop(listening, None)
        self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        # Not by `sock_accept`: whoever is cancelled while he waits for that may leave a connection behind.
        for _ in range(_TOGETHER):
            try:
                client, peer = listening.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    why = f"no file descriptors are left ({error.strerror}); raise ulimit -n"
                    if (place := self._places.make_room()) is not None:
                        self._tell(why)
                        self._end(place, why)
                    self._rest(listening, _NO_DESCRIPTORS_PAUSE_S)
                return
            self._come(client, peer)
        if self._places.count_strangers() > _FEW:
            # Somebody dials and calls nothing: those who are here are served in between.
            self._rest(listening, _PAUSE_S)

    def _rest(self, listening: socket.socket, for_s: float) -> None:
        self._loop.remove_reader(listening)
        self._resting[listening] = self._loop.call_later(for_s, self._watch, listening)

    def _come(self, client: socket.socket, peer: tuple[str, int]) -> None:
        visit = _Visit(client)
        place = Place(kernel_key(peer[0], peer[1]), visit.end)
        for gone, why in self._places.come(place):
            self._tell(why)
            self._end(gone, why)
            if gone is place:
                return
        task = visit.task = self._loop.create_task(self._enter(visit, place))
        self._entering.add(task)
        task.add_done_callback(partial(self._entered, visit, place))

    def _entered(self, visit: _Visit, place: Place, task: asyncio.Task[None]) -> None:
        self._entering.discard(task)
        visit.task = None
        if visit.wire is None:
            visit.client.close()
            self._places.left(place)
        elif visit.ended_for:
            visit.wire.abort(visit.ended_for)

    def _end(self, place: Place, why: str) -> None:
        if self._places.is_stranger(place):
            self._kept_out.was_for_nothing(place.network)
        self._trimmer.freed()
        place.end(why)

    def _tell(self, why: str) -> None:
        text = f"a connection of {self._name} ended: {why}"
        get_log().warning(text, **{CONSTANT: "connections of the gRPC port ended: there are too many"})

    async def _enter(self, visit: _Visit, place: Place) -> None:
        client = visit.client
        client.setblocking(False)
        left = partial(self._left, place)
        try:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            context = await self._context(client)
            wire = self._server.protocol(left)
            try:
                if context is None:
                    await self._loop.connect_accepted_socket(lambda: wire, client)
                else:
                    await self._shake_hands(wire, client, place, context)
                visit.wire = wire
            finally:
                if visit.wire is None:
                    wire.give_up("it was ended on its way in")
        except (OSError, TimeoutError, ssl.SSLError, EOFError):
            pass  # whoever dialled sees that the connection ends

    async def _context(self, client: socket.socket) -> ssl.SSLContext | None:
        """By what the connection is encrypted; None: it is not. Raises EOFError when it is not what the port takes."""
        tls = self._tls
        if tls is None:
            return None
        async with asyncio.timeout(_HANDSHAKE_S):
            await self._readable(client)
        first = client.recv(1, socket.MSG_PEEK)
        if not first:
            raise EOFError
        if first[0] == HANDSHAKE:
            return tls.context()
        if not tls.takes_plaintext:
            text = f"a connection of {self._name} ended: it speaks no TLS, and this port takes nothing else"
            get_log().warning(text, **{CONSTANT: "connections of the gRPC port ended: they speak no TLS"})
            raise EOFError
        return None

    async def _shake_hands(
        self, wire: Wire, client: socket.socket, place: Place, context: ssl.SSLContext
    ) -> None:
        wait_s = self._pace.wait_s(place.network, self._loop.time(), _HANDSHAKE_S)
        if wait_s is None:
            raise EOFError
        if wait_s:
            await asyncio.sleep(wait_s)
        await self._turns.next()
        wasted = True
        self._tls_room.make()
        try:
            await self._loop.connect_accepted_socket(
                lambda: wire,
                client,
                ssl=context,
                ssl_handshake_timeout=_HANDSHAKE_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
            wasted = False  # `_left` says whether it has called
        finally:
            if wasted:
                self._pace.wasted(place.network, self._loop.time())

    def _left(self, place: Place) -> None:
        if self._tls is not None and self._places.is_stranger(place):
            self._pace.wasted(place.network, self._loop.time())
        self._places.left(place)

    async def _readable(self, client: socket.socket) -> None:
        ready = asyncio.Event()
        self._loop.add_reader(client, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(client)


class _Visit:
    """A connection on its way in, and then there."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.task: asyncio.Task[None] | None = None
        self.wire: Wire | None = None
        self.ended_for = ""

    def end(self, why: str) -> None:
        self.ended_for = why
        if self.wire is not None:
            self.wire.abort(why)
        elif self.task is not None:
            self.task.cancel()
        else:
            self.client.close()
