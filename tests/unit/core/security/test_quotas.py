"""Quotas: whose counts, how fast somebody is, how long to throttle, and shares of the whole."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.quota_entities import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
    QuotaTable,
    check_value,
    read_entity,
)
from penstock_core.security.quota_rates import TokenBucket, WindowedRate
from penstock_core.security.quota_shares import demand, isolated_share, shares

ALICE = QuotaEntity("alice")


def test_entities_are_read() -> None:
    assert read_entity([("user", "alice"), ("client-id", None)]) == QuotaEntity("alice", DEFAULT)
    assert read_entity([("ip", "::ffff")]) == QuotaEntity(ip="::ffff")
    assert str(read_entity([("user", None), ("client-id", "c")])) == "user <default>, client-id 'c'"


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "Invalid empty client quota entity"),
        ([("group", "g")], "Unhandled client quota entity type: 'group'"),
        ([("user", "")], "Empty user not supported"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("ip", "1.2.3.4"), ("user", "a")], "IP entity should not be combined"),
        ([("ip", None), ("client-id", None)], "IP entity should not be combined"),
        ([("ip", "somewhere")], "'somewhere' is not a valid IP"),
    ],
)
def test_entities_that_are_refused(parts: list[tuple[str, str | None]], why: str) -> None:
    with pytest.raises(PenstockError, match=why) as caught:
        read_entity(parts)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("entity", "key", "value", "why"),
    [
        (ALICE, "bytes", 1, "Invalid configuration key 'bytes'"),
        (ALICE, CONNECTION_CREATION_RATE, 1, "Invalid configuration key"),
        (QuotaEntity(ip=DEFAULT), PRODUCER_BYTE_RATE, 1, "Invalid configuration key"),
        (ALICE, PRODUCER_BYTE_RATE, 0, "must be greater than 0"),
        (ALICE, PRODUCER_BYTE_RATE, -1, "must be greater than 0"),
        (ALICE, PRODUCER_BYTE_RATE, 1.5, "cannot be a fractional value"),
        (ALICE, PRODUCER_BYTE_RATE, 1e19, "too large for a LONG"),
        (ALICE, PRODUCER_BYTE_RATE, math.nan, "must be a number"),
        (ALICE, REQUEST_PERCENTAGE, math.inf, "must be a number"),
        (QuotaEntity(ip="::1"), CONNECTION_CREATION_RATE, 2**31, "too large for an INT"),
        (QuotaEntity(ip="::1"), CONNECTION_CREATION_RATE, 0.5, "cannot be a fractional value"),
    ],
)
def test_values_that_are_refused(entity: QuotaEntity, key: str, value: float, why: str) -> None:
    with pytest.raises(PenstockError, match=why) as caught:
        check_value(entity, key, value)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_values_that_are_not() -> None:
    check_value(ALICE, PRODUCER_BYTE_RATE, 2**40)
    check_value(QuotaEntity(None, DEFAULT), REQUEST_PERCENTAGE, 0.5)
    check_value(ALICE, CONTROLLER_MUTATION_RATE, 1.25)
    check_value(QuotaEntity(ip="::1"), CONNECTION_CREATION_RATE, 2**31 - 1)


PRECEDENCE = [
    (QuotaEntity("u", "c"), ("u", "c")),
    (QuotaEntity("u", DEFAULT), ("u", "c")),
    (QuotaEntity("u"), ("u", None)),
    (QuotaEntity(DEFAULT, "c"), ("u", "c")),
    (QuotaEntity(DEFAULT, DEFAULT), ("u", "c")),
    (QuotaEntity(DEFAULT), ("u", None)),
    (QuotaEntity(None, "c"), (None, "c")),
    (QuotaEntity(None, DEFAULT), (None, "c")),
]


def test_the_most_specific_quota_counts_and_says_who_shares_it() -> None:
    quotas: dict[QuotaEntity, dict[str, float]] = {
        entity: {PRODUCER_BYTE_RATE: number + 1.0} for number, (entity, _) in enumerate(PRECEDENCE)
    }
    table = QuotaTable(quotas)
    for number, (entity, bucket) in enumerate(PRECEDENCE):
        hit = table.for_client(PRODUCER_BYTE_RATE, "u", "c")
        assert hit is not None
        assert (hit.limit, hit.entity, (hit.user, hit.client_id)) == (number + 1.0, entity, bucket)
        table = table.with_quota(entity, PRODUCER_BYTE_RATE, None)
    assert table.for_client(PRODUCER_BYTE_RATE, "u", "c") is None
    assert list(table) == []


def test_each_key_has_its_own_precedence() -> None:
    table = (
        QuotaTable()
        .with_quota(ALICE, REQUEST_PERCENTAGE, 50)
        .with_quota(QuotaEntity(None, DEFAULT), PRODUCER_BYTE_RATE, 1000)
    )
    hit = table.for_client(PRODUCER_BYTE_RATE, "alice", "x")
    assert hit is not None
    assert (hit.limit, hit.user, hit.client_id) == (1000, None, "x")
    assert sorted(key for _, key, _ in table) == [PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE]


def test_an_empty_client_id_is_no_way_around() -> None:
    table = QuotaTable({QuotaEntity("u", DEFAULT): {PRODUCER_BYTE_RATE: 7.0}})
    hit = table.for_client(PRODUCER_BYTE_RATE, "u", "")
    assert hit is not None
    assert hit.limit == 7


def test_a_table_does_not_change() -> None:
    before = QuotaTable({ALICE: {PRODUCER_BYTE_RATE: 1.0}})
    after = before.with_quota(ALICE, PRODUCER_BYTE_RATE, 2).with_quota(QuotaEntity(ip=DEFAULT), "x", 1)
    assert list(before) == [(ALICE, PRODUCER_BYTE_RATE, 1.0)]
    assert len(list(after)) == 2


def test_addresses_have_their_own_or_the_default() -> None:
    table = QuotaTable({QuotaEntity(ip="10.0.0.1"): {CONNECTION_CREATION_RATE: 5.0}})
    assert (table.for_ip("10.0.0.1"), table.for_ip("10.0.0.2")) == (5, None)
    table = table.with_quota(QuotaEntity(ip=DEFAULT), CONNECTION_CREATION_RATE, 2)
    assert (table.for_ip("10.0.0.1"), table.for_ip("10.0.0.2")) == (5, 2)


def test_a_rate_is_taken_over_ten_seconds_at_least() -> None:
    rate = WindowedRate()
    rate.record(500, 0)
    assert rate.window_ms(0) == 10_000
    assert rate.rate(0) == 50
    assert rate.window_ms(500) == 10_500
    assert rate.rate(500) == pytest.approx(500 / 10.5)


def test_a_rate_is_kafkas_clientquotamanagertest() -> None:
    """testQuotaViolation: 400 bytes a second for 10 s, then 2,300 in half a second."""
    rate, now_ms = WindowedRate(), 0
    for _ in range(10):
        rate.record(400, now_ms)
        now_ms += 1_000
    now_ms += 500
    rate.record(2_300, now_ms)
    assert rate.rate(now_ms) == pytest.approx((4_000 + 2_300) / 10.5)


def test_an_old_sample_is_forgotten_whole() -> None:
    rate = WindowedRate()
    rate.record(1_000_000, 0)
    assert rate.rate(10_999) > 0
    assert rate.rate(11_000) == 0
    assert rate.window_ms(11_000) == 10_000


def test_what_is_taken_back_does_not_count() -> None:
    rate = WindowedRate()
    rate.record(100, 0)
    rate.record(-100, 0)
    assert rate.rate(1) == 0


def test_a_bucket_is_kafkas_tokenbuckettest() -> None:
    """testRecord: a rate of 10 begins with eleven seconds' worth and may go below zero once."""
    bucket = TokenBucket(10, 0)
    assert bucket.tokens(0) == 110
    assert bucket.try_spend(60, 0) == 0
    assert bucket.try_spend(60, 0) == 0, "there were some left"
    assert bucket.tokens(0) == -10
    assert bucket.try_spend(1, 0) == 1_000
    assert bucket.tokens(500) == -5
    assert bucket.try_spend(1, 500) == 500
    assert bucket.try_spend(1, 1_000) == 0
    assert bucket.tokens(10**9) == 110


def test_older_requests_are_never_refused_but_throttled() -> None:
    bucket = TokenBucket(10, 0)
    assert bucket.spend(100, 0) == 0
    assert bucket.spend(100, 0) == 9_000
    assert bucket.spend(10, 0) == 10_000


def test_a_lower_limit_holds_at_once() -> None:
    bucket = TokenBucket(100, 0)
    bucket.change_limit(1, 0)
    assert bucket.tokens(0) == 11
    bucket.change_limit(100, 0)
    assert bucket.tokens(1_000) == 111


@given(st.floats(0.1, 1e6), st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 1e7)), max_size=40))
def test_over_time_no_more_is_spent_than_the_rate_the_burst_and_one_request(
    limit: float, work: list[tuple[int, float]]
) -> None:
    bucket, now_ms, spent, largest = TokenBucket(limit, 0), 0, 0.0, 0.0
    for pause_ms, count in work:
        now_ms += pause_ms
        wait_ms = bucket.try_spend(count, now_ms)
        if wait_ms == 0:
            spent, largest = spent + count, max(largest, count)
    assert spent <= (limit * (11 + now_ms / 1000) + largest) * (1 + 1e-9) + 1e-6


Demands = dict[str, float | None]
DEMANDS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.none() | st.floats(0, 1e9) | st.floats(0, 10), max_size=12
)


@given(st.floats(1e-3, 1e12), DEMANDS)
def test_shares_are_never_more_than_the_quota_together(quota: float, demands: Demands) -> None:
    dealt = shares(quota, demands)
    assert dealt.keys() == demands.keys()
    assert math.fsum((*dealt.values(), -quota)) <= 0
    assert not demands or math.fsum(dealt.values()) == pytest.approx(quota)


@given(st.floats(1e-3, 1e12), DEMANDS)
def test_everybody_has_a_floor_and_whoever_is_silent_what_it_takes_by_itself(
    quota: float, demands: Demands
) -> None:
    for name, share in shares(quota, demands).items():
        even = isolated_share(quota, len(demands))
        if demands[name] is None:
            assert share == pytest.approx(even)
        else:
            assert share >= even * 0.1 * (1 - 1e-9)


@given(
    st.floats(1, 1e9), st.dictionaries(st.text("abc", min_size=1), st.floats(0, 1), min_size=1, max_size=9)
)
def test_when_there_is_enough_everybody_has_what_it_wants(quota: float, parts: dict[str, float]) -> None:
    demands: Demands = {name: part * quota * 0.9 / len(parts) for name, part in parts.items()}
    for name, share in shares(quota, demands).items():
        wanted = demands[name]
        assert wanted is not None
        assert share >= wanted * (1 - 1e-9)


def test_scarcity_is_dealt_evenly_to_those_who_want_more() -> None:
    assert shares(100, {"a": 1000.0, "b": 1000.0, "c": 5.0}) == {"a": 47.5, "b": 47.5, "c": 5.0}
    dealt = shares(100, {"a": 1000.0, "b": 0.0})
    assert (round(dealt["a"], 9), round(dealt["b"], 9)) == (95, 5)
    assert shares(100, {"a": 10.0, "b": None}) == {"a": 50.0, "b": 50.0}
    assert shares(100, {}) == {}


def test_an_uneven_start_evens_out() -> None:
    """One gateway had everything; both are throttled from then on."""
    dealt = {"a": 95.0, "b": 5.0}
    for _ in range(10):
        dealt = shares(100, {name: demand(share, throttled=True) for name, share in dealt.items()})
    assert dealt["a"] == pytest.approx(50)
    assert demand(5, throttled=False) == 5


def test_shares_follow_the_load_of_a_client_that_moves() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = [f"g{number}" for number in range(3)]
    dealt: dict[str, Any] = dict.fromkeys(names, 100 / 3)
    for _ in range(30):
        home = rng.choice(names)
        served = 0.0
        for _ in range(8):
            wanted = {name: 1_000.0 if name == home else 0.0 for name in names}
            served = sum(min(dealt[name], wanted[name]) for name in names)
            dealt = shares(
                100, {n: demand(min(dealt[n], wanted[n]), throttled=wanted[n] > dealt[n]) for n in names}
            )
        assert served >= 90, "within 10 % of the quota"
