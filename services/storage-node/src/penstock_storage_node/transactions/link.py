"""Transactions between nodes, seen from one: markers of its coordinators, questions of its leaders, and the answers.

The outbox and the additions of this node decide what goes where; this carries it: by the stream to another node, or at
once where that is this one. What comes by the streams of others is done by the leaders' side and by the coordinators
here. What was sent in a turn goes together.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.transactions.admission import MarkerOrder
from penstock_storage_node.transactions.effects import MarkersDue, MarkersWithdrawn, TopicPartitionName
from penstock_storage_node.transactions.leading import LeadingSide
from penstock_storage_node.transactions.outbox import Key, Marker, Outbox, Place, key_of
from penstock_storage_node.transactions.questions import Question
from penstock_storage_node.transactions.shard import Shard
from penstock_storage_node.transactions.state import Add, Answer, Verify
from penstock_storage_node.transactions.verifier import Additions, Ask, Producer

EXPIRE_MS: Final = 600_000
"""How often guards that stand for nothing are looked for."""
NO_EPOCH: Final = -1

Results = list[tuple[TopicPartitionName, ErrorCode]]


class Coordinators(Protocol):
    """The transaction coordinators of this node (see `host`)."""

    def find(self, transactional_id: str) -> Shard:
        """The shard of an id. Raises COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""

    def coordinator_of(self, transactional_id: str) -> NodeId | None:
        """By this node's metadata: the node that leads the state partition."""

    def markers_written(self, key: Key, partitions: Sequence[TopicPartitionName]) -> None:
        """Those have their marker, or need none."""


class Streams(Protocol):
    """The streams to other nodes (see `rpc.transaction_streams`)."""

    def send_asks(self, node: NodeId, asks: Sequence[Ask]) -> bool:
        """To the coordinators there; False when that can't be."""

    def send_markers(self, node: NodeId, markers: Sequence[Marker]) -> None:
        """To the leaders there. Lost ones are told by `TransactionLink.stream_lost`."""


class Loop(Protocol):
    """Of an event loop what is needed here."""

    def call_soon(self, callback: Callable[[], None], /) -> object:
        """After this turn."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle:
        """In so many seconds."""


class AskInProgress:
    """One question of a leader, at the coordinator: answered once, unless who asked is gone before."""

    def __init__(self, coordinators: Coordinators, ask: Ask, reply: Callable[[int, Results], None]) -> None:
        """`reply`: told the coordinator's epoch and a code for each partition."""
        self._coordinators = coordinators
        self._ask = ask
        self._reply = reply
        self._missing: Results = []
        self._held: tuple[Shard, Question] | None = None
        self.is_over = False

    def begin(self) -> None:
        """Ask."""
        self._begin(frozenset(self._ask.partitions))

    def _begin(self, partitions: frozenset[TopicPartitionName]) -> None:
        producer = self._ask.producer
        try:
            shard = self._coordinators.find(producer.transactional_id)
        except PenstockError as error:
            self._tell(NO_EPOCH, [(partition, error.code) for partition in partitions])
            return
        request: Add | Verify
        if self._ask.verify_only:
            request = Verify(producer.producer_id, producer.epoch, partitions, has_batch=True)
        else:
            request = Add(producer.producer_id, producer.epoch, partitions, client_version=2)
        question = shard.add(
            producer.transactional_id, request, lambda answer: self._answered(shard, partitions, answer)
        )
        if question.reply is not None:  # else it is answered, and others may have been begun
            self._held = shard, question

    def _answered(self, shard: Shard, partitions: frozenset[TopicPartitionName], answer: Answer) -> None:
        if self.is_over:
            return
        if answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and answer.missing:
            # Leaders know of new topics first; what is asked along with these need not wait for that.
            self._missing += [(partition, answer.error) for partition in answer.missing]
            rest = partitions - answer.missing
            if rest:
                self._begin(rest)
            else:
                self._tell(shard.coordinator_epoch, [])
            return
        failed = answer.missing or partitions
        self._tell(
            shard.coordinator_epoch,
            [(p, answer.error if p in failed else ErrorCode.NONE) for p in partitions],
        )

    def _tell(self, epoch: int, results: Results) -> None:
        self.is_over = True
        self._held = None
        self._reply(epoch, [*results, *self._missing])

    def drop(self) -> None:
        """Who asked is gone: what has not begun does not begin."""
        self.is_over = True
        if self._held is not None:
            shard, question = self._held
            self._held = None
            shard.drop(question)


class TransactionLink:
    """Of one node. Lives on the event loop."""

    def __init__(
        self,
        manager: ReplicaManager,
        coordinators: Coordinators,
        leading: LeadingSide,
        loop: Loop | None = None,
    ) -> None:
        """`loop`: the one that runs, unless it is said."""
        self.leading = leading
        self._manager = manager
        self._coordinators = coordinators
        self._streams: Streams | None = None
        self._log = manager.lifecycle.log
        self.outbox: Final = Outbox(
            clock_ms=manager.clock_ms,
            leader_of=self._leader_of,
            send=self._send_markers,
            written=coordinators.markers_written,
            schedule=self._schedule,
        )
        self.additions: Final = Additions(
            clock_ms=manager.clock_ms,
            coordinator_of=coordinators.coordinator_of,
            send=self._send_asks,
            schedule=self._schedule,
        )
        self._loop: Loop = asyncio.get_running_loop() if loop is None else loop
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._expire_ms = manager.clock_ms() + EXPIRE_MS
        self._deleted: set[str] = set()
        """Topics that went while this process looked, since the metadata were restored from a backup."""
        self._told_of_newer = 0
        self._told_of_fenced = 0

    def connect(self, streams: Streams) -> None:
        """The ways to other nodes, which are made after this."""
        self._streams = streams

    # -- from the coordinators here --------------------------------------------------------------

    def carry_out(self, effect: MarkersDue | MarkersWithdrawn) -> None:
        """A decision whose markers are to be written, or a coordinator that is one no more."""
        if isinstance(effect, MarkersDue):
            self.outbox.add(effect)
        else:
            self.outbox.withdraw(effect)

    def _leader_of(self, name: TopicPartitionName) -> NodeId | Place:
        topic = self._manager.registry.image.topic(name.topic)
        state = None if topic is None else topic.partitions.get(name.partition)
        if state is None:
            # A topic that restored metadata lack may be on the nodes, and be taken again (decision 0057).
            is_gone = not self._manager.registry.image.restored_version or name.topic in self._deleted
            return Place.GONE if is_gone else Place.NO_LEADER
        return Place.NO_LEADER if state.leader == NO_NODE else NodeId(state.leader)

    def _send_markers(self, node: NodeId, markers: Sequence[Marker]) -> None:
        hit("transactions.markers.before_send")
        if node != self._manager.registry.node_id:
            if self._streams is not None:
                self._streams.send_markers(node, markers)
            return
        for marker in markers:
            key = key_of(marker.due)
            for partition in marker.partitions:
                self.leading.write(
                    order_of(marker.due),
                    partition,
                    lambda code, key=key, partition=partition: self.marker_answered(  # type: ignore[misc]
                        node, key, [(partition, code)]
                    ),
                    lambda: False,
                )

    def marker_answered(self, node: NodeId, key: Key, results: Results) -> None:
        """A leader's answers, by the stream that is open now."""
        self.outbox.answered(node, key, results)
        newer = self.outbox.ended_elsewhere_count
        if newer != self._told_of_newer:
            self._told_of_newer = newer
            self._log.warning(
                "a log has a newer epoch of a transaction's producer: its marker is not written there",
                producer_id=key.producer_id,
                producer_epoch=key.producer_epoch,
                partitions=_named(results, ErrorCode.INVALID_PRODUCER_EPOCH),
            )
        fenced = self.outbox.fenced_count
        if fenced != self._told_of_fenced:
            self._told_of_fenced = fenced
            self._log.warning(
                "a leader knows a newer transaction coordinator: the transaction waits there until this one hears"
                " of it",
                producer_id=key.producer_id,
                producer_epoch=key.producer_epoch,
                coordinator_epoch=key.coordinator_epoch,
                partitions=_named(results, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
            )
        self._arm()

    # -- from the leaders here -------------------------------------------------------------------

    def _send_asks(self, node: int, asks: Sequence[Ask]) -> bool:
        hit("transactions.ask.before_send")
        if node != self._manager.registry.node_id:
            return self._streams is not None and self._streams.send_asks(NodeId(node), asks)
        for ask in asks:
            self.take_ask(ask, lambda epoch, results, ask=ask: self.ask_answered(ask.number, epoch, results))  # type: ignore[misc]
        return True

    def ask_answered(self, number: int, coordinator_epoch: int, results: Results) -> None:
        """A coordinator's answer."""
        self.additions.answered(number, results, coordinator_epoch)
        self._arm()

    # -- from other nodes ------------------------------------------------------------------------

    def take_ask(self, ask: Ask, reply: Callable[[int, Results], None]) -> AskInProgress:
        """A leader asks the coordinators here."""
        asked = AskInProgress(self._coordinators, ask, reply)
        asked.begin()
        return asked

    def stream_lost(self, node: NodeId) -> None:
        """Nothing more comes by the stream to a node."""
        self.outbox.stream_lost(node)
        self.additions.stream_lost(node)
        self._arm()

    # -- metadata and time -----------------------------------------------------------------------

    def on_metadata(self, old: MetadataImage, new: MetadataImage) -> None:
        """Leaders may be known now, and epochs of coordinators."""
        if 0 < new.restored_version <= old.version and old.topic_ids is not new.topic_ids:
            self._deleted |= old.topic_ids.keys() - new.topic_ids.keys()
        self.leading.metadata_changed()
        self.outbox.metadata_changed()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_scheduled = False
        try:
            self.additions.end_turn()
            self.outbox.end_turn()
            self._arm()
        except Exception as e:
            self._manager.lifecycle.fail_with(e)

    def _arm(self) -> None:
        """Have `_tick` come when something is due."""
        due_ms = min(self.outbox.next_timer_ms, self.additions.next_timer_ms, self._expire_ms)
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        wait_ms = max(due_ms - self._manager.clock_ms(), 1)
        self._timer = self._loop.call_later(wait_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.outbox.tick()
            self.additions.tick()
            now_ms = self._manager.clock_ms()
            if now_ms >= self._expire_ms:
                self._expire_ms = now_ms + EXPIRE_MS
                self.leading.expire(now_ms)
            self._arm()
        except Exception as e:
            self._manager.lifecycle.fail_with(e)

    def families(self) -> Iterator[Metric]:
        """Markers on their way, and what leaders have asked, for a scrape."""
        markers = GaugeMetricFamily(
            "penstock_node_transaction_markers_waiting",
            "Markers of coordinators here that are sent and not answered, by node; without a node: not sent.",
            labels=("node",),
        )
        for node, count in self.outbox.waiting().items():
            markers.add_metric(("" if node is None else str(node),), count)
        yield markers
        yield CounterMetricFamily(
            "penstock_node_transaction_markers_written",
            "Markers that leaders here have appended.",
            value=self.leading.marker_count,
        )
        yield CounterMetricFamily(
            "penstock_node_transaction_markers_superseded",
            "Markers of coordinators here that met a newer epoch of their producer, and were not written.",
            value=self.outbox.ended_elsewhere_count,
        )
        yield CounterMetricFamily(
            "penstock_node_transaction_markers_fenced",
            "Markers of coordinators here that a leader refused twice, since it knows a newer coordinator.",
            value=self.outbox.fenced_count,
        )
        asked = CounterMetricFamily(
            "penstock_node_transaction_verifications",
            "What leaders here have asked coordinators before a transaction's first batch, by what came of it.",
            labels=("answer",),
        )
        for answer, number in self.additions.answers.items():
            asked.add_metric((answer,), number)
        yield asked
        yield CounterMetricFamily(
            "penstock_node_transaction_verification_seconds",
            "What the answers to these have taken together.",
            value=self.additions.answer_ms / 1000,
        )

    def close(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _named(results: Results, code: ErrorCode) -> list[str]:
    """A few of the partitions that gave that answer, for a line of the log."""
    return [f"{p.topic}-{p.partition}" for p, c in results if c is code][:10]


def order_of(due: MarkersDue) -> MarkerOrder:
    """What a leader is asked to write for a decision."""
    return MarkerOrder(
        due.producer_id,
        due.producer_epoch,
        due.commit,
        due.coordinator_epoch,
        due.transaction_version,
        due.state_partition,
    )


def by_code(
    results: Iterable[tuple[TopicPartitionName, ErrorCode]],
) -> dict[ErrorCode, list[TopicPartitionName]]:
    """Partitions that share an answer."""
    found: dict[ErrorCode, list[TopicPartitionName]] = defaultdict(list)
    for partition, code in results:
        found[code].append(partition)
    return found


__all__ = ["AskInProgress", "Coordinators", "Producer", "Streams", "TransactionLink", "by_code", "order_of"]
