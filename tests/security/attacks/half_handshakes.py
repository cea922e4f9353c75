"""TLS handshakes that a client begins and leaves: the server has made its keys and its answer by then."""

from __future__ import annotations

import contextlib
import socket
import time

from security.target import TLS, Entry, Outcome, Target, client_hello, is_open

TEXT = "2,000 connections from ten addresses that say a whole TLS hello, and nothing to the answer"
NEEDS = TLS
ADDRESSES = 10
EACH = 200
SETTLED_S = 2.0
WAIT_S = 30.0
SMALL_WAIT_S = 120.0


def run(target: Target) -> Outcome:
    """Begin as many as one gets, and wait until all are closed; somebody else is served meanwhile."""
    hello = client_hello()
    held: list[socket.socket] = []
    for n in range(ADDRESSES):
        for _ in range(EACH // 20 if target.small else EACH):
            with contextlib.suppress(OSError):
                connection = Entry().connect(target.gateway, f"127.0.1.{n + 1}", 5.0)
                held.append(connection)
                connection.sendall(hello)
    began = time.monotonic()
    try:
        # Until it has taken what waited in the kernel's line.
        time.sleep(SETTLED_S)
        most = sum(map(is_open, held))
        served = _is_served(target)
        while any(map(is_open, held)) and time.monotonic() - began < (
            SMALL_WAIT_S if target.small else WAIT_S
        ):
            time.sleep(0.5)
        still = sum(map(is_open, held))
    finally:
        for connection in held:
            connection.close()
    said = f"{most} of {len(held)} held, {still} after {time.monotonic() - began:.0f} s, "
    return Outcome(served and not still, said + f"another client {'served' if served else 'shut out'}")


def _is_served(target: Target) -> bool:
    try:
        with target.entry.connect(target.gateway, "127.0.2.1"):
            return True
    except OSError:
        return False
