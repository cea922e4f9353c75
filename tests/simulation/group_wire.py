"""Requests and responses of group members, and the connections that carry them.

Requests go to the shipped gateway's relay or to the shipped node's handlers; FindCoordinator is answered
by the shipped `Coordinators` of either. Only where a node's address is looked up there is a stand-in:
a host's name is its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId
from penstock_core.metadata.image import NodeImage
from penstock_frontend.authorizer import ANONYMOUS, AllowAll, Identity
from penstock_frontend.cluster.find_coordinator import Coordinators
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_gateway.relay.client_relay import ClientInfo
from penstock_gateway.relay.groups import GROUP_CALLS
from penstock_gateway.relay.request import Outcome
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.primitives import INT16, put_string
from simulation.connections import DirectConnection, GatewayConnection
from simulation.process import Process

if TYPE_CHECKING:
    from simulation.world import World

JOIN, SYNC, HEARTBEAT, LEAVE = ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP
COMMIT, FETCH, BEAT = ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.CONSUMER_GROUP_HEARTBEAT
FIND = ApiKey.FIND_COORDINATOR
VERSIONS = {JOIN: 9, SYNC: 5, HEARTBEAT: 4, LEAVE: 5, COMMIT: 9, FETCH: 9, BEAT: 1, FIND: 6}

Place = tuple[str, int]
"""Topic and partition."""


# --- requests -----------------------------------------------------------------------------


def encode(api_key: ApiKey, number: int, client_id: str, **values: Any) -> bytes:
    """A request, in the version that members here speak."""
    version = VERSIONS[api_key]
    body = codec.build(codec.request_type(api_key, version), **values)
    return request_header(api_key, version, number, client_id) + codec.encode_body(body)


def item(api_key: ApiKey, kind: str, /, **values: Any) -> Any:
    """A structure inside a request."""
    return codec.build(codec.entity_type(api_key, VERSIONS[api_key], kind, request=True), **values)


def decode(api_key: ApiKey, data: bytes) -> Any:
    """A response."""
    return codec.decode_response(api_key, VERSIONS[api_key], data)[1]


def heartbeat_error(data: bytes) -> ErrorCode:
    """What a Heartbeat is answered; they are too many for `decode`."""
    return ErrorCode(INT16.unpack_from(data, 9)[0])


def commit_topics(items: Sequence[tuple[Place, int, str]]) -> tuple[Any, ...]:
    """Of an OffsetCommit: (place, offset, metadata)s."""
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), offset, metadata in items:
        one = item(
            COMMIT,
            "OffsetCommitRequestPartition",
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=metadata,
        )
        by_topic.setdefault(topic, []).append(one)
    return tuple(
        item(COMMIT, "OffsetCommitRequestTopic", name=topic, partitions=tuple(parts))
        for topic, parts in by_topic.items()
    )


def fetch_groups(
    group_id: str, member_id: str | None, epoch: int, places: Sequence[Place]
) -> tuple[Any, ...]:
    """Of an OffsetFetch: one group."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    topics = tuple(
        item(FETCH, "OffsetFetchRequestTopics", name=topic, partition_indexes=tuple(parts))
        for topic, parts in by_topic.items()
    )
    group = item(
        FETCH,
        "OffsetFetchRequestGroup",
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        topics=topics,
    )
    return (group,)


def owned_topics(parts: frozenset[tuple[TopicId, int]]) -> tuple[Any, ...]:
    """Of a ConsumerGroupHeartbeat: what the member has."""
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(parts):
        by_topic.setdefault(topic_id, []).append(partition)
    return tuple(
        item(BEAT, "TopicPartitions", topic_id=topic_id, partitions=tuple(numbers))
        for topic_id, numbers in by_topic.items()
    )


def subscription(topics: Sequence[str]) -> bytes:
    """A ConsumerProtocolSubscription of version 0."""
    return (
        b"\0\0"
        + len(topics).to_bytes(4, "big")
        + b"".join(put_string(t, False) for t in topics)
        + b"\xff" * 4
    )


# --- connections -----------------------------------------------------------------------------


class _Addresses:
    """Hosts of the simulation are known by their names."""

    def node_address(self, _connection: Any, node: NodeImage) -> tuple[str, int] | None:
        return f"n{node.node_id}", 9092

    def view_key(self, _connection: Any) -> Hashable:
        raise NotImplementedError

    def apis(self, _image: Any) -> Mapping[int, tuple[int, int]]:
        raise NotImplementedError


class _Anybody:
    """A connection, as far as FindCoordinator looks at it."""

    principal = ANONYMOUS
    identity = Identity(ANONYMOUS, "client")
    state: Mapping[str, Any] = MappingProxyType({})


class Finder:
    """FindCoordinator, as answered by each process."""

    def __init__(self) -> None:
        self._by_process: dict[Process, Coordinators] = {}

    def of(self, process: Any) -> Coordinators:
        """Those of a gateway or node."""
        found = self._by_process.get(process)
        if found is None:
            role = getattr(process, "role", None)
            metadata = process.metadata if role is None else role._metadata
            controllers = process.controllers if role is None else role._controllers
            found = Coordinators(metadata, controllers, _Addresses(), AllowAll(), KafkaMetrics())
            self._by_process[process] = found
        return found


def _find(finder: Finder, process: Process, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
    header = parse_request_header(frame)
    answer = finder.of(process).find(_Anybody(), header, frame)  # type: ignore[arg-type]
    if isinstance(answer, bytes):
        finish([answer])
        return
    future = asyncio.ensure_future(answer)

    def done(found: asyncio.Future[bytes]) -> None:
        if not found.cancelled():
            finish([found.result()])

    future.add_done_callback(done)


class GroupGatewayConnection(GatewayConnection):
    """Through a gateway's relay."""

    finder: Finder

    def handle(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        header = parse_request_header(frame)
        if header.api_key == FIND:
            _find(self.finder, self.process, frame, finish)
            return
        if self._client is None:
            relay = self.process.relay  # type: ignore[attr-defined]
            self._client = relay.open(ClientInfo(Identity(ANONYMOUS, "client"), "KAFKA"))
        self._client.submit(GROUP_CALLS[header.api_key](header, frame, finish))


class GroupDirectConnection(DirectConnection):
    """To a node's own listener."""

    finder: Finder

    def handle(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        if parse_request_header(frame).api_key == FIND:
            _find(self.finder, self.process, frame, finish)
        else:
            super().handle(frame, finish)


def connect(
    world: World, finder: Finder, host: str, on_lost: Callable[[Any], None]
) -> GroupGatewayConnection | GroupDirectConnection | None:
    """To node `host`; to any gateway for "". None when there is nobody."""
    if host:
        node = world.host_of[host]
        if not node.is_up or not hasattr(node.process.role, "_data"):
            return None
        direct = GroupDirectConnection(node.process, on_lost)
        direct.finder = finder
        return direct
    up = [h for h in world.hosts if h.kind == "g" and h.is_up and h.process.is_serving]
    if not up:
        return None
    relayed = GroupGatewayConnection(world.groups.rng.choice(up).process, on_lost)  # type: ignore[union-attr]
    relayed.finder = finder
    return relayed
