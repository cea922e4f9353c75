"""The metadata stream: recent history for those who are near, a snapshot for the others.

Every controller keeps the last commands as ready messages; all watchers share them. A
watcher has a bounded queue: one that does not keep up is cut off and comes back by its
version (or for a snapshot), so it never holds memory here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

HISTORY_COMMANDS_MAX = 2000
HISTORY_RECORDS_MAX = 100_000
WATCHER_QUEUE_MAX = 1000
WATCHERS_MAX = 10_000
SNAPSHOT_CHUNK_RECORDS = 1000
KEEPALIVE_S = 0.5


class CutOff(Exception):
    """The watcher must come again; the message says why."""


class Watchers:
    """All metadata streams of this controller."""

    def __init__(self, leader_contact_age_ms: Callable[[], int]) -> None:
        self.image = MetadataImage()
        self._leader_contact_age_ms = leader_contact_age_ms
        self._history: deque[tuple[int, int, api.WatchMetadataResponse]] = deque()
        self._history_records = 0
        self._queues: set[asyncio.Queue[api.WatchMetadataResponse | None]] = set()

    @property
    def count(self) -> int:
        return len(self._queues)

    def applied(self, image: MetadataImage, records: list[pb.MetadataRecord]) -> None:
        """A command was applied; `image` is the state after it."""
        self.image = image
        delta = api.WatchMetadataResponse(delta=pb.MetadataDelta(version=image.version, records=records))
        self._history.append((image.version, len(records), delta))
        self._history_records += len(records)
        while len(self._history) > HISTORY_COMMANDS_MAX or (
            self._history_records > HISTORY_RECORDS_MAX and len(self._history) > 1
        ):
            self._history_records -= self._history.popleft()[1]
        for queue in list(self._queues):
            try:
                queue.put_nowait(delta)
            except asyncio.QueueFull:
                self._cut_off(queue)

    def reset(self, image: MetadataImage) -> None:
        """The metadata jumped: watchers come again, for a snapshot."""
        self.image = image
        self._history.clear()
        self._history_records = 0
        self.cut_off_all()

    def cut_off_all(self) -> None:
        for queue in list(self._queues):
            self._cut_off(queue)

    def _cut_off(self, queue: asyncio.Queue[api.WatchMetadataResponse | None]) -> None:
        self._queues.discard(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)

    async def watch(self, from_version: int) -> AsyncIterator[api.WatchMetadataResponse]:
        """What a subscriber at `from_version` needs, then every change. Raises CutOff."""
        if len(self._queues) >= WATCHERS_MAX:
            raise CutOff(f"{WATCHERS_MAX} watchers are here already; watch another controller")
        queue: asyncio.Queue[api.WatchMetadataResponse | None] = asyncio.Queue(WATCHER_QUEUE_MAX)
        image = self.image
        first = self._since(from_version)
        self._queues.add(queue)
        try:
            if first is None:
                async for chunk in _snapshot(image):
                    yield chunk
            else:
                for delta in first:
                    yield delta
            yield self._keepalive()
            while True:
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        message = await queue.get()
                except TimeoutError:
                    yield self._keepalive()
                    continue
                if message is None:
                    raise CutOff("the stream fell behind; watch again from your version")
                yield message
        finally:
            self._queues.discard(queue)

    def _since(self, from_version: int) -> list[api.WatchMetadataResponse] | None:
        """Deltas after `from_version`; None when only a snapshot will do."""
        if from_version == self.image.version:
            return []
        if not self._history or from_version < self._history[0][0] - 1:
            return None
        return [delta for version, _, delta in self._history if version > from_version]

    def _keepalive(self) -> api.WatchMetadataResponse:
        return api.WatchMetadataResponse(
            keepalive=api.WatchKeepalive(
                version=self.image.version, leader_contact_age_ms=self._leader_contact_age_ms()
            )
        )


async def _snapshot(image: MetadataImage) -> AsyncIterator[api.WatchMetadataResponse]:
    """The image in chunks. Other coroutines run between two of them (the write awaits)."""
    records: list[pb.MetadataRecord] = []
    first = True
    for record in image.to_records():
        if len(records) == SNAPSHOT_CHUNK_RECORDS:
            yield _chunk(image.version, records, first=first, last=False)
            await asyncio.sleep(0)
            records, first = [], False
        records.append(record)
    yield _chunk(image.version, records, first=first, last=True)


def _chunk(
    version: int, records: list[pb.MetadataRecord], *, first: bool, last: bool
) -> api.WatchMetadataResponse:
    return api.WatchMetadataResponse(
        snapshot=pb.MetadataSnapshotChunk(version=version, records=records, first=first, last=last)
    )
