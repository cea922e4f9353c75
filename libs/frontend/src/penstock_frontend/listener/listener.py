"""A port that speaks Kafka's framing: what its connections share, time limits, the end.

`Connection` does the work per connection, `Doorway` lets clients in. See their modules for
how requests and responses flow and who may connect.

Rules. A peer that sends garbage costs one log line and one count. A peer that opens a
connection and then says nothing, or sends a request too slowly, is closed after a
bound; so is one that is idle for as long as Kafka's own limit.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock_core.errors import InvariantBroken, PenstockError
from penstock_core.metadata.image import Endpoint
from penstock_core.security.principal import ANONYMOUS, Identity, Principal
from penstock_frontend.audit import ListenerAudit
from penstock_frontend.listener.answers import CLOSE, NO_RESPONSE, Buffer, Response, Signal
from penstock_frontend.listener.connection import Connection, FrameHandler
from penstock_frontend.listener.doorway import Doorway
from penstock_frontend.listener.frame_memory import FrameMemory
from penstock_frontend.listener.limits import ListenerLimits
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_runtime.addresses import bind_sockets
from penstock_runtime.audit import audit_of
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import error_fields, one_line
from penstock_runtime.security.listener_tls import is_resumed_after_end
from penstock_runtime.settings import ListenerSettings
from penstock_runtime.turns import SLICE_S, LoopTurns

_SCRATCH_BYTES = 64 * 1024
_SWEEP_MS = 1_000
_SWEPT_AT_A_TIME = 50
"""Connections looked at without a look at the clock."""
_CLOSED_MAX = 1_000
"""Connections closed in one sweep; the next one goes on."""
_CLOSED_NAMED_MAX = 5
_LATE_SWEEP_S = 2.0
"""A sweep that comes later than that was late itself: clients are not told to have been slow meanwhile."""


CERTIFICATE = "SSL"
"""The mechanism, so to say, of those whose certificate says who they are."""


class NotCertified(Exception):
    """A certificate that makes nobody a user; the text says why."""


@dataclass
class _Sweep:
    """A look at every connection, which takes several turns of the loop when they are many."""

    left: Iterator[Connection]
    began_s: float
    elapsed_s: float
    """Since the sweep before."""
    closed: int = 0
    """For being silent or slow."""


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
        doorkeeper: FrameHandler | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        certified: Callable[[bytes | None, Connection], Principal] | None = None,
        quotas: QuotaGate | None = None,
        keeps_out: Callable[[], str] | None = None,
        may_write: Callable[[Identity], bool] | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`doorkeeper` gets the frames of a connection until it admits it; `tls` gives the context for the
        next connection; `certified` says whom a client's certificate (DER, None without one) makes, and raises
        NotCertified; `quotas` limits clients;
        `keeps_out` says why nobody may come now, and "" when they may; `may_write` whether somebody may write to
        anything (without it everybody may)."""
        self.settings = settings
        self.name = settings.name
        self.handler = handler
        self.lifecycle = lifecycle
        self.limits = limits or ListenerLimits()
        self.metrics = KafkaMetrics.of(lifecycle)
        self.log = lifecycle.log.bind(listener=settings.name)
        self.audit = ListenerAudit(audit_of(lifecycle), settings.name)
        self.connections: set[Connection] = set()
        self._allow_insecure_bind = (
            lifecycle.allow_insecure_bind if allow_insecure_bind is None else allow_insecure_bind
        )
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment] # set by start
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        """Where every connection's small reads go; the loop reads and hands over in one step."""
        self.memory = FrameMemory(self.limits.frames_bytes_max)
        self.turns = LoopTurns.of(lifecycle)
        self.doorkeeper = doorkeeper
        self.quotas = quotas or QuotaGate.idle()
        self._doorway = Doorway(self, tls)
        self._certified = certified
        self._keeps_out = keeps_out
        self._may_write = may_write
        self.asks_rights = may_write is not None
        self._wall_s = wall_s
        self._quiet_since: dict[Connection, float] = {}
        self._starved: deque[Connection] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._swept_s = 0.0
        self._empty = asyncio.Event()

    async def start(self) -> Endpoint:
        """Open the port; where it is. Raises StartupError naming the listener and the mend."""
        self.loop = asyncio.get_running_loop()
        sockets, endpoint = bind_sockets(
            self.settings.bind,
            f"listener {self.name}: bind",
            allow_insecure_bind=self.settings.may_face_others or self._allow_insecure_bind,
        )
        self._doorway.open(sockets)
        self._swept_s = self.loop.time()
        self._sweep_timer = self.loop.call_later(_SWEEP_MS / 1000, self._sweep)
        self.lifecycle.at_end(lambda: self.stop(timeout_ms=0))
        return Endpoint(self.name, endpoint.host, endpoint.port, self.settings.security)

    async def stop(self, timeout_ms: int = 5_000) -> None:
        """Accept no more, let requests at hand be answered, close. Safe to call twice."""
        await self._doorway.close()
        for connection in list(self.connections):
            connection.close_after_responses("the listener stops", to_the_end=True)
        if self.connections:
            self._empty.clear()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._empty.wait()
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort("the listener stops")
                await self._empty.wait()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    def close_connections(self, reason: str) -> None:
        """Close every connection after its responses, so that clients negotiate anew."""
        for connection in list(self.connections):
            connection.close_after_responses(reason, to_the_end=True)

    # What connections call

    def opened(self, connection: Connection, transport: asyncio.Transport) -> None:
        """A new connection is there."""
        if self._keeps_out is not None and (reason := self._keeps_out()):
            self.metrics.bad_frames[self.name, "stale"] += 1
            connection.abort(reason)
        if self._certified is not None:
            try:
                made_tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
                if is_resumed_after_end(made_tls, self._wall_s()):
                    raise NotCertified("its certificate has ended, and its session was resumed; renew it")
                principal = self._certified(made_tls.getpeercert(binary_form=True), connection)
                connection.identity = Identity(principal, connection.identity.host)
                if principal != ANONYMOUS:
                    connection.mechanism = CERTIFICATE
                    self.audit.signed_in(connection, CERTIFICATE)
            except NotCertified as error:
                self.audit.not_signed_in(connection, CERTIFICATE, "", str(error))
                self.metrics.bad_frames[self.name, "certificate"] += 1
                self.log.warning("closing", peer=connection.peer, reason=str(error))
                connection.abort(str(error))
        self.connections.add(connection)
        if connection.mechanism == CERTIFICATE and not connection.closing:
            # From here on it is as one that has signed in otherwise.
            self._doorway.signed_in(connection)
        self._quiet_since[connection] = self.loop.time()
        self.metrics.connections[self.name] = len(self.connections)

    def quiet_since_s(self, connection: Connection) -> float:
        """Since when nothing was sent either way, by the loop's clock, as far as the last sweep knows."""
        return self._quiet_since.get(connection, self._swept_s)

    def lost(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self._quiet_since.pop(connection, None)
        self._doorway.left(connection)
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

    def release(self, connection: Connection, size: int) -> None:
        """Give memory for frames back; lets connections that wait for it go on."""
        if size:
            self.memory.release(connection.address, size)
            if self._starved:
                self.loop.call_soon(self._feed)

    def _feed(self) -> None:
        waiting, self._starved = self._starved, deque()
        for connection in waiting:
            if not connection.closed:
                connection.fed()

    def signed_in(self, connection: Connection) -> None:
        """A client has signed in."""
        self._doorway.signed_in(connection)

    def may_write(self, connection: Connection) -> bool:
        """Whether the client may write to anything."""
        return self._may_write is None or self._may_write(connection.identity)

    def starve(self, connection: Connection) -> None:
        """Wake `connection` when memory for frames comes free."""
        self._starved.append(connection)

    # Time limits

    def _sweep(self) -> None:
        """Close what has been silent or slow too long. Every second; cheap per connection, but they may be many."""
        now_s = self.loop.time()
        elapsed_s = now_s - self._swept_s
        if elapsed_s > _LATE_SWEEP_S:
            elapsed_s = _SWEEP_MS / 1000
        self._swept_s = now_s
        self._sweep_some(_Sweep(iter(list(self.connections)), now_s, elapsed_s))

    def _sweep_some(self, sweep: _Sweep) -> None:
        """Look at as many as a turn of the loop has time for, and at the others in the next."""
        clock_s = self.turns.clock_s
        until_s = clock_s() + SLICE_S
        for number, connection in enumerate(sweep.left, 1):
            if not connection.closed:
                self._look_at(connection, sweep)
            if sweep.closed >= _CLOSED_MAX:
                break
            if number % _SWEPT_AT_A_TIME == 0 and clock_s() >= until_s:
                self._sweep_timer = self.loop.call_later(0, self._sweep_some, sweep)
                return
        if sweep.closed > _CLOSED_NAMED_MAX:
            self.log.warning("closing others too", count=sweep.closed - _CLOSED_NAMED_MAX, reason="as before")
        self._feed()
        self._sweep_timer = self.loop.call_at(sweep.began_s + _SWEEP_MS / 1000, self._sweep)

    def _look_at(self, connection: Connection, sweep: _Sweep) -> None:
        if connection.moved:
            connection.moved = False
            self._quiet_since[connection] = sweep.began_s
        reason = self._overdue(connection, sweep.began_s, sweep.elapsed_s)
        if not reason:
            return
        if reason != "idle":
            if connection.is_stranger:
                self.audit.refused(connection.identity.host, reason, connection)
            self.metrics.bad_frames[self.name, "timeout"] += 1
            sweep.closed += 1
            if sweep.closed <= _CLOSED_NAMED_MAX:
                self.log.warning("closing", peer=connection.peer, reason=reason)
        connection.abort(reason)

    def _overdue(self, connection: Connection, now: float, elapsed_s: float) -> str:
        limits = self.limits
        if connection.deadline_s is not None and now > connection.deadline_s:
            return "its client did not sign in in time"
        quiet_ms = (now - self.quiet_since_s(connection)) * 1000
        if connection.is_too_slow(elapsed_s):
            return f"a request of {connection.frame_length} bytes came too slowly"
        if connection.frame_length:
            return ""
        if connection.mid_frame and quiet_ms > limits.frame_timeout_ms:
            return "it stopped in the middle of a request"
        if (
            not connection.request_count
            and (now - connection.opened_s) * 1000 > limits.first_request_timeout_ms
        ):
            return "no request came"
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
    "NotCertified",
    "Response",
    "Signal",
]
