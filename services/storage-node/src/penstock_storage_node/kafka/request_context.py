"""Who a Kafka request comes from, and what the way back needs to know of its answer."""

from __future__ import annotations

from penstock_core.errors import REFRESH_METADATA
from penstock_frontend.audit import ASKING, Asking
from penstock_frontend.authorizer import NOBODY, Authorizer, Identity, Operation, ResourceType
from penstock_kafka.producer_retries import SENT_AGAIN

ROUTING_ERRORS = SENT_AGAIN | REFRESH_METADATA
"""Errors that concern whoever routed the request: to look at its metadata again, or to route no later
batch of the producer past this one."""


class RequestContext:
    """One per request."""

    __slots__ = (
        "_denied",
        "acks_all",
        "begun_s",
        "client_id",
        "concerns_router",
        "identity",
        "listener",
        "peer",
    )

    def __init__(
        self, identity: Identity = NOBODY, client_id: str | None = None, peer: str = "", listener: str = ""
    ) -> None:
        """`peer` is for logs; `listener` the node's own by which it came, "" for a relayed request."""
        self.listener = listener
        self.identity = identity
        self.client_id = client_id
        self.peer = peer
        self.concerns_router = False
        """Set when the answer holds one of `ROUTING_ERRORS`."""
        self.acks_all = False
        """Set when something was appended whose answer waits for all acks."""
        self.begun_s = 0.0
        """When it came, by the node's clock; 0: when it is handled."""
        self._denied: set[tuple[int, int, str]] | None = None

    @property
    def host(self) -> str:
        """The client's address."""
        return self.identity.host

    def note(self, code: int) -> None:
        """Take note of an error that is answered."""
        if code in ROUTING_ERRORS:
            self.concerns_router = True

    def note_denied(
        self, authorizer: Authorizer, operation: Operation, kind: ResourceType, name: str
    ) -> None:
        """Tell of a denial, once for all that the request has to do with the thing."""
        denied = self._denied
        if denied is None:
            denied = self._denied = set()
        if (key := (operation, kind, name)) not in denied:
            denied.add(key)
            if not self.listener:  # relayed: no connection of ours says who asks
                ASKING.set(Asking(self.identity, self.listener, self.client_id))
            authorizer.denied(self.identity, operation, kind, name)
