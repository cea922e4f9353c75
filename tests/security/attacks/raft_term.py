"""A controller that is none, and says that it is at a later term."""

from __future__ import annotations

import contextlib

from security.target import CERTIFIED, ROLE_PORTS, STRANGER, Outcome, Target
from support import raft_stranger

TEXT = "hello and the term 2^61 to a controller's Raft port"
NEEDS = ROLE_PORTS
BY = (STRANGER, CERTIFIED)


def run(target: Target) -> Outcome:
    """Say it in each way; nothing may come back."""
    assert target.roles is not None
    said = {}
    for way in target.ways:
        data = b""
        with contextlib.suppress(OSError), target.roles.raft_socket(way) as connection:
            connection.sendall(raft_stranger.hello(3, 1) + raft_stranger.term_notice(1 << 61))
            data = connection.recv(100)
        # At most a TLS alert: one record of type 21.
        said[way] = "closed" if not data or data[0] == 21 else f"{len(data)} bytes"
    return Outcome(
        set(said.values()) == {"closed"}, ", ".join(f"{way}: {what}" for way, what in said.items())
    )
