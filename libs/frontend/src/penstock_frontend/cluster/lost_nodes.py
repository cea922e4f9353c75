"""Nodes that died and are brokers to clients of librdkafka all the same.

librdkafka takes a broker that its Metadata no longer names for decommissioned and ends that broker's thread
(since 2.10), but goes on with what it remembers of coordinators: a request to a group's coordinator waits then for a
connection that nobody makes (rd_kafka_coord_req_fsm), for ten minutes and more. Seen with a transactional producer
between two `send_offsets_to_transaction`: its transaction times out meanwhile, and it ends with an error that it
cannot mend. Named on, the broker gives an answer or an error, and the client asks for the coordinator anew.

Through a gateway the address of a dead node is as good as any other's, and the client may go on with it for as long
as the node is registered. At a node's own listener each request to the dead one fails, which ends what the client
remembers; what it has not used for `metadata.max.age.ms` (900 s) it forgets. So there it is named for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_frontend.cluster.address_view import AddressView, is_relayed
from penstock_frontend.listener.client_software import is_librdkafka
from penstock_frontend.listener.connection import Connection

NAMED_MS: Final = 20 * 60_000
"""For how long a dead node is named at the listeners of others."""


class LostNodes:
    """Knows since when nodes are fenced."""

    def __init__(self, addresses: AddressView, clock_ms: Callable[[], int]) -> None:
        self._addresses = addresses
        self._clock_ms = clock_ms
        self._since_ms: dict[NodeId, int] = {}
        self._nodes: Mapping[NodeId, NodeImage] = {}

    def metadata_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Follow the metadata."""
        if old.nodes is new.nodes:
            return
        self._nodes = new.nodes
        now_ms = self._clock_ms()
        fenced = [node.node_id for node in new.nodes.values() if node.fenced]
        self._since_ms = {node_id: self._since_ms.get(node_id, now_ms) for node_id in fenced}

    def named(self, connection: Connection) -> frozenset[NodeId]:
        """The fenced nodes that Metadata names to this client."""
        if not self._since_ms or not is_librdkafka(connection):
            return frozenset()
        now_ms, nodes = self._clock_ms(), self._nodes
        return frozenset(
            node_id
            for node_id, since_ms in self._since_ms.items()
            if (address := self._addresses.node_address(connection, nodes[node_id])) is not None
            and (now_ms - since_ms < NAMED_MS or is_relayed(address, nodes[node_id]))
        )
