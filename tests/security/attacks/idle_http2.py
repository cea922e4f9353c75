"""Connections that have said hello to a gRPC port, and call nothing."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import replace

from penstock_runtime.grpc_bounds import GrpcBounds
from security.http2 import Caller
from security.target import CERTIFIED, STRANGER, Entry, Outcome, Target, dial

TEXT = "10,000 connections from ten addresses that begin HTTP/2 and call nothing, at a gRPC port that lets them in"
BY = (STRANGER, CERTIFIED)
ADDRESSES = 10
EACH = 1_000
DIALS_S = 30.0
HANDSHAKE_S = 5.0
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
    with contextlib.ExitStack() as open_now, selectors.DefaultSelector() as dialled:
        for n in range(ADDRESSES * (EACH // 10 if target.small else EACH)):
            with contextlib.suppress(OSError):
                connection = open_now.enter_context(dial(door, f"127.0.1.{n % ADDRESSES + 1}"))
                dialled.register(connection, selectors.EVENT_WRITE)
            if n % ADDRESSES == ADDRESSES - 1:
                _come_in(dialled, 0.0, entry, callers, open_now)
        while dialled.get_map() and time.monotonic() - began < DIALS_S:
            _come_in(dialled, 0.1, entry, callers, open_now)
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


def _come_in(
    dialled: selectors.BaseSelector,
    wait_s: float,
    entry: Entry,
    callers: list[Caller],
    open_now: contextlib.ExitStack,
) -> None:
    """Whoever was let in begins HTTP/2; who was not goes on dialling."""
    for key, _ in dialled.select(wait_s):
        raw = key.fileobj
        assert isinstance(raw, socket.socket)
        dialled.unregister(raw)
        with contextlib.suppress(OSError):
            raw.settimeout(HANDSHAKE_S)
            connection = open_now.enter_context(entry.come_in(raw))
            callers.append(Caller(connection))


def _look(callers: list[Caller]) -> None:
    for caller in callers:
        if caller.is_open:
            caller.look()
