"""The PROXY protocol header, byte by byte."""

from __future__ import annotations

import random
import struct

import pytest

from penstock_frontend.listener.proxy_protocol import ProxyHeader, parse_proxy_header

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V6 = bytes(15) + b"\x01" + bytes(15) + b"\x02" + struct.pack(">HH", 1, 2)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 10 20\r\n", (("1.2.3.4", 10), ("5.6.7.8", 20))),
        (b"PROXY TCP6 ::1 ::2 10 20\r\n", (("::1", 10), ("::2", 20))),
        (b"PROXY UNKNOWN\r\n", (None, None)),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", (None, None)),
        (SIGNATURE + b"\x21\x21" + struct.pack(">H", len(V6)) + V6, (("::1", 1), ("::2", 2))),
        (SIGNATURE + b"\x20\x00\x00\x00", (None, None)),
        (SIGNATURE + b"\x21\x00\x00\x00", (None, None)),
        (SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216), (None, None)),
    ],
)
def test_headers_are_read_and_awaited(data: bytes, expected: tuple[object, object]) -> None:
    for cut in range(len(data)):
        assert parse_proxy_header(data[:cut]) is None
    header = parse_proxy_header(data + b"rest")
    assert header is not None
    assert (header.source, header.destination) == expected
    assert header.size_bytes == len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 10\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7 10 20\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 10 99999\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 -1 2\r\n",
        b"PROXY \xff\r\n",
        b"PROXY " + b"x" * 200,
        SIGNATURE + b"\x11\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x11\xff\xff",
        SIGNATURE + b"\x21\x11\x00\x05" + bytes(5),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_proxy_header(data)


def test_random_bytes_never_raise_anything_else() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(5000):
        start = rng.choice([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11\x00\x0c"])
        try:
            header = parse_proxy_header(start + rng.randbytes(rng.randrange(150)))
        except ValueError:
            continue
        assert header is None or isinstance(header, ProxyHeader)
