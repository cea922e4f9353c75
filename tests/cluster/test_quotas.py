"""Quotas in clusters of real processes, with stock clients: kept by one gateway and by three, told, and nobody else's.

`make quotas` measures for a minute each, and then that nothing of the quota is left unused too; it has every test with
one gateway and with three.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster
from support.java import needs_java, run_tool_process
from support.kafka import client_config, create_topic
from support.quota_load import Limited, LimitedConsumer, LimitedProducer
from support.waiting import wait_for

pytestmark = pytest.mark.alone

SECONDS = int(os.environ.get("PENSTOCK_QUOTA_SECONDS", "0"))
IS_LONG = SECONDS > 0
SETTLE_S = 12.0
QUOTA = 1_000_000
TIMEOUT_S = 60.0
LONG_THROTTLE_MS = 100
"""More than an answer takes by itself."""
GATEWAYS = (1, 3)
of_many_gateways = pytest.mark.parametrize("cluster", GATEWAYS if IS_LONG else GATEWAYS[1:], indirect=True)
"""What does not hang on how a quota is dealt out between gateways: the short form has it with three of them."""


@pytest.fixture(scope="module", params=GATEWAYS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """One gateway, or three; nodes have listeners of their own as well."""
    directory = tmp_path_factory.mktemp(f"quotas-{request.param}")
    with running_cluster(directory, controllers=1, nodes=3, gateways=request.param, steady=True) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"limited-{uuid.uuid4().hex[:8]}"


def set_quota(cluster: LocalCluster, *words: str) -> None:
    assert run(["quota", "set", *words, "--bootstrap", cluster.bootstrap.split(",")[0]]) == 0


def unset_quota(cluster: LocalCluster, *words: str) -> None:
    assert run(["quota", "unset", *words, "--bootstrap", cluster.bootstrap.split(",")[0]]) == 0


def check(*clients: Limited) -> None:
    """Together they keep to the quota: within a tenth in the long form, which is measured once they have settled.

    The short form takes all that they got done since they began. What may come at once, and requests whose answers a
    busy machine held up and which then come together, weigh less with each second; without a quota they never would.
    """
    for client in clients:
        wait_for(lambda told=client.throttle_ms: any(told), "the client's statistics tell of throttling")  # type: ignore[misc]
    if not IS_LONG:
        began_s = min(client.began_s for client in clients)

        def is_kept() -> bool:
            now_s = time.monotonic()
            rate = sum(client.rate(began_s, now_s) for client in clients)
            return now_s - began_s >= 8 and 0 < rate <= QUOTA * 1.3

        wait_for(is_kept, "what they got done comes down to their quota")
        return
    begin_s = time.monotonic() + SETTLE_S
    end_s = begin_s + SECONDS
    # Not over a race: this is how long is measured.
    time.sleep(end_s - time.monotonic())
    settled = sum(client.rate(begin_s, end_s) for client in clients)
    print(f"{settled:,.0f} bytes a second of a quota of {QUOTA:,}")
    assert QUOTA * 0.9 <= settled <= QUOTA * 1.1


def test_producers_keep_to_their_quota_and_others_do_not_wait(cluster: LocalCluster, name: str) -> None:
    create_topic(cluster.bootstrap, name, partitions=6)
    set_quota(cluster, f"producer_byte_rate={QUOTA}", "--client-id", name)
    with (
        LimitedProducer(cluster.bootstrap, name, name) as limited,
        LimitedProducer(cluster.bootstrap, name, "unlimited") as other,
    ):
        check(limited)

        def uses_it() -> bool:
            now_s = time.monotonic()
            return limited.rate(now_s - 5, now_s) > 0.7 * QUOTA

        # Even parts of all processes would be half of it: who asks is dealt what others leave.
        wait_for(uses_it, "it gets the quota of processes that nobody writes to")
        begin_s = time.monotonic()
        wait_for(
            lambda: other.rate(begin_s, time.monotonic()) > 3 * QUOTA, "others write as much as they like"
        )
        assert not any(other.throttle_ms), "they are told nothing of it"


def test_consumers_keep_to_their_quota(cluster: LocalCluster, name: str) -> None:
    create_topic(cluster.bootstrap, name, partitions=6)
    enough = QUOTA * (SECONDS + SETTLE_S + 60 if IS_LONG else 60)
    with LimitedProducer(cluster.bootstrap, name, "filler") as filler:
        wait_for(lambda: sum(size for _, size in filler.amounts) >= enough, "enough to read is there")
    set_quota(cluster, f"consumer_byte_rate={QUOTA}", "--client-id", name)
    with LimitedConsumer(cluster.bootstrap, name, name) as limited:
        check(limited)


@of_many_gateways
def test_a_quota_that_is_taken_away_holds_no_more(cluster: LocalCluster, name: str) -> None:
    create_topic(cluster.bootstrap, name, partitions=3)
    set_quota(cluster, f"producer_byte_rate={QUOTA}", "--client-id", name)
    with LimitedProducer(cluster.bootstrap, name, name) as limited:
        wait_for(lambda: any(limited.throttle_ms), "it is throttled")
        unset_quota(cluster, "producer_byte_rate", "--client-id", name)

        def fast() -> bool:
            now_s = time.monotonic()
            return limited.rate(now_s - 1, now_s) > 3 * QUOTA

        wait_for(fast, "it writes as much as it likes")


@of_many_gateways
def test_request_time_is_limited(cluster: LocalCluster, name: str) -> None:
    """A client that asks all the time, with a tenth of a percent of an event loop."""
    set_quota(cluster, "request_percentage=0.1", "--client-id", name)
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    throttle_ms, asked_s = 0, 0.0

    def is_throttled() -> bool:
        nonlocal throttle_ms, asked_s
        for _ in range(20):
            asked_s = time.monotonic()
            throttle_ms = ask_metadata(connection, name)
            if throttle_ms >= LONG_THROTTLE_MS:
                return True
        return False

    with socket.create_connection((host, int(port)), timeout=60) as connection:
        wait_for(is_throttled, "answers name a throttle time")
        assert throttle_ms <= 1_000
        # It counts from the answer, which this thread may see late: so from before that answer was asked for.
        ask_metadata(connection, name)
        assert time.monotonic() - asked_s >= throttle_ms / 1000, "it was not read meanwhile"


def ask_metadata(connection: socket.socket, client_id: str) -> int:
    """The throttle time that the answer to a Metadata request of version 4 names."""
    body = struct.pack(">hhih", 3, 4, 1, len(client_id)) + client_id.encode() + struct.pack(">i?", -1, False)
    connection.sendall(struct.pack(">i", len(body)) + body)
    (size,) = struct.unpack(">i", received(connection, 4))
    _, throttle_ms = struct.unpack_from(">ii", received(connection, size))
    return int(throttle_ms)


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the connection ended"
        data += more
    return data


@of_many_gateways
def test_partitions_are_counted_by_the_active_controller(cluster: LocalCluster, name: str) -> None:
    """A bucket of eleven seconds' worth, at a rate of 1 a second. librdkafka asks by versions that wait."""
    set_quota(cluster, "controller_mutation_rate=1", "--client-id", name)
    admin = AdminClient(client_config(cluster.bootstrap, **{"client.id": name}))
    make(admin, f"{name}-1", 14)
    began_s = time.monotonic()
    make(admin, f"{name}-2", 1)
    assert time.monotonic() - began_s > 1.5, "three were owed"
    code, throttle_ms = create_by_version(cluster, name, 5, 15)
    assert code == 0, "a version that was there before this code waits"
    assert throttle_ms > 10_000
    code, throttle_ms = create_by_version(cluster, name, 6, 1)
    assert code == 89
    assert throttle_ms > 5_000
    make(AdminClient(client_config(cluster.bootstrap, **{"client.id": "other"})), f"{name}-other", 20)


def make(admin: AdminClient, topic: str, partitions: int) -> None:
    futures: Any = admin.create_topics([NewTopic(topic, partitions, 1)], request_timeout=TIMEOUT_S)
    futures[topic].result(TIMEOUT_S)


def create_by_version(
    cluster: LocalCluster, client_id: str, version: int, partitions: int
) -> tuple[int, int]:
    """Error code of the one topic, and throttle time, as CreateTopics of a version tells them."""
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    topic = f"{client_id}-v{version}".encode()
    head = struct.pack(">hhih", 19, version, 1, len(client_id)) + client_id.encode()
    # Flexible from version 5 on: a name, counts, no assignments, no configs, tags; timeout, validate only, tags.
    one = bytes((len(topic) + 1,)) + topic + struct.pack(">ih", partitions, 1) + b"\x01\x01\x00"
    body = head + b"\x00" + b"\x02" + one + struct.pack(">i?", 30_000, False) + b"\x00"
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", received(connection, 4))
        answer = received(connection, size)
    (throttle_ms,) = struct.unpack_from(">i", answer, 5)
    pos = 5 + 4 + 1
    pos += answer[pos]  # the name; its length is one more than it has
    (code,) = struct.unpack_from(">h", answer, pos)
    return code, throttle_ms


@of_many_gateways
def test_new_connections_of_an_address_are_limited(cluster: LocalCluster) -> None:
    set_quota(cluster, "connection_creation_rate=2", "--ip", "127.0.0.9")
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")

    def may_ask(source: str) -> bool:
        try:
            with socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0)) as one:
                ask_metadata(one, "c")
                return True
        except (ConnectionError, AssertionError):
            return False

    wait_for(lambda: not may_ask("127.0.0.9"), "connections are refused")
    assert all(may_ask("127.0.0.1") for _ in range(20)), "those of others are not"
    wait_for(lambda: may_ask("127.0.0.9"), "half a second later one may come")
    unset_quota(cluster, "connection_creation_rate", "--ip", "127.0.0.9")


@of_many_gateways
def test_direct_listeners_share_the_quota(cluster: LocalCluster, name: str) -> None:
    create_topic(cluster.bootstrap, name, partitions=6)
    set_quota(cluster, f"producer_byte_rate={QUOTA}", "--client-id", name)
    with (
        LimitedProducer(cluster.direct_bootstrap, name, name) as direct,
        LimitedProducer(cluster.bootstrap, name, name) as proxied,
    ):
        check(direct, proxied)


@needs_java
@pytest.mark.slow
@of_many_gateways
def test_kafkas_own_producer_is_throttled(cluster: LocalCluster, name: str) -> None:
    """ProducerPerformance writes as fast as it can: it takes as long as it must, and its metrics say why."""
    create_topic(cluster.bootstrap, name, partitions=3)
    set_quota(cluster, f"producer_byte_rate={QUOTA}", "--client-id", name)
    began_s = time.monotonic()
    said = run_tool_process(
        "ProducerPerformance",
        *("--bootstrap-server", cluster.bootstrap, "--command-property", f"client.id={name}"),
        *("--topic", name, "--num-records", "6000", "--record-size", "1000", "--throughput", "-1"),
        "--print-metrics",
    ).text
    assert time.monotonic() - began_s > 2, "six megabytes, of which three may come at once"
    longest_ms = re.findall(r"produce-throttle-time-max[^\n]*?:\s*([0-9.]+)\s*$", said, re.MULTILINE)
    assert any(float(each) > 0 for each in longest_ms), said[-2_000:]
