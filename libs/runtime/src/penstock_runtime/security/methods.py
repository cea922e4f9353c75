"""Which role may call which method of our internal services. What is not here is refused.

The clients' API (`CLIENT_SERVICES`) has a port of its own without this table: whoever calls there is a client,
and what he may do is asked of the authorizer.
"""

from __future__ import annotations

from typing import Final

CONTROLLER: Final = "controller"
STORAGE_NODE: Final = "storage-node"
GATEWAY: Final = "gateway"
ADMIN: Final = "admin"

CLIENT_SERVICES: Final = frozenset({"penstock.v1.Gateway", "penstock.v1.Admin"})

_NODE = frozenset({STORAGE_NODE})
_GATEWAY = frozenset({GATEWAY})
_ADMIN = frozenset({ADMIN})
_FOLLOWERS = frozenset({STORAGE_NODE, GATEWAY, ADMIN})
"""Who follows the metadata or carries a client's wish to the controllers."""

METHOD_ROLES: Final[dict[str, frozenset[str]]] = {
    "/penstock.v1.Controller/RegisterNode": _NODE,
    "/penstock.v1.Controller/NodeSession": _NODE,
    "/penstock.v1.Controller/AlterPartitions": _NODE,
    "/penstock.v1.Controller/RegisterGateway": _GATEWAY,
    "/penstock.v1.Controller/GatewaySession": _GATEWAY,
    "/penstock.v1.Controller/WatchMetadata": _FOLLOWERS,
    # Controllers ask one another which level they understand.
    "/penstock.v1.Controller/DescribeQuorum": _FOLLOWERS | {CONTROLLER},
    "/penstock.v1.Controller/AllocateProducerIds": _FOLLOWERS,
    "/penstock.v1.Controller/CreateTopics": _FOLLOWERS,
    "/penstock.v1.Controller/DeleteTopics": _FOLLOWERS,
    "/penstock.v1.Controller/CreatePartitions": _FOLLOWERS,
    "/penstock.v1.Controller/AlterConfigs": _FOLLOWERS,
    "/penstock.v1.Controller/ElectLeaders": _FOLLOWERS,
    "/penstock.v1.Controller/AlterReassignments": _FOLLOWERS,
    "/penstock.v1.Controller/UnregisterNode": _FOLLOWERS,
    "/penstock.v1.Controller/UpdateFeatures": _FOLLOWERS,
    "/penstock.v1.Controller/AlterUserCredentials": _FOLLOWERS,
    "/penstock.v1.Controller/AlterAcls": _FOLLOWERS,
    "/penstock.v1.Controller/AlterQuotas": _FOLLOWERS,
    "/penstock.v1.Controller/PlanOperation": _FOLLOWERS,
    "/penstock.v1.Controller/StartOperation": _FOLLOWERS,
    "/penstock.v1.Controller/ControlOperation": _FOLLOWERS,
    "/penstock.v1.Controller/DescribeOperations": _FOLLOWERS,
    "/penstock.v1.Controller/DescribeNodes": _FOLLOWERS,
    "/penstock.v1.Controller/ExecuteOperation": _FOLLOWERS,
    "/penstock.v1.Controller/CheckCluster": _FOLLOWERS,
    "/penstock.v1.Controller/DescribeCapacity": _FOLLOWERS,
    "/penstock.v1.Controller/ReadEvents": _FOLLOWERS,
    "/penstock.v1.Controller/RecoverTopics": _FOLLOWERS,
    "/penstock.v1.Controller/DescribeProcess": _GATEWAY,
    # Nobody's client comes this way: an operator at the controllers does.
    "/penstock.v1.Controller/ReplaceController": _ADMIN,
    "/penstock.v1.Controller/AlterRefusedCertificates": _ADMIN,
    "/penstock.v1.Storage/Replicate": _NODE,
    "/penstock.v1.Storage/Positions": _NODE,
    "/penstock.v1.Storage/Transactions": _NODE,
    "/penstock.v1.Storage/Forward": _GATEWAY,
    "/penstock.v1.Storage/FetchRange": _GATEWAY,
    "/penstock.v1.Storage/DescribeStrays": _GATEWAY,
    "/penstock.v1.Storage/DeleteStray": _GATEWAY,
    "/penstock.v1.Storage/DescribeProcess": _GATEWAY,
    "/penstock.v1.Storage/SizeRanges": _GATEWAY,
    "/penstock.v1.Storage/BeginStage": _GATEWAY,
    "/penstock.v1.Storage/CommitUnit": _GATEWAY,
    "/penstock.v1.Storage/AbortStage": _GATEWAY,
    "/penstock.v1.Storage/DescribeSink": _GATEWAY,
    "/penstock.v1.Storage/ListSinks": _GATEWAY,
}
