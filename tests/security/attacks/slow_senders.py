"""Senders that never finish: at TCP, in a handshake, in a frame's length, in a frame, in an HTTP header."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from security.target import ATTACKER, Entry, Outcome, Target, is_open

TEXT = "20 connections at each stage that send a byte a second: TCP, TLS, sign-in, a frame, HTTP, gRPC, Raft"
EACH = 20
WAIT_S = 45.0
HALF_A_FRAME = struct.pack(">i", 40_000) + b"\x00\x00\x00\x09"
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"
HALF_A_HEADER = b"GET /healthz HTTP/1.1\r\nX-Slow: "


def stages_of(target: Target) -> dict[str, tuple[Entry, str, bytes, bool]]:
    """By stage: how far one comes, to which port, the first bytes, and whether more follow."""
    plain, gateway = Entry(), target.gateway
    if target.roles is None:
        return {
            "tcp": (plain, gateway, b"", False),
            "length": (plain, gateway, b"\x00\x00", False),
            "frame": (plain, gateway, HALF_A_FRAME, True),
            "http": (plain, target.http, HALF_A_HEADER, True),
        }
    silent = Entry(target.entry.ca)
    return {
        "tcp": (plain, gateway, b"", False),
        "tls": (plain, gateway, HALF_A_HELLO, True),
        "sign-in": (silent, gateway, b"\x00\x00", True),
        "frame": (target.entry, gateway, HALF_A_FRAME, True),
        "http": (plain, target.http, HALF_A_HELLO, True),
        "grpc": (plain, target.roles.controller, HALF_A_HELLO, True),
        "raft": (plain, target.roles.raft, HALF_A_HELLO, True),
    }


def run(target: Target) -> Outcome:
    """Drip until all are closed, or for a while."""
    each = 3 if target.small else EACH
    stages = stages_of(target)
    held: dict[str, list[socket.socket]] = {stage: [] for stage in stages}
    closed_s: dict[str, float] = {}
    began = time.monotonic()
    for stage, (entry, address, head, _) in stages.items():
        for _ in range(each):
            connection = entry.connect(address, ATTACKER)
            connection.sendall(head)
            held[stage].append(connection)
    while len(closed_s) < len(stages) and time.monotonic() - began < (120.0 if target.small else WAIT_S):
        time.sleep(1.0)
        for stage, connections in held.items():
            if stage in closed_s:
                continue
            if not any(map(is_open, connections)):
                closed_s[stage] = time.monotonic() - began
            if stages[stage][3]:
                for connection in connections:
                    with contextlib.suppress(OSError):
                        connection.send(b"x")
    for connections in held.values():
        for connection in connections:
            connection.close()
    said = ", ".join(f"{s} {closed_s[s]:.0f} s" if s in closed_s else f"{s} open" for s in stages)
    return Outcome(len(closed_s) == len(stages), f"closed after: {said}")
