"""Whole failures of group requests: see `data`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock_core.errors import ErrorCode
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer

_NO_OPERATIONS: Final = -(2**31)


def _join_group(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    return codec.respond(
        header,
        error_code=code,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None if header.api_version >= 7 else "",
        leader="",
        skip_assignment=False,
        member_id=request.member_id,
        members=(),
    )


def _sync_group(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return codec.respond(header, error_code=code, protocol_type=None, protocol_name=None, assignment=b"")


def _heartbeat(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return codec.respond(header, error_code=code)


def _leave_group(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return codec.respond(header, error_code=code, members=())


def topic_key(topic: Any) -> dict[str, Any]:
    """Name or id of a topic in a request, as its response wants it."""
    return {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"name": topic.name}


def _offset_commit(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    topics = tuple(
        codec.item(
            header,
            "OffsetCommitResponseTopic",
            **topic_key(topic),
            partitions=tuple(
                codec.item(
                    header,
                    "OffsetCommitResponsePartition",
                    partition_index=p.partition_index,
                    error_code=code,
                )
                for p in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return codec.respond(header, topics=topics)


def _offset_fetch(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    if header.api_version >= 8:
        groups = tuple(
            codec.item(header, "OffsetFetchResponseGroup", group_id=g.group_id, topics=(), error_code=code)
            for g in request.groups
        )
        return codec.respond(header, groups=groups)
    topics: tuple[Any, ...] = ()
    if header.api_version < 2:
        topics = tuple(
            codec.item(
                header,
                "OffsetFetchResponseTopic",
                name=topic.name,
                partitions=tuple(
                    codec.item(
                        header,
                        "OffsetFetchResponsePartition",
                        partition_index=index,
                        committed_offset=-1,
                        metadata="",
                        error_code=code,
                    )
                    for index in topic.partition_indexes
                ),
            )
            for topic in request.topics
        )
    return codec.respond(header, topics=topics, error_code=code)


def _list_groups(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return codec.respond(header, error_code=code, groups=())


def _describe_groups(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    groups = tuple(describe_failure(header, group_id, code, message) for group_id in request.groups)
    return codec.respond(header, groups=groups)


def describe_failure(
    header: RequestHeader, group_id: str, code: int, message: str | None, operations: int = _NO_OPERATIONS
) -> Any:
    """One group of a DescribeGroups response that carries an error, or is not there."""
    return codec.item(
        header,
        "DescribedGroup",
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="Dead" if code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND) else "",
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=operations,
    )


def _delete_groups(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    results = tuple(
        codec.item(header, "DeletableGroupResult", group_id=name, error_code=code)
        for name in request.groups_names
    )
    return codec.respond(header, results=results)


def _offset_delete(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return codec.respond(header, error_code=code, topics=())


def _consumer_heartbeat(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return codec.respond(
        header,
        error_code=code,
        error_message=message,
        member_id=None,
        member_epoch=0,
        heartbeat_interval=0,
        assignment=None,
    )


def _consumer_describe(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    groups = tuple(
        consumer_describe_failure(header, group_id, code, message) for group_id in request.group_ids
    )
    return codec.respond(header, groups=groups)


def consumer_describe_failure(header: RequestHeader, group_id: str, code: int, message: str | None) -> Any:
    """One group of a ConsumerGroupDescribe response that carries an error."""
    return codec.item(
        header,
        "DescribedGroup",
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
        authorized_operations=_NO_OPERATIONS,
    )


GROUP_TABLE: Final[dict[int, Callable[[RequestHeader, Buffer, int, str | None], bytes | None]]] = {
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.SYNC_GROUP: _sync_group,
    ApiKey.HEARTBEAT: _heartbeat,
    ApiKey.LEAVE_GROUP: _leave_group,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.LIST_GROUPS: _list_groups,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _consumer_describe,
}
