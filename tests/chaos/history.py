"""What happened to a log, as its clients saw it: the input of the checker.

Rules: one value is sent once, by one process, to one partition. A *process* is one client
that does one thing after another: a producer, a consumer, or the reader of one replica's
files. An *operation* is what a process did in one go: a burst of sends, one poll. Rows of
a process stand in the order in which it did things; rows of different processes may be
mixed in any way, since no rule compares the clocks of two processes.

Columns are arrays and not objects: a history of a million records is 100 MB less so.

With transactions (`TransactionalHistory`) a send has its own end, what became of its record in the log, and its
transaction another, which decides whether readers of committed records are given it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

NO_OFFSET = -1
"""Offset of a send that was not acknowledged, or was without telling where."""

UNREADABLE = -1
"""Value of a record that was read and is nothing that any producer wrote."""


class Status(IntEnum):
    """How a send ended. INFO: nobody knows; the record may be there or not, now or later."""

    OK = 0
    FAIL = 1
    INFO = 2


def _column() -> array[int]:
    return array("q")


@dataclass
class Sends:
    """One row a record sent, in order of invocation within a process."""

    process: array[int] = field(default_factory=_column)
    op: array[int] = field(default_factory=_column)
    partition: array[int] = field(default_factory=_column)
    value: array[int] = field(default_factory=_column)
    status: array[int] = field(default_factory=_column)
    offset: array[int] = field(default_factory=_column)

    def invoke(self, process: int, op: int, partition: int, value: int) -> int:
        """Note that a record is being sent; returns the row, which ends as INFO unless told otherwise."""
        self.process.append(process)
        self.op.append(op)
        self.partition.append(partition)
        self.value.append(value)
        self.status.append(Status.INFO)
        self.offset.append(NO_OFFSET)
        return len(self.value) - 1

    def complete(self, row: int, status: Status, offset: int = NO_OFFSET) -> None:
        self.status[row] = status
        self.offset[row] = offset

    def count(self, status: Status) -> int:
        return self.status.count(status)

    def extend(self, other: Sends) -> None:
        for name in ("process", "op", "partition", "value", "status", "offset"):
            getattr(self, name).extend(getattr(other, name))

    def __len__(self) -> int:
        return len(self.value)


@dataclass
class Polls:
    """One row a record read, in the order in which a process got them.

    `position` is raised by a process each time it chooses where to read on (assign, seek,
    a rebalance): order is asked for between two rows of the same position only.
    """

    process: array[int] = field(default_factory=_column)
    op: array[int] = field(default_factory=_column)
    position: array[int] = field(default_factory=_column)
    partition: array[int] = field(default_factory=_column)
    offset: array[int] = field(default_factory=_column)
    value: array[int] = field(default_factory=_column)

    def add(self, process: int, op: int, position: int, partition: int, offset: int, value: int) -> None:
        self.process.append(process)
        self.op.append(op)
        self.position.append(position)
        self.partition.append(partition)
        self.offset.append(offset)
        self.value.append(value)

    def extend(self, other: Polls) -> None:
        for name in ("process", "op", "position", "partition", "offset", "value"):
            getattr(self, name).extend(getattr(other, name))

    def __len__(self) -> int:
        return len(self.value)


@dataclass
class History:
    """Everything that the clients of one topic did and saw."""

    sends: Sends = field(default_factory=Sends)
    polls: Polls = field(default_factory=Polls)


@dataclass
class Transaction:
    """What one process did between begin and commit or abort. INFO: nobody knows how it ended."""

    process: int
    outcome: Status = Status.INFO
    rows: list[int] = field(default_factory=list)
    """Of `Sends`: what was written in it."""
    reads: list[int] = field(default_factory=list)
    """Values that its process was given as a reader of committed records while it was open."""


@dataclass
class TransactionalHistory:
    """What the clients of a topic with transactions did and saw. Sends of no transaction are plain ones."""

    sends: Sends = field(default_factory=Sends)
    """`status` and `offset` are those of the delivery, not of the transaction."""
    transactions: list[Transaction] = field(default_factory=list)
    polls: Polls = field(default_factory=Polls)
    """What readers of committed records were given."""
    raw: Polls = field(default_factory=Polls)
    """What stands in the log, aborted or not: readers of everything, replicas' files."""
