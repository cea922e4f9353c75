"""Markers on their way: to the leader of the moment, for ever, and each known to be written once it is."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_core.ids import NodeId
from penstock_storage_node.transactions import outbox as outbox_module
from penstock_storage_node.transactions.effects import MarkersDue, MarkersWithdrawn, TopicPartitionName
from penstock_storage_node.transactions.outbox import (
    AGAIN_MS_MAX,
    AGAIN_MS_MIN,
    Key,
    Marker,
    Outbox,
    Place,
    key_of,
)

N1, N2 = NodeId(1), NodeId(2)
A, B, C = (TopicPartitionName(topic, 0) for topic in "abc")


class Rig:
    """Leaders, and what was sent and told."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.leaders: dict[TopicPartitionName, NodeId | Place] = {A: N1, B: N1, C: N2}
        self.sent: list[tuple[NodeId, Sequence[Marker]]] = []
        self.written: list[tuple[Key, tuple[TopicPartitionName, ...]]] = []
        self.scheduled = 0
        self.outbox = Outbox(
            clock_ms=lambda: self.now_ms,
            leader_of=lambda partition: self.leaders.get(partition, Place.GONE),
            send=lambda node, markers: self.sent.append((node, markers)),
            written=lambda key, partitions: self.written.append((key, tuple(partitions))),
            schedule=self._schedule,
        )

    def _schedule(self) -> None:
        self.scheduled += 1

    def turn(self) -> list[tuple[NodeId, list[tuple[int, list[str]]]]]:
        """End a turn; what it sent, as (node, [(producer id, topics)])."""
        self.sent = []
        self.outbox.end_turn()
        self.outbox.validate()
        return [
            (node, [(m.due.producer_id, [p.topic for p in m.partitions]) for m in markers])
            for node, markers in self.sent
        ]

    def later(self, ms: int) -> None:
        self.now_ms += ms
        self.outbox.tick()
        self.outbox.validate()

    def answer(self, node: NodeId, due: MarkersDue, code: ErrorCode, *partitions: TopicPartitionName) -> None:
        self.outbox.answered(node, key_of(due), [(partition, code) for partition in partitions])
        self.outbox.validate()


def due(producer_id: int = 7, *partitions: TopicPartitionName, state: int = 3, epoch: int = 5) -> MarkersDue:
    return MarkersDue(state, epoch, producer_id, 0, True, tuple(sorted(partitions or (A, B, C))), 2)


def test_one_message_for_each_node_and_turn() -> None:
    rig = Rig()
    first, second = due(7), due(8, B)
    rig.outbox.add(first)
    rig.outbox.add(second)
    assert rig.scheduled
    assert rig.turn() == [(N1, [(7, ["a", "b"]), (8, ["b"])]), (N2, [(7, ["c"])])]
    assert rig.turn() == []
    rig.answer(N1, first, ErrorCode.NONE, A, B)
    rig.answer(N2, first, ErrorCode.NONE, C)
    rig.answer(N1, second, ErrorCode.NONE, B)
    assert rig.written == [(key_of(first), (A, B)), (key_of(first), (C,)), (key_of(second), (B,))]
    assert rig.outbox.waiting() == {}


def test_a_message_is_not_larger_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "SENT_AT_ONCE_MAX", 2)
    rig = Rig()
    many = [TopicPartitionName("m", n) for n in range(5)]
    rig.leaders.update(dict.fromkeys(many, N1))
    rig.outbox.add(due(7, *many))
    assert [len(markers[0].partitions) for _, markers in (rig.turn(), rig.sent)[1]] == [2, 2, 1]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_an_error_is_tried_again_at_the_leader_of_then(code: ErrorCode) -> None:
    rig = Rig()
    one = due(7, A)
    rig.outbox.add(one)
    wait_ms = AGAIN_MS_MIN
    node, other = N1, N2
    for _ in range(9):
        assert rig.turn() == [(node, [(7, ["a"])])]
        rig.answer(node, one, code, A)
        rig.leaders[A] = other
        node, other = other, node
        rig.later(wait_ms - 1)
        assert rig.turn() == []
        rig.later(1)
        wait_ms = min(2 * wait_ms, AGAIN_MS_MAX)
    assert rig.written == []


def test_a_lost_stream_brings_back_what_was_on_its_way() -> None:
    rig = Rig()
    one = due()
    rig.outbox.add(one)
    rig.turn()
    rig.outbox.stream_lost(N1)
    # Its answers come too late, if at all.
    rig.answer(N1, one, ErrorCode.NONE, A, B)
    assert rig.written == []
    rig.later(AGAIN_MS_MIN)
    assert rig.turn() == [(N1, [(7, ["a", "b"])])]
    assert rig.outbox.waiting() == {N1: 2, N2: 1}


def test_a_leader_on_this_node_may_have_the_coordinator_end_while_it_is_sent_to() -> None:
    rig = Rig()
    mine, others = due(), due(8, C, state=4)

    def at_once(node: NodeId, markers: Sequence[Marker]) -> None:
        rig.sent.append((node, markers))
        if node == N1:
            rig.outbox.withdraw(MarkersWithdrawn(3, 5))

    rig.outbox._send = at_once
    rig.outbox.add(mine)
    rig.outbox.add(others)
    assert rig.turn() == [(N1, [(7, ["a", "b"])]), (N2, [(8, ["c"])])]
    assert rig.outbox.waiting() == {N2: 1}


def test_a_stream_may_be_lost_while_it_is_sent_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "SENT_AT_ONCE_MAX", 1)
    rig = Rig()

    def broken(node: NodeId, markers: Sequence[Marker]) -> None:
        rig.sent.append((node, markers))
        rig.outbox.stream_lost(node)

    rig.outbox._send = broken
    rig.outbox.add(due(7, A, B))
    assert rig.turn() == [(N1, [(7, ["a"])])]
    rig.later(AGAIN_MS_MIN)
    assert rig.outbox.waiting() == {None: 2}


def test_without_a_leader_it_waits_and_without_a_partition_it_is_done() -> None:
    rig = Rig()
    one = due()
    rig.leaders[A] = Place.NO_LEADER
    del rig.leaders[B]
    rig.outbox.add(one)
    assert rig.turn() == [(N2, [(7, ["c"])])]
    assert rig.written == [(key_of(one), (B,))]
    rig.later(60_000)
    assert rig.turn() == []
    rig.outbox.metadata_changed()
    assert rig.turn() == []
    rig.leaders[A] = N2
    rig.outbox.metadata_changed()
    assert rig.turn() == [(N2, [(7, ["a"])])]


def test_a_newer_epoch_of_the_producer_is_an_end_too() -> None:
    rig = Rig()
    one = due(7, A)
    rig.outbox.add(one)
    rig.turn()
    rig.answer(N1, one, ErrorCode.INVALID_PRODUCER_EPOCH, A)
    assert rig.written == [(key_of(one), (A,))]
    assert rig.outbox.ended_elsewhere_count == 1


def test_who_meets_a_newer_coordinator_waits_there_alone() -> None:
    rig = Rig()
    mine, too = due(7), due(8)
    for each in (mine, too):
        rig.outbox.add(each)
    rig.turn()
    rig.answer(N1, mine, ErrorCode.TRANSACTION_COORDINATOR_FENCED, A)
    rig.answer(N1, mine, ErrorCode.NONE, B)
    rig.answer(N1, too, ErrorCode.NONE, A, B)
    rig.answer(N2, too, ErrorCode.NONE, C)
    rig.answer(N2, mine, ErrorCode.NONE, C)
    told = [(key_of(mine), (B,)), (key_of(too), (A, B)), (key_of(too), (C,)), (key_of(mine), (C,))]
    assert rig.written == told
    # Nobody withdraws it: so nobody newer is there. It is asked for again, for as long as that takes.
    for _ in range(3):
        rig.later(AGAIN_MS_MAX - 1)
        assert rig.turn() == []
        rig.later(1)
        assert rig.turn() == [(N1, [(7, ["a"])])]
        rig.answer(N1, mine, ErrorCode.TRANSACTION_COORDINATOR_FENCED, A)
    assert rig.outbox.fenced_count == 1
    rig.later(AGAIN_MS_MAX)
    rig.turn()
    rig.answer(N1, mine, ErrorCode.NONE, A)
    assert rig.written == [*told, (key_of(mine), (A,))]
    assert rig.outbox.waiting() == {}


def test_a_coordinator_that_hears_of_its_successor_a_little_late_meets_nothing_to_be_told_of() -> None:
    """So it is with every move of a state partition that has markers on their way, be they thousands."""
    rig = Rig()
    mine = [due(producer_id) for producer_id in range(7, 27)]
    for each in mine:
        rig.outbox.add(each)
    rig.turn()
    for each in mine:
        rig.answer(N1, each, ErrorCode.TRANSACTION_COORDINATOR_FENCED, A, B)
    rig.outbox.withdraw(MarkersWithdrawn(3, 5))
    assert rig.outbox.fenced_count == 0
    assert rig.outbox.waiting() == {}


def test_what_is_withdrawn_is_not_sent_any_more() -> None:
    rig = Rig()
    one = due()
    rig.outbox.add(one)
    rig.leaders[A] = Place.NO_LEADER
    rig.turn()
    rig.answer(N1, one, ErrorCode.NOT_LEADER_OR_FOLLOWER, B)
    rig.outbox.withdraw(MarkersWithdrawn(3, 5))
    rig.outbox.validate()
    rig.later(60_000)
    rig.outbox.metadata_changed()
    assert rig.turn() == []
    assert rig.outbox.waiting() == {}
    # The next coordinator of that partition sends them under its own epoch.
    rig.outbox.add(due(epoch=6))
    with pytest.raises(InvariantBroken, match="due twice"):
        rig.outbox.add(due(epoch=6))


@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_to_it_each_is_written(seed: int) -> None:
    """Leaders move, topics go, streams break, logs refuse: at the end every marker is known to be written, and each
    that is known to be written was, or its partition is gone."""
    rng = random.Random(seed)
    rig = Rig()
    names = [TopicPartitionName(topic, n) for topic in "abcd" for n in range(3)]
    rig.leaders = {name: NodeId(rng.randint(1, 3)) for name in names}
    written: set[tuple[Key, TopicPartitionName]] = set()
    gone: set[TopicPartitionName] = set()
    wanted: set[tuple[Key, TopicPartitionName]] = set()
    flying: list[tuple[NodeId, Key, TopicPartitionName]] = []

    def turn() -> None:
        rig.turn()
        for node, markers in rig.sent:
            flying.extend((node, key_of(m.due), partition) for m in markers for partition in m.partitions)

    def deliver(calm: bool) -> None:
        node, key, partition = flying.pop(rng.randrange(len(flying)))
        code = ErrorCode.NONE
        if rig.leaders.get(partition) != node:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not calm and rng.random() < 0.3:
            code = ErrorCode.NOT_ENOUGH_REPLICAS
        else:
            written.add((key, partition))
        if not calm and rng.random() < 0.2:  # the answer is lost, and the stream with it
            flying[:] = [each for each in flying if each[0] != node]
            rig.outbox.stream_lost(node)
        else:
            rig.outbox.answered(node, key, [(partition, code)])
        rig.outbox.validate()

    for number in range(300):
        match rng.randrange(6):
            case 0:
                some = rng.sample(names, rng.randint(1, 6))
                one = due(1000 + number, *some)
                wanted |= {(key_of(one), partition) for partition in some}
                rig.outbox.add(one)
            case 1:
                name = rng.choice(names)
                if name in rig.leaders:
                    rig.leaders[name] = Place.NO_LEADER if rng.random() < 0.3 else rng.choice([N1, N2])
                if rng.random() < 0.1:
                    rig.leaders.pop(name, None)
                    gone.add(name)
                rig.outbox.metadata_changed()
            case 2:
                rig.later(rng.choice([1, 20, 500]))
            case _ if flying:
                deliver(calm=False)
        turn()
    rig.leaders = dict.fromkeys(rig.leaders, N1)
    for _ in range(2_000):
        if not rig.outbox.waiting():
            break
        rig.outbox.metadata_changed()
        rig.later(AGAIN_MS_MAX)
        turn()
        while flying:
            deliver(calm=True)
    assert rig.outbox.waiting() == {}
    told = {(key, partition) for key, partitions in rig.written for partition in partitions}
    assert told == wanted
    assert {each for each in told if each not in written} <= {each for each in told if each[1] in gone}
