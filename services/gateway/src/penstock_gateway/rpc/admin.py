"""The gRPC service `penstock.v1.Admin`: every call goes on to the active controller.

What a method takes of the cluster is asked here (`guard.RIGHTS`); the controllers believe the gateway, and are told who
asks. What a request comes to travels in the response, as the controller says it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import CLUSTER_NAME
from penstock_gateway.relay.relay import Relay
from penstock_gateway.rpc.explain import Explainer
from penstock_gateway.rpc.export import export
from penstock_gateway.rpc.guard import RIGHTS, identity_of
from penstock_gateway.rpc.process import described
from penstock_gateway.rpc.strays import delete_stray, describe_strays
from penstock_proto.v1 import admin_pb2_grpc
from penstock_proto.v1 import controller_pb2 as controller_pb
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.self_description import SelfDescription
from penstock_runtime.turns import LoopTurns

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

R = TypeVar("R")
Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(admin_pb2_grpc.AdminServicer):
    """Answers operators."""

    def __init__(
        self,
        relay: Relay,
        controllers: ControllerClient,
        turns: LoopTurns,
        wall_ms: Callable[[], int] = lambda: 0,
        itself: SelfDescription | None = None,
    ) -> None:
        """By `wall_ms` exports are dated, in ms since 1970."""
        self._relay = relay
        self._wall_ms = wall_ms
        self._itself = itself
        self._controllers = controllers
        self._explainer = Explainer(controllers, turns)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server."""
        admin_pb2_grpc.add_AdminServicer_to_server(self, server)

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:  # noqa: N802
        """What an operation would do."""
        return await self._ask("Plan", request, pb.PlanResponse, context, PLAN_TIMEOUT_MS, to="PlanOperation")

    async def StartOperation(  # noqa: N802
        self, request: pb.StartOperationRequest, context: Context
    ) -> pb.StartOperationResponse:
        """Plans and begins, in the name of who calls."""
        return await self._ask("StartOperation", request, pb.StartOperationResponse, context, PLAN_TIMEOUT_MS)

    async def ControlOperation(  # noqa: N802
        self, request: pb.ControlOperationRequest, context: Context
    ) -> pb.ControlOperationResponse:
        """Pauses, resumes, cancels, throttles, in the name of who calls."""
        return await self._ask(
            "ControlOperation", request, pb.ControlOperationResponse, context, CHANGE_TIMEOUT_MS
        )

    async def ExecuteOperation(  # noqa: N802
        self, request: pb.ExecuteOperationRequest, context: Context
    ) -> pb.ExecuteOperationResponse:
        """The next process to restart, for who carries out a rolling operation."""
        return await self._ask(
            "ExecuteOperation", request, pb.ExecuteOperationResponse, context, CHANGE_TIMEOUT_MS
        )

    async def DescribeOperations(  # noqa: N802
        self, request: pb.DescribeOperationsRequest, context: Context
    ) -> pb.DescribeOperationsResponse:
        """Operations and how far they are."""
        return await self._ask(
            "DescribeOperations", request, pb.DescribeOperationsResponse, context, LOOK_TIMEOUT_MS
        )

    async def DescribeNodes(  # noqa: N802
        self, request: pb.DescribeNodesRequest, context: Context
    ) -> pb.DescribeNodesResponse:
        """Storage nodes with their condition and room."""
        return await self._ask("DescribeNodes", request, pb.DescribeNodesResponse, context, LOOK_TIMEOUT_MS)

    async def CheckCluster(  # noqa: N802
        self, request: pb.CheckClusterRequest, context: Context
    ) -> pb.CheckClusterResponse:
        """What is not as it should be."""
        return await self._ask("CheckCluster", request, pb.CheckClusterResponse, context, LOOK_TIMEOUT_MS)

    async def DescribeCapacity(  # noqa: N802
        self, request: pb.DescribeCapacityRequest, context: Context
    ) -> pb.DescribeCapacityResponse:
        """Room, growth and load of storage nodes."""
        return await self._ask(
            "DescribeCapacity", request, pb.DescribeCapacityResponse, context, LOOK_TIMEOUT_MS
        )

    async def RecoverTopics(  # noqa: N802
        self, request: pb.RecoverTopicsRequest, context: Context
    ) -> pb.RecoverTopicsResponse:
        """Takes topics that nodes have and the metadata do not know, in the name of who calls."""
        return await self._ask("RecoverTopics", request, pb.RecoverTopicsResponse, context, PLAN_TIMEOUT_MS)

    async def DescribeStrays(  # noqa: N802
        self, request: pb.DescribeStraysRequest, context: Context
    ) -> pb.DescribeStraysResponse:
        """What a storage node has set aside, as it says itself."""
        await self._check("DescribeStrays", context)
        response = await describe_strays(self._relay, request, context.time_remaining())
        self._count("DescribeStrays", "OK")
        return response

    async def DeleteStray(  # noqa: N802
        self, request: pb.DeleteStrayRequest, context: Context
    ) -> pb.DeleteStrayResponse:
        """Deletes a log that a storage node has set aside, in the name of who calls."""
        await self._check("DeleteStray", context)
        request.principal = str(identity_of(context).principal)
        response = await delete_stray(self._relay, request, context.time_remaining())
        self._count("DeleteStray", "OK")
        return response

    async def ExportMetadata(  # noqa: N802
        self, request: pb.ExportMetadataRequest, context: Context
    ) -> AsyncIterator[pb.ExportMetadataResponse]:
        """All metadata of one version, as this gateway knows them; no controller is asked."""
        await self._check("ExportMetadata", context)
        image = self._relay.metadata.image
        if not image.cluster_id:
            await self._abort(
                "ExportMetadata", context, grpc.StatusCode.UNAVAILABLE, "no metadata are known yet; try again"
            )
        term = self._controllers.heard_term
        async for data in export(image, term=term, time_ms=self._wall_ms(), secrets=request.secrets):
            yield pb.ExportMetadataResponse(data=data)
        self._count("ExportMetadata", "OK")

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:  # noqa: N802
        """What is now, and how it came to that: all controllers are asked."""
        await self._check("Explain", context)
        image = self._relay.metadata.image
        if not image.cluster_id:
            await self._abort(
                "Explain", context, grpc.StatusCode.UNAVAILABLE, "no metadata are known yet; try again"
            )
        response = await self._explainer.explain(request, image, self._wall_ms())
        self._count("Explain", "OK")
        return response

    async def DescribeQuorum(  # noqa: N802
        self, request: controller_pb.DescribeQuorumRequest, context: Context
    ) -> controller_pb.DescribeQuorumResponse:
        """The Raft quorum."""
        return await self._ask(
            "DescribeQuorum", request, controller_pb.DescribeQuorumResponse, context, LOOK_TIMEOUT_MS
        )

    async def DescribeProcess(  # noqa: N802
        self, request: pb.DescribeProcessRequest, context: Context
    ) -> AsyncIterator[pb.DescribeProcessResponse]:
        """What this gateway tells of itself; or, by name, a controller or a storage node."""
        method = "DescribeProcess"
        await self._check(method, context)
        if request.process or self._itself is None:
            pieces = described(self._relay, self._controllers, request)
        else:
            pieces = self._itself.describe(request)
        try:
            async for piece in pieces:
                yield piece
        except PenstockError as error:
            status = _STATUS.get(error.code, grpc.StatusCode.INVALID_ARGUMENT)
            await self._abort(method, context, status, error.message)
        self._count(method, "OK")

    async def _ask(
        self,
        method: str,
        request: Any,
        response_type: type[R],
        context: Context,
        most_ms: int,
        *,
        to: str | None = None,
    ) -> R:
        """The active controller's answer. Aborts with PERMISSION_DENIED unless the caller may."""
        await self._check(method, context)
        if "principal" in type(request).DESCRIPTOR.fields_by_name:
            request.principal = str(identity_of(context).principal)
        left_s = context.time_remaining()
        timeout_ms = most_ms if left_s is None else min(most_ms, max(1, int(left_s * 1000) - _MARGIN_MS))
        try:
            response = await self._controllers.call(to or method, request, timeout_ms)
        except PenstockError as error:
            await self._abort(
                method, context, _STATUS.get(error.code, grpc.StatusCode.INTERNAL), _words(error)
            )
            raise AssertionError("abort raises") from None
        self._count(method, "OK")
        assert isinstance(response, response_type)
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
