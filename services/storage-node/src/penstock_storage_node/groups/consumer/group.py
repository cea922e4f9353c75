"""A group of the consumer protocol (KIP-848): members, epochs, target and current assignments.

Members are immutable; a step of the protocol works on a draft of the group, and the draft takes
the group's place once its records are appended. So a refused write leaves nothing behind.

Reconciliation (CurrentAssignmentBuilder of Apache Kafka 4.3): a member first gives up what it is to
lose (UNREVOKED), at its old epoch; then it moves to the target's epoch with what is free, and gets
the rest as others let go of it (UNRELEASED). A partition never has two owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId
from penstock_storage_node.groups.holdings import NOBODYS, Owner, protocols_bytes
from penstock_storage_node.groups.records import Assignment, ConsumerMemberValue, CurrentValue
from penstock_storage_node.groups.store import PlacesOf, must

Parts = frozenset[tuple[TopicId, int]]
"""Partitions by topic id."""

NOTHING: Final[Parts] = frozenset()

STABLE: Final = 0
UNREVOKED: Final = 1
UNRELEASED: Final = 2

LEAVE: Final = -1
"""Member epoch of a member that leaves."""
LEAVE_FOR_NOW: Final = -2
"""Member epoch of a static member that is to come back."""

_EPOCHS_SINCE: Final = 9


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member. `assigned` is what it may read; `revoking` what it still has to give up."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: tuple[int, tuple[tuple[str, bytes], ...]] | None = None
    """(session timeout in ms, protocols) of a member that speaks the classic protocol."""
    epoch: int = 0
    previous_epoch: int = -1
    state: int = STABLE
    assigned: Parts = NOTHING
    revoking: Parts = NOTHING
    since: Mapping[tuple[TopicId, int], int] = field(default_factory=dict)
    """In which epoch each of those was assigned (KIP-1251)."""
    owner: Owner = NOBODYS
    """Whose it is, see `holdings`."""

    @property
    def size_bytes(self) -> int:
        """What it said of itself."""
        own = protocols_bytes(self.classic[1]) if self.classic is not None else 0
        return own + sum(map(len, self.topics)) + len(self.regex or "")

    @property
    def client(self) -> tuple[str | None, str, str]:
        """Who it was when it was last heard."""
        return self.instance_id, self.client_id, self.client_host

    def to_value(self) -> ConsumerMemberValue:
        """What it has said of itself, as it is stored."""
        return ConsumerMemberValue(
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.topics,
            self.regex,
            self.rebalance_timeout_ms,
            self.assignor,
            self.classic,
        )

    def with_value(self, value: ConsumerMemberValue) -> ConsumerMember:
        """The member as it was stored."""
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=value.topics,
            regex=value.regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.assignor,
            classic=value.classic,
        )

    def current(self) -> CurrentValue:
        """What it owns, as it is stored."""
        return CurrentValue(
            self.epoch,
            self.previous_epoch,
            self.state,
            to_assignment(self.assigned),
            to_assignment(self.revoking),
            to_epochs(self.assigned, self.since),
            to_epochs(self.revoking, self.since),
        )

    def had(self, parts: Iterable[tuple[TopicId | None, int]], epoch: int) -> bool:
        """Whether it has all of them, or has yet to give them up, and had them in that epoch already."""
        return all(
            topic_id is not None and self.since.get((topic_id, number), epoch + 1) <= epoch
            for topic_id, number in parts
        )


class Resolved(NamedTuple):
    """Which topics a regular expression stands for, by somebody's rights."""

    names: frozenset[str]
    seen: object
    """Metadata of the topics that were looked at."""
    rights: object
    """Version of the rights."""
    at_ms: int


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """One group."""

    group_id: str
    epoch: int = 0
    assignment_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Parts] = field(default_factory=dict)
    owners: dict[tuple[TopicId, int], str] = field(default_factory=dict)
    """Who has a partition, or has yet to give it up."""
    static: dict[str, str] = field(default_factory=dict)
    """Member id by instance id."""
    topics: dict[str, tuple[TopicId, int]] = field(default_factory=dict)
    """Id and partition count of every topic that a member subscribes to, as of the last epoch."""
    seen: object = None
    """Metadata that `topics` was last compared with."""
    resolved: dict[str, Resolved] = field(default_factory=dict)
    """By regular expression, where rights are looked at; never changed in place."""
    held_bytes: int = 0
    """What its members said of themselves, all together."""
    epoch_ms: int = -1
    """When its epoch rose last, in ms since 1970; -1 where that is not known."""

    def draft(self) -> ConsumerGroup:
        """A copy to change."""
        return ConsumerGroup(
            self.group_id,
            self.epoch,
            self.assignment_epoch,
            dict(self.members),
            dict(self.targets),
            dict(self.owners),
            dict(self.static),
            self.topics,
            self.seen,
            self.resolved,
            self.held_bytes,
            self.epoch_ms,
        )

    def raise_epoch(self, wall_ms: int) -> None:
        """Members or topics are others."""
        self.epoch += 1
        self.epoch_ms = wall_ms

    @property
    def state(self) -> str:
        """As clients are told."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        settled = all(m.state == STABLE and m.epoch == self.assignment_epoch for m in self.members.values())
        return "Stable" if settled else "Reconciling"

    # -- what is asked of every group, see `store.Group` ------------------------------------

    @property
    def kind(self) -> str:
        return "consumer"

    @property
    def protocol_type(self) -> str:
        return "consumer"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_expected(self) -> bool:
        """Members choose their ids themselves: nobody is."""
        return False

    @property
    def is_idle(self) -> bool:
        """It has records from its first member on."""
        return False

    @property
    def may_lose_offsets(self) -> bool:
        return True

    @property
    def offsets_may_expire(self) -> bool:
        return True

    @property
    def emptied_ms(self) -> int | None:
        """With its last member its epoch rose for the last time, and that record says when."""
        return self.epoch_ms if self.epoch_ms >= 0 and not self.members else None

    def session_of(self, member_id: str) -> None:
        """Heartbeats alone are signs of life."""

    def bury(self) -> None:
        """Without members it has nothing that rings."""

    def subscribes(self, topic: str) -> bool:
        """Whether its members read `topic`."""
        return topic in self.topics or any(topic in m.topics for m in self.members.values())

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, version: int, places: PlacesOf
    ) -> ErrorCode:
        """Whether that member may commit in that epoch; anybody may to an empty group. A member's id says
        all: its instance id makes no difference. An epoch that it has left behind will do where it had all of
        `places` in it and has them still (KIP-1251): a heartbeat may have overtaken the commit."""
        if generation < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and version < _EPOCHS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        if _is_of_epoch(member, generation, places):
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def check_transactional_commit(
        self, member_id: str, instance_id: str | None, generation: int, places: PlacesOf
    ) -> ErrorCode:
        """Whether that member may commit in a transaction in that epoch; the request knows no other error than
        ILLEGAL_GENERATION for a stale one."""
        if generation < 0 and (not self.members or not (member_id or instance_id is not None)):
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if _is_of_epoch(member, generation, places) else ErrorCode.ILLEGAL_GENERATION

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether that member may fetch offsets; without a member id it is an administrator."""
        if member_id is None or epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; uniform when none asks."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else "uniform"

    # -- members --------------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        """Add or replace a member."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._disown(old)
            self.held_bytes -= old.size_bytes
        self.members[member.member_id] = member
        self.held_bytes += member.size_bytes
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for part in member.assigned | member.revoking:
            self.owners[part] = member.member_id

    def remove(self, member_id: str) -> None:
        """Forget a member and all that it had."""
        member = self.members.pop(member_id, None)
        self.targets.pop(member_id, None)
        if member is not None:
            self._disown(member)
            self.held_bytes -= member.size_bytes
            if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
                del self.static[member.instance_id]

    def at_rest(self, member_id: str, epoch: int, seen: object) -> ConsumerMember | None:
        """The member, if there is nothing to tell it and nothing to do in the group, as nearly always: such
        a heartbeat does not cost what grows with the group. `epoch`: what the member has; `seen`: the
        metadata of now."""
        if not 0 < epoch == self.epoch == self.assignment_epoch or self.seen is not seen:
            return None
        member = self.members.get(member_id)
        at_rest = (
            member is not None and (member.epoch, member.state) == (epoch, STABLE) and member.classic is None
        )
        return member if at_rest else None

    def _disown(self, member: ConsumerMember) -> None:
        for part in member.assigned | member.revoking:
            if self.owners.get(part) == member.member_id:
                del self.owners[part]

    def reconcile(self, member: ConsumerMember, owned: Parts | None) -> ConsumerMember:
        """The member's next state. `owned`: what it says that it has; None when it didn't say."""
        if member.state == STABLE and member.epoch == self.assignment_epoch:
            return member
        if member.state == UNREVOKED and (owned is None or owned & member.revoking):
            return member
        target = self.targets.get(member.member_id, NOTHING)
        kept = member.assigned & target
        revoking = member.assigned - target
        if revoking:
            since = {part: member.since[part] for part in member.assigned}
            return replace(member, state=UNREVOKED, assigned=kept, revoking=revoking, since=since)
        wanted = target - kept
        free = frozenset(p for p in wanted if self.owners.get(p, member.member_id) == member.member_id)
        epoch = self.assignment_epoch
        return replace(
            member,
            epoch=epoch,
            previous_epoch=member.epoch if member.epoch != epoch else member.previous_epoch,
            state=STABLE if len(free) == len(wanted) else UNRELEASED,
            assigned=kept | free,
            revoking=NOTHING,
            since={part: member.since[part] for part in kept} | dict.fromkeys(free, epoch),
        )

    # -- what must always hold ----------------------------------------------------------------

    def validate(self) -> None:
        """Between steps of the protocol."""
        name = self.group_id
        must(
            0 <= self.assignment_epoch <= self.epoch,
            name,
            "an assignment is of an epoch that was",
            self.assignment_epoch,
            self.epoch,
        )
        must(
            self.targets.keys() == self.members.keys(),
            name,
            "every member, and nobody else, has a target",
            list(self.targets),
            list(self.members),
        )
        targets = [part for target in self.targets.values() for part in target]
        must(len(targets) == len(set(targets)), name, "a partition is in one target", self.targets)
        held = [(part, key) for key, m in self.members.items() for part in m.assigned | m.revoking]
        must(len(held) == len(dict(held)), name, "a partition has one owner", held)
        must(self.owners == dict(held), name, "owners are the members that have the partition", self.owners)
        ids = {m.instance_id: key for key, m in self.members.items() if m.instance_id is not None}
        must(self.static == ids, name, "instance ids are those of members", self.static, ids)
        for member_id, member in self.members.items():
            self._validate_member(member_id, member)

    def _validate_member(self, member_id: str, member: ConsumerMember) -> None:
        name, epoch = self.group_id, member.epoch
        must(member.member_id == member_id, name, "a member stands under its own id", member)
        must(LEAVE_FOR_NOW <= epoch != LEAVE, name, "a member that left is not there", member)
        must(epoch <= self.assignment_epoch, name, "a member is no further than the assignment", member)
        must(epoch >= 0 or member.instance_id is not None, name, "only static members are to return", member)
        must((member.state == UNREVOKED) == bool(member.revoking), name, "UNREVOKED has to revoke", member)
        must(not member.assigned & member.revoking, name, "what is revoked is not assigned", member)
        if member.state == STABLE and epoch == self.assignment_epoch:
            must(member.assigned == self.targets[member_id], name, "STABLE has its whole target", member)
        owned = member.assigned | member.revoking
        must(member.since.keys() == owned, name, "what is owned is so since an epoch", member)


def _is_of_epoch(member: ConsumerMember, epoch: int, places: PlacesOf) -> bool:
    return epoch == member.epoch or (0 <= epoch < member.epoch and member.had(places(), epoch))


def to_epochs(parts: Iterable[tuple[TopicId, int]], since: Mapping[tuple[TopicId, int], int]) -> Assignment:
    """In which epoch each was assigned, in the order of `to_assignment`."""
    return {
        topic_id: tuple(since[topic_id, number] for number in numbers)
        for topic_id, numbers in to_assignment(parts).items()
    }


def since_of(value: CurrentValue) -> dict[tuple[TopicId, int], int]:
    """In which epoch each partition of a stored member was assigned. Older records don't say: no commit of an epoch
    before the member's own is taken by them, as ever."""
    found: dict[tuple[TopicId, int], int] = {}
    for assignment, since in (
        (value.revoking, value.revoking_since),
        (value.assigned, value.assigned_since),
    ):
        for topic_id, numbers in assignment.items():
            epochs = since.get(topic_id, (max(value.epoch, 0),) * len(numbers))
            found.update(((topic_id, number), at) for number, at in zip(numbers, epochs, strict=True))
    return found


def to_assignment(parts: Iterable[tuple[TopicId, int]]) -> Assignment:
    """Partitions by topic id, in order."""
    out: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(parts):
        out.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(partitions) for topic_id, partitions in out.items()}


def to_parts(assignment: Mapping[TopicId, Iterable[int]]) -> Parts:
    """The other way."""
    return frozenset((topic_id, p) for topic_id, partitions in assignment.items() for p in partitions)
