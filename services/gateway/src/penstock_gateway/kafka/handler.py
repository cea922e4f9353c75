"""What becomes of a Kafka frame at the gateway: answered here, or relayed.

The route of every API stands in `penstock_kafka.wire.apis` (rule "A connection names no
node"), and `RELAYED` is held against it when the handler is built. Cluster APIs are
answered from metadata or handed to the controller by `ClusterApis`; requests for partition
leaders and group coordinators go through this connection's relay. APIs for single
nodes are not advertised; who sends one nevertheless is disconnected, as by Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock_frontend.cluster.apis import ClusterApis, admit
from penstock_frontend.listener.answers import WatchedReply
from penstock_frontend.listener.client_software import client_software
from penstock_frontend.listener.listener import CLOSE, NO_RESPONSE, Connection, Response
from penstock_frontend.listener.metrics import api_name
from penstock_frontend.offsets_to_come import ELSEWHERE_S, HERE_S, WATCHED, OffsetsToCome
from penstock_gateway.relay.client_relay import ClientInfo, ClientRelay
from penstock_gateway.relay.describe_producers import ProducersQuery
from penstock_gateway.relay.fetch import Fetch
from penstock_gateway.relay.groups import GROUP_CALLS
from penstock_gateway.relay.produce import Produce
from penstock_gateway.relay.queries import DeleteRecordsQuery, LeaderEpochQuery, ListOffsetsQuery
from penstock_gateway.relay.relay import Relay
from penstock_gateway.relay.request import Ending, Outcome, Relayed
from penstock_gateway.relay.transactions import TRANSACTION_CALLS, TransactionCall
from penstock_gateway.routing.address_aliases import needs_distinct_names
from penstock_kafka.wire.apis import BY_TRANSACTIONAL_ID, ON_LOSS, RELAYED_ROUTES, ApiKey, require_entries
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.groups import named_transaction
from penstock_kafka.wire.metadata import decode_metadata
from penstock_kafka.wire.primitives import Malformed
from penstock_runtime.tracing import Attributes, Tracing

_RelayedMaker = Callable[[RequestHeader, bytearray, Callable[[Outcome], None]], Relayed[Any]]

RELAYED: Final[dict[int, _RelayedMaker]] = {
    ApiKey.PRODUCE: Produce,
    ApiKey.FETCH: Fetch,
    ApiKey.LIST_OFFSETS: ListOffsetsQuery,
    ApiKey.DELETE_RECORDS: DeleteRecordsQuery,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: LeaderEpochQuery,
    ApiKey.DESCRIBE_PRODUCERS: ProducersQuery,
    **GROUP_CALLS,
    **TRANSACTION_CALLS,
}
"""What takes a request apart for the nodes that it goes to, and joins their answers, by api key."""

_CLIENT_RELAY: Final = "relay"
_NAMED_TOPICS: Final = "named_topics"


class GatewayHandler:
    """Handles the frames of every listener of this gateway."""

    def __init__(
        self,
        relay: Relay,
        cluster: ClusterApis,
        cluster_apart: ClusterApis,
        tracing: Tracing | None = None,
    ) -> None:
        """`cluster_apart` gives every node an address of its own (see `routing.address_aliases`).

        Raises InvariantBroken when an API whose route leads to storage nodes is not in `RELAYED`, or
        nothing says what becomes of it when its node is lost.
        """
        require_entries("requests that the gateway relays", RELAYED, RELAYED_ROUTES)
        require_entries(
            "what a lost node means (ApiSpec.on_loss)",
            ON_LOSS,
            RELAYED_ROUTES,
            also=BY_TRANSACTIONAL_ID,
        )
        self._relay = relay
        self._cluster = cluster
        self._cluster_apart = cluster_apart
        self._tracing = tracing
        self._offsets = OffsetsToCome(self._offsets_patience_s)

    def handle(self, connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
        """One request; see `FrameHandler`."""
        header = admit(connection, frame, self._relay.metrics.kafka)
        if not isinstance(header, RequestHeader):
            return header
        relayed = RELAYED.get(header.api_key)
        try:
            if header.api_key in WATCHED:
                self._offsets.request_came(connection, header, frame)
            if header.api_key in BY_TRANSACTIONAL_ID and named_transaction(header, frame):
                relayed = TransactionCall
            if relayed is not None:
                return self._submit(connection, header, frame, relayed)
            if self._cluster.handles(header.api_key):
                return self._cluster_for(connection, header, frame).answer(connection, header, frame)
        except Malformed as e:
            return connection.refuse("body", e.message)
        return connection.refuse("api", f"api key {header.api_key} is not answered here")

    def _submit(
        self, connection: Connection, header: RequestHeader, frame: bytearray, kind: _RelayedMaker
    ) -> Response | Awaitable[Response]:
        client = self._client_relay(connection)
        waiting = DeferredReply(client)
        request = kind(header, frame, waiting.finish)
        client.submit(request)
        # Not the request: it knows the reply, whose megabytes would wait for the garbage collector in such a circle.
        metrics, api_key, times = self._relay.metrics, header.api_key, request.times
        if self._tracing is not None and not request.finished:
            about: Attributes = {
                "penstock.api": api_name(api_key),
                "penstock.api_version": header.api_version,
                "penstock.request_bytes": len(frame),
            }
            times.trace = self._tracing.begin("gateway.request", times.arrived_s, about)
        return waiting.result(lambda: metrics.observe_hops(api_key, times))

    def _offsets_patience_s(self) -> float:
        """Nodes are at the addresses of all gateways: a group's coordinator may be at another than a transaction's."""
        return HERE_S if len(self._relay.metadata.image.gateways) <= 1 else ELSEWHERE_S

    def _cluster_for(self, connection: Connection, header: RequestHeader, frame: bytearray) -> ClusterApis:
        """Who answers: plain addresses, or for some clients one spelling for each node.

        A listing of all topics before anything else on a connection (`kcat -L`) is for
        people to read and gets plain addresses all the same.
        """
        if header.api_key != ApiKey.METADATA or not needs_distinct_names(client_software(connection)):
            return self._cluster
        state = connection.state
        asked = decode_metadata(frame, header).topics
        if asked:
            state[_NAMED_TOPICS] = True
        plain = asked is None and _NAMED_TOPICS not in state
        return self._cluster if plain else self._cluster_apart

    def _client_relay(self, connection: Connection) -> ClientRelay:
        client: ClientRelay | None = connection.state.get(_CLIENT_RELAY)
        if client is None:
            info = ClientInfo(connection.identity, connection.listener, connection.is_there, is_moved=True)
            client = connection.state[_CLIENT_RELAY] = self._relay.open(info)
            connection.on_closed(client.close)
        return client


class DeferredReply:
    """The outcome of a relayed request, as the listener wants it: at once, or a future."""

    __slots__ = ("_client", "_future", "_outcome")

    def __init__(self, client: ClientRelay) -> None:
        self._client = client
        self._outcome: Response | None = None
        self._future: WatchedReply | None = None

    def finish(self, outcome: Outcome) -> None:
        """The request is over."""
        response = _to_response(outcome)
        if self._future is None:
            self._outcome = response
            return
        self._client.waiting_count -= 1
        if not self._future.done():
            self._future.set_result(response)

    def result(self, on_written: Callable[[], None] | None = None) -> Response | Awaitable[Response]:
        """What to hand the listener; called once, after the request was submitted. `on_written` is called when
        an answer that was waited for was written to the client."""
        if self._outcome is not None:
            return self._outcome
        self._client.waiting_count += 1
        self._future = WatchedReply(loop=asyncio.get_running_loop())
        self._future.on_written = on_written
        return self._future


def _to_response(outcome: Outcome) -> Response:
    if isinstance(outcome, Ending):
        return CLOSE if outcome is Ending.CLOSE else NO_RESPONSE
    return outcome
