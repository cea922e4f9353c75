"""The transitions of a shard: written, counted, carried out, timed, read again. What is asked for is the shard's.

A transition is pending from when it is decided until the high watermark covers its record, and one of an id at a time;
all of a turn are one batch, and so is each decision of a unit. See `shard` for the rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_storage_node.settings import TransactionSettings
from penstock_storage_node.timers import NEVER_MS, Timer, TimerQueue
from penstock_storage_node.transactions import state
from penstock_storage_node.transactions.due import Due
from penstock_storage_node.transactions.effects import MarkersDue, MarkersWithdrawn, TopicPartitionName
from penstock_storage_node.transactions.ids import Id, Ids, Pending, must
from penstock_storage_node.transactions.questions import Held, Question
from penstock_storage_node.transactions.records import (
    StateRecord,
    Status,
    TransactionValue,
    put_key,
    put_value,
    read_key,
    read_value,
)
from penstock_storage_node.transactions.state import (
    Answer,
    End,
    NeedId,
    Server,
)
from penstock_storage_node.transactions.units import (
    Decision,
    Desk,
    Units,
    too_large,
)
from penstock_storage_node.transactions.writes import TOO_LARGE, Batch, Log, write_error

RETRY_MS: Final = 500
"""When a transition of the server's own that the log refused is tried again."""
RESUMED_AT_ONCE: Final = 200
"""Transactions that go on in one turn of the event loop when a log is read: about 2 ms."""
LOADED_LEFT_MS: Final = 10_000
"""What a transaction has left at least after a load: then only the wall clock knows its age, and that may jump."""
EXPIRY_IDS_MAX: Final = 500
"""Ids looked at in one step of the expiry."""

Effect = MarkersDue | MarkersWithdrawn


class Transitions:
    """See the module's text."""

    def __init__(
        self,
        log: Log,
        settings: TransactionSettings,
        *,
        state_partition: int,
        coordinator_epoch: int,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        version: Callable[[], int],
        take_id: Callable[[], int | None],
        exists: Callable[[TopicPartitionName], bool],
        has_room: Callable[[], bool],
        send: Callable[[Effect], None],
        schedule: Callable[[], None],
    ) -> None:
        """`clock_ms` never goes back, `wall_ms` is ms since 1970, `version` the cluster's `transaction.version`,
        `take_id` gives a producer id that nobody has, or None when there is none at hand (`ids_arrived` then),
        `exists` knows partitions, `has_room` whether this node takes another transactional id, `send` carries out,
        `schedule` asks for `end_turn`."""
        self._log = log
        self._settings = settings
        self._state_partition = state_partition
        self._coordinator_epoch = coordinator_epoch
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._version = version
        self._take_id = take_id
        self._exists = exists
        self._has_room = has_room
        self._send = send
        self._schedule = schedule
        self._timers: Final = TimerQueue()
        self._ids: Final = Ids()
        self._unfinished: dict[str, None] = {}
        """While it is read: ids with a transaction."""
        self._resuming: Iterator[str] | None = None
        """After that: those of them that have yet to go on."""
        self._turn: list[Id] = []
        self._doubts: list[tuple[Question, Answer]] = []
        self._in_flight: deque[Batch] = deque()
        self._due: Final = Due()
        self._need_id: dict[Question, None] = {}
        self._held: Final = Held(self._timers, clock_ms, settings.held_max)
        self._expiring: list[str] = []
        self.units: Final = Units(
            Desk(self._server, self._pend, self._begin, self._doubt, has_room, schedule),
            self._ids,
            self._held,
        )
        """Units of sinks, whose requests come by `unit` and `stage`."""
        self._loading = True
        self.closed = False
        self.timed_out_count = 0
        """Transactions aborted because they took too long."""
        self.fenced_count = 0
        """Transactions aborted because somebody began anew."""

    # -- what there is ---------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Nobody is served yet."""
        return self._loading

    @property
    def coordinator_epoch(self) -> int:
        """Leader epoch of its partition."""
        return self._coordinator_epoch

    @property
    def next_timer_ms(self) -> int:
        """`tick` has nothing to do before that time."""
        return self._timers.next_ms

    def tell_earlier(self, told: Callable[[], None]) -> None:
        """See `Coordinator`."""
        self._timers.on_earlier = told

    @property
    def id_count(self) -> int:
        """Transactional ids."""
        return len(self._ids)

    @property
    def held_count(self) -> int:
        """Requests that wait."""
        return self._held.count

    @property
    def counts(self) -> Mapping[Status, int]:
        """Ids in each state, as they count now."""
        return self._ids.counts

    @property
    def oldest_start_ms(self) -> int | None:
        """When the oldest open transaction began, in ms since 1970; None without one."""
        return self._ids.oldest_start_ms

    def _note(self, entry: Id, value: TransactionValue | None) -> None:
        before = entry.current
        self._ids.note(entry, value)
        if (before is not None and before.unit) or (value is not None and value.unit):
            self.units.note(entry.name, before, value)

    def names(self) -> list[str]:
        """All ids, also those whose first record does not count yet."""
        return list(self._ids)

    def value(self, name: str) -> TransactionValue | None:
        """What counts of an id; None for one that is unknown."""
        entry = self._ids.get(name)
        return None if entry is None else entry.current

    def values(self) -> Iterator[tuple[str, TransactionValue]]:
        """All ids, as they count now."""
        return ((name, entry.current) for name, entry in self._ids.items() if entry.current is not None)

    def markers(self) -> Mapping[tuple[int, int], frozenset[TopicPartitionName]]:
        """Partitions without their marker, by producer id and epoch."""
        return self._due.left

    def _server(self, new_id: int = state.NO_ID) -> Server:
        return Server(self._wall_ms(), self._version(), new_id)

    def _doubt(self, question: Question, answer: Answer) -> None:
        """Not to be said before it is certain that this node was coordinator when it was asked."""
        if len(self._doubts) >= self._settings.held_max:
            question.answer(Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        self._doubts.append((question, answer))
        self._schedule()

    def _look_at(self, question: Question) -> None:
        """Answer a question, begin what it asks for, or hold it."""
        raise NotImplementedError

    # -- holding ---------------------------------------------------------------------------------

    def _wake(self, entry: Id) -> None:
        """What an id waited for is over."""
        if not entry.waiting:
            return
        questions = list(entry.waiting)
        if entry.current is not None and entry.current.status in state.COMPLETE:
            # An EndTxn that met markers is about the transaction that they ended, or came before anything of the next
            # one (decision 0179): never about what is added now.
            questions.sort(key=lambda question: not isinstance(question.request, End))
        self._look_again(questions)
        if not entry.waiting:
            entry.waiting = None

    def _look_again(self, questions: Iterable[Question]) -> None:
        questions = list(questions)
        for question in questions:
            self._held.release(question)
        for question in questions:
            if not self.closed:
                self._look_at(question)

    def ids_arrived(self) -> None:
        """`take_id` has producer ids again."""
        self._look_again(self._need_id)

    # -- transitions -----------------------------------------------------------------------------

    def _begin(self, entry: Id, value: TransactionValue | None) -> Pending:
        pending = self._pend(entry, value)
        self._turn.append(entry)
        self._schedule()
        return pending

    def _pend(self, entry: Id, value: TransactionValue | None) -> Pending:
        status = Status.DEAD if value is None else value.status
        before = Status.EMPTY if entry.current is None else entry.current.status
        must(entry.pending is None, entry.name, "one transition at a time", status)
        must(before in state.PREVIOUS[status], entry.name, "that transition is one", before, status)
        entry.pending = pending = Pending(value, self._clock_ms())
        return pending

    def end_turn(self) -> None:
        """Append what was decided since the last time."""
        if self._resuming is not None and not self.closed:
            self._resume_some(self._resuming)
        turn, self._turn = self._turn, []
        doubts = [doubt for doubt in self._doubts if doubt[0].reply is not None]
        self._doubts = []
        transitions = [(entry, entry.pending) for entry in turn if entry.pending is not None]
        if not self.closed and (transitions or doubts):
            self._append(transitions, doubts)
        for decision in self.units.take_decisions():
            self._append_decision(decision)

    def _append_decision(self, decision: Decision) -> None:
        """All of it or nothing: so it is a batch of its own, and never split."""
        stages = decision.stages
        records = [decision.record, *(self._record(entry.name, pending.value) for entry, pending in stages)]
        batch = Batch(stages, [], decision)
        hit("transactions.unit.before_append")
        try:
            self._log.append(records, partial(self._settled, batch))
        except PenstockError as error:
            self._refused(batch, error.code)
            return
        decision.is_written = True
        for _, pending in stages:
            pending.is_written = True
        self._in_flight.append(batch)
        hit("transactions.unit.after_append")

    def _append(self, transitions: list[tuple[Id, Pending]], doubts: list[tuple[Question, Answer]]) -> None:
        if transitions:
            records = [self._record(entry.name, pending.value) for entry, pending in transitions]
        else:
            records = [self._barrier(doubts)]
        batch = Batch(transitions, doubts)
        hit("transactions.state.before_append")
        try:
            self._log.append(records, partial(self._settled, batch))
        except PenstockError as error:
            if error.code in TOO_LARGE and len(transitions) > 1:
                half = len(transitions) // 2
                self._append(transitions[:half], [])
                self._append(transitions[half:], doubts)
            else:
                self._refused(batch, error.code)
            return
        for _, pending in transitions:
            pending.is_written = True
        self._in_flight.append(batch)
        hit("transactions.state.after_append")

    def _record(self, name: str, value: TransactionValue | None) -> StateRecord:
        if value is None:
            return StateRecord(put_key(name), None)
        # A next producer id, or a unit, has no place in version 0, and must not be lost on the way down.
        needs_tags = value.next_id != state.NO_ID or value.unit is not None
        version = 1 if self._version() >= 1 or needs_tags else 0
        return StateRecord(put_key(name), put_value(value, version))

    def _barrier(self, doubts: Sequence[tuple[Question, Answer]]) -> StateRecord:
        """A record that changes nothing: what is there already, once more."""
        for question, _ in doubts:
            entry = self._ids.get(question.transactional_id)
            if entry is not None:
                # Never what a decision says that is not written yet: a stage would end without its unit.
                return self._record(entry.name, entry.written)
        return self._record(doubts[0][0].transactional_id, None)

    def _refused(self, batch: Batch, code: ErrorCode) -> None:
        """The log took nothing."""
        told = Answer(write_error(code))
        for entry, pending in batch.transitions:
            entry.pending = None
            if entry.current is None:
                del self._ids[entry.name]
            elif self.units.is_loser(entry) or (
                batch.decision is None and not pending.then and pending.value is not None
            ):
                self._set_timer(entry, self._clock_ms() + RETRY_MS)
            else:
                self._arm(entry)
        for _, pending in batch.transitions:
            for question, _ in pending.then:
                question.answer(told)
        unsure = (
            told if told.error is ErrorCode.NOT_COORDINATOR else Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )
        for question, _ in batch.doubts:
            question.answer(unsure)
        if batch.decision is not None:
            is_too_large = code in TOO_LARGE
            most = self._log.record_bytes_max
            self.units.refused(batch.decision)
            self.units.answer(
                batch.decision, too_large(len(batch.transitions), most) if is_too_large else told
            )
            self._look_again(self.units.over(batch.decision))
        for entry, _ in batch.transitions:
            self._wake(entry)

    def _settled(self, batch: Batch, error: ErrorCode) -> None:
        """The high watermark covers what was appended, or leadership is over."""
        if self.closed:
            return
        if error:
            self.close()
            return
        hit("transactions.state.covered")
        self._in_flight.remove(batch)
        if batch.decision is not None:
            hit("transactions.unit.covered")
            self.units.covered(batch.decision)
        for entry, pending in batch.transitions:
            self._apply(entry, pending)
        again = []
        for _, pending in batch.transitions:
            for question, answer in pending.then:
                if answer is None:
                    again.append(question)
                else:
                    question.answer(answer)
        for question, answer in batch.doubts:
            question.answer(answer)
        if batch.decision is not None:
            self.units.answer(batch.decision, None)
            self.units.look_for_losers(batch.decision)
            self._look_again(self.units.over(batch.decision))
        for entry, _ in batch.transitions:
            self.units.look_at_stage(entry)
        for question in again:
            self._look_at(question)
        for entry, _ in batch.transitions:
            self._wake(entry)

    def _apply(self, entry: Id, pending: Pending) -> None:
        entry.pending = None
        before, value = entry.current, pending.value
        self._note(entry, value)
        if value is None:
            del self._ids[entry.name]
            return
        if value.status is Status.ONGOING and (before is None or before.status is not Status.ONGOING):
            entry.deadline_ms = self._deadline_ms(pending.began_ms, value.timeout_ms)
        self._arm(entry)
        if value.status.is_decided:
            self._decided(entry, value)

    def _decided(self, entry: Id, value: TransactionValue) -> None:
        """A decision counts: have it carried out."""
        if not value.partitions:
            self._begin(entry, state.completed(value, self._wall_ms()))
            return
        if not self._due.add(entry, value):
            return
        self._send(
            MarkersDue(
                self._state_partition,
                self._coordinator_epoch,
                value.producer_id,
                value.producer_epoch,
                value.status is Status.PREPARE_COMMIT,
                tuple(sorted(value.partitions)),
                value.client_version,
            )
        )

    def markers_written(
        self, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartitionName]
    ) -> None:
        """Those partitions have their marker, or need none."""
        key = producer_id, producer_epoch
        if self.closed or key not in self._due:
            return
        hit("transactions.markers.written")
        entry = self._due.written(key, partitions)
        if entry is None:
            return
        self._complete(entry)
        behind = self._due.next_behind(key)
        if behind is not None:
            assert behind.current is not None
            self._decided(behind, behind.current)

    def _complete(self, entry: Id) -> None:
        assert entry.current is not None
        self._begin(entry, state.completed(entry.current, self._wall_ms()))

    # -- time ------------------------------------------------------------------------------------

    @property
    def _grace_ms(self) -> int:
        """How long a transaction that takes too long is left to its producer, whose own timeouts end then, too: with
        its abort it lives on, and would be fenced by ours. Kafka looks for late ones in an interval, so that half of it
        passes on average."""
        return self._settings.timeout_interval_ms // 2

    def _deadline_ms(self, now_ms: int, timeout_ms: int, *, gone_ms: int = 0, left_ms: int = 0) -> int:
        """When it is aborted, though so much time has gone; not before so much is left from now on."""
        if timeout_ms == state.NO_TIMEOUT_MS:
            return NEVER_MS
        return now_ms + max(left_ms, timeout_ms + self._grace_ms - gone_ms)

    def _arm(self, entry: Id) -> None:
        """Have the timer of an id ring when its transaction is too old, and not otherwise."""
        if entry.current is not None and entry.current.status is Status.ONGOING:
            self._set_timer(entry, entry.deadline_ms)
        elif entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None

    def _set_timer(self, entry: Id, at_ms: int) -> None:
        if at_ms < NEVER_MS:
            if entry.timer is None:
                entry.timer = Timer("transaction", (entry,))
            self._timers.set(entry.timer, at_ms)

    def tick(self, most: int | None = None) -> int:
        """Ring the timers that are due, `most` of them; how many rang."""
        now_ms = self._clock_ms()
        rang = 0
        while not self.closed and rang != most:
            timer = self._timers.due(now_ms)
            if timer is None:
                break
            rang += 1
            (owner,) = timer.owner
            if isinstance(owner, Question):
                self._held.release(owner)
                owner.answer(Answer(owner.late))
            else:
                assert isinstance(owner, Id)
                self._ring(owner)
        return rang

    def _ring(self, entry: Id) -> None:
        current = entry.current
        if current is None or entry.pending is not None:
            return  # set again when that is over
        if current.status.is_decided:
            if not self._due.has(entry, current):
                self._complete(entry)
        elif current.status is Status.ONGOING and self._clock_ms() >= entry.deadline_ms:
            self._abort_late(entry, current)
        elif current.unit is not None:
            self.units.look_at_stage(entry)
            self._arm(entry)

    def _abort_late(self, entry: Id, current: TransactionValue) -> None:
        server = Server(self._wall_ms(), self._version())
        value = state.fenced(current, server)
        if isinstance(value, NeedId):
            new_id = self._take_id()
            if new_id is None:
                self._set_timer(entry, self._clock_ms() + RETRY_MS)
                return
            value = state.fenced(current, server._replace(new_id=new_id))
        assert isinstance(value, TransactionValue)
        self.timed_out_count += 1
        self._begin(entry, value)

    def expire(self) -> bool:
        """Let go of some ids that nobody has used for long; whether there are more to look at."""
        if self.closed or self._loading:
            return False
        if not self._expiring:
            self._expiring = list(self._ids)
        now_ms, retention_ms = self._wall_ms(), self._settings.id_expiration_ms
        for name in self._expiring[-EXPIRY_IDS_MAX:]:
            entry = self._ids.get(name)
            if (
                entry is not None
                and entry.current is not None
                and entry.pending is None
                and state.is_expired(entry.current, now_ms, retention_ms)
            ):
                self._begin(entry, None)
        del self._expiring[-EXPIRY_IDS_MAX:]
        has_more = self.units.expire(now_ms, retention_ms)
        return has_more or bool(self._expiring)

    # -- the log ---------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in one record, in the order of the log. Raises Malformed for damage."""
        name = read_key(key)
        if name is None:
            self.units.replay(key, value)
            return
        found = None if value is None else read_value(value)
        entry = self._ids.get(name)
        if entry is None:
            entry = self._ids[name] = Id(name, None)
        self._note(entry, found)
        if found is None:
            del self._ids[name]
        if found is None or found.status in state.AT_REST:
            self._unfinished.pop(name, None)
        else:
            self._unfinished[name] = None

    def loaded(self) -> None:
        """The log is replayed up to where it ended when leadership began. A decision at its end may yet be lost, so
        nothing is done before the high watermark covers it."""
        if not self.closed:
            self._log.when_start_covered(self._resume)

    def _resume(self, error: ErrorCode) -> None:
        if self.closed:
            return
        if error:
            self.close()
            return
        unfinished, self._unfinished = self._unfinished, {}
        self._ids.sort_ongoing()
        self._resuming = iter(unfinished)
        self._resume_some(self._resuming)

    def _resume_some(self, unfinished: Iterator[str]) -> None:
        """Transactions go on; those of many ids not in one turn of the event loop."""
        now_ms, wall_ms = self._clock_ms(), self._wall_ms()
        some = list(islice(unfinished, RESUMED_AT_ONCE))
        for name in some:
            entry = self._ids[name]
            value = entry.current
            assert value is not None
            if value.status.is_decided:
                self._decided(entry, value)
                continue
            gone_ms = max(0, wall_ms - value.start_ms)
            entry.deadline_ms = self._deadline_ms(
                now_ms, value.timeout_ms, gone_ms=gone_ms, left_ms=LOADED_LEFT_MS
            )
            self._arm(entry)
        if len(some) == RESUMED_AT_ONCE:
            self._schedule()
            return
        self._resuming = None
        self._loading = False
        self.units.resume()

    def close(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Leadership is lost: whoever waits is sent away, also where it may have been done: every call may be
        repeated. Nothing may be asked of it afterwards."""
        if self.closed:
            return
        self.closed = True
        waiting = [question for question, _ in self._doubts]
        for batch in self._in_flight:
            waiting += (question for question, _ in batch.doubts)
        for entry in self._ids.values():
            if entry.pending is not None:
                waiting += (question for question, _ in entry.pending.then)
            if entry.waiting:
                waiting += entry.waiting
        waiting += self._need_id
        waiting += self.units.close()
        self._doubts, self._turn, self._need_id = [], [], {}
        self._ids.forget_all()
        self._due.forget_all()
        self._in_flight.clear()
        self._held.count = 0
        self._send(MarkersWithdrawn(self._state_partition, self._coordinator_epoch))
        for question in waiting:
            question.answer(Answer(error))

    def validate(self) -> None:
        """For tests and the simulator: raises InvariantBroken when the state is what it may never be between two
        turns."""
        if self.closed:
            return
        held = len(self._need_id) + self.units.validate()
        counts = dict.fromkeys(Status, 0)
        for name, entry in self._ids.items():
            must(entry.name == name, name, "an id stands under its own name", entry.name)
            must(entry.current or entry.pending, name, "an id that is nothing is not there")
            waiting = entry.waiting or {}
            held += len(waiting)
            current = entry.current
            if current is not None:
                counts[current.status] += 1
                is_open = current.status is Status.ONGOING
                must((name in self._ids.ongoing) == is_open, name, "open transactions are known", current)
            decided = current is not None and current.status.is_decided
            if waiting:
                must(decided or entry.pending, name, "who waits has something to wait for", current)
            if entry.pending is not None and not entry.pending.is_written:
                must(
                    entry in self._turn or self.units.is_deciding(entry),
                    name,
                    "what is decided will be written",
                    current,
                )
            if current is not None and current.status is Status.ONGOING and not self._loading:
                rings = entry.deadline_ms == NEVER_MS or entry.pending or (entry.timer and entry.timer.is_set)
                must(rings, name, "a transaction has a deadline", current)
            if decided and not self._loading:
                assert current is not None
                key = current.producer_id, current.producer_epoch
                ends = key in self._due or entry.pending or (entry.timer and entry.timer.is_set)
                must(ends, name, "a decision is being carried out", current)
        must(counts == self._ids.counts, "", "ids are counted by state", counts, self._ids.counts)
        must(held == self._held.count, "", "those that wait are counted", held, self._held.count)
        self._due.validate()
