"""Registration and removal of gateways. A gateway exists only as long as its session."""

from __future__ import annotations

from penstock_controller.state.causes import cause
from penstock_controller.state.features import refusal
from penstock_controller.state.generation import Context, Generated, NextCommand, make_error
from penstock_core.errors import ErrorCode
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

GATEWAY_ID_LENGTH_MAX = 200


def register_gateway(
    ctx: Context, request: api.RegisterGatewayRequest
) -> Generated[api.RegisterGatewayResponse]:
    """Name the gateway from now on. A later one of the same id takes the place of the earlier."""
    image = ctx.image
    error = None
    if request.cluster_id and request.cluster_id != image.cluster_id:
        error = make_error(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"the gateway knows cluster {request.cluster_id.hex()}, this is {image.cluster_id.hex()}; "
            "point controllers at its own cluster",
        )
    elif not 0 < len(request.gateway_id) <= GATEWAY_ID_LENGTH_MAX:
        error = make_error(
            ErrorCode.INVALID_REQUEST, f"gateway_id needs 1 to {GATEWAY_ID_LENGTH_MAX} characters"
        )
    else:
        error = refusal(image, request.process)
    if error is not None:
        return Generated(api.RegisterGatewayResponse(error=error))
    old = image.gateways.get(request.gateway_id)
    if old is not None and old.gateway_epoch == ctx.version:
        raise NextCommand
    record = pb.GatewayRecord(
        gateway_id=request.gateway_id,
        gateway_epoch=ctx.version,
        process=request.process,
        listeners=request.listeners,
        grpc=request.grpc,
        http=request.http,
    )
    reply = api.RegisterGatewayResponse(
        gateway_epoch=ctx.version, cluster_id=image.cluster_id, version=ctx.version
    )
    why = cause("register", f"gateway {request.gateway_id}", "new" if old is None else "")
    return Generated(reply, [pb.MetadataRecord(gateway=record)], causes=why)


def remove_gateway(ctx: Context, gateway_id: str, gateway_epoch: int, reason: str = "") -> Generated[bool]:
    """Name the gateway no more; the reply says whether it was named. `reason` is history."""
    gateway = ctx.image.gateways.get(gateway_id)
    if gateway is None or gateway.gateway_epoch != gateway_epoch:
        return Generated(False)
    removed = pb.GatewayRemovedRecord(gateway_id=gateway_id)
    why = cause("fence", f"gateway {gateway_id}", reason)
    return Generated(True, [pb.MetadataRecord(gateway_removed=removed)], causes=why)
