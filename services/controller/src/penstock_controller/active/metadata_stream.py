"""The metadata stream: recent history for those who are near, a snapshot for the others.

Every controller keeps the last commands as ready messages; all watchers share them. A
watcher has a bounded queue: one that does not keep up is cut off and comes back by its
version (or for a snapshot), so it never holds memory here.

Nothing takes long: a large delta becomes messages part by part, when the first watcher
comes to them, and a snapshot goes out a few records at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import level_of
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

HISTORY_COMMANDS_MAX = 2000
HISTORY_RECORDS_MAX = 100_000
WATCHER_QUEUE_MAX = 1000
WATCHERS_MAX = 10_000
CHUNK_RECORDS = 100
"""Records of one message, of a delta as of a snapshot: under a millisecond at either end."""
KEEPALIVE_S = 0.5


class CutOff(Exception):
    """The watcher must come again; the message says why."""


class _Change:
    """One version's delta as ready messages; all watchers share them."""

    def __init__(self, version: int, records: list[pb.MetadataRecord]) -> None:
        self.version = version
        self.record_count = len(records)
        self._records = records
        self._messages: list[api.WatchMetadataResponse] = []

    def messages(self) -> Iterator[api.WatchMetadataResponse]:
        count = max(1, -(-self.record_count // CHUNK_RECORDS))
        for part in range(count):
            if part == len(self._messages):
                records = self._records[part * CHUNK_RECORDS : (part + 1) * CHUNK_RECORDS]
                delta = pb.MetadataDelta(
                    version=self.version, records=records, part=part, more=part + 1 < count
                )
                self._messages.append(api.WatchMetadataResponse(delta=delta))
            yield self._messages[part]


class MetadataStreams:
    """All metadata streams of this controller."""

    def __init__(
        self, leader_contact: Callable[[], tuple[int, int]], keepalive_s: float = KEEPALIVE_S
    ) -> None:
        """`leader_contact`: see `Quorum.leader_contact`."""
        self.image = MetadataImage()
        self._leader_contact = leader_contact
        self._keepalive_s = keepalive_s
        self._history: deque[_Change] = deque()
        self._history_records = 0
        self._queues: dict[asyncio.Queue[_Change | None], None] = {}
        """Of the watchers, in the order in which they came."""

    @property
    def count(self) -> int:
        return len(self._queues)

    def applied(self, image: MetadataImage, records: list[pb.MetadataRecord]) -> None:
        """A command was applied; `image` is the state after it."""
        fell = level_of(image) < level_of(self.image)
        self.image = image
        change = _Change(image.version, records)
        self._history.append(change)
        self._history_records += change.record_count
        while len(self._history) > HISTORY_COMMANDS_MAX or (
            self._history_records > HISTORY_RECORDS_MAX and len(self._history) > 1
        ):
            self._history_records -= self._history.popleft().record_count
        if fell:
            # Whoever comes now may be of a build that cannot read how it came to this.
            self._history.clear()
            self._history_records = 0
        for queue in list(self._queues):
            try:
                queue.put_nowait(change)
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

    def _cut_off(self, queue: asyncio.Queue[_Change | None]) -> None:
        self._queues.pop(queue, None)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)

    async def watch(self, from_version: int) -> AsyncIterator[api.WatchMetadataResponse]:
        """What a subscriber at `from_version` needs, then every change. Raises CutOff."""
        if len(self._queues) >= WATCHERS_MAX:
            raise CutOff(f"{WATCHERS_MAX} watchers are here already; watch another controller")
        queue: asyncio.Queue[_Change | None] = asyncio.Queue(WATCHER_QUEUE_MAX)
        image = self.image
        first = self._since(from_version)
        self._queues[queue] = None
        try:
            if first is None:
                async for chunk in _snapshot(image):
                    yield chunk
            else:
                for change in first:
                    for message in change.messages():
                        yield message
            yield self._keepalive()
            while True:
                try:
                    async with asyncio.timeout(self._keepalive_s):
                        following = await queue.get()
                except TimeoutError:
                    yield self._keepalive()
                    continue
                if following is None:
                    raise CutOff("the stream fell behind; watch again from your version")
                for message in following.messages():
                    yield message
        finally:
            self._queues.pop(queue, None)

    def _since(self, from_version: int) -> list[_Change] | None:
        """Deltas after `from_version`; None when only a snapshot will do."""
        if from_version == self.image.version:
            return []
        if not self._history or from_version < self._history[0].version - 1:
            return None
        return [change for change in self._history if change.version > from_version]

    def _keepalive(self) -> api.WatchMetadataResponse:
        age_ms, term = self._leader_contact()
        return api.WatchMetadataResponse(
            keepalive=api.WatchKeepalive(
                version=self.image.version, leader_contact_age_ms=age_ms, controller_term=term
            )
        )


async def _snapshot(image: MetadataImage) -> AsyncIterator[api.WatchMetadataResponse]:
    """The image in chunks. Other coroutines run between two of them (the write awaits)."""
    records: list[pb.MetadataRecord] = []
    first = True
    for record in image.to_records():
        if len(records) == CHUNK_RECORDS:
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
