"""PLAIN's PBKDF2 beside the event loop: milliseconds of CPU for each password.

Two threads, and a bounded line before them: who comes when it is full is sent away and may come again.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock_core.security.plain import Derivation

THREADS: Final = 2
WAITING_MAX: Final = 256
"""About 2 s of work in 2 threads at 13 ms each."""


class TooManyPasswords(Exception):
    """The line is full."""


class PasswordPool:
    """The threads of one process; made when they are first needed."""

    def __init__(self, threads: int = THREADS, waiting_max: int = WAITING_MAX) -> None:
        self._threads = threads
        self._waiting_max = waiting_max
        self._pool: ThreadPoolExecutor | None = None
        self.waiting = 0
        """Passwords that are being derived, or wait for it."""

    async def derive(self, derivation: Derivation) -> bytes:
        """The salted password. Raises TooManyPasswords."""
        if self.waiting >= self._waiting_max:
            raise TooManyPasswords
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "passwords")
        self.waiting += 1
        work = self._pool.submit(derivation.derive)
        # Also when the client has gone: what has begun takes its thread to the end.
        loop = asyncio.get_running_loop()
        work.add_done_callback(lambda _: self._ended(loop))
        return await asyncio.wrap_future(work)

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._one_less)

    def _one_less(self) -> None:
        self.waiting -= 1

    async def close(self) -> None:
        """Drop what waits."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
