"""What clients do: topics made and deleted, records produced and read, controllers readmitted."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId, TopicPartition
from penstock_proto.v1 import controller_pb2 as api
from simulation.consumer import Consumer
from simulation.producer import Producer
from simulation.settings import RUN_US

if TYPE_CHECKING:
    from simulation.world import World

S = 1_000_000
TIMEOUT_MS = 4_000


class Workload:
    """All clients of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self.topics: dict[str, tuple[TopicId, int]] = {}
        """Topics that are there, by name: id and number of partitions."""
        self.names: dict[TopicId, str] = {}
        """Names of all topics that ever were."""
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self._finished = False
        self._busy = False
        """The passing topic is being made, is there, or is being deleted."""

    def start(self) -> None:
        settings = self._world.settings
        for number in range(1, settings.producers + 1):
            direct = self._rng.random() < settings.direct_probability
            self.producers.append(Producer(self._world, number, -1, direct=direct))
        if self._rng.random() < 0.3:
            self.producers.append(Producer(self._world, len(self.producers) + 1, 1, direct=False))
        # Where an acked record may be lost (power cuts and durability `replicated`), sequences part,
        # and a producer raises its epoch for all its partitions: so this one has no other topic.
        self._fast_producer = Producer(self._world, len(self.producers) + 1, -1, direct=False)
        self.producers.append(self._fast_producer)
        self.consumers = [Consumer(self._world, 1, 1_000_000)]
        for consumer in self.consumers:
            consumer.start()
        self._world.scheduler.after(S, self._make_first_topics)
        self._world.scheduler.after(2 * S, self._produce)
        self._world.scheduler.after(int((5 + 10 * self._rng.random()) * S), self._administer)
        self._world.scheduler.after(S, self._readmit)
        if settings.command_bursts:
            self._world.scheduler.after(3 * S, self._burst)

    def live_partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic_id, index)
            for topic_id, count in self.topics.values()
            for index in range(count)
        ]

    # --- controllers' API, through a gateway's client

    def _call(self, method: str, request: Any, done: Any) -> bool:
        """Call a controller; `done(response or None)`. False when no gateway can."""
        world = self._world
        up = [h for h in world.hosts if h.kind == "g" and h.is_running and h.process.is_serving_calls]
        if not up:
            return False
        process = self._rng.choice(up).process
        answered = [False]

        def answer(response: Any) -> None:
            if not answered[0]:
                answered[0] = True
                done(response)

        async def call() -> None:
            try:
                response = await process.controllers.call(method, request, TIMEOUT_MS)
            except PenstockError:
                response = None
            world.scheduler.after(0, answer, response)

        world.scheduler.after((TIMEOUT_MS + 2_000) * 1000, answer, None)
        _spawn(process, call())
        return True

    # --- topics

    def _make_first_topics(self) -> None:
        settings = self._world.settings
        segment = {"segment.bytes": str(settings.segment_bytes)}
        segment["index.interval.bytes"] = str(settings.index_interval_bytes)
        wanted = [("durable", settings.partitions, dict(segment))]
        if self._rng.random() < 0.5:
            wanted.append(("fast", 1, {**segment, "penstock.durability": "replicated"}))
        if self._rng.random() < 0.3:
            wanted.append(("lone", 1, {**segment, "min.insync.replicas": "1"}))
        for name, partitions, configs in wanted:
            self._create(name, partitions, configs)

    def _create(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        def done(response: Any) -> None:
            if response is not None and response.topics:
                topic = response.topics[0]
                if topic.error.code == ErrorCode.NONE:
                    self._there(name, TopicId(topic.topic_id), partitions)
                    return
                if topic.error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                    # Our own doing, though the answer got lost.
                    newest = self._world.checker.images[max(self._world.checker.images)]
                    found = newest.topic(name)
                    if found is not None:
                        self._there(name, found.topic_id, partitions)
                        return
            self._world.scheduler.after(S // 2, self._create, name, partitions, configs)

        new = api.NewTopic(name=name, partition_count=partitions, replication_factor=3, configs=configs)
        if not self._call("CreateTopics", api.CreateTopicsRequest(topics=[new]), done):
            self._world.scheduler.after(S // 2, self._create, name, partitions, configs)

    def _there(self, name: str, topic_id: TopicId, partitions: int) -> None:
        self.topics[name] = (topic_id, partitions)
        self.names[topic_id] = name
        self._world.counts["topics made"] += 1

    def _administer(self) -> None:
        """Topics of a short life: made, written, deleted, made again under the same name."""
        world = self._world
        if world.scheduler.now_us > RUN_US - 8 * S:
            return
        world.scheduler.after(int((6 + 10 * self._rng.random()) * S), self._administer)
        if "passing" not in self.topics:
            if not self._busy:
                self._busy = True
                self._create("passing", 1, {"segment.bytes": "4096"})
            return
        topic_id, count = self.topics["passing"]
        keys = [TopicPartition(topic_id, index) for index in range(count)]
        if any(key in p.partitions and p.partitions[key].left for p in self.producers for key in keys):
            # Produce names topics: what is on its way must not reach the next one of that name.
            return
        del self.topics["passing"]
        for producer in self.producers:
            for key in keys:
                producer.forget(key)
        self._delete(topic_id)

    def _delete(self, topic_id: TopicId) -> None:
        def done(response: Any) -> None:
            if response is None:
                self._world.scheduler.after(S // 2, self._delete, topic_id)
            else:
                self._world.counts["topics deleted"] += 1
                self._busy = False

        request = api.DeleteTopicsRequest(topics=[api.TopicRef(topic_id=topic_id)])
        if not self._call("DeleteTopics", request, done):
            self._world.scheduler.after(S // 2, self._delete, topic_id)

    def _burst(self) -> None:
        """Commands that take no time and must each give something else, and some that change nothing."""
        world, rng = self._world, self._world.rng
        if world.scheduler.now_us > RUN_US - 2 * S:
            return
        world.scheduler.after(int(rng.expovariate(1) * 3 * S) + 1, self._burst)

        def done(response: Any) -> None:
            if response is not None and not response.error.code:
                world.on_producer_id(response.first_producer_id)

        again = api.CreateTopicsRequest(topics=[api.NewTopic(name="durable", partition_count=1)])
        for _ in range(rng.randint(1, 8)):
            if "durable" in self.topics and rng.random() < 0.4:
                self._call("CreateTopics", again, lambda _: None)
            else:
                self._call("AllocateProducerIds", api.AllocateProducerIdsRequest(owner="burst"), done)

    # --- records

    def _produce(self) -> None:
        world, rng = self._world, self._rng
        if self._finished:
            return
        world.scheduler.after(int(rng.expovariate(1) * world.settings.produce_interval_us) + 1, self._produce)
        keys = self.live_partitions()
        if not keys:
            return
        key = rng.choice(keys)
        producer = self._producer_for(key, rng.choice(self.producers[:-1]))
        if producer.left > 60:
            return
        # Bursts fill the pipeline.
        for _ in range(rng.choice((1, 1, 1, 2, 7))):
            producer.produce(key, rng.randint(1, 3))
            other = rng.choice(keys)
            if self._producer_for(other, producer) is producer:
                key = other

    def _producer_for(self, key: TopicPartition, wanted: Producer) -> Producer:
        own = self._world.log_life.producers
        if self.names[key.topic_id] in own or wanted in own.values():
            return own.get(self.names[key.topic_id], self.producers[0])
        is_fast = self.names[key.topic_id] == "fast"
        if is_fast or wanted is self._fast_producer:
            return self._fast_producer if is_fast else self.producers[0]
        return wanted

    def _all_producers(self) -> list[Producer]:
        return [*self.producers, *self._world.log_life.producers.values()]

    # --- controllers that lost their disk

    def _readmit(self) -> None:
        """What an operator does: `penstock controller replace`."""
        world = self._world
        world.scheduler.after(S, self._readmit)
        for host in world.hosts:
            if host.kind != "c" or not host.is_wiped or not host.is_up:
                continue
            raft = host.process.raft
            if raft._memory.joined:
                host.is_wiped = False
                continue
            if raft.not_voting_reason:
                request = api.ReplaceControllerRequest(
                    controller_id=host.number, directory_id=host.directory_id
                )
                self._call("ReplaceController", request, lambda _: None)
        self._elect_by_hand()

    def _elect_by_hand(self) -> None:
        """An unclean election, where the last known leader came back with another disk (decision 0140). Of a partition
        that has kept its promise so far nobody should have to: its seed ends without progress."""
        checker = self._world.checker
        newest = checker.images[max(checker.images)]
        keys = [
            api.TopicPartitionId(topic_id=state.topic_id, partition=state.partition)
            for topic in newest.topics.values()
            for state in topic.partitions.values()
            if state.unconfirmed and state.key in checker.truths and checker.truth(state.key).excused
        ]
        if keys:
            self._world.counts["elections by hand"] += len(keys)
            self._call("ElectLeaders", api.ElectLeadersRequest(partitions=keys, unclean=True), lambda _: None)

    # --- the end

    def finish(self) -> None:
        """Faults are over: one more batch to everybody from everybody."""
        self._finished = True
        for consumer in self.consumers:
            consumer.finish()
        for producer in self._all_producers():
            for key in self.live_partitions():
                if self._producer_for(key, producer) is producer:
                    producer.produce(key, 1)

    def why_not_done(self) -> str:
        """What still lacks, "" when all is read and acknowledged."""
        for producer in self._all_producers():
            if producer.left:
                return f"{producer.name} has {producer.left} batches that are not acknowledged"
        for key in self.live_partitions():
            truth = self._world.checker.truth(key)
            for consumer in self.consumers:
                if not truth.excused and consumer.offsets.get(key, 0) != truth.end:
                    return f"a reader is at {consumer.offsets.get(key, 0)} of {truth.end} in {key.partition}"
        return ""


def _spawn(process: Any, coro: Coroutine[Any, Any, None]) -> None:
    process.loop.call_soon(process.spawn, coro)
