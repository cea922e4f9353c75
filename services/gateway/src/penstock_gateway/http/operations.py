"""`/v1/operations`, `/v1/operations/ID`, `/v1/nodes`, `/v1/check`: what the active controller says of the cluster.

The documents are those of the command's `--json`. Reads only; all of it takes DESCRIBE on the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_core.observation_documents import check_document
from penstock_core.operation_documents import NO_CONDITION, condition_document, operation_document
from penstock_frontend.authorizer import CLUSTER_NAME, Authorizer, Operation, ResourceType
from penstock_frontend.sign_in.http import denied, error_response, identity_of
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.http import web
from penstock_runtime.turns import LoopTurns

Json = dict[str, Any]

TIMEOUT_MS: Final = 5_000
ID_DIGITS_MAX: Final = 18
"""Of an operation's id in a path."""
_SCAN_COUNT: Final = 500


def operation_routes(
    image: Callable[[], MetadataImage],
    authorizer: Authorizer,
    controllers: ControllerClient,
    turns: LoopTurns,
) -> list[web.AbstractRouteDef]:
    """Routes for the process's HTTP server, which knows who asks. They go before those that take the rest."""

    def refused(request: web.Request) -> web.Response | None:
        if authorizer.authorize(identity_of(request), Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
            return None
        return denied(request, "DESCRIBE the cluster")

    async def operations(request: web.Request) -> web.Response:
        if (answer := refused(request)) is not None:
            return answer
        ended = request.query.get("all", "false").lower() not in ("false", "0", "no")
        asked = pb.DescribeOperationsRequest(ended=ended)
        found = await _ask(controllers, "DescribeOperations", asked)
        if isinstance(found, web.Response):
            return found
        return web.json_response([operation_document(each) for each in found.operations])

    async def operation(request: web.Request) -> web.Response:
        if (answer := refused(request)) is not None:
            return answer
        text = request.match_info["id"]
        if not (text.isascii() and text.isdigit() and len(text) <= ID_DIGITS_MAX and int(text)):
            return error_response(
                400, f"{text[:40]} is no id of an operation", "give a number; GET /v1/operations lists them"
            )
        asked = pb.DescribeOperationsRequest(operation_id=int(text), ended=True)
        found = await _ask(controllers, "DescribeOperations", asked, missing_is_404=True)
        if isinstance(found, web.Response):
            return found
        if not found.operations:
            return _no_operation(f"there is no operation {text}")
        return web.json_response(operation_document(found.operations[0]))

    async def nodes(request: web.Request) -> web.Response:
        if (answer := refused(request)) is not None:
            return answer
        found = await _ask(controllers, "DescribeNodes", pb.DescribeNodesRequest())
        if isinstance(found, web.Response):
            return found
        return web.json_response(await turns.run(nodes_document(image(), found)))

    async def check(request: web.Request) -> web.Response:
        return await _check(controllers, refused(request))

    return [
        web.get("/v1/operations", operations),
        web.get("/v1/operations/{id}", operation),
        web.get("/v1/nodes", nodes),
        web.get("/v1/check", check),
    ]


async def _check(controllers: ControllerClient, refusal: web.Response | None) -> web.Response:
    if refusal is not None:
        return refusal
    found = await _ask(controllers, "CheckCluster", pb.CheckClusterRequest())
    return found if isinstance(found, web.Response) else web.json_response(check_document(found))


def nodes_document(image: MetadataImage, told: pb.DescribeNodesResponse) -> Generator[None, None, list[Json]]:
    """Nodes by id, as `penstock node list --json` has them. In steps of some partitions."""
    in_sync: Counter[NodeId] = Counter()
    seen = 0
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            in_sync.update(partition.isr)
            seen += 1
            if seen % _SCAN_COUNT == 0:
                yield
    rows = []
    for node in told.nodes:
        known = image.nodes.get(NodeId(node.node_id))
        rows.append(
            {
                "id": node.node_id,
                "address": None if known is None else _address(known),
                "state": "alive" if known is not None and not known.fenced else "absent",
                "leads": node.leaders,
                "replicas": node.replicas,
                "in_sync": in_sync[NodeId(node.node_id)],
                "node_id": node.node_id,
                **NO_CONDITION,
                **condition_document(node),
            }
        )
    return rows


def _address(node: NodeImage) -> str | None:
    """Of its own Kafka listener; none where clients come by gateways alone."""
    return next((endpoint.address for endpoint in node.listeners.values()), None)


async def _ask(
    controllers: ControllerClient, method: str, request: Any, *, missing_is_404: bool = False
) -> Any:
    """The active controller's response, or the HTTP response that says why there is none."""
    try:
        response = await controllers.call(method, request, TIMEOUT_MS)
    except PenstockError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return error_response(
                501, f"the controllers know no operations ({error.message})", "install this build there too"
            )
        return error_response(
            503, error.message, "see that a majority of the controllers is up, then ask again"
        )
    if response.error.code and missing_is_404:
        return _no_operation(response.error.message)
    if response.error.code:
        return error_response(500, response.error.message, "see the log of the active controller")
    return response


def _no_operation(error: str) -> web.Response:
    return error_response(404, error, "GET /v1/operations?all=true lists all that are kept")
