"""Exactly-once writing: what its driver and its tasks decide. No option gives it yet; see docs/decisions/0073.

Tasks and driver are generators: they yield calls to the broker and are sent the answers, so that a test may stop one
of them, or answer late, at any point. What the broker has to do for each call stands at the call.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

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
    """One transaction: its coordinator ends it by these alone."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Staged:
    """A task's message: its rows are in the log, in a transaction that is open."""

    unit: Unit
    triple: Triple
    rows: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A task's message: the ledger has the unit already, and nothing was written."""

    unit: Unit


Message = Staged | Skipped


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger says of a sink: the last unit that was decided."""

    query: str
    epoch: int


@dataclass(frozen=True, slots=True)
class OpenStage:
    """A transaction of a sink that is not ended, and the unit that it was begun for."""

    unit: Unit
    triple: Triple
    is_prepared: bool


# -- calls --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookUp:
    """The ledger's entry of a sink, None when there is none: never an older one than has been told to anybody."""

    sink: str


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction under an id: its triple. What the id's last holder left is ended first, as the ledger says."""

    transactional_id: str
    unit: Unit
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Append:
    """Rows into an open transaction; answered when all in-sync replicas have them."""

    triple: Triple
    rows: Sequence[object]


@dataclass(frozen=True, slots=True)
class CommitUnit:
    """Prepare every stage, write one decision, end them all. Answered once the decision is durable.

    The same call again has the same answer. The broker ends what is decided whether anybody asks again or not.
    """

    unit: Unit
    triples: tuple[Triple, ...]
    takeover: bool = False


@dataclass(frozen=True, slots=True)
class ListStages:
    """The transactions of a sink that are not ended, as a tuple of OpenStage."""

    sink: str


@dataclass(frozen=True, slots=True)
class AbortStage:
    """Abort a transaction unless a decision names it. One that is ended already is none of an error."""

    triple: Triple


Call = LookUp | Begin | Append | CommitUnit | ListStages | AbortStage


class Verdict(Enum):
    """Of the ledger about a unit."""

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to CommitUnit: DONE, or why nothing was decided."""

    verdict: Verdict
    entry: Entry | None = None
    reason: str = ""


class RefusedUnitError(PenstockError):
    """The ledger doesn't take what was to be written."""


def judge(unit: Unit, entry: Entry | None, takeover: bool) -> Verdict:
    """May this unit still be written? The one rule, for tasks and for the ledger's owner alike."""
    if entry is None:
        return Verdict.WRITE
    if entry.query != unit.query:
        return Verdict.WRITE if takeover else Verdict.FOREIGN
    if unit.epoch == entry.epoch:
        return Verdict.DONE
    return Verdict.WRITE if unit.epoch > entry.epoch else Verdict.STALE


def refusal(unit: Unit, verdict: Verdict, entry: Entry | None, reason: str = "") -> RefusedUnitError:
    """In one sentence."""
    if verdict is Verdict.FOREIGN and entry is not None:
        return RefusedUnitError(
            f"sink {unit.sink} belongs to query {entry.query}, and this is {unit.query}; choose another sinkId, or set "
            'option("sinkTakeover", "true") if that query is never to go on'
        )
    if verdict is Verdict.STALE and entry is not None:
        return RefusedUnitError(
            f"sink {unit.sink} has micro-batch {entry.epoch} of this query, and this is {unit.epoch}: the checkpoint "
            "was put back, or an older driver still runs; go on with the newest checkpoint, or choose another sinkId"
        )
    return RefusedUnitError(
        f"micro-batch {unit.epoch} of sink {unit.sink} was not committed: {reason}; it is repeated when the query "
        "starts again"
    )


def stage_id(sink: str, partition: int, attempt: int) -> str:
    """Few ids for many micro-batches. No attempt touches what another one of its micro-batch has finished."""
    return f"{sink}-{partition}-{attempt}"


# -- who calls ----------------------------------------------------------------------------------


def stage(
    unit: Unit,
    partition: int,
    attempt: int,
    rows: Iterable[Sequence[object]],
    *,
    takeover: bool = False,
    timeout_ms: int = STAGING_TIMEOUT_MS,
) -> Generator[Call, object, Message]:
    """A task. Its transaction is left open. Raises RefusedUnitError."""
    entry = yield LookUp(unit.sink)
    assert entry is None or isinstance(entry, Entry)
    verdict = judge(unit, entry, takeover)
    if verdict is Verdict.DONE:
        return Skipped(unit)
    if verdict is not Verdict.WRITE:
        raise refusal(unit, verdict, entry)
    triple = yield Begin(stage_id(unit.sink, partition, attempt), unit, timeout_ms)
    assert isinstance(triple, Triple)
    count = 0
    for chunk in rows:
        yield Append(triple, chunk)
        count += len(chunk)
    return Staged(unit, triple, count)


def commit(messages: Sequence[Message | None], *, takeover: bool = False) -> Generator[Call, object, None]:
    """The driver, once Spark has chosen the attempts that count. Raises RefusedUnitError."""
    unit = unit_of(messages)
    if unit is None:
        return
    triples = tuple(message.triple for message in messages if isinstance(message, Staged))
    if triples:
        outcome = yield CommitUnit(unit, triples, takeover)
        assert isinstance(outcome, Outcome)
        if outcome.verdict is not Verdict.DONE:
            raise refusal(unit, outcome.verdict, outcome.entry, outcome.reason)
    # Losers of this micro-batch, and what drivers before have left. What a decision names is ended already,
    # or will be by its owner; what is staged for a later micro-batch is somebody's who is ahead of us.
    stages = yield ListStages(unit.sink)
    assert isinstance(stages, tuple)
    for found in stages:
        if found.unit.query != unit.query or found.unit.epoch <= unit.epoch:
            yield AbortStage(found.triple)


def abort(messages: Sequence[Message | None]) -> Generator[Call, object, None]:
    """The driver, when Spark gives a micro-batch up. What failed tasks left nobody tells; their timeout ends it."""
    for message in messages:
        if isinstance(message, Staged):
            yield AbortStage(message.triple)


def unit_of(messages: Sequence[Message | None]) -> Unit | None:
    """The unit of all messages; None when no task has run. Raises OptionError for two: they would count together."""
    units = {message.unit for message in messages if message is not None}
    if len(units) > 1:
        names = " and ".join(sorted(f"{unit.query} {unit.epoch}" for unit in units))
        raise OptionError(
            f"the tasks of one write name several micro-batches ({names}); choose one txnVersion"
        )
    return units.pop() if units else None
