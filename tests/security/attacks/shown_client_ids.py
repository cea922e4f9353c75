"""A client's name that is a program for terminals."""

from __future__ import annotations

import struct

from security.target import Outcome, Target, answer

TEXT = "requests that are refused and logged, of a client whose id clears the screen and turns text around"
CLIENT_ID = "\x1b[2J\x1b]0;owned\x07\u202eresu\x9b31m\r\ninjected line"


def run(target: Target) -> Outcome:
    """Have it logged: an unknown version names the client."""
    name = CLIENT_ID.encode()
    body = struct.pack(">hhih", 3, 99, 1, len(name)) + name + b"\x00"
    with target.connect() as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        return Outcome(answer(connection) is None, "closed; see the log")
