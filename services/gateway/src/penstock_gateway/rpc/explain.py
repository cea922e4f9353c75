"""What is now, and how it came to that: all controllers are asked what they remember, and it is told as one story.

How things are is read from this gateway's own metadata, so that a partition can be explained while no controller is
active. What there is no more is explained as long as somebody remembers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.history import now
from penstock_core.history.merge import merged
from penstock_core.history.narrate import story
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.turns import LoopTurns

SINCE_MS: Final = 2 * 3600 * 1000
"""So far back it goes where nobody says how far."""
EVENTS_MAX: Final = 1_000
_EVENTS_TIMEOUT_S: Final = 3.0
_ACTIVE_TIMEOUT_MS: Final = 3_000
"""Of both: one that is silent delays the answer by so much, and no more."""


class Explainer:
    """Explains for one gateway."""

    def __init__(self, controllers: ControllerClient, turns: LoopTurns) -> None:
        self._controllers = controllers
        self._turns = turns

    async def explain(
        self, request: pb.ExplainRequest, image: MetadataImage, wall_ms: int
    ) -> pb.ExplainResponse:
        """By this image; `wall_ms` is ms since 1970. What there is not, and never was, is an error in the answer."""
        try:
            if request.topic:
                return await self._partition(request, image, wall_ms)
            if request.node_id:
                return await self._node(request, image, wall_ms)
            if request.operation_id:
                return await self._operation(request, image, wall_ms)
        except PenstockError as error:
            refused = pb.ExplainResponse()
            refused.error.code, refused.error.message = error.code, error.message
            return refused
        refused = pb.ExplainResponse()
        refused.error.code = ErrorCode.INVALID_REQUEST
        refused.error.message = "nothing is named; explain a partition, a node or an operation"
        return refused

    async def _partition(
        self, request: pb.ExplainRequest, image: MetadataImage, wall_ms: int
    ) -> pb.ExplainResponse:
        name = f"{request.topic}-{request.partition}"
        topic = image.topic(request.topic)
        partition = None if topic is None else topic.partitions.get(request.partition)
        own = {f"partition {name}", f"topic {request.topic}"}
        around = set() if partition is None else {f"node {n}" for n in partition.replicas}
        events, unknown_ms = await self._events([*own, *around], request, wall_ms)
        # What befell its nodes is told where it did not change the partition: then that says it already.
        told = {e.version for e in events if e.subject == f"partition {name}"}
        events = [e for e in events if e.subject in own or e.version not in told]
        if partition is not None:
            # Before it was made, another one may have had its name.
            made = [e.version for e in events if e.event == "topic" and e.change.startswith("created")]
            events = [e for e in events if e.version >= max(made, default=0)]
        else:
            # Partitions never get fewer: of a topic that is there, one that is not never was.
            events = [e for e in events if e.subject in own]
            if topic is not None or not events:
                raise _no_partition(request, image)
            gone = now.Now(f"there is no topic {request.topic} any more; this is what is remembered")
            return await self._answer(f"partition {name}", gone, events, unknown_ms)
        assert topic is not None
        is_now = now.of_partition(image, topic.name, partition)
        return await self._answer(f"partition {name}", is_now, events, unknown_ms)

    async def _node(
        self, request: pb.ExplainRequest, image: MetadataImage, wall_ms: int
    ) -> pb.ExplainResponse:
        node_id = NodeId(request.node_id)
        subject = f"node {node_id}"
        counts = now.NodeCounts()
        (events, unknown_ms), conditions, _ = await asyncio.gather(
            self._events([subject], request, wall_ms),
            self._conditions(),
            self._turns.run(counts.look(image, node_id)),
        )
        node = image.nodes.get(node_id)
        if node is None:
            if not events:
                message = f"no storage node has the id {node_id}; see `penstock node list`"
                raise PenstockError(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
            is_now = now.Now(f"{subject} is not in the cluster any more; this is what is remembered")
        else:
            is_now = now.of_node(image, node, counts, conditions.get(node_id))
        return await self._answer(subject, is_now, events, unknown_ms)

    async def _operation(
        self, request: pb.ExplainRequest, image: MetadataImage, wall_ms: int
    ) -> pb.ExplainResponse:
        operation_id = request.operation_id
        subject = f"operation {operation_id}"
        look = now.OperationLook()
        (events, unknown_ms), operation, _ = await asyncio.gather(
            self._events([subject], request, wall_ms),
            self._progress(operation_id, image),
            self._turns.run(look.look(image, operation_id)),
        )
        if operation is None:
            if not events:
                message = f"there is no operation {operation_id}; see `penstock operation list --all`"
                raise PenstockError(ErrorCode.RESOURCE_NOT_FOUND, message)
            is_now = now.Now(f"{subject} is not on record any more; this is what is remembered")
        else:
            is_now = now.of_operation(image, operation, look, wall_ms)
        return await self._answer(subject, is_now, events, unknown_ms, of_operation=True)

    # --- who is asked -------------------------------------------------------------------------

    async def _events(
        self, subjects: list[str], request: pb.ExplainRequest, wall_ms: int
    ) -> tuple[list[pb.ClusterEvent], int]:
        """(events, before when not all are known; 0 where they are all known)."""
        since_ms = request.since_ms or wall_ms - SINCE_MS
        question = pb.ReadEventsRequest(subjects=sorted(subjects), since_ms=since_ms, limit=EVENTS_MAX)
        answers = await self._controllers.ask_each("ReadEvents", question, _EVENTS_TIMEOUT_S)
        return merged(answers, wall_ms)

    async def _conditions(self) -> dict[int, pb.NodeCondition]:
        try:
            answer: pb.DescribeNodesResponse = await self._controllers.call(
                "DescribeNodes", pb.DescribeNodesRequest(), _ACTIVE_TIMEOUT_MS
            )
        except PenstockError:
            return {}
        return {each.node_id: each for each in answer.nodes}

    async def _progress(self, operation_id: int, image: MetadataImage) -> pb.Operation | None:
        """With its progress if a controller is active, else as it is recorded."""
        question = pb.DescribeOperationsRequest(operation_id=operation_id, ended=True)
        try:
            answer: pb.DescribeOperationsResponse = await self._controllers.call(
                "DescribeOperations", question, _ACTIVE_TIMEOUT_MS
            )
            if answer.operations:
                return answer.operations[0]
        except PenstockError:
            pass
        record = image.operations.operations.get(operation_id)
        return None if record is None else pb.Operation(record=record)

    async def _answer(
        self,
        subject: str,
        is_now: now.Now,
        events: list[pb.ClusterEvent],
        unknown_ms: int,
        *,
        of_operation: bool = False,
    ) -> pb.ExplainResponse:
        response = pb.ExplainResponse(
            subject=subject, summary=is_now.summary, now=is_now.lines, incomplete_before_ms=unknown_ms
        )
        await self._turns.run(_tell(response, events, of_operation))
        return response


def _no_partition(request: pb.ExplainRequest, image: MetadataImage) -> PenstockError:
    topic = image.topic(request.topic)
    if topic is None:
        message = f"no topic has the name {request.topic!r}; see `penstock topic list`"
    else:
        message = f"topic {request.topic} has no partition {request.partition}; it has 0 to {len(topic.partitions) - 1}"
    return PenstockError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _tell(
    response: pb.ExplainResponse, events: list[pb.ClusterEvent], of_operation: bool
) -> Generator[None, None, None]:
    for line in story(events, of_operation=of_operation):
        response.story.append(line)
        yield None
