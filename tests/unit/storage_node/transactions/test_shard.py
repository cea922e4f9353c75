"""One partition of `__transaction_state`: pending transitions, held requests, barriers, markers, timers, loads."""

from __future__ import annotations

import itertools

import pytest

from penstock_core.errors import ErrorCode
from penstock_kafka.wire.primitives import Malformed
from penstock_storage_node.settings import TransactionSettings
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.records import NO_PARTITIONS, Status, TransactionValue, put_key
from penstock_storage_node.transactions.shard import HOLD_INIT_MS, HOLD_MS
from penstock_storage_node.transactions.state import COMPLETE, NO_TIMEOUT_MS, Add, Answer, End
from penstock_storage_node.transactions.transitions import LOADED_LEFT_MS, RESUMED_AT_ONCE, RETRY_MS
from unit.storage_node.transactions.transaction_rig import (
    A0,
    A1,
    B0,
    GRACE_MS,
    LATE_MS,
    NONE,
    TIMEOUT_MS,
    Rig,
    codes,
)

BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING
GONE = ErrorCode.NOT_COORDINATOR


def test_the_life_of_a_transaction_of_each_generation() -> None:
    rig = Rig()
    pair = rig.producer()
    assert pair == (1_001, 0)
    assert codes(rig.add(pair, A0, B0)) == [NONE]
    assert rig.end(pair) == [Answer(NONE, 1_001, 1)]
    assert rig.value().status is Status.COMPLETE_COMMIT
    assert [(m.producer_epoch, m.commit, m.partitions, m.transaction_version) for m in rig.sent] == [
        (1, True, (A0, B0), 2)
    ]
    pair = (1_001, 1)
    assert codes(rig.add(pair, A0, version=0), rig.end(pair, commit=False, version=0)) == [NONE, NONE]
    assert rig.value().status is Status.COMPLETE_ABORT
    assert rig.sent[-1].producer_epoch == 1
    assert not rig.sent[-1].commit
    assert rig.sent[-1].transaction_version == 0


def test_nothing_counts_before_the_high_watermark_covers_it() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.hold = True
    added = rig.add(pair, A0)
    assert codes(added) == [None]
    assert rig.value().status is Status.EMPTY
    rig.cover()
    assert codes(added) == [NONE]
    ended = rig.end(pair)
    assert codes(ended) == [None]
    assert rig.sent == []
    rig.cover()
    assert codes(ended) == [NONE]
    assert [m.partitions for m in rig.sent] == [(A0,)]
    assert rig.value().status is Status.PREPARE_COMMIT


def test_complete_is_written_after_the_last_marker() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0, A1, B0)
    rig.hold_markers = True
    rig.end(pair)
    key = (pair[0], pair[1] + 1)
    for partitions in ([A0], [A0, B0], [TopicPartitionName("other", 0)]):
        rig.shard.markers_written(*key, partitions)
        rig.settle()
        assert rig.value().status is Status.PREPARE_COMMIT
    assert rig.shard.markers() == {key: {A1}}
    rig.shard.markers_written(*pair, [A1])  # of another epoch
    rig.settle()
    assert rig.value().status is Status.PREPARE_COMMIT
    rig.shard.markers_written(*key, [A1])
    rig.settle()
    assert rig.value().status is Status.COMPLETE_COMMIT
    rig.shard.markers_written(*key, [A1])
    rig.settle()


def test_additions_that_wait_become_one_transition() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.hold_markers = True
    rig.end(pair)
    next_pair = (pair[0], pair[1] + 1)
    wanted = [TopicPartitionName("x", number) for number in range(12)]
    added = [rig.add(next_pair, partition) for partition in wanted]
    assert codes(*added) == [None] * 12
    before = len(rig.log.batches)
    rig.hold_markers = False
    rig.settle()
    assert codes(*added) == [NONE] * 12
    assert rig.value().partitions == frozenset(wanted)
    assert len(rig.log.batches) == before + 2  # COMPLETE, and one for all


def test_transitions_of_a_turn_are_one_batch_and_one_that_is_too_large_is_split() -> None:
    rig = Rig()
    rig.hold = True
    answers: list[Answer] = []
    for number in range(8):
        rig.shard.init_producer(f"t{number}", TIMEOUT_MS, answers.append)
    rig.turn()
    assert [len(batch) for batch in rig.log.batches] == [8]
    rig.log.record_bytes_max = 150
    for number in range(8, 16):
        rig.shard.init_producer(f"t{number}", TIMEOUT_MS, answers.append)
    rig.turn()
    assert [len(batch) for batch in rig.log.batches] == [8, 2, 2, 2, 2]
    rig.cover()
    assert len({answer.producer_id for answer in answers}) == 16


def test_who_meets_a_pending_transition_waits_for_a_while() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.hold = True
    rig.add(pair, A0)
    added, ended, begun = rig.add(pair, B0), rig.end(pair), rig.init()
    assert rig.shard.held_count == 3
    rig.pass_ms(HOLD_MS - 1)
    assert codes(added, ended, begun) == [None, None, None]
    rig.pass_ms(1)
    assert codes(added, ended, begun) == [BUSY, BUSY, None]
    rig.pass_ms(HOLD_INIT_MS - HOLD_MS)
    assert codes(begun) == [BUSY]
    assert rig.shard.held_count == 0


def test_a_repeated_end_that_waits_is_of_the_transaction_that_it_met() -> None:
    """Its copy must not end the one that an addition begins, which waited too, and longer."""
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0, version=0)
    rig.hold_markers = True
    rig.end(pair, version=0)
    added = rig.add(pair, B0, version=0)
    late = rig.end(pair, version=0)
    rig.hold_markers = False
    rig.settle()
    assert codes(added, late) == [NONE, NONE]
    assert rig.value().status is Status.ONGOING


def test_nothing_is_begun_for_who_is_gone() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.hold_markers = True
    rig.end(pair)
    answers: list[Answer] = []
    question = rig.shard.add("t", Add(pair[0], 1, frozenset({B0}), 2), answers.append)
    rig.shard.drop(question)
    rig.hold_markers = False
    rig.settle()
    rig.pass_ms(HOLD_MS)
    assert answers == []
    assert rig.value().status is Status.COMPLETE_COMMIT


# -- a commit before its records (decision 0179) ----------------------------------------------------


def test_a_commit_that_overtakes_its_records_is_told_to_come_again() -> None:
    rig = Rig()
    pair = rig.producer()
    for number in range(3):
        assert codes(rig.end(pair)) == [BUSY]
        assert codes(rig.add(pair, A0)) == [NONE]
        pair = (pair[0], number + 1)
        assert rig.end((pair[0], number)) == [Answer(NONE, *pair)]


def test_one_that_comes_while_the_last_ones_markers_are_written_waits_and_is_told_so_too() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.hold_markers = True
    assert codes(rig.end(pair)) == [NONE]
    pair = (pair[0], 1)
    waits = rig.end(pair)
    assert codes(waits) == [None]
    rig.pass_ms(HOLD_MS)
    assert codes(waits) == [BUSY]
    waits = rig.end(pair)
    added = rig.add(pair, B0)
    rig.hold_markers = False
    rig.settle()
    assert codes(waits, added) == [BUSY, NONE]
    assert rig.end(pair) == [Answer(NONE, pair[0], 2)]


def test_a_commit_of_nothing_is_refused_when_it_comes_again() -> None:
    rig = Rig()
    pair = rig.producer()
    assert codes(rig.end(pair), rig.end(pair)) == [BUSY, ErrorCode.INVALID_TXN_STATE]
    assert rig.end(pair, commit=False) == [Answer(NONE, pair[0], 1)]
    assert codes(rig.end((pair[0], 1)), rig.end((pair[0], 1))) == [BUSY, ErrorCode.INVALID_TXN_STATE]


def test_the_old_protocol_adds_before_it_ends_and_is_refused_at_once() -> None:
    rig = Rig()
    assert codes(rig.end(rig.producer(), version=0)) == [ErrorCode.INVALID_TXN_STATE]


# -- sentences -----------------------------------------------------------------------------------


def test_no_sentence_without_a_barrier() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.hold = True
    stale = (pair[0], pair[1] + 3)
    asked = [
        rig.add(stale, A0),
        rig.verify(pair, A0),
        rig.end((5, 0)),
        rig.end(pair, version=0),
        rig.add((5, 0), A0, name="unknown"),
    ]
    assert codes(*asked) == [None] * 5
    before = rig.value()
    rig.cover()
    expected = [FENCED, ErrorCode.TRANSACTION_ABORTABLE, UNKNOWN, ErrorCode.INVALID_TXN_STATE, UNKNOWN]
    assert codes(*asked) == expected
    assert rig.log.newest("t") == before
    assert rig.log.newest("unknown") is None


def test_one_barrier_serves_all_of_a_turn_and_a_transition_is_one() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.hold = True
    answers: list[Answer] = []
    for _ in range(5):
        rig.shard.end("t", End(pair[0], 9, True), answers.append)
    rig.turn()
    assert len(rig.log.batches) == 2
    rig.shard.init_producer("u", TIMEOUT_MS, answers.append)
    rig.shard.end("t", End(pair[0], 9, True), answers.append)
    rig.turn()
    assert [len(batch) for batch in rig.log.batches] == [1, 1, 1]
    rig.cover()
    assert [answer.error for answer in answers] == [*[FENCED] * 5, NONE, FENCED]


def test_a_barrier_does_not_undo_what_is_pending() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.hold = True
    added = rig.add(pair, A0)
    refused = rig.verify(pair, B0)
    newest = rig.log.newest("t")
    assert newest is not None
    assert newest.partitions == {A0}
    rig.cover()
    assert codes(added, refused) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert rig.value() == newest


def test_a_deposed_coordinator_sentences_nobody() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.hold = True
    asked = rig.end((pair[0], 7))
    rig.shard.close()
    assert codes(asked) == [GONE]
    rig = Rig()
    pair = rig.producer()
    rig.log.refuse = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert codes(rig.end((pair[0], 7)), rig.add(pair, A0)) == [GONE, GONE]


@pytest.mark.parametrize("ended", [True, False])
def test_a_deposed_coordinator_calls_nothing_done_that_an_old_client_asks_for(ended: bool) -> None:
    """By TV1 a producer's transactions have one epoch: who was deposed unheard has the last one's end, or partitions,
    when the client asks for the next one's. It was told that its commit is done, and nobody had heard of it."""

    def ask(rig: Rig, pair: tuple[int, int]) -> list[Answer]:
        return rig.end(pair, version=0) if ended else rig.add(pair, A0, version=0)

    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0, version=0)
    if ended:
        rig.end(pair, version=0)
    rig.hold = True
    asked = ask(rig, pair)
    assert codes(asked) == [None]
    rig.cover()
    assert codes(asked) == [NONE]
    deposed = ask(rig, pair)
    rig.shard.close()
    assert codes(deposed) == [GONE]


def test_what_a_client_of_tv2_has_ended_already_is_told_at_once() -> None:
    """Its epoch names one transaction, whoever knows of others."""
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.end(pair)
    rig.hold = True
    assert codes(rig.end(pair)) == [NONE]


def test_describe_names_what_is_there_and_is_sure_of_what_is_not() -> None:
    rig = Rig()
    rig.producer()
    rig.hold = True
    found: list[tuple[ErrorCode, TransactionValue | None]] = []
    rig.shard.describe("t", lambda *answer: found.append(answer))
    rig.shard.describe("nobody", lambda *answer: found.append(answer))
    rig.turn()
    assert found == [(NONE, rig.value())]
    rig.cover()
    assert found[1:] == [(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, None)]


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "timeout_ms", "changes", "code"),
    [
        ("", 1, {}, ErrorCode.INVALID_REQUEST),
        ("ä" * 8_193, 1, {}, ErrorCode.INVALID_REQUEST),
        ("t", 1, {"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ("t", 1, {"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ("t", 0, {}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", -1, {}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", 900_001, {}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", NO_TIMEOUT_MS, {}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", 900_000, {}, NONE),
        ("t", -1, {"two_phase": True}, NONE),
    ],
)
def test_what_a_beginning_may_ask_for(
    name: str, timeout_ms: int, changes: dict[str, int], code: ErrorCode
) -> None:
    assert codes(Rig().init(name, timeout_ms, **changes)) == [code]


def test_partitions_that_do_not_exist_are_named() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.unknown = {B0}
    assert rig.add(pair, A0, B0) == [Answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing=frozenset({B0}))]
    assert rig.value().status is Status.EMPTY


def test_new_ids_are_refused_when_the_node_is_full_and_old_ones_are_not() -> None:
    rig = Rig()
    rig.producer()
    rig.room = False
    assert codes(rig.init("new"), rig.init()) == [ErrorCode.THROTTLING_QUOTA_EXCEEDED, NONE]


def test_a_transaction_has_room_for_its_end() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.log.record_bytes_max = 2_000
    added = []
    for number in range(600):
        added += codes(rig.add(pair, TopicPartitionName("x", number)))
    assert set(added) == {NONE, ErrorCode.UNKNOWN_SERVER_ERROR}
    assert codes(rig.end(pair)) == [NONE]
    assert rig.value().status is Status.COMPLETE_COMMIT


def test_a_write_that_is_refused_changes_nothing() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.log.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    none = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert codes(rig.add(pair, A0), rig.init("new"), rig.end((pair[0], 9))) == [none, none, none]
    assert dict(rig.shard.values()).keys() == {"t"}
    rig.log.refuse = None
    assert codes(rig.add(pair, A0)) == [NONE]
    rig.hold_markers = True
    rig.end(pair)
    rig.hold_markers = False
    rig.log.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    rig.settle()
    assert rig.value().status is Status.PREPARE_COMMIT
    rig.log.refuse = None
    rig.pass_ms(RETRY_MS)
    assert rig.value().status is Status.COMPLETE_COMMIT


def test_who_needs_a_producer_id_waits_for_it() -> None:
    rig = Rig()
    rig.ids_gone = True
    first, second = rig.init("a"), rig.init("b")
    rig.pass_ms(HOLD_MS)
    rig.ids_gone = False
    rig.shard.ids_arrived()
    rig.settle()
    assert codes(first, second) == [NONE, NONE]
    rig.ids_gone = True
    third = rig.init("c")
    rig.pass_ms(HOLD_INIT_MS)
    assert codes(third) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


# -- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_that_takes_too_long_is_aborted(version: int) -> None:
    rig = Rig(version=version)
    pair = rig.producer()
    rig.add(pair, A0)
    rig.pass_ms(LATE_MS - 1)
    rig.add(pair, B0)
    assert rig.value().status is Status.ONGOING
    rig.pass_ms(1)
    assert (rig.value().status, rig.value().producer_epoch) == (Status.COMPLETE_ABORT, 1)
    assert [(m.commit, m.partitions) for m in rig.sent] == [(False, (A0, B0))]
    assert rig.shard.timed_out_count == 1
    assert codes(rig.end(pair, version=0)) == [FENCED]


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("fails_over", [False, True])
def test_a_producer_whose_own_timeouts_end_with_its_transaction_may_end_it(
    commit: bool, fails_over: bool
) -> None:
    """librdkafka gives a batch up after transaction.timeout.ms, and aborts then: fenced, it would have to end."""
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.pass_ms(TIMEOUT_MS // 2)
    if fails_over:
        rig.fail_over()
    rig.pass_ms(TIMEOUT_MS - TIMEOUT_MS // 2 + GRACE_MS - 1)
    assert codes(rig.end(pair, commit=commit)) == [NONE]
    assert rig.value().status is (Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT)
    assert rig.shard.timed_out_count == 0


def test_how_long_it_may_is_set_as_with_kafka() -> None:
    rig = Rig()
    rig.settings = TransactionSettings(timeout_interval_ms=3)
    rig.shard = rig.make_shard()
    rig.shard.loaded()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.pass_ms(TIMEOUT_MS)
    assert rig.value().status is Status.ONGOING
    rig.pass_ms(1)
    assert rig.value().status is Status.COMPLETE_ABORT


def test_a_transaction_without_timeout_stays() -> None:
    rig = Rig()
    pair = rig.producer(two_phase=True)
    rig.add(pair, A0)
    rig.pass_ms(NO_TIMEOUT_MS)
    assert rig.value().status is Status.ONGOING
    rig.fail_over()
    rig.pass_ms(NO_TIMEOUT_MS)
    assert rig.value().status is Status.ONGOING


def test_a_timeout_that_meets_a_transition_rings_after_it() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.hold = True
    rig.add(pair, B0)
    rig.pass_ms(LATE_MS)
    rig.hold = False
    rig.settle()
    rig.pass_ms(1)
    assert rig.value().status is Status.COMPLETE_ABORT


@pytest.mark.parametrize("jump_ms", [-(10**9), 0, 10**9])
def test_a_clock_that_jumps_aborts_nothing_after_a_load(jump_ms: int) -> None:
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.wall_offset_ms += jump_ms
    rig.fail_over()
    rig.settle()
    rig.pass_ms(LOADED_LEFT_MS - 1)
    assert rig.value().status is Status.ONGOING
    rig.pass_ms(LATE_MS)
    assert rig.value().status is Status.COMPLETE_ABORT


def test_ids_that_nobody_uses_expire_and_come_back_with_another_producer_id() -> None:
    rig = Rig()
    pair, open_pair = rig.producer(), rig.producer("open", two_phase=True)
    rig.add(open_pair, A0, name="open")
    rig.pass_ms(rig.settings.id_expiration_ms - 1)
    assert not rig.shard.expire()
    rig.settle()
    assert rig.value().status is Status.EMPTY
    rig.pass_ms(1)
    rig.hold = True
    rig.shard.expire()
    rig.turn()
    begun = rig.init()
    assert codes(begun) == [None]
    rig.hold = False
    rig.settle()
    assert begun[0].producer_id > open_pair[0] > pair[0]
    assert dict(rig.shard.values()).keys() == {"t", "open"}


# -- the log -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT])
def test_many_transactions_of_a_log_go_on_over_several_turns(status: Status) -> None:
    rig = Rig()
    for number in range(2 * RESUMED_AT_ONCE + 1):
        value = TransactionValue(
            status, 5_000 + number, 1, TIMEOUT_MS, rig.wall_ms(), frozenset({A0}), rig.wall_ms()
        )
        rig.put(f"t{number}", value)
    rig.hold_markers = True
    rig.fail_over()
    answers: list[Answer] = []
    turns = 0
    while rig.shard.is_loading:
        rig.shard.init_producer("new", TIMEOUT_MS, answers.append)
        rig.turn()
        turns += 1
    assert turns == 2 and set(codes(answers)) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert len(rig.due) == (0 if status is Status.ONGOING else 2 * RESUMED_AT_ONCE + 1)
    rig.hold_markers = False
    rig.settle()
    if status is Status.ONGOING:
        rig.pass_ms(LATE_MS + 1)
    ended = {value.status for _, value in rig.shard.values()}
    assert ended <= {Status.EMPTY, *COMPLETE}


def test_a_log_that_is_lost_while_its_transactions_go_on() -> None:
    rig = Rig()
    for number in range(2 * RESUMED_AT_ONCE):
        rig.put(
            f"t{number}", TransactionValue(Status.PREPARE_COMMIT, 5_000 + number, 1, 9, 9, frozenset({A0}), 9)
        )
    rig.hold_markers = True
    rig.fail_over()
    assert rig.shard.is_loading and len(rig.due) == RESUMED_AT_ONCE
    rig.shard.close()
    rig.turn()
    assert rig.due == []


def test_a_loaded_decision_waits_for_the_high_watermark() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.hold = True
    rig.end(pair)
    rig.fail_over(covered=False)
    assert rig.sent == []
    begun = rig.init()
    assert codes(begun) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    rig.cover()
    assert [(m.commit, m.partitions) for m in rig.sent] == [(True, (A0,))]
    rig.hold = False
    rig.settle()
    assert rig.value().status is Status.COMPLETE_COMMIT


@pytest.mark.parametrize("version", [0, 2])
def test_a_move_at_every_point_of_a_transaction(version: int) -> None:
    """Whatever was appended, covered or kept when the coordinator moved: who asks again gets what was asked for."""
    steps = 3
    for moved, covered, kept_all, marked in itertools.product(range(steps), *[(False, True)] * 3):
        rig = Rig()
        pair = (0, 0)
        rig.hold_markers = not marked
        for step in range(steps):
            rig.hold = step == moved
            for _ in range(2):
                if step == 0:
                    answers = rig.init()
                elif step == 1:
                    answers = rig.add(pair, A0, B0, version=version)
                else:
                    answers = rig.end(pair, version=version)
                if step != moved or not rig.hold:
                    break
                if covered:
                    rig.cover()
                rig.fail_over(None if kept_all else rig.log.committed)
                rig.hold = False
                rig.hold_markers = False
                rig.settle()
            assert codes(answers) == [NONE], (moved, covered, kept_all, step)
            if step == 0:
                pair = (answers[0].producer_id, answers[0].producer_epoch)
        rig.hold_markers = False
        rig.settle()
        assert rig.value().status is Status.COMPLETE_COMMIT
        assert {(m.commit, m.partitions) for m in rig.sent} == {(True, (A0, B0))}
        assert rig.value().producer_epoch == pair[1] + (version == 2)


def test_what_a_new_coordinator_does_with_each_state() -> None:
    rig = Rig()
    for number, status in enumerate(Status):
        if status is not Status.DEAD:
            busy = 1 <= number <= 3
            partitions = frozenset({A0}) if busy else NO_PARTITIONS
            rig.put(status.name, TransactionValue(status, 10 + number, 4, 60_000, 5, partitions, 5))
    rig.put("none", TransactionValue(Status.PREPARE_ABORT, 30, 4, 60_000, 5, NO_PARTITIONS, 5))
    rig.fail_over()
    rig.settle()
    assert {(m.producer_id, m.commit) for m in rig.sent} == {(12, True), (13, False)}
    assert {name: value.status.label for name, value in rig.shard.values()} == {
        "EMPTY": "Empty",
        "ONGOING": "Ongoing",
        "PREPARE_COMMIT": "CompleteCommit",
        "PREPARE_ABORT": "CompleteAbort",
        "COMPLETE_COMMIT": "CompleteCommit",
        "COMPLETE_ABORT": "CompleteAbort",
        "none": "CompleteAbort",
    }


def test_the_last_record_of_an_id_counts_and_damage_is_said() -> None:
    rig = Rig()
    empty = TransactionValue(Status.EMPTY, 10, 0, 60_000, 5)
    for epoch in range(3):
        rig.put("t", empty._replace(producer_epoch=epoch))
    rig.fail_over()
    assert rig.value().producer_epoch == 2
    rig.shard.close()
    rig.shard = rig.make_shard()
    for data in (b"", b"\x00\x01\x00", b"\x00\x07"):
        with pytest.raises(Malformed):
            rig.shard.replay(put_key("t"), data)
    rig.shard.replay(b"\x00\x05xx", b"")  # another kind of record
    assert rig.shard.id_count == 0


def test_two_ids_with_one_producer_id_end_one_after_the_other() -> None:
    """Only a damaged log has them; the first of them waited for ever."""
    rig = Rig()
    decided = TransactionValue(Status.PREPARE_COMMIT, 9, 4, 60_000, 5, frozenset({A0}), 5)
    for name in ("t", "u", "v"):
        rig.put(name, decided)
    rig.fail_over()
    assert len(rig.due) == 1
    rig.settle()
    assert {value.status for _, value in rig.shard.values()} == {Status.COMPLETE_COMMIT}
    assert len(rig.sent) == 3


def test_all_in_flight_is_sent_away_when_leadership_ends() -> None:
    rig = Rig()
    pair, other = rig.producer(), rig.producer("u")
    rig.ids_gone = True
    waiting_id = rig.init("new")
    rig.ids_gone = False
    rig.hold = True
    added = rig.add(pair, A0)
    held = rig.end(pair)
    doubt = rig.end((other[0], 9), name="u")
    undecided: list[Answer] = []
    rig.shard.add("u", Add(*other, frozenset({A0}), 2), undecided.append)
    rig.shard.close()
    assert codes(waiting_id, added, held, doubt, undecided) == [GONE] * 5
    rig.shard.end_turn()
    rig.log.advance(len(rig.log.batches))
    assert codes(rig.init(), rig.end(pair)) == [GONE, GONE]
    assert rig.shard.closed


def test_records_have_no_tags_before_transaction_version_1_but_what_must_not_be_lost() -> None:
    rig = Rig(version=0)
    rig.producer()
    assert rig.log.batches[-1][0].value is not None
    assert rig.log.batches[-1][0].value[:2] == b"\x00\x00"
    rig.put(
        "t", TransactionValue(Status.PREPARE_COMMIT, 1_001, 32_767, 1, 5, frozenset({A0}), 5, 1_001, 2_000, 2)
    )
    rig.hold_markers = True
    rig.fail_over()
    assert codes(rig.verify((1, 1), A0)) == [UNKNOWN]  # writes a barrier
    rig.hold_markers = False
    rig.fail_over()
    rig.settle()
    assert (rig.value().producer_id, rig.value().producer_epoch) == (2_000, 0)


def test_ids_at_rest_are_small() -> None:
    """Not a bound on the byte: what an id keeps does not grow with what it has done."""
    rig = Rig()
    pair = rig.producer()
    for epoch in range(5):
        rig.add((pair[0], epoch), A0, B0)
        rig.end((pair[0], epoch))
    entry = rig.shard._ids["t"]
    assert (entry.pending, entry.waiting, entry.timer) == (None, None, None)
    assert rig.value().partitions is NO_PARTITIONS


# -- mistakes that Kafka has made -----------------------------------------------------------------


def test_kafka_16570_who_fences_is_not_told_to_come_back() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    (answer,) = rig.init()
    assert answer.error is NONE
    assert answer.producer_id == pair[0]
    assert [m.commit for m in rig.sent] == [False]
    assert rig.shard.fenced_count == 1
    assert codes(rig.end(pair)) == [FENCED]
    # Where the markers take longer than that it is told so, and is the only one who may come back.
    rig.add((answer.producer_id, answer.producer_epoch), A0)
    rig.hold_markers = True
    fencing = rig.init()
    rig.pass_ms(HOLD_INIT_MS)
    assert codes(fencing) == [BUSY]


@pytest.mark.parametrize("version", [0, 2])
def test_kafka_19367_one_epoch_for_the_abort_and_one_for_the_producer(version: int) -> None:
    rig = Rig(version=version)
    pair = rig.producer()
    rig.add(pair, A0)
    assert rig.init()[0].producer_epoch == 2
    assert rig.sent[0].producer_epoch == 1


def test_kafka_19999_a_marker_that_is_said_to_be_done_twice_ends_one_transaction() -> None:
    """A coordinator that comes back sends markers again; whoever has a newer epoch says that it is done."""
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0, A1)
    rig.hold_markers = True
    rig.end(pair)
    rig.shard.markers_written(pair[0], 1, [A0])
    rig.fail_over()
    assert rig.sent[-1].partitions == (A0, A1)
    for _ in range(2):
        rig.shard.markers_written(pair[0], 1, [A0, A1])
        rig.settle()
    assert rig.value().status is Status.COMPLETE_COMMIT
    rig.hold_markers = False
    assert codes(rig.add((pair[0], 1), A0)) == [NONE]


def test_kafka_20090_and_20310_the_last_epoch_is_left_across_a_move() -> None:
    rig = Rig()
    rig.put("t", TransactionValue(Status.EMPTY, 50, 32_766, TIMEOUT_MS, 5))
    rig.fail_over()
    pair = (50, 32_766)
    assert codes(rig.add(pair, A0)) == [NONE]
    rig.hold_markers = True
    (answer,) = rig.end(pair)
    assert (answer.error, answer.producer_epoch) == (NONE, 0)
    rig.fail_over()
    assert (rig.sent[-1].producer_id, rig.sent[-1].producer_epoch) == (50, 32_767)
    repeated = rig.end(pair)
    rig.hold_markers = False
    rig.settle()
    assert repeated == [answer]
    rig.fail_over()
    assert rig.end(pair) == [answer]
    new_pair = (answer.producer_id, 0)
    assert codes(rig.add(new_pair, A0), rig.end(new_pair)) == [NONE, NONE]


def test_a_repeated_beginning_is_known_after_a_move() -> None:
    """KIP-360; Kafka keeps the last epoch in memory alone, and ends such a client."""
    rig = Rig()
    pair = rig.producer()
    (answer,) = rig.init(producer_id=pair[0], producer_epoch=pair[1])
    assert answer.producer_epoch == 1
    rig.fail_over()
    assert rig.init(producer_id=pair[0], producer_epoch=pair[1]) == [answer]


def test_a_producer_whose_epochs_are_used_up_goes_on_while_markers_are_written() -> None:
    # With TV2 each end takes an epoch, so this comes after 32,766 transactions; Kafka refuses what it begins next.
    rig = Rig()
    rig.put("t", TransactionValue(Status.EMPTY, 50, 32_766, TIMEOUT_MS, 5))
    rig.fail_over()
    rig.add((50, 32_766), A0)
    rig.hold_markers = True
    ended = rig.end((50, 32_766))
    assert [answer.error for answer in ended] == [NONE]
    pair = (ended[0].producer_id, ended[0].producer_epoch)
    assert pair[0] != 50 and pair[1] == 0
    added = rig.add(pair, B0)
    assert added == []
    rig.hold_markers = False
    rig.write_markers()
    rig.settle()
    assert [answer.error for answer in added] == [NONE]
    assert rig.value().status is Status.ONGOING
    assert (rig.value().producer_id, rig.value().producer_epoch) == pair


def test_what_is_given_up_before_the_last_ones_markers_are_written_fences_nobody() -> None:
    rig = Rig()
    pair = rig.producer()
    rig.add(pair, A0)
    rig.hold_markers = True
    following = rig.end(pair)[0]
    pair = (following.producer_id, following.producer_epoch)
    given_up = rig.end(pair, commit=False)
    assert given_up == []
    rig.hold_markers = False
    rig.write_markers()
    rig.settle()
    assert [answer.error for answer in given_up] == [NONE]
    assert given_up[0].producer_epoch == pair[1] + 1
