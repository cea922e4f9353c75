"""Units of sinks in a shard: what a sink has decided last, its stages, and decisions under way (decision 0073).

A unit's stages are transactional ids of the same shard, marked with it (`Init.unit`). What is decided of a unit is one
batch: the sink's new entry, and the end of every stage that counts. It is all or nothing, in the log and in memory.

* An entry counts once the high watermark covers it. Whoever asks for the sink meanwhile waits, and so does a commit for
  a transition of one of its stages that is pending, e.g. an addition.
* A stage that nothing was added to is there as long as its epoch is: it ends with the decision, without markers.
* Every verdict but that of the decision itself goes behind a barrier, as sentences do.
* With a decision the sink's other open stages are given up (`look_for_losers`), but those of a later unit of its query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions.ids import Id, Ids, Pending, must
from penstock_storage_node.transactions.questions import Held, Place, Question
from penstock_storage_node.transactions.records import StateRecord, Status, TransactionValue
from penstock_storage_node.transactions.state import (
    EPOCH_RISES_SINCE,
    Answer,
    Server,
    UnitSaid,
    Verdict,
    committed,
    given_up,
    is_open_stage,
)
from penstock_storage_node.transactions.unit_records import (
    Rows,
    SinkEntry,
    Unit,
    put_entry,
    put_sink_key,
    read_entry,
    read_sink_key,
)

BUSY: Final = ErrorCode.CONCURRENT_TRANSACTIONS
EXPIRED_MAX: Final = 50
"""Entries that go in one step of the expiry."""


class Triple(NamedTuple):
    """A stage: its coordinator ends it by these alone."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CommitUnit:
    """Decide a unit, and with it all stages that count."""

    unit: Unit
    triples: tuple[Triple, ...]
    takeover: bool = False
    """The sink may belong to another query."""
    rows: tuple[Rows, ...] = ()
    once: bool = False
    input: bytes = b""
    """Of what the unit was made; kept with the decision, and looked at by clients alone."""


@dataclass(frozen=True, slots=True)
class AbortStage:
    """Give up a stage that is not decided."""

    sink: str
    triple: Triple


UnitRequest = CommitUnit | AbortStage


class OpenStage(NamedTuple):
    """For operators."""

    triple: Triple
    unit: Unit
    start_ms: int
    """Since 1970; -1 before something was added to it."""


class SinkState(NamedTuple):
    """For operators."""

    sink: str
    entry: SinkEntry | None
    ending: int
    """Stages that are decided and have not ended."""
    open: tuple[OpenStage, ...]


class Decision:
    """A sink's new entry and the ends of its stages, decided and not covered."""

    __slots__ = ("entry", "is_written", "question", "sink", "stages")

    def __init__(self, sink: Sink, entry: SinkEntry | None, question: Question | None) -> None:
        self.sink = sink
        self.entry = entry
        """None: it goes."""
        self.question = question
        self.stages: list[tuple[Id, Pending]] = []
        self.is_written = False

    @property
    def record(self) -> StateRecord:
        """Of the entry."""
        value = None if self.entry is None else put_entry(self.entry)
        return StateRecord(put_sink_key(self.sink.name), value)


class Sink:
    """What there is of a sink: an entry, a decision, open stages, or some of them."""

    __slots__ = ("current", "losing", "name", "pending", "stages", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.current: SinkEntry | None = None
        """Covered by the high watermark."""
        self.pending: Decision | None = None
        self.stages: dict[str, None] = {}
        """Ids that are marked with a unit of it, by what counts of them."""
        self.losing: dict[str, Unit] = {}
        """Stages that are to be given up once what is pending of them is over."""
        self.waiting: Place = {}

    @property
    def is_nothing(self) -> bool:
        return not (self.current or self.pending or self.stages or self.waiting)


@dataclass(frozen=True, slots=True)
class Desk:
    """What units ask of their shard."""

    server: Callable[[], Server]
    """What it brings to a decision."""
    pend: Callable[[Id, TransactionValue | None], Pending]
    """A transition of an id that is appended with a decision."""
    begin: Callable[[Id, TransactionValue | None], Pending]
    """One that is appended at the end of the turn."""
    doubt: Callable[[Question, Answer], None]
    """Answer once a write behind the question is covered."""
    has_room: Callable[[], bool]
    """Whether this node takes another sink."""
    schedule: Callable[[], None]
    """Have the turn ended."""


def verdict_of(last: SinkEntry | None, unit: Unit, takeover: bool) -> Verdict | None:
    """What is to be said of a unit by what its sink has decided last; None: it may be written."""
    if last is None or (last.query != unit.query and takeover):
        return None
    if last.query != unit.query:
        return Verdict(UnitSaid.FOREIGN, last)
    if unit.epoch > last.epoch:
        return None
    return Verdict(UnitSaid.DONE if unit.epoch == last.epoch else UnitSaid.STALE, last)


class Units:
    """See the module's text. Of a shard, which appends what it decides."""

    def __init__(self, desk: Desk, ids: Ids, held: Held) -> None:
        self._desk = desk
        self._ids = ids
        self._held = held
        self._sinks: dict[str, Sink] = {}
        self._decisions: list[Decision] = []
        self._expiring: list[str] = []
        self.decided_count = 0
        """Units."""
        self.lost_count = 0
        """Commits of which a stage was not there any more."""
        self.given_up_count = 0
        """Stages that a decision has left over."""

    def __len__(self) -> int:
        """Sinks."""
        return len(self._sinks)

    # -- what there is -----------------------------------------------------------------------------

    def last(self, sink: str) -> SinkEntry | None:
        """What a sink has decided last, as it counts."""
        found = self._sinks.get(sink)
        return None if found is None else found.current

    def describe(self, sink: str) -> SinkState | None:
        """None when nothing is known of it."""
        found = self._sinks.get(sink)
        if found is None or not (found.current or found.stages):
            return None
        ending, stages = 0, []
        for name in found.stages:
            value = self._ids[name].current
            assert value is not None
            assert value.unit is not None
            if is_open_stage(value):
                triple = Triple(name, value.producer_id, value.producer_epoch)
                is_begun = value.status is Status.ONGOING
                stages.append(OpenStage(triple, value.unit, value.start_ms if is_begun else -1))
            elif value.status is Status.PREPARE_COMMIT and value.unit == _unit_of(found):
                ending += 1
        return SinkState(sink, found.current, ending, tuple(sorted(stages)))

    def names(self) -> list[str]:
        """All sinks."""
        return list(self._sinks)

    def note(self, name: str, before: TransactionValue | None, after: TransactionValue | None) -> None:
        """What counts of an id is another value now."""
        old = None if before is None else before.unit
        new = None if after is None else after.unit
        if old is not None and (new is None or new.sink != old.sink):
            sink = self._sinks[old.sink]
            sink.stages.pop(name, None)
            sink.losing.pop(name, None)
            self._let_go(sink)
        if new is not None:
            sink = self._sink(new.sink)
            sink.stages[name] = None
            if new != old:
                sink.losing.pop(name, None)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """A record whose key is not that of an id. Raises Malformed for damage."""
        name = read_sink_key(key)
        if name is None:
            return
        entry = None if value is None else read_entry(value)
        sink = self._sink(name)
        sink.current = entry
        self._let_go(sink)

    def _sink(self, name: str) -> Sink:
        sink = self._sinks.get(name)
        if sink is None:
            sink = self._sinks[name] = Sink(name)
        return sink

    def _let_go(self, sink: Sink) -> None:
        if sink.is_nothing:
            self._sinks.pop(sink.name, None)

    # -- requests ----------------------------------------------------------------------------------

    def may_begin(self, question: Question, unit: Unit, takeover: bool) -> bool:
        """Whether a stage of a unit may begin; else the question is held or doubted."""
        if self._desk.server().version < EPOCH_RISES_SINCE:
            question.answer(_too_low())
            return False
        return not self._is_settled(question, unit, takeover)

    def _is_settled(self, question: Question, unit: Unit, takeover: bool) -> bool:
        sink = self._sinks.get(unit.sink)
        if sink is None:
            return False
        if sink.pending is not None:
            self._held.hold(question, sink.waiting, BUSY)
            return True
        verdict = verdict_of(sink.current, unit, takeover)
        if verdict is not None:
            self._desk.doubt(question, Answer(verdict=verdict))
        return verdict is not None

    def look_at(self, question: Question, request: UnitRequest) -> None:
        """Answer a question, begin what it asks for, or hold it."""
        if isinstance(request, AbortStage):
            self._abort(question, request)
        elif not self._is_settled(question, request.unit, request.takeover):
            self._commit(question, request)

    def _abort(self, question: Question, request: AbortStage) -> None:
        entry = self._ids.get(request.triple.transactional_id)
        if entry is not None and entry.pending is not None:
            self._hold_at(question, entry)
            return
        current = None if entry is None else entry.current
        unit = None if current is None else current.unit
        if entry is None or unit is None or unit.sink != request.sink or not _is(current, request.triple):
            question.answer(Answer())
            return
        assert current is not None
        pending = self._desk.begin(entry, given_up(current, self._desk.server()))
        pending.then.append((question, Answer()))

    def _commit(self, question: Question, request: CommitUnit) -> None:
        server = self._desk.server()
        if server.version < EPOCH_RISES_SINCE:
            question.answer(_too_low())
            return
        unit = request.unit
        found: list[tuple[Id, TransactionValue]] = []
        for triple in dict.fromkeys(request.triples):
            entry = self._ids.get(triple.transactional_id)
            if entry is not None and entry.pending is not None:
                self._hold_at(question, entry)
                return
            current = None if entry is None else entry.current
            if entry is None or current is None or current.unit != unit or not _is(current, triple):
                self.lost_count += 1
                verdict = Verdict(UnitSaid.LOST, self.last(unit.sink), triple.transactional_id)
                self._desk.doubt(question, Answer(verdict=verdict))
                return
            found.append((entry, committed(current, server)))
        if unit.sink not in self._sinks and not self._desk.has_room():
            question.answer(Answer(ErrorCode.THROTTLING_QUOTA_EXCEEDED))
            return
        entry_of = SinkEntry(unit.query, unit.epoch, server.now_ms, request.once, request.rows, request.input)
        decision = self._decide(self._sink(unit.sink), entry_of, question)
        decision.stages += ((entry, self._desk.pend(entry, value)) for entry, value in found)

    def _hold_at(self, question: Question, entry: Id) -> None:
        if entry.waiting is None:
            entry.waiting = {}
        self._held.hold(question, entry.waiting, BUSY)

    def _decide(self, sink: Sink, entry: SinkEntry | None, question: Question | None) -> Decision:
        must(sink.pending is None, sink.name, "one decision of a sink at a time", sink.current, entry)
        sink.pending = decision = Decision(sink, entry, question)
        self._decisions.append(decision)
        self._desk.schedule()
        return decision

    # -- what becomes of decisions -----------------------------------------------------------------

    def take_decisions(self) -> list[Decision]:
        """Those to append, each in a batch of its own."""
        decisions, self._decisions = self._decisions, []
        return decisions

    def covered(self, decision: Decision) -> None:
        """The high watermark covers it, and its stages' transitions are applied."""
        sink = decision.sink
        sink.pending, sink.current = None, decision.entry
        if decision.entry is not None:
            self.decided_count += 1

    def refused(self, decision: Decision) -> None:
        """The log took nothing of it."""
        decision.sink.pending = None

    def answer(self, decision: Decision, answer: Answer | None) -> None:
        """Told to who asked; None: it is done."""
        if decision.question is not None:
            done = Answer(verdict=Verdict(UnitSaid.DONE, decision.entry))
            decision.question.answer(done if answer is None else answer)

    def over(self, decision: Decision) -> Sequence[Question]:
        """Those that waited for it, to be looked at again."""
        sink = decision.sink
        waiting = list(sink.waiting)
        for question in waiting:
            self._held.release(question)
        self._let_go(sink)
        return waiting

    # -- losers ------------------------------------------------------------------------------------

    def look_for_losers(self, decision: Decision) -> None:
        """Give up what a decision leaves over."""
        sink, last = decision.sink, decision.entry
        if last is None:
            return
        for name in list(sink.stages):
            entry = self._ids[name]
            unit = None if entry.current is None else entry.current.unit
            if unit is None or not is_open_stage(entry.current):
                continue
            if unit.query != last.query or unit.epoch <= last.epoch:
                sink.losing[name] = unit
                self.look_at_stage(entry)

    def is_loser(self, entry: Id) -> bool:
        """Whether it is an open stage that can't become part of a decision any more."""
        current = entry.current
        if current is None or current.unit is None or not is_open_stage(current):
            return False
        sink, unit = self._sinks[current.unit.sink], current.unit
        last = sink.current
        is_past = last is not None and last.query == unit.query and unit.epoch <= last.epoch
        return is_past or sink.losing.get(entry.name) == unit

    def look_at_stage(self, entry: Id) -> None:
        """Give up a loser, unless something is pending."""
        current = entry.current
        if current is not None and entry.pending is None and self.is_loser(entry):
            self.given_up_count += 1
            self._desk.begin(entry, given_up(current, self._desk.server()))

    def resume(self) -> None:
        """All is read: what a decision has left over, and its coordinator has not given up."""
        for sink in list(self._sinks.values()):
            for name in list(sink.stages):
                self.look_at_stage(self._ids[name])

    # -- time, and the end -------------------------------------------------------------------------

    def expire(self, now_ms: int, retention_ms: int) -> bool:
        """Let go of some entries that nobody asks for any more; whether there are more to look at."""
        if not self._expiring:
            self._expiring = [
                name for name, sink in self._sinks.items() if sink.current and sink.current.once
            ]
        for name in self._expiring[-EXPIRED_MAX:]:
            sink = self._sinks.get(name)
            if sink is None or sink.pending is not None or sink.stages or sink.current is None:
                continue
            if sink.current.once and sink.current.decided_ms <= now_ms - retention_ms:
                self._decide(sink, None, None)
        del self._expiring[-EXPIRED_MAX:]
        return bool(self._expiring)

    def is_deciding(self, entry: Id) -> bool:
        """Whether what is pending of an id is of a decision that is not written."""
        return any(entry is stage for decision in self._decisions for stage, _ in decision.stages)

    def close(self) -> Iterator[Question]:
        """Leadership is lost: whoever waits."""
        sinks, self._sinks, self._decisions = self._sinks, {}, []
        for sink in sinks.values():
            yield from sink.waiting
            if sink.pending is not None and sink.pending.question is not None:
                yield sink.pending.question

    def validate(self) -> int:
        """For tests and the simulator, as `Shard.validate`; how many wait."""
        held = 0
        stages: dict[str, set[str]] = {}
        for name, entry in self._ids.items():
            if entry.current is not None and entry.current.unit is not None:
                stages.setdefault(entry.current.unit.sink, set()).add(name)
        for name, sink in self._sinks.items():
            must(
                sink.name == name and not sink.is_nothing,
                name,
                "a sink stands under its name, and is something",
            )
            must(
                set(sink.stages) == stages.pop(name, set()),
                name,
                "stages are known to their sink",
                sink.stages,
            )
            must(set(sink.losing) <= set(sink.stages), name, "who loses is a stage", sink.losing)
            must(sink.pending or not sink.waiting, name, "who waits has a decision to wait for")
            held += len(sink.waiting)
            if sink.pending is not None:
                written = sink.pending.is_written or sink.pending in self._decisions
                must(written, name, "what is decided will be written", sink.pending.entry)
                for entry, pending in sink.pending.stages:
                    must(entry.pending is pending, name, "a decision has all its stages", entry.name)
        must(not stages, "", "the sink of a stage is there", stages)
        return held


def _is(current: TransactionValue | None, triple: Triple) -> bool:
    """It is that stage, and open."""
    return (
        current is not None
        and is_open_stage(current)
        and (current.producer_id, current.producer_epoch) == triple[1:]
    )


def _unit_of(sink: Sink) -> Unit | None:
    """That it has decided last."""
    last = sink.current
    return None if last is None else Unit(sink.name, last.query, last.epoch)


def _too_low() -> Answer:
    return Answer(
        ErrorCode.UNSUPPORTED_VERSION,
        reason="exactly-once units take transaction.version 2: `penstock feature set transaction.version=2` raises it",
    )


def too_large(count: int, most: int) -> Answer:
    """Of a decision that doesn't fit into one batch."""
    return Answer(
        ErrorCode.MESSAGE_TOO_LARGE,
        reason=f"a unit of {count} stages does not fit into one batch of __transaction_state, whose max.message.bytes "
        f"is {most}: write by fewer tasks, or raise that setting of the topic",
    )
