"""FetchRange: raw batches of offsets from..to of one partition, as a server stream.

Never beyond the high watermark, or the last stable offset where committed records alone are read: batches of aborted
transactions are left out then, so that no reader has to know of them. A range that ends above it waits there for
records. One chunk is read ahead while the one before it is on its way, unless that one is a large batch, which goes in
pieces: two of them are not held in memory. Failures end the stream with a message that says where it stood, so that the
reader goes on elsewhere by offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_core.limits import FORWARD_CHUNK_BYTES_MAX, PIECE_BYTES, WHOLE_BATCH_BYTES_MAX
from penstock_frontend.authorizer import (
    ANONYMOUS,
    Authorizer,
    Identity,
    Operation,
    Principal,
    ResourceType,
    client_identity,
)
from penstock_kafka.records.batch import iter_batches
from penstock_kafka.wire.primitives import Buffer
from penstock_proto.fast.fetch_range import encode_fetch_range_response
from penstock_proto.fast.pieces import cut
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import data_pb2 as pb
from penstock_storage_node.log import AbortedJob, LogState, ReadData, ReadJob, Rows
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.rpc.replicate_leader import Context

CHUNK_BYTES_MAX = 4 * 1024 * 1024


class _Range:
    """One call. `next_offset` is where it stands."""

    def __init__(
        self, manager: ReplicaManager, request: pb.FetchRangeRequest, authorizer: Authorizer
    ) -> None:
        self._manager = manager
        self._authorizer = authorizer
        self._who = identity_of(request)
        if request.topic:
            self._check_right(request.topic)
        topic_id = TopicId(request.topic_id) if request.topic_id else None
        if topic_id is not None and request.topic:
            known = manager.registry.image.topic_ids.get(request.topic)
            if known is not None and known != topic_id:
                raise PenstockError(
                    ErrorCode.INCONSISTENT_TOPIC_ID,
                    f"topic {request.topic} was made anew: its id is {known.hex()}, not {topic_id.hex()}",
                )
        self.partition = manager.registry.locate(request.topic, topic_id, request.partition)
        replica = self.partition.replica
        self._check_right(replica.topic)
        replica.require_leader()
        self.next_offset = request.from_offset
        self._read_committed = request.read_committed
        self.to_offset = request.to_offset if request.to_offset >= 0 else self.end_offset
        self._from_offset = request.from_offset
        self._takes_pieces = request.takes_pieces
        self._chunk_bytes = min(request.max_chunk_bytes or FORWARD_CHUNK_BYTES_MAX, CHUNK_BYTES_MAX)
        start, end = self.partition.log.log_start_offset, self.partition.log.log_end_offset
        if not start <= request.from_offset <= max(end, start):
            raise PenstockError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {request.from_offset} of {replica.name} is not in {start}..{end}",
            )

    def _check_right(self, topic: str) -> None:
        if not self._authorizer.authorize(self._who, Operation.READ, ResourceType.TOPIC, topic):
            raise PenstockError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                f"{self._who.principal} has no right to READ topic {topic}",
            )

    @property
    def end_offset(self) -> int:
        """End of what this reader may see."""
        high_watermark = self.partition.replica.high_watermark
        return (
            self.partition.log.last_stable_offset(high_watermark) if self._read_committed else high_watermark
        )

    async def next_chunk(self) -> ReadData | None:
        """The next batches; None at the end of the range. Waits at the end of what it may see."""
        while self.next_offset < self.to_offset:
            replica, log = self.partition.replica, self.partition.log
            replica.require_leader()
            self._check_right(replica.topic)  # it may be taken away while the stream is open
            if log.state is LogState.FAILED:
                raise PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk under {replica.name} failed")
            upper = min(self.end_offset, self.to_offset)
            if self.next_offset >= upper:
                await self._wait(self.partition)
                continue
            found = self.partition.read(self.next_offset, self._chunk_bytes, upper)
            if isinstance(found, ReadJob):
                found = await self.partition.run_read(found)
            if self._read_committed and found.size_bytes:
                found, end = await self._decided(found), found.next_offset
                if not found.size_bytes:
                    self.next_offset = end
                    await asyncio.sleep(0)
                    continue
            if found.size_bytes > WHOLE_BATCH_BYTES_MAX and not self._takes_pieces:
                raise PenstockError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"the batch at offset {found.base_offset} of {replica.name} has {found.size_bytes} bytes:"
                    " this reader's build takes none that large, upgrade it",
                )
            if found.size_bytes:
                self.next_offset = found.next_offset
                return found
            # Nothing is stored in what is left (compaction may leave such gaps).
            self.next_offset = upper
        return None

    async def _decided(self, data: ReadData) -> ReadData:
        """Without the batches of aborted transactions."""
        rows = self.partition.log.aborted_between(data.base_offset, data.next_offset)
        if isinstance(rows, AbortedJob):
            rows = await self.partition.look_up(rows.run)
        return without(data, rows) if rows else data

    async def _wait(self, partition: Partition) -> None:
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        partition.readers[wake] = None
        try:
            await changed
        finally:
            partition.readers.pop(wake, None)
        if partition.closed:
            raise PenstockError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition.name} was deleted")

    def messages(self, data: ReadData | None) -> Iterator[bytes]:
        """What says `data`: one message, or one for each piece of a large batch."""
        if data is None or data.size_bytes <= WHOLE_BATCH_BYTES_MAX:
            yield self._encode(data, data.next_offset if data else self.next_offset)
            return
        base_offset, sent, total = data.base_offset, 0, data.size_bytes
        for piece, size in cut(data.buffers, PIECE_BYTES):
            part = ReadData(base_offset, data.next_offset, list(piece), size)
            is_last = sent + size == total
            next_offset = data.next_offset if is_last else max(base_offset, self._from_offset)
            yield self._encode(part, next_offset, (base_offset, total, sent))
            sent += size

    def _encode(
        self, data: ReadData | None, next_offset: int, piece_of: tuple[int, int, int] | None = None
    ) -> bytes:
        partition = self.partition
        return encode_fetch_range_response(
            data.buffers if data else (),
            data.size_bytes if data else 0,
            next_offset=next_offset,
            log_start_offset=partition.log.log_start_offset,
            high_watermark=self.end_offset,
            topic_id=partition.key.topic_id,
            leader_epoch=partition.replica.leader_epoch,
            done=data is None,
            piece_of=piece_of,
            read_committed=self._read_committed,
        )


def identity_of(request: pb.FetchRangeRequest) -> Identity:
    """Who reads, as the gateway says; a gateway of before says nothing."""
    if not request.principal_type:
        return client_identity(ANONYMOUS, request.client_host)
    return client_identity(Principal(request.principal_type, request.principal_name), request.client_host)


def without(data: ReadData, rows: Rows) -> ReadData:
    """What was read, but for the batches of these aborted transactions."""
    joined = data.buffers[0] if len(data.buffers) == 1 else b"".join(data.buffers)
    view = memoryview(joined)
    spans: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        spans.setdefault(row.producer_id, []).append((row.first_offset, row.last_offset))
    kept: list[Buffer] = []
    first_offset, size_bytes = data.next_offset, 0
    for info in iter_batches(joined):
        if info.is_transactional and not info.is_control:
            mine = spans.get(info.producer_id, ())
            if any(first <= info.base_offset < marker for first, marker in mine):
                continue
        if not kept:
            first_offset = info.base_offset
        kept.append(view[info.position : info.position + info.size_bytes])
        size_bytes += info.size_bytes
    return ReadData(first_offset, data.next_offset, kept, size_bytes)


class FetchRangeService:
    """Handler of the call."""

    def __init__(self, manager: ReplicaManager, authorizer: Authorizer) -> None:
        self._manager = manager
        self._authorizer = authorizer

    async def fetch_range(self, request: pb.FetchRangeRequest, context: Context) -> None:
        """Serve one range."""
        current: _Range | None = None
        ahead: asyncio.Task[ReadData | None] | None = None
        try:
            current = _Range(self._manager, request, self._authorizer)
            ahead = asyncio.ensure_future(current.next_chunk())
            while True:
                data = await ahead
                is_large = data is not None and data.size_bytes > WHOLE_BATCH_BYTES_MAX
                if data is not None and not is_large:
                    ahead = asyncio.ensure_future(current.next_chunk())
                for message in current.messages(data):
                    await context.write(message)
                if data is None:
                    return
                self._manager.metrics.range_bytes += data.size_bytes
                current.partition.traffic.sent_bytes += data.size_bytes
                if is_large:
                    data = None
                    ahead = asyncio.ensure_future(current.next_chunk())
        except PenstockError as e:
            await context.write(self._failure(request, current, e))
        except OSError as e:
            error = PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"reading failed: {e}")
            await context.write(self._failure(request, current, error))
        finally:
            if ahead is not None and not ahead.done():
                ahead.cancel()
                await asyncio.wait([ahead])
            elif ahead is not None and not ahead.cancelled():
                ahead.exception()

    def _failure(self, request: pb.FetchRangeRequest, current: _Range | None, error: PenstockError) -> bytes:
        response = pb.FetchRangeResponse(error=common_pb2.Error(code=error.code, message=error.message))
        response.next_offset = current.next_offset if current is not None else request.from_offset
        try:
            topic_id = TopicId(request.topic_id) if request.topic_id else None
            partition = self._manager.registry.locate(request.topic, topic_id, request.partition)
        except PenstockError:
            return response.SerializeToString()
        response.topic_id = partition.key.topic_id
        response.leader_epoch = max(partition.replica.leader_epoch, 0)
        response.log_start_offset = partition.log.log_start_offset
        response.high_watermark = partition.replica.high_watermark
        response.read_committed = request.read_committed
        return response.SerializeToString()
