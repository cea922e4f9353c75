"""One partition of `__transaction_state` that this node leads: its transactional ids.

The shell makes a shard, feeds it the records of the log (`replay`), and says `resume` once the high watermark has
reached the start of its leader epoch: a PREPARE_COMMIT that only this log has may yet be lost, and markers sent for
it would commit half a transaction. Then it hands over requests, calls `end_turn` after each turn of the loop,
`tick`s, tells which markers are there (`markers_done`), and `close`s when leadership is lost. Every request is
answered through its `reply`, once, at once or later.

What holds here:

* One change of an id is under way at a time, from the draw of a producer id until the high watermark covers its
  record. All that comes for the id meanwhile, or while it is prepared, waits its turn, HOLD_MS at most (an
  InitProducerId INIT_HOLD_MS); then it is told CONCURRENT_TRANSACTIONS. Clients would sleep 20 to 100 ms on that,
  which is most of what a transaction takes.
* Adds that meet in one turn are one change, and all changes of a turn are one batch.
* A write has no deadline: what was decided stays under way until its fate is known, as in decision 0016.
* No sentence without a barrier: a deposed coordinator that was not told would fence a producer whose epoch has risen
  elsewhere. So what is fatal to producers (`SENTENCES`) is told only once a write that was appended after the
  question is covered.
* The decision is the covered PREPARE record. Then EndTxn is answered, and its markers are due; never before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, Protocol

from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_storage_node.groups.timers import Timer, TimerQueue
from penstock_storage_node.transactions import records as rec
from penstock_storage_node.transactions.records import Partitions, State, TransactionValue
from penstock_storage_node.transactions.state import (
    AT_REST,
    BUSY,
    COMPLETE,
    NEEDS_ID,
    PREPARED,
    TRANSACTIONS_V2,
    Answer,
    Change,
    End,
    Init,
    Refusal,
    Verdict,
    abort_in_its_place,
    add_partitions,
    completed,
    end_transaction,
    init_producer_id,
    is_expired,
    verify,
)

HOLD_MS: Final = 100
INIT_HOLD_MS: Final = 1_000
LATE_LEFT_MS: Final = 10_000
"""The least that is left of a transaction's time after a load: a wall clock that has jumped aborts nothing."""
RETRY_MS: Final = 1_000
"""After a write that was refused, to what has to be done all the same."""
TRANSACTIONAL_ID_BYTES_MAX: Final = 16_384
NO_TIMEOUT_MS: Final = (1 << 31) - 1
"""Of a transaction that its producer prepares elsewhere (KIP-939): it has no deadline."""

SENTENCES: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""What ends a producer or its transaction."""

_MOVED: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.FENCED_LEADER_EPOCH}
)

Reply = Callable[[Refusal | Answer], None]
Done = Callable[[ErrorCode], None]
Alive = Callable[[], bool]


class Record(NamedTuple):
    """One record to write; `value` None is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class MarkersDue:
    """A decided transaction: a marker belongs into each of its partitions."""

    transactional_id: str
    producer_id: int
    epoch: int
    commits: bool
    partitions: Partitions
    version: int
    """TV, by which leaders check the epoch."""


class Ports(Protocol):
    """What a shard asks of its surroundings."""

    def append(self, records: Sequence[Record], done: Done) -> None:
        """Append in one batch. Raises PenstockError, and nothing was written; else calls `done` once, later: with NONE
        when the high watermark covers the records, else with the reason for which that is not known."""

    def draw_id(self, done: Callable[[int | None], None]) -> None:
        """A producer id that nobody else gets, at once or later; None when none is to be had now."""

    def send_markers(self, due: MarkersDue) -> None:
        """Have the markers written; `Shard.markers_done` is called once every partition has its own."""

    def clock_ms(self) -> int:
        """Never goes back."""

    def wall_ms(self) -> int:
        """ms since 1970."""

    def may_add_id(self) -> bool:
        """Whether this node may keep another transactional id."""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Names and defaults are Kafka's."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    server_version: int = TRANSACTIONS_V2
    """`transaction.version` of the cluster."""
    held_max: int = 10_000
    """Requests that wait, of all ids of a shard."""


@dataclass(slots=True)
class _Request:
    """One that may have to wait. `decide` looks at the committed value, with a fresh producer id or without."""

    decide: Callable[[TransactionValue | None, int | None], Verdict]
    reply: Reply
    alive: Alive
    until_ms: int
    adds: tuple[int, int, Partitions] | None = None
    """Of an add: producer id, epoch, partitions."""


@dataclass(slots=True)
class _Busy:
    """What is under way for one id, while there is anything."""

    change: TransactionValue | None = None
    """Being written."""
    is_dying: bool = False
    is_drawing: bool = False
    is_written: bool = False
    """The change is in the log; adds can't join it any more."""
    replies: list[tuple[Reply, Refusal | Answer]] = field(default_factory=list)
    held: deque[_Request] = field(default_factory=deque)
    deadline: Timer | None = None
    """Of the open transaction."""
    hold: Timer | None = None
    retry: Timer | None = None
    """Of a completion that could not be written."""

    @property
    def is_pending(self) -> bool:
        return self.change is not None or self.is_drawing or self.is_dying

    @property
    def is_needed(self) -> bool:
        return bool(self.is_pending or self.held or self.deadline or self.retry)


class _Write(NamedTuple):
    """A record to be: made at the end of the turn, since adds may join it until then."""

    name: str
    value: Callable[[], TransactionValue | None]
    done: Done


class Shard:
    """See the module's text."""

    def __init__(self, ports: Ports, settings: TransactionSettings) -> None:
        self._ports = ports
        self.settings = settings
        """May be exchanged at any time."""
        self.values: Final[dict[str, TransactionValue]] = {}
        """What is committed, by transactional id."""
        self.bad_records = 0
        """Records of the log that could not be read, and were passed over."""
        self._busy: dict[str, _Busy] = {}
        self._timers = TimerQueue()
        self._held_count = 0
        self._turn: list[_Write] = []
        """To be appended at the end of this turn."""
        self._sentences: list[tuple[str, Done]] = []
        """To be told once something is covered that is written from now on."""
        self._resumed: Iterator[str] | None = None
        self._expiring: Iterator[str] = iter(())
        self.is_serving = False
        self.is_closed = False

    # --- the log ------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """A record of the log, in its order: the last one of an id counts."""
        try:
            name = rec.read_key(key)
            if name is None:
                return
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = rec.read_value(value)
        except PenstockError:
            self.bad_records += 1

    def resume(self, count: int) -> bool:
        """Take up `count` of the ids that were read; True when all are, and requests may come."""
        if self._resumed is None:
            self._resumed = iter([name for name, value in self.values.items() if value.state not in AT_REST])
        for _ in range(count):
            name = next(self._resumed, None)
            if name is None:
                self.is_serving = True
                break
            value = self.values[name]
            if value.state in PREPARED:
                self._send(name, value)
            else:
                self._arm(name, value, LATE_LEFT_MS)
        return self.is_serving

    def close(self) -> None:
        """Leadership is lost: whoever waits looks for the next coordinator, which knows what became of it."""
        self.is_closed, self.is_serving = True, False
        busy, sentences = list(self._busy.values()), self._sentences
        self._busy.clear()
        self._sentences, self._turn, self._held_count = [], [], 0
        for each in busy:
            for reply, _ in each.replies:
                reply(_NOT_COORDINATOR)
            for request in each.held:
                request.reply(_NOT_COORDINATOR)
        for _, done in sentences:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def end_turn(self) -> None:
        """Append what this turn has decided, in one batch."""
        if self.is_closed or not (self._turn or self._sentences):
            return
        if not self._turn:
            # The barrier: the present record of an id again, or a tombstone where there is none.
            name = self._sentences[0][0]
            self._turn.append(_Write(name, lambda: self.values.get(name), _ignore))
        turn, self._turn = self._turn, []
        sentences, self._sentences = self._sentences, []
        records = [self._record(write.name, write.value()) for write in turn]
        for write in turn:
            if (busy := self._busy.get(write.name)) is not None:
                busy.is_written = True

        def settled(code: ErrorCode) -> None:
            if self.is_closed:
                code = code or ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                for write in turn:
                    write.done(code)
            for _, done in sentences:
                done(code)

        try:
            self._ports.append(records, settled)
        except PenstockError as error:
            settled(error.code)

    def _record(self, name: str, value: TransactionValue | None) -> Record:
        if value is None:
            return Record(rec.put_key(name), None)
        return Record(rec.put_key(name), rec.put_value(value, flexible=self.settings.server_version > 0))

    # --- requests -----------------------------------------------------------------------------

    def init_producer_id(self, name: str, request: Init, reply: Reply, alive: Alive) -> None:
        """InitProducerId with a transactional id."""
        is_half = (request.producer_id < 0) != (request.epoch < 0)
        if not name or is_half or len(name.encode()) > TRANSACTIONAL_ID_BYTES_MAX:
            reply(Refusal(ErrorCode.INVALID_REQUEST))
        elif not 0 < request.timeout_ms <= self.settings.max_timeout_ms:
            reply(Refusal(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        elif name not in self.values and name not in self._busy and not self._ports.may_add_id():
            reply(Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED))
        else:
            self._take(
                name,
                _Request(
                    lambda old, fresh_id: init_producer_id(
                        old, request, self._ports.wall_ms(), self.settings.server_version, fresh_id
                    ),
                    reply,
                    alive,
                    self._ports.clock_ms() + INIT_HOLD_MS,
                ),
            )

    def add_partitions(
        self,
        name: str,
        producer: tuple[int, int],
        partitions: Partitions,
        client_version: int,
        reply: Reply,
        alive: Alive,
    ) -> None:
        """AddPartitionsToTxn or AddOffsetsToTxn of (producer id, epoch); the partitions exist."""
        self._take(
            name,
            _Request(
                lambda old, _: add_partitions(
                    old, *producer, partitions, client_version, self._ports.wall_ms()
                ),
                reply,
                alive,
                self._ports.clock_ms() + HOLD_MS,
                (*producer, partitions),
            ),
        )

    def end_transaction(self, name: str, request: End, reply: Reply, alive: Alive) -> None:
        """EndTxn."""
        self._take(
            name,
            _Request(
                lambda old, fresh_id: end_transaction(old, request, self._ports.wall_ms(), fresh_id),
                reply,
                alive,
                self._ports.clock_ms() + HOLD_MS,
            ),
        )

    def verify(
        self,
        name: str,
        producer: tuple[int, int],
        partitions: Partitions,
        reply: Callable[[dict[tuple[str, int], ErrorCode]], None],
    ) -> None:
        """Whether partitions were added: asked by leaders, for producers that add them themselves."""
        if refusal := self._not_serving():
            reply(dict.fromkeys(partitions, refusal.code))
            return
        found = verify(self.values.get(name), *producer, partitions)
        if not SENTENCES.intersection(found.values()):
            reply(found)
            return

        def told(code: ErrorCode) -> None:
            reply(dict.fromkeys(partitions, write_error(code)) if code else found)

        self._sentences.append((name, told))

    def _not_serving(self) -> Refusal | None:
        if self.is_closed:
            return _NOT_COORDINATOR
        return None if self.is_serving else Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def _take(self, name: str, request: _Request) -> None:
        if refusal := self._not_serving():
            request.reply(refusal)
            return
        busy = self._busy.get(name)
        if busy is not None and (busy.is_pending or busy.held):
            if not self._joins(busy, request):
                self._hold(name, busy, request)
        elif self._must_wait(name, request):
            self._hold(name, self._busy.setdefault(name, _Busy()), request)
        else:
            self._judge(name, request)

    def _must_wait(self, name: str, request: _Request) -> bool:
        """Whether it would be told to ask again, and what is in its way ends soon."""
        value = self.values.get(name)
        return value is not None and value.state in PREPARED and request.decide(value, None) == BUSY

    def _joins(self, busy: _Busy, request: _Request) -> bool:
        """Whether an add became part of another one that is not written yet."""
        change = busy.change
        if request.adds is None or change is None or busy.is_written or change.state is not State.ONGOING:
            return False
        producer_id, epoch, partitions = request.adds
        if (producer_id, epoch) != (change.producer_id, change.producer_epoch):
            return False
        busy.change = change._replace(partitions=change.partitions | partitions)
        busy.replies.append((request.reply, Answer(producer_id, epoch)))
        return True

    def _hold(self, name: str, busy: _Busy, request: _Request) -> None:
        if self._held_count >= self.settings.held_max:
            request.reply(BUSY)
            return
        self._held_count += 1
        busy.held.append(request)
        if busy.hold is None:
            busy.hold = Timer("hold", (name,))
        if not busy.hold.is_set or request.until_ms < busy.hold.deadline_ms:
            self._timers.set(busy.hold, request.until_ms)

    def _judge(self, name: str, request: _Request, fresh_id: int | None = None) -> None:
        """Carry out a request: nothing is under way for its id."""
        if not request.alive():
            return
        verdict = request.decide(self.values.get(name), fresh_id)
        if isinstance(verdict, Change):
            self._begin(name, verdict.value, [(request.reply, verdict.reply)])
        elif verdict is NEEDS_ID:
            self._draw(name, request)
        elif isinstance(verdict, Refusal):
            self._tell(name, request.reply, verdict)
        else:
            request.reply(verdict)

    def _tell(self, name: str, reply: Reply, refusal: Refusal) -> None:
        if refusal.code not in SENTENCES:
            reply(refusal)
            return

        def told(code: ErrorCode) -> None:
            reply(Refusal(write_error(code)) if code else refusal)

        self._sentences.append((name, told))

    def _draw(self, name: str, request: _Request) -> None:
        busy = self._busy.setdefault(name, _Busy())
        busy.is_drawing = True

        def drawn(fresh_id: int | None) -> None:
            if self.is_closed or self._busy.get(name) is not busy:
                request.reply(_NOT_COORDINATOR)
                return
            busy.is_drawing = False
            if fresh_id is None:
                request.reply(Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            else:
                self._judge(name, request, fresh_id)
            self._go_on(name)

        self._ports.draw_id(drawn)

    # --- changes ------------------------------------------------------------------------------

    def _begin(self, name: str, new: TransactionValue, replies: list[tuple[Reply, Refusal | Answer]]) -> None:
        """Have `new` written, and let it count once that is safe."""
        busy = self._busy.setdefault(name, _Busy())
        if busy.is_pending:
            raise InvariantBroken(f"transactional id {name}: a second change while one is under way")
        busy.change, busy.replies, busy.is_written = new, replies, False
        self._turn.append(_Write(name, lambda: busy.change, lambda code: self._settled(name, busy, code)))

    def _settled(self, name: str, busy: _Busy, code: ErrorCode) -> None:
        new, replies = busy.change, busy.replies
        busy.change, busy.replies, busy.is_written = None, [], False
        if new is None:
            return
        if code:
            # Refused before it was appended: nothing has changed. (Where leadership is lost this shard is closed.)
            failed = Refusal(write_error(code))
            for reply, _ in replies:
                reply(failed)
            if new.state in COMPLETE:
                busy.retry = Timer("complete", (name,))
                self._timers.set(busy.retry, self._ports.clock_ms() + RETRY_MS)
        else:
            self._commit(name, new)
            for reply, said in replies:
                reply(said)
        self._go_on(name)

    def _commit(self, name: str, new: TransactionValue) -> None:
        self.values[name] = new
        if new.state is State.ONGOING:
            self._arm(name, new, 0)
        else:
            self._disarm(name)
        if new.state in PREPARED:
            self._send(name, new)

    def _send(self, name: str, value: TransactionValue) -> None:
        self._ports.send_markers(
            MarkersDue(
                name,
                value.producer_id,
                value.producer_epoch,
                value.state is State.PREPARE_COMMIT,
                value.partitions,
                value.client_version,
            )
        )

    def markers_done(self, name: str, producer_id: int, epoch: int) -> None:
        """Every partition of a decided transaction has its marker."""
        value, busy = self.values.get(name), self._busy.get(name)
        if self.is_closed or value is None or value.state not in PREPARED:
            return
        if (value.producer_id, value.producer_epoch) != (producer_id, epoch):
            return
        if busy is None or not (busy.is_pending or busy.retry):
            self._begin(name, completed(value, self._ports.wall_ms()), [])

    def _complete(self, name: str) -> None:
        busy, value = self._busy.get(name), self.values.get(name)
        if busy is None or value is None or value.state not in PREPARED:
            return
        busy.retry = None
        self._begin(name, completed(value, self._ports.wall_ms()), [])

    def _go_on(self, name: str) -> None:
        """Nothing is under way for an id: take up what waits for it, as far as that goes."""
        busy = self._busy.get(name)
        while busy is not None and busy.held and not busy.is_drawing:
            request = busy.held[0]
            if busy.is_pending:
                if not self._joins(busy, request):
                    break
                busy.held.popleft()
            elif self._must_wait(name, request):
                break
            else:
                busy.held.popleft()
                self._judge(name, request)
            self._held_count -= 1
        if busy is not None:
            self._tidy(name, busy)

    def _tidy(self, name: str, busy: _Busy) -> None:
        if busy.hold is not None and not busy.held:
            busy.hold.cancel()
        value = self.values.get(name)
        if value is not None and value.state is State.ONGOING and not busy.is_pending:
            # An abort that came to nothing is tried again.
            self._arm(name, value, RETRY_MS)
        if not busy.is_needed:
            self._busy.pop(name, None)

    # --- time ---------------------------------------------------------------------------------

    def _arm(self, name: str, value: TransactionValue, least_ms: int) -> None:
        if value.timeout_ms >= NO_TIMEOUT_MS:
            return
        busy = self._busy.setdefault(name, _Busy())
        if busy.deadline is not None and busy.deadline.is_set:
            return
        left_ms = value.start_ms + value.timeout_ms - self._ports.wall_ms()
        left_ms = max(min(left_ms, value.timeout_ms), least_ms)
        if busy.deadline is None:
            busy.deadline = Timer("timeout", (name,))
        self._timers.set(busy.deadline, self._ports.clock_ms() + left_ms)

    def _disarm(self, name: str) -> None:
        busy = self._busy.get(name)
        if busy is not None and busy.deadline is not None:
            busy.deadline.cancel()
            busy.deadline = None

    @property
    def next_ms(self) -> int:
        """Nothing rings before that, by the clock that never goes back."""
        return self._timers.next_ms

    def tick(self) -> None:
        """Whatever is due: transactions that took too long, requests that waited too long."""
        if self.is_closed:
            return
        now_ms = self._ports.clock_ms()
        while (timer := self._timers.due(now_ms)) is not None:
            (name,) = timer.owner
            if timer.kind == "hold":
                self._release(name, now_ms)
            elif timer.kind == "complete":
                self._complete(name)
            else:
                self._abort(name)

    def _release(self, name: str, now_ms: int) -> None:
        """Who has waited long enough asks again."""
        busy = self._busy.get(name)
        if busy is None or busy.hold is None:
            return
        late = [request for request in busy.held if request.until_ms <= now_ms]
        busy.held = deque(request for request in busy.held if request.until_ms > now_ms)
        self._held_count -= len(late)
        if busy.held:
            self._timers.set(busy.hold, min(request.until_ms for request in busy.held))
        for request in late:
            request.reply(BUSY)
        self._tidy(name, busy)

    def _abort(self, name: str) -> None:
        """An open transaction's time is over."""
        busy, value = self._busy.get(name), self.values.get(name)
        if busy is None or value is None or value.state is not State.ONGOING:
            return
        busy.deadline = None
        if busy.is_pending:
            # Whatever is under way comes first. It may end the transaction; if it does not, this is tried again.
            busy.deadline = Timer("timeout", (name,))
            self._timers.set(busy.deadline, self._ports.clock_ms() + HOLD_MS)
            return
        began = value.start_ms, value.producer_id, value.producer_epoch
        self._judge(
            name,
            _Request(lambda old, fresh_id: self._aborted(old, began, fresh_id), _unheard, _always, 0),
        )

    def _aborted(
        self, old: TransactionValue | None, began: tuple[int, int, int], fresh_id: int | None
    ) -> Verdict:
        is_same = old is not None and (old.start_ms, old.producer_id, old.producer_epoch) == began
        if old is None or not is_same or old.state is not State.ONGOING:
            return BUSY
        return abort_in_its_place(old, self._ports.wall_ms(), self.settings.server_version, fresh_id)

    def expire(self, count: int) -> None:
        """Look at the next `count` ids: those that were at rest for too long are forgotten."""
        now_ms, left = self._ports.wall_ms(), count
        for name in islice(self._expiring, count):
            left -= 1
            value = self.values.get(name)
            if value is None or not is_expired(value, now_ms, self.settings.id_expiration_ms):
                continue
            busy = self._busy.get(name)
            if busy is None:
                self._forget(name)
        if left:
            self._expiring = iter(list(self.values))

    def _forget(self, name: str) -> None:
        busy = self._busy.setdefault(name, _Busy())
        busy.is_dying = True

        def gone(code: ErrorCode) -> None:
            busy.is_dying = False
            if not code:
                self.values.pop(name, None)
            self._go_on(name)

        self._turn.append(_Write(name, lambda: None, gone))

    # --- for tests and the simulator --------------------------------------------------------------

    @property
    def held_count(self) -> int:
        """Requests that wait."""
        return self._held_count

    def validate(self) -> None:
        """Raises InvariantBroken when it is what no shard may be."""
        held = sum(len(busy.held) for busy in self._busy.values())
        if held != self._held_count:
            raise InvariantBroken(f"{held} requests wait, {self._held_count} are counted")
        for name, busy in self._busy.items():
            value = self.values.get(name)
            is_open = value is not None and value.state is State.ONGOING
            if not busy.is_needed:
                raise InvariantBroken(f"transactional id {name} is kept as busy, and is not")
            if busy.deadline is not None and not is_open:
                raise InvariantBroken(f"transactional id {name} has a deadline and no open transaction")
        for name, value in self.values.items():
            if value.state is not State.ONGOING or value.timeout_ms >= NO_TIMEOUT_MS or not self.is_serving:
                continue
            at = self._busy.get(name)
            if at is None or not (at.deadline or at.is_pending):
                raise InvariantBroken(f"transactional id {name} is open without a deadline")


def write_error(code: ErrorCode) -> ErrorCode:
    """What a request is told when its record came to nothing, or perhaps did not."""
    return ErrorCode.NOT_COORDINATOR if code in _MOVED else ErrorCode.COORDINATOR_NOT_AVAILABLE


_NOT_COORDINATOR: Final = Refusal(ErrorCode.NOT_COORDINATOR)


def _ignore(_: ErrorCode) -> None:
    pass


def _unheard(_: Refusal | Answer) -> None:
    pass


def _always() -> bool:
    return True
