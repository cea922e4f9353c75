"""Who coordinates what, and having it moved: coordinators lead partitions of topics of the cluster's own."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, PartitionMetadata

from penstock.cli import wire
from penstock.cli.kafka import Bootstrap
from penstock.errors import CommandError
from support.kafka import CALL_TIMEOUT_S
from support.waiting import wait_for


class Address(Protocol):
    """Where a cluster is asked."""

    def bootstrap(self, use: str = "kafka") -> str: ...


class Coordinators:
    """Of a cluster, asked of through its gateways."""

    def __init__(self, cluster: Address, admin: AdminClient) -> None:
        self._cluster = cluster
        self._admin = admin

    def partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        """All partitions of a topic, once somebody tells."""

        def found() -> dict[int, PartitionMetadata]:
            with suppress(KafkaException):
                told = self._admin.list_topics(topic, timeout=CALL_TIMEOUT_S).topics[topic]
                if told.error is None:
                    return dict(told.partitions)
            return {}

        return wait_for(found, f"metadata of {topic}")

    def move(self, topic: str, partition: int) -> None:
        """To the next of its replicas, which becomes the preferred one."""
        before = self.partitions(topic)[partition]
        others = [node for node in before.replicas if node != before.leader]
        order = [*others, *(node for node in before.replicas if node == before.leader)]
        self.reassign({(topic, partition): order})
        place = TopicPartition(topic, partition)

        def moved() -> bool:
            if self.partitions(topic)[partition].leader == order[0]:
                return True
            with suppress(KafkaException):
                self._admin.elect_leaders(ElectionType.PREFERRED, [place]).result(CALL_TIMEOUT_S)
            return False

        wait_for(moved, f"node-{order[0]} leads {topic}-{partition}")

    def reassign(self, targets: dict[tuple[str, int], list[int]]) -> None:
        """Each partition is on its way to these replicas when it returns, the first of them preferred."""
        wanted: dict[tuple[str, int], list[int] | None] = dict(targets.items())

        def asked() -> bool:
            with suppress(CommandError):
                return not wire.alter_reassignments(Bootstrap(self._cluster.bootstrap()), wanted)
            return False

        names = ", ".join(f"{topic}-{partition}" for topic, partition in list(targets)[:3])
        wait_for(asked, f"other replicas of {names} are asked for")
