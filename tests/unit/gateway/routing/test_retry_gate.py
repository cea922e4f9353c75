"""Fences: which later batches of an idempotent producer have to wait for an earlier one."""

from __future__ import annotations

from penstock_gateway.routing.retry_gate import RetryGate
from penstock_kafka.producer_retries import EXPIRY_MS, ProducerSequence


def at(sequence: int) -> ProducerSequence:
    return ProducerSequence(1000, 0, sequence)


def test_later_ones_wait_for_the_failed_one() -> None:
    fences: RetryGate[str] = RetryGate()
    fences.failed("p", at(3), 0)
    assert [fences.turns_away("p", at(n), 1) for n in (6, 9, 3, 6, 9)] == [True, True, False, False, False]
    assert not fences


def test_each_one_that_failed_has_to_come_again() -> None:
    """3 comes again while 6's failure is on its way to the client, who has sent 9 since."""
    fences: RetryGate[str] = RetryGate()
    fences.failed("p", at(3), 0)
    fences.failed("p", at(6), 0)
    assert [fences.turns_away("p", at(n), 1) for n in (3, 9, 6, 9)] == [False, True, False, False]
    assert not fences


def test_what_fails_out_of_order_comes_again_in_order() -> None:
    """6's leader answers before 3's; or something older than both comes again first."""
    for before in ((3,), (0, 3)):
        fences: RetryGate[str] = RetryGate()
        fences.failed("p", at(6), 0)
        fences.failed("p", at(3), 0)
        assert not any(fences.turns_away("p", at(n), 1) for n in before)
        assert [fences.turns_away("p", at(n), 1) for n in (9, 6, 9)] == [True, False, False]
        assert not fences


def test_it_opens_to_the_first_that_was_turned_away_when_the_failed_one_does_not_come() -> None:
    fences: RetryGate[str] = RetryGate()
    fences.failed("p", at(3), 0)
    assert fences.turns_away("p", at(6), 1)
    fences.failed("p", at(6), 1)  # so its answer is noted
    assert fences.turns_away("p", at(9), 1)
    fences.failed("p", at(9), 1)
    assert [fences.turns_away("p", at(n), 2) for n in (6, 12, 9, 12)] == [False, True, False, False]


def test_other_producers_epochs_and_partitions_pass_and_time_opens() -> None:
    fences: RetryGate[str] = RetryGate()
    fences.failed("p", at(3), 0)
    assert not fences.turns_away("q", at(6), 1)
    assert fences.turns_away("p", at(6), 1)
    assert not fences.turns_away("p", at(6), EXPIRY_MS)


def test_fences_before_what_never_comes_again_go_with_their_time() -> None:
    """A client that writes to ever other topics which nobody knows made its gateway grow for as long as it stayed."""
    fences: RetryGate[str] = RetryGate(fences_max=100)
    for number in range(50):
        fences.failed(f"t{number}", at(0), number)
    fences.failed("t0", at(0), EXPIRY_MS - 1)
    fences.failed("u", at(0), EXPIRY_MS + 40)
    assert len(fences._retry_gate) == 11
    assert fences.turns_away("t49", at(3), EXPIRY_MS + 40)
    assert fences.turns_away("t0", at(3), EXPIRY_MS + 40)
    for number in range(200):
        fences.failed(f"v{number}", at(0), EXPIRY_MS + 40)
    assert len(fences._retry_gate) == 100
    assert [fences.turns_away(f"v{n}", at(3), EXPIRY_MS + 40) for n in (99, 100, 199)] == [False, True, True]
