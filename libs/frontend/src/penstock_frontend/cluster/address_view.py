"""Where clients are told that nodes are: a gateway's answer differs from a storage node's.

What `ClusterApis` and `Coordinators` ask of the process that they are part of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_frontend.listener.connection import Connection


class AddressView(Protocol):
    """What clients of this process are told of where nodes are."""

    def node_address(self, connection: Connection, node: NodeImage) -> tuple[str, int] | None:
        """Host and port for that client; None leaves the node out.

        May depend on the image, the connection's listener, its local and peer host, and
        nothing else: answers are kept by those.
        """
        ...

    def apis(self, image: MetadataImage) -> Mapping[int, tuple[int, int]]:
        """Version ranges to advertise."""
        ...
