"""The audit log of real processes: who signed in, was denied, changed what, was turned away; and no secret in it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from penstock.local import ports
from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from support.cluster import running_cluster
from support.secure import ListenerFiles, SecureCluster, librdkafka, sasl_words
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CANARY = "canary-7f3a91"
WAIT_S = 60


@dataclass
class AuditedCluster(SecureCluster):
    """1 controller, 1 node, 1 gateway, each with an audit log."""

    node_count = 1
    directory: Path

    def events(self, process: str) -> list[dict[str, Any]]:
        """All of a process so far."""
        path = self.directory / f"{process}.audit"
        return [json.loads(each) for each in path.read_text().splitlines()] if path.exists() else []

    def find(self, process: str, **wanted: Any) -> dict[str, Any]:
        """The first event like that; waits for it."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [e for e in self.events(process) if wanted.items() <= e.items()]
            return bool(found)

        wait_for(there, f"{process} tells of {wanted}", WAIT_S)
        return found[0]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedCluster]:
    directory = tmp_path_factory.mktemp("audited")
    files, port = ListenerFiles(directory / "certificates"), ports.choose_base()
    sasl: dict[str, Any] = {"bind": "127.0.0.1:0", "security": "SASL_SSL", "tls": files.table()}
    listeners = [
        {"name": "PROXY", "bind": f"127.0.0.1:{port}"},
        {**sasl, "name": "SECURE"},
        {
            "name": "CERTIFIED",
            "bind": "127.0.0.1:0",
            "security": "SSL",
            "tls": files.table("required"),
            "principal_mapping_rules": "RULE:^.*CN=([a-z]+).*$/$1/",
        },
    ]
    rights = {"authorizer": "acl", "super_users": "User:ANONYMOUS", "audit_access": "true"}
    settings = {
        GATEWAY: {"listeners": json.dumps(listeners), **rights},
        NODE: dict(rights),
        CONTROLLER: {},
    }
    for role in settings:
        settings[role]["audit_log"] = str(directory / f"{role}.audit")
    with running_cluster(
        directory / "cluster", controllers=1, nodes=1, settings=settings, steady=True, port=port
    ) as running:
        cluster = AuditedCluster(running, files, directory)
        cluster.set_user("alice", CANARY)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap("PROXY"), "client.id": "the admin"})
        for future in admin.create_topics([NewTopic("flights", 2), NewTopic("shut", 1)]).values():
            future.result(WAIT_S)
        rule = AclBinding(
            ResourceType.TOPIC,
            "flights",
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        for future in admin.create_acls([rule]).values():
            future.result(WAIT_S)
        yield cluster


def as_alice(
    audited: AuditedCluster, password: str = CANARY, user: str = "alice", **more: Any
) -> dict[str, Any]:
    words = sasl_words("SCRAM-SHA-512", user, password)
    return (
        librdkafka(audited.bootstrap("SECURE"), audited.files, **words) | {"client.id": "it\x1bs me"} | more
    )


def refused(settings: dict[str, Any]) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    admin = AdminClient(settings | {"error_cb": errors.append})

    def told() -> bool:
        admin.poll(0.1)
        return any(each.code() == confluent_kafka.KafkaError._AUTHENTICATION for each in errors)

    wait_for(told, "it is refused", WAIT_S)


def test_changes_are_told_by_the_active_controller(audited: AuditedCluster) -> None:
    made = audited.find(CONTROLLER, api="CreateTopics", resource="flights")
    assert (made["event"], made["outcome"], made["principal"]) == ("change", "ok", "User:ANONYMOUS")
    assert (made["process"], made["type"], made["partitions"]) == ("controller/1", "topic", 2)
    assert made["version"] > 0
    user = audited.find(CONTROLLER, type="user", mechanism="SCRAM-SHA-512")
    assert (user["resource"], user["operation"], user["iterations"]) == ("alice", "set", 4096)
    rule = audited.find(CONTROLLER, type="acl")
    assert (rule["resource"], rule["rule"]) == ("topic:flights", "allow User:alice all from *, literal")
    assert audited.find(CONTROLLER, type="gateway")["operation"] == "register"


def test_logins_and_denials_are_told_by_the_gateway(audited: AuditedCluster) -> None:
    producer = confluent_kafka.Producer(as_alice(audited))
    results: list[Any] = []
    for topic in ("flights", "shut"):
        producer.produce(topic, b"x", on_delivery=lambda error, _: results.append(error))
    producer.flush(WAIT_S)
    assert len(results) == 2
    login = audited.find(GATEWAY, event="login", outcome="success", mechanism="SCRAM-SHA-512")
    assert (login["principal"], login["listener"], login["address"]) == ("User:alice", "SECURE", "127.0.0.1")
    assert login["client_id"] == "it\\x1bs me"
    denied = audited.find(GATEWAY, event="denied", resource="shut")
    assert (denied["principal"], denied["api"], denied["operation"]) == ("User:alice", "Metadata", "describe")
    assert (denied["mechanism"], denied["listener"]) == ("SCRAM-SHA-512", "SECURE")
    assert (denied["client_id"], denied["rule"]) == ("it\\x1bs me", "no entry applies")
    access = audited.find(GATEWAY, event="access", resource="flights")
    assert (access["principal"], access["operation"], access["type"]) == ("User:alice", "write", "topic")
    assert access["count"] >= 1
    assert audited.find(NODE, event="access", resource="flights")["principal"] == "User:alice"


@pytest.mark.parametrize(("user", "reason"), [("alice", ""), ("nobody", "")])
def test_a_login_that_failed_says_who_it_was_said_to_be(
    audited: AuditedCluster, user: str, reason: str
) -> None:
    refused(as_alice(audited, "wrong-" + CANARY, user))
    failed = audited.find(GATEWAY, event="login", outcome="failure", principal=f"User:{user}")
    assert (failed["mechanism"], failed["listener"]) == ("SCRAM-SHA-512", "SECURE")
    assert failed["reason"]


def test_an_unknown_mechanism(audited: AuditedCluster) -> None:
    words = sasl_words("OAUTHBEARER", "", "")
    settings = librdkafka(audited.bootstrap("SECURE"), audited.files, **words)
    refused(settings | {"oauth_cb": lambda _: (CANARY, 4e9)})
    failed = audited.find(GATEWAY, event="login", outcome="failure", mechanism="unknown")
    assert failed["reason"] == "a mechanism that is not offered"


def test_a_certificate_is_a_login_and_one_of_nobody_is_none(audited: AuditedCluster) -> None:
    where = audited.bootstrap("CERTIFIED")
    for name, outcome in (("alice", "success"), ("UPPER", "failure")):
        cert, key = audited.files.client(name)
        words = {"ssl_certificate_location": str(cert), "ssl_key_location": str(key)}
        admin = AdminClient(librdkafka(where, audited.files, security_protocol="SSL", **words))
        with contextlib.suppress(confluent_kafka.KafkaException):
            admin.list_topics(timeout=5)
        said = audited.find(GATEWAY, event="login", mechanism="SSL", outcome=outcome)
        assert said["listener"] == "CERTIFIED"
        assert said.get("principal") == ("User:alice" if outcome == "success" else None)


def _talk(audited: AuditedCluster, listener: str, talk: Callable[[socket.socket], object]) -> None:
    host, port = audited.bootstrap(listener).split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as client, contextlib.suppress(OSError):
        talk(client)
        while client.recv(4096):
            pass


def _talk_tls(audited: AuditedCluster, client: socket.socket, said: bytes = b"") -> None:
    context = ssl.create_default_context(cafile=audited.files.ca)
    with context.wrap_socket(client, server_hostname="localhost") as secure:
        secure.sendall(said)
        while secure.recv(4096):
            pass


def _is_told(audited: AuditedCluster, listener: str, words: str) -> None:
    def told() -> bool:
        return any(
            (each["event"], each.get("listener")) == ("refused", listener) and words in each["reason"]
            for each in audited.events(GATEWAY)
        )

    wait_for(told, f"{listener} tells: {words}", WAIT_S)


def test_tls_at_a_plaintext_port_and_the_reverse(audited: AuditedCluster) -> None:
    _talk(audited, "PROXY", lambda s: _talk_tls(audited, s))
    _is_told(audited, "PROXY", "this is TLS")
    _talk(audited, "SECURE", lambda s: s.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\0\0"))
    _is_told(audited, "SECURE", "it speaks no TLS")


def test_no_certificate_where_one_is_required(audited: AuditedCluster) -> None:
    _talk(audited, "CERTIFIED", lambda s: _talk_tls(audited, s))
    _is_told(audited, "CERTIFIED", "it shows no certificate")


def test_a_request_before_sign_in(audited: AuditedCluster) -> None:
    metadata = b"\0\3\0\1\0\0\0\7\xff\xff\xff\xff\xff\xff"
    _talk(audited, "SECURE", lambda s: _talk_tls(audited, s, len(metadata).to_bytes(4) + metadata))
    _is_told(audited, "SECURE", "request 3 while expecting ApiVersions or SaslHandshake")


def test_a_file_that_was_taken_away_is_begun_anew(audited: AuditedCluster) -> None:
    path = audited.directory / f"{GATEWAY}.audit"
    path.rename(audited.directory / "old.audit")
    refused(as_alice(audited, "wrong", "later"))
    assert audited.find(GATEWAY, principal="User:later")
    assert path.stat().st_mode & 0o777 == 0o600
    (audited.directory / "old.audit").unlink()


def test_no_secret_is_in_it_nor_in_any_log(audited: AuditedCluster) -> None:
    looked = [path for path in audited.directory.rglob("*") if path.suffix in (".audit", ".log")]
    assert len(looked) >= 6
    assert not [path for path in looked if CANARY in path.read_text(errors="replace")]
