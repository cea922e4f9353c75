"""One partition of `__transaction_state` that this node leads: its transactional ids.

The shell makes a shard, feeds it the records of the log (`replay`), says `loaded`, then hands it requests, `tick`s it,
calls `end_turn` after each turn in which it was asked to (`schedule`), and `close`s it when leadership is lost. Every
request is answered through the `reply` that comes with it, once, at once or later; who asked and is gone is
`drop`ped, and nothing is begun for it any more. How long a client waits for a write is the shell's to say.

* **State counts once the high watermark covers it**: a transition is pending from when it is decided until then, and
  one of an id at a time. Until then nobody is told of it, and no marker is sent.
* **Hold, don't bounce**: who meets a pending transition or unwritten markers waits for their end, `HOLD_MS` at most
  (InitProducerId `HOLD_INIT_MS`), then is answered CONCURRENT_TRANSACTIONS. Additions that wait become one transition.
* **No sentence without a barrier**: what ends a client (`SENTENCES`) is said only when a write that was appended after
  the question is covered, since a coordinator that was deposed and not told knows old epochs. All questions of a turn
  share one write: the turn's transitions, or else one record that says again what is said already.
  So does "done already" to a client of TV1: all transactions of its producer have one epoch, and who was deposed would
  call the next one ended, or say that its partitions are there, for what it knows of the last one.
* All transitions of a turn are one batch. What is decided of a unit is a batch of its own, whole (see `units`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions import state
from penstock_storage_node.transactions.ids import Id
from penstock_storage_node.transactions.questions import Question, Reply
from penstock_storage_node.transactions.records import (
    TransactionValue,
    put_value,
)
from penstock_storage_node.transactions.state import (
    Add,
    Answer,
    Begin,
    Early,
    End,
    Init,
    NeedId,
    Verify,
    Wait,
)
from penstock_storage_node.transactions.transitions import Transitions
from penstock_storage_node.transactions.unit_records import Unit
from penstock_storage_node.transactions.units import (
    AbortStage,
    CommitUnit,
    SinkState,
    UnitRequest,
)

HOLD_MS: Final = 100
HOLD_INIT_MS: Final = 1_000
ID_BYTES_MAX: Final = 16_384
SENTENCES: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
_PARTITION_BYTES_MAX: Final = 270
"""What one partition adds to a record at most."""
_END_BYTES: Final = 128
"""Room that an addition leaves for the record of the transaction's end."""


class Shard(Transitions):
    """See the module's text."""

    def describe(
        self, transactional_id: str, reply: Callable[[ErrorCode, TransactionValue | None], None]
    ) -> None:
        """One id of a DescribeTransactions."""
        entry = self._ids.get(transactional_id)
        refusal = self._refusal(transactional_id)
        if refusal:
            reply(refusal, None)
        elif entry is not None and entry.current is not None and entry.newest is not None:
            reply(ErrorCode.NONE, entry.current)
        else:
            question = Question(transactional_id, None, lambda answer: reply(answer.error, None), 0)
            self._doubt(question, Answer(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))

    def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        reply: Reply,
        *,
        producer_id: int = state.NO_ID,
        producer_epoch: int = state.NO_EPOCH,
        two_phase: bool = False,
        client_version: int = 0,
    ) -> Question:
        """InitProducerId with a transactional id; `two_phase`: its transactions have no timeout; `client_version`: see
        `Init`."""
        request = Init(
            state.NO_TIMEOUT_MS if two_phase else timeout_ms,
            producer_id,
            producer_epoch,
            client_version=client_version,
        )
        question = Question(transactional_id, request, reply, self._clock_ms() + HOLD_INIT_MS)
        if (producer_id == state.NO_ID) != (producer_epoch == state.NO_EPOCH):
            question.answer(Answer(ErrorCode.INVALID_REQUEST))
        elif transactional_id and not two_phase and not 0 < timeout_ms <= self._settings.timeout_max_ms:
            question.answer(Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        else:
            self._ask(question)
        return question

    def add(self, transactional_id: str, request: Add | Verify, reply: Reply) -> Question:
        """AddPartitionsToTxn, one transaction of it, and AddOffsetsToTxn."""
        question = self._question(transactional_id, request, reply)
        missing = frozenset(p for p in request.partitions if not self._exists(p))
        if missing and not self._refusal(transactional_id):
            question.answer(Answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing=missing))
        else:
            self._ask(question)
        return question

    def end(self, transactional_id: str, request: End, reply: Reply) -> Question:
        """EndTxn."""
        question = self._question(transactional_id, request, reply)
        self._ask(question)
        return question

    def stage(
        self, transactional_id: str, unit: Unit, timeout_ms: int, reply: Reply, *, takeover: bool = False
    ) -> Question:
        """BeginStage: InitProducerId for a stage of a unit, which has to be told in the answer's verdict why not."""
        request = Init(timeout_ms, unit=unit, takeover=takeover)
        question = Question(transactional_id, request, reply, self._clock_ms() + HOLD_INIT_MS)
        if not 0 < timeout_ms <= self._settings.timeout_max_ms:
            question.answer(
                Answer(
                    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                    reason=f"a stage of {timeout_ms} ms: 1 to {self._settings.timeout_max_ms}, which is "
                    "transaction.max.timeout.ms, are possible",
                )
            )
        else:
            self._ask(question)
        return question

    def unit(self, sink: str, request: UnitRequest, reply: Reply) -> Question:
        """CommitUnit and AbortStage."""
        question = Question(sink, request, reply, self._clock_ms() + HOLD_INIT_MS)
        self._ask(question)
        return question

    def describe_sink(self, sink: str, reply: Callable[[ErrorCode, SinkState | None], None]) -> None:
        """DescribeSink."""
        refusal = self._refusal(sink)
        found = None if refusal else self.units.describe(sink)
        if refusal or found is not None:
            reply(refusal, found)
        else:
            # That there is nothing may be said by nobody who was deposed.
            question = Question(sink, None, lambda answer: reply(answer.error, None), 0)
            self._doubt(question, Answer())

    def drop(self, question: Question) -> None:
        """Who asked is gone: what has not begun does not begin."""
        question.reply = None
        self._held.release(question)

    def _question(self, transactional_id: str, request: state.Request, reply: Reply) -> Question:
        return Question(transactional_id, request, reply, self._clock_ms() + HOLD_MS)

    def _refusal(self, transactional_id: str) -> ErrorCode:
        if not transactional_id or len(transactional_id.encode()) > ID_BYTES_MAX:
            return ErrorCode.INVALID_REQUEST
        if self.closed:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._loading else ErrorCode.NONE

    def _ask(self, question: Question) -> None:
        refusal = self._refusal(question.transactional_id)
        if refusal:
            question.answer(Answer(refusal))
        else:
            self._look_at(question)

    def _look_at(self, question: Question) -> None:
        """Answer a question, begin what it asks for, or hold it."""
        request = question.request
        if question.reply is None or request is None:
            return
        if isinstance(request, CommitUnit | AbortStage):
            self.units.look_at(question, request)
            return
        unit = request.unit if isinstance(request, Init) else None
        if unit is not None and not self.units.may_begin(question, unit, request.takeover):
            return
        entry = self._ids.get(question.transactional_id)
        if entry is not None and isinstance(request, Add) and self._join(entry, question, request):
            return
        outcome = self._decide(entry, request)
        if isinstance(outcome, NeedId):
            if entry is None and not self._has_room():
                question.answer(Answer(ErrorCode.THROTTLING_QUOTA_EXCEEDED))
                return
            new_id = self._take_id()
            if new_id is None:
                self._held.hold(question, self._need_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                return
            outcome = self._decide(entry, request, new_id)
        if isinstance(outcome, Begin):
            if isinstance(request, Add | Verify) and self._is_too_large(
                question.transactional_id, outcome.value
            ):
                question.answer(Answer(ErrorCode.UNKNOWN_SERVER_ERROR))
                return
            if entry is None:
                entry = self._ids[question.transactional_id] = Id(question.transactional_id, None)
            if outcome.answer is None:
                self.fenced_count += 1
            self._begin(entry, outcome.value).then.append((question, outcome.answer))
        elif isinstance(outcome, Wait):
            assert entry is not None
            if entry.waiting is None:
                entry.waiting = {}
            self._held.hold(question, entry.waiting, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif isinstance(outcome, Early):
            assert entry is not None
            self._tell(question, self._too_early(entry))
        else:
            assert isinstance(outcome, Answer)
            self._tell(question, outcome)

    def _decide(self, entry: Id | None, request: state.Request, new_id: int = state.NO_ID) -> state.Outcome:
        server = self._server(new_id)
        if entry is None:
            return state.decide(None, False, request, server)
        return state.decide(entry.current, entry.pending is not None, request, server)

    @staticmethod
    def _too_early(entry: Id) -> Answer:
        """Once for a transaction it is to come again, which has a client send what it commits; then it commits nothing,
        and is told so as in Kafka."""
        assert entry.current is not None
        pair = entry.current.producer_id, entry.current.producer_epoch
        if entry.early == pair:
            return Answer(ErrorCode.INVALID_TXN_STATE)
        entry.early = pair
        return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _tell(self, question: Question, answer: Answer) -> None:
        if answer.error in SENTENCES or _may_be_of_another(question.request):
            self._doubt(question, answer)
        else:
            question.answer(answer)

    def _join(self, entry: Id, question: Question, request: Add) -> bool:
        """Whether the partitions went into an addition that is not written yet."""
        pending = entry.pending
        if pending is None or pending.is_written or pending.value is None:
            return False
        value = state.joined(pending.value, request)
        if value is None or self._is_too_large(entry.name, value):
            return False
        pending.value = value
        pending.then.append((question, Answer()))
        return True

    def _is_too_large(self, name: str, value: TransactionValue) -> bool:
        left = self._log.record_bytes_max - 4 * len(name) - _END_BYTES
        if len(value.partitions) * _PARTITION_BYTES_MAX < left:
            return False
        return len(put_value(value, 1)) >= left


def _may_be_of_another(request: object) -> bool:
    """Whether producer id and epoch name more transactions than one."""
    return isinstance(request, Add | End) and request.client_version < state.EPOCH_RISES_SINCE
