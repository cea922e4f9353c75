"""Connections that say nothing, at every port that is no Kafka listener."""

from __future__ import annotations

import contextlib
import socket
import time

from security.target import STRANGER, Entry, Outcome, Target, is_open

TEXT = "10,000 connections to the gRPC, Raft and HTTP ports of every role, none of which says anything"
BY = (STRANGER,)
TOTAL = 10_000
ADDRESSES = 10
WAIT_S = 30.0
SMALL_WAIT_S = 120.0


def run(target: Target) -> Outcome:
    """Open as many as one gets, and wait until all are closed."""
    doors = {door: address for door, address in target.doors.items() if door != "balanced"}
    each = TOTAL // len(doors) // (20 if target.small else 1)
    held: dict[str, list[socket.socket]] = {door: [] for door in doors}
    began = time.monotonic()
    for n in range(each):
        for door, address in doors.items():
            with contextlib.suppress(OSError):
                held[door].append(Entry().connect(address, f"127.0.1.{n % ADDRESSES + 1}", 5.0))
    most = {door: sum(map(is_open, connections)) for door, connections in held.items()}
    closed_s: dict[str, float] = {}
    while len(closed_s) < len(doors) and time.monotonic() - began < (
        SMALL_WAIT_S if target.small else WAIT_S
    ):
        for door in doors.keys() - closed_s.keys():
            if not any(map(is_open, held[door])):
                closed_s[door] = time.monotonic() - began
        time.sleep(0.5)
    for connections in held.values():
        for connection in connections:
            connection.close()
    said = [
        f"{door} {most[door]} held, "
        + (f"0 after {closed_s[door]:.0f} s" if door in closed_s else "still open")
        for door in doors
    ]
    return Outcome(len(closed_s) == len(doors), f"{each} each: {'; '.join(said)}")
