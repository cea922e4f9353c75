"""The laptop deployment keeps its promises: one address, no loss, scaling with no edit."""

from __future__ import annotations

import subprocess
import textwrap
import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

PARTITION_COUNT = 6
CONTAINER_CLIENT = """
    import asyncio, sys
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    async def main(bootstrap, topic, count):
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
        await producer.start()
        for n in range(count):
            await producer.send(topic, f"container-{n}".encode(), partition=n % 6)
        await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        partitions = [TopicPartition(topic, p) for p in range(6)]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        seen = 0
        while seen < sum(ends.values()):
            batches = await consumer.getmany(timeout_ms=1000)
            seen += sum(len(b) for b in batches.values())
        await consumer.stop()
        print(seen)

    asyncio.run(asyncio.wait_for(main(sys.argv[1], sys.argv[2], int(sys.argv[3])), 90))
"""


def create_topic(bootstrap: str, name: str) -> None:
    topic = NewTopic(
        name, num_partitions=PARTITION_COUNT, replication_factor=3, config={"min.insync.replicas": "2"}
    )
    for future in AdminClient({"bootstrap.servers": bootstrap}).create_topics([topic]).values():
        future.result(30)


class AckedProducer:
    """Produces numbered records until told to stop, and remembers what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acked: set[bytes] = set()
        self.failed: list[str] = []
        self._topic = topic
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "acks": "all"}
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> AckedProducer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0, "records were neither acknowledged nor refused"

    def wait_for_acks(self, count: int, timeout_s: float = 60) -> None:
        """Wait until `count` more records were acknowledged than now."""
        with self._progress:
            goal = len(self.acked) + count
            assert self._progress.wait_for(lambda: len(self.acked) >= goal, timeout_s), "no acks came"

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = f"host-{number}".encode()
            self._producer.produce(
                self._topic, value, partition=number % PARTITION_COUNT, callback=self._done
            )
            self._producer.poll(0.001)
            number += 1

    def _done(self, error: Any, message: Any) -> None:
        with self._progress:
            if error is None:
                self.acked.add(message.value())
            else:
                self.failed.append(str(error))
            self._progress.notify_all()


def read_all(bootstrap: str, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    ends = {
        p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1]
        for p in range(PARTITION_COUNT)
    }
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITION_COUNT)])
    values: list[bytes] = []
    while len(values) < sum(ends.values()):
        messages = consumer.consume(1000, timeout=30)
        assert messages, f"read {len(values)} of {sum(ends.values())} records, then nothing came for 30 s"
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
            values.append(message.value() or b"")
    consumer.close()
    return values


def test_host_and_container_use_the_one_address(stack: Any) -> None:
    create_topic(stack.bootstrap, "one-address")
    with AckedProducer(stack.bootstrap, "one-address") as producer:
        producer.wait_for_acks(1000)
    assert not producer.failed
    network = f"{stack.project}_penstock"
    image = stack.containers("gateway")[0].image.id
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", network, "--entrypoint", "python3", image, "-c",
         textwrap.dedent(CONTAINER_CLIENT), "penstock:9092", "one-address", "600"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) == len(producer.acked) + 600
    values = read_all(stack.bootstrap, "one-address")
    assert len(values) == len(set(values)) == len(producer.acked) + 600


def test_killed_storage_container_loses_nothing(stack: Any) -> None:
    create_topic(stack.bootstrap, "killed")
    with AckedProducer(stack.bootstrap, "killed") as producer:
        producer.wait_for_acks(2000)
        victim = stack.containers("storage-node")[0]
        victim.kill()
        producer.wait_for_acks(2000)
        stack.wait("the node counts as gone", lambda: stack.live_node_count() == 2)
        victim.start()
        stack.wait("the node is back", lambda: stack.live_node_count() == 3)
        producer.wait_for_acks(1000)
    assert not producer.failed
    values = read_all(stack.bootstrap, "killed")
    assert len(values) == len(set(values)), "a record is there twice"
    assert producer.acked == set(values)

    def whole() -> bool:
        partitions = stack.get_json("/v1/topics/killed")["partitions"]
        return all(len(p["isr"]) == 3 for p in partitions)

    stack.wait("every replica in sync again", whole)


def test_scaling_needs_no_edit(stack: Any) -> None:
    create_topic(stack.bootstrap, "scaled")
    with AckedProducer(stack.bootstrap, "scaled") as producer:
        producer.wait_for_acks(500)
        stack.compose("up", "-d", "--no-recreate", "--scale", "storage-node=5", "--scale", "gateway=3")
        stack.wait("five live nodes", lambda: stack.live_node_count() == 5)
        stack.wait("three gateways", lambda: len(stack.get_json("/v1/cluster")["gateways"]) == 3)
        producer.wait_for_acks(500)
    assert not producer.failed
    create_topic(stack.bootstrap, "wide")
    replicas = [set(p["replicas"]) for p in stack.get_json("/v1/topics/wide")["partitions"]]
    assert len(set.union(*replicas)) == 5, "new topics spread over all five nodes"


def test_stopped_stack_comes_back_with_its_data(stack: Any) -> None:
    create_topic(stack.bootstrap, "kept")
    with AckedProducer(stack.bootstrap, "kept") as producer:
        producer.wait_for_acks(500)
    stack.compose("down", "--timeout", "20")
    stack.compose("up", "-d")
    stack.wait("three live nodes", lambda: stack.live_node_count() >= 3)
    assert producer.acked == set(read_all(stack.bootstrap, "kept"))
