"""Stock clients sign in by tokens, through the gateway and straight to the leaders, and again when their time is up."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka.abc
import confluent_kafka
import kafka.net.sasl.oauth
import pytest
from confluent_kafka.admin import AdminClient

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY, NODE
from support.cluster import running_cluster
from support.java import JavaDriver, needs_java, record
from support.kafka import create_topic
from support.secure import (
    ListenerFiles,
    SecureCluster,
    SteadyProducer,
    aiokafka_round_trip,
    confluent_round_trip,
    kafka_python_round_trip,
    librdkafka,
)
from support.tokens import AUDIENCE, ISSUER, Issuer
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

COUNT = 30
WANTED = sorted(str(i).encode() for i in range(COUNT))
REAUTH_MS = 2_000


@dataclass
class TokenCluster(SecureCluster):
    """Listeners TOKENS and RENEWED (max_reauth_ms) of the gateway, STRAIGHT of all."""

    issuer: Issuer
    jwks: Path

    def sign_ins(self, listener: str, outcome: str) -> float:
        """The gateway's count."""
        return sum(
            float(line.rpartition(" ")[2])
            for line in self.metrics().splitlines()
            if line.startswith("penstock_kafka_sign_ins_total")
            and f'listener="{listener}"' in line
            and f'outcome="{outcome}"' in line
        )

    def metrics(self) -> str:
        """The gateway's."""
        (gateway,) = self.image().gateways.values()
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway.record.http.port}/metrics") as response:
            text: str = response.read().decode()
        return text

    def gateway_maps(self) -> str:
        """What files the gateway's process has mapped."""
        (found,) = _maps(self.cluster, GATEWAY)
        return found


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenCluster]:
    directory = tmp_path_factory.mktemp("tokens")
    files, issuer, port = ListenerFiles(directory / "certificates"), Issuer(), ports.choose_base()
    jwks = issuer.write_jwks(directory / "jwks.json")
    common: dict[str, Any] = {
        "bind": "127.0.0.1:0",
        "security": "SASL_SSL",
        "tls": files.table(),
        "sasl_mechanisms": ["OAUTHBEARER", "SCRAM-SHA-512"],
    }
    straight = {**common, "name": "STRAIGHT", "mode": "direct"}
    gateway = [
        {"name": "PROXY", "bind": f"127.0.0.1:{port}"},
        {**common, "name": "TOKENS"},
        {**common, "name": "RENEWED", "max_reauth_ms": REAUTH_MS},
        straight,
    ]
    oauth = json.dumps({"issuer": ISSUER, "audiences": [AUDIENCE], "jwks": str(jwks)})
    settings = {
        GATEWAY: {"listeners": json.dumps(gateway), "oauth": oauth},
        NODE: {"listeners": json.dumps([straight]), "oauth": oauth},
    }
    with running_cluster(
        directory / "cluster", controllers=1, nodes=2, settings=settings, steady=True, port=port
    ) as running:
        yield TokenCluster(running, files, issuer, jwks)


def topic(tokens: TokenCluster, name: str) -> str:
    create_topic(tokens.bootstrap("PROXY"), name, 2)
    return name


def by_librdkafka(tokens: TokenCluster, where: str, token: str | None = None) -> dict[str, Any]:
    """Settings; without `token` a new one each time."""

    def give(_: str) -> tuple[str, float]:
        return token or tokens.issuer.token(), time.time() + 3600

    words = librdkafka(where, tokens.files, security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER")
    return words | {"oauth_cb": give}


@pytest.fixture(params=["TOKENS", "STRAIGHT"])
def where(request: pytest.FixtureRequest, tokens: TokenCluster) -> str:
    return tokens.bootstrap(request.param)


def test_confluent_kafka(tokens: TokenCluster, where: str) -> None:
    name = topic(tokens, f"confluent-{where[-5:]}")
    assert sorted(confluent_round_trip(by_librdkafka(tokens, where), name, COUNT)) == WANTED


def test_kafka_python(tokens: TokenCluster, where: str) -> None:
    class Provider(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return tokens.issuer.token()

    name = topic(tokens, f"kafka-python-{where[-5:]}")
    sasl = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider()}
    assert sorted(kafka_python_round_trip(where, tokens.files, name, COUNT, **sasl)) == WANTED


def test_aiokafka(tokens: TokenCluster, where: str) -> None:
    class Provider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return tokens.issuer.token()

    name = topic(tokens, f"aiokafka-{where[-5:]}")
    sasl = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider()}
    assert sorted(aiokafka_round_trip(where, tokens.files, name, COUNT, **sasl)) == WANTED


def test_librdkafka_signs_in_again_in_time(tokens: TokenCluster) -> None:
    name = topic(tokens, "renewed")
    before = tokens.sign_ins("RENEWED", "success")
    with SteadyProducer(by_librdkafka(tokens, tokens.bootstrap("RENEWED")), name) as producer:
        wait_for(lambda: tokens.sign_ins("RENEWED", "success") - before >= 8, "sessions are renewed", 60)
    assert len(producer.acked) == producer.sent
    assert not [e for e in producer.errors if e.code() == confluent_kafka.KafkaError._AUTHENTICATION]
    assert tokens.sign_ins("RENEWED", "failure") == 0


@needs_java
@pytest.mark.parametrize("listener", ["RENEWED", "STRAIGHT"])
def test_java_with_a_token_in_a_file(
    tokens: TokenCluster, listener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(tokens, f"java-{listener}")
    file = tmp_path / "token"
    file.write_text(tokens.issuer.token())
    url = f"file://{file}"
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{allowed}.urls={url} {allowed}.files={file}")
    config = {
        "bootstrap.servers": tokens.bootstrap(listener),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tokens.files.ca),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
        "sasl.oauthbearer.jwt.retriever.class": (
            "org.apache.kafka.common.security.oauthbearer.FileJwtRetriever"
        ),
        "sasl.oauthbearer.token.endpoint.url": url,
    }
    before = tokens.sign_ins("RENEWED", "success")
    driver = JavaDriver()
    try:
        handle = driver.call("producer.open", config=config)
        sent = 0
        deadline_s = time.monotonic() + 120
        while True:
            (told,) = driver.call("producer.send", handle=handle, topic=name, records=[record(b"x")])
            assert "error" not in told, told
            sent += 1
            if sent >= COUNT and (
                listener != "RENEWED" or tokens.sign_ins(listener, "success") - before >= 6
            ):
                break
            assert time.monotonic() < deadline_s, "sessions are renewed"
        driver.call("producer.close", handle=handle)
    finally:
        driver.close()
    assert tokens.sign_ins("RENEWED", "failure") == 0


@pytest.mark.parametrize("wrong", ["expired", "none", "shared secret", "audience"])
def test_a_wrong_token_is_refused_and_the_client_is_told(tokens: TokenCluster, wrong: str) -> None:
    token = {
        "expired": lambda i: i.token(lifetime_s=-60),
        "none": lambda i: i.unsigned(),
        "shared secret": lambda i: i.shared_secret(),
        "audience": lambda i: i.token(aud="other"),
    }[wrong](tokens.issuer)
    errors: list[confluent_kafka.KafkaError] = []
    before = tokens.sign_ins("TOKENS", "failure")
    settings = by_librdkafka(tokens, tokens.bootstrap("TOKENS"), token) | {"error_cb": errors.append}
    admin = AdminClient(settings)

    def refused() -> bool:
        admin.poll(0.1)
        return any(each.code() == confluent_kafka.KafkaError._AUTHENTICATION for each in errors)

    wait_for(refused, "it is refused", 60)
    assert "invalid_token" in str(errors)
    assert tokens.sign_ins("TOKENS", "failure") > before


def test_a_key_is_rotated_without_a_restart(tokens: TokenCluster) -> None:
    name, where = topic(tokens, "rotated"), tokens.bootstrap("TOKENS")
    old = tokens.issuer.token()
    tokens.issuer.rotate("second")
    tokens.issuer.write_jwks(tokens.jwks)
    assert sorted(confluent_round_trip(by_librdkafka(tokens, where), name, COUNT)) == WANTED
    errors: list[confluent_kafka.KafkaError] = []
    admin = AdminClient(by_librdkafka(tokens, where, old) | {"error_cb": errors.append})

    def refused() -> bool:
        admin.poll(0.1)
        return any(each.code() == confluent_kafka.KafkaError._AUTHENTICATION for each in errors)

    wait_for(refused, "a token by the old key is refused", 60)


def test_only_where_tokens_count_a_crypto_package_is_loaded(tokens: TokenCluster, tmp_path: Path) -> None:
    assert "cryptography/hazmat" in tokens.gateway_maps()
    scram = {
        "name": "SECURE",
        "bind": "127.0.0.1:0",
        "security": "SASL_SSL",
        "tls": tokens.files.table(),
    }
    port = ports.choose_base()
    listeners = [{"name": "PROXY", "bind": f"127.0.0.1:{port}"}, scram]
    settings = {GATEWAY: {"listeners": json.dumps(listeners), "authorizer": "none"}}
    with running_cluster(tmp_path, controllers=1, nodes=1, settings=settings, port=port) as plain:
        others = _maps(plain)
        assert len(others) == 3
        assert not [maps for maps in others if "cryptography/hazmat" in maps]


def _maps(cluster: LocalCluster, *roles: str) -> list[str]:
    rows = [row for row in cluster.state.processes if not roles or row.role in roles]
    return [Path(f"/proc/{row.pid}/maps").read_text() for row in rows]
