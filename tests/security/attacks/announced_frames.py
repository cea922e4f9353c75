"""Frames that are announced and never come."""

from __future__ import annotations

import struct
import time

from security.target import Outcome, Target, is_open

TEXT = "six connections announce 512 MiB of frames and send nothing of them"
ANNOUNCED_BYTES = (*(100 * 1024 * 1024,) * 5, 12 * 1024 * 1024 - 4096)
"""Largest frames, and what is left then of what a gateway holds for frames."""
WAIT_S = 40.0


def run(target: Target) -> Outcome:
    """Announce, and hold on for a while."""
    connections = [target.connect() for _ in ANNOUNCED_BYTES]
    for connection, size in zip(connections, ANNOUNCED_BYTES, strict=True):
        connection.sendall(struct.pack(">i", size) + b"\x00\x00\x00\x09\x00\x00\x00\x01")
    began = time.monotonic()
    # Short: as long as honest clients are watched anyway.
    while time.monotonic() - began < (60.0 if target.small else WAIT_S):
        if not any(map(is_open, connections)):
            break
        time.sleep(0.2)
    seconds = time.monotonic() - began
    still = sum(map(is_open, connections))
    for connection in connections:
        connection.close()
    return Outcome(still == 0, f"{still} of 6 still open after {seconds:.0f} s")
