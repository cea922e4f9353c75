"""What one listener gives its clients at most."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock_core.limits import KAFKA_FRAME_BYTES_MAX
from penstock_core.security.sasl_session import AUTHENTICATION_MS_MAX
from penstock_frontend.listener.admission import ConnectionCaps
from penstock_kafka.wire.primitives import REQUEST_ITEMS_MAX


@dataclass(frozen=True)
class ListenerLimits:
    """Bounds of one listener; the settings' defaults."""

    frame_bytes_max: int = KAFKA_FRAME_BYTES_MAX
    inflight_requests_max: int = 256
    """Unanswered requests of one connection; then its reading stops."""
    inflight_joins_max: int = 5
    """Of them JoinGroups, which wait for others; a client sends one and waits for its answer."""
    inflight_bytes_max: int = 32 * 1024 * 1024
    """Bytes of unanswered requests of one connection; one request may exceed it."""
    frames_bytes_max: int = 512 * 1024 * 1024
    """Bytes of large or unanswered requests of all connections together, a quarter of it for one address."""
    write_buffer_bytes_max: int = 1024 * 1024
    """Unsent response bytes of one connection; then no more of its requests are handled."""
    request_items_max: int = REQUEST_ITEMS_MAX
    """Items of all arrays of one request but Produce and Fetch."""
    caps: ConnectionCaps = field(default_factory=ConnectionCaps)
    first_request_timeout_ms: int = 10_000
    """From a connection's first byte to its first whole request; the PROXY header is due in the same time."""
    unauthenticated_frame_bytes_max: int = 64 * 1024
    """Largest request of a connection that has not signed in, where it has to."""
    authentication_timeout_ms: int = AUTHENTICATION_MS_MAX
    """From the accept until a client has signed in, where it has to."""
    handshake_timeout_ms: int = 10_000
    """For a TLS handshake, from the client's first bytes."""
    frame_timeout_ms: int = 10_000
    """How far a request that comes in pieces may fall behind FRAME_BYTES_PER_S."""
    idle_timeout_ms: int = 600_000
    """Silence on both sides after which a connection is closed (connections.max.idle.ms)."""
