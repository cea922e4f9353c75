"""The gRPC service `penstock.v1.Admin`: every call goes on to the active controller.

What a method takes of the cluster is asked here (`guard.RIGHTS`); the controllers believe the gateway, and are told who
asks. What a request comes to travels in the response, as the controller says it.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import CLUSTER_NAME
from penstock_gateway.relay.relay import Relay
from penstock_gateway.rpc.guard import RIGHTS, identity_of
from penstock_proto.v1 import admin_pb2_grpc
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.controller_client import ControllerClient

LOOK_TIMEOUT_MS: Final = 10_000
CHANGE_TIMEOUT_MS: Final = 15_000
PLAN_TIMEOUT_MS: Final = 30_000
"""A large cluster's plan takes a while."""
_MARGIN_MS: Final = 250
"""So long before the client's deadline we say what is wrong, so that it hears it."""

_STATUS: Final = {
    ErrorCode.REQUEST_TIMED_OUT: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.UNSUPPORTED_VERSION: grpc.StatusCode.UNIMPLEMENTED,
}
"""By what a call of the controllers comes to; else INTERNAL."""

Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(admin_pb2_grpc.AdminServicer):
    """Answers operators."""

    def __init__(self, relay: Relay, controllers: ControllerClient) -> None:
        self._relay = relay
        self._controllers = controllers

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server."""
        admin_pb2_grpc.add_AdminServicer_to_server(self, server)

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:  # noqa: N802
        """What an operation would do."""
        await self._check("Plan", context)
        response: pb.PlanResponse = await self._pass_on(
            "Plan", "PlanOperation", request, context, PLAN_TIMEOUT_MS
        )
        return response

    async def StartOperation(  # noqa: N802
        self, request: pb.StartOperationRequest, context: Context
    ) -> pb.StartOperationResponse:
        """Plans and begins, in the name of who calls."""
        await self._check("StartOperation", context)
        request.principal = str(identity_of(context).principal)
        response: pb.StartOperationResponse = await self._pass_on(
            "StartOperation", "StartOperation", request, context, PLAN_TIMEOUT_MS
        )
        return response

    async def ControlOperation(  # noqa: N802
        self, request: pb.ControlOperationRequest, context: Context
    ) -> pb.ControlOperationResponse:
        """Pauses, resumes, cancels, throttles, in the name of who calls."""
        await self._check("ControlOperation", context)
        request.principal = str(identity_of(context).principal)
        response: pb.ControlOperationResponse = await self._pass_on(
            "ControlOperation", "ControlOperation", request, context, CHANGE_TIMEOUT_MS
        )
        return response

    async def DescribeOperations(  # noqa: N802
        self, request: pb.DescribeOperationsRequest, context: Context
    ) -> pb.DescribeOperationsResponse:
        """Operations and how far they are."""
        await self._check("DescribeOperations", context)
        response: pb.DescribeOperationsResponse = await self._pass_on(
            "DescribeOperations", "DescribeOperations", request, context, LOOK_TIMEOUT_MS
        )
        return response

    async def DescribeNodes(  # noqa: N802
        self, request: pb.DescribeNodesRequest, context: Context
    ) -> pb.DescribeNodesResponse:
        """Storage nodes with their condition and room."""
        await self._check("DescribeNodes", context)
        response: pb.DescribeNodesResponse = await self._pass_on(
            "DescribeNodes", "DescribeNodes", request, context, LOOK_TIMEOUT_MS
        )
        return response

    async def _check(self, method: str, context: Context) -> None:
        """Aborts with PERMISSION_DENIED unless the caller may."""
        right = RIGHTS[f"/penstock.v1.Admin/{method}"]
        assert right is not None
        who = identity_of(context)
        if not self._relay.authorizer.authorize(who, right.operation, right.kind, CLUSTER_NAME):
            await self._abort(
                method,
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"{who.principal} has no right to {right.operation.name} the cluster; grant it by an ACL",
            )

    async def _pass_on(self, name: str, method: str, request: Any, context: Context, most_ms: int) -> Any:
        left_s = context.time_remaining()
        timeout_ms = most_ms if left_s is None else min(most_ms, max(1, int(left_s * 1000) - _MARGIN_MS))
        try:
            response = await self._controllers.call(method, request, timeout_ms)
        except PenstockError as error:
            await self._abort(name, context, _STATUS.get(error.code, grpc.StatusCode.INTERNAL), _words(error))
            raise AssertionError("abort raises") from None
        self._count(name, "OK")
        return response

    async def _abort(self, method: str, context: Context, status: grpc.StatusCode, message: str) -> None:
        self._count(method, status.name)
        await context.abort(status, message)

    def _count(self, method: str, status: str) -> None:
        self._relay.metrics.native_calls[method, status] += 1


def _words(error: PenstockError) -> str:
    if error.code is ErrorCode.REQUEST_TIMED_OUT:
        return f"no active controller answers ({error.message}); try again"
    if error.code is ErrorCode.UNSUPPORTED_VERSION:
        return (
            f"the controllers' build is older than this gateway's and knows no operations ({error.message})"
        )
    return error.message
