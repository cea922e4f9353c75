"""Connections that say nothing, at every port that is no Kafka listener."""

from __future__ import annotations

import contextlib
import socket
import time

from security.target import STRANGER, Outcome, Target, accepted_at, dial, has_come, is_open

TEXT = "10,000 connections to the gRPC, Raft and HTTP ports of every role, none of which says anything"
BY = (STRANGER,)
TOTAL = 10_000
ADDRESSES = 10
DIALS_S = 5.0
"""For so long it is tried, by whom the kernel does not answer."""
LOOKS_AFTER_S = 10.0
"""Then it is looked whether anybody holds what seems to be open."""
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
                held[door].append(dial(address, f"127.0.1.{n % ADDRESSES + 1}"))
    gives_up = time.monotonic() + DIALS_S
    most = dict.fromkeys(doors, 0)
    closed_s: dict[str, float] = {}
    while len(closed_s) < len(doors) and time.monotonic() - began < (
        SMALL_WAIT_S if target.small else WAIT_S
    ):
        dials = time.monotonic() < gives_up
        for door in doors.keys() - closed_s.keys():
            come = [has_come(connection) for connection in held[door]]
            here = [connection for connection, came in zip(held[door], come, strict=True) if came]
            held_here = list(filter(is_open, here))
            if held_here and time.monotonic() - began > LOOKS_AFTER_S:
                accepted = accepted_at(doors[door])
                held_here = [connection for connection in held_here if connection.getsockname() in accepted]
            still = len(held_here)
            most[door] = max(most[door], still)
            if not dials or all(come):
                for connection, came in zip(held[door], come, strict=True):
                    if not came:
                        connection.close()
                held[door] = here
                if not still:
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
