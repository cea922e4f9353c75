"""Replicate, the follower's end: one stream to each node that leads partitions of this one.

The stream is opened when the first partition follows that node and ends with the last one.
When it breaks it is opened again at once, then with growing pauses up to half a second; every
partition then opens a new session from where its log ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio

from penstock_core.errors import REFRESH_METADATA, ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId, TopicPartition
from penstock_core.limits import REPLICA_CREDIT_BYTES
from penstock_core.metadata.image import NodeImage
from penstock_proto.fast.primitives import MalformedMessage
from penstock_proto.fast.replicate import ReceivedData, decode_replica_data
from penstock_proto.v1 import storage_pb2 as pb
from penstock_runtime.grpc_tools import CHANNEL_CLOSED, ChannelPool, was_cut_off
from penstock_runtime.http2.client import ChannelLimits
from penstock_runtime.security.methods import STORAGE_NODE
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.receiver import REOPEN_PAUSE_MS_MIN, FollowerReceiver, Outgoing
from penstock_storage_node.replication.replica import PartitionReplica
from penstock_storage_node.rpc.catch_up_throttle import CatchUpThrottle
from penstock_storage_node.rpc.paced_inlet import PacedInlet, size_of
from penstock_storage_node.rpc.replication_lanes import CATCH_UP, LIVE, Lane, LaneLimits

METHOD = "/penstock.v1.Storage/Replicate"
CHANNELS = {LIVE: "replica", CATCH_UP: "catch-up"}
"""Each lane is a connection of its own: neither relayed requests nor a rebuild hold up live batches."""

REPLICA_CHANNEL_LIMITS = ChannelLimits(window_bytes=512 * 1024)
"""More than that would only lie in memory, beside what waits for the disk. 0.5 GB/s at a round trip of a
millisecond."""

PAUSE_MS_MIN = 20
PAUSE_MS_MAX = 500
GOOD_STREAM_MS = 1000
"""A stream that lasted that long is worth an immediate reconnect."""


class FollowerStream:
    """One of the two streams to one leader node."""

    def __init__(
        self,
        manager: ReplicaManager,
        leader: NodeId,
        lane: Lane,
        channels: ChannelPool,
        credit_bytes: int,
        move: Callable[[PartitionReplica, int], None],
        on_lost: Callable[[NodeId], None],
        inlet: Callable[[Callable[[ReceivedData], None], Callable[[int], int | None]], PacedInlet],
    ) -> None:
        """`inlet(take, log_end_offset)`: by the budget of all that comes to this node by catch-up lanes."""
        self._on_lost = on_lost
        self.receiver = FollowerReceiver()
        self._lane = lane
        self._inlet = inlet
        self._credit_bytes = credit_bytes
        self._move = move
        self._manager = manager
        self._leader = leader
        self._channels = channels
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and keep connected."""
        if self._task is None:
            self._task = self._manager.lifecycle.create_task(self._run(), f"replicate from {self._leader}")

    def wake(self) -> None:
        """There is something to send."""
        self._wake.set()

    def close(self) -> None:
        """End the stream."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.receiver.disconnected()

    async def _run(self) -> None:
        pause_ms = 0
        log = self._manager.lifecycle.log.bind(leader=self._leader)
        while True:
            node = self._manager.registry.image.nodes.get(self._leader)
            started_ms = self._manager.clock_ms()
            if node is not None:
                try:
                    await self._run_stream(node)
                    reason = "ended by the leader"
                except grpc.aio.AioRpcError as e:
                    reason = e.details() or e.code().name
                except (MalformedMessage, PenstockError, asyncio.InvalidStateError) as e:
                    reason = str(e)
                except asyncio.CancelledError:
                    if not was_cut_off():
                        raise
                    reason = CHANNEL_CLOSED
                finally:
                    self.receiver.disconnected()
                log.info("replication stream ended", reason=reason)
                self._on_lost(self._leader)
            if self._manager.clock_ms() - started_ms >= GOOD_STREAM_MS:
                pause_ms = 0
            else:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(max(PAUSE_MS_MIN, pause_ms * 2), PAUSE_MS_MAX)

    async def _run_stream(self, node: NodeImage) -> None:
        manager = self._manager
        channel = self._channels.get(node.grpc.address, STORAGE_NODE, CHANNELS[self._lane])
        call: Any = channel.stream_stream(METHOD, None, None)()
        hello = pb.ReplicaHello(
            node_id=manager.registry.node_id,
            node_epoch=manager.registry.node_epoch,
            leader_node_id=self._leader,
            cluster_id=manager.registry.image.cluster_id,
            lane=self._lane,
            credit_bytes=self._credit_bytes,
            takes_pieces=True,
        )
        inlet = self._inlet(self._take_in, self._log_end_offset) if self._lane != LIVE else None
        readers: list[asyncio.Future[None]] = []
        try:
            await call.write(pb.ReplicateRequest(hello=hello).SerializeToString())
            readers.append(asyncio.ensure_future(self._read(call, inlet)))
            if inlet is not None:
                readers.append(asyncio.ensure_future(inlet.run()))
            for each in readers:
                each.add_done_callback(lambda _: self._wake.set())
            while not any(each.done() for each in readers):
                self._wake.clear()
                out = self.receiver.take(manager.clock_ms())
                if not out.empty:
                    if out.acks:
                        hit("replication.ack.before_send")
                    await call.write(_encode(out, self._manager.registry.partitions))
                elif self.receiver.waiting:
                    await self._wait_ms(REOPEN_PAUSE_MS_MIN)
                else:
                    await self._wake.wait()
            for each in readers:
                if each.done():
                    each.result()
        finally:
            call.cancel()
            for each in readers:
                each.cancel()
            if readers:
                await asyncio.wait(readers)
            for each in readers:
                if not each.cancelled():
                    each.exception()
            if inlet is not None:
                inlet.clear()

    async def _wait_ms(self, most_ms: int) -> None:
        try:
            async with asyncio.timeout(most_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _read(self, call: Any, inlet: PacedInlet | None) -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:  # type: ignore[attr-defined]
                return
            if inlet is None:
                self._on_message(message)
            else:
                inlet.put(decode_replica_data(message))
            del message  # a megabyte that need not wait here for the next one

    def _on_message(self, message: bytes) -> None:
        for data in decode_replica_data(message):
            self._on_data(data)
        # Sessions that ended above are opened anew by the writer.
        if self.receiver.waiting:
            self._wake.set()

    def _log_end_offset(self, session: int) -> int | None:
        replica = self.receiver.replica_of(session)
        return None if replica is None else replica.log.log_end_offset

    def _take_in(self, data: ReceivedData) -> None:
        self._manager.metrics.catch_up_in_bytes += size_of(data)
        self._on_data(data)
        if self.receiver.waiting:
            self._wake.set()

    def _on_data(self, data: ReceivedData) -> None:
        manager, receiver = self._manager, self.receiver
        replica = receiver.replica_of(data.session)
        if replica is None or replica.following is None:
            return
        partition = manager.registry.partitions.get(replica.key)
        if partition is None:
            return
        following = replica.following
        if data.error is not None:
            self._on_error(replica, *data.error)
        elif data.move is not None:
            self._move(replica, data.move)
        elif data.diverging is not None:
            receiver.hold(replica)
            cut = following.on_diverging(*data.diverging, data.tombstones_gone_below)
            manager.roles.truncate(partition, cut)
        elif data.out_of_range is not None:
            receiver.hold(replica)
            manager.roles.truncate(partition, following.on_out_of_range(*data.out_of_range))
        elif manager.roles.note_tombstones_gone(partition, data.tombstones_gone_below):
            receiver.hold(replica)
        else:
            if (data.records is not None or data.piece is not None) and not self._take(partition, data):
                return
            log_start_offset = partition.log.log_start_offset
            if following.on_watermarks(data.high_watermark, data.log_start_offset) and partition.readers:
                partition.wake_readers()
            if partition.log.log_start_offset > log_start_offset:
                manager.log_starts.follow(partition, manager.roles.followers.on_progress)
            if receiver.on_data(replica) and data.log_start_offset:
                manager.roles.followers.on_progress(partition)  # an open does not say what is on this disk

    def _take(self, partition: Partition, data: ReceivedData) -> bool:
        """Append what a frame brings, or keep it until the rest of its batch is there; False ends the session."""
        replica, piece = partition.replica, data.piece
        try:
            records = self.receiver.batches_of(replica, data.records, piece)
        except MalformedMessage as e:
            manager = self._manager
            manager.lifecycle.log.warning(
                "replicated batches refused", partition=partition.name, offset=data.base_offset, reason=str(e)
            )
            self.receiver.reopen(replica, manager.clock_ms(), pause=True)
            return False
        if records is None:
            return True
        base_offset = data.base_offset if piece is None else piece.base_offset
        return self._append(partition, base_offset, records, data.epoch_starts or ())

    def _append(
        self,
        partition: Partition,
        base_offset: int,
        records: memoryview,
        epoch_starts: Sequence[tuple[int, int]],
    ) -> bool:
        manager, replica = self._manager, partition.replica
        following = replica.following
        if following is None:
            return False
        hit("replication.append.before_stage")
        try:
            fits = following.on_batches(base_offset, records, epoch_starts)
        except PenstockError as e:
            # A full or failed disk has said so itself.
            if e.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                manager.lifecycle.log.warning(
                    "replicated batches refused", partition=partition.name, offset=base_offset, reason=str(e)
                )
            self.receiver.reopen(replica, manager.clock_ms(), pause=True)
            return False
        finally:
            partition.count_staged()
        if not fits:
            self.receiver.reopen(replica, manager.clock_ms(), pause=True)
            return False
        manager.metrics.replicated_in_bytes += len(records)
        hit("replication.append.after_stage")
        manager.drain.touch(partition)
        return True

    def _on_error(self, replica: PartitionReplica, code: int, message: str) -> None:
        manager = self._manager
        if code not in _EXPECTED:
            manager.lifecycle.log.warning("leader refuses to feed", partition=replica.name, reason=message)
        self.receiver.reopen(replica, manager.clock_ms(), pause=True)


_EXPECTED = REFRESH_METADATA | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
}
"""Either side's metadata are a little behind, or the log start moved: try again and say nothing."""


def _encode(out: Outgoing, partitions: Mapping[TopicPartition, Partition]) -> bytes:
    request = pb.ReplicateRequest(closes=out.closes)
    for session, replica, asked in out.opens:
        request.opens.add(
            session=session,
            topic_id=replica.key.topic_id,
            partition=replica.key.partition,
            leader_epoch=asked.leader_epoch,
            fetch_offset=asked.fetch_offset,
            last_fetched_epoch=asked.last_fetched_epoch,
            log_start_offset=asked.log_start_offset,
            flushed_offset=asked.flushed_offset,
        )
    for session, replica in out.acks:
        log = replica.log
        partition = partitions.get(replica.key)
        request.acks.add(
            session=session,
            log_end_offset=log.written_offset,
            flushed_offset=log.flushed_offset,
            log_start_offset=0 if partition is None else partition.saved_log_start_offset,
        )
    return request.SerializeToString()


class FollowerStreams:
    """All streams to leaders."""

    def __init__(
        self,
        manager: ReplicaManager,
        channels: ChannelPool,
        on_lost: Callable[[NodeId], None],
        limits: LaneLimits | None = None,
        throttle: CatchUpThrottle | None = None,
        inlet: type[PacedInlet] = PacedInlet,
    ) -> None:
        """`throttle`: the node's, for all of its streams."""
        self._manager = manager
        self._inlet = inlet
        self._throttle = throttle or CatchUpThrottle(manager.registry, manager.clocks.s)
        self._on_lost = on_lost
        """Told of a leader whose stream broke."""
        self._channels = channels
        catch_up = (limits or LaneLimits()).credit_bytes
        self._credits = {LIVE: REPLICA_CREDIT_BYTES, CATCH_UP: catch_up}
        self._links: dict[tuple[NodeId, Lane], FollowerStream] = {}
        self._link_of: dict[PartitionReplica, FollowerStream] = {}

    def follow(self, partition: Partition, leader: NodeId) -> None:
        """Replicate `partition` from `leader` from now on."""
        self._follow(partition.replica, leader, LIVE)

    def _follow(self, replica: PartitionReplica, leader: NodeId, lane: Lane) -> None:
        self._unfollow(replica)
        link = self._links.get((leader, lane))
        if link is None:
            link = self._links[leader, lane] = FollowerStream(
                self._manager,
                leader,
                lane,
                self._channels,
                self._credits[lane],
                self._move,
                self._on_lost,
                partial(self._inlet, self._throttle.into),
            )
        link.receiver.follow(replica)
        self._link_of[replica] = link
        link.start()
        link.wake()

    def _move(self, replica: PartitionReplica, lane: int) -> None:
        """The leader wants a replica on the other lane."""
        following = replica.following
        if following is not None:
            self._follow(replica, following.leader, CATCH_UP if lane == CATCH_UP else LIVE)

    def unfollow(self, partition: Partition) -> None:
        """Replicate it no more."""
        self._unfollow(partition.replica)

    def _unfollow(self, replica: PartitionReplica) -> None:
        link = self._link_of.pop(replica, None)
        if link is not None:
            link.receiver.unfollow(replica)
            link.wake()

    @property
    def catching_up_count(self) -> int:
        """Replicas that are fed by a catch-up lane."""
        return sum(len(link.receiver) for (_, lane), link in self._links.items() if lane == CATCH_UP)

    def on_progress(self, partition: Partition) -> None:
        """The log of `partition` was written further."""
        link = self._link_of.get(partition.replica)
        if link is not None:
            link.receiver.on_progress(partition.replica)
            link.wake()

    def reopen(self, partition: Partition, *, pause: bool) -> None:
        """Open a session for `partition` anew."""
        link = self._link_of.get(partition.replica)
        if link is not None:
            link.receiver.reopen(partition.replica, self._manager.clock_ms(), pause=pause)
            link.wake()

    def settle(self) -> None:
        """End streams that carry nothing any more."""
        for key, link in list(self._links.items()):
            if not len(link.receiver):
                link.close()
                del self._links[key]

    def restart(self) -> None:
        """This node has a new epoch: say hello anew."""
        for link in self._links.values():
            link.close()
            link.start()

    def close(self) -> None:
        """End every stream."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._link_of.clear()
