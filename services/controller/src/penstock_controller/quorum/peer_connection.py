"""One TCP connection between two controllers: frames in, frames out, never blocking.

    frame = length(u32) crc(u32) payload

Lives on the tick thread and on PySyncObj's poller. Frames are bounded, before the
hello far more tightly; what a slow peer does not take is bounded too. Memory grows with what
came, not with what was announced, and a frame that was begun has to go on (`crawls`). With TLS all of it is
inside a `TlsStream`.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pysyncobj.poller import POLL_EVENT_TYPE

from penstock_controller.quorum.peer_tls import PeerTls, TlsEnd, TlsFault, TlsStream, begins_tls

_FRAME = struct.Struct("<II")
FRAME_BYTES_MAX = 13 * 1024 * 1024
"""An append: PySyncObj's batch of 8 MiB, filled up by one command of at most 4 MiB, and their heads."""
HELLO_BYTES_MAX = 256
UNSENT_BYTES_MAX = 64 * 1024 * 1024
_READ_BYTES = 256 * 1024
PACE_S = 5.0
PACE_BYTES_MIN = 64 * 1024 * 5
"""What has to come of an unfinished frame in each PACE_S."""


class BadFrame(Exception):
    """Bytes that are no frame of ours."""


class PeerConnection:
    """A connected or connecting socket."""

    def __init__(
        self,
        poller: Any,
        sock: socket.socket,
        on_frame: Callable[[PeerConnection, memoryview], None],
        on_closed: Callable[[PeerConnection, str], None],
        now: Callable[[], float],
        *,
        connecting: bool,
        tls: TlsStream | None = None,
        tls_if_spoken: Callable[[], TlsStream] | None = None,
        may_shake_hands: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_shake_hands` is asked before each step of a TLS handshake; one that may not go on waits for a turn.
        `tls_if_spoken` is the TLS of a peer that begins with it; one that does not speaks in plain."""
        self._tls_if_spoken = tls_if_spoken
        self.tls = tls
        self._may_shake_hands = may_shake_hands
        self.peer_id: int | None = None
        self.frame_bytes_max = HELLO_BYTES_MAX
        self.connecting = connecting
        self.opened_at = self.last_read_at = self.last_sent_at = now()
        self._now = now
        self._poller = poller
        self._socket = sock
        self._fd = sock.fileno()
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._received = bytearray()
        self._received_bytes = 0
        self._pace = (self.opened_at, 0)
        self._unsent: bytearray = bytearray()
        self.closed = False
        self._subscribe()

    def send(self, payload: bytes) -> bool:
        """Queue a frame and try to send; False when the link is gone."""
        if self.closed:
            return False
        self.last_sent_at = self._now()
        head = _FRAME.pack(len(payload), zlib.crc32(payload))
        if len(self._unsent) + len(payload) > UNSENT_BYTES_MAX:
            self.close("peer does not take its messages")
            return False
        if self.tls is None:
            self._put(head + payload)
        else:
            try:
                self.tls.send(head + payload)
            except TlsFault as fault:
                self.close(f"tls: {fault}")
                return False
            self._put(self.tls.take())
        return not self.closed

    def _put(self, data: bytes) -> None:
        """Queue bytes for the socket and try to send them."""
        idle = not self._unsent
        self._unsent += data
        if data and idle and not self.connecting:
            self._flush()
            if self._unsent and not self.closed:
                self._subscribe()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._unsent

    @property
    def unsent_bytes(self) -> int:
        """What the system has not taken yet."""
        return len(self._unsent)

    def crawls(self) -> bool:
        """To be asked now and then: whether a frame was begun that comes too slowly to hold memory for it."""
        now = self._now()
        if not self._received:
            self._pace = (now, self._received_bytes)
        elif now - self._pace[0] >= PACE_S:
            came = self._received_bytes - self._pace[1]
            self._pace = (now, self._received_bytes)
            return came < PACE_BYTES_MIN
        return False

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._poller.unsubscribe(self._fd)
        self._socket.close()
        self._on_closed(self, reason)

    def _subscribe(self) -> None:
        if self.closed:
            return
        mask = POLL_EVENT_TYPE.READ | POLL_EVENT_TYPE.ERROR
        if self._unsent or self.connecting:
            mask |= POLL_EVENT_TYPE.WRITE
        self._poller.subscribe(self._fd, self._on_event, mask)

    def _on_event(self, _fd: int, mask: int) -> None:
        if self.closed:
            return
        if self.connecting:
            error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error or mask & POLL_EVENT_TYPE.ERROR:
                self.close("connection refused")
                return
            self.connecting = False
            self.last_read_at = self._now()
            if self.tls is not None:
                self.tls.start()
                self._put(self.tls.take())
            self._subscribe()
        if mask & POLL_EVENT_TYPE.READ:
            self._read()
        if not self.closed and mask & POLL_EVENT_TYPE.ERROR:
            self.close("connection lost")
        if not self.closed and mask & POLL_EVENT_TYPE.WRITE and self._unsent:
            self._flush()
            if not self._unsent and not self.closed:
                self._subscribe()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(error.strerror or "connection lost")

    def _read(self) -> None:
        """One read a turn: the poller is level-triggered, so a fast peer starves nobody."""
        tls = self.tls
        if self.closed:
            return
        undecided = self._tls_if_spoken is not None
        if (undecided or (tls is not None and not tls.is_established)) and not self._may_shake_hands():
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(error.strerror or "connection lost")
            return
        if not data:
            if tls is not None and not tls.is_established:
                self.close("tls: it ended the handshake; does it have [tls], and the same CA?")
            else:
                self.close("peer closed the connection")
            return
        self.last_read_at = self._now()
        if self._tls_if_spoken is not None:
            if begins_tls(data):
                tls = self.tls = self._tls_if_spoken()
            self._tls_if_spoken = None
        if tls is not None:
            decrypted = self._decrypt(tls, data)
            if decrypted is None:
                return
            data = decrypted
        self._received += data
        self._received_bytes += len(data)
        try:
            self._take_frames()
        except BadFrame as error:
            self.close(str(error))

    def _decrypt(self, tls: TlsStream, data: bytes) -> bytes | None:
        """What was said in plain; None when that ended the connection. Answers go out by themselves."""
        end = ""
        plain = b""
        try:
            plain = tls.receive(data)
        except TlsFault as fault:
            end = f"tls: {fault}"
        except TlsEnd:
            end = "peer closed the connection"
        self._put(tls.take())
        if end:
            self.close(end)
        return None if self.closed else plain

    def _take_frames(self) -> None:
        offset = 0
        received = self._received
        while not self.closed and len(received) - offset >= _FRAME.size:
            length, crc = _FRAME.unpack_from(received, offset)
            if not 0 < length <= self.frame_bytes_max:
                raise BadFrame(f"bad frame: length {length}, the most is {self.frame_bytes_max}")
            end = offset + _FRAME.size + length
            if end > len(received):
                break
            payload = bytes(received[offset + _FRAME.size : end])
            if zlib.crc32(payload) != crc:
                raise BadFrame("bad frame: checksum does not match")
            offset = end
            self._on_frame(self, memoryview(payload))
        del received[:offset]


@dataclass(frozen=True, slots=True)
class PeerNetwork:
    """Where connections between controllers come from."""

    getaddrinfo: Callable[..., Any] = socket.getaddrinfo
    socket: Callable[..., Any] = socket.socket
    connection: Callable[..., PeerConnection] = PeerConnection
    """Takes what `PeerConnection` takes."""
    tls: PeerTls | None = None
    """Certificates; None speaks in plain."""


REAL_NETWORK = PeerNetwork()
