"""What one process knows of quotas, how quotas are shared, and that together they are kept."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.security.quota_book import (
    BUCKETS_MAX,
    DEMANDS_MAX,
    IDLE_MS,
    SHARE_STALE_MS,
    QuotaBook,
    bucket_id,
)
from penstock_core.security.quota_dealer import FORGET_MS, SILENT_MS, QuotaDealer
from penstock_core.security.quota_entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
)
from penstock_core.security.quota_rates import BURST_S, DEBT_S_MAX, Allowance

QUOTA = 1_000_000.0
ALICE = QuotaEntity("alice")


def book_of(
    quotas: dict[QuotaEntity, dict[str, float]] | None = None, processes: int = 1, now_ms: int = 0
) -> QuotaBook:
    book = QuotaBook()
    book.set_quotas({ALICE: {PRODUCER_BYTE_RATE: QUOTA}} if quotas is None else quotas)
    book.set_processes(processes, now_ms)
    return book


# An allowance


@given(
    st.floats(1, 1e9), st.lists(st.tuples(st.floats(0, 3), st.integers(0, 3_000)), min_size=1, max_size=100)
)
def test_whoever_waits_as_told_uses_no_more_than_the_rate_the_burst_and_one_request(
    limit: float, work: list[tuple[float, int]]
) -> None:
    allowance, now_ms, used, largest = Allowance(limit, 0), 0, 0.0, 0.0
    for seconds, pause_ms in work:
        now_ms += pause_ms
        amount = seconds * limit
        used, largest = used + amount, max(largest, amount)
        now_ms += allowance.use(amount, now_ms)
    assert used <= limit * (now_ms / 1000 + BURST_S) + 1e-6 * limit


@given(st.floats(1, 1e9), st.integers(1, 50), st.floats(0.001, 0.5))
def test_whoever_always_wants_more_gets_all_of_it(limit: float, clients: int, seconds: float) -> None:
    """Many connections that share it too, each of which waits by itself."""
    allowance, used = Allowance(limit, 0), 0.0
    due = [(0, n) for n in range(clients)]
    while due[0][0] < 60_000:
        now_ms, n = heappop(due)
        used += seconds * limit
        heappush(due, (now_ms + max(1, allowance.use(seconds * limit, now_ms)), n))
    overshoot_s = BURST_S + clients * seconds
    assert 60 * 0.97 <= used / limit <= 60 + overshoot_s + 0.01


def test_what_is_owed_is_bounded_and_stays_owed_at_another_limit() -> None:
    allowance = Allowance(100, 0)
    assert allowance.use(100 * BURST_S, 0) == 0
    assert allowance.use(50, 0) == 500
    allowance.limit = 50
    assert allowance.owed_ms(0) == 1_000
    assert allowance.use(1e12, 0) == DEBT_S_MAX * 1_000


# The book of one process


def test_without_quotas_nobody_has_an_account_to_pay_into() -> None:
    book = book_of({})
    assert not book.limits_clients
    assert not book.limits_addresses
    assert book.account("alice", "c", 0)[1:] == (None, None, None)
    assert book.address("10.0.0.1", 0) is None
    assert book.report(10_000) is None


def test_accounts_share_the_bucket_of_their_entity() -> None:
    book = book_of(
        {
            ALICE: {PRODUCER_BYTE_RATE: 10.0, CONSUMER_BYTE_RATE: 20.0},
            QuotaEntity("alice", "special"): {PRODUCER_BYTE_RATE: 30.0},
            QuotaEntity(None, DEFAULT): {REQUEST_PERCENTAGE: 5.0, PRODUCER_BYTE_RATE: 40.0},
        }
    )
    one, two, special = (book.account("alice", c, 0) for c in ("one", "two", "special"))
    bob, eve = book.account("bob", "one", 0), book.account("eve", "one", 0)
    assert one.produce is two.produce is not special.produce
    assert one.fetch is special.fetch
    assert one.request is bob.request, "of each key by itself the most specific counts"
    assert bob.produce is eve.produce, "a quota of client ids is shared by the users of one"
    assert bob.produce is not book.account("bob", "two", 0).produce
    assert [b.quota for b in (one.produce, special.produce, bob.produce, bob.request) if b] == [10, 30, 40, 5]


def test_a_changed_quota_holds_for_buckets_in_use() -> None:
    book = book_of()
    bucket = book.account("alice", "c", 0).produce
    assert bucket is not None
    version = book.version
    book.set_quotas({ALICE: {PRODUCER_BYTE_RATE: 7.0}})
    assert book.version != version
    assert book.account("alice", "c", 0).produce is bucket
    assert (bucket.quota, bucket.limit) == (7, 7)
    book.set_quotas({})
    assert bucket.is_dropped


def test_buckets_are_bounded_and_the_unused_go_first() -> None:
    book = book_of({QuotaEntity(None, DEFAULT): {PRODUCER_BYTE_RATE: 10.0}})
    first = book.account("u", "first", 0)
    assert first.produce is not None
    now_ms = 20_000
    made = []
    for n in range(BUCKETS_MAX * 2):
        made.append(book.account("u", f"c{n}", now_ms))
        first.produce.use(1, now_ms + n)
    assert not first.has_dropped
    assert made[0].has_dropped
    assert book.bucket_count <= BUCKETS_MAX
    book.tick(now_ms + IDLE_MS * 2)
    assert book.bucket_count == 0


def test_an_address_has_a_bucket_of_its_own() -> None:
    book = book_of({QuotaEntity(ip=DEFAULT): {CONNECTION_CREATION_RATE: 5.0}})
    assert book.limits_addresses
    assert not book.limits_clients
    one, two = book.address("10.0.0.1", 0), book.address("10.0.0.2", 0)
    assert one is not None
    assert one is not two
    assert one is book.address("10.0.0.1", 5)


def test_one_answer_brings_what_is_left_or_a_seconds_worth() -> None:
    bucket = book_of().account("alice", "c", 0).produce
    assert bucket is not None
    assert bucket.most_at_once(0) == QUOTA * BURST_S
    bucket.use(QUOTA * 1.5, 0)
    assert bucket.most_at_once(0) == QUOTA * 1.5
    bucket.use(QUOTA * 10, 0)
    assert bucket.most_at_once(0) == QUOTA


# Shares


def test_a_process_alone_has_all_and_reports_nothing() -> None:
    book = book_of()
    bucket = book.account("alice", "c", 0).produce
    assert bucket is not None
    bucket.use(1, 0)
    assert bucket.limit == QUOTA
    assert book.report(5_000) is None


def test_a_share_holds_until_it_is_stale() -> None:
    book = book_of(processes=4)
    bucket = book.account("alice", "c", 1_000).produce
    assert bucket is not None
    assert bucket.limit == QUOTA / 4
    bucket.use(1, 1_000)
    report = book.report(1_000)
    assert report is not None
    assert list(report) == [bucket.id]
    assert report[bucket.id] == pytest.approx(0.1 / QUOTA)
    assert book.report(1_500) is None, "not so often"
    book.take_shares([(bucket.id, 0.9), (b"of nobody", 0.5)], 1_500)
    assert bucket.limit == pytest.approx(QUOTA * 0.9)
    book.take_shares([(bucket.id, 7.0)], 1_500)
    assert bucket.limit == pytest.approx(QUOTA * 0.9), "nobody may have more than all"
    book.tick(1_500 + SHARE_STALE_MS)
    assert bucket.limit == pytest.approx(QUOTA * 0.9)
    book.tick(1_500 + SHARE_STALE_MS + 1_001)
    assert bucket.limit == QUOTA / 4, "cut off"
    book.set_processes(2, 20_000)
    assert bucket.limit == QUOTA / 2


def test_a_report_is_bounded_and_names_whoever_uses_most() -> None:
    book = book_of({QuotaEntity(None, DEFAULT): {PRODUCER_BYTE_RATE: 1000.0}}, processes=2)
    for n in range(DEMANDS_MAX + 500):
        bucket = book.account("u", f"c{n}", 1_000).produce
        assert bucket is not None
        bucket.use(n + 1, 1_000)
    report = book.report(2_000)
    assert report is not None
    assert len(report) == DEMANDS_MAX
    assert bucket_id((PRODUCER_BYTE_RATE, None, f"c{DEMANDS_MAX + 499}")) in report
    assert bucket_id((PRODUCER_BYTE_RATE, None, "c0")) not in report


def test_ids_of_buckets_differ_as_their_names_do() -> None:
    names = [
        ("k", "a", "b"),
        ("k", "ab", None),
        ("k", None, "ab"),
        ("k", "a", ""),
        ("k", "", "a"),
        ("ka", None, "b"),
    ]
    assert len({bucket_id(name) for name in names}) == len(names)


BUCKET = bytes(16)


def test_who_stops_using_a_quota_leaves_it_to_others() -> None:
    dealer = QuotaDealer()
    assert dealer.report("a", {BUCKET: 2.0}, 0) == {BUCKET: 1.0}
    assert dealer.report("b", {BUCKET: 2.0}, 100) == {BUCKET: 0.5}
    assert dealer.report("a", {BUCKET: 2.0}, 1_000) == {BUCKET: 0.5}
    assert dealer.report("b", {}, 1_100) == {}
    assert dealer.report("a", {BUCKET: 2.0}, 2_000) == {BUCKET: 1.0}
    assert dealer.report("a", {}, 3_000) == {}
    assert dealer.bucket_count == 0


def test_an_even_part_is_left_for_whoever_is_silent_for_a_while() -> None:
    dealer = QuotaDealer()
    dealer.report("a", {BUCKET: 2.0}, 0)
    dealer.report("b", {BUCKET: 0.1}, 0)
    assert dealer.report("a", {BUCKET: 2.0}, 2_000)[BUCKET] == pytest.approx(0.9)
    assert dealer.report("a", {BUCKET: 2.0}, SILENT_MS + 1)[BUCKET] == pytest.approx(0.5)
    assert dealer.report("a", {BUCKET: 2.0}, FORGET_MS + 1)[BUCKET] == 1.0


@given(
    st.dictionaries(
        st.binary(max_size=20) | st.just(BUCKET), st.floats(allow_nan=True, allow_infinity=True), max_size=5
    )
)
def test_what_a_process_says_breaks_nothing(demands: dict[bytes, float]) -> None:
    dealer = QuotaDealer()
    for process, now_ms in (("a", 0), ("b", 600), ("a", 1_200), ("c", 20_000)):
        for bucket, share in dealer.report(process, demands, now_ms).items():
            assert len(bucket) == 16
            assert 0 < share <= 1


# All of it together


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 5), st.sampled_from([1, 2, 3, 7]), st.floats(0.02, 1.0))
def test_processes_together_keep_the_quota_over_a_minute(
    seed: int, processes: int, clients: int, largest_s: float
) -> None:
    """Clients that always have more to send, anywhere: within a tenth of the quota, and none of it is left unused."""
    used = simulate(seed, processes, [None] * clients, largest_s)
    assert sum(used) == pytest.approx(60, rel=0.1)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 4))
def test_whoever_wants_little_gets_it_beside_one_who_wants_all(seed: int, processes: int) -> None:
    used = simulate(seed, processes, [None, 0.1, 0.2], 0.1)
    assert sum(used) == pytest.approx(60, rel=0.1)
    if processes > 2:
        assert used[1] == pytest.approx(6, rel=0.25)
        assert used[2] == pytest.approx(12, rel=0.25)


def simulate(seed: int, processes: int, clients: list[float | None], largest_s: float) -> list[float]:
    """Seconds' worth of the quota that each client used in the minute from 15 s on.

    A client is at process number (its own) modulo all, and wants that part of the quota (None: whatever it gets).
    """
    rng = random.Random(seed)
    books = [book_of(processes=processes) for _ in range(processes)]
    dealer = QuotaDealer()
    used = [0.0] * len(clients)
    events = [(rng.randrange(2_000), n, "client") for n in range(len(clients))]
    events += [(rng.randrange(250), n, "heartbeat") for n in range(processes)]
    events.sort()
    while events[0][0] < 75_000:
        now_ms, n, kind = heappop(events)
        if kind == "heartbeat":
            report = books[n].report(now_ms)
            if report is not None:
                books[n].take_shares(dealer.report(str(n), report, now_ms).items(), now_ms)
            heappush(events, (now_ms + 250, n, kind))
            continue
        bucket = books[n % processes].account("alice", "c", now_ms).produce
        assert bucket is not None
        seconds = rng.uniform(0.001, largest_s)
        if now_ms >= 15_000:
            used[n] += seconds
        wait_ms = bucket.use(seconds * QUOTA, now_ms) + rng.randrange(1, 5)
        wanted = clients[n]
        if wanted is not None:
            wait_ms = max(wait_ms, int(seconds / wanted * 1000))
        heappush(events, (now_ms + wait_ms, n, kind))
    return used
