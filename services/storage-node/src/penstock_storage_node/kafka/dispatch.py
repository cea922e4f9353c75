"""Which handler answers which Kafka request, and the node's own (direct) listener."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import Final, cast

from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_frontend.authorizer import Authorizer
from penstock_frontend.cluster.apis import ClusterApis, admit
from penstock_frontend.listener.listener import Buffer, Connection, Response
from penstock_frontend.listener.metrics import KafkaMetrics, api_name
from penstock_frontend.offsets_to_come import ELSEWHERE_S, WATCHED, OffsetsToCome
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import RELAYED_ROUTES, ROUTES, SUPPORTED, ApiKey, Route, require_entries
from penstock_kafka.wire.frames import RequestHeader
from penstock_runtime.door import PLAINTEXT
from penstock_runtime.listener_settings import ListenerSettings
from penstock_runtime.tracing import Attributes, Span, Tracing
from penstock_runtime.turns import LoopTurns
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.kafka.client_stream import ClientStream
from penstock_storage_node.kafka.delete_records import DeleteRecordsHandler
from penstock_storage_node.kafka.describe_node import DescribeNodeHandler
from penstock_storage_node.kafka.fetch import FetchHandler
from penstock_storage_node.kafka.groups import GroupHandler
from penstock_storage_node.kafka.list_offsets import ListOffsetsHandler
from penstock_storage_node.kafka.produce import ProduceHandler
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.kafka.transactional_commits import TransactionalCommits
from penstock_storage_node.kafka.transactions import TransactionHandler
from penstock_storage_node.kafka.write_markers import WriteMarkersHandler
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.transactions.host import TransactionHost
from penstock_storage_node.transactions.link import TransactionLink

_ROUTES: Final = RELAYED_ROUTES | {Route.NODE}
_OF_GROUPS: Final = frozenset(key for key, route in ROUTES.items() if route is Route.GROUP_COORDINATOR) | {
    ApiKey.LIST_GROUPS
}
_OF_TRANSACTIONS: Final = frozenset(
    key for key, route in ROUTES.items() if route is Route.TRANSACTION_COORDINATOR
) | {ApiKey.LIST_TRANSACTIONS}
_TIMED: Final = {
    int(ApiKey.PRODUCE): "Produce",
    int(ApiKey.FETCH): "Fetch",
    int(ApiKey.OFFSET_COMMIT): "OffsetCommit",
    int(ApiKey.JOIN_GROUP): "JoinGroup",
    int(ApiKey.HEARTBEAT): "Heartbeat",
}
"""Names in `penstock_node_request_seconds`; all the others are one."""
_STREAM: Final = "client_stream"
"""Of a connection's state."""
_OF_RECORDS: Final = frozenset({"Produce", "Fetch"})
"""What takes its time with these works on this node's disk; with groups it waits for somebody."""


class DataApis:
    """The Kafka APIs that go to a partition's leader, a group's coordinator among them, or to a node."""

    def __init__(
        self,
        manager: ReplicaManager,
        authorizer: Authorizer,
        in_touch: Callable[[], bool],
        groups: GroupHost | None = None,
        transactions: TransactionHost | None = None,
        link: TransactionLink | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """A node without `groups` coordinates none, and so with `transactions`; one without `link` takes no batches of
        transactions. Raises InvariantBroken when an API with one of these routes has no handler."""
        self._metrics, self._clock_s, self._tracing = manager.metrics, manager.clocks.s, tracing
        rights = Rights(authorizer)
        produce = ProduceHandler(manager, rights, in_touch, link)
        fetch = FetchHandler(manager, rights)
        offsets = ListOffsetsHandler(manager.registry, rights)
        node = DescribeNodeHandler(manager, rights)
        self._handlers: dict[
            int, Callable[[RequestContext, RequestHeader, Buffer], Response | Awaitable[Response]]
        ] = {
            int(ApiKey.PRODUCE): produce.handle,
            int(ApiKey.FETCH): fetch.handle,
            int(ApiKey.LIST_OFFSETS): offsets.list_offsets,
            int(ApiKey.OFFSET_FOR_LEADER_EPOCH): offsets.offset_for_leader_epoch,
            int(ApiKey.DELETE_RECORDS): DeleteRecordsHandler(manager, rights).handle,
            int(ApiKey.DESCRIBE_PRODUCERS): node.describe_producers,
            int(ApiKey.DESCRIBE_LOG_DIRS): node.describe_log_dirs,
            int(ApiKey.ALTER_REPLICA_LOG_DIRS): node.alter_log_dirs,
        }
        but: set[int] = set()
        # Any process answers these, but a node for itself.
        also = [ApiKey.DESCRIBE_LOG_DIRS]
        if link is not None:
            self._handlers[int(ApiKey.WRITE_TXN_MARKERS)] = WriteMarkersHandler(link.leading, rights).handle
        else:
            but |= {ApiKey.WRITE_TXN_MARKERS, ApiKey.TXN_OFFSET_COMMIT}
        if groups is not None:
            group_handler = GroupHandler(groups, rights, in_touch)
            self._handlers |= dict.fromkeys(group_handler.api_keys, group_handler.handle)
            if link is not None:
                commits = TransactionalCommits(
                    group_handler,
                    groups,
                    rights,
                    link,
                    manager.clock_ms,
                    manager.registry.verifies_partitions,
                )
                self._handlers[int(ApiKey.TXN_OFFSET_COMMIT)] = commits.handle
        else:
            but |= _OF_GROUPS
        if transactions is not None:
            handler = TransactionHandler(transactions, rights, LoopTurns.of(manager.lifecycle))
            self._handlers |= dict.fromkeys(handler.api_keys, handler.handle)
            also.append(ApiKey.INIT_PRODUCER_ID)
        else:
            but |= _OF_TRANSACTIONS
        require_entries("handlers of DataApis", self._handlers, _ROUTES, also=also, but=but)

    def handles(self, api_key: int) -> bool:
        """Whether `handle` knows the API."""
        return api_key in self._handlers

    def handle(
        self, caller: RequestContext, header: RequestHeader, frame: Buffer
    ) -> Response | Awaitable[Response]:
        """Answer one request; what must happen in order has happened on return.

        Raises Malformed when the frame cannot be read: its connection is to be closed.
        """
        caller.handled_s = self._clock_s()
        if not caller.begun_s:
            caller.begun_s = caller.handled_s
        caller.api = _TIMED.get(header.api_key, "other")
        if self._tracing is not None:
            self._trace(self._tracing, caller, header)
        answer = self._handlers[header.api_key](caller, header, frame)
        if isinstance(answer, Awaitable):
            later = asyncio.ensure_future(answer)
            later.add_done_callback(lambda done: self._on_done(caller, done))
            return later
        self._time(caller, at_once=True)
        return answer

    def _on_done(self, caller: RequestContext, done: asyncio.Future[Response]) -> None:
        if not done.cancelled():
            self._time(caller, at_once=False)

    def _time(self, caller: RequestContext, *, at_once: bool) -> None:
        now_s, handled_s, api = self._clock_s(), caller.handled_s, caller.api
        via = "direct" if caller.listener else "forward"
        self._metrics.observe_request(api, via, now_s - caller.begun_s, acks_all=caller.acks_all)
        for code in caller.errors:
            self._metrics.errors[api, code] += 1
        phases = self._metrics.phases[api]
        phases["queue"].observe(handled_s - caller.begun_s)
        if caller.local_s:
            phases["local"].observe(max(0.0, caller.local_s - handled_s))
            phases["remote"].observe(now_s - max(caller.local_s, handled_s))
        elif at_once or (api in _OF_RECORDS and not caller.is_long_poll):
            phases["local"].observe(now_s - handled_s)
        else:
            phases["wait"].observe(now_s - handled_s)
        if caller.trace is not None:
            self._tell(caller.trace, caller, now_s)

    def _trace(self, tracing: Tracing, caller: RequestContext, header: RequestHeader) -> None:
        about: Attributes = {
            "penstock.api": api_name(header.api_key),
            "penstock.api_version": header.api_version,
        }
        if caller.traceparent:
            caller.trace = tracing.follow(caller.traceparent, "node.handle", caller.begun_s, about)
        elif caller.listener:
            caller.trace = tracing.begin("node.handle", caller.begun_s, about)

    @staticmethod
    def _tell(trace: Span, caller: RequestContext, now_s: float) -> None:
        """The parts of a traced request that was answered. One that was relayed ends when the answer is sent."""
        if caller.local_s:
            local_s = max(caller.local_s, caller.handled_s)
            written_s = max(local_s - caller.flush_s, caller.handled_s)
            trace.tell("append", caller.handled_s, written_s)
            if caller.flush_s:
                trace.tell("flush", written_s, local_s)
            trace.tell("replicate", local_s, max(now_s, local_s))
        if caller.listener:
            trace.end(now_s)


class DirectAddresses:
    """What clients of a direct listener are told: each node's endpoint of the same listener and security."""

    def __init__(self, listeners: Iterable[ListenerSettings] = ()) -> None:
        """`listeners` are this node's own."""
        self._security = {each.name: each.security for each in listeners}

    def node_address(self, connection: Connection, node: NodeImage) -> tuple[str, int] | None:
        """Host and port, None when that node has no such listener."""
        endpoint = node.listeners.get(connection.listener)
        if endpoint is None or endpoint.security != self._security.get(connection.listener, PLAINTEXT):
            return None
        return endpoint.host, endpoint.port

    def view_key(self, connection: Connection) -> Hashable:
        """Nodes say themselves where they are on a listener."""
        return connection.listener

    def apis(self, image: MetadataImage) -> Mapping[int, tuple[int, int]]:
        """A direct client talks to this build."""
        del image
        return SUPPORTED


class DirectHandler:
    """Answers the frames of the node's own listeners."""

    def __init__(self, data: DataApis, cluster: ClusterApis, metrics: KafkaMetrics) -> None:
        self._data = data
        self._cluster = cluster
        self._metrics = metrics
        self._offsets = OffsetsToCome(lambda: ELSEWHERE_S)

    def handle(self, connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
        """See `FrameHandler`."""
        header = admit(connection, frame, self._metrics)
        if not isinstance(header, RequestHeader):
            return header
        if header.api_key in WATCHED:
            self._offsets.request_came(connection, header, frame)
        if self._data.handles(header.api_key) and not _is_for_anybody(header, frame):
            caller = RequestContext(
                connection.identity,
                header.client_id,
                connection.peer,
                connection.listener,
                _stream_of(connection),
            )
            return self._data.handle(caller, header, frame)
        return self._cluster.answer(connection, header, frame)


def _is_for_anybody(header: RequestHeader, frame: bytearray) -> bool:
    """A producer that is only idempotent gets its id from any process. Raises Malformed."""
    if header.api_key != ApiKey.INIT_PRODUCER_ID:
        return False
    header.decoded = codec.decode_request(header, frame)
    return header.decoded.transactional_id is None


def _stream_of(connection: Connection) -> ClientStream:
    stream = connection.state.get(_STREAM)
    if stream is None:
        stream = connection.state[_STREAM] = ClientStream(connection.is_there)
        connection.on_closed(stream.end)
    return cast(ClientStream, stream)
