"""Half a million resources in one request."""

from __future__ import annotations

from security.target import Outcome, Target, answer, frame

TEXT = "one DescribeConfigs of 2 MiB that names 524,000 resources"
RESOURCES = 524_000


def run(target: Target) -> Outcome:
    """Ask once."""
    count = 30_000 if target.small else RESOURCES
    # Type 2 (topic), an empty name, no keys, no tagged fields; lengths are varints, one higher.
    body = _uvarint(count + 1) + b"\x02\x01\x00\x00" * count + b"\x00\x00\x00"
    with target.connect() as connection:
        connection.sendall(frame(32, 4, body, flexible=True))
        response = answer(connection)
    if response is None:
        return Outcome(True, "closed")
    return Outcome(False, f"{len(response)} bytes of answer")


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
