"""Consume, transform, produce: offsets of groups in transactions of real clients, by a gateway and directly."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata

from penstock.local.cluster import LocalCluster
from penstock_core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock_kafka.wire.groups import group_partition
from support.cluster import running_cluster, start_ready
from support.java import needs_java, shared_driver
from support.kafka import client_config, create_topic, describe
from support.transactions import committed, only_in_long_form, read_to_end
from support.waiting import wait_for

PARTITIONS = 3
ROWS = 240
CALL_S = 60.0

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Nothing is killed here."""
    directory = tmp_path_factory.mktemp("offsets")
    settings = {"controller": {"transaction_state_log_num_partitions": "8"}}
    with running_cluster(directory, controllers=1, nodes=3, settings=settings, steady=True) as found:
        yield found


def write_input(bootstrap: str, topic: str) -> list[str]:
    """Numbers, over all partitions."""
    create_topic(bootstrap, topic, PARTITIONS)
    producer = Producer(client_config(bootstrap))
    values = [f"{number}" for number in range(ROWS)]
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % PARTITIONS)
    assert not producer.flush(CALL_S)
    return values


def results(bootstrap: str, topic: str) -> list[str]:
    """What was made, as a reader of committed records finds it."""
    found = read_to_end(bootstrap, topic, "read_committed")
    return sorted(value for values in found.values() for value in values)


def by_librdkafka(bootstrap: str, name: str, protocol: str = "classic") -> None:
    """Every third batch is aborted and read again."""
    consumer = Consumer(
        client_config(
            bootstrap,
            **{
                "group.id": name,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            },
        )
    )
    consumer.subscribe([f"{name}-in"])
    producer = Producer(client_config(bootstrap, **{"transactional.id": name}))
    producer.init_transactions(CALL_S)
    done = batches = 0
    deadline_s = time.monotonic() + CALL_S
    while done < ROWS:
        assert time.monotonic() < deadline_s, f"{done} of {ROWS}"
        messages = [m for m in consumer.consume(20, timeout=0.5) if m.error() is None]
        if not messages:
            continue
        batches += 1
        producer.begin_transaction()
        for message in messages:
            value = message.value()
            assert value is not None
            producer.produce(f"{name}-out", b"<%s>" % value)
        places = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), CALL_S)
        if batches % 3 == 0:
            producer.abort_transaction(CALL_S)
            for place in consumer.committed(consumer.assignment(), CALL_S):
                consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
        else:
            producer.commit_transaction(CALL_S)
            done += len(messages)
    consumer.close()


def by_librdkafka_with_the_consumer_protocol(bootstrap: str, name: str) -> None:
    by_librdkafka(bootstrap, name, "consumer")


def by_kafka_python(bootstrap: str, name: str) -> None:
    """Every third batch is aborted and read again."""
    consumer = KafkaConsumer(
        f"{name}-in",
        bootstrap_servers=bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=20,
    )
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    done = batches = 0
    deadline_s = time.monotonic() + CALL_S
    while done < ROWS:
        assert time.monotonic() < deadline_s, f"{done} of {ROWS}"
        messages = [m for some in consumer.poll(timeout_ms=500).values() for m in some]
        if not messages:
            continue
        batches += 1
        producer.begin_transaction()
        for message in messages:
            producer.send(f"{name}-out", b"<%s>" % message.value)
        places = {each: OffsetAndMetadata(consumer.position(each), "", -1) for each in consumer.assignment()}
        producer.send_offsets_to_transaction(places, consumer.group_metadata())
        if batches % 3 == 0:
            producer.abort_transaction()
            for each in consumer.assignment():
                consumer.seek(each, consumer.committed(each) or 0)
        else:
            producer.commit_transaction()
            done += len(messages)
    consumer.close()
    producer.close(timeout=5)


def by_aiokafka(bootstrap: str, name: str) -> None:
    """Every third batch is aborted and read again."""

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            f"{name}-in",
            bootstrap_servers=bootstrap,
            group_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await consumer.start()
        await producer.start()
        done = batches = 0
        while done < ROWS:
            found = await consumer.getmany(timeout_ms=500, max_records=20)
            messages = [m for some in found.values() for m in some]
            if not messages:
                continue
            batches += 1
            await producer.begin_transaction()
            for message in messages:
                await producer.send(f"{name}-out", b"<%s>" % message.value)
            places = {each: some[-1].offset + 1 for each, some in found.items()}
            await producer.send_offsets_to_transaction(places, name)
            if batches % 3 == 0:
                await producer.abort_transaction()
                for each in consumer.assignment():
                    consumer.seek(each, await consumer.committed(each) or 0)
            else:
                await producer.commit_transaction()
                done += len(messages)
        await producer.stop()
        await consumer.stop()

    asyncio.run(asyncio.wait_for(run(), CALL_S))


def by_java(bootstrap: str, name: str, protocol: str = "classic") -> None:
    """Kafka's own client: TV2, in which the group's coordinator adds the partition of offsets. Every third batch is
    aborted and read again."""
    shared_driver().call(
        "transactions.copy", bootstrap=bootstrap, name=name, rows=ROWS, protocol=protocol, abort_every=3
    )


def by_java_with_the_consumer_protocol(bootstrap: str, name: str) -> None:
    by_java(bootstrap, name, "consumer")


LOOPS: dict[str, Callable[[str, str], None]] = {
    "librdkafka": by_librdkafka,
    "librdkafka-consumer": by_librdkafka_with_the_consumer_protocol,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}
IN_JAVA: dict[str, Callable[[str, str], None]] = {
    "java": by_java,
    "java-consumer": by_java_with_the_consumer_protocol,
}


@pytest.mark.parametrize("way", ["proxy", "direct"])
@pytest.mark.parametrize("client", [*LOOPS, *(pytest.param(each, marks=needs_java) for each in IN_JAVA)])
def test_each_input_is_in_the_output_once(cluster: LocalCluster, client: str, way: str) -> None:
    bootstrap = cluster.bootstrap if way == "proxy" else cluster.direct_bootstrap
    name = f"loop-{client}-{way}"
    values = write_input(bootstrap, f"{name}-in")
    create_topic(bootstrap, f"{name}-out", PARTITIONS)
    (LOOPS | IN_JAVA)[client](bootstrap, name)
    assert results(bootstrap, f"{name}-out") == sorted(f"<{value}>" for value in values)
    reader = Consumer(client_config(bootstrap, **{"group.id": name}))
    ends = [TopicPartition(f"{name}-in", number) for number in range(PARTITIONS)]
    found = {place.partition: place.offset for place in reader.committed(ends, CALL_S)}
    reader.close()
    assert found == dict.fromkeys(range(PARTITIONS), ROWS // PARTITIONS)


def in_group(bootstrap: str, group: str, **more: Any) -> Consumer:
    """A consumer of committed records that commits nothing by itself."""
    settings = {
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        **more,
    }
    return Consumer(client_config(bootstrap, **settings))


def test_whoever_takes_over_waits_for_offsets_that_are_about_to_be_committed(cluster: LocalCluster) -> None:
    bootstrap, topic = cluster.bootstrap, "stable"
    write_input(bootstrap, topic)
    place = TopicPartition(topic, 0, 40)
    producer = Producer(client_config(bootstrap, **{"transactional.id": "stable"}))
    producer.init_transactions(CALL_S)
    producer.begin_transaction()
    first, second = in_group(bootstrap, "stable"), in_group(bootstrap, "stable")
    producer.send_offsets_to_transaction([place], first.consumer_group_metadata(), CALL_S)
    with pytest.raises(KafkaException):
        second.committed([place], 2)
    plain = Consumer(
        client_config(bootstrap, **{"group.id": "stable", "isolation.level": "read_uncommitted"})
    )
    (found,) = plain.committed([place], CALL_S)
    assert found.offset < 0
    producer.commit_transaction(CALL_S)
    (found,) = second.committed([place], CALL_S)
    assert found.offset == 40
    for each in (first, second, plain):
        each.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_lost_its_partitions_commits_nothing(cluster: LocalCluster, protocol: str) -> None:
    bootstrap, name = cluster.bootstrap, f"zombie-{protocol}"
    write_input(bootstrap, name)
    more: dict[str, Any] = {"group.protocol": protocol, "max.poll.interval.ms": 6_000}
    if protocol == "classic":
        more["session.timeout.ms"] = 6_000
    zombie = in_group(bootstrap, name, **more)
    zombie.subscribe([name])
    wait_for(lambda: zombie.consume(1, timeout=1), "the first member reads")
    was = zombie.consumer_group_metadata()
    producer = Producer(client_config(bootstrap, **{"transactional.id": name}))
    producer.init_transactions(CALL_S)
    producer.begin_transaction()
    heir = in_group(bootstrap, name, **{"group.protocol": protocol})
    heir.subscribe([name])
    wait_for(lambda: heir.consume(1, timeout=1) and len(heir.assignment()) == PARTITIONS, "the heir has all")
    with pytest.raises(KafkaException) as told:
        producer.send_offsets_to_transaction([TopicPartition(name, 0, 10)], was, CALL_S)
    error: KafkaError = told.value.args[0]
    assert error.txn_requires_abort() and not error.fatal(), error
    producer.abort_transaction(CALL_S)
    (found,) = heir.committed([TopicPartition(name, 0)], CALL_S)
    assert found.offset < 0
    heir.close()
    zombie.close()


def until_done(call: Callable[..., Any], *arguments: Any) -> Any:
    """Until it is done; an error that librdkafka calls retriable says that the same call may be made again."""
    deadline_s = time.monotonic() + 180
    while True:
        try:
            return call(*arguments)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise


def copy_all(bootstrap: str, name: str, protocol: str, meanwhile: Callable[[int], None]) -> list[str]:
    """Batch by batch; what made it abort."""
    consumer = in_group(bootstrap, name, **{"group.protocol": protocol})
    consumer.subscribe([f"{name}-in"])
    producer = Producer(client_config(bootstrap, **{"transactional.id": name}))
    until_done(producer.init_transactions, CALL_S)
    aborts: list[str] = []
    done = 0
    deadline_s = time.monotonic() + 200
    while done < ROWS:
        assert time.monotonic() < deadline_s, f"{done} of {ROWS}, {aborts}"
        messages = [m for m in consumer.consume(10, timeout=0.5) if m.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        try:
            for message in messages:
                producer.produce(f"{name}-out", b"<%s>" % (message.value() or b""))
            meanwhile(done)
            places = consumer.position(consumer.assignment())
            group = consumer.consumer_group_metadata()
            until_done(producer.send_offsets_to_transaction, places, group, CALL_S)
            until_done(producer.commit_transaction, CALL_S)
            done += len(messages)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            aborts.append(str(error))
            until_done(producer.abort_transaction, CALL_S)
            for place in until_done(consumer.committed, consumer.assignment(), CALL_S):
                consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
    consumer.close()
    return aborts


def leader_of(bootstrap: str, topic: str, partition: int) -> str:
    """The node that leads a partition."""
    return f"node-{describe(bootstrap, topic)[partition].leader}"


class Kills:
    """kill -9 of the group's coordinator, the transaction's and a leader of the output, one after the other."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        bootstrap = cluster.bootstrap
        self.cluster = cluster
        self.victims: Iterator[Callable[[], str]] = iter(
            [
                lambda: leader_of(bootstrap, OFFSETS_TOPIC, group_partition(name, 4)),
                lambda: leader_of(bootstrap, TRANSACTIONS_TOPIC, group_partition(name, 4)),
                lambda: leader_of(bootstrap, f"{name}-out", 0),
            ]
        )
        self.dead: list[str] = []

    def __call__(self, done: int) -> None:
        """So many rows are copied."""
        if done >= 50 * (len(self.dead) + 1) and (victim := next(self.victims, None)) is not None:
            if self.dead:
                start_ready(self.cluster, self.dead[-1])
            self.dead.append(victim())
            self.cluster.kill(self.dead[-1])


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster to kill nodes of."""
    settings = {
        "controller": {"transaction_state_log_num_partitions": "4", "offsets_topic_num_partitions": "4"}
    }
    with running_cluster(tmp_path, controllers=1, nodes=3, settings=settings, steady=True) as found:
        yield found


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=only_in_long_form)])
def test_nothing_is_done_twice_when_coordinators_and_leaders_are_killed(
    mortal: LocalCluster, protocol: str
) -> None:
    bootstrap, name = mortal.bootstrap, f"killed-{protocol}"
    values = write_input(bootstrap, f"{name}-in")
    create_topic(bootstrap, f"{name}-out", PARTITIONS)
    kills = Kills(mortal, name)
    aborts = copy_all(bootstrap, name, protocol, kills)
    print(f"killed {kills.dead}, aborted for {aborts}")
    assert len(kills.dead) == 3
    assert results(bootstrap, f"{name}-out") == sorted(f"<{value}>" for value in values)


@pytest.mark.parametrize("way", ["proxy", "direct"])
def test_a_producer_that_knows_its_group_has_another_coordinator_goes_on(
    mortal: LocalCluster, way: str
) -> None:
    """librdkafka ends the thread of a broker that Metadata names no more, and waits for the connection to it
    for ever where it remembers it as a group's coordinator: see `lost_nodes`."""
    bootstrap = mortal.bootstrap if way == "proxy" else mortal.direct_bootstrap
    name = f"known-{way}"
    write_input(bootstrap, name)
    consumer = in_group(bootstrap, name)
    producer = Producer(client_config(bootstrap, **{"transactional.id": name}))
    until_done(producer.init_transactions, CALL_S)
    partition = group_partition(name, 4)

    def commit(offset: int) -> None:
        producer.begin_transaction()
        place = TopicPartition(name, 0, offset)
        until_done(producer.send_offsets_to_transaction, [place], consumer.consumer_group_metadata(), CALL_S)
        until_done(producer.commit_transaction, CALL_S)

    def coordinator() -> int:
        """As this producer hears: it asks with its own client."""
        return int(
            producer.list_topics(OFFSETS_TOPIC, CALL_S).topics[OFFSETS_TOPIC].partitions[partition].leader
        )

    commit(10)
    dead = coordinator()
    mortal.kill(f"node-{dead}")
    wait_for(lambda: coordinator() not in (dead, -1), "the group has another coordinator", CALL_S)
    commit(20)
    (found,) = consumer.committed([TopicPartition(name, 0)], CALL_S)
    assert found.offset == 20
    consumer.close()


class Settled:
    """Whether all of a producer's connections stand as they stood for the last looks at its statistics."""

    LOOK_MS = 200
    LOOKS = 15
    """The coordinator of transactions is looked for half a second after a connection to it has ended, and again."""

    def __init__(self) -> None:
        self._last: Any = None
        self._looks = 0

    def look(self, statistics: str) -> None:
        """A client's statistics, as JSON."""
        brokers = json.loads(statistics)["brokers"].values()
        now = sorted(
            (b["name"], b["state"], b["connects"], b["disconnects"], b["req"].get("FindCoordinator", 0))
            for b in brokers
        )
        self._looks = self._looks + 1 if now == self._last else 0
        self._last = now

    def __call__(self) -> bool:
        return self._looks >= self.LOOKS


@pytest.mark.parametrize("way", ["proxy", "direct"])
def test_a_producer_that_lost_all_its_brokers_at_once_goes_on(mortal: LocalCluster, way: str) -> None:
    """librdkafka forgets every broker then, but for the one that it remembers as a group's coordinator, whose
    connection nobody makes any more: it waits for that until another connection ends or begins, with Kafka too:
    see `offsets_to_come`."""
    bootstrap = mortal.bootstrap if way == "proxy" else mortal.direct_bootstrap
    name, settled = f"all-lost-{way}", Settled()
    write_input(bootstrap, name)
    consumer = in_group(bootstrap, name)
    more = {"transactional.id": name, "statistics.interval.ms": Settled.LOOK_MS, "stats_cb": settled.look}
    producer = Producer(client_config(bootstrap, **more))
    until_done(producer.init_transactions, CALL_S)

    def begin() -> None:
        """With a connection to every leader."""
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(name, b"", partition=partition)
        assert not producer.flush(CALL_S)

    def commit(offset: int) -> None:
        place = TopicPartition(name, 0, offset)
        until_done(producer.send_offsets_to_transaction, [place], consumer.consumer_group_metadata(), CALL_S)
        until_done(producer.commit_transaction, CALL_S)

    begin()
    commit(10)
    victims = ["gateway-1"] if way == "proxy" else [f"node-{node_id}" for node_id in (1, 2, 3)]
    for victim in victims:
        mortal.kill(victim)
    start_ready(mortal, *victims)
    begin()

    def is_settled() -> bool:
        producer.poll(0)
        return settled()

    wait_for(is_settled, "the producer has all the connections that it wants", CALL_S)
    # Its timeout does not end the call that waits so; and a thread that hangs must not keep this process.
    thread = threading.Thread(target=commit, args=(20,), daemon=True)
    thread.start()
    wait_for(lambda: not thread.is_alive(), "the transaction is committed", CALL_S)

    (found,) = committed(consumer, [TopicPartition(name, 0)])
    assert found.offset == 20
    consumer.close()


@needs_java
@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=only_in_long_form), "consumer"])
def test_nothing_is_done_twice_by_the_java_client_either(mortal: LocalCluster, protocol: str) -> None:
    bootstrap, name = mortal.bootstrap, f"java-{protocol}"
    values = write_input(bootstrap, f"{name}-in")
    create_topic(bootstrap, f"{name}-out", PARTITIONS)
    kills, driver = Kills(mortal, name), shared_driver()
    copied = driver.start(
        "transactions.copy", bootstrap=bootstrap, name=name, rows=ROWS, protocol=protocol, pause_ms=300
    )
    while not copied.done():
        kills(driver.call("transactions.done", name=name))
        time.sleep(0.01)
    print(f"killed {kills.dead}, aborted for {copied.result()}")
    assert kills.dead
    assert results(bootstrap, f"{name}-out") == sorted(f"<{value}>" for value in values)
