"""Connections that have said hello to a gRPC port, and call nothing."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from penstock_runtime.grpc_bounds import GrpcBounds
from security.http2 import Caller
from security.target import CERTIFIED, STRANGER, Outcome, Target

TEXT = "10,000 connections from ten addresses that begin HTTP/2 and call nothing, at a gRPC port that lets them in"
BY = (STRANGER, CERTIFIED)
ADDRESSES = 10
EACH = 1_000
OPENING_S = 30.0
LOOK_S = 1.0
WAIT_S = 15.0
SMALL_WAIT_S = 30.0


def run(target: Target) -> Outcome:
    """Open as many as one gets, and see how many are kept."""
    entry = replace(target.entry, alpn=("h2",))
    # Whoever has a certificate of the cluster's CA is let in between roles too.
    door = target.doors["controller grpc" if entry.cert else "gateway grpc"]
    callers: list[Caller] = []
    began = looked = time.monotonic()
    with contextlib.ExitStack() as open_now:
        for _ in range(EACH // 10 if target.small else EACH):
            for n in range(ADDRESSES):
                with contextlib.suppress(OSError):
                    connection = entry.connect(door, f"127.0.1.{n + 1}", 5.0)
                    open_now.enter_context(connection)
                    callers.append(Caller(connection))
            if time.monotonic() - began > OPENING_S:
                break
            if time.monotonic() - looked > LOOK_S:
                _look(callers)
                looked = time.monotonic()
        began = time.monotonic()
        while time.monotonic() - began < (SMALL_WAIT_S if target.small else WAIT_S):
            _look(callers)
            # Without costs to measure nothing is left to be seen.
            if target.small and sum(caller.is_open for caller in callers) <= GrpcBounds.strangers_max:
                break
            time.sleep(LOOK_S)
        seconds = time.monotonic() - began
        still = sum(caller.is_open for caller in callers)
    return Outcome(still <= GrpcBounds.strangers_max, f"{still} of {len(callers)} held after {seconds:.0f} s")


def _look(callers: list[Caller]) -> None:
    for caller in callers:
        if caller.is_open:
            caller.look()
