"""What comes to a replica that is rebuilt, and waits until the node's budget allows it.

The stream is read on: what a leader has to say of a session that acks wait for comes in the same stream, and must not
stand behind the bytes of others. These wait here instead, bounded by the credit of the stream, for a leader gets no ack
of what is not taken. When a session is to go on by the live lane because acks wait for its replica, what has come of it
is taken at once, and paid for afterwards. A leader says only that it is to go; but it waits for a replica once that has
all that is committed (`Leadership.waits_for`), and nothing more is committed without it from then on. A replica whose
log ends below a high watermark that its frames tell is not waited for: it is just near its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from penstock_proto.fast.replicate import ReceivedData
from penstock_storage_node.rpc.catch_up_throttle import Direction

REST_S_MAX = 1.0
"""Most time before a rate is looked at again."""


class PacedInlet:
    """Of one stream. `take(frame)` is called for each frame, in order within a session."""

    def __init__(
        self,
        budget: Direction,
        take: Callable[[ReceivedData], None],
        log_end_offset: Callable[[int], int | None],
    ) -> None:
        """`log_end_offset(session)`: None when the session is over."""
        self._budget = budget
        self._log_end_offset = log_end_offset
        self._take = take
        self._waiting: deque[ReceivedData] = deque()
        self._place: float | None = None
        """Of the first in line, once it has one."""
        self._more = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, frames: Iterable[ReceivedData]) -> None:
        """A message has come. Takes what may be taken; the rest waits for `run`."""
        for frame in frames:
            self._waiting.append(frame)
            if frame.move is not None:
                self._let_through(frame.session)
        self._pump()
        if self._waiting:
            self._more.set()

    async def run(self) -> None:
        """Take what waits when its time has come, for ever."""
        while True:
            rest_s = min(self._pump(), REST_S_MAX)
            if rest_s:
                self._budget.throttled_s += rest_s
                await asyncio.sleep(rest_s)
            else:
                self._more.clear()
                await self._more.wait()

    def clear(self) -> None:
        """The stream is over."""
        if self._place is not None:
            self._budget.give_back(size_of(self._waiting[0]))
            self._place = None
        self._waiting.clear()

    def _pump(self) -> float:
        """Take all that may be taken; returns how long the next one has to wait, 0 when there is none."""
        waiting, budget = self._waiting, self._budget
        while waiting:
            frame = waiting[0]
            if (size := size_of(frame)) > 0:
                if self._place is None:
                    self._place = budget.claim(size)
                if (wait_s := budget.wait_s(self._place)) > 0:
                    return wait_s
                self._place = None
            waiting.popleft()
            self._take(frame)
        return 0.0

    def _let_through(self, session: int) -> None:
        """All that has come of a session that acks wait for; the others wait for it afterwards."""
        passing = [frame for frame in self._waiting if frame.session == session]
        end_offset = self._log_end_offset(session)
        if end_offset is not None and any(frame.high_watermark > end_offset for frame in passing):
            return
        is_first_claimed = self._place is not None and self._waiting[0] is passing[0]
        self._waiting = deque(frame for frame in self._waiting if frame.session != session)
        for number, frame in enumerate(passing):
            if number or not is_first_claimed:
                self._budget.claim(size_of(frame))
        if is_first_claimed:
            self._place = None
        for frame in passing:
            self._take(frame)


def size_of(frame: ReceivedData) -> int:
    """Bytes of record batches in it."""
    if frame.piece is not None:
        return len(frame.piece.data)
    return 0 if frame.records is None else len(frame.records)


__all__ = ["PacedInlet", "size_of"]
