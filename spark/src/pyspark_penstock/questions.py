"""What planners ask of a gateway beside topics and offsets: bytes of ranges, ends of epochs, offsets of groups.

A gateway, or a node behind it, may be of a build that does not know such a call: then there is no answer (None), and
whoever asks goes on as if there were no such question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock_core.process.native_account import Metadata
from penstock_proto.v1 import gateway_pb2, gateway_pb2_grpc
from pyspark_penstock.errors import GatewayError
from pyspark_penstock.gateway import CALL_TIMEOUT_MS, GatewayClient, UnknownCallError, retriable
from pyspark_penstock.tiling import OffsetRange

Partition = tuple[str, int]

UNSUPPORTED_VERSION = 35
COORDINATOR_CODES = frozenset({14, 15, 16})
"""Loading, not available, not coordinator: the next moment may know better."""
_TIMEOUT_S = CALL_TIMEOUT_MS / 1000


@dataclass(frozen=True, slots=True)
class Sized:
    """Bytes of a range as stored, and ends of batches inside of it."""

    size_bytes: int
    cuts: tuple[int, ...] = ()


def size_ranges(
    client: GatewayClient, ranges: Sequence[OffsetRange], cut_bytes: int = 0, cuts_max: int = 0
) -> list[Sized] | None:
    """Bytes of each range, in order; None when a gateway or a leader does not know, or a range has no answer."""
    if not ranges:
        return []
    request = gateway_pb2.SizeRangesRequest(
        ranges=[
            gateway_pb2.OffsetRange(
                topic=item.topic,
                topic_id=item.topic_id,
                partition=item.partition,
                start=item.start,
                end=item.end,
            )
            for item in ranges
        ],
        cut_bytes=cut_bytes,
        cuts_max=cuts_max,
    )

    def call(
        gateway: gateway_pb2_grpc.GatewayStub, metadata: Metadata
    ) -> tuple[gateway_pb2.SizeRangesResponse, str]:
        answer = gateway.SizeRanges(request, timeout=_TIMEOUT_S, metadata=metadata)
        return answer, retriable(item.error.code for item in answer.ranges)

    try:
        answer = client.call(call)
    except UnknownCallError:
        return None
    if len(answer.ranges) != len(ranges) or any(item.error.code for item in answer.ranges):
        # What is wrong with a partition (gone, made anew) the read itself tells better.
        return None
    return [Sized(item.size_bytes, tuple(item.cuts)) for item in answer.ranges]


def epoch_ends(client: GatewayClient, epochs: Mapping[Partition, int]) -> dict[Partition, int] | None:
    """First offset behind the largest epoch that is not above the one asked for, where there is one."""
    keys = list(epochs)
    request = gateway_pb2.EpochEndsRequest(
        queries=[
            gateway_pb2.EpochQuery(topic=topic, partition=part, leader_epoch=epochs[topic, part])
            for topic, part in keys
        ]
    )

    def call(
        gateway: gateway_pb2_grpc.GatewayStub, metadata: Metadata
    ) -> tuple[gateway_pb2.EpochEndsResponse, str]:
        answer = gateway.EpochEnds(request, timeout=_TIMEOUT_S, metadata=metadata)
        return answer, retriable(item.error.code for item in answer.ends)

    try:
        answer = client.call(call)
    except UnknownCallError:
        return None
    return {
        key: item.end_offset
        for key, item in zip(keys, answer.ends, strict=True)
        if not item.error.code and item.end_offset >= 0
    }


def group_offsets(client: GatewayClient, group: str, topics: Sequence[str]) -> dict[Partition, int]:
    """What a group has committed. Raises GatewayError."""
    request = gateway_pb2.GroupOffsetsRequest(group=group, topics=topics)

    def call(
        gateway: gateway_pb2_grpc.GatewayStub, metadata: Metadata
    ) -> tuple[gateway_pb2.GroupOffsetsResponse, str]:
        answer = gateway.GroupOffsets(request, timeout=_TIMEOUT_S, metadata=metadata)
        return answer, retriable([answer.error.code], COORDINATOR_CODES)

    try:
        answer = client.call(call)
    except UnknownCallError as error:
        raise GatewayError(_too_old(f"offsets of group {group} can't be asked", error)) from None
    if answer.error.code:
        raise GatewayError(answer.error.message or f"group {group}: Kafka error {answer.error.code}")
    for item in answer.offsets:
        if item.error.code:
            raise GatewayError(f"group {group}: {item.error.message or f'Kafka error {item.error.code}'}")
    return {(item.topic, item.partition): item.offset for item in answer.offsets if item.offset >= 0}


def commit_group(
    client: GatewayClient, group: str, offsets: Mapping[Partition, int], metadata_text: str
) -> list[str]:
    """Commits; what went wrong, a line each. Raises GatewayError when nobody answers."""
    request = gateway_pb2.CommitGroupRequest(
        group=group,
        offsets=[
            gateway_pb2.GroupOffset(
                topic=topic, partition=part, offset=offset, leader_epoch=-1, metadata=metadata_text
            )
            for (topic, part), offset in offsets.items()
        ],
    )

    def call(
        gateway: gateway_pb2_grpc.GatewayStub, metadata: Metadata
    ) -> tuple[gateway_pb2.CommitGroupResponse, str]:
        answer = gateway.CommitGroup(request, timeout=_TIMEOUT_S, metadata=metadata)
        return answer, retriable([answer.error.code], COORDINATOR_CODES)

    try:
        answer = client.call(call)
    except UnknownCallError as error:
        raise GatewayError(_too_old(f"group {group} can't be told", error)) from None
    if answer.error.code:
        return [answer.error.message or f"group {group}: Kafka error {answer.error.code}"]
    return [item.message or f"group {group}: Kafka error {item.code}" for item in answer.errors if item.code]


def _too_old(what: str, error: UnknownCallError) -> str:
    return f"{what}, for the gateways that answer are of an older build ({error}); upgrade them"
