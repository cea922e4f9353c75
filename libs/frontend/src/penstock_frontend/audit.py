"""What Kafka listeners and authorizers tell the audit log: with whom it happened, and in which request.

An authorizer knows who asks, not by which connection. `ASKING` says that: connections set it before they hand a request
over, so it is right in whatever that request runs, tasks included; where the identity in it is another one it
is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

from penstock_core.security.acl import AclOperation, ResourceType
from penstock_core.security.audit import ACCESS, DENIED, LOGIN, REFUSED
from penstock_core.security.principal import Identity, Principal
from penstock_kafka.wire.apis import SPECS
from penstock_runtime.audit import Audit

SUCCESS: Final = "success"
FAILURE: Final = "failure"
_DATA: Final = frozenset({AclOperation.READ, AclOperation.WRITE})
_DATA_KINDS: Final = frozenset({ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID})


class Visitor(Protocol):
    """What is told of a connection."""

    @property
    def listener(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def identity(self) -> Identity: ...

    @property
    def client_id(self) -> str | None: ...

    @property
    def mechanism(self) -> str: ...


class AskingVisitor(Visitor, Protocol):
    """One whose requests ask for rights."""

    def was_denied(self) -> None:
        """Something was denied that its request asked for."""


class Asking(NamedTuple):
    """In which request something is asked for."""

    identity: Identity
    listener: str
    client_id: str | None
    mechanism: str = ""
    api: str = ""


ASKING: Final[ContextVar[Asking | tuple[AskingVisitor, int] | None]] = ContextVar("asking", default=None)
"""The request that is handled now: by a connection and the key of its API, or by what is known of it."""


def _asking(who: Identity) -> dict[str, object]:
    """What is known of the request in which `who` asks."""
    found = ASKING.get()
    if found is None:
        return {}
    if not isinstance(found, Asking):
        connection, api_key = found
        spec = SPECS.get(api_key)
        found = Asking(
            connection.identity,
            connection.listener,
            connection.client_id,
            connection.mechanism,
            "" if spec is None else spec.name,
        )
    if found.identity != who:
        return {}
    return {
        "mechanism": found.mechanism,
        "listener": found.listener,
        "client_id": found.client_id,
        "api": found.api,
    }


def tell_connection_of_denial(who: Identity) -> None:
    """Tell the connection whose request it is, if it is one of ours."""
    found = ASKING.get()
    if found is not None and not isinstance(found, Asking) and found[0].identity == who:
        found[0].was_denied()


class RightsAudit:
    """Told of what an authorizer answers."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def denied(
        self, who: Identity, operation: AclOperation, kind: ResourceType, name: str, why: Callable[[], str]
    ) -> None:
        """Somebody was denied what he asked for; `why` finds the rule, if that is to be written."""
        self._audit.tell(
            {"event": DENIED, "outcome": "denied", **self._what(who, operation, kind, name)},
            lambda: {"rule": why()},
        )

    def allowed(self, who: Identity, operation: AclOperation, kind: ResourceType, name: str) -> None:
        """Somebody was allowed something; told of data only."""
        if operation in _DATA and kind in _DATA_KINDS:
            self._audit.tell(
                {"event": ACCESS, "outcome": "allowed", **self._what(who, operation, kind, name)}
            )

    @staticmethod
    def _what(who: Identity, operation: AclOperation, kind: ResourceType, name: str) -> dict[str, object]:
        return {
            "principal": str(who.principal),
            "address": who.host,
            **_asking(who),
            "operation": operation.name.lower(),
            "type": kind.name.lower(),
            "resource": name,
        }


class ListenerAudit:
    """Told of who comes to a listener."""

    def __init__(self, audit: Audit, listener: str) -> None:
        self._audit = audit
        self._listener = listener
        self.writes = audit.writes

    def signed_in(self, connection: Visitor, mechanism: str, *, again: bool = False) -> None:
        """A client has signed in."""
        self._audit.tell(
            {
                "event": LOGIN,
                "outcome": SUCCESS,
                "principal": str(connection.principal),
                "mechanism": mechanism,
                "address": connection.identity.host,
                "listener": self._listener,
                "client_id": connection.client_id,
                "again": again or None,
            }
        )

    def not_signed_in(self, connection: Visitor, mechanism: str, user: str, reason: str) -> None:
        """A client has tried to. `user` is what it said."""
        self._audit.tell(
            {
                "event": LOGIN,
                "outcome": FAILURE,
                "principal": f"User:{user}" if user else "",
                "mechanism": mechanism,
                "address": connection.identity.host,
                "listener": self._listener,
                "client_id": connection.client_id,
                "reason": reason,
            }
        )

    def refused(self, address: str, reason: str, connection: Visitor | None = None) -> None:
        """Somebody was turned away at the door, or for what he sent."""
        self._audit.tell(
            {
                "event": REFUSED,
                "outcome": "refused",
                "principal": "" if connection is None else str(connection.principal),
                "address": address,
                "listener": self._listener,
                "client_id": None if connection is None else connection.client_id,
                "reason": reason,
            }
        )
