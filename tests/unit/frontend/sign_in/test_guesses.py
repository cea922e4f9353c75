"""Guesses of a password are slowed however they come: many at once, or of a password that was right a moment ago."""

from __future__ import annotations

import asyncio

from penstock_core.security.login_limits import ADDRESS_FAILURES, USER_FAILURES, WAITING_MAX
from penstock_core.security.sasl import PLAIN, SaslFailure
from penstock_core.security.scram import ScramMechanism
from penstock_core.security.scram_client import ScramClient
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_frontend.sign_in.exchanges import Exchange, exchange_of
from penstock_runtime.logs import get_log
from support.listening import Run
from support.sign_in import Metadata, plain_token, user_record
from support.waiting import eventually

HERE = "192.0.2.1"
GUESSES = ADDRESS_FAILURES + WAITING_MAX + 12


def _desk() -> SignInDesk:
    metadata = Metadata()
    metadata.apply(user_record("alice", "secret"))
    return SignInDesk(lambda: metadata.image, KafkaMetrics(), get_log(), now_ms=lambda: 0)


def _exchange(desk: SignInDesk, mechanism: str, address: str = HERE) -> Exchange:
    return exchange_of(mechanism, desk, address, lambda _: None)


async def _reasons(guesses: list[asyncio.Task[bytes]]) -> list[str]:
    """Why guesses failed of which no more wait than may."""
    await eventually(
        lambda: sum(not each.done() for each in guesses) <= WAITING_MAX,
        "others than those that wait are over",
    )
    reasons = []
    for each in guesses:
        if each.done():
            failure = each.exception()
            assert isinstance(failure, SaslFailure)
            reasons.append(failure.reason)
        each.cancel()
    return reasons


def test_proofs_of_many_exchanges_that_were_begun_together_are_not_all_looked_at(run: Run) -> None:
    async def scenario() -> None:
        desk = _desk()
        mechanism = ScramMechanism.SHA_256
        begun = []
        for number in range(GUESSES):
            exchange = _exchange(desk, mechanism.mechanism_name)
            client = ScramClient(mechanism, "alice", f"guess {number}", "n" * 20)
            begun.append((exchange, client.final(await exchange.evaluate(client.first()))))
        loop = asyncio.get_running_loop()
        reasons = await _reasons([loop.create_task(one.evaluate(proof)) for one, proof in begun])
        looked_at = [each for each in reasons if "too many" not in each]
        assert USER_FAILURES <= len(looked_at) <= ADDRESS_FAILURES, reasons
        assert len(reasons) - len(looked_at) >= GUESSES - ADDRESS_FAILURES - WAITING_MAX
        # Elsewhere the user signs in as ever.
        exchange = _exchange(desk, mechanism.mechanism_name, "198.51.100.1")
        client = ScramClient(mechanism, "alice", "secret", "n" * 20)
        await exchange.evaluate(client.final(await exchange.evaluate(client.first())))
        assert exchange.complete

    run(scenario())


def test_passwords_that_come_together_are_not_all_compared(run: Run) -> None:
    async def scenario() -> None:
        desk = _desk()
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(_exchange(desk, PLAIN).evaluate(plain_token("alice", f"guess {number}")))
            for number in range(GUESSES)
        ]
        looked_at = [each for each in await _reasons(tasks) if "too many" not in each]
        assert USER_FAILURES <= len(looked_at) <= ADDRESS_FAILURES
        await desk.passwords.close()

    run(scenario())


def test_a_password_that_was_right_a_moment_ago_is_guessed_no_faster(run: Run) -> None:
    """What is remembered answers at once: whoever may not guess must not have that answer either."""

    async def scenario() -> None:
        desk = _desk()
        honest = _exchange(desk, PLAIN, "198.51.100.1")
        await honest.evaluate(plain_token("alice", "secret"))
        assert honest.complete
        for _ in range(2 * USER_FAILURES):
            attempt = desk.limits.begin(HERE, "alice", 0)
            assert attempt is not None
            desk.limits.failed(attempt, 0)
        waiting = []
        for _ in range(WAITING_MAX):
            attempt = desk.limits.begin(HERE, "alice", 0)
            assert attempt is not None
            waiting.append(attempt)
        guess = _exchange(desk, PLAIN)
        try:
            await guess.evaluate(plain_token("alice", "secret"))
        except SaslFailure as failure:
            assert "too many attempts" in failure.reason
        assert not guess.complete
        # Where nobody guesses it is as quick as ever.
        again = _exchange(desk, PLAIN, "198.51.100.1")
        await again.evaluate(plain_token("alice", "secret"))
        assert again.complete
        await desk.passwords.close()

    run(scenario())
