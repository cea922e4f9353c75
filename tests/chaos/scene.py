"""What a scenario is given of a cluster that it hurts, whatever load is on it: who leads, and the marks in time.

Rules: the topics of the load have one replica on each of three nodes; of the first of them the leaders count.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from chaos.cluster import Cluster
from support.kafka import CALL_TIMEOUT_S, client_config
from support.waiting import wait_for

ASSIGNMENT = ([1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [1, 2, 3], [1, 3, 2])
"""node-1 leads most partitions, node-3 none: a leader and a follower to be hit."""
IN_SYNC_TIMEOUT_S = 150.0
ANSWER_TIMEOUT_S = 60.0
"""For the client to tell the end of a call, which has its own deadline."""


@dataclass(frozen=True)
class Phases:
    """Seconds of load before the fault, with it, and after the heal."""

    before_s: float = 20.0
    during_s: float = 20.0
    after_s: float = 20.0


class Scene:
    """See the module's text. `topics` are those of the load; they are made by `create_topic`."""

    def __init__(self, cluster: Cluster, phases: Phases, dice: random.Random, topics: Sequence[str]) -> None:
        self.cluster = cluster
        self.phases = phases
        self.dice = dice
        self.notes: list[str] = []
        self.fault_s: float | None = None
        self.struck_s: float | None = None
        self.heal_s: float | None = None
        self.asked_topics: list[str] = []
        self.acked_topics: list[str] = []
        self.topics = list(topics)
        through = cluster.clients("kafka")
        self.admin = AdminClient(client_config(through["bootstrap.servers"], **through))

    # --- for scenarios -----------------------------------------------------------

    def leader(self) -> str:
        """The node that leads most partitions."""
        return self._nodes_by_leaderships()[0]

    def follower(self) -> str:
        """The node that leads fewest partitions."""
        return self._nodes_by_leaderships()[-1]

    def controller_leader(self) -> str:
        return self.cluster.active_controller()

    def controller_follower(self) -> str:
        active = self.cluster.active_controller()
        return next(name for name in self.cluster.controllers if name != active)

    def fault(self) -> None:
        """The fault begins now: victims are known and nothing is left to be asked."""
        self.fault_s = time.monotonic()
        self.struck_s = None

    def hold(self, share: float = 1.0) -> None:
        """Let the fault last for this share of its time."""
        if self.struck_s is None:
            self.struck_s = time.monotonic()
        # The length of a fault is the fault itself, not a wait for something.
        time.sleep(self.phases.during_s * share)

    def heal(self) -> None:
        """The last fault ends now: what follows is recovery."""
        self.heal_s = time.monotonic()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def in_sync(self) -> bool:
        """Whether every replica of every partition is in sync."""
        return self._are_in_sync(self.topics)

    def placed(self, topic: str = "") -> dict[int, list[int]]:
        """The replicas of each partition, of the load's first topic unless told otherwise."""
        parts = wait_for(lambda: self._partitions(topic), "metadata")
        return {part.id: list(part.replicas) for part in parts}

    def wait_in_sync(self, timeout_s: float = IN_SYNC_TIMEOUT_S) -> None:
        wait_for(self.in_sync, "every replica in sync", timeout_s)

    def change_metadata(self) -> bool:
        """Create one more topic; whether that was acknowledged. What was must be there at the end."""
        name = f"metadata-{len(self.asked_topics)}"
        self.asked_topics.append(name)
        new = NewTopic(name, num_partitions=1)
        try:
            self.admin.create_topics([new], operation_timeout=CALL_TIMEOUT_S, request_timeout=CALL_TIMEOUT_S)[
                name
            ].result(ANSWER_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            code = error.args[0].code() if isinstance(error, KafkaException) else KafkaError._TIMED_OUT
            # A call that is repeated across an election may find its own doing.
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return True
            self.note(f"topic {name} refused: {error}")
            return False
        self.acked_topics.append(name)
        return True

    def lost_topics(self) -> list[str]:
        """Topics that were acknowledged and are not there, as far as anybody answers."""
        there: Collection[str] = ()
        with suppress(KafkaException):
            there = self.admin.list_topics(timeout=CALL_TIMEOUT_S).topics
        return [name for name in self.acked_topics if name not in there]

    def create_topic(self, name: str, partitions: int = len(ASSIGNMENT)) -> None:
        """With the replicas of ASSIGNMENT, over and over; returns when all are in sync."""
        new = NewTopic(
            name,
            num_partitions=partitions,
            replica_assignment=[list(ASSIGNMENT[number % len(ASSIGNMENT)]) for number in range(partitions)],
            config={"min.insync.replicas": "2", "retention.ms": "-1"},
        )

        def created() -> bool:
            made = self.admin.create_topics([new], operation_timeout=CALL_TIMEOUT_S)[name]
            try:
                made.result(ANSWER_TIMEOUT_S)
            except KafkaException as error:
                # A node on a busy machine may be fenced for a moment, and no replica may be put there then.
                self.note(f"topic {name} refused: {error}")
                return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
            return True

        wait_for(created, f"topic {name}")
        wait_for(lambda: self._are_in_sync([name]), f"every replica of {name} in sync", IN_SYNC_TIMEOUT_S)

    # --- inside ------------------------------------------------------------------

    def _are_in_sync(self, topics: Sequence[str]) -> bool:
        found = [self._partitions(topic) for topic in topics]
        return all(found) and all(sorted(p.isrs) == sorted(p.replicas) for parts in found for p in parts)

    def _partitions(self, topic: str = "") -> list[Any]:
        topic = topic or self.topics[0]
        with suppress(KafkaException):
            found = self.admin.list_topics(topic, timeout=CALL_TIMEOUT_S).topics[topic]
            if found.error is None:
                return list(found.partitions.values())
        return []

    def _nodes_by_leaderships(self) -> list[str]:
        parts = wait_for(self._partitions, "metadata")
        leads = Counter(self.cluster.node_name(p.leader) for p in parts if p.leader > 0)
        return sorted(self.cluster.nodes, key=lambda name: -leads[name])
