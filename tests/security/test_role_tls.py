"""A real cluster whose roles have certificates: what works, who is kept out, and new certificates under load.

`penstock.certificates` issues them, as an operator would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
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
from penstock_runtime.security.role_tls import RoleTls
from penstock_runtime.security.tls_files import TlsFiles
from support.certificates import as_flag
from support.cluster import running_cluster
from support.kafka import Load, create_topic, produce, read_all
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
