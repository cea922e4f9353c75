"""Responses to ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock_core.ids import TopicId
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_storage_node.groups.consumer.group import ConsumerGroup, ConsumerMember, Parts, to_assignment
from penstock_storage_node.groups.consumer.protocol import ConsumerHeartbeatResult
from penstock_storage_node.kafka.groups_codec.hot import put_consumer_heartbeat

NameOf = Callable[[TopicId], str | None]
"""The name of a topic; None where it is gone."""
CLASSIC_MEMBER_TYPE: Final = 0
CONSUMER_MEMBER_TYPE: Final = 1


def encode_consumer_heartbeat(
    header: RequestHeader, result: ConsumerHeartbeatResult, heartbeat_ms: int
) -> bytes:
    """The response to a heartbeat."""
    if result.assignment is None:
        return put_consumer_heartbeat(header, result, heartbeat_ms)
    item = codec.entity_type(header.api_key, header.api_version, "Assignment")
    assignment = codec.build(item, topic_partitions=_topics(header, result.assignment, None))
    schema = codec.response_type(header.api_key, header.api_version)
    response = codec.build(
        schema,
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval=0 if result.error else heartbeat_ms,
        assignment=assignment,
    )
    return codec.encode_response(header, response)


def _topics(header: RequestHeader, parts: Parts, name_of: NameOf | None) -> tuple[Any, ...]:
    """`name_of` None: names are not told."""
    item = codec.entity_type(header.api_key, header.api_version, "TopicPartitions")
    named = (
        (topic_id, "" if name_of is None else name_of(topic_id), partitions)
        for topic_id, partitions in to_assignment(parts).items()
    )
    return tuple(
        codec.build(item, topic_id=topic_id, topic_name=name, partitions=partitions)
        for topic_id, name, partitions in named
        if name is not None
    )


def encode_described(header: RequestHeader, group: ConsumerGroup, operations: int, name_of: NameOf) -> Any:
    """One group of a ConsumerGroupDescribe response. What a member has yet to give up is its own until then; a topic
    that is gone has no name, and is left out (ConsumerGroupMember.asConsumerGroupDescribeMember)."""
    return codec.build(
        codec.entity_type(header.api_key, header.api_version, "DescribedGroup"),
        error_code=0,
        error_message=None,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=tuple(_member(header, group, member, name_of) for member in group.members.values()),
        authorized_operations=operations,
    )


def _member(header: RequestHeader, group: ConsumerGroup, member: ConsumerMember, name_of: NameOf) -> Any:
    of = (header.api_key, header.api_version)
    assignment_type = codec.entity_type(*of, "Assignment")
    target = group.targets.get(member.member_id, frozenset())
    return codec.build(
        codec.entity_type(*of, "Member"),
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.regex,
        assignment=codec.build(
            assignment_type, topic_partitions=_topics(header, member.assigned | member.revoking, name_of)
        ),
        target_assignment=codec.build(assignment_type, topic_partitions=_topics(header, target, name_of)),
        member_type=CONSUMER_MEMBER_TYPE if member.classic is None else CLASSIC_MEMBER_TYPE,
    )
