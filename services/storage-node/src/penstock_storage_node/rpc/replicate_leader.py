"""Replicate, the leader's end: one stream per follower node, carrying all its partitions.

A stream is a reader (opens, acks) and a writer. The writer sleeps until something of its
sessions is to be sent, then sends all of it in messages of about 1 MiB; while one message is
under way the next one gathers. A rise of the high watermark alone waits a few milliseconds for
data to go with.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from penstock_core.config.catalog import FOLLOWER_RATE, throttled_rate
from penstock_core.config.topic import LONG_MAX
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId, TopicId, TopicPartition
from penstock_core.limits import REPLICA_CREDIT_BYTES
from penstock_proto.fast.replicate import encode_replica_data
from penstock_proto.v1 import storage_pb2 as pb
from penstock_runtime.grpc_tools import fail
from penstock_runtime.security.callers import node_fault
from penstock_storage_node.log import ReadData, ReadJob
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.effects import OutgoingStream
from penstock_storage_node.replication.following import OpenRequest
from penstock_storage_node.replication.leadership import Leadership
from penstock_storage_node.replication.sender import (
    READ_BYTES_MAX,
    DataFrame,
    LeaderSender,
    ReplicationSession,
)
from penstock_storage_node.rpc.bidirectional import run_both_ways
from penstock_storage_node.rpc.catch_up_throttle import CatchUpThrottle, Direction
from penstock_storage_node.rpc.replication_lanes import LIVE, AppendRate, Lane, LaneLimits, Pace

MESSAGE_BYTES = 1024 * 1024
CATCH_UP_READ_BYTES = 256 * 1024
"""Most bytes of one read for a replica that is rebuilt: short turns of the event loop."""
TELL_LATER_MS = 5
HELLO_TIMEOUT_MS = 5000
REST_S_MAX = 1.0
"""How long a paced stream rests before it looks at its rate again."""

Context = grpc.aio.ServicerContext[Any, Any]


class _Stream:
    """One follower's stream."""

    def __init__(
        self,
        manager: ReplicaManager,
        hello: pb.ReplicaHello,
        context: Context,
        limits: LaneLimits,
        budget: Direction,
    ) -> None:
        credit = min(max(hello.credit_bytes, 64 * 1024), 4 * REPLICA_CREDIT_BYTES)
        self.lane = hello.lane
        self._follower = NodeId(hello.node_id)
        self._limits = limits
        self._budget = budget
        self.sender = LeaderSender(
            NodeId(hello.node_id),
            hello.node_epoch,
            credit,
            manager.drain.effects,
            catch_up=self.lane != LIVE,
            read_bytes_max=READ_BYTES_MAX if self.lane == LIVE else CATCH_UP_READ_BYTES,
            takes_pieces=hello.takes_pieces,
            pieces=limits.pieces,
        )
        self._append_rate = AppendRate()
        self._manager = manager
        self._context = context
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._later: dict[ReplicationSession, None] = {}
        self._later_timer: asyncio.TimerHandle | None = None
        self.ended = False

    def wake(self) -> None:
        self._wake.set()

    def tell_later(self, session: ReplicationSession) -> None:
        self._later[session] = None
        if self._later_timer is None:
            self._later_timer = asyncio.get_running_loop().call_later(TELL_LATER_MS / 1000, self._tell)

    def _tell(self) -> None:
        self._later_timer = None
        later, self._later = self._later, {}
        for session in later:
            if not session.closed:
                self.sender.mark(session)
        self._wake.set()

    def stop_writing(self) -> None:
        """Let `write` return between two messages."""
        self.ended = True
        self._wake.set()
        self._hurry.set()

    def end(self) -> None:
        """The stream is over: forget its sessions."""
        self.stop_writing()
        if self._later_timer is not None:
            self._later_timer.cancel()
        for session in list(self.sender.sessions):
            self._close(session.number)

    def _close(self, number: int) -> None:
        session = self.sender.close(number)
        if session is not None:
            partition = self._manager.registry.partitions.get(session.replica.key)
            if partition is not None:
                partition.sessions.pop(session, None)
                self._note_closed(partition)

    def _note_closed(self, partition: Partition) -> None:
        leadership = partition.replica.leadership
        if leadership is not None:
            leadership.on_follower_closed(self.sender.node, self._manager.clock_ms())
            self._manager.drain.schedule()

    # -- follower to leader -------------------------------------------------------

    async def read(self) -> None:
        """Take in what the follower says, until it ends the stream."""
        manager = self._manager
        while True:
            message = await self._context.read()
            # Once it has ended another one has its place, and what it still says counts no more.
            if self.ended or message is grpc.aio.EOF:  # type: ignore[attr-defined]
                return
            request = pb.ReplicateRequest.FromString(message)
            now_ms = manager.clock_ms()
            for number in request.closes:
                self._close(number)
            if request.acks:
                hit("replication.ack.received")
            for ack in request.acks:
                session = self.sender.on_ack(ack.session, ack.log_end_offset)
                if session is not None and (leadership := session.replica.leadership) is not None:
                    self._note_log_start(session.replica.key, leadership, ack.log_start_offset)
                    leadership.on_follower_ack(
                        self.sender.node, ack.log_end_offset, ack.flushed_offset, now_ms
                    )
                    if self.lane != LIVE and leadership.waits_for(self._follower, now_ms):
                        self._move(session, LIVE)
                        self._hurry.set()
            if request.opens:
                hit("replication.open.received")
            for asked in request.opens:
                self._open(asked, now_ms)
            manager.drain.schedule()

    def _note_log_start(self, key: TopicPartition, leadership: Leadership, offset: int) -> None:
        partition = self._manager.registry.partitions.get(key)
        if leadership.on_follower_log_start(self.sender.node, offset) and partition is not None:
            partition.wake_log_start()

    def _open(self, asked: pb.ReplicaOpen, now_ms: int) -> None:
        partition = self._manager.registry.partitions.get(
            TopicPartition(TopicId(asked.topic_id), asked.partition)
        )
        sender = self.sender
        if partition is None:
            sender.tell(DataFrame(asked.session, error=(ErrorCode.UNKNOWN_TOPIC_ID, "no such replica here")))
            return
        if partition.busy:
            sender.tell(DataFrame(asked.session, error=(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not ready yet")))
            return
        request = OpenRequest(
            asked.leader_epoch,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
            asked.flushed_offset,
        )
        answer = partition.replica.on_open(sender.node, sender.node_epoch, request, now_ms)
        if answer.error is not None:
            sender.tell(DataFrame(asked.session, error=(answer.error.code, answer.error.message)))
        elif answer.diverging is not None or answer.out_of_range is not None:
            sender.tell(
                DataFrame(
                    asked.session,
                    diverging=answer.diverging,
                    out_of_range=answer.out_of_range,
                    tombstones_gone_below=answer.tombstones_gone_below,
                )
            )
        else:
            for session in [s for s in partition.sessions if s.sender.node == sender.node]:
                session.sender.close(session.number)
                del partition.sessions[session]
            lane = self._lane_of(partition, asked.fetch_offset)
            if lane != self.lane:
                sender.tell(DataFrame(asked.session, move=lane))
                self._note_closed(partition)
                return
            partition.sessions[sender.open(asked.session, partition.replica, asked.fetch_offset)] = None

    def _move(self, session: ReplicationSession, lane: Lane) -> None:
        """Have a follower open that session again on the pair's other stream."""
        self.sender.move(session, lane)
        partition = self._manager.registry.partitions.get(session.replica.key)
        if partition is not None:
            partition.sessions.pop(session, None)
            self._note_closed(partition)

    def _lane_of(self, partition: Partition, offset: int) -> Lane:
        log, leadership = partition.log, partition.replica.leadership
        is_waited_for = leadership is not None and leadership.waits_for(
            self._follower, self._manager.clock_ms()
        )
        return self._limits.lane_after(
            self.lane,
            log.bytes_between(offset, log.log_end_offset),
            is_waited_for=is_waited_for,
            is_throttled=self._budget.limit_bytes_per_s > 0 or self._follower_rate() < LONG_MAX,
        )

    def _follower_rate(self) -> int:
        registry = self._manager.registry
        return throttled_rate(registry.image, self._follower, FOLLOWER_RATE)

    # -- leader to follower -------------------------------------------------------

    async def write(self) -> None:
        """Send what there is, for ever."""
        sender, metrics = self.sender, self._manager.metrics
        pace = Pace(asyncio.get_running_loop().time(), MESSAGE_BYTES)
        while not self.ended:
            self._wake.clear()
            self._hurry.clear()
            message_bytes = MESSAGE_BYTES
            if self.lane != LIVE:
                message_bytes = self._budget.message_bytes(MESSAGE_BYTES)
                sender.read_bytes_max = min(CATCH_UP_READ_BYTES, message_bytes)
            sender.reads(self._start_read)
            # What is no data goes by itself on a lane where data may have to wait.
            frames = (sender.take(0) if self.lane != LIVE else None) or sender.take(message_bytes)
            if not frames:
                await self._wake.wait()
                continue
            size = sum(frame.size_bytes for frame in frames)
            if self.lane != LIVE and size and not await self._may_send(size):
                return
            metrics.replicated_out_bytes += size
            if self.lane != LIVE:
                metrics.catch_up_out_bytes += size
            message = encode_replica_data(frames)
            del frames  # what is written by now is freed while the message is under way
            hit("replication.send.before_frame")
            await self._context.write(message)
            if self.lane != LIVE:
                pace.sent(size)
                await self._rest(pace)

    async def _may_send(self, size: int) -> bool:
        """Before so many bytes go to rebuilding replicas: until all that this node feeds allows it, or something is to
        be said at once: these bytes go first then, and those after them wait longer. False: the stream has ended."""
        budget = self._budget
        place, is_used = budget.claim(size), False
        try:
            while not self._hurry.is_set() and (wait_s := budget.wait_s(place)) > 0:
                rest_s = min(wait_s, REST_S_MAX)
                budget.throttled_s += rest_s
                await self._hurry_within(rest_s)
            is_used = not self.ended
        finally:
            if not is_used:
                budget.give_back(size)
        return is_used

    async def _hurry_within(self, rest_s: float) -> None:
        try:
            async with asyncio.timeout(rest_s):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _rest(self, pace: Pace) -> None:
        """After sending rebuilding replicas something: until the pace allows more, or something is to be said at once.
        Rates change meanwhile."""
        loop = asyncio.get_running_loop()
        while not self._hurry.is_set():
            now_s = loop.time()
            appended_per_s = self._append_rate.per_s(now_s, self.sender.appended_bytes)
            # The follower keeps to its rate itself; what it can't take yet need not wait in its memory.
            rest_s = pace.rest_s(now_s, self._limits.pace(appended_per_s, self._follower_rate()))
            if rest_s <= 0:
                return
            await self._hurry_within(min(rest_s, REST_S_MAX))

    def _start_read(self, session: ReplicationSession, max_bytes: int) -> None:
        partition = self._manager.registry.partitions.get(session.replica.key)
        if partition is None:
            self.sender.end(session, ErrorCode.UNKNOWN_TOPIC_ID, "no such replica here any more")
            return
        lane = self._lane_of(partition, session.next_offset)
        if lane != self.lane:
            self._move(session, lane)
            return
        leadership = partition.replica.leadership
        if leadership is not None and leadership.misses_tombstones(
            self._follower, self.sender.node_epoch, session.next_offset
        ):
            gone = PenstockError(ErrorCode.OFFSET_OUT_OF_RANGE, "tombstones are gone: open again")
            self._end_session(partition, session, gone)
            return
        log, offset = partition.log, session.next_offset
        if not session.is_fed:  # an empty replica may have begun before the log start: see `on_open`
            offset = max(offset, log.log_start_offset)
        try:
            found = partition.read(offset, max_bytes, log.log_end_offset)
        except PenstockError as e:
            self._end_session(partition, session, e)
            return
        if isinstance(found, ReadJob):
            partition.start_read(found, lambda data, error: self._on_read(partition, session, data, error))
        else:
            self._on_read(partition, session, found, None)

    def _on_read(
        self, partition: Partition, session: ReplicationSession, data: ReadData, error: BaseException | None
    ) -> None:
        if error is not None:
            self._end_session(partition, session, error)
        elif data.size_bytes and data.base_offset < session.next_offset and not session.closed:
            # It began at our log start, inside a batch (DeleteRecords): no log ends there.
            self._start_over(partition, session, partition.log.first_segment_offset)
        elif not data.size_bytes and session.next_offset < data.base_offset and not session.closed:
            # It is empty, and all that is left of ours in front of our log start: there is nothing to read.
            self._start_over(partition, session, partition.log.log_start_offset)
        elif not self.sender.takes(data.size_bytes):
            message = f"a batch of {data.size_bytes} bytes is too large for node {self._follower}'s build: upgrade it"
            self._end_session(partition, session, PenstockError(ErrorCode.UNSUPPORTED_VERSION, message))
        elif not session.closed:
            self.sender.on_read(session, data.base_offset, data.next_offset, data.buffers, data.size_bytes)
        self._wake.set()

    def _start_over(self, partition: Partition, session: ReplicationSession, offset: int) -> None:
        self.sender.start_over(session, offset, partition.log.log_end_offset)
        partition.sessions.pop(session, None)
        self._note_closed(partition)

    def _end_session(self, partition: Partition, session: ReplicationSession, error: BaseException) -> None:
        code = error.code if isinstance(error, PenstockError) else ErrorCode.KAFKA_STORAGE_ERROR
        self.sender.end(session, code, str(error))
        partition.sessions.pop(session, None)
        self._note_closed(partition)
        self._wake.set()


class LeaderStreams:
    """All streams of this node's followers."""

    def __init__(
        self,
        manager: ReplicaManager,
        limits: LaneLimits | None = None,
        throttle: CatchUpThrottle | None = None,
    ) -> None:
        """`throttle`: the node's, for all of its streams."""
        self._manager = manager
        self._limits = limits or LaneLimits()
        self._throttle = throttle or CatchUpThrottle(manager.registry, manager.clocks.s)
        self._by_node: dict[tuple[NodeId, Lane], _Stream] = {}
        self._by_sender: dict[OutgoingStream, _Stream] = {}

    def wake(self, sender: OutgoingStream) -> None:
        """There is something to send."""
        stream = self._by_sender.get(sender)
        if stream is not None:
            stream.wake()

    def tell_later(self, session: ReplicationSession) -> None:
        """The high watermark rose."""
        stream = self._by_sender.get(session.sender)
        if stream is not None:
            stream.tell_later(session)

    async def replicate(self, _: object, context: Context) -> None:
        """Handler of the call."""
        async with asyncio.timeout(HELLO_TIMEOUT_MS / 1000):
            message = await context.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            return
        request = pb.ReplicateRequest.FromString(message)
        await self._check(request.hello, context)
        stream = _Stream(self._manager, request.hello, context, self._limits, self._throttle.out)
        node = (stream.sender.node, stream.lane)
        for key, older in list(self._by_node.items()):
            is_of_before = key[0] == node[0] and older.sender.node_epoch < stream.sender.node_epoch
            if key == node or is_of_before:
                older.end()  # half open, from before the follower's restart or reconnect
        self._by_node[node] = stream
        self._by_sender[stream.sender] = stream
        try:
            await run_both_ways(stream.read(), stream.write(), stream.stop_writing)
        finally:
            stream.end()
            self._by_sender.pop(stream.sender, None)
            if self._by_node.get(node) is stream:
                del self._by_node[node]

    async def _check(self, hello: pb.ReplicaHello, context: Context) -> None:
        manager = self._manager
        if hello.leader_node_id != manager.registry.node_id:
            await fail(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this is node {manager.registry.node_id}, not {hello.leader_node_id}",
            )
        if hello.cluster_id != manager.registry.image.cluster_id:
            await fail(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this node is of cluster {manager.registry.image.cluster_id.hex()}, not {hello.cluster_id.hex()}",
            )
        if fault := node_fault(hello.node_id):
            await fail(context, grpc.StatusCode.PERMISSION_DENIED, fault)
        known = manager.registry.image.nodes.get(NodeId(hello.node_id))
        if known is not None and hello.node_epoch < known.node_epoch:
            await fail(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"node {hello.node_id} has registered anew: epoch {hello.node_epoch} is over",
            )
