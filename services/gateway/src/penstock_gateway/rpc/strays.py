"""What a storage node has set aside: the node itself is asked, for nobody else knows.

Failures travel as Error with Kafka's codes, as what a request comes to does.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId
from penstock_gateway.relay.relay import Relay
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.security.methods import STORAGE_NODE

LOOK_TIMEOUT_S: Final = 10.0
DELETE_TIMEOUT_S: Final = 60.0
"""Removing a large log takes a while."""
_MARGIN_S: Final = 0.25

R = TypeVar("R", pb.DescribeStraysResponse, pb.DeleteStrayResponse)


async def describe_strays(
    relay: Relay, request: pb.DescribeStraysRequest, left_s: float | None
) -> pb.DescribeStraysResponse:
    """All that the node has set aside. `left_s`: of the client's deadline."""
    return await _ask(relay, "DescribeStrays", request, pb.DescribeStraysResponse, LOOK_TIMEOUT_S, left_s)


async def delete_stray(
    relay: Relay, request: pb.DeleteStrayRequest, left_s: float | None
) -> pb.DeleteStrayResponse:
    """Deletes one of them."""
    return await _ask(relay, "DeleteStray", request, pb.DeleteStrayResponse, DELETE_TIMEOUT_S, left_s)


async def _ask(
    relay: Relay,
    method: str,
    request: pb.DescribeStraysRequest | pb.DeleteStrayRequest,
    response_type: type[R],
    most_s: float,
    left_s: float | None,
) -> R:
    node_id = NodeId(request.node_id)
    node = relay.metadata.image.nodes.get(node_id)
    if node is None:
        return _failed(
            response_type,
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"no storage node has the id {node_id}; see `penstock node list`",
        )
    call: Any = relay.channels.get(node.grpc.address, STORAGE_NODE).unary_unary(
        f"/penstock.v1.Storage/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=response_type.FromString,
    )
    timeout_s = most_s if left_s is None else min(most_s, max(0.001, left_s - _MARGIN_S))
    try:
        response: R = await call(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return _failed(
                response_type,
                ErrorCode.UNSUPPORTED_VERSION,
                f"storage node {node_id} is of an older build and does not tell what it has set aside",
            )
        return _failed(
            response_type,
            ErrorCode.REQUEST_TIMED_OUT,
            f"storage node {node_id} at {node.grpc.address} does not answer ({error.code().name}); "
            "is it running? see `penstock node list`",
        )
    return response


def _failed(response_type: type[R], code: ErrorCode, message: str) -> R:
    return response_type(error=common_pb2.Error(code=code, message=message))
