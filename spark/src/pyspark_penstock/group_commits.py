"""Progress of a query, shown as a consumer group's: `commitGroupId`.

Commits are made by a thread of their own, so that no micro-batch waits for one, and of several that wait the newest
alone is made. What fails is told once in the driver's log and tried again a little later, for a query may be idle from
then on: the checkpoint says where it stands, whatever the group says. Offsets of a group without members expire, so an
idle query commits anew once an hour.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from pyspark_penstock.errors import PenstockError

Offsets = Mapping[tuple[str, int], int]
Commit = Callable[[Offsets, str], list[str]]
"""Commits offsets with metadata; what went wrong, a line each. May raise PenstockError."""

REPEAT_S = 3600.0
RETRY_S = 10.0
"""Behind one that failed."""
LAST_WAIT_S = 10.0
"""How long the end of a query waits for its last commit."""

_log = logging.getLogger("pyspark_penstock")


class GroupCommits:
    """Of one query. `commit` is called by one thread alone."""

    def __init__(self, commit: Commit, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._commit = commit
        self._clock_s = clock_s
        self._changed = threading.Condition()
        self._waiting: tuple[Offsets, str] | None = None
        self._is_busy = False
        self._has_failed = False
        self._last: Offsets | None = None
        self._last_at_s = 0.0
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None

    def offer(self, offsets: Offsets, metadata: str) -> None:
        """These are done; nothing happens when they were committed within the last hour. Never waits."""
        now = self._clock_s()
        if offsets == self._last and now - self._last_at_s < (RETRY_S if self._has_failed else REPEAT_S):
            return
        self._last, self._last_at_s = dict(offsets), now
        with self._changed:
            self._waiting = (self._last, metadata)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock group commits", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, wait_s: float = LAST_WAIT_S) -> None:
        """Waits a while until nothing is on its way."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None and not self._is_busy, wait_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                assert self._waiting is not None
                offsets, metadata = self._waiting
                self._waiting, self._is_busy = None, True
            try:
                problems = self._commit(offsets, metadata)
            except PenstockError as error:
                problems = [str(error)]
            except Exception as error:
                problems = [repr(error)]
            for text in problems:
                if text not in self._told:
                    self._told.add(text)
                    _log.warning("commitGroupId: %s; the query goes on, its checkpoint is what counts", text)
            with self._changed:
                self._is_busy, self._has_failed = False, bool(problems)
                self._changed.notify_all()
