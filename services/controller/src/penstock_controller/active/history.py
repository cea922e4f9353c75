"""What this controller remembers of what it applied: told to `penstock explain`, kept in a file beside the journal.

What is applied waits in a queue and is turned into events in slices of a millisecond; the file is written in a thread.
Nobody waits for either. Entries of the journal that are replayed at the start are passed over as far as the file knows
them. Any controller does this, the active one or not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock_controller.active.events_file import EventsFile, Kept
from penstock_controller.quorum import Applied
from penstock_controller.state.history.events import events_of
from penstock_controller.state.history.frames import frame
from penstock_controller.state.history.memory import EVENTS_MAX, KEPT_MS, EventMemory
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import operations_pb2 as api

SLICE_MS: Final = 1
WAITING_MAX: Final = 20_000
"""Commands that wait to be turned into events; beyond, the oldest are dropped and leave a gap."""
FRAME_EVENTS: Final = 250
WRITE_BYTES: Final = 1024 * 1024
MARK_S: Final = 0.5
"""After this long a version without events is noted, so that it is no gap after a restart."""
LIMIT_DEFAULT: Final = 1_000
LIMIT_MAX: Final = 5_000


class _Step(NamedTuple):
    before: MetadataImage
    applied: Applied


class History:
    """Events of this controller. Does nothing until it is opened."""

    def __init__(
        self, wall_ms: Callable[[], int], warn: Callable[[str], None], events_max: int = EVENTS_MAX
    ) -> None:
        """`wall_ms`: ms since 1970. `warn` is told, once, why the file is not written."""
        self.memory = EventMemory(events_max)
        self._wall_ms = wall_ms
        self._warn = warn
        self._file: EventsFile | None = None
        self._on = False
        self._seen = 0
        """Version up to which everything was taken, or jumped over."""
        self._queue: deque[_Step | None] = deque()
        """None: a gap."""
        self._gap = False
        """Something before what comes next is not known."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._written = 0
        """Version up to which the file tells all."""
        self._version = 0
        """Version up to which the memory does."""

    async def open(self, file: EventsFile) -> None:
        """Take what the file holds. To be called before anything is applied."""
        self._on = True
        try:
            kept = await asyncio.to_thread(self._read, file)
        except OSError as error:
            self._warn(
                f"events.log cannot be read: {error.strerror or error}; events are kept in memory alone"
            )
            return
        self._file = file
        if kept.frames:
            self._seen = self._version = self._written = kept.frames[-1].version

    def _read(self, file: EventsFile) -> Kept:
        now_ms = self._wall_ms()
        kept = file.open(now_ms)
        # From the end: most of two full files would be read in vain.
        needed, first = 0, len(kept.frames)
        while first and needed < EVENTS_MAX:
            first -= 1
            needed += len(kept.frames[first].events())
        gap_ms = max((each.gap_ms for each in kept.frames), default=0)
        gap_ms = max(gap_ms, kept.gap_ms)
        oldest_ms = 0
        for each in kept.frames[first:]:
            for event in each.events():
                oldest_ms = oldest_ms or event.time_ms
                if event.time_ms >= now_ms - KEPT_MS:
                    self.memory.add(event)
        if first:
            self.memory.mark_gap(oldest_ms)
        self.memory.mark_gap(gap_ms)
        return kept

    # --- what comes ---------------------------------------------------------------------------

    def applied(self, before: MetadataImage, applied: Applied) -> None:
        """A command was applied to `before`."""
        version = applied.image.version
        if not self._on or version <= self._seen:
            return
        self._seen = version
        if len(self._queue) >= WAITING_MAX:
            self._queue.popleft()
            self._queue[0] = None
        self._take(_Step(before, applied))

    def jumped(self, image: MetadataImage) -> None:
        """The metadata came as a whole: what led there is known only as far as it was seen before."""
        if self._on and image.version > self._seen:
            self._seen = image.version
            self._take(None)

    def _take(self, item: _Step | None) -> None:
        self._queue.append(item)
        self._idle.clear()
        self._wake.set()

    # --- events -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Turn what was applied into events, for ever."""
        while True:
            try:
                marking = self._written < self._version
                await asyncio.wait_for(self._wake.wait(), MARK_S if marking else None)
            except TimeoutError:
                await self._mark()
                continue
            self._wake.clear()
            out: list[bytes] = []
            while self._queue:
                await self._try(self._queue.popleft(), out)
                if sum(map(len, out)) >= WRITE_BYTES:
                    await self._write(out)
                    out = []
            await self._write(out)
            if not self._queue:
                self._idle.set()

    async def finish(self, timeout_s: float) -> None:
        """At a clean stop: what was applied is written."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return
        if self._written < self._version:
            await self._mark()

    async def _mark(self) -> None:
        self._written = self._version
        await self._write([frame((), self._version)])

    async def _try(self, step: _Step | None, out: list[bytes]) -> None:
        try:
            await self._one(step, out)
        except Exception as error:  # it would end the controller at every start anew, and is history alone
            self._gap = True
            self._warn(f"events of a command could not be told, and are missing: {error!r}")

    async def _one(self, step: _Step | None, out: list[bytes]) -> None:
        if step is None:
            self._gap = True
            return
        before, applied = step
        version, time_ms = applied.image.version, applied.time_ms
        gap_ms = 0
        if self._gap:
            self._gap = False
            gap_ms = max(time_ms, 1)
            self.memory.mark_gap(gap_ms)
        loop = asyncio.get_running_loop()
        slice_end = loop.time() + SLICE_MS / 1000
        made: list[api.ClusterEvent] = []
        any_made = False
        for event in events_of(before, applied.image, applied.records, time_ms, applied.causes):
            if event is not None:
                self.memory.add(event)
                made.append(event)
                any_made = True
                if len(made) >= FRAME_EVENTS:
                    out.append(frame(made, version, gap_ms=gap_ms, more=True))
                    made, gap_ms = [], 0
            if loop.time() >= slice_end:
                await asyncio.sleep(0)
                slice_end = loop.time() + SLICE_MS / 1000
        self._version = version
        if any_made or gap_ms:
            out.append(frame(made, version, gap_ms=gap_ms))
            self._written = version
        if loop.time() >= slice_end:
            await asyncio.sleep(0)

    async def _write(self, out: list[bytes]) -> None:
        if not out:
            return
        if self._file is None:
            return
        try:
            await asyncio.to_thread(self._file.append, b"".join(out), self._wall_ms())
        except OSError as error:
            self._warn(
                f"events.log cannot be written: {error.strerror or error}; events are kept in memory alone"
            )
            self._file.close()
            self._file = None

    # --- questions ----------------------------------------------------------------------------

    async def read(self, request: api.ReadEventsRequest) -> api.ReadEventsResponse:
        """The newest events of some subjects, oldest first."""
        self.memory.forget_before(self._wall_ms() - KEPT_MS)
        limit = min(request.limit or LIMIT_DEFAULT, LIMIT_MAX)
        loop = asyncio.get_running_loop()
        slice_end = loop.time() + SLICE_MS / 1000
        found: list[api.ClusterEvent] = []
        unknown_ms = self._wall_ms() if self._gap else self.memory.incomplete_before_ms
        for event in self.memory.newest(request.subjects, request.since_ms, limit):
            found.append(event)
            if loop.time() >= slice_end:
                await asyncio.sleep(0)
                slice_end = loop.time() + SLICE_MS / 1000
        if len(found) >= limit:
            unknown_ms = max(unknown_ms, found[-1].time_ms)
        return api.ReadEventsResponse(events=reversed(found), incomplete_before_ms=unknown_ms)


__all__ = ["History"]
