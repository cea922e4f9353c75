"""As many resources as one request may name, each with everything that is to be said of it."""

from __future__ import annotations

import struct

from security.target import NARROW_TOPIC, Outcome, Target, answer, frame

TEXT = "DescribeConfigs of one topic, 18,000 times in each of two requests"
TIMES = 18_000


def run(target: Target) -> Outcome:
    """Ask twice, on two connections, and take the answers."""
    name = NARROW_TOPIC.encode()
    one = b"\x02" + struct.pack(">h", len(name)) + name + b"\xff\xff\xff\xff"
    count = 2_000 if target.small else TIMES
    body = struct.pack(">i", count) + one * count + b"\x01"
    sizes = []
    with target.connect() as first, target.connect() as second:
        for connection in (first, second):
            connection.sendall(frame(32, 1, body, flexible=False))
        for connection in (first, second):
            response = answer(connection)
            sizes.append("closed" if response is None else f"{len(response) / 1e6:.0f} MB")
    return Outcome(True, " and ".join(sizes))
