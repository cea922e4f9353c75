"""Responses of the group coordinator, from its results to bytes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock_core.errors import ErrorCode
from penstock_kafka.error_responses.data import error_response
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer, Malformed
from penstock_storage_node.groups.classic.group import JoinResult, SyncResult
from penstock_storage_node.groups.shard import GroupView


def to_ms(value: timedelta) -> int:
    """A duration of kio's, in ms."""
    return value // timedelta(milliseconds=1)


def failure(header: RequestHeader, frame: Buffer, code: ErrorCode, message: str | None = None) -> bytes:
    """A response that fails the request as a whole."""
    response = error_response(header, frame, code, message)
    if response is None:
        raise Malformed(f"api key {header.api_key} has no error response")
    return response


def encode_join(header: RequestHeader, result: JoinResult) -> bytes:
    """A JoinGroup response."""
    members = tuple(
        codec.item(
            header,
            "JoinGroupResponseMember",
            member_id=member_id,
            group_instance_id=instance_id,
            metadata=metadata,
        )
        for member_id, instance_id, metadata in result.members
    )
    return codec.respond(
        header,
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol if header.api_version >= 7 else result.protocol or "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=members,
    )


def encode_sync(header: RequestHeader, result: SyncResult) -> bytes:
    """A SyncGroup response."""
    return codec.respond(
        header,
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


def encode_deleted(header: RequestHeader, codes: dict[str, ErrorCode]) -> bytes:
    """A DeleteGroups response."""
    results = tuple(
        codec.item(header, "DeletableGroupResult", group_id=name, error_code=code)
        for name, code in codes.items()
    )
    return codec.respond(header, results=results)


def encode_group(header: RequestHeader, view: GroupView, operations: int) -> Any:
    """One group of a DescribeGroups response."""
    members = tuple(
        codec.item(
            header,
            "DescribedGroupMember",
            member_id=m.member_id,
            group_instance_id=m.instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            member_metadata=m.metadata,
            member_assignment=m.assignment,
        )
        for m in view.members
    )
    return codec.item(
        header,
        "DescribedGroup",
        error_code=0,
        error_message=None,
        group_id=view.group_id,
        group_state=view.state,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol,
        members=members,
        authorized_operations=operations,
    )
