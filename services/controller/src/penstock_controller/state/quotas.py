"""Client quotas in the metadata (KIP-546). What they mean is said in penstock_core.security.quota_entities.

Source: ClientQuotaControlManager of Apache Kafka 4.3.
"""

from __future__ import annotations

from penstock_controller.state.generation import Context, Generated, error_pb
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata.levels import require_level
from penstock_core.metadata.security import quota_record
from penstock_core.security.quota_entities import CLIENT_ID, IP, USER, QuotaEntity, check_value, read_entity
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

LEVEL = 2


def alter_quotas(ctx: Context, request: api.AlterQuotasRequest) -> Generated[api.AlterQuotasResponse]:
    """Set and remove quotas: of each entity all or none, of different entities on their own."""
    reply = api.AlterQuotasResponse()
    records: list[pb.MetadataRecord] = []
    seen: set[QuotaEntity] = set()
    try:
        require_level(ctx.image, LEVEL, "client quotas")
    except PenstockError as error:
        return Generated(api.AlterQuotasResponse(error=error_pb(error)))
    for change in request.changes:
        result = reply.results.add()
        entity = _entity_of(change)
        try:
            if entity in seen:
                raise PenstockError(ErrorCode.INVALID_REQUEST, f"{entity} stands twice in the request")
            records += _records(ctx, entity, change)
        except PenstockError as error:
            result.CopyFrom(error_pb(error))
        seen.add(entity)
    return Generated(reply, [] if request.validate_only else records)


def _entity_of(change: api.QuotaChange) -> QuotaEntity:
    return QuotaEntity(
        change.user if change.HasField("user") else None,
        change.client_id if change.HasField("client_id") else None,
        change.ip if change.HasField("ip") else None,
    )


def _records(ctx: Context, entity: QuotaEntity, change: api.QuotaChange) -> list[pb.MetadataRecord]:
    names = ((USER, entity.user), (CLIENT_ID, entity.client_id), (IP, entity.ip))
    checked = read_entity((kind, name or None) for kind, name in names if name is not None)
    now = ctx.image.security.quotas.get(entity, {})
    wanted: dict[str, float | None] = {}
    for value in change.values:
        if value.key in wanted:
            raise PenstockError(ErrorCode.INVALID_REQUEST, f"{value.key} of {entity} stands there twice")
        if value.HasField("value"):
            check_value(checked, value.key, value.value)
        wanted[value.key] = value.value if value.HasField("value") else None
    return [
        pb.MetadataRecord(quota=quota_record(entity, key, value))
        for key, value in wanted.items()
        if now.get(key) != value
    ]
