"""One partition of `__consumer_offsets` that this node leads: its groups, whatever their kind.

The shell makes a shard, feeds it the records of the log (`replay`), says `resume`, then hands
it requests, `tick`s it, and `close`s it when leadership is lost. Every request is answered
through the `reply` that comes with it, once, at once or later.

A shard owns its parts and decides itself only what concerns a group as a whole (deletion, expiry, lists).
Who answers for a group follows from its kind, in two tables:

    kind of group    requests of the classic protocol    timers, the log, the end
    classic          `ClassicProtocol`                   `ClassicProtocol`
    consumer         `ClassicMembers`                    `ConsumerProtocol`

ConsumerGroupHeartbeat goes to `ConsumerProtocol` whatever the group is, offsets go to `OffsetStore`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups import records as rec
from penstock_storage_node.groups.classic.group import (
    ClassicGroup,
    GroupState,
    JoinReply,
    JoinResult,
    Member,
    SyncReply,
    SyncResult,
)
from penstock_storage_node.groups.classic.protocol import ClassicProtocol, JoinRequest, SyncRequest
from penstock_storage_node.groups.consumer.classic_members import ClassicMembers
from penstock_storage_node.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock_storage_node.groups.consumer.protocol import BeatReply, ConsumerHeartbeat, ConsumerProtocol
from penstock_storage_node.groups.holdings import NodeHoldings, Owner, protocols_bytes
from penstock_storage_node.groups.offsets import (
    CommitReply,
    CommitRequest,
    Found,
    OffsetStore,
    StableReply,
    tombstones_at_once,
)
from penstock_storage_node.groups.records import OffsetValue, TopicKey
from penstock_storage_node.groups.store import (
    ID_LENGTH_MAX,
    Group,
    GroupStore,
    Log,
    Topics,
    Written,
    group_write_error,
    must,
)
from penstock_storage_node.groups.transactional_offsets import TransactionalOffsets
from penstock_storage_node.settings import GroupSettings
from penstock_storage_node.timers import Timer

EXPIRY_GROUPS_MAX: Final = 200
"""Groups looked at in one step of the expiry."""

_G = TypeVar("_G", contravariant=True)


class MemberRequests(Protocol[_G]):
    """Answers requests of the classic protocol for groups of one kind."""

    def join(self, group: _G, request: JoinRequest, reply: JoinReply) -> None:
        """A JoinGroup."""

    def sync(self, group: _G, request: SyncRequest, reply: SyncReply) -> None:
        """A SyncGroup."""

    def heartbeat(self, group: _G, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A Heartbeat."""

    def leave(self, group: _G, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """A LeaveGroup of (member id, instance id)s; a code for each."""


class GroupProtocol(Protocol[_G]):
    """Runs groups of one kind."""

    def ring(self, group: _G, timer: Timer) -> None:
        """A timer of the group rang."""

    def resume(self, group: _G) -> None:
        """The group was read from the log: serve it."""

    def close(self, group: _G, error: ErrorCode) -> None:
        """Leadership is lost: whoever waits is sent away with that error."""

    def tombstones(self, group: _G) -> list[rec.Record]:
        """Records that remove an empty group."""


@dataclass(slots=True)
class MemberView:
    """A member of a classic group, as DescribeGroups shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True)
class GroupView:
    """A group, as DescribeGroups and ListGroups show it."""

    group_id: str
    state: str
    kind: str
    protocol_type: str
    protocol: str = ""
    members: Sequence[MemberView] = ()


class Shard:
    """See the module's text."""

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
        """See `GroupStore`."""
        self._store = GroupStore(
            log,
            topics,
            settings,
            clock_ms=clock_ms,
            wall_ms=wall_ms,
            new_id=new_id,
            setting_ms=setting_ms,
            node=node,
        )
        self._classic = ClassicProtocol(self._store)
        self._consumer = ConsumerProtocol(self._store)
        self._offsets = OffsetStore(self._store, self._classic.make_group)
        self._requests: Final[dict[type, MemberRequests[Any]]] = {
            ClassicGroup: self._classic,
            ConsumerGroup: ClassicMembers(self._store, self._consumer, self._classic),
        }
        self._protocols: Final[dict[type, GroupProtocol[Any]]] = {
            ClassicGroup: self._classic,
            ConsumerGroup: self._consumer,
        }
        self._groups = self._store.groups
        self._early_markers: list[tuple[int, int, bool]] | None = []
        """(producer id, offset, whether it commits), while the log is replayed."""

    @property
    def groups(self) -> Mapping[str, Group]:
        """By group id; not to be changed."""
        return self._groups

    @property
    def offsets(self) -> Mapping[str, Mapping[TopicKey, OffsetValue]]:
        """What is committed, by group id; not to be changed."""
        return self._store.offsets

    @property
    def pending_commits(self) -> Mapping[str, Mapping[TopicKey, int]]:
        """How many commits of each offset wait for the high watermark; not to be changed."""
        return self._store.pending_commits

    @property
    def transactional_offsets(self) -> TransactionalOffsets:
        """What waits for the end of a transaction; not to be changed."""
        return self._store.transactional

    @property
    def closed(self) -> bool:
        """Leadership is lost."""
        return self._store.closed

    @property
    def next_timer_ms(self) -> int:
        """`tick` has nothing to do before that time."""
        return self._store.timers.next_ms

    def tell_earlier(self, told: Callable[[], None]) -> None:
        """See `Coordinator`."""
        self._store.timers.on_earlier = told

    # -- requests of the classic protocol ---------------------------------------------------------

    def join(self, request: JoinRequest, reply: JoinReply) -> None:
        """A JoinGroup."""
        settings = self._store.settings
        texts = (request.instance_id or "", request.protocol_type, *(name for name, _ in request.protocols))
        if not request.group_id:
            reply(JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id))
        elif any(len(text) > ID_LENGTH_MAX for text in texts) or not self._store.node.takes(
            request.owner, protocols_bytes(request.protocols)
        ):
            reply(JoinResult(ErrorCode.INVALID_REQUEST, request.member_id))
        elif not settings.session_min_ms <= request.session_timeout_ms <= settings.session_max_ms:
            reply(JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id))
        else:
            group = self._groups.get(request.group_id)
            if group is None:
                self._classic.join(None, request, reply)
            else:
                self._requests[type(group)].join(group, request, reply)

    def sync(self, request: SyncRequest, reply: SyncReply) -> None:
        """A SyncGroup."""
        group = self._groups.get(request.group_id)
        if not request.group_id:
            reply(SyncResult(ErrorCode.INVALID_GROUP_ID))
        elif group is None:
            reply(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._requests[type(group)].sync(group, request, reply)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A Heartbeat."""
        group = self._groups.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return self._requests[type(group)].heartbeat(group, member_id, instance_id, generation)

    def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]]
    ) -> tuple[ErrorCode, list[ErrorCode]]:
        """A LeaveGroup: a code for the whole, and one for each member."""
        group = self._groups.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, []
        if group is None:
            # Of each member, not of the whole (GroupCoordinatorService.leaveGroup).
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        return ErrorCode.NONE, self._requests[type(group)].leave(group, members)

    # -- requests of the consumer protocol ------------------------------------------------------

    def consumer_heartbeat(self, request: ConsumerHeartbeat, reply: BeatReply) -> None:
        """A ConsumerGroupHeartbeat."""
        self._consumer.consumer_heartbeat(request, reply)

    def heartbeat_ms(self, group_id: str) -> int:
        """How often members of a consumer group send heartbeats."""
        return self._consumer.heartbeat_ms(group_id)

    # -- offsets --------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, reply: CommitReply) -> None:
        """An OffsetCommit or TxnOffsetCommit; a code for each item, when its record is safe."""
        self._offsets.commit(request, reply)

    def end_transaction(self, producer_id: int, marker_offset: int, *, commits: bool) -> None:
        """The marker of a producer's transaction is safe, in the order of the log. One that was written while the log
        is replayed waits for the end of that."""
        if self._early_markers is None:
            self._offsets.end_transaction(producer_id, marker_offset, commits=commits)
        else:
            self._early_markers.append((producer_id, marker_offset, commits))

    def fetch(
        self, group_id: str, member_id: str | None, member_epoch: int, keys: Sequence[TopicKey] | None
    ) -> tuple[ErrorCode, Found]:
        """An OffsetFetch for one group; all its offsets when `keys` is None."""
        return self._offsets.fetch(group_id, member_id, member_epoch, keys)

    def fetch_stable(
        self,
        group_id: str,
        member_id: str | None,
        member_epoch: int,
        keys: Sequence[TopicKey] | None,
        reply: StableReply,
        *,
        in_doubt: bool = False,
    ) -> None:
        """As `fetch`, with `require_stable` (KIP-447); `in_doubt`: see `OffsetStore.fetch_stable`."""
        self._offsets.fetch_stable(group_id, member_id, member_epoch, keys, reply, in_doubt=in_doubt)

    def delete_offsets(
        self,
        group_id: str,
        keys: Sequence[TopicKey],
        reply: Callable[[ErrorCode, Sequence[ErrorCode]], None],
    ) -> None:
        """An OffsetDelete: a code for the whole, and one for each item."""
        self._offsets.delete_offsets(group_id, keys, reply)

    def forget_topics(self, names: frozenset[str]) -> None:
        """Topics were deleted: so are the offsets in them."""
        self._offsets.forget_topics(names)

    def forget_deleted(self, is_there: Callable[[str], bool]) -> None:
        """Once, after `resume`: offsets go whose topics were deleted while this log was read, or nobody led it, though
        others may have their names by now."""
        self._offsets.forget_deleted(is_there)

    # -- groups as a whole -----------------------------------------------------------------------

    def delete_group(self, group_id: str, reply: Callable[[ErrorCode], None]) -> None:
        """One group of a DeleteGroups: it must have no members; its offsets go too."""
        group = self._groups.get(group_id)
        if group is None:
            reply(ErrorCode.GROUP_ID_NOT_FOUND)
        elif not group.is_empty:
            reply(ErrorCode.NON_EMPTY_GROUP)
        else:
            self._remove_group(
                group, lambda error: reply(group_write_error(error) if error else ErrorCode.NONE)
            )

    def _remove_group(self, group: Group, done: Callable[[ErrorCode], None]) -> None:
        name = group.group_id
        keys = sorted(self._offsets.all_offset_keys(name))
        if len(keys) > tombstones_at_once(name):
            self._offsets.remove_offsets(name, keys, lambda error: self._remove_emptied(group, error, done))
            return
        tombstones = rec.offset_tombstones(name, keys) + self._protocols[type(group)].tombstones(group)

        def removed(error: ErrorCode) -> None:
            if not error and written is not None:
                self._offsets.drop_offsets(name, keys, written.base_offset)
            done(error)

        written: Written | None = None
        written = self._store.write(tombstones, removed)
        if written is not None:
            # A member that joins from now on begins a new group, after the tombstones in the log.
            group.bury()
            del self._groups[name]
            self._store.holdings.forget(name)

    def _remove_emptied(self, group: Group, lost: ErrorCode, done: Callable[[ErrorCode], None]) -> None:
        """Its offsets went first, in more batches than one. Who has come since then begins with none, and what was
        committed since then stays, as in a group that was deleted and made anew."""
        name = group.group_id
        if lost or self.closed:
            done(lost or ErrorCode.NOT_COORDINATOR)
        elif self._groups.get(name) is group and group.is_empty and not self._offsets.all_offset_keys(name):
            self._remove_group(group, done)
        else:
            done(ErrorCode.NONE)

    def list_groups(self, states: Sequence[str] = (), kinds: Sequence[str] = ()) -> list[GroupView]:
        """Groups in one of `states` and of one of `kinds`, in any case; () for all."""
        wanted_states = {state.lower() for state in states}
        wanted_kinds = {kind.lower() for kind in kinds}
        views = (_view(group) for group in self._groups.values())
        return [
            view
            for view in views
            if (not wanted_states or view.state.lower() in wanted_states)
            and (not wanted_kinds or view.kind.lower() in wanted_kinds)
        ]

    def describe(self, group_id: str) -> GroupView | None:
        """A classic group with its members; None when there is none of that name."""
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            return None
        view = _view(group)
        stable = group.state is GroupState.STABLE
        view.protocol = (group.protocol or "") if stable else ""
        view.members = [
            MemberView(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                m.metadata(group.protocol) if stable else b"",
                m.assignment if stable else b"",
            )
            for m in group.members.values()
        ]
        return view

    def describe_consumer(self, group_id: str) -> ConsumerGroup | None:
        """A consumer group, not to be changed; None when there is none of that name."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    # -- time ---------------------------------------------------------------------------------------

    def tick(self, most: int | None = None) -> int:
        """Ring the timers that are due, `most` of them; how many rang."""
        store = self._store
        now_ms = store.clock_ms()
        rang = 0
        while not store.closed and rang != most:
            timer = store.timers.due(now_ms)
            if timer is None:
                break
            rang += 1
            group = self._groups.get(timer.owner[0])
            if group is not None:
                self._protocols[type(group)].ring(group, timer)
        return rang

    def expire(self, after: str = "") -> str:
        """Let go of what is too old, in groups that sort after `after`; where to go on, "" at the end."""
        offsets = self._offsets
        if not after:
            offsets.forget_refused()
        names = sorted(name for name in self._groups.keys() | self._store.offsets.keys() if name > after)
        now_ms = self._store.wall_ms()
        for name in names[:EXPIRY_GROUPS_MAX]:
            gone = offsets.expired_keys(name, now_ms)
            group = self._groups.get(name)
            if group is not None and group.is_empty and offsets.all_offset_keys(name) == set(gone):
                if not group.is_expected:
                    self._remove_group(group, lambda _: None)
            elif gone:
                offsets.remove_offsets(name, gone, lambda _: None)
        return names[EXPIRY_GROUPS_MAX - 1] if len(names) > EXPIRY_GROUPS_MAX else ""

    # -- the log --------------------------------------------------------------------------------------

    def replay(
        self, key: bytes, value: bytes | None, offset: int = -1, producer_id: int = -1, at_ms: int = -1
    ) -> None:
        """Take in one record, in the order of the log; `producer_id` if its batch is a transaction's, `at_ms` when it
        was written, since 1970. Raises Malformed for damage."""
        about = rec.read_key(key)
        if about is None:
            return
        if about.kind == rec.OFFSET_COMMIT:
            self._offsets.replay(about, value, offset, producer_id)
        elif about.kind == rec.GROUP_METADATA:
            self._classic.replay(about, value)
        else:
            self._consumer.replay(about, value, at_ms)

    def replay_marker(self, producer_id: int, offset: int, *, commits: bool) -> None:
        """Take in the marker of a producer's transaction, in the order of the log."""
        self._offsets.end_transaction(producer_id, offset, commits=commits)

    def resume(self) -> None:
        """The log is replayed: begin to serve."""
        early, self._early_markers = self._early_markers or (), None
        for producer_id, offset, commits in early:
            self._offsets.end_transaction(producer_id, offset, commits=commits)
        for name in dict.fromkeys([*self._store.offsets, *self._store.transactional.groups()]):
            if name not in self._groups:
                self._classic.make_group(name)
        for group, protocol in self._with_protocols():
            protocol.resume(group)

    def close(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Leadership is lost: whoever waits is sent away. Nothing may be asked of it afterwards."""
        self._store.closed = True
        self._store.node.close(self._store.holdings)
        for group, protocol in self._with_protocols():
            protocol.close(group, error)

    def validate(self) -> None:
        """For tests and the simulator: raises InvariantBroken when the state is what it may never be between
        two steps. Not for a shard that is still being read: half a log need not make sense."""
        if not self.closed:
            self._store.validate()
            self._consumer.validate()
            self._validate_holdings()

    def _validate_holdings(self) -> None:
        """What is counted is what is there."""
        members: Counter[Owner] = Counter()
        sizes: Counter[Owner] = Counter()
        for name, group in self._groups.items():
            held = 0
            for member in group.members.values():
                assert isinstance(member, Member | ConsumerMember)
                members[member.owner] += 1
                sizes[member.owner] += member.size_bytes
                held += member.size_bytes
            assert isinstance(group, ClassicGroup | ConsumerGroup)
            must(group.held_bytes == held, name, "a group holds what its members do", group.held_bytes, held)
            if isinstance(group, ClassicGroup):
                members.update(timer.owner[2] for timer in group.pending.values())
        counted = self._store.holdings
        must(counted.members == members, "", "members are counted", counted.members, members)
        must(counted.bytes == sizes, "", "their bytes are counted", counted.bytes, sizes)
        must(counted.all_bytes == sizes.total(), "", "all of them", counted.all_bytes, sizes)

    def _with_protocols(self) -> Iterable[tuple[Group, GroupProtocol[Any]]]:
        return [(group, self._protocols[type(group)]) for group in self._groups.values()]


def _view(group: Group) -> GroupView:
    return GroupView(group.group_id, str(group.state), group.kind, group.protocol_type or "")


__all__ = ["ConsumerGroup", "GroupView", "JoinRequest", "MemberView", "Shard", "SyncRequest"]
