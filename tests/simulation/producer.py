"""A producer as clients are: retries, five requests in flight, idempotent with acks=all.

What it does with each error is what librdkafka 2.x does (rdkafka_request.c,
rd_kafka_handle_idempotent_Produce_error): retriable codes are sent again in order, once
nothing else of the partition is in flight (rd_kafka_toppar_retry, "drain before retrying"; the
Java client's RecordAccumulator.shouldStopDrainBatchesForPartition is stricter); at an
OUT_OF_ORDER_SEQUENCE_NUMBER the producer drains what is in flight, raises its epoch and sends
all that is not acknowledged, of all partitions, under new sequences; or it ends for good, when
nothing before that batch was unacknowledged. What had been written under the old epoch is
then in the log twice, so no fault may ever make it do that.

An ack counts for all earlier batches that wait to be sent again, whatever they were answered
(rd_kafka_handle_idempotent_Produce_success, rd_kafka_dr_implicit_ack): a leader takes no batch
without those before it. So none may ever be written past one that is not there; and no more
than five batches are ever unsettled, as many as a log remembers to tell a repetition.

A direct client goes to the leader that metadata name, also while earlier batches are out to the one
before it (librdkafka drains at errors alone, and sends on while fewer than five records are out;
rd_kafka_toppar_producer_serve), and never back to an earlier one: a node that
was deposed while it was cut off or stopped still names itself, until it hears. Produce carries no
leader epoch (KIP-359 was never built), so such a node, Kafka's too, can only say that the sequence
has a gap. Therefore clients leave metadata of a lower leader epoch than they have seen alone:
librdkafka from 2.1 on (rd_kafka_toppar_leader_update), the Java client from 2.2 on (KAFKA-7738).
Behind gateways a client has no such protection: the next gateway may be as cut off as the deposed
leader, and sends it there. So where there are two, producers lose their connection now and then.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any
from zlib import crc32

from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, TopicPartition
from penstock_kafka.records.batch import read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from simulation.log_checks import KEYED

if TYPE_CHECKING:
    from simulation.world import World

IN_FLIGHT_MAX = 5
VERSION = 11
TIMEOUT_MS = 3_000
CLIENT_TIMEOUT_US = 12_000_000
_RETRY_US = (20_000, 100_000)
_RETRY_DOUBLINGS_MAX = 3
"""Backoff doubles with each retry of a batch (KIP-580)."""
_RETRIED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


KEYS = 7


def _new_record(topic: str, producer: int, value: int, wall_ms: int) -> NewRecord:
    """What a producer writes: the same for a value, however often it is asked for."""
    text = b"%d-%d" % (producer, value)
    if topic != KEYED:
        return NewRecord(None, text, wall_ms)
    # Mostly of few keys; some are written once only. A quarter are tombstones.
    number = crc32(text)
    key = b"k%d" % (number % KEYS) if number % 11 else b"once-%d" % (number % 97)
    return NewRecord(key, None if (number >> 8) % 4 == 0 else text + b"." * ((number >> 16) % 80), wall_ms)


class Batch:
    """Records that stay together, with their place in the producer's sequence."""

    __slots__ = (
        "crc",
        "data",
        "epoch",
        "number",
        "partition",
        "retries",
        "retry_at_us",
        "sequence",
        "values",
    )

    def __init__(self, partition: PartitionQueue, values: range) -> None:
        self.partition = partition
        self.values = values
        self.sequence = -1
        self.epoch = -1
        self.data = b""
        self.crc = 0
        self.retries = 0
        self.retry_at_us = 0
        self.number = 0
        """Among all that were sent to the partition."""


class PartitionQueue:
    """One partition's records on their way."""

    __slots__ = (
        "in_flight",
        "is_draining",
        "key",
        "leader_epoch",
        "next_sequence",
        "route",
        "sent",
        "waiting",
    )

    def __init__(self, key: TopicPartition) -> None:
        self.key = key
        self.waiting: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.next_sequence = 0
        self.route = 0
        self.sent = 0
        self.leader_epoch = -1
        """The highest that this client has seen in metadata."""
        self.is_draining = False
        """Something is to be sent again once what is in flight has been answered."""

    @property
    def left(self) -> int:
        return len(self.waiting) + len(self.in_flight)

    @property
    def is_full(self) -> bool:
        """Whether one more would be one too many since the oldest that is out: the log would not know that one any
        more when it comes again. librdkafka goes on, and ends with a fatal error ("rewound sequence number")."""
        return bool(self.in_flight) and self.sent - self.in_flight[0].number >= IN_FLIGHT_MAX - 1


class Producer:
    """One client. `acks` is -1 (idempotent) or 1."""

    def __init__(self, world: World, number: int, acks: int, *, direct: bool) -> None:
        self._world = world
        self.number = number
        self.acks = acks
        self.is_direct = direct
        self.name = f"p{number}"
        self.partitions: dict[TopicPartition, PartitionQueue] = {}
        self.producer_id = -1
        self.producer_epoch = 0
        self.acked = self.sent = self.bumps = 0
        self._connections: dict[int, Any] = {}
        """By node (direct) or 0 (gateway)."""
        self._outstanding: dict[int, dict[int, tuple[list[Batch], Any]]] = {}
        self._correlation = 0
        self._is_bumping = False
        self._asking_id = False
        self._turn: Any = None

    # --- from the workload

    def produce(self, key: TopicPartition, count: int) -> None:
        """Hand over `count` records."""
        queue = self.partitions.get(key)
        if queue is None:
            queue = self.partitions[key] = PartitionQueue(key)
        queue.waiting.append(Batch(queue, self._world.next_values(count)))
        self._pump_soon()

    def forget(self, key: TopicPartition) -> None:
        """The topic is gone."""
        queue = self.partitions.pop(key, None)
        if queue is not None:
            queue.waiting.clear()

    @property
    def left(self) -> int:
        """Batches that are not acknowledged."""
        return sum(queue.left for queue in self.partitions.values())

    # --- sending

    def _pump_soon(self, delay_us: int = 0) -> None:
        if self._turn is None or self._turn.is_over:
            self._turn = self._world.scheduler.after(delay_us, self._pump)
        elif self._turn.when_us > self._world.scheduler.now_us + delay_us:
            self._turn.cancel()
            self._turn = self._world.scheduler.after(delay_us, self._pump)

    def _pump(self) -> None:
        self._turn = None
        if self._is_bumping and not self._bump():
            return
        if self.acks == -1 and self.producer_id < 0:
            self._ask_id()
            return
        now_us = self._world.scheduler.now_us
        soonest_us = 1 << 62
        groups: dict[int, list[Batch]] = {}
        for queue in self.partitions.values():
            if not queue.waiting:
                continue
            head = queue.waiting[0]
            if head.retry_at_us > now_us:
                soonest_us = min(soonest_us, head.retry_at_us)
                continue
            route = self._leader(queue) if self.is_direct else 0
            if route is None or (route != queue.route and not self._may_change_route(queue)):
                # No leader; or another one, while too much is out to the old one.
                soonest_us = min(soonest_us, now_us + 50_000)
                continue
            if (queue.is_draining and queue.in_flight) or queue.is_full:
                continue  # its answer, or the end of its connection, brings the next turn
            queue.is_draining = False
            queue.route = route
            groups.setdefault(route, []).append(head)
        for route, heads in groups.items():
            self._send_to(route, heads)
        if soonest_us < 1 << 62:
            self._pump_soon(soonest_us - now_us)

    def _may_change_route(self, queue: PartitionQueue) -> bool:
        """Whether a batch may go to another leader while others are out to the old one.

        librdkafka lets it when fewer than five records are out (rd_kafka_toppar_producer_serve). By a gateway there
        is one connection.
        """
        return sum(len(batch.values) for batch in queue.in_flight) < (IN_FLIGHT_MAX if self.is_direct else 1)

    def _leader(self, queue: PartitionQueue) -> int | None:
        state = self._world.partition_for(queue.key, queue.leader_epoch)
        if state is None:
            return None
        queue.leader_epoch = state.leader_epoch
        return None if state.leader == NO_NODE else int(state.leader)

    def _send_to(self, route: int, heads: list[Batch]) -> None:
        connection = self._connections.get(route)
        if connection is not None and not route and self._hops():
            connection.close()
        if connection is not None and connection.closed:
            self.lost(route, connection)
            return
        if connection is None:
            connection = self._world.connect(self, route)
            if connection is None:
                self._pump_soon(50_000)
                return
            self._connections[route] = connection
            self._outstanding[route] = {}
        outstanding = self._outstanding[route]
        rng = self._world.rng
        while heads and len(outstanding) < IN_FLIGHT_MAX:
            count = 1 if rng.random() < 0.7 else len(heads)
            chosen, heads = heads[:count], heads[count:]
            self._send(route, connection, chosen)
            for batch in chosen:
                waiting = batch.partition.waiting
                if (
                    waiting
                    and waiting[0].retry_at_us <= self._world.scheduler.now_us
                    and not batch.partition.is_draining
                    and not batch.partition.is_full
                ):
                    heads.append(waiting[0])

    def _hops(self) -> bool:
        probability = self._world.settings.hop_probability
        return probability > 0 and self._world.rng.random() < probability

    def _send(self, route: int, connection: Any, batches: list[Batch]) -> None:
        items = []
        for batch in batches:
            queue = batch.partition
            queue.waiting.popleft()
            queue.in_flight.append(batch)
            queue.sent += 1
            batch.number = queue.sent
            self._build(batch)
            name = self._world.workload.names[queue.key.topic_id]
            items.append(ProducePartition(name, None, queue.key.partition, memoryview(batch.data)))
        self._correlation += 1
        number = self._correlation
        skim = ProduceSkim(None, self.acks, TIMEOUT_MS, items)
        frame = b"".join(encode_produce_request(VERSION, number, self.name, skim))
        timer = self._world.scheduler.after(CLIENT_TIMEOUT_US, self._timed_out, route, connection)
        self._outstanding[route][number] = (batches, timer)
        self.sent += 1
        connection.send(frame, lambda data: self._on_response(route, number, data))

    def _build(self, batch: Batch) -> None:
        if self.acks == -1 and batch.epoch != self.producer_epoch:
            queue = batch.partition
            batch.epoch = self.producer_epoch
            batch.sequence = queue.next_sequence
            queue.next_sequence += len(batch.values)
        elif batch.data:
            return
        wall_ms = self._world.scheduler.now_us // 1000 + 1_700_000_000_000
        topic = self._world.workload.names[batch.partition.key.topic_id]
        batch.data = build_batch(
            [_new_record(topic, self.number, value, wall_ms) for value in batch.values],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch if self.acks == -1 else -1,
            base_sequence=batch.sequence,
        )
        batch.crc = read_header(batch.data).crc
        if self.acks == -1:
            self._world.checker.batch_values[batch.crc, self._place(batch)] = batch.values

    def _place(self, batch: Batch) -> tuple[int, int, int]:
        return (self.producer_id, batch.epoch, batch.sequence)

    def _ask_id(self) -> None:
        if not self._asking_id:
            self._asking_id = True
            self._world.allocate_producer_id(self._on_id)

    def _on_id(self, producer_id: int | None) -> None:
        self._asking_id = False
        if producer_id is not None and self.producer_id < 0:
            self.producer_id = producer_id
            self._world.on_producer_id(producer_id)
        self._pump_soon(0 if producer_id is not None else 200_000)

    # --- answers

    def _on_response(self, route: int, number: int, data: bytes) -> None:
        found = self._outstanding.get(route, {}).pop(number, None)
        if found is None:
            return
        batches, timer = found
        timer.cancel()
        response = decode_produce_response(data, VERSION)
        results = {(r.topic, r.partition): r for r in response.results}
        for batch in batches:
            queue = batch.partition
            result = results[self._world.workload.names[queue.key.topic_id], queue.key.partition]
            if batch in queue.in_flight:
                queue.in_flight.remove(batch)
                self._on_result(
                    queue, batch, ErrorCode(result.error), result.base_offset, result.error_message
                )
        self._pump_soon()

    def _on_result(
        self, queue: PartitionQueue, batch: Batch, error: ErrorCode, base_offset: int, message: str | None
    ) -> None:
        world = self._world
        if queue.key not in self.partitions:
            return
        if error is ErrorCode.NONE:
            self.acked += 1
            world.say(self.name, f"{queue.key.partition}: {batch.sequence} is at {base_offset}")
            if self.acks == -1:
                world.checker.on_ack(queue.key, base_offset, batch.crc, self._place(batch))
                self._settle_earlier(queue, batch)
            return
        world.errors[error.name] += 1
        world.checker.operations.goals.on_client_error(self.name, queue.key, error)
        world.say(self.name, f"{queue.key.partition}: {error.name} for {batch.sequence}: {message}")
        if error is ErrorCode.UNKNOWN_SERVER_ERROR:
            world.checker.fail("no unexpected answer", f"{self.name}: {error.name} for {queue.key}")
        elif error not in _RETRIED and self.acks == -1 and not self._is_bumping:
            # Drain, raise the epoch, send everything again.
            world.checker.on_epoch_raised(queue.key, f"{self.name}: {error.name}: {message}")
            self._is_bumping = True
            world.counts["producer epochs raised"] += 1
            world.say(self.name, "drains and raises its epoch")
        self._again(queue, batch)

    def _settle_earlier(self, queue: PartitionQueue, acked: Batch) -> None:
        waiting = queue.waiting
        while waiting and waiting[0].epoch == acked.epoch and waiting[0].sequence < acked.sequence:
            batch = waiting.popleft()
            self.acked += 1
            self._world.counts["batches acknowledged by a later one"] += 1
            self._world.say(self.name, f"{queue.key.partition}: {batch.sequence} counts as written")
            self._world.checker.on_implied_ack(queue.key, self._place(batch), batch.values)

    def _again(self, queue: PartitionQueue, batch: Batch) -> None:
        low, high = _RETRY_US
        rng = self._world.rng
        queue.is_draining = True
        wait_us = (low + int(rng.random() * (high - low))) << min(batch.retries, _RETRY_DOUBLINGS_MAX)
        batch.retries += 1
        batch.retry_at_us = self._world.scheduler.now_us + wait_us
        waiting = queue.waiting
        at = 0
        # Batches that were never sent have no sequence yet; they come last.
        while (
            at < len(waiting)
            and 0 <= waiting[at].sequence < batch.sequence
            and waiting[at].epoch == batch.epoch
        ):
            at += 1
        waiting.insert(at, batch)
        self._pump_soon(batch.retry_at_us - self._world.scheduler.now_us)

    def _bump(self) -> bool:
        if any(self._outstanding.values()):
            return False
        self._is_bumping = False
        self.bumps += 1
        self.producer_epoch += 1
        for queue in self.partitions.values():
            queue.next_sequence = 0
            queue.is_draining = False
        return True

    # --- broken connections

    def _timed_out(self, route: int, connection: Any) -> None:
        self._world.counts["client timeouts"] += 1
        self._world.checker.operations.goals.on_client_timeout(self.name)
        connection.close()
        self.lost(route, connection)

    def lost(self, route: int, connection: Any) -> None:
        """A connection broke: what was in flight may be written."""
        self._world.say(self.name, f"connection to {connection.process.name} is lost")
        if self._connections.get(route) is not connection:
            return
        del self._connections[route]
        for batches, timer in list(self._outstanding.pop(route, {}).values()):
            timer.cancel()
            for batch in batches:
                queue = batch.partition
                if batch in queue.in_flight:
                    queue.in_flight.remove(batch)
                    if queue.key in self.partitions:
                        self._again(queue, batch)
        self._pump_soon(20_000)
