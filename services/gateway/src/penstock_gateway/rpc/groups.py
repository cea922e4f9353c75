"""Offsets of a group, asked of its coordinator over the same relay as clients' requests, and committed there.

A commit is that of somebody who is no member (generation -1), so a group that has members refuses it
(UNKNOWN_MEMBER_ID), as Kafka's does. All of it may be repeated: while a coordinator moves, or loads, it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from penstock_core.errors import ErrorCode
from penstock_gateway.relay.client_relay import ClientRelay
from penstock_gateway.relay.groups import GroupCall
from penstock_gateway.rpc.offsets import submit
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import request_header
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import gateway_pb2 as pb

COMMIT_VERSION: Final = 8
FETCH_VERSION: Final = 7
"""The last versions that name topics and ask for one group."""
RETRY_MS: Final = 100
TRIES_MAX: Final = 50
"""Five seconds: a coordinator that was lost is replaced within them."""
OFFSETS_MAX: Final = 100_000
"""Of one call."""

_ASK_AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_REASONS: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members, which alone commit to it; stop them, or name another group",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "no right to that group",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "no right to that topic",
    ErrorCode.INVALID_GROUP_ID: "no group has such an id",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition; see that topic and partition are right",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata are longer than the coordinator takes",
    ErrorCode.NOT_COORDINATOR: "its coordinator moves or is lost; try again",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "it has no coordinator at this moment; try again",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is loading; try again",
}


async def group_offsets(client: ClientRelay, request: pb.GroupOffsetsRequest) -> pb.GroupOffsetsResponse:
    """What the group has committed, for the topics that are named or for all."""
    version = FETCH_VERSION
    # Every partition of a topic is wanted and nobody names them here: all is asked for, and the rest left out.
    body = codec.build(
        codec.request_type(ApiKey.OFFSET_FETCH, version),
        group_id=request.group,
        topics=None,
        require_stable=False,
    )
    code, response = await _ask(client, ApiKey.OFFSET_FETCH, version, body, lambda r: [r.error_code])
    answer = pb.GroupOffsetsResponse()
    if code:
        answer.error.CopyFrom(_error(code, f"group {request.group}"))
        return answer
    wanted = set(request.topics)
    for topic in response.topics:
        if wanted and topic.name not in wanted:
            continue
        for item in topic.partitions:
            one = answer.offsets.add(
                topic=topic.name,
                partition=item.partition_index,
                offset=item.committed_offset,
                leader_epoch=item.committed_leader_epoch,
                metadata=item.metadata or "",
            )
            if item.error_code:
                one.error.CopyFrom(_error(item.error_code, f"{topic.name}-{item.partition_index}"))
    return answer


async def commit_group(client: ClientRelay, request: pb.CommitGroupRequest) -> pb.CommitGroupResponse:
    """Commits each offset; errors in the order of the request, the group's own beside them."""
    version = COMMIT_VERSION
    topic_type, item_type = (
        codec.entity_type(ApiKey.OFFSET_COMMIT, version, f"OffsetCommitRequest{name}", request=True)
        for name in ("Topic", "Partition")
    )
    topics: dict[str, list[Any]] = {}
    for one in request.offsets:
        item = codec.build(
            item_type,
            partition_index=one.partition,
            committed_offset=one.offset,
            committed_leader_epoch=one.leader_epoch,
            committed_metadata=one.metadata,
        )
        topics.setdefault(one.topic, []).append(item)
    body = codec.build(
        codec.request_type(ApiKey.OFFSET_COMMIT, version),
        group_id=request.group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=tuple(codec.build(topic_type, name=name, partitions=tuple(x)) for name, x in topics.items()),
    )
    code, response = await _ask(client, ApiKey.OFFSET_COMMIT, version, body, _commit_codes)
    if code:
        return pb.CommitGroupResponse(error=_error(code, f"group {request.group}"))
    codes = {(t.name, p.partition_index): int(p.error_code) for t in response.topics for p in t.partitions}
    missing = int(ErrorCode.UNKNOWN_SERVER_ERROR)
    each = [codes.get((one.topic, one.partition), missing) for one in request.offsets]
    if each and len(set(each)) == 1 and each[0] in _OF_GROUP:
        return pb.CommitGroupResponse(error=_error(each[0], f"group {request.group}"))
    return pb.CommitGroupResponse(
        errors=[
            _error(code, f"{one.topic}-{one.partition}") if code else common_pb2.Error()
            for one, code in zip(request.offsets, each, strict=True)
        ]
    )


async def with_topic(
    make_topic: Callable[[], Awaitable[str]], ask: Callable[[], Awaitable[pb.CommitGroupResponse]], group: str
) -> pb.CommitGroupResponse:
    """A commit behind the making of the topic that offsets are kept in; the first commit of a cluster needs it."""
    problem = await make_topic()
    if problem:
        error = common_pb2.Error(
            code=ErrorCode.COORDINATOR_NOT_AVAILABLE, message=f"group {group}: no offsets topic: {problem}"
        )
        return pb.CommitGroupResponse(error=error)
    return await ask()


_OF_GROUP: Final = _ASK_AGAIN | {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_GROUP_ID,
}
"""Codes that OffsetCommit says at every partition and means of the group."""


def _commit_codes(response: Any) -> list[int]:
    return [item.error_code for topic in response.topics for item in topic.partitions]


async def _ask(
    client: ClientRelay,
    api_key: ApiKey,
    version: int,
    body: Any,
    codes_of: Callable[[Any], Sequence[int]],
) -> tuple[int, Any]:
    """(0, the response), or the code that was still there after the last try and None."""
    frame = request_header(api_key, version, 0, None) + codec.encode_body(body)
    for left in reversed(range(TRIES_MAX)):
        _, response = codec.decode_response(api_key, version, await submit(client, GroupCall, frame))
        codes = codes_of(response)
        again = next((int(code) for code in codes if code in _ASK_AGAIN), 0)
        if not again:
            whole = int(codes[0]) if api_key == ApiKey.OFFSET_FETCH else 0
            return whole, response
        if left:
            await asyncio.sleep(RETRY_MS / 1000)
    return again, None


def _error(code: int, what: str) -> common_pb2.Error:
    known = ErrorCode(code) if code in set(ErrorCode) else None
    reason = _REASONS.get(known) if known is not None else None
    name = known.name if known is not None else f"Kafka error {code}"
    return common_pb2.Error(code=code, message=f"{what}: {reason or name}")
