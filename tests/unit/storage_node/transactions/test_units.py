"""Units of sinks in a shard: one batch decides a unit and its stages; verdicts, losers, refusals, loads."""

from __future__ import annotations

import pytest

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions.records import Status, read_key
from penstock_storage_node.transactions.shard import HOLD_INIT_MS
from penstock_storage_node.transactions.state import Add, Answer, UnitSaid
from penstock_storage_node.transactions.transitions import RETRY_MS
from penstock_storage_node.transactions.unit_records import Rows, Unit, read_sink_key
from penstock_storage_node.transactions.units import CommitUnit, Triple
from unit.storage_node.transactions.transaction_rig import A0, A1, B0, LATE_MS, NONE, Rig, codes

FIRST = Unit("s", "q", 0)
SECOND = Unit("s", "q", 1)
FOREIGN = Unit("s", "other", 0)
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS


def said(*lists: list[Answer]) -> list[UnitSaid | None]:
    """The verdicts of answers without error; None where there is none so far."""
    return [answers[0].verdict.said if answers and answers[0].verdict else None for answers in lists]


def test_one_batch_decides_a_unit_and_all_its_stages() -> None:
    rig = Rig()
    one = rig.staged(FIRST, "s-0-0-0", A0, A1)
    two = rig.staged(FIRST, "s-1-0-0", B0)
    rig.hold = True
    told = rig.commit(FIRST, one, two, rows=(Rows("a", 0, 7),), once=True)
    batch = rig.log.batches[-1]
    assert [read_sink_key(record.key) or read_key(record.key) for record in batch] == [
        "s",
        "s-0-0-0",
        "s-1-0-0",
    ]
    assert (told, rig.sent, rig.shard.units.last("s")) == ([], [], None)
    assert rig.value("s-0-0-0").status is Status.ONGOING
    rig.hold = False
    rig.settle()
    assert said(told) == [UnitSaid.DONE]
    last = rig.shard.units.last("s")
    assert last is not None
    assert (last.query, last.epoch, last.decided_ms, last.once) == ("q", 0, rig.wall_ms(), True)
    assert last.rows == (Rows("a", 0, 7),)
    assert told[0].verdict is not None
    assert told[0].verdict.last == last
    assert [(due.commit, due.partitions, due.producer_epoch) for due in rig.sent] == [
        (True, (A0, A1), one.producer_epoch + 1),
        (True, (B0,), two.producer_epoch + 1),
    ]
    assert {rig.value(name).status for name in ("s-0-0-0", "s-1-0-0")} == {Status.COMPLETE_COMMIT}
    assert rig.value("s-0-0-0").unit is None


def test_verdicts_say_what_the_sink_has_decided() -> None:
    rig = Rig()
    for unit in (FIRST, SECOND):
        rig.commit(unit, rig.staged(unit, "s-0-0-0", A0))
    for ask in (rig.stage, rig.commit):
        assert said(ask(SECOND), ask(FIRST), ask(FOREIGN)) == [
            UnitSaid.DONE,
            UnitSaid.STALE,
            UnitSaid.FOREIGN,
        ]
    assert said(rig.commit(FOREIGN, takeover=True), rig.commit(SECOND)) == [UnitSaid.DONE, UnitSaid.FOREIGN]
    assert len(rig.sent) == 2


def test_a_verdict_waits_for_a_write_behind_the_question() -> None:
    rig = Rig()
    rig.commit(FIRST, rig.staged(FIRST, "s-0-0-0", A0))
    lost = rig.staged(SECOND, "s-0-0-0")
    rig.hold = True
    asked = [
        rig.stage(FIRST),
        rig.commit(FIRST),
        rig.stage(FOREIGN, "s-1-0-0"),
        rig.commit(SECOND, lost._replace(producer_epoch=9)),
    ]
    assert codes(*asked) == [None] * 4
    rig.shard.close()
    assert codes(*asked) == [ErrorCode.NOT_COORDINATOR] * 4


def test_a_unit_one_of_whose_stages_is_gone_is_lost_and_nothing_is_decided() -> None:
    rig = Rig()
    one, two = rig.staged(FIRST, "s-0-0-0", A0), rig.staged(FIRST, "s-1-0-0", B0)
    rig.pass_ms(10)
    other = rig.staged(FIRST, "s-1-0-0")  # the same task again
    for triple in (two, Triple("s-9-0-0", 1, 1), two._replace(producer_id=1)):
        told = rig.commit(FIRST, one, triple)
        assert said(told) == [UnitSaid.LOST]
        assert told[0].verdict is not None
        assert told[0].verdict.lost == triple.transactional_id
    assert rig.shard.units.last("s") is None
    assert rig.value("s-0-0-0").status is Status.ONGOING
    assert said(rig.commit(FIRST, one, other)) == [UnitSaid.DONE]


def test_a_stage_of_another_unit_does_not_count() -> None:
    rig = Rig()
    triple = rig.staged(SECOND, "s-0-0-0", A0)
    for unit in (FIRST, FOREIGN):
        assert said(rig.commit(unit, triple)) == [UnitSaid.LOST]


def test_a_stage_without_rows_ends_with_the_decision_and_without_markers() -> None:
    rig = Rig()
    empty, full = rig.staged(FIRST, "s-0-0-0"), rig.staged(FIRST, "s-1-0-0", A0)
    assert said(rig.commit(FIRST, empty, full)) == [UnitSaid.DONE]
    assert [due.partitions for due in rig.sent] == [(A0,)]
    value = rig.value("s-0-0-0")
    assert (value.status, value.unit, value.producer_epoch) == (Status.EMPTY, None, empty.producer_epoch + 1)
    # What its task still has under way begins nothing.
    assert codes(rig.add(empty[1:], A0, name="s-0-0-0")) == [ErrorCode.PRODUCER_FENCED]


def test_a_unit_without_stages_is_decided() -> None:
    rig = Rig()
    assert said(rig.commit(FIRST), rig.commit(FIRST)) == [UnitSaid.DONE, UnitSaid.DONE]


def test_what_a_decision_leaves_over_is_aborted_but_for_later_units() -> None:
    rig = Rig()
    chosen = rig.staged(FIRST, "s-0-0-0", A0)
    rig.staged(FIRST, "s-0-1-0", A1)
    rig.staged(FIRST, "s-1-0-0")
    rig.staged(FOREIGN, "s-2-0-0", B0)
    later = rig.staged(SECOND, "s-3-0-0", B0)
    elsewhere = rig.staged(Unit("s2", "q", 0), "s2-0-0-0", B0)
    assert said(rig.commit(FIRST, chosen)) == [UnitSaid.DONE]
    statuses = {name: value.status for name, value in rig.shard.values()}
    assert statuses == {
        "s-0-0-0": Status.COMPLETE_COMMIT,
        "s-0-1-0": Status.COMPLETE_ABORT,
        "s-1-0-0": Status.EMPTY,
        "s-2-0-0": Status.COMPLETE_ABORT,
        "s-3-0-0": Status.ONGOING,
        "s2-0-0-0": Status.ONGOING,
    }
    assert rig.shard.units.given_up_count == 3
    state = rig.shard.units.describe("s")
    assert state is not None
    assert [stage.triple for stage in state.open] == [later]
    assert said(rig.commit(SECOND, later), rig.commit(Unit("s2", "q", 0), elsewhere)) == [UnitSaid.DONE] * 2


def test_a_loser_with_an_addition_under_way_is_aborted_after_it() -> None:
    rig = Rig()
    chosen, loser = rig.staged(FIRST, "s-0-0-0", A0), rig.staged(FIRST, "s-0-1-0", A1)
    rig.hold = True
    told = rig.commit(FIRST, chosen)
    added = rig.add(loser[1:], B0, name="s-0-1-0")
    rig.cover(len(rig.log.batches) - 1)
    assert said(told) == [UnitSaid.DONE]
    assert codes(added) == [None]
    rig.hold = False
    rig.settle()
    assert codes(added) == [NONE]
    assert rig.value("s-0-1-0").status is Status.COMPLETE_ABORT


def test_a_commit_waits_for_an_addition_to_its_stage() -> None:
    rig = Rig()
    triple = rig.staged(FIRST, "s-0-0-0", A0)
    rig.hold = True
    rig.add(triple[1:], B0, name="s-0-0-0")
    told = rig.commit(FIRST, triple)
    assert rig.shard.held_count == 1
    rig.hold = False
    rig.settle()
    assert said(told) == [UnitSaid.DONE]
    assert [due.partitions for due in rig.sent] == [(A0, B0)]


def test_who_asks_while_a_decision_is_not_covered_waits() -> None:
    rig = Rig()
    triple = rig.staged(FIRST, "s-0-0-0", A0)
    rig.hold = True
    first = rig.commit(FIRST, triple)
    again, begun, next_one = rig.commit(FIRST, triple), rig.stage(FIRST), rig.stage(SECOND, "s-1-0-0")
    assert codes(first, again, begun, next_one) == [None] * 4
    rig.hold = False
    rig.settle()
    assert said(first, again, begun, next_one) == [UnitSaid.DONE, UnitSaid.DONE, UnitSaid.DONE, None]
    assert codes(next_one) == [NONE]
    assert len([record for batch in rig.log.batches for record in batch if read_sink_key(record.key)]) == 1


def test_who_waits_for_too_long_is_told_to_come_again() -> None:
    rig = Rig()
    triple = rig.staged(FIRST, "s-0-0-0", A0)
    rig.hold = True
    first, again = rig.commit(FIRST, triple), rig.commit(FIRST, triple)
    rig.pass_ms(HOLD_INIT_MS)
    assert codes(first, again) == [None, BUSY]


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_a_log_that_refuses_leaves_everything_as_it_was(refused: ErrorCode, told: ErrorCode) -> None:
    rig = Rig()
    one, two = rig.staged(FIRST, "s-0-0-0", A0), rig.staged(FIRST, "s-1-0-0")
    rig.log.refuse = refused
    answers = rig.commit(FIRST, one, two)
    assert codes(answers) == [told]
    rig.log.refuse = None
    assert rig.shard.units.last("s") is None
    assert {value.status for _, value in rig.shard.values()} == {Status.ONGOING, Status.EMPTY}
    assert said(rig.commit(FIRST, one, two)) == [UnitSaid.DONE]


def test_a_unit_that_is_too_large_is_refused_as_a_whole() -> None:
    rig = Rig()
    triples = [rig.staged(FIRST, f"s-{number}-0-0", A0, A1) for number in range(10)]
    rig.log.record_bytes_max = 500
    (answer,) = rig.commit(FIRST, *triples)
    assert answer.error is ErrorCode.MESSAGE_TOO_LARGE
    assert "10 stages" in answer.reason
    assert "500" in answer.reason
    assert "\n" not in answer.reason
    rig.settle()
    assert rig.shard.units.last("s") is None
    assert {value.status for _, value in rig.shard.values()} == {Status.ONGOING}
    assert rig.sent == []


def test_a_stage_times_out_as_any_transaction_and_then_its_unit_is_lost() -> None:
    rig = Rig()
    one, two = rig.staged(FIRST, "s-0-0-0", A0), rig.staged(FIRST, "s-1-0-0")
    rig.pass_ms(LATE_MS + 1)
    assert rig.value("s-0-0-0").status is Status.COMPLETE_ABORT
    assert said(rig.commit(FIRST, one, two), rig.commit(FIRST, two)) == [UnitSaid.LOST, UnitSaid.DONE]


def test_a_timeout_that_comes_with_a_refused_decision_is_kept() -> None:
    rig = Rig()
    triple = rig.staged(FIRST, "s-0-0-0", A0)
    rig.pass_ms(LATE_MS - 1)
    rig.shard.unit("s", _commit(triple), lambda _: None)
    rig.log.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    rig.now_ms += 2
    rig.shard.tick()
    rig.settle()
    rig.log.refuse = None
    rig.pass_ms(RETRY_MS)
    assert rig.value("s-0-0-0").status is Status.COMPLETE_ABORT


def _commit(*triples: Triple) -> CommitUnit:
    return CommitUnit(FIRST, triples)


def test_an_abort_ends_a_stage_and_only_while_it_is_that_one() -> None:
    rig = Rig()
    full, empty = rig.staged(FIRST, "s-0-0-0", A0), rig.staged(FIRST, "s-1-0-0")
    for triple in (full._replace(producer_epoch=7), Triple("s-9-0-0", 1, 1)):
        assert codes(rig.abort_stage("s", triple)) == [NONE]
    assert codes(rig.abort_stage("other", full)) == [NONE]
    assert rig.value("s-0-0-0").status is Status.ONGOING
    assert codes(rig.abort_stage("s", full), rig.abort_stage("s", empty)) == [NONE, NONE]
    assert rig.value("s-0-0-0").status is Status.COMPLETE_ABORT
    assert rig.shard.units.describe("s") is None
    assert said(rig.commit(FIRST, full), rig.commit(FIRST, empty)) == [UnitSaid.LOST, UnitSaid.LOST]


def test_an_abort_changes_nothing_of_what_is_decided() -> None:
    rig = Rig()
    triple = rig.staged(FIRST, "s-0-0-0", A0)
    rig.hold = True
    told, aborted = rig.commit(FIRST, triple), rig.abort_stage("s", triple)
    rig.hold = False
    rig.settle()
    assert said(told) == [UnitSaid.DONE]
    assert codes(aborted) == [NONE]
    assert [due.commit for due in rig.sent] == [True]


def test_a_plain_producer_takes_the_id_out_of_its_unit() -> None:
    rig = Rig()
    rig.staged(FIRST, "s-0-0-0", A0)
    pair = rig.producer("s-0-0-0")
    assert rig.value("s-0-0-0").unit is None
    assert rig.shard.units.describe("s") is None
    assert said(rig.commit(FIRST, Triple("s-0-0-0", *pair))) == [UnitSaid.LOST]


@pytest.mark.parametrize("covered", [False, True])
def test_a_decision_survives_a_move_whole(covered: bool) -> None:
    rig = Rig()
    one, two = rig.staged(FIRST, "s-0-0-0", A0), rig.staged(FIRST, "s-1-0-0", B0)
    loser, later = rig.staged(FIRST, "s-1-1-0", A1), rig.staged(SECOND, "s-2-0-0", A1)
    assert loser
    rig.hold = rig.hold_markers = True
    told = rig.commit(FIRST, one, two)
    if covered:
        rig.cover()
    rig.sent.clear()
    rig.fail_over()
    rig.hold = rig.hold_markers = False
    rig.settle()
    assert codes(told) == [NONE if covered else ErrorCode.NOT_COORDINATOR]
    assert [(due.commit, due.partitions) for due in rig.sent] == [
        (True, (A0,)),
        (True, (B0,)),
        (False, (A1,)),
    ]
    assert said(rig.commit(FIRST, one, two)) == [UnitSaid.DONE]
    assert rig.value("s-1-1-0").status is Status.COMPLETE_ABORT
    assert said(rig.commit(SECOND, later)) == [UnitSaid.DONE]


def test_a_decision_that_is_lost_with_its_leader_has_never_been() -> None:
    rig = Rig()
    triple = rig.staged(FIRST, "s-0-0-0", A0)
    rig.hold = True
    rig.commit(FIRST, triple)
    rig.fail_over(rig.log.committed)
    rig.hold = False
    rig.settle()
    assert rig.shard.units.last("s") is None
    assert said(rig.commit(FIRST, triple)) == [UnitSaid.DONE]


def test_epochs_near_their_end_change_the_producer_id_with_the_begin() -> None:
    rig = Rig()
    rig.staged(FIRST, "s-0-0-0", A0)
    value = rig.value("s-0-0-0")._replace(
        status=Status.COMPLETE_ABORT, producer_epoch=32_764, partitions=frozenset(), unit=None
    )
    rig.put("s-0-0-0", value)
    rig.fail_over()
    told = []
    for epoch in range(3):
        unit = FIRST._replace(epoch=epoch)
        triple = rig.staged(unit, "s-0-0-0", A0)
        told.append((triple.producer_id == value.producer_id, triple.producer_epoch))
        rig.ids_gone = True  # a decision takes none
        assert said(rig.commit(unit, triple)) == [UnitSaid.DONE]
        rig.ids_gone = False
    assert told == [(True, 32_765), (False, 0), (False, 2)]


def test_a_cluster_of_an_older_transaction_version_has_no_units() -> None:
    rig = Rig(version=1)
    for answers in (rig.stage(FIRST), rig.commit(FIRST)):
        (answer,) = answers
        assert answer.error is ErrorCode.UNSUPPORTED_VERSION
        assert "transaction.version=2" in answer.reason
    assert rig.log.batches == []


@pytest.mark.parametrize("timeout_ms", [0, 900_001])
def test_a_stage_lasts_no_longer_than_a_transaction_may(timeout_ms: int) -> None:
    (answer,) = Rig().stage(FIRST, timeout_ms=timeout_ms)
    assert answer.error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert "transaction.max.timeout.ms" in answer.reason


def test_entries_are_for_ever_but_those_of_writes_that_nobody_repeats() -> None:
    rig = Rig()
    rig.commit(FIRST)
    once = Unit("one-off", "q", 0)
    rig.commit(once, once=True)
    rig.pass_ms(rig.settings.id_expiration_ms - 10)
    rig.shard.expire()
    rig.settle()
    assert rig.shard.units.names() == ["s", "one-off"]
    rig.pass_ms(10)
    while rig.shard.expire():
        pass
    rig.settle()
    assert rig.shard.units.names() == ["s"]
    rig.fail_over()
    assert rig.shard.units.names() == ["s"]


def test_a_sink_is_described() -> None:
    rig = Rig()
    found: list[object] = []
    rig.shard.describe_sink("s", lambda error, state: found.append((error, state)))
    assert found == []  # behind a barrier
    rig.settle()
    assert found == [(NONE, None)]
    one, empty = rig.staged(FIRST, "s-0-0-0", A0), rig.staged(FIRST, "s-1-0-0")
    state = rig.shard.units.describe("s")
    assert state is not None
    assert (state.entry, state.ending) == (None, 0)
    assert [(stage.triple, stage.unit, stage.start_ms) for stage in state.open] == [
        (one, FIRST, rig.wall_ms()),
        (empty, FIRST, -1),
    ]
    rig.hold_markers = True
    rig.commit(FIRST, one, empty)
    state = rig.shard.units.describe("s")
    assert state is not None
    assert (state.ending, state.open) == (1, ())
    rig.hold_markers = False
    rig.settle()
    state = rig.shard.units.describe("s")
    assert state is not None
    assert state.ending == 0
    rig.shard.close()
    rig.shard.describe_sink("s", lambda error, state: found.append((error, state)))
    assert found[-1] == (ErrorCode.NOT_COORDINATOR, None)


def test_who_asked_and_is_gone_has_nothing_begun() -> None:
    rig = Rig()
    triple = rig.staged(FIRST, "s-0-0-0", A0)
    rig.hold = True
    rig.add(triple[1:], B0, name="s-0-0-0")
    answers: list[Answer] = []
    question = rig.shard.unit("s", _commit(triple), answers.append)
    rig.shard.drop(question)
    rig.hold = False
    rig.settle()
    assert (answers, rig.shard.units.last("s")) == ([], None)


def test_a_node_that_is_full_takes_no_new_sink() -> None:
    rig = Rig()
    rig.room = False
    assert codes(rig.commit(FIRST), rig.stage(FIRST)) == [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 2


def test_a_barrier_never_says_what_a_decision_says_that_is_not_written() -> None:
    rig = Rig()
    triple = rig.staged(FIRST, "s-0-0-0", A0)
    others = [rig.staged(FIRST, f"s-{number}-0-0", A0) for number in range(1, 10)]
    rig.log.record_bytes_max = 500
    refused: list[Answer] = []
    stale: list[Answer] = []
    rig.shard.unit("s", _commit(triple, *others), refused.append)
    rig.shard.add("s-0-0-0", Add(triple.producer_id, 9, frozenset({A1}), 2), stale.append)
    rig.settle()
    assert codes(refused, stale) == [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.PRODUCER_FENCED]
    newest = rig.log.newest("s-0-0-0")
    assert newest is not None
    assert newest.status is Status.ONGOING


def test_a_loser_whose_end_the_log_refuses_is_ended_later() -> None:
    rig = Rig()
    chosen, loser = rig.staged(FIRST, "s-0-0-0", A0), rig.staged(FIRST, "s-0-1-0")
    rig.hold = True
    rig.commit(FIRST, chosen)
    rig.cover()
    rig.hold = False
    rig.log.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
    rig.settle()
    # Its task goes on meanwhile, and the log refuses that too.
    assert codes(rig.add(loser[1:], A1, name="s-0-1-0")) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    rig.log.refuse = None
    rig.pass_ms(RETRY_MS)
    assert rig.shard.units.describe("s") is not None
    assert rig.value("s-0-1-0").unit is None
