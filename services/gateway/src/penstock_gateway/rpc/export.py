"""`ExportMetadata`: the gateway's own image as the file of a backup, in pieces (docs/decisions/0057).

An image is immutable, so what is sent is of one version, however long it takes. It is as new as the gateway is: one
that hears of no controller any more still has what it heard last, which may be the best there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from penstock_core.metadata import MetadataImage
from penstock_core.metadata.backup import BackupHead, encode
from penstock_core.metadata.levels import level_of

PIECE_BYTES: Final = 64 * 1024


async def export(image: MetadataImage, *, term: int, time_ms: int, secrets: bool) -> AsyncIterator[bytes]:
    """The file in pieces. `term` is the highest that was heard of; `time_ms` is now, in ms since 1970."""
    head = BackupHead(
        cluster_id=image.cluster_id.hex(),
        metadata_version=image.version,
        metadata_level=level_of(image),
        raft_term=term,
        time_ms=time_ms,
        secrets=secrets,
    )
    piece = bytearray()
    for part in encode(image, head):
        piece += part
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
        await asyncio.sleep(0)  # a part is well under a millisecond; others first
    yield bytes(piece)


__all__ = ["export"]
