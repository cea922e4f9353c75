"""The shell around shards of the transaction coordinator; what all coordinators share is in `coordinator_host`.

The transitions of a turn of the event loop are one batch: what a shard has decided is appended in the turn after
(`_Turn`). Who is to carry out what it has decided is passed in.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock_core.ids import NodeId
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_kafka.wire.groups import transaction_partition
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.coordinator_host import CoordinatorHost, Hosted
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.leadership import Leadership
from penstock_storage_node.settings import TransactionSettings
from penstock_storage_node.transactions.effects import MarkersDue, MarkersWithdrawn, TopicPartitionName
from penstock_storage_node.transactions.outbox import Key
from penstock_storage_node.transactions.records import Status
from penstock_storage_node.transactions.shard import Shard

TICK_MS: Final = 20
"""Requests are held for 100 ms at most."""
_NO_LEADER: Final = -1


class _Turn:
    """Has a shard's `end_turn` called once, after the turn in which it asked for it."""

    __slots__ = ("_is_asked", "_lifecycle", "_loop", "shard")

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._loop = asyncio.get_running_loop()
        self._is_asked = False
        self.shard: Shard

    def ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._is_asked = False
        try:
            self.shard.end_turn()
        except Exception as e:
            self._lifecycle.fail_with(e)


class TransactionHost(CoordinatorHost[Shard]):
    """All shards of this node."""

    shard_class = Shard
    topic: ClassVar[str] = TRANSACTIONS_TOPIC
    what: ClassVar[str] = "transactional id"

    def __init__(
        self,
        manager: ReplicaManager,
        lifecycle: Lifecycle,
        settings: TransactionSettings,
        *,
        carry_out: Callable[[MarkersDue | MarkersWithdrawn], None],
        take_id: Callable[[], int | None],
        version: Callable[[], int],
        make_topic: Callable[[str], None] = lambda _: None,
        tick_ms: int = TICK_MS,
    ) -> None:
        """`carry_out` has markers written, `take_id` gives a producer id that nobody has or None (`ids_arrived`
        then), `version` is the cluster's `transaction.version`, `make_topic` has the topic of a coordinator made."""
        super().__init__(manager, lifecycle, tick_ms)
        self.settings = settings
        self._carry_out = carry_out
        self._take_id = take_id
        self._version = version
        self.make_topic = make_topic
        self._past = Counter[str]()
        """What shards have counted that are no more."""

    def start(self) -> None:
        """Begin to tick."""
        self._lifecycle.create_task(self._tick(), "transaction timers")
        self._lifecycle.create_task(self._expire(), "transactional id expiry")

    # -- looking up --------------------------------------------------------------------------

    def coordinator_of(self, transactional_id: str) -> NodeId | None:
        """The node that coordinates an id, by this one's metadata; None when none does, or there is no topic yet."""
        topic = self._manager.registry.image.topic(self.topic)
        if topic is None:
            return None
        partition = topic.partitions.get(transaction_partition(transactional_id, len(topic.partitions)))
        return None if partition is None or partition.leader == _NO_LEADER else NodeId(partition.leader)

    def exists(self, name: TopicPartitionName) -> bool:
        """Whether the metadata know a partition."""
        topic = self._manager.registry.image.topic(name.topic)
        return topic is not None and name.partition in topic.partitions

    def partition_count(self, topic: str) -> int:
        """Partitions of a topic, 0 when there is none of that name."""
        found = self._manager.registry.image.topic(topic)
        return 0 if found is None else len(found.partitions)

    @property
    def now_ms(self) -> int:
        """Since 1970."""
        return self._manager.wall_ms()

    # -- what `CoordinatorHost` asks ---------------------------------------------------------------

    def make(self, partition: Partition, leadership: Leadership) -> Shard:
        """See `CoordinatorHost`."""
        turn = _Turn(self._lifecycle)
        turn.shard = self.shard_class(
            self.log_class(self._manager, partition, leadership),
            self.settings,
            state_partition=partition.key.partition,
            coordinator_epoch=int(leadership.epoch),
            clock_ms=self._manager.clock_ms,
            wall_ms=self._manager.wall_ms,
            version=self._version,
            take_id=self._take_id,
            exists=self.exists,
            has_room=self._has_room,
            send=self._carry_out,
            schedule=turn.ask,
        )
        return turn.shard

    def serve(self, hosted: Hosted[Shard]) -> None:
        """See `CoordinatorHost`."""
        hosted.shard.loaded()

    def counts(self, shard: Shard) -> dict[str, Any]:
        """See `CoordinatorHost`."""
        return {"ids": shard.id_count}

    def _close(self, hosted: Hosted[Shard]) -> None:
        super()._close(hosted)
        self._past.update(_counts_of(hosted.shard))

    def _has_room(self) -> bool:
        return sum(shard.id_count + len(shard.units) for shard in self.shards()) < self.settings.ids_max

    # -- what became of what the shards wanted -------------------------------------------------------

    def ids_arrived(self) -> None:
        """`take_id` has producer ids again."""
        for shard in list(self.shards()):
            shard.ids_arrived()

    def markers_written(self, key: Key, partitions: Sequence[TopicPartitionName]) -> None:
        """Those partitions have the marker of a decision, or need none."""
        hosted = self._coordinating(*key.coordinator)
        if hosted is not None:
            hosted.shard.markers_written(key.producer_id, key.producer_epoch, partitions)

    def _coordinating(self, state_partition: int, coordinator_epoch: int) -> Hosted[Shard] | None:
        hosted = self._hosted.get(state_partition)
        return hosted if hosted is not None and hosted.leadership.epoch == coordinator_epoch else None

    # -- time ----------------------------------------------------------------------------------------

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self.settings.expiry_interval_ms / 1000)
            for shard in list(self.shards()):
                more = shard.expire()
                while more:
                    await asyncio.sleep(0)
                    more = shard.expire()

    # -- metrics -------------------------------------------------------------------------------------

    def families(self) -> Iterator[Metric]:
        """What transactions there are, for a scrape."""
        states: Counter[str] = Counter()
        oldest_ms = now_ms = self.now_ms
        held = waiting = 0
        ended: Counter[str] = Counter(self._past)
        for shard in self.shards():
            held += shard.held_count
            waiting += sum(map(len, shard.markers().values()))
            ended.update(_counts_of(shard))
            for status, count in shard.counts.items():
                states[status.label] += count
            oldest_ms = min(oldest_ms, shard.oldest_start_ms or now_ms)
        family = GaugeMetricFamily(
            "penstock_node_transactional_ids",
            "Transactional ids that this node coordinates, by state.",
            labels=("state",),
        )
        for status in Status:
            if status is not Status.DEAD:
                family.add_metric((status.label,), states[status.label])
        yield family
        for name, what, number in (
            (
                "oldest_seconds",
                "Age of the oldest open transaction among these.",
                (now_ms - oldest_ms) / 1000,
            ),
            ("requests_held", "Requests that wait for the end of a transition.", held),
            ("markers_due", "Partitions that wait for the marker of a decided transaction.", waiting),
        ):
            yield GaugeMetricFamily(f"penstock_node_transaction_{name}", what, value=number)
        aborts = CounterMetricFamily(
            "penstock_node_transaction_aborts",
            "Transactions that this node has ended by itself: timed_out, or fenced since somebody began anew.",
            labels=("why",),
        )
        for why in ("timed_out", "fenced"):
            aborts.add_metric((why,), float(ended[why]))
        yield aborts
        yield from self._unit_families(ended)

    def _unit_families(self, counted: Counter[str]) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "penstock_node_sinks",
            "Sinks of exactly-once writing that this node coordinates.",
            value=sum(len(shard.units) for shard in self.shards()),
        )
        units = CounterMetricFamily(
            "penstock_node_sink_units",
            "Commits of units that this node has decided, or found lost since a stage was not there any more.",
            labels=("outcome",),
        )
        for outcome in ("decided", "lost"):
            units.add_metric((outcome,), float(counted[outcome]))
        yield units
        yield CounterMetricFamily(
            "penstock_node_sink_stages_given_up",
            "Open stages of sinks that a decision has left over, and this node has ended.",
            value=float(counted["given_up"]),
        )


def _counts_of(shard: Shard) -> dict[str, int]:
    """What it has counted so far."""
    return {
        "timed_out": shard.timed_out_count,
        "fenced": shard.fenced_count,
        "decided": shard.units.decided_count,
        "lost": shard.units.lost_count,
        "given_up": shard.units.given_up_count,
    }
