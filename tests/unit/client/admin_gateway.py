"""A gateway for tests of the command: the native API's cluster, and operations that a test says all of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from penstock_proto.v1 import admin_pb2_grpc, common_pb2, gateway_pb2, gateway_pb2_grpc, metadata_pb2
from penstock_proto.v1 import operations_pb2 as pb
from support.partial_gateway import PartialGateway

CLUSTER_ID = bytes(range(16))

RUNNING = metadata_pb2.OPERATION_STATE_RUNNING
DONE = metadata_pb2.OPERATION_STATE_DONE


class Gateway(PartialGateway):
    """Tells two nodes and a topic."""

    def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802 - the API's names
        response = gateway_pb2.DescribeResponse(cluster_id=CLUSTER_ID)
        for node_id in (1, 2):
            node = response.nodes.add(node_id=node_id, fenced=node_id == 2)
            node.grpc.host, node.grpc.port = "127.0.0.1", 5000 + node_id
        topic = response.topics.add(name="t")
        topic.partitions.add(partition=0, leader=1, replicas=[1, 2], isr=[1])
        topic.partitions.add(partition=1, leader=-1, replicas=[2, 1])
        return response

    def Produce(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    ListOffsets = Authenticate = FetchRange = Produce  # type: ignore[assignment]


class Admin(admin_pb2_grpc.AdminServicer):
    """Plans what it is told, begins what no gate stops, and lets an operation go on by one state at each look."""

    def __init__(self) -> None:
        self.plan = pb.Plan(
            kind="node-drain", plan_id="00112233aabbccdd", metadata_version=120, runnable=True
        )
        self.plan.totals.moves = 1
        move = self.plan.moves.add(topic="t", partition=0, to=[1], bytes=1000)
        getattr(move, "from").extend([2])
        self.error = pb.PlanResponse().error
        self.asked: list[Any] = []
        self.started: list[pb.StartOperationRequest] = []
        self.controlled: list[pb.ControlOperationRequest] = []
        self.refuse_start_with: str = ""
        """Name of a gate that closes between plan and start."""
        self.lose_start_after: Callable[[], None] | None = None
        """Called when a start has been carried out, whose answer is lost then."""
        self.states: list[int] = [DONE]
        """Of the operation, at one look after another; the last one stays."""
        self.record: metadata_pb2.OperationRecord | None = None
        self.unavailable = 0
        """So many looks at operations fail."""
        self.looks = 0

    def Plan(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(request)
        if self.error.code:
            return pb.PlanResponse(error=self.error)
        plan = pb.Plan()
        plan.CopyFrom(self.plan)
        plan.kind = request.kind
        plan.parameters.CopyFrom(request.parameters)
        plan.throttle.CopyFrom(request.throttle)
        return pb.PlanResponse(plan=plan)

    def StartOperation(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.started.append(request)
        plan = self.Plan(request.request, context).plan
        self.asked.pop()
        if self.refuse_start_with:
            plan.runnable = False
            plan.gates.add(name=self.refuse_start_with, blocking=True, detail="it closed")
            # As the controllers do: with an error, for clients that look at nothing else.
            error = common_pb2.Error(code=44, message=f"node-drain was not begun: {self.refuse_start_with}")
            return pb.StartOperationResponse(error=error, plan=plan)
        self.record = metadata_pb2.OperationRecord(
            operation_id=121,
            kind=plan.kind,
            plan_id=plan.plan_id,
            parameters=plan.parameters,
            throttle=plan.throttle,
            moves_total=1,
        )
        if self.lose_start_after is not None:
            self.lose_start_after()
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        return pb.StartOperationResponse(plan=plan, operation=self._operation(), version=121)

    def ControlOperation(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.controlled.append(request)
        response = pb.ControlOperationResponse()
        if self.record is None:
            response.error.code = 91
            response.error.message = f"there is no operation {request.operation_id}"
            return response
        if request.control == pb.OPERATION_CONTROL_THROTTLE:
            self.record.throttle.CopyFrom(request.throttle)
        if request.control == pb.OPERATION_CONTROL_PAUSE:
            self.record.state = metadata_pb2.OPERATION_STATE_PAUSED
        if request.control == pb.OPERATION_CONTROL_CANCEL:
            self.record.state = metadata_pb2.OPERATION_STATE_CANCELLING
        response.operation.CopyFrom(self._operation())
        return response

    def DescribeOperations(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.unavailable:
            self.unavailable -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "no active controller answers; try again")
        self.asked.append(request)
        response = pb.DescribeOperationsResponse()
        if self.record is not None and request.operation_id in (0, self.record.operation_id):
            self.record.state = self.states[min(self.looks, len(self.states) - 1)]  # type: ignore[assignment]
            self.looks += 1
            response.operations.append(self._operation())
        elif request.operation_id:
            response.error.code = 91
            response.error.message = f"there is no operation {request.operation_id}"
        return response

    def DescribeNodes(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.DescribeNodesResponse(
            nodes=[
                pb.NodeCondition(node_id=1, condition="draining", rack="a", log_bytes=7, operation_id=121),
                pb.NodeCondition(node_id=2, condition="fenced"),
                pb.NodeCondition(node_id=3, condition="ok"),
            ]
        )

    def _operation(self) -> pb.Operation:
        assert self.record is not None
        done = self.record.state == DONE
        return pb.Operation(
            record=self.record, progress=pb.OperationProgress(moves_total=1, moves_done=int(done))
        )


@contextmanager
def serving(admin: Admin | None, port: int = 0) -> Iterator[str]:
    """The address of a gateway; one of an older build without `admin`."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    gateway_pb2_grpc.add_GatewayServicer_to_server(Gateway(), server)
    if admin is not None:
        admin_pb2_grpc.add_AdminServicer_to_server(admin, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        server.stop(None).wait()
