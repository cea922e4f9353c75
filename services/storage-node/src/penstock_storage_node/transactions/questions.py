"""Requests on their way to an answer, and those that are held.

Each is answered once, at once or later. Whoever meets a pending transition or unwritten markers waits for their end in
a place of its own, and for so long at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock_core.errors import ErrorCode
from penstock_storage_node.timers import Timer, TimerQueue
from penstock_storage_node.transactions.state import Answer

Reply = Callable[[Answer], None]


class Question:
    """A request on its way to an answer. Of the shard; who asked may only `Shard.drop` it."""

    __slots__ = ("held_in", "late", "reply", "request", "timer", "transactional_id", "until_ms")

    def __init__(self, transactional_id: str, request: Any, reply: Reply, until_ms: int) -> None:
        self.transactional_id = transactional_id
        self.request = request
        self.reply: Reply | None = reply
        """None: it is answered, or nobody waits for the answer."""
        self.until_ms = until_ms
        self.late = ErrorCode.CONCURRENT_TRANSACTIONS
        """What it is told then."""
        self.held_in: dict[Question, None] | None = None
        self.timer: Timer | None = None

    def answer(self, answer: Answer) -> None:
        """Once; later answers are nothing."""
        reply, self.reply = self.reply, None
        if reply is not None:
            reply(answer)


Place = dict[Question, None]
"""Where some of them wait for the same thing."""


class Held:
    """Those that wait; their timers ring in the shard's queue."""

    def __init__(self, timers: TimerQueue, clock_ms: Callable[[], int], most: int) -> None:
        self._timers = timers
        self._clock_ms = clock_ms
        self._most = most
        self.count = 0

    def hold(self, question: Question, place: Place, late: ErrorCode) -> None:
        """Until it is released, or its time is over and it is told `late`; at once where too many wait."""
        if question.until_ms <= self._clock_ms() or self.count >= self._most:
            question.answer(Answer(late))
            return
        question.late = late
        question.held_in = place
        place[question] = None
        self.count += 1
        if question.timer is None:
            question.timer = Timer("held", (question,))
        self._timers.set(question.timer, question.until_ms)

    def release(self, question: Question) -> None:
        """It waits no more."""
        place, question.held_in = question.held_in, None
        if place is not None:
            place.pop(question, None)
            self.count -= 1
        if question.timer is not None:
            question.timer.cancel()
