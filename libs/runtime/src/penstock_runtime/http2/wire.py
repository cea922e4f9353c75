"""A connection's bytes over a transport of the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock_runtime.http2.connection import IDLE_MOST, Connection
from penstock_runtime.http2.frames import BrokenPeer
from penstock_runtime.http2.inbound import Buffer

_SCRATCH: Final = memoryview(bytearray(256 * 1024))
"""Where every connection's reads go but those of long messages: the loop reads and hands over in one step."""
_NOTHING: Final = memoryview(b"")
WRITE_HIGH_BYTES: Final = 2 * 1024 * 1024
"""More than that in the transport, and writers wait."""
_REST_S: Final = 0.002


@dataclass(frozen=True)
class CallPace:
    """How fast calls may begin at a server; as given here, where anybody may come."""

    at_once: int = 8
    """In a turn of the loop. Each takes a tenth of a millisecond and more until it is served or refused."""
    rests: bool = True
    """A turn that was used up is followed by a rest; else only one in which calls were refused."""
    resets_most: int = IDLE_MOST
    """See `Connection`."""


class CallLine:
    """Calls begin a few in a turn of the loop, whosoever they are; connections with more wait in a line, and what they
    have sent behind those with them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pace: CallPace) -> None:
        self._loop = loop
        self._pace = pace
        self.left = pace.at_once
        """How many may begin in this turn."""
        self.rests = pace.rests
        self._waiting: deque[Wire] = deque()
        self._renewal: asyncio.Handle | None = None

    def begun(self, count: int) -> None:
        """So many have."""
        self.left -= count
        if self._renewal is None:
            self._renewal = self._loop.call_soon(self._end_turn)

    def wait(self, wire: Wire) -> None:
        """It goes on when it is its turn."""
        self._waiting.append(wire)
        if self._renewal is None:
            self._renewal = self._loop.call_soon(self._renew)

    def _end_turn(self) -> None:
        if self.left <= 0 and self.rests:
            self._renewal = self._loop.call_later(_REST_S, self._renew)
        else:
            self._renew()

    def _renew(self) -> None:
        self._renewal = None
        self.left = self._pace.at_once
        self.rests = self._pace.rests
        for _ in range(len(self._waiting)):
            if self.left <= 0:
                break
            self._waiting.popleft().catch_up()


class Wire(asyncio.BufferedProtocol):
    """Carries one connection."""

    def __init__(
        self,
        begun: Callable[[Wire, asyncio.Transport], Connection],
        over: Callable[[Wire, str], None],
        line: CallLine | None = None,
    ) -> None:
        """`begun` makes the connection once the transport is there; `over` is told why it is gone. `line`: of a
        server."""
        self._begun = begun
        self._over = over
        self._line = line
        self._transport: asyncio.Transport
        self._reason = ""
        self._is_direct = False
        self._room: asyncio.Future[None] | None = None
        self._held: list[Buffer] | None = None
        self._is_made = self._is_lost = False
        self.connection: Connection
        self.received_bytes = 0

    # Event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        transport.set_write_buffer_limits(WRITE_HIGH_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = self._begun(self, transport)
        self._is_made = True
        self.connection.begin()

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self.connection.room()
        self._is_direct = room is not None
        return _SCRATCH if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self._is_direct:
            self._do(lambda: self.connection.filled(nbytes))
        elif self._receive(_SCRATCH[:nbytes]):
            self._transport.pause_reading()

    def _receive(self, data: memoryview) -> bool:
        """Whether some of it waits."""
        connection, line = self.connection, self._line
        if line is None:
            self._do(lambda: connection.received(data))
        else:
            self._do(lambda: connection.received(data, line.left))
            if connection.begun:
                line.begun(connection.begun)
        if not connection.is_behind or self._is_lost or self._transport.is_closing():
            return False
        if line is None:
            self._loop.call_soon(self.catch_up)
        else:
            line.wait(self)
        return True

    def catch_up(self) -> None:
        """Go on with what has come."""
        if self._is_lost or self._transport.is_closing():
            return
        if not self._receive(_NOTHING) and not self._transport.is_closing():
            self._transport.resume_reading()

    def _do(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BrokenPeer as broken:
            # Who does not speak HTTP/2 hears nothing.
            if self.connection.has_begun:
                self.connection.go_away(broken.code, broken.reason)
            self.close(broken.reason)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self.resume_writing()
        reason = self._reason or (str(exc) if exc is not None else "the other side has closed the connection")
        self.connection.lost(reason)
        self._over(self, reason)

    # Owner

    @property
    def room(self) -> asyncio.Future[None] | None:
        """Done when more may be written; None: now."""
        return self._room

    def out(self, buffers: list[Buffer]) -> None:
        """Send; what is sent after the end is dropped."""
        if self._held is not None:
            self._held += buffers
        elif not self._transport.is_closing() and not self._is_lost:
            self._transport.writelines(buffers)

    def hold(self) -> None:
        """Send nothing until `release`, and all of it at once then. Wait for nothing in between."""
        self._held = []

    def release(self) -> None:
        """See `hold`."""
        held, self._held = self._held, None
        if held:
            self.out(held)

    def give_up(self, reason: str) -> None:
        """Whoever made the transport has ended it, and tells nobody. (uvloop does not, of a handshake that is
        cancelled when it is all but done.)"""
        if self._is_made:
            self._reason = self._reason or reason
            self.connection_lost(None)

    def close(self, reason: str) -> None:
        """End the connection once what was said is sent."""
        self._reason = self._reason or reason
        self._transport.close()

    def abort(self, reason: str) -> None:
        """End it at once."""
        self._reason = self._reason or reason
        self._transport.abort()
