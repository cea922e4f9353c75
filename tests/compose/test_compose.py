"""The laptop deployment keeps its promises: one address, no loss, scaling with no edit."""

from __future__ import annotations

import subprocess
import textwrap
from typing import Any

import pytest

from support.kafka import Load, check_nothing_lost, create_topic, read_all

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

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

    asyncio.run(asyncio.wait_for(main(sys.argv[1], sys.argv[2], int(sys.argv[3])), 240))
"""


def test_host_and_container_use_the_one_address(stack: Any) -> None:
    create_topic(stack.bootstrap, "one-address", PARTITION_COUNT, 3)
    with Load(stack.bootstrap, "one-address") as load:
        load.wait_for_acks(1000)
    network = f"{stack.project}_penstock"
    image = stack.containers("gateway")[0].image.id
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", network, "--entrypoint", "python3", image, "-c",
         textwrap.dedent(CONTAINER_CLIENT), "penstock:9092", "one-address", "600"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) == len(load.ledger.acked) + 600
    records = read_all(stack.bootstrap, "one-address")
    assert len(records) == len({record.value for record in records}) == len(load.ledger.acked) + 600
    check_nothing_lost(load.ledger, [r for r in records if not r.value.startswith(b"container-")])


def test_killed_storage_container_loses_nothing(stack: Any) -> None:
    create_topic(stack.bootstrap, "killed", PARTITION_COUNT, 3)
    with Load(stack.bootstrap, "killed") as load:
        load.wait_for_acks(2000)
        victim = stack.containers("storage-node")[0]
        victim.kill()
        load.wait_for_acks(2000)
        stack.wait("the node counts as gone", lambda: stack.live_node_count() == 2)
        victim.start()
        stack.wait("the node is back", lambda: stack.live_node_count() == 3)
        load.wait_for_acks(1000)
    check_nothing_lost(load.ledger, read_all(stack.bootstrap, "killed"))

    def whole() -> bool:
        partitions = stack.get_json("/v1/topics/killed")["partitions"]
        return all(len(p["isr"]) == 3 for p in partitions)

    stack.wait("every replica in sync again", whole)


def test_scaling_needs_no_edit(stack: Any) -> None:
    create_topic(stack.bootstrap, "scaled", PARTITION_COUNT, 3)
    with Load(stack.bootstrap, "scaled") as load:
        load.wait_for_acks(500)
        stack.compose("up", "-d", "--no-recreate", "--scale", "storage-node=5", "--scale", "gateway=3")
        stack.wait("five live nodes", lambda: stack.live_node_count() == 5)
        stack.wait("three gateways", lambda: len(stack.get_json("/v1/cluster")["gateways"]) == 3)
        load.wait_for_acks(500)
    stack.wait("five live nodes", lambda: stack.live_node_count() == 5)
    create_topic(stack.bootstrap, "wide", PARTITION_COUNT, 3)
    used: set[int] = set()

    def is_known() -> bool:
        # The gateway that is asked need not be the one that made it.
        used.update(n for p in stack.get_json("/v1/topics/wide")["partitions"] for n in p["replicas"])
        return bool(used)

    stack.wait("a gateway tells of the topic", is_known)
    assert len(used) == 5, "new topics spread over all five nodes"


def test_stopped_stack_comes_back_with_its_data(stack: Any) -> None:
    # Five, whatever ran before: a partition comes back with the nodes that hold it, not with others.
    five = ["up", "-d", "--scale", "storage-node=5"]
    stack.compose(*five)
    stack.wait("five live nodes", lambda: stack.live_node_count() == 5)
    create_topic(stack.bootstrap, "kept", PARTITION_COUNT, 3)
    with Load(stack.bootstrap, "kept") as load:
        load.wait_for_acks(500)
    stack.compose("down", "--timeout", "20")
    stack.compose(*five)
    stack.wait("five live nodes again", lambda: stack.live_node_count() == 5)
    check_nothing_lost(load.ledger, read_all(stack.bootstrap, "kept"))
