"""Following the cluster's metadata: one image, always moving forward.

The client watches one controller, resumes by version after every break, and takes a
snapshot when the controller cannot resume it. It never goes back: a controller that is
behind is left for another one. A stream that is silent for four keepalives is taken for
dead. When another controller becomes active the stream moves there, since the active
one hears of every change first.

Large deltas and snapshots come in parts, each replayed as it comes, so that nobody waits
for a hundred thousand records at once. They count with the last part. (The callbacks then
get all records; what they do with them is theirs to bound.)

A keepalive of a controller whose term is lower than one already heard of is no news: that
controller may have been paused, and is left for another one.

Callbacks run on the event loop, in version order, before anyone who waits for that
version is woken.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc
import grpc.aio

from penstock_core.errors import InvariantBroken
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.image import ImageBuilder, MetadataImage
from penstock_proto.v1 import controller_pb2 as pb
from penstock_proto.v1 import metadata_pb2
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import CHANNEL_CLOSED, was_cut_off
from penstock_runtime.logs import Log, get_log, one_line

ImageCallback = Callable[[MetadataImage, MetadataImage, Sequence[metadata_pb2.MetadataRecord]], None]

NEVER_MS = 2**31 - 1
"""What `contact_age_ms` says before the first contact."""

KEEPALIVE_MS = 500
STALL_MS = 4 * KEEPALIVE_MS
MOVE_AFTER_MS = 5_000
FREEZE_RECORDS = 10_000
"""A snapshot of so many records is kept from the garbage collector."""
_CONNECT_TIMEOUT_MS = 1_000
_CLOSED = "Socket closed"
_BACKOFF_MIN_MS = 20
_BACKOFF_MAX_MS = 500


class MetadataClient:
    """The metadata image of this process and who wants to know of its changes."""

    def __init__(
        self,
        controllers: ControllerClient,
        subscriber: str,
        clock_ms: Callable[[], int],
        *,
        log: Log | None = None,
        rng: random.Random | None = None,
        freeze: Callable[[], None] = gc.freeze,
    ) -> None:
        self.image = MetadataImage()
        """Everything known now; immutable, so it may be kept."""
        self._controllers = controllers
        self._subscriber = subscriber
        self._clock_ms = clock_ms
        self._log = log or get_log(subscriber=subscriber)
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._freeze = freeze
        self._callbacks: list[ImageCallback] = []
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._wait_ids = itertools.count()
        self._incoming: _Incoming | None = None
        self._heard_ms: int | None = None
        self._leader_age_ms = 0
        self._confirmed_ms: int | None = None
        """When the active controller had nothing newer than our image, as far as a keepalive said."""
        self._last_message_ms = 0
        self._address = ""

    # What others ask

    def on_change(self, callback: ImageCallback) -> Callable[[], None]:
        """Call `callback(old, new, records)` at every change; the result takes it off again.

        After a snapshot `records` are those of the whole image, which may be of the very next
        version (`is_whole_image` tells). A callback that raises is a failure of the role.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def wait_for_version(self, version: int, timeout_ms: int) -> bool:
        """Wait until the image is at `version` or later; False when `timeout_ms` passed first."""
        if self.image.version >= version:
            return True
        if timeout_ms <= 0:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        heapq.heappush(self._waiting, (version, next(self._wait_ids), future))
        timer = loop.call_later(timeout_ms / 1000, _give_up, future)
        try:
            return await future
        finally:
            timer.cancel()
            if self.image.version < version:  # gave up or was cancelled: leave nothing behind
                self._waiting = [w for w in self._waiting if w[2] is not future]
                heapq.heapify(self._waiting)

    def contact_age_ms(self) -> int:
        """How old the news may be: ms since the active controller was last heard of.

        A controller that knows less than we do, since it was away from the active one for longer, makes nothing
        older that another one has confirmed: what we hold was all there was then.
        """
        if self._heard_ms is None:
            return NEVER_MS
        now_ms = self._clock_ms()
        age_ms = now_ms - self._heard_ms + self._leader_age_ms
        return age_ms if self._confirmed_ms is None else min(age_ms, now_ms - self._confirmed_ms)

    @property
    def watched_address(self) -> str:
        """The controller that is watched now, "" when none is."""
        return self._address

    # Following

    async def run(self) -> None:
        """Follow the metadata for ever. Raises InvariantBroken when histories have parted."""
        failures = 0
        skip = ""
        while True:
            order = self._controllers.addresses_by_preference()
            # The one that just failed comes last, also when it counts as active.
            order.sort(key=lambda a: a == skip)
            for address in order:
                before = self._clock_ms()
                reason = await self._watch(address)
                skip = address
                self._log.info("metadata stream ended", controller=address, reason=reason)
                if self._last_message_ms >= before and self._clock_ms() - before > KEEPALIVE_MS:
                    failures = 0
                    break  # it had been a good stream: start again with the best choice
            else:
                failures += 1
            await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        most_ms = min(_BACKOFF_MAX_MS, _BACKOFF_MIN_MS * 2 ** min(failures, 8))
        await asyncio.sleep(self._rng.uniform(_BACKOFF_MIN_MS / 2, most_ms) / 1000)

    async def _watch(self, address: str) -> str:
        """Follow one controller until the stream ends; why it did."""
        request = pb.WatchMetadataRequest(
            from_version=self.image.version, subscriber=self._subscriber, feature_level=FEATURE_LEVEL
        )
        call = self._controllers.stub(address).WatchMetadata(request)
        self._incoming = None
        started_ms = self._clock_ms()
        guard = _StallGuard(self, call, started_ms, address)
        try:
            async for response in call:
                self._address = address
                self._last_message_ms = self._clock_ms()
                problem = self._take(response)
                if problem:
                    return problem
            return "ended by the controller"
        except grpc.aio.AioRpcError as e:
            return guard.reason or self._why_ended(e)
        except asyncio.CancelledError:
            if was_cut_off():  # by the guard, or with its channel
                return guard.reason or CHANNEL_CLOSED
            raise
        finally:
            guard.stop()
            call.cancel()
            self._address = ""
            self._incoming = None

    def _why_ended(self, error: grpc.aio.AioRpcError) -> str:
        reason = one_line(Exception(error.details() or error.code().name))
        if self._heard_ms is None and reason.endswith(_CLOSED):
            # All that gRPC tells of a server that asks for a certificate.
            return f"{reason}; if it has a certificate, give this process one by [tls]"
        return reason

    def _take(self, response: pb.WatchMetadataResponse) -> str:
        """Apply one message; a non-empty result ends the stream with that reason."""
        kind = response.WhichOneof("event")
        if kind == "delta":
            self._heard(0)
            return self._take_delta(response.delta)
        if kind == "snapshot":
            self._heard(0)
            return self._take_snapshot(response.snapshot)
        if kind == "keepalive":
            term = response.keepalive.controller_term
            if 0 < term < self._controllers.heard_term:
                return f"deposed: of term {term}, term {self._controllers.heard_term} was heard of"
            age_ms = response.keepalive.leader_contact_age_ms
            self._heard(age_ms)
            if response.keepalive.version < self.image.version:
                return f"behind: at version {response.keepalive.version}, we hold {self.image.version}"
            if response.keepalive.version == self.image.version:
                confirmed_ms = self._clock_ms() - age_ms
                self._confirmed_ms = max(confirmed_ms, self._confirmed_ms or confirmed_ms)
            return ""
        return "sent a message of an unknown kind"

    def _heard(self, leader_age_ms: int) -> None:
        self._heard_ms = self._clock_ms()
        self._leader_age_ms = leader_age_ms

    def _take_delta(self, delta: metadata_pb2.MetadataDelta) -> str:
        if delta.version <= self.image.version:
            return ""
        if delta.version != self.image.version + 1:
            return f"sent version {delta.version} after {self.image.version}"
        if delta.part == 0:
            self._incoming = _Incoming(delta.version, ImageBuilder(self.image))
        incoming = self._incoming
        if incoming is None or (incoming.version, incoming.parts) != (delta.version, delta.part):
            return f"sent part {delta.part} of version {delta.version} out of order"
        incoming.take(delta.records)
        if not delta.more:
            self._incoming = None
            self._advance(incoming.builder.finish(delta.version), incoming.records)
        return ""

    def _take_snapshot(self, chunk: metadata_pb2.MetadataSnapshotChunk) -> str:
        if chunk.first:
            self._incoming = _Incoming(chunk.version, ImageBuilder(MetadataImage()))
        incoming = self._incoming
        if incoming is None or incoming.version != chunk.version:
            return "sent the middle of a snapshot first"
        incoming.take(chunk.records)
        if not chunk.last:
            return ""
        self._incoming = None
        if chunk.version < self.image.version:
            return f"sent a snapshot of version {chunk.version}, we hold {self.image.version}"
        if chunk.version > self.image.version:
            image = incoming.builder.finish(chunk.version)
            if self.image.cluster_id and image.cluster_id != self.image.cluster_id:
                raise InvariantBroken("the controllers are those of another cluster")
            self._advance(image, incoming.records)
            if len(incoming.records) >= FREEZE_RECORDS:
                # The image is here to stay, and free of cycles: no collection needs to look at it.
                del incoming
                self._freeze()
        return ""

    def _advance(self, new: MetadataImage, records: Sequence[metadata_pb2.MetadataRecord]) -> None:
        old, self.image = self.image, new
        for callback in list(self._callbacks):
            callback(old, new, records)
        while self._waiting and self._waiting[0][0] <= new.version:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(True)

    def should_move(self, address: str, since_ms: int) -> bool:
        """Whether a stream to `address` is better replaced by one to the active controller."""
        active = self._controllers.active_address
        return active is not None and active != address and self._clock_ms() - since_ms >= MOVE_AFTER_MS

    def distrust(self, address: str) -> None:
        """A controller hangs: it does not count as the active one until one says that it is."""
        self._controllers.forget_active(address)

    def silent_ms(self, since_ms: int) -> int:
        """How long nothing has come, counted from `since_ms` at the earliest."""
        return self._clock_ms() - max(self._last_message_ms, since_ms)

    def heard_since(self, since_ms: int) -> bool:
        """Whether any message came at or after `since_ms`."""
        return self._last_message_ms >= since_ms


class _Incoming:
    """A delta or a snapshot of which not all parts are here."""

    def __init__(self, version: int, builder: ImageBuilder) -> None:
        self.version = version
        self.builder = builder
        self.records: list[metadata_pb2.MetadataRecord] = []
        self.parts = 0

    def take(self, records: Iterable[metadata_pb2.MetadataRecord]) -> None:
        for record in records:
            self.builder.replay(record)
            self.records.append(record)
        self.parts += 1


class _StallGuard:
    """Cancels a stream that is silent, or that another controller would serve better."""

    def __init__(self, client: MetadataClient, call: Any, started_ms: int, address: str) -> None:
        self.reason = ""
        self._client = client
        self._call = call
        self._started_ms = started_ms
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(KEEPALIVE_MS / 1000, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        client = self._client
        bound_ms = STALL_MS if client.heard_since(self._started_ms) else _CONNECT_TIMEOUT_MS
        silent_ms = client.silent_ms(self._started_ms)
        if silent_ms >= bound_ms:
            self.reason = f"silent for {silent_ms} ms"
            client.distrust(self._address)
        elif client.should_move(self._address, self._started_ms):
            self.reason = "another controller is active"
        if self.reason:
            self._call.cancel()
        else:
            self._timer = self._loop.call_later(KEEPALIVE_MS / 1000, self._look)


def _give_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


__all__ = ["KEEPALIVE_MS", "NEVER_MS", "STALL_MS", "ImageCallback", "MetadataClient"]
