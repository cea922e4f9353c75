"""A plain model of the broker's side of exactly-once writing, as decision 0073 describes it.

Every call is a generator of steps. What it writes to `ids` and `ledger` is durable at once; a step's end is where its
process may die, and what it had in its variables is gone then.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from pyspark_penstock.sink import protocol as p
from pyspark_penstock.sink.protocol import Entry, Outcome, Triple, Unit, Verdict

Steps = Generator[None, None, Any]


@dataclass
class Transaction:
    """What an id's coordinator has."""

    producer_id: int
    epoch: int = -1
    state: str = "empty"
    """empty, ongoing, prepared, committed, aborted"""
    unit: Unit | None = None
    rows: list[object] = field(default_factory=list)


@dataclass
class Record:
    """Of a sink, in the ledger's topic."""

    entry: Entry | None = None
    named: tuple[Triple, ...] = ()
    """Of the decision, until all are ended."""
    vetoed: dict[str, Triple] = field(default_factory=dict)
    """By transactional id: no decision may name these any more."""


class Fenced(Exception):
    """The transaction is another one by now."""


class Broker:
    """`bug` leaves out one rule: the tests must see that."""

    def __init__(self, bug: str = "") -> None:
        self.bug = bug
        self.ids: dict[str, Transaction] = {}
        self.ledger: dict[str, Record] = {}
        self.visible: list[object] = []
        """Rows that readers of committed records see."""
        self.decided: list[Unit] = []

    def record(self, sink: str) -> Record:
        return self.ledger.setdefault(sink, Record())

    def handle(self, call: p.Call) -> Steps:
        handler = {
            p.LookUp: self._look_up, p.Begin: self._begin, p.Append: self._append,
            p.CommitUnit: self._commit, p.ListStages: self._list, p.AbortStage: self._abort,
        }[type(call)]  # fmt: skip
        return handler(call)  # type: ignore[operator, no-any-return]

    # -- coordinators -----------------------------------------------------------------------

    def find(self, triple: Triple) -> Transaction:
        found = self.ids[triple.transactional_id]
        if (found.producer_id, found.epoch) != (triple.producer_id, triple.producer_epoch):
            raise Fenced(triple.transactional_id)
        return found

    def _begin(self, call: p.Begin) -> Steps:
        found = self.ids.setdefault(call.transactional_id, Transaction(len(self.ids) + 1))
        yield
        # It waits for its turn at the id: what is said of a transaction is said of the one that is there then.
        while found.state in ("ongoing", "prepared"):
            yield from self._settle(self._triple(call.transactional_id))
        found.epoch += 1
        found.state, found.unit, found.rows = "ongoing", call.unit, []
        return self._triple(call.transactional_id)

    def _triple(self, name: str) -> Triple:
        return Triple(name, self.ids[name].producer_id, self.ids[name].epoch)

    def _append(self, call: p.Append) -> Steps:
        yield
        found = self.find(call.triple)
        if found.state != "ongoing":
            raise Fenced(call.triple.transactional_id)
        found.rows += call.rows

    def _settle(self, triple: Triple) -> Steps:
        """End a transaction that nobody ends by a decision: at once, or as the ledger says when it is prepared."""
        found = self.find(triple)
        commits = False
        if found.state == "prepared" and self.bug != "prepared-is-ongoing":
            yield
            commits = yield from self._ask(found.unit, triple)
            yield
        self.end(triple, commits)

    def end(self, triple: Triple, commits: bool) -> None:
        """Idempotent: a transaction that is ended, or followed by another one, stays as it is."""
        found = self.ids[triple.transactional_id]
        if (found.producer_id, found.epoch) != (triple.producer_id, triple.producer_epoch):
            return
        if found.state in ("ongoing", "prepared"):
            found.state = "committed" if commits else "aborted"
            if commits:
                self.visible += found.rows

    def _abort(self, call: p.AbortStage) -> Steps:
        yield
        try:
            yield from self._settle(call.triple)
        except Fenced:
            return

    def _list(self, call: p.ListStages) -> Steps:
        yield
        return tuple(
            p.OpenStage(found.unit, self._triple(name), found.state == "prepared")
            for name, found in self.ids.items()
            if found.unit is not None
            and found.unit.sink == call.sink
            and found.state in ("ongoing", "prepared")
        )

    def time_out(self) -> Steps:
        """Every transaction's timeout has passed, prepared ones' too."""
        for name in list(self.ids):
            if self.ids[name].state in ("ongoing", "prepared"):
                yield from self._settle(self._triple(name))

    # -- the ledger's owner -----------------------------------------------------------------

    def _look_up(self, call: p.LookUp) -> Steps:
        yield
        return self.record(call.sink).entry

    def _ask(self, unit: Unit | None, triple: Triple) -> Steps:
        """Does a decision name it? If none does, from now on none will."""
        assert unit is not None
        record = self.record(unit.sink)
        if triple in record.named:
            return True
        if self.bug != "no-veto":
            record.vetoed[triple.transactional_id] = triple
        yield
        return False

    def _commit(self, call: p.CommitUnit) -> Steps:
        unit, record = call.unit, self.record(call.unit.sink)
        verdict = p.judge(unit, record.entry, call.takeover)
        if verdict is not Verdict.WRITE:
            return Outcome(verdict, record.entry)
        for triple in call.triples:
            yield
            if not self._prepare(unit, triple):
                return Outcome(Verdict.LOST, record.entry, f"{triple.transactional_id} has ended")
        yield
        if self.bug != "decides-over-it":
            yield from self.finish(unit.sink)  # at most one decision of a sink is under way
        # One turn of the owner from here on: another call may have decided meanwhile.
        verdict = p.judge(unit, record.entry, call.takeover)
        if verdict is not Verdict.WRITE and self.bug != "decide-twice":
            return Outcome(verdict, record.entry)
        lost = [triple for triple in call.triples if record.vetoed.get(triple.transactional_id) == triple]
        if lost:
            return Outcome(Verdict.LOST, record.entry, f"{lost[0].transactional_id} was given up")
        record.entry, record.named, record.vetoed = Entry(unit.query, unit.epoch), call.triples, {}
        self.decided.append(unit)
        yield
        yield from self.finish(unit.sink)
        return Outcome(Verdict.DONE, record.entry)

    def _prepare(self, unit: Unit, triple: Triple) -> bool:
        try:
            found = self.find(triple)
        except (Fenced, KeyError):
            return False
        if found.unit != unit or found.state not in ("ongoing", "prepared"):
            return False
        if self.bug != "no-prepare":
            found.state = "prepared"
        return True

    def finish(self, sink: str) -> Steps:
        """End what is decided: by who has decided, or by the next owner of the ledger."""
        record = self.record(sink)
        named = record.named
        for triple in named:
            self.end(triple, commits=True)
            yield
        if record.named == named:
            record.named = ()
