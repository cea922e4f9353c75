"""DescribeStrays and DeleteStray: what this node has set aside, for the gateway that an operator asks."""

from __future__ import annotations

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import operations_pb2 as pb
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.replica.strays import StrayJanitor


class StraysService:
    """Handlers of the two calls."""

    def __init__(self, registry: PartitionRegistry, janitor: StrayJanitor) -> None:
        self._registry = registry
        self._janitor = janitor

    async def describe(self, request: pb.DescribeStraysRequest, context: object) -> pb.DescribeStraysResponse:
        """All of them, by name."""
        del context
        response = pb.DescribeStraysResponse()
        try:
            self._check(NodeId(request.node_id))
            found = await self._janitor.describe()
        except (PenstockError, OSError) as e:
            response.error.CopyFrom(_error(e))
            return response
        for each in found:
            row = response.strays.add(
                name=each.stray.name,
                topic=each.verdict.topic,
                partition=-1 if each.identity is None else each.identity.partition,
                size_bytes=each.size_bytes,
                set_aside_ms=each.stray.set_aside_ms or 0,
                superfluous=each.verdict.is_superfluous,
                reason=self._janitor.why(each),
            )
            if each.identity is not None:
                row.topic_id = each.identity.topic_id
        return response

    async def delete(self, request: pb.DeleteStrayRequest, context: object) -> pb.DeleteStrayResponse:
        """One of them, whatever the metadata say of it."""
        del context
        response = pb.DeleteStrayResponse()
        try:
            self._check(NodeId(request.node_id))
            response.freed_bytes = await self._janitor.delete(request.name, request.principal)
        except (PenstockError, OSError) as e:
            response.error.CopyFrom(_error(e))
        return response

    def _check(self, node_id: NodeId) -> None:
        if node_id != self._registry.node_id:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                f"this is node {self._registry.node_id}, not {node_id}; ask again once the gateway knows that",
            )


def _error(error: PenstockError | OSError) -> common_pb2.Error:
    if isinstance(error, PenstockError):
        return common_pb2.Error(code=error.code, message=error.message)
    return common_pb2.Error(code=ErrorCode.KAFKA_STORAGE_ERROR, message=str(error))
