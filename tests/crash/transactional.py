"""Transactions in the rounds: producers of two clients that commit and abort until everything dies, and then go on.

Rules: a producer that was cut off goes on by itself and ends the transaction that it was in, but for one of them, whose
application dies with the cluster, in the middle of a transaction. After the start each transactional id gets a
new producer, as a supervisor would start it. Then every last stable offset comes to its watermark, each commit
that was answered is there and whole, nothing of an abort or of what was left open is, and no client has heard
anything fatal.
"""

from __future__ import annotations

import time

from support.kafka import create_topic
from support.transactions import (
    Outcome,
    Story,
    TransactionalLoad,
    check_story,
    is_decided,
    read_to_end,
)
from support.waiting import wait_for

TOPIC = "transactions"
PARTITIONS = 6
PRODUCERS = ("confluent-kafka", "confluent-kafka", "aiokafka")
"""kafka-python 3.0.12 does not close the sockets of dials that were refused, of which there are many here, and may say
nothing for two minutes after them."""
LEFT = 0
"""Whose application dies: librdkafka ends nothing when it is let go, where others would abort."""
PAUSE_S = 0.05
"""Between two transactions: the ordinary load has to have its acks too."""
COMMITS_TIMEOUT_S = 120.0
DECIDED_TIMEOUT_S = 120.0


class TransactionalRounds:
    """The load of all rounds; each has new producers, and the stories go on."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stories = [Story() for _ in PRODUCERS]
        self._loads: list[TransactionalLoad] = []
        create_topic(
            bootstrap, TOPIC, PARTITIONS, 3, **{"penstock.durability": "fsync", "segment.bytes": "262144"}
        )

    def __enter__(self) -> TransactionalRounds:
        return self

    def __exit__(self, *_: object) -> None:
        for load in self._loads:
            load.stop()

    def count(self, outcome: Outcome) -> int:
        return sum(story.count(outcome) for story in self._stories)

    def begin(self) -> None:
        """A new producer under each id; what the one before left open is ended by that."""
        self._loads = [
            TransactionalLoad(
                self._bootstrap, TOPIC, PARTITIONS, f"crash-{number}", by=by, story=story, pause_s=PAUSE_S
            )
            for number, (by, story) in enumerate(zip(PRODUCERS, self._stories, strict=True))
        ]
        for load in self._loads:
            load.__enter__()

    def wait_for_commits(self, more: int) -> None:
        """Until each producer has committed so many times more."""
        wanted = [story.count(Outcome.COMMITTED) + more for story in self._stories]
        wait_for(
            lambda: all(
                s.fatal or s.count(Outcome.COMMITTED) >= w for s, w in zip(self._stories, wanted, strict=True)
            ),
            f"{more} more commits of each producer",
            COMMITS_TIMEOUT_S,
        )
        self._check_fatal()

    def leave_one(self) -> None:
        """One application is gone, in the middle of a transaction."""
        self._loads[LEFT].leave()

    def check(self, started_s: float) -> float:
        """Everybody runs again, since then: how long it took until all was decided. Raises AssertionError."""
        for load in self._loads:
            load.stop()
        self.begin()
        self.wait_for_commits(1)
        for load in self._loads:
            load.stop()
        self._check_fatal()
        wait_for(
            lambda: is_decided(self._bootstrap, TOPIC, PARTITIONS),
            "every last stable offset at its watermark",
            DECIDED_TIMEOUT_S,
        )
        took_s = time.monotonic() - started_s
        check_story(self._stories, read_to_end(self._bootstrap, TOPIC, "read_committed"))
        self.begin()
        return took_s

    def _check_fatal(self) -> None:
        fatal = [why for story in self._stories for why in story.fatal]
        assert not fatal, f"fatal errors of producers: {fatal}"
