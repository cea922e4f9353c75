"""Producer ids for idempotent producers, from blocks that only this process has.

A block (1,000 ids, KIP-730) comes from a committed command of the controllers and lives
in memory alone: a restarted process asks for a new one, so no id is ever given twice.

Logs that come from elsewhere have ids of their own. When the cluster takes some it passes over all that they may have,
more than a block at once; what is at hand from before is given up then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import PRODUCER_ID_BLOCK_COUNT
from penstock_core.metadata.image import MetadataImage
from penstock_proto.v1 import controller_pb2 as pb
from penstock_proto.v1 import metadata_pb2
from penstock_runtime.controller_client import ControllerClient

_REFILL_BELOW_COUNT = 100


class ProducerIdAllocator:
    """Gives ids out one by one; fetches the next block before the last is used up."""

    def __init__(self, controllers: ControllerClient, owner: str) -> None:
        self._controllers = controllers
        self._owner = owner
        self._next = 0
        self._end = 0
        self._least = 0
        """Those below may be in logs that came from elsewhere."""
        self._following: tuple[int, int] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self.on_arrival: Callable[[], None] = lambda: None
        """Called when a block came: for those whom `take` gave none."""

    def take(self, timeout_ms: int = 15_000) -> int | None:
        """A producer id that nobody else has; None when there is none at hand: one block is on its way then, and
        `on_arrival` called when it comes."""
        if self._next >= self._end and self._following is not None:
            (self._next, self._end), self._following = self._following, None
        if self._next >= self._end:
            self._fetch(timeout_ms)
            return None
        producer_id = self._next
        self._next += 1
        if self._end - self._next < _REFILL_BELOW_COUNT and self._following is None:
            self._fetch(timeout_ms)
        return producer_id

    async def allocate(self, timeout_ms: int = 15_000) -> int:
        """A producer id that nobody else has.

        Raises REQUEST_TIMED_OUT when no controller gave a block within `timeout_ms`.
        """
        while (producer_id := self.take(timeout_ms)) is None:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    # Shielded: others wait for the same block.
                    await asyncio.shield(self._fetch(timeout_ms))
            except TimeoutError:
                raise PenstockError(
                    ErrorCode.REQUEST_TIMED_OUT, f"no producer ids within {timeout_ms} ms"
                ) from None
        return producer_id

    def metadata_changed(
        self, old: MetadataImage, _new: MetadataImage, records: Sequence[metadata_pb2.MetadataRecord]
    ) -> None:
        """Be told of every change. After a snapshot nobody knows whether ids were passed over: they may have been."""
        before = old.next_producer_id
        for record in records:
            if record.HasField("producer_ids"):
                after = record.producer_ids.next_producer_id
                if after - before > PRODUCER_ID_BLOCK_COUNT:
                    self._least = after
                before = after
        if self._next < self._least:
            self._next = self._end = 0
        if self._following is not None and self._following[0] < self._least:
            self._following = None

    async def close(self) -> None:
        """Give up a fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _fetch(self, timeout_ms: int) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_block(timeout_ms))
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        # Whoever waits gets the error; one that nobody waited for shows at the next need.
        if not task.cancelled() and task.exception() is None:
            self.on_arrival()

    async def _fetch_block(self, timeout_ms: int) -> None:
        response: pb.AllocateProducerIdsResponse = await self._controllers.call(
            "AllocateProducerIds", pb.AllocateProducerIdsRequest(owner=self._owner), timeout_ms
        )
        if response.error.code:
            raise PenstockError(ErrorCode(response.error.code), response.error.message)
        if response.count < 1:
            raise PenstockError(ErrorCode.UNKNOWN_SERVER_ERROR, "the controller gave an empty block of ids")
        first = response.first_producer_id
        if first >= self._least:
            self._following = (first, first + response.count)
