"""Somebody who says that he is a gateway: the real ones would send clients to him."""

from __future__ import annotations

import os

from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from security.calls import refused_by_all
from security.target import CERTIFIED, ROLE_PORTS, STRANGER, Outcome, Target

TEXT = "RegisterGateway of a gateway with an address of the stranger's"
NEEDS = ROLE_PORTS
BY = (STRANGER, CERTIFIED)


def run(target: Target) -> Outcome:
    """Ask the active controller."""
    advertised = [pb.AdvertisedAddress(network="*", host="203.0.113.7", port=9092)]
    request = api.RegisterGatewayRequest(
        gateway_id=f"gateway-{os.getpid()}",
        grpc=common.Endpoint(host="203.0.113.7", port=9093),
        listeners=[pb.GatewayListener(name="PROXY", mode="proxy", advertised=advertised)],
    )
    return refused_by_all(target, "controller", "/penstock.v1.Controller/RegisterGateway", [request])
