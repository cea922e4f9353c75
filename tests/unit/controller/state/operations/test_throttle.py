"""The throttle that producers steer, against latencies that copying makes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_controller.state.operations.engine.throttle import (
    BEFORE_WINDOWS,
    HIGH,
    LEARNING_WINDOWS,
    NONE,
    RATE_MAX,
    RATE_MIN,
    WINDOW_MS,
    AutoThrottle,
    Counts,
    ProduceLatency,
    effective_bytes_per_s,
    p99_s,
)
from penstock_controller.state.operations.meters import OperationMeters
from penstock_controller.state.operations.plans.eta import RATE_WITH_PRODUCERS
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NodeId
from penstock_core.limits import PRODUCE_LATENCY_BOUNDS_S
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from support.moved_cluster import MovedCluster

BOUNDS = PRODUCE_LATENCY_BOUNDS_S


def acks(count: int, latency_s: float) -> Counts:
    """So many that took so long."""
    at = next((i for i, bound in enumerate(BOUNDS) if latency_s <= bound), len(BOUNDS))
    return tuple(count if i == at else 0 for i in range(len(BOUNDS) + 1))


class Producers:
    """What nodes tell of their producers, window by window."""

    def __init__(self) -> None:
        self.latency = ProduceLatency()
        self.reports = Reports()
        self.now_ms = 0
        self.counts: dict[int, list[int]] = {}
        self.window(NONE)

    def window(self, counts: Counts, node: int = 1) -> Counts | None:
        told = self.counts.setdefault(node, [0] * len(counts))
        self.counts[node] = [a + b for a, b in zip(told, counts, strict=True)]
        self.reports.take(NodeId(node), 1, api.NodeReport(produce_counts=self.counts[node]), self.now_ms)
        closed = self.latency.take(self.reports, self.now_ms)
        self.now_ms += WINDOW_MS
        return closed

    def for_30_s(self, counts: Counts) -> AutoThrottle:
        for _ in range(BEFORE_WINDOWS):
            self.window(counts)
        return AutoThrottle(self.latency)


def test_the_p99_lies_in_the_bucket_of_the_hundredth_slowest() -> None:
    assert p99_s(NONE) is None
    assert p99_s(acks(100, 0.004)) == pytest.approx(0.0025 + 0.99 * 0.0025)
    slow = tuple(a + b for a, b in zip(acks(989, 0.001), acks(11, 0.09), strict=True))
    assert 0.05 < (p99_s(slow) or 0) <= 0.1
    assert p99_s(acks(5, 60.0)) == BOUNDS[-1]


@given(st.lists(st.floats(0.0, 12.0), min_size=1, max_size=300))
def test_the_p99_is_never_off_by_more_than_its_bucket(latencies: list[float]) -> None:
    counts = [0] * len(NONE)
    for each in latencies:
        counts = [a + b for a, b in zip(counts, acks(1, each), strict=True)]
    exact = sorted(latencies)[-(-99 * len(latencies) // 100) - 1]
    at = next((i for i, bound in enumerate(BOUNDS) if exact <= bound), len(BOUNDS))
    low, high = ([0.0, *BOUNDS][at], [*BOUNDS, BOUNDS[-1]][at])
    found = p99_s(counts)
    assert found is not None
    assert min(low, BOUNDS[-1]) <= found <= high


def test_windows_hold_what_all_nodes_told_within_them() -> None:
    producers = Producers()
    producers.window(NONE, node=2)
    producers.window(acks(10, 0.001), node=1)
    assert producers.window(acks(5, 0.1), node=2) == acks(5, 0.1)
    assert producers.latency.before() == tuple(
        a + b for a, b in zip(acks(10, 0.001), acks(5, 0.1), strict=True)
    )


def test_what_a_node_counted_before_it_was_first_heard_of_is_not_of_now() -> None:
    producers = Producers()
    assert producers.window(acks(1_000_000, 1.0), node=2) == NONE


def test_a_process_that_starts_again_counts_from_nothing() -> None:
    producers = Producers()
    producers.window(acks(50, 0.001))
    producers.counts[1] = [0] * len(NONE)
    assert producers.window(acks(7, 0.001)) == acks(7, 0.001)


def test_without_producers_it_goes_as_fast_as_it_may() -> None:
    auto = Producers().for_30_s(acks(6, 0.001))
    assert (auto.bytes_per_s, auto.before_s) == (RATE_MAX, None)
    auto.window(acks(99, 5.0))
    assert auto.bytes_per_s == RATE_MAX


def test_twice_as_slow_halves_it_and_fast_producers_let_it_grow() -> None:
    auto = Producers().for_30_s(acks(100, 0.025))
    assert auto.before_s is not None
    assert auto.target_s == 2 * auto.before_s
    began = auto.bytes_per_s
    auto.window(acks(100, 0.1))
    assert auto.bytes_per_s == began // 2
    # Between 0.75 of the target and the target.
    auto.window(tuple(a + b for a, b in zip(acks(97, 0.02), acks(3, 0.05), strict=True)))
    assert auto.bytes_per_s == began // 2
    auto.window(acks(100, 0.02))
    assert auto.bytes_per_s == began // 2 + RATE_MAX // 20
    assert (auto.worst_s or 0) > (auto.now_s or 0)


def test_just_below_the_target_it_falls_a_little() -> None:
    auto = Producers().for_30_s(acks(100, 0.025))
    began = auto.bytes_per_s
    # 47.5 ms, of twice 24.9.
    auto.window(tuple(a + b for a, b in zip(acks(9_000, 0.02), acks(1_000, 0.05), strict=True)))
    assert auto.target_s is not None
    assert HIGH * auto.target_s < (auto.now_s or 0) < auto.target_s
    assert auto.bytes_per_s == began - RATE_MAX // 20


def test_a_window_that_cannot_end_well_is_not_waited_for_and_counts_once() -> None:
    auto = Producers().for_30_s(acks(100, 0.025))
    began = auto.bytes_per_s
    auto.window(acks(100, 0.02))
    grown = auto.bytes_per_s
    assert grown > began
    auto.look(acks(99, 0.02))
    assert auto.bytes_per_s == grown
    # One of a hundred may be slow.
    auto.look(tuple(a + b for a, b in zip(acks(50, 0.02), acks(1, 0.1), strict=True)))
    assert auto.bytes_per_s == grown
    slow = tuple(a + b for a, b in zip(acks(50, 0.02), acks(2, 0.1), strict=True))
    auto.look(slow)
    auto.look(slow)
    assert auto.bytes_per_s == grown // 2
    auto.window(tuple(a + b for a, b in zip(acks(98, 0.02), acks(2, 0.1), strict=True)))
    assert auto.bytes_per_s == grown // 2
    auto.window(acks(100, 0.1))
    assert auto.bytes_per_s == grown // 4


def test_what_an_operation_would_come_to_is_known_from_who_produces() -> None:
    producers = Producers()
    assert producers.latency.expected_bytes_per_s == RATE_MAX
    producers.window(acks(3, 0.005))
    assert producers.latency.expected_bytes_per_s == RATE_MAX
    producers.window(acks(50, 0.005))
    assert producers.latency.expected_bytes_per_s == RATE_WITH_PRODUCERS
    assert Producers().for_30_s(acks(50, 0.005)).bytes_per_s == RATE_WITH_PRODUCERS


@pytest.mark.parametrize("seed", range(4))
def test_all_in_all_producers_are_held_below_the_target(seed: int) -> None:
    """Latencies that grow with the rate, looked at every second: the p99 of the whole time, not of its windows."""
    rng = random.Random(seed)
    bears = rng.uniform(8, 60) * 1024 * 1024
    auto = Producers().for_30_s(acks(2_000, 0.016))
    assert auto.target_s is not None
    whole, rates = NONE, []
    for i in range(200):
        window = NONE
        for _ in range(2):
            load = auto.bytes_per_s / bears
            half = [0] * len(NONE)
            for _ in range(400):
                latency_s = (
                    0.012 * rng.lognormvariate(0, 0.25) * (1 + max(0.0, load - 0.5) * rng.uniform(0, 2))
                )
                at = next((b for b, bound in enumerate(BOUNDS) if latency_s <= bound), len(BOUNDS))
                half[at] += 1
            window = tuple(a + b for a, b in zip(window, half, strict=True))
            auto.look(window)
        auto.window(window)
        if i >= 5:
            whole = tuple(a + b for a, b in zip(whole, window, strict=True))
            rates.append(auto.bytes_per_s)
    assert (p99_s(whole) or 0) <= auto.target_s
    assert sum(rates) / len(rates) >= min(0.4 * bears, 0.5 * RATE_MAX)


def test_ten_milliseconds_are_always_allowed() -> None:
    auto = Producers().for_30_s(acks(100, 0.001))
    assert auto.target_s is not None
    assert auto.before_s is not None
    assert auto.target_s == pytest.approx(auto.before_s + 0.010)


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(BOUNDS)), max_size=60))
def test_it_stays_between_its_bounds(windows: list[tuple[int, float]]) -> None:
    auto = Producers().for_30_s(acks(20, 0.005))
    for count, latency_s in windows:
        auto.window(acks(count, latency_s))
        assert RATE_MIN <= auto.bytes_per_s <= RATE_MAX


def test_acks_that_stay_away_are_waited_for_and_then_nobody_is_there() -> None:
    auto = Producers().for_30_s(acks(100, 0.005))
    auto.window(acks(100, 1.0))
    slow = auto.bytes_per_s
    for _ in range(BEFORE_WINDOWS - 1):
        auto.window(NONE)
        assert auto.bytes_per_s == slow
    for _ in range(30):
        auto.window(NONE)
    assert auto.bytes_per_s == RATE_MAX


def test_a_few_acks_a_window_are_judged_together() -> None:
    auto = Producers().for_30_s(acks(10, 0.005))
    began = auto.bytes_per_s
    for _ in range(9):
        auto.window(acks(1, 1.0))
    assert auto.bytes_per_s == began
    auto.window(acks(1, 1.0))
    assert auto.bytes_per_s == began // 2


def test_a_new_controller_goes_slowly_until_it_knows_what_producers_see_without() -> None:
    producers = Producers()
    auto = AutoThrottle(producers.latency)
    for _ in range(LEARNING_WINDOWS):
        assert auto.bytes_per_s == RATE_MIN
        auto.window(acks(20, 0.005))
    assert auto.before_s is not None
    assert auto.bytes_per_s > RATE_MIN


@pytest.mark.parametrize("seed", range(10))
def test_it_settles_near_what_producers_bear(seed: int) -> None:
    """Latency that grows with the rate: acks are too slow every second window at most, and copying does not starve."""
    rng = random.Random(seed)
    bears = rng.uniform(4, 60) * 1024 * 1024
    auto = Producers().for_30_s(acks(100, 0.004))
    assert auto.target_s is not None
    rates, slow = [], 0
    for i in range(300):
        load = auto.bytes_per_s / bears
        latency_s = 0.004 if load < 0.6 else 0.004 * (1 + 8 * (load - 0.6) ** 2 * rng.uniform(0.5, 4))
        auto.window(acks(200, latency_s))
        if i >= 50:
            rates.append(auto.bytes_per_s)
            slow += (auto.now_s or 0) > auto.target_s
    assert slow <= 125
    assert sum(rates) / len(rates) >= min(0.4 * bears, 0.9 * RATE_MAX)


def running(operation_id: int, **throttle: object) -> pb.OperationRecord:
    return pb.OperationRecord(
        operation_id=operation_id,
        kind="rebalance",
        state=pb.OPERATION_STATE_RUNNING,
        moves_total=1,
        throttle=pb.OperationThrottle(**throttle),  # type: ignore[arg-type]
    )


def test_the_least_of_what_operations_say_counts() -> None:
    auto = Producers().for_30_s(NONE)
    assert effective_bytes_per_s([], {}) == 0
    assert effective_bytes_per_s([running(1)], {}) == 0
    assert effective_bytes_per_s([running(1), running(2, bytes_per_s=7), running(3, bytes_per_s=5)], {}) == 5
    assert effective_bytes_per_s([running(1, auto=True)], {1: auto}) == RATE_MAX
    assert effective_bytes_per_s([running(1, auto=True), running(2, bytes_per_s=9)], {1: auto}) == 9
    assert effective_bytes_per_s([running(1, auto=True)], {}) == RATE_MIN
    waiting = running(1, bytes_per_s=5)
    waiting.state = pb.OPERATION_STATE_PENDING
    nothing = running(2, bytes_per_s=6)
    nothing.moves_total = 0
    assert effective_bytes_per_s([waiting, nothing], {}) == 0


def test_the_rate_of_one_that_is_paused_counts_as_long_as_its_moves_are_under_way() -> None:
    wanted = {("t", i): (1, 3) for i in range(8)}
    cluster, meters = MovedCluster(dict.fromkeys(wanted, (1, 2))), OperationMeters()

    def limit() -> int:
        cluster.now_ms += 1_000
        meters.observe(cluster.image, cluster.reports, cluster.now_ms)
        return meters.limit_bytes_per_s

    plan = cluster.plan("rebalance", wanted)
    plan.throttle.bytes_per_s = 200_000
    operation = cluster.start(plan)
    cluster.settle(operation)
    assert limit() == 200_000
    cluster.control(operation, api.OPERATION_CONTROL_PAUSE)
    assert limit() == 200_000, "what is under way ends at that rate"
    cluster.catch_up()
    assert limit() == 0, "it copies nothing, and others may be in need"
    cluster.control(operation, api.OPERATION_CONTROL_RESUME)
    assert limit() == 200_000
    cluster.settle(operation)
    cluster.control(operation, api.OPERATION_CONTROL_CANCEL)
    assert limit() == 200_000


def test_one_that_was_paused_before_it_had_its_turn_holds_nobody_up() -> None:
    cluster, meters = MovedCluster({("t", i): (1, 2) for i in range(3)}), OperationMeters()
    for i in range(3):
        plan = cluster.plan("rebalance", {("t", i): (1, 3)})
        plan.throttle.bytes_per_s = (900_000, 800_000, 100)[i]
        last = cluster.start(plan)
    assert cluster.operation(last).state == pb.OPERATION_STATE_PENDING
    cluster.control(last, api.OPERATION_CONTROL_PAUSE)
    meters.observe(cluster.image, cluster.reports, 0)
    assert meters.limit_bytes_per_s == 800_000
