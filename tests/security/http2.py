"""HTTP/2 by hand, as far as gRPC needs it to begin a call: no library would leave one unfinished."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_HEADERS, END_STREAM, ACK = 0x4, 0x1, 0x1
HEAD_BYTES: Final = 9
_PATIENCE_S: Final = 5.0


def http2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _field(name: str, value: str) -> bytes:
    """A header, literal and not indexed (RFC 7541, 6.2.2); names and values are below 127 bytes here."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def call_headers(method: str, tls: bool = False) -> bytes:
    """The header block of a gRPC call."""
    fields = {
        ":method": "POST",
        ":scheme": "https" if tls else "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(_field(name, value) for name, value in fields.items())


OPENING: Final = PREFACE + http2_frame(SETTINGS, 0, 0)
"""What a client says first."""


def frames_in(data: bytes) -> tuple[list[tuple[int, int, int, bytes]], bytes]:
    """Whole frames as (kind, flags, stream, payload), and what is left."""
    found = []
    while len(data) >= HEAD_BYTES:
        size = int.from_bytes(data[:3], "big")
        if len(data) < HEAD_BYTES + size:
            break
        kind, flags, stream = struct.unpack_from(">BBI", data, 3)
        found.append((kind, flags, stream, data[HEAD_BYTES : HEAD_BYTES + size]))
        data = data[HEAD_BYTES + size :]
    return found, data


class Caller:
    """A connection that begins HTTP/2, and then calls. It answers pings, as a client does that wants to stay."""

    def __init__(self, connection: socket.socket) -> None:
        connection.sendall(OPENING)
        connection.setblocking(False)
        self._connection = connection
        self._calls: set[int] = set()
        self._next = 1
        self._data = b""
        self.is_open = True

    def begin(self, block: bytes, count: int) -> None:
        """Begin so many calls with these headers. Raises OSError when the connection is ended."""
        streams = range(self._next, self._next + 2 * count, 2)
        self._next = streams.stop
        self._connection.settimeout(_PATIENCE_S)
        try:
            self._connection.sendall(
                b"".join(http2_frame(HEADERS, END_HEADERS, stream, block) for stream in streams)
            )
        finally:
            self._connection.setblocking(False)
        self._calls.update(streams)

    def look(self) -> None:
        """Take what came."""
        try:
            while part := self._connection.recv(1 << 20):
                self._data += part
            self._over()
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            self._over()
        frames, self._data = frames_in(self._data)
        for kind, flags, stream, payload in frames:
            if kind == PING and not flags & ACK:
                with contextlib.suppress(OSError):
                    self._connection.send(http2_frame(PING, ACK, 0, payload))
            if kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
                self._calls.discard(stream)

    @property
    def left(self) -> int:
        """How many calls the other side has not ended."""
        return len(self._calls)

    def _over(self) -> None:
        self._calls.clear()
        self.is_open = False
