"""Who asks by HTTP: certificates, passwords, tokens, rights, and the Host that is asked for."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock_core.metadata.security import CredentialKey
from penstock_frontend.authorizer import AllowAll, Authorizer
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.callers import CallerDoor, Tokens
from penstock_frontend.sign_in.credentials import Reliance
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.http import host_of, http_desk, identity_of, is_harmless_host
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.door import ListenerTls
from penstock_runtime.door_settings import HttpDoorSettings
from penstock_runtime.http import HttpServer, web
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.security.listener_tls import ListenerTlsFiles
from support.secure import ListenerFiles
from support.sign_in import Metadata, removal, user_record

BASIC = "Basic " + base64.b64encode(b"alice:secret:of:hers").decode()


class OnlyAlice(AllowAll):
    is_enabled = True

    def authorize(self, who: Any, operation: Any, kind: Any, name: str) -> bool:
        return bool(who.principal.name == "alice")


class World:
    def __init__(self, tmp_path: Path) -> None:
        self.made = ListenerFiles(tmp_path)
        self.now_ms = time.time_ns() // 1_000_000
        self.metadata = Metadata()
        key = pb.ClusterSecretRecord(name="session-token:1", value=b"k" * 32)
        self.metadata.apply(pb.MetadataRecord(cluster_secret=key))
        self.metadata.apply(user_record("alice", "secret:of:hers"), user_record("bob", "b"))
        self.lifecycle = Lifecycle("gateway")
        self.desk = SignInDesk(
            lambda: self.metadata.image, KafkaMetrics.of(self.lifecycle), self.lifecycle.log
        )

    @contextlib.asynccontextmanager
    async def serving(self, authorizer: Authorizer | None = None, **settings: Any) -> AsyncIterator[str]:
        made = HttpDoorSettings(**settings)
        files = None if made.tls is None else ListenerTlsFiles("http", made.tls)
        door = CallerDoor("http", made, self.desk, lambda: self.metadata.image, made.offered)

        async def whoami(request: web.Request) -> web.Response:
            return web.json_response(str(identity_of(request)))

        server = HttpServer(
            "127.0.0.1:0",
            self.lifecycle,
            [web.get("/who", whoami)],
            **http_desk(
                door,
                files,
                authorizer or OnlyAlice(),
                lambda: ["gateway.example.com", ""],
                wall_ms=lambda: self.now_ms,
            ),
        )
        endpoint = await server.start()
        try:
            yield f"{'http' if files is None else 'https'}://127.0.0.1:{endpoint.port}"
        finally:
            await server.stop()

    async def get(
        self, url: str, certificate: tuple[Path, Path] | None = None, **headers: str
    ) -> tuple[int, Any, Any]:
        def ask() -> tuple[int, Any, Any]:
            context = ssl.create_default_context(cafile=self.made.ca)
            if certificate is not None:
                context.load_cert_chain(*certificate)
            request = urllib.request.Request(url, headers=headers)
            try:
                with urllib.request.urlopen(request, context=context, timeout=30) as answer:
                    body, status, said = answer.read(), answer.status, answer.headers
            except urllib.error.HTTPError as error:
                body, status, said = error.read(), error.code, error.headers
            return status, body.decode() if b"# HELP" in body else json.loads(body or b"0"), said

        return await asyncio.to_thread(ask)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_without_a_door_all_is_as_it_was(world: World) -> None:
    async with world.serving(AllowAll()) as base:
        assert (await world.get(f"{base}/who"))[:2] == (200, "User:ANONYMOUS from 127.0.0.1")
        status, text, _ = await world.get(f"{base}/metrics", Authorization=BASIC)
        assert status == 200
        assert "penstock_" in text


async def test_basic_over_tls(world: World) -> None:
    async with world.serving(security="SASL_SSL", tls=world.made.table()) as base:
        assert (await world.get(f"{base}/who", Authorization=BASIC))[:2] == (200, "User:alice from 127.0.0.1")
        for wrong in (
            "Basic " + base64.b64encode(b"alice:wrong").decode(),
            "Basic " + base64.b64encode(b"nobody:secret").decode(),
            "Basic !!!",
            "Basic " + base64.b64encode(b"alice").decode(),
            "Basic " + base64.b64encode(b"alice:secret:of:hers\0").decode(),
            "Digest abc",
            "Bearer pst1.abc",
            "Bearer a.b.c",
            "",
        ):
            status, body, headers = await world.get(f"{base}/who", None, Authorization=wrong)
            assert status == 401
            assert set(body) == {"error", "hint"}
            assert "Basic" in body["hint"]
            assert headers.get_all("WWW-Authenticate") == [
                'Bearer realm="penstock"',
                'Basic realm="penstock"',
            ]


async def test_new_files_are_for_the_next_connection(world: World) -> None:
    made = HttpDoorSettings(security="SASL_SSL", tls=ListenerTls(**world.made.table()))  # type: ignore[arg-type]
    assert made.tls is not None
    files = ListenerTlsFiles("http", made.tls)
    door = CallerDoor("http", made, world.desk, lambda: world.metadata.image, made.offered)
    server = HttpServer("127.0.0.1:0", world.lifecycle, **http_desk(door, files, AllowAll()))
    endpoint = await server.start()

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", endpoint.port), ca_certs=str(world.made.ca))

    before = await asyncio.to_thread(shown)
    world.made.renew()
    assert files.reload()
    assert await asyncio.to_thread(shown) != before
    await server.stop()


async def test_a_wrong_password_costs_the_same_address_time_and_is_counted(world: World) -> None:
    wrong = "Basic " + base64.b64encode(b"alice:wrong").decode()
    async with world.serving(security="SASL_SSL", tls=world.made.table()) as base:
        for _ in range(6):
            await world.get(f"{base}/who", Authorization=wrong)
        attempt = world.desk.limits.begin("127.0.0.1", "alice", world.desk.now_ms())
        assert attempt is not None
        assert attempt.delay_ms > 0
    assert KafkaMetrics.of(world.lifecycle).sign_ins["http", "PLAIN", "failure"] == 6


async def test_passwords_in_clear_only_where_they_are_named(world: World) -> None:
    async with world.serving(security="SASL_PLAINTEXT") as base:
        status, body, _ = await world.get(f"{base}/who", Authorization=BASIC)
        assert status == 401
        assert "Basic" not in body["hint"]
    async with world.serving(security="SASL_PLAINTEXT", mechanisms=("PLAIN",)) as base:
        assert (await world.get(f"{base}/who", Authorization=BASIC))[0] == 200


async def test_a_token_of_the_native_api_is_good_here_until_the_user_is_gone(world: World) -> None:
    version = world.desk.credentials.version(CredentialKey("alice", 1))
    assert version is not None
    tokens = Tokens(world.desk, lambda: world.metadata.image, 60_000)
    bearer = "Bearer " + tokens.issue(Reliance(CredentialKey("alice", 1), version))
    async with world.serving(security="SASL_SSL", tls=world.made.table()) as base:
        assert (await world.get(f"{base}/who", Authorization=bearer))[1] == "User:alice from 127.0.0.1"
        world.metadata.apply(removal("alice"))
        assert (await world.get(f"{base}/who", Authorization=bearer))[0] == 401


async def test_metrics_are_for_those_who_may_describe_the_cluster(world: World) -> None:
    bob = "Basic " + base64.b64encode(b"bob:b").decode()
    tls = world.made.table()
    async with world.serving(security="SASL_SSL", tls=tls) as base:
        assert (await world.get(f"{base}/metrics"))[0] == 401
        status, body, _ = await world.get(f"{base}/metrics", Authorization=bob)
        assert (status, body["error"]) == (403, "User:bob has no right to DESCRIBE the cluster")
        assert (await world.get(f"{base}/metrics", Authorization=BASIC))[0] == 200
    async with world.serving(security="SASL_SSL", tls=tls, metrics_public=True) as base:
        assert (await world.get(f"{base}/metrics"))[0] == 200
        assert (await world.get(f"{base}/who"))[0] == 401


async def test_certificates_make_users(world: World) -> None:
    rules = "RULE:^.*CN=([^,]+).*$/$1/L"
    tls = world.made.table("requested")
    async with world.serving(security="SSL", tls=tls, principal_mapping_rules=rules) as base:
        certificate = world.made.client("Alice")
        assert (await world.get(f"{base}/who", certificate))[1] == "User:alice from 127.0.0.1"
        assert (await world.get(f"{base}/who"))[1] == "User:ANONYMOUS from 127.0.0.1"
    async with world.serving(security="SSL", tls=world.made.table("required")) as base:
        with pytest.raises((urllib.error.URLError, OSError)):
            await world.get(f"{base}/who")


async def test_a_session_of_a_certificate_that_has_ended_lets_nobody_in(world: World) -> None:
    """TLS 1.2 does without the certificate then, so nobody else looks at its end."""
    context = ssl.create_default_context(cafile=world.made.ca)
    context.load_cert_chain(*world.made.client("alice"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with world.serving(security="SSL", tls=world.made.table("required")) as base:
        port = int(base.rpartition(":")[2])

        def ask(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None, bool | None]:
            with (
                socket.create_connection(("127.0.0.1", port), 60) as raw,
                context.wrap_socket(raw, server_hostname="localhost", session=session) as made,
            ):
                made.sendall(b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n")
                with made.makefile("rb") as stream:
                    got = stream.readline(), made.session, made.session_reused
                # OpenSSL forgets the session of who does not end so.
                with contextlib.suppress(OSError):
                    made.unwrap().close()
                return got

        answer, session, resumed = await asyncio.to_thread(ask, None)
        assert (answer, resumed) == (b"HTTP/1.1 200 OK\r\n", False)
        answer, _, resumed = await asyncio.to_thread(ask, session)
        assert (answer, resumed) == (b"HTTP/1.1 200 OK\r\n", True)
        world.now_ms += 2_000 * 365 * 86_400_000  # those of trustme last until 3000
        answer, _, resumed = await asyncio.to_thread(ask, session)
        assert (answer, resumed) == (b"HTTP/1.1 401 Unauthorized\r\n", True)


async def test_a_strangers_name_for_us_is_refused(world: World) -> None:
    async with world.serving(AllowAll(), names=("kafka.example.com",)) as base:
        port = base.rpartition(":")[2]
        for good in (
            "127.0.0.1",
            "localhost",
            "gateway",
            "gateway.example.com",
            "KAFKA.example.com",
            "[::1]",
        ):
            assert (await world.get(f"{base}/who", Host=f"{good}:{port}"))[0] == 200, good
            assert (await world.get(f"{base}/who", Host=good))[0] == 200, good
        status, body, _ = await world.get(f"{base}/metrics", Host=f"evil.example.org:{port}")
        assert status == 421
        assert "http_door.names" in body["hint"]
        with pytest.raises(json.JSONDecodeError):  # health is text, and for everybody
            await world.get(f"{base}/healthz", Host="evil.example.org")


@pytest.mark.parametrize(
    ("header", "host"),
    [("a.b:80", "a.b"), ("a.b", "a.b"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("::1", "::1"), (":80", "")],
)
def test_hosts_of_headers(header: str, host: str) -> None:
    assert host_of(header) == host


def test_names_that_nobody_else_can_have() -> None:
    assert all(map(is_harmless_host, ("gateway", "127.0.0.1", "::1", "x.localhost", "gateway.", "")))
    assert not any(map(is_harmless_host, ("evil.org", "127.0.0.1.evil.org", "1.2.3", "evil.org.")))
