"""Transactions in a run: who has them, what befalls the producers, and whether all is well at the end.

A part of the seeds has transactions. Whatever concerns them is drawn from a generator of their own, so that the other
seeds run as if there were none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from penstock_core.ids import TopicPartition
from penstock_core.metadata.levels import TRANSACTION_VERSION, transaction_version
from penstock_core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock_kafka.records.batch import iter_batches
from penstock_kafka.records.markers import read_marker
from penstock_kafka.wire.fetch import FetchResult, decode_fetch_response
from penstock_proto.v1 import controller_pb2 as api
from simulation import txn_wire as wire
from simulation.checked import entry_of
from simulation.group_checks import TXN_PREFIX
from simulation.group_wire import Finder, Place
from simulation.settings import RUN_US
from simulation.txn_checks import TxnChecker
from simulation.txn_clients import MS, Attempt, S, TxnProducer, Watcher

if TYPE_CHECKING:
    from simulation.settings import Settings
    from simulation.world import World

T = TypeVar("T")

CHANCE = 0.25
"""Of a seed to have transactions."""
TOPICS = ("outa", "outb")
PASSING = "outp"
"""A topic that is deleted and made again, with transactions open in it."""
KINDS = ("leader", "follower", "follower", "gateway", "gateway")


@dataclass(slots=True, eq=False)
class Slot:
    """A transactional id with its group: when its producer ends, the next one is started."""

    owner: Transactions
    transactional_id: str
    protocol: int
    is_direct: bool
    timeout_ms: int
    pause_us: int
    linger_chance: float
    place: Place
    """What its group commits offsets of."""
    producer: TxnProducer | None = None
    started: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    initializing: dict[TxnProducer, None] = field(default_factory=dict)
    """Those that have asked for an epoch and have no answer."""
    tries: list[tuple[int, TxnProducer]] = field(default_factory=list)
    """When each has asked for one."""

    @property
    def group_id(self) -> str:
        """That of its consumers."""
        return f"{self.transactional_id}-group"

    def on_dead(self, producer: TxnProducer) -> None:
        """Its supervisor starts the next one, after a while."""
        if self.producer is producer:
            self.owner.on_dead(self)


class Reader:
    """A reader of committed records: from leaders, from followers, through gateways."""

    def __init__(self, transactions: Transactions, kind: str, number: int) -> None:
        self._transactions = transactions
        self._world = transactions.world
        self._rng = transactions.rng
        self._kind = kind
        self.name = f"rc{number}"
        self.offsets: dict[TopicPartition, int] = {}
        self._connection: Any = None
        self._timer: Any = None
        self._number = 0

    def start(self) -> None:
        """Begin to read."""
        self._later(int((0.2 + self._rng.random()) * S))

    def _later(self, us: int) -> None:
        self._world.scheduler.after(us, self._poll)

    def _poll(self) -> None:
        transactions = self._transactions
        self._later(100 * MS if transactions.is_finishing else int((0.3 + self._rng.random()) * S))
        if self._timer is not None:
            return
        keys = [key for key, _ in transactions.places()]
        if self._connection is None or self._connection.closed or self._rng.random() < 0.2:
            self._connect()
        if not keys or self._connection is None:
            return
        self._number += 1
        number = self._number
        rack = "nowhere" if self._kind == "follower" else ""
        frame = wire.fetch(number, self.name, {key: self.offsets.get(key, 0) for key in keys}, rack)
        connection = self._connection
        self._timer = self._world.scheduler.after(6 * S, self._lost, connection)
        connection.send(frame, lambda data: self._answered(number, data))

    def _connect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        host = ""
        if self._kind != "gateway":
            up = [h.name for h in self._world.hosts if h.kind == "n" and h.is_up]
            host = self._rng.choice(up) if up else ""
        self._connection = wire.connect(self._world, self._rng, self._transactions.finder, host, self._lost)

    def _lost(self, connection: Any) -> None:
        if connection is self._connection:
            connection.close()
            self._connection = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _answered(self, number: int, data: bytes) -> None:
        if number != self._number or self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        for result in decode_fetch_response(data, wire.FETCH_VERSION).results:
            if result.topic_id is not None and not result.error:
                self._take(TopicPartition(result.topic_id, result.partition), result)

    def _take(self, key: TopicPartition, result: FetchResult) -> None:
        """As the Java client does it (CompletedFetch.nextFetchedRecord)."""
        checker, world = self._transactions.checker, self._world
        if world.checker.truth(key).excused:
            return
        checker.on_stable(key, result.last_stable_offset)
        expected = self.offsets.get(key, 0)
        aborted = sorted(result.aborted or (), key=lambda row: row[1])
        # A client forgets what it was told with the last answer: each names what it needs.
        aborting: set[int] = set()
        for view in result.records:
            for info in iter_batches(view):
                entry = entry_of(info)
                while aborted and aborted[0][1] <= entry.last:
                    aborting.add(aborted.pop(0)[0])
                if entry.last >= expected:
                    if entry.last >= result.last_stable_offset:
                        checker.fail(
                            "readers stay below what is undecided",
                            f"{key}: {entry} at {result.last_stable_offset}",
                        )
                    world.checker.on_read(key, entry)
                if info.is_control:
                    marker = read_marker(view, info, info.position)
                    if marker is not None and not marker.commits:
                        aborting.discard(info.producer_id)
                elif entry.last >= expected:
                    self._take_batch(key, info.is_transactional, entry, info.producer_id in aborting)
                expected = max(expected, info.next_offset)
        self.offsets[key] = expected

    def _take_batch(self, key: TopicPartition, is_transactional: bool, entry: Any, is_aborted: bool) -> None:
        checker = self._transactions.checker
        is_visible = not (is_transactional and is_aborted)
        if is_transactional:
            checker.on_read(key, entry, is_visible=is_visible)
        if is_visible and is_transactional:
            values = self._world.checker.batch_values.get((entry.crc, entry.producer), ())
            self._transactions.see(self, key, values)


class Transactions:
    """All of one run."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.finder = Finder()
        self.checker = TxnChecker(world, self)
        self.is_finishing = False
        self.wanted = wanted = world.settings.transactions
        self._act_us = _first(wanted.act_us, rng.choice((S, 2 * S, 4 * S)))
        self._has_passing = _first(wanted.passing, rng.random() < 0.4)
        self._changes_version = rng.random() < 0.25
        self._is_passing_busy = False
        ids = _first(wanted.ids, rng.choice((2, 3, 4)))
        self.slots = [self._slot(number) for number in range(1, ids + 1)]
        self._producers: list[TxnProducer] = []
        self._zombies: list[TxnProducer] = []
        self._watchers = [Watcher(self, slot) for slot in self.slots if rng.random() < 0.5]
        self.readers = [Reader(self, kind, n) for n, kind in enumerate(rng.sample(KINDS, 2), 1)]
        if world.groups is not None:
            world.groups.keep_offsets()

    @classmethod
    def draw(cls, world: World, settings: Settings) -> Transactions | None:
        """Those of this seed, None when it has none."""
        rng = random.Random(f"{world.seed}-transactions")
        has = rng.random() < CHANCE
        return cls(world, rng) if has or settings.with_transactions else None

    def _slot(self, number: int) -> Slot:
        rng, wanted = self.rng, self.wanted
        return Slot(
            self,
            f"{TXN_PREFIX}{number}",
            _first(wanted.protocol, rng.choice((wire.OLD, wire.NEW))),
            _first(wanted.is_direct, rng.random() < 0.4),
            _first(wanted.timeout_ms, rng.choice((3_000, 8_000, 30_000))),
            _first(wanted.pause_us, rng.choice((50 * MS, 300 * MS, S))),
            _first(wanted.linger_chance, rng.choice((0.0, 0.1, 0.5))),
            (TOPICS[0], 0),
        )

    # --- topics

    def places(self) -> list[tuple[TopicPartition, Place]]:
        """Where transactions write."""
        topics = self.world.workload.topics
        return [
            (TopicPartition(topics[name][0], number), (name, number))
            for name in (*TOPICS, PASSING)
            if name in topics
            for number in range(topics[name][1])
        ]

    def start(self) -> None:
        """Make the topics, then the producers."""
        settings = self.world.settings
        configs = {
            "segment.bytes": str(settings.segment_bytes),
            "index.interval.bytes": str(settings.index_interval_bytes),
        }
        for name in TOPICS:
            partitions = _first(self.wanted.partitions, self.rng.choice((1, 2)))
            self.world.scheduler.after(S, self.world.workload._create, name, partitions, configs)
        for slot in self.slots:
            self.world.scheduler.after(int((2 + 2 * self.rng.random()) * S), self._start, slot)
        for reader in self.readers:
            reader.start()
        for watcher in self._watchers:
            self.world.scheduler.after(6 * S, watcher.start)
        self.world.scheduler.after(4 * S, self._act)
        if self._has_passing:
            self.world.scheduler.after(5 * S, self._administer)
        if self._changes_version:
            self.world.scheduler.after(8 * S, self._change_version)

    def _administer(self) -> None:
        """A topic of a short life."""
        world, rng = self.world, self.rng
        if world.scheduler.now_us > RUN_US - 8 * S:
            return
        world.scheduler.after(int((5 + 10 * rng.random()) * S), self._administer)
        topics = world.workload.topics
        if PASSING not in topics:
            if not self._is_passing_busy:
                self._is_passing_busy = True
                world.workload._create(PASSING, 1, {"segment.bytes": "4096"})
            return
        topic_id, _ = topics[PASSING]
        key = TopicPartition(topic_id, 0)
        if any(key in p.partitions and p.partitions[key].left for p in world.workload.producers):
            return
        del topics[PASSING]
        for producer in world.workload.producers:
            producer.forget(key)
        self._delete(topic_id)

    def _change_version(self) -> None:
        """Between 1 and 2, under producers of both protocols."""
        world = self.world
        if world.scheduler.now_us > RUN_US:
            return
        world.scheduler.after(int((3 + 12 * self.rng.random()) * S), self._change_version)
        now = transaction_version(world.checker.images[max(world.checker.images)])
        if not now:
            return  # it needs a newer build first
        update = api.FeatureUpdate(name=TRANSACTION_VERSION, level=3 - now, allow_downgrade=now == 2)
        world.counts["changes of transaction.version"] += 1
        world.workload._call("UpdateFeatures", api.UpdateFeaturesRequest(updates=[update]), lambda _: None)

    def _delete(self, topic_id: Any) -> None:
        def done(response: Any) -> None:
            if response is None:
                self.world.scheduler.after(S // 2, self._delete, topic_id)
            else:
                self.world.counts["topics of transactions deleted"] += 1
                self._is_passing_busy = False

        request = api.DeleteTopicsRequest(topics=[api.TopicRef(topic_id=topic_id)])
        if not self.world.workload._call("DeleteTopics", request, done):
            self.world.scheduler.after(S // 2, self._delete, topic_id)

    # --- producers

    def _start(self, slot: Slot) -> None:
        if TOPICS[0] not in self.world.workload.topics:
            self.world.scheduler.after(S // 2, self._start, slot)
            return
        if slot.producer is not None and not slot.producer.is_dead:
            return
        slot.started += 1
        slot.producer = TxnProducer(self, slot, slot.started)
        self._producers.append(slot.producer)
        self.world.counts["transactional producers started"] += 1
        slot.producer.start()

    def on_dead(self, slot: Slot) -> None:
        """A producer ended."""
        wait_us = S // 2 if self.is_finishing else int((0.1 + 4 * self.rng.random() ** 2) * S)
        self.world.scheduler.after(wait_us, self._start, slot)

    def _act(self) -> None:
        """Something befalls a producer."""
        world, rng = self.world, self.rng
        if self.is_finishing or world.scheduler.now_us > RUN_US:
            return
        world.scheduler.after(int(rng.expovariate(1) * self._act_us) + 1, self._act)
        if rng.random() < self.wanted.stop_share and not world.is_calm:
            self._stop_somebody()
            return
        slot = rng.choice(self.slots)
        producer = slot.producer
        if producer is None or producer.is_dead:
            return
        action = rng.choice(("hang", "hang", "die", "second", "second"))
        if action == "second" or (producer.is_hung and rng.random() < 0.5):
            # Another one with its id, beside it: that one is a zombie from now on.
            world.counts["transactional producers taken over"] += 1
            self._zombies.append(producer)
            slot.producer = None
            self._start(slot)
        elif action == "hang" and not producer.is_hung:
            world.counts["transactional producers hung"] += 1
            producer.hang()
            world.scheduler.after(int((0.2 + 10 * rng.random() ** 2) * S), producer.resume)
        elif action == "die":
            world.counts["transactional producers killed"] += 1
            producer.die()

    def _stop_somebody(self) -> None:
        """SIGSTOP: what clients have sent to a process, and given up since, is done when it goes on."""
        up = [host for host in self.world.hosts if host.kind in self.wanted.stop_kinds and host.is_running]
        if not up:
            return
        process = self.rng.choice(up).process
        self.world.injected["stopped under transactions (SIGSTOP)"] += 1
        process.pause()

        def resume() -> None:
            if process.is_up and process.is_paused:
                process.resume()

        least_s, most_s = self.wanted.stop_s
        self.world.scheduler.after(int((least_s + (most_s - least_s) * self.rng.random()) * S), resume)

    def see(self, reader: Reader, key: TopicPartition, values: Any) -> None:
        """A reader got records: the first reader's count, the others read the same."""
        if reader is self.readers[0]:
            for value in values:
                self.checker.on_value(key, value)

    # --- the end

    def finish(self) -> None:
        """Nothing befalls anybody any more."""
        self.is_finishing = True
        for producer in self._zombies:
            producer.resume()
        for slot in self.slots:
            if slot.producer is not None:
                slot.producer.resume()
            if slot.producer is None or slot.producer.is_dead:
                self.world.scheduler.after(S // 2, self._start, slot)

    def partitions(self) -> list[TopicPartition]:
        """Those that transactions alone use, and the coordinators of their groups."""
        image = self.world.checker.images[max(self.world.checker.images)]
        names = (TRANSACTIONS_TOPIC,) if self.world.groups else (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
        return [
            TopicPartition(topic.topic_id, number)
            for name in names
            if (topic := image.topic(name)) is not None
            for number in sorted(topic.partitions)
        ]

    def why_not_done(self) -> str:
        """What still lacks, "" when each id has committed once more and nothing is open."""
        for slot in self.slots:
            if slot.producer is None or not slot.producer.is_done:
                return f"{slot.transactional_id} has not committed a last transaction"
        for zombie in self._zombies:
            if zombie.attempt is not None and not zombie.is_dead:
                return f"{zombie.name} goes on"
        return self.checker.why_open() or self._why_not_stable() or self._why_not_read()

    def _why_not_stable(self) -> str:
        keys = [*(key for key, _ in self.places()), *self.partitions()]
        for key in keys:
            end = self.world.checker.truth(key).end
            for host in self.world.hosts:
                partition = host.process.manager.registry.partitions.get(key) if host.kind == "n" else None
                if partition is None:
                    continue
                stable = partition.log.last_stable_offset(partition.replica.high_watermark)
                if stable != end or partition.log.log_end_offset != end:
                    return f"{partition.name} on {host.name}: last stable offset {stable} of {end}"
        return ""

    def _why_not_read(self) -> str:
        for key, place in self.places():
            truth = self.world.checker.truth(key)
            for reader in self.readers:
                if not truth.excused and reader.offsets.get(key, 0) != truth.end:
                    return f"{reader.name} is at {reader.offsets.get(key, 0)} of {truth.end} in {place}"
        return ""

    def dispose(self) -> None:
        """After the run."""
        for producer in [*self._producers, *self._watchers]:
            producer.dispose()


def _first(wanted: T | None, drawn: T) -> T:
    """What is drawn is drawn in any case: the rest of the seed stays as it is."""
    return drawn if wanted is None else wanted
