"""Failed logins, row by row: whoever guesses sees the same bytes and causes the same work, whatever was wrong."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from penstock_core.security.plain import Derivation
from penstock_core.security.scram import ScramMechanism
from penstock_core.security.scram_client import ScramClient
from penstock_frontend.listener.listener import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.doorkeeper import Doorkeeper
from penstock_kafka.wire.api_versions import encode_api_versions_response
from penstock_kafka.wire.apis import SUPPORTED, ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_runtime.logs import get_log
from support.listening import Run, connected, echo, listening
from support.sign_in import Metadata, RawClient, plain_token, removal, user_record

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


class Attempt(NamedTuple):
    user: str
    password: str


ROWS = {
    "wrong password": Attempt("alice", "wrong"),
    "empty password": Attempt("alice", " "),
    "unknown user": Attempt("nobody", "secret"),
    "deleted user": Attempt("gone", "secret"),
    "user of the other mechanism alone": Attempt("other", "secret"),
    "user whose name is longer": Attempt("alice2", "secret"),
}


class Work:
    """Digests that are made, by the bytes that go in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[tuple[object, ...]] = Counter()
        of_hmac = hmac.digest

        def digest(key: Any, data: Any, name: Any) -> bytes:
            self.done["hmac", str(name)] += 1
            return of_hmac(key, data, name)

        monkeypatch.setattr(hmac, "digest", digest)
        derive = Derivation.derive

        def derived(self_: Derivation) -> bytes:
            of = self_.credential
            self.done["pbkdf2", of.mechanism, of.iterations, len(of.salt) > 0] += 1
            return derive(self_)

        monkeypatch.setattr(Derivation, "derive", derived)

    def take(self) -> Counter[tuple[object, ...]]:
        done, self.done = self.done, Counter()
        return done


def _versions(connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
    return encode_api_versions_response(header, SUPPORTED)


@contextlib.asynccontextmanager
async def door() -> AsyncIterator[object]:
    metadata = Metadata()
    metadata.apply(
        user_record("alice", "secret"),
        user_record("alice", "secret", SHA_512),
        user_record("gone", "secret"),
        user_record("gone", "secret", SHA_512),
    )
    metadata.apply(removal("gone"), removal("gone", SHA_512))
    desk = SignInDesk(lambda: metadata.image, KafkaMetrics(), get_log())
    doorkeeper = Doorkeeper(desk, ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"), 0, _versions)
    async with listening(echo, None, doorkeeper, security="SASL_PLAINTEXT") as (*_, endpoint, _life):
        yield endpoint
        await desk.passwords.close()


async def seen(endpoint: Any, mechanism: str, attempt: Attempt) -> list[bytes]:
    """All that a guesser sees: each answer as it comes, salt and nonce blanked, and how the connection ends."""
    async with connected(endpoint) as (reader, writer):
        client = RawClient(reader, writer)
        frames = []

        async def say(token: bytes) -> bytes:
            client.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token)
            frame = await client.receive_raw()
            frames.append(frame)
            return frame

        client.send(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
        frames.append(await client.receive_raw())
        if mechanism == "PLAIN":
            await say(plain_token(attempt.user, attempt.password))
        else:
            scram = ScramClient(
                ScramMechanism.SHA_256 if mechanism.endswith("256") else SHA_512,
                attempt.user,
                attempt.password,
                "n" * 20,
            )
            frame = await say(scram.first())
            said = frame[frame.index(b"r=") : frame.rindex(b"i=") + 6]
            # Salts have several lengths, of known users as of others.
            frames[-1] = frame[:8] + b"length, nonce and salt" + said[said.index(b",i=") :]
            await say(scram.final(said))
        frames.append(b"closed" if await client.ended() else b"open")
        return frames


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_every_row_looks_and_costs_alike(run: Run, monkeypatch: pytest.MonkeyPatch, mechanism: str) -> None:
    work = Work(monkeypatch)

    async def scenario() -> dict[str, tuple[list[bytes], Counter[tuple[object, ...]]]]:
        found = {}
        async with door() as endpoint:
            for name, attempt in ROWS.items():
                work.take()
                frames = await asyncio.wait_for(seen(endpoint, mechanism, attempt), 120)
                found[name] = (frames, work.take())
        return found

    found = run(scenario())
    first = next(iter(found.values()))
    assert first[0][-1] == b"closed"
    assert first[1]
    for name, row in found.items():
        assert row == first, name
