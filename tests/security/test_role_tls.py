"""A real cluster whose roles have certificates: what works, who is kept out, and new certificates under load.

`penstock.certificates` issues them, as an operator would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.certificates import CertificateAuthority, Leaf
from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import controller_pb2_grpc, storage_pb2
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.security.grpc_tls import TARGET_NAME_OPTION
from penstock_runtime.security.methods import METHOD_ROLES
from penstock_runtime.security.role_tls import RoleTls
from penstock_runtime.security.tls_files import TlsFiles
from support.certificates import as_flag
from support.cluster import running_cluster
from support.kafka import Load, create_topic, produce, read_all
from support.secure import ListenerFiles
from support.waiting import wait_for

pytestmark = pytest.mark.timeout(600)

DOMAIN = "flights.test"
LEAVES = {
    "controller": Leaf("controller", "1"),
    "storage-node": Leaf("storage-node", "*"),
    "gateway": Leaf("gateway", "*"),
}
ADMIN = Leaf("admin", "ann")
PATIENCE_S = 30.0
REFUSED_WITHIN_S = 10.0


def table(ca: CertificateAuthority, leaf: Leaf) -> dict[str, str]:
    return {what: str(path) for what, path in ca.paths(leaf).items()}


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    made = CertificateAuthority.create(tmp_path_factory.mktemp("ca") / "ca", DOMAIN)
    for leaf in (*LEAVES.values(), ADMIN):
        made.issue(leaf)
    return made


@pytest.fixture(scope="module")
def cluster(ca: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {role: {"tls": as_flag(table(ca, leaf))} for role, leaf in LEAVES.items()}
    directory = tmp_path_factory.mktemp("cluster")
    with running_cluster(directory, controllers=1, nodes=3, settings=settings, steady=True) as cluster:
        yield cluster


def grpc_address(cluster: LocalCluster, name: str) -> str:
    return f"127.0.0.1:{cluster.store.load().member(name).ports['grpc']}"


def log(cluster: LocalCluster, name: str) -> str:
    return (cluster.store.directory / name / "log.txt").read_text(errors="replace")


def test_clients_notice_nothing(cluster: LocalCluster) -> None:
    bootstrap = cluster.status().addresses["bootstrap"]
    create_topic(bootstrap, "plain", 3)
    ledger = produce(bootstrap, "plain", 500)
    assert len(read_all(bootstrap, "plain")) == len(ledger.acked) == 500


def test_certificates_are_replaced_under_load(cluster: LocalCluster, ca: CertificateAuthority) -> None:
    """A whole rotation of the CA: no record fails, and every role says that it has the new files."""
    bootstrap = cluster.status().addresses["bootstrap"]
    create_topic(bootstrap, "rotation", 3)
    names = ["controller-1", "node-1", "node-2", "node-3", "gateway-1"]
    said = "new certificate in use for new connections"
    counts = {name: log(cluster, name).count(said) for name in names}

    def taken() -> bool:
        return all(log(cluster, name).count(said) > counts[name] for name in names)

    def goes_on(acked: int) -> bool:
        return len(load.ledger.acked) > acked + 50

    directory = str(ca.directory)
    with Load(bootstrap, "rotation", rate_per_s=200, keys=8) as load:
        for step in (
            ["rotate", directory, "--add"],
            ["renew", directory, "--all"],
            ["rotate", directory, "--remove"],
        ):
            assert run(["cert", *step]) == 0
            wait_for(taken, f"every role has taken {step}", PATIENCE_S)
            counts = {name: log(cluster, name).count(said) for name in names}
            acked = len(load.ledger.acked)
            wait_for(partial(goes_on, acked), "records go on", PATIENCE_S)
    assert not load.ledger.errors
    assert len(read_all(bootstrap, "rotation")) == len(load.ledger.acked)
    # The new CA alone is good for new connections now.
    for name in ("node-1", "gateway-1"):
        cluster.kill(name)
        cluster.start(name)
    produce(bootstrap, "rotation", 50, first=1_000_000)


STREAMED = {
    f"/{service.full_name}/{method.name}"
    for module in (api, storage_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.client_streaming
}


async def call(channel: Any, method: str) -> grpc.StatusCode:
    """The status of a call; one empty message where the method takes one."""
    if method in STREAMED:
        # The server is silent until it is spoken to, unless it refuses the call.
        stream = channel.stream_stream(method)(timeout=REFUSED_WITHIN_S)
    else:
        stream = channel.unary_stream(method)(b"", timeout=REFUSED_WITHIN_S)
    try:
        await stream.read()
    except grpc.aio.AioRpcError:
        pass
    else:
        stream.cancel()
    code: grpc.StatusCode = await stream.code()
    return code


async def statuses(
    cluster: LocalCluster, credentials: grpc.ChannelCredentials | None, refused: Mapping[str, frozenset[str]]
) -> dict[str, grpc.StatusCode]:
    """By method, of what the methods of `refused` answer."""
    found = {}
    for service, member, role in (
        ("penstock.v1.Controller", "controller-1", "controller"),
        ("penstock.v1.Storage", "node-1", "storage-node"),
    ):
        address = grpc_address(cluster, member)
        channel = (
            grpc.aio.insecure_channel(address)
            if credentials is None
            else grpc.aio.secure_channel(
                address, credentials, options=[(TARGET_NAME_OPTION, f"{role}.{DOMAIN}")]
            )
        )
        async with channel:
            for method in refused:
                if method.startswith(f"/{service}/"):
                    found[method] = await call(channel, method)
    return found


def credentials_of(ca: CertificateAuthority, leaf: Leaf | None) -> grpc.ChannelCredentials:
    authorities = (ca.directory / "ca.pem").read_bytes()
    if leaf is None:
        return grpc.ssl_channel_credentials(authorities)
    ca.issue(leaf)
    paths = ca.paths(leaf)
    return grpc.ssl_channel_credentials(authorities, paths["key"].read_bytes(), paths["cert"].read_bytes())


@pytest.mark.parametrize("kind", ["plaintext", "no certificate", "a client's", "another cluster's"])
async def test_strangers_reach_no_method(
    cluster: LocalCluster, ca: CertificateAuthority, tmp_path: Path, kind: str
) -> None:
    if kind == "plaintext":
        credentials = None
    elif kind == "no certificate":
        credentials = credentials_of(ca, None)
    elif kind == "a client's":
        cert, key = ListenerFiles(tmp_path / "listener").client("alice")
        authorities = (ca.directory / "ca.pem").read_bytes()
        credentials = grpc.ssl_channel_credentials(authorities, key.read_bytes(), cert.read_bytes())
    else:
        other = CertificateAuthority.create(tmp_path / "other", DOMAIN)
        paths = other.issue(Leaf("gateway", "*"))
        credentials = grpc.ssl_channel_credentials(
            (ca.directory / "ca.pem").read_bytes(), paths["key"].read_bytes(), paths["cert"].read_bytes()
        )
    found = await statuses(cluster, credentials, METHOD_ROLES)
    assert found == dict.fromkeys(METHOD_ROLES, grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize("leaf", [*LEAVES.values(), ADMIN], ids=lambda leaf: leaf.role)
async def test_a_role_reaches_its_own_methods_and_no_others(
    cluster: LocalCluster, ca: CertificateAuthority, tmp_path: Path, leaf: Leaf
) -> None:
    other = Leaf(leaf.role, "2" if leaf.name == "1" else leaf.name)
    credentials = credentials_of(ca, other)
    refused = {method: roles for method, roles in METHOD_ROLES.items() if leaf.role not in roles}
    found = await statuses(cluster, credentials, refused)
    assert found == dict.fromkeys(refused, grpc.StatusCode.PERMISSION_DENIED)
    allowed = {
        method: roles
        for method, roles in METHOD_ROLES.items()
        if leaf.role in roles and method not in STREAMED  # they would wait for what we say
    }
    found = await statuses(cluster, credentials, allowed)
    assert not {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE} & set(found.values())


async def test_a_named_node_speaks_for_itself_alone(cluster: LocalCluster, ca: CertificateAuthority) -> None:
    leaf = Leaf("storage-node", "node-9")
    ca.issue(leaf)
    pool = ChannelPool(tls=TlsFiles(RoleTls.model_validate(ca.paths(leaf)), "storage-node"))
    try:
        stub: Any = controller_pb2_grpc.ControllerStub(
            pool.get(grpc_address(cluster, "controller-1"), "controller")
        )
        for request in (
            stub.RegisterNode(api.RegisterNodeRequest(node_id=1, directory_id=os.urandom(16))),
            stub.RegisterNode(api.RegisterNodeRequest(node_id=-1, directory_id=os.urandom(16))),
            stub.AlterPartitions(api.AlterPartitionsRequest(node_id=1)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await request
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "node-9" in str(caught.value.details())
        session = stub.NodeSession()
        await session.write(api.NodeHeartbeat(node_id=1, node_epoch=1))
        with pytest.raises(grpc.aio.AioRpcError, match="not of node 1; issue one with the name node-1"):
            await session.read()
        to_node: Any = pool.get(grpc_address(cluster, "node-1"), "storage-node")
        replicate = to_node.stream_stream("/penstock.v1.Storage/Replicate")()
        state = await stub.DescribeQuorum(api.DescribeQuorumRequest())
        hello = storage_pb2.ReplicaHello(
            node_id=2, node_epoch=1, leader_node_id=1, cluster_id=state.cluster_id
        )
        await replicate.write(storage_pb2.ReplicateRequest(hello=hello).SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError, match="not of node 2; issue one with the name node-2"):
            await replicate.read()
    finally:
        await pool.close()


async def test_a_named_gateway_speaks_for_itself_alone(
    cluster: LocalCluster, ca: CertificateAuthority
) -> None:
    leaf = Leaf("gateway", "gw-9")
    ca.issue(leaf)
    pool = ChannelPool(tls=TlsFiles(RoleTls.model_validate(ca.paths(leaf)), "gateway"))
    try:
        stub: Any = controller_pb2_grpc.ControllerStub(
            pool.get(grpc_address(cluster, "controller-1"), "controller")
        )
        with pytest.raises(grpc.aio.AioRpcError, match="not of gateway gateway-1") as caught:
            await stub.RegisterGateway(api.RegisterGatewayRequest(gateway_id="gateway-1"))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        session = stub.GatewaySession()
        await session.write(api.GatewayHeartbeat(gateway_id="gateway-1", gateway_epoch=1))
        with pytest.raises(grpc.aio.AioRpcError, match="not of gateway gateway-1"):
            await session.read()
    finally:
        await pool.close()


def start_gateway(
    cluster: LocalCluster, directory: Path, tls: dict[str, str] | None
) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "penstock_gateway", "--gateway-id", "stranger", "--data-dir", str(directory)),
        *("--controllers", grpc_address(cluster, "controller-1"), "--http-bind", ""),
        *("--listeners", '[{"name": "PROXY", "bind": "127.0.0.1:0"}]'),
        *(() if tls is None else ("--tls", as_flag(tls))),
    ]
    directory.mkdir(exist_ok=True)
    with (directory / "log.txt").open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("other CA", "no TLS connection with the controller at {}: its certificate is refused"),
        ("plaintext", "Socket closed; if it has a certificate, give this process one by [tls]"),
    ],
)
def test_a_role_without_a_good_certificate_says_what_to_look_at(
    cluster: LocalCluster, tmp_path: Path, kind: str, said: str
) -> None:
    tls = None
    if kind == "other CA":
        other = CertificateAuthority.create(tmp_path / "other", DOMAIN)
        other.issue(LEAVES["gateway"])
        tls = table(other, LEAVES["gateway"])
    process = start_gateway(cluster, tmp_path / "gateway", tls)
    out = tmp_path / "gateway" / "log.txt"
    try:
        line = said.format(grpc_address(cluster, "controller-1"))
        wait_for(lambda: line in out.read_text(), line, PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def test_a_process_with_anothers_certificate_does_not_start(
    cluster: LocalCluster, ca: CertificateAuthority, tmp_path: Path
) -> None:
    for leaf, said in (
        (Leaf("gateway", "gw-1"), "the certificate is that of gw-1, not of gateway stranger"),
        (LEAVES["storage-node"], "is that of a storage-node; give one of a gateway"),
    ):
        ca.issue(leaf)
        process = start_gateway(cluster, tmp_path / "gateway", table(ca, leaf))
        assert process.wait(PATIENCE_S) == 2
        assert said in (tmp_path / "gateway" / "log.txt").read_text()


def test_the_command_reaches_controllers_with_an_admins_certificate(
    cluster: LocalCluster, ca: CertificateAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    ca.issue(ADMIN)
    command = ["controller", "list", "--controllers", grpc_address(cluster, "controller-1")]
    assert run([*command, "--certificate", str(ca.paths(ADMIN)["cert"].parent)]) == 0
    assert "active" in capsys.readouterr().out
    assert run(command) == 3
    assert "--certificate" in capsys.readouterr().err
