"""ACLs written at a controller, as a cluster's own command would."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from penstock.local.cluster import LocalCluster
from penstock_core.security.acl import (
    CLUSTER_NAME,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from penstock_proto.v1 import controller_pb2 as pb
from penstock_proto.v1 import controller_pb2_grpc, metadata_pb2


def acl(
    operation: AclOperation,
    kind: ResourceType,
    name: str = CLUSTER_NAME,
    *,
    prefixed: bool = False,
    principal: str = "User:ANONYMOUS",
    host: str = "*",
    deny: bool = False,
) -> metadata_pb2.AclRecord:
    """One entry."""
    return metadata_pb2.AclRecord(
        resource_type=kind,
        pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        resource_name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=Permission.DENY if deny else Permission.ALLOW,
    )


def exactly(entry: metadata_pb2.AclRecord) -> pb.AclFilter:
    """The filter that finds one entry."""
    return pb.AclFilter(
        resource_type=entry.resource_type,
        pattern_type=entry.pattern_type,
        resource_name=entry.resource_name,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission=entry.permission,
    )


def alter_acls(
    cluster: LocalCluster,
    add: Iterable[metadata_pb2.AclRecord] = (),
    remove: Iterable[metadata_pb2.AclRecord] = (),
) -> int:
    """Add and remove entries of a cluster with one controller; the metadata version that has them."""
    (controller,) = [m for m in cluster.state.members if m.role == "controller"]
    request = pb.AlterAclsRequest(add=add, remove=[exactly(e) for e in remove], principal="User:test")
    with grpc.insecure_channel(f"127.0.0.1:{controller.ports['grpc']}") as channel:
        response = controller_pb2_grpc.ControllerStub(channel).AlterAcls(request, timeout=30)
    errors = [response.error, *response.added, *(r.error for r in response.removed)]
    assert not any(e.code for e in errors), response
    return int(response.version)
