"""A cluster of real processes whose gRPC and HTTP ports sign clients in, and clients of both."""

from __future__ import annotations

import base64
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.local.plan import GATEWAY, NODE
from penstock_core.process.native_account import Account
from penstock_core.security.client_file import ClientFile
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_proto.v1 import data_pb2, gateway_pb2_grpc
from penstock_proto.v1 import gateway_pb2 as pb
from support.cluster import running_cluster
from support.kafka import create_topic
from support.secure import ListenerFiles, SecureCluster
from support.waiting import wait_for

TIMEOUT_S = 60
PASSWORD = "correct:horse-canary"
TOKEN_LIFETIME_MS = 5_000


def client_file_text(user: str, password: str, ca: Path) -> str:
    """What a user's client file says."""
    return (
        f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username={user}\n"
        f"sasl.password={password}\nssl.ca.location={ca}\n"
    )


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
        text = client_file_text(user, password, doors.files.ca)
        self.account = Account(ClientFile.parse(text, "test"))
        pems = self.account.pems()
        assert pems is not None
        self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*pems))
        self.stub: Any = gateway_pb2_grpc.GatewayStub(self.channel)

    def metadata(self) -> Any:
        return self.account.metadata(self.stub.Authenticate)

    def produce(self, topic: str, value: bytes, metadata: Any = None) -> int:
        """Kafka's error code."""
        batch = build_batch([NewRecord(key=None, value=value, timestamp_ms=time.time_ns() // 1_000_000)])
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


@contextlib.contextmanager
def doors_cluster(directory: Path, token_lifetime_ms: int = TOKEN_LIFETIME_MS) -> Iterator[Doors]:
    """Users alice, who has all rights to the topic `open`, and nobody, who has none."""
    files = ListenerFiles(directory / "certificates")
    rights = {"authorizer": "acl", "super_users": "User:ANONYMOUS"}
    http = json.dumps({"security": "SASL_PLAINTEXT", "mechanisms": ["PLAIN"]})
    grpc_door = json.dumps(
        {"security": "SASL_SSL", "tls": files.table(), "token_lifetime_ms": token_lifetime_ms}
    )
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
