"""One transactional id: every request in every state with every epoch, against the tables written out a second time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions import state
from penstock_storage_node.transactions.records import NO_PARTITIONS, Status, TransactionValue
from penstock_storage_node.transactions.state import (
    Add,
    Answer,
    Begin,
    Early,
    End,
    Init,
    NeedId,
    Outcome,
    Server,
    Verify,
    Wait,
    decide,
)
from unit.storage_node.transactions.transaction_rig import A0, A1, B0

PID, PREVIOUS, OTHER, NEW = 100, 90, 55, 777
EPOCHS = (0, 1, 5, 6, 32_765, 32_766, 32_767)
ASKED = (-1, 0, 1, 4, 5, 6, 7, 32_764, 32_765, 32_766, 32_767)
THERE = frozenset({A0, A1})
NOW_MS, BEGAN_MS = 5_000, 3_000
STATES = tuple(status for status in Status if status is not Status.DEAD)
BUSY = (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT)
UNKNOWN, FENCED, BAD = (
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
)


def value_of(status: Status, epoch: int = 5, **changes: Any) -> TransactionValue:
    """An id in some state."""
    partitions = THERE if status in BUSY else NO_PARTITIONS
    start_ms = -1 if status is Status.EMPTY else BEGAN_MS
    made = TransactionValue(status, PID, epoch, 60_000, 4_000, partitions, start_ms, PREVIOUS)
    return made._replace(**changes)


def seen(outcome: Outcome) -> tuple[Any, ...]:
    """An outcome, short enough to be compared with a row of a table."""
    if isinstance(outcome, Answer):
        return ("told", outcome.error, outcome.producer_id, outcome.producer_epoch)
    if isinstance(outcome, Begin):
        value, answer = outcome
        told = None if answer is None else (answer.producer_id, answer.producer_epoch)
        return (
            "begin",
            value.status,
            value.producer_id,
            value.producer_epoch,
            value.next_id,
            value.last_epoch,
            told,
        )
    if isinstance(outcome, Early):
        return ("early",)
    return ("wait",) if isinstance(outcome, Wait) else ("id",)


def told(error: ErrorCode, pid: int = -1, epoch: int = -1) -> tuple[Any, ...]:
    return ("told", error, pid, epoch)


# -- the second writing of the tables -------------------------------------------------------------

# By state: what an EndTxn of equal epoch does, and one of the epoch before; (commit, abort).
TV1 = {
    "EMPTY": ("48", "48"),
    "ONGOING": ("commit", "abort"),
    "PREPARE_COMMIT": ("51", "48"),
    "PREPARE_ABORT": ("48", "51"),
    "COMPLETE_COMMIT": ("0", "48"),
    "COMPLETE_ABORT": ("48", "0"),
}
TV2_EQUAL = {
    # 48 in Kafka at once: the records of what is committed may be behind.
    "EMPTY": ("early", "abort"),
    "ONGOING": ("commit", "abort"),
    # 90 in Kafka: who ends what it has begun since the decision was told would be fenced by its own.
    "PREPARE_COMMIT": ("51", "51"),
    "PREPARE_ABORT": ("51", "51"),
    "COMPLETE_COMMIT": ("early", "abort"),
    "COMPLETE_ABORT": ("early", "abort"),
}
TV2_BEFORE = {
    "EMPTY": ("90", "90"),
    "ONGOING": ("90", "90"),
    "PREPARE_COMMIT": ("51", "48"),
    "PREPARE_ABORT": ("48", "51"),
    "COMPLETE_COMMIT": ("0", "48"),
    "COMPLETE_ABORT": ("48", "0"),
}
PREPARE = {"commit": Status.PREPARE_COMMIT, "abort": Status.PREPARE_ABORT}


def end_by_table(
    status: Status, epoch: int, pending: bool, pid: int, asked: int, commit: bool, version: int
) -> tuple[Any, ...]:
    """EndTxn, as the guide has it."""
    if version < 2:
        if pid != PID:
            return told(UNKNOWN)
        if asked != epoch:
            return told(FENCED)
        if pending:
            return ("wait",)
        row = TV1[status.name][not commit]
        if row in PREPARE:
            return ("begin", PREPARE[row], PID, epoch, -1, -1, (PID, epoch))
    else:
        if pending:
            return ("wait",)
        overflowed = pid == PREVIOUS and asked == 32_766 and epoch == 0
        if pid != PID and not overflowed:
            return told(UNKNOWN)
        if epoch == 32_767 and asked == 32_766:
            return told(FENCED)  # no producer is told the last epoch
        if overflowed or asked == epoch - 1:
            row = TV2_BEFORE[status.name][not commit]
            if overflowed and row in ("51", "48") and status.name.startswith("PREPARE"):
                return ("wait",) if row == "51" else told(BAD)
        elif asked == epoch:
            row = TV2_EQUAL[status.name][not commit]
            if epoch == 32_767:
                row = {"51": "90", "early": "48"}.get(row, row)  # nobody was told that one
        else:
            return told(FENCED)
        if row in PREPARE:
            if epoch >= 32_766:
                return ("begin", PREPARE[row], PID, 32_767, NEW, epoch, (NEW, 0))
            return ("begin", PREPARE[row], PID, epoch + 1, -1, epoch, (PID, epoch + 1))
    if row == "51":
        return ("wait",)
    if row == "early":
        return ("early",)
    return told(ErrorCode.NONE, PID, epoch) if row == "0" else told(ErrorCode(int(row)))


def init_by_list(
    status: Status, epoch: int, last: int, pending: bool, pid: int, asked: int, version: int
) -> tuple[Any, ...]:
    """InitProducerId, as the guide has it."""
    if pending:
        return ("wait",)
    given = pid != -1
    if given and pid != PID and not (pid == PREVIOUS and asked >= 32_766):
        return told(FENCED)
    if status.name.startswith("PREPARE"):
        return ("wait",)
    if status is Status.ONGOING:
        up = min(epoch + 1, 32_767)
        if version < 2:
            return ("begin", Status.PREPARE_ABORT, PID, up, -1, -1, None)
        return ("begin", Status.PREPARE_ABORT, PID, up, NEW if epoch >= 32_766 else -1, epoch, None)
    remembered = epoch if given else -1
    if not given or asked == epoch:
        if epoch >= 32_766:
            return ("begin", Status.EMPTY, NEW, 0, -1, remembered, (NEW, 0))
        return ("begin", Status.EMPTY, PID, epoch + 1, -1, remembered, (PID, epoch + 1))
    if asked == last:
        return ("begin", Status.EMPTY, PID, epoch, -1, last, (PID, epoch))
    return told(FENCED)


# -- all of it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("status", STATES)
def test_every_end_of_a_transaction(status: Status, version: int) -> None:
    for epoch, pending, pid, asked, commit in itertools.product(
        EPOCHS, (False, True), (PID, PREVIOUS, OTHER), ASKED, (True, False)
    ):
        request = End(pid, asked, commit, version)
        found = decide(value_of(status, epoch), pending, request, Server(NOW_MS, version, NEW))
        expected = end_by_table(status, epoch, pending, pid, asked, commit, version)
        assert seen(found) == expected, (epoch, pending, request)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("status", STATES)
def test_every_new_beginning(status: Status, version: int) -> None:
    for epoch, last, pending, (pid, asked) in itertools.product(
        EPOCHS,
        (-1, 4, 32_766),
        (False, True),
        ((-1, -1), *itertools.product((PID, PREVIOUS, OTHER), ASKED[1:])),
    ):
        request = Init(7_000, pid, asked)
        current = value_of(status, epoch, last_epoch=last)
        found = decide(current, pending, request, Server(NOW_MS, version, NEW))
        expected = init_by_list(status, epoch, last, pending, pid, asked, version)
        assert seen(found) == expected, (epoch, last, pending, request)
        if isinstance(found, Begin) and found.value.status is Status.EMPTY:
            assert found.value.timeout_ms == 7_000
            assert (found.value.start_ms, found.value.previous_id) == (-1, PID)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("status", STATES)
def test_the_next_producer_id_is_told_before_it_counts(status: Status, version: int) -> None:
    # Its producer goes on at once. Kafka calls the id unknown until the markers are written, which ends a producer.
    value = value_of(status, 32_767, next_id=NEW, client_version=2)
    server = Server(NOW_MS, version)
    is_decided = status.name.startswith("PREPARE")
    ends = (End(NEW, 0, True, 2), End(NEW, 0, False, 2))
    for request in (Add(NEW, 0, THERE, 2), Verify(NEW, 0, THERE), *ends, Init(7_000, NEW, 0)):
        refused = FENCED if isinstance(request, Init) else UNKNOWN
        expected = ("wait",) if is_decided else told(refused)
        assert seen(decide(value, False, request, server)) == expected, request
    for wrong in (Add(NEW, 1, THERE, 2), Verify(OTHER, 0, THERE), End(NEW, 1, True, 2)):
        assert seen(decide(value, False, wrong, server)) == told(UNKNOWN), wrong


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("status", STATES)
def test_every_addition_and_verification(status: Status, version: int) -> None:
    decided = status.name.startswith("PREPARE")
    there = THERE if status in BUSY else NO_PARTITIONS
    for epoch, pending, pid, asked, partitions in itertools.product(
        EPOCHS, (False, True), (PID, PREVIOUS, OTHER), ASKED, ({A0}, {A0, B0}, {B0})
    ):
        wanted = frozenset(partitions)
        server = Server(NOW_MS, version)
        current = value_of(status, epoch)
        added = decide(current, pending, Add(pid, asked, wanted, version), server)
        verified = decide(current, pending, Verify(pid, asked, wanted), server)
        wrong = told(UNKNOWN) if pid != PID else told(FENCED) if asked != epoch else None
        if pending:
            assert added == Wait()
        elif wrong is not None:
            assert seen(added) == wrong
        elif decided:
            assert added == Wait()
        elif wanted <= there:
            assert added == Answer()
        else:
            assert isinstance(added, Begin)
            assert added.answer == Answer()
            assert added.value == current._replace(
                status=Status.ONGOING,
                partitions=there | wanted,
                start_ms=BEGAN_MS if status is Status.ONGOING else NOW_MS,
                update_ms=NOW_MS,
                previous_id=PID,
                client_version=version,
            )
        # What is pending is not looked at.
        if wrong is not None:
            assert seen(verified) == wrong
        elif decided:
            assert verified == Wait()
        elif wanted <= there:
            assert verified == Answer()
        else:
            assert verified == Answer(ErrorCode.TRANSACTION_ABORTABLE, missing=wanted - there)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("status", STATES)
def test_what_a_client_of_the_new_protocol_sends_by_the_old_one_is_added_once_the_version_is_lower(
    status: Status, version: int
) -> None:
    """By the old protocol none of it would be, and an earlier transaction may have had the epoch. By the new one none
    can have, and the client is dead when it is refused."""
    there = THERE if status in BUSY else NO_PARTITIONS
    server = Server(NOW_MS, version)
    for epoch, pending, pid, asked, client_version, init_version in itertools.product(
        EPOCHS, (False, True), (PID, OTHER), ASKED, (0, 2), (0, 2)
    ):
        current = value_of(status, epoch, client_version=client_version, init_version=init_version)
        is_own = (init_version if status is Status.EMPTY else client_version) == 2
        for wanted in (THERE, frozenset({B0}), THERE | {B0}):
            found = decide(current, pending, Verify(pid, asked, wanted, has_batch=True), server)
            asks_alone = decide(current, pending, Verify(pid, asked, wanted), server)
            refused = Answer(ErrorCode.TRANSACTION_ABORTABLE, missing=wanted - there)
            if is_own and version < 2 and asks_alone == refused:
                assert found == decide(current, pending, Add(pid, asked, wanted, 2), server)
                assert isinstance(found, Wait if pending else Begin)
            else:
                assert found == asks_alone


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("asks_by", [0, 2])
def test_an_epoch_is_noted_as_given_to_a_client_of_the_new_protocol_until_it_is_used(
    version: int, asks_by: int
) -> None:
    """Whatever the cluster's version is: who asks may have heard of another one."""
    server = Server(NOW_MS, version, NEW)
    init = Init(7_000, client_version=asks_by)
    again = Init(7_000, NEW, 0, client_version=asks_by)

    def after(current: TransactionValue | None, request: state.Request) -> TransactionValue:
        found = decide(current, False, request, server)
        assert isinstance(found, Begin)
        return found.value

    first = after(None, init)
    assert first.init_version == asks_by
    assert after(first, init).init_version == asks_by
    begun = after(first, Add(NEW, 0, THERE, 2))
    assert begun.init_version == 0
    assert after(first, End(NEW, 0, False, 2)).init_version == 0
    ended = state.completed(after(begun, End(NEW, 0, True)), NOW_MS)
    assert ended.init_version == 0
    second = after(ended, again)
    assert (second.producer_epoch, second.init_version) == (1, asks_by)
    # Told once more: nothing was done with it. Asked for late, after a transaction with it: not its own any more.
    assert after(second, again).init_version == asks_by
    used = state.completed(after(after(second, Add(NEW, 1, THERE)), End(NEW, 1, True)), NOW_MS)
    late = after(used, again)
    assert (late.status, late.producer_epoch, late.init_version) == (Status.EMPTY, 1, 0)


@pytest.mark.parametrize("pending", [False, True])
def test_an_id_that_nobody_knows(pending: bool) -> None:
    server = Server(NOW_MS, 2, NEW)
    for request in (Add(PID, 0, THERE), End(PID, 0, True), End(PID, 0, True, 2)):
        found = decide(None, pending, request, server)
        assert found == (Wait() if pending else Answer(UNKNOWN))
    assert decide(None, pending, Verify(PID, 0, THERE), server) == Answer(UNKNOWN)
    for init in (Init(7_000), Init(7_000, OTHER, 3)):
        found = decide(None, pending, init, server)
        fresh = TransactionValue(Status.EMPTY, NEW, 0, 7_000, NOW_MS, previous_id=NEW)
        assert found == (Wait() if pending else Begin(fresh, Answer(ErrorCode.NONE, NEW, 0)))
    assert decide(None, False, Init(7_000), Server(NOW_MS, 2)) == NeedId()


def test_no_transition_leaves_the_table_of_states_and_no_epoch_falls() -> None:
    requests: list[state.Request] = [
        *(Init(1, pid, epoch) for pid, epoch in ((-1, -1), (PID, 5), (PID, 32_766), (PREVIOUS, 32_766))),
        *(Add(PID, epoch, frozenset({B0})) for epoch in EPOCHS),
        *(End(PID, epoch, commit, tv) for epoch in ASKED for commit in (True, False) for tv in (0, 2)),
    ]
    for status, epoch, version, request in itertools.product(STATES, EPOCHS, (0, 2), requests):
        current = value_of(status, epoch, last_epoch=4)
        found = decide(current, False, request, Server(NOW_MS, version, NEW))
        if not isinstance(found, Begin):
            continue
        value = found.value
        assert status in state.PREVIOUS[value.status]
        assert value.producer_id != PID or value.producer_epoch >= epoch
        if value.status.is_decided:
            after = state.completed(value, NOW_MS + 1)
            assert value.status in state.PREVIOUS[after.status]
            assert after.partitions == NO_PARTITIONS and after.next_id == -1
            assert (after.producer_id, after.producer_epoch) == (
                (NEW, 0) if value.next_id == NEW else (PID, value.producer_epoch)
            )
            assert after.previous_id == PID


def test_who_needs_an_id_gets_none_by_itself() -> None:
    exhausted = value_of(Status.ONGOING, 32_766)
    server = Server(NOW_MS, 2)
    for commit in (True, False):
        assert decide(exhausted, False, End(PID, 32_766, commit, 2), server) == NeedId()
    assert decide(exhausted, False, Init(1), server) == NeedId()
    at_rest = exhausted._replace(status=Status.EMPTY, partitions=NO_PARTITIONS)
    assert decide(at_rest, False, Init(1), server) == NeedId()
    assert not isinstance(decide(exhausted, False, End(PID, 32_766, True), server), NeedId)


def test_a_transaction_of_nothing_begins_when_it_is_aborted() -> None:
    """TV2: a client that wrote nothing may abort all the same."""
    for status in (Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT):
        found = decide(value_of(status), False, End(PID, 5, False, 2), Server(NOW_MS, 2))
        assert isinstance(found, Begin)
        assert (found.value.start_ms, found.value.partitions) == (NOW_MS, NO_PARTITIONS)


def test_ids_expire_at_rest_only() -> None:
    for status in STATES:
        value = value_of(status)
        assert state.is_expired(value, 4_000 + 10, 10) == (status not in BUSY)
        assert not state.is_expired(value, 4_000 + 9, 10)


@pytest.mark.parametrize(("version", "noted"), [(0, 0), (1, 0), (2, 2)])
def test_what_the_server_aborts_is_noted_as_of_a_client_that_there_is(version: int, noted: int) -> None:
    """Kafka's endTransactionWithTV1 notes 0 also where `transaction.version` is 1."""
    value = state.fenced(value_of(Status.ONGOING), Server(NOW_MS, version))
    assert isinstance(value, TransactionValue)
    assert value.client_version == noted


# -- mistakes that Kafka has made -----------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_kafka_19367_an_abort_by_the_server_raises_the_epoch_once(version: int) -> None:
    for client_version in (0, 2):
        current = value_of(Status.ONGOING, client_version=client_version)
        value = state.fenced(current, Server(NOW_MS, version))
        assert isinstance(value, TransactionValue)
        assert value.producer_epoch == 6


@pytest.mark.parametrize("version", [0, 2])
def test_kafka_20090_epoch_32767_is_left(version: int) -> None:
    """A directory of Kafka's may have a transaction with that epoch."""
    server = Server(NOW_MS, version, NEW)
    value = state.fenced(value_of(Status.ONGOING, 32_767), server)
    assert isinstance(value, TransactionValue)
    assert value.producer_epoch == 32_767
    after = state.completed(value, NOW_MS)
    found = decide(after, False, Init(1), server._replace(new_id=NEW + 1))
    assert isinstance(found, Begin)
    assert found.value.producer_id > PID
    assert found.value.producer_epoch <= 1


def test_kafka_20310_the_pair_after_the_last_epoch_is_found_again() -> None:
    server = Server(NOW_MS, 2, NEW)
    request = End(PID, 32_766, True, 2)
    found = decide(value_of(Status.ONGOING, 32_766), False, request, server)
    assert isinstance(found, Begin)
    assert found.answer == Answer(ErrorCode.NONE, NEW, 0)
    assert decide(found.value, False, request, server) == Wait()
    after = state.completed(found.value, NOW_MS)
    assert decide(after, False, request, server) == Answer(ErrorCode.NONE, NEW, 0)
    again = decide(after, False, Init(1, PID, 32_766), server)
    assert isinstance(again, Begin)
    assert again.answer == Answer(ErrorCode.NONE, NEW, 0)


def test_nobody_is_told_the_last_epoch() -> None:
    """A server of TV1 fences with it; the TV2 client that asks for the same abort must not take it over."""
    fence = state.fenced(value_of(Status.ONGOING, 32_766), Server(NOW_MS, 1))
    assert isinstance(fence, TransactionValue)
    assert fence.producer_epoch == 32_767
    for current in (fence, state.completed(fence, NOW_MS)):
        assert decide(current, False, End(PID, 32_766, False, 2), Server(NOW_MS, 1)) == Answer(FENCED)
