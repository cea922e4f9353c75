"""All that is not as it should be in a cluster."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from penstock_controller.state.controllers import QuorumView
from penstock_controller.state.observations import partitions
from penstock_controller.state.observations.evenness import evenness
from penstock_controller.state.observations.findings import in_order
from penstock_controller.state.observations.nodes import node_findings
from penstock_controller.state.observations.processes import ControllerSaid, process_findings
from penstock_controller.state.observations.spread import Spread
from penstock_controller.state.operations.cluster_counts import sharing_nodes
from penstock_controller.state.operations.reports import Reports
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import operations_pb2 as pb


@dataclass(frozen=True, slots=True)
class CheckView:
    """What is known beside the image."""

    reports: Reports
    quorum: QuorumView
    controllers: Mapping[int, ControllerSaid]
    """Those that answered when they were asked."""


def check_steps(image: MetadataImage, view: CheckView) -> Generator[None, None, pb.CheckClusterResponse]:
    """What is amiss, gravest first, in slices of partitions. What nobody told yet is not held against anybody."""
    spread = Spread.of(image)
    found, seen = yield from partitions.look(image, spread, frozenset(sharing_nodes(image)))
    found += node_findings(image, spread, view.reports, seen)
    found += evenness(image, spread, seen)
    found += process_findings(image, view.quorum, view.controllers)
    return pb.CheckClusterResponse(findings=in_order(found), metadata_version=image.version)


__all__ = ["CheckView", "check_steps"]
