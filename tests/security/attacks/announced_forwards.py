"""Frames that are announced to a storage node by Forward, and never come."""

from __future__ import annotations

from penstock_proto.v1 import storage_pb2 as api
from security.calls import refused_by_all
from security.target import CERTIFIED, ROLE_PORTS, STRANGER, Outcome, Target

TEXT = "Forward of eight frames of 100 MiB each, announced in 60 bytes"
NEEDS = ROLE_PORTS
BY = (STRANGER, CERTIFIED)


def run(target: Target) -> Outcome:
    """Announce."""
    opened = api.ForwardOpen(node_id=1, gateway_id="gateway-1", principal_type="User", principal_name="bad")
    parts = [api.ForwardFrame(request_id=n, chunk=b"\0\0", frame_bytes=100 << 20) for n in range(1, 9)]
    messages = [api.ForwardRequest(open=opened), *(api.ForwardRequest(frames=[part]) for part in parts)]
    return refused_by_all(target, "storage-node", "/penstock.v1.Storage/Forward", messages)
