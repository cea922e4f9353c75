"""Who may do what: ACLs in the metadata.

Source: AclControlManager of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock_controller.state.generation import Context, Generated, error_pb
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata.levels import require_level
from penstock_core.metadata.security import AclRow
from penstock_core.security.acl import AclBinding, AclFilter, read_binding, read_filter
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

LEVEL = 2
CHANGES_MAX = 10_000
"""ACLs that one request may add, or delete (Kafka: AclControlManager.MAX_RECORDS_PER_USER_OP)."""
FILTERS_MAX = 1_000
"""Filters of one request: each looks at every ACL."""


def alter_acls(ctx: Context, request: api.AlterAclsRequest) -> Generated[api.AlterAclsResponse]:
    """Add and delete ACLs: each entry and each filter on its own."""
    try:
        require_level(ctx.image, LEVEL, "ACLs")
        _check_size(request)
        reply = api.AlterAclsResponse()
        made = _add(ctx, request.add, reply)
        gone = _remove(ctx, request.remove, reply)
    except PenstockError as error:
        return Generated(api.AlterAclsResponse(error=error_pb(error)))
    records = [pb.MetadataRecord(acl=row.to_pb()) for row in made]
    records += [pb.MetadataRecord(acl_removed=pb.AclRemovedRecord(acl=row.to_pb())) for row in gone]
    return Generated(reply, records)


def binding_of(row: AclRow) -> AclBinding:
    """The rule as what decides reads it. Raises PenstockError for one that no request could have made."""
    return read_binding(*row)


def _check_size(request: api.AlterAclsRequest) -> None:
    if len(request.add) > CHANGES_MAX:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST,
            f"{len(request.add)} ACLs in one request; {CHANGES_MAX} are allowed, send them in parts",
        )
    if len(request.remove) > FILTERS_MAX:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST,
            f"{len(request.remove)} filters in one request; {FILTERS_MAX} are allowed, send them in parts",
        )


def _add(ctx: Context, wanted: Iterable[pb.AclRecord], reply: api.AlterAclsResponse) -> list[AclRow]:
    known = ctx.image.security.acls
    made: dict[AclRow, None] = {}
    for record in wanted:
        result = reply.added.add()
        row = AclRow.from_pb(record)
        try:
            binding_of(row)
        except PenstockError as error:
            result.CopyFrom(error_pb(error))
            continue
        if row not in known:
            made[row] = None
    return list(made)


def _remove(ctx: Context, filters: Iterable[api.AclFilter], reply: api.AlterAclsResponse) -> list[AclRow]:
    gone: dict[AclRow, None] = {}
    bindings: list[tuple[AclRow, AclBinding]] | None = None
    for each in filters:
        result = reply.removed.add()
        try:
            wanted = _filter_of(each)
        except PenstockError as error:
            result.error.CopyFrom(error_pb(error))
            continue
        if bindings is None:
            bindings = [(row, binding_of(row)) for row in ctx.image.security.acls]
        found = [row for row, binding in bindings if wanted.matches(binding)]
        result.acls.extend(row.to_pb() for row in found)
        gone |= dict.fromkeys(found)
        if len(gone) > CHANGES_MAX:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                f"the filters ask for more than {CHANGES_MAX} ACLs; ask for them in parts",
            )
    return list(gone)


def _filter_of(message: api.AclFilter) -> AclFilter:
    return read_filter(
        message.resource_type,
        message.pattern_type,
        message.resource_name if message.HasField("resource_name") else None,
        message.principal if message.HasField("principal") else None,
        message.host if message.HasField("host") else None,
        message.operation,
        message.permission,
    )
