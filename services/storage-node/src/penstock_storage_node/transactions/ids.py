"""The transactional ids of a shard, by name, and how many are in which state."""

from __future__ import annotations

from penstock_core.errors import InvariantBroken
from penstock_storage_node.timers import NEVER_MS, Timer
from penstock_storage_node.transactions.questions import Place, Question
from penstock_storage_node.transactions.records import Status, TransactionValue
from penstock_storage_node.transactions.state import Answer


class Pending:
    """A transition that is decided and not covered."""

    __slots__ = ("began_ms", "is_written", "then", "value")

    def __init__(self, value: TransactionValue | None, began_ms: int) -> None:
        self.value = value
        """None: the id goes."""
        self.began_ms = began_ms
        self.is_written = False
        self.then: list[tuple[Question, Answer | None]] = []


class Id:
    """A transactional id."""

    __slots__ = ("current", "deadline_ms", "early", "name", "pending", "timer", "waiting")

    def __init__(self, name: str, current: TransactionValue | None) -> None:
        self.name = name
        self.current = current
        """Covered by the high watermark; None: there is nothing yet."""
        self.pending: Pending | None = None
        self.waiting: Place | None = None
        self.timer: Timer | None = None
        self.deadline_ms = NEVER_MS
        """Of the transaction, on the monotonic clock."""
        self.early: tuple[int, int] | None = None
        """Producer id and epoch of the last transaction whose commit came before anything of it."""

    @property
    def newest(self) -> TransactionValue | None:
        """What its last record says, or will say."""
        return self.current if self.pending is None else self.pending.value

    @property
    def written(self) -> TransactionValue | None:
        """What its last record says."""
        pending = self.pending
        return pending.value if pending is not None and pending.is_written else self.current


class Ids(dict[str, Id]):
    """All of them by name, also those whose first record does not count yet."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = dict.fromkeys(Status, 0)
        """Ids in each state, as they count now."""
        self.ongoing: dict[str, None] = {}
        """Ids with an open transaction, those that were read first, then in the order in which they began."""

    def note(self, entry: Id, value: TransactionValue | None) -> None:
        """What counts of an id is another value now."""
        before, entry.current = entry.current, value
        if before is not None:
            self.counts[before.status] -= 1
        if value is not None:
            self.counts[value.status] += 1
        if value is None or value.status is not Status.ONGOING:
            self.ongoing.pop(entry.name, None)
        elif entry.name not in self.ongoing:
            self.ongoing[entry.name] = None

    def start_ms(self, name: str) -> int:
        """When the transaction of an id began; 0 when nothing counts of it."""
        current = self[name].current
        return 0 if current is None else current.start_ms

    @property
    def oldest_start_ms(self) -> int | None:
        """When the oldest open transaction began, in ms since 1970; None without one."""
        name = next(iter(self.ongoing), None)
        current = None if name is None else self[name].current
        return None if current is None else current.start_ms

    def sort_ongoing(self) -> None:
        """All was read: what is open is in the order in which it began."""
        self.ongoing = dict.fromkeys(sorted(self.ongoing, key=self.start_ms))

    def forget_all(self) -> None:
        """Leadership is lost."""
        self.clear()
        self.counts, self.ongoing = dict.fromkeys(Status, 0), {}


def must(holds: object, name: str, rule: str, *details: object) -> None:
    """Raises InvariantBroken unless it holds."""
    if not holds:
        raise InvariantBroken(f"transactional id {name}: {rule}: {', '.join(map(repr, details))}")
