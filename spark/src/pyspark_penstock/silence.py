"""Notices that a stream says nothing, from a thread of its own: whoever reads it is held in gRPC meanwhile.

Only the time counts in which the reader waits. How long Spark takes over what came is its own affair, and a stream may
live for as long as its range is long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


class Silence:
    """Calls `look` with the ms of silence so far, every `every_ms` of an unbroken one."""

    def __init__(self, every_ms: int, look: Callable[[float], None]) -> None:
        self._every_s = every_ms / 1000
        self._look = look
        self._changed = threading.Condition()
        self._waiting_since_s: float | None = None
        self._is_over = False

    def over(self, stream: Any) -> Iterator[Any]:
        """What `stream` gives, looked after for as long as it lasts."""
        threading.Thread(target=self._run, name="penstock-silence", daemon=True).start()
        try:
            while True:
                self._waiting_since_s = time.monotonic()
                try:
                    item = next(stream)
                except StopIteration:
                    return
                finally:
                    self._waiting_since_s = None
                yield item
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify()

    def _run(self) -> None:
        silence_s, next_s = None, 0.0
        with self._changed:
            while not self._is_over:
                since_s, now_s = self._waiting_since_s, time.monotonic()
                if since_s is None or since_s != silence_s:
                    silence_s, next_s = since_s, (since_s or now_s) + self._every_s
                if now_s < next_s:
                    self._changed.wait(next_s - now_s)
                    continue
                self._changed.release()  # the stream may end while it is looked after
                try:
                    self._look((now_s - (since_s or now_s)) * 1000)
                finally:
                    self._changed.acquire()
                next_s = time.monotonic() + self._every_s
