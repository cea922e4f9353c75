"""What an HTTP connection may take before and between its requests.

A few connections, a short time for a request to come whole, small headers: our requests are all reads without
a body, so whatever comes is header until its empty line. In front of aiohttp, which knows none of these bounds.

When all connections are taken, the address with most of them makes room for one with fewer: whatever one address
does, health and metrics are there for others.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from penstock_core.security.login_limits import network
from penstock_runtime import syn_filter
from penstock_runtime.kept_out import KeptOut
from penstock_runtime.memory import RoomForTls

CONNECTIONS_MAX: Final = 64
REQUEST_TIMEOUT_S: Final = 10.0
"""From the connection, or from the first byte of a later request, to the end of the header."""
HEADER_BYTES_MAX: Final = 8 * 1024

_NO_DESCRIPTORS_PAUSE_S: Final = 0.1

_END: Final = b"\r\n\r\n"
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)


class Place(Protocol):
    """One of the connections that there are."""

    host: str
    """Whose it is."""
    asked_s: float
    """When the last whole request came by it; 0: none did."""

    def end(self) -> None:
        """Close it."""


class HttpDoor:
    """Makes the protocols of one server's connections, and counts them."""

    def __init__(
        self, make: Callable[[], asyncio.Protocol], listening: Sequence[socket.socket] = (), port: str = ""
    ) -> None:
        """`listening`: where they come from; `port`: as people call it."""
        self.make = make
        self._kept_out = KeptOut(port, self._filter)
        self._listening = listening
        self.places: dict[Place, None] = {}
        """The oldest first."""

    def __call__(self) -> BoundedHttp:
        """A protocol for the next connection."""
        return BoundedHttp(self)

    def takes(self, place: Place) -> bool:
        """Count one more, where there is room for it or can be made."""
        if len(self.places) >= CONNECTIONS_MAX and not self._make_room(place.host):
            self._kept_out.was_for_nothing(place.host)
            return False
        self.places[place] = None
        return True

    def _make_room(self, host: str) -> bool:
        held = Counter(place.host for place in self.places)
        whose, most = held.most_common(1)[0]
        own = held[host]
        # With one more the other would have fewer than this one: they would take it from each other for ever.
        if most <= own or (own and most == own + 1):
            return False
        gone = min((place for place in self.places if place.host == whose), key=lambda place: place.asked_s)
        del self.places[gone]
        gone.end()
        if not gone.asked_s:
            self._kept_out.was_for_nothing(whose)
        return True

    def _filter(self, nobody_of: list[str], some_of: list[str]) -> None:
        for each in self._listening:
            with contextlib.suppress(OSError):  # closed, or a kernel that does not do it
                syn_filter.apply(each, nobody_of, some_of)

    def close(self) -> None:
        """Nobody waits any more."""
        self._kept_out.close()

    def let_go(self, place: Place) -> None:
        """It is over. Safe to call twice."""
        self.places.pop(place, None)


class _Greeting:
    """A connection whose handshake is not done."""

    asked_s = 0.0

    def __init__(self, host: str, client: socket.socket) -> None:
        self.host = host
        self._client = client
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()
        if not self.has_begun:
            self._client.close()  # a task that has not begun closes nothing


async def accept_tls(listening: socket.socket, door: HttpDoor, context: Callable[[], ssl.SSLContext]) -> None:
    """Let in who comes, each by the context of that moment, until cancelled; then the port is closed."""
    loop = asyncio.get_running_loop()
    greeted: set[asyncio.Task[None]] = set()
    room = RoomForTls()
    try:
        while True:
            try:
                client, address = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_NO_DESCRIPTORS_PAUSE_S)
                continue
            greeting = _Greeting(network(str(address[0])), client)
            if not door.takes(greeting):
                client.close()
                continue
            greeting.task = loop.create_task(_greet(client, door, greeting, context(), room))
            greeted.add(greeting.task)
            greeting.task.add_done_callback(greeted.discard)
    finally:
        listening.close()
        for task in list(greeted):
            task.cancel()


async def _greet(
    client: socket.socket, door: HttpDoor, greeting: _Greeting, context: ssl.SSLContext, room: RoomForTls
) -> None:
    """Shake hands with one of them."""
    loop = asyncio.get_running_loop()
    greeting.has_begun = True

    def make() -> BoundedHttp:
        return BoundedHttp(door, greeting)

    room.make()
    try:
        await loop.connect_accepted_socket(make, client, ssl=context, ssl_handshake_timeout=REQUEST_TIMEOUT_S)
    except (OSError, ssl.SSLError, asyncio.CancelledError):
        # No TLS, another CA, or it went away: nobody of whom anything was heard.
        client.close()
    finally:
        door.let_go(greeting)


class BoundedHttp(asyncio.Protocol):
    """One connection. Everything goes on to the protocol behind it, which ends with the connection."""

    def __init__(self, door: HttpDoor, greeting: Place | None = None) -> None:
        """`greeting`: the place that it had until its handshake was done."""
        self.host = ""
        self.asked_s = 0.0
        self._door = door
        self._greeting = greeting
        self._inner: Any = None
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or refuse one too many."""
        self._transport = cast(asyncio.Transport, transport)
        if self._greeting is not None:
            self._door.let_go(self._greeting)
        peer = transport.get_extra_info("peername")
        self.host = network(str(peer[0])) if peer else ""
        if not self._door.takes(self):
            self._transport.abort()
            return
        self._inner = self._door.make()
        self._inner.connection_made(transport)
        self._expect()

    def end(self) -> None:
        """Close it."""
        self._transport.abort()

    def _expect(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(REQUEST_TIMEOUT_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Count what is header, hand on."""
        if self._inner is None:
            return
        joined = self._tail + data
        end = joined.rfind(_END)
        if end >= 0:
            # One or more requests are whole; what follows begins another.
            self.asked_s = asyncio.get_running_loop().time()
            self._header_bytes = len(joined) - end - len(_END)
            self._tail = joined[-3:] if self._header_bytes >= 3 else joined[end + len(_END) :]
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        else:
            self._header_bytes += len(data)
            self._tail = joined[-3:]
        if self._header_bytes > HEADER_BYTES_MAX:
            self._transport.write(_TOO_LARGE)
            self._transport.close()
            return
        if self._header_bytes:
            self._expect()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand on."""
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        """Hand on."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on, and make room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._door.let_go(self)
        if self._inner is not None:
            self._inner.connection_lost(exc)
