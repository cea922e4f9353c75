"""What a leader asks the coordinator before it takes a transaction's first batch.

A batch whose producer has nothing open here is taken only once the coordinator has said that its transaction knows
this partition; else a batch that comes late, behind the end of its transaction, would open one that nobody ends
(KIP-890). A guard is one object, made for one verification: only a batch that holds the very guard that stands here is
appended. It goes with the first append, with the transaction's marker, with leadership and after a day, so an answer
that comes behind one of these opens nothing.

`Guards` are a partition's, `Additions` a node's. Asks of a turn travel together, one message for each coordinator. One
that is lost is told to the producer, who tries again.

Source: VerificationStateEntry, ProducerAppendInfo, AddPartitionsToTxnManager; KIP-890.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock_core.errors import ErrorCode, PenstockError
from penstock_storage_node.log.producer_state import SEQUENCE_MASK
from penstock_storage_node.timers import Timer, TimerQueue
from penstock_storage_node.transactions.effects import TopicPartitionName

EPOCHS_MAX: Final = 5
"""Guards of one producer: the next transaction's beside the last one's, and some that are none's."""
GUARD_MS: Final = 86_400_000
"""How long a guard stands for nothing (Kafka: producer.id.expiration.ms)."""
AGAIN_MS: Final = 20
AGAIN_MS_MAX: Final = 100
"""While the coordinator says CONCURRENT_TRANSACTIONS: every so often, for so long."""
ANSWERS: Final = ("known", "refused", "busy", "unreached")
"""What comes of a question: the transaction knows the partitions, or not all of them; the last one is still ending; or
nobody has answered."""
ANSWER_MS_MAX: Final = 5_000
"""For an answer; whoever has none then is told so, and tries again."""
ADDS_SINCE: Final = 12
"""Version of Produce from which on leaders add partitions themselves."""
ABORTABLE_SINCE: Final = 11
"""Version of Produce from which on TRANSACTION_ABORTABLE is known."""


class Guard:
    """One verification. Two are never equal."""

    __slots__ = ("epoch", "lowest_sequence", "made_ms", "opened_at")

    def __init__(self, epoch: int, sequence: int, made_ms: int) -> None:
        self.epoch: Final = epoch
        self.lowest_sequence = sequence
        """Of the batches that came with this epoch: the first to be appended has to be that one."""
        self.made_ms: Final = made_ms
        self.opened_at = -1
        """First offset of the transaction that a batch with this guard has opened."""


class Guards:
    """Of one partition that this node leads, by producer id and epoch.

    An epoch that nobody has confirmed says nothing of another one (Kafka has one entry for all epochs of a producer):
    a batch with an epoch out of thin air must not have the producer's true one refused, and a late batch of the last
    transaction must not take away what the next one is verified by.
    """

    def __init__(self, name: object) -> None:
        """`name` is the partition's, for messages."""
        self._name = name
        self._guards: dict[int, dict[int, Guard]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._guards.values()))

    def guard(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> Guard:
        """The guard that a batch has to hold: made, or the one that an earlier batch of that epoch waits with."""
        epochs = self._guards.setdefault(producer_id, {})
        guard = epochs.get(epoch)
        if guard is None:
            guard = epochs[epoch] = Guard(epoch, sequence, now_ms)
            while len(epochs) > EPOCHS_MAX:
                del epochs[next(iter(epochs))]
        elif _is_before(sequence, guard.lowest_sequence):
            guard.lowest_sequence = sequence
        return guard

    def check(self, guard: Guard | None, producer_id: int, sequence: int) -> None:
        """In the step of the append. Raises INVALID_TXN_STATE for any but the guard that stands here, and
        OUT_OF_ORDER_SEQUENCE_NUMBER for a batch that another one of its epoch has to come before."""
        if guard is None or not self._stands(guard, producer_id):
            raise PenstockError(
                ErrorCode.INVALID_TXN_STATE,
                f"the transaction of producer {producer_id} in {self._name} was not verified, or has ended since",
            )
        if _is_before(guard.lowest_sequence, sequence):
            raise PenstockError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins its transaction in {self._name} with sequence {sequence}, but "
                f"{guard.lowest_sequence} came before it",
            )

    def _stands(self, guard: Guard, producer_id: int) -> bool:
        return self._guards.get(producer_id, _NONE).get(guard.epoch) is guard

    def appended(self, producer_id: int, epoch: int) -> None:
        """A batch of its transaction is here: the next ones of that epoch need no guard, and lower epochs are over.
        What a higher one is verified by stays: that is the next transaction, and this batch came late."""
        self._drop(producer_id, lambda guard: guard.epoch <= epoch)

    def refused(self, guard: Guard, producer_id: int) -> None:
        """The coordinator does not know that transaction: its sequence says nothing of those that come later."""
        if self._stands(guard, producer_id):
            self._drop(producer_id, lambda each: each is guard)

    def ended(self, producer_id: int, marker_epoch: int, version: int) -> None:
        """A marker was appended. With `version` 2 its epoch is that of the transaction after it, which may have begun
        to verify already; before, it is that of the transaction that has ended. Higher ones are later than both."""
        last = marker_epoch - 1 if version >= 2 else marker_epoch
        self._drop(producer_id, lambda guard: guard.epoch <= last)

    def _drop(self, producer_id: int, is_over: Callable[[Guard], bool]) -> None:
        epochs = self._guards.get(producer_id)
        if epochs is None:
            return
        for epoch in [epoch for epoch, guard in epochs.items() if is_over(guard)]:
            del epochs[epoch]
        if not epochs:
            del self._guards[producer_id]

    def clear(self) -> None:
        """Leadership is over, or the log was cut."""
        self._guards.clear()

    def expire(self, now_ms: int) -> None:
        """Let go of those that stood for nothing for a day."""
        for producer_id in list(self._guards):
            self._drop(producer_id, lambda guard: guard.made_ms <= now_ms - GUARD_MS)


_NONE: Final[Mapping[int, Guard]] = {}


def _is_before(first: int, second: int) -> bool:
    """Of two sequences: they count from 0 to 2^31-1 and begin again."""
    return first != second and ((second - first) & SEQUENCE_MASK) <= SEQUENCE_MASK // 2


class Producer(NamedTuple):
    """Who asks: a transactional id, and by which producer id and epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


class Ask(NamedTuple):
    """Of one producer in one message: add these partitions, or only say whether they are there."""

    number: int
    """For the answer."""
    producer: Producer
    verify_only: bool
    partitions: tuple[TopicPartitionName, ...]


Done = Callable[[ErrorCode], None]
Vouched = Callable[[ErrorCode, int], None]
"""Told the answer, and the epoch of the coordinator that gave it, -1 where none did."""


class _Waiting:
    """Batches of one producer that wait for the same answer."""

    __slots__ = ("coordinator", "done", "producer", "sent_ms", "timer", "until_ms", "verify_only")

    def __init__(self, producer: Producer, verify_only: bool, coordinator: int, until_ms: int) -> None:
        self.producer = producer
        self.verify_only = verify_only
        self.coordinator = coordinator
        self.until_ms = until_ms
        self.done: dict[TopicPartitionName, list[Vouched]] = {}
        self.timer: Timer | None = None
        self.sent_ms = 0


class Additions:
    """Of one node; see the module's text."""

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int],
        coordinator_of: Callable[[str], int | None],
        send: Callable[[int, Sequence[Ask]], bool],
        schedule: Callable[[], None],
    ) -> None:
        """`coordinator_of` gives the node that coordinates a transactional id, None where nobody is known to; `send`
        puts a message on the stream to a node, False where there is none; `schedule` asks for `end_turn`."""
        self._clock_ms = clock_ms
        self._coordinator_of = coordinator_of
        self._send = send
        self._schedule = schedule
        self._turn: dict[tuple[Producer, bool], _Waiting] = {}
        self._sent: dict[int, _Waiting] = {}
        self._timers: Final = TimerQueue()
        self._number = 0
        self.answers: Final[dict[str, int]] = dict.fromkeys(ANSWERS, 0)
        """Questions by what came of them."""
        self.answer_ms = 0
        """What those that were answered have taken together."""

    def ask(self, producer: Producer, partition: TopicPartitionName, *, adds: bool, done: Done) -> None:
        """`done` is told NONE when the transaction knows the partition, else why not, in the coordinator's codes; or
        COORDINATOR_NOT_AVAILABLE when nobody can be asked, or answers in time."""
        self.ask_vouched(producer, partition, adds=adds, done=lambda code, _: done(code))

    def ask_vouched(
        self, producer: Producer, partition: TopicPartitionName, *, adds: bool, done: Vouched
    ) -> None:
        """As `ask`, for a leader that remembers which coordinator has told it."""
        self._queue(producer, not adds, partition, [done], self._clock_ms() + AGAIN_MS_MAX)

    def _queue(
        self,
        producer: Producer,
        verify_only: bool,
        partition: TopicPartitionName,
        done: Iterable[Vouched],
        until_ms: int,
    ) -> None:
        waiting = self._turn.get((producer, verify_only))
        if waiting is None:
            waiting = self._turn[producer, verify_only] = _Waiting(producer, verify_only, -1, until_ms)
            self._schedule()
        waiting.until_ms = max(waiting.until_ms, until_ms)
        waiting.done.setdefault(partition, []).extend(done)

    def end_turn(self) -> None:
        """Send what was asked since the last time."""
        turn, self._turn = self._turn, {}
        by_node: dict[int, list[tuple[Ask, _Waiting]]] = defaultdict(list)
        nowhere: list[_Waiting] = []
        for waiting in turn.values():
            node = self._coordinator_of(waiting.producer.transactional_id)
            if node is None:
                nowhere.append(waiting)
                continue
            waiting.coordinator = node
            self._number += 1
            partitions = tuple(sorted(waiting.done))
            by_node[node].append(
                (Ask(self._number, waiting.producer, waiting.verify_only, partitions), waiting)
            )
        for node, asks in by_node.items():
            # Before it is sent: a coordinator on this node answers at once.
            for ask, waiting in asks:
                waiting.sent_ms = self._clock_ms()
                self._sent[ask.number] = waiting
            if self._send(node, [ask for ask, _ in asks]):
                self._await(asks)
            else:
                nowhere += [self._sent.pop(ask.number) for ask, _ in asks if ask.number in self._sent]
        for waiting in nowhere:
            self.answers["unreached"] += 1
            _tell_all(waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _await(self, asks: Iterable[tuple[Ask, _Waiting]]) -> None:
        until_ms = self._clock_ms() + ANSWER_MS_MAX
        for ask, waiting in asks:
            if ask.number in self._sent:
                waiting.timer = Timer("unanswered", (ask.number,))
                self._timers.set(waiting.timer, until_ms)

    def _take(self, number: int) -> _Waiting | None:
        waiting = self._sent.pop(number, None)
        if waiting is not None and waiting.timer is not None:
            waiting.timer.cancel()
            waiting.timer = None
        return waiting

    def answered(
        self,
        number: int,
        answers: Iterable[tuple[TopicPartitionName, ErrorCode]],
        coordinator_epoch: int = -1,
    ) -> None:
        """A coordinator's answer, and its epoch; what is not in it is not known."""
        waiting = self._take(number)
        if waiting is None:
            return
        self.answer_ms += self._clock_ms() - waiting.sent_ms
        codes = dict(answers)
        self._count(codes)
        busy: dict[TopicPartitionName, list[Vouched]] = {}
        told: list[tuple[Vouched, ErrorCode]] = []
        for partition, done in waiting.done.items():
            code = codes.get(partition, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if code is ErrorCode.CONCURRENT_TRANSACTIONS and not waiting.verify_only:
                busy[partition] = done
            else:
                told += [(each, code) for each in done]
        if busy:
            self._ask_again(waiting, busy)
        for each, code in told:
            each(code, coordinator_epoch)

    def _count(self, codes: Mapping[TopicPartitionName, ErrorCode]) -> None:
        found = set(codes.values()) or {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        if found <= {ErrorCode.NONE}:
            self.answers["known"] += 1
        elif found <= _UNREACHED | {ErrorCode.NONE}:
            self.answers["unreached"] += 1
        elif ErrorCode.CONCURRENT_TRANSACTIONS in found:
            self.answers["busy"] += 1
        else:
            self.answers["refused"] += 1

    def _ask_again(self, waiting: _Waiting, busy: dict[TopicPartitionName, list[Vouched]]) -> None:
        waiting.done = busy
        now_ms = self._clock_ms()
        if now_ms + AGAIN_MS > waiting.until_ms:
            _tell_all(waiting, ErrorCode.CONCURRENT_TRANSACTIONS)
        else:
            self._timers.set(Timer("again", (waiting,)), now_ms + AGAIN_MS)

    @property
    def next_timer_ms(self) -> int:
        """`tick` has nothing to do before that time."""
        return self._timers.next_ms

    def tick(self) -> None:
        """Ask again where the last transaction was still ending; give up what nobody answers."""
        while (timer := self._timers.due(self._clock_ms())) is not None:
            (waiting,) = timer.owner
            if not isinstance(waiting, _Waiting):
                late = self._take(waiting)
                if late is not None:
                    self.answers["unreached"] += 1
                    _tell_all(late, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                continue
            for partition, done in waiting.done.items():
                self._queue(waiting.producer, waiting.verify_only, partition, done, waiting.until_ms)

    def stream_lost(self, node: int) -> None:
        """Nothing more comes from a node: those that waited for it are told so, and try again."""
        lost = [number for number, waiting in self._sent.items() if waiting.coordinator == node]
        for number in lost:
            if (waiting := self._take(number)) is not None:
                self.answers["unreached"] += 1
                _tell_all(waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    @property
    def waiting_count(self) -> int:
        """Asks that were sent and have no answer."""
        return len(self._sent)


def _tell_all(waiting: _Waiting, code: ErrorCode) -> None:
    for done in [each for some in waiting.done.values() for each in some]:
        done(code, -1)


_UNREACHED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def produce_error(code: ErrorCode, version: int) -> ErrorCode:
    """What a Produce of that version is told for a coordinator's code. What passes is NOT_ENOUGH_REPLICAS: every client
    tries again on it, and asks for no metadata."""
    if code in _UNREACHED:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_SINCE:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return code
