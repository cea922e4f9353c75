"""Connections to a real Kafka listener: TLS, every mechanism, and what a refusal says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock_core.security.client_file import ClientFileError
from penstock_core.security.principal import user
from penstock_core.security.sasl import OAUTHBEARER, SaslFailure
from penstock_core.security.scram import ScramMechanism
from penstock_frontend.listener.listener import Connection as Served
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.certified import Certified
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.doorkeeper import Doorkeeper
from penstock_kafka.wire.api_versions import encode_api_versions_response
from penstock_kafka.wire.apis import SUPPORTED
from penstock_kafka.wire.frames import RequestHeader
from penstock_runtime.door import ListenerTls
from penstock_runtime.logs import get_log
from penstock_runtime.oauth_settings import OauthSettings
from penstock_runtime.security.jwks_source import FileSource
from penstock_runtime.security.listener_tls import ListenerTlsFiles
from penstock_runtime.security.token_validator import TokenValidator
from pyspark_penstock.direct import connection as connections
from pyspark_penstock.direct.connection import Connection
from pyspark_penstock.direct.frames import MalformedFrame, fetch_request
from support.listening import Handler, echo, listening
from support.sign_in import Metadata, user_record
from support.tokens import AUDIENCE, ISSUER, Issuer

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
REQUEST = fetch_request(
    77, b"t" * 16, 3, 5, 1000, max_bytes=1 << 20, max_wait_ms=500, read_committed=True, rack="zone-a"
)


def _versions(connection: Served, header: RequestHeader, frame: bytearray) -> bytes:
    return encode_api_versions_response(header, SUPPORTED)


@contextlib.asynccontextmanager
async def house(
    directory: Path, security: str, max_reauth_ms: int = 0
) -> AsyncIterator[tuple[Handler, str, int, Path]]:
    """A listener, and the CA's file."""
    ca, client_ca, issuer = trustme.CA(), trustme.CA(), Issuer()
    for name, authority in (("ca", ca), ("client-ca", client_ca)):
        authority.cert_pem.write_to_path(str(directory / f"{name}.pem"))
    for name, made in (
        ("listener", ca.issue_cert("127.0.0.1")),
        ("alice", client_ca.issue_cert("alice.test", common_name="alice")),
    ):
        made.cert_chain_pems[0].write_to_path(str(directory / f"{name}-cert.pem"))
        (directory / f"{name}-key.pem").touch(0o600)
        made.private_key_pem.write_to_path(str(directory / f"{name}-key.pem"))
    (directory / "token").touch(0o600)
    (directory / "token").write_text(issuer.token("alice"))
    metadata = Metadata()
    metadata.apply(user_record("alice", "secret"), user_record("alice", "secret", ScramMechanism.SHA_512))
    jwks = issuer.write_jwks(directory / "jwks.json")
    settings = OauthSettings(issuer=ISSUER, audiences=(AUDIENCE,), jwks=str(jwks))
    tokens = TokenValidator(settings, FileSource(jwks), get_log())
    desk = SignInDesk(lambda: metadata.image, KafkaMetrics(), get_log(), tokens=tokens)
    doorkeeper = Doorkeeper(desk, (*MECHANISMS, OAUTHBEARER), max_reauth_ms, _versions)
    more: dict[str, Any] = {}
    if security.endswith("SSL"):
        tls = ListenerTls(
            cert=directory / "listener-cert.pem",
            key=directory / "listener-key.pem",
            client_ca=directory / "client-ca.pem" if security == "SSL" else None,
            client_auth="required" if security == "SSL" else "none",
        )
        more = {
            "tls": ListenerTlsFiles("A", tls).context,
            "tls_settings": tls.model_dump(mode="json"),
            "certified": Certified("A", "RULE:^.*CN=([a-z]+)(,.*)?$/$1/") if security == "SSL" else None,
        }
    keeper = doorkeeper if security.startswith("SASL") else None
    async with listening(echo, None, keeper, security=security, **more) as (it, handler, endpoint, _):
        desk._metrics = it.metrics
        yield handler, endpoint.host, endpoint.port, directory
        await desk.passwords.close()


def client_file(directory: Path, **words: str) -> str:
    """Words with _ for a dot."""
    path = directory / "client.properties"
    path.touch(0o600)
    path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in words.items()))
    return str(path)


def exchange(host: str, port: int, file: str) -> tuple[bytes, Connection]:
    made = Connection(host, port, connections.account(file), 30)
    made.ask(REQUEST, 30)
    return bytes(made.answer(30)), made


async def check_in(handler: Handler, host: str, port: int, file: str) -> Connection:
    """That a request gets through, in the name of alice."""
    answer, made = await asyncio.to_thread(exchange, host, port, file)
    assert answer[:4] == (77).to_bytes(4, "big")
    assert handler.frames == [REQUEST[4:]]
    assert handler.connections[0].principal == user("alice")
    made.close()
    return made


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("security", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_passwords(tmp_path: Path, mechanism: str, security: str) -> None:
    async with house(tmp_path, security) as (handler, host, port, directory):
        words = {"security_protocol": security, "sasl_mechanism": mechanism, "sasl_username": "alice"}
        if security == "SASL_SSL":
            words["ssl_ca_location"] = str(directory / "ca.pem")
        made = await check_in(handler, host, port, client_file(directory, **words, sasl_password="secret"))
        assert not made.is_due
        with pytest.raises(SaslFailure) as caught:
            await check_in(handler, host, port, client_file(directory, **words, sasl_password="wrong"))
        assert "wrong" not in str(caught.value)


async def test_a_token(tmp_path: Path) -> None:
    async with house(tmp_path, "SASL_PLAINTEXT") as (handler, host, port, directory):
        file = client_file(
            directory, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_file=str(directory / "token"),
        )  # fmt: skip
        made = await check_in(handler, host, port, file)
        assert made._renew_s is not None
        (directory / "token").write_text(Issuer().token("alice"))
        with pytest.raises(SaslFailure, match="refused the token"):
            await check_in(handler, host, port, file)


async def test_a_certificate(tmp_path: Path) -> None:
    async with house(tmp_path, "SSL") as (handler, host, port, directory):
        words = {"security_protocol": "SSL", "ssl_ca_location": str(directory / "ca.pem")}
        words |= {"ssl_certificate_location": str(directory / "alice-cert.pem")}
        words |= {"ssl_key_location": str(directory / "alice-key.pem")}
        await check_in(handler, host, port, client_file(directory, **words))
        with pytest.raises(OSError, match="certificate verify failed"):
            await check_in(
                handler, host, port,
                client_file(directory, **words | {"ssl_ca_location": str(directory / "client-ca.pem")}),
            )  # fmt: skip
        (directory / "alice-key.pem").chmod(0o644)
        with pytest.raises(ClientFileError, match="chmod 600"):
            await check_in(handler, host, port, client_file(directory, **words))
        # The listener is done with the one that hung up when it has answered another.
        (directory / "alice-key.pem").chmod(0o600)
        _, made = await asyncio.to_thread(exchange, host, port, client_file(directory, **words))
        made.close()


async def test_a_sign_in_that_ends_is_due_before(tmp_path: Path) -> None:
    async with house(tmp_path, "SASL_PLAINTEXT", max_reauth_ms=3_600_000) as (_, host, port, directory):
        file = client_file(
            directory, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="alice",
            sasl_password="secret",
        )  # fmt: skip
        _, made = await asyncio.to_thread(exchange, host, port, file)
        assert not made.is_due
        connections.kept(made, file)
        assert connections.taken(host, port, file) is made
        made._renew_s = 0.0  # long ago
        connections.kept(made, file)
        assert connections.taken(host, port, file) is None
        _, made = await asyncio.to_thread(exchange, host, port, file)
        connections.kept(made, file)
        # Another file is another account.
        client_file(
            tmp_path, security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-256", sasl_username="alice",
            sasl_password="secret",
        )  # fmt: skip
        assert connections.taken(host, port, file) is None


async def test_frames_grow_the_buffer_and_views_stay_good(tmp_path: Path) -> None:
    async with house(tmp_path, "PLAINTEXT") as (_, host, port, _):

        def scenario() -> None:
            made = Connection(host, port, None, 30)
            views = []
            for size in (10, 6 << 20, 9 << 20, 20):
                made.ask((size + 8).to_bytes(4, "big") + bytes(4) + b"abcd" + b"\x07" * size, 30)
                views.append(made.answer(30))
                assert bytes(views[-1]) == b"abcd" + b"\x07" * size
            assert len(made._buffer) >= 9 << 20
            made.close()

        await asyncio.to_thread(scenario)


async def test_what_no_listener_says(tmp_path: Path) -> None:
    async def rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(rubbish, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    file = client_file(
        tmp_path, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="alice",
        sasl_password="secret",
    )  # fmt: skip
    async with server:
        with pytest.raises(MalformedFrame, match="a frame of 1213486160 bytes"):
            await asyncio.to_thread(exchange, "127.0.0.1", port, file)
