"""Stock clients sign in over TLS: through the gateway and straight to the leaders, for as long as they may."""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient

from support.kafka import create_topic
from support.secure import (
    SecureCluster,
    SteadyProducer,
    aiokafka_round_trip,
    confluent_round_trip,
    kafka_python_round_trip,
    librdkafka,
    sasl_words,
    secure_cluster,
)
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

COUNT = 50
WANTED = sorted(str(i).encode() for i in range(COUNT))
PASSWORD = "correct horse"
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    with secure_cluster(tmp_path_factory.mktemp("secure")) as cluster:
        cluster.set_user("alice", PASSWORD)
        yield cluster


@pytest.fixture(params=["SECURE", "STRAIGHT"])
def where(request: pytest.FixtureRequest, secure: SecureCluster) -> str:
    return secure.bootstrap(request.param)


def topic(secure: SecureCluster, name: str) -> str:
    create_topic(secure.bootstrap("PROXY"), name, 2)
    return name


def sign_ins(secure: SecureCluster, listener: str, outcome: str) -> float:
    """The gateway's count."""
    (gateway,) = secure.image().gateways.values()
    url = f"http://127.0.0.1:{gateway.record.http.port}/metrics"
    with urllib.request.urlopen(url) as response:
        lines = response.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("penstock_kafka_sign_ins_total")
        and f'listener="{listener}"' in line
        and f'outcome="{outcome}"' in line
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_produces_and_consumes_in_a_group(
    secure: SecureCluster, where: str, mechanism: str
) -> None:
    name = topic(secure, f"confluent-{mechanism}-{where[-5:]}")
    settings = librdkafka(where, secure.files, **sasl_words(mechanism, "alice", PASSWORD))
    assert sorted(confluent_round_trip(settings, name, COUNT)) == WANTED


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
def test_python_clients_produce_and_consume_in_a_group(
    secure: SecureCluster, where: str, mechanism: str, client: str
) -> None:
    name = topic(secure, f"{client}-{mechanism}-{where[-5:]}")
    words = {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    round_trip = kafka_python_round_trip if client == "kafka-python" else aiokafka_round_trip
    assert sorted(round_trip(where, secure.files, name, COUNT, **words)) == WANTED


def test_a_certificate_is_enough_where_it_is_asked_for_and_none_is_not(secure: SecureCluster) -> None:
    where = secure.bootstrap("CERTIFIED")
    name = topic(secure, "certified")
    cert, key = secure.files.client("Alice")
    settings = librdkafka(
        where,
        secure.files,
        security_protocol="SSL",
        ssl_certificate_location=str(cert),
        ssl_key_location=str(key),
    )
    assert sorted(confluent_round_trip(settings, name, COUNT)) == WANTED
    without = librdkafka(where, secure.files, security_protocol="SSL")
    with pytest.raises(confluent_kafka.KafkaException):
        AdminClient(without).list_topics(timeout=5)


def test_sessions_of_two_seconds_are_renewed_under_load(secure: SecureCluster) -> None:
    name = topic(secure, "renewed")
    where = secure.bootstrap("RENEWED")
    settings = librdkafka(where, secure.files, **sasl_words("SCRAM-SHA-512", "alice", PASSWORD))
    before = sign_ins(secure, "RENEWED", "success")
    with SteadyProducer(settings, name) as producer:
        wait_for(lambda: sign_ins(secure, "RENEWED", "success") - before >= 8, "sessions are renewed", 60)
    assert len(producer.acked) == producer.sent
    assert not [e for e in producer.errors if e.code() == confluent_kafka.KafkaError._AUTHENTICATION]
    assert sign_ins(secure, "RENEWED", "failure") == 0


def test_a_deleted_user_is_out_within_five_seconds(secure: SecureCluster, where: str) -> None:
    name = topic(secure, f"deleted-{where[-5:]}")
    secure.set_user("mallory", "password")
    settings = librdkafka(where, secure.files, **sasl_words("SCRAM-SHA-256", "mallory", "password"))
    with SteadyProducer(settings | {"message.timeout.ms": 10_000}, name) as producer:
        wait_for(lambda: len(producer.acked) > 50, "it produces", 60)
        secure.delete_user("mallory")
        deleted_s = time.monotonic()
        wait_for(
            lambda: any(e.code() == confluent_kafka.KafkaError._AUTHENTICATION for e in producer.errors),
            "it is refused",
            60,
        )
        time.sleep(max(0.0, deleted_s + 5 - time.monotonic()))  # what is promised
        acked = len(producer.acked)
        time.sleep(1)  # a while in which it would have gone on
        assert len(producer.acked) == acked
        producer.give_up()


def test_new_certificates_come_into_use_while_a_client_produces(secure: SecureCluster) -> None:
    name = topic(secure, "new-certificates")
    where = secure.bootstrap("SECURE")
    host, _, port = where.rpartition(":")

    def shown() -> str:
        return ssl.get_server_certificate((host, int(port)), ca_certs=str(secure.files.ca))

    settings = librdkafka(where, secure.files, **sasl_words("SCRAM-SHA-256", "alice", PASSWORD))
    with SteadyProducer(settings, name) as producer:
        wait_for(lambda: len(producer.acked) > 20, "it produces", 60)
        before = shown()
        secure.files.renew()
        wait_for(lambda: shown() != before, "the new certificate is shown", 60)
        more = len(producer.acked) + 50
        wait_for(lambda: len(producer.acked) >= more, "it goes on", 60)
    assert len(producer.acked) == producer.sent
    assert not producer.errors


def test_each_listener_tells_of_its_own_kind_only(secure: SecureCluster) -> None:
    settings = librdkafka(
        secure.bootstrap("STRAIGHT"), secure.files, **sasl_words("SCRAM-SHA-256", "alice", PASSWORD)
    )
    told = {b.port for b in AdminClient(settings).list_topics(timeout=30).brokers.values()}
    assert told == {n.listeners["STRAIGHT"].port for n in secure.image().nodes.values()}
    assert {n.listeners["STRAIGHT"].security for n in secure.image().nodes.values()} == {"SASL_SSL"}


def test_kafka_python_hears_of_a_wrong_password(secure: SecureCluster) -> None:
    with pytest.raises((kafka.errors.KafkaError, kafka.errors.SaslAuthenticationFailedError)):
        kafka.KafkaConsumer(
            bootstrap_servers=secure.bootstrap("SECURE"),
            security_protocol="SASL_SSL",
            ssl_cafile=str(secure.files.ca),
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password="wrong",
            bootstrap_timeout_ms=5_000,
        )


# Last, for an address from which many passwords were wrong waits.
def test_a_wrong_password_and_an_unknown_user_are_told_so(secure: SecureCluster, where: str) -> None:
    for user in ("alice", "nobody"):
        for mechanism in MECHANISMS:
            errors: list[confluent_kafka.KafkaError] = []
            words = sasl_words(mechanism, user, "wrong")
            admin = AdminClient(librdkafka(where, secure.files, **words) | {"error_cb": errors.append})

            def told(admin: AdminClient = admin, errors: list[Any] = errors) -> bool:
                admin.poll(0.1)
                return any(e.code() == confluent_kafka.KafkaError._AUTHENTICATION for e in errors)

            wait_for(told, f"{user} is refused with {mechanism}", 60)
