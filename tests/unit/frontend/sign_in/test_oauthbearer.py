"""OAUTHBEARER over a real socket: who is let in, how a refusal looks on the wire, how long a session lasts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock_core.security.oauthbearer import NotVerifiable, TokenIdentity
from penstock_core.security.principal import user
from penstock_core.security.sasl import OAUTHBEARER, OTHER_AUTHZID
from penstock_frontend.listener.listener import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.doorkeeper import Doorkeeper
from penstock_kafka.wire.api_versions import encode_api_versions_response
from penstock_kafka.wire.apis import SUPPORTED
from penstock_kafka.wire.frames import RequestHeader
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import get_log
from penstock_runtime.oauth_settings import OauthSettings
from penstock_runtime.security.jwks_source import FileSource
from penstock_runtime.security.token_validator import TokenValidator
from support.listening import Handler, Run, connected, echo, listening, metric, read_response, request
from support.sign_in import Metadata, RawClient
from support.tokens import AUDIENCE, ISSUER, Issuer

CHALLENGE = '{"status":"invalid_token"}'


def _versions(connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
    return encode_api_versions_response(header, SUPPORTED)


def first_message(token: str, authzid: str = "", extensions: str = "") -> bytes:
    """What a client says first."""
    who = f"a={authzid}" if authzid else ""
    return f"n,{who},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


class NoKeys:
    async def verify(self, token: str) -> TokenIdentity:
        raise NotVerifiable("there are no keys of the issuer")


@dataclass
class House:
    issuer: Issuer
    handler: Handler
    desk: SignInDesk
    lifecycle: Lifecycle
    endpoint: object

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        """One that has chosen OAUTHBEARER."""
        async with connected(self.endpoint) as (reader, writer):  # type: ignore[arg-type]
            client = RawClient(reader, writer)
            answer = await client.handshake(OAUTHBEARER, 1)
            assert answer.error_code == 0
            yield client


@contextlib.asynccontextmanager
async def house(directory: Path, max_reauth_ms: int = 0) -> AsyncIterator[House]:
    issuer = Issuer()
    path = issuer.write_jwks(directory / "jwks.json")
    settings = OauthSettings(issuer=ISSUER, audiences=(AUDIENCE,), jwks=str(path))
    tokens = TokenValidator(settings, FileSource(path), get_log())
    desk = SignInDesk(lambda: Metadata().image, KafkaMetrics(), get_log(), tokens=tokens)
    doorkeeper = Doorkeeper(desk, (OAUTHBEARER,), max_reauth_ms, _versions)
    async with listening(echo, None, doorkeeper, security="SASL_PLAINTEXT") as (it, handler, endpoint, life):
        desk._metrics = it.metrics
        yield House(issuer, handler, desk, life, endpoint)
        await desk.passwords.close()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_token_lets_in_for_as_long_as_it_counts(run: Run, tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with house(tmp_path) as h, h.client() as client:
            answer = await client.token(first_message(h.issuer.token("alice", 60)), version)
            assert (answer.error_code, answer.error_message, answer.auth_bytes) == (0, None, b"")
            if version:
                assert 80 < answer.session_lifetime.total_seconds() <= 90  # the leeway is in it
            client.writer.write(request(7, b"hello"))
            assert await read_response(client.reader) == (7, b"hello")
            assert h.handler.connections[0].principal == user("alice")
            assert not len(h.desk.signed_in)  # it relies on no credential of ours

    run(scenario())


def test_the_shorter_of_token_and_setting_counts(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with house(tmp_path, max_reauth_ms=5_000) as h, h.client() as client:
            answer = await client.token(first_message(h.issuer.token()))
            assert answer.session_lifetime.total_seconds() == 5

    run(scenario())


def test_extensions_and_the_own_name_as_authzid_do_no_harm(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with house(tmp_path) as h, h.client() as client:
            message = first_message(h.issuer.token(), "alice", "logicalCluster=a\x01")
            assert (await client.token(message)).error_code == 0

    run(scenario())


def test_a_refused_token_is_told_as_kafka_does_and_nothing_more(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with house(tmp_path) as h:
            for token in (
                h.issuer.token(lifetime_s=-60),
                h.issuer.unsigned(),
                "a.b.c",
                h.issuer.token(aud="x"),
            ):
                async with h.client() as client:
                    answer = await client.token(first_message(token))
                    assert (answer.error_code, answer.auth_bytes) == (0, CHALLENGE.encode())
                    answer = await client.token(b"\x01")
                    assert (answer.error_code, answer.error_message) == (58, CHALLENGE)
                    assert await client.reader.read() == b""
            assert metric(h.lifecycle, "penstock_kafka_sign_ins_total") == 4
            assert not h.handler.frames

    with capture_logs() as lines:
        run(scenario())
    (line,) = [each for each in lines if each["event"] == "sign-in failed"]  # others within its second
    assert line["reason"].startswith("the token is refused: exp was")


def test_one_who_goes_away_after_the_challenge_is_counted_too(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with house(tmp_path) as h:
            async with h.client() as client:
                answer = await client.token(first_message("a.b.c"))
                assert answer.auth_bytes == CHALLENGE.encode()
            assert metric(h.lifecycle, "penstock_kafka_sign_ins_total") == 1

    run(scenario())


def test_another_authzid_and_what_is_no_message_fail(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with house(tmp_path) as h:
            async with h.client() as client:
                answer = await client.token(first_message(h.issuer.token(), "bob"))
                assert (answer.error_code, answer.error_message) == (58, OTHER_AUTHZID)
            async with h.client() as client:
                answer = await client.token(b"nonsense")
                assert answer.error_code == 58
                assert "invalid credentials" in answer.error_message

    run(scenario())


def test_it_signs_in_again_by_a_newer_token_of_the_same_user_only(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with house(tmp_path) as h, h.client() as client:
            now_ms = [h.desk.now_ms()]
            h.desk.now_ms = lambda: now_ms[0]
            assert (await client.token(first_message(h.issuer.token(lifetime_s=60)))).error_code == 0
            now_ms[0] += 2_000
            assert (await client.handshake(OAUTHBEARER, 1)).error_code == 0
            assert (await client.token(first_message(h.issuer.token()))).error_code == 0
            client.writer.write(request(7, b"hello"))
            assert await read_response(client.reader) == (7, b"hello")
            now_ms[0] += 2_000
            assert (await client.handshake(OAUTHBEARER, 1)).error_code == 0
            answer = await client.token(first_message(h.issuer.token("bob")))
            assert (answer.error_code, answer.error_message) == (
                58,
                "Cannot change principals during re-authentication",
            )

    run(scenario())


def test_while_no_keys_can_be_had_nobody_is_slowed_for_it(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with house(tmp_path) as h:
            h.desk.tokens = NoKeys()
            for _ in range(6):
                async with h.client() as client:
                    answer = await client.token(first_message(h.issuer.token()))
                    assert answer.auth_bytes == CHALLENGE.encode()
            assert len(h.desk.limits) == 0
            assert metric(h.lifecycle, "penstock_kafka_sign_ins_total") == 6

    run(scenario())


def test_the_same_bad_token_again_and_again_is_slowed_and_no_other_is(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with house(tmp_path) as h:
            bad = h.issuer.token(lifetime_s=-60)
            for _ in range(6):
                async with h.client() as client:
                    await client.token(first_message(bad))
            began_s = time.monotonic()
            async with h.client() as client:
                await client.token(first_message(bad))
            waited_s = time.monotonic() - began_s
            assert waited_s > 0.2  # the least delay
            async with h.client() as client:
                assert (await client.token(first_message(h.issuer.token()))).error_code == 0

    run(scenario())
