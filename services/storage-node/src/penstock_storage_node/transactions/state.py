"""What one transactional id may do next: every rule that looks at one id alone. Pure functions over what is committed.

Each takes the id's committed value and a request, and says one of:

* `Refusal`: the request is refused with that code, and nothing changes;
* `Answer`: it is done already;
* `Change`: the value to write. It counts only once the high watermark covers it; `reply` is what the request is told
  then;
* `NEEDS_ID`: a fresh producer id has to be drawn first, the request comes again with it.

What is pending is not known here: `shard` lets one change of an id follow the other.

*TV* is the transaction version that the client goes by (KIP-890): 0 for one that adds partitions itself, and keeps
its epoch from transaction to transaction; 2 for one whose epoch rises with every transaction.

Source: TransactionCoordinator.scala, TransactionMetadata.java of Apache Kafka 4.3; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions.records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME_MS,
    Partitions,
    State,
    TransactionValue,
)

EPOCH_MAX: Final = 32_767
"""Never handed to a client; the last transaction of a producer id is ended with it."""
EPOCH_USED_UP: Final = EPOCH_MAX - 1
"""From here on the next transaction takes another producer id."""
TRANSACTIONS_V2: Final = 2

PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
COMPLETE: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
AT_REST: Final = COMPLETE | {State.EMPTY}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refused, nothing changes."""

    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Answer:
    """Done: the producer id and epoch that the producer goes on with."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written, and what the request is told once that is safe."""

    value: TransactionValue
    reply: Refusal | Answer


class NeedsId(Enum):
    """See `NEEDS_ID`."""

    NEEDS_ID = 0


NEEDS_ID: Final = NeedsId.NEEDS_ID
"""A fresh producer id is needed."""

FENCED: Final = Refusal(ErrorCode.PRODUCER_FENCED)
UNKNOWN: Final = Refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
BUSY: Final = Refusal(ErrorCode.CONCURRENT_TRANSACTIONS)
WRONG_STATE: Final = Refusal(ErrorCode.INVALID_TXN_STATE)
NOT_ADDED: Final = Refusal(ErrorCode.TRANSACTION_ABORTABLE)

Verdict = Refusal | Answer | Change | NeedsId


@dataclass(frozen=True, slots=True)
class Init:
    """An InitProducerId. `producer_id` and `epoch` are what the producer goes by now, both -1 for none (KIP-360)."""

    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


def _of(value: TransactionValue) -> Answer:
    return Answer(value.producer_id, value.producer_epoch)


# -- InitProducerId --------------------------------------------------------------------------


def init_producer_id(
    old: TransactionValue | None, request: Init, now_ms: int, server_version: int, fresh_id: int | None
) -> Verdict:
    """`now_ms`: ms since 1970. `server_version`: the TV of an abort in the producer's place."""
    if old is None:
        if fresh_id is None:
            return NEEDS_ID
        new = TransactionValue(fresh_id, 0, request.timeout_ms, update_ms=now_ms)
        return Change(new, _of(new))
    if not _may_go_on(old, request):
        return FENCED
    if old.state in PREPARED:
        return BUSY
    if old.state is State.ONGOING:
        return abort_in_its_place(old, now_ms, server_version, fresh_id)
    is_used_up = old.producer_epoch >= EPOCH_USED_UP
    if is_used_up and request.epoch in (NO_EPOCH, old.producer_epoch):
        if fresh_id is None:
            return NEEDS_ID
        last = NO_EPOCH if request.epoch == NO_EPOCH else old.producer_epoch
        return _begun_anew(old, request, now_ms, (fresh_id, 0, last), previous=old.producer_id)
    if request.epoch in (NO_EPOCH, old.producer_epoch):
        pair = (old.producer_id, old.producer_epoch + 1, request.epoch)
    elif request.epoch == old.last_epoch:
        # It was done before, and its answer was lost: nobody else has come since, that would have cleared `last_epoch`.
        pair = (old.producer_id, old.producer_epoch, old.last_epoch)
    else:
        return FENCED
    return _begun_anew(old, request, now_ms, pair, previous=old.previous_producer_id)


def _may_go_on(old: TransactionValue, request: Init) -> bool:
    """Whether the producer is who the id belongs to, as far as it says (TransactionCoordinator.isValidProducerId)."""
    if request.producer_id in (NO_PRODUCER_ID, old.producer_id):
        return True
    return request.producer_id == old.previous_producer_id and request.epoch >= EPOCH_USED_UP


def _begun_anew(
    old: TransactionValue, request: Init, now_ms: int, ids: tuple[int, int, int], previous: int
) -> Change:
    producer_id, epoch, last = ids
    new = TransactionValue(
        producer_id,
        epoch,
        request.timeout_ms,
        update_ms=now_ms,
        previous_producer_id=previous,
        client_version=old.client_version,
        last_epoch=last,
    )
    return Change(new, _of(new))


# -- adding ----------------------------------------------------------------------------------


def add_partitions(
    old: TransactionValue | None,
    producer_id: int,
    epoch: int,
    partitions: Partitions,
    client_version: int,
    now_ms: int,
) -> Verdict:
    """AddPartitionsToTxn, and AddOffsetsToTxn with the group's partition."""
    if refusal := _refused(old, producer_id, epoch):
        return refusal
    assert old is not None  # `_refused` says so
    if old.state in PREPARED:
        return BUSY
    if old.state is State.ONGOING and partitions <= old.partitions:
        return _of(old)
    begins = old.state is not State.ONGOING
    new = old._replace(
        state=State.ONGOING,
        partitions=partitions if begins else old.partitions | partitions,
        start_ms=now_ms if begins else old.start_ms,
        update_ms=now_ms,
        client_version=client_version,
    )
    return Change(new, _of(new))


def verify(
    old: TransactionValue | None, producer_id: int, epoch: int, partitions: Partitions
) -> dict[tuple[str, int], ErrorCode]:
    """A leader of before TV2 asks whether partitions were added. What is pending is not looked at."""
    refusal = _refused(old, producer_id, epoch)
    if refusal is None and old is not None and old.state in PREPARED:
        refusal = BUSY
    if refusal is not None:
        return dict.fromkeys(partitions, refusal.code)
    there = old.partitions if old is not None and old.state is State.ONGOING else frozenset()
    return {p: ErrorCode.NONE if p in there else NOT_ADDED.code for p in partitions}


def _refused(old: TransactionValue | None, producer_id: int, epoch: int) -> Refusal | None:
    if old is None or old.producer_id != producer_id:
        return UNKNOWN
    return FENCED if old.producer_epoch != epoch else None


# -- ending ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """An EndTxn."""

    producer_id: int
    epoch: int
    commits: bool
    client_version: int = 0


def end_transaction(old: TransactionValue | None, request: End, now_ms: int, fresh_id: int | None) -> Verdict:
    """The tables of EndTxn, by TV."""
    if old is None:
        return UNKNOWN
    if request.client_version >= TRANSACTIONS_V2:
        return _end_v2(old, request, now_ms, fresh_id)
    if refusal := _refused(old, request.producer_id, request.epoch):
        return refusal
    if old.state is State.ONGOING:
        return _prepare(old, request, now_ms, NO_PRODUCER_ID)
    if old.state is State.EMPTY:
        return WRONG_STATE
    return _repeated(old, request)


def _end_v2(old: TransactionValue, request: End, now_ms: int, fresh_id: int | None) -> Verdict:
    is_of_last_id = (
        old.state in COMPLETE
        and request.producer_id == old.previous_producer_id
        and (request.epoch, old.producer_epoch) == (EPOCH_USED_UP, 0)
    )
    if request.producer_id != old.producer_id and not is_of_last_id:
        return UNKNOWN
    # The epoch has risen with the first one, so who says the one before asks again.
    if is_of_last_id or (request.epoch == old.producer_epoch - 1 and old.state in COMPLETE | PREPARED):
        return _repeated(old, request)
    if request.epoch != old.producer_epoch or old.state in PREPARED:
        return FENCED
    if old.state is not State.ONGOING and request.commits:
        return WRONG_STATE
    next_id = NO_PRODUCER_ID
    if old.producer_epoch >= EPOCH_USED_UP:
        if fresh_id is None:
            return NEEDS_ID
        next_id = fresh_id
    return _prepare(old, request, now_ms, next_id)


def _repeated(old: TransactionValue, request: End) -> Verdict:
    was_commit = old.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
    if was_commit != request.commits:
        return WRONG_STATE
    return BUSY if old.state in PREPARED else _of(old)


def _prepare(old: TransactionValue, request: End, now_ms: int, next_id: int) -> Change:
    """The decision. Its answer is the pair that the producer goes on with."""
    rises = request.client_version >= TRANSACTIONS_V2
    new = old._replace(
        state=State.PREPARE_COMMIT if request.commits else State.PREPARE_ABORT,
        producer_epoch=old.producer_epoch + 1 if rises else old.producer_epoch,
        last_epoch=old.producer_epoch if rises else old.last_epoch,
        # Nothing was added to what is aborted empty: it begins and ends now.
        start_ms=old.start_ms if old.state is State.ONGOING else now_ms,
        partitions=old.partitions if old.state is State.ONGOING else frozenset(),
        update_ms=now_ms,
        next_producer_id=next_id,
        client_version=request.client_version,
    )
    return Change(new, Answer(next_id, 0) if next_id != NO_PRODUCER_ID else _of(new))


def abort_in_its_place(
    old: TransactionValue, now_ms: int, server_version: int, fresh_id: int | None
) -> Change | NeedsId:
    """The transaction is aborted by the server: its producer came back, or was silent for too long.

    The epoch rises, once, whatever the client's TV: who wrote until now is fenced. Nobody may repeat that, so no last
    epoch is kept. The request is to ask again (CONCURRENT_TRANSACTIONS).
    """
    next_id = NO_PRODUCER_ID
    if server_version >= TRANSACTIONS_V2 and old.producer_epoch >= EPOCH_USED_UP:
        if fresh_id is None:
            return NEEDS_ID
        next_id = fresh_id
    new = old._replace(
        state=State.PREPARE_ABORT,
        producer_epoch=old.producer_epoch + 1,
        last_epoch=NO_EPOCH,
        update_ms=now_ms,
        next_producer_id=next_id,
        client_version=server_version,
    )
    return Change(new, BUSY)


def completed(old: TransactionValue, now_ms: int) -> TransactionValue:
    """Every partition has its marker: `old` is a Prepare state."""
    new = old._replace(
        state=State.COMPLETE_COMMIT if old.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
        partitions=frozenset(),
        update_ms=now_ms,
    )
    if old.next_producer_id == NO_PRODUCER_ID:
        return new
    return new._replace(
        producer_id=old.next_producer_id,
        producer_epoch=0,
        previous_producer_id=old.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def is_expired(value: TransactionValue, now_ms: int, expiration_ms: int) -> bool:
    """Whether an id was at rest for so long that it is forgotten."""
    return value.state in AT_REST and value.update_ms <= now_ms - expiration_ms


__all__ = [
    "AT_REST",
    "BUSY",
    "COMPLETE",
    "EPOCH_MAX",
    "EPOCH_USED_UP",
    "FENCED",
    "NEEDS_ID",
    "NO_TIME_MS",
    "PREPARED",
    "TRANSACTIONS_V2",
    "UNKNOWN",
    "WRONG_STATE",
    "Answer",
    "Change",
    "End",
    "Init",
    "NeedsId",
    "Refusal",
    "Verdict",
    "abort_in_its_place",
    "add_partitions",
    "completed",
    "end_transaction",
    "init_producer_id",
    "is_expired",
    "verify",
]
