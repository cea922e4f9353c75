"""Signing in over a real socket: the order of requests, what a failure shows, the end of a session."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import perf_counter

import pytest

from penstock_core.security.principal import user
from penstock_core.security.scram import ScramMechanism
from penstock_frontend.listener.listener import Connection, KafkaListener, ListenerLimits
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.doorkeeper import Doorkeeper
from penstock_kafka.wire.api_versions import encode_api_versions_response
from penstock_kafka.wire.apis import SUPPORTED, ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import get_log
from support.listening import Handler, Run, connected, echo, listening, metric, read_response, request
from support.sign_in import Metadata, RawClient, plain_token, removal, user_record

METADATA = 3
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@dataclass
class House:
    """A listener where clients sign in."""

    listener: KafkaListener
    handler: Handler
    lifecycle: Lifecycle
    metadata: Metadata
    desk: SignInDesk
    endpoint: object

    @contextlib.asynccontextmanager
    async def client(self, source: str = "127.0.0.1") -> AsyncIterator[RawClient]:
        async with connected(self.endpoint, source) as (reader, writer):  # type: ignore[arg-type]
            yield RawClient(reader, writer)


def _versions(connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
    return encode_api_versions_response(header, SUPPORTED)


@contextlib.asynccontextmanager
async def house(max_reauth_ms: int = 0, limits: ListenerLimits | None = None) -> AsyncIterator[House]:
    metadata = Metadata()
    metadata.apply(
        user_record("alice", "secret"),
        user_record("alice", "secret", ScramMechanism.SHA_512),
        user_record("bob", "other"),
    )
    metrics = KafkaMetrics()
    desk = SignInDesk(lambda: metadata.image, metrics, get_log())
    doorkeeper = Doorkeeper(desk, MECHANISMS, max_reauth_ms, _versions)
    async with listening(echo, limits, doorkeeper, security="SASL_PLAINTEXT") as (
        it,
        handler,
        endpoint,
        life,
    ):
        desk._metrics = it.metrics
        yield House(it, handler, life, metadata, desk, endpoint)
        await desk.passwords.close()


async def is_let_in(client: RawClient) -> bool:
    """Whether the handler answers."""
    client.writer.write(request(7, b"hello"))
    return await read_response(client.reader) == (7, b"hello")


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_scram_lets_in_and_the_connection_has_the_users_name(run: Run, mechanism: ScramMechanism) -> None:
    async def scenario() -> None:
        async with house() as h, h.client() as client:
            software = {"client_software_name": "a", "client_software_version": "1"}
            assert len((await client.ask(ApiKey.API_VERSIONS, 3, **software)).api_keys) > 5
            answer = await client.scram("alice", "secret", mechanism)
            assert (answer.error_code, answer.error_message) == (0, None)
            assert answer.session_lifetime.total_seconds() == 0
            assert not h.handler.frames
            assert await is_let_in(client)
            assert h.handler.connections[0].principal == user("alice")
            assert len(h.desk.signed_in) == 1
            # From now on nothing stands between the connection and its handler.
            assert h.handler.connections[0]._handler is h.handler
            assert metric(h.lifecycle, "penstock_kafka_sign_ins_total") == 1

    run(scenario())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain_lets_in_and_remembers_what_was_right(run: Run, version: int) -> None:
    async def scenario() -> None:
        async with house() as h:
            for _ in range(2):
                async with h.client() as client:
                    assert (await client.plain("alice", "secret", version)).error_code == 0
                    assert await is_let_in(client)
            assert len(h.desk.memo) == 1
            assert h.desk.passwords.waiting == 0

    run(scenario())


def test_after_handshake_0_tokens_come_as_they_are(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h:
            async with h.client() as client:
                assert (await client.handshake("PLAIN", 0)).mechanisms == MECHANISMS
                client.send_raw(plain_token("b", "x"))  # 4 bytes, and no user: nothing is said
                assert await client.ended()
            async with h.client() as client:
                await client.handshake("PLAIN", 0)
                client.send_raw(plain_token("alice", "secret"))
                assert await client.receive_raw() == b""
                assert await is_let_in(client)

    run(scenario())


def test_a_request_before_its_time_ends_the_connection_and_never_reaches_the_handler(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h:
            for api_key in sorted(SUPPORTED):
                if api_key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE):
                    continue
                async with h.client() as client:
                    client.writer.write(request(1, b"x", api_key))
                    assert await client.ended(), api_key
            async with h.client() as client:  # in the middle
                await client.handshake("SCRAM-SHA-256")
                client.writer.write(request(1, b"x", METADATA))
                assert await client.ended()
            assert not h.handler.frames

    run(scenario())


def test_what_comes_with_the_last_token_waits_for_its_answer(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h, h.client() as client:
            await client.handshake("PLAIN")
            client.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=plain_token("alice", "secret"))
            client.writer.write(request(8, b"early"))
            await client.receive_raw()
            assert await read_response(client.reader) == (8, b"early")
            assert h.handler.connections[0].principal == user("alice")

    run(scenario())


def test_what_comes_with_a_wrong_password_is_never_looked_at(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h, h.client() as client:
            await client.handshake("PLAIN")
            client.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=plain_token("alice", "wrong"))
            client.writer.write(request(8, b"early") * 3)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await client.receive_raw()
            assert await client.ended()
            assert not h.handler.frames

    run(scenario())


def test_a_wrong_password_and_an_unknown_user_look_and_last_alike(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h:
            seen = set()
            for name, password in (("alice", "wrong"), ("nobody", "secret")):
                for plain in (True, False):
                    async with h.client() as client:
                        began_s = perf_counter()
                        answer = await (client.plain if plain else client.scram)(name, password)
                        assert perf_counter() - began_s >= 0.1
                        seen.add(
                            (plain, int(answer.error_code), answer.error_message, bytes(answer.auth_bytes))
                        )
                        assert await client.ended()
            assert {(plain, code) for plain, code, *_ in seen} == {(True, 58), (False, 58)}
            assert len(seen) == 2
            assert metric(h.lifecycle, "penstock_kafka_sign_ins_total") == 4

    run(scenario())


def test_a_mechanism_that_is_not_offered_is_told_those_that_are(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h, h.client() as client:
            answer = await client.handshake("GSSAPI")
            assert (answer.error_code, answer.mechanisms) == (33, MECHANISMS)
            assert await client.ended()

    run(scenario())


def test_versions_may_be_asked_again_after_an_error_and_not_after_an_answer(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h, h.client() as client:
            client.send_raw(b"\x00\x12\x00\x63\x00\x00\x00\x01\xff\xff\x00")  # version 99
            assert (await client.receive_raw())[4:6] == b"\0\x23"
            assert (await client.ask(ApiKey.API_VERSIONS, 0)).error_code == 0
            client.send(ApiKey.API_VERSIONS, 0)
            assert await client.ended()

    run(scenario())


def test_nothing_large_is_taken_before_and_everything_after(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h:
            async with h.client() as client:
                client.writer.write((64 * 1024 + 1).to_bytes(4, "big"))
                assert await client.ended()
            async with h.client() as client:
                assert (await client.scram("alice", "secret")).error_code == 0
                client.writer.write(request(9, bytes(200_000)))
                assert await read_response(client.reader) == (9, bytes(200_000))
                for i in range(20):
                    client.writer.write(request(i))
                assert [(await read_response(client.reader))[0] for _ in range(20)] == list(range(20))

    run(scenario())


def test_who_does_not_sign_in_in_time_is_closed_however_busy(run: Run) -> None:
    async def scenario() -> None:
        limits = ListenerLimits(authentication_timeout_ms=300)
        async with house(limits=limits) as h, h.client() as client, h.client() as other:
            assert (await other.scram("alice", "secret")).error_code == 0
            await client.handshake("SCRAM-SHA-256")
            assert await client.ended()
            assert await is_let_in(other)

    run(scenario())


def test_garbage_reaches_no_handler_and_ends_its_own_connection_only(run: Run) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)

    async def scenario() -> None:
        async with house() as h, h.client() as good:
            assert (await good.scram("alice", "secret")).error_code == 0
            for round_ in range(60):
                async with h.client() as client:
                    if rng.random() < 0.6:
                        await client.handshake(rng.choice(MECHANISMS), rng.choice((0, 1)))
                    client.send_raw(rng.randbytes(rng.randint(0, 200)))
                    if rng.random() < 0.5:
                        client.writer.write(rng.randbytes(rng.randint(1, 2000)))
                    client.writer.write_eof()
                    while True:
                        try:
                            if not await asyncio.wait_for(client.reader.read(1000), 30):
                                break
                        except ConnectionError:
                            break
                assert not h.handler.frames, f"seed {seed}, round {round_}"
            assert await is_let_in(good)
            assert metric(h.lifecycle, "penstock_unhandled_errors_total") == 0, f"seed {seed}"

    run(scenario())


def test_failures_from_one_address_wait_and_others_do_not(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h:
            for _ in range(6):
                async with h.client("127.0.0.2") as client:
                    assert (await client.plain("alice", "wrong")).error_code == 58
            began_s = perf_counter()
            async with h.client("127.0.0.2") as client:
                assert (await client.plain("alice", "secret")).error_code == 0
            assert perf_counter() - began_s > 0.4
            async with h.client("127.0.0.3") as client:
                assert (await client.scram("alice", "secret")).error_code == 0

    run(scenario())


def test_what_limits_make_one_wait_is_not_ones_own_time(run: Run) -> None:
    """The waits grow to 30 s: a right password would never get in from an address where others guess."""

    async def scenario() -> None:
        limits = ListenerLimits(authentication_timeout_ms=1_500)
        async with house(limits=limits) as h:
            attempt = h.desk.limits.begin("127.0.0.2", "alice", h.desk.now_ms())
            for _ in range(8):
                assert attempt is not None
                h.desk.limits.failed(attempt, h.desk.now_ms())
                attempt.charged = False
            async with h.client("127.0.0.2") as client:
                began_s = perf_counter()
                assert (await client.scram("alice", "secret")).error_code == 0
                assert perf_counter() - began_s > 2.5
                assert await is_let_in(client)

    run(scenario())


def test_a_flood_of_passwords_holds_up_nobody_who_is_in(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h, h.client() as good:
            assert (await good.scram("alice", "secret")).error_code == 0

            async def guess(number: int) -> None:
                async with h.client(f"127.0.1.{number % 50 + 1}") as client:
                    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                        await client.plain(f"user-{number}", "guess")

            flood = asyncio.gather(*(guess(n) for n in range(300)))
            for _ in range(20):
                assert await is_let_in(good)
            await flood
            assert h.desk.passwords.waiting == 0
            assert await is_let_in(good)

    run(scenario())


def test_a_session_that_ends_is_renewed_or_closed(run: Run) -> None:
    async def scenario() -> None:
        async with house(max_reauth_ms=1_500) as h, h.client() as client, h.client() as lazy:
            for each in (client, lazy):
                answer = await each.scram("alice", "secret")
                assert answer.session_lifetime.total_seconds() == 1.5
                assert await is_let_in(each)
            first_s = perf_counter()
            for _ in range(2):
                await asyncio.sleep(1.1)
                assert (await client.scram("alice", "secret")).error_code == 0
                assert await is_let_in(client)
            assert perf_counter() - first_s > 1.5
            lazy.writer.write(request(1, b"late"))
            assert await lazy.ended()
            assert all(f[8:] != b"late" for f in h.handler.frames)
            assert len(h.desk.signed_in) == 1

    run(scenario())


def test_nobody_becomes_somebody_else_by_signing_in_again(run: Run) -> None:
    async def scenario() -> None:
        async with house(max_reauth_ms=60_000) as h:
            async with h.client() as client:
                assert (await client.scram("alice", "secret")).error_code == 0
                assert (await client.scram("bob", "other")).error_code == 58
                assert await client.ended()
            async with h.client() as client:
                assert (await client.scram("alice", "secret")).error_code == 0
                answer = await client.plain("alice", "secret")
                assert answer.error_code == 58
                assert "SCRAM-SHA-256" in answer.error_message
                assert await client.ended()
            assert not h.handler.frames

    run(scenario())


def test_a_handshake_of_one_who_is_in_for_ever_is_for_the_handler(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h, h.client() as client:
            assert (await client.scram("alice", "secret")).error_code == 0
            client.writer.write(request(3, b"x", ApiKey.SASL_HANDSHAKE))
            assert await read_response(client.reader) == (3, b"x")

    run(scenario())


def test_a_deleted_user_and_one_with_another_password_are_closed_and_others_stay(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h, h.client() as a, h.client() as b, h.client() as plain, h.client() as stays:
            h.metadata.apply(user_record("carol", "c"))
            assert (await a.scram("alice", "secret")).error_code == 0
            assert (await plain.plain("alice", "secret")).error_code == 0
            assert (await b.scram("bob", "other")).error_code == 0
            assert (await stays.scram("carol", "c")).error_code == 0
            h.desk.signed_in.on_metadata(*h.metadata.apply(removal("alice"), user_record("bob", "new")))
            assert await a.ended()
            assert await b.ended()
            # PLAIN relied on the other credential, which is there yet.
            assert await is_let_in(plain)
            h.desk.signed_in.on_metadata(*h.metadata.apply(removal("alice", ScramMechanism.SHA_512)))
            assert await plain.ended()
            assert await is_let_in(stays)
            assert len(h.desk.signed_in) == 1

    run(scenario())


def test_by_old_metadata_nobody_signs_in_and_no_code_tells_clients_to_give_up(run: Run) -> None:
    async def scenario() -> None:
        async with house() as h:
            async with h.client() as client:
                assert (await client.plain("alice", "secret")).error_code == 0
                h.desk.keeps_out = lambda: "no controller was heard of"
                assert await is_let_in(client)
                async with h.client() as late:
                    assert (await late.ask(ApiKey.API_VERSIONS, 0)).api_keys
                    late.send(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
                    assert await late.ended()
                h.desk.keeps_out = str
            async with h.client() as client:
                assert (await client.plain("alice", "secret")).error_code == 0

    run(scenario())
