"""Somebody who says that a gateway of his relays for an admin."""

from __future__ import annotations

from penstock_proto.v1 import storage_pb2 as api
from security.calls import refused_by_all
from security.target import CERTIFIED, ROLE_PORTS, STRANGER, Outcome, Target, frame

TEXT = 'Forward to a storage node of a CreateTopics by "User:admin"'
NEEDS = ROLE_PORTS
BY = (STRANGER, CERTIFIED)


def run(target: Target) -> Outcome:
    """Open the stream and send one request."""
    request = frame(3, 1, b"\xff\xff\xff\xff", flexible=False)[4:]
    opened = api.ForwardOpen(
        node_id=1,
        client_host="127.0.0.1",
        gateway_id="gateway-1",
        principal_type="User",
        principal_name="admin",
    )
    part = api.ForwardFrame(request_id=1, chunk=request, last=True, frame_bytes=len(request))
    messages = [api.ForwardRequest(open=opened), api.ForwardRequest(frames=[part])]
    return refused_by_all(target, "storage-node", "/penstock.v1.Storage/Forward", messages)
