"""Clients at work while a cluster is changed as planned: producers of three kinds, and their API calls beside them.

"0 errors" is what a planned change promises: no delivery report and no API call failed. A connection that is closed and
dialled again is no error.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import aiokafka
import kafka.admin
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from penstock.local.cluster import LocalCluster
from support.clients import CLIENTS, WRITERS, Writer, forget_leaks
from support.kafka import CALL_TIMEOUT_S, Record, check_nothing_lost, client_config, describe, read_all
from support.kafka_python import mend_dials
from support.operated import LONG
from support.waiting import wait_for

mend_dials()
RATE_PER_S = {"confluent-kafka": 1_000, "kafka-python": 200, "aiokafka": 200} if LONG else {}
SHORT_RATE_PER_S = 60
VALUE_BYTES = 1_024
CALL_EVERY_S = 0.2


def latest() -> OffsetSpec:
    return OffsetSpec.latest()  # type: ignore[no-untyped-call, no-any-return]


def ends_of(bootstrap: str, topic: str) -> dict[int, int]:
    """Where each partition ends now."""
    admin = AdminClient(client_config(bootstrap))
    places = {TopicPartition(topic, number): latest() for number in describe(bootstrap, topic)}
    found = admin.list_offsets(places, request_timeout=CALL_TIMEOUT_S)
    return {place.partition: future.result(CALL_TIMEOUT_S).offset for place, future in found.items()}


def read_since(bootstrap: str, topic: str, ends: dict[int, int]) -> list[Record]:
    """What was written after these ends: tests of one cluster use the same topics, and count from 0 each."""
    return [record for record in read_all(bootstrap, topic) if record.offset >= ends[record.partition]]


class Caller:
    """One client's API calls, one after another in a thread of its own, until stopped."""

    name = ""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.made: Counter[str] = Counter()
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=f"calls of {self.name}")

    def start(self) -> None:
        self._thread.start()

    def has_made(self, count: int) -> bool:
        """So many calls; raises what ended this thread."""
        assert self._thread.is_alive(), self.failed
        return self.made.total() >= count

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(3 * CALL_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name}: a call does not end"

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failed.append(f"{self.name}: {type(error).__name__}: {error}")

    def _call(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            self.failed.append(f"{self.name} {what}: {type(error).__name__}: {error}")
        self.made[what] += 1

    @abstractmethod
    def _run(self) -> None: ...


class ConfluentCaller(Caller):
    """librdkafka forgets a node that metadata name no longer, and ends what it had asked there with an error of its
    own; it is asked again then."""

    name = "confluent-kafka"

    def _call(self, what: str, call: Callable[[], object]) -> None:
        deadline = time.monotonic() + CALL_TIMEOUT_S

        def patiently() -> None:
            while True:
                try:
                    call()
                    return
                except KafkaException as error:
                    if error.args[0].code() != KafkaError._DESTROY_BROKER or time.monotonic() > deadline:
                        raise

        super()._call(what, patiently)

    def _run(self) -> None:
        admin = AdminClient(client_config(self._bootstrap))
        config = ConfigResource(ConfigResource.Type.TOPIC, self._topic)
        place = TopicPartition(self._topic, 0)

        def metadata() -> None:
            found = admin.list_topics(self._topic, timeout=CALL_TIMEOUT_S).topics[self._topic]
            assert found.error is None, found.error
            errors = [p.error for p in found.partitions.values() if p.error is not None]
            # A leader that no one tells of yet is an answer; clients ask again.
            assert all(e.code() == KafkaError.LEADER_NOT_AVAILABLE for e in errors), errors

        def list_offsets() -> None:
            deadline = time.monotonic() + CALL_TIMEOUT_S
            while True:
                try:
                    admin.list_offsets({place: latest()})[place].result(CALL_TIMEOUT_S)
                    return
                except KafkaException as error:
                    # The epoch in the client's metadata is old; Java's admin client asks again by itself.
                    if error.args[0].code() != KafkaError.FENCED_LEADER_EPOCH or time.monotonic() > deadline:
                        raise
                metadata()

        calls: dict[str, Callable[[], object]] = {
            "Metadata": metadata,
            "DescribeCluster": lambda: admin.describe_cluster().result(CALL_TIMEOUT_S),
            "DescribeConfigs": lambda: admin.describe_configs([config])[config].result(CALL_TIMEOUT_S),
            "DescribeTopicPartitions": lambda: admin.describe_topics(TopicCollection([self._topic]))[
                self._topic
            ].result(CALL_TIMEOUT_S),
            "ListOffsets": list_offsets,
        }
        while not self._stop.wait(CALL_EVERY_S):
            for what, call in calls.items():
                self._call(what, call)


class KafkaPythonCaller(Caller):
    """Its admin client gives up at once where every address that it knows refuses a dial, as the one gateway does
    that is just restarted; so a call is asked again, within the time that the other clients' own retries take."""

    name = "kafka-python"

    def _call(self, what: str, call: Callable[[], object]) -> None:
        deadline = time.monotonic() + CALL_TIMEOUT_S

        def patiently() -> None:
            while True:
                try:
                    call()
                    return
                except (kafka.errors.KafkaConnectionError, kafka.errors.NodeNotReadyError):
                    if self._stop.wait(CALL_EVERY_S) or time.monotonic() > deadline:
                        raise

        super()._call(what, patiently)

    def _run(self) -> None:
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=self._bootstrap)
        config = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, self._topic)
        calls: dict[str, Callable[[], object]] = {
            "Metadata": lambda: admin.describe_topics([self._topic]),
            "DescribeCluster": admin.describe_cluster,
            "DescribeConfigs": lambda: admin.describe_configs([config]),
        }
        try:
            while not self._stop.wait(CALL_EVERY_S):
                for what, call in calls.items():
                    self._call(what, call)
        finally:
            admin.close()
            forget_leaks()


class AiokafkaCaller(Caller):
    """A consumer's questions. The admin client of aiokafka asks any broker that it has heard of, once: one that is away
    is an error there with any cluster."""

    name = "aiokafka"

    def _run(self) -> None:
        asyncio.run(self._ask())

    async def _ask(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False)
        place = aiokafka.TopicPartition(self._topic, 0)
        await consumer.start()
        calls: dict[str, Callable[[], Any]] = {
            "Metadata": consumer.topics,
            "ListOffsets": lambda: consumer.end_offsets([place]),
        }
        try:
            while not self._stop.is_set():
                await asyncio.sleep(CALL_EVERY_S)
                for what, call in calls.items():
                    try:
                        await asyncio.wait_for(call(), 2 * CALL_TIMEOUT_S)
                    except Exception as error:
                        self.failed.append(f"{self.name} {what}: {type(error).__name__}: {error}")
                    self.made[what] += 1
        finally:
            await consumer.stop()


CALLERS: dict[str, type[Caller]] = {
    each.name: each for each in (ConfluentCaller, KafkaPythonCaller, AiokafkaCaller)
}


class ClientsAtWork:
    """A producer of each client, with a topic of its own, and the client's API calls about it.

    A context manager: when it is left, no delivery report and no call may have failed, and each record that was
    acknowledged is there once.
    """

    def __init__(
        self, cluster: LocalCluster, topics: Sequence[str], clients: Sequence[str] = tuple(CLIENTS)
    ) -> None:
        self._bootstrap = cluster.bootstrap
        self._topics = dict(zip(clients, topics, strict=False))
        self.writers: dict[str, Writer] = {}
        self.callers: dict[str, Caller] = {}
        for name, topic in self._topics.items():
            rate = RATE_PER_S.get(name, SHORT_RATE_PER_S)
            more = {"value_bytes": VALUE_BYTES} if name == "confluent-kafka" else {}
            self.writers[name] = WRITERS[name](self._bootstrap, topic, rate_per_s=rate, **more)
            self.callers[name] = CALLERS[name](self._bootstrap, topic)

    def __enter__(self) -> ClientsAtWork:
        self._ends = {name: ends_of(self._bootstrap, topic) for name, topic in self._topics.items()}
        for name, writer in self.writers.items():
            writer.__enter__()
            self.callers[name].start()
        try:
            self.go_on()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for caller in self.callers.values():
            caller.stop()
        failures = []
        for writer in self.writers.values():
            try:
                writer.__exit__(kind, error, trace)
            except AssertionError as failure:  # the others have to be ended too
                failures.append(failure)
        print(f"clients at work: {self.figures()}")
        failed = [each for caller in self.callers.values() for each in caller.failed]
        for what, count in Counter(failed).most_common(5):
            print(f"failed {count} times: {what}")
        if kind is not None:
            return
        if failures:
            raise failures[0]
        assert not failed, f"{len(failed)} calls failed: {failed[:5]}"
        for name, writer in self.writers.items():
            found = read_since(self._bootstrap, self._topics[name], self._ends[name])
            check_nothing_lost(writer.ledger, found)

    def go_on(self, acks: int = 20) -> None:
        """Every producer gets more acks, and every client more answers."""
        wanted = {name: caller.made.total() + 2 for name, caller in self.callers.items()}
        for writer in self.writers.values():
            writer.wait_for_acks(acks)
        for name, caller in self.callers.items():
            wait_for(partial(caller.has_made, wanted[name]), f"{name} gets answers")

    def figures(self) -> dict[str, object]:
        """For the reader of the output."""
        return {
            name: {
                "acked": len(writer.ledger.acked),
                "longest_gap_s": round(writer.ledger.longest_gap_s(), 2),
                "calls": self.callers[name].made.total(),
                "failed": len(writer.ledger.errors) + len(self.callers[name].failed),
            }
            for name, writer in self.writers.items()
        }
