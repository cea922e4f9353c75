"""DescribeClientQuotas and AlterClientQuotas: what users, client ids and addresses may take.

Sources: KIP-546, KIP-612; ClientQuotasImage and ControllerApis of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.quota_entities import CLIENT_ID, IP, USER, QuotaEntity, read_entity
from penstock_frontend.authorizer import Authorizer, Operation, require_cluster
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_frontend.cluster.describe import items
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.turns import LoopTurns

_KINDS: Final = (USER, CLIENT_ID, IP)
_EXACT, _DEFAULT, _ANY = range(3)
"""How a component of a filter matches (DescribeClientQuotasRequest.MATCH_TYPE_*)."""


class Quotas:
    """Answers about client quotas."""

    def __init__(
        self, calls: ControllerCalls, authorizer: Authorizer, metrics: KafkaMetrics, turns: LoopTurns
    ) -> None:
        self._calls = calls
        self._authorizer = authorizer
        self._metrics = metrics
        self._turns = turns

    async def describe(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to DescribeClientQuotas: the entities that a filter asks for."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.DESCRIBE_CONFIGS)
        wanted = read_quota_filter(
            [(c.entity_type, c.match_type, c.match) for c in items(request.components)], request.strict
        )
        return await self._turns.run(self._described(header, wanted))

    def _described(self, header: RequestHeader, wanted: QuotaFilter) -> Generator[None, None, bytes]:
        found = []
        for entity, values in self._calls.metadata.image.security.quotas.items():
            if wanted.matches(entity):
                found.append((entity, values))
            yield
        entries = (
            codec.item(
                header,
                "EntryData",
                entity=tuple(
                    codec.item(header, "EntityData", entity_type=kind, entity_name=name or None)
                    for kind, name in zip(_KINDS, entity, strict=True)
                    if name is not None
                ),
                values=tuple(
                    codec.item(header, "ValueData", key=key, value=value) for key, value in values.items()
                ),
            )
            for entity, values in found
        )
        shell = codec.build(
            codec.response_type(header.api_key, header.api_version),
            error_code=0,
            error_message=None,
            entries=(),
        )
        return (yield from codec.encode_response_steps(header, shell, "entries", entries))

    async def alter(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to AlterClientQuotas: of each entity all changes count, or none."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.ALTER_CONFIGS)
        entries = items(request.entries)
        outcomes: list[tuple[int, str | None]] = [(ErrorCode.NONE, None)] * len(entries)
        changes: dict[int, pb.QuotaChange] = {}
        for index, entry in enumerate(entries):
            try:
                changes[index] = _change(entry)
            except PenstockError as e:
                outcomes[index] = (e.code, e.message)
        if changes:
            response = await self._calls.call(
                "AlterQuotas",
                pb.AlterQuotasRequest(
                    changes=changes.values(),
                    validate_only=request.validate_only,
                    principal=str(connection.principal),
                ),
                wait=not request.validate_only,
            )
            for index, error in zip(changes, response.results, strict=True):
                outcomes[index] = (error.code, error.message or None)
        results = []
        for entry, (code, message) in zip(entries, outcomes, strict=True):
            self._metrics.count_error(header.api_key, code)
            results.append(
                codec.item(
                    header,
                    "EntryData",
                    error_code=code,
                    error_message=message,
                    entity=tuple(
                        codec.item(header, "EntityData", entity_type=e.entity_type, entity_name=e.entity_name)
                        for e in items(entry.entity)
                    ),
                )
            )
        return codec.respond(header, entries=tuple(results))


class QuotaFilter(NamedTuple):
    """Which entities DescribeClientQuotas asks for."""

    exact: dict[str, str | None]
    """Name by kind; "" is the default, as in the metadata, and None a name that no entity has."""
    present: frozenset[str]
    """Kinds of which any name will do, the default included."""
    strict: bool
    """Whether an entity may have no kind beyond those."""

    def matches(self, entity: QuotaEntity) -> bool:
        """Whether the entity is one of those asked for (Kafka: ClientQuotasImage.matches)."""
        names = {kind: name for kind, name in zip(_KINDS, entity, strict=True) if name is not None}
        if self.strict and len(names) != len(self.exact) + len(self.present):
            return False
        return self.present <= names.keys() and all(
            name is not None and names.get(kind) == name for kind, name in self.exact.items()
        )


def read_quota_filter(components: list[tuple[str, int, str | None]], strict: bool) -> QuotaFilter:
    """The filter of (kind, match type, name). Raises INVALID_REQUEST, and UNSUPPORTED_VERSION for other kinds."""

    def refuse(why: str) -> PenstockError:
        return PenstockError(ErrorCode.INVALID_REQUEST, why)

    exact: dict[str, str | None] = {}
    present: set[str] = set()
    for kind, match_type, name in components:
        if not kind:
            raise refuse("Invalid empty entity type.")
        if kind in exact or kind in present:
            raise refuse(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _KINDS:
            raise PenstockError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unsupported entity type {kind}: there are {', '.join(_KINDS)}",
            )
        if match_type == _EXACT:
            if name is None:
                raise refuse("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            # Nobody has an empty name, and "" stands for the default here.
            exact[kind] = name or None
        elif match_type in (_DEFAULT, _ANY):
            if name is not None:
                which = "DEFAULT" if match_type == _DEFAULT else "SPECIFIED"
                raise refuse(f"Request specified MATCH_TYPE_{which}, but also specified a match string.")
            if match_type == _DEFAULT:
                exact[kind] = ""
            else:
                present.add(kind)
        else:
            raise refuse(f"Unknown match type {match_type}")
    kinds = exact.keys() | present
    if IP in kinds and len(kinds) > 1:
        raise refuse(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    return QuotaFilter(exact, frozenset(present), strict)


def _change(entry: Any) -> pb.QuotaChange:
    entity = read_entity((e.entity_type, e.entity_name) for e in items(entry.entity))
    return pb.QuotaChange(
        user=entity.user,
        client_id=entity.client_id,
        ip=entity.ip,
        values=[pb.QuotaValue(key=op.key, value=None if op.remove else op.value) for op in items(entry.ops)],
    )
