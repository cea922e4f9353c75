"""The PROXY protocol header, versions 1 and 2: which client a balancer speaks for.

Pure. Source: "The PROXY protocol" by Willy Tarreau, revision 2020/03/05. The header must
be there when a listener expects one: a client that came past the balancer is refused.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

V1_BYTES_MAX = 107
V2_BYTES_MAX = 16 + 2048
"""TLVs after the addresses are skipped, but only so many."""

_V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_HEAD = struct.Struct(">12sBBH")


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """`size_bytes` of header were read; without addresses the connection speaks for itself."""

    size_bytes: int
    source: tuple[str, int] | None = None
    destination: tuple[str, int] | None = None


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`, None when more bytes are needed.

    Raises ValueError on anything else than a header.
    """
    if data[:12] == _V2_SIGNATURE[: len(data)]:
        return _parse_v2(data)
    if data[:6] == b"PROXY "[: len(data)]:
        return _parse_v1(data)
    raise ValueError("no PROXY protocol header")


_SHORTEST = 15
"""Bytes that every header has: `PROXY UNKNOWN` and the line's end in version 1."""


def bytes_of_header(data: bytes) -> int:
    """How many of the bytes that come after `data` belong to the header for certain; 0 when it is whole.

    What comes behind the header is another's to read (TLS above all), so none of it may be taken from the
    socket. -1 for version 1, whose end can only be looked for: look ahead (MSG_PEEK) up to V1_BYTES_MAX in all,
    and take up to the end of the line. Raises ValueError on anything else than a header.
    """
    if parse_proxy_header(data) is not None:
        return 0
    if len(data) < _SHORTEST:
        return _SHORTEST - len(data)
    if data[:6] == b"PROXY ":
        return -1
    if len(data) < _V2_HEAD.size:
        return _V2_HEAD.size - len(data)
    return _V2_HEAD.size + int(_V2_HEAD.unpack_from(data)[3]) - len(data)


def take_header_bytes(sock: socket.socket, data: bytes) -> tuple[bytes, ProxyHeader | None]:
    """Read on where `data` ended, and nothing behind the header: all bytes of it so far, and the header if whole.

    `sock` does not block. Raises ConnectionError when the peer has closed, ValueError on anything else than a
    header.
    """
    while True:
        wanted = bytes_of_header(data)
        if wanted == 0:
            return data, parse_proxy_header(data)
        try:
            if wanted < 0:
                ahead = sock.recv(V1_BYTES_MAX - len(data), socket.MSG_PEEK)
                end = (data + ahead).find(b"\r\n")
                wanted = len(ahead) if end < 0 else end + 2 - len(data)
            more = sock.recv(wanted) if wanted else b""
        except BlockingIOError:
            return data, None
        if not more:
            raise ConnectionResetError("closed before its PROXY header was whole")
        data += more


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, V1_BYTES_MAX)
    if end < 0:
        if len(data) >= V1_BYTES_MAX:
            raise ValueError("PROXY v1 header has no end")
        return None
    try:
        words = data[:end].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise ValueError("PROXY v1 header is not ASCII") from None
    if words[1:2] == ["UNKNOWN"]:
        return ProxyHeader(end + 2)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ValueError("PROXY v1 header is malformed")
    family = socket.AF_INET if words[1] == "TCP4" else socket.AF_INET6
    hosts = []
    for text in words[2:4]:
        try:
            hosts.append(socket.inet_ntop(family, socket.inet_pton(family, text)))
        except OSError:
            raise ValueError("PROXY v1 header has a bad address") from None
    ports = [int(p) if p.isascii() and p.isdigit() and len(p) <= 5 else -1 for p in words[4:6]]
    if any(not 0 <= p <= 65535 for p in ports):
        raise ValueError("PROXY v1 header has a bad port")
    return ProxyHeader(end + 2, (hosts[0], ports[0]), (hosts[1], ports[1]))


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_HEAD.size:
        return None
    _, version_command, family, length = _V2_HEAD.unpack_from(data)
    size = _V2_HEAD.size + length
    if version_command >> 4 != 2 or version_command & 0x0F > 1:
        raise ValueError("PROXY v2 header has an unknown version or command")
    if size > V2_BYTES_MAX:
        raise ValueError(f"PROXY v2 header of {size} bytes")
    if len(data) < size:
        return None
    if version_command & 0x0F == 0:  # LOCAL: the balancer's own health check
        return ProxyHeader(size)
    body = data[_V2_HEAD.size : size]
    if family == 0x11:
        return _addresses(size, socket.AF_INET, 4, body)
    if family == 0x21:
        return _addresses(size, socket.AF_INET6, 16, body)
    return ProxyHeader(size)


def _addresses(size: int, family: socket.AddressFamily, width: int, body: bytes) -> ProxyHeader:
    if len(body) < 2 * width + 4:
        raise ValueError("PROXY v2 header is too short for its addresses")
    source = socket.inet_ntop(family, body[:width])
    destination = socket.inet_ntop(family, body[width : 2 * width])
    source_port, destination_port = struct.unpack_from(">HH", body, 2 * width)
    return ProxyHeader(size, (source, source_port), (destination, destination_port))
