"""A transactional producer as clients are, of either protocol: begin, produce, commit offsets, end.

What it does with each error is what the table of clients says: by the old protocol librdkafka's
(rdkafka_txnmgr.c, rd_kafka_handle_idempotent_Produce_error), by the new one the Java client's of Kafka 4
(TransactionManager). Its application consumes, transforms and produces: it reads on where its group has committed,
writes one record for each input, and commits the next input's number in the same transaction. So in the end each
input is in the output once, whatever befell producers, nodes and coordinators.

Its requests go by a connection for each of: the transaction's coordinator, the group's, the leaders of partitions
(through gateways: one for all). Who gives a request up closes its connection, as all clients do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, TopicPartition
from penstock_core.metadata.levels import transaction_version
from penstock_kafka.records.batch import read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.produce import decode_produce_response
from simulation import txn_wire as wire
from simulation.group_wire import Place
from simulation.program import Pause, Program
from simulation.txn_checks import Output
from simulation.txn_wire import NEW, OLD, VERSIONS

if TYPE_CHECKING:
    from penstock_kafka.wire.apis import ApiKey
    from simulation.transactions import Slot, Transactions

MS = 1_000
S = 1_000_000
REQUEST_TIMEOUT_US = 3 * S
LEFT_AFTER_LOAD_MS = 10_000
"""A transaction has that much left when its coordinator moved: wall clocks may jump."""
_LOOK_AGAIN = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_WAIT = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS})
_ABSENT = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED})
_PRODUCE_AGAIN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
_PRODUCE_ABORTABLE = {
    OLD: frozenset(
        {
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            ErrorCode.TRANSACTION_ABORTABLE,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.UNKNOWN_PRODUCER_ID,
        }
    ),
    NEW: frozenset(
        {
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.TRANSACTION_ABORTABLE,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.UNKNOWN_PRODUCER_ID,
        }
    ),
}
"""What is neither tried again nor among these ends the client."""


class Abortable(Exception):
    """The transaction has to be aborted; the producer lives."""


class Fatal(Exception):
    """The client is of no use any more."""


@dataclass(slots=True)
class Attempt:
    """One transaction as its client knows it."""

    producer: str
    first_input: int
    last_input: int
    began_us: int
    values: dict[TopicPartition, list[int]] = field(default_factory=dict)
    """Numbers of its records that were acknowledged, by partition."""
    sent: set[int] = field(default_factory=set)
    outcome: str = "unknown"
    """committed, aborted, or unknown."""
    was_lowered: bool = False
    """Its last batches went out by the old protocol, the others by the new one."""
    tried_to: str = ""
    """commit or abort: what was asked for last."""


class _Connection:
    """One of a client's connections, with what waits on it."""

    def __init__(self, carrier: Any) -> None:
        self.carrier = carrier
        self.waiting: dict[int, tuple[Callable[[Any], None], Any]] = {}


class TxnProducer(Program):
    """One incarnation of a transactional id."""

    def __init__(self, transactions: Transactions, slot: Slot, number: int) -> None:
        super().__init__(transactions.world)
        self.transactions = transactions
        self.slot = slot
        self.rng = transactions.rng
        self.name = f"{slot.transactional_id}.{number}"
        self.producer_id = -1
        self.epoch = -1
        self.protocol = OLD
        self._writes_by = OLD
        self.position = -1
        """The next input."""
        self.attempt: Attempt | None = None
        self.init_us = 0
        """When it asked for its present epoch."""
        self.is_done = False
        self._needs_epoch = False
        self._has_rival = False
        self._image_version = -1
        self._version = 0
        self._connections: dict[str, _Connection] = {}
        self._found: dict[str, str] = {}
        """Hosts of the coordinators, by "txn" and "group"; "" behind gateways."""
        self._added: set[Place] = set()
        self._asked_us: int | None = None
        """When it first asked for a partition to be added, since its last EndTxn or InitProducerId was answered."""
        self._sequences: dict[Place, int] = {}
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._number = 0

    # --- life

    def say(self, line: str) -> None:
        self.world.say(self.name, line)

    def start(self) -> None:
        """Begin."""
        self.say("starts")
        self.run(self._live())

    def hang(self) -> None:
        """Nothing of it runs from now on."""
        self.say("hangs")
        super().hang()

    def resume(self) -> None:
        """A zombie, maybe."""
        if self.is_hung and not self.is_dead:
            self.say("goes on")
            self.is_hung = False
            self.go_on()

    def die(self) -> None:
        """SIGKILL."""
        if self.is_dead:
            return
        self.say("dies")
        self.is_dead = True
        self.slot.initializing.pop(self, None)
        for connection in list(self._connections.values()):
            self._close(connection)
        self.slot.on_dead(self)

    async def _live(self) -> None:
        try:
            await self._init()
            await self._find_position()
            while not (self.transactions.is_finishing and self.is_done):
                await self.sleep(int(self.rng.expovariate(1) * self.slot.pause_us) + 1)
                if not (self.transactions.is_finishing and self.is_done):
                    await self._transact()
        except Fatal as error:
            self._fatal(str(error))

    def _fatal(self, why: str) -> None:
        self.world.counts["transactional producers ended by an error"] += 1
        self.say(f"gives up: {why}")
        if not self._has_cause():
            self.transactions.checker.fail(
                "no fatal error without a cause", f"{self.name} ({self.protocol}): {why}"
            )
        self.die()

    def _has_cause(self) -> bool:
        """Whether somebody else took the id, or a transaction took too long."""
        if self._has_rival or any(us > self.init_us and who is not self for us, who in self.slot.tries):
            return True
        attempt = self.attempt
        if attempt is None:
            return False
        # One that nothing was added to, by what its client was told, is not ended: but the coordinator that added may
        # be gone before it said so, and the transaction goes on as the next one.
        began_us = min(attempt.began_us, attempt.began_us if self._asked_us is None else self._asked_us)
        took_ms = (self.world.scheduler.now_us - began_us) / MS
        return took_ms >= min(self.slot.timeout_ms, LEFT_AFTER_LOAD_MS) - 50

    # --- connections

    def _carrier(self, role: str) -> _Connection | None:
        found = self._connections.get(role)
        if found is None or found.carrier.closed:
            host = role if self.slot.is_direct else ""
            carrier = wire.connect(
                self.world, self.rng, self.transactions.finder, host, lambda c: self._lost(role, c)
            )
            if carrier is None:
                return None
            found = self._connections[role] = _Connection(carrier)
        return found

    def _lost(self, role: str, carrier: Any) -> None:
        found = self._connections.get(role)
        if found is not None and found.carrier is carrier:
            del self._connections[role]
            self._give_up(found)

    def _close(self, connection: _Connection) -> None:
        connection.carrier.close()
        for role in [role for role, each in self._connections.items() if each is connection]:
            del self._connections[role]
        self._give_up(connection)

    @staticmethod
    def _give_up(connection: _Connection) -> None:
        waiting, connection.waiting = connection.waiting, {}
        for resume, timer in waiting.values():
            timer.cancel()
            resume(None)

    def _send(
        self,
        connection: _Connection,
        frame: Callable[[int], bytes],
        resume: Callable[[Any], None],
        patience_us: int = REQUEST_TIMEOUT_US,
    ) -> None:
        self._number += 1
        number = self._number
        timer = self.world.scheduler.after(patience_us, self._timed_out, connection)
        connection.waiting[number] = (resume, timer)
        connection.carrier.send(frame(number), lambda data: self._answered(connection, number, data))

    def _timed_out(self, connection: _Connection) -> None:
        if self.is_dead:
            return
        self.world.counts["transactional requests timed out"] += 1
        self._close(connection)

    @staticmethod
    def _answered(connection: _Connection, number: int, data: bytes) -> None:
        waiting = connection.waiting.pop(number, None)
        if waiting is not None:
            waiting[1].cancel()
            waiting[0](data)

    async def _ask(self, role: str, api_key: ApiKey, **values: Any) -> Any:
        """One request by the connection to `role`; None without an answer."""
        connection = self._carrier(role)
        if connection is None:
            return None
        version = VERSIONS[self.protocol][api_key]

        def frame(number: int) -> bytes:
            return wire.encode(api_key, version, number, self.name, **values)

        patience_us = self._patience_us(api_key.name)
        data = await Pause(lambda resume: self._send(connection, frame, resume, patience_us))
        return None if data is None else wire.decode(api_key, version, data)

    def _patience_us(self, what: str) -> int:
        share, most_us = self.transactions.wanted.given_up.get(what, (0.0, 0))
        if not share or self.transactions.is_finishing or self.rng.random() >= share:
            return REQUEST_TIMEOUT_US
        return int(self.rng.random() * most_us) + 1

    # --- coordinators

    async def _find(self, kind: str) -> bool:
        if kind in self._found:
            return True
        host = ""
        if self.slot.is_direct:
            up = [h.name for h in self.world.hosts if h.kind == "n" and h.is_up]
            if not up:
                return False
            host = self.rng.choice(up)
        name = self.slot.transactional_id if kind == "txn" else self.slot.group_id
        answer = await self._ask(
            host, wire.FIND, key_type=1 if kind == "txn" else 0, coordinator_keys=(name,)
        )
        if answer is None:
            return False
        found = answer.coordinators[0]
        error = ErrorCode(int(found.error_code))
        if error:
            self._note(error)
            if error not in _LOOK_AGAIN:
                self._unexpected("FindCoordinator", error)
            return False
        self._found[kind] = found.host if self.slot.is_direct else ""
        return True

    async def _coordinate(self, kind: str, api_key: ApiKey, code_of: Any, **values: Any) -> Any:
        """Ask a coordinator until it has answered something that is not "try again"."""
        while True:
            if not await self._find(kind):
                await self.sleep(100 * MS)
                continue
            answer = await self._ask(self._found[kind], api_key, **values)
            if answer is None:
                self._found.pop(kind, None)
                await self.sleep(50 * MS)
                continue
            error = ErrorCode(int(code_of(answer)))
            if not error:
                return answer
            self._note(error)
            self.say(f"{api_key.name}: {error.name}")
            if error in _LOOK_AGAIN:
                self._found.pop(kind, None)
            elif error not in _WAIT:
                return answer
            await self.sleep(int((20 + 80 * self.rng.random()) * MS))

    def _note(self, error: ErrorCode) -> None:
        self.world.errors[f"transactions: {error.name}"] += 1

    def _unexpected(self, what: str, error: ErrorCode) -> None:
        self.transactions.checker.fail(
            "no unexpected answer", f"{what} of {self.name} ({self.protocol}): {error.name}"
        )

    # --- the producer's id and epoch

    async def _init(self) -> None:
        self.protocol = self._spoken()
        slot = self.slot
        asked_us, is_new = self.world.scheduler.now_us, self.producer_id < 0
        slot.tries.append((asked_us, self))
        # Of two that ask at the same time either may be the later one.
        has_rival = bool(slot.initializing)
        if is_new:
            self.init_us, self._has_rival = asked_us, has_rival
        slot.initializing[self] = None
        answer = await self._coordinate(
            "txn",
            wire.INIT,
            lambda a: a.error_code,
            transactional_id=slot.transactional_id,
            transaction_timeout=slot.timeout_ms,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        slot.initializing.pop(self, None)
        error = ErrorCode(int(answer.error_code))
        if error in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            raise Fatal(f"InitProducerId: {error.name}")
        if error:
            self._unexpected("InitProducerId", error)
        # Had somebody else taken the id before this was asked, the answer would have been an error.
        self.init_us, self._has_rival = asked_us, has_rival
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        self._asked_us = None
        self._needs_epoch = False
        self.say(f"is producer {self.producer_id}, epoch {self.epoch}")

    def _spoken(self) -> int:
        """As ApiVersions says: the new protocol needs `transaction.version` 2."""
        up = [h.process.manager for h in self.world.hosts if h.kind == "n" and h.is_running]
        images = [manager.registry.image for manager in up if manager is not None]
        if images:
            image = self.rng.choice(images)
            # Of what several have told a client believes the newest (KIP-584).
            if image.version >= self._image_version:
                self._image_version = image.version
                self._version = transaction_version(image)
        return NEW if self.slot.protocol == NEW and self._version >= 2 else OLD

    async def _find_position(self) -> None:
        """Where its group has committed, once that is stable."""
        slot = self.slot
        while True:
            known = self.transactions.checker.committed_position(slot.transactional_id)
            answer = await self._coordinate(
                "group",
                wire.FETCH_OFFSETS,
                lambda a: a.groups[0].error_code or a.groups[0].topics[0].partitions[0].error_code,
                groups=wire.fetch_groups(slot.group_id, slot.place),
                require_stable=True,
            )
            group = answer.groups[0]
            part = None if int(group.error_code) else group.topics[0].partitions[0]
            error = ErrorCode(int(group.error_code if part is None else part.error_code))
            if not error and part is not None:
                self.position = max(int(part.committed_offset), 0)
                self.transactions.checker.on_position(self, known, self.position)
                return
            if error not in (ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                self._unexpected("OffsetFetch", error)
            await self.sleep(100 * MS)

    # --- one transaction

    async def _transact(self) -> None:
        spoken = self._spoken()
        if spoken != self.protocol:
            # Clients change over between two transactions, to the new protocol with a new epoch (TransactionManager of
            # 4.3: clientSideEpochBumpRequired). By the old one the epoch stays, and what is written without being added
            # would pass for the transaction before, until its marker is written.
            if spoken == NEW:
                await self._init()
            self.protocol = spoken
        self._writes_by = self.protocol
        places = self.transactions.places()
        if not places:
            return
        count = self.rng.choice((1, 2, 3, 5))
        now_us = self.world.scheduler.now_us
        attempt = Attempt(self.name, self.position, self.position + count, now_us)
        self.attempt = attempt
        self.slot.attempts.append(attempt)
        self._added.clear()
        commits = self.rng.random() < self.transactions.wanted.commit_share or self.transactions.is_finishing
        try:
            await self._write(attempt, places, count)
            if commits or self.rng.random() < 0.5:
                await self._commit_offset(attempt.last_input)
            elif not self._has_begun():
                commits = False
            await self._linger()
        except Abortable as why:
            self.say(f"aborts: {why}")
            self.world.counts["transactions aborted for an error"] += 1
            commits = False
            self.protocol = self._writes_by
        await self._end(attempt, commits)
        self.attempt = None
        if self._needs_epoch:
            await self._init()
        if attempt.outcome != "committed":
            await self._find_position()
        else:
            self.position = attempt.last_input
            self.is_done = self.transactions.is_finishing

    def _hear_of_lowering(self, attempt: Attempt) -> None:
        """Who commits looks at the features first, and sends by the old protocol what it has not sent yet: its
        partitions count as added by their leaders, and are not. Whatever it asks its coordinator for is by the new one
        still, but for an abort (TransactionManager of 4.3: maybeUpdateTransactionV2Enabled)."""
        if self.protocol == OLD:
            return
        up = [h.process.manager for h in self.world.hosts if h.kind == "n" and h.is_running]
        newest = max((m.registry.image for m in up if m is not None), key=lambda i: i.version, default=None)
        if newest is None or newest.version < self._image_version or transaction_version(newest) >= 2:
            return
        self._image_version, self._version = newest.version, transaction_version(newest)
        self._writes_by = OLD
        attempt.was_lowered = True
        self.say("hears of a lower transaction.version")
        self.world.counts["transactions that hear of a lower version"] += 1

    def _has_begun(self) -> bool:
        return bool(self._added) or self.protocol == NEW

    async def _write(self, attempt: Attempt, places: list[tuple[TopicPartition, Place]], count: int) -> None:
        chosen = self.rng.sample(places, min(len(places), self.rng.choice((1, 1, 2, 3))))
        queues: dict[TopicPartition, list[_Batch]] = {}
        names = dict(chosen)
        for number in range(attempt.first_input, attempt.first_input + count):
            key, place = self.rng.choice(chosen)
            queue = queues.setdefault(key, [])
            (value,) = self.world.next_values(1)
            self.transactions.checker.outputs[value] = Output(self.slot.transactional_id, number, key)
            attempt.sent.add(value)
            if queue and queue[-1].values[-1] + 1 == value and self.rng.random() < 0.5:
                queue[-1].values.append(value)
            else:
                queue.append(_Batch(place, [value]))
        # At once, or one partition after the other, as an application comes to write to them.
        rounds = [list(queues)] if self.rng.random() < 0.5 else [[key] for key in queues]
        until_us = self.world.scheduler.now_us + self.transactions.wanted.delivery_timeout_us
        for keys in rounds:
            if keys is rounds[-1]:
                self._hear_of_lowering(attempt)
            if self.protocol == OLD:
                await self._add({names[key] for key in keys})
            left = {key: queues[key] for key in keys}
            while left:
                if self.world.scheduler.now_us > until_us:
                    self._needs_epoch = self._writes_by == OLD
                    raise Abortable("a batch was not delivered in time")
                await self._deliver(attempt, left)
            await self._linger()

    async def _linger(self) -> None:
        """The application does something else."""
        if self.rng.random() < self.slot.linger_chance and not self.transactions.is_finishing:
            await self.sleep(int(self.rng.random() * 3 * S))

    async def _add(self, places: set[Place]) -> None:
        wanted = places - self._added
        if not wanted:
            return
        if self._asked_us is None:
            self._asked_us = self.world.scheduler.now_us

        def code_of(answer: Any) -> int:
            codes = [
                int(part.partition_error_code)
                for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ]
            worst = [code for code in codes if code and code != ErrorCode.OPERATION_NOT_ATTEMPTED]
            return worst[0] if worst else max(codes)

        answer = await self._coordinate(
            "txn",
            wire.ADD,
            code_of,
            v3_and_below_transactional_id=self.slot.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=wire.add_topics(sorted(wanted)),
        )
        error = ErrorCode(code_of(answer))
        if error in _ABSENT:
            raise Abortable(f"AddPartitionsToTxn: {error.name}")
        self._settle("AddPartitionsToTxn", error)
        self._added |= wanted

    def _settle(self, what: str, error: ErrorCode) -> None:
        """An answer of the transaction's coordinator that is not to be asked again."""
        if not error:
            return
        if error is ErrorCode.INVALID_PRODUCER_ID_MAPPING and self.protocol == OLD:
            self._needs_epoch = True
            raise Abortable(f"{what}: {error.name}")
        if error is ErrorCode.TRANSACTION_ABORTABLE:
            raise Abortable(f"{what}: {error.name}")
        if error in (
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ):
            raise Fatal(f"{what}: {error.name}")
        self._unexpected(what, error)

    # --- records

    async def _deliver(self, attempt: Attempt, queues: dict[TopicPartition, list[_Batch]]) -> None:
        """Send what is not acknowledged once, several batches behind one another; wait for all answers."""
        sent: list[tuple[TopicPartition, _Batch]] = []
        answers: dict[int, Any] = {}
        by_route: dict[str, list[TopicPartition]] = {}
        for key in queues:
            route = self._route(key)
            if route is not None:
                by_route.setdefault(route, []).append(key)
        requests: list[tuple[_Connection, list[tuple[TopicPartition, _Batch]]]] = []
        for route, keys in by_route.items():
            connection = self._carrier(route)
            if connection is None:
                continue
            depth = max(len(queues[key]) for key in keys)
            for at in range(min(depth, 4)):
                items = [(key, queues[key][at]) for key in keys if at < len(queues[key])]
                requests.append((connection, items))
                sent += items
        if not sent:
            await self.sleep(50 * MS)
            return
        for _, items in requests:
            for key, batch in items:
                self._build(key, batch)
        await Pause(lambda resume: self._send_all(requests, answers, resume))
        self._take_answers(attempt, queues, requests, answers)
        if queues:
            await self.sleep(int((20 + 80 * self.rng.random()) * MS))

    def _route(self, key: TopicPartition) -> str | None:
        if not self.slot.is_direct:
            return ""
        state = self.world.partition_for(key, self._leader_epochs.get(key, -1))
        if state is None or state.leader == NO_NODE:
            return None
        self._leader_epochs[key] = state.leader_epoch
        return f"n{state.leader}"

    def _build(self, key: TopicPartition, batch: _Batch) -> None:
        if batch.data:
            return
        batch.sequence = self._sequences.get(batch.place, 0)
        self._sequences[batch.place] = batch.sequence + len(batch.values)
        batch.epoch = self.epoch
        now_ms = self.world.scheduler.now_us // MS + 1_700_000_000_000
        batch.data = build_batch(
            [NewRecord(None, b"%d" % value, now_ms) for value in batch.values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=batch.sequence,
            transactional=True,
        )
        batch.crc = read_header(batch.data).crc
        known = range(batch.values[0], batch.values[-1] + 1)
        self.world.checker.batch_values[batch.crc, (self.producer_id, self.epoch, batch.sequence)] = known

    def _send_all(self, requests: list[Any], answers: dict[int, Any], resume: Callable[[Any], None]) -> None:
        left = len(requests)

        def answered(index: int, data: Any) -> None:
            nonlocal left
            answers[index] = data
            left -= 1
            if not left:
                resume(None)

        version = VERSIONS[self._writes_by][wire.PRODUCE]
        for index, (connection, items) in enumerate(requests):
            if connection.carrier.closed:
                answered(index, None)
                continue
            batches = [(batch.place, batch.data) for _, batch in items]

            def frame(number: int, batches: Any = batches) -> bytes:
                return wire.produce(version, number, self.name, self.slot.transactional_id, batches)

            patience_us = self._patience_us("PRODUCE")
            self._send(connection, frame, lambda data, index=index: answered(index, data), patience_us)  # type: ignore[misc]

    def _take_answers(
        self, attempt: Attempt, queues: dict[TopicPartition, list[_Batch]], requests: Any, answers: Any
    ) -> None:
        version = VERSIONS[self._writes_by][wire.PRODUCE]
        failed: dict[TopicPartition, ErrorCode | None] = {}
        for index, (_, items) in enumerate(requests):
            results = {}
            if answers[index] is not None:
                response = decode_produce_response(answers[index], version)
                results = {(r.topic, r.partition): r for r in response.results}
            for key, batch in items:
                result = results.get(batch.place)
                if result is None:
                    failed.setdefault(key, None)
                elif result.error:
                    error = ErrorCode(result.error)
                    self._note(error)
                    self.say(f"{batch.place}: {error.name} for {batch.sequence}: {result.error_message}")
                    failed.setdefault(key, error)
                else:
                    self._acked(attempt, queues, key, batch, result.base_offset)
        for key in [key for key in queues if not queues[key]]:
            del queues[key]
        for key, first in failed.items():
            if first is not None and key in queues:
                self._refused(first)

    def _acked(self, attempt: Attempt, queues: Any, key: TopicPartition, batch: _Batch, base: int) -> None:
        place = (self.producer_id, batch.epoch, batch.sequence)
        self.say(f"{batch.place}: {batch.sequence} is at {base}")
        if base >= 0:
            self.world.checker.on_ack(key, base, batch.crc, place)
        queue = queues[key]
        while batch in queue:
            each = queue.pop(0)
            if each is not batch:
                # Nothing is written past one that is not there: this one counts as written too.
                earlier = (self.producer_id, each.epoch, each.sequence)
                known = range(each.values[0], each.values[-1] + 1)
                self.world.checker.on_implied_ack(key, earlier, known)
            attempt.values.setdefault(key, []).extend(each.values)

    def _refused(self, error: ErrorCode) -> None:
        if error in _PRODUCE_AGAIN or (error is ErrorCode.CONCURRENT_TRANSACTIONS and self._writes_by == NEW):
            return
        if error in _PRODUCE_ABORTABLE[self._writes_by]:
            self._needs_epoch = self._writes_by == OLD
            raise Abortable(f"Produce: {error.name}")
        if error in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            raise Fatal(f"Produce: {error.name}")
        self._unexpected("Produce", error)

    # --- offsets

    async def _commit_offset(self, offset: int) -> None:
        slot = self.slot
        who = {
            "transactional_id": slot.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "group_id": slot.group_id,
        }
        if self.protocol == OLD:
            answer = await self._coordinate("txn", wire.ADD_OFFSETS, lambda a: a.error_code, **who)
            self._settle("AddOffsetsToTxn", ErrorCode(int(answer.error_code)))
            self._added.add(("__consumer_offsets", 0))
        version = VERSIONS[self.protocol][wire.COMMIT]
        until_us = self.world.scheduler.now_us + self.transactions.wanted.delivery_timeout_us
        while self.world.scheduler.now_us < until_us:
            answer = await self._coordinate(
                "group",
                wire.COMMIT,
                lambda a: a.topics[0].partitions[0].error_code,
                **who,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=wire.commit_topics(version, slot.place, offset),
            )
            error = ErrorCode(int(answer.topics[0].partitions[0].error_code))
            if error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._settle("TxnOffsetCommit", error)
                return
            await self.sleep(100 * MS)
        raise Abortable("offsets were not committed in time")

    # --- the end

    async def _end(self, attempt: Attempt, commits: bool) -> None:
        if self.protocol == OLD and not self._added and not attempt.was_lowered:
            attempt.outcome = "aborted"  # nothing was begun
            return
        attempt.tried_to = "commit" if commits else "abort"
        answer = await self._coordinate(
            "txn",
            wire.END,
            lambda a: a.error_code,
            transactional_id=self.slot.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commits,
        )
        error = ErrorCode(int(answer.error_code))
        if error:
            if error is ErrorCode.INVALID_PRODUCER_ID_MAPPING and self.protocol == OLD:
                self._needs_epoch = True
                return
            raise Fatal(f"EndTxn ({attempt.tried_to}): {error.name}")
        self._asked_us = None
        attempt.outcome = "committed" if commits else "aborted"
        self.say(f"has {attempt.outcome} inputs {attempt.first_input} to {attempt.last_input}")
        self.world.counts[f"transactions {attempt.outcome}"] += 1
        self.transactions.checker.on_told(self, attempt)
        if self.protocol == NEW:
            if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
                self._sequences.clear()
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch


class Watcher(TxnProducer):
    """Asks for the stable offsets of a group whose transactions it has no part in, as a new owner does."""

    def __init__(self, transactions: Transactions, slot: Slot) -> None:
        super().__init__(transactions, slot, 0)
        self.name = f"{slot.transactional_id}.watcher"

    async def _live(self) -> None:
        while True:
            await self.sleep(int((0.3 + self.rng.expovariate(1)) * S))
            await self._find_position()


@dataclass(slots=True, eq=False)
class _Batch:
    """Records that stay together."""

    place: Place
    values: list[int]
    data: bytes = b""
    sequence: int = -1
    epoch: int = -1
    crc: int = 0
