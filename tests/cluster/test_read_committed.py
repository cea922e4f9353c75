"""Readers of committed records, by every client, directly and by a gateway: what is undecided or aborted is missing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from support.cluster import running_cluster
from support.kafka import client_config
from support.transaction_file import leave_transactions

TOPIC = "decided"
PATIENCE_S = 60

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


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
        log, everything, committed = leave_transactions(cluster, tmp_path, TOPIC)
        for bootstrap in (cluster.bootstrap, cluster.direct_bootstrap):
            for read in (by_librdkafka, by_kafka_python, by_aiokafka):
                assert read(bootstrap, "read_committed", len(committed)) == committed, (bootstrap, read)
                assert read(bootstrap, "read_uncommitted", len(everything)) == everything, (bootstrap, read)
            end = end_offset(bootstrap, IsolationLevel.READ_UNCOMMITTED)
            assert end_offset(bootstrap, IsolationLevel.READ_COMMITTED) == end - 2
        (index,) = log.parent.glob("*.txnindex")
        assert index.stat().st_size > 0
