"""Kafka connections of clients: a stand-in for the listener of gateways and nodes.

Requests of one connection arrive in their order, and responses leave in the order of the
requests, as `frontend.listener` has it. A connection ends with the process that it leads to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock_core.errors import PenstockError
from penstock_frontend.authorizer import ANONYMOUS, Identity
from penstock_frontend.listener.listener import CLOSE, NO_RESPONSE
from penstock_gateway.relay.client_relay import ClientInfo, ClientRelay
from penstock_gateway.relay.fetch import Fetch
from penstock_gateway.relay.produce import Produce
from penstock_gateway.relay.request import Ending, Outcome, Relayed
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header
from penstock_storage_node.kafka.request_context import RequestContext
from simulation.process import Process

_REQUESTS: dict[int, type[Relayed[Any]]] = {int(ApiKey.PRODUCE): Produce, int(ApiKey.FETCH): Fetch}


class KafkaConnection:
    """One client's connection to `process`."""

    def __init__(self, process: Process, on_lost: Callable[[KafkaConnection], None]) -> None:
        self.process = process
        self.closed = False
        self._on_lost = on_lost
        self._waiting: deque[list[Any]] = deque()
        """[outcome or None, callback] of each request, in order."""
        self._arrival_us = [0, 0]
        process.connections[self] = None

    def _delay_us(self, way: int) -> int:
        """Until the next message arrives, in order."""
        world = self.process.world
        now_us = world.scheduler.now_us
        self._arrival_us[way] = max(self._arrival_us[way], now_us + world.network.delay_us())
        return self._arrival_us[way] - now_us

    def send(self, frame: bytes, on_response: Callable[[bytes], None]) -> None:
        """A request from the client; it takes its time to get there."""
        self.process.after(self._delay_us(0), self._on_loop, frame, on_response)

    def _on_loop(self, frame: bytes, on_response: Callable[[bytes], None]) -> None:
        self.process.loop.call_now(self._take, frame, on_response)

    def _take(self, frame: bytes, on_response: Callable[[bytes], None]) -> None:
        if self.closed:
            return
        slot: list[Any] = [None, on_response]
        self._waiting.append(slot)

        def finish(outcome: Outcome) -> None:
            slot[0] = outcome
            self._flush()

        self.handle(bytearray(frame), finish)

    def handle(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        """Answer a request, on the process's loop."""
        raise NotImplementedError

    def end(self) -> None:
        """The connection is over; on the process's loop."""

    def _flush(self) -> None:
        while self._waiting and self._waiting[0][0] is not None:
            outcome, on_response = self._waiting.popleft()
            if outcome is Ending.CLOSE:
                self.close()
                self.process.world.scheduler.after(1_000, self.lost)
                return
            if outcome is not Ending.NO_RESPONSE:
                data = b"".join(outcome)
                self.process.world.scheduler.after(self._delay_us(1), self._respond, on_response, data)

    def _respond(self, on_response: Callable[[bytes], None], data: bytes) -> None:
        if not self.closed:
            on_response(data)

    def close(self) -> None:
        """The client closes, or the server does."""
        if self.closed:
            return
        self.closed = True
        self.process.connections.pop(self, None)
        if self.process.is_up:
            self.process.loop.call_soon(self.end)

    def lost(self) -> None:
        """The server is gone."""
        self.closed = True
        self.process.connections.pop(self, None)
        self._on_lost(self)


class GatewayConnection(KafkaConnection):
    """Through a gateway's relay."""

    _client: ClientRelay | None = None

    def handle(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        if self._client is None:
            self._client = self.open_relay()
        header = parse_request_header(frame)
        self._client.submit(_REQUESTS[header.api_key](header, frame, finish))

    def open_relay(self) -> ClientRelay:
        """The gateway's relay for this client."""
        relay: ClientRelay = self.process.relay.open(  # type: ignore[attr-defined]
            ClientInfo(Identity(ANONYMOUS, "client"), "KAFKA")
        )
        return relay

    def end(self) -> None:
        if self._client is not None:
            self._client.close()


class DirectConnection(KafkaConnection):
    """To a storage node's own listener."""

    def request_context(self) -> RequestContext:
        """Who asks."""
        return RequestContext()

    def handle(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        def answer(response: Any) -> None:
            if response is CLOSE or response is NO_RESPONSE:
                finish(Ending.CLOSE if response is CLOSE else Ending.NO_RESPONSE)
            else:
                finish([response] if isinstance(response, bytes) else response)

        header = parse_request_header(frame)
        data = self.process.role._data  # type: ignore[attr-defined]
        try:
            response = data.handle(self.request_context(), header, frame)
        except PenstockError:
            finish(Ending.CLOSE)
            return
        if response is CLOSE or response is NO_RESPONSE or isinstance(response, bytes | list):
            answer(response)
            return
        future = asyncio.ensure_future(response)
        future.add_done_callback(lambda done: None if done.cancelled() else answer(done.result()))
