"""The relay of a gateway: what those of all its clients share.

Metadata, channels to nodes, a clock, and a slow tick for what waits. See `client_relay` for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import Authorizer
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_gateway.metrics import GatewayMetrics
from penstock_gateway.relay.client_relay import ClientInfo, ClientRelay
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.metadata_client import MetadataClient

TICK_MS: Final = 50


class Relay:
    """What the relays of all clients of a gateway share."""

    def __init__(
        self,
        gateway_id: str,
        metadata: MetadataClient,
        channels: ChannelPool,
        metrics: GatewayMetrics,
        authorizer: Authorizer,
        lifecycle: Lifecycle,
        clock_ms: Callable[[], int],
        tick_ms: int = TICK_MS,
    ) -> None:
        self._tick_ms = tick_ms
        self.gateway_id = gateway_id
        self.metadata = metadata
        self.channels = channels
        self.metrics = metrics
        self.authorizer = authorizer
        self.quotas = QuotaGate.idle()
        """Those of native clients too; set by the role."""
        self.log = lifecycle.log
        self.on_bug: Callable[[BaseException], None] = lifecycle.fail_with
        self.clock_ms = clock_ms
        self.clients: dict[ClientRelay, None] = {}
        """In the order in which they were opened."""
        self.busy: dict[ClientRelay, None] = {}
        """Those that the passing of time means something to: thousands of idle ones cost nothing."""
        self.leaving_count = 0
        """Relays whose client is gone, see `LEAVING_MS`."""
        self.hands_over = False
        """This gateway is named no more, and will close: clients of Kafka's protocol are answered as by a node that
        leads no more, so that they ask for metadata while somebody is here to answer (decision 0151)."""
        self.on_stream_lost: Callable[[NodeId], None] = lambda _: None
        """Told of a node whose stream broke."""
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        """Of the next tick, while anybody is busy."""
        self._is_ticking = False
        metrics.in_flight = lambda: sum(client.waiting_count for client in self.clients)
        self._off = metadata.on_change(lambda old, new, _: self._image_changed(old, new))

    def start(self) -> None:
        """Begin to tick, while anybody is busy."""
        self._is_ticking = True
        if self.busy:
            self._arm()

    def note_busy(self, client: ClientRelay) -> None:
        """The passing of time means something to it from now on."""
        self.busy[client] = None
        if self._timer is None and self._is_ticking:
            self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_ms / 1000, self._tick)

    def stop(self) -> None:
        """Close the relays of all clients; their requests stay unanswered."""
        self._is_ticking = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._off()
        for client in list(self.clients):
            client.close(at_once=True)

    def open(self, info: ClientInfo) -> ClientRelay:
        """A relay for one client; close it."""
        client = ClientRelay(self, info)
        self.clients[client] = None
        self.metrics.client_relays += 1
        return client

    def _image_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        if old.topics is new.topics and old.nodes is new.nodes:
            return
        for client in list(self.clients):
            client.image_changed(new)
        gone = {n.grpc.address for n in old.nodes.values()} - {n.grpc.address for n in new.nodes.values()}
        for address in gone:
            task = asyncio.create_task(self.channels.drop(address), name=f"closing channels to {address}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _tick(self) -> None:
        for client in list(self.busy):
            client.tick()
            if client.idle:
                self.busy.pop(client, None)
        self._timer = None
        if self.busy:
            self._arm()
