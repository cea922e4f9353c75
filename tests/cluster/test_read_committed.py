"""Readers of committed records, by every client, directly and by a gateway: what is undecided or aborted is not there.

No client writes transactions yet. So a partition's file gets the batches that transactions leave behind while its node
is dead, as a crash leaves them: the node finds by itself what they say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from penstock_kafka.records.batch import BatchInfo, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import Marker, build_marker
from support.cluster import running_cluster, start_ready
from support.kafka import client_config, create_topic, produce

TOPIC = "decided"
PATIENCE_S = 60
ENDING, ABORTING, OPEN = 9_000_001, 9_000_002, 9_000_003

Reader = Callable[[str, str, int], list[str]]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def batches(before: BatchInfo) -> tuple[bytes, list[str], list[str]]:
    """What follows a batch; the values behind it that everybody sees; those that readers of committed records see."""
    data = bytearray()
    offset, leader_epoch, now_ms = before.next_offset, before.leader_epoch, before.max_timestamp
    seen: list[tuple[str, int]] = []
    sequences: dict[int, int] = {}

    def write(producer_id: int, *values: str) -> None:
        nonlocal offset
        rows = [NewRecord(b"k", value.encode(), now_ms) for value in values]
        if producer_id < 0:
            data.extend(build_batch(rows, base_offset=offset, leader_epoch=leader_epoch))
        else:
            data.extend(
                build_batch(
                    rows,
                    base_offset=offset,
                    leader_epoch=leader_epoch,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=sequences.get(producer_id, 0),
                    transactional=True,
                )
            )
            sequences[producer_id] = sequences.get(producer_id, 0) + len(values)
        seen.extend((value, producer_id) for value in values)
        offset += len(values)

    def end(producer_id: int, *, commits: bool) -> None:
        nonlocal offset
        marker = bytearray(build_marker(producer_id, 0, Marker(commits, 0), now_ms, base_offset=offset))
        marker[12:16] = leader_epoch.to_bytes(4, "big")
        data.extend(marker)
        offset += 1

    for number in range(40):
        write(ENDING, f"kept-{number}", f"kept-{number}-too")
        write(ABORTING, f"gone-{number}")
        write(-1, f"plain-{number}")
        if number % 3 == 0:
            end(ABORTING, commits=False)
        if number % 5 == 0:
            end(ENDING, commits=True)
    end(ABORTING, commits=False)
    end(ENDING, commits=True)
    decided = len(seen)
    write(OPEN, "undecided")
    write(-1, "behind it")
    committed = [value for value, producer_id in seen[:decided] if producer_id != ABORTING]
    return bytes(data), [value for value, _ in seen], committed


def by_librdkafka(bootstrap: str, isolation: str, count: int) -> list[str]:
    consumer = Consumer(client_config(bootstrap, **{"group.id": "none", "isolation.level": isolation}))
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 1)])
        values: list[str] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(values) < count and time.monotonic() < deadline_s:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                values.append((message.value() or b"").decode())
        # Nothing else comes: the reader is asked once more, with what it has fetched already.
        rest = [m for m in consumer.consume(10, timeout=1) if m.error() is None]
        return values + [(m.value() or b"").decode() for m in rest]
    finally:
        consumer.close()


def by_kafka_python(bootstrap: str, isolation: str, count: int) -> list[str]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, enable_auto_commit=False)
    try:
        consumer.assign([PythonPartition(TOPIC, 0)])
        consumer.seek(PythonPartition(TOPIC, 0), 1)
        values: list[str] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(values) < count and time.monotonic() < deadline_s:
            values += [r.value.decode() for rows in consumer.poll(1000).values() for r in rows]
        return values + [r.value.decode() for rows in consumer.poll(1000).values() for r in rows]
    finally:
        consumer.close()


def by_aiokafka(bootstrap: str, isolation: str, count: int) -> list[str]:
    async def read() -> list[str]:
        consumer: Any = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
        await consumer.start()
        try:
            consumer.assign([AioPartition(TOPIC, 0)])
            consumer.seek(AioPartition(TOPIC, 0), 1)
            values: list[str] = []
            async with asyncio.timeout(PATIENCE_S):
                while len(values) < count:
                    found = await consumer.getmany(timeout_ms=1000)
                    values += [r.value.decode() for rows in found.values() for r in rows]
            found = await consumer.getmany(timeout_ms=1000)
            return values + [r.value.decode() for rows in found.values() for r in rows]
        finally:
            await consumer.stop()

    return asyncio.run(read())


def end_offset(bootstrap: str, level: IsolationLevel) -> int:
    admin = AdminClient(client_config(bootstrap))
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = admin.list_offsets({TopicPartition(TOPIC, 0): latest}, isolation_level=level)
    return int(next(iter(asked.values())).result(PATIENCE_S).offset)


def test_undecided_and_aborted_records_are_not_there(tmp_path: Path) -> None:
    with running_cluster(tmp_path, controllers=1, nodes=1, gateways=1) as cluster:
        create_topic(cluster.bootstrap, TOPIC, 1, 1)
        produce(cluster.bootstrap, TOPIC, 1)
        cluster.kill("node-1")
        (log,) = tmp_path.glob(f"node-1/**/{TOPIC}-0/00000000000000000000.log")
        data, everything, committed = batches(read_header(log.read_bytes()))
        with log.open("ab") as file:
            file.write(data)
        start_ready(cluster, "node-1")
        for bootstrap in (cluster.bootstrap, cluster.direct_bootstrap):
            for read in (by_librdkafka, by_kafka_python, by_aiokafka):
                assert read(bootstrap, "read_committed", len(committed)) == committed, (bootstrap, read)
                assert read(bootstrap, "read_uncommitted", len(everything)) == everything, (bootstrap, read)
            end = end_offset(bootstrap, IsolationLevel.READ_UNCOMMITTED)
            assert end_offset(bootstrap, IsolationLevel.READ_COMMITTED) == end - 2
        (index,) = log.parent.glob("*.txnindex")
        assert index.stat().st_size > 0
