"""What one transactional id may do: its states, and the answer to each request in each of them.

Pure functions of the state that the high watermark covers. A request is answered, or begins a transition, or has to
wait for the one that is pending or for the markers; the shard holds it meanwhile. The order of the checks is Kafka's
(TransactionCoordinator, TransactionMetadata): which error a client gets decides whether it lives.

Epochs end at 32,767. A producer is never told more than 32,766, so that one more is left to fence it with; who ends a
transaction there gets another producer id with epoch 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions.records import (
    NO_PARTITIONS,
    Partitions,
    Status,
    TransactionValue,
)
from penstock_storage_node.transactions.unit_records import SinkEntry, Unit

EPOCH_MAX: Final = 32_767
EPOCH_EXHAUSTED: Final = EPOCH_MAX - 1
"""Highest epoch that a producer is told."""
NO_ID: Final = -1
NO_EPOCH: Final = -1
EPOCH_RISES_SINCE: Final = 2
"""`transaction.version` with which each end of a transaction raises the epoch (KIP-890 part 2)."""
NO_TIMEOUT_MS: Final = 2**31 - 1
"""Timeout of a transaction that another system decides (KIP-939): only its owner ends it."""

COMPLETE: Final = frozenset({Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
AT_REST: Final = COMPLETE | {Status.EMPTY}
"""No transaction is under way."""
PREVIOUS: Final = {
    Status.EMPTY: AT_REST,
    Status.ONGOING: AT_REST | {Status.ONGOING},
    Status.PREPARE_COMMIT: frozenset({Status.ONGOING}),
    Status.PREPARE_ABORT: AT_REST | {Status.ONGOING},
    Status.COMPLETE_COMMIT: frozenset({Status.PREPARE_COMMIT}),
    Status.COMPLETE_ABORT: frozenset({Status.PREPARE_ABORT}),
    Status.DEAD: AT_REST,
}
"""From which states each may be reached."""


# -- requests ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Init:
    """InitProducerId. Producer id and epoch are those that the client has (KIP-360), -1 for none."""

    timeout_ms: int
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    unit: Unit | None = None
    """What begins is a stage of it (BeginStage)."""
    takeover: bool = False
    """The sink may belong to another query."""
    client_version: int = 0
    """2 for InitProducerId from version 5 on, whose clients may leave it to leaders to add partitions; else 0."""


@dataclass(frozen=True, slots=True)
class Add:
    """AddPartitionsToTxn, or AddOffsetsToTxn with the partition of the group."""

    producer_id: int
    producer_epoch: int
    partitions: Partitions
    client_version: int = 0
    """2 for AddPartitionsToTxn from version 4 on, else 0."""


@dataclass(frozen=True, slots=True)
class Verify:
    """AddPartitionsToTxn that adds none, and asks whether they are there."""

    producer_id: int
    producer_epoch: int
    partitions: Partitions
    has_batch: bool = False
    """A leader asks, which holds a batch with that epoch, by a version whose clients add partitions themselves."""


@dataclass(frozen=True, slots=True)
class End:
    """EndTxn."""

    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int = 0
    """2 for EndTxn from version 5 on, else 0."""


Request = Init | Add | Verify | End


# -- what becomes of them ------------------------------------------------------------------------


class UnitSaid(IntEnum):
    """What becomes of a unit, numbered as in the contract (UnitVerdict)."""

    DONE = 2
    """Decided, now or before."""
    STALE = 3
    """A later unit of its query is decided."""
    FOREIGN = 4
    """The sink belongs to another query."""
    LOST = 5
    """A stage is not there any more, and nothing is decided."""


class Verdict(NamedTuple):
    """Of BeginStage, why nothing begins; of CommitUnit, what is decided."""

    said: UnitSaid
    last: SinkEntry | None = None
    """What the sink has decided last."""
    lost: str | None = None
    """Of LOST: the transactional id of the stage."""


class Answer(NamedTuple):
    """To be told to the client: at once, or with `Begin` when the transition counts."""

    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    missing: Partitions = NO_PARTITIONS
    """With TRANSACTION_ABORTABLE partitions that are not in the transaction, with UNKNOWN_TOPIC_OR_PARTITION those that
    do not exist; the others are as they should be (OPERATION_NOT_ATTEMPTED for the second)."""
    verdict: Verdict | None = None
    """Of a unit."""
    reason: str = ""
    """For people, where the code says too little."""


class Begin(NamedTuple):
    """A transition to that state; `answer` None: the request is looked at again afterwards."""

    value: TransactionValue
    answer: Answer | None


class Wait(NamedTuple):
    """For the end of the transition or of the markers; CONCURRENT_TRANSACTIONS when that takes too long."""


class NeedId(NamedTuple):
    """A new producer id has to be there first."""


class Early(NamedTuple):
    """A commit of a transaction of which nothing has come, by who may begin it: its records may be behind it."""


Outcome = Answer | Begin | Wait | NeedId | Early

WAIT: Final = Wait()
NEED_ID: Final = NeedId()
EARLY: Final = Early()
_UNKNOWN: Final = Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_FENCED: Final = Answer(ErrorCode.PRODUCER_FENCED)
_BAD_STATE: Final = Answer(ErrorCode.INVALID_TXN_STATE)
_DONE: Final = Answer()


class Server(NamedTuple):
    """What the server brings to a decision."""

    now_ms: int
    """Since 1970."""
    version: int
    """`transaction.version` of the cluster."""
    new_id: int = NO_ID
    """A producer id that nobody has, -1 for none so far."""


def is_exhausted(epoch: int) -> bool:
    """No producer may be told a higher one."""
    return epoch >= EPOCH_EXHAUSTED


def decide(current: TransactionValue | None, pending: bool, request: Request, server: Server) -> Outcome:
    """What becomes of a request. `current` None: the id is unknown, or its first record is pending."""
    if isinstance(request, Init):
        return _init(current, pending, request, server)
    if isinstance(request, Verify):
        return _verify(current, pending, request, server)
    if current is None:
        return WAIT if pending else _UNKNOWN
    if isinstance(request, Add):
        return _add(current, pending, request, server)
    return _end(current, pending, request, server)


# -- InitProducerId ------------------------------------------------------------------------------


def _init(current: TransactionValue | None, pending: bool, request: Init, server: Server) -> Outcome:
    if pending:
        return WAIT
    if current is None:
        if server.new_id == NO_ID:
            return NEED_ID
        fresh = TransactionValue(
            Status.EMPTY,
            server.new_id,
            0,
            request.timeout_ms,
            server.now_ms,
            unit=request.unit,
            init_version=request.client_version,
        )
        # Kafka makes the id in memory first, with this producer id, and so it is the previous one of the first record.
        return _initialized(fresh._replace(previous_id=server.new_id))
    if _is_next(current, request):
        return WAIT
    if request.producer_id != NO_ID and not (
        request.producer_id == current.producer_id
        or (request.producer_id == current.previous_id and is_exhausted(request.producer_epoch))
    ):
        return _FENCED
    if current.status.is_decided:
        return WAIT
    if current.status is Status.ONGOING:
        fence = fenced(current, server)
        return fence if isinstance(fence, NeedId) else Begin(fence, None)
    return _next_epoch(current, request, server)


def _next_epoch(current: TransactionValue, request: Init, server: Server) -> Outcome:
    """No transaction is under way: a new epoch, or the present one for who asks again."""
    asked = request.producer_epoch if request.producer_id != NO_ID else NO_EPOCH
    empty = current._replace(
        status=Status.EMPTY,
        timeout_ms=request.timeout_ms,
        update_ms=server.now_ms,
        partitions=NO_PARTITIONS,
        start_ms=-1,
        previous_id=current.producer_id,
        next_id=NO_ID,
        unit=request.unit,
        init_version=request.client_version,
    )
    if asked in (NO_EPOCH, current.producer_epoch):
        last = NO_EPOCH if asked == NO_EPOCH else current.producer_epoch
        # A stage leaves an epoch for its end, so that a decision about many needs no producer ids.
        first = current.producer_epoch if request.unit is None else current.producer_epoch + 1
        if not is_exhausted(first):
            return _initialized(empty._replace(producer_epoch=current.producer_epoch + 1, last_epoch=last))
        if server.new_id == NO_ID:
            return NEED_ID
        return _initialized(empty._replace(producer_id=server.new_id, producer_epoch=0, last_epoch=last))
    if asked == current.last_epoch:
        # The epoch of before: there may have been transactions with it.
        return _initialized(empty._replace(init_version=current.init_version))
    return _FENCED


def _initialized(value: TransactionValue) -> Begin:
    return Begin(value, Answer(ErrorCode.NONE, value.producer_id, value.producer_epoch))


# -- adding partitions ---------------------------------------------------------------------------


def _add(current: TransactionValue, pending: bool, request: Add, server: Server) -> Outcome:
    if pending or _is_next(current, request):
        return WAIT
    refusal = _check_producer(current, request)
    if refusal is not None:
        return refusal
    if current.status.is_decided:
        return WAIT
    if current.status is Status.ONGOING:
        if request.partitions <= current.partitions:
            return _DONE
        start_ms, partitions = current.start_ms, current.partitions | request.partitions
    else:
        start_ms, partitions = server.now_ms, request.partitions
    return Begin(
        current._replace(
            status=Status.ONGOING,
            partitions=partitions,
            start_ms=start_ms,
            update_ms=server.now_ms,
            previous_id=current.producer_id,
            client_version=request.client_version,
            init_version=0,
        ),
        _DONE,
    )


def joined(value: TransactionValue, request: Add) -> TransactionValue | None:
    """An addition that is not written yet, with one more in it; None when they don't go together."""
    if value.status is not Status.ONGOING or (
        (request.producer_id, request.producer_epoch, request.client_version)
        != (value.producer_id, value.producer_epoch, value.client_version)
    ):
        return None
    return value._replace(partitions=value.partitions | request.partitions)


def _verify(current: TransactionValue | None, pending: bool, request: Verify, server: Server) -> Outcome:
    """What is not there is refused as in Kafka, but for one case.

    A client of KIP-890 that sees `transaction.version` lowered goes over to the old protocol when it commits, and sends
    what it has not sent yet, in partitions that it counts as added by their leaders, by a Produce that adds nothing.
    Refused, it could not even abort (EndTxn 4 of a transaction without partitions), and would be dead. Verification is
    there to keep late batches of an earlier transaction of the same epoch out, and there is none. So once the version
    is lower such a batch adds its partition, as that of Produce 12 does.
    """
    if current is None:
        return _UNKNOWN
    if _is_next(current, request):
        return WAIT
    refusal = _check_producer(current, request)
    if refusal is not None:
        return refusal
    if current.status.is_decided:
        return WAIT
    missing = request.partitions - current.partitions
    if not missing:
        return _DONE
    if request.has_batch and server.version < EPOCH_RISES_SINCE and _has_its_own_epoch(current):
        added = Add(request.producer_id, request.producer_epoch, request.partitions, EPOCH_RISES_SINCE)
        return _add(current, pending, added, server)
    return Answer(ErrorCode.TRANSACTION_ABORTABLE, missing=missing)


def _has_its_own_epoch(current: TransactionValue) -> bool:
    """Whether no transaction with the present epoch has ended, and its client may leave adding to leaders: the last
    one's end has raised it, or InitProducerId has given it, and none has begun since."""
    noted = current.init_version if current.status is Status.EMPTY else current.client_version
    return noted >= EPOCH_RISES_SINCE


def _is_next(current: TransactionValue, request: Request) -> bool:
    """Its pair is the one that the end of the transaction has given to a producer whose epochs were used up: told with
    the decision, it counts once the markers are written (Kafka does not know it before)."""
    return (
        current.status.is_decided
        and current.next_id != NO_ID
        and (request.producer_id, request.producer_epoch) == (current.next_id, 0)
    )


def _check_producer(current: TransactionValue, request: Add | Verify | End) -> Answer | None:
    if request.producer_id != current.producer_id:
        return _UNKNOWN
    return None if request.producer_epoch == current.producer_epoch else _FENCED


# -- the end of a transaction --------------------------------------------------------------------


def _end(current: TransactionValue, pending: bool, request: End, server: Server) -> Outcome:
    if request.client_version >= EPOCH_RISES_SINCE:
        return _end_raising(current, pending, request, server)
    refusal = _check_producer(current, request)
    if refusal is not None:
        return refusal
    if pending:
        return WAIT
    if current.status is Status.ONGOING:
        return _prepared(current, request, server)
    return _repeated(current, request)


def _end_raising(current: TransactionValue, pending: bool, request: End, server: Server) -> Outcome:
    """EndTxn 5: what counts as repeated has the epoch before.

    One of the present epoch with nothing begun comes from a client that has not sent yet what it commits: Kafka's Java
    client asks whether batches are unsent before it takes the lock under which it looks for what to send next
    (Sender.maybeSendAndPollTransactionalRequest, 4.3.1), and begun, sent and committed may all be between. Told to come
    again it sends the records first.
    """
    if pending:
        # The client may hold a pair that counts only once this transition does.
        return WAIT
    switched = (
        current.producer_id != current.previous_id == request.producer_id
        and request.producer_epoch == EPOCH_EXHAUSTED
        and current.producer_epoch == 0
    )
    if _is_next(current, request):
        return WAIT
    if request.producer_id != current.producer_id and not switched:
        return _UNKNOWN
    is_equal = request.producer_epoch == current.producer_epoch and not switched
    # At the very last epoch it is one only where another producer id comes with the end; else the server fenced it.
    is_tellable = current.producer_epoch <= EPOCH_EXHAUSTED or current.next_id != NO_ID
    is_repeated = switched or (is_tellable and request.producer_epoch + 1 == current.producer_epoch)
    if current.status.is_decided:
        if is_repeated:
            return _repeated(current, request)
        # Who was told of the decision ends what it has begun since, before the markers are written (90 in Kafka).
        return WAIT if is_equal and current.producer_epoch <= EPOCH_EXHAUSTED else _FENCED
    if is_repeated and current.status in COMPLETE:
        return _repeated(current, request)
    if not is_equal:
        return _FENCED
    if current.status is Status.ONGOING or not request.commit:
        return _prepared(current, request, server)
    return EARLY if current.producer_epoch <= EPOCH_EXHAUSTED else _BAD_STATE


def _repeated(current: TransactionValue, request: End) -> Outcome:
    """The transaction has ended, or its markers are being written: what it is asked to be, or not."""
    if current.status.is_decided:
        return WAIT if request.commit == (current.status is Status.PREPARE_COMMIT) else _BAD_STATE
    if current.status in COMPLETE and request.commit == (current.status is Status.COMPLETE_COMMIT):
        return Answer(ErrorCode.NONE, current.producer_id, current.producer_epoch)
    return _BAD_STATE


def _prepared(current: TransactionValue, request: End, server: Server) -> Outcome:
    status = Status.PREPARE_COMMIT if request.commit else Status.PREPARE_ABORT
    value = _ended(current, status, request.client_version, server)
    if isinstance(value, NeedId):
        return value
    if value.next_id != NO_ID:
        return Begin(value, Answer(ErrorCode.NONE, value.next_id, 0))
    return Begin(value, Answer(ErrorCode.NONE, value.producer_id, value.producer_epoch))


def _ended(
    current: TransactionValue, status: Status, version: int, server: Server
) -> TransactionValue | NeedId:
    value = current._replace(
        status=status,
        update_ms=server.now_ms,
        start_ms=current.start_ms if current.status is Status.ONGOING else server.now_ms,
        previous_id=current.producer_id,
        # There is none between: Kafka notes 0 for what the server of version 1 aborts, too.
        client_version=version if version >= EPOCH_RISES_SINCE else 0,
        init_version=0,
    )
    if version < EPOCH_RISES_SINCE:
        return value
    value = value._replace(
        producer_epoch=min(current.producer_epoch + 1, EPOCH_MAX), last_epoch=current.producer_epoch
    )
    if not is_exhausted(current.producer_epoch):
        return value
    return NEED_ID if server.new_id == NO_ID else value._replace(next_id=server.new_id)


def fenced(current: TransactionValue, server: Server) -> TransactionValue | NeedId:
    """The server aborts what is under way: too old, or somebody begins anew. The epoch rises once, whichever way."""
    value = _ended(current, Status.PREPARE_ABORT, server.version, server)
    if isinstance(value, NeedId) or server.version >= EPOCH_RISES_SINCE:
        return value
    return value._replace(producer_epoch=min(current.producer_epoch + 1, EPOCH_MAX), last_epoch=NO_EPOCH)


def completed(current: TransactionValue, now_ms: int) -> TransactionValue:
    """All markers of a decided transaction are written."""
    value = current._replace(
        status=(Status.COMPLETE_COMMIT if current.status is Status.PREPARE_COMMIT else Status.COMPLETE_ABORT),
        partitions=NO_PARTITIONS,
        update_ms=now_ms,
        previous_id=current.producer_id,
        next_id=NO_ID,
        unit=None,
    )
    if current.next_id != NO_ID:
        return value._replace(producer_id=current.next_id, producer_epoch=0)
    return value


# -- stages --------------------------------------------------------------------------------------


def is_open_stage(current: TransactionValue | None) -> bool:
    """It belongs to a unit, and may still become part of a decision."""
    return (
        current is not None
        and current.unit is not None
        and (current.status is Status.ONGOING or current.status is Status.EMPTY)
    )


def committed(current: TransactionValue, server: Server) -> TransactionValue:
    """An open stage whose unit is decided. One without any partitions has nothing to end but its epoch."""
    return _stage_ended(current, Status.PREPARE_COMMIT, server)


def given_up(current: TransactionValue, server: Server) -> TransactionValue:
    """An open stage that counts for nothing."""
    return _stage_ended(current, Status.PREPARE_ABORT, server)


def _stage_ended(current: TransactionValue, status: Status, server: Server) -> TransactionValue:
    """The epoch rises, so a late batch begins nothing. Nobody is told the new one, so it may be the last."""
    value = current._replace(
        producer_epoch=min(current.producer_epoch + 1, EPOCH_MAX),
        last_epoch=NO_EPOCH,
        previous_id=current.producer_id,
        update_ms=server.now_ms,
        client_version=EPOCH_RISES_SINCE,
        init_version=0,
    )
    if current.status is Status.EMPTY:
        return value._replace(unit=None)
    return value._replace(status=status)


def is_expired(current: TransactionValue, now_ms: int, retention_ms: int) -> bool:
    """Nobody has used it for so long that it may go."""
    return current.status in AT_REST and current.update_ms <= now_ms - retention_ms
