"""What the parts of a shard share: groups, offsets, timers, the log, and what is passed in.

Rules: nothing here knows an event loop, a clock or a disk. `Log.append` either raises, and then
nothing was written, or calls `done` once, later: with NONE when the high watermark covers the
records, else with the reason for which that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_storage_node.groups.classic.group import ClassicGroup, GroupState
from penstock_storage_node.groups.consumer.group import ConsumerGroup
from penstock_storage_node.groups.consumer.regex import TopicRegex
from penstock_storage_node.groups.records import OffsetValue, Record
from penstock_storage_node.groups.timers import Timer, TimerQueue
from penstock_storage_node.settings import GroupSettings

ID_LENGTH_MAX: Final = 1_024
"""Characters of a member id, an instance id or a protocol's name."""
GROUP_ID_BYTES_MAX: Final = 16_384
"""Longest group id: it has to fit a record's key (int16 length), beside other texts."""

Done = Callable[[ErrorCode], None]
Group = ClassicGroup | ConsumerGroup
TopicKey = tuple[str, int]
"""Topic name and partition."""


class Log(Protocol):
    """The partition that a shard lives in."""

    def append(self, records: Sequence[Record], done: Done) -> None:
        """Append in one batch; see the module's text. Raises PenstockError."""


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


class Base:
    """State of one shard."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        settings: GroupSettings,
        *,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        """`clock_ms` never goes back, `wall_ms` is ms since 1970, `new_id` gives a fresh id each time."""
        self._log = log
        self.topics = topics
        self.settings = settings
        self.clock_ms = clock_ms
        self.wall_ms = wall_ms
        self.new_id = new_id
        self.setting_ms: Callable[[str, str, int], int] = lambda _group, _name, default_ms: default_ms
        """A group's own setting (see `config_catalog`): (group id, name, default in ms)."""
        self.timers = TimerQueue()
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicKey, OffsetValue]] = {}
        """Committed: covered by the high watermark."""
        self.pending_commits: dict[str, dict[TopicKey, int]] = {}
        """How many commits of each are written and not covered yet."""
        self.closed = False
        self.sessions: dict[tuple[str, str], tuple[Timer, Timer]] = {}
        self.regexes: dict[str, TopicRegex] = {}

    def write(self, records: Sequence[Record], done: Done) -> bool:
        """Append; False when it was refused, `done` was called with the reason then."""
        try:
            self._log.append(records, done)
        except PenstockError as error:
            done(error.code)
            return False
        return True

    def session_ms(self, group_id: str) -> int:
        """Session timeout of a group's members of the consumer protocol."""
        return self.setting_ms(group_id, "consumer.session.timeout.ms", self.settings.consumer_session_ms)

    def heartbeat_ms(self, group_id: str) -> int:
        """How often they send heartbeats."""
        return self.setting_ms(
            group_id, "consumer.heartbeat.interval.ms", self.settings.consumer_heartbeat_ms
        )

    def make_group(self, group_id: str) -> ClassicGroup:
        """A new, empty group of the classic kind."""
        group = ClassicGroup(group_id, Timer("join", (group_id,)), Timer("sync", (group_id,)))
        self.groups[group_id] = group
        return group

    def forget_if_idle(self, group: ClassicGroup) -> None:
        """Drop a group that nothing but a request ever made."""
        name = group.group_id
        if (
            group.state is GroupState.EMPTY
            and not (group.stored or group.members or group.pending)
            and name not in self.offsets
            and name not in self.pending_commits
            and self.groups.get(name) is group
        ):
            group.state = GroupState.DEAD
            del self.groups[name]


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
