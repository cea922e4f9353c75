"""The parts of the bank that could lie: what its books must hold, what members tell, which errors are explained."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.bank.__main__ import main
from chaos.bank.books import Booking, Order, booking, drawn_order, parsed, partition_of_account, wrong_in
from chaos.bank.faults import FAULTS, JOIN, REASSIGN, in_order, needs_of
from chaos.bank.members import Ended
from chaos.bank.orders import Books
from chaos.bank.report import lines_of, table
from chaos.bank.round import Result, Step
from chaos.bank.told import READER_OFFSET, Fatal, Told, read_told
from chaos.checker import Anomaly
from chaos.history import UNREADABLE, Status, TransactionalHistory
from chaos.transaction_checker import check_transactions

ORDERS = {number: Order(number, 12 + number, 40 + number, 5) for number in range(3)}


def done() -> list[Booking]:
    """What a reader finds when all is done."""
    rows = []
    for order in ORDERS.values():
        for side, (account, amount) in enumerate(
            ((order.source, -order.amount), (order.target, order.amount))
        ):
            value = order.number * 2 + side
            rows.append(Booking(partition_of_account(account), value, order.number, account, amount))
    return rows


def test_bookings_are_read_as_they_were_written() -> None:
    assert parsed(3, booking(7, 1, 999, -20)) == Booking(3, 7, 1, 999, -20)
    for damaged in (None, b"", b"7 1 999", b"7 1 999 -20 ", b"7 1 x 2", b"07 1 9 2", b"7 1 9 --2"):
        assert parsed(3, damaged) is None


def test_books_that_are_as_ordered_are_right() -> None:
    assert wrong_in(ORDERS, done()) == []
    shuffled = done()
    random.Random(1).shuffle(shuffled)
    assert wrong_in(ORDERS, shuffled) == []


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lambda rows: rows[2:], {"not done"}),
        (lambda rows: rows[1:], {"one side only", "sum"}),
        (lambda rows: [*rows, *(replace(one, value=one.value + 100) for one in rows[:2])], {"done more than once"}),
        (lambda rows: [*rows, replace(rows[0], order=9)], {"never ordered", "sum"}),
        (lambda rows: [replace(rows[0], partition=7), *rows[1:]], {"in another account's partition"}),
        (
            lambda rows: [replace(rows[0], amount=-6), replace(rows[1], amount=6), *rows[2:]],
            {"not as it was ordered"},
        ),
        (lambda rows: [replace(rows[0], account=24), *rows[1:]], {"not as it was ordered"}),
    ],
)  # fmt: skip
def test_books_that_are_not_as_ordered_are_found(spoil: Any, kinds: set[str]) -> None:
    assert {line.partition(":")[0] for line in wrong_in(ORDERS, spoil(done()))} == kinds


def test_an_order_moves_money_between_two_accounts() -> None:
    dice = random.Random(3)
    orders = [drawn_order(number, dice) for number in range(2_000)]
    assert all(order.source != order.target and order.amount > 0 for order in orders)
    assert len({order.source for order in orders}) > 800


def test_one_value_with_two_meanings_is_noted() -> None:
    books = Books()
    assert books.note(booking(7, 1, 5, -20)) == 7
    assert books.note(booking(7, 1, 5, -20)) == 7
    assert not books.conflicts
    assert books.note(b"what") == UNREADABLE
    assert books.note(booking(7, 2, 5, -20)) == 7
    assert len(books.conflicts) == 1


# --- what members tell -----------------------------------------------------------


def line(what: str, s: float = 1.0, **more: Any) -> str:
    return json.dumps({"s": s, "what": what, **more})


def one_transaction(number: int, *ends: str, reads: list[list[int]] | None = None) -> list[str]:
    """Two records, to partitions 0 and 1, as far as it came."""
    first = number * 10
    lines = [line("begin", number=number, rows=[[first, 0], [first + 1, 1]])]
    if reads:
        lines.append(line("read", number=number, rows=reads))
    for end in ends:
        offsets = [[first, number], [first + 1, number]] if end in ("committed", "aborted") else []
        lines.append(line(end, number=number, offsets=offsets, why="so"))
    return lines


def judged(*lines: str, polls: list[tuple[int, int, int]]) -> dict[Anomaly, int]:
    """`polls`: partition, offset and value, as a reader from the start was given them."""
    history = TransactionalHistory()
    read_told("teller", 1_000, ["", *lines][1:]).into(history)
    for partition, offset, value in polls:
        history.polls.add(1, 1, 0, partition, offset, value)
    verdict = check_transactions(history)
    return {kind: found.count for kind, found in verdict.forbidden.items()}


BOTH = [(0, 1, 10), (1, 1, 11)]


def test_what_members_tell_becomes_a_history() -> None:
    told = read_told(
        "teller",
        1_000,
        [
            line("ready"),
            line("assignment", partitions=[1]),
            *one_transaction(1, "commit", "committed"),
            *one_transaction(2, "abort", "aborted", reads=[[0, 1, 10]]),
            *one_transaction(3, "commit"),
            *one_transaction(4),
        ],
    )
    assert told.is_ready
    assert [one.outcome for one in told.transactions] == [Status.OK, Status.FAIL, Status.INFO, Status.FAIL]
    assert told.transactions[1].reads == [10]
    assert told.aborts == ["so"]
    assert list(told.sends.offset)[:4] == [1, 1, 2, 2]
    assert list(told.polls.process) == [1_000 + READER_OFFSET]
    assert judged(*one_transaction(1, "commit", "committed"), polls=BOTH) == {}


def test_rows_of_several_members_stay_their_own() -> None:
    history = TransactionalHistory()
    for process in (1_000, 1_001):
        value = process * 100
        lines = [line("begin", number=1, rows=[[value, 0]]), line("commit", number=1)]
        lines.append(line("committed", number=1, offsets=[[value, process]]))
        read_told("teller", process, lines).into(history)
    assert [history.sends.value[one.rows[0]] for one in history.transactions] == [100_000, 100_100]
    assert list(history.sends.offset) == [1_000, 1_001]


@pytest.mark.parametrize(
    ("lines", "polls", "found"),
    [
        (one_transaction(1, "abort", "aborted"), BOTH, Anomaly.ABORTED_READ),
        (one_transaction(1), BOTH, Anomaly.ABORTED_READ),
        (one_transaction(1, "commit", "committed"), BOTH[:1], Anomaly.TORN),
        (one_transaction(1, "commit"), BOTH[:1], Anomaly.TORN),
        (one_transaction(1, "commit", "committed"), [], Anomaly.UNSEEN),
        (one_transaction(1, "commit", "committed"), [*BOTH, (1, 5, 11)], Anomaly.DUPLICATE),
        (one_transaction(1, "commit", "committed", reads=[[0, 1, 10]]), BOTH, Anomaly.PRECOMMITTED_READ),
        (one_transaction(1, "commit", "committed"), [*BOTH, (1, 5, 77)], Anomaly.UNKNOWN_VALUE),
    ],
)
def test_what_is_wrong_in_it_is_found(
    lines: list[str], polls: list[tuple[int, int, int]], found: Anomaly
) -> None:
    assert found in judged(*lines, polls=polls)


def test_of_a_member_that_was_killed_only_what_commit_was_asked_for_may_be_there() -> None:
    assert judged(*one_transaction(1, "commit"), polls=[]) == {}
    assert judged(*one_transaction(1, "commit"), polls=BOTH) == {}
    assert judged(*one_transaction(1), polls=[]) == {}


def test_a_reader_that_passes_over_the_other_side_is_found() -> None:
    """While things go on: it was given one side of the second transfer, and has read on where the other one stands."""
    lines = [each for number in (1, 2, 3) for each in one_transaction(number, "commit", "committed")]

    def found(*places: tuple[int, int]) -> set[Anomaly]:
        history = TransactionalHistory()
        read_told("teller", 1_000, lines).into(history)
        whole = [(partition, offset) for partition in (0, 1) for offset in (1, 2, 3)]
        for process, rows in ((2, whole), (3, list(places))):
            for op, (partition, offset) in enumerate(rows):
                history.polls.add(process, op, 0, partition, offset, offset * 10 + partition)
        return set(check_transactions(history).forbidden)

    assert found((0, 1), (0, 2)) == set(), "it has not read the other partition yet"
    assert found((0, 1), (0, 2), (1, 1)) == set(), "nor so far"
    assert found((0, 1), (0, 2), (1, 1), (1, 3)) == {Anomaly.EXT_POLL_SKIP}


def test_the_last_line_of_a_process_that_was_killed_may_be_cut() -> None:
    lines = one_transaction(1, "commit")
    assert len(read_told("teller", 1, [*lines, lines[0][:20]]).transactions) == 1
    with pytest.raises(AssertionError, match="nobody understands"):
        read_told("teller", 1, ["what", *lines, "what"])
    with pytest.raises(AssertionError, match="left out"):
        read_told("teller", 1, one_transaction(2))


@pytest.mark.parametrize(
    ("why", "age_s", "is_explained"),
    [
        ("_FENCED: This instance has been fenced by a newer instance", 15.5, True),
        ("org.apache.kafka.common.errors.ProducerFencedException: There is a newer producer", 17.0, True),
        ("_FENCED: This instance has been fenced by a newer instance", 14.0, False),
        ("_FENCED: This instance has been fenced by a newer instance", None, False),
        ("INVALID_TXN_STATE: Producer attempted a transactional operation in an invalid state", 60.0, False),
        ("java.lang.NullPointerException", 60.0, False),
    ],
)
def test_only_who_was_too_long_in_a_transaction_may_be_fenced(
    why: str, age_s: float | None, is_explained: bool
) -> None:
    assert bool(Fatal("teller", 1.0, why, age_s).explanation) is is_explained


@pytest.mark.parametrize(
    ("name", "age_s", "asked", "is_explained"),
    [
        ("InvalidTxnStateException", 15.5, "commit", True),
        ("InvalidTxnStateException", 14.5, "commit", False),
        ("InvalidTxnStateException", 15.5, "", False),
        ("INVALID_TXN_STATE", 15.5, "commit", False),
    ],
)
def test_a_commit_after_the_abort_of_a_transaction_that_took_too_long(
    name: str, age_s: float, asked: str, is_explained: bool
) -> None:
    lines = one_transaction(1, *([asked] if asked else []))
    began_s = json.loads(lines[0])["s"]
    fatal = read_told("teller", 1, [*lines, line("fatal", s=began_s + age_s, why=name)]).fatal
    assert fatal is not None
    assert bool(fatal.explanation) is is_explained


def test_age_is_that_of_the_open_transaction() -> None:
    lines = [*one_transaction(1, "commit", "committed"), line("fatal", s=30.0, why="fenced")]
    fatal = read_told("teller", 1, lines).fatal
    assert fatal is not None and fatal.age_s is None
    fatal = read_told("teller", 1, [*one_transaction(1), line("fatal", s=30.0, why="fenced")]).fatal
    assert fatal is not None and fatal.age_s == 29.0


# --- what is done and said -------------------------------------------------------


def test_a_node_has_joined_before_all_is_moved() -> None:
    orders = set()
    for seed in range(50):
        names = [fault.name for fault in in_order(list(FAULTS), random.Random(seed))]
        assert sorted(names) == sorted(FAULTS)
        assert names.index(JOIN) < names.index(REASSIGN)
        orders.add(tuple(names))
    assert len(orders) == 50


def test_a_cluster_is_made_of_what_its_faults_need() -> None:
    every = needs_of(list(FAULTS.values()))
    assert every.network and every.shim and every.small_disk == ("node-1",)
    few = needs_of([FAULTS["leader-kill"], FAULTS["member-kill"]])
    assert not few.network and not few.shim and not few.small_disk
    assert not FAULTS["leader-kill"].missing()


def test_table_and_lines() -> None:
    ended = Ended(Told("teller-1-java", 1), 1, "stop", "OutOfMemoryError")
    assert "NOT EXPLAINED" in ended.line() and "during stop" in ended.line()
    good = Result(1, 7, "classic", steps=[Step("stop", "leader-stop", 3.0, 1.5)], orders=10)
    bad = Result(
        2, 7, "consumer", status="anomalies", anomalies={"torn-transaction": 2}, fatal=[ended.line()]
    )
    bad.not_explained = 1
    assert (good.good, bad.good) == (True, False)
    text = table([good, bad])
    assert "1.5 s, stop" in text and "torn-transaction 2" in text and "lost-write 0" in text
    assert "OutOfMemoryError" in text
    assert any("not explained" in one for one in lines_of(bad))


def test_list_and_unknown_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "member-stop" in capsys.readouterr().out
    assert main(["--only", "no-such"]) == 2


def test_every_fault_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "testing" / "chaos.md").read_text()
    assert [name for name in FAULTS if f"`{name}`" not in text] == []
