"""Members of the classic protocol in a consumer group (KIP-848's online migration).

A consumer that joins with `group.protocol=consumer` turns a classic group of consumers into a consumer
group; its classic members stay, and their JoinGroup, SyncGroup, Heartbeat and LeaveGroup are answered from
the group's epochs: a JoinGroup is a heartbeat that says everything, the generation is the member's epoch,
the assignment is the coordinator's. A member is told REBALANCE_IN_PROGRESS when there is a newer epoch, when
it has something to give up, or when what it waits for is free. The group stays a consumer group until
it is empty, whoever is in it.

Source: GroupMetadataManager.classicGroup*ToConsumerGroup of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock_core.errors import ErrorCode
from penstock_storage_node.groups.classic.group import (
    CONSUMER_PROTOCOL,
    JoinReply,
    JoinResult,
    SyncReply,
    SyncResult,
)
from penstock_storage_node.groups.classic.protocol import ClassicProtocol, JoinRequest, SyncRequest
from penstock_storage_node.groups.consumer.group import (
    NOTHING,
    UNRELEASED,
    UNREVOKED,
    ConsumerGroup,
    ConsumerMember,
    Parts,
    to_assignment,
)
from penstock_storage_node.groups.consumer.protocol import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerProtocol,
    Refused,
)
from penstock_storage_node.groups.consumer.subscription import put_assignment, read_subscription
from penstock_storage_node.groups.store import GroupStore, group_write_error


class ClassicMembers:
    """Answers classic members of the consumer groups of a shard."""

    def __init__(self, store: GroupStore, consumer: ConsumerProtocol, classic: ClassicProtocol) -> None:
        """`consumer` runs the groups that they are in, `classic` takes over those that nobody is in."""
        self.store = store
        self._consumer = consumer
        self._classic = classic

    def join(self, group: ConsumerGroup, request: JoinRequest, reply: JoinReply) -> None:
        """A JoinGroup."""
        if not group.members:
            error = self._make_classic(group, request.member_id)
            if error:
                reply(JoinResult(error, request.member_id))
            else:
                self._classic.join(self._classic.make_group(group.group_id, request.owner), request, reply)
            return
        subscription = read_subscription(request.protocols[0][1]) if request.protocols else None
        if request.protocol_type != CONSUMER_PROTOCOL or subscription is None:
            reply(JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
            return
        member_id = request.member_id
        if not member_id:
            member_id = f"{request.instance_id or request.client_id}-{self.store.new_id()}"
            if request.instance_id is None and request.member_id_required:
                reply(JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
                return
        elif request.instance_id is not None and group.static.get(request.instance_id) != member_id:
            # Only who has no member id yet takes a name: one that was replaced would fence its successor.
            is_free = request.instance_id not in group.static
            error = ErrorCode.UNKNOWN_MEMBER_ID if is_free else ErrorCode.FENCED_INSTANCE_ID
            reply(JoinResult(error, member_id))
            return
        known = group.members.get(member_id)
        if known is not None and known.instance_id != request.instance_id:
            reply(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            return
        beat = ConsumerHeartbeat(
            request.group_id,
            member_id,
            0 if known is None else known.epoch,
            request.instance_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=subscription.topics,
            regex="",
            owned=self.parts_of(subscription.owned),
            client_id=request.client_id,
            client_host=request.client_host,
            classic=(request.session_timeout_ms, request.protocols),
            owner=request.owner,
        )

        def joined(result: ConsumerHeartbeatResult) -> None:
            if result.error:
                reply(JoinResult(result.error, member_id))
                return
            reply(
                JoinResult(
                    ErrorCode.NONE,
                    member_id,
                    result.epoch,
                    CONSUMER_PROTOCOL,
                    request.protocols[0][0],
                    # Nobody makes an assignment: no member leads.
                )
            )

        try:
            self._consumer.beat(group, beat, [], joined)
        except Refused as refusal:
            reply(JoinResult(refusal.code, member_id))

    def _make_classic(self, group: ConsumerGroup, member_id: str) -> ErrorCode:
        """Write that an empty consumer group becomes a classic one, or say why it does not."""
        if member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if self.store.write(self._consumer.tombstones(group), lambda _: None) is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def sync(self, group: ConsumerGroup, request: SyncRequest, reply: SyncReply) -> None:
        """A SyncGroup."""
        member, error = self._classic_member(
            group, request.member_id, request.instance_id, request.generation
        )
        if member is None or member.classic is None:
            reply(SyncResult(error))
            return
        name, metadata = member.classic[1][0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol not in (None, name):
            reply(SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif group.epoch > member.epoch and member.state != UNREVOKED:
            reply(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        else:
            names = {topic_id: topic for topic, (topic_id, _) in group.topics.items()}
            places = {
                names[topic_id]: partitions
                for topic_id, partitions in to_assignment(member.assigned).items()
                if topic_id in names
            }
            subscription = read_subscription(metadata)
            version = 0 if subscription is None else subscription.version
            self._consumer.watch(group, member)
            result = SyncResult(ErrorCode.NONE, CONSUMER_PROTOCOL, name, put_assignment(version, places))
            self.store.when_settled(
                lambda error: reply(SyncResult(group_write_error(error)) if error else result)
            )

    def heartbeat(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """A Heartbeat."""
        self._consumer.refresh(group)
        current = self.store.groups.get(group.group_id)
        if isinstance(current, ConsumerGroup):
            group = current
        member, error = self._classic_member(group, member_id, instance_id, generation)
        if member is None or member.classic is None:
            return error
        self._consumer.hear(group, member)
        if not self._should_rejoin(group, member):
            return ErrorCode.NONE
        self._consumer.expect_join(group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _should_rejoin(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        if member.epoch < group.epoch or member.state == UNREVOKED:
            return True
        wanted = group.targets.get(member.member_id, NOTHING) - member.assigned
        return member.state == UNRELEASED and any(part not in group.owners for part in wanted)

    def leave(self, group: ConsumerGroup, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """A LeaveGroup of (member id, instance id)s; a code for each."""
        codes: list[ErrorCode] = []
        gone: list[str] = []
        for given, instance_id in members:
            known = group.static.get(instance_id) if instance_id is not None else None
            member_id = given or known or ""
            error = ErrorCode.NONE
            if member_id not in group.members or (instance_id is not None and known is None):
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif instance_id is not None and known != member_id:
                error = ErrorCode.FENCED_INSTANCE_ID
            elif member_id not in gone:
                gone.append(member_id)
            codes.append(error)
        if gone:
            refused: list[ErrorCode] = []
            self._consumer.remove_members(
                group, gone, ConsumerHeartbeatResult(), lambda result: refused.append(result.error)
            )
            if refused and refused[0]:
                codes = [code or refused[0] for code in codes]
        return codes

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember | None, ErrorCode]:
        if instance_id is not None:
            known = group.static.get(instance_id)
            if known is None:
                return None, ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return None, ErrorCode.FENCED_INSTANCE_ID
        member = group.members.get(member_id)
        if member is None or member.classic is None:
            return None, ErrorCode.UNKNOWN_MEMBER_ID
        return (
            (member, ErrorCode.NONE) if generation == member.epoch else (None, ErrorCode.ILLEGAL_GENERATION)
        )

    def parts_of(self, places: Iterable[tuple[str, int]]) -> Parts:
        """Partitions by topic id; those of unknown topics are left out."""
        found = ((self.store.topics.topic_id(topic), partition) for topic, partition in places)
        return frozenset((topic_id, partition) for topic_id, partition in found if topic_id is not None)
