"""Passwords that are guessed at the HTTP port."""

from __future__ import annotations

import base64

from security.floods import flood
from security.target import SERVER_NAME, TLS, Entry, Outcome, Target

TEXT = "wrong passwords by Basic at the gateway's HTTP port, on 8 connections at a time, again and again"
NEEDS = TLS


def run(target: Target) -> Outcome:
    """For some seconds."""
    entry = Entry(target.entry.ca)
    words = base64.b64encode(b"admin:not the password").decode()
    port = target.http.rpartition(":")[2]
    request = (
        f"GET /v1/topics HTTP/1.1\r\nHost: {SERVER_NAME}:{port}\r\nAuthorization: Basic {words}\r\n"
        "Connection: close\r\n\r\n"
    )

    def guess(source: str) -> None:
        with entry.connect(target.http, source, 40.0) as connection:
            connection.sendall(request.encode())
            status = connection.recv(100).split(b" ")[1:2]
            if status != [b"200"]:
                raise ConnectionError(f"answered {status}")

    done, refused = flood(guess, target.small)
    return Outcome(done == 0, f"{done} let in, {refused} refused")
