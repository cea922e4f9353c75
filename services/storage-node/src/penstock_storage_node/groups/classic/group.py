"""A group of the classic protocol: members, generation, state. Data and the rules that need nothing else.

States and their meaning are Kafka's (ClassicGroupState): EMPTY has offsets at most; PREPARING waits for
members to join; COMPLETING waits for the leader's assignment; STABLE has both; DEAD is gone.
Source of the rules: ClassicGroup and ClassicGroupMember of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups.holdings import NOBODYS, Holdings, Owner, protocols_bytes
from penstock_storage_node.groups.records import GroupValue, MemberValue, subscribed_topics
from penstock_storage_node.groups.store import PlacesOf, must
from penstock_storage_node.timers import Timer

CONSUMER_PROTOCOL: Final = "consumer"
"""Protocol type of consumers; the coordinator can read their subscriptions."""

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in the member's order of preference."""


class GroupState(StrEnum):
    """Named as clients are told."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class JoinResult:
    """What a JoinGroup is answered."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[tuple[str, str | None, bytes]] = ()
    """(member id, instance id, metadata); for the leader alone."""


@dataclass(slots=True)
class SyncResult:
    """What a SyncGroup is answered."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


JoinReply = Callable[[JoinResult], None]
SyncReply = Callable[[SyncResult], None]


@dataclass(slots=True, eq=False)
class Member:
    """One member. `awaiting_*` are the replies that it waits for."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    session: Timer
    assignment: bytes = b""
    awaiting_join: JoinReply | None = None
    awaiting_sync: SyncReply | None = None
    is_new: bool = False
    owner: Owner = NOBODYS
    """Whose it is, see `holdings`."""

    @property
    def size_bytes(self) -> int:
        """What it said of itself and is assigned."""
        return protocols_bytes(self.protocols) + len(self.assignment)

    def metadata(self, protocol: str | None) -> bytes:
        """Its metadata for one protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """The first of its protocols that all members know."""
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """One group."""

    group_id: str
    join_timer: Timer
    sync_timer: Timer
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """Member id by instance id."""
    pending: dict[str, Timer] = field(default_factory=dict)
    """Member ids that were given out and haven't joined (KIP-394)."""
    pending_sync: set[str] = field(default_factory=set)
    topics: frozenset[str] | None = None
    """Topics that the members subscribe to, when they are consumers whose subscriptions can be read."""
    state_ms: int = -1
    """When the state changed last, in ms since 1970."""
    new_member_added: bool = False
    initial_left_ms: int = 0
    """How much longer the first rebalance may be put off."""
    assigned_generation: int = -1
    """The last one whose leader has sent an assignment."""
    stored: bool = False
    """The log has a record of it."""
    is_unsaid: bool = False
    """The log's last record of it may name members that it has no more."""
    holdings: Holdings = field(default_factory=Holdings)
    """Where its members are counted."""
    held_bytes: int = 0
    """What they hold, all together."""

    # -- state ------------------------------------------------------------------------

    def become(self, state: GroupState, wall_ms: int) -> None:
        """Change the state."""
        self.previous_state, self.state = self.state, state
        self.state_ms = wall_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in (GroupState.STABLE, GroupState.COMPLETING, GroupState.EMPTY)

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    @property
    def all_joined(self) -> bool:
        """Every member waits for the next generation, and nobody is about to join."""
        return not self.pending and all(m.awaiting_join is not None for m in self.members.values())

    @property
    def awaiting_join_count(self) -> int:
        return sum(m.awaiting_join is not None for m in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asks for."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    # -- what is asked of every group, see `store.Group` ------------------------------------

    @property
    def kind(self) -> str:
        return "classic"

    @property
    def is_empty(self) -> bool:
        return self.state in (GroupState.EMPTY, GroupState.DEAD) and not self.members

    @property
    def is_expected(self) -> bool:
        return bool(self.pending)

    @property
    def is_idle(self) -> bool:
        return self.state is GroupState.EMPTY and not (self.stored or self.members or self.pending)

    @property
    def may_lose_offsets(self) -> bool:
        return self.state is GroupState.EMPTY or self.is_consumer

    @property
    def offsets_may_expire(self) -> bool:
        """What a group in the middle of a rebalance reads isn't known, nor is what others than consumers do."""
        if self.protocol_type is None or self.state is GroupState.EMPTY:
            return True
        return self.is_consumer and self.topics is not None and self.state is GroupState.STABLE

    @property
    def emptied_ms(self) -> int | None:
        had_members = self.protocol_type is not None and self.state_ms >= 0
        return self.state_ms if had_members and self.state is GroupState.EMPTY else None

    def subscribes(self, topic: str) -> bool:
        """Whether its members read `topic`; True when that cannot be known of a consumer group."""
        return self.is_consumer if self.topics is None else topic in self.topics

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, version: int, places: PlacesOf
    ) -> ErrorCode:
        """Whether that member may commit; anybody may to an empty group. Versions make no difference."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance_id is not None:
            error = self.check_member(member_id, instance_id)
            if error:
                return error
            if generation != self.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif self.state is not GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING else ErrorCode.NONE

    def check_transactional_commit(
        self, member_id: str, instance_id: str | None, generation: int, places: PlacesOf
    ) -> ErrorCode:
        """Whether that member may commit in a transaction; that it waits for an assignment is no hindrance."""
        if generation < 0 and (self.state is GroupState.EMPTY or not (member_id or instance_id is not None)):
            return ErrorCode.NONE
        error = self.check_member(member_id, instance_id)
        if not error and generation != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        return error

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Anybody may."""
        return ErrorCode.NONE

    def session_of(self, member_id: str) -> tuple[Timer, int] | None:
        """A commit is a sign of life, but for a group that waits for its leader's assignment."""
        if self.state is GroupState.STABLE or self.state is GroupState.PREPARING:
            member = self.members.get(member_id)
            if member is not None:
                return member.session, member.session_timeout_ms
        return None

    def bury(self) -> None:
        """It was removed: nothing of it rings any more."""
        for member_id in list(self.pending):
            self._no_longer_expect(member_id)
        self.state = GroupState.DEAD

    # -- members ------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols may join."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        common = self._common_protocols()
        return any(name in common for name, _ in protocols)

    def _common_protocols(self) -> set[str]:
        counts = Counter(name for m in self.members.values() for name in {p[0] for p in m.protocols})
        return {name for name, count in counts.items() if count == len(self.members)}

    def add(self, member: Member, protocol_type: str | None) -> None:
        """Take in a member; the first leads."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._no_longer_expect(member.member_id)
        self._weigh(member, 1)

    def expect(self, member_id: str, owner: Owner) -> Timer:
        """A member id was given out; the deadline by which it has to be used, to be set."""
        timer = self.pending[member_id] = Timer("member", (self.group_id, member_id, owner))
        self.holdings.take(owner, 0)
        return timer

    def _no_longer_expect(self, member_id: str) -> None:
        timer = self.pending.pop(member_id, None)
        if timer is not None:
            timer.cancel()
            self.holdings.give(timer.owner[2], 0)

    def change(self, member: Member, protocols: Protocols, owner: Owner) -> None:
        """A member says something else of itself."""
        self._weigh(member, -1)
        member.protocols, member.owner = protocols, owner
        self._weigh(member, 1)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """What each member has from now on, by member id."""
        for member in self.members.values():
            growth = len(given := assignments.get(member.member_id, b"")) - len(member.assignment)
            member.assignment = given
            if growth:
                self.holdings.resize(member.owner, growth)
                self.held_bytes += growth

    def _weigh(self, member: Member, sign: int) -> None:
        size = member.size_bytes
        self.held_bytes += sign * size
        (self.holdings.take if sign > 0 else self.holdings.give)(member.owner, size)

    def let_go(self) -> None:
        """Its members are counted elsewhere, or nowhere, from now on."""
        for member_id in list(self.pending):
            self._no_longer_expect(member_id)
        for member in self.members.values():
            self._weigh(member, -1)

    def take_up(self) -> None:
        """Count its members: it was read from the log."""
        for member in self.members.values():
            self._weigh(member, 1)

    def remove(self, member_id: str) -> None:
        """Forget a member, or one that was to join."""
        self._no_longer_expect(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self._weigh(member, -1)
            member.session.cancel()
            if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
                del self.static[member.instance_id]
        self.pending_sync.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, old_id: str, new_id: str) -> Member:
        """A static member came back with a new id: it takes the place of the old one."""
        member = self.members.pop(old_id)
        fence(member)
        member.member_id = new_id
        member.session.owner = (self.group_id, new_id)
        self.members[new_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID for a static member that was replaced."""
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # -- generations ----------------------------------------------------------------------

    def elect_leader(self) -> bool:
        """Have one that joined lead; False when none has."""
        if self.leader is None:
            return False
        if self.members[self.leader].awaiting_join is not None:
            return True
        joined = next((m.member_id for m in self.members.values() if m.awaiting_join is not None), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def select_protocol(self) -> str:
        """The protocol that most members like best, among those that all know."""
        candidates = self._common_protocols()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=lambda name: votes[name])

    def next_generation(self, wall_ms: int) -> None:
        """Begin the next generation, with the members that there are."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.become(GroupState.COMPLETING, wall_ms)
        else:
            self.protocol = None
            self.become(GroupState.EMPTY, wall_ms)
        self.topics = self._read_topics()

    def _read_topics(self) -> frozenset[str] | None:
        if not self.is_consumer:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            read = subscribed_topics(member.metadata(self.protocol))
            if read is None:
                return None
            topics |= read
        return frozenset(topics)

    def join_result(self, member: Member, error: ErrorCode = ErrorCode.NONE) -> JoinResult:
        """The present generation, as told to `member`."""
        return JoinResult(
            error,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            members=self.roster() if self.leader == member.member_id else (),
        )

    def roster(self) -> list[tuple[str, str | None, bytes]]:
        """What a leader needs to make an assignment."""
        return [(m.member_id, m.instance_id, m.metadata(self.protocol)) for m in self.members.values()]

    # -- what must always hold ------------------------------------------------------------------

    def validate(self) -> None:
        """Between steps of the protocol. What members read is their leader's to say: it is not looked at."""
        name = self.group_id
        must(self.state is not GroupState.DEAD, name, "a group that is there is not dead")
        must(self.generation >= 0, name, "a generation is not negative", self.generation)
        if self.members:
            must(self.leader in self.members, name, "the leader is a member", self.leader)
            must(self._common_protocols(), name, "members have a protocol in common", self.roster())
        else:
            must(self.leader is None, name, "a group without members has no leader", self.leader)
        ids = {m.instance_id: key for key, m in self.members.items() if m.instance_id is not None}
        must(self.static == ids, name, "instance ids are those of members", self.static, ids)
        for member_id, member in self.members.items():
            self._validate_member(member_id, member)
        for member_id, timer in self.pending.items():
            must(member_id not in self.members, name, "an id is pending or a member's, not both", member_id)
            must(timer.will_ring, name, "a pending id has a deadline", member_id)
        self._validate_state()

    def _validate_member(self, member_id: str, member: Member) -> None:
        name, session = self.group_id, member.session
        waits = member.awaiting_join is not None or member.awaiting_sync is not None
        must(member.member_id == member_id, name, "a member stands under its own id", member)
        must(session.owner == (name, member_id), name, "a session is its member's", session.owner)
        must(
            session.will_ring or (waits and not member.is_new),
            name,
            "a member has a deadline, unless it waits for us",
            member_id,
        )
        if member.awaiting_sync is not None:
            must(
                self.state is GroupState.COMPLETING,
                name,
                "for assignments one waits in COMPLETING",
                self.state,
            )
        if member.awaiting_join is not None:
            must(
                self.state is not GroupState.COMPLETING, name, "COMPLETING has answered every join", member_id
            )

    def _validate_state(self) -> None:
        name, state = self.group_id, self.state
        preparing = state is GroupState.PREPARING
        must(self.join_timer.will_ring == preparing, name, "a rebalance, and nothing else, has an end", state)
        if state is GroupState.EMPTY:
            must(not self.members, name, "an empty group has no members", list(self.members))
        if state in (GroupState.COMPLETING, GroupState.STABLE):
            must(self.members, name, "a generation has members", state)
            must(self.generation > 0, name, "generations are counted from 1", self.generation)
            common = self._common_protocols()
            must(self.protocol in common, name, "all members know the protocol", self.protocol, common)
        if self.pending_sync:
            must(
                state in (GroupState.COMPLETING, GroupState.STABLE),
                name,
                "members that have to sync are of a generation",
                state,
            )
            must(self.pending_sync <= self.members.keys(), name, "only members sync", self.pending_sync)
            must(self.sync_timer.will_ring, name, "members have a deadline to sync", self.pending_sync)

    # -- stored form -------------------------------------------------------------------------

    def to_value(self, assignments: dict[str, bytes] | None = None) -> GroupValue:
        """What is stored; `assignments` in place of those that members have now."""
        return GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            self.state_ms,
            tuple(
                MemberValue(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.rebalance_timeout_ms,
                    m.session_timeout_ms,
                    m.metadata(self.protocol),
                    m.assignment if assignments is None else assignments.get(m.member_id, b""),
                )
                for m in self.members.values()
            ),
        )

    @classmethod
    def from_value(cls, group_id: str, value: GroupValue, holdings: Holdings | None = None) -> ClassicGroup:
        """The group as it was stored: stable, or empty. Its members are not counted yet (`take_up`)."""
        group = cls(group_id, Timer("join", (group_id,)), Timer("sync", (group_id,)))
        group.holdings = holdings or group.holdings
        group.protocol_type = value.protocol_type or None
        group.generation, group.protocol = value.generation, value.protocol
        group.state_ms, group.stored = value.state_ms, True
        for m in value.members:
            member = Member(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                ((value.protocol, m.subscription),) if value.protocol is not None else (),
                Timer("member", (group_id, m.member_id)),
                m.assignment,
            )
            group.members[m.member_id] = member
            if m.instance_id is not None:
                group.static[m.instance_id] = m.member_id
        group.leader = value.leader if value.leader in group.members else next(iter(group.members), None)
        if group.members:
            group.state = group.previous_state = GroupState.STABLE
        group.topics = group._read_topics()
        return group


def fence(member: Member) -> None:
    """Whatever a replaced static member waits for is refused."""
    answer_join(member, JoinResult(ErrorCode.FENCED_INSTANCE_ID, member.member_id))
    answer_sync(member, SyncResult(ErrorCode.FENCED_INSTANCE_ID))


def answer_join(member: Member, result: JoinResult) -> None:
    """Answer a member's JoinGroup, if it waits for one."""
    reply, member.awaiting_join = member.awaiting_join, None
    if reply is not None:
        reply(result)


def answer_sync(member: Member, result: SyncResult) -> bool:
    """Answer a member's SyncGroup; False when it doesn't wait for one."""
    reply, member.awaiting_sync = member.awaiting_sync, None
    if reply is None:
        return False
    reply(result)
    return True


def answer_all(members: Iterable[Member], error: ErrorCode) -> None:
    """Refuse everything that members wait for."""
    for member in members:
        answer_join(member, JoinResult(error, member.member_id))
        answer_sync(member, SyncResult(error))
