"""A gateway's image as the file of a backup: whole, of one version, and in pieces that gRPC carries."""

from __future__ import annotations

import asyncio

from penstock_core.metadata import MetadataImage
from penstock_core.metadata.backup import SECRET_KINDS, decode
from penstock_gateway.rpc.export import PIECE_BYTES, export
from unit.core.metadata.test_image import cluster, full, partition, topic


async def exported(image: MetadataImage, *, secrets: bool) -> list[bytes]:
    return [piece async for piece in export(image, term=7, time_ms=1_700_000_000_000, secrets=secrets)]


async def test_it_is_read_back_with_secrets_only_where_they_were_asked_for() -> None:
    image = full()
    found = decode(b"".join(await exported(image, secrets=True)), "b")
    assert found.image == image
    assert (found.head.raft_term, found.head.raft_index, found.head.controller_id) == (7, 0, 0)
    without = decode(b"".join(await exported(image, secrets=False)), "b").image
    assert not {record.WhichOneof("record") for record in without.to_records()} & SECRET_KINDS


async def test_a_large_one_comes_in_pieces_and_others_run_between_them() -> None:
    records = [cluster(), topic(b"t" * 16, "t"), *(partition(b"t" * 16, n) for n in range(10_000))]
    image = MetadataImage.from_records(records, 5)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    pieces = await exported(image, secrets=False)
    running.cancel()
    assert len(pieces) > 3 and max(map(len, pieces)) < 2 * PIECE_BYTES
    assert turns >= 100
    assert decode(b"".join(pieces), "b").image == image
