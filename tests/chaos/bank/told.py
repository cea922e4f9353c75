"""What a member tells of itself, as a part of the history that `transaction_checker` judges.

Rules: a member says what it is about to do before it does it, so that of one that was killed it is known what it cannot
have done. A transaction whose commit was never asked for ends as FAIL: nothing of it may ever be read. From the moment
in which commit is asked for it is INFO, until the member says how it ended; what a client lets be aborted was not
committed. Lines are whole or missing: the last one of a process that was killed may be cut.

A fatal error is explained when it says that the producer was fenced, and its transaction was open for longer than the
coordinator lets it be: stopped for so long, or held up by a fault. Nobody else uses the member's id, so nothing else
may fence it, and no other error may be fatal. But for one: a client of the new protocol whose commit comes after the
coordinator has aborted asks with the epoch before, as one that asks again does, and is told INVALID_TXN_STATE, as by
Kafka (TransactionCoordinator.endTransaction, retryOnEpochBump). Java's client has that for fatal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from chaos.bank.member import LATE_MS
from chaos.history import Polls, Sends, Status, Transaction, TransactionalHistory

READER_OFFSET = 1_000_000
"""From a member's number as a process to that of its reader of bookings."""
FENCED = ("fenced", "invalidproducerepoch", "invalid_producer_epoch", "older epoch")
ABORTED_BEFORE = "invalidtxnstateexception"
"""By its name in Java: librdkafka's client speaks the old protocol, and is fenced."""
ENDS_CUT_MAX = 1


@dataclass(frozen=True)
class Fatal:
    """What ended a member. `age_s` is that of its transaction; None where it had none open. `is_committing`: it had
    asked for its commit."""

    member: str
    at_s: float
    why: str
    age_s: float | None
    is_committing: bool = False

    @property
    def explanation(self) -> str:
        """What it comes of; empty when nothing that was done explains it."""
        why = self.why.lower()
        is_over = any(word in why for word in FENCED) or (self.is_committing and ABORTED_BEFORE in why)
        if is_over and self.age_s is not None and self.age_s * 1000 >= LATE_MS:
            return f"its transaction was open for {self.age_s:.1f} s, {LATE_MS / 1000:.0f} are allowed"
        return ""


@dataclass
class Told:
    """Everything that one process of a member has told."""

    member: str
    process: int
    sends: Sends = field(default_factory=Sends)
    transactions: list[Transaction] = field(default_factory=list)
    polls: Polls = field(default_factory=Polls)
    aborts: list[str] = field(default_factory=list)
    """Why its client made it abort."""
    fatal: Fatal | None = None
    is_ready: bool = False

    def into(self, history: TransactionalHistory) -> None:
        """Rows of one history, not of one process' sends."""
        first = len(history.sends)
        history.sends.extend(self.sends)
        for one in self.transactions:
            history.transactions.append(
                Transaction(one.process, one.outcome, [first + row for row in one.rows], one.reads)
            )
        history.polls.extend(self.polls)


def read_told(member: str, process: int, lines: Iterable[str]) -> Told:
    """`lines` of its stdout, in their order."""
    told = Told(member, process)
    by_value: dict[int, int] = {}
    began_s: float | None = None
    cut = 0
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            cut += 1
            assert cut <= ENDS_CUT_MAX, f"{member} said what nobody understands: {text[:200]!r}"
            continue
        what = line["what"]
        if what == "begin":
            began_s = line["s"]
            _begin(told, line, by_value)
        elif what == "read":
            _read(told, line)
        elif what == "commit":
            told.transactions[-1].outcome = Status.INFO
        elif what in ("committed", "aborted"):
            began_s = None
            told.transactions[-1].outcome = Status.OK if what == "committed" else Status.FAIL
            _delivered(told, line, by_value)
        elif what == "abort":
            told.aborts.append(line["why"])
        elif what == "fatal":
            is_committing = began_s is not None and told.transactions[-1].outcome is Status.INFO
            age_s = None if began_s is None else line["s"] - began_s
            told.fatal = Fatal(member, line["s"], line["why"], age_s, is_committing)
        elif what == "ready":
            told.is_ready = True
    return told


def _begin(told: Told, line: dict[str, Any], by_value: dict[int, int]) -> None:
    one = Transaction(told.process, Status.FAIL)
    told.transactions.append(one)
    assert line["number"] == len(told.transactions), f"{told.member} has left out a transaction: {line}"
    for value, partition in line["rows"]:
        by_value[value] = told.sends.invoke(told.process, line["number"], partition, value)
        one.rows.append(by_value[value])


def _read(told: Told, line: dict[str, Any]) -> None:
    for partition, offset, value in line["rows"]:
        told.transactions[-1].reads.append(value)
        told.polls.add(told.process + READER_OFFSET, line["number"], 0, partition, offset, value)


def _delivered(told: Told, line: dict[str, Any], by_value: dict[int, int]) -> None:
    for value, offset in line["offsets"]:
        told.sends.complete(by_value[value], Status.OK, offset)
    for value in line.get("refused", ()):
        told.sends.complete(by_value[value], Status.FAIL)
