"""What is amiss with controllers, with builds, and with operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from penstock_controller.state.controllers import QuorumView, is_voter
from penstock_controller.state.observations.findings import ERROR, INFO, WARNING, finding, some
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import METADATA_LEVEL, level_of, understood
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb


class ControllerSaid(NamedTuple):
    """What a controller answered when it was asked how it is."""

    version: str
    feature_level: int
    not_voting_reason: str = ""


class Build(NamedTuple):
    """A build, as processes tell it."""

    version: str
    level: int
    """The metadata level that it understands at most."""


NOT_THERE: Final = "it is not there"


def process_findings(
    image: MetadataImage, quorum: QuorumView, controllers: Mapping[int, ControllerSaid]
) -> Iterator[pb.Finding]:
    """`controllers`: those that answered, the active one too."""
    yield from _quorum(image, quorum, controllers)
    yield from _builds(image, controllers)
    for operation_id, record in sorted(image.operations.operations.items()):
        if record.state == meta.OPERATION_STATE_PAUSED:
            yield finding(
                WARNING,
                "operation-paused",
                f"operation {operation_id}",
                f"{record.kind} is paused: {record.reason or 'nobody said why'}",
                f"`penstock operation resume {operation_id}` once it may go on, or "
                f"`penstock operation cancel {operation_id}`",
            )


def _quorum(
    image: MetadataImage, quorum: QuorumView, controllers: Mapping[int, ControllerSaid]
) -> Iterator[pb.Finding]:
    missing: dict[int, tuple[str, str]] = {}
    for controller_id in sorted(quorum.members - {quorum.controller_id}):
        trouble = _trouble(image, quorum, controllers, controller_id)
        if trouble is not None:
            missing[controller_id] = trouble
    voting = len(quorum.members) - len(missing)
    majority = len(quorum.members) // 2 + 1
    # Whether one fewer would be too few.
    severity = ERROR if voting - 1 < majority else WARNING
    for controller_id, (detail, hint) in missing.items():
        yield finding(
            severity,
            "controller-not-voting",
            f"controller {controller_id}",
            f"{detail}; {voting} of {len(quorum.members)} vote",
            hint,
        )


def _trouble(
    image: MetadataImage, quorum: QuorumView, controllers: Mapping[int, ControllerSaid], controller_id: int
) -> tuple[str, str] | None:
    """Why a controller does not vote, and the mend."""
    connected = quorum.connected.get(controller_id)
    if connected is None:
        return NOT_THERE, "start it again; `penstock controller list` shows all of them"
    if not is_voter(image, controller_id, connected):
        return (
            "it came with another data directory than the one it votes with",
            f"start it with its own, or admit the new one: `penstock controller replace {controller_id}`",
        )
    said = controllers.get(controller_id)
    if said is not None and said.not_voting_reason:
        return f"it does not vote: {said.not_voting_reason}", "`penstock controller list` shows how far it is"
    return None


def _builds(image: MetadataImage, controllers: Mapping[int, ControllerSaid]) -> Iterator[pb.Finding]:
    builds: dict[Build, list[str]] = {}
    for controller_id, said in sorted(controllers.items()):
        _note(builds, said.version, said.feature_level, f"controller-{controller_id}")
    for node_id, node in sorted(image.nodes.items()):
        if not node.fenced:
            _note(builds, node.version, node.feature_level, f"node-{node_id}")
    for gateway_id, gateway in sorted(image.gateways.items()):
        process = gateway.record.process
        _note(builds, process.version, process.feature_level, gateway_id)
    if len(builds) > 1:
        told = "; ".join(
            f"{build.version or 'unknown'} (level {build.level}): {some(names)}"
            for build, names in sorted(builds.items())
        )
        yield finding(
            WARNING,
            "mixed-versions",
            "cluster",
            f"processes of {len(builds)} builds: {told}",
            "restart the older ones with the new build; `penstock cluster upgrade` shows each",
        )
    level = level_of(image)
    knows = min((build.level for build in builds), default=FEATURE_LEVEL)
    if knows > level:
        yield finding(
            INFO,
            "level-behind",
            "cluster",
            f"{METADATA_LEVEL} is {level}, every process understands {knows}",
            "`penstock cluster upgrade` raises it; older builds are refused from then on",
        )


def _note(builds: dict[Build, list[str]], version: str, feature_level: int, name: str) -> None:
    builds.setdefault(Build(version, understood(feature_level)), []).append(name)


__all__ = ["ControllerSaid", "process_findings"]
