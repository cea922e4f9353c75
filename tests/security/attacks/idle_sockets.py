"""Connections that say nothing."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import replace

from security.target import Entry, Outcome, Target, is_open

TEXT = "10,100 connections from ten addresses, none of which says anything"
ADDRESSES = 10
EACH = 1_010
SIGNED_IN_EACH = 101


def run(target: Target) -> Outcome:
    """Open as many as one gets, keep them for 3 s: plain sockets, or a tenth of them signed in."""
    entry = target.entry if target.entry.user or target.entry.cert else Entry()
    each = SIGNED_IN_EACH if entry.ca else EACH
    connections: list[socket.socket] = []
    for n in range(ADDRESSES):
        for _ in range(each // 5 if target.small else each):
            with contextlib.suppress(OSError):
                connections.append(entry.connect(target.gateway, f"127.0.1.{n + 1}", 5.0))
    time.sleep(0.5 if target.small else 3.0)
    held = sum(map(is_open, connections))
    refused = True
    try:
        with replace(target.entry, user="", password="").connect(target.gateway, "127.0.2.1") as other:
            other.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff")
            refused = other.recv(4) != b""
    except OSError:
        refused = False
    for connection in connections:
        connection.close()
    return Outcome(refused, f"{held} held, another client {'served' if refused else 'shut out'}")
