"""Where clients are told that nodes are: a gateway's answer differs from a storage node's.

What `ClusterApis` and `Coordinators` ask of the process that they are part of.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_frontend.listener.connection import Connection


class AddressView(Protocol):
    """What clients of this process are told of where nodes are."""

    def node_address(self, connection: Connection, node: NodeImage) -> tuple[str, int] | None:
        """Host and port for that client; None leaves the node out.

        May depend on the image and on what `view_key` tells apart, and on nothing else: answers are
        kept by those.
        """
        ...

    def view_key(self, connection: Connection) -> Hashable:
        """The same for two clients that are told the same by `node_address`, as of the newest image."""
        ...

    def apis(self, image: MetadataImage) -> Mapping[int, tuple[int, int]]:
        """Version ranges to advertise."""
        ...


def is_relayed(address: tuple[str, int], node: NodeImage) -> bool:
    """Whether it is a gateway's address that clients are told for the node: at its own listeners it is the node's
    own, whatever gateways do."""
    return all((each.host, each.port) != address for each in node.listeners.values())
