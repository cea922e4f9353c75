"""Processes of the cluster as operations name them, and what their controllers said when they were asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage, NodeImage

CONTROLLER: Final = "controller"
NODE: Final = "storage-node"
GATEWAY: Final = "gateway"
ROLES: Final = (GATEWAY, NODE, CONTROLLER)
"""In the order in which they are restarted: what others depend on comes last."""
BEHIND_MAX: Final = 1_000
"""Entries of the log that a controller may lack and still be one to count on."""


@dataclass(frozen=True, slots=True)
class ControllerSeen:
    """What one controller said of itself."""

    boot_id: bytes
    voting: bool = True
    behind_entries: int = 0
    directory_id: bytes = b""


@dataclass(frozen=True, slots=True)
class QuorumSeen:
    """The controllers as the active one found them when it asked them all; without members nobody was asked yet."""

    members: frozenset[int] = frozenset()
    active_id: int = -1
    answers: Mapping[int, ControllerSeen] = field(default_factory=dict)
    """Of those that answered, the active one too."""

    def trouble_of(self, controller_id: int) -> str:
        """As `trouble`, of one of them, whatever ails the others."""
        seen = {i: answer for i, answer in self.answers.items() if i == controller_id}
        return QuorumSeen(self.members & {controller_id}, self.active_id, seen).trouble()

    def trouble(self) -> str:
        """Why one of them may not be missed now, for people; empty where all vote and are up to date."""
        silent = sorted(self.members - self.answers.keys())
        said = []
        if silent:
            said.append(f"{_named(silent)} cannot be reached")
        mute = sorted(i for i, seen in self.answers.items() if not seen.voting)
        if mute:
            said.append(f"{_named(mute)} may not vote")
        late = sorted(
            i for i, seen in self.answers.items() if seen.voting and seen.behind_entries > BEHIND_MAX
        )
        if late:
            said.append(f"{_named(late)} lacks more than {BEHIND_MAX:,} entries of the log")
        return f"{'; '.join(said)}: see `penstock controller list`" if said else ""


NOT_ASKED: Final = QuorumSeen()
"""Nobody has asked them yet."""


def controller_name(controller_id: int) -> str:
    """As operations name it."""
    return f"controller-{controller_id}"


def node_name(node_id: int) -> str:
    """As operations name it."""
    return f"node-{node_id}"


def controller_id_of(name: str) -> int:
    """The controller of a name that `controller_name` made."""
    return int(name.removeprefix("controller-"))


def node_id_of(name: str) -> NodeId:
    """The node of a name that `node_name` made."""
    return NodeId(int(name.removeprefix("node-")))


def node_of(image: MetadataImage, name: str) -> NodeImage | None:
    """The storage node of a name, if it is registered."""
    return image.nodes.get(node_id_of(name))


def all_processes(image: MetadataImage, quorum: QuorumSeen) -> Iterator[tuple[str, str]]:
    """Role and name of each, in the order in which they are restarted; the active controller is the last."""
    for gateway_id in sorted(image.gateways):
        yield GATEWAY, gateway_id
    for node_id in sorted(image.nodes):
        yield NODE, node_name(node_id)
    for controller_id in sorted(quorum.members, key=lambda i: (i == quorum.active_id, i)):
        yield CONTROLLER, controller_name(controller_id)


def boot_id_of(image: MetadataImage, quorum: QuorumSeen, role: str, name: str) -> bytes:
    """Of the process that has the name now; empty while there is none, or it does not answer."""
    if role == GATEWAY:
        gateway = image.gateways.get(name)
        return b"" if gateway is None else gateway.record.process.boot_id
    if role == NODE:
        node = node_of(image, name)
        return b"" if node is None else node.boot_id
    seen = quorum.answers.get(controller_id_of(name))
    return b"" if seen is None else seen.boot_id


def http_of(image: MetadataImage, role: str, name: str) -> str:
    """Where it serves health; empty where the metadata do not say it."""
    if role == GATEWAY:
        gateway = image.gateways.get(name)
        where = None if gateway is None else gateway.record.http
    else:
        node = node_of(image, name) if role == NODE else None
        where = None if node is None else node.http.to_pb()
    return "" if where is None or not where.port else f"{where.host}:{where.port}"


def _named(controller_ids: list[int]) -> str:
    return f"controller{'s' * (len(controller_ids) > 1)} {', '.join(map(str, controller_ids))}"
