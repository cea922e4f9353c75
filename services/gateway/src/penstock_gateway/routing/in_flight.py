"""The requests of one client connection on their way to partition leaders.

A flight (`flight`) is a request, or a part of one, whose partitions have one leader. The table
decides when each is sent where and what becomes of it when leadership moves or a
node is lost. It knows no event loop: the shell feeds events (`submit`, `ready`,
`broken`, `image_changed`, `answered`, `refused`, `tick`) and then carries out what
stands in `answers`, `wanted`, `dropped` and `awake`.

Rules (rule "Maybe written, never 6"):
- Produce that was sent may be written: when its node is lost, or its leader moved and
  the old one stays silent for GRACE_MS, it is answered REQUEST_TIMED_OUT (7), never 6.
- Produce not yet sent, or refused before the append, is routed again; after its hold
  time it is answered NOT_LEADER_OR_FOLLOWER (6): certainly not written.
- Per partition, Produce keeps its order: a later one waits while an earlier one is held
  or still out at another node; when an earlier one is answered with a failure here,
  those behind it that weren't sent fail with 6, so that the client sends all again in order;
  so do those that the client had already sent when it read of the failure (`fences`).
  The same holds where the node itself answered with a failure that the client is told.
- Fetch is answered 6 as soon as its leader moved or is lost, so that the client looks
  for the new leader. Queries (ListOffsets, ...) change nothing and are asked again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_core.metadata.image import MetadataImage, PartitionImage
from penstock_gateway.routing.flight import InFlight, P, State
from penstock_gateway.routing.partition_lines import PartitionLines
from penstock_gateway.routing.retry_gate import RetryGate
from penstock_kafka.wire.apis import OnLoss

GRACE_MS = 300
"""How long a live node that lost leadership may take to answer what it was sent."""

SWEEP_MS = 1_000
"""How often a tick looks for nodes that take longer than they may."""

RETRY_MS = 100
"""How long a refused flight waits before it is tried at the same leader again."""


@dataclass(slots=True)
class _Stream(Generic[P]):
    node_epoch: int
    ready: bool = False
    queue: deque[InFlight[P]] = field(default_factory=deque)
    sent: dict[InFlight[P], None] = field(default_factory=dict)


class InFlightTable(Generic[P]):
    """Decides for one client connection; see the module's text."""

    def __init__(self, image: MetadataImage, clock_ms: Callable[[], int]) -> None:
        self._image = image
        self._clock_ms = clock_ms
        self._streams: dict[NodeId, _Stream[P]] = {}
        self._held: dict[InFlight[P], None] = {}
        self._lines: PartitionLines[P] = PartitionLines()
        self._retry_gate: RetryGate[TopicPartition] = RetryGate()
        self._seq = 0
        self._grace = False
        self._sweep_ms = 0
        self.answers: list[tuple[InFlight[P], ErrorCode]] = []
        """Flights to answer with a failure, for each of their partitions."""
        self.wanted: set[NodeId] = set()
        """Nodes to open a stream to."""
        self.dropped: set[NodeId] = set()
        """Nodes whose stream is to be closed; the table has already forgotten it."""
        self.awake: set[NodeId] = set()
        """Nodes for which `take` has something."""

    # -- events ---------------------------------------------------------------------

    def submit(self, flight: InFlight[P]) -> None:
        """A client's request, in the order of arrival."""
        self._seq += 1
        flight.seq = self._seq
        if self._retry_gate and flight.is_ordered:
            self._enter_fenced(flight)
        else:
            self._enter(flight)

    def ready(self, node_id: NodeId) -> None:
        """The stream to that node is connected."""
        stream = self._streams.get(node_id)
        if stream is not None:
            stream.ready = True
            self._retry_held()

    def broken(self, node_id: NodeId) -> None:
        """The stream to that node failed; what was sent may or may not have arrived."""
        stream = self._streams.pop(node_id, None)
        if stream is None:
            return
        self.awake.discard(node_id)
        unsent, sent = list(stream.queue), list(stream.sent)
        stream.queue.clear()
        stream.sent.clear()
        for flight in (*sent, *unsent):
            self._lines.come_back(flight)
        for flight in unsent:
            self._hold_or_answer(flight)
        for flight in sent:
            if flight.on_loss is OnLoss.ASK_AGAIN:
                self._hold(flight)
            else:
                self._fail(flight, _lost_code(flight))
        self._retry_held()

    def image_changed(self, image: MetadataImage) -> None:
        """Newer metadata: leaders may have moved, nodes may be gone."""
        self._image = image
        for node_id, stream in list(self._streams.items()):
            node = image.nodes.get(node_id)
            if node is None or node.fenced or node.node_epoch != stream.node_epoch:
                self.dropped.add(node_id)
                self.broken(node_id)
        now = self._clock_ms()
        for node_id, stream in self._streams.items():
            self._follow_leaders(node_id, stream, now)
        for flight in [f for f in self._held if f.on_loss is OnLoss.ASK_CLIENT and self._moved(f, f.node_id)]:
            self._release(flight)
            self._fail(flight, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._retry_held()

    def take(self, node_id: NodeId, most_bytes: int) -> list[InFlight[P]]:
        """The next flights to send to that node, at least one when any waits.

        They count as sent from now on.
        """
        stream = self._streams.get(node_id)
        taken: list[InFlight[P]] = []
        if stream is None:
            return taken
        now = self._clock_ms()
        queue = stream.queue
        while queue and (not taken or queue[0].size_bytes <= most_bytes):
            flight = queue.popleft()
            most_bytes -= flight.size_bytes
            flight.state = State.SENT
            flight.until_ms = now + flight.answer_ms
            stream.sent[flight] = None
            taken.append(flight)
        if not queue:
            self.awake.discard(node_id)
        return taken

    def answered(self, flight: InFlight[P]) -> bool:
        """The node answered; False when it came too late to matter."""
        if flight.state is not State.SENT:
            return False
        self._land(flight)
        self._retry_behind(flight)
        return True

    def refused(self, flight: InFlight[P], indices: Sequence[int], failed: Sequence[int] = ()) -> bool:
        """The node answered, but refused these partitions before it did anything.

        They are routed again, but not past a batch that the node, in this flight or an earlier
        one, answered with an error at which the client sends it again (`failed`): another node
        knows nothing of it. False when the answer came too late to matter.
        """
        if flight.state is not State.SENT:
            return False
        node_id = flight.node_id
        stream = self._streams[node_id]
        self._land(flight)
        now = self._clock_ms()
        for i in failed:
            self._fail_behind(flight, i)
        for part in flight.split([[i] for i in indices]):
            if self._retry_gate.holds_back(part.partitions[0], part.sequence(0)):
                self._fail(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            part.seq, part.expires_ms = flight.seq, flight.expires_ms
            self._hold_refused(part, node_id, now)
        refused = {flight.partitions[i] for i in indices}
        behind = {f for f in stream.queue if f.is_ordered and not refused.isdisjoint(f.partitions)}
        if behind:
            self._pull_back(stream, behind)
        self._retry_behind(flight)
        self._retry_held()
        return True

    def postponed(self, flight: InFlight[P]) -> bool:
        """The node answered that it cannot say yet: it is asked the same again, for as long as a flight is held.

        False when the answer came too late to matter.
        """
        if flight.state is not State.SENT:
            return False
        node_id = flight.node_id
        self._land(flight)
        self._hold_refused(flight, node_id, self._clock_ms())
        return True

    def tick(self) -> bool:
        """Time passed: gives up what waited too long, tries again what may go on.

        Cheap, and False, while nothing waits but the answers of live leaders; those are
        looked at every SWEEP_MS.
        """
        now = self._clock_ms()
        if not self._held and not self._grace and now < self._sweep_ms:
            return False
        self._sweep_ms = now + SWEEP_MS
        self._grace = False
        for stream in self._streams.values():
            for flight in [f for f in stream.sent if f.until_ms <= now]:
                self._land(flight)
                self._fail(flight, _lost_code(flight))
                self._retry_behind(flight)
            self._grace = self._grace or any(f.until_ms <= now + GRACE_MS for f in stream.sent)
        for flight in [f for f in self._held if f.until_ms <= now]:
            if flight.state is State.HELD:
                self._release(flight)
                self._fail(flight, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._retry_held()
        return True

    @property
    def idle(self) -> bool:
        """No flight waits for anything: `tick` has nothing to do until the next `submit`."""
        return not self._held and not any(s.sent or s.queue for s in self._streams.values())

    @property
    def held_count(self) -> int:
        """Flights that wait for a leader, a stream or their turn."""
        return len(self._held)

    @property
    def sent_count(self) -> int:
        """Flights that a node has been sent and hasn't answered."""
        return sum(len(s.sent) for s in self._streams.values())

    @property
    def unsent_bytes(self) -> int:
        """Bytes of flights that are queued or held."""
        queued = sum(f.size_bytes for s in self._streams.values() for f in s.queue)
        return queued + sum(f.size_bytes for f in self._held)

    # -- where to -------------------------------------------------------------------

    def _partition(self, key: TopicPartition) -> PartitionImage | None:
        return self._image.partition(key.topic_id, key.partition)

    def leader(self, key: TopicPartition) -> NodeId:
        """The partition's leader as metadata has it, or NO_NODE."""
        topic = self._image.topics.get(key.topic_id)
        partition = None if topic is None else topic.partitions.get(key.partition)
        if partition is None or partition.leader not in self._image.nodes:
            return NO_NODE
        return partition.leader

    def _moved(self, flight: InFlight[P], node_id: NodeId) -> bool:
        return any(self.leader(key) != node_id for key in flight.partitions)

    def _enter(self, flight: InFlight[P]) -> None:
        """Queue a flight that is in no line, or hold it; splits it when leaders differ."""
        groups: dict[NodeId, list[int]] = {}
        for i, key in enumerate(flight.partitions):
            groups.setdefault(self.leader(key), []).append(i)
        if len(groups) > 1:
            flight.state = State.DONE
            for part in flight.split(list(groups.values())):
                part.seq, part.expires_ms = flight.seq, flight.expires_ms
                self._enter_one(part, self.leader(part.partitions[0]))
        else:
            self._enter_one(flight, next(iter(groups), NO_NODE))

    def _enter_fenced(self, flight: InFlight[P]) -> None:
        """As `_enter`, but what is behind a failed batch of its producer fails too."""
        now = self._clock_ms()
        ways: tuple[list[int], list[int]] = [], []
        for i, key in enumerate(flight.partitions):
            ways[self._retry_gate.turns_away(key, flight.sequence(i), now)].append(i)
        for part, is_away in self._parted(flight, ways):
            if is_away:
                self._answer(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                self._enter(part)

    def _parted(
        self, flight: InFlight[P], ways: tuple[Sequence[int], Sequence[int]]
    ) -> list[tuple[InFlight[P], bool]]:
        """What of a flight goes the first way and what the second, by indices into its partitions."""
        if not (ways[0] and ways[1]):
            return [(flight, bool(ways[1]))]
        flight.state = State.DONE
        parts = flight.split(ways)
        for part in parts:
            part.seq, part.expires_ms = flight.seq, flight.expires_ms
        return list(zip(parts, (False, True), strict=True))

    def _enter_one(self, flight: InFlight[P], leader: NodeId) -> None:
        flight.node_id = leader
        if leader == NO_NODE and flight.on_loss is OnLoss.ASK_CLIENT:
            self._fail(flight, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._may_go(flight, leader):
            self._queue(flight, leader)
        else:
            self._hold(flight)

    def _may_go(self, flight: InFlight[P], leader: NodeId) -> bool:
        if leader == NO_NODE:
            return False
        stream = self._streams.get(leader)
        if stream is None:
            # Keyed by the node's epoch: a node that comes back is another one.
            self._streams[leader] = _Stream(self._image.nodes[leader].node_epoch)
            self.wanted.add(leader)
            return False
        if not stream.ready:
            return False
        if flight.refused_by is not None and flight.retry_ms > self._clock_ms():
            partition = self._partition(flight.partitions[0])
            if partition is None or flight.refused_by == (leader, partition.leader_epoch):
                return False
        return self._lines.may_go(flight, leader)

    def _queue(self, flight: InFlight[P], leader: NodeId) -> None:
        flight.state = State.QUEUED
        flight.node_id = leader
        self._lines.go_out(flight, leader)
        self._streams[leader].queue.append(flight)
        self.awake.add(leader)

    def _follow_leaders(self, node_id: NodeId, stream: _Stream[P], now: int) -> None:
        """A live node lost leadership of some partitions."""
        for flight in stream.sent:
            if flight.on_loss is not OnLoss.ASK_AGAIN and self._moved(flight, node_id):
                flight.until_ms = min(flight.until_ms, now + GRACE_MS)
                self._grace = True
        moved = {f for f in stream.queue if self._moved(f, node_id)}
        if moved:
            self._pull_back(stream, moved)

    def _pull_back(self, stream: _Stream[P], wrong: set[InFlight[P]]) -> None:
        """Take unsent flights off a queue that are not to go there, to be routed again.

        Those behind them come along, Fetch apart: they may share a partition with one that
        is pulled back, and go on in their order when held flights are tried again.
        """
        queue, stream.queue = stream.queue, deque()
        pulling = False
        for flight in queue:
            pulling = pulling or (flight in wrong and flight.on_loss is not OnLoss.ASK_CLIENT)
            if flight in wrong or (pulling and flight.on_loss is not OnLoss.ASK_CLIENT):
                self._lines.come_back(flight)
                self._hold_or_answer(flight)
            else:
                stream.queue.append(flight)

    # -- holding, landing, failing ----------------------------------------------------

    def _hold_or_answer(self, flight: InFlight[P]) -> None:
        """An unsent flight whose node is no longer the one to send it to."""
        if flight.on_loss is OnLoss.ASK_CLIENT:
            self._fail(flight, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        ways: tuple[list[int], list[int]] = [], []
        if self._retry_gate:
            for i, key in enumerate(flight.partitions):
                ways[self._retry_gate.holds_back(key, flight.sequence(i))].append(i)
        for part, is_behind in self._parted(flight, ways):
            if is_behind:
                self._fail(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                self._hold(part)

    def _hold(self, flight: InFlight[P]) -> None:
        flight.state = State.HELD
        if not flight.expires_ms:
            flight.expires_ms = self._clock_ms() + flight.hold_ms
        flight.until_ms = flight.expires_ms
        self._held[flight] = None
        self._lines.hold(flight)

    def _hold_refused(self, flight: InFlight[P], node_id: NodeId, now: int) -> None:
        """What that node would not take is tried there again after a pause, and at another leader at once."""
        partition = self._partition(flight.partitions[0])
        flight.refused_by = (node_id, partition.leader_epoch) if partition else None
        flight.retry_ms = now + RETRY_MS
        self._hold(flight)

    def _release(self, flight: InFlight[P]) -> None:
        """Take a held flight out of its lines."""
        del self._held[flight]
        self._lines.release(flight)

    def _retry_held(self) -> None:
        for flight in sorted(self._held, key=lambda flight: flight.seq):
            self._retry(flight)

    def _retry(self, flight: InFlight[P]) -> None:
        if flight.state is not State.HELD:
            return
        leaders = {self.leader(key) for key in flight.partitions}
        if len(leaders) > 1:
            self._release(flight)
            self._enter(flight)
            return
        leader = leaders.pop()
        if self._may_go(flight, leader):
            self._release(flight)
            self._queue(flight, leader)

    def _land(self, flight: InFlight[P]) -> None:
        """A sent flight is out no more."""
        stream = self._streams[flight.node_id]
        del stream.sent[flight]
        flight.state = State.DONE
        self._lines.come_back(flight)

    def _retry_behind(self, flight: InFlight[P]) -> None:
        """Let those go that waited behind a flight."""
        if flight.is_ordered:
            for key in flight.partitions:
                for waiting in self._lines.held(key):
                    self._retry(waiting)

    def _answer(self, flight: InFlight[P], code: ErrorCode) -> None:
        flight.state = State.DONE
        self.answers.append((flight, code))

    def _fail(self, flight: InFlight[P], code: ErrorCode) -> None:
        """Answer a flight that is in no line, and fail those behind it."""
        self._answer(flight, code)
        if flight.is_ordered:
            for i in range(len(flight.partitions)):
                self._fail_behind(flight, i)

    def _fail_behind(self, flight: InFlight[P], index: int) -> None:
        """A partition's batch failed: so must those behind it, held here or still to come."""
        now = self._clock_ms()
        work = [(flight, index)]
        while work:
            failed, i = work.pop()
            key = failed.partitions[i]
            self._retry_gate.failed(key, failed.sequence(i), now)
            for behind in [f for f in self._lines.held(key) if f.seq > failed.seq]:
                self._release(behind)
                self._answer(behind, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                work += [(behind, j) for j in range(len(behind.partitions))]


def _lost_code(flight: InFlight[Any]) -> ErrorCode:
    """What a sent flight is answered when no answer will come."""
    if flight.is_ordered:
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.NOT_LEADER_OR_FOLLOWER
