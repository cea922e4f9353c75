"""What prepares a target for scenarios, whatever the client under test: confluent-kafka, and Metadata by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.secure_world import Doors
from conformance.wire import Closed, leaders_known, leaders_lead, node_addresses
from support.kafka import client_config
from support.waiting import wait_for

CALL_TIMEOUT_S = 60.0
FILL_TIMEOUT_S = 60.0


class Harness:
    """One cluster, as scenarios prepare it. Thread-safe."""

    def __init__(self, bootstrap: str, doors: Doors | None = None) -> None:
        """`doors` of a target at which clients sign in."""
        self.bootstrap = bootstrap
        self.doors = doors
        self._admin = AdminClient(client_config(bootstrap))
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def case(self, prefix: str, target: str) -> PreparedCase:
        """A scenario's view, with names of its own."""
        return PreparedCase(self, prefix, target)

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        """Create a topic, and wait until every node tells its leaders.

        Without retention.ms it keeps everything, since scenarios write records of years ago; "default" leaves it out.
        """
        config = {"retention.ms": "-1", **config}
        if config["retention.ms"] == "default":
            del config["retention.ms"]
        new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=config)
        try:
            self._admin.create_topics([new], operation_timeout=CALL_TIMEOUT_S)[topic].result(CALL_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        self.wait_for_topic(topic, partitions)

    def wait_for_topic(self, topic: str, partitions: int) -> None:
        """Until every node tells the leaders of exactly so many partitions, and these lead."""
        for address in node_addresses(self.bootstrap):
            # More may be those of a topic of the same name that is deleted, but not for this node yet.
            known = partial(leaders_known, address, topic)
            wait_for(partial(_answers, known, partitions), f"leaders of {topic} at {address}", CALL_TIMEOUT_S)
        leading = partial(leaders_lead, self.bootstrap, topic)
        wait_for(partial(_answers, leading, True), f"leaders of {topic} that lead", CALL_TIMEOUT_S)

    def fill(self, topic: str, values: Sequence[str | None], partition: int, record: dict[str, Any]) -> None:
        """Records, all acknowledged."""
        with self._lock:
            if self._producer is None:
                self._producer = Producer(client_config(self.bootstrap, **{"enable.idempotence": True}))
            producer = self._producer
        errors: list[Any] = []
        answered = threading.Semaphore(0)

        def report(error: Any, _message: Any) -> None:
            if error is not None:
                errors.append(error)
            answered.release()

        more = {k: v for k, v in (("timestamp", record.get("timestamp_ms")),) if v is not None}
        key = record.get("key")
        headers = [(n, None if v is None else v.encode("latin-1")) for n, v in record.get("headers", [])]
        for value in values:
            producer.produce(
                topic,
                None if value is None else value.encode("latin-1"),
                None if key is None else key.encode("latin-1"),
                partition,
                on_delivery=report,
                headers=headers or None,
                **more,
            )
        producer.flush(FILL_TIMEOUT_S)
        for _ in values:
            assert answered.acquire(timeout=FILL_TIMEOUT_S), f"{topic} was not filled"
        assert not errors, errors[0]

    def close(self) -> None:
        """Nothing is left to be sent."""
        if self._producer is not None:
            self._producer.flush(1)


class PreparedCase:
    """`frame.Case` on a real cluster."""

    def __init__(self, harness: Harness, prefix: str, target: str) -> None:
        self._harness = harness
        self._prefix = prefix
        self.target = target
        self.bootstrap = harness.bootstrap

    @property
    def doors(self) -> Doors:
        assert self._harness.doors is not None, 'only of scenarios with world="secure"'
        return self._harness.doors

    def name(self, suffix: str = "x") -> str:
        return f"{self._prefix}.{suffix}"

    def group(self, suffix: str = "g") -> str:
        return self.name(suffix)

    def topic(self, suffix: str = "t", partitions: int = 1, **config: str) -> str:
        name = self.name(suffix)
        self._harness.create(name, partitions, {n.replace("_", "."): v for n, v in config.items()})
        return name

    def ready(self, name: str, partitions: int = 1) -> None:
        self._harness.wait_for_topic(name, partitions)

    def fill(self, topic: str, values: Sequence[str | None], partition: int = 0, **record: Any) -> None:
        self._harness.fill(topic, values, partition, record)


def _answers(ask: Callable[[], int], wanted: int) -> bool:
    """Whether that is the answer; a node that is busy elsewhere is asked again."""
    try:
        return ask() == wanted
    except (OSError, Closed):
        return False
