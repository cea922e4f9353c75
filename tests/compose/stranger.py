"""Run in a container of nobody's, on the stack's network: knocks at every port and tells what came back.

`stranger.py HOST:PORT...` prints JSON: [where, how, bytes that were not a TLS alert, as hex]. Standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

ANSWER_S = 3.0
"""How long whoever says nothing is listened to."""
AT_ONCE = 32
HEARD_MAX = 1 << 16


def kafka(key: int, version: int, body: bytes) -> bytes:
    """A request of a client that has not signed in."""
    payload = struct.pack(">hhih", key, version, 7, 3) + b"foe" + body
    return struct.pack(">i", len(payload)) + payload


def proxy_v2() -> bytes:
    """A header by which it came from this machine."""
    addresses = (
        socket.inet_aton("172.17.0.1") + socket.inet_aton("172.17.0.2") + struct.pack(">HH", 4000, 9092)
    )
    return b"\r\n\r\n\x00\r\nQUIT\n" + bytes([0x21, 0x11]) + struct.pack(">H", len(addresses)) + addresses


HEADERS = {
    "": b"",
    "PROXY v1, ": b"PROXY TCP4 172.17.0.1 172.17.0.2 4000 9092\r\n",
    "PROXY v2, ": proxy_v2(),
}
ALL_TOPICS = kafka(3, 1, struct.pack(">i", -1))
ALL_GROUPS = kafka(16, 0, b"")
SAID = {
    "Metadata": ALL_TOPICS,
    "ListGroups": ALL_GROUPS,
    "HTTP": b"GET /v1/cluster HTTP/1.1\r\nHost: penstock\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]),
    "Raft": struct.pack(">I", 16) + b"\x00" * 16,
}


def heard(connection: socket.socket) -> bytes:
    """All that is said until the other side closes."""
    said = b""
    with contextlib.suppress(OSError):
        while len(said) < HEARD_MAX and (piece := connection.recv(4096)):
            said += piece
    return said


def without_alerts(said: bytes) -> bytes:
    """TLS tells in the clear that it did not understand: 7 bytes, nothing of ours."""
    while len(said) >= 7 and said[:1] == b"\x15" and said[3:5] == b"\x00\x02":
        said = said[7:]
    return said


def knock(host: str, port: int, header: bytes, said: bytes, *, tls: bool) -> bytes:
    """What comes back, decrypted."""
    with socket.create_connection((host, port), ANSWER_S) as plain:
        plain.settimeout(ANSWER_S)
        plain.sendall(header)
        if not tls:
            plain.sendall(said)
            return without_alerts(heard(plain))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if said is SAID["HTTP/2"]:
            context.set_alpn_protocols(["h2"])
        try:
            with context.wrap_socket(plain) as connection:
                connection.sendall(said)
                return heard(connection)
        except OSError:
            return b""


def main() -> None:
    """Every port, every way."""

    def ask(case: tuple[str, str, str, bool]) -> list[str]:
        address, header, what, tls = case
        host, _, port = address.rpartition(":")
        try:
            back = knock(host, int(port), HEADERS[header], SAID[what], tls=tls)
        except OSError as error:
            # Nobody listens there, or it went away meanwhile.
            return [address, f"{header}{what}", "", type(error).__name__]
        return [address, f"{header}{'TLS, ' if tls else ''}{what}", back.hex(), ""]

    cases = [
        (address, header, what, tls)
        for address in sys.argv[1:]
        for header in HEADERS
        for what in SAID
        for tls in (False, True)
    ]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        print(json.dumps(list(threads.map(ask, cases))))


if __name__ == "__main__":
    main()
