"""A port that speaks Kafka's framing: accepting, caps, time limits, the end.

`Connection` does the work per connection; here is what they share. See its module for
how requests and responses flow.

Rules. A peer that sends garbage costs one log line and one count. A peer that opens a
connection and then says nothing, or stops in the middle of a request, is closed after a
bound; so is one that is idle for as long as Kafka's own limit.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque

from penstock_core.errors import InvariantBroken, PenstockError
from penstock_core.metadata.image import Endpoint
from penstock_frontend.listener.connection import (
    CLOSE,
    NO_RESPONSE,
    Buffer,
    Connection,
    FrameHandler,
    ListenerLimits,
    Response,
    Signal,
)
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_runtime.addresses import bind_sockets
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import error_fields, one_line
from penstock_runtime.settings import ListenerSettings

_SCRATCH_BYTES = 64 * 1024
_SWEEP_MS = 1_000
_REFUSED_LOG_INTERVAL_MS = 1_000


class KafkaListener:
    """One listening port. `handler` answers the frames of all its connections."""

    def __init__(
        self,
        settings: ListenerSettings,
        handler: FrameHandler,
        lifecycle: Lifecycle,
        limits: ListenerLimits | None = None,
        *,
        allow_insecure_bind: bool | None = None,
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self.handler = handler
        self.lifecycle = lifecycle
        self.limits = limits or ListenerLimits()
        self.metrics = KafkaMetrics.of(lifecycle)
        self.log = lifecycle.log.bind(listener=settings.name)
        self.connections: set[Connection] = set()
        self._allow_insecure_bind = (
            lifecycle.allow_insecure_bind if allow_insecure_bind is None else allow_insecure_bind
        )
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment] # set by start
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        """Where every connection's small reads go; the loop reads and hands over in one step."""
        self._by_host: Counter[str] = Counter()
        self._quiet_since: dict[Connection, float] = {}
        self._frames_bytes = 0
        self._starved: deque[Connection] = deque()
        self._servers: list[asyncio.Server] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._refused_logged_s = -1e9

    async def start(self) -> Endpoint:
        """Open the port; where it is. Raises StartupError naming the listener and the mend."""
        self.loop = asyncio.get_running_loop()
        sockets, endpoint = bind_sockets(
            self.settings.bind, f"listener {self.name}: bind", allow_insecure_bind=self._allow_insecure_bind
        )
        self._servers = [
            await self.loop.create_server(lambda: Connection(self), sock=s, backlog=1024) for s in sockets
        ]
        self._sweep_timer = self.loop.call_later(_SWEEP_MS / 1000, self._sweep)
        self.lifecycle.at_end(lambda: self.stop(timeout_ms=0))
        return Endpoint(self.name, endpoint.host, endpoint.port, self.settings.security)

    async def stop(self, timeout_ms: int = 5_000) -> None:
        """Accept no more, let requests at hand be answered, close. Safe to call twice."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.close_after_responses("the listener stops")
        if self.connections:
            self._empty.clear()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._empty.wait()
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort("the listener stops")
                await self._empty.wait()
        for server in self._servers:
            await server.wait_closed()
        self._servers = []
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    def close_connections(self, reason: str) -> None:
        """Close every connection after its responses, so that clients negotiate anew."""
        for connection in list(self.connections):
            connection.close_after_responses(reason)

    # What connections call

    def opened(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Take a new connection, or refuse it when there are too many."""
        self.connections.add(connection)
        self._by_host[connection.peer_host] += 1
        self.metrics.connections[self.name] = len(self.connections)
        limits = self.limits
        if len(self.connections) > limits.connections_max:
            self._refuse(connection, "connections_max", limits.connections_max)
        elif self._by_host[connection.peer_host] > limits.connections_per_host_max:
            self._refuse(connection, "connections_per_host_max", limits.connections_per_host_max)
        else:
            raw: socket.socket | None = transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _refuse(self, connection: Connection, reason: str, most: int) -> None:
        self.metrics.refused[self.name, reason] += 1
        now = self.loop.time()
        # One line a second is enough to say so; the counter has them all.
        if now - self._refused_logged_s >= _REFUSED_LOG_INTERVAL_MS / 1000:
            self._refused_logged_s = now
            self.log.warning("connection refused", peer=connection.peer, reason=f"{reason} = {most} reached")
        connection.abort(reason)

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self._quiet_since.pop(connection, None)
        # The PROXY header may have renamed the peer since it was counted.
        host = connection.socket_host
        self._by_host[host] -= 1
        if self._by_host[host] <= 0:
            del self._by_host[host]
        self.metrics.connections[self.name] = len(self.connections)
        if not self.connections:
            self._empty.set()

    def request_failed(self, connection: Connection, error: BaseException) -> None:
        """Say that a handler raised; a broken invariant ends the process."""
        if isinstance(error, InvariantBroken):
            self.lifecycle.fail_with(error, peer=connection.peer)
        elif isinstance(error, PenstockError):
            self.log.warning(
                "request failed, closing",
                peer=connection.peer,
                code=error.code.name,
                reason=one_line(error),
            )
        else:
            self.lifecycle.unhandled_errors.inc()
            self.log.error("request failed, closing", peer=connection.peer, **error_fields(error))

    def charge(self, size: int, *, force: bool = False) -> bool:
        """Count bytes of a frame held in memory; False when the listener's share is spent."""
        if not force and self._frames_bytes and self._frames_bytes + size > self.limits.frames_bytes_max:
            return False
        self._frames_bytes += size
        return True

    def release(self, size: int) -> None:
        """The opposite of `charge`; lets a connection that waits for memory go on."""
        self._frames_bytes -= size
        if self._starved and size:
            connection = self._starved.popleft()
            self.loop.call_soon(connection.fed)

    def starve(self, connection: Connection) -> None:
        """Wake `connection` when memory for frames comes free."""
        self._starved.append(connection)

    # Time limits

    def _sweep(self) -> None:
        """Close what has been silent too long. Every second; cheap per connection."""
        now = self.loop.time()
        for connection in list(self.connections):
            if connection.moved:
                connection.moved = False
                self._quiet_since[connection] = now
            reason = self._overdue(connection, now)
            if reason:
                if reason != "idle":
                    self.metrics.bad_frames[self.name, "timeout"] += 1
                    self.log.warning("closing", peer=connection.peer, reason=reason)
                connection.abort(reason)
        self._sweep_timer = self.loop.call_later(_SWEEP_MS / 1000, self._sweep)

    def _overdue(self, connection: Connection, now: float) -> str:
        limits = self.limits
        quiet_ms = (now - self._quiet_since.get(connection, now)) * 1000
        if connection.frame_started_s:
            allowed_ms = limits.frame_timeout_ms + connection.frame_length / 64
            if connection.mid_frame and (now - connection.frame_started_s) * 1000 > allowed_ms:
                return f"a request of {connection.frame_length} bytes did not come whole in time"
        elif connection.mid_frame and quiet_ms > limits.frame_timeout_ms:
            return "it stopped in the middle of a request"
        if not connection.request_count and quiet_ms > limits.first_request_timeout_ms:
            return "" if connection.inflight_count else "no request came"
        if quiet_ms > limits.idle_timeout_ms and connection.may_be_idle:
            return "idle"
        return ""


__all__ = [
    "CLOSE",
    "NO_RESPONSE",
    "Buffer",
    "Connection",
    "FrameHandler",
    "KafkaListener",
    "ListenerLimits",
    "Response",
    "Signal",
]
