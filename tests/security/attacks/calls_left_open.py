"""Calls that are begun at gRPC ports and never gone on with."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from penstock_runtime.grpc_bounds import GrpcBounds
from security.http2 import Caller, call_headers
from security.target import CERTIFIED, STRANGER, Entry, Outcome, Target

TEXT = "20 connections with 500 streams each whose call is begun and left, at the gateway's gRPC port or between roles"
BY = (STRANGER, CERTIFIED)
CONNECTIONS = 20
STREAMS = 500
AT_ONCE = 25
PAUSE_S = 0.3
WAIT_S = 20.0
SMALL_WAIT_S = 60.0


def run(target: Target) -> Outcome:
    """Begin them, answer pings, count how many the other side has ended."""
    tls = bool(target.entry.ca)
    if target.entry.cert:
        door, method = "node grpc", "/penstock.v1.Storage/Forward"
    else:
        door, method = "gateway grpc", f"/penstock.v1.Gateway/{'Authenticate' if tls else 'Produce'}"
    block = call_headers(method, tls)
    streams = STREAMS // 10 if target.small else STREAMS
    entry = replace(target.entry, user="", password="", alpn=("h2",)) if tls else Entry()
    # One without a right is ended; in a plain cluster an address may have so many.
    most = 0 if tls else GrpcBounds.calls_per_address_max
    callers: list[Caller] = []
    with contextlib.ExitStack() as open_now:
        for _ in range(CONNECTIONS):
            callers.append(Caller(open_now.enter_context(entry.connect(target.doors[door], timeout_s=5.0))))
        # A few at a time: gRPC drops some of those that come faster than they are taken.
        for _ in range(streams // AT_ONCE):
            for caller in callers:
                with contextlib.suppress(OSError):
                    caller.begin(block, AT_ONCE)
                caller.look()
            time.sleep(PAUSE_S)
        began, still = time.monotonic(), most + 1
        while still > most and time.monotonic() - began < (SMALL_WAIT_S if target.small else WAIT_S):
            time.sleep(0.5)
            for caller in callers:
                caller.look()
            still = sum(caller.left for caller in callers)
        seconds = time.monotonic() - began
    return Outcome(
        still <= most, f"{still} of {CONNECTIONS * streams} calls still there after {seconds:.0f} s"
    )
