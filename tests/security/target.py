"""What is attacked: addresses of a running cluster, and sockets that come from an address of one's own."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

NARROW_TOPIC = "honest"
WIDE_TOPIC = "wide"
WIDE_PARTITIONS = 60
ATTACKER = "127.0.0.66"
"""Loopback has a whole network of addresses: the attacker's is not the honest clients'."""


@dataclass(frozen=True)
class Outcome:
    """What came of an attack."""

    refused: bool
    """The cluster did not do what was asked, or was done with it at a bounded cost."""
    said: str
    """What the attacker saw, in a few words."""


@dataclass(frozen=True)
class Target:
    """Where a cluster can be reached, as `host:port`."""

    gateway: str
    nodes: tuple[str, ...]
    """Direct listeners."""
    http: str
    small: bool = False
    """Ask for the short form."""

    def connect(self, source: str = ATTACKER, address: str = "", timeout_s: float = 60.0) -> socket.socket:
        """A connection to the gateway, or to `address`, from a loopback address of one's own."""
        host, _, port = (address or self.gateway).rpartition(":")
        return socket.create_connection((host, int(port)), timeout_s, source_address=(source, 0))


def frame(api_key: int, version: int, body: bytes, *, flexible: bool, correlation_id: int = 1) -> bytes:
    """A request with its length."""
    head = struct.pack(">hhih", api_key, version, correlation_id, 3) + b"bad" + (b"\x00" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def answer(connection: socket.socket) -> bytes | None:
    """One response without its length, None when the other side closes instead."""
    try:
        head = _exactly(connection, 4)
        return None if head is None else _exactly(connection, struct.unpack(">i", head)[0])
    except ConnectionError:
        return None


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def is_open(connection: socket.socket) -> bool:
    """Whether the other side still holds the connection (nothing is expected from it)."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
