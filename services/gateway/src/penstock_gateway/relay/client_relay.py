"""Relaying one client's requests to partition leaders.

A `ClientRelay` belongs to one client connection: a table of flights (which decides) and one
stream per storage node (which carries). It belongs to no Kafka connection, so that the
native API uses the same road. What those of all clients share is in `relay`.

Bounds (rule "A relay keeps order"): a client's requests in flight are capped where they come
in, so the queues of its relay hold no more than that; what is taken from them at once is
TAKE_BYTES_MAX.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId, TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import Authorizer, Identity
from penstock_gateway.metrics import GatewayMetrics
from penstock_gateway.relay.fetch import LeaderChangeHint
from penstock_gateway.relay.items import Veto
from penstock_gateway.relay.node_stream import NodeStream
from penstock_gateway.relay.produce import Produce, UnknownTopicGate
from penstock_gateway.relay.request import Part, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_gateway.routing.flight import InFlight
from penstock_gateway.routing.in_flight import InFlightTable
from penstock_kafka.wire.apis import OnLoss
from penstock_kafka.wire.primitives import Buffer
from penstock_proto.fast.forward import InFrame, OutFrame
from penstock_proto.v1 import storage_pb2 as pb
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.security.methods import STORAGE_NODE
from penstock_runtime.tracing import Span

TAKE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes of requests that a stream takes at once (a single request may exceed it)."""

REOPEN_MIN_MS: Final = 20
REOPEN_MAX_MS: Final = 1_000
LEAVING_MS: Final = 10_000
"""How long a relay outlives its client for what came without waiting for an answer (acks=0)."""
LEAVING_MAX: Final = 100
"""Most relays that do."""


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """For whom requests are relayed."""

    identity: Identity
    listener: str
    is_there: Callable[[], bool] = lambda: True
    """Whether the client has not closed its connection, as far as this machine has heard."""
    is_moved: bool = False
    """It goes to the gateways that the answer to its next Metadata names; see `GatewayRelay.hands_over`."""


class GatewayRelay(Protocol):
    """What a client's relay takes from its gateway's."""

    gateway_id: str
    metadata: MetadataClient
    channels: ChannelPool
    metrics: GatewayMetrics
    authorizer: Authorizer
    log: Any
    on_bug: Callable[[BaseException], None]
    clock_ms: Callable[[], int]
    clients: dict[ClientRelay, None]
    """In the order in which they were opened."""
    busy: dict[ClientRelay, None]
    """Those that the passing of time means something to."""
    leaving_count: int
    """Relays whose client is gone, see `LEAVING_MS`."""
    hands_over: bool
    """Clients that can be are to be moved to other gateways."""
    on_stream_lost: Callable[[NodeId], None]
    """Told of a node whose stream broke."""

    def note_busy(self, client: ClientRelay) -> None:
        """The passing of time means something to it from now on."""


def _elsewhere(_key: TopicPartition, _image: MetadataImage) -> ErrorCode:
    return ErrorCode.NOT_LEADER_OR_FOLLOWER


class ClientRelay:
    """One client's requests on their way to leaders and back."""

    def __init__(self, relay: GatewayRelay, client: ClientInfo) -> None:
        self._relay = relay
        self._client = client
        self._metrics = relay.metrics
        self._table: InFlightTable[Part] = InFlightTable(relay.metadata.image, relay.clock_ms)
        self._leader_hint = LeaderChangeHint(self._table.leader)
        self._unknown_topics = UnknownTopicGate(relay.clock_ms)
        self._streams: dict[NodeId, _Link] = {}
        self._failures: dict[NodeId, int] = {}
        self._closed = False
        self._silent: deque[Relayed[Any]] = deque()
        """Requests that nobody waits for, in order of arrival; those at the front may be over."""
        self._leaving_until_ms = 0
        self.waiting_count = 0
        """Requests of the client that are not answered yet."""

    # -- from the client ------------------------------------------------------------------

    def submit(self, request: Relayed[Any]) -> None:
        """Route a request; its `finish` is called once, maybe at once. In order of arrival."""
        if isinstance(request, Produce):
            request.unknown_topics = self._unknown_topics
        self._relay.note_busy(self)
        request.times.arrived_s = self._metrics.clock_s()
        authorizer = self._relay.authorizer
        rights = RequestRights(authorizer, self._client.identity) if authorizer.is_enabled else None
        # Who had better look for the leader again.
        hint: Veto | None = self._leader_hint if request.leader_change_hint else None
        if self._relay.hands_over and self._client.is_moved and request.looks_for_leader:
            hint = _elsewhere
        flight = request.start(self._relay.metadata.image, hint, rights)
        if request.error_codes:
            self._count_errors(request)
        if flight is not None:
            if request.silent:
                self._forget_silent()
                self._silent.append(request)
            self._table.submit(flight)
            self._carry_out()

    def _forget_silent(self) -> None:
        while self._silent and self._silent[0].finished:
            self._silent.popleft()

    def _count_errors(self, request: Relayed[Any]) -> None:
        for code in request.error_codes:
            self._metrics.kafka.count_error(request.header.api_key, code)
        request.error_codes.clear()

    def close(self, *, at_once: bool = False) -> None:
        """The client is gone: cancel what is under way.

        Who sends with acks=0 may close its socket after the last byte, and Kafka still writes what
        it has received: such requests are finished first, by a deadline, unless `at_once`.
        """
        if self._closed:
            return
        relay = self._relay
        self._forget_silent()
        if self._silent and not at_once:
            if not self._leaving_until_ms and relay.leaving_count < LEAVING_MAX:
                relay.leaving_count += 1
                self._leaving_until_ms = relay.clock_ms() + LEAVING_MS
                relay.note_busy(self)
            if relay.clock_ms() < self._leaving_until_ms:
                return
        if self._leaving_until_ms:
            relay.leaving_count -= 1
        self._closed = True
        self._relay.clients.pop(self, None)
        self._relay.busy.pop(self, None)
        self._metrics.client_relays -= 1
        for link in self._streams.values():
            self._drop(link)
        self._streams.clear()

    # -- from the relay -------------------------------------------------------------------

    def image_changed(self, image: MetadataImage) -> None:
        """Newer metadata."""
        self._table.image_changed(image)
        self._carry_out()

    def tick(self) -> None:
        """Time passed."""
        if self._table.tick():
            self._carry_out()
        if self._leaving_until_ms:
            self.close()

    @property
    def idle(self) -> bool:
        """Nothing is under way: no time that passes changes that."""
        return self._table.idle and not self._leaving_until_ms

    # -- from streams ---------------------------------------------------------------------

    def is_there(self) -> bool:
        """Whether the client still is: a node asks that before it does what may come too late."""
        return not self._closed and self._client.is_there()

    def stream_ready(self, stream: NodeStream) -> None:
        """A node is connected."""
        self._table.ready(NodeId(stream.node_id))
        self._carry_out()

    def stream_ended(self, stream: NodeStream, reason: str) -> None:
        """A node, or the way to it, is lost."""
        node_id = NodeId(stream.node_id)
        link = self._streams.get(node_id)
        if link is None or link.stream is not stream:
            return
        del self._streams[node_id]
        self._metrics.streams -= 1
        self._metrics.streams_lost += 1
        self._failures[node_id] = self._failures.get(node_id, 0) + 1
        for span in link.spans.values():
            span.end(self._metrics.clock_s(), reason)
        self._relay.log.debug("stream to node ended", node=node_id, reason=reason)
        self._relay.on_stream_lost(node_id)
        self._table.broken(node_id)
        self._carry_out()

    def take_frames(self, stream: NodeStream) -> list[OutFrame]:
        """What to send to a node next."""
        node_id = NodeId(stream.node_id)
        link = self._streams.get(node_id)
        if link is None or link.stream is not stream:
            return []
        version = self._relay.metadata.image.version
        now_s = self._metrics.clock_s()
        frames = []
        for flight in self._table.take(node_id, TAKE_BYTES_MAX):
            part = flight.payload
            if not part.request.times.handed_s:
                part.request.times.handed_s = now_s
            buffers = part.buffers()
            size = sum(map(len, buffers))
            self._metrics.to_nodes_bytes += size
            link.last_id += 1
            link.flights[link.last_id] = flight
            frame = OutFrame(link.last_id, buffers, size, version, part.request.deadline_ms)
            if (trace := part.request.times.trace) is not None:
                span = link.spans[link.last_id] = trace.begin("relay", now_s, {"penstock.node": node_id})
                frame.traceparent = span.traceparent
            frames.append(frame)
        return frames

    def take_answers(self, stream: NodeStream, frames: list[InFrame]) -> None:
        """What a node answered."""
        link = self._streams.get(NodeId(stream.node_id))
        if link is None or link.stream is not stream:
            return
        self._failures.pop(NodeId(stream.node_id), None)
        hit("gateway.answer.before")
        now_s = self._metrics.clock_s()
        for frame in frames:
            if not frame.last:
                link.chunks.setdefault(frame.request_id, []).append(frame.chunk)
                continue
            chunks = link.chunks.pop(frame.request_id, [])
            if len(frame.chunk) or not chunks:
                chunks.append(frame.chunk)
            if link.spans and (span := link.spans.pop(frame.request_id, None)) is not None:
                span.end(now_s)
            flight = link.flights.pop(frame.request_id, None)
            if flight is not None:
                flight.payload.request.times.back_s = now_s
                self._answered(flight, frame, chunks)
        hit("gateway.answer.after")
        self._carry_out()

    def _answered(self, flight: InFlight[Part], frame: InFrame, chunks: list[Buffer]) -> None:
        part = flight.payload
        request = part.request
        try:
            has_body = not (frame.none or frame.close_connection)
            if frame.concerns_router and flight.on_loss is not OnLoss.ASK_CLIENT and has_body:
                answer = request.refused(part, chunks)
                if answer.refused or answer.sent_again:
                    if self._table.refused(flight, answer.refused, answer.sent_again):
                        self._metrics.reroutes += len(answer.refused)
                        request.settle(answer.results, len(answer.results))
                    return
            if has_body and request.not_ready(chunks):
                if self._table.postponed(flight):
                    self._metrics.reroutes += 1
                return
            if not self._table.answered(flight):
                return  # answered here already: it came too late
            if frame.close_connection:
                request.close()
            elif frame.none:
                request.answered_none(part)
            else:
                self._metrics.to_clients_bytes += sum(map(len, chunks))
                request.answered(part, chunks)
        except PenstockError as e:
            # A response that can't be read: the node and we don't speak the same.
            self._relay.log.error("bad response from a node", node=flight.node_id, reason=e.message)
            request.close()

    # -- carrying out what the table decided ----------------------------------------------------

    def _carry_out(self) -> None:
        table = self._table
        if table.answers:
            answers, table.answers = table.answers, []
            for flight, code in answers:
                part = flight.payload
                self._metrics.moved[part.request.header.api_key] += 1
                part.request.failed(part, code)
                self._count_errors(part.request)
        if self._closed:
            return
        while table.dropped:
            link = self._streams.pop(table.dropped.pop(), None)
            if link is not None:
                self._drop(link)
        while table.wanted:
            self._open(table.wanted.pop())
        while table.awake:
            link = self._streams.get(table.awake.pop())
            if link is not None:
                link.stream.wake()

    def _open(self, node_id: NodeId) -> None:
        relay = self._relay
        node = relay.metadata.image.nodes.get(node_id)
        if node is None:
            self._table.broken(node_id)
            return
        failures = self._failures.get(node_id, 0)
        delay_ms = min(REOPEN_MIN_MS << min(failures, 10), REOPEN_MAX_MS) if failures else 0
        who = self._client.identity
        opening = pb.ForwardOpen(
            node_id=node_id,
            principal=str(who.principal),
            principal_type=who.principal.kind,
            principal_name=who.principal.name,
            client_host=who.host,
            listener=self._client.listener,
            gateway_id=relay.gateway_id,
        )
        channel = relay.channels.get(node.grpc.address, STORAGE_NODE)
        stream = NodeStream(self, channel, opening, delay_ms / 1000, relay.on_bug)
        self._streams[node_id] = _Link(stream, {}, {})
        self._metrics.streams += 1

    def _drop(self, link: _Link) -> None:
        link.stream.close()
        self._metrics.streams -= 1


@dataclass(slots=True)
class _Link:
    """A stream with what is out on it, by request id: flights, the chunks of unfinished responses, and of what is
    traced the spans."""

    stream: NodeStream
    flights: dict[int, InFlight[Part]]
    chunks: dict[int, list[Buffer]]
    last_id: int = 0
    spans: dict[int, Span] = field(default_factory=dict)
