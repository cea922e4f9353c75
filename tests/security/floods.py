"""The same thing again and again, by several threads, for some seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from security.target import ATTACKER

THREADS = 8
SECONDS = 8.0
SMALL_THREADS = 2


def flood(once: Callable[[str], object], small: bool) -> tuple[int, int]:
    """How often `once(source address)` went well, and how often it raised OSError."""
    counts = [0, 0]
    lock = threading.Lock()
    until_s = time.monotonic() + (0.0 if small else SECONDS)

    def run() -> None:
        while True:
            try:
                once(ATTACKER)
            except OSError:
                failed = 1
            else:
                failed = 0
            with lock:
                counts[failed] += 1
            if time.monotonic() >= until_s:
                return

    threads = [threading.Thread(target=run) for _ in range(SMALL_THREADS if small else THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts[0], counts[1]
