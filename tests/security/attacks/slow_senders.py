"""Senders that never finish: at TCP, in a frame's length, in a frame, in an HTTP header."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from security.target import Outcome, Target, is_open

TEXT = "20 connections each that send a byte a second: nothing, half a length, a frame, an HTTP header"
EACH = 20
WAIT_S = 45.0


def run(target: Target) -> Outcome:
    """Drip until all are closed, or for a while."""
    each = 3 if target.small else EACH
    stages: dict[str, list[socket.socket]] = {
        "tcp": [target.connect() for _ in range(each)],
        "length": [target.connect() for _ in range(each)],
        "frame": [target.connect() for _ in range(each)],
        "http": [target.connect(address=target.http) for _ in range(each)],
    }
    heads = {
        "tcp": b"",
        "length": b"\x00\x00",
        "frame": struct.pack(">i", 100_000) + b"\x00\x00\x00\x09",
        "http": b"GET /healthz HTTP/1.1\r\nX-Slow: ",
    }
    closed_s: dict[str, float] = {}
    began = time.monotonic()
    for stage, connections in stages.items():
        for connection in connections:
            connection.sendall(heads[stage])
    while len(closed_s) < len(stages) and time.monotonic() - began < (120.0 if target.small else WAIT_S):
        time.sleep(1.0)
        for stage, connections in stages.items():
            if stage in closed_s:
                continue
            if not any(map(is_open, connections)):
                closed_s[stage] = time.monotonic() - began
            if stage in ("frame", "http"):
                for connection in connections:
                    with contextlib.suppress(OSError):
                        connection.send(b"x")
    for connections in stages.values():
        for connection in connections:
            connection.close()
    said = ", ".join(f"{s} {closed_s[s]:.0f} s" if s in closed_s else f"{s} open" for s in stages)
    return Outcome(len(closed_s) == len(stages), f"closed after: {said}")
