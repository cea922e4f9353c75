"""Senders that never finish: at every stage that a connection goes through, at every port."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import replace
from typing import NamedTuple

from security.http2 import OPENING
from security.target import ATTACKER, BALANCER, Entry, Outcome, Target, client_hello, frame, is_open
from support import raft_stranger

TEXT = "20 connections at each stage that send a byte a second: TCP, PROXY, TLS, sign-in, a frame, HTTP, gRPC, Raft"
EACH = 20
WAIT_S = 45.0
SMALL_WAIT_S = 120.0
HALF_A_FRAME = struct.pack(">i", 40_000) + b"\x00\x00\x00\x09"
HEADER = b"GET /healthz HTTP/1.1\r\nX-Slow: x"
PROXY_HEADER = b"PROXY TCP4 203.0.113.7 203.0.113.8 40000 9092\r\n"
SASL_HANDSHAKE = frame(17, 1, b"\x00\x0dSCRAM-SHA-512", flexible=False)
RAFT_HELLO = raft_stranger.hello(3, 1)


class Stage(NamedTuple):
    """Where a sender stops to be quick."""

    entry: Entry
    """How far it comes at its usual speed."""
    address: str
    says: bytes = b""
    """At once."""
    drips: bytes = b""
    """Then, a byte a second, the last one again and again; b"": nothing any more."""
    source: str = ATTACKER


def stages_of(target: Target) -> dict[str, Stage]:
    """By name."""
    if target.entry.user:
        return _signed_in(target)
    if target.entry.cert:
        return _certified(target)
    return _of_a_stranger(target) if target.roles is None else _of_a_stranger_to_tls(target)


def _framed(target: Target) -> dict[str, Stage]:
    """Of who has come in at a Kafka listener."""
    return {
        "length": Stage(target.entry, target.gateway, b"\x00\x00"),
        "frame": Stage(target.entry, target.gateway, HALF_A_FRAME, b"x"),
        "frame of a node": Stage(target.entry, target.nodes[0], HALF_A_FRAME, b"x"),
    }


def _of_a_stranger(target: Target) -> dict[str, Stage]:
    plain, doors = Entry(), target.doors
    return {
        "TCP": Stage(plain, target.gateway),
        "PROXY": Stage(plain, doors["balanced"], b"", PROXY_HEADER, BALANCER),
        "PROXY of no balancer": Stage(plain, doors["balanced"], b"", PROXY_HEADER),
        **_framed(target),
        **{
            f"HTTP of the {role}": Stage(plain, doors[f"{role} http"], b"", HEADER)
            for role in ("gateway", "node", "controller")
        },
        **{
            f"gRPC of the {role}": Stage(plain, doors[f"{role} grpc"], b"", OPENING)
            for role in ("gateway", "node", "controller")
        },
        "Raft": Stage(plain, doors["controller raft"], b"", RAFT_HELLO),
    }


def _of_a_stranger_to_tls(target: Target) -> dict[str, Stage]:
    plain, silent, doors = Entry(), target.entry, target.doors
    hello = client_hello()
    return {
        "TCP": Stage(plain, target.gateway),
        "PROXY": Stage(plain, doors["balanced"], b"", PROXY_HEADER, BALANCER),
        "TLS behind PROXY": Stage(plain, doors["balanced"], PROXY_HEADER, hello, BALANCER),
        "TLS": Stage(plain, target.gateway, b"", hello),
        "sign-in, silent": Stage(silent, target.gateway),
        "sign-in, a frame": Stage(silent, target.gateway, b"", SASL_HANDSHAKE),
        "sign-in, begun and left": Stage(silent, target.gateway, SASL_HANDSHAKE),
        **{
            f"TLS of the {door}": Stage(plain, doors[door], b"", hello)
            for door in (
                "gateway http",
                "node http",
                "gateway grpc",
                "node grpc",
                "controller grpc",
                "controller raft",
            )
        },
        "HTTP of the gateway": Stage(silent, doors["gateway http"], b"", HEADER),
        "HTTP of the node": Stage(silent, doors["node http"], b"", HEADER),
        "HTTP of the controller": Stage(plain, doors["controller http"], b"", HEADER),
        "gRPC of the gateway": Stage(replace(silent, alpn=("h2",)), doors["gateway grpc"], b"", OPENING),
    }


def _signed_in(target: Target) -> dict[str, Stage]:
    again = Stage(target.entry, target.gateway, SASL_HANDSHAKE[:8], SASL_HANDSHAKE[8:])
    return {**_framed(target), "sign-in again": again}


def _certified(target: Target) -> dict[str, Stage]:
    shown, doors = target.entry, target.doors
    called = replace(shown, alpn=("h2",))
    return {
        "silent": Stage(shown, target.gateway),
        **_framed(target),
        "gRPC of the node": Stage(called, doors["node grpc"], b"", OPENING),
        "gRPC of the controller": Stage(called, doors["controller grpc"], b"", OPENING),
        "Raft": Stage(shown, doors["controller raft"], b"", RAFT_HELLO),
    }


def run(target: Target) -> Outcome:
    """Drip until all are closed, or for a while."""
    stages = stages_of(target)
    held: dict[str, list[socket.socket]] = {}
    try:
        for name, stage in stages.items():
            held[name] = [c for _ in range(3 if target.small else EACH) if (c := _begun(stage)) is not None]
        closed_s = _drip(stages, held, SMALL_WAIT_S if target.small else WAIT_S)
    finally:
        for connections in held.values():
            for connection in connections:
                connection.close()
    said = ", ".join(f"{s} {closed_s[s]:.0f} s" if s in closed_s else f"{s} open" for s in stages)
    return Outcome(len(closed_s) == len(stages), f"closed after: {said}")


def _begun(stage: Stage) -> socket.socket | None:
    """A connection at that stage; None when it is ended on the way."""
    try:
        connection = stage.entry.connect(stage.address, stage.source)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        connection.sendall(stage.says)
    return connection


def _drip(stages: dict[str, Stage], held: dict[str, list[socket.socket]], wait_s: float) -> dict[str, float]:
    """For how long the last connection of each stage was open, where none is any more."""
    closed_s: dict[str, float] = {}
    began, sent = time.monotonic(), 0
    while len(closed_s) < len(stages) and time.monotonic() - began < wait_s:
        time.sleep(1.0)
        for name, stage in stages.items():
            if name in closed_s:
                continue
            if not any(map(is_open, held[name])):
                closed_s[name] = time.monotonic() - began
            for connection in held[name] if stage.drips else ():
                with contextlib.suppress(OSError):
                    connection.send(stage.drips[sent : sent + 1] or stage.drips[-1:])
        sent += 1
    return closed_s
