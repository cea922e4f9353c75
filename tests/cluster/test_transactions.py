"""Transactions of real clients, by a gateway and directly: commit, abort, fencing, timeouts, and loss of nodes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.local.cluster import LocalCluster
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_kafka.wire.groups import transaction_partition
from support.cluster import running_cluster, start_ready
from support.java import missing_java, needs_java, shared_driver
from support.kafka import busiest_leader, client_config, create_topic, describe, wait_for_full_isr
from support.transactional_writers import CALL_S, CLIENTS, WRITERS, ByLibrdkafka, Writer
from support.transactions import (
    Outcome,
    TransactionalLoad,
    check_story,
    is_decided,
    only_in_long_form,
    read_to_end,
)
from support.waiting import wait_for

PARTITIONS = 6
TOLD_S = 5.0
"""For one question; it is asked again."""
STATE_PARTITIONS = "8"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SETTINGS = {"controller": {"transaction_state_log_num_partitions": STATE_PARTITIONS}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Nothing is killed here."""
    directory = tmp_path_factory.mktemp("transactions")
    with running_cluster(directory, controllers=1, nodes=3, settings=SETTINGS, steady=True) as found:
        yield found


WAYS = ("proxy", "direct")
AT_TWO_GATEWAYS = (
    "confluent-kafka",
    pytest.param("aiokafka", marks=only_in_long_form),
    pytest.param("java", marks=[needs_java, only_in_long_form]),
)
"""kafka-python is not among them, for the reason in `loads_of`."""


def address(cluster: LocalCluster, way: str) -> str:
    return cluster.bootstrap if way == "proxy" else cluster.direct_bootstrap


def values_of(bootstrap: str, topic: str, isolation: str) -> list[str]:
    found = read_to_end(bootstrap, topic, isolation)
    return sorted(value for values in found.values() for value in values)


def next_value(consumer: Consumer) -> bytes:
    """The next record's; nothing within a second is empty."""
    message = consumer.poll(1)
    if message is None or message.error() is not None:
        return b""
    return message.value() or b""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_committed_records_are_seen_and_aborted_ones_are_not(
    cluster: LocalCluster, client: str, way: str
) -> None:
    bootstrap = address(cluster, way)
    topic = f"plain-{client}-{way}"
    create_topic(bootstrap, topic, 3)
    writer = WRITERS[client](bootstrap, f"id-{client}-{way}")
    kept, dropped = [], []
    try:
        for number in range(6):
            writer.begin()
            names = [f"{number}-{row}" for row in range(9)]
            for row, name in enumerate(names):
                writer.send(topic, row % 3, name)
            if number % 3 == 1:
                writer.flush()
                writer.abort()
                dropped += names
            else:
                writer.commit()
                kept += names
        # One without records, and one of one partition.
        writer.begin()
        writer.commit()
        writer.begin()
        writer.send(topic, 1, "last")
        writer.commit()
        kept.append("last")
    finally:
        writer.close()
    assert values_of(bootstrap, topic, "read_committed") == sorted(kept)
    assert values_of(bootstrap, topic, "read_uncommitted") == sorted(kept + dropped)


@pytest.mark.parametrize("client", CLIENTS)
def test_open_transactions_hold_readers_back_until_they_are_decided(
    cluster: LocalCluster, client: str
) -> None:
    bootstrap, topic = cluster.bootstrap, f"open-{client}"
    create_topic(bootstrap, topic)
    consumer = Consumer(
        client_config(bootstrap, **{"group.id": "unused", "isolation.level": "read_committed"})
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    writer = WRITERS[client](bootstrap, f"open-{client}")
    try:
        writer.begin()
        writer.send(topic, 0, "first")
        writer.flush()
        assert values_of(bootstrap, topic, "read_uncommitted") == ["first"]
        assert consumer.poll(2) is None
        writer.commit()
        assert wait_for(lambda: next_value(consumer), "the committed record") == b"first"
    finally:
        writer.close()
        consumer.close()


def end(writer: Writer, topic: str) -> None:
    """Write once more, and commit."""
    writer.send(topic, 1, "late")
    writer.commit()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_second_producer_fences_the_first(cluster: LocalCluster, client: str, way: str) -> None:
    bootstrap, topic = address(cluster, way), f"fenced-{client}-{way}"
    create_topic(bootstrap, topic, 2)
    old = WRITERS[client](bootstrap, topic)
    new = None
    try:
        old.begin()
        old.send(topic, 0, "zombie")
        old.flush()
        new = WRITERS[client](bootstrap, topic)
        # What the first had open was aborted before the second could begin.
        new.begin()
        new.send(topic, 0, "heir")
        new.commit()
        with pytest.raises(Exception) as told:  # each client has its own
            end(old, topic)
        words = f"{type(told.value).__name__} {told.value}".lower()
        assert "fenced" in words or "epoch" in words, words
    finally:
        old.close()
        if new is not None:
            new.close()
    assert values_of(bootstrap, topic, "read_committed") == ["heir"]


@needs_java
@pytest.mark.parametrize("way", WAYS)
def test_a_commit_that_overtakes_its_records_commits_them(cluster: LocalCluster, way: str) -> None:
    # Kafka's Java client can ask for a commit before it has sent the records (decision 0179).
    name, count = f"overtaken-{way}", 40
    create_topic(cluster.bootstrap, name, partitions=PARTITIONS)
    where = address(cluster, way)
    shared_driver().call("overtaking.commit", bootstrap=where, name=name, topic=name, transactions=count)
    assert values_of(cluster.bootstrap, name, "read_committed") == sorted(map(str, range(count)))


def test_a_transaction_that_lasts_too_long_is_aborted(cluster: LocalCluster) -> None:
    bootstrap, topic = cluster.bootstrap, "slow"
    create_topic(bootstrap, topic)
    slow = ByLibrdkafka(bootstrap, "slow", timeout_ms=2_000)
    slow.begin()
    slow.send(topic, 0, "too late")
    slow.flush()
    other = ByLibrdkafka(bootstrap, "quick")
    other.begin()
    other.send(topic, 0, "in time")
    other.commit()
    other.close()
    # Readers go on without the slow one's producer doing anything.
    consumer = Consumer(
        client_config(bootstrap, **{"group.id": "unused", "isolation.level": "read_committed"})
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = wait_for(lambda: next_value(consumer), "what was committed behind the slow transaction")
    assert found == b"in time"
    consumer.close()
    with pytest.raises(KafkaException) as told:
        slow.commit()
    assert told.value.args[0].fatal()
    slow.close()
    assert values_of(bootstrap, topic, "read_committed") == ["in time"]


def test_ids_go_on_where_they_were(cluster: LocalCluster) -> None:
    """A producer that comes back under its id aborts what its predecessor left."""
    bootstrap, topic = cluster.bootstrap, "again"
    create_topic(bootstrap, topic)
    for number in range(3):
        writer = ByLibrdkafka(bootstrap, "again")
        writer.begin()
        writer.send(topic, 0, f"kept {number}")
        writer.commit()
        writer.begin()
        writer.send(topic, 0, f"left {number}")
        writer.flush()
        writer.close()
    last = ByLibrdkafka(bootstrap, "again")
    last.close()
    assert values_of(bootstrap, topic, "read_committed") == [f"kept {n}" for n in range(3)]


def test_operators_see_transactions(cluster: LocalCluster) -> None:
    bootstrap, topic = cluster.bootstrap, "seen"
    create_topic(bootstrap, topic)
    writer = ByLibrdkafka(bootstrap, "seen")
    writer.begin()
    writer.send(topic, 0, "x")
    writer.flush()
    admin: Any = AdminClient(client_config(bootstrap))
    assert TRANSACTIONS_TOPIC in admin.list_topics(timeout=30).topics
    writer.commit()
    writer.close()


# --- nodes that are lost ------------------------------------------------------------------


def coordinator_of(cluster: LocalCluster, name: str) -> str:
    """The node that coordinates a transactional id."""
    partition = transaction_partition(name, int(STATE_PARTITIONS))

    def leader() -> int:
        found = int(describe(cluster.bootstrap, TRANSACTIONS_TOPIC)[partition].leader)
        return found if found >= 0 else 0

    return f"node-{wait_for(leader, f'a coordinator of {name}')}"


def all_grow(loads: Sequence[TransactionalLoad], by: int) -> None:
    """Each load commits that many more transactions from now on."""
    wanted = [load.story.count(Outcome.COMMITTED) + by for load in loads]
    try:
        for load, count in zip(loads, wanted, strict=True):
            grew(load, count)
    finally:
        for load in loads:
            tell(load)
    assert not any(load.story.fatal for load in loads)


def grew(load: TransactionalLoad, count: int) -> None:
    """The load has committed so many transactions."""
    story = load.story
    wait_for(
        lambda: story.count(Outcome.COMMITTED) >= count or bool(story.fatal), f"commits of {load.name}", 180
    )
    assert not story.fatal, story.fatal


def tell(load: TransactionalLoad) -> None:
    counts = {outcome.value: load.story.count(outcome) for outcome in Outcome}
    print(f"{load.name}: {counts}, told to abort {load.story.aborts}, fatal {load.story.fatal}")


def loads_of(bootstrap: str, topic: str, *, coordinators_die: bool = False) -> list[TransactionalLoad]:
    """A producer of each client, two of the newest generation; without Java only of the old one.

    kafka-python forgets the request in hand when the address that it knows its coordinator by refuses connections
    (Sender._maybe_send_pending_request of 3.0.12: what await_ready raises is no reason to try again), and its commit
    waits for ever: it is left out where `coordinators_die`.
    """
    kinds = {"first": "confluent-kafka", "third": "aiokafka"}
    if not coordinators_die:
        kinds["second"] = "kafka-python"
    if missing_java() is None:
        kinds |= {"fourth": "java", "fifth": "java"}
    return [TransactionalLoad(bootstrap, topic, PARTITIONS, name, by=by) for name, by in kinds.items()]


@contextmanager
def at_work(loads: Sequence[TransactionalLoad]) -> Iterator[None]:
    """They write while this lasts. At the end nobody was told of a fatal error."""
    with ExitStack() as stack:
        for load in loads:
            stack.enter_context(load)
        all_grow(loads, 5)
        yield
    for load in loads:
        tell(load)
    assert not any(load.story.fatal for load in loads)


def check_all(cluster: LocalCluster, topic: str, loads: Sequence[TransactionalLoad]) -> None:
    """Nothing hangs, so readers of committed records come to the end; and they find what was committed."""
    wait_for(lambda: is_decided(cluster.bootstrap, topic, PARTITIONS), "every transaction is decided")
    check_story([load.story for load in loads], read_to_end(cluster.bootstrap, topic, "read_committed"))


@pytest.mark.parametrize("way", ["proxy", pytest.param("direct", marks=only_in_long_form)])
def test_nothing_is_torn_lost_or_doubled_when_coordinators_and_leaders_are_killed(
    tmp_path: Path, way: str
) -> None:
    with running_cluster(tmp_path, nodes=3, settings=SETTINGS) as cluster:
        bootstrap, topic = address(cluster, way), "under-fire"
        create_topic(cluster.bootstrap, topic, PARTITIONS)
        loads = loads_of(bootstrap, topic, coordinators_die=way == "direct")
        with at_work(loads):
            for victim in (
                coordinator_of(cluster, "first"),
                busiest_leader(cluster.bootstrap, topic),
                coordinator_of(cluster, "fifth"),
            ):
                cluster.kill(victim)
                all_grow(loads, 5)
                start_ready(cluster, victim)
                wait_for_full_isr(cluster.bootstrap, topic)
                wait_for_full_isr(cluster.bootstrap, TRANSACTIONS_TOPIC)
        check_all(cluster, topic, loads)


@pytest.mark.parametrize("client", AT_TWO_GATEWAYS)
def test_transactions_go_on_at_the_other_gateway(tmp_path: Path, client: str) -> None:
    with running_cluster(
        tmp_path, controllers=1, nodes=3, gateways=2, settings=SETTINGS, steady=True
    ) as cluster:
        topic = "gateways"
        create_topic(cluster.bootstrap, topic, PARTITIONS)
        loads = [
            TransactionalLoad(cluster.bootstrap, topic, PARTITIONS, f"id-{n}", by=client) for n in range(2)
        ]
        with at_work(loads):
            # One alone: aiokafka hears of one that came back when it reads metadata again, after five minutes.
            cluster.kill("gateway-1")
            all_grow(loads, 20)
            start_ready(cluster, "gateway-1")
        check_all(cluster, topic, loads)


def test_a_producer_that_was_told_of_a_gateway_after_its_loss_goes_on(tmp_path: Path) -> None:
    """librdkafka takes a transaction's coordinator's address from Metadata alone, and reads these at once when a
    connection is lost: before the other gateway can have heard why."""
    with running_cluster(
        tmp_path, controllers=1, nodes=3, gateways=2, settings=SETTINGS, steady=True
    ) as cluster:
        topic = "told"
        create_topic(cluster.bootstrap, topic, PARTITIONS)
        writers = [ByLibrdkafka(cluster.bootstrap, f"told-{number}") for number in range(4)]

        def transactions() -> None:
            for number, writer in enumerate(writers):
                writer.begin()
                writer.send(topic, number, "row")
                writer.producer.commit_transaction(CALL_S)

        transactions()
        lost = int(cluster.bootstrap.split(",")[0].rpartition(":")[2])
        # Nobody hears of the loss while the only controller stands still.
        cluster.kill("controller-1", signal.SIGSTOP)
        cluster.kill("gateway-1")
        for writer in writers:
            wait_for(partial(is_told_of, lost, writer.producer), "it is told of the lost gateway")
        cluster.kill("controller-1", signal.SIGCONT)
        other = AdminClient(client_config(cluster.bootstrap))
        wait_for(lambda: (told := ports(other)) and lost not in told, "the loss is known")
        transactions()
        assert sum(map(len, read_to_end(cluster.bootstrap, topic, "read_committed").values())) == 2 * len(
            writers
        )


def test_a_producer_whose_leader_hangs_aborts_and_goes_on(tmp_path: Path) -> None:
    """librdkafka gives its records up when the transaction's time is over, and wants to abort it then: with Kafka it
    may. Fenced by the coordinator's own abort it would have to end (found by the bench, SIGSTOP of a leader)."""
    # A client on a busy machine may take longer than the 5 s that are left to it by default.
    patient = {"storage-node": {"transaction_abort_timed_out_transaction_cleanup_interval_ms": "40000"}}
    with running_cluster(tmp_path, nodes=3, settings=SETTINGS | patient) as cluster:
        bootstrap, topic = cluster.direct_bootstrap, "hangs"
        create_topic(bootstrap, topic, 1, 3, min_insync_replicas="2")
        ByLibrdkafka(bootstrap, "first").close()  # has the coordinators' topic made
        leader = busiest_leader(bootstrap, topic)
        name = next(n for n in map("hangs-{}".format, range(100)) if coordinator_of(cluster, n) != leader)
        writer = ByLibrdkafka(bootstrap, name, timeout_ms=8_000)
        writer.begin()
        writer.send(topic, 0, "before")
        writer.commit()
        writer.begin()
        writer.send(topic, 0, "given up")
        writer.flush()
        cluster.kill(leader, signal.SIGSTOP)
        writer.send(topic, 0, "given up, too")
        with pytest.raises(KafkaException) as told:
            writer.commit()
        assert told.value.args[0].txn_requires_abort(), told.value
        assert not told.value.args[0].fatal(), told.value
        writer.abort()

        def goes_on() -> bool:
            """It may still wait for the one that hangs, until it hears of the new leader."""
            writer.begin()
            writer.send(topic, 0, "after")
            try:
                writer.commit()
            except KafkaException as error:
                assert error.args[0].txn_requires_abort(), error
                writer.abort()
                return False
            return True

        wait_for(goes_on, "a transaction is committed at the new leader", 120)
        writer.close()
        assert values_of(cluster.bootstrap, topic, "read_committed") == ["after", "before"]
        cluster.kill(leader, signal.SIGCONT)


def is_told_of(port: int, client: AdminClient | Producer) -> bool:
    return port in ports(client)


def ports(client: AdminClient | Producer) -> set[int]:
    """Where this client is told that nodes are; nowhere where it is not told soon: what librdkafka asks over a
    connection that is just lost is not asked again over another one, and waits for its timeout."""
    try:
        return {broker.port for broker in client.list_topics(timeout=TOLD_S).brokers.values()}
    except KafkaException as error:
        if error.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            raise
        return set()


def test_transactions_go_on_while_the_cluster_changes_their_version(tmp_path: Path) -> None:
    """Down and up again under producers of both generations, which change over by themselves."""
    with running_cluster(tmp_path, controllers=1, nodes=3, settings=SETTINGS, steady=True) as cluster:
        topic = "versions"
        create_topic(cluster.bootstrap, topic, PARTITIONS)
        loads = loads_of(cluster.bootstrap, topic)
        epochs: list[int] = []
        with at_work(loads):
            for level, *words in (("1", "--downgrade"), ("2",), ("0", "--downgrade"), ("2",)):
                feature(cluster, "set", f"transaction.version={level}", *words)
                # Who asks a gateway and who asks a node hear the same, once both have read it.
                epochs.append(wait_for(lambda: epoch_of(cluster), "the same features everywhere"))
                all_grow(loads, 20)
        assert epochs == sorted(set(epochs))
        assert not any(load.story.aborts for load in loads)
        check_all(cluster, topic, loads)


def epoch_of(cluster: LocalCluster) -> int:
    """The epoch of features; 0 while a gateway and a node do not say the same."""
    doors = cluster.bootstrap, cluster.direct_bootstrap.split(",")[0]
    by_gateway, by_node = (feature(cluster, "list", "--json", to=door) for door in doors)
    return int(json.loads(by_gateway)["epoch"]) if by_gateway == by_node else 0


def feature(cluster: LocalCluster, *words: str, to: str = "") -> str:
    """What `penstock feature` prints."""
    door = to or cluster.bootstrap
    command = [sys.executable, "-m", "penstock.cli.main", "feature", *words, "--bootstrap", door]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_time_passes_for_open_transactions_while_coordinators_move(tmp_path: Path) -> None:
    """A transaction whose producer is gone is aborted by the next coordinator."""
    with running_cluster(tmp_path, nodes=3, settings=SETTINGS) as cluster:
        bootstrap, topic = cluster.bootstrap, "left"
        create_topic(bootstrap, topic)
        writer = ByLibrdkafka(bootstrap, "left", timeout_ms=10_000)
        writer.begin()
        writer.send(topic, 0, "left")
        writer.flush()
        writer.close()
        victim = coordinator_of(cluster, "left")
        cluster.kill(victim)
        started_s = time.monotonic()
        wait_for(lambda: is_decided(bootstrap, topic), "the open transaction is aborted", 120)
        print(f"aborted {time.monotonic() - started_s:.1f} s after its coordinator was killed")
        assert values_of(bootstrap, topic, "read_committed") == []
