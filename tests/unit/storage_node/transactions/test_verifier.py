"""Before a transaction's first batch: guards that fit one verification only, and what is asked of whom."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.verifier import (
    AGAIN_MS,
    AGAIN_MS_MAX,
    ANSWER_MS_MAX,
    EPOCHS_MAX,
    GUARD_MS,
    Additions,
    Ask,
    Guard,
    Guards,
    Producer,
    produce_error,
)

A, B = TopicPartitionName("a", 0), TopicPartitionName("b", 0)
PID = 7


def code_of(guards: Guards, guard: Guard | None, sequence: int = 0) -> str:
    try:
        guards.check(guard, PID, sequence)
    except PenstockError as error:
        return error.code.name
    return "NONE"


# -- guards ----------------------------------------------------------------------------------


def test_only_the_guard_of_this_verification_is_taken() -> None:
    guards = Guards("a-0")
    assert code_of(guards, None) == "INVALID_TXN_STATE"
    guard = guards.guard(PID, 0, 0, 0)
    assert code_of(guards, guard) == "NONE"
    assert code_of(guards, Guard(0, 0, 0)) == "INVALID_TXN_STATE"
    guards.appended(PID, 0)
    assert code_of(guards, guard) == "INVALID_TXN_STATE"


@pytest.mark.parametrize("version", [0, 2])
def test_verified_aborted_begun_anew_and_a_stale_answer(version: int) -> None:
    guards = Guards("a-0")
    stale = guards.guard(PID, 0, 0, 0)
    guards.ended(PID, 0 if version == 0 else 1, version)
    assert code_of(guards, stale) == "INVALID_TXN_STATE"
    fresh = guards.guard(PID, 0 if version == 0 else 1, 0, 0)
    assert code_of(guards, stale) == "INVALID_TXN_STATE"
    assert code_of(guards, fresh) == "NONE"


def test_the_next_transactions_guard_outlives_the_last_ones_marker() -> None:
    # KAFKA-18575: its first batch raced with the marker.
    guards = Guards("a-0")
    following = guards.guard(PID, 1, 0, 0)
    guards.ended(PID, 1, 2)
    assert code_of(guards, following) == "NONE"


def test_the_first_that_is_appended_is_the_first_that_came() -> None:
    guards = Guards("a-0")
    first, second = guards.guard(PID, 0, 0, 0), guards.guard(PID, 0, 5, 0)
    assert first is second
    assert code_of(guards, second, 5) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert code_of(guards, first, 0) == "NONE"
    late = Guards("a-0")
    late.guard(PID, 0, 5, 0)
    assert code_of(late, late.guard(PID, 0, 0, 0), 5) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


@pytest.mark.parametrize("late", [0, 1])
def test_a_batch_that_comes_late_leaves_the_next_transactions_guard(late: int) -> None:
    # TV2: the last transaction's marker is under way, and a batch of it comes once more, when the next one verifies.
    guards = Guards("a-0")
    following = guards.guard(PID, 2, 0, 0)
    guards.guard(PID, late, 3, 0)
    guards.appended(PID, late)
    assert code_of(guards, following) == "NONE"
    guards.appended(PID, 2)
    assert len(guards) == 0


@pytest.mark.parametrize(("marker_epoch", "version"), [(1, 0), (1, 1), (2, 2), (1, 2)])
def test_a_marker_that_comes_late_leaves_the_guard_of_a_higher_epoch(marker_epoch: int, version: int) -> None:
    guards = Guards("a-0")
    following = guards.guard(PID, 2, 0, 0)
    old = guards.guard(PID, 0, 0, 0)
    guards.ended(PID, marker_epoch, version)
    assert code_of(guards, following) == "NONE"
    assert code_of(guards, old) == "INVALID_TXN_STATE"


def test_an_epoch_that_nobody_has_confirmed_refuses_no_other() -> None:
    # Who writes with epoch 9 has it out of thin air: the coordinator will say so, and epoch 3 is the true one.
    guards = Guards("a-0")
    guards.guard(PID, 9, 0, 0)
    true = guards.guard(PID, 3, 4, 0)
    assert code_of(guards, true, 4) == "NONE"
    guards.appended(PID, 3)
    assert len(guards) == 1


def test_a_refused_verification_leaves_no_sequence_behind() -> None:
    # A late batch of a transaction that is over is refused; the next transaction has the same epoch (TV1).
    guards = Guards("a-0")
    late = guards.guard(PID, 0, 3, 0)
    guards.refused(late, PID)
    following = guards.guard(PID, 0, 21, 0)
    guards.refused(late, PID)
    assert code_of(guards, following, 21) == "NONE"


def test_sequences_begin_again_after_the_last_one() -> None:
    guards = Guards("a-0")
    last = (1 << 31) - 1
    guard = guards.guard(PID, 0, last, 0)
    assert guards.guard(PID, 0, 0, 0) is guard
    assert code_of(guards, guard, last) == "NONE"
    assert code_of(guards, guard, 0) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_guards_of_a_producer_are_bounded() -> None:
    guards = Guards("a-0")
    for epoch in range(50):
        guards.guard(PID, epoch, 0, 0)
    assert len(guards) == EPOCHS_MAX


def test_guards_go_with_leadership_and_after_a_day() -> None:
    guards = Guards("a-0")
    guard = guards.guard(PID, 0, 0, 1_000)
    guards.expire(GUARD_MS + 999)
    assert code_of(guards, guard) == "NONE"
    guards.expire(GUARD_MS + 1_000)
    assert code_of(guards, guard) == "INVALID_TXN_STATE"
    guard = guards.guard(PID, 0, 0, 0)
    guards.clear()
    assert code_of(guards, guard) == "INVALID_TXN_STATE"
    assert len(guards) == 0


# -- additions -------------------------------------------------------------------------------


class Rig:
    """Coordinators, and what was sent and told."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.coordinators: dict[str, int] = {"x": 1, "y": 1, "z": 2}
        self.broken: set[int] = set()
        self.sent: list[tuple[int, Sequence[Ask]]] = []
        self.additions = Additions(
            clock_ms=lambda: self.now_ms,
            coordinator_of=self.coordinators.get,
            send=self._send,
            schedule=lambda: None,
        )

    def _send(self, node: int, asks: Sequence[Ask]) -> bool:
        if node in self.broken:
            return False
        self.sent.append((node, asks))
        return True

    def ask(self, name: str = "x", partition: TopicPartitionName = A, *, adds: bool = True) -> list[str]:
        told: list[str] = []
        producer = Producer(name, PID, 0)
        self.additions.ask(producer, partition, adds=adds, done=lambda code: told.append(code.name))
        return told

    def turn(self) -> list[tuple[int, Sequence[Ask]]]:
        self.sent = []
        self.additions.end_turn()
        return self.sent

    def later(self, ms: int) -> list[tuple[int, Sequence[Ask]]]:
        self.now_ms += ms
        self.additions.tick()
        return self.turn()


def test_asks_of_a_turn_travel_together() -> None:
    rig = Rig()
    told = [rig.ask(), rig.ask(), rig.ask(partition=B), rig.ask("y"), rig.ask("z"), rig.ask(adds=False)]
    (first, asks), (second, others) = rig.turn()
    assert (first, second) == (1, 2)
    assert [(a.producer.transactional_id, a.verify_only, a.partitions) for a in asks] == [
        ("x", False, (A, B)),
        ("y", False, (A,)),
        ("x", True, (A,)),
    ]
    assert len(others) == 1
    rig.additions.answered(asks[0].number, [(A, ErrorCode.NONE), (B, ErrorCode.PRODUCER_FENCED)])
    assert told[:3] == [["NONE"], ["NONE"], ["PRODUCER_FENCED"]]
    assert told[3:] == [[], [], []]
    assert rig.additions.waiting_count == 3
    # An answer that comes twice says nothing more.
    rig.additions.answered(asks[0].number, [(A, ErrorCode.NONE)])
    assert told[0] == ["NONE"]


def test_where_nobody_can_be_asked_producers_hear_it() -> None:
    rig = Rig()
    told = rig.ask("nobody's")
    assert rig.turn() == []
    assert told == ["COORDINATOR_NOT_AVAILABLE"]
    rig.broken.add(1)
    told = rig.ask()
    rig.turn()
    assert told == ["COORDINATOR_NOT_AVAILABLE"]
    assert rig.additions.waiting_count == 0


def test_a_lost_stream_ends_what_waits_for_it() -> None:
    rig = Rig()
    lost, kept = rig.ask(), rig.ask("z")
    rig.turn()
    rig.additions.stream_lost(1)
    assert (lost, kept) == (["COORDINATOR_NOT_AVAILABLE"], [])


def test_who_is_not_answered_is_told_so_and_a_late_answer_says_nothing_more() -> None:
    rig = Rig()
    told = rig.ask()
    ((_, asks),) = rig.turn()
    rig.later(ANSWER_MS_MAX - 1)
    assert told == []
    rig.later(1)
    assert told == ["COORDINATOR_NOT_AVAILABLE"]
    rig.additions.answered(asks[0].number, [(A, ErrorCode.NONE)])
    assert told == ["COORDINATOR_NOT_AVAILABLE"]
    assert rig.additions.waiting_count == 0


def test_a_leader_hears_which_coordinator_has_told_it() -> None:
    rig = Rig()
    told: list[tuple[str, int]] = []
    rig.additions.ask_vouched(
        Producer("x", PID, 0), A, adds=True, done=lambda code, epoch: told.append((code.name, epoch))
    )
    ((_, asks),) = rig.turn()
    rig.additions.answered(asks[0].number, [(A, ErrorCode.NONE)], 7)
    assert told == [("NONE", 7)]


def test_what_an_answer_leaves_out_is_not_known() -> None:
    rig = Rig()
    told = rig.ask(partition=B)
    ((_, asks),) = rig.turn()
    rig.additions.answered(asks[0].number, [(A, ErrorCode.NONE)])
    assert told == ["COORDINATOR_NOT_AVAILABLE"]


def test_while_the_last_transaction_ends_it_is_asked_again_for_a_while() -> None:
    # KAFKA-18654: bounced at once, and the producer slept.
    rig = Rig()
    told = rig.ask()
    for tries in range(AGAIN_MS_MAX // AGAIN_MS + 1):
        ((_, asks),) = rig.later(AGAIN_MS) if tries else rig.turn()
        rig.additions.answered(asks[0].number, [(A, ErrorCode.CONCURRENT_TRANSACTIONS)])
    assert told == ["CONCURRENT_TRANSACTIONS"]
    assert rig.later(AGAIN_MS) == []
    told = rig.ask()
    ((_, asks),) = rig.turn()
    rig.additions.answered(asks[0].number, [(A, ErrorCode.CONCURRENT_TRANSACTIONS)])
    ((_, asks),) = rig.later(AGAIN_MS)
    rig.additions.answered(asks[0].number, [(A, ErrorCode.NONE)])
    assert told == ["NONE"]


def test_who_only_verifies_is_told_at_once() -> None:
    rig = Rig()
    told = rig.ask(adds=False)
    ((_, asks),) = rig.turn()
    rig.additions.answered(asks[0].number, [(A, ErrorCode.CONCURRENT_TRANSACTIONS)])
    assert told == ["CONCURRENT_TRANSACTIONS"]


def test_a_coordinator_on_this_node_answers_while_it_is_asked() -> None:
    rig = Rig()

    def at_once(node: int, asks: Sequence[Ask]) -> bool:
        for ask in asks:
            rig.additions.answered(ask.number, [(p, ErrorCode.NONE) for p in ask.partitions])
        return True

    rig.additions._send = at_once
    told = [rig.ask(), rig.ask("y")]
    rig.additions.end_turn()
    assert told == [["NONE"], ["NONE"]]


@pytest.mark.parametrize("seed", range(10))
def test_every_ask_is_told_once(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig()
    told: list[list[str]] = []
    flying: list[tuple[int, Ask]] = []
    for step in range(400):
        healing = step > 350
        if not healing:
            told.append(rig.ask(rng.choice("xyz"), rng.choice([A, B]), adds=rng.random() < 0.7))
        if rng.random() < 0.2 and not healing:
            node = rng.choice([1, 2])
            rig.additions.stream_lost(node)
            flying = [each for each in flying if each[0] != node]
            rig.broken = {node} if rng.random() < 0.3 else set()
        flying += [(node, ask) for node, asks in rig.later(rng.choice([1, 7, 20])) for ask in asks]
        while flying and (healing or rng.random() < 0.5):
            _, ask = flying.pop(rng.randrange(len(flying)))
            codes = [ErrorCode.NONE] if healing else [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS]
            rig.additions.answered(ask.number, [(p, rng.choice(codes)) for p in ask.partitions])
    assert {len(each) for each in told} == {1}
    assert rig.additions.waiting_count == 0


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (ErrorCode.NONE, 9, ErrorCode.NONE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 13, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        # KAFKA-18042, 19690: a lower epoch met 48 in place of 47.
        (ErrorCode.PRODUCER_FENCED, 9, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 9, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_what_a_producer_is_told(code: ErrorCode, version: int, told: ErrorCode) -> None:
    assert produce_error(code, version) is told
