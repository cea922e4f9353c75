"""A plain model of the broker's side of exactly-once writing, as decision 0073 describes it.

Every call is a generator of steps. What it writes to `ids` and `sinks` is durable at once, and a turn of the
coordinator lies between two yields; a step's end is where its process may die, and what it had in its variables is gone
then.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from pyspark_penstock.sink import protocol as p
from pyspark_penstock.sink.protocol import Begun, Entry, Outcome, Triple, Unit, Verdict

Steps = Generator[None, None, Any]

BUGS = (
    "check-and-decision-apart",
    "stages-after-the-decision",
    "begin-does-not-ask",
    "begin-keeps-what-is-open",
    "losers-stay-open",
    "epoch-stays-at-decision",
    "epoch-stays-at-begin",
    "commit-does-not-look-at-stages",
    "commit-does-not-ask",
)
"""Rules that may be left out, each of which some run shows to be needed."""


@dataclass
class Transaction:
    """What the coordinator has of a stage's id."""

    producer_id: int
    epoch: int = -1
    state: str = "empty"
    """empty, ongoing, committing (decided, markers missing), committed, aborted"""
    unit: Unit | None = None
    rows: list[object] = field(default_factory=list)


class Fenced(Exception):
    """The transaction is another one by now."""


class Broker:
    """`bug` leaves out one rule: the tests must see that."""

    def __init__(self, bug: str = "") -> None:
        assert bug in ("", *BUGS)
        self.bug = bug
        self.ids: dict[str, Transaction] = {}
        self.sinks: dict[str, Entry] = {}
        self.visible: list[object] = []
        """Rows that readers of committed records see."""
        self.decided: list[Unit] = []
        self.unfinished: dict[str, Entry] = {}
        """Decisions whose losers are not given up yet."""
        self.sent: list[p.Append] = []
        """What has been appended; a copy of it may come late."""

    def handle(self, call: p.Call) -> Steps:
        handler = {
            p.BeginStage: self._begin, p.Append: self._append, p.Flush: self._flush,
            p.CommitUnit: self._commit, p.AbortStage: self._abort,
        }[type(call)]  # fmt: skip
        return handler(call)  # type: ignore[operator, no-any-return]

    def has_ended(self) -> bool:
        return all(found.state not in ("ongoing", "committing") for found in self.ids.values())

    # -- stages -----------------------------------------------------------------------------

    def _judge(self, unit: Unit, takeover: bool) -> Verdict:
        return p.judge(unit, self.sinks.get(unit.sink), takeover)

    def _begin(self, call: p.BeginStage) -> Steps:
        unit, name = call.unit, f"{call.unit.sink}-{call.partition}-{call.attempt}"
        yield
        # It waits for its turn at the id, and all that follows is one turn.
        while name in self.ids and self.ids[name].state == "committing":
            self._mark(name)
            yield
        verdict = self._judge(unit, call.takeover)
        if verdict is not Verdict.WRITE and self.bug != "begin-does-not-ask":
            return Begun(verdict, None, self.sinks.get(unit.sink))
        found = self.ids.setdefault(name, Transaction(len(self.ids) + 1))
        kept = found.rows if self.bug == "begin-keeps-what-is-open" and found.state == "ongoing" else []
        if self.bug != "epoch-stays-at-begin" or found.epoch < 0:
            found.epoch += 1
        found.state, found.unit, found.rows = "ongoing", unit, list(kept)
        return Begun(Verdict.WRITE, self._triple(name), self.sinks.get(unit.sink))

    def _triple(self, name: str) -> Triple:
        return Triple(name, self.ids[name].producer_id, self.ids[name].epoch)

    def _open(self, triple: Triple) -> Transaction | None:
        found = self.ids.get(triple.transactional_id)
        if found is None or self._triple(triple.transactional_id) != triple or found.state != "ongoing":
            return None
        return found

    def _append(self, call: p.Append) -> Steps:
        yield
        found = self.ids[call.triple.transactional_id]
        if self._triple(call.triple.transactional_id) != call.triple:
            raise Fenced(call.triple.transactional_id)
        if found.state in ("ongoing", "committing"):
            if not set(call.rows) <= set(found.rows):  # else it is a repeated sequence
                found.rows += call.rows
                self.sent.append(call)
        elif found.state == "committed":
            self.visible += call.rows  # behind the marker, with nothing that would hold it back
        else:
            raise Fenced(call.triple.transactional_id)

    def _flush(self, call: p.Flush) -> Steps:
        yield
        found = self._open(call.triple)
        if found is None:
            raise Fenced(call.triple.transactional_id)
        return {("t", 0): len(found.rows)}

    def _mark(self, name: str) -> None:
        """Write the markers of a decided stage. Idempotent."""
        found = self.ids[name]
        if found.state == "committing":
            found.state = "committed"
            self.visible += found.rows

    def _give_up(self, triple: Triple) -> None:
        found = self._open(triple)
        if found is not None:
            found.state = "aborted"
            found.epoch += 1

    def _abort(self, call: p.AbortStage) -> Steps:
        yield
        self._give_up(call.triple)

    def time_out(self) -> Steps:
        """Every open transaction's timeout has passed."""
        for name in list(self.ids):
            self._give_up(self._triple(name))
            yield

    # -- units ------------------------------------------------------------------------------

    def _commit(self, call: p.CommitUnit) -> Steps:
        unit = call.unit
        yield
        if (refused := self._refused(call)) is not None:
            return refused
        if self.bug == "check-and-decision-apart":
            yield
        # What is checked above and decided here is one turn, and one batch.
        self.sinks[unit.sink] = self.unfinished[unit.sink] = Entry(unit.query, unit.epoch)
        self.decided.append(unit)
        if self.bug == "stages-after-the-decision":
            yield
        for triple in call.triples:
            found = self.ids[triple.transactional_id]
            if found.state == "ongoing":
                found.state = "committing"
                if self.bug != "epoch-stays-at-decision":
                    found.epoch += 1
        yield
        yield from self.finish()
        return Outcome(Verdict.DONE, self.sinks[unit.sink])

    def _refused(self, call: p.CommitUnit) -> Outcome | None:
        last = self.sinks.get(call.unit.sink)
        verdict = self._judge(call.unit, call.takeover)
        if verdict is not Verdict.WRITE and self.bug != "commit-does-not-ask":
            return Outcome(verdict, last)
        if self.bug == "commit-does-not-look-at-stages":
            return None
        lost = [triple for triple in call.triples if self._open(triple) is None]
        return Outcome(Verdict.LOST, last, lost[0]) if lost else None

    def finish(self) -> Steps:
        """What follows a decision, by the coordinator that has made it, or by the next one."""
        while self.unfinished:
            self._lose(*self.unfinished.popitem())
            yield
        for name in list(self.ids):
            self._mark(name)
            yield

    def _lose(self, sink: str, last: Entry) -> None:
        """Give up what no decision has named, but for later units of the same query."""
        for name, found in self.ids.items():
            unit = found.unit
            if unit is None or unit.sink != sink or self.bug == "losers-stay-open":
                continue
            if unit.query != last.query or unit.epoch <= last.epoch:
                self._give_up(self._triple(name))
