"""DescribeProcess: what a process tells of itself. This gateway tells its own; controllers and nodes are asked.

Other gateways are asked by who asks this one: they have the same service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_gateway.relay.relay import Relay
from penstock_proto.v1 import controller_pb2
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.security.methods import CONTROLLER, STORAGE_NODE

TIMEOUT_S: Final = 30.0
_WHO_TIMEOUT_S: Final = 2.0


async def described(
    relay: Relay, controllers: ControllerClient, request: pb.DescribeProcessRequest
) -> AsyncIterator[pb.DescribeProcessResponse]:
    """What that controller or node answers. Raises PenstockError where it is none, or does not answer."""
    kind, _, number = request.process.rpartition("-")
    if kind not in ("controller", "node") or not number.isdecimal():
        raise PenstockError(
            ErrorCode.INVALID_REQUEST,
            f"no process is called {request.process!r}; name it controller-ID or node-ID, or ask the gateway itself",
        )
    if kind == "node":
        node = relay.metadata.image.nodes.get(NodeId(int(number)))
        if node is None:
            raise PenstockError(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"no storage node has the id {number}; see `penstock node list`",
            )
        address, role, service = node.grpc.address, STORAGE_NODE, "Storage"
    else:
        address, role, service = await _address(controllers, int(number)), CONTROLLER, "Controller"
    call: Any = relay.channels.get(address, role).unary_stream(
        f"/penstock.v1.{service}/DescribeProcess",
        request_serializer=pb.DescribeProcessRequest.SerializeToString,
        response_deserializer=pb.DescribeProcessResponse.FromString,
    )
    try:
        async for piece in call(pb.DescribeProcessRequest(parts=request.parts), timeout=TIMEOUT_S):
            yield piece
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise PenstockError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{request.process} is of an older build and does not tell of itself",
            ) from None
        raise PenstockError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{request.process} at {address} does not answer ({error.code().name}); is it running?",
        ) from None


async def _address(controllers: ControllerClient, controller_id: int) -> str:
    """Of that controller, which says itself who it is."""
    for address in controllers.addresses:
        try:
            said = await controllers.stub(address).DescribeQuorum(
                controller_pb2.DescribeQuorumRequest(), timeout=_WHO_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            continue
        if said.controller_id == controller_id:
            return address
    raise PenstockError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"controller-{controller_id} does not answer; is it running? see `penstock controller list`",
    )


__all__ = ["described"]
