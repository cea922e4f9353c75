"""What a shard has of its log, and what it has appended there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions.ids import Id, Pending
from penstock_storage_node.transactions.questions import Question
from penstock_storage_node.transactions.records import StateRecord
from penstock_storage_node.transactions.state import Answer
from penstock_storage_node.transactions.units import Decision

Done = Callable[[ErrorCode], None]


class Log(Protocol):
    """The partition that a shard lives in."""

    def append(self, records: Sequence[StateRecord], done: Done) -> object:
        """Append in one batch, or raise PenstockError, and then nothing was written. `done` is called once, later, and
        for one batch after the other: with NONE when the high watermark covers it, else leadership is over."""

    def when_start_covered(self, done: Done) -> None:
        """`done(NONE)` once the high watermark has reached the end that the log had when leadership began."""

    @property
    def record_bytes_max(self) -> int:
        """The largest batch that the partition takes."""


class Batch:
    """What was appended together."""

    __slots__ = ("decision", "doubts", "transitions")

    def __init__(
        self,
        transitions: list[tuple[Id, Pending]],
        doubts: list[tuple[Question, Answer]],
        decision: Decision | None = None,
    ) -> None:
        self.transitions = transitions
        self.doubts = doubts
        self.decision = decision
        """Then the transitions are those of its stages."""


_UNSURE: Final = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_MOVED: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.FENCED_LEADER_EPOCH}
)
TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def write_error(code: ErrorCode) -> ErrorCode:
    """What clients are told when a write came to nothing (Kafka: TransactionStateManager.appendTransactionToLog)."""
    if code in _UNSURE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in _MOVED:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.UNKNOWN_SERVER_ERROR if code in TOO_LARGE else code
