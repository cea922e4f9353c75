"""Groups that nobody needs: each takes memory of its coordinator."""

from __future__ import annotations

import contextlib
import struct
import threading

from penstock_storage_node.settings import GroupSettings
from security.target import MEMBERS_SMALL, Outcome, Target, answer, frame

TEXT = "JoinGroup of 10,000 groups with a member each, on 40 connections"
CONNECTIONS = 40
EACH = 250
SESSION_MS = 1_800_000
REBALANCE_MS = 3_600_000
"""As long as members may be away, and may take to sync: what was taken stays, and no room comes back meanwhile."""


def run(target: Target) -> Outcome:
    """Join them all, wait for all answers, go without leaving."""
    each = 10 if target.small else EACH
    codes: dict[int, int] = {}
    lock = threading.Lock()

    def one(number: int) -> None:
        with contextlib.suppress(OSError), target.connect() as connection:
            for n in range(each):
                connection.sendall(frame(11, 2, _join(f"bad-{number}-{n}".encode()), flexible=False))
            for _ in range(each):
                response = answer(connection)
                code = -1 if response is None else struct.unpack_from(">h", response, 8)[0]
                with lock:
                    codes[code] = codes.get(code, 0) + 1
                if response is None:
                    return

    threads = [threading.Thread(target=one, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = ", ".join(f"code {code}: {count}" for code, count in sorted(codes.items())) or "closed"
    if target.entry.ca:
        # Where clients sign in nobody without rights has a group made (30: GROUP_AUTHORIZATION_FAILED).
        return Outcome(not codes.keys() - {-1, 30}, said)
    # An address has so many members at each coordinator (81: GROUP_MAX_SIZE_REACHED beyond).
    most = MEMBERS_SMALL if target.small else GroupSettings().members_per_principal_max
    bounded = codes.get(0, 0) <= most * len(target.nodes) < CONNECTIONS * each
    return Outcome(bounded and not codes.keys() - {-1, 0, 81}, said)


def _join(group: bytes) -> bytes:
    kind, protocol = b"consumer", b"range"
    return b"".join(
        (
            struct.pack(">h", len(group)) + group,
            struct.pack(">ii", SESSION_MS, REBALANCE_MS),
            b"\0\0",  # no member id yet
            struct.pack(">h", len(kind)) + kind,
            struct.pack(">i", 1) + struct.pack(">h", len(protocol)) + protocol + struct.pack(">i", 0),
        )
    )
