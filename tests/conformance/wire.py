"""Kafka's protocol by hand, with kio's schemas as an independent codec: for preparation, and for the raw
scenarios.
"""

from __future__ import annotations

import importlib
import io
import socket
import struct
from typing import Any

from kio.serial import entity_reader, entity_writer

from conformance import build

TIMEOUT_S = 60.0


class Closed(Exception):
    """The other side closed the connection without an answer."""


class Wire:
    """One connection."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S, source: str = "") -> None:
        """`source`: the address of loopback that the connection comes from."""
        host, _, port = address.rpartition(":")
        from_where = (source, 0) if source else None
        self._socket = socket.create_connection((host, int(port)), timeout_s, from_where)
        self._correlation = 100

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from error

    def send_frame(self, frame: bytes) -> None:
        """A frame with its length."""
        self.send(struct.pack(">i", len(frame)) + frame)

    def end_writing(self) -> None:
        """No more will be sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def receive_frame(self, timeout_s: float | None = None) -> bytes:
        """The next frame. Raises Closed, and TimeoutError."""
        if timeout_s is not None:
            self._socket.settimeout(timeout_s)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionError as error:
                raise Closed(str(error)) from error
            if not part:
                raise Closed("end of stream")
            data += part
        return bytes(data)

    def call(self, request: Any, client_id: str | None = "raw") -> Any:
        """Send an entity of kio's and read its response."""
        self._correlation += 1
        self.send_frame(frame_of(request, self._correlation, client_id))
        return decode_response(request, self.receive_frame())


def schema(api: str, version: int, kind: str) -> Any:
    """Module of kio's for an API and version; `kind` is "request" or "response"."""
    return importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")


def frame_of(request: Any, correlation_id: int = 1, client_id: str | None = "raw") -> bytes:
    """A request's frame without its length."""
    kind = type(request)
    header_kind = kind.__header_schema__
    buffer = io.BytesIO()
    values: dict[str, Any] = {
        "request_api_key": kind.__api_key__,
        "request_api_version": kind.__version__,
        "correlation_id": correlation_id,
    }
    if header_kind.__version__ >= 1:
        values["client_id"] = client_id
    entity_writer(header_kind)(buffer, header_kind(**values))
    entity_writer(kind)(buffer, request)
    return buffer.getvalue()


def decode_response(request: Any, frame: bytes) -> Any:
    """The response entity that belongs to a request."""
    request_module = type(request).__module__
    module = importlib.import_module(request_module.rpartition(".")[0] + ".response")
    name = type(request).__name__.replace("Request", "Response")
    kind = getattr(module, name)
    rest = memoryview(frame)
    offset = 0
    header, size = entity_reader(kind.__header_schema__)(rest, offset)
    del header
    offset += size
    response, _ = entity_reader(kind)(rest, offset)
    return response


def leaders_known(address: str, topic: str) -> int:
    """For how many partitions of a topic the process at an address tells a leader."""
    kind = schema("metadata", 4, "request")
    request = kind.MetadataRequest(
        topics=(kind.MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False
    )
    with Wire(address) as wire:
        found = wire.call(request).topics[0]
    return sum(1 for p in found.partitions if p.leader_id >= 0 and int(p.error_code) == 0)


def leaders_lead(bootstrap: str, topic: str) -> bool:
    """Whether each leader of a topic tells the end of its log: metadata name one that has yet to take over."""
    kind = schema("metadata", 4, "request")
    request = kind.MetadataRequest(
        topics=(kind.MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False
    )
    with Wire(bootstrap) as wire:
        answer = wire.call(request)
    addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
    led: dict[str, list[int]] = {}
    for partition in answer.topics[0].partitions:
        if partition.leader_id not in addresses:
            return False
        led.setdefault(addresses[partition.leader_id], []).append(partition.partition_index)
    for address, indexes in led.items():
        parts = [{"partition_index": n, "current_leader_epoch": -1, "timestamp": -1} for n in indexes]
        values = {"replica_id": -1, "topics": [{"name": topic, "partitions": parts}]}
        with Wire(address) as wire:
            told = wire.call(build.request("list_offsets", 4, values))
        if any(int(part.error_code) for one in told.topics for part in one.partitions):
            return False
    return True


def node_addresses(bootstrap: str) -> list[str]:
    """Addresses of all nodes as a client is told them, the bootstrap address among them."""
    kind = schema("metadata", 4, "request")
    with Wire(bootstrap) as wire:
        brokers = wire.call(kind.MetadataRequest(topics=(), allow_auto_topic_creation=False)).brokers
    return sorted({bootstrap, *(f"{broker.host}:{broker.port}" for broker in brokers)})


def brokers_known(bootstrap: str) -> int:
    """How many nodes the process at an address tells of."""
    kind = schema("metadata", 4, "request")
    with Wire(bootstrap) as wire:
        return len(wire.call(kind.MetadataRequest(topics=(), allow_auto_topic_creation=False)).brokers)


def coordinator_known(bootstrap: str, group: str) -> bool:
    """Whether a group has a coordinator; makes the topic of offsets."""
    kind = schema("find_coordinator", 1, "request")
    with Wire(bootstrap) as wire:
        return int(wire.call(kind.FindCoordinatorRequest(key=group, key_type=0)).error_code) == 0


def leader_of(bootstrap: str, topic: str, partition: int = 0) -> str:
    """Address at which the leader of a partition is reached."""
    kind = schema("metadata", 4, "request")
    request = kind.MetadataRequest(
        topics=(kind.MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False
    )
    with Wire(bootstrap) as wire:
        answer = wire.call(request)
    node = next(p.leader_id for p in answer.topics[0].partitions if p.partition_index == partition)
    return next(f"{b.host}:{b.port}" for b in answer.brokers if b.node_id == node)


def coordinator_of(bootstrap: str, group: str) -> str:
    """Address at which a group's coordinator is reached."""
    kind = schema("find_coordinator", 1, "request")
    with Wire(bootstrap) as wire:
        answer = wire.call(kind.FindCoordinatorRequest(key=group, key_type=0))
    return f"{answer.host}:{answer.port}"


def topic_id_of(bootstrap: str, topic: str) -> Any:
    """Id of a topic."""
    kind = schema("metadata", 10, "request")
    request = kind.MetadataRequest(
        topics=(kind.MetadataRequestTopic(name=topic, topic_id=None),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    with Wire(bootstrap) as wire:
        return wire.call(request).topics[0].topic_id


def reaction(address: str, data: bytes, *, half_close: bool = False, wait_s: float = 15.0) -> str:
    """What a server does with these bytes on a new connection: "closed", "silent" or "answered" with the first
    bytes of
    the response's body (they hold the error code, where one comes first)."""
    with Wire(address, wait_s) as wire:
        try:
            wire.send(data)
            if half_close:
                wire.end_writing()
            frame = wire.receive_frame()
        except Closed:
            return "closed"
        except TimeoutError:
            return "silent"
    return f"answered {frame[4:10].hex()}"
