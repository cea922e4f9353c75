"""DescribeAcls, CreateAcls and DeleteAcls: rules of who may do what.

They are answered once the cluster's rules count here; as long as everybody may do everything, they are refused
as by a Kafka broker without an authorizer. What a rule may say is said in penstock_core.security.acl; the active
controller judges it.

Sources: AclApis of Apache Kafka 4.3; KIP-140, KIP-290.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata.security import AclRow
from penstock_core.security.acl import AclFilter, read_filter
from penstock_frontend.authorizer import Authorizer, Operation, require_cluster
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_frontend.cluster.describe import items
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_proto.v1 import controller_pb2 as pb
from penstock_proto.v1 import metadata_pb2
from penstock_runtime.turns import LoopTurns

_STEP: Final = 20
"""Rules that are looked at between two looks at the clock: 20 us each where they match."""
_DISABLED: Final = "No Authorizer is configured."
"""Kafka's words."""


class Acls:
    """Answers about rules."""

    def __init__(
        self,
        calls: ControllerCalls,
        authorizer: Authorizer,
        metrics: KafkaMetrics,
        turns: LoopTurns,
    ) -> None:
        self._calls = calls
        self._authorizer = authorizer
        self._metrics = metrics
        self._turns = turns

    def _require(self, connection: Connection, operation: Operation) -> None:
        require_cluster(self._authorizer, connection.identity, operation)
        if not self._authorizer.is_enabled:
            raise PenstockError(ErrorCode.SECURITY_DISABLED, _DISABLED)

    async def describe(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to DescribeAcls: the rules, by what they are about."""
        request = codec.decode_request(header, frame)
        self._require(connection, Operation.DESCRIBE)
        wanted = read_filter(
            request.resource_type_filter,
            request.pattern_type_filter,
            request.resource_name_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
        return await self._turns.run(self._described(header, wanted))

    def _described(self, header: RequestHeader, wanted: AclFilter) -> Generator[None, None, bytes]:
        """The response with the rules that are meant, those of one pattern together."""
        found: dict[tuple[int, int, str], list[Any]] = {}
        for index, row in enumerate(self._calls.metadata.image.security.acls):
            if index % _STEP == _STEP - 1:
                yield
            if wanted.matches_codes(*row):
                about = row.resource_type, row.pattern_type, row.resource_name
                found.setdefault(about, []).append(
                    codec.item(
                        header,
                        "AclDescription",
                        principal=row.principal,
                        host=row.host,
                        operation=row.operation,
                        permission_type=row.permission,
                    )
                )
        resources = (
            codec.item(
                header,
                "DescribeAclsResource",
                resource_type=kind,
                pattern_type=pattern,
                resource_name=name,
                acls=tuple(acls),
            )
            for (kind, pattern, name), acls in found.items()
        )
        shell = codec.build(
            codec.response_type(header.api_key, header.api_version),
            error_code=0,
            error_message=None,
            resources=(),
        )
        return (yield from codec.encode_response_steps(header, shell, "resources", resources))

    async def create(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to CreateAcls: each on its own; one that is there already is fine."""
        request = codec.decode_request(header, frame)
        self._require(connection, Operation.ALTER)
        wanted = [
            metadata_pb2.AclRecord(
                resource_type=_code(one.resource_type),
                pattern_type=_code(one.resource_pattern_type),
                resource_name=one.resource_name,
                principal=one.principal,
                host=one.host,
                operation=_code(one.operation),
                permission=_code(one.permission_type),
            )
            for one in items(request.creations)
        ]
        results = []
        if wanted:
            response = await self._calls.call(
                "AlterAcls", pb.AlterAclsRequest(add=wanted, principal=str(connection.principal))
            )
            for error in response.added:
                self._metrics.count_error(header.api_key, error.code)
                results.append(
                    codec.item(
                        header,
                        "AclCreationResult",
                        error_code=error.code,
                        error_message=error.message or None,
                    )
                )
        return codec.respond(header, results=tuple(results))

    async def delete(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to DeleteAcls: what each filter has deleted."""
        request = codec.decode_request(header, frame)
        self._require(connection, Operation.ALTER)
        wanted = [_filter(one) for one in items(request.filters)]
        results = []
        if wanted:
            response = await self._calls.call(
                "AlterAcls", pb.AlterAclsRequest(remove=wanted, principal=str(connection.principal))
            )
            for removed in response.removed:
                self._metrics.count_error(header.api_key, removed.error.code)
                results.append(
                    codec.item(
                        header,
                        "DeleteAclsFilterResult",
                        error_code=removed.error.code,
                        error_message=removed.error.message or None,
                        matching_acls=tuple(_deleted(header, AclRow.from_pb(acl)) for acl in removed.acls),
                    )
                )
        return codec.respond(header, filter_results=tuple(results))


def _code(code: int) -> int:
    """A code that no entry can have is one that nobody knows."""
    return max(code, 0)


def _filter(one: Any) -> pb.AclFilter:
    return pb.AclFilter(
        resource_type=_code(one.resource_type_filter),
        pattern_type=_code(one.pattern_type_filter),
        resource_name=one.resource_name_filter,
        principal=one.principal_filter,
        host=one.host_filter,
        operation=_code(one.operation),
        permission=_code(one.permission_type),
    )


def _deleted(header: RequestHeader, row: AclRow) -> Any:
    return codec.item(
        header,
        "DeleteAclsMatchingAcl",
        error_code=0,
        error_message=None,
        resource_type=row.resource_type,
        resource_name=row.resource_name,
        pattern_type=row.pattern_type,
        principal=row.principal,
        host=row.host,
        operation=row.operation,
        permission_type=row.permission,
    )
