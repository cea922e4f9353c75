"""Who asks, and whether they may. Every request goes past an `Authorizer`.

Today everybody is ANONYMOUS and may do everything; the calls stand where they will stand
once there are users and ACLs, so that no path forgets to ask.
"""

from __future__ import annotations

from typing import Protocol

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.acl import CLUSTER_NAME, ResourceType
from penstock_core.security.acl import AclOperation as Operation
from penstock_core.security.principal import ANONYMOUS, Principal

__all__ = [
    "ANONYMOUS",
    "CLUSTER_NAME",
    "AllowAll",
    "Authorizer",
    "Operation",
    "Principal",
    "ResourceType",
    "require_cluster",
]


class Authorizer(Protocol):
    """Decides on the event loop, from memory: it must not block."""

    def authorize(
        self, principal: Principal, operation: Operation, resource_type: ResourceType, resource_name: str
    ) -> bool:
        """Whether `principal` may."""
        ...


def require_cluster(authorizer: Authorizer, principal: Principal, operation: Operation) -> None:
    """Raises CLUSTER_AUTHORIZATION_FAILED unless the principal may do that to the cluster."""
    if not authorizer.authorize(principal, operation, ResourceType.CLUSTER, CLUSTER_NAME):
        raise PenstockError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"no right to {operation.name} the cluster"
        )


class AllowAll:
    """The authorizer of a cluster without users."""

    def authorize(
        self, principal: Principal, operation: Operation, resource_type: ResourceType, resource_name: str
    ) -> bool:
        """Always True."""
        return True
