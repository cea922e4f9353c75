"""Who a Kafka request comes from, and what the way back needs to know of its answer."""

from __future__ import annotations

from penstock_core.errors import REFRESH_METADATA
from penstock_frontend.audit import ASKING, Asking
from penstock_frontend.authorizer import NOBODY, Authorizer, Identity, Operation, ResourceType
from penstock_kafka.producer_retries import SENT_AGAIN
from penstock_runtime.tracing import Span
from penstock_storage_node.groups.holdings import Owner, owner_of
from penstock_storage_node.kafka.client_stream import ClientStream

ROUTING_ERRORS = SENT_AGAIN | REFRESH_METADATA
"""Errors that concern whoever routed the request: to look at its metadata again, or to route no later
batch of the producer past this one."""


class RequestContext:
    """One per request."""

    __slots__ = (
        "_denied",
        "acks_all",
        "api",
        "begun_s",
        "client_id",
        "concerns_router",
        "errors",
        "flush_s",
        "handled_s",
        "identity",
        "is_long_poll",
        "listener",
        "local_s",
        "peer",
        "stream",
        "trace",
        "traceparent",
    )

    def __init__(
        self,
        identity: Identity = NOBODY,
        client_id: str | None = None,
        peer: str = "",
        listener: str = "",
        stream: ClientStream | None = None,
    ) -> None:
        """`peer` is for logs; `listener` the node's own by which it came, "" for a relayed request; `stream` what
        its answer goes back by, None for one that nobody can leave."""
        self.listener = listener
        self.stream = stream
        self.identity = identity
        self.client_id = client_id
        self.peer = peer
        self.concerns_router = False
        """Set when the answer holds one of `ROUTING_ERRORS`."""
        self.acks_all = False
        """Set when something was appended whose answer waits for all acks."""
        self.begun_s = 0.0
        """When it came, by the node's clock; 0: when it is handled."""
        self.errors: list[int] = []
        """Kafka's codes that its items are answered with, for counting."""
        self.handled_s = 0.0
        """When its handler began."""
        self.local_s = 0.0
        """When what it appended was written and flushed here as asked; 0: it did not wait for others."""
        self.flush_s = 0.0
        """How much of the time before that the flush took."""
        self.traceparent = ""
        """What whoever relays it says of its trace."""
        self.trace: Span | None = None
        """Of one that is traced: what this node does for it."""
        self.is_long_poll = False
        """Set when it waits for something to happen: records, members."""
        self.api = "other"
        """Its name among those that are timed apart."""
        self._denied: set[tuple[int, int, str]] | None = None

    @property
    def owner(self) -> Owner:
        """Whose the groups and members are that it makes."""
        return owner_of(self.identity)

    @property
    def host(self) -> str:
        """The client's address."""
        return self.identity.host

    def note(self, code: int) -> None:
        """Take note of an error that is answered."""
        self.errors.append(code)  # of a request for 100,000 partitions each may fail
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
