"""What the parts of a shard share: groups, offsets, timers, the log, and what is passed in.

Rules: nothing here knows an event loop, a clock or a disk. `Log.append` either raises, and then
nothing was written, or calls `done` once, later: with NONE when the high watermark covers the
records, else with the reason for which that is not known. So does `Log.append_in_transaction`, whose records the high
watermark makes safe, and the transaction's marker makes valid.

A group is of one of two kinds. What is asked of every group, whatever its kind, is `Group`; what only
one kind knows stays with the protocol that runs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import BatchInfo
from penstock_storage_node.groups.holdings import NodeHoldings
from penstock_storage_node.groups.records import OffsetValue, Record, TopicKey
from penstock_storage_node.groups.transactional_offsets import TransactionalOffsets
from penstock_storage_node.settings import GroupSettings
from penstock_storage_node.timers import Timer, TimerQueue

ID_LENGTH_MAX: Final = 1_024
"""Characters of a member id, an instance id or a protocol's name."""
GROUP_ID_BYTES_MAX: Final = 16_384
"""Longest group id: it has to fit a record's key (int16 length), beside other texts."""

Done = Callable[[ErrorCode], None]
Session = tuple[Timer, int]
"""A member's deadline, and how far from now its next sign of life puts it, in ms."""
PlacesOf = Callable[[], Iterable[tuple[TopicId | None, int]]]
"""Partitions by topic id, None for a topic that is not there; made where they are looked at."""


class Group(Protocol):
    """What the parts of a shard ask of a group, whatever its kind."""

    @property
    def group_id(self) -> str:
        """Its name."""

    @property
    def kind(self) -> str:
        """As clients are told: `classic` or `consumer`."""

    @property
    def state(self) -> str:
        """As clients are told."""

    @property
    def protocol_type(self) -> str | None:
        """What its members are (`consumer`, `connect`); None while it never had any."""

    @property
    def members(self) -> Mapping[str, object]:
        """By member id."""

    @property
    def is_empty(self) -> bool:
        """Nobody is in it: DeleteGroups may remove it."""

    @property
    def is_expected(self) -> bool:
        """Nobody may be in it, but somebody was asked to come back: expiry leaves it alone."""

    @property
    def is_idle(self) -> bool:
        """Nothing but a request ever made it: unless it has offsets, it can be forgotten."""

    @property
    def may_lose_offsets(self) -> bool:
        """Whether OffsetDelete may look at each topic; otherwise it is refused as a whole."""

    @property
    def offsets_may_expire(self) -> bool:
        """Whether its offsets can expire at all in its present state."""

    @property
    def emptied_ms(self) -> int | None:
        """When it lost its last member, in ms since 1970; None when that does not count for expiry."""

    def subscribes(self, topic: str) -> bool:
        """Whether its members read `topic`."""

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, version: int, places: PlacesOf
    ) -> ErrorCode:
        """Whether that member may commit offsets of `places` with a request of that version."""

    def check_transactional_commit(
        self, member_id: str, instance_id: str | None, generation: int, places: PlacesOf
    ) -> ErrorCode:
        """Whether that member may commit offsets in a transaction. Who says nothing of itself may always: old
        requests cannot, and the transaction has fences of its own."""

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether that member may fetch offsets."""

    def session_of(self, member_id: str) -> Session | None:
        """The session that a commit of that member prolongs, if it does."""

    def bury(self) -> None:
        """It was removed: nothing of it rings any more."""

    def validate(self) -> None:
        """Raises InvariantBroken when it is what no group may be. For tests and the simulator."""


def must(holds: object, group_id: str, rule: str, *details: object) -> None:
    """Raises InvariantBroken, naming the group and the rule, when `holds` is false."""
    if not holds:
        raise InvariantBroken(f"group {group_id}: {rule}: {', '.join(map(repr, details))}")


class Admitted(Protocol):
    """That a producer's transaction is open in the log, or was verified."""

    def check(self, info: BatchInfo) -> None:
        """In the step of the append. Raises INVALID_TXN_STATE when that is so no longer."""

    def appended(self, info: BatchInfo) -> None:
        """The batch is in the log."""


class InTransaction(NamedTuple):
    """The producer in whose transaction something is written."""

    producer_id: int
    epoch: int
    admitted: Admitted


class Written(NamedTuple):
    """Where a batch was appended."""

    base_offset: int
    begun_at: int = -1
    """Where its transaction began in this partition; -1 outside of one."""


class Log(Protocol):
    """The partition that a shard lives in."""

    def append(self, records: Sequence[Record], done: Done) -> int:
        """Append in one batch, and say where it begins; see the module's text. Raises PenstockError."""

    def append_in_transaction(
        self, records: Sequence[Record], transaction: InTransaction, done: Done
    ) -> Written:
        """Append in one batch of that producer. Raises PenstockError: INVALID_PRODUCER_EPOCH when the log has a newer
        epoch of it, INVALID_TXN_STATE when its transaction was not verified or has ended since."""


class Topics(Protocol):
    """What the coordinator asks of the cluster's metadata."""

    def partition_count(self, topic: str) -> int:
        """Partitions of a topic, 0 when there is none of that name."""

    def topic_id(self, topic: str) -> TopicId | None:
        """Id of a topic."""

    def topic_name(self, topic_id: TopicId) -> str | None:
        """Name of a topic."""

    def names(self) -> Sequence[str]:
        """All topics."""

    def token(self) -> object:
        """Another object whenever any topic may have changed."""


class GroupStore:
    """The data of one shard, and what is passed in. It decides nothing about members."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        settings: GroupSettings,
        *,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        new_id: Callable[[], str],
        setting_ms: Callable[[str, str, int], int],
        node: NodeHoldings | None = None,
    ) -> None:
        """`clock_ms` never goes back, `wall_ms` is ms since 1970, `new_id` gives a fresh id each time,
        `setting_ms` a group's own setting (see `config.catalog`): (group id, name, default in ms),
        `node` what all shards hold (without it there is this one alone)."""
        self._log = log
        self.topics: Final = topics
        self.settings: Final = settings
        self.clock_ms: Final = clock_ms
        self.wall_ms: Final = wall_ms
        self.new_id: Final = new_id
        self.setting_ms: Final = setting_ms
        self.timers: Final = TimerQueue()
        self.groups: Final[dict[str, Group]] = {}
        self.node: Final = node or NodeHoldings(settings)
        self.holdings: Final = self.node.open(self.groups)
        self.offsets: Final[dict[str, dict[TopicKey, OffsetValue]]] = {}
        """Committed: covered by the high watermark."""
        self.pending_commits: Final[dict[str, dict[TopicKey, int]]] = {}
        """How many commits of each are written and not covered yet."""
        self.transactional: Final = TransactionalOffsets()
        self.closed = False
        self._written = self._settled = 0
        """Writes so far, and those of them whose `done` was called: they are settled in their order."""
        self._followers: deque[tuple[int, Done]] = deque()
        self._lost: ErrorCode = ErrorCode.NONE
        """Why a write came to nothing: what it changed here may never have been."""

    def write(
        self, records: Sequence[Record], done: Done, transaction: InTransaction | None = None
    ) -> Written | None:
        """Append; None when it was refused, `done` was called with the reason then."""

        def settled(error: ErrorCode) -> None:
            self._settled += 1
            self._lost = self._lost or error
            done(error)
            while self._followers and self._followers[0][0] <= self._settled:
                self._followers.popleft()[1](error)

        try:
            if transaction is None:
                written = Written(self._log.append(records, settled))
            else:
                written = self._log.append_in_transaction(records, transaction, settled)
        except PenstockError as error:
            done(error.code)
            return None
        self._written += 1
        return written

    def when_settled(self, done: Done) -> None:
        """Call `done` once all that was written so far is safe, at once if it is; with the reason for which that
        is not known. For answers that write nothing themselves, and say what an earlier request has changed
        (Kafka: CoordinatorRuntime's write events without records)."""
        if self._settled == self._written:
            # Leadership may be lost a moment before the shard is closed, and all writes with it.
            done(self._lost)
        else:
            self._followers.append((self._written, done))

    def forget_if_idle(self, group: Group) -> None:
        """Drop a group that nothing but a request ever made."""
        name = group.group_id
        if (
            group.is_idle
            and name not in self.offsets
            and name not in self.pending_commits
            and name not in self.transactional.groups()
            and self.groups.get(name) is group
        ):
            group.bury()
            del self.groups[name]
            self.holdings.forget(name)

    def validate(self) -> None:
        """Raises InvariantBroken when groups or offsets are what they may never be."""
        for name, group in self.groups.items():
            must(group.group_id == name, name, "a group stands under its own name", group.group_id)
            group.validate()
        for name, known in self.offsets.items():
            must(known, name, "no offsets are kept as none")
        for name, pending in self.pending_commits.items():
            must(pending, name, "no pending commits are kept as none")
            must(min(pending.values()) > 0, name, "what is pending is at least one commit", pending)
        self.transactional.validate()


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
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def write_error(code: ErrorCode) -> ErrorCode:
    """What clients are told when a write came to nothing (Kafka: CoordinatorOperationExceptionHelper)."""
    if code in _UNSURE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NOT_COORDINATOR if code in _MOVED else code


def group_write_error(code: ErrorCode) -> ErrorCode:
    """As `write_error`, for a group's own record."""
    return ErrorCode.UNKNOWN_SERVER_ERROR if code in _TOO_LARGE else write_error(code)


def offset_write_error(code: ErrorCode) -> ErrorCode:
    """As `write_error`, for committed offsets."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if code in _TOO_LARGE else write_error(code)
