"""Which batches of transactions, and which markers, the leader of a partition takes. For one term of leading it.

A client's transactional batch, in Kafka's order (ProducerStateManager, ProducerAppendInfo, ReplicaManager):

1. An epoch below the producer's is refused, before anything else. A duplicate is one, and needs no verification.
2. While a transaction of the producer's very epoch is open here, its batches are appended as they are.
3. Else the coordinator is asked, and the batch holds the guard that was made for that. In the step of the append it is
   looked at again: what opened with that guard meanwhile is open to it, and nothing else is.
4. By TV2 a producer that is not known here begins with sequence 0. All other checks of sequences are the log's.

A marker has three fences, for with TV1 it carries the epoch that the producer's next transaction has too. An operator's
is measured by the highest coordinator epoch that has written here, as in Kafka. A coordinator's is measured by the
metadata of this node, which may know a later leader of its partition (one that they do not know yet has to wait for
them), and by the highest epoch that has vouched for the producer here. What has written here says nothing of it: a
coordinator's marker was written by metadata that a leader of this partition had, and whoever leads now has later ones;
so a higher epoch than theirs was written by hand, and would keep the true coordinator out for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.batch import NO_SEQUENCE, BatchInfo
from penstock_storage_node.log import ProducerEntry
from penstock_storage_node.transactions.state import EPOCH_MAX, EPOCH_RISES_SINCE
from penstock_storage_node.transactions.verifier import Guard, Guards


class Producers(Protocol):
    """What a log remembers of producers."""

    def producer(self, producer_id: int) -> ProducerEntry | None:
        """What is remembered of one."""

    def is_duplicate(self, info: BatchInfo) -> bool:
        """Whether a batch is here already."""


@dataclass(frozen=True, slots=True)
class MarkerOrder:
    """The marker that a coordinator, or an operator, wants written."""

    producer_id: int
    producer_epoch: int
    commit: bool
    """Else abort."""
    coordinator_epoch: int
    transaction_version: int
    """By which rules the transaction was ended: by 2 its epoch is higher than any of the transaction's batches."""
    state_partition: int | None = None
    """Partition of `__transaction_state` that decided; None: an operator ends what hangs."""


class Admission:
    """See the module's text."""

    def __init__(self, name: str, producers: Producers) -> None:
        """`name` is the partition's, for messages."""
        self.guards: Final = Guards(name)
        self._name = name
        self._producers = producers

    def guard(self, info: BatchInfo, now_ms: int) -> Guard | None:
        """What a transactional batch has to be verified with; None: nothing is to be asked for it.

        Raises INVALID_PRODUCER_EPOCH for one of an epoch that is over.
        """
        entry = self._producers.producer(info.producer_id)
        if entry is not None:
            self._check_epoch(info.producer_id, info.producer_epoch, entry)
            if _is_open(entry, info.producer_epoch) or self._producers.is_duplicate(info):
                return None
        return self.guards.guard(info.producer_id, info.producer_epoch, info.base_sequence, now_ms)

    def guard_without_sequence(self, producer_id: int, epoch: int, now_ms: int) -> Guard | None:
        """As `guard`, for what a group coordinator is to write for a producer: that is never a duplicate."""
        entry = self._producers.producer(producer_id)
        if entry is not None:
            self._check_epoch(producer_id, epoch, entry)
            if _is_open(entry, epoch):
                return None
        return self.guards.guard(producer_id, epoch, NO_SEQUENCE, now_ms)

    def _check_epoch(self, producer_id: int, epoch: int, entry: ProducerEntry) -> None:
        if epoch < entry.epoch:
            raise PenstockError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {epoch} in {self._name}, "
                f"epoch {entry.epoch} took its place",
            )

    def check(self, info: BatchInfo, guard: Guard, *, by_version: int) -> None:
        """In the step of the append, of a batch that was verified with `guard`; `by_version` is its
        `transaction.version`. Raises PenstockError."""
        entry = self._producers.producer(info.producer_id)
        if entry is not None:
            self._check_epoch(info.producer_id, info.producer_epoch, entry)
            if _is_open(entry, info.producer_epoch) and guard.opened_at == entry.transaction_first_offset:
                return
        self.guards.check(guard, info.producer_id, info.base_sequence)
        if entry is None and by_version >= EPOCH_RISES_SINCE and info.base_sequence not in (0, NO_SEQUENCE):
            raise PenstockError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {info.producer_id} is not known in {self._name}, and begins with sequence "
                f"{info.base_sequence}",
            )

    def appended(self, info: BatchInfo, guard: Guard | None, coordinator_epoch: int) -> None:
        """A transactional batch is in the log. `guard` and the epoch of the coordinator that vouched: what it was
        verified with, None and -1 for one that needed none."""
        self.guards.appended(info.producer_id, info.producer_epoch)
        entry = self._producers.producer(info.producer_id)
        if entry is None:
            return
        entry.vouched_epoch = max(entry.vouched_epoch, coordinator_epoch)
        if guard is not None:
            guard.opened_at = entry.transaction_first_offset

    def check_marker(self, order: MarkerOrder, state_epoch: int | None) -> ErrorCode | None:
        """In the step of the append. NONE: write it; None: wait for newer metadata; else what it is answered.

        `state_epoch`: leader epoch of the coordinator's partition by the metadata of now, None without one.
        """
        is_asked_by_coordinator = order.state_partition is not None
        if is_asked_by_coordinator:
            if state_epoch is None or order.coordinator_epoch > state_epoch:
                return None
            if order.coordinator_epoch < state_epoch:
                return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        entry = self._producers.producer(order.producer_id)
        if entry is None:
            return ErrorCode.NONE
        if _is_of_older_epoch(order, entry):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        known = entry.vouched_epoch if is_asked_by_coordinator else entry.coordinator_epoch
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED if order.coordinator_epoch < known else ErrorCode.NONE

    def marker_appended(self, order: MarkerOrder) -> None:
        """It is in the log."""
        self.guards.ended(order.producer_id, order.producer_epoch, order.transaction_version)


def _is_open(entry: ProducerEntry, epoch: int) -> bool:
    return entry.transaction_first_offset >= 0 and entry.epoch == epoch


def _is_of_older_epoch(order: MarkerOrder, entry: ProducerEntry) -> bool:
    if order.producer_epoch != entry.epoch or order.transaction_version < EPOCH_RISES_SINCE:
        return order.producer_epoch < entry.epoch
    # By TV2 the marker's epoch is the next transaction's: that one is open, or this marker comes once more. There is
    # none after the last epoch.
    return entry.transaction_first_offset >= 0 and order.producer_epoch != EPOCH_MAX


__all__ = ["Admission", "MarkerOrder", "Producers"]
