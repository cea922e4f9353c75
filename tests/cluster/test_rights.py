"""Rights by ACLs in a cluster of real processes: what stock clients see, and how fast a right is gone.

Nobody signs in: everybody is User:ANONYMOUS. The ACLs are written at the controller.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import kafka
import kafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import KafkaAdminClient

from penstock.local.cluster import LocalCluster
from penstock_core.security.acl import AclOperation as Op
from penstock_core.security.acl import ResourceType as Kind
from support.acls import acl, alter_acls
from support.cluster import running_cluster
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

RIGHTS = {"gateway": {"authorizer": "acl"}, "storage-node": {"authorizer": "acl"}}
TIMEOUT_S = 20.0
GONE_WITHIN_S = 1.0
MAKE = (acl(Op.CREATE, Kind.CLUSTER), acl(Op.DESCRIBE, Kind.TOPIC, "*"))
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("rights")
    with running_cluster(directory, controllers=1, gateways=2, settings=RIGHTS, steady=True) as running:
        yield running


@contextlib.contextmanager
def granted(cluster: LocalCluster, *entries: Any) -> Iterator[None]:
    """These entries, as every gateway and node soon has them."""
    alter_acls(cluster, add=entries)
    time.sleep(GONE_WITHIN_S)
    try:
        yield
    finally:
        alter_acls(cluster, remove=entries)
        time.sleep(GONE_WITHIN_S)


def create(bootstrap: str, *topics: str) -> dict[str, int]:
    """The code that each is answered with."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    codes = {}
    for name, future in admin.create_topics([NewTopic(t, 1, 3) for t in topics]).items():
        error = future.exception(TIMEOUT_S)
        codes[name] = error.args[0].code() if isinstance(error, KafkaException) else 0
    return codes


def produce(bootstrap: str, *topics: str, **settings: Any) -> dict[str, int]:
    """What becomes of one record for each topic: Kafka's code."""
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 15_000, **settings})
    codes: dict[str, int] = {}
    for topic in topics:
        producer.produce(
            topic, b"x", callback=lambda e, m: codes.update({str(m.topic()): e.code() if e else 0})
        )
    producer.flush(TIMEOUT_S)
    return codes


def consume(bootstrap: str, group: str, *topics: str) -> set[int]:
    """Codes that a consumer sees until it has a record or an error for each topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(list(topics))
    codes: list[int] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while len(set(codes)) < len(topics) and time.monotonic() < deadline_s:
            message = consumer.poll(0.2)
            if message is not None:
                error = message.error()
                codes.append(0 if error is None else error.code())
    finally:
        consumer.close()
    return set(codes)


def error_of(topic: Any) -> int:
    """The code that Metadata has for a topic."""
    return int(topic.error.code()) if topic.error else 0


def both_ways(cluster: LocalCluster) -> tuple[str, str]:
    return cluster.bootstrap.split(",")[0], cluster.direct_bootstrap.split(",")[0]


def test_without_rights_stock_clients_are_denied_and_see_nothing(cluster: LocalCluster) -> None:
    with granted(cluster, *MAKE):
        assert create(both_ways(cluster)[0], "secret") == {"secret": 0}
    for bootstrap in both_ways(cluster):
        shown = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S)
        assert not shown.topics
        asked = AdminClient({"bootstrap.servers": bootstrap}).list_topics("secret", timeout=TIMEOUT_S)
        assert error_of(asked.topics["secret"]) == DENIED
        assert create(bootstrap, "mine") == {"mine": DENIED}
        # Whether it exists or not looks the same.
        assert produce(bootstrap, "secret", "no-such") == {"secret": DENIED, "no-such": DENIED}
        assert consume(bootstrap, "g", "secret") == {KafkaError.GROUP_AUTHORIZATION_FAILED}
        with (
            contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin,
            pytest.raises(kafka.errors.TopicAuthorizationFailedError),
        ):
            admin.delete_topics(["secret"])
        with pytest.raises(KafkaException) as refused:
            produce_idempotently(bootstrap, "secret")
        assert refused.value.args[0].code() in (DENIED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def produce_idempotently(bootstrap: str, topic: str) -> None:
    """Raises what the client calls fatal, or the record's own error."""
    fatal: list[KafkaError] = []
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 15_000}
    producer = Producer(settings | {"error_cb": fatal.append})
    failed: list[KafkaError] = []
    producer.produce(topic, b"x", callback=lambda e, _: failed.append(e) if e else None)
    deadline_s = time.monotonic() + TIMEOUT_S
    while producer.flush(0.2) and not fatal and time.monotonic() < deadline_s:
        pass
    codes = [e for e in (*fatal, *failed) if e.code() != KafkaError._ALL_BROKERS_DOWN]
    if codes:
        raise KafkaException(codes[0])


def test_a_denied_topic_keeps_no_other_from_its_records(cluster: LocalCluster) -> None:
    with granted(cluster, *MAKE):
        made = create(both_ways(cluster)[0], "ours-1", "ours-2", "theirs")
    assert set(made.values()) == {0}
    mine = (
        acl(Op.WRITE, Kind.TOPIC, "ours-", prefixed=True),
        acl(Op.READ, Kind.TOPIC, "ours-", prefixed=True),
        acl(Op.READ, Kind.GROUP, "*"),
    )
    with granted(cluster, *mine):
        for bootstrap in both_ways(cluster):
            codes = produce(bootstrap, "ours-1", "ours-2", "theirs", **{"linger.ms": 50})
            assert codes == {"ours-1": 0, "ours-2": 0, "theirs": DENIED}
            produce_idempotently(bootstrap, "ours-1")  # WRITE on any topic is enough for a producer id
            assert consume(bootstrap, f"group-{bootstrap}", "ours-1", "theirs") == {0, DENIED}
            shown = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S)
            assert {t for t in shown.topics if not t.startswith("__")} == {"ours-1", "ours-2"}
            with contextlib.closing(kafka.KafkaProducer(bootstrap_servers=bootstrap)) as producer:
                assert producer.send("ours-2", b"y").get(TIMEOUT_S).topic == "ours-2"
                with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
                    producer.send("theirs", b"y").get(TIMEOUT_S)


def test_deny_wins_and_a_host_counts(cluster: LocalCluster) -> None:
    with granted(cluster, *MAKE):
        assert set(create(both_ways(cluster)[0], "here", "elsewhere", "denied").values()) == {0}
    entries = (
        acl(Op.WRITE, Kind.TOPIC, "here", host="127.0.0.1"),
        acl(Op.WRITE, Kind.TOPIC, "elsewhere", host="192.0.2.1"),
        acl(Op.WRITE, Kind.TOPIC, "denied"),
        acl(Op.WRITE, Kind.TOPIC, "den", prefixed=True, principal="User:*", deny=True),
    )
    with granted(cluster, *entries):
        for bootstrap in both_ways(cluster):
            codes = produce(bootstrap, "here", "elsewhere", "denied")
            assert codes == {"here": 0, "elsewhere": DENIED, "denied": DENIED}


def test_rest_and_native_clients_ask_too(cluster: LocalCluster) -> None:
    def get(path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"{cluster.http.split(',')[0]}{path}", timeout=TIMEOUT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    with granted(cluster, *MAKE):
        assert set(create(both_ways(cluster)[0], "rest").values()) == {0}
    assert get("/v1/cluster")[0] == get("/v1/topics/rest")[0] == get("/v1/topics/no-such")[0] == 403
    assert get("/v1/topics")[1]["topics"] == []
    with granted(cluster, acl(Op.READ, Kind.TOPIC, "rest")):
        assert [t["name"] for t in get("/v1/topics")[1]["topics"]] == ["rest"]
        status, document = get("/v1/topics/rest")
        assert (status, document["config"]) == (200, None)


class Writer(threading.Thread):
    """Produces without a pause, each record acknowledged before the next; notes when which code came."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.outcomes: list[tuple[float, int]] = []
        self.stopped = False
        settings = {"bootstrap.servers": bootstrap, "message.timeout.ms": 5_000, "linger.ms": 0}
        self._producer = Producer(settings)
        self._topic = topic

    def run(self) -> None:
        while not self.stopped:
            try:
                self._producer.produce(self._topic, b"x", callback=self._noted)
            except KafkaException as e:  # what the client has heard of it already
                self._noted(e.args[0], None)
                time.sleep(0.01)
            self._producer.flush(TIMEOUT_S)

    def _noted(self, error: KafkaError | None, _message: Any) -> None:
        self.outcomes.append((time.monotonic(), error.code() if error else 0))

    def last_success_s(self) -> float:
        return max(at_s for at_s, code in self.outcomes if code == 0)


def test_a_revoked_right_is_gone_everywhere_within_a_second(cluster: LocalCluster) -> None:
    with granted(cluster, *MAKE):
        assert create(both_ways(cluster)[0], "revoked") == {"revoked": 0}
    write = acl(Op.WRITE, Kind.TOPIC, "revoked")
    alter_acls(cluster, add=[write])
    time.sleep(GONE_WITHIN_S)
    ways = [*cluster.bootstrap.split(","), both_ways(cluster)[1]]
    writers = [Writer(way, "revoked") for way in ways]
    for writer in writers:
        writer.start()
    try:
        wait_for(lambda: all(len(w.outcomes) > 50 for w in writers), "records through every way", TIMEOUT_S)
        assert all(code == 0 for w in writers for _, code in w.outcomes)
        alter_acls(cluster, remove=[write])
        revoked_s = time.monotonic()
        wait_for(
            lambda: all(w.outcomes[-1][1] == DENIED for w in writers), "the denial everywhere", TIMEOUT_S
        )
        time.sleep(GONE_WITHIN_S)
    finally:
        for writer in writers:
            writer.stopped = True
        for writer in writers:
            writer.join(TIMEOUT_S)
    late_s = [w.last_success_s() - revoked_s for w in writers]
    print("last success after the answer to the revocation, in ms:", [round(s * 1000) for s in late_s])
    assert max(late_s) < GONE_WITHIN_S
    assert {code for w in writers for at_s, code in w.outcomes if at_s > revoked_s + GONE_WITHIN_S} <= {
        DENIED
    }
