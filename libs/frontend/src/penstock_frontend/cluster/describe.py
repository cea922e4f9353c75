"""DescribeCluster and DescribeTopicPartitions, from a metadata image, and what a gateway says of
log directories. No I/O, no waiting.

Sources: KIP-700, KIP-919 and KIP-1073 (DescribeCluster); KIP-966 and Kafka's
DescribeTopicPartitionsRequestHandler.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE
from penstock_core.metadata.image import MetadataImage, PartitionImage
from penstock_core.racks import client_rack
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.metadata import (
    INTERNAL_TOPICS,
    NO_AUTHORIZED_OPERATIONS,
    NodeAddress,
    cluster_id_text,
    why_missing,
)
from penstock_kafka.wire.primitives import Malformed

_MISMATCHED_ENDPOINT_TYPE: Final = 114
_ENDPOINT_BROKERS: Final = 1
_PARTITIONS_PER_RESPONSE_MAX: Final = 2_000
"""Kafka: max.request.partition.size.limit."""


def items(array: Sequence[Any] | None) -> Sequence[Any]:
    """An array that may not be null; raises Malformed when it is (kio lets it pass)."""
    if array is None:
        raise Malformed("null in place of an array")
    return array


def describe_cluster(
    header: RequestHeader,
    frame: bytearray,
    image: MetadataImage,
    node_address: NodeAddress,
    controller_id: int,
    operations: Callable[[], int],
) -> bytes:
    """The response to DescribeCluster, without length prefix. `operations`: what the client may do with the
    cluster, asked when it wants to know."""
    request = codec.decode_request(header, frame)
    schema = codec.response_type(header.api_key, header.api_version)
    if getattr(request, "endpoint_type", _ENDPOINT_BROKERS) != _ENDPOINT_BROKERS:
        failed = codec.build(
            schema,
            error_code=_MISMATCHED_ENDPOINT_TYPE,
            error_message="this address speaks for brokers, not for controllers",
            cluster_id="",
            brokers=(),
        )
        return codec.encode_response(header, failed)
    with_fenced = getattr(request, "include_fenced_brokers", False)
    broker_type = codec.entity_type(header.api_key, header.api_version, "DescribeClusterBroker")
    brokers = []
    for node in image.nodes.values():
        address = node_address(node) if with_fenced or not node.fenced else None
        if address is not None:
            brokers.append(
                codec.build(
                    broker_type,
                    broker_id=node.node_id,
                    host=address[0],
                    port=address[1],
                    rack=client_rack(node.rack) or None,
                    is_fenced=node.fenced,
                )
            )
    response = codec.build(
        schema,
        error_code=0,
        error_message=None,
        cluster_id=cluster_id_text(image.cluster_id),
        controller_id=controller_id,
        brokers=tuple(brokers),
        cluster_authorized_operations=operations()
        if request.include_cluster_authorized_operations
        else NO_AUTHORIZED_OPERATIONS,
    )
    return codec.encode_response(header, response)


class TopicRights(NamedTuple):
    """What a client may know of topics."""

    permitted: Callable[[Iterable[str]], Iterable[str]]
    """Those of some names that it may describe."""
    denied: Callable[[str], None]
    """Told of a name that it asked for and may not."""
    operations: Callable[[str], int]
    """What it may do with a topic."""


def describe_topic_partitions(
    header: RequestHeader, frame: bytearray, image: MetadataImage, rights: TopicRights
) -> bytes:
    """The response to DescribeTopicPartitions: topics by name, cut at the partition limit."""
    request = codec.decode_request(header, frame)
    writer = _Describer(header, image, rights.operations)
    limit = request.response_partition_limit
    left = min(limit, _PARTITIONS_PER_RESPONSE_MAX) if limit > 0 else _PARTITIONS_PER_RESPONSE_MAX
    asked = sorted({t.name for t in items(request.topics)} or image.topic_ids)
    first_index = 0
    if request.cursor is not None:
        asked = asked[bisect_left(asked, request.cursor.topic_name) :]
        # A topic that went away between two pages has nothing to go on from.
        if asked and asked[0] == request.cursor.topic_name:
            first_index = max(0, request.cursor.partition_index)
    topics = []
    visible = set(rights.permitted(asked))
    cursor: tuple[str, int] | None = None
    for name in asked:
        if name not in visible:
            if request.topics:
                rights.denied(name)
                topics.append(writer.topic(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ()))
            continue
        topic = image.topic(name)
        if topic is None:
            topics.append(writer.topic(name, why_missing(name), ()))
            continue
        if left <= 0:
            cursor = (name, 0)
            break
        indexes = [i for i in sorted(topic.partitions) if i >= first_index]
        first_index = 0
        shown = indexes[:left]
        topics.append(writer.topic(name, ErrorCode.NONE, (topic.partitions[i] for i in shown)))
        left -= len(shown)
        if len(shown) < len(indexes):
            cursor = (name, indexes[len(shown)])
            break
    return writer.response(topics, cursor)


LOG_DIRS_ELSEWHERE: Final = "unknown behind a gateway: ask by a direct listener"


def describe_log_dirs(header: RequestHeader, frame: bytearray) -> bytes:
    """The response to DescribeLogDirs of a process that has none: one directory that says so.

    The request names no node, so a gateway cannot pass it on. Kafka's tool for reassignments asks for
    the directories of replicas before it does anything, and goes on when it finds none.
    """
    codec.decode_request(header, frame)
    of = (header.api_key, header.api_version)
    nowhere = codec.build(
        codec.entity_type(*of, "DescribeLogDirsResult"),
        error_code=ErrorCode.NONE,
        log_dir=LOG_DIRS_ELSEWHERE,
        topics=(),
    )
    response = codec.build(codec.response_type(*of), error_code=ErrorCode.NONE, results=(nowhere,))
    return codec.encode_response(header, response)


class _Describer:
    """Builds the entities of one response."""

    def __init__(self, header: RequestHeader, image: MetadataImage, operations: Callable[[str], int]) -> None:
        self._header = header
        self._operations = operations
        self._image = image
        self._alive = {n.node_id for n in image.nodes.values() if not n.fenced}
        of = (header.api_key, header.api_version)
        self._topic_type = codec.entity_type(*of, "DescribeTopicPartitionsResponseTopic")
        self._partition_type = codec.entity_type(*of, "DescribeTopicPartitionsResponsePartition")
        self._cursor_type = codec.entity_type(*of, "Cursor")

    def topic(self, name: str, error: int, partitions: Iterator[PartitionImage] | tuple[()]) -> Any:
        topic = self._image.topic(name) if error == ErrorCode.NONE else None
        is_hidden = error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return codec.build(
            self._topic_type,
            error_code=error,
            name=name,
            topic_id=None if topic is None else topic.topic_id,
            is_internal=not is_hidden and name in INTERNAL_TOPICS,
            topic_authorized_operations=NO_AUTHORIZED_OPERATIONS if is_hidden else self._operations(name),
            partitions=tuple(self._partition(p) for p in partitions),
        )

    def _partition(self, p: PartitionImage) -> Any:
        leader = p.leader if p.leader in self._alive else NO_NODE
        last_known = (p.last_known_leader,) if p.leader == NO_NODE and p.last_known_leader > 0 else ()
        return codec.build(
            self._partition_type,
            error_code=ErrorCode.NONE if leader != NO_NODE else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=p.partition,
            leader_id=leader,
            leader_epoch=p.leader_epoch,
            replica_nodes=p.replicas,
            isr_nodes=p.isr,
            eligible_leader_replicas=p.elr,
            last_known_elr=last_known,
            offline_replicas=tuple(n for n in p.replicas if n not in self._alive),
        )

    def response(self, topics: list[Any], cursor: tuple[str, int] | None) -> bytes:
        schema = codec.response_type(self._header.api_key, self._header.api_version)
        following = None
        if cursor is not None:
            following = codec.build(self._cursor_type, topic_name=cursor[0], partition_index=cursor[1])
        return codec.encode_response(
            self._header, codec.build(schema, topics=tuple(topics), next_cursor=following)
        )
