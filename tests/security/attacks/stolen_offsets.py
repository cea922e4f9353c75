"""Records of a topic that no client may read, asked for where gateways ask."""

from __future__ import annotations

from penstock_proto.v1 import data_pb2 as api
from security.calls import refused_by_all
from security.target import CERTIFIED, ROLE_PORTS, STRANGER, Outcome, Target

TEXT = "FetchRange of a storage node, as gateways ask for it"
NEEDS = ROLE_PORTS
BY = (STRANGER, CERTIFIED)


def run(target: Target) -> Outcome:
    """Ask."""
    return refused_by_all(
        target, "storage-node", "/penstock.v1.Storage/FetchRange", [api.FetchRangeRequest()]
    )
