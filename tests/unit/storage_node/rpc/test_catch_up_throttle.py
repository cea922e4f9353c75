"""What all catch-up streams of a node take together keeps to one rate, and each of them has its turn."""

from __future__ import annotations

import heapq
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.config.catalog import FOLLOWER_RATE, LEADER_RATE, throttled_rate
from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_proto.fast.replicate import ReceivedData
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.rpc.catch_up_throttle import (
    BURST_S,
    TOLD_S,
    ByteBudget,
    CatchUpThrottle,
    Direction,
)
from penstock_storage_node.rpc.paced_inlet import PacedInlet


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def configured(*rows: tuple[str, str, str, str]) -> MetadataImage:
    image = MetadataImage()
    records = [
        pb.MetadataRecord(
            config=pb.ConfigRecord(resource_type=kind, resource_name=name, key=key, value=value)
        )
        for kind, name, key, value in rows
    ]
    return image.apply(records, 1)


def throttle(*rows: tuple[str, str, str, str]) -> tuple[CatchUpThrottle, Clock]:
    clock, registry = Clock(), PartitionRegistry()
    registry.node_id, registry.image = NodeId(1), configured(*rows)
    return CatchUpThrottle(registry, clock), clock


def transfer(
    direction: Direction, clock: Clock, streams: int, message_bytes: int, run_s: float
) -> Counter[int]:
    """Bytes by stream, of streams that always have something to send, each message taking a millisecond."""
    sent: Counter[int] = Counter()
    begun_s = clock.now_s
    line: list[tuple[float, int, float | None]] = [(begun_s, number, None) for number in range(streams)]
    heapq.heapify(line)
    while True:
        clock.now_s, number, place = heapq.heappop(line)
        if clock.now_s > begun_s + run_s:
            return sent
        place = direction.claim(message_bytes) if place is None else place
        wait_s = direction.wait_s(place)
        if wait_s > 0:
            heapq.heappush(line, (clock.now_s + min(wait_s, 1.0), number, place))
        else:
            sent[number] += message_bytes
            heapq.heappush(line, (clock.now_s + 0.001, number, None))


@given(
    streams=st.integers(1, 30),
    rate=st.integers(1_000_000, 100_000_000),
    share=st.floats(0.05, 1.0),
    idle_s=st.floats(0, 1_000),
)
def test_the_rate_is_that_of_the_node_whatever_the_number_of_streams(
    streams: int, rate: int, share: float, idle_s: float
) -> None:
    node, clock = throttle(("node", "1", LEADER_RATE, str(rate)))
    node.out.wait_s(node.out.claim(1))
    clock.now_s += idle_s
    message_bytes = int(share * rate * BURST_S)
    run_s = max(10.0, 20 * streams * message_bytes / rate)
    # A stream sends no more than a message each millisecond.
    most = min(1.0, streams * message_bytes / 0.0011 / rate)
    sent = transfer(node.out, clock, streams, message_bytes, run_s)
    assert 0.9 * most <= sum(sent.values()) / (rate * run_s) <= 1.0
    if streams > 1 and most == 1.0:
        assert max(sent.values()) - min(sent.values()) <= 3 * message_bytes


def test_the_two_directions_are_apart_and_a_cluster_wide_setting_is_of_each_node() -> None:
    node, _ = throttle(("cluster", "", FOLLOWER_RATE, "500"), ("node", "1", LEADER_RATE, "300"))
    assert (node.out.limit_bytes_per_s, node.into.limit_bytes_per_s) == (300, 500)
    image = configured(("cluster", "", FOLLOWER_RATE, "500"), ("node", "2", FOLLOWER_RATE, " 0"))
    assert throttled_rate(image, NodeId(2), FOLLOWER_RATE) == 1
    assert throttled_rate(image, NodeId(3), FOLLOWER_RATE) == 500


def test_an_operations_rate_counts_where_it_is_lower_and_for_ten_seconds() -> None:
    node, clock = throttle(("node", "1", LEADER_RATE, "3000000"))
    assert (node.out.limit_bytes_per_s, node.into.limit_bytes_per_s) == (3_000_000, 0)
    node.hear(2_000_000)
    assert (node.out.limit_bytes_per_s, node.into.limit_bytes_per_s) == (2_000_000, 2_000_000)
    node.hear(5_000_000)
    assert (node.out.limit_bytes_per_s, node.into.limit_bytes_per_s) == (3_000_000, 5_000_000)
    clock.now_s += TOLD_S - 0.001
    assert node.into.limit_bytes_per_s == 5_000_000
    clock.now_s += 0.001
    assert (node.out.limit_bytes_per_s, node.into.limit_bytes_per_s) == (3_000_000, 0)
    node.hear(1_000)
    node.hear(0)
    assert node.out.limit_bytes_per_s == 3_000_000


def operation(
    state: pb.OperationState.ValueType, moves_total: int = 3, **throttle: int | bool
) -> pb.OperationRecord:
    return pb.OperationRecord(
        operation_id=7,
        kind="node-drain",
        state=state,
        moves_total=moves_total,
        throttle=pb.OperationThrottle(**throttle),  # type: ignore[arg-type]
    )


def test_a_fixed_rate_of_an_operation_counts_with_its_record_heard_or_not() -> None:
    clock, registry = Clock(), PartitionRegistry()
    registry.node_id, registry.image = NodeId(1), MetadataImage()
    node = CatchUpThrottle(registry, clock)
    version = 0

    def becomes(record: pb.OperationRecord) -> int:
        nonlocal version
        version += 1
        registry.image = registry.image.apply([pb.MetadataRecord(operation=record)], version)
        return node.into.limit_bytes_per_s

    assert becomes(operation(pb.OPERATION_STATE_PENDING, bytes_per_s=60_000)) == 0
    assert becomes(operation(pb.OPERATION_STATE_RUNNING, bytes_per_s=60_000)) == 60_000
    node.hear(50_000)
    assert node.out.limit_bytes_per_s == 50_000
    node.hear(0)
    clock.now_s += 10 * TOLD_S
    assert node.out.limit_bytes_per_s == 60_000
    assert becomes(operation(pb.OPERATION_STATE_CANCELLING, bytes_per_s=90_000)) == 90_000
    assert becomes(operation(pb.OPERATION_STATE_RUNNING, moves_total=0, bytes_per_s=90_000)) == 0
    assert becomes(operation(pb.OPERATION_STATE_DONE, bytes_per_s=90_000)) == 0


def test_while_an_operation_is_paused_the_controllers_say_whether_its_rate_counts() -> None:
    clock, registry = Clock(), PartitionRegistry()
    registry.node_id = NodeId(1)
    node = CatchUpThrottle(registry, clock)
    for version, state in enumerate((pb.OPERATION_STATE_RUNNING, pb.OPERATION_STATE_PAUSED), 1):
        record = operation(state, bytes_per_s=90_000)
        registry.image = registry.image.apply([pb.MetadataRecord(operation=record)], version)
        node.hear(90_000)
        clock.now_s += 10 * TOLD_S
        assert node.out.limit_bytes_per_s == 90_000, (
            "its moves under way end at that rate, heard again or not"
        )
    node.hear(0)
    assert node.out.limit_bytes_per_s == 0, "none of its moves is under way"


def test_what_was_heard_of_a_rate_that_follows_producers_holds_while_its_operation_goes_on() -> None:
    clock, registry = Clock(), PartitionRegistry()
    registry.node_id = NodeId(1)
    running = operation(pb.OPERATION_STATE_RUNNING, auto=True)
    registry.image = MetadataImage().apply([pb.MetadataRecord(operation=running)], 1)
    node = CatchUpThrottle(registry, clock)
    node.hear(2_000_000)
    clock.now_s += 10 * TOLD_S
    assert node.out.limit_bytes_per_s == 2_000_000
    done = operation(pb.OPERATION_STATE_DONE, auto=True)
    registry.image = registry.image.apply([pb.MetadataRecord(operation=done)], 2)
    assert node.out.limit_bytes_per_s == 0


def test_a_rate_that_changes_counts_for_those_who_wait() -> None:
    node, clock = throttle()
    node.hear(1_000)
    place = node.out.claim(1_000_000)
    assert node.out.wait_s(place) > 900
    node.hear(10_000_000)
    assert 0 < node.out.wait_s(place) < 0.2
    clock.now_s += TOLD_S
    assert node.out.wait_s(place) == 0


def test_after_a_quiet_time_a_tenth_of_a_second_goes_at_once() -> None:
    budget = ByteBudget(0.0)
    budget.set_rate(1_000, 0.0)
    assert budget.wait_s(budget.claim(100, 3_600.0), 3_600.0) == 0
    assert budget.wait_s(budget.claim(100, 3_600.0), 3_600.0) == pytest.approx(0.1)


def test_what_was_claimed_and_not_used_is_there_for_others() -> None:
    budget = ByteBudget(0.0)
    budget.set_rate(1_000, 0.0)
    budget.claim(50_000, 0.0)
    budget.give_back(50_000)
    assert budget.wait_s(budget.claim(1_000, 0.0), 0.0) == pytest.approx(1.0)
    budget.set_rate(math.inf, 0.0)
    assert budget.wait_s(budget.claim(10**12, 0.0), 0.0) == 0


def test_a_message_is_about_as_large_as_what_may_go_at_once() -> None:
    node, _ = throttle()
    assert node.out.message_bytes(1 << 20) == 1 << 20
    node.hear(2_000_000)
    assert node.out.message_bytes(1 << 20) == 200_000
    node.hear(1)
    assert node.out.message_bytes(1 << 20) == 16 * 1024


def frame(session: int, size: int = 0, move: int | None = None, high_watermark: int = 0) -> ReceivedData:
    data = ReceivedData()
    data.session, data.move, data.high_watermark = session, move, high_watermark
    data.records = memoryview(bytes(size)) if size else None
    return data


def test_what_comes_waits_for_its_turn_in_order() -> None:
    node, clock = throttle(("node", "1", FOLLOWER_RATE, "10000"))
    taken: list[ReceivedData] = []
    inlets = [PacedInlet(node.into, taken.append, lambda _: 0) for _ in range(2)]
    frames = [frame(1), frame(1, 4_000), frame(2, 4_000), frame(1)]
    for inlet in inlets:
        inlet.put(frames)
    assert [f.session for f in taken] == [1, 1], "what carries no bytes waits behind its own stream only"
    for _ in range(4):
        clock.now_s += 0.5
        for inlet in inlets:
            inlet.put([])
    assert taken[2:].count(frames[1]) == 2 and not any(map(len, inlets))
    assert [id(f) for f in taken if f.session == 2] == [id(frames[2])] * 2


def test_a_session_that_goes_live_is_not_held_up_by_the_bytes_of_others() -> None:
    node, clock = throttle(("node", "1", FOLLOWER_RATE, "10000"))
    taken: list[tuple[int, int | None]] = []
    inlet = PacedInlet(node.into, lambda f: taken.append((f.session, f.move)), lambda _: 7)
    inlet.put([frame(1, 5_000), frame(2, 5_000, high_watermark=7), frame(1, 5_000)])
    assert not taken
    inlet.put([frame(2, move=0)])
    assert taken == [(2, None), (2, 0)]
    # It is paid for all the same, by those that wait.
    clock.now_s += 1.1
    inlet.put([])
    assert taken[2:] == [(1, None)]
    clock.now_s += 0.5
    inlet.put([])
    assert taken[2:] == [(1, None), (1, None)]


def test_a_session_that_has_just_come_to_its_end_waits_as_any_other() -> None:
    """Or many small ones would be held up by nothing: each goes to the live lane after its first bytes."""
    node, clock = throttle(("node", "1", FOLLOWER_RATE, "10000"))
    taken: list[ReceivedData] = []
    inlet = PacedInlet(node.into, taken.append, lambda _: 7)
    for session in range(10):
        inlet.put([frame(session, 5_000, high_watermark=8), frame(session, move=0, high_watermark=-1)])
    assert not taken
    for _ in range(24):
        clock.now_s += 0.05
        inlet.put([])
    assert [(f.session, f.move) for f in taken] == [(0, None), (0, 0), (1, None), (1, 0)]


def test_a_stream_that_ends_leaves_its_place_to_others() -> None:
    node, clock = throttle(("node", "1", FOLLOWER_RATE, "10000"))
    taken: list[ReceivedData] = []
    ended, other = (PacedInlet(node.into, taken.append, lambda _: 0) for _ in range(2))
    ended.put([frame(1, 1_000_000)])
    ended.clear()
    other.put([frame(1, 5_000)])
    clock.now_s += 0.6
    other.put([])
    assert len(taken) == 1 and not len(ended)
