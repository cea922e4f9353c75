"""Certificates that are let in no more, though they have not run out.

A record goes once its certificate has run out: with the next change, so that the list does not grow for ever.
"""

from __future__ import annotations

from penstock_controller.state.generation import Context, Generated, error_pb
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata.levels import require_level
from penstock_core.metadata.security import RefusedCertificate
from penstock_core.security.serial_number import BadSerial, read_serial
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

LEVEL = 2
REFUSED_MAX = 10_000
"""More of them is another CA's case: replace it."""
_REASON_CHARS_MAX = 200


def alter_refused_certificates(
    ctx: Context, request: api.AlterRefusedCertificatesRequest, own_serial: str = "", now_ms: int = 0
) -> Generated[api.AlterRefusedCertificatesResponse]:
    """Refuse and allow certificates, all or none. `own_serial` is that of the controller that decides.

    What ran out before `now_ms` (since 1970) is forgotten.
    """
    now = dict(ctx.image.security.refused_certificates)
    records: list[pb.MetadataRecord] = []
    try:
        if request.changes:
            require_level(ctx.image, LEVEL, "refused certificates")
            records = _records(request, now, own_serial, now_ms)
    except PenstockError as error:
        return Generated(api.AlterRefusedCertificatesResponse(error=error_pb(error)))
    reply = api.AlterRefusedCertificatesResponse(
        refused=[
            pb.RefusedCertificateRecord(serial=serial, reason=each.reason, not_after_ms=each.not_after_ms)
            for serial, each in sorted(now.items())
        ]
    )
    return Generated(reply, records)


def _records(
    request: api.AlterRefusedCertificatesRequest,
    now: dict[str, RefusedCertificate],
    own_serial: str,
    now_ms: int,
) -> list[pb.MetadataRecord]:
    """The records; `now` is what is refused with them."""
    before = dict(now)
    for change in request.changes:
        try:
            serial = read_serial(change.serial)
        except BadSerial as error:
            raise PenstockError(ErrorCode.INVALID_REQUEST, str(error)) from None
        if change.removed:
            if serial not in now:
                raise PenstockError(
                    ErrorCode.RESOURCE_NOT_FOUND,
                    f"certificate {serial} is not refused; see penstock cert refused",
                )
            del now[serial]
            continue
        if serial == own_serial:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                f"certificate {serial} is the one that this controller uses now; give it a new one first "
                "(penstock cert renew), then refuse the old one",
            )
        now[serial] = RefusedCertificate(change.reason[:_REASON_CHARS_MAX], max(0, change.not_after_ms))
    for serial, each in list(now.items()):
        if 0 < each.not_after_ms < now_ms:
            del now[serial]
    if len(now) > REFUSED_MAX:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST,
            f"{len(now)} certificates would be refused, {REFUSED_MAX} is the most; replace the CA instead",
        )
    changed = [
        pb.RefusedCertificateRecord(serial=serial, reason=each.reason, not_after_ms=each.not_after_ms)
        for serial, each in now.items()
        if before.get(serial) != each
    ]
    gone = [
        pb.RefusedCertificateRecord(serial=serial, removed=True) for serial in before if serial not in now
    ]
    return [pb.MetadataRecord(refused_certificate=record) for record in (*changed, *gone)]
