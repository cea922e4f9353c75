"""Members of a consumer group, one thread each, behind one small face for three clients.

Each processes what it gets, then commits, as a careful user does. The `Ledger` keeps what was
processed, and checks every commit: nothing below a committed offset may be unprocessed.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import aiokafka
import aiokafka.errors
import kafka
import kafka.errors
from confluent_kafka import Consumer, KafkaException, TopicPartition

from support.clients import forget_leaks
from support.kafka import Ledger, client_config
from support.kafka_python import mend_dials

mend_dials()
SESSION_TIMEOUT_MS = 6_000


class GroupLedger:
    """What all members together have processed and committed, by partition. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.processed: dict[int, set[int]] = {}
        self.values: set[bytes] = set()
        self.committed: dict[int, int] = {}
        self.gaps: list[str] = []

    def process(self, partition: int, offset: int, value: bytes) -> None:
        with self._lock:
            self.processed.setdefault(partition, set()).add(offset)
            self.values.add(value)

    def commit(self, positions: Mapping[int, int]) -> None:
        """A commit that was acknowledged."""
        with self._lock:
            for partition, position in positions.items():
                done = self.processed.get(partition, set())
                missing = [o for o in range(self.committed.get(partition, 0), position) if o not in done]
                if missing:
                    self.gaps.append(
                        f"partition {partition}: {position} committed, {missing[0]} not processed"
                    )
                self.committed[partition] = max(self.committed.get(partition, 0), position)

    @property
    def count(self) -> int:
        """Records processed at least once."""
        return len(self.values)


def kept(positions: dict[int, int], owned: set[int]) -> dict[int, int]:
    """What a member still has to commit: a refused commit is made again while it has the partition, for a record
    after which no other comes would stay uncommitted; whoever else has the partition reads it again."""
    return {partition: offset for partition, offset in positions.items() if partition in owned}


class GroupMember:
    """One consumer. `stop` leaves the group in order."""

    def __init__(self, bootstrap: str, topic: str, group: str, ledger: GroupLedger, **config: Any) -> None:
        self.bootstrap, self.topic, self.group, self.ledger = bootstrap, topic, group, ledger
        self.config = config
        self.owned: set[int] = set()
        self.taken = 0
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=f"{type(self).__name__} of {group}")
        self._thread.start()

    def stop(self) -> None:
        """Leave the group; raises what went wrong on the way."""
        self._stop.set()
        self._thread.join(180)
        forget_leaks()
        assert not self._thread.is_alive(), "the client did not close"
        self.check()

    def check(self) -> None:
        """Raises what ended this member before it was told to stop."""
        if self._failure is not None:
            raise self._failure

    def has_read(self, values: set[bytes]) -> bool:
        """Whether the group has processed them all; raises what ended this member."""
        self.check()
        return values <= self.ledger.values

    def unread(self, book: Ledger) -> str:
        """By partition, which acknowledged records nobody processed, and how far the group has committed."""
        missing: dict[int, list[int]] = {}
        for number, (partition, offset) in list(book.acked.items()):
            if book.values[number] not in self.ledger.values:
                missing.setdefault(partition, []).append(-1 if offset is None else offset)
        told = [
            f"{len(offsets)} of partition {partition} from offset {min(offsets)} to {max(offsets)}, committed"
            f" {self.ledger.committed.get(partition)}"
            for partition, offsets in sorted(missing.items())
        ]
        return f"{'; '.join(told)}; it owns {sorted(self.owned)}"

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._failure = error

    @property
    def going(self) -> bool:
        return not self._stop.is_set()

    @abstractmethod
    def run(self) -> None:
        """Poll, process, commit until told to stop."""


class ConfluentMember(GroupMember):
    def run(self) -> None:
        consumer = Consumer(
            client_config(
                self.bootstrap,
                **{
                    "group.id": self.group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    **self.protocol(),
                    **self.config,
                },
            )
        )
        consumer.subscribe([self.topic])
        positions: dict[int, int] = {}
        try:
            while self.going:
                found: list[Any] = consumer.consume(500, timeout=0.2)
                for message in found:
                    error = message.error()
                    if error is not None:
                        assert not error.fatal(), error
                        continue
                    self.ledger.process(message.partition(), message.offset(), message.value())
                    positions[message.partition()] = message.offset() + 1
                    self.taken += 1
                self.owned = {p.partition for p in consumer.assignment()}
                positions = kept(positions, self.owned)
                if positions and self._commit(consumer, positions):
                    positions = {}
        finally:
            consumer.close()

    def protocol(self) -> dict[str, Any]:
        """Settings of the group protocol."""
        return {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": 1_000}

    def _commit(self, consumer: Consumer, positions: dict[int, int]) -> bool:
        wanted = [TopicPartition(self.topic, p, offset) for p, offset in positions.items()]
        try:
            done = consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return False  # in the middle of a rebalance
        self.ledger.commit({p.partition: p.offset for p in done if p.error is None})
        return all(p.error is None for p in done)


class CooperativeMember(ConfluentMember):
    """With the cooperative protocol: partitions that stay are read on through a rebalance."""

    def protocol(self) -> dict[str, Any]:
        return super().protocol() | {"partition.assignment.strategy": "cooperative-sticky"}


class ModernMember(ConfluentMember):
    """With the consumer protocol (KIP-848): the coordinator assigns."""

    def protocol(self) -> dict[str, Any]:
        return {"group.protocol": "consumer"}


class KafkaPythonMember(GroupMember):
    def run(self) -> None:
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=1_000,
            **self.config,
        )
        positions: dict[int, int] = {}
        try:
            while self.going:
                try:
                    found = consumer.poll(timeout_ms=200)
                except kafka.errors.KafkaConnectionError:
                    # While it looks for its coordinator, one dial that is refused comes out of `poll`; nothing is lost.
                    continue
                for place, records in found.items():
                    for record in records:
                        self.ledger.process(place.partition, record.offset, record.value)
                        self.taken += 1
                    positions[place.partition] = records[-1].offset + 1
                self.owned = {p.partition for p in consumer.assignment()}
                positions = kept(positions, self.owned)
                if positions:
                    try:
                        consumer.commit(
                            {
                                kafka.TopicPartition(self.topic, p): kafka.OffsetAndMetadata(offset, "", -1)
                                for p, offset in positions.items()
                            }
                        )
                    except kafka.errors.KafkaError:
                        continue
                    self.ledger.commit(positions)
                    positions = {}
        finally:
            consumer.close()


class AiokafkaMember(GroupMember):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=1_000,
            **self.config,
        )
        await consumer.start()
        positions: dict[int, int] = {}
        try:
            while self.going:
                for place, records in (await consumer.getmany(timeout_ms=200)).items():
                    for record in records:
                        self.ledger.process(place.partition, record.offset, record.value)
                        self.taken += 1
                    positions[place.partition] = records[-1].offset + 1
                self.owned = {p.partition for p in consumer.assignment()}
                positions = kept(positions, self.owned)
                if positions:
                    try:
                        await consumer.commit(
                            {aiokafka.TopicPartition(self.topic, p): o for p, o in positions.items()}
                        )
                    except aiokafka.errors.KafkaError:
                        continue
                    self.ledger.commit(positions)
                    positions = {}
        finally:
            try:
                await consumer.stop()
            except asyncio.CancelledError:
                # A fetch of its own that waited to try again; it stops at that, and leaves its connections open.
                await consumer._client.close()


MEMBERS: dict[str, Callable[..., GroupMember]] = {
    "confluent-kafka": ConfluentMember,
    "cooperative": CooperativeMember,
    "group.protocol=consumer": ModernMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}
