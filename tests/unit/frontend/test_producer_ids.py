"""Producer ids of a process: from its blocks, and from none that may be in logs which came from elsewhere."""

from __future__ import annotations

from typing import Any, cast

from penstock_core.limits import PRODUCER_ID_BLOCK_COUNT as BLOCK
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.controller_client import ControllerClient


class Cluster:
    """Gives out blocks, and tells of it when asked to."""

    def __init__(self) -> None:
        self.next_id = self.blocks = 0
        self.untold: list[pb.MetadataRecord] = []
        self._image = MetadataImage()
        self.between: Any = lambda: None
        """Called when a block is decided and not yet answered."""

    async def call(self, method: str, request: Any, timeout_ms: int) -> api.AllocateProducerIdsResponse:
        first = self.next_id
        self.rise(BLOCK)
        self.blocks += 1
        self.between()
        return api.AllocateProducerIdsResponse(first_producer_id=first, count=BLOCK)

    def rise(self, count: int) -> None:
        self.next_id += count
        record = pb.ProducerIdsRecord(next_producer_id=self.next_id)
        self.untold.append(pb.MetadataRecord(producer_ids=record))

    def tell(self, ids: ProducerIdAllocator) -> None:
        records, self.untold = self.untold, []
        old, self._image = self._image, self._image.apply(records, self._image.version + 1)
        ids.metadata_changed(old, self._image, records)


def allocator(cluster: Cluster) -> ProducerIdAllocator:
    return ProducerIdAllocator(cast(ControllerClient, cluster), "test")


async def test_what_is_at_hand_is_given_up_when_ids_were_passed_over() -> None:
    cluster = Cluster()
    ids = allocator(cluster)
    assert [await ids.allocate() for _ in range(BLOCK - 50)] == list(range(BLOCK - 50))
    while cluster.blocks < 2:  # the next block is at hand before this one is used up
        await ids.allocate()
    cluster.rise(1_000_000)
    cluster.tell(ids)
    assert await ids.allocate() == 1_000_000 + 2 * BLOCK
    await ids.close()


async def test_blocks_of_others_take_nothing_away() -> None:
    cluster = Cluster()
    ids = allocator(cluster)
    assert await ids.allocate() == 0
    for _ in range(5):
        cluster.rise(BLOCK)
    cluster.tell(ids)
    assert await ids.allocate() == 1
    assert cluster.blocks == 1
    await ids.close()


async def test_a_block_that_was_under_way_is_not_used() -> None:
    cluster = Cluster()
    ids = allocator(cluster)

    def others_logs_come() -> None:
        cluster.between = lambda: None
        cluster.rise(1_000_000)
        cluster.tell(ids)

    cluster.between = others_logs_come
    assert await ids.allocate() == 1_000_000 + BLOCK
    assert cluster.blocks == 2
    await ids.close()


async def test_whoever_has_seen_nothing_before_begins_above_all() -> None:
    cluster = Cluster()
    cluster.rise(7 * BLOCK)
    ids = allocator(cluster)
    cluster.tell(ids)
    assert await ids.allocate() == 7 * BLOCK
    await ids.close()
