"""Connections that say nothing."""

from __future__ import annotations

import contextlib
import socket
import time

from security.target import Outcome, Target, is_open

TEXT = "10,100 connections from ten addresses, none of which says anything"
ADDRESSES = 10
EACH = 1_010


def run(target: Target) -> Outcome:
    """Open as many as one gets, keep them for 3 s."""
    connections: list[socket.socket] = []
    for n in range(ADDRESSES):
        for _ in range(200 if target.small else EACH):
            with contextlib.suppress(OSError):
                connections.append(target.connect(f"127.0.1.{n + 1}", timeout_s=5.0))
    time.sleep(0.5 if target.small else 3.0)
    held = sum(map(is_open, connections))
    refused = True
    try:
        with target.connect("127.0.2.1", timeout_s=5.0) as other:
            other.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff")
            refused = other.recv(4) != b""
    except OSError:
        refused = False
    for connection in connections:
        connection.close()
    return Outcome(refused, f"{held} held, another client {'served' if refused else 'shut out'}")
