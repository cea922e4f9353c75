"""Run in a container of nobody's, on the stack's network: knocks at every port and tells what came back.

`stranger.py HOST:PORT...` prints JSON: [where, how, bytes that were not a TLS alert, as hex, error]. Standard library
alone. In one thread: with many of them the process once ended with its heap corrupted (exit 139), after all was
answered. Seen once and not again; likely OpenSSL clearing up for the process beside threads that were just ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import sys

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


async def heard(reader: asyncio.StreamReader) -> bytes:
    """All that is said until the other side closes, or has said nothing for `ANSWER_S`."""
    said = b""
    with contextlib.suppress(OSError):
        while len(said) < HEARD_MAX and (piece := await asyncio.wait_for(reader.read(4096), ANSWER_S)):
            said += piece
    return said


def without_alerts(said: bytes) -> bytes:
    """TLS tells in the clear that it did not understand: 7 bytes, nothing of ours."""
    while len(said) >= 7 and said[:1] == b"\x15" and said[3:5] == b"\x00\x02":
        said = said[7:]
    return said


async def knock(host: str, port: int, header: bytes, said: bytes, *, tls: bool) -> bytes:
    """What comes back, decrypted."""
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), ANSWER_S)
    try:
        writer.write(header)
        if not tls:
            writer.write(said)
            return without_alerts(await heard(reader))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if said is SAID["HTTP/2"]:
            context.set_alpn_protocols(["h2"])
        try:
            await writer.start_tls(context, ssl_handshake_timeout=ANSWER_S)
            writer.write(said)
            return await heard(reader)
        except OSError:
            return b""
    finally:
        writer.transport.abort()


async def every_way(addresses: list[str]) -> list[list[str]]:
    """What came of every case at every address, `AT_ONCE` at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def ask(address: str, header: str, what: str, *, tls: bool) -> list[str]:
        host, _, port = address.rpartition(":")
        how = f"{header}{'TLS, ' if tls else ''}{what}"
        async with room:
            try:
                back = await knock(host, int(port), HEADERS[header], SAID[what], tls=tls)
            except OSError as error:
                # Nobody listens there, or it went away meanwhile.
                return [address, how, "", type(error).__name__]
        return [address, how, back.hex(), ""]

    return await asyncio.gather(
        *(
            ask(address, header, what, tls=tls)
            for address in addresses
            for header in HEADERS
            for what in SAID
            for tls in (False, True)
        )
    )


if __name__ == "__main__":
    print(json.dumps(asyncio.run(every_way(sys.argv[1:]))))
