"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and their timeouts.

Rules (GroupMetadataManager of Apache Kafka 4.3; KIP-345 static members, KIP-394 member id required,
KIP-559 protocol checks, KIP-814 skip assignment):

* A rebalance waits for all members up to the longest rebalance timeout, the first one of a group
  also for the initial delay, again for each newcomer.
* Members that did not rejoin in time are out, static ones stay until their session ends.
* The leader's assignment is stored before anybody gets it: members wait for the high watermark.
* A member that did not sync within the rebalance timeout is out.

Memory is the truth while this node leads; the log is written so that the next leader finds the last
complete generation. A write that fails takes the group into another rebalance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups.classic.group import (
    ClassicGroup,
    GroupState,
    JoinReply,
    JoinResult,
    Member,
    Protocols,
    SyncReply,
    SyncResult,
    answer_all,
    answer_join,
    answer_sync,
)
from penstock_storage_node.groups.holdings import NOBODYS, Owner, protocols_bytes
from penstock_storage_node.groups.records import Key, Record, group_key, put_group, read_group
from penstock_storage_node.groups.store import Done, GroupStore, group_write_error
from penstock_storage_node.timers import Timer


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup. `member_id_required`: versions from 4 on (KIP-394)."""

    group_id: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_host: str
    member_id_required: bool = True
    can_skip_assignment: bool = True
    owner: Owner = NOBODYS
    """Whose the member is, see `holdings`."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Sequence[tuple[str, bytes]]


class ClassicProtocol:
    """Runs the classic groups of a shard."""

    def __init__(self, store: GroupStore) -> None:
        self.store = store
        self._timers = store.timers
        self._settings = store.settings
        self._clock_ms = store.clock_ms
        self._wall_ms = store.wall_ms

    def make_group(self, group_id: str, owner: Owner = NOBODYS) -> ClassicGroup:
        """A new, empty group, that `owner` has made."""
        group = ClassicGroup(group_id, Timer("join", (group_id,)), Timer("sync", (group_id,)))
        group.holdings = self.store.holdings
        self.store.groups[group_id] = group
        self.store.holdings.make(group_id, owner)
        return group

    # -- JoinGroup --------------------------------------------------------------------------

    def join(self, group: ClassicGroup | None, request: JoinRequest, reply: JoinReply) -> None:
        """A JoinGroup; `group` is None while there is none of that name."""
        if group is None:
            if request.member_id:
                reply(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
                return
            if not self.store.node.may_make(request.owner):
                reply(JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED))
                return
            group = self.make_group(request.group_id, request.owner)
        if not self._accepts(group, request.member_id):
            group.remove(request.member_id)
            reply(JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not group.supports(request.protocol_type, request.protocols):
            reply(JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif not self._has_room(group, request):
            reply(JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id))
        elif not request.member_id:
            self._join_new(group, request, reply)
        else:
            self._join_known(group, request, reply)
        self.store.forget_if_idle(group)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        size_max = self._settings.group_size_max
        if group.state is GroupState.PREPARING:
            member = group.members.get(member_id)
            known = member is not None and member.awaiting_join is not None
            return known or group.awaiting_join_count < size_max
        if group.state is GroupState.EMPTY:
            return True
        return member_id in group.members or len(group.members) < size_max

    def _has_room(self, group: ClassicGroup, request: JoinRequest) -> bool:
        """Whether the group, and whoever sends the request, may hold what that takes."""
        member_id = request.member_id
        if not member_id and request.instance_id is not None:
            member_id = group.static.get(request.instance_id, "")
        member = group.members.get(member_id)
        is_new = member is None and member_id not in group.pending
        growth = protocols_bytes(request.protocols)
        if member is not None:
            growth -= protocols_bytes(member.protocols)
        elif is_new and member_id:
            return True  # it will be told that nobody knows it
        return self.store.node.has_room(request.owner, int(is_new), growth, group.held_bytes + growth)

    def _join_new(self, group: ClassicGroup, request: JoinRequest, reply: JoinReply) -> None:
        member_id = f"{request.instance_id or request.client_id}-{self.store.new_id()}"
        if request.instance_id is not None:
            old_id = group.static.get(request.instance_id)
            if old_id is not None:
                self._replace_static(group, request, old_id, member_id, reply)
            else:
                self._add_member(group, request, member_id, reply)
        elif request.member_id_required:
            timer = group.expect(member_id, request.owner)
            self._timers.set(timer, self._clock_ms() + request.session_timeout_ms)
            reply(JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_member(group, request, member_id, reply)

    def _join_known(self, group: ClassicGroup, request: JoinRequest, reply: JoinReply) -> None:
        member_id = request.member_id
        if member_id in group.pending:
            if request.instance_id is not None:
                # A static member never gets an id to come back with.
                reply(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            else:
                self._add_member(group, request, member_id, reply)
            return
        error = group.check_member(member_id, request.instance_id)
        if error:
            reply(JoinResult(error, member_id))
            return
        member = group.members[member_id]
        same = member.protocols == request.protocols
        if group.state is GroupState.EMPTY:
            reply(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        elif group.state is GroupState.COMPLETING and same:
            # The answer was lost on its way.
            reply(group.join_result(member))
        elif group.state is GroupState.STABLE and same and group.leader != member_id:
            result = group.join_result(member)
            result.members = ()
            reply(result)
        else:
            self._update_member(group, member, request, reply)
            self._rebalance_or_complete(group)

    def _update_member(
        self, group: ClassicGroup, member: Member, request: JoinRequest, reply: JoinReply
    ) -> None:
        group.change(member, request.protocols, request.owner)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        if member.awaiting_join is not None:
            # The client gave its earlier request up.
            answer_join(member, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.awaiting_join = reply

    def _add_member(
        self, group: ClassicGroup, request: JoinRequest, member_id: str, reply: JoinReply
    ) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            Timer("member", (group.group_id, member_id)),
            awaiting_join=reply,
            is_new=True,
            owner=request.owner,
        )
        if group.state is GroupState.PREPARING and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        # Its first session begins when the group has formed; until then nothing is heard of it.
        self._timers.set(member.session, self._clock_ms() + self._settings.new_member_join_timeout_ms)
        self._rebalance_or_complete(group)

    def _replace_static(
        self, group: ClassicGroup, request: JoinRequest, old_id: str, new_id: str, reply: JoinReply
    ) -> None:
        leader_before = group.leader
        member = group.rename(old_id, new_id)
        self._heard(member)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._update_member(group, member, request, reply)
        if group.state is GroupState.STABLE:
            if group.select_protocol() != group.protocol:
                self._rebalance_or_complete(group)
                return

            def stored(error: ErrorCode) -> None:
                if error:
                    if group.members.get(new_id) is member and not self.store.closed:
                        group.change(member, before[0], member.owner)
                        _, member.rebalance_timeout_ms, member.session_timeout_ms = before
                        result = JoinResult(group_write_error(error), "", group.generation)
                        result.leader = leader_before or ""
                        answer_join(member, result)
                        group.rename(new_id, old_id)
                        self._heard(member)
                    return
                result = group.join_result(member)
                if request.can_skip_assignment:
                    result.skip_assignment = group.leader == new_id
                else:
                    # Older leaders would make an assignment; so they aren't told that they lead.
                    result.leader, result.members = leader_before or "", ()
                answer_join(member, result)
                if group.members.get(new_id) is member:
                    self._heard(member)  # its session may have ended while it waited for us

            self._store(group, None, stored)
        elif group.state is GroupState.COMPLETING:
            self._prepare_rebalance(group)
        else:
            self._complete_if_all_joined(group)

    # -- rebalancing -------------------------------------------------------------------------

    def _rebalance_or_complete(self, group: ClassicGroup) -> None:
        if group.can_rebalance:
            self._prepare_rebalance(group)
        else:
            self._complete_if_all_joined(group)

    def _prepare_rebalance(self, group: ClassicGroup) -> None:
        if group.state is GroupState.COMPLETING:
            group.assign({})
            self._propagate(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        group.sync_timer.cancel()
        first = group.state is GroupState.EMPTY
        group.become(GroupState.PREPARING, self._wall_ms())
        if first:
            delay_ms = self._settings.initial_rebalance_delay_ms
            group.initial_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.new_member_added = False
            if delay_ms <= 0:
                self._complete_join(group)
            else:
                self._timers.set(group.join_timer, self._clock_ms() + delay_ms)
        else:
            self._complete_or_wait(group)

    def _complete_or_wait(self, group: ClassicGroup) -> None:
        if group.all_joined:
            self._complete_join(group)
        else:
            self._timers.set(group.join_timer, self._clock_ms() + group.rebalance_timeout_ms)

    def _complete_if_all_joined(self, group: ClassicGroup) -> None:
        # The first rebalance ends with its delay, not earlier.
        first = group.previous_state is GroupState.EMPTY
        if group.state is GroupState.PREPARING and not first and group.all_joined:
            self._complete_join(group)

    def _on_join_timer(self, group: ClassicGroup) -> None:
        if group.state is not GroupState.PREPARING:
            return
        if group.previous_state is GroupState.EMPTY and group.new_member_added and group.initial_left_ms:
            group.new_member_added = False
            delay_ms = min(self._settings.initial_rebalance_delay_ms, group.initial_left_ms)
            group.initial_left_ms -= delay_ms
            self._timers.set(group.join_timer, self._clock_ms() + delay_ms)
        else:
            self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> None:
        group.join_timer.cancel()
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.instance_id is None:
                group.remove(member.member_id)
        if group.members and not group.elect_leader():
            # Static members alone, none of them here: wait on.
            self._timers.set(group.join_timer, self._clock_ms() + max(group.rebalance_timeout_ms, 1))
            return
        group.next_generation(self._wall_ms())
        if not group.members:
            self._store_emptied(group)
            return
        for member in list(group.members.values()):
            answer_join(member, group.join_result(member))
            self._heard(member)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        self._timers.set(group.sync_timer, self._clock_ms() + group.rebalance_timeout_ms)

    def _on_sync_timer(self, group: ClassicGroup) -> None:
        if group.state not in (GroupState.COMPLETING, GroupState.STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            group.remove(member_id)
        self._prepare_rebalance(group)

    def _propagate(self, group: ClassicGroup, error: ErrorCode) -> None:
        for member in list(group.members.values()):
            result = SyncResult(error)
            if not error:
                result = SyncResult(error, group.protocol_type, group.protocol, member.assignment)
            if answer_sync(member, result):
                self._heard(member)

    def _store_emptied(self, group: ClassicGroup) -> None:
        generation = group.generation

        def stored(error: ErrorCode) -> None:
            if error and group.generation == generation:
                group.is_unsaid = True

        self._store(group, {}, stored)

    def _store(self, group: ClassicGroup, assignments: dict[str, bytes] | None, done: Done) -> None:
        group.stored, group.is_unsaid = True, False
        value = put_group(group.to_value(assignments))
        self.store.write([Record(group_key(group.group_id), value)], done)

    # -- SyncGroup ---------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, request: SyncRequest, reply: SyncReply) -> None:
        """A SyncGroup."""
        error = self._check_sync(group, request)
        if error:
            reply(SyncResult(error))
            return
        member = group.members[request.member_id]
        if group.state is GroupState.STABLE:
            self._synced(group, member.member_id)
            self._heard(member)
            reply(SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment))
            return
        if group.leader == member.member_id and not self._may_assign(group, request):
            reply(SyncResult(ErrorCode.INVALID_REQUEST))
            return
        if member.awaiting_sync is not None:
            answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = reply
        self._synced(group, member.member_id)
        if group.leader != member.member_id or group.assigned_generation == group.generation:
            return  # a second assignment would be in the log and not in memory, or the other way round
        group.assigned_generation = group.generation
        given = dict(request.assignments)
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation = group.generation

        def stored(error: ErrorCode) -> None:
            if (
                self.store.closed
                or group.state is not GroupState.COMPLETING
                or group.generation != generation
            ):
                return
            group.assign({} if error else assignments)
            if error:
                self._propagate(group, group_write_error(error))
                self._rebalance_or_complete(group)
            else:
                self._propagate(group, ErrorCode.NONE)
                group.become(GroupState.STABLE, self._wall_ms())

        self._store(group, assignments, stored)

    def _may_assign(self, group: ClassicGroup, request: SyncRequest) -> bool:
        """Whether the group may hold what its leader assigns."""
        node, owner = self.store.node, group.members[request.member_id].owner
        sizes = [len(data) for _, data in request.assignments]
        had = sum(len(member.assignment) for member in group.members.values())
        growth = sum(sizes) - had
        return node.takes(owner, max(sizes, default=0)) and node.has_room(
            owner, 0, growth, group.held_bytes + growth
        )

    def _check_sync(self, group: ClassicGroup, request: SyncRequest) -> ErrorCode:
        error = group.check_member(request.member_id, request.instance_id)
        if error:
            return error
        if request.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, group.protocol_type) or request.protocol not in (
            None,
            group.protocol,
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _synced(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            group.sync_timer.cancel()

    # -- Heartbeat, sessions -------------------------------------------------------------------

    def heartbeat(
        self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """A Heartbeat."""
        error = group.check_member(member_id, instance_id)
        if error:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._heard(group.members[member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else ErrorCode.NONE

    def _heard(self, member: Member) -> None:
        self._timers.set(member.session, self._clock_ms() + member.session_timeout_ms)

    def _on_member_timer(self, group: ClassicGroup, member_id: str) -> None:
        if member_id in group.pending:
            group.remove(member_id)
            self._complete_if_all_joined(group)
            self.store.forget_if_idle(group)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.awaiting_join is not None or member.awaiting_sync is not None):
            return  # it waits for us; its next session begins with the answer
        self._drop_member(group, member)
        self._rebalance_after_loss(group)

    def _drop_member(self, group: ClassicGroup, member: Member) -> None:
        answer_join(member, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID))
        answer_sync(member, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)

    def _rebalance_after_loss(self, group: ClassicGroup) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare_rebalance(group)
        else:
            self._complete_if_all_joined(group)

    # -- LeaveGroup ------------------------------------------------------------------------------

    def leave(self, group: ClassicGroup, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """A LeaveGroup of (member id, instance id)s; a code for each."""
        codes = []
        for member_id, instance_id in members:
            if not member_id:
                known = group.static.get(instance_id) if instance_id is not None else None
                error = ErrorCode.NONE if known is not None else ErrorCode.UNKNOWN_MEMBER_ID
                member_id = known or ""
            elif member_id in group.pending:
                group.remove(member_id)
                error = ErrorCode.NONE
            else:
                error = group.check_member(member_id, instance_id)
            codes.append(error)
            if not error and member_id in group.members:
                self._drop_member(group, group.members[member_id])
        if ErrorCode.NONE in codes:
            self._rebalance_after_loss(group)
        self.store.forget_if_idle(group)
        return codes

    # -- for the shard ------------------------------------------------------------------------------

    def ring(self, group: ClassicGroup, timer: Timer) -> None:
        """A timer of the group rang."""
        if timer.kind == "member":
            self._on_member_timer(group, timer.owner[1])
        elif timer.kind == "join":
            self._on_join_timer(group)
        else:
            self._on_sync_timer(group)

    def close(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Leadership is lost: whoever waits is sent away with that error."""
        answer_all(list(group.members.values()), error)
        group.state = GroupState.DEAD

    # -- the log ------------------------------------------------------------------------------------

    def replay(self, about: Key, value: bytes | None) -> None:
        """Take in the record of a group. Raises Malformed for damage."""
        name = about.group_id
        if value is not None:
            self.store.groups[name] = ClassicGroup.from_value(name, read_group(value), self.store.holdings)
        elif isinstance(self.store.groups.get(name), ClassicGroup):
            del self.store.groups[name]

    def resume(self, group: ClassicGroup) -> None:
        """The group was read from the log: its members' sessions begin anew."""
        group.take_up()
        for member in group.members.values():
            self._heard(member)

    def tombstones(self, group: ClassicGroup) -> list[Record]:
        """Records that remove an empty group. Where the log did not take that it is empty, that is said first: in
        it too members go before their group."""
        key = group_key(group.group_id)
        gone = [Record(key, None)]
        return [Record(key, put_group(group.to_value({}))), *gone] if group.is_unsaid else gone
