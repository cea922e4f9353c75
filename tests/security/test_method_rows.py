"""One row per method between roles: who is refused, and how, at a real controller and a real storage node.

Rows come from the contracts and from the table of the code: a new method is in here without a word.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import pytest

from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import storage_pb2
from penstock_runtime.security.methods import ADMIN, METHOD_ROLES
from support.certificates import DOMAIN, ClusterCa, as_flag
from support.cluster import running_cluster
from support.role_methods import BOUND, methods
from support.secure import ListenerFiles

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PATIENCE_S: Final = 10.0
NO_CONNECTION, DENIED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED
SERVERS: Final = {"Controller": CONTROLLER, "Storage": NODE}
NAMES: Final = {CONTROLLER: "1", NODE: "node-1", GATEWAY: "gateway-1", ADMIN: "ann"}
OTHERS: Final = {CONTROLLER: "2", NODE: "node-9", GATEWAY: "gateway-9", ADMIN: "bob"}
"""Names in certificates of callers: of nobody who is there."""


class Answer(NamedTuple):
    """What came back. OK: the call was served, at least with a first message."""

    code: grpc.StatusCode
    words: str
    message: bytes = b""


class Callers:
    """Channels to both servers, one for each kind of caller."""

    def __init__(self, addresses: dict[str, str], ca: ClusterCa, directory: Path) -> None:
        self._addresses, self._ca, self._directory = addresses, ca, directory
        self._channels: dict[tuple[str, str], grpc.Channel] = {}

    def call(self, kind: str, method: str, message: bytes = b"") -> Answer:
        """Call a method as such a caller, with one message."""
        server = SERVERS[method.split("/")[1].rpartition(".")[2]]
        if (kind, server) not in self._channels:
            self._channels[kind, server] = self._dial(kind, server)
        stream: Any = self._channels[kind, server].stream_stream(method, None, None)
        call = stream(iter([message]), timeout=PATIENCE_S)
        with contextlib.suppress(grpc.RpcError, StopIteration):
            answered = next(call)
            call.cancel()
            return Answer(grpc.StatusCode.OK, "", answered)
        return Answer(call.code(), call.details())

    def _dial(self, kind: str, server: str) -> grpc.Channel:
        address = self._addresses[server]
        if kind == "plaintext":
            return grpc.insecure_channel(address)
        credentials = grpc.ssl_channel_credentials(self._ca.pem, *self._chain(kind))
        options = [("grpc.ssl_target_name_override", f"{server}.{DOMAIN}")]
        return grpc.secure_channel(address, credentials, options=options)

    def _chain(self, kind: str) -> tuple[bytes, bytes] | tuple[None, None]:
        into = self._directory / kind.replace(" ", "-")
        if kind == "no certificate":
            return None, None
        if kind == "a client's, of the listeners' CA":
            cert, key = ListenerFiles(into).client("alice")
            return key.read_bytes(), cert.read_bytes()
        what, _, role = kind.partition(": ")
        if what == "a client's, of the cluster's CA":
            made = self._ca.issue(into, "client", "alice", uris=[])
        elif what == "another cluster's CA":
            made = ClusterCa().issue(into, role, "*")
        elif what == "another trust domain":
            made = self._ca.issue(into, role, "*", domain="elsewhere.test")
        else:
            made = self._ca.issue(into, role, OTHERS[role])
        return Path(made["key"]).read_bytes(), Path(made["cert"]).read_bytes()

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    directory, ca = tmp_path_factory.mktemp("rows"), ClusterCa()
    settings = {
        role: {"tls": as_flag(ca.issue(directory / role, role, NAMES[role]))}
        for role in (CONTROLLER, NODE, GATEWAY)
    }
    with running_cluster(directory / "c", controllers=1, nodes=1, settings=settings, steady=True) as cluster:
        addresses = {
            m.role: f"127.0.0.1:{m.ports['grpc']}" for m in cluster.state.members if m.role != GATEWAY
        }
        made = Callers(addresses, ca, directory / "callers")
        yield made
        made.close()


def said_of_another(method: str) -> bytes:
    """What a caller says who is node 1 or gateway-1 by his own word."""
    said: dict[str, Any] = {
        "RegisterNode": api.RegisterNodeRequest(node_id=1, directory_id=os.urandom(16)),
        "NodeSession": api.NodeHeartbeat(node_id=1, node_epoch=1),
        "AlterPartitions": api.AlterPartitionsRequest(node_id=1),
        "RegisterGateway": api.RegisterGatewayRequest(gateway_id="gateway-1"),
        "GatewaySession": api.GatewayHeartbeat(gateway_id="gateway-1", gateway_epoch=1),
    }
    found: bytes = said[method.rpartition("/")[2]].SerializeToString()
    return found


def hello(method: str, cluster_id: bytes) -> bytes:
    """The first message of a stream between storage nodes, in the name of node 7."""
    if method.endswith("/Replicate"):
        first = storage_pb2.ReplicaHello(node_id=7, node_epoch=1, leader_node_id=1, cluster_id=cluster_id)
        return storage_pb2.ReplicateRequest(hello=first).SerializeToString()
    greeting = storage_pb2.TransactionsHello(
        node_id=7, node_epoch=1, target_node_id=1, cluster_id=cluster_id, number=1
    )
    return storage_pb2.TransactionsRequest(hello=greeting).SerializeToString()


def test_the_rows_are_those_of_the_contracts() -> None:
    assert methods().keys() == METHOD_ROLES.keys()


@pytest.mark.parametrize("method", METHOD_ROLES)
def test_who_is_refused(callers: Callers, method: str) -> None:
    allowed = METHOD_ROLES[method]
    role = min(allowed)
    wanted = {
        "plaintext": NO_CONNECTION,
        "no certificate": NO_CONNECTION,
        "a client's, of the listeners' CA": NO_CONNECTION,
        "a client's, of the cluster's CA": DENIED,
        f"another cluster's CA: {role}": NO_CONNECTION,
        f"another trust domain: {role}": DENIED,
    }
    wanted |= {f"role: {other}": DENIED for other in NAMES if other not in allowed}
    assert {kind: callers.call(kind, method).code for kind in wanted} == wanted


@pytest.mark.parametrize("method", BOUND)
def test_a_caller_speaks_for_himself_alone(callers: Callers, method: str) -> None:
    """The role is the right one, the name another one's."""
    message = b""
    if method.startswith("/penstock.v1.Controller/"):
        message = said_of_another(method)
    else:
        state = callers.call("role: admin", "/penstock.v1.Controller/DescribeQuorum").message
        message = hello(method, api.DescribeQuorumResponse.FromString(state).cluster_id)
    answer = callers.call(f"role: {BOUND[method]}", method, message)
    assert answer.code is DENIED, answer
    assert OTHERS[BOUND[method]] in answer.words


@pytest.mark.parametrize("method", [m for m in METHOD_ROLES if not methods()[m].client_streaming])
def test_who_may_is_served(callers: Callers, method: str) -> None:
    """Else a server that refuses everything would pass. A stream of messages waits for them."""
    for role in METHOD_ROLES[method]:
        answer = callers.call(f"role: {role}", method)
        if method not in BOUND:
            assert answer.code not in (DENIED, NO_CONNECTION), (role, answer)
        else:  # the message is empty, and in nobody's name
            assert OTHERS[role] in answer.words, answer
