"""Once per pass of the event loop: what the replication state machines asked for, in an order with reasons.

Steps of a pass, and why each stands where it does:

  1. *Write jobs start* (`Partition.kick`): what many requests of this pass have staged is one job, and
     the disk works while the rest of the pass runs.
  2. *Sessions end* that must be opened again, before anything more is sent on them.
  3. *Streams to followers wake*: their frames leave before any answer is built, since an ack needs the
     followers' round trip.
  4. *Watermarks are told*: waiting readers read, and followers hear of it with the data of step 3.
  5. *Producers are answered.* Their next requests come in a later pass, and find step 1 done.
  6. *ISR proposals leave*, all in one call; nothing above waits for them.

Each step may bring about another; what comes up late waits for the next pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock_core.errors import ErrorCode
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.replication.effects import Effects, OutgoingStream
from penstock_storage_node.replication.sender import ReplicationSession
from penstock_storage_node.replication.state import ReplicaState


class LeaderStreamsPort(Protocol):
    """The streams of this node's followers (see `rpc.replicate_leader`)."""

    def wake(self, sender: OutgoingStream) -> None:
        """There is something to send."""

    def tell_later(self, session: ReplicationSession) -> None:
        """The high watermark rose: tell soon, along with data if any go out meanwhile."""


class EffectsDrain:
    """Carries out one `Effects`. Lives on the event loop."""

    def __init__(self, registry: PartitionRegistry) -> None:
        self.effects = Effects()
        self._registry = registry
        self._streams: LeaderStreamsPort
        self._propose: Callable[[Iterable[ReplicaState]], None]
        self._on_follower_progress: Callable[[Partition], None]
        self._dirty: dict[Partition, None] = {}
        self._scheduled = False
        self._loop = asyncio.get_running_loop()

    def connect(
        self,
        streams: LeaderStreamsPort,
        propose: Callable[[Iterable[ReplicaState]], None],
        on_follower_progress: Callable[[Partition], None],
    ) -> None:
        """Before the first pass: where frames, proposals and followers' acks go."""
        self._streams = streams
        self._propose = propose
        self._on_follower_progress = on_follower_progress

    def touch(self, partition: Partition) -> None:
        """`partition` has something to write."""
        self._dirty[partition] = None
        if not self._scheduled:
            self.schedule()

    def schedule(self) -> None:
        """Carry out effects before the loop waits again."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def progress(self, partition: Partition, now_ms: int) -> None:
        """The log of `partition` was written or flushed further."""
        leadership = partition.replica.leadership
        if leadership is not None:
            leadership.on_local_progress(now_ms)
        elif partition.replica.following is not None:
            self._on_follower_progress(partition)
        self.schedule()

    def _run(self) -> None:
        self._scheduled = False
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            partition.kick()
        effects = self.effects
        if effects.reopen:
            reopen, effects.reopen = effects.reopen, []
            for replica, node in reopen:
                self._end_session(replica, node)
        if effects.sending:
            sending, effects.sending = effects.sending, {}
            for sender in sending:
                self._streams.wake(sender)
        if effects.advanced:
            hit("replication.watermark.advanced")
            advanced, effects.advanced = effects.advanced, {}
            for replica in advanced:
                partition_ = self._registry.partitions.get(replica.key)
                if partition_ is not None:
                    self._on_advanced(partition_)
        if effects.answers:
            hit("produce.before_answer")
            answers, effects.answers = effects.answers, []
            for waiter, error in answers:
                waiter.acknowledge(error)
        if effects.proposals:
            proposals, effects.proposals = effects.proposals, {}
            self._propose(proposals)
        if not effects.empty:
            self.schedule()

    def _end_session(self, replica: ReplicaState, node: NodeId) -> None:
        partition = self._registry.partitions.get(replica.key)
        if partition is None:
            return
        for session in [s for s in partition.sessions if s.sender.node == node]:
            session.sender.end(session, ErrorCode.REPLICA_NOT_AVAILABLE, "left the ISR: open again")
            del partition.sessions[session]

    def _on_advanced(self, partition: Partition) -> None:
        if partition.readers:
            partition.wake_readers()
        for session in partition.sessions:
            self._streams.tell_later(session)
