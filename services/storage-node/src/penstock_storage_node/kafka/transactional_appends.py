"""Batches of transactions that wait until their coordinator has been asked, and the lines of those behind them.

A batch whose transaction is not open here waits for the coordinator's answer, then it is looked at again and appended,
all in one step (see `transactions.admission`). Later batches of its producer for that partition wait behind it, and no
others: each producer has a line of its own, so none waits for another's coordinator. What is verified is no more than
the first batch, so those behind it mostly are appended without a question.

When leadership ends, whoever waits is answered at once: nothing of it was written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicPartition
from penstock_frontend.listener.listener import Buffer
from penstock_kafka.producer_retries import ProducerSequence
from penstock_kafka.records.batch import BatchInfo, is_transactional
from penstock_kafka.wire.produce import ProducePartition, ProduceSkim
from penstock_storage_node.kafka.produce_outcomes import ProduceInProgress
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.leadership import Leadership
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.link import TransactionLink
from penstock_storage_node.transactions.verifier import ADDS_SINCE, Guard, Producer, produce_error

_Line = tuple[TopicPartition, int]
Checked = tuple[Buffer, BatchInfo, TopicConfig]
"""A batch as it is to be stored, with the settings that it was checked by: that is done once."""


class MustWait(Exception):
    """A batch can't be appended yet."""

    def __init__(
        self, partition: Partition, leadership: Leadership, checked: Checked, guard: Guard | None
    ) -> None:
        """`guard`: it is to be verified with that; None: others of its producer come first."""
        super().__init__("waits for the coordinator of its transaction")
        self.partition = partition
        self.leadership = leadership
        self.checked = checked
        self.guard = guard


class HeldBatch:
    """One batch that waits."""

    __slots__ = (
        "checked",
        "coordinator_epoch",
        "guard",
        "index",
        "info",
        "is_over",
        "is_verified",
        "item",
        "leadership",
        "partition",
        "request",
    )

    def __init__(
        self, request: ProduceInProgress, index: int, item: ProducePartition, wait: MustWait
    ) -> None:
        self.request = request
        self.index = index
        self.item = item
        self.checked = wait.checked
        self.info = wait.checked[1]
        self.partition = wait.partition
        self.leadership = wait.leadership
        self.guard = wait.guard
        self.is_verified = False
        self.is_over = False
        self.coordinator_epoch = -1

    @property
    def line(self) -> _Line:
        return self.partition.key, self.info.producer_id


class Appender(Protocol):
    """Who appends and refuses batches (see `produce`)."""

    def resume(self, held: HeldBatch) -> None:
        """Try once more to append it. Raises MustWait; refusals are its own to tell."""

    def give_up(self, held: HeldBatch, error: PenstockError) -> None:
        """It is not appended."""


class TransactionalAppends:
    """Of one node."""

    def __init__(
        self,
        link: TransactionLink,
        appender: Appender,
        clock_ms: Callable[[], int],
        verifies: Callable[[], bool] = lambda: True,
    ) -> None:
        """`verifies`: whether batches of producers that add partitions themselves are asked about
        (`transaction.partition.verification.enable`)."""
        self._link = link
        self._appender = appender
        self._clock_ms = clock_ms
        self._verifies = verifies
        self._lines: dict[_Line, deque[HeldBatch]] = {}
        link.leading.on_end.append(self._on_end)

    @property
    def held_count(self) -> int:
        """Batches that wait."""
        return sum(map(len, self._lines.values()))

    @staticmethod
    def refusal(skim: ProduceSkim) -> PenstockError | None:
        """Why the whole request is refused, if it is."""
        items = skim.partitions
        if skim.transactional_id is None:
            return _without_id() if items and is_transactional(items[0].records) else None
        producers = {
            place[:2]
            for item in items
            if is_transactional(item.records) and (place := ProducerSequence.of(item.records)) is not None
        }
        if len(producers) > 1:
            return PenstockError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a request has batches of more than one producer"
            )
        return None

    # -- in the step of an append ----------------------------------------------------------------

    def admit(
        self,
        request: ProduceInProgress,
        partition: Partition,
        leadership: Leadership,
        checked: Checked,
        held: HeldBatch | None,
    ) -> None:
        """Whether a transactional batch may be appended now, by what the partition knows of its producer; `held` is
        how it has waited until now. Raises MustWait, and PenstockError where it may not be at all."""
        info = checked[1]
        if held is None and self._lines and (partition.key, info.producer_id) in self._lines:
            raise MustWait(partition, leadership, checked, None)
        admission = self._link.leading.admission(partition)
        if held is not None and held.is_verified:
            if held.leadership is not leadership:
                raise _not_leader(partition)
            if held.guard is not None:
                by_version = 2 if request.version >= ADDS_SINCE else 0
                admission.check(info, held.guard, by_version=by_version)
            return
        if request.transactional_id is None:
            raise _without_id()
        guard = admission.guard(info, request.now_ms)
        if guard is not None and (request.version >= ADDS_SINCE or self._verifies()):
            raise MustWait(partition, leadership, checked, guard)

    def appended(self, partition: Partition, info: BatchInfo, held: HeldBatch | None) -> None:
        """It is in the log."""
        admission = self._link.leading.admission(partition)
        if held is None:
            admission.appended(info, None, -1)
        else:
            admission.appended(info, held.guard, held.coordinator_epoch)

    # -- waiting ---------------------------------------------------------------------------------

    def hold(self, request: ProduceInProgress, index: int, item: ProducePartition, wait: MustWait) -> None:
        """A batch waits from now on."""
        held = HeldBatch(request, index, item, wait)
        line = self._lines.get(held.line)
        if line is None:
            self._lines[held.line] = deque([held])
            self._ask(held)
        else:
            line.append(held)

    def _ask(self, held: HeldBatch) -> None:
        request, replica = held.request, held.partition.replica
        assert request.transactional_id is not None
        self._link.additions.ask_vouched(
            Producer(request.transactional_id, held.info.producer_id, held.info.producer_epoch),
            TopicPartitionName(replica.topic, replica.key.partition),
            adds=request.version >= ADDS_SINCE,
            done=lambda code, epoch: self._answered(held, code, epoch),
        )

    def _answered(self, held: HeldBatch, code: ErrorCode, coordinator_epoch: int) -> None:
        """The first in a line has its answer."""
        if held.is_over:
            return
        held.is_over = True
        held.request.now_ms = self._clock_ms()
        if code:
            told = produce_error(code, held.request.version)
            if told in _SENTENCES and held.guard is not None:
                self._forget(held, held.guard)
            self._appender.give_up(held, PenstockError(told, _why(held, code)))
        else:
            held.is_verified = True
            held.coordinator_epoch = coordinator_epoch
            self._resume(held)
            if held.guard is not None and held.guard.opened_at < 0:
                # It was refused for something else: what it said of the transaction's first sequence may be wrong.
                self._forget(held, held.guard)
        self._go_on(held.line)

    def _forget(self, held: HeldBatch, guard: Guard) -> None:
        self._link.leading.admission(held.partition).guards.refused(guard, held.info.producer_id)

    def _resume(self, held: HeldBatch) -> None:
        try:
            self._appender.resume(held)
        except MustWait as wait:
            # Not in the step of its own append; with another leadership, say, it is another question.
            self._appender.give_up(held, _not_leader(wait.partition))

    def _go_on(self, key: _Line) -> None:
        """The first of a line is through: those behind it, until one has to be asked about."""
        line = self._lines.get(key)
        if line is None:
            return
        line.popleft()
        while line:
            held = line[0]
            held.request.now_ms = self._clock_ms()
            try:
                self._appender.resume(held)
            except MustWait as wait:
                held.leadership, held.guard = wait.leadership, wait.guard
                held.checked, held.info = wait.checked, wait.checked[1]
                self._ask(held)
                return
            held.is_over = True
            line.popleft()
        del self._lines[key]

    def _on_end(self, partition: Partition) -> None:
        """A leadership is over."""
        if not self._lines:
            return
        for key in [key for key in self._lines if key[0] == partition.key]:
            for held in self._lines.pop(key):
                if not held.is_over:
                    held.is_over = True
                    held.request.now_ms = self._clock_ms()
                    self._appender.give_up(held, _not_leader(partition))


_SENTENCES = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""After these nothing that the batch says of its transaction counts."""


def _without_id() -> PenstockError:
    return PenstockError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional batches need a transactional id"
    )


def _not_leader(partition: Partition) -> PenstockError:
    return PenstockError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the leadership of {partition.name} has ended meanwhile"
    )


def _why(held: HeldBatch, code: ErrorCode) -> str:
    return (
        f"the coordinator of transactional id {held.request.transactional_id} says {code.name} of producer "
        f"{held.info.producer_id}, epoch {held.info.producer_epoch}, in {held.partition.name}"
    )


__all__ = ["Appender", "HeldBatch", "MustWait", "TransactionalAppends"]
