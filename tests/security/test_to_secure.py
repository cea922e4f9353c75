"""From a plain cluster to a secure one by rolling restarts, under load: the runbook of docs/security.md, as written.

Real processes: 3 controllers, 3 storage nodes, 2 gateways. First certificates between the roles in three rounds, then a
listener for users beside the plaintext one, then the plaintext one goes.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.local.plan import GATEWAY
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import controller_pb2_grpc
from support.cluster import running_cluster
from support.kafka import Load, create_topic, read_all
from support.moving import Moving
from support.waiting import wait_for

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]

PATIENCE_S = 90.0
TOPIC, USER, PASSWORD = "moved", "alice", "correct horse"


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moving]:
    directory = tmp_path_factory.mktemp("to-secure")
    with running_cluster(directory / "cluster", controllers=3, nodes=3, gateways=2) as cluster:
        yield Moving(cluster, directory)


def add_user(bootstrap: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.alter_user_scram_credentials([change])[USER].result(60)


def goes_on(load: Load, acked: int) -> bool:
    return len(load.ledger.acked) > acked + 100


async def plain_call(address: str) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = controller_pb2_grpc.ControllerStub(channel)
        try:
            await stub.DescribeQuorum(api.DescribeQuorumRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_a_plain_cluster_goes_secure_without_a_failed_request(moving: Moving) -> None:
    cluster = moving.cluster
    plain = moving.bootstrap("kafka")
    create_topic(plain, TOPIC, 3)
    controller = cluster.store.load().member("controller-1")
    address = f"127.0.0.1:{controller.ports['grpc']}"
    with Load(plain, TOPIC, rate_per_s=200, keys=8) as load:
        for mode, answers in (
            ("allow", grpc.StatusCode.OK),
            ("prefer", grpc.StatusCode.OK),
            ("require", grpc.StatusCode.UNAVAILABLE),
        ):
            moving.mode = mode
            moving.round()
            wait_for(partial(goes_on, load, len(load.ledger.acked)), f"records go on with {mode}", PATIENCE_S)
            assert asyncio.run(plain_call(address)) is answers
        # A listener for users beside the plaintext one, on gateways that are restarted one after another.
        moving.listeners = ("PROXY", "SECURE")
        moving.round(GATEWAY)
        add_user(plain)
        secure: dict[str, Any] = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(moving.files.ca),
        }
        with Load(moving.bootstrap("direct"), TOPIC, rate_per_s=200, keys=8, **secure) as moved:
            wait_for(partial(goes_on, moved, 0), "records come over the new listener", PATIENCE_S)
            wait_for(partial(goes_on, load, len(load.ledger.acked)), "the old one goes on", PATIENCE_S)
    assert not load.ledger.errors
    assert not moved.ledger.errors
    written = len(load.ledger.acked) + len(moved.ledger.acked)
    assert len(read_all(plain, TOPIC)) == written
    moving.listeners = ("SECURE",)
    with Load(moving.bootstrap("direct"), TOPIC, rate_per_s=200, keys=8, **secure) as last:
        moving.round(GATEWAY)
        wait_for(
            partial(goes_on, last, len(last.ledger.acked)), "records go on without plaintext", PATIENCE_S
        )
    assert not last.ledger.errors


def test_no_way_back_to_plaintext_for_one_process_alone(moving: Moving) -> None:
    """After the test above: one that dials in plaintext again is refused, and says what to do."""
    moving.listeners = ("SECURE",)
    gateway = "gateway-2"
    cluster = moving.cluster
    cluster.kill(gateway, signal.SIGTERM)
    with cluster.store.locked():
        state = cluster.store.load()
        state.settings[GATEWAY]["tls"] = moving.tls("gateway", "*", "allow")
        cluster.store.save(state)
    before = len(moving.log(gateway))
    cluster.start(gateway, timeout_s=0)  # it will not be ready
    said = "if it has a certificate, give this process one by [tls]"
    wait_for(lambda: said in moving.log(gateway)[before:], said, PATIENCE_S)
    moving.mode = "require"
    moving.restart(gateway)
