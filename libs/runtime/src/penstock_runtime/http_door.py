"""What an HTTP connection may take before and between its requests.

A few connections, a short time for a request to come whole, small headers: our requests are all reads without
a body, so whatever comes is header until its empty line. In front of aiohttp, which knows none of these bounds.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

CONNECTIONS_MAX: Final = 64
REQUEST_TIMEOUT_S: Final = 10.0
"""From the connection, or from the first byte of a later request, to the end of the header."""
HEADER_BYTES_MAX: Final = 8 * 1024

_NO_DESCRIPTORS_PAUSE_S: Final = 0.1

_END: Final = b"\r\n\r\n"
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)


class HttpDoor:
    """Makes the protocols of one server's connections, and counts them."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self.make = make
        self.open: set[BoundedHttp] = set()

    def __call__(self) -> BoundedHttp:
        """A protocol for the next connection."""
        return BoundedHttp(self)


async def accept_tls(listening: socket.socket, door: HttpDoor, context: Callable[[], ssl.SSLContext]) -> None:
    """Let in who comes, each by the context of that moment, until cancelled; then the port is closed."""
    loop = asyncio.get_running_loop()
    greeted: dict[asyncio.Task[None], socket.socket] = {}
    try:
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_NO_DESCRIPTORS_PAUSE_S)
                continue
            if len(greeted) + len(door.open) >= CONNECTIONS_MAX:
                client.close()
                continue
            task = loop.create_task(_greet(client, door, context()))
            greeted[task] = client
            task.add_done_callback(greeted.pop)
    finally:
        listening.close()
        for task in list(greeted):
            task.cancel()


async def _greet(client: socket.socket, door: HttpDoor, context: ssl.SSLContext) -> None:
    """Shake hands with one of them."""
    loop = asyncio.get_running_loop()
    try:
        await loop.connect_accepted_socket(door, client, ssl=context, ssl_handshake_timeout=REQUEST_TIMEOUT_S)
    except (OSError, ssl.SSLError, asyncio.CancelledError):
        # No TLS, another CA, or it went away: nobody of whom anything was heard.
        client.close()


class BoundedHttp(asyncio.Protocol):
    """One connection. Everything goes on to the protocol behind it, which ends with the connection."""

    def __init__(self, door: HttpDoor) -> None:
        self._door = door
        self._inner: Any = None
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse one too many."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._door.open) >= CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._door.open.add(self)
        self._inner = self._door.make()
        self._inner.connection_made(transport)
        self._expect()

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
        self._door.open.discard(self)
        if self._inner is not None:
            self._inner.connection_lost(exc)
