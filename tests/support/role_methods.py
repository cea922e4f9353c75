"""Methods between roles, as the contracts have them: which are streams, and which say who calls."""

from __future__ import annotations

from typing import Any, Final

from penstock_proto.v1 import controller_pb2, storage_pb2
from penstock_runtime.security.methods import GATEWAY, STORAGE_NODE

BOUND: Final = {
    "/penstock.v1.Controller/RegisterNode": STORAGE_NODE,
    "/penstock.v1.Controller/NodeSession": STORAGE_NODE,
    "/penstock.v1.Controller/AlterPartitions": STORAGE_NODE,
    "/penstock.v1.Controller/RegisterGateway": GATEWAY,
    "/penstock.v1.Controller/GatewaySession": GATEWAY,
    "/penstock.v1.Storage/Replicate": STORAGE_NODE,
    "/penstock.v1.Storage/Transactions": STORAGE_NODE,
}
"""Methods that say who calls: the name in the certificate has to be that one."""

SAYS_OF_ANOTHER: Final = {
    "/penstock.v1.Controller/UnregisterNode": "which node is to go",
    "/penstock.v1.Storage/Forward": "the node meant, and the gateway, which counts where certificates name none",
    "/penstock.v1.Storage/DescribeStrays": "the node meant",
    "/penstock.v1.Storage/DeleteStray": "the node meant",
}
"""Methods with an id of a node or gateway that is not the caller's, or that nothing follows from."""


def methods() -> dict[str, Any]:
    """Descriptors of all methods between roles, by full name."""
    return {
        f"/{service.full_name}/{method.name}": method
        for module in (controller_pb2, storage_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def names_a_caller(method: Any) -> bool:
    """Whether the request, or the first message of its stream, has an id that could be the caller's."""
    asked = method.input_type
    first = [field.message_type for field in asked.fields if field.name in ("hello", "open")]
    ids = {"node_id", "gateway_id"}
    return any(field.name in ids for message in (asked, *first) for field in message.fields)
