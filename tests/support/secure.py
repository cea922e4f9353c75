"""A cluster of real processes whose listeners have TLS and sign-in, and stock clients that use them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import aiokafka
import confluent_kafka
import kafka
import trustme

from penstock.connector import load
from penstock.local import ports, secure
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, NODE, Member
from penstock_core.metadata.image import MetadataImage
from penstock_core.security.scram import ScramMechanism, credential
from penstock_proto.v1 import controller_pb2 as api
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import monotonic_ms
from penstock_runtime.metadata_client import MetadataClient
from support.cluster import running_cluster

SALT = b"some salt of the test"
ITERATIONS = 4096
CALL_TIMEOUT_MS = 20_000
NODES = 2
READ_TIMEOUT_S = 60.0


class ListenerFiles:
    """Certificates for listeners and for clients in one directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._ca, self._client_ca = trustme.CA(), trustme.CA()
        self._ca.cert_pem.write_to_path(str(self.ca))
        self._client_ca.cert_pem.write_to_path(str(directory / "client-ca.pem"))
        self.renew()

    @property
    def ca(self) -> Path:
        """What clients trust."""
        return self.directory / "ca.pem"

    def renew(self) -> None:
        """A new certificate in the place of the old one."""
        cert = self._ca.issue_cert("localhost", "127.0.0.1")
        self._write("key.pem", cert.private_key_pem.bytes())
        self._write("cert.pem", b"".join(each.bytes() for each in cert.cert_chain_pems))

    def client(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of a client."""
        cert = self._client_ca.issue_cert("client.test", common_name=name)
        return (
            self._write(f"{name}-cert.pem", b"".join(each.bytes() for each in cert.cert_chain_pems)),
            self._write(f"{name}-key.pem", cert.private_key_pem.bytes()),
        )

    def table(self, client_auth: str = "none") -> dict[str, str]:
        """The `tls` table of a listener."""
        table = {"cert": str(self.directory / "cert.pem"), "key": str(self.directory / "key.pem")}
        if client_auth != "none":
            table |= {"client_ca": str(self.directory / "client-ca.pem"), "client_auth": client_auth}
        return table

    def _write(self, name: str, data: bytes) -> Path:
        new = self.directory / (name + ".new")
        new.touch(0o600)
        new.write_bytes(data)
        os.replace(new, self.directory / name)  # noqa: PTH105
        return self.directory / name


@dataclass
class SecureCluster:
    """1 controller, 2 storage nodes, 1 gateway."""

    node_count: ClassVar[int] = NODES

    cluster: LocalCluster
    files: ListenerFiles

    def _controllers(self, channels: ChannelPool) -> ControllerClient:
        members = self.cluster.state.of_role(CONTROLLER)
        return ControllerClient([f"127.0.0.1:{m.ports['grpc']}" for m in members], "test", channels)

    def image(self) -> MetadataImage:
        """The newest metadata."""

        async def fetch() -> MetadataImage:
            channels = ChannelPool()
            client = MetadataClient(self._controllers(channels), "test", monotonic_ms)
            following = asyncio.create_task(client.run())
            try:
                async with asyncio.timeout(CALL_TIMEOUT_MS / 1000):
                    while not client.image.gateways or len(client.image.nodes) < self.node_count:
                        await client.wait_for_version(client.image.version + 1, 100)
                return client.image
            finally:
                following.cancel()
                await channels.close()

        return asyncio.run(fetch())

    def bootstrap(self, listener: str) -> str:
        """The address of a listener: the gateway's."""
        (gateway,) = self.image().gateways.values()
        (found,) = [each for each in gateway.record.listeners if each.name == listener]
        return f"localhost:{found.advertised[0].port}"

    def _alter(self, *changes: api.UserCredentialChange) -> None:
        async def call() -> None:
            channels = ChannelPool()
            try:
                response: api.AlterUserCredentialsResponse = await self._controllers(channels).call(
                    "AlterUserCredentials",
                    api.AlterUserCredentialsRequest(changes=changes),
                    timeout_ms=CALL_TIMEOUT_MS,
                )
                assert not response.error.code, response
                assert not any(result.code for result in response.results), response
            finally:
                await channels.close()

        asyncio.run(call())

    def set_user(self, user: str, password: str) -> None:
        """Both credentials of a user."""
        changes = []
        for mechanism in ScramMechanism:
            salted = mechanism.salted_password(password.encode(), SALT, ITERATIONS)
            made = credential(mechanism, SALT, salted, ITERATIONS)
            changes.append(
                api.UserCredentialChange(
                    user=user,
                    mechanism=mechanism,
                    salt=SALT,
                    stored_key=made.stored_key,
                    server_key=made.server_key,
                    iterations=ITERATIONS,
                )
            )
        self._alter(*changes)

    def delete_user(self, user: str) -> None:
        """Take both away."""
        self._alter(*(api.UserCredentialChange(user=user, mechanism=m, remove=True) for m in ScramMechanism))


@contextlib.contextmanager
def secure_cluster(directory: Path) -> Iterator[SecureCluster]:
    """Listeners SECURE, RENEWED (max_reauth_ms = 2,000) and CERTIFIED of the gateway, STRAIGHT of all."""
    files = ListenerFiles(directory / "certificates")
    port = ports.choose_base()
    sasl: dict[str, Any] = {"bind": "127.0.0.1:0", "security": "SASL_SSL", "tls": files.table()}
    straight = {**sasl, "name": "STRAIGHT", "mode": "direct"}
    gateway = [
        {"name": "PROXY", "bind": f"127.0.0.1:{port}"},
        {**sasl, "name": "SECURE", "advertised": "auto"},
        {**sasl, "name": "RENEWED", "max_reauth_ms": 2_000},
        {
            "name": "CERTIFIED",
            "bind": "127.0.0.1:0",
            "security": "SSL",
            "tls": files.table("required"),
            "principal_mapping_rules": "RULE:^.*CN=([^,]+).*$/$1/L",
        },
        straight,
    ]
    settings = {GATEWAY: {"listeners": json.dumps(gateway)}, NODE: {"listeners": json.dumps([straight])}}
    with running_cluster(
        directory / "cluster", controllers=1, nodes=NODES, settings=settings, steady=True, port=port
    ) as running:
        yield SecureCluster(running, files)


def librdkafka(where: str, files: ListenerFiles, **more: str) -> dict[str, Any]:
    """Settings of confluent-kafka; `more` with underscores for dots."""
    common = {"bootstrap.servers": where, "ssl.ca.location": str(files.ca), "broker.address.family": "v4"}
    return common | {name.replace("_", "."): value for name, value in more.items()}


def sasl_words(mechanism: str, user: str, password: str) -> dict[str, str]:
    """Of confluent-kafka."""
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_username": user,
        "sasl_password": password,
    }


def confluent_round_trip(settings: dict[str, Any], topic: str, count: int) -> list[bytes]:
    """What a group reads of what was produced."""
    producer = confluent_kafka.Producer({**settings, "acks": "all"})
    for i in range(count):
        producer.produce(topic, str(i).encode())
    assert producer.flush(READ_TIMEOUT_S) == 0
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": f"g-{uuid.uuid4()}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    read: list[bytes] = []
    try:
        while len(read) < count:
            message = consumer.poll(READ_TIMEOUT_S)
            assert message is not None, f"{len(read)} of {count}"
            if message.error() is None:
                read.append(message.value() or b"")
    finally:
        consumer.close()
    return read


def kafka_python_round_trip(
    where: str, files: ListenerFiles, topic: str, count: int, **sasl: Any
) -> list[bytes]:
    """The same with kafka-python."""
    common: dict[str, Any] = {
        "bootstrap_servers": where,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(files.ca),
        **sasl,
    }
    producer = kafka.KafkaProducer(**common, acks="all")
    for i in range(count):
        producer.send(topic, str(i).encode())
    producer.flush(READ_TIMEOUT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        **common,
        group_id=f"g-{uuid.uuid4()}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    read = []
    for record in consumer:
        read.append(record.value)
        if len(read) == count:
            break
    consumer.close()
    return read


def aiokafka_round_trip(where: str, files: ListenerFiles, topic: str, count: int, **sasl: Any) -> list[bytes]:
    """The same with aiokafka."""

    async def go() -> list[bytes]:
        common: dict[str, Any] = {
            "bootstrap_servers": where,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=str(files.ca)),
            **sasl,
        }
        producer = aiokafka.AIOKafkaProducer(**common, acks="all")
        await producer.start()
        for i in range(count):
            await producer.send_and_wait(topic, str(i).encode())
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            topic, **common, group_id=f"g-{uuid.uuid4()}", auto_offset_reset="earliest"
        )
        await consumer.start()
        read = []
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for record in consumer:
                read.append(record.value)
                if len(read) == count:
                    break
        await consumer.stop()
        return read

    return asyncio.run(go())


class SteadyProducer:
    """Produces with confluent-kafka until told to stop; notes acks and errors."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        self.acked: set[int] = set()
        self.sent = 0
        self.errors: list[confluent_kafka.KafkaError] = []
        self._stop, self._gives_up = threading.Event(), threading.Event()
        self._producer = confluent_kafka.Producer(
            {**settings, "acks": "all", "error_cb": self.errors.append, "linger.ms": 5}
        )
        self._topic = topic
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def give_up(self) -> None:
        """End without the records that have no answer yet: who was shut out would wait for each one's time."""
        self._gives_up.set()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            number, self.sent = self.sent, self.sent + 1

            def on_delivery(error: object, _: object, number: int = number) -> None:
                if error is None:
                    self.acked.add(number)

            try:
                self._producer.produce(self._topic, str(number).encode(), on_delivery=on_delivery)
            except confluent_kafka.KafkaException as error:
                self.errors.append(error.args[0])  # it knows already that it may not write there
            self._producer.poll(0)
        if self._gives_up.is_set():
            self._producer.purge()
        self._producer.flush(30)


def metrics_of(cluster: LocalCluster, member: Member) -> str:
    """What a gateway or node of a cluster of `local up --secure` tells its admin."""
    admin = load(secure.admin_file(cluster.directory))
    assert admin.file is not None
    request = urllib.request.Request(f"https://127.0.0.1:{member.ports['http']}/metrics")
    said = f"{admin.file.username}:{admin.file.password}".encode()
    request.add_header("Authorization", f"Basic {base64.b64encode(said).decode()}")
    with urllib.request.urlopen(request, context=admin.context, timeout=READ_TIMEOUT_S) as response:
        text: str = response.read().decode()
    return text
