"""Requests and responses of transactional clients, and the connections that carry them.

As in `group_wire` the shipped relay or the shipped node's handlers answer. What differs is the end of a connection:
a client that closes one leaves in the network what it has sent; that arrives late, and the connection's end behind
it. Whether a client is still there is what its machine's kernel has heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock_core.ids import TopicPartition
from penstock_frontend.authorizer import ANONYMOUS, Identity
from penstock_gateway.relay.client_relay import ClientInfo
from penstock_gateway.relay.fetch import Fetch
from penstock_gateway.relay.groups import GROUP_CALLS
from penstock_gateway.relay.produce import Produce
from penstock_gateway.relay.request import Outcome
from penstock_gateway.relay.transactions import TRANSACTION_CALLS, TransactionCall
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.produce import ProducePartition, ProduceSkim, encode_produce_request
from penstock_storage_node.kafka.client_stream import ClientStream
from penstock_storage_node.kafka.request_context import RequestContext
from simulation.connections import DirectConnection, GatewayConnection, KafkaConnection
from simulation.group_wire import Finder, Place, _find

if TYPE_CHECKING:
    import random

    from simulation.world import World

INIT, ADD, ADD_OFFSETS, END = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
)
COMMIT, FETCH_OFFSETS, FIND = ApiKey.TXN_OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR
PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH

OLD, NEW = 1, 2
"""Protocols: librdkafka's, in which clients add partitions, and that of KIP-890."""
VERSIONS: dict[int, dict[ApiKey, int]] = {
    OLD: {INIT: 4, ADD: 0, ADD_OFFSETS: 0, END: 1, COMMIT: 3, FETCH_OFFSETS: 9, FIND: 6, PRODUCE: 10},
    NEW: {INIT: 5, ADD_OFFSETS: 4, END: 5, COMMIT: 5, FETCH_OFFSETS: 9, FIND: 6, PRODUCE: 12},
}
FETCH_VERSION = 16
_CALLS: dict[int, Any] = {
    **GROUP_CALLS,
    **TRANSACTION_CALLS,
    INIT: TransactionCall,
    PRODUCE: Produce,
    FETCH: Fetch,
}


# --- requests -----------------------------------------------------------------------------


def encode(api_key: ApiKey, version: int, number: int, client_id: str, **values: Any) -> bytes:
    """A request."""
    body = codec.build(codec.request_type(api_key, version), **values)
    return request_header(api_key, version, number, client_id) + codec.encode_body(body)


def decode(api_key: ApiKey, version: int, data: bytes) -> Any:
    """A response."""
    return codec.decode_response(api_key, version, data)[1]


def _item(api_key: ApiKey, version: int, kind: str, **values: Any) -> Any:
    return codec.build(codec.entity_type(api_key, version, kind, request=True), **values)


def add_topics(places: Iterable[Place]) -> tuple[Any, ...]:
    """Of an AddPartitionsToTxn."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    return tuple(
        _item(ADD, 0, "AddPartitionsToTxnTopic", name=topic, partitions=tuple(numbers))
        for topic, numbers in by_topic.items()
    )


def commit_topics(version: int, place: Place, offset: int) -> tuple[Any, ...]:
    """Of a TxnOffsetCommit: one offset."""
    part = _item(
        COMMIT,
        version,
        "TxnOffsetCommitRequestPartition",
        partition_index=place[1],
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    return (_item(COMMIT, version, "TxnOffsetCommitRequestTopic", name=place[0], partitions=(part,)),)


def fetch_groups(group_id: str, place: Place) -> tuple[Any, ...]:
    """Of an OffsetFetch: one offset."""
    version = VERSIONS[OLD][FETCH_OFFSETS]
    topic = _item(
        FETCH_OFFSETS, version, "OffsetFetchRequestTopics", name=place[0], partition_indexes=(place[1],)
    )
    group = _item(
        FETCH_OFFSETS,
        version,
        "OffsetFetchRequestGroup",
        group_id=group_id,
        member_id=None,
        member_epoch=-1,
        topics=(topic,),
    )
    return (group,)


def produce(
    version: int, number: int, client_id: str, transactional_id: str, items: Sequence[tuple[Place, bytes]]
) -> bytes:
    """A Produce with a batch for each place."""
    found = [ProducePartition(topic, None, partition, memoryview(data)) for (topic, partition), data in items]
    skim = ProduceSkim(transactional_id, -1, 3_000, found)
    return b"".join(encode_produce_request(version, number, client_id, skim))


def fetch(number: int, client_id: str, offsets: dict[TopicPartition, int], rack: str) -> bytes:
    """A Fetch with isolation level read_committed."""
    request = FetchRequest(
        0,
        1,
        1 << 20,
        1,
        partitions=[
            FetchPartition("", key.topic_id, key.partition, -1, offset, -1, -1, 1 << 18)
            for key, offset in offsets.items()
        ],
        rack_id=rack,
    )
    return encode_fetch_request(FETCH_VERSION, number, client_id, request)


# --- connections -----------------------------------------------------------------------------


class _Lingering(KafkaConnection):
    """What was sent before its end arrives, and then its end."""

    finder: Finder
    _end_us: int | None = None
    """When the server's machine hears that the client has closed."""
    _is_over = False

    def is_there(self) -> bool:
        """Whether the client is, as far as the server's kernel has heard."""
        return self._end_us is None or self.process.world.scheduler.now_us < self._end_us

    def _delay_us(self, way: int) -> int:
        world = self.process.world
        share, most_us = world.settings.transactions.late
        if share and way == 0 and world.network.is_faulty and world.rng.random() < share:
            arrival_us = world.scheduler.now_us + int(world.rng.random() * most_us)
            self._arrival_us[0] = max(self._arrival_us[0], arrival_us)
        return super()._delay_us(way)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        delay_us = self._delay_us(0)
        self._end_us = self.process.world.scheduler.now_us + delay_us
        self.process.after(delay_us, self._ended)

    def _ended(self) -> None:
        self.process.loop.call_now(self._finish)

    def _finish(self) -> None:
        if not self._is_over:
            self._is_over = True
            self.process.connections.pop(self, None)
            self.end()

    def _take(self, frame: bytes, on_response: Callable[[bytes], None]) -> None:
        if self._is_over:
            return
        slot: list[Any] = [None, on_response]
        self._waiting.append(slot)

        def finish(outcome: Outcome) -> None:
            slot[0] = outcome
            if not self.closed:
                self._flush()

        self.handle(bytearray(frame), finish)


class TxnGatewayConnection(_Lingering, GatewayConnection):
    """Through a gateway's relay."""

    def handle(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        header = parse_request_header(frame)
        if header.api_key == FIND:
            _find(self.finder, self.process, frame, finish)
            return
        if self._client is None:
            relay = self.process.relay  # type: ignore[attr-defined]
            who = ClientInfo(Identity(ANONYMOUS, "client"), "KAFKA", self.is_there)
            self._client = relay.open(who)
        self._client.submit(_CALLS[header.api_key](header, frame, finish))


class TxnDirectConnection(_Lingering, DirectConnection):
    """To a node's own listener."""

    _stream: ClientStream | None = None

    def request_context(self) -> RequestContext:
        if self._stream is None:
            self._stream = ClientStream(self.is_there)
        # Only to clients of a node's own listener followers give records (KIP-392).
        return RequestContext(listener="DIRECT", stream=self._stream)

    def handle(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        if parse_request_header(frame).api_key == FIND:
            _find(self.finder, self.process, frame, finish)
        else:
            super().handle(frame, finish)

    def end(self) -> None:
        if self._stream is not None:
            self._stream.end()


def connect(
    world: World, rng: random.Random, finder: Finder, host: str, on_lost: Callable[[Any], None]
) -> TxnGatewayConnection | TxnDirectConnection | None:
    """To node `host`; to any gateway for "". None when there is nobody."""
    found: TxnGatewayConnection | TxnDirectConnection
    if host:
        node = world.host_of[host]
        if not node.is_up or not hasattr(node.process.role, "_data"):
            return None
        found = TxnDirectConnection(node.process, on_lost)
    else:
        up = [h for h in world.hosts if h.kind == "g" and h.is_up and h.process.is_serving]
        if not up:
            return None
        found = TxnGatewayConnection(rng.choice(up).process, on_lost)
    found.finder = finder
    return found
