"""Who asks, and whether they may. Every request goes past an `Authorizer`.

Today everybody is ANONYMOUS and may do everything; the calls stand where they will stand
once there are users and ACLs, so that no path forgets to ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from penstock_core.errors import ErrorCode, PenstockError


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a connection is, as Kafka writes it: `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")


class Operation(Enum):
    """What is asked for (Kafka: org.apache.kafka.common.acl.AclOperation)."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"


class ResourceType(Enum):
    """What it is asked of (Kafka: org.apache.kafka.common.resource.ResourceType)."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"


CLUSTER_NAME = "kafka-cluster"
"""Name of the one resource of type CLUSTER."""


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
