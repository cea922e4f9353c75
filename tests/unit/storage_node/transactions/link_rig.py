"""Transactions between three nodes in simulated time: real shards, outboxes, additions, lines, admissions and frames.

What is not real: logs are lists, the network delivers when the seed says so, also what was sent by connections that
their sender has given up, and nodes hear of metadata late, each for itself. Held against a ledger of what the high
watermark of the coordinator's partition covers, in the step of each append.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId, TopicId, TopicPartition
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_kafka.records.batch import BatchInfo, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import Marker, build_marker
from penstock_proto.v1 import storage_pb2 as pb
from penstock_storage_node.kafka.transactional_appends import HeldBatch, MustWait, TransactionalAppends
from penstock_storage_node.log import LogState, Origin
from penstock_storage_node.log.producer_state import ProducerState
from penstock_storage_node.rpc.transaction_messages import (
    put_asks,
    put_markers,
    read_markers_answer,
    read_results,
)
from penstock_storage_node.rpc.transaction_service import PeerStream, TransactionService
from penstock_storage_node.settings import TransactionSettings
from penstock_storage_node.transactions import state
from penstock_storage_node.transactions.admission import MarkerOrder
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.leading import LeadingSide
from penstock_storage_node.transactions.link import TransactionLink
from penstock_storage_node.transactions.outbox import Key
from penstock_storage_node.transactions.outbox import Marker as Outgoing
from penstock_storage_node.transactions.questions import Question
from penstock_storage_node.transactions.records import Status, TransactionValue, read_key, read_value
from penstock_storage_node.transactions.shard import Shard
from penstock_storage_node.transactions.state import Add, Answer, End
from penstock_storage_node.transactions.verifier import Ask

from .transaction_rig import WALL_BASE_MS, FakeLog

NODES: Final = (1, 2, 3)
NAMES: Final = (TopicPartitionName("a", 0), TopicPartitionName("b", 0))
NONE: Final = ErrorCode.NONE
PATIENCE_MS: Final = 1_500
"""How long a client waits for an answer; very impatient, so that much comes late."""


class Wrong(AssertionError):
    """What the ledger found."""


def must(holds: object, rule: str, *details: object) -> None:
    if not holds:
        raise Wrong(f"{rule}: {details}")


class Image(NamedTuple):
    """Metadata of one version: (leader, epoch) of the state partition and of each other one."""

    state: tuple[int, int]
    partitions: dict[TopicPartitionName, tuple[int, int]]
    restored_version: int = 0

    def topic(self, name: str) -> Any:
        if name == TRANSACTIONS_TOPIC:
            return _topic(self.state)
        found = self.partitions.get(TopicPartitionName(name, 0))
        return None if found is None else _topic(found)

    @property
    def nodes(self) -> dict[int, Any]:
        return {}


def _topic(led: tuple[int, int]) -> Any:
    return SimpleNamespace(partitions={0: SimpleNamespace(leader=led[0], leader_epoch=led[1])})


class Loop:
    """Calls of one node, in simulated time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[int, int, list[Callable[[], None] | None]]] = []
        self._count = itertools.count()

    def call_soon(self, callback: Callable[[], None], /) -> object:
        self.soon.append(callback)
        return None

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Any:
        cell: list[Callable[[], None] | None] = [callback]
        heapq.heappush(self._later, (self._world.now_ms + round(delay * 1000), next(self._count), cell))
        return SimpleNamespace(cancel=lambda: cell.__setitem__(0, None))

    def run(self) -> None:
        while self._later and self._later[0][0] <= self._world.now_ms:
            _, _, (callback,) = heapq.heappop(self._later)
            if callback is not None:
                self.soon.append(callback)
        while self.soon:
            self.soon.popleft()()


# -- partitions ----------------------------------------------------------------------------------


class Data(NamedTuple):
    info: BatchInfo
    client: str
    transaction: int
    """Of the client, counted."""


class Ended(NamedTuple):
    order: MarkerOrder


Entry = Data | Ended


class Leadership:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.under_min_isr = False
        self.waits: list[tuple[int, Any]] = []

    def wait_all(self, offset: int, deadline_ms: int, waiter: Any) -> None:
        del deadline_ms
        self.waits.append((offset, waiter))


class Replica:
    """One node's copy of a partition: what is needed of a `Partition`, its replica and its log at once."""

    state = LogState.OK

    def __init__(self, world: World, node: int, name: TopicPartitionName) -> None:
        self._world = world
        self._node = node
        self.where = name
        self.key = TopicPartition(TopicId(name.topic.encode() * 16), 0)
        self.topic = name.topic
        self.name = f"{name.topic}-0"
        self.replica = self.log = self
        self.leadership: Leadership | None = None
        self.entries: list[Entry] = []
        self.forgotten = 0
        """Producers at rest of entries below are not remembered."""
        self.producers = ProducerState()
        self.data: Data | None = None
        """What is being appended."""

    def require_leader(self) -> Leadership:
        if self.leadership is None:
            raise PenstockError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere")
        return self.leadership

    def producer(self, producer_id: int) -> Any:
        return self.producers.get(producer_id)

    def is_duplicate(self, info: BatchInfo) -> bool:
        return self.producers.is_duplicate(info)

    def append(self, data: Data) -> int:
        """The offset behind it."""
        known = self.producers.check(data.info, self.name, Origin.CLIENT)
        if known is not None:
            return known[1] + 1
        self._world.ledger.appends(self, data)
        self.producers.update(data.info, len(self.entries), self._world.now_ms)
        self.entries.append(data)
        return -len(self.entries)  # negative: new

    def append_marker(self, producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> Any:
        order = self._world.marking
        assert order is not None and (order.producer_id, order.producer_epoch) == (
            producer_id,
            producer_epoch,
        )
        self._world.ledger.marks(self, order)
        self._replay_marker(order, len(self.entries), now_ms)
        self.entries.append(Ended(order))
        return SimpleNamespace(last_offset=len(self.entries) - 1)

    def _replay_marker(self, order: MarkerOrder, offset: int, now_ms: int) -> None:
        marker = Marker(order.commit, order.coordinator_epoch)
        built = build_marker(order.producer_id, order.producer_epoch, marker, 0, base_offset=offset)
        self.producers.replay(read_header(built), now_ms, marker)

    def rebuild(self, entries: Sequence[Entry], forgotten: int) -> None:
        """A replica that becomes leader has these."""
        self.entries, self.forgotten = list(entries), forgotten
        self.producers = ProducerState()
        for offset, entry in enumerate(self.entries):
            if isinstance(entry, Data):
                self.producers.update(entry.info, offset, 0)
            else:
                self._replay_marker(entry.order, offset, 0)
            if offset == forgotten - 1:
                self.forget()

    def forget(self) -> None:
        for producer_id, entry in list(self.producers.entries()):
            if entry.transaction_first_offset < 0:
                del self.producers._entries[producer_id]


class Request:
    """As much of a Produce request as lines look at."""

    def __init__(self, data: Data, name: str, version: int, now_ms: int, told: Callable[[int], None]) -> None:
        self.data = data
        self.transactional_id = name
        self.version = version
        self.now_ms = now_ms
        self.told = told


class _Acked:
    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told

    def acknowledge(self, error: ErrorCode) -> None:
        self._told(error)


# -- the network ---------------------------------------------------------------------------------


class Connection:
    """From one node to another: frames in order, some of them long after it was given up."""

    def __init__(self, source: Node, target: Node, number: int) -> None:
        self.source = source
        self.target = target
        self.number = number
        self.there: deque[bytes] = deque()
        self.back: deque[bytes] = deque()
        self.given_up = False
        self.is_slow = source.world.random.random() < 0.3
        self.stream: PeerStream | None = None
        self.is_dead = False

    def deliver(self) -> None:
        """The next frame comes to the target."""
        if self.stream is None:
            self.stream = PeerStream(self.target.link)
            if self.target.service.begin(NodeId(self.source.number), 1, self.number, self.stream):
                self.stream.stop()
                self.is_dead = True
                return
        if self.there:
            self.stream.take(pb.TransactionsRequest.FromString(self.there.popleft()))
        if self.stream.ended or (self.given_up and not self.there):
            self.stream.stop()
            self.is_dead = True

    def collect(self) -> None:
        """What the target has to say is on its way."""
        if self.stream is not None:
            while (response := self.stream.answers()) is not None:
                self.back.append(response.SerializeToString())

    def deliver_back(self) -> None:
        response = pb.TransactionsResponse.FromString(self.back.popleft())
        if self.given_up:
            return
        link = self.source.link
        for answer in response.answers:
            link.ask_answered(answer.number, answer.coordinator_epoch, read_results(answer.results))
        for markers in response.markers:
            link.marker_answered(NodeId(self.target.number), *read_markers_answer(markers))


class Node:
    """One storage node, as far as transactions go."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.version = 0
        self.loop = Loop(world)
        self.replicas = {name: Replica(world, number, name) for name in NAMES}
        self.registry = SimpleNamespace(
            node_id=NodeId(number), node_epoch=1, image=world.images[0], locate=self._locate
        )
        manager: Any = SimpleNamespace(
            registry=self.registry,
            clock_ms=lambda: world.now_ms,
            wall_ms=lambda: WALL_BASE_MS + world.now_ms,
            health=SimpleNamespace(failed=False),
            drain=SimpleNamespace(effects=SimpleNamespace(empty=True)),
            lifecycle=SimpleNamespace(
                fail_with=self._fail, log=SimpleNamespace(warning=lambda *_, **__: None)
            ),
        )
        self.leading = world.make_leading(manager)
        self.link = TransactionLink(manager, self, self.leading, self.loop)
        self.link.connect(self)
        self.service = world.make_service(manager, self.link)
        self.appends = TransactionalAppends(
            self.link,
            self,
            lambda: world.now_ms,
            lambda: world.verifies,
        )
        self.shard: Shard | None = None
        self.log = FakeLog()
        self.log_epoch = -1
        self.connections: dict[int, Connection] = {}
        self.numbers = itertools.count(1)
        write = self.leading._write

        def noted(order: MarkerOrder, name: TopicPartitionName, reply: Any) -> Any:
            world.marking = order
            return write(order, name, reply)

        self.leading._write = noted  # type: ignore[method-assign]

    def _fail(self, error: BaseException) -> None:
        raise error

    def _locate(self, topic: str, topic_id: object, index: int) -> Any:
        del topic_id
        return self.replicas[TopicPartitionName(topic, index)]

    # -- metadata --------------------------------------------------------------------------------

    def hear(self) -> None:
        """Of the next version."""
        world = self.world
        old = self.registry.image
        self.version += 1
        image = self.registry.image = world.images[self.version]
        for name in NAMES:
            if image.partitions[name] != old.partitions[name]:
                self._role(self.replicas[name], *image.partitions[name])
        if image.state != old.state:
            self._coordinate(*image.state)
        self.link.on_metadata(old, image)  # type: ignore[arg-type]

    def _role(self, replica: Replica, leader: int, epoch: int) -> None:
        over, replica.leadership = replica.leadership, None
        self.leading.on_stop(replica)  # type: ignore[arg-type]
        if over is not None:
            for _, waiter in over.waits:
                waiter.acknowledge(ErrorCode.REQUEST_TIMED_OUT)
        if leader == self.number and self.world.images[-1].partitions[replica.where] == (leader, epoch):
            replica.rebuild(*self.world.kept[replica.where])
            replica.leadership = Leadership(epoch)
            self.leading.on_lead(replica)  # type: ignore[arg-type]

    def _coordinate(self, leader: int, epoch: int) -> None:
        if self.shard is not None:
            self.shard.close()
            self.shard = None
        if leader != self.number or self.world.images[-1].state != (leader, epoch):
            return
        log, self.log_epoch = FakeLog(), epoch
        self.log = log
        log.batches = [list(batch) for batch in self.world.state_kept]
        world = self.world
        shard = self.shard = Shard(
            log,
            TransactionSettings(),
            state_partition=0,
            coordinator_epoch=epoch,
            clock_ms=lambda: world.now_ms,
            wall_ms=lambda: WALL_BASE_MS + world.now_ms,
            version=lambda: 2,
            take_id=world.take_id,
            exists=lambda _: True,
            has_room=lambda: True,
            send=self.link.carry_out,
            schedule=lambda: self.loop.soon.append(shard.end_turn),
        )
        for record in itertools.chain.from_iterable(log.batches):
            shard.replay(record.key, record.value)
        shard.loaded()

    # -- coordinators ----------------------------------------------------------------------------

    def find(self, transactional_id: str) -> Shard:
        del transactional_id
        if self.shard is None:
            raise PenstockError(ErrorCode.NOT_COORDINATOR, "not here")
        return self.shard

    def coordinator_of(self, transactional_id: str) -> NodeId | None:
        del transactional_id
        return NodeId(self.registry.image.state[0])

    def markers_written(self, key: Key, partitions: Sequence[TopicPartitionName]) -> None:
        if self.shard is not None and self.shard.coordinator_epoch == key.coordinator_epoch:
            self.shard.markers_written(key.producer_id, key.producer_epoch, partitions)

    # -- streams ---------------------------------------------------------------------------------

    def send_asks(self, node: NodeId, asks: Sequence[Ask]) -> bool:
        request = pb.TransactionsRequest()
        put_asks(request, asks)
        self._connection(node).there.append(request.SerializeToString())
        return True

    def send_markers(self, node: NodeId, markers: Sequence[Outgoing]) -> None:
        request = pb.TransactionsRequest()
        put_markers(request, markers)
        self._connection(node).there.append(request.SerializeToString())

    def _connection(self, node: int) -> Connection:
        found = self.connections.get(node)
        if found is None:
            found = Connection(self, self.world.nodes[node], next(self.numbers))
            self.connections[node] = found
            self.world.connections.append(found)
        return found

    def break_off(self, node: int) -> None:
        """The connection breaks, as this end sees it."""
        connection = self.connections.pop(node, None)
        if connection is not None:
            connection.given_up = True
            self.link.stream_lost(NodeId(node))

    # -- produce ---------------------------------------------------------------------------------

    def produce(self, request: Request) -> None:
        """A batch has come."""
        try:
            self._append(request, None)
        except MustWait as wait:
            self.appends.hold(request, 0, None, wait)  # type: ignore[arg-type]
        except PenstockError as error:
            request.told(error.code)

    def resume(self, held: HeldBatch) -> None:
        request: Any = held.request
        try:
            self._append(request, held)
        except PenstockError as error:
            request.told(error.code)

    def give_up(self, held: HeldBatch, error: PenstockError) -> None:
        request: Any = held.request
        request.told(error.code)

    def _append(self, request: Request, held: HeldBatch | None) -> None:
        data = request.data
        replica: Any = self.replicas[self.world.place_of(data)]
        leadership = replica.require_leader()
        self.appends.admit(request, replica, leadership, (b"", data.info, None), held)  # type: ignore[arg-type]
        end = replica.append(data)
        if end < 0:
            self.appends.appended(replica, data.info, held)
            self.world.seen.add("held" if held is not None else "open")
        leadership.wait_all(abs(end), 0, _Acked(request.told))


# -- clients -------------------------------------------------------------------------------------


class Client:
    """A producer, one step at a time. TV1 adds its partitions itself and begins a new epoch after each abort."""

    def __init__(self, world: World, name: str, version: int) -> None:
        self.world = world
        self.name = name
        self.version = version
        self.pair: tuple[int, int] | None = None
        self.transaction = 0
        self.phase = "init"
        self.sequences: dict[TopicPartitionName, int] = {}
        self.added: set[TopicPartitionName] = set()
        self.left: list[TopicPartitionName] = []
        self.results: dict[int, str] = {}
        self.waits = False
        self.asked: tuple[Shard, Question] | None = None
        self.since_ms = 0
        self.must_abort = False
        self.has_asked = False
        self.flying: Data | None = None

    def step(self) -> None:
        """Go on, unless an answer is under way."""
        world = self.world
        if self.waits:
            if world.now_ms - self.since_ms < PATIENCE_MS:
                return
            self._hang_up()  # the answer was lost
            world.seen.add("lost answer")
            if self.phase == "send" and world.random.random() < 0.5:
                self.must_abort = True
        getattr(self, f"_{self.phase}")()

    def _ask(self, begin: Callable[[Shard, Any], Question], told: Callable[[Answer], None]) -> None:
        shard = self.world.coordinator()
        if shard is None:
            return
        self.waits, self.since_ms = True, self.world.now_ms
        ticket = self.ticket = object()

        def reply(answer: Answer) -> None:
            if self.ticket is ticket and self.waits:
                self.waits = False
                told(answer)

        self.asked = shard, begin(shard, reply)

    def _hang_up(self) -> None:
        """Its connection is closed: what is held for it dies with that."""
        self.waits = False
        if self.asked is not None:
            shard, question = self.asked
            self.asked = None
            shard.drop(question)

    def _init(self) -> None:
        def told(answer: Answer) -> None:
            if answer.error is NONE:
                self.pair = answer.producer_id, answer.producer_epoch
                self.world.owners[answer.producer_id] = self
                self.sequences = {}
                self._begin()

        self._ask(lambda shard, reply: shard.init_producer(self.name, 60_000, reply), told)

    def _begin(self) -> None:
        if self.world.is_healing:
            self.phase = "done"
            return
        self.transaction += 1
        self.added = set()
        self.has_asked = False
        self.must_abort = False
        self.flying = None
        rng = self.world.random
        self.left = [rng.choice(NAMES) for _ in range(rng.randint(1, 4))]
        self.phase = "send"

    def _done(self) -> None:
        if not self.world.is_healing:
            self._begin()

    def _send(self) -> None:
        assert self.pair is not None
        if not self.left or self.must_abort:
            self.phase = "end"
            return
        name = self.left[0]
        if self.version == 1 and name not in self.added:
            self._add(name)
            return
        if self.flying is None:
            sequence = self.sequences.get(name, 0)
            self.flying = self.world.batch(self, name, sequence)
        self._produce(name, self.flying)

    def _add(self, name: TopicPartitionName) -> None:
        def told(answer: Answer) -> None:
            if answer.error is NONE:
                self.added.add(name)
            elif answer.error in _FATAL:
                self._fence(answer.error)

        assert self.pair is not None
        self.has_asked = True
        request = Add(*self.pair, frozenset({name}), 0)
        self._ask(lambda shard, reply: shard.add(self.name, request, reply), told)

    def _produce(self, name: TopicPartitionName, data: Data) -> None:
        world = self.world
        self.waits, self.since_ms = True, world.now_ms
        ticket = self.ticket = object()

        def told(code: int) -> None:
            if self.ticket is not ticket or not self.waits:
                return
            self.waits = False
            if code == 0:
                self.left.pop(0)
                self.flying = None
                self.sequences[name] = data.info.base_sequence + 1
            elif code in _ABORTABLE:
                world.seen.add(ErrorCode(code).name)
                self.must_abort = True

        version = 9 if self.version == 1 else 12
        world.send(data, self.name, version, told)

    def _end(self) -> None:
        assert self.pair is not None
        rng = self.world.random
        key = self.transaction
        if key not in self.results:
            commit = not self.must_abort and rng.random() < 0.7
            self.results[key] = "commit" if commit else "abort"
        commit = self.results[key] == "commit"
        request = End(*self.pair, commit, 0 if self.version == 1 else 2)

        def told(answer: Answer) -> None:
            if answer.error is NONE:
                self._ended(answer, commit)
            elif answer.error in _FATAL:
                self._fence(answer.error)

        if self.version == 1 and not self.has_asked:
            self._begin()
            return
        self._ask(lambda shard, reply: shard.end(self.name, request, reply), told)

    def _ended(self, answer: Answer, commit: bool) -> None:
        if self.version == 2:
            self.pair = answer.producer_id, answer.producer_epoch
            self.sequences = {}
            self._begin()
        elif commit:
            self._begin()
        else:
            self.phase = "init"

    def crash(self) -> None:
        """Begin anew, without a memory of the transaction."""
        if self.phase in ("send", "end") and not self.world.is_healing:
            self.world.seen.add("crash")
            self.results[self.transaction] = "unknown"
            self._hang_up()
            self.phase = "init"

    def _fence(self, error: ErrorCode) -> None:
        self.world.seen.add(f"fatal {error.name}")
        self.results.setdefault(self.transaction, "unknown")
        if self.results[self.transaction] != "abort":
            self.results[self.transaction] = "unknown"
        self.phase = "init"


_FATAL: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    }
)
_ABORTABLE: Final = _FATAL | {
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}


# -- the ledger ----------------------------------------------------------------------------------


class Ledger:
    """What the high watermark of the state partition covers, and which transaction of a client that is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.values: dict[int, TransactionValue] = {}
        self.transactions: dict[int, int] = {}
        """By producer id: which transaction of its client is the one that the coordinator has."""
        self.covered = 0

    def cover(self, log: FakeLog) -> None:
        for record in itertools.chain.from_iterable(log.batches[self.covered : log.committed]):
            name = read_key(record.key)
            assert name is not None and record.value is not None
            value = read_value(record.value)
            before = self.values.get(value.producer_id)
            begins = value.status is Status.ONGOING and (
                before is None or before.status is not Status.ONGOING
            )
            if begins:
                self.transactions[value.producer_id] = self._world.clients[name].transaction
            self.values[value.producer_id] = value
        self.covered = max(self.covered, log.committed)

    def appends(self, replica: Replica, data: Data) -> None:
        """A transactional batch is about to be appended."""
        if not self._world.leads(replica):
            return
        info = data.info
        value = self.values.get(info.producer_id)
        must(value is not None, "who appends is known", replica.name, data)
        assert value is not None
        is_there = replica.where in value.partitions and value.status not in state.AT_REST
        must(is_there, "the transaction knows the partition", replica.name, data, value)
        epochs = {value.producer_epoch, value.last_epoch if value.status.is_decided else value.producer_epoch}
        if value.status.is_decided:
            epochs.add(value.producer_epoch - 1)
        must(info.producer_epoch in epochs, "the epoch is the transaction's", replica.name, data, value)
        mine = self.transactions.get(info.producer_id)
        must(mine == data.transaction, "the batch is of that transaction", replica.name, data, mine)

    def marks(self, replica: Replica, order: MarkerOrder) -> None:
        """A marker is about to be appended."""
        entry = replica.producers.get(order.producer_id)
        if not self._world.leads(replica) or entry is None or entry.transaction_first_offset < 0:
            return
        opened = replica.entries[entry.transaction_first_offset]
        assert isinstance(opened, Data)
        value = self.values[order.producer_id]
        must(value.status.is_decided, "markers are decided", replica.name, order, value)
        commits = value.status is Status.PREPARE_COMMIT
        must(order.commit is commits, "no marker against the decision", replica.name, order, value)
        must(
            value.producer_epoch == order.producer_epoch,
            "the epoch is the decision's",
            replica.name,
            order,
            value,
        )
        mine = self.transactions[order.producer_id]
        must(opened.transaction == mine, "the decided one is the open one", replica.name, order, opened, mine)
        self._world.seen.add("ended")


class World:
    """Everything, by one seed."""

    def __init__(
        self,
        seed: int,
        *,
        make_leading: Callable[[Any], LeadingSide] = LeadingSide,
        make_service: Callable[[Any, TransactionLink], TransactionService] = TransactionService,
        verifies: bool = True,
        versions: Sequence[int] = (1, 2),
    ) -> None:
        self.random = random.Random(seed)
        self.make_leading = make_leading
        self.make_service = make_service
        self.verifies = verifies
        self.now_ms = 1_000
        self.seen: set[str] = set()
        self.marking: MarkerOrder | None = None
        self.next_id = 0
        self.is_healing = False
        self.images = [Image((0, 0), dict.fromkeys(NAMES, (0, 0)))]
        self.kept: dict[TopicPartitionName, tuple[list[Entry], int]] = {name: ([], 0) for name in NAMES}
        self.committed = dict.fromkeys(NAMES, 0)
        self.state_kept: list[list[Any]] = []
        self.ledger = Ledger(self)
        self.connections: list[Connection] = []
        self.nodes = {number: Node(self, number) for number in NODES}
        self.owners: dict[int, Client] = {}
        self.clients = {f"t{n}": Client(self, f"t{n}", self.random.choice(versions)) for n in range(2)}
        self.places: dict[int, TopicPartitionName] = {}
        self.copies: list[tuple[Data, str, int]] = []
        self.operators: list[tuple[MarkerOrder, TopicPartitionName, int]] = []
        """What an operator wants aborted, and where that had begun."""
        self.sent: list[Data] = []
        self.elect_state(1)
        for name in NAMES:
            self.elect(name, self.random.choice(NODES))
        self.hear_all()

    def take_id(self) -> int:
        self.next_id += 1
        return self.next_id

    # -- leaders ---------------------------------------------------------------------------------

    def leads(self, replica: Replica) -> bool:
        """Whether it is the true leader, which the controllers know."""
        leader, epoch = self.images[-1].partitions[replica.where]
        return (
            replica._node == leader and replica.leadership is not None and replica.leadership.epoch == epoch
        )

    def true_replica(self, name: TopicPartitionName) -> Replica | None:
        leader, _ = self.images[-1].partitions[name]
        replica = self.nodes[leader].replicas[name]
        return replica if self.leads(replica) else None

    def coordinator(self) -> Shard | None:
        """That of the controllers; clients find it."""
        leader, epoch = self.images[-1].state
        shard = self.nodes[leader].shard
        return shard if shard is not None and shard.coordinator_epoch == epoch else None

    def state_log(self) -> FakeLog | None:
        """Of the true leader of the state partition, once it has heard that it leads."""
        leader, epoch = self.images[-1].state
        return self.nodes[leader].log if leader and self.nodes[leader].log_epoch == epoch else None

    def elect(self, name: TopicPartitionName, leader: int) -> None:
        replica = self.true_replica(name) if self.images[-1].partitions[name][0] else None
        if replica is not None:
            kept = self.random.randint(self.committed[name], len(replica.entries))
            self.kept[name] = replica.entries[:kept], replica.forgotten
        old = self.images[-1]
        _, epoch = old.partitions[name]
        self.images.append(Image(old.state, {**old.partitions, name: (leader, epoch + 1)}))

    def elect_state(self, leader: int) -> None:
        old = self.images[-1]
        for connection in self.connections:
            # Who is deposed mostly was cut off: what it had to say comes late.
            if connection.source.number == old.state[0]:
                connection.is_slow = True
        log = self.state_log()
        if log is not None:
            kept = self.random.randint(max(self.ledger.covered, log.committed), len(log.batches))
            self.state_kept = [list(batch) for batch in log.batches[:kept]]
        self.images.append(Image((leader, old.state[1] + 1), old.partitions))

    def hear_all(self) -> None:
        for node in self.nodes.values():
            while node.version < len(self.images) - 1:
                node.hear()
            node.loop.run()

    def advance(self, name: TopicPartitionName, to: int) -> None:
        """The high watermark rises."""
        replica = self.true_replica(name)
        if replica is None or replica.leadership is None:
            return
        self.committed[name] = max(self.committed[name], min(to, len(replica.entries)))
        waits = replica.leadership.waits
        done = [each for each in waits if each[0] <= self.committed[name]]
        replica.leadership.waits = [each for each in waits if each[0] > self.committed[name]]
        for _, waiter in done:
            waiter.acknowledge(NONE)

    def advance_state(self) -> None:
        log = self.state_log()
        if log is None:
            return
        to = self.random.randint(log.committed, len(log.batches))
        if self.is_healing:
            to = len(log.batches)
        log.committed = to
        self.ledger.cover(log)
        log.advance(to)

    # -- clients ---------------------------------------------------------------------------------

    def batch(self, client: Client, name: TopicPartitionName, sequence: int) -> Data:
        assert client.pair is not None
        producer_id, epoch = client.pair
        record = NewRecord(key=None, value=b"v", timestamp_ms=0)
        built = build_batch(
            [record],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = Data(read_header(built), client.name, client.transaction)
        self.places[id(data)] = name
        self.sent.append(data)  # so that no id comes again
        return data

    def place_of(self, data: Data) -> TopicPartitionName:
        return self.places[id(data)]

    def send(self, data: Data, name: str, version: int, told: Callable[[int], None]) -> None:
        """To the leader, by somebody's metadata; maybe once more, much later."""
        place = self.place_of(data)
        kind = self.random.random()
        if kind < 0.25:
            self.copies.append((data, name, version))
            if kind < 0.03:
                return  # that one comes late, or never
        knows = self.nodes[self.random.choice(NODES)].registry.image
        leader = knows.partitions[place][0]
        if leader:
            self.nodes[leader].produce(Request(data, name, version, self.now_ms, told))
        else:
            told(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- what happens ----------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Trouble, then healing; then nothing may hang."""
        for _ in range(steps):
            self.step()
        self.heal()

    def step(self) -> None:
        rng = self.random
        self.now_ms += rng.choice((0, 1, 5, 20))
        happening = rng.random()
        if happening < 0.30:
            for client in self.clients.values():
                client.step()
        elif happening < 0.55:
            for _ in range(3):
                self._deliver()
        elif happening < 0.70:
            for name in NAMES:
                replica = self.true_replica(name)
                if replica is not None:
                    self.advance(name, rng.randint(self.committed[name], len(replica.entries)))
        elif happening < 0.84:
            self.advance_state()
        elif happening < 0.95:
            node = self.nodes[rng.choice(NODES)]
            if node.version < len(self.images) - 1 and rng.random() < 0.5:
                node.hear()
        else:
            self._trouble()
        self._turns()

    def _turns(self) -> None:
        for node in self.nodes.values():
            node.loop.run()
            if node.shard is not None:
                node.shard.tick()
                node.loop.run()
                node.shard.validate() if node.shard is not None else None
            node.link.outbox.validate()
        for connection in self.connections:
            connection.collect()

    def _deliver(self) -> None:
        rng = self.random
        self.connections = [c for c in self.connections if not c.is_dead or c.back]
        ready = [
            c
            for c in self.connections
            if (c.there and not c.is_dead) or c.back or (c.given_up and not c.is_dead)
        ]
        if not ready:
            return
        connection = rng.choice(ready)
        if rng.random() > (0.02 if connection.given_up else 0.1 if connection.is_slow else 1.0):
            return
        if connection.back and rng.random() < 0.5:
            connection.deliver_back()
        elif not connection.is_dead:
            connection.deliver()

    def _trouble(self) -> None:
        rng = self.random
        kind = rng.random()
        if kind < 0.08:
            self.elect(rng.choice(NAMES), rng.choice(NODES))
        elif kind < 0.18:
            self.elect_state(rng.choice(NODES))
        elif kind < 0.45:
            loaded = [c for c in self.connections if c.there and not c.given_up]
            if loaded:
                connection = rng.choice(loaded)
                connection.source.break_off(connection.target.number)
        elif kind < 0.75 and self.copies:
            data, name, version = self.copies.pop(rng.randrange(len(self.copies)))
            self.seen.add("late batch")
            leader = self.images[-1].partitions[self.place_of(data)][0]
            self.nodes[leader].produce(Request(data, name, version, self.now_ms, lambda _: None))
        elif kind < 0.76:
            self.clients[rng.choice(list(self.clients))].crash()
        elif kind < 0.83:
            self._forget(rng.choice(NAMES))
        else:
            self._operator()

    def _forget(self, name: TopicPartitionName) -> None:
        """Producers that are at rest were idle for too long. A batch of theirs does not come so late."""
        replica = self.true_replica(name)
        if replica is not None and self.committed[name] == len(replica.entries):
            replica.forgotten = len(replica.entries)
            replica.forget()
            self.copies = [each for each in self.copies if self.place_of(each[0]) != name]
            self.seen.add("forgotten")

    def _operator(self) -> None:
        """Somebody looks at what is open, takes his time, and aborts it when another coordinator has ended it since.
        While none has, nothing tells his marker from one that is right: his to answer for."""
        rng = self.random
        if self.operators and rng.random() < 0.6:
            order, name, asked = self.operators.pop(rng.randrange(len(self.operators)))
            replica = self.true_replica(name)
            if replica is not None:
                entry = replica.producers.get(order.producer_id)
                opened = -1 if entry is None else entry.transaction_first_offset
                if opened == asked or entry is None or entry.coordinator_epoch <= order.coordinator_epoch:
                    return  # it does hang as far as he knows: his to answer for
                self.nodes[replica._node].leading.write(order, name, lambda _: None, lambda: False)
                self.seen.add("operator")
            return
        name = rng.choice(NAMES)
        replica = self.true_replica(name)
        rows = [] if replica is None else list(replica.producers.entries())
        for producer_id, entry in rows:
            if entry.transaction_first_offset >= 0 and entry.coordinator_epoch >= 0:
                order = MarkerOrder(producer_id, entry.epoch, False, entry.coordinator_epoch, 0, None)
                self.operators.append((order, name, entry.transaction_first_offset))

    def heal(self) -> None:
        """No more trouble: everything comes to an end."""
        self.is_healing = True
        self.copies, self.operators = [], []
        self.hear_all()
        for name in NAMES:
            if self.true_replica(name) is None:
                self.elect(name, self.random.choice(NODES))
        if self.coordinator() is None:
            self.elect_state(self.random.choice(NODES))
        self.hear_all()
        for _ in range(3_000):
            self.now_ms += 20
            for client in self.clients.values():
                client.step()
            self._turns()
            for connection in list(self.connections):
                while connection.there and not connection.is_dead:
                    connection.deliver()
                if connection.given_up and not connection.is_dead:
                    connection.deliver()
                connection.collect()
                while connection.back:
                    connection.deliver_back()
            self.advance_state()
            self._turns()
            for name in NAMES:
                self.advance(name, 1 << 30)
            if self.coordinator() is None:
                self.elect_state(self.random.choice(NODES))
                self.hear_all()
            if all(client.phase == "done" for client in self.clients.values()) and self._is_at_rest():
                break
        else:
            must(False, "it comes to an end", [(c.name, c.phase, c.waits) for c in self.clients.values()])
        self._check_end()

    def _is_at_rest(self) -> bool:
        shard = self.coordinator()
        return shard is not None and all(value.status in state.AT_REST for _, value in shard.values())

    def _check_end(self) -> None:
        for name in NAMES:
            replica = self.true_replica(name)
            assert replica is not None
            first = replica.producers.first_open_transaction
            must(first is None, "nothing hangs", name, first and replica.entries[first])
            self._check_outcomes(replica)

    def _check_outcomes(self, replica: Replica) -> None:
        open_: dict[int, list[Data]] = {}
        for entry in replica.entries:
            if isinstance(entry, Data):
                open_.setdefault(entry.info.producer_id, []).append(entry)
                continue
            for data in open_.pop(entry.order.producer_id, []):
                result = self.clients[data.client].results.get(data.transaction, "unknown")
                done = "commit" if entry.order.commit else "abort"
                must(
                    result in (done, "unknown"), "what the client was told counts", replica.name, data, result
                )
