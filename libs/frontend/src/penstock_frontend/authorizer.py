"""Who asks, and whether they may. Every request goes past an `Authorizer`, and so does every part of one.

What a question is about: operation, type and name of a resource, as in Kafka's ACLs
(org.apache.kafka.server.authorizer.Authorizer). Who is denied something that was asked for by name is
told to `on_denied`, once for each thing of a request; what a listing leaves out is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.acl import CLUSTER_NAME, OPERATIONS_OF, ResourceType
from penstock_core.security.acl import AclOperation as Operation
from penstock_core.security.principal import ANONYMOUS, NOBODY, Identity, Principal, client_identity

__all__ = [
    "ANONYMOUS",
    "CLUSTER_NAME",
    "NOBODY",
    "AllowAll",
    "Authorizer",
    "Identity",
    "OnDenied",
    "Operation",
    "Principal",
    "ResourceType",
    "client_identity",
    "may_create_topic",
    "require_cluster",
]

OnDenied = Callable[[Identity, Operation, ResourceType, str], None]
"""Told of each thing that was denied: who asked, for what, of which resource."""


class Authorizer(Protocol):
    """Decides on the event loop, from memory: it must not block."""

    @property
    def is_enabled(self) -> bool:
        """Whether it may ever say no: without, whole requests need not be looked through."""
        ...

    @property
    def version(self) -> object:
        """Another object whenever answers may be others than before."""
        ...

    def authorize(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether `who` may; a denial is told to `on_denied`."""
        ...

    def allows(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> bool:
        """As `authorize`, but nobody is told: for what may be allowed another way, and for listings."""
        ...

    def denied(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> None:
        """Tell `on_denied` of what `allows` did not allow."""
        ...

    def authorize_by_resource_type(self, who: Identity, operation: Operation, kind: ResourceType) -> bool:
        """Whether there may be a resource of that type with which `who` may do that (KIP-679)."""
        ...

    def authorized_operations(self, who: Identity, kind: ResourceType, name: str) -> int:
        """What `who` may do with a resource, as the bits of `*_authorized_operations`."""
        ...

    def permitted(
        self, who: Identity, operation: Operation, kind: ResourceType, names: Iterable[str]
    ) -> list[str]:
        """Those of `names` with which `who` may do that, in their order."""
        ...


def require_cluster(authorizer: Authorizer, who: Identity, operation: Operation) -> None:
    """Raises CLUSTER_AUTHORIZATION_FAILED unless `who` may do that to the cluster."""
    if not authorizer.authorize(who, operation, ResourceType.CLUSTER, CLUSTER_NAME):
        raise PenstockError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"{who.principal} has no right to {operation.name} the cluster",
        )


def may_create_topic(authorizer: Authorizer, who: Identity, topic: str) -> bool:
    """Whether `who` may make a topic: any, or one of that name (Kafka: ControllerApis.createTopics)."""
    return authorizer.allows(
        who, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME
    ) or authorizer.authorize(who, Operation.CREATE, ResourceType.TOPIC, topic)


class AllowAll:
    """The authorizer of a cluster without rights: everybody may do everything."""

    is_enabled = False
    version: object = None

    def authorize(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Always True."""
        return True

    def allows(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Always True."""
        return True

    def denied(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> None:
        """Nothing ever is."""

    def authorize_by_resource_type(self, who: Identity, operation: Operation, kind: ResourceType) -> bool:
        """Always True."""
        return True

    def authorized_operations(self, who: Identity, kind: ResourceType, name: str) -> int:
        """All that there are for the type (Kafka: AuthHelper.authorizedOperations)."""
        return OPERATIONS_OF[kind]

    def permitted(
        self, who: Identity, operation: Operation, kind: ResourceType, names: Iterable[str]
    ) -> list[str]:
        """All of them."""
        return list(names)
