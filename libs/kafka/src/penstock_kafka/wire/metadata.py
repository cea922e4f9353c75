"""Metadata requests and responses, by hand: the largest answer that clients ask for.

Fenced nodes are not named as brokers, but those that a caller wants named; their replicas
count as offline. A partition whose leader is fenced is answered
LEADER_NOT_AVAILABLE, one whose leader has no address for the client LISTENER_NOT_FOUND,
as Kafka does (KRaftMetadataCache). A response depends on request, image, addresses and
those nodes alone, so a caller may keep it by these; only the correlation id at its
start changes.

Versions 0-13. Topic ids are answered from 10 on, and asked for from 12 on.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NO_NODE, NO_TOPIC_ID, NodeId, TopicId
from penstock_core.metadata.image import MetadataImage, NodeImage, PartitionImage, TopicImage
from penstock_core.racks import client_rack
from penstock_core.topics import check_topic_name
from penstock_kafka.wire.apis import FLEXIBLE_SINCE, ApiKey
from penstock_kafka.wire.frames import RequestHeader, response_header
from penstock_kafka.wire.primitives import (
    INT16,
    INT32,
    Buffer,
    Malformed,
    Reader,
    check_decoded_size,
    put_count,
    put_string,
)

_HEAD: Final = struct.Struct(">hii")
_HEAD_V7: Final = struct.Struct(">hiii")

_FLEXIBLE: Final = FLEXIBLE_SINCE[ApiKey.METADATA]
NO_AUTHORIZED_OPERATIONS: Final = -(2**31)
_NO_OPERATIONS: Final = INT32.pack(NO_AUTHORIZED_OPERATIONS)

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

NodeAddress: TypeAlias = Callable[[NodeImage], tuple[str, int] | None]
"""Host and port to tell the client for a node; None leaves the node out."""


@dataclass(slots=True, frozen=True)
class MetadataRequest:
    """What is asked. `topics` None means all; each is (name or None, topic id or None)."""

    topics: tuple[tuple[str | None, TopicId | None], ...] | None
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


def decode_metadata(frame: Buffer, header: RequestHeader) -> MetadataRequest:
    """Read a Metadata request (frame without length prefix); raises Malformed."""
    check_decoded_size(frame)
    version = header.api_version
    reader = Reader(frame, header.body_offset, version >= _FLEXIBLE, header.items_max)
    count = reader.nullable_array(2)
    topics: list[tuple[str | None, TopicId | None]] | None = None
    # In version 0 an empty list asks for all topics, later on null does.
    if version == 0 and count is None:
        raise Malformed("null topics in version 0")
    if count is not None and (version > 0 or count):
        topics = [_read_topic(reader, version) for _ in range(count)]
    auto_create = reader.boolean() if version >= 4 else True
    cluster_operations = reader.boolean() if 8 <= version <= 10 else False
    topic_operations = reader.boolean() if version >= 8 else False
    reader.skip_tags()
    return MetadataRequest(
        None if topics is None else tuple(topics), auto_create, cluster_operations, topic_operations
    )


def _read_topic(reader: Reader, version: int) -> tuple[str | None, TopicId | None]:
    topic_id: TopicId | None = None
    name: str | None
    if version >= 10:
        topic_id = reader.uuid()
        if topic_id == NO_TOPIC_ID:
            topic_id = None
        name = reader.nullable_string()
        if version < 12 and (topic_id is not None or name is None):
            raise Malformed("topics are asked for by id from Metadata version 12 on")
        if name is None and topic_id is None:
            raise Malformed("topic with neither name nor id")
    else:
        name = reader.string()
    reader.skip_tags()
    return name, topic_id


def cluster_id_text(cluster_id: bytes) -> str:
    """A 16-byte id as Kafka writes it (base64url without padding)."""
    return base64.urlsafe_b64encode(cluster_id).rstrip(b"=").decode()


@dataclass(slots=True, frozen=True)
class TopicsSeen:
    """What a client may know of topics and cluster."""

    visible: Sequence[str] | None = None
    """Of all topics those that it may describe; None: each of them."""
    hidden: Set[str] = frozenset()
    """Names that it asked for and may not describe, whether they exist or not."""
    uncreatable: Set[str] = frozenset()
    """Names that it may describe but not make, and would have had made: denied while they do not exist."""
    cluster_operations: int = NO_AUTHORIZED_OPERATIONS
    topic_operations: Callable[[str], int] | None = None
    """What it may do with a topic that it may describe; None when it did not ask."""


EVERYTHING: Final = TopicsSeen()


def encode_metadata_response(
    header: RequestHeader,
    request: MetadataRequest,
    image: MetadataImage,
    node_address: NodeAddress,
    controller_id: int,
    seen: TopicsSeen = EVERYTHING,
    named_fenced: Set[NodeId] = frozenset(),
) -> bytes:
    """The response, without length prefix.

    `node_address` gives what this client is told for each node, `controller_id` the node that it is
    to send admin requests to (-1 for none), `seen` what it may know, and `named_fenced` fenced nodes
    that are brokers to it all the same.
    """
    version = header.api_version
    flexible = version >= _FLEXIBLE
    out = [response_header(ApiKey.METADATA, version, header.correlation_id)]
    if version >= 3:
        out.append(INT32.pack(0))
    brokers = [
        (node, address)
        for node in image.nodes.values()
        if (not node.fenced or node.node_id in named_fenced) and (address := node_address(node)) is not None
    ]
    out.append(put_count(len(brokers), flexible))
    for node, (host, port) in brokers:
        out += (INT32.pack(node.node_id), put_string(host, flexible), INT32.pack(port))
        if version >= 1:
            out.append(put_string(client_rack(node.rack) or None, flexible))
        if flexible:
            out.append(b"\x00")
    if version >= 2:
        out.append(put_string(cluster_id_text(image.cluster_id) if image.cluster_id else None, flexible))
    if version >= 1:
        out.append(INT32.pack(controller_id))
    alive = frozenset(node.node_id for node, _ in brokers if not node.fenced)
    topics = _TopicWriter(version, flexible, alive, image, seen)
    topics.write(out, request)
    if 8 <= version <= 10:
        out.append(INT32.pack(seen.cluster_operations))
    if version >= 13:
        out.append(b"\x00\x00")
    if flexible:
        out.append(b"\x00")
    return b"".join(out)


class _TopicWriter:
    """Writes the topics of one response."""

    __slots__ = ("_alive", "_flexible", "_image", "_replica_lists", "_seen", "_version")

    def __init__(
        self, version: int, flexible: bool, alive: Set[NodeId], image: MetadataImage, seen: TopicsSeen
    ) -> None:
        self._seen = seen
        self._version = version
        self._flexible = flexible
        self._image = image
        self._alive = alive
        # Many partitions have the same replicas and ISR: each pair is encoded once.
        self._replica_lists: dict[tuple[tuple[NodeId, ...], tuple[NodeId, ...]], bytes] = {}

    def write(self, out: list[bytes], request: MetadataRequest) -> None:
        image = self._image
        if request.topics is None:
            self._all_topics(out)
            return
        hidden = self._seen.hidden
        out.append(put_count(len(request.topics), self._flexible))
        for name, topic_id in request.topics:
            if topic_id is not None:
                found = image.topics.get(topic_id)
                if found is None:
                    self._missing(out, None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
                elif found.name in hidden:
                    self._hidden(out, None, topic_id)
                    continue
            elif name in hidden:
                self._hidden(out, name, NO_TOPIC_ID)
                continue
            else:
                found = image.topic(name or "")
                if found is None:
                    denied = name in self._seen.uncreatable
                    why = ErrorCode.TOPIC_AUTHORIZATION_FAILED if denied else why_missing(name or "")
                    self._missing(out, name, NO_TOPIC_ID, why)
            if found is not None:
                self._topic(out, found)

    def _all_topics(self, out: list[bytes]) -> None:
        image, visible = self._image, self._seen.visible
        if visible is None:
            topics: Collection[TopicImage] = image.topics.values()
        else:
            ids = image.topic_ids
            topics = [image.topics[ids[name]] for name in visible]
        out.append(put_count(len(topics), self._flexible))
        for topic in topics:
            self._topic(out, topic)

    def _head(
        self, out: list[bytes], error: int, name: str | None, topic_id: bytes, *, hidden: bool = False
    ) -> None:
        version = self._version
        out.append(INT16.pack(error))
        out.append(put_string(name, self._flexible))
        if version >= 10:
            out.append(topic_id)
        if version >= 1:
            out.append(b"\x01" if name in INTERNAL_TOPICS and not hidden else b"\x00")

    def _tail(self, out: list[bytes], name: str | None = None) -> None:
        if self._version >= 8:
            of = self._seen.topic_operations
            out.append(_NO_OPERATIONS if of is None or name is None else INT32.pack(of(name)))
        if self._flexible:
            out.append(b"\x00")

    def _missing(self, out: list[bytes], name: str | None, topic_id: bytes, error: int) -> None:
        self._head(out, error, name, topic_id)
        out.append(put_count(0, self._flexible))
        self._tail(out, None if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED else name)

    def _hidden(self, out: list[bytes], name: str | None, topic_id: bytes) -> None:
        """A topic that may not be described: nothing of it is told, not even that it is an internal one."""
        self._head(out, ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, topic_id, hidden=True)
        out.append(put_count(0, self._flexible))
        self._tail(out)

    def _topic(self, out: list[bytes], topic: TopicImage) -> None:
        self._head(out, ErrorCode.NONE, topic.name, topic.topic_id)
        partitions = topic.partitions
        out.append(put_count(len(partitions), self._flexible))
        self._partitions(out, partitions.values())
        self._tail(out, topic.name)

    def _partitions(self, out: list[bytes], partitions: Iterable[PartitionImage]) -> None:
        """The loop that a large cluster spends its time in."""
        alive = self._alive
        known = self._replica_lists
        append = out.append
        with_epoch = self._version >= 7
        for p in partitions:
            leader = p.leader
            error = 0
            if leader not in alive:
                error, leader = self._no_leader(leader)
            if with_epoch:
                append(_HEAD_V7.pack(error, p.partition, leader, p.leader_epoch))
            else:
                append(_HEAD.pack(error, p.partition, leader))
            lists = (p.replicas, p.isr)
            encoded = known.get(lists)
            if encoded is None:
                encoded = known[lists] = self._encode_lists(*lists)
            append(encoded)

    def _encode_lists(self, replicas: tuple[NodeId, ...], isr: tuple[NodeId, ...]) -> bytes:
        """Everything of a partition after its leader: replicas, ISR, offline replicas."""
        lists: list[tuple[int, ...]] = [replicas, isr]
        if self._version >= 5:
            lists.append(tuple(n for n in replicas if n not in self._alive))
        out = []
        for nodes in lists:
            out.append(put_count(len(nodes), self._flexible))
            out.append(struct.pack(f">{len(nodes)}i", *nodes))
        if self._flexible:
            out.append(b"\x00")
        return b"".join(out)

    def _no_leader(self, leader: NodeId) -> tuple[int, NodeId]:
        """Error and leader to answer when the leader is fenced or has no address.

        A live leader that has no address on the client's listener is still named.
        """
        node = self._image.nodes.get(leader)
        if node is not None and not node.fenced:
            return ErrorCode.LISTENER_NOT_FOUND.value, leader
        return ErrorCode.LEADER_NOT_AVAILABLE.value, NO_NODE


def why_missing(name: str) -> ErrorCode:
    """The code for a topic that is not there: one by that name may be none at all."""
    try:
        check_topic_name(name)
    except PenstockError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
