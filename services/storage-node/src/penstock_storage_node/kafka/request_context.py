"""Who a Kafka request comes from, and what the way back needs to know of its answer."""

from __future__ import annotations

from penstock_core.errors import REFRESH_METADATA
from penstock_frontend.authorizer import ANONYMOUS, Principal
from penstock_kafka.producer_retries import SENT_AGAIN

ROUTING_ERRORS = SENT_AGAIN | REFRESH_METADATA
"""Errors that concern whoever routed the request: to look at its metadata again, or to route no later
batch of the producer past this one."""


class RequestContext:
    """One per request."""

    __slots__ = ("client_id", "concerns_router", "host", "listener", "peer", "principal")

    def __init__(
        self,
        principal: Principal = ANONYMOUS,
        client_id: str | None = None,
        peer: str = "",
        host: str | None = None,
        listener: str = "",
    ) -> None:
        """`peer` is for logs; `host` the client's address alone, when `peer` has a port too;
        `listener` the node's own by which it came, "" for a relayed request."""
        self.listener = listener
        self.host = peer if host is None else host
        self.principal = principal
        self.client_id = client_id
        self.peer = peer
        self.concerns_router = False
        """Set when the answer holds one of `ROUTING_ERRORS`."""

    def note(self, code: int) -> None:
        """Take note of an error that is answered."""
        if code in ROUTING_ERRORS:
            self.concerns_router = True
