"""Group requests as raw frames, and a connection that costs the driver next to nothing.

A frame is encoded once and sent many times: only its correlation id is written anew. So a
driver in Python can play thousands of members beside the brokers that it measures.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import request_header, response_header

VERSIONS: Final = {
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.JOIN_GROUP: 9,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
}
CALL_TIMEOUT_S: Final = 60.0
_LENGTH: Final = struct.Struct(">i")
_CORRELATION_AT: Final = 8
_HEADER_BYTES: Final = 4


class Frame:
    """A request, ready to be sent any number of times."""

    __slots__ = ("api_key", "data", "version")

    def __init__(self, api_key: ApiKey, /, **values: Any) -> None:
        self.api_key = api_key
        self.version = VERSIONS[api_key]
        body = codec.encode_body(codec.build(codec.request_type(api_key, self.version), **values))
        head = request_header(api_key, self.version, 0, "bench")
        self.data = bytearray(_LENGTH.pack(len(head) + len(body)) + head + body)

    @property
    def error_at(self) -> int:
        """Where the error code of a response without arrays before it stands: after the throttle time."""
        return len(response_header(self.api_key, self.version, 0)) + 4

    def decode(self, response: bytes) -> Any:
        """The response as kio's entity."""
        return codec.decode_response(self.api_key, self.version, response)[1]


class Connection(asyncio.Protocol):
    """One connection; several requests may be under way, answers come in order."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: list[asyncio.Future[bytes]] = []
        self._correlation = 0

    @classmethod
    async def open(cls, address: str) -> Connection:
        """Connect to host:port."""
        host, _, port = address.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return connection

    def send(self, frame: Frame) -> asyncio.Future[bytes]:
        """Send a request now; its response (without length) comes later."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection is closed")
        self._correlation = self._correlation + 1 & 0x7FFFFFFF
        _LENGTH.pack_into(frame.data, _CORRELATION_AT, self._correlation)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._transport.write(bytes(frame.data))
        return future

    async def ask(self, frame: Frame) -> bytes:
        """Send and wait for the response."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await self.send(frame)

    async def call(self, frame: Frame) -> Any:
        """As `ask`, decoded."""
        return frame.decode(await self.ask(frame))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEADER_BYTES:
            (size,) = _LENGTH.unpack_from(buffer, start)
            end = start + _HEADER_BYTES + size
            if len(buffer) < end:
                break
            future = self._waiting.pop(0)
            if not future.done():
                future.set_result(bytes(buffer[start + _HEADER_BYTES : end]))
            start = end
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(exc or ConnectionError("the broker closed the connection"))
        self._waiting.clear()


# -- requests ---------------------------------------------------------------------------------


def _item(api_key: ApiKey, schema: str, /, **values: Any) -> Any:
    return codec.build(codec.entity_type(api_key, VERSIONS[api_key], schema, request=True), **values)


def find_coordinators(groups: Iterable[str]) -> Frame:
    return Frame(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=tuple(groups))


def metadata(topic: str) -> Frame:
    topics = (_item(ApiKey.METADATA, "MetadataRequestTopic", topic_id=None, name=topic),)
    return Frame(
        ApiKey.METADATA,
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def join(group: str, member_id: str, subscription: bytes, session_ms: int) -> Frame:
    protocol = _item(ApiKey.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=subscription)
    return Frame(
        ApiKey.JOIN_GROUP,
        group_id=group,
        session_timeout=session_ms,
        rebalance_timeout=60_000,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=(protocol,),
        reason=None,
    )


def sync(group: str, member_id: str, generation: int, assignments: Mapping[str, bytes]) -> Frame:
    items = tuple(
        _item(ApiKey.SYNC_GROUP, "SyncGroupRequestAssignment", member_id=who, assignment=data)
        for who, data in assignments.items()
    )
    return Frame(
        ApiKey.SYNC_GROUP,
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=items,
    )


def heartbeat(group: str, member_id: str, generation: int) -> Frame:
    return Frame(
        ApiKey.HEARTBEAT,
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=None,
    )


def leave(group: str, member_id: str) -> Frame:
    member = _item(
        ApiKey.LEAVE_GROUP, "MemberIdentity", member_id=member_id, group_instance_id=None, reason=None
    )
    return Frame(ApiKey.LEAVE_GROUP, group_id=group, members=(member,))


def commit(group: str, member_id: str, epoch: int, topic: str, partitions: Sequence[int]) -> Frame:
    """A commit of offset 0 for each partition; `epoch` is the generation of classic groups."""
    key = ApiKey.OFFSET_COMMIT
    items = tuple(
        _item(
            key,
            "OffsetCommitRequestPartition",
            partition_index=p,
            committed_offset=0,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        for p in partitions
    )
    return Frame(
        key,
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        group_instance_id=None,
        topics=(_item(key, "OffsetCommitRequestTopic", name=topic, partitions=items),),
    )


def consumer_beat(
    group: str,
    member_id: str,
    epoch: int,
    topic: str | None = None,
    owned: Mapping[UUID, Sequence[int]] | None = None,
) -> Frame:
    """A ConsumerGroupHeartbeat; with `topic` it is a first one, that says everything."""
    key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    parts = None
    if owned is not None:
        parts = tuple(
            _item(key, "TopicPartitions", topic_id=topic_id, partitions=tuple(numbers))
            for topic_id, numbers in owned.items()
        )
    return Frame(
        key,
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=60_000 if topic else -1,
        subscribed_topic_names=(topic,) if topic else None,
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=parts,
    )
