"""What was taken away is gone, within its bound, while clients produce through two gateways; and a gateway that is cut
off from the controllers lets nobody new in, and serves nobody beyond its limit.

The second gateway reaches the controller through a proxy of the test, which can be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.local import ports
from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import monotonic_ms
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.security.refused import serial_in_pem
from support.cluster import running_cluster
from support.cut_proxy import CutProxy
from support.kafka import create_topic
from support.secure import ListenerFiles, SecureCluster, SteadyProducer, librdkafka, sasl_words
from support.sign_in import RawClient
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TOPIC, PASSWORD = "revoked", "correct horse"
USER_S, RIGHT_S = 5.0, 1.0
"""What is promised: a user, a password or a certificate; a right."""
SIGN_IN_STALE_MS, RIGHTS_STALE_MS = 3_000, 8_000
AFTERWARDS_S = 2.0
PATIENCE_S = 60.0


@dataclass
class Rig:
    secure: SecureCluster
    proxy: CutProxy
    records: dict[str, pb.GatewayRecord]

    def where(self, gateway: str, listener: str) -> str:
        (found,) = [each for each in self.records[gateway].listeners if each.name == listener]
        return f"localhost:{found.advertised[0].port}"

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.where("gateway-1", "PROXY")})

    def call(self, method: str, message: Any) -> Any:
        async def do() -> Any:
            channels = ChannelPool()
            try:
                return await self.secure._controllers(channels).call(method, message)
            finally:
                await channels.close()

        return asyncio.run(do())


def listeners(files: ListenerFiles, port: int = 0) -> list[dict[str, Any]]:
    secure = {"bind": "127.0.0.1:0", "advertised": "auto"}
    return [
        {"name": "PROXY", "bind": f"127.0.0.1:{port}"},
        {**secure, "name": "SECURE", "security": "SASL_SSL", "tls": files.table()},
        {
            **secure,
            "name": "CERTIFIED",
            "security": "SSL",
            "tls": files.table("required"),
            "principal_mapping_rules": "RULE:^.*CN=([^,]+).*$/$1/",
        },
    ]


async def both_gateways(secure: SecureCluster) -> dict[str, pb.GatewayRecord]:
    channels = ChannelPool()
    client = MetadataClient(secure._controllers(channels), "test", monotonic_ms)
    following = asyncio.create_task(client.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(client.image.gateways) < 2:
                await client.wait_for_version(client.image.version + 1, 100)
        return {name: each.record for name, each in client.image.gateways.items()}
    finally:
        following.cancel()
        await channels.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("revocation")
    files = ListenerFiles(directory / "files")
    rights = {
        "authorizer": "acl",
        "super_users": json.dumps(["User:ANONYMOUS"]),
        "sign_in_stale_ms": str(SIGN_IN_STALE_MS),
        "rights_stale_ms": str(RIGHTS_STALE_MS),
    }
    port = ports.choose_base()
    settings = {NODE: rights, GATEWAY: {**rights, "listeners": json.dumps(listeners(files, port))}}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            running_cluster(
                directory / "cluster", controllers=1, nodes=2, settings=settings, steady=True, port=port
            )
        )
        (controller,) = cluster.state.of_role(CONTROLLER)
        proxy = stack.enter_context(CutProxy(("127.0.0.1", controller.ports["grpc"])))
        out = stack.enter_context((directory / "gateway-2.txt").open("wb"))
        flags = {f"--{name.replace('_', '-')}": value for name, value in rights.items()}
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock_gateway", "--gateway-id", "gateway-2"),
                *("--data-dir", str(directory), "--controllers", f"127.0.0.1:{proxy.port}"),
                *("--http-bind", "127.0.0.1:0", "--grpc-bind", "127.0.0.1:0"),
                *("--listeners", json.dumps(listeners(files))),
                *(word for pair in flags.items() for word in pair),
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        secure = SecureCluster(cluster, files)
        one = Rig(secure, proxy, asyncio.run(both_gateways(secure)))
        create_topic(one.where("gateway-1", "PROXY"), TOPIC, 4)
        yield one


def may(rig: Rig, *users: str) -> None:
    admin = rig.admin()
    found = admin.create_acls([binding(user, AclBinding) for user in users])
    for each in found.values():
        each.result(PATIENCE_S)


def binding(user: str, make: Callable[..., Any]) -> Any:
    return make(
        ResourceType.TOPIC,
        TOPIC,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )


def delete_user(rig: Rig) -> None:
    rig.secure.delete_user("anna")


def change_password(rig: Rig) -> None:
    rig.secure.set_user("bert", "another one")


def remove_right(rig: Rig) -> None:
    admin = rig.admin()
    for each in admin.delete_acls([binding("cleo", AclBindingFilter)]).values():
        assert len(each.result(PATIENCE_S)) == 1


def refuse_certificate(rig: Rig) -> None:
    serial = serial_in_pem((rig.secure.files.directory / "dora-cert.pem").read_bytes())
    record = pb.RefusedCertificateRecord(serial=serial, reason="lost")
    reply = rig.call("AlterRefusedCertificates", api.AlterRefusedCertificatesRequest(changes=[record]))
    assert not reply.error.code


@pytest.mark.parametrize(
    ("user", "revoke", "bound_s"),
    [
        ("anna", delete_user, USER_S),
        ("bert", change_password, USER_S),
        ("cleo", remove_right, RIGHT_S),
        ("dora", refuse_certificate, USER_S),
    ],
    ids=["user deleted", "password changed", "right removed", "certificate refused"],
)
def test_what_is_revoked_is_gone_at_both_gateways(
    rig: Rig, user: str, revoke: Callable[[Rig], None], bound_s: float
) -> None:
    may(rig, user)
    files = rig.secure.files
    settings: dict[str, str]
    if user == "dora":
        listener = "CERTIFIED"
        cert, key = files.client(user)
        settings = {
            "security_protocol": "SSL",
            "ssl_certificate_location": str(cert),
            "ssl_key_location": str(key),
        }
    else:
        listener = "SECURE"
        rig.secure.set_user(user, PASSWORD)
        settings = sasl_words("SCRAM-SHA-256", user, PASSWORD)
    with contextlib.ExitStack() as stack:
        producers = [
            stack.enter_context(
                SteadyProducer(
                    librdkafka(rig.where(gateway, listener), files, **settings)
                    | {"message.timeout.ms": 8_000},
                    TOPIC,
                )
            )
            for gateway in ("gateway-1", "gateway-2")
        ]
        for producer in producers:
            wait_for(lambda p=producer: len(p.acked) > 50, "it produces", PATIENCE_S)  # type: ignore[misc]
        revoke(rig)
        time.sleep(bound_s)  # what is promised
        acked = [len(producer.acked) for producer in producers]
        time.sleep(AFTERWARDS_S)  # a while in which they would have gone on
        assert [len(producer.acked) for producer in producers] == acked
        for producer in producers:
            producer.give_up()


@contextlib.asynccontextmanager
async def signed_in(rig: Rig, gateway: str, user: str) -> AsyncIterator[RawClient]:
    context = ssl.create_default_context(cafile=str(rig.secure.files.ca))
    host, _, port = (await asyncio.to_thread(rig.where, gateway, "SECURE")).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        client = RawClient(reader, writer)
        assert not (await client.plain(user, PASSWORD)).error_code
        yield client
    finally:
        writer.close()


async def handshake(host: str, port: int, ca: Path) -> None:
    """Begin to sign in over a new connection."""
    context = ssl.create_default_context(cafile=str(ca))
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        await RawClient(reader, writer).handshake("PLAIN")
    finally:
        writer.close()


async def test_a_gateway_that_is_cut_off_lets_nobody_in_and_serves_nobody_for_long(rig: Rig) -> None:
    await asyncio.to_thread(rig.secure.set_user, "emil", PASSWORD)
    async with asyncio.timeout(PATIENCE_S), signed_in(rig, "gateway-2", "emil") as old:
        host, _, port = (await asyncio.to_thread(rig.where, "gateway-2", "SECURE")).rpartition(":")
        before = time.monotonic()
        rig.proxy.cut()
        await asyncio.sleep(SIGN_IN_STALE_MS / 1000 + 1)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await handshake(host, int(port), rig.secure.files.ca)
        assert not old.reader.at_eof(), "what was there before is served on"
        await old.ended()
        assert time.monotonic() - before > RIGHTS_STALE_MS / 1000 - 2  # news may have been a keepalive old
        async with signed_in(rig, "gateway-1", "emil"):
            pass  # the other one goes on
        rig.proxy.mend()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, KeyError):
                async with signed_in(rig, "gateway-2", "emil"):
                    return
            await asyncio.sleep(0.2)
