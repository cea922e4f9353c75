"""What the crash tests share: kill everything at once, make topics all the time, look whether all is there."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.local.cluster import LocalCluster
from penstock.local.processes import ProcessState, process_state
from support.kafka import Ledger, Load, client_config
from support.waiting import wait_for

ACKS_PER_S_MIN = 100
"""A fault counts only under that much load."""
CALL_TIMEOUT_S = 10.0
ANSWER_SLACK_S = 60.0
"""How long after its deadline a call's answer may come to a thread that gets no processor."""
TOPICS_MAX = 24
"""Topics that are there at once; older ones are deleted."""
READY_TIMEOUT_S = 120.0


def fast_client(bootstrap: str, **more: Any) -> dict[str, Any]:
    """A client that comes back soon after everything was gone."""
    return client_config(bootstrap, **{"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, **more})


def kill_all(cluster: LocalCluster) -> list[str]:
    """SIGKILL to every process within a few milliseconds; their names, once all are gone."""
    records = [r for r in cluster.state.processes if r.pid is not None]
    for record in records:
        if record.pid is not None:
            os.kill(record.pid, signal.SIGKILL)
    for record in records:
        pid, known = record.pid, record.identity
        wait_for(
            lambda pid=pid, known=known: process_state(pid, known) is ProcessState.DEAD,  # type: ignore[misc]
            f"{record.name} gone",
        )
    return [record.name for record in records]


def acks_last_second(ledger: Ledger) -> int:
    """Acknowledgements within the last second."""
    since = time.monotonic() - 1.0
    count = 0
    for at in reversed(ledger.ack_times_s):
        if at < since:
            break
        count += 1
    return count


def wait_for_load(load: Load, what: str = "load") -> int:
    """Until the last second saw enough acks; how many they were."""
    return wait_for(
        lambda: count if (count := acks_last_second(load.ledger)) >= ACKS_PER_S_MIN else 0,
        f"{ACKS_PER_S_MIN} acks within a second ({what})",
        READY_TIMEOUT_S,
    )


class TopicChurn:
    """A thread that creates and deletes topics without a pause and notes what was acknowledged."""

    def __init__(self, bootstrap: str, replication_factor: int = 3, pause_s: float = 0.0) -> None:
        self.created: set[str] = set()
        """Acknowledged, and no deletion asked for."""
        self.deleted: set[str] = set()
        """Deletion acknowledged."""
        self.acked_count = 0
        self._admin = AdminClient(fast_client(bootstrap))
        self._factor = replication_factor
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic churn")
        self._failure: BaseException | None = None

    def __enter__(self) -> TopicChurn:
        self._thread.start()
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            assert self._failure is None, self._failure

    def wait_for_acks(self, more: int) -> None:
        wanted = self.acked_count + more
        wait_for(lambda: self.acked_count >= wanted, f"{more} more topics created", READY_TIMEOUT_S)

    def check(self) -> None:
        """Every topic that was acknowledged is there, every one whose deletion was is not."""
        created, deleted = set(self.created), set(self.deleted)
        missing, risen = created, set()

        def is_right() -> bool:
            nonlocal missing, risen
            try:
                there = set(self._admin.list_topics(timeout=CALL_TIMEOUT_S).topics)
            except KafkaException:
                return False
            # What the thread has asked to delete since then may be gone.
            missing, risen = (created & self.created) - there, deleted & there
            return not missing and not risen

        try:
            wait_for(is_right, "acknowledged topics", READY_TIMEOUT_S)
        except AssertionError:
            raise AssertionError(
                f"topics lost: {sorted(missing)}, deleted topics back: {sorted(risen)}"
            ) from None

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop.wait(self._pause_s):
                    return
                name = f"churn-{number}"
                if self._call(lambda name=name: self._create(name)):  # type: ignore[misc]
                    self.created.add(name)
                    self.acked_count += 1
                if len(self.created) > TOPICS_MAX:
                    oldest = min(self.created, key=lambda each: int(each.rpartition("-")[2]))
                    self.created.discard(oldest)
                    if self._call(lambda oldest=oldest: self._delete(oldest)):  # type: ignore[misc]
                        self.deleted.add(oldest)
        except BaseException as error:
            self._failure = error

    def _create(self, name: str) -> Any:
        new = NewTopic(name, num_partitions=1, replication_factor=self._factor)
        return self._admin.create_topics([new], request_timeout=CALL_TIMEOUT_S)[name]

    def _delete(self, name: str) -> Any:
        return self._admin.delete_topics([name], request_timeout=CALL_TIMEOUT_S)[name]

    def _call(self, start: Callable[[], Any]) -> bool:
        """Whether it was acknowledged; anything else leaves open what became of it."""
        try:
            start().result(timeout=CALL_TIMEOUT_S + ANSWER_SLACK_S)
        except KafkaException:
            self._stop.wait(0.02)
            return False
        return True


class EndOffsets:
    """Looks after each round whether the log is at least as long as what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._consumer: Consumer

    def check(self, ledger: Ledger) -> None:
        """Raises AssertionError; asks with a client of its own, that remembers nothing."""
        self._consumer = Consumer(fast_client(self._bootstrap, **{"group.id": "unused"}))
        try:
            self._check(ledger)
        finally:
            self._consumer.close()

    def _check(self, ledger: Ledger) -> None:
        wanted: dict[int, int] = {}
        for partition, offset in list(ledger.acked.values()):
            if offset is not None:
                wanted[partition] = max(wanted.get(partition, 0), offset + 1)
        for partition, end in wanted.items():
            self._wait(partition, end)

    def _metadata(self) -> str:
        try:
            topic = self._consumer.list_topics(self._topic, timeout=CALL_TIMEOUT_S).topics[self._topic]
        except KafkaException as error:
            return str(error)
        return f"{topic.error} {[(p.id, p.leader, p.error) for p in topic.partitions.values()]}"

    def _wait(self, partition: int, end: int) -> None:
        last: object = None

        def is_there() -> bool:
            nonlocal last
            try:
                _, high = self._consumer.get_watermark_offsets(
                    TopicPartition(self._topic, partition), timeout=CALL_TIMEOUT_S
                )
            except KafkaException as error:
                last = error
                return False
            last = high
            return bool(high >= end)

        try:
            wait_for(is_there, "", READY_TIMEOUT_S)
        except AssertionError:
            raise AssertionError(
                f"{self._topic}-{partition} should hold {end} acknowledged records, the last answer was {last}; "
                f"{self._metadata()}"
            ) from None
