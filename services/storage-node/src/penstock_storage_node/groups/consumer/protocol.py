"""The consumer group protocol (KIP-848): ConsumerGroupHeartbeat, and what follows from it.

Rules (GroupMetadataManager.consumerGroupHeartbeat of Apache Kafka 4.3): a change of subscriptions, of
members or of subscribed topics raises the group's epoch; a group epoch ahead of the assignment's
makes a new target; each heartbeat takes its member one step towards it. Answers wait until all that
was written before them is below the high watermark, but for those to members at rest, which say
nothing new. A member that is silent for a session is out, and so is one
that does not give up its partitions within its rebalance timeout.

A group turns from classic to consumer when the first member of the new kind comes, and back while it has
no members; its offsets stay. For members of the classic protocol in a consumer group see `classic_members`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId
from penstock_storage_node.groups import records as rec
from penstock_storage_node.groups.classic.group import ClassicGroup, GroupState, answer_all
from penstock_storage_node.groups.consumer.assignors import ASSIGNORS, Subscriber
from penstock_storage_node.groups.consumer.group import (
    LEAVE,
    LEAVE_FOR_NOW,
    NOTHING,
    UNREVOKED,
    ConsumerGroup,
    ConsumerMember,
    Parts,
    since_of,
    to_assignment,
    to_parts,
)
from penstock_storage_node.groups.consumer.regex import BadRegex
from penstock_storage_node.groups.consumer.subscribed_regexes import RegexRights, SubscribedRegexes
from penstock_storage_node.groups.consumer.subscription import read_assignment, read_subscription
from penstock_storage_node.groups.holdings import NOBODYS, Owner
from penstock_storage_node.groups.records import Record
from penstock_storage_node.groups.store import ID_LENGTH_MAX, GroupStore, group_write_error, must
from penstock_storage_node.timers import Timer

_OTHER_TOPICS: Final = {"": (TopicId(b""), -1)}
"""Whatever a group's topics are found to be, they differ from this: a new target is made."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat; None where nothing changed since the last one."""

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Parts | None = None
    client_id: str = ""
    client_host: str = ""
    version: int = 1
    classic: tuple[int, tuple[tuple[str, bytes], ...]] | None = None
    """Of a member that speaks the classic protocol: session timeout in ms, protocols."""
    rights: RegexRights | None = None
    """What its sender may describe; None where nobody's rights are looked at."""
    owner: Owner = NOBODYS
    """Whose the member is, see `holdings`."""

    @property
    def is_full(self) -> bool:
        """It says everything, as after a lost answer: the assignment is told again."""
        said = self.topics is not None or self.regex is not None
        return self.epoch == 0 or (self.rebalance_timeout_ms != -1 and said and self.owned is not None)

    @property
    def is_bare(self) -> bool:
        """It says that the member lives, and no more."""
        said = (self.topics, self.regex, self.assignor, self.owned, self.rack_id, self.classic)
        return self.rebalance_timeout_ms == -1 and said == (None,) * 6

    @property
    def client(self) -> tuple[str | None, str, str]:
        """Who sends it."""
        return self.instance_id, self.client_id, self.client_host


@dataclass(slots=True)
class ConsumerHeartbeatResult:
    """What a ConsumerGroupHeartbeat is answered. `assignment` None: as it was."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assignment: Parts | None = None


BeatReply = Callable[[ConsumerHeartbeatResult], None]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ConsumerProtocol:
    """Runs the consumer groups of a shard."""

    def __init__(self, store: GroupStore) -> None:
        self.store = store
        self._groups = store.groups
        self._timers = store.timers
        self._topics = store.topics
        self._clock_ms = store.clock_ms
        self._sessions: dict[tuple[str, str], tuple[Timer, Timer]] = {}
        """Of each member, by group id and member id: until it has to be heard, and until it has to have given
        up what it is to lose (a classic member: to have joined again)."""
        self._regexes = SubscribedRegexes(store.topics, store.clock_ms)

    def session_ms(self, group_id: str) -> int:
        """Session timeout of a group's members of the consumer protocol."""
        default_ms = self.store.settings.consumer_session_ms
        return self.store.setting_ms(group_id, "consumer.session.timeout.ms", default_ms)

    def heartbeat_ms(self, group_id: str) -> int:
        """How often they send heartbeats."""
        default_ms = self.store.settings.consumer_heartbeat_ms
        return self.store.setting_ms(group_id, "consumer.heartbeat.interval.ms", default_ms)

    # -- heartbeat --------------------------------------------------------------------------

    def consumer_heartbeat(self, request: ConsumerHeartbeat, reply: BeatReply) -> None:
        """A ConsumerGroupHeartbeat."""
        self._regexes.narrows |= request.rights is not None
        try:
            self._check(request)
            self._check_size(request)
            records: list[Record] = []
            was = self._groups.get(request.group_id)
            group = self._group_to_beat(request, records)
            if request.epoch in (LEAVE, LEAVE_FOR_NOW):
                self._leave(group, request, reply)
            else:
                self.beat(group, request, records, reply)
            if isinstance(was, ClassicGroup):
                self._after_upgrade(was)
            elif was is None and request.group_id in self._groups:
                self.store.holdings.make(request.group_id, request.owner)
        except Refused as refusal:
            reply(ConsumerHeartbeatResult(refusal.code, refusal.message))

    def _check(self, request: ConsumerHeartbeat) -> None:
        def invalid(message: str) -> Refused:
            return Refused(ErrorCode.INVALID_REQUEST, message)

        if not request.group_id:
            raise invalid("GroupId can't be empty.")
        if request.instance_id == "" or request.rack_id == "":
            raise invalid("InstanceId and RackId can't be empty.")
        longest = max(len(request.member_id), len(request.instance_id or ""), len(request.rack_id or ""))
        if longest > ID_LENGTH_MAX:
            raise invalid(f"An id has more than {ID_LENGTH_MAX} characters.")
        if request.epoch < LEAVE_FOR_NOW:
            raise invalid("MemberEpoch is invalid.")
        if not request.member_id and (request.version >= 1 or request.epoch != 0):
            raise invalid("MemberId can't be empty.")
        if request.epoch == LEAVE_FOR_NOW and request.instance_id is None:
            raise invalid("InstanceId can't be null.")
        if request.epoch == 0:
            if request.rebalance_timeout_ms == -1:
                raise invalid("RebalanceTimeoutMs must be provided in first request.")
            if request.owned is None or request.owned:
                raise invalid("TopicPartitions must be empty when (re-)joining.")
            # To nothing so far is a subscription too: a pattern that the client looks at may match later.
            if request.topics is None and request.regex is None:
                raise invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be set first.")
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            raise Refused(
                ErrorCode.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {request.assignor} is not supported: {known}"
            )
        if request.regex:
            try:
                self._regexes.check(request.regex)
            except BadRegex as e:
                raise Refused(
                    ErrorCode.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex {request.regex!r}: {e}"
                ) from None

    def _check_size(self, request: ConsumerHeartbeat) -> None:
        said = sum(map(len, request.topics or ())) + len(request.regex or "")
        if not self.store.node.takes(request.owner, said):
            most = self.store.settings.member_bytes_max
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"A member says {said} bytes of itself, group_member_max_bytes is {most}.",
            )

    def _group_to_beat(self, request: ConsumerHeartbeat, records: list[Record]) -> ConsumerGroup:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if request.epoch != 0:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
        if isinstance(group, ClassicGroup):
            if group.state is not GroupState.EMPTY or group.members or group.pending:
                return self._upgraded(group, records)
            records.append(Record(rec.group_key(group.group_id), None))
        elif not self.store.node.may_make(request.owner):
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, "There are as many groups as may be.")
        return ConsumerGroup(request.group_id)

    def _upgraded(self, group: ClassicGroup, records: list[Record]) -> ConsumerGroup:
        """A classic group of consumers as a consumer group, with what has to be written for it."""
        upgraded = ConsumerGroup(group.group_id, group.generation, group.generation)
        upgraded.topics = _OTHER_TOPICS
        records.append(Record(rec.group_key(group.group_id), None))
        for m in group.members.values():
            subscription = read_subscription(
                m.metadata(group.protocol) or (m.protocols or (("", b""),))[0][1]
            )
            places = read_assignment(m.assignment)
            if not group.is_consumer or subscription is None or places is None or not m.protocols:
                raise Refused(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    f"Group {group.group_id} has members of the classic protocol that cannot be understood.",
                )
            found = ((self._topics.topic_id(topic), partition) for topic, partition in places)
            assigned = frozenset((i, p) for i, p in found if i is not None and (i, p) not in upgraded.owners)
            member = ConsumerMember(
                m.member_id,
                m.instance_id,
                None,
                m.client_id,
                m.client_host,
                tuple(sorted(set(subscription.topics))),
                rebalance_timeout_ms=m.rebalance_timeout_ms,
                classic=(m.session_timeout_ms, m.protocols),
                epoch=group.generation,
                previous_epoch=group.generation,
                assigned=assigned,
                since=dict.fromkeys(assigned, group.generation),
                owner=m.owner,
            )
            upgraded.put(member)
            upgraded.targets[m.member_id] = assigned
            for kind, value in (
                (rec.CONSUMER_MEMBER, rec.put_consumer_member(member.to_value())),
                (rec.TARGET_MEMBER, rec.put_target(to_assignment(assigned))),
                (rec.CURRENT_MEMBER, rec.put_current(member.current())),
            ):
                records.append(Record(self._key(upgraded, kind, m.member_id), value))
        return upgraded

    def _after_upgrade(self, was: ClassicGroup) -> None:
        """The classic group is no more: who waits in it joins again."""
        group = self._groups.get(was.group_id)
        if not isinstance(group, ConsumerGroup):
            return
        was.state = GroupState.DEAD
        was.let_go()
        was.join_timer.cancel()
        was.sync_timer.cancel()
        for m in list(was.members.values()):
            m.session.cancel()
            if m.member_id in group.members:
                self.watch(group, group.members[m.member_id])
        answer_all(list(was.members.values()), ErrorCode.REBALANCE_IN_PROGRESS)

    def refresh(self, group: ConsumerGroup) -> None:
        """Look for changes of topics, as a heartbeat does."""
        if group.seen is self._topics.token():
            return
        draft = group.draft()
        records: list[Record] = []
        self._retarget(draft, records)
        self._finish(group, draft, records, ConsumerHeartbeatResult(), lambda _: None)

    def beat(
        self, group: ConsumerGroup, request: ConsumerHeartbeat, records: list[Record], reply: BeatReply
    ) -> None:
        resting = group.at_rest(request.member_id, request.epoch, self._topics.token())
        rested = resting is not None and not self._regexes.is_due(group, resting.regex, request.rights)
        if resting is not None and rested and request.is_bare and request.client == resting.client:
            reply(ConsumerHeartbeatResult(member_id=resting.member_id, epoch=resting.epoch))
            self.watch(group, resting)
            return
        draft = group.draft()
        before = self._member_to_beat(draft, request, records)
        member = self._updated(before, request)
        self._check_room(draft, before, member, request)
        told = before.assigned if before.member_id in group.members else NOTHING
        if member.to_value() != before.to_value() or member.member_id not in group.members:
            value = rec.put_consumer_member(member.to_value())
            records.append(Record(self._key(draft, rec.CONSUMER_MEMBER, member.member_id), value))
        subscribed = (before.topics, before.regex) != (member.topics, member.regex)
        draft.put(member)
        if subscribed or member.member_id not in group.members:
            draft.seen = None
            draft.topics = _OTHER_TOPICS
        if (
            member.regex
            and request.rights is not None
            and self._regexes.is_due(draft, member.regex, request.rights)
            and self._regexes.resolve(draft, member.regex, request.rights)
        ):
            draft.seen = None
        self._retarget(draft, records)
        after = draft.reconcile(member, request.owned)
        if after != before or member.member_id not in group.members:
            if after.current() != before.current() or member.member_id not in group.members:
                value = rec.put_current(after.current())
                records.append(Record(self._key(draft, rec.CURRENT_MEMBER, member.member_id), value))
            draft.put(after)
        result = ConsumerHeartbeatResult(member_id=after.member_id, epoch=after.epoch)
        if request.is_full or after.assigned != told:
            result.assignment = after.assigned
        self._finish(group, draft, records, result, reply)
        current = self._groups.get(group.group_id)
        if isinstance(current, ConsumerGroup) and after.member_id in current.members:
            if current is draft and after.revoking != before.revoking:
                # What it was to give up before, or to join for, it has: for this it has its whole timeout.
                self._unhurry(group.group_id, after.member_id)
            self.watch(current, current.members[after.member_id])

    def _check_room(
        self,
        draft: ConsumerGroup,
        before: ConsumerMember,
        member: ConsumerMember,
        request: ConsumerHeartbeat,
    ) -> None:
        """Whether the group, and whoever sends the request, may hold what that takes."""
        is_new = before.member_id not in draft.members
        growth = member.size_bytes - (0 if is_new else before.size_bytes)
        if (is_new or growth > 0) and not self.store.node.has_room(
            request.owner, int(is_new), growth, draft.held_bytes + growth
        ):
            raise Refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "Groups of this sender, or all of them, hold as much as they may.",
            )

    def _count(self, group: ConsumerGroup, draft: ConsumerGroup) -> None:
        """The draft takes the group's place: so do its members where they are counted."""
        holdings = self.store.holdings
        counted = group.members if self._groups.get(draft.group_id) is group else {}
        for member_id, member in draft.members.items():
            old = counted.get(member_id)
            if old is member:
                continue
            if old is not None:
                holdings.give(old.owner, old.size_bytes)
            holdings.take(member.owner, member.size_bytes)
        for member_id in counted.keys() - draft.members.keys():
            holdings.give(counted[member_id].owner, counted[member_id].size_bytes)

    def _finish(
        self,
        group: ConsumerGroup,
        draft: ConsumerGroup,
        records: list[Record],
        result: ConsumerHeartbeatResult,
        reply: BeatReply,
    ) -> None:
        """Write, have the draft take the group's place, answer when the records are safe."""

        def written(error: ErrorCode) -> None:
            reply(
                ConsumerHeartbeatResult(group_write_error(error), "not written: try again")
                if error
                else result
            )

        if not records:
            group.seen, group.resolved = draft.seen, draft.resolved
            # What it says may rest on records of an earlier request.
            self.store.when_settled(written)
            return
        if self.store.write(records, written):
            self._count(group, draft)
            self._groups[draft.group_id] = draft
            for member_id in group.members.keys() - draft.members.keys():
                self._unwatch(draft.group_id, member_id)

    def _member_to_beat(
        self, draft: ConsumerGroup, request: ConsumerHeartbeat, records: list[Record]
    ) -> ConsumerMember:
        """Whose heartbeat it is, as it was before (GroupMetadataManager.getOrMaybeSubscribeStaticConsumerGroupMember
        of Kafka 4.3: a name is taken from who has left for now, whatever its id, and between the two protocols).

        Otherwise than there, a static member that is present may say epoch 0 again by the same id, as others may:
        its answer may have been lost, and UNRELEASED_INSTANCE_ID ends a client.
        """
        member_id = request.member_id or self.store.new_id()
        known = draft.static.get(request.instance_id) if request.instance_id is not None else None
        holder = None if known is None else draft.members[known]
        if holder is not None and holder.member_id != member_id:
            if request.epoch != 0:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"{request.instance_id} is held by {known}.")
            if holder.epoch != LEAVE_FOR_NOW and request.classic is None and holder.classic is None:
                raise Refused(
                    ErrorCode.UNRELEASED_INSTANCE_ID, f"{request.instance_id} is still held by {known}."
                )
            return self._take_over(draft, holder, member_id, records)
        if holder is not None and request.epoch == 0 and holder.epoch == LEAVE_FOR_NOW:
            # It is back by the id that it had, which clients make themselves.
            return self._take_over(draft, holder, member_id, records)
        member = draft.members.get(member_id)
        if member is None:
            if request.epoch != 0:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in the group.")
            if len(draft.members) >= self.store.settings.group_size_max:
                raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, "The group is full.")
            return ConsumerMember(member_id, request.instance_id)
        if request.epoch > member.epoch or (
            0 < request.epoch < member.epoch
            and (
                request.epoch != member.previous_epoch
                or request.owned is None
                or not request.owned <= member.assigned
            )
        ):
            raise Refused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"Member epoch {request.epoch} is not the one here ({member.epoch}): rejoin.",
            )
        return member

    def _take_over(
        self, draft: ConsumerGroup, holder: ConsumerMember, member_id: str, records: list[Record]
    ) -> ConsumerMember:
        """A static member is back: it gets the target of the one that it was."""
        if member_id != holder.member_id:
            target = draft.targets.get(holder.member_id, NOTHING)
            records += self._tombstones(draft, holder.member_id)
            draft.remove(holder.member_id)
            draft.targets[member_id] = target
            value = rec.put_target(to_assignment(target))
            records.append(Record(self._key(draft, rec.TARGET_MEMBER, member_id), value))
        member = replace(
            holder,
            member_id=member_id,
            epoch=0,
            previous_epoch=-1,
            state=0,
            assigned=NOTHING,
            revoking=NOTHING,
            since={},
        )
        draft.put(member)
        return member

    def _updated(self, member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
        regex = member.regex if request.regex is None else request.regex or None
        topics = member.topics if request.topics is None else tuple(sorted(set(request.topics)))
        if request.epoch == 0:
            # A first request says all there is; what it leaves out is gone.
            regex, topics = request.regex or None, tuple(sorted(set(request.topics or ())))
        timeout_ms = request.rebalance_timeout_ms
        return replace(
            member,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
            topics=topics,
            regex=regex,
            assignor=member.assignor if request.assignor is None else request.assignor,
            client_id=request.client_id,
            client_host=request.client_host,
            classic=request.classic,
            owner=request.owner,
        )

    # -- targets ----------------------------------------------------------------------------

    def _retarget(self, draft: ConsumerGroup, records: list[Record]) -> None:
        """A new epoch and target, if members or topics changed."""
        token = self._topics.token()
        if draft.seen is not token:
            topics = self._subscribed(draft)
            draft.seen = token
            if topics != draft.topics:
                draft.topics = topics
                draft.raise_epoch(self.store.wall_ms())
                value = rec.put_epoch(draft.epoch)
                records.append(Record(self._key(draft, rec.CONSUMER_GROUP), value))
        if draft.epoch <= draft.assignment_epoch:
            return
        counts = dict(draft.topics.values())
        subscribers = [
            Subscriber(
                m.member_id,
                m.instance_id,
                frozenset(draft.topics[t][0] for t in self._topics_of(m, draft)),
                draft.targets.get(m.member_id, NOTHING),
            )
            for m in draft.members.values()
        ]
        targets = ASSIGNORS[draft.assignor](subscribers, counts)
        for member_id, target in targets.items():
            if draft.targets.get(member_id) != target:
                key = self._key(draft, rec.TARGET_MEMBER, member_id)
                records.append(Record(key, rec.put_target(to_assignment(target))))
        draft.targets = targets
        draft.assignment_epoch = draft.epoch
        records.append(Record(self._key(draft, rec.TARGET_EPOCH), rec.put_epoch(draft.epoch)))

    def _subscribed(self, group: ConsumerGroup) -> dict[str, tuple[TopicId, int]]:
        """Topics that exist and that some member reads. A regular expression matches internal topics as it
        matches any other (Kafka: GroupMetadataManager.refreshRegularExpressions asks for no more than a name)."""
        found: dict[str, tuple[TopicId, int]] = {}
        for regex in {m.regex for m in group.members.values() if m.regex}:
            for name in self._regexes.names(group, regex):
                if name not in found:
                    self._note_topic(found, name)
        for topic in {t for m in group.members.values() for t in m.topics}:
            self._note_topic(found, topic)
        return found

    def _note_topic(self, found: dict[str, tuple[TopicId, int]], name: str) -> None:
        topic_id, count = self._topics.topic_id(name), self._topics.partition_count(name)
        if topic_id is not None and count:
            found[name] = (topic_id, count)

    def _topics_of(self, member: ConsumerMember, group: ConsumerGroup) -> list[str]:
        wanted = set(member.topics)
        if member.regex:
            wanted |= self._regexes.select(group, member.regex, group.topics)
        return [name for name in group.topics if name in wanted]

    # -- leaving ----------------------------------------------------------------------------

    def _leave(self, group: ConsumerGroup, request: ConsumerHeartbeat, reply: BeatReply) -> None:
        member_id = request.member_id
        if request.instance_id is not None:
            known = group.static.get(request.instance_id)
            if known is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.instance_id} is not in the group.")
            if known != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"{request.instance_id} is held by {known}.")
        member = group.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in the group.")
        result = ConsumerHeartbeatResult(member_id=member_id, epoch=request.epoch)
        if request.epoch == LEAVE:
            self.remove_members(group, [member_id], result, reply)
            return
        draft = group.draft()
        # It keeps its partitions for a session; what it was to give up it has given up.
        away = replace(
            member,
            epoch=LEAVE_FOR_NOW,
            previous_epoch=member.epoch,
            state=0,
            revoking=NOTHING,
            since=dict.fromkeys(member.assigned, 0),
        )
        draft.put(away)
        key = self._key(draft, rec.CURRENT_MEMBER, member_id)
        self._finish(group, draft, [Record(key, rec.put_current(away.current()))], result, reply)

    def remove_members(
        self, group: ConsumerGroup, member_ids: list[str], result: ConsumerHeartbeatResult, reply: BeatReply
    ) -> None:
        draft = group.draft()
        records: list[Record] = []
        for member_id in member_ids:
            records += self._tombstones(draft, member_id)
            draft.remove(member_id)
        draft.raise_epoch(self.store.wall_ms())
        draft.seen = None
        draft.topics = self._subscribed(draft)
        records.append(Record(self._key(draft, rec.CONSUMER_GROUP), rec.put_epoch(draft.epoch)))
        self._finish(group, draft, records, result, reply)

    def _key(self, group: ConsumerGroup, kind: int, member_id: str | None = None) -> bytes:
        return rec.consumer_key(kind, group.group_id, member_id)

    def _tombstones(self, group: ConsumerGroup, member_id: str) -> list[Record]:
        kinds = (rec.CURRENT_MEMBER, rec.TARGET_MEMBER, rec.CONSUMER_MEMBER)
        return [Record(self._key(group, kind, member_id), None) for kind in kinds]

    def tombstones(self, group: ConsumerGroup) -> list[Record]:
        """Records that remove an empty group."""
        return [Record(self._key(group, kind), None) for kind in (rec.TARGET_EPOCH, rec.CONSUMER_GROUP)]

    # -- time -------------------------------------------------------------------------------

    def watch(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        place = (group.group_id, member.member_id)
        timers = self._sessions.get(place)
        if timers is None:
            timers = self._sessions[place] = (Timer("session", place), Timer("revoke", place))
        session, revoke = timers
        session_ms = self.session_ms(group.group_id) if member.classic is None else member.classic[0]
        self._timers.set(session, self._clock_ms() + session_ms)
        if member.state != UNREVOKED:
            revoke.cancel()
        elif not revoke.is_set:
            self._timers.set(revoke, self._clock_ms() + max(member.rebalance_timeout_ms, 0))

    def hear(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A classic member lives; whether it has to join again is another matter."""
        timers = self._sessions.get((group.group_id, member.member_id))
        if timers is None or member.classic is None:
            self.watch(group, member)
        else:
            self._timers.set(timers[0], self._clock_ms() + member.classic[0])

    def expect_join(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A classic member was told to join again: it has its rebalance timeout for that."""
        _, revoke = self._sessions[group.group_id, member.member_id]
        if not revoke.is_set:
            self._timers.set(revoke, self._clock_ms() + max(member.rebalance_timeout_ms, 0))

    def _unhurry(self, group_id: str, member_id: str) -> None:
        timers = self._sessions.get((group_id, member_id))
        if timers is not None:
            timers[1].cancel()

    def _unwatch(self, group_id: str, member_id: str) -> None:
        for timer in self._sessions.pop((group_id, member_id), ()):
            timer.cancel()

    def ring(self, group: ConsumerGroup, timer: Timer) -> None:
        """A member was silent, or kept what it was to give up, for too long."""
        member = group.members.get(timer.owner[1])
        if member is None:
            return
        if timer.kind == "revoke" and member.state != UNREVOKED and member.classic is None:
            return

        def removed(result: ConsumerHeartbeatResult) -> None:
            if result.error and not self.store.closed:
                # It could not be written: try again soon.
                self._timers.set(timer, self._clock_ms() + 1_000)

        self.remove_members(group, [member.member_id], ConsumerHeartbeatResult(), removed)

    def validate(self) -> None:
        """Raises InvariantBroken when deadlines are not those that members must have."""
        groups = [group for group in self._groups.values() if isinstance(group, ConsumerGroup)]
        members = {(group.group_id, m.member_id): m for group in groups for m in group.members.values()}
        for name, member_id in self._sessions.keys() ^ members.keys():
            must(False, name, "every member, and nobody else, has deadlines", member_id)
        for place, member in members.items():
            session, revoke = self._sessions[place]
            must(session.owner == revoke.owner == place, place[0], "deadlines are their member's", place)
            must(session.will_ring, place[0], "a member has a session", place[1])
            if member.state == UNREVOKED:
                must(revoke.will_ring, place[0], "a member has a deadline to revoke", place[1])

    # -- the log ------------------------------------------------------------------------------

    def replay(self, about: rec.Key, value: bytes | None, at_ms: int = -1) -> None:
        """Take in one record of a consumer group, which was written at `at_ms` since 1970."""
        name, member_id = about.group_id, about.member_id
        group = self._groups.get(name)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = ConsumerGroup(name)
            self._groups[name] = group
        if about.kind == rec.CONSUMER_GROUP:
            if value is None:
                del self._groups[name]
            else:
                group.epoch, group.epoch_ms = rec.read_epoch(value), at_ms
        elif about.kind == rec.TARGET_EPOCH:
            group.assignment_epoch = 0 if value is None else rec.read_epoch(value)
        elif about.kind == rec.TARGET_MEMBER:
            if value is None:
                group.targets.pop(member_id, None)
            else:
                group.targets[member_id] = to_parts(rec.read_target(value))
        elif about.kind == rec.CONSUMER_MEMBER and value is None:
            group.remove(member_id)
        else:
            member = group.members.get(member_id) or ConsumerMember(member_id)
            if about.kind == rec.CONSUMER_MEMBER and value is not None:
                member = member.with_value(rec.read_consumer_member(value))
            elif value is None:
                member = replace(member, epoch=0, state=0, assigned=NOTHING, revoking=NOTHING, since={})
            else:
                current = rec.read_current(value)
                member = replace(
                    member,
                    epoch=current.epoch,
                    previous_epoch=current.previous_epoch,
                    state=current.state,
                    assigned=to_parts(current.assigned),
                    revoking=to_parts(current.revoking),
                    since=since_of(current),
                )
            group.put(member)

    def resume(self, group: ConsumerGroup) -> None:
        """The group was read from the log. It does not say what topics were like when the target was made:
        but a target covers them; so where that of the present epoch does not, they have changed."""
        group.topics = self._subscribed(group)
        targeted = {part for target in group.targets.values() for part in target}
        there = {(topic_id, p) for topic_id, count in group.topics.values() for p in range(count)}
        if targeted != there and group.epoch == group.assignment_epoch:
            group.topics = group.topics | _OTHER_TOPICS
        for member in group.members.values():
            self.store.holdings.take(member.owner, member.size_bytes)
            self.watch(group, member)

    def close(self, group: ConsumerGroup, error: ErrorCode) -> None:
        """Leadership is lost. Nobody waits here but for writes, and those end with the log."""
