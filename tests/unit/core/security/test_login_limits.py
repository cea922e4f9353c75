"""Failed logins: who has to wait, and who never does."""

import random

from penstock_core.security.login_limits import (
    ADDRESSES_MAX,
    DELAY_MS_MAX,
    USERS_PER_ADDRESS_MAX,
    WAITING_MAX,
    Attempt,
    LoginLimits,
    network,
)

HERE, THERE = "10.0.0.1", "10.0.0.2"


def begin(limits: LoginLimits, address: str, user: str, now_ms: int) -> Attempt:
    attempt = limits.begin(address, user, now_ms)
    assert attempt is not None
    return attempt


def fail(limits: LoginLimits, address: str, user: str, now_ms: int) -> int:
    """One failed attempt; how long it waited."""
    attempt = begin(limits, address, user, now_ms)
    limits.failed(attempt, now_ms + attempt.delay_ms)
    return attempt.delay_ms


def test_the_first_slips_cost_nothing_then_delays_double_up_to_thirty_seconds() -> None:
    limits, now_ms, delays = LoginLimits(), 0, []
    for _ in range(16):
        delays.append(fail(limits, HERE, "alice", now_ms))
        now_ms += delays[-1]
    assert delays[:5] == [0] * 5
    assert delays[5] == 500
    assert all(before <= after for before, after in zip(delays, delays[1:], strict=False))
    assert max(delays) == DELAY_MS_MAX or delays[-1] > 5_000


def test_others_at_the_address_and_the_user_elsewhere_do_not_wait() -> None:
    limits = LoginLimits()
    for _ in range(12):
        fail(limits, HERE, "alice", 0)
    assert begin(limits, HERE, "alice", 0).delay_ms > 0
    assert begin(limits, HERE, "bob", 0).delay_ms == 0
    assert begin(limits, THERE, "alice", 0).delay_ms == 0


def test_a_user_is_never_locked_out_by_others() -> None:
    limits = LoginLimits()
    for number in range(5_000):
        attempt = limits.begin(f"10.1.{number // 250}.{number % 250}", "alice", number)
        if attempt is not None:
            limits.failed(attempt, number)
    assert begin(limits, HERE, "alice", 5_000).delay_ms == 0


def test_guessing_many_users_from_one_address_waits_too() -> None:
    limits = LoginLimits()
    delays = [fail(limits, HERE, f"user{number}", 0) for number in range(40)]
    assert delays[:30] == [0] * 30
    assert delays[-1] == DELAY_MS_MAX
    assert begin(limits, THERE, "user1", 0).delay_ms == 0


def test_many_at_once_are_no_way_around() -> None:
    limits = LoginLimits()
    for _ in range(12):
        fail(limits, HERE, "alice", 0)
    waiting = [limits.begin(HERE, "alice", 0) for _ in range(100)]
    got = [attempt for attempt in waiting if attempt is not None]
    assert len(got) == WAITING_MAX
    assert all(attempt.delay_ms > 0 for attempt in got)
    limits.looked_at(got[0])
    limits.looked_at(got[0])
    assert limits.begin(HERE, "alice", 0) is not None
    assert limits.begin(HERE, "alice", 0) is None


def test_a_thousand_clients_that_come_back_at_once_do_not_wait() -> None:
    limits = LoginLimits()
    attempts = [begin(limits, HERE, "app", 0) for _ in range(1_000)]
    assert all(attempt.delay_ms == 0 for attempt in attempts)
    for attempt in attempts:
        limits.succeeded(attempt, 10)
    assert len(limits) == 0


def test_whoever_signs_in_has_a_clean_sheet_and_the_address_does_not() -> None:
    limits = LoginLimits()
    for _ in range(7):
        fail(limits, HERE, "alice", 0)
    attempt = begin(limits, HERE, "alice", 0)
    assert attempt.delay_ms > 0
    limits.succeeded(attempt, attempt.delay_ms)
    assert begin(limits, HERE, "alice", attempt.delay_ms).delay_ms == 0
    for number in range(40):
        fail(limits, HERE, f"user{number}", 0)
        limits.succeeded(Attempt(HERE, "mallory", 0), 0)
    assert begin(limits, HERE, "bob", 0).delay_ms == DELAY_MS_MAX, (
        "a right password of one's own resets nothing"
    )


def test_an_attempt_that_nobody_could_judge_costs_nothing() -> None:
    limits = LoginLimits()
    for _ in range(100):
        limits.undecided(begin(limits, HERE, "alice", 0), 0)
    assert len(limits) == 0
    while not (delay_ms := fail(limits, HERE, "alice", 0)):
        pass
    attempts = [begin(limits, HERE, "alice", 0) for _ in range(WAITING_MAX)]
    assert limits.begin(HERE, "alice", 0) is None
    for attempt in attempts:
        limits.undecided(attempt, 0)
        limits.undecided(attempt, 0)
    assert begin(limits, HERE, "alice", 0).delay_ms == 2 * delay_ms  # by the failure alone


def test_after_a_quiet_while_nothing_is_left() -> None:
    limits = LoginLimits()
    for _ in range(200):
        fail(limits, HERE, "alice", 0)
    assert begin(limits, HERE, "alice", 60_000).delay_ms > 0
    assert begin(limits, HERE, "alice", 400_000).delay_ms == 0


def test_guesses_are_few_in_an_hour_whatever_the_attacker_does() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    limits, looked_at, now_ms = LoginLimits(), 0, 0
    waiting: list[tuple[int, Attempt]] = []
    while now_ms < 3_600_000:
        now_ms += rng.choice((1, 50, 1_000))
        attempt = limits.begin(HERE, f"user{rng.randrange(rng.choice((1, 100)))}", now_ms)
        if attempt is not None:
            waiting.append((now_ms + attempt.delay_ms, attempt))
        for due in [one for one in waiting if one[0] <= now_ms]:
            waiting.remove(due)
            limits.failed(due[1], now_ms)
            looked_at += 1
    assert looked_at < 3_600 / 2 * 1.5 + 100, "little more than the address's refill"


def test_what_is_kept_is_bounded() -> None:
    limits = LoginLimits()
    for number in range(ADDRESSES_MAX * 2):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        attempt = limits.begin(address, "a" * 10_000, 0)
        assert attempt is not None
        limits.failed(attempt, 0)
    assert len(limits) == ADDRESSES_MAX
    for number in range(USERS_PER_ADDRESS_MAX * 3):
        limits.failed(Attempt(HERE, f"user{number}", 0), 0)
    known = limits._addresses[HERE]
    assert len(known.users) == USERS_PER_ADDRESS_MAX
    assert max(len(user) for one in limits._addresses.values() for user in one.users) <= 128


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:10.0.0.1") == network("10.0.0.1") == "10.0.0.1"
    assert network("somewhere") == "somewhere"
