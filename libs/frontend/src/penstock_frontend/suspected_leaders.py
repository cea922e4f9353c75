"""Leaders that are believed to be dead, a moment before the metadata say so.

A client that dials leaders itself asks another node for metadata as soon as its connection
breaks. Nobody can have elected a new leader by then; librdkafka, told the old one, asks
again only a second later. But the node that is asked has lost its own connection to that
leader in the same instant: it keeps the answer back until the metadata change, at most
SUSPICION_MS. Seen: a one-partition client waited 1.5 s, now a third of that.

(To go on naming the dead node for some seconds was tried too, so that librdkafka doesn't
take its broker down with partitions on it. That makes its reconnect pauses grow, up to
10 s, and those are still on when the node is back. With librdkafka 2.16, and a broker that
is named and leads nothing, that was not seen any more: decision 0075.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_runtime.metadata_client import MetadataClient

SUSPICION_MS: Final = 300
"""A dead process is fenced within a tenth of a second; one that lives is suspected no longer."""

QUIET_MS: Final = 3_000
"""Only the first break after such a time is news; a node that this process can't reach for
long, but the controllers can, holds up no answers."""


class SuspectedLeaders:
    """Of one process."""

    def __init__(self, metadata: MetadataClient, clock_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._clock_ms = clock_ms
        self._suspects: dict[NodeId, int] = {}
        self._broke_ms: dict[NodeId, int] = {}
        metadata.on_change(lambda _, new, __: self._changed(new))

    def suspect(self, node_id: NodeId) -> None:
        """The connection to that node broke, or could not be made again."""
        now_ms = self._clock_ms()
        before_ms = self._broke_ms.get(node_id, now_ms - QUIET_MS)
        self._broke_ms[node_id] = now_ms
        node = self._metadata.image.nodes.get(node_id)
        if node is not None and not node.fenced and now_ms - before_ms >= QUIET_MS:
            self._suspects[node_id] = now_ms + SUSPICION_MS

    @property
    def any(self) -> bool:
        """Whether the metadata are about to change."""
        return bool(self._suspects) and self._left_ms() > 0

    async def settled(self) -> None:
        """Until the metadata have taken note of every suspect, or the suspicion is over."""
        deadline_ms = self._clock_ms() + SUSPICION_MS
        while (left_ms := min(self._left_ms(), deadline_ms - self._clock_ms())) > 0:
            await self._metadata.wait_for_version(self._metadata.image.version + 1, left_ms)

    def _left_ms(self) -> int:
        now_ms = self._clock_ms()
        for node_id in [n for n, until_ms in self._suspects.items() if until_ms <= now_ms]:
            del self._suspects[node_id]
        return max((until_ms - now_ms for until_ms in self._suspects.values()), default=0)

    def _changed(self, new: MetadataImage) -> None:
        for node_id in [n for n in self._suspects if n not in new.nodes or new.nodes[n].fenced]:
            del self._suspects[node_id]
