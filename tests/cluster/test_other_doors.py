"""The native API and HTTP of real gateways with TLS, users and rights: who gets in, and what ends it."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.local.plan import GATEWAY, NODE
from penstock_core.native_account import Account
from penstock_core.security.client_file import ClientFile
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_proto.v1 import data_pb2, gateway_pb2_grpc
from penstock_proto.v1 import gateway_pb2 as pb
from support.cluster import running_cluster
from support.kafka import create_topic
from support.secure import ListenerFiles, SecureCluster
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TIMEOUT_S = 60
PASSWORD = "correct:horse-canary"
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@dataclass
class Doors(SecureCluster):
    """1 controller, 1 node, 2 gateways; whoever comes by a Kafka listener may do everything."""

    node_count = 1
    directory: Path

    def addresses(self, port: str) -> list[str]:
        return [f"localhost:{m.ports[port]}" for m in self.cluster.state.of_role(GATEWAY)]

    @property
    def kafka(self) -> str:
        return self.addresses("kafka")[0]

    def allow(self, user: str, operation: AclOperation, name: str, kind: Any = ResourceType.TOPIC) -> None:
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        entry = AclBinding(kind, name, literal, f"User:{user}", "*", operation, allow)
        admin = AdminClient({"bootstrap.servers": self.kafka})
        for future in admin.create_acls([entry]).values():
            future.result(TIMEOUT_S)

    def client(self, user: str, gateway: int = 0, password: str = PASSWORD) -> Client:
        return Client(self, user, password, self.addresses("grpc")[gateway])

    def get(self, path: str, user: str = "", password: str = PASSWORD, gateway: int = 0) -> tuple[int, Any]:
        request = urllib.request.Request(f"http://{self.addresses('http')[gateway]}{path}")
        if user:
            said = base64.b64encode(f"{user}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {said}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                body, status = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            body, status = error.read(), error.code
        return status, body.decode() if path == "/metrics" and status == 200 else json.loads(body)


class Client:
    """A native client."""

    def __init__(self, doors: Doors, user: str, password: str, address: str) -> None:
        text = (
            f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username={user}\n"
            f"sasl.password={password}\nssl.ca.location={doors.files.ca}\n"
        )
        self.account = Account(ClientFile.parse(text, "test"))
        pems = self.account.pems()
        assert pems is not None
        self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*pems))
        self.stub: Any = gateway_pb2_grpc.GatewayStub(self.channel)

    def metadata(self) -> Any:
        return self.account.metadata(self.stub.Authenticate)

    def produce(self, topic: str, value: bytes, metadata: Any = None) -> int:
        """Kafka's error code."""
        batch = build_batch([NewRecord(key=None, value=value, timestamp_ms=1)])
        request = pb.ProduceRequest(request_id=1, topic=topic, records=batch, acks=-1)
        call = self.stub.Produce(iter([request]), metadata=metadata or self.metadata(), timeout=TIMEOUT_S)
        (response,) = call
        return int(response.error.code)

    def read(self, topic: str, metadata: Any = None) -> bytes:
        call = self.stub.FetchRange(
            data_pb2.FetchRangeRequest(topic=topic, to_offset=-1),
            metadata=metadata or self.metadata(),
            timeout=TIMEOUT_S,
        )
        return b"".join(response.records for response in call)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    directory = tmp_path_factory.mktemp("doors")
    files = ListenerFiles(directory / "certificates")
    rights = {"authorizer": "acl", "super_users": "User:ANONYMOUS"}
    http = json.dumps({"security": "SASL_PLAINTEXT", "mechanisms": ["PLAIN"]})
    grpc_door = json.dumps({"security": "SASL_SSL", "tls": files.table(), "token_lifetime_ms": 5_000})
    settings = {
        GATEWAY: {**rights, "grpc_door": grpc_door, "http_door": http},
        NODE: {**rights, "http_door": http},
    }
    with running_cluster(
        directory / "cluster", controllers=1, nodes=1, gateways=2, settings=settings, steady=True
    ) as cluster:
        made = Doors(cluster, files, directory)
        for user in ("alice", "nobody"):
            made.set_user(user, PASSWORD)
        create_topic(made.kafka, "open", 1)
        made.allow("alice", AclOperation.ALL, "open")
        made.allow("alice", AclOperation.DESCRIBE, "kafka-cluster", ResourceType.BROKER)
        wait_for(
            lambda: made.client("alice").produce("open", b"first") == 0, "alice has her rights", TIMEOUT_S
        )
        yield made


def status(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    assert PASSWORD not in str(error)
    code: grpc.StatusCode = error.code()
    return code


def test_who_has_rights_produces_and_reads_and_others_do_not(doors: Doors) -> None:
    alice, nobody = doors.client("alice"), doors.client("nobody")
    assert alice.produce("open", b"hello") == 0
    assert b"hello" in alice.read("open")
    assert nobody.produce("open", b"hello") == 29
    assert status(lambda: nobody.read("open")) is DENIED
    described = nobody.stub.Describe(pb.DescribeRequest(all_topics=True), metadata=nobody.metadata())
    assert list(described.topics) == []
    queries = [pb.OffsetQuery(topic="open", timestamp_ms=-1)]
    asked = nobody.stub.ListOffsets(pb.ListOffsetsRequest(queries=queries), metadata=nobody.metadata())
    assert [result.error.code for result in asked.results] == [29]


def test_without_a_token_or_tls_nothing_is_told(doors: Doors) -> None:
    alice = doors.client("alice")
    assert status(lambda: alice.stub.Describe(pb.DescribeRequest())) is UNAUTHENTICATED
    forged = (("authorization", "Bearer pst1.AAAA"),)
    assert status(lambda: alice.read("open", forged)) is UNAUTHENTICATED
    with grpc.insecure_channel(doors.addresses("grpc")[0]) as plain:
        stub: Any = gateway_pb2_grpc.GatewayStub(plain)
        assert status(lambda: stub.Describe(pb.DescribeRequest(), timeout=5)) in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
    for user, password in (("alice", "wrong"), ("mallory", PASSWORD)):
        stranger = doors.client(user, password=password)
        assert status(stranger.metadata) is UNAUTHENTICATED


def test_a_token_is_good_at_both_gateways_until_it_ends(doors: Doors) -> None:
    metadata = doors.client("alice").metadata()
    other = doors.client("alice", gateway=1)
    assert other.produce("open", b"there", metadata) == 0

    def ended() -> bool:
        call: Any = other.stub.Describe.future(pb.DescribeRequest(), metadata=metadata, timeout=TIMEOUT_S)
        return bool(call.code() is UNAUTHENTICATED)

    wait_for(ended, "the token ends", TIMEOUT_S)
    assert b"there" in other.read("open")  # the account has another one by now


def test_another_password_ends_tokens_and_what_goes_on(doors: Doors) -> None:
    doors.set_user("carol", PASSWORD)
    doors.allow("carol", AclOperation.ALL, "open")
    clients = [doors.client("carol", gateway) for gateway in (0, 1)]
    wait_for(lambda: all(c.produce("open", b"c") == 0 for c in clients), "carol has her rights", TIMEOUT_S)
    waiting = []
    for client in clients:
        query = pb.OffsetQuery(topic="open", timestamp_ms=-1, known_offset=1 << 40)
        request = pb.ListOffsetsRequest(queries=[query], wait_ms=300_000)
        waiting.append(client.stub.ListOffsets.future(request, metadata=client.metadata(), timeout=300))
    tokens = [client.metadata() for client in clients]
    doors.set_user("carol", "another one")
    for call in waiting:
        assert status(lambda call=call: call.result(TIMEOUT_S)) is UNAUTHENTICATED
    for client, token in zip(clients, tokens, strict=True):
        assert status(lambda c=client, t=token: c.read("open", t)) is UNAUTHENTICATED
    again = doors.client("carol", password="another one")
    assert again.produce("open", b"again") == 0


def test_http_with_rights_and_without(doors: Doors) -> None:
    for path in ("/v1/cluster", "/v1/topics", "/v1/topics/open", "/metrics"):
        code, body = doors.get(path)
        assert (code, set(body)) == (401, {"error", "hint"})
        assert doors.get(path, "alice", "wrong")[0] == 401
        assert doors.get(path, "alice")[0] == 200
    assert [t["name"] for t in doors.get("/v1/topics", "alice")[1]["topics"]] == ["open"]
    assert doors.get("/v1/topics", "nobody")[1]["topics"] == []
    for path in ("/v1/cluster", "/v1/topics/open", "/v1/topics/other", "/metrics"):
        code, body = doors.get(path, "nobody")
        assert (code, set(body)) == (403, {"error", "hint"})
    metrics = doors.get("/metrics", "alice")[1]
    assert 'penstock_kafka_sign_ins_total{listener="http",mechanism="PLAIN",outcome="failure"}' in metrics


def test_no_password_and_no_token_is_in_any_file_of_the_cluster(doors: Doors) -> None:
    token = doors.client("alice").metadata()[0][1].removeprefix("Bearer ")
    assert doors.get("/v1/cluster", "alice")[0] == 200
    searched = 0
    for path in (doors.directory / "cluster").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            searched += len(content)
            assert PASSWORD.encode() not in content, path
            assert token.encode() not in content, path
    assert searched > 1_000
