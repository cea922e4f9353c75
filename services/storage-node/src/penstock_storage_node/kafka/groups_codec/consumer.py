"""Responses to ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from typing import Any, Final

from penstock_core.ids import TopicId
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_storage_node.groups.consumer.group import ConsumerGroup, ConsumerMember, Parts, to_assignment
from penstock_storage_node.groups.consumer.protocol import ConsumerHeartbeatResult
from penstock_storage_node.kafka.groups_codec.hot import put_consumer_heartbeat

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


def _topics(header: RequestHeader, parts: Parts, names: dict[TopicId, str] | None) -> tuple[Any, ...]:
    item = codec.entity_type(header.api_key, header.api_version, "TopicPartitions")
    return tuple(
        codec.build(
            item,
            topic_id=topic_id,
            topic_name="" if names is None else names.get(topic_id, ""),
            partitions=partitions,
        )
        for topic_id, partitions in to_assignment(parts).items()
    )


def encode_described(header: RequestHeader, group: ConsumerGroup, operations: int) -> Any:
    """One group of a ConsumerGroupDescribe response."""
    names = {topic_id: name for name, (topic_id, _) in group.topics.items()}
    return codec.build(
        codec.entity_type(header.api_key, header.api_version, "DescribedGroup"),
        error_code=0,
        error_message=None,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=tuple(_member(header, group, member, names) for member in group.members.values()),
        authorized_operations=operations,
    )


def _member(
    header: RequestHeader, group: ConsumerGroup, member: ConsumerMember, names: dict[TopicId, str]
) -> Any:
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
        assignment=codec.build(assignment_type, topic_partitions=_topics(header, member.assigned, names)),
        target_assignment=codec.build(assignment_type, topic_partitions=_topics(header, target, names)),
        member_type=CONSUMER_MEMBER_TYPE if member.classic is None else CLASSIC_MEMBER_TYPE,
    )
