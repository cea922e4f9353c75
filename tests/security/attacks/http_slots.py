"""One address that takes every connection which an HTTP port has, and takes it again when it is closed."""

from __future__ import annotations

import contextlib
import socket
import time

from security.target import ATTACKER, STRANGER, Entry, Outcome, Target, is_open

TEXT = "70 connections of one address to the gateway's HTTP port that say nothing, opened again when they are closed"
BY = (STRANGER,)
TAKEN = 70
SECONDS = 15.0
SMALL_SECONDS = 5.0
OTHER = "127.0.2.1"
PATIENCE_S = 5.0


def run(target: Target) -> Outcome:
    """For some seconds; somebody else asks for health meanwhile, once a second."""
    held: list[socket.socket] = []
    served = asked = 0
    began = time.monotonic()
    try:
        while time.monotonic() - began < (SMALL_SECONDS if target.small else SECONDS):
            open_now = [connection for connection in held if is_open(connection)]
            for connection in held:
                if connection not in open_now:
                    connection.close()
            held = open_now
            for _ in range(TAKEN - len(held)):
                with contextlib.suppress(OSError):
                    held.append(Entry().connect(target.http, ATTACKER, PATIENCE_S))
            asked += 1
            served += _is_served(target)
            time.sleep(1.0)
    finally:
        for connection in held:
            connection.close()
    return Outcome(served == asked, f"another client was served {served} of {asked} times")


def _is_served(target: Target) -> bool:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    try:
        with Entry(target.entry.ca).connect(target.http, OTHER, PATIENCE_S) as connection:
            connection.sendall(request)
            return connection.recv(100).startswith(b"HTTP/1.1 ")
    except OSError:
        return False
