"""One partition of `__consumer_offsets` that this node leads: its groups, whatever their kind.

The shell makes a shard, feeds it the records of the log (`replay`), says `resume`, then hands
it requests, `tick`s it, and `close`s it when leadership is lost. Every request is answered
through the `reply` that comes with it, once, at once or later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups import records as rec
from penstock_storage_node.groups.classic.group import (
    ClassicGroup,
    GroupState,
    JoinReply,
    JoinResult,
    SyncReply,
    SyncResult,
    answer_all,
)
from penstock_storage_node.groups.classic.protocol import ClassicProtocol, JoinRequest, SyncRequest
from penstock_storage_node.groups.consumer.classic_members import MixedProtocol
from penstock_storage_node.groups.consumer.group import ConsumerGroup
from penstock_storage_node.groups.offsets import Offsets
from penstock_storage_node.groups.store import ID_LENGTH_MAX, Group, group_write_error

EXPIRY_GROUPS_MAX = 200
"""Groups looked at in one step of the expiry."""


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


class Shard(ClassicProtocol, MixedProtocol, Offsets):
    """See the module's text."""

    # -- requests ------------------------------------------------------------------------------

    def join(self, request: JoinRequest, reply: JoinReply) -> None:
        """A JoinGroup."""
        settings = self.settings
        texts = (request.instance_id or "", request.protocol_type, *(name for name, _ in request.protocols))
        if not request.group_id:
            reply(JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id))
        elif any(len(text) > ID_LENGTH_MAX for text in texts):
            reply(JoinResult(ErrorCode.INVALID_REQUEST, request.member_id))
        elif not settings.session_min_ms <= request.session_timeout_ms <= settings.session_max_ms:
            reply(JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id))
        else:
            group = self.groups.get(request.group_id)
            error = ErrorCode.NONE
            if isinstance(group, ConsumerGroup):
                if group.members:
                    self.join_mixed(group, request, reply)
                    return
                error = self._make_classic(group, request.member_id)
            if error:
                reply(JoinResult(error, request.member_id))
            else:
                self.join_classic(request, reply)

    def _make_classic(self, group: ConsumerGroup, member_id: str) -> ErrorCode:
        """Have an empty consumer group become a classic one, or say why not."""
        if member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not self.write(self.consumer_tombstones(group), lambda _: None):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.make_group(group.group_id)
        return ErrorCode.NONE

    def sync(self, request: SyncRequest, reply: SyncReply) -> None:
        """A SyncGroup."""
        group = self.groups.get(request.group_id)
        if not request.group_id:
            reply(SyncResult(ErrorCode.INVALID_GROUP_ID))
        elif isinstance(group, ConsumerGroup):
            self.sync_mixed(group, request, reply)
        elif group is None or group.state is GroupState.EMPTY:
            reply(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self.sync_classic(group, request, reply)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A Heartbeat."""
        group = self.groups.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ConsumerGroup):
            return self.heartbeat_mixed(group, member_id, instance_id, generation)
        return self.heartbeat_classic(group, member_id, instance_id, generation)

    def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]]
    ) -> tuple[ErrorCode, list[ErrorCode]]:
        """A LeaveGroup: a code for the whole, and one for each member."""
        group = self.groups.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, []
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        if isinstance(group, ConsumerGroup):
            return ErrorCode.NONE, self.leave_mixed(group, members)
        return ErrorCode.NONE, self.leave_classic(group, members)

    def delete_group(self, group_id: str, reply: Callable[[ErrorCode], None]) -> None:
        """One group of a DeleteGroups: it must have no members; its offsets go too."""
        group = self.groups.get(group_id)
        if group is None:
            reply(ErrorCode.GROUP_ID_NOT_FOUND)
        elif not self._is_empty(group):
            reply(ErrorCode.NON_EMPTY_GROUP)
        else:
            self._remove_group(
                group, lambda error: reply(group_write_error(error) if error else ErrorCode.NONE)
            )

    def _is_empty(self, group: Group) -> bool:
        if isinstance(group, ClassicGroup):
            return group.state in (GroupState.EMPTY, GroupState.DEAD) and not group.members
        return not group.members

    def _remove_group(self, group: Group, done: Callable[[ErrorCode], None]) -> None:
        name = group.group_id
        keys = sorted(self.all_offset_keys(name))
        tombstones = rec.offset_tombstones(name, keys)
        if isinstance(group, ConsumerGroup):
            tombstones += self.consumer_tombstones(group)
        else:
            tombstones.append(rec.Record(rec.group_key(name), None))

        def removed(error: ErrorCode) -> None:
            if not error:
                self.drop_offsets(name, keys)
            done(error)

        if self.write(tombstones, removed):
            # A member that joins from now on begins a new group, after the tombstones in the log.
            if isinstance(group, ClassicGroup):
                for timer in group.pending.values():
                    timer.cancel()
                group.state = GroupState.DEAD
            del self.groups[name]

    # -- questions ------------------------------------------------------------------------------

    def list_groups(self, states: Sequence[str] = (), kinds: Sequence[str] = ()) -> list[GroupView]:
        """Groups in one of `states` and of one of `kinds`, in any case; () for all."""
        wanted_states = {state.lower() for state in states}
        wanted_kinds = {kind.lower() for kind in kinds}
        views = (self._view(group) for group in self.groups.values())
        return [
            view
            for view in views
            if (not wanted_states or view.state.lower() in wanted_states)
            and (not wanted_kinds or view.kind.lower() in wanted_kinds)
        ]

    def _view(self, group: Group) -> GroupView:
        if isinstance(group, ClassicGroup):
            return GroupView(group.group_id, group.state.value, "classic", group.protocol_type or "")
        return GroupView(group.group_id, group.state, "consumer", "consumer")

    def describe(self, group_id: str) -> GroupView | None:
        """A classic group with its members; None when there is none of that name."""
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            return None
        view = self._view(group)
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
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    # -- time ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Ring the timers that are due."""
        now_ms = self.clock_ms()
        while not self.closed:
            timer = self.timers.due(now_ms)
            if timer is None:
                return
            group = self.groups.get(timer.owner[0])
            if isinstance(group, ClassicGroup):
                self.ring_classic(group, timer)
            elif group is not None:
                self.ring_consumer(group, timer)

    def expire(self, after: str = "") -> str:
        """Let go of what is too old, in groups that sort after `after`; where to go on, "" at the end."""
        names = sorted(name for name in self.groups.keys() | self.offsets.keys() if name > after)
        now_ms = self.wall_ms()
        for name in names[:EXPIRY_GROUPS_MAX]:
            gone = self.expired_keys(name, now_ms)
            group = self.groups.get(name)
            if group is not None and self._is_empty(group) and self.all_offset_keys(name) == set(gone):
                if not (isinstance(group, ClassicGroup) and group.pending):
                    self._remove_group(group, lambda _: None)
            elif gone:
                self.remove_offsets(name, gone, lambda _: None)
        return names[EXPIRY_GROUPS_MAX - 1] if len(names) > EXPIRY_GROUPS_MAX else ""

    # -- the log --------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in one record, in the order of the log. Raises Malformed for damage."""
        about = rec.read_key(key)
        if about is None:
            return
        name = about.group_id
        if about.kind == rec.OFFSET_COMMIT:
            place = (about.topic, about.partition)
            if value is None:
                self.drop_offsets(name, [place])
            else:
                self.offsets.setdefault(name, {})[place] = rec.read_offset(value)
        elif about.kind == rec.GROUP_METADATA:
            if value is not None:
                self.groups[name] = ClassicGroup.from_value(name, rec.read_group(value))
            elif isinstance(self.groups.get(name), ClassicGroup):
                del self.groups[name]
        else:
            self.replay_consumer(about, value)

    def resume(self) -> None:
        """The log is replayed: begin to serve."""
        for name in self.offsets:
            if name not in self.groups:
                self.make_group(name)
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                self.resume_classic(group)
            else:
                self.resume_consumer(group)

    def close(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Leadership is lost: whoever waits is sent away. Nothing may be asked of it afterwards."""
        self.closed = True
        for group in list(self.groups.values()):
            if isinstance(group, ClassicGroup):
                answer_all(list(group.members.values()), error)
                group.state = GroupState.DEAD


__all__ = ["ConsumerGroup", "GroupView", "JoinRequest", "MemberView", "Shard", "SyncRequest"]
