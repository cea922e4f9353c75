"""Admin requests of Kafka, asked again within a bound where the way to the broker was lost.

librdkafka gives up a request together with the broker that it was sent to: one whose connection breaks, or one that
newer metadata do not name, as those after a node was killed. It may have been carried out; nobody tells. It does not
ask again where an election is in the way, either; then nothing was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.cli import kafka
from penstock.errors import CommandError

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Answer(Generic[V]):
    """What became of a request."""

    value: V | None = None
    error: CommandError | None = None
    repeats: bool = False
    """Whether an earlier try may have been carried out unseen: what the last one finds may be its doing."""

    def result(self) -> V:
        """Raises CommandError."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def says(self, code: int) -> bool:
        """Whether it is this error of Kafka's."""
        return self.error is not None and kafka.code_of(self.error) == code


def ask_each(
    request: Callable[[list[K]], Mapping[K, Any]],
    keys: Iterable[K],
    thing: Callable[[K], str],
    *,
    again_if: Callable[[int | None], bool] = kafka.may_be_asked_again,
) -> dict[K, Answer[Any]]:
    """Answers by key; only those that may go better are asked for again, for CALL_TIMEOUT_S.

    `request` gives a future for each key that it is called with, `thing` is what an error calls it, `again_if` tells
    by Kafka's code what may go better.
    """
    answers: dict[K, Answer[Any]] = {}
    left = list(keys)
    until_s = time.monotonic() + kafka.CALL_TIMEOUT_S
    while left:
        again = []
        for key, future in request(left).items():
            before = answers.get(key, Answer())
            repeats = before.repeats or (
                before.error is not None and kafka.was_lost(kafka.code_of(before.error))
            )
            try:
                answers[key] = Answer(kafka.wait_for(future, thing(key)), repeats=repeats)
            except CommandError as error:
                answers[key] = Answer(error=error, repeats=repeats)
                if again_if(kafka.code_of(error)):
                    again.append(key)
        if time.monotonic() >= until_s:
            break
        left = again
        if left:
            time.sleep(kafka.PAUSE_S)
    return answers


def ask(request: Callable[[], Any], thing: str) -> Answer[Any]:
    """The answer to one request; see `ask_each`."""
    return ask_each(lambda _: {None: request()}, [None], lambda _: thing)[None]
