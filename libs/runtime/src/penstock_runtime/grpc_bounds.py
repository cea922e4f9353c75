"""What a gRPC port lets others take of it. Pure; `grpc_calls` and `grpc_port` see to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STREAMS_MAX: Final = 65_536
"""Calls of a connection where they are not bounded otherwise: far above a gateway's one stream to a node for each of
its client connections (20,000 by default). One that waits for another would never be served."""
_STREAMS_MORE: Final = 100
"""So that a call too many comes, and is answered, rather than waits in its channel and does not know for what."""


@dataclass(frozen=True)
class GrpcBounds:
    """The bounds of a port."""

    connections_max: int = 2_000
    connections_per_address_max: int = 500
    strangers_max: int = 75
    """Connections that have not made a call so far: who dials for himself calls at once."""
    calls_max: int = 5_000
    """Calls that are open at a time; 0: not bounded, because methods have bounds of their own."""
    calls_per_address_max: int = 400
    window_bytes: int = 4 * 1024 * 1024
    """What may be under way of a call, beside the rest of one message."""

    @property
    def streams_max(self) -> int:
        """Calls of a connection."""
        return min(STREAMS_MAX, self.calls_per_address_max + _STREAMS_MORE) if self.calls_max else STREAMS_MAX
