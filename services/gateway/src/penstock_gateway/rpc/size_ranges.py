"""SizeRanges: asked of the leaders of the ranges, each once for all of its own.

A leader that is lost or moved is looked for again in newer metadata, until STALL_MS have gone by. One of an older
build does not know the call: its ranges are UNSUPPORTED_VERSION, and whoever plans goes by offsets there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from penstock_core.errors import CHECK_PARTITION, FIND_LEADER, REFRESH_METADATA, ErrorCode
from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import Identity, Operation, ResourceType
from penstock_gateway.relay.relay import Relay
from penstock_proto.v1 import common_pb2, storage_pb2
from penstock_proto.v1 import gateway_pb2 as pb
from penstock_runtime.security.methods import STORAGE_NODE

METHOD: Final = "/penstock.v1.Storage/SizeRanges"
STALL_MS: Final = 8_000
BACKOFF_MS: Final = 100
CALL_TIMEOUT_S: Final = 5.0
PART: Final = 5_000
"""Most ranges of one call to a node."""

_ASK_AGAIN: Final = FIND_LEADER | REFRESH_METADATA | CHECK_PARTITION | {ErrorCode.REQUEST_TIMED_OUT}


async def size_ranges(relay: Relay, who: Identity, request: pb.SizeRangesRequest) -> pb.SizeRangesResponse:
    """The answer to each range, in their order."""
    names = {each.topic for each in request.ranges}
    permitted = set(relay.authorizer.permitted(who, Operation.DESCRIBE, ResourceType.TOPIC, names))
    for name in names - permitted:
        relay.authorizer.denied(who, Operation.DESCRIBE, ResourceType.TOPIC, name)
    answers: list[pb.SizedRange] = [pb.SizedRange()] * len(request.ranges)
    open_ones = list(range(len(request.ranges)))
    deadline_ms = relay.clock_ms() + STALL_MS
    while True:
        by_leader: dict[NodeId, list[int]] = {}
        image = relay.metadata.image
        for index in open_ones:
            leader, answers[index] = _leader_of(image, request.ranges[index], permitted)
            if leader >= 0:
                by_leader.setdefault(NodeId(leader), []).append(index)
        calls = [
            _ask(relay, image, leader, request, indices[at : at + PART], answers)
            for leader, indices in by_leader.items()
            for at in range(0, len(indices), PART)
        ]
        await asyncio.gather(*calls)
        open_ones = [
            index for index in open_ones if _is_passing(image, request.ranges[index], answers[index])
        ]
        if not open_ones or relay.clock_ms() >= deadline_ms:
            return pb.SizeRangesResponse(ranges=answers)
        await asyncio.sleep(BACKOFF_MS / 1000)


def _is_passing(image: MetadataImage, wanted: pb.OffsetRange, answer: pb.SizedRange) -> bool:
    """Whether it may be otherwise in a moment. What this gateway itself does not know it is not asked again."""
    code = answer.error.code
    if code in CHECK_PARTITION:
        topic = image.topic(wanted.topic)
        return topic is not None and wanted.partition in topic.partitions
    return code in _ASK_AGAIN


def _leader_of(
    image: MetadataImage, wanted: pb.OffsetRange, permitted: set[str]
) -> tuple[int, pb.SizedRange]:
    """The node to ask; -1 beside the answer when there is none."""
    where = f"{wanted.topic}-{wanted.partition}"
    if wanted.topic not in permitted:
        return -1, _failed(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not allowed to describe topic {wanted.topic}"
        )
    topic = image.topic(wanted.topic)
    partition = None if topic is None else topic.partitions.get(wanted.partition)
    if topic is None or partition is None:
        return -1, _failed(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {where}; see that topic and partition are right",
        )
    if wanted.topic_id and wanted.topic_id != topic.topic_id:
        return -1, _failed(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"topic {wanted.topic} was made anew: it has another id than the one asked for; start over",
        )
    if partition.leader < 0 or partition.leader not in image.nodes:
        return -1, _failed(ErrorCode.LEADER_NOT_AVAILABLE, f"{where} has no leader at this moment; try again")
    return partition.leader, pb.SizedRange()


async def _ask(
    relay: Relay,
    image: MetadataImage,
    leader: NodeId,
    request: pb.SizeRangesRequest,
    indices: Sequence[int],
    answers: list[pb.SizedRange],
) -> None:
    """Fills in what the leader says of its ranges."""
    asked = storage_pb2.NodeSizeRangesRequest(cut_bytes=request.cut_bytes, cuts_max=request.cuts_max)
    for index in indices:
        wanted = request.ranges[index]
        topic = image.topic(wanted.topic)
        assert topic is not None
        asked.ranges.add(
            topic_id=topic.topic_id, partition=wanted.partition, start=wanted.start, end=wanted.end
        )
    address = image.nodes[leader].grpc.address
    call: Any = relay.channels.get(address, STORAGE_NODE).unary_unary(
        METHOD,
        request_serializer=storage_pb2.NodeSizeRangesRequest.SerializeToString,
        response_deserializer=storage_pb2.NodeSizeRangesResponse.FromString,
    )
    try:
        response: storage_pb2.NodeSizeRangesResponse = await call(asked, timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            failed = _failed(
                ErrorCode.UNSUPPORTED_VERSION,
                f"storage node {leader} is of an older build and does not tell sizes of ranges: upgrade it",
            )
        else:
            failed = _failed(
                ErrorCode.REQUEST_TIMED_OUT,
                f"storage node {leader} at {address} does not answer ({error.code().name}); is it running?",
            )
        for index in indices:
            answers[index] = failed
        return
    for index, found in zip(indices, response.ranges, strict=False):
        answers[index] = pb.SizedRange(size_bytes=found.size_bytes, cuts=found.cuts)
        if found.error.code:
            answers[index].error.CopyFrom(found.error)


def _failed(code: ErrorCode, message: str) -> pb.SizedRange:
    return pb.SizedRange(error=common_pb2.Error(code=code, message=message))
