"""The gateway's Admin service and its REST reads, with a real gRPC server for each controller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from penstock_core.metadata.image import MetadataImage
from penstock_core.observation_documents import check_document
from penstock_core.operation_documents import operation_document
from penstock_frontend.authorizer import AllowAll, Identity, Operation, ResourceType
from penstock_gateway.http.operations import nodes_document, operation_routes
from penstock_gateway.http.rest import routes
from penstock_gateway.rpc.admin import AdminService
from penstock_gateway.rpc.guard import RIGHTS, Guard
from penstock_proto.v1 import admin_pb2, admin_pb2_grpc, metadata_pb2
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_server import serve
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.ports import wall_ms
from penstock_runtime.turns import LoopTurns, all_at_once
from unit.gateway.rpc.test_native_door import Asked, World, status_of
from unit.runtime.fake_controllers import Cluster, FakeController, controllers

Rig = Any
Stub = Any

METHODS = {
    "Plan": ("PlanOperation", pb.PlanRequest(kind="node-drain"), Operation.DESCRIBE),
    "StartOperation": (
        "StartOperation",
        pb.StartOperationRequest(request=pb.PlanRequest(kind="rebalance"), principal="User:mallory"),
        Operation.ALTER,
    ),
    "ControlOperation": (
        "ControlOperation",
        pb.ControlOperationRequest(operation_id=17, control=pb.OPERATION_CONTROL_PAUSE),
        Operation.ALTER,
    ),
    "DescribeOperations": (
        "DescribeOperations",
        pb.DescribeOperationsRequest(ended=True),
        Operation.DESCRIBE,
    ),
    "DescribeNodes": ("DescribeNodes", pb.DescribeNodesRequest(), Operation.DESCRIBE),
    "ExecuteOperation": (
        "ExecuteOperation",
        pb.ExecuteOperationRequest(operation_id=17, executor_id="e"),
        Operation.ALTER,
    ),
    "CheckCluster": ("CheckCluster", pb.CheckClusterRequest(), Operation.DESCRIBE),
    "DescribeCapacity": ("DescribeCapacity", pb.DescribeCapacityRequest(), Operation.DESCRIBE),
    "RecoverTopics": ("RecoverTopics", pb.RecoverTopicsRequest(topics=["flights"]), Operation.ALTER),
}
"""By method of Admin: that of the controllers, a request, and the right that it takes."""

OTHERS = {
    "Explain": Operation.DESCRIBE,
    "DescribeStrays": Operation.DESCRIBE,
    "DeleteStray": Operation.ALTER,
    "ExportMetadata": Operation.ALTER,
    "DescribeQuorum": Operation.DESCRIBE,
    "DescribeProcess": Operation.ALTER,
}
"""Methods that others than the active controller answer too, with the right that they take."""

RESPONSES = {
    "PlanOperation": pb.PlanResponse(plan=pb.Plan(kind="node-drain", plan_id="0011223344556677")),
    "StartOperation": pb.StartOperationResponse(
        plan=pb.Plan(kind="rebalance"),
        operation=pb.Operation(record=metadata_pb2.OperationRecord(operation_id=17, kind="rebalance")),
    ),
    "ControlOperation": pb.ControlOperationResponse(version=9),
    "DescribeOperations": pb.DescribeOperationsResponse(
        operations=[pb.Operation(record=metadata_pb2.OperationRecord(operation_id=17, kind="rebalance"))]
    ),
    "DescribeNodes": pb.DescribeNodesResponse(
        nodes=[
            pb.NodeCondition(node_id=1, condition="ok", replicas=2, leaders=1, log_bytes=5),
            pb.NodeCondition(node_id=2, condition="fenced", replicas=1),
        ]
    ),
    "ExecuteOperation": pb.ExecuteOperationResponse(
        operation=pb.Operation(record=metadata_pb2.OperationRecord(operation_id=17, kind="rolling-restart")),
        step=metadata_pb2.OperationStep(name="node-1", role="storage-node"),
        http="127.0.0.1:8080",
    ),
    "CheckCluster": pb.CheckClusterResponse(
        findings=[pb.Finding(severity="error", code="offline", subject="partition t-0", detail="d", hint="h")]
    ),
    "DescribeCapacity": pb.DescribeCapacityResponse(nodes=[pb.NodeCapacity(node_id=1)]),
    "RecoverTopics": pb.RecoverTopicsResponse(topics=[pb.RecoveredTopic(name="flights")]),
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, Any]]:
    """What the active controller was asked: its id, method and request."""
    seen: list[tuple[int, str, Any]] = []

    def answering(method: str) -> Callable[..., Any]:
        async def answer(self: FakeController, request: Any, context: Any) -> Any:
            await self._require_active(method, context)
            seen.append((self.controller_id, method, request))
            return RESPONSES[method]

        return answer

    for method in RESPONSES:
        monkeypatch.setattr(FakeController, method, answering(method), raising=False)
    return seen


@asynccontextmanager
async def admin(rig: Rig, addresses: list[str], world: World | None = None) -> AsyncIterator[Stub]:
    """A stub of a gateway's Admin service; with a world, behind its door."""
    channels = ChannelPool()
    service = AdminService(rig.relay, ControllerClient(addresses, "gateway-1", channels), LoopTurns())
    door = World(rig, security="PLAINTEXT").door if world is None else world.door
    server, endpoint = await serve(
        "127.0.0.1:0", service.add_to, allow_insecure_bind=False, interceptors=[Guard(door, wall_ms)]
    )
    try:
        async with grpc.aio.insecure_channel(endpoint.address) as channel:
            yield admin_pb2_grpc.AdminStub(channel)
    finally:
        await server.stop(None)
        await channels.close()


def addresses_of(members: list[FakeController]) -> list[str]:
    return [member.endpoint.address for member in members]


def test_every_method_of_the_contract_has_a_row_and_a_test() -> None:
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
    rights = {**{name: operation for name, (_, _, operation) in METHODS.items()}, **OTHERS}
    assert {method.name for method in service.methods} == rights.keys()
    for name, operation in rights.items():
        right = RIGHTS[f"/penstock.v1.Admin/{name}"]
        assert right is not None
        assert (right.operation, right.kind) == (operation, ResourceType.CLUSTER)


async def test_every_call_goes_to_whichever_controller_is_active(
    rig: Rig, taken: list[tuple[int, str, Any]]
) -> None:
    async with controllers(2) as (cluster, members), admin(rig, addresses_of(members)) as stub:
        for active in (1, 2):
            cluster.active, cluster.term = active, active
            for name, (method, request, _) in METHODS.items():
                taken.clear()
                assert await getattr(stub, name)(request) == RESPONSES[method]
                assert [(who, what) for who, what, _ in taken] == [(active, method)]
    assert rig.relay.metrics.native_calls["Plan", "OK"] == 2


async def test_the_controllers_are_told_who_asks_whatever_the_request_says(
    rig: Rig, taken: list[tuple[int, str, Any]]
) -> None:
    async with controllers(1) as (_, members), admin(rig, addresses_of(members)) as stub:
        await stub.StartOperation(METHODS["StartOperation"][1])
        await stub.ControlOperation(METHODS["ControlOperation"][1])
    assert [request.principal for _, _, request in taken] == ["User:ANONYMOUS"] * 2


async def test_who_signed_in_is_told_and_asked_for_the_right_of_each_method(
    rig: Rig, taken: list[tuple[int, str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(rig)
    async with world.serving() as sign_in, controllers(1) as (_, members):
        metadata = await world.token(sign_in)
        async with admin(rig, addresses_of(members), world) as stub:
            for name, (_, request, _) in METHODS.items():
                status, _ = await status_of(getattr(stub, name)(request))
                assert status is grpc.StatusCode.UNAUTHENTICATED
            await stub.StartOperation(METHODS["StartOperation"][1], metadata=metadata)
            assert taken.pop()[2].principal == "User:alice"

            def may_look(_who: Identity, operation: Operation) -> bool:
                return operation is Operation.DESCRIBE

            asked = Asked(may_look)
            monkeypatch.setattr(rig.relay, "authorizer", asked)
            for name, (method, request, operation) in METHODS.items():
                asked.questions.clear()
                call = getattr(stub, name)(request, metadata=metadata)
                if operation is Operation.DESCRIBE:
                    assert await call == RESPONSES[method]
                else:
                    status, words = await status_of(call)
                    assert status is grpc.StatusCode.PERMISSION_DENIED
                    assert words == "User:alice has no right to ALTER the cluster; grant it by an ACL"
                assert asked.questions == [
                    ("User:alice", "127.0.0.1", operation, ResourceType.CLUSTER, "kafka-cluster")
                ]
    assert [what for _, what, _ in taken] == [
        *("PlanOperation", "DescribeOperations", "DescribeNodes", "CheckCluster", "DescribeCapacity")
    ]


async def test_without_an_active_controller_it_says_so_before_the_client_gives_up(rig: Rig) -> None:
    async with controllers(1) as (cluster, members), admin(rig, addresses_of(members)) as stub:
        cluster.active = 9
        status, words = await status_of(stub.DescribeNodes(pb.DescribeNodesRequest(), timeout=2))
    assert status is grpc.StatusCode.UNAVAILABLE
    assert "no active controller answers" in words


async def test_older_controllers_are_named(rig: Rig) -> None:
    async with controllers(1) as (_, members), admin(rig, addresses_of(members)) as stub:
        status, words = await status_of(stub.Plan(pb.PlanRequest()))
    assert status is grpc.StatusCode.UNIMPLEMENTED
    assert words.startswith("the controllers' build is older than this gateway's")


# -- REST ----------------------------------------------------------------------------------


def image_of(cluster: Cluster) -> MetadataImage:
    cluster.commit(
        *(
            metadata_pb2.MetadataRecord(node=metadata_pb2.NodeRecord(node_id=n, fenced=n == 2))
            for n in (1, 2)
        ),
        metadata_pb2.MetadataRecord(topic=metadata_pb2.TopicRecord(topic_id=b"t" * 16, name="t")),
        metadata_pb2.MetadataRecord(
            partition=metadata_pb2.PartitionRecord(topic_id=b"t" * 16, leader=1, replicas=[1, 2], isr=[1])
        ),
    )
    return cluster.image


@asynccontextmanager
async def rest(authorizer: Any = None, count: int = 1) -> AsyncIterator[tuple[Callable[[str], Any], Cluster]]:
    """A function that gets a path: (status, document)."""
    channels = ChannelPool()
    async with controllers(count) as (cluster, members):
        image, may = image_of(cluster), authorizer or AllowAll()
        client = ControllerClient(addresses_of(members), "gateway-1", channels)
        app = web.Application()
        app.add_routes(
            [
                *operation_routes(lambda: image, may, client, LoopTurns()),
                *routes(lambda: image, lambda: 0, may),
            ]
        )
        async with TestClient(TestServer(app)) as http:

            async def get(path: str) -> tuple[int, Any]:
                async with http.get(path) as response:
                    return response.status, await response.json()

            yield get, cluster
    await channels.close()


async def test_rest_says_what_the_command_says(taken: list[tuple[int, str, Any]]) -> None:
    operation = operation_document(RESPONSES["DescribeOperations"].operations[0])  # type: ignore[attr-defined]
    async with rest() as (get, _):
        assert await get("/v1/operations") == (200, [operation])
        assert await get("/v1/operations?all=true") == (200, [operation])
        assert await get("/v1/operations/17") == (200, operation)
        status, nodes = await get("/v1/nodes")
        check = check_document(RESPONSES["CheckCluster"])  # type: ignore[arg-type]
        assert not check["ok"]
        assert await get("/v1/check") == (200, check)
    assert [(r.operation_id, r.ended) for _, _, r in taken[:3]] == [(0, False), (0, True), (17, True)]
    assert status == 200
    assert nodes[0] == {
        "id": 1,
        "address": None,
        "state": "alive",
        "leads": 1,
        "replicas": 2,
        "in_sync": 1,
        "node_id": 1,
        "condition": "ok",
        "rack": None,
        "version": None,
        "feature_level": 0,
        "bytes": 5,
        "disk_total_bytes": None,
        "disk_free_bytes": None,
        "operation_id": None,
    }
    assert (nodes[1]["state"], nodes[1]["condition"], nodes[1]["in_sync"]) == ("absent", "fenced", 0)


async def test_rest_takes_describe_on_the_cluster(taken: list[tuple[int, str, Any]]) -> None:
    asked = Asked(lambda who, operation: False)
    async with rest(asked) as (get, _):
        for path in ("/v1/operations", "/v1/operations/17", "/v1/nodes", "/v1/check"):
            status, body = await get(path)
            assert status == 403
            assert set(body) == {"error", "hint"}
    assert {question[2:] for question in asked.questions} == {
        (Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")
    }
    assert taken == []


async def test_rest_says_what_is_wrong(
    taken: list[tuple[int, str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = pb.DescribeOperationsResponse()
    missing.error.code, missing.error.message = 91, "there is no operation 4"
    monkeypatch.setattr("penstock_gateway.http.operations.TIMEOUT_MS", 500)
    async with rest() as (get, cluster):
        monkeypatch.setitem(RESPONSES, "DescribeOperations", missing)
        for path, status in (
            ("/v1/operations/4", 404),
            ("/v1/operations/x", 400),
            ("/v1/operations/0", 400),
            ("/v1/operations/" + "9" * 30, 400),
            ("/v1/operations/4/moves", 404),
        ):
            got, body = await get(path)
            assert (got, set(body)) == (status, {"error", "hint"}), path
        cluster.active = 9
        assert (await get("/v1/nodes"))[0] == 503


async def test_rest_with_older_controllers() -> None:
    async with rest() as (get, _):
        status, body = await get("/v1/operations")
    assert status == 501
    assert "the controllers know no operations" in body["error"]


def test_a_node_without_metadata_is_absent() -> None:
    told = pb.DescribeNodesResponse(nodes=[pb.NodeCondition(node_id=5, condition="drained")])
    (row,) = all_at_once(nodes_document(MetadataImage(), told))
    assert (row["id"], row["state"], row["condition"]) == (5, "absent", "drained")
