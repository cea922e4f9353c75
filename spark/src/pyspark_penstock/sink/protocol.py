"""Exactly-once writing: what its driver and its tasks decide; see docs/decisions/0073.

Tasks and driver are generators: they yield calls to the broker and are sent the answers, so that a test may stop one
of them, or answer late, at any point. What the broker has to do for each call stands at the call.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pyspark_penstock.errors import OptionError, PenstockError

STAGING_TIMEOUT_MS = 900_000


@dataclass(frozen=True, slots=True)
class Unit:
    """What counts at once: a micro-batch of a query, or a batch write."""

    sink: str
    query: str
    """Of Spark's checkpoint, or txnAppId, or one that was made for a single write."""
    epoch: int
    """The micro-batch, or txnVersion; 0 of a single write."""


@dataclass(frozen=True, slots=True)
class Triple:
    """A stage, i.e. one transaction: its coordinator ends it by these alone."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


Rows = dict[tuple[str, int], int]
"""How many, by topic and partition."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A task's message: its rows are in the log, in a transaction that is open."""

    unit: Unit
    triple: Triple | None
    """None: the task had no rows, and has begun nothing."""
    rows: Rows


@dataclass(frozen=True, slots=True)
class Skipped:
    """A task's message: the unit is decided already, and nothing was written."""

    unit: Unit
    last: Entry


Message = Staged | Skipped


@dataclass(frozen=True, slots=True)
class Entry:
    """The last unit that a sink has decided."""

    query: str
    epoch: int
    input: bytes = b""
    """Of what it was made, as its driver has said; b"" where none did."""


class Verdict(Enum):
    """Of a sink's coordinator about a unit."""

    WRITE = "write"
    """It is not there yet."""
    DONE = "done"
    """It is decided; a repeated one is a success."""
    STALE = "stale"
    """A later one of its query is decided."""
    FOREIGN = "foreign"
    """The sink belongs to another query."""
    LOST = "lost"
    """Of a commit: a stage is not there any more."""


# -- calls --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginStage:
    """Ask the sink's entry, and begin a transaction for one attempt at a task, all in one turn.

    What is open under the same id is aborted.
    """

    unit: Unit
    partition: int
    attempt: int
    timeout_ms: int
    takeover: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer: WRITE and a triple, or why nothing was begun."""

    verdict: Verdict
    triple: Triple | None = None
    last: Entry | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Rows into an open transaction. They may still be on their way when it is answered."""

    triple: Triple
    rows: Any


@dataclass(frozen=True, slots=True)
class Flush:
    """Answered, with how many rows went where, when all in-sync replicas have all that was appended."""

    triple: Triple


@dataclass(frozen=True, slots=True)
class CommitUnit:
    """Decide the unit and all stages, or nothing. Answered once the decision is durable.

    The same call again has the same answer. The broker ends what is decided whether anybody asks again or not.
    """

    unit: Unit
    triples: tuple[Triple, ...]
    takeover: bool = False
    rows: tuple[tuple[str, int, int], ...] = ()
    """(topic, partition, number)"""
    once: bool = False
    """Nobody can repeat the unit, nor go on behind it."""
    input: bytes = b""
    """Of what the unit was made; the broker keeps it with the decision."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to CommitUnit: DONE, or why nothing was decided."""

    verdict: Verdict
    last: Entry | None = None
    lost: Triple | None = None


@dataclass(frozen=True, slots=True)
class AbortStage:
    """Abort a stage unless it is decided. One that is ended already is none of an error."""

    sink: str
    triple: Triple


Call = BeginStage | Append | Flush | CommitUnit | AbortStage


class RefusedUnitError(PenstockError):
    """The sink doesn't take what was to be written."""


def judge(unit: Unit, last: Entry | None, takeover: bool) -> Verdict:
    """May this unit still be written? The coordinator's rule, at begin and at commit alike."""
    if last is None:
        return Verdict.WRITE
    if last.query != unit.query:
        return Verdict.WRITE if takeover else Verdict.FOREIGN
    if unit.epoch == last.epoch:
        return Verdict.DONE
    return Verdict.WRITE if unit.epoch > last.epoch else Verdict.STALE


@dataclass(frozen=True, slots=True)
class Terms:
    """How the units of one write are meant."""

    takeover: bool = False
    timeout_ms: int = STAGING_TIMEOUT_MS
    versioned: bool = False
    """By txnAppId and txnVersion: a version that is lower than the last is done, as well as the last one itself."""
    once: bool = False
    """A single write that nobody can repeat."""

    def is_done(self, verdict: Verdict) -> bool:
        return verdict is Verdict.DONE or (self.versioned and verdict is Verdict.STALE)


def refusal(
    unit: Unit, verdict: Verdict, last: Entry | None, lost: Triple | None = None, once: bool = False
) -> RefusedUnitError:
    """In one sentence."""
    if verdict is Verdict.FOREIGN and last is not None:
        return RefusedUnitError(
            f"sink {unit.sink} belongs to query {last.query}, and this is {unit.query}; choose another sinkId, or set "
            'option("sinkTakeover", "true") if that query is never to go on'
        )
    if verdict is Verdict.STALE and last is not None:
        return RefusedUnitError(
            f"sink {unit.sink} has micro-batch {last.epoch} of this query, and this is {unit.epoch}: the checkpoint "
            "was put back, or an older driver still runs; go on with the newest checkpoint, or choose another sinkId"
        )
    name = "a stage" if lost is None else f"stage {lost.transactional_id}"
    what = "this write" if once else f"micro-batch {unit.epoch} of sink {unit.sink}"
    mend = (
        "nothing of it counts, so write it again"
        if once
        else "nothing of it counts, and it is repeated when the query starts again"
    )
    return RefusedUnitError(
        f"{what} was not committed, for {name} had ended: it was open for longer than stagingTimeoutMs, or another "
        f"driver has repeated it; {mend}"
    )


# -- who calls ----------------------------------------------------------------------------------


def stage(
    unit: Unit, partition: int, attempt: int, chunks: Iterable[Any], terms: Terms
) -> Generator[Call, Any, Message]:
    """A task. Its transaction is left open. It begins with the first rows. Raises RefusedUnitError."""
    triple: Triple | None = None
    for chunk in chunks:
        if triple is None:
            begun = yield BeginStage(unit, partition, attempt, terms.timeout_ms, terms.takeover)
            assert isinstance(begun, Begun)
            if terms.is_done(begun.verdict) and begun.last is not None:
                return Skipped(unit, begun.last)
            if begun.verdict is not Verdict.WRITE:
                raise refusal(unit, begun.verdict, begun.last)
            triple = begun.triple
            assert triple is not None
        yield Append(triple, chunk)
    rows: Rows = {} if triple is None else (yield Flush(triple))
    return Staged(unit, triple, rows)


def commit(
    messages: Sequence[Message | None], terms: Terms, made_of: bytes = b""
) -> Generator[Call, Any, Entry | None]:
    """The driver, once Spark has chosen the attempts that count. Raises RefusedUnitError.

    Returns what the sink had decided before, where that is why nothing was written now. `made_of`: the unit's input, as
    far as the driver knows it. What is skipped has to have the same.
    """
    unit = unit_of(messages)
    if unit is None:
        return None
    skipped = [message.last for message in messages if isinstance(message, Skipped)]
    staged = [message for message in messages if isinstance(message, Staged)]
    if skipped and not any(message.triple for message in staged):
        _check_input(unit, skipped[0], made_of)
        return skipped[0]
    rows: Rows = {}
    for message in staged:
        for place, count in message.rows.items():
            rows[place] = rows.get(place, 0) + count
    triples = tuple(message.triple for message in staged if message.triple is not None)
    named = tuple((topic, partition, count) for (topic, partition), count in sorted(rows.items()))
    outcome = yield CommitUnit(unit, triples, terms.takeover, named, terms.once, made_of)
    assert isinstance(outcome, Outcome)
    if not terms.is_done(outcome.verdict):
        raise refusal(unit, outcome.verdict, outcome.last, outcome.lost, terms.once)
    _check_input(unit, outcome.last, made_of)
    return None if outcome.verdict is Verdict.DONE and not skipped else outcome.last


def _check_input(unit: Unit, last: Entry | None, made_of: bytes) -> None:
    """Raises RefusedUnitError where the same unit is decided, and was made of something else.

    Where one of the two is not known, or was taken in another way (the first byte), it is believed to be the same.
    """
    if last is None or (last.query, last.epoch) != (unit.query, unit.epoch):
        return
    if last.input and made_of and last.input[:1] == made_of[:1] and last.input != made_of:
        raise RefusedUnitError(
            f"sink {unit.sink} has micro-batch {unit.epoch} of this query, which was made of other input: the "
            "checkpoint has lost it or was put back, and Spark has planned it anew; put back the checkpoint that has "
            "it, or choose another sinkId, under which it is written beside what is there"
        )


def abort(messages: Sequence[Message | None]) -> Generator[Call, Any, None]:
    """The driver, when Spark gives a write up. What failed tasks left nobody tells; their timeout ends it."""
    for message in messages:
        if isinstance(message, Staged) and message.triple is not None:
            yield AbortStage(message.unit.sink, message.triple)


def unit_of(messages: Sequence[Message | None]) -> Unit | None:
    """The unit of all messages; None when no task has run. Raises OptionError for two: they would count together."""
    units = {message.unit for message in messages if message is not None}
    if len(units) > 1:
        names = " and ".join(sorted(f"{unit.query} {unit.epoch}" for unit in units))
        raise OptionError(
            f"the tasks of one write name several micro-batches ({names}); choose one txnVersion"
        )
    return units.pop() if units else None
