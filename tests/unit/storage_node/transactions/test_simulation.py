"""A transaction coordinator under random requests, turns, watermarks, markers, refusals, moves and unheard depositions.

Whatever happens is held against the log below the high watermark, by a model that knows only records.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_storage_node.settings import TransactionSettings
from penstock_storage_node.transactions import state
from penstock_storage_node.transactions.effects import MarkersDue, MarkersWithdrawn, TopicPartitionName
from penstock_storage_node.transactions.records import (
    Partitions,
    StateRecord,
    Status,
    TransactionValue,
    put_key,
    put_value,
    read_key,
    read_value,
)
from penstock_storage_node.transactions.shard import SENTENCES, Shard
from penstock_storage_node.transactions.state import Add, Answer, End, Verify
from unit.storage_node.transactions.transaction_rig import WALL_BASE_MS, FakeLog

NAMES = ("t", "u", "v")
PARTITIONS = tuple(TopicPartitionName(topic, number) for topic in "ab" for number in range(2))
STEPS = 250
AT_ONCE = frozenset(
    {ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
LAST_EPOCHS = (32_764, 32_765, 32_766)


class Wrong(AssertionError):
    """What the model found."""


def must(holds: object, rule: str, *details: object) -> None:
    if not holds:
        raise Wrong(f"{rule}: {details}")


class Ledger:
    """What the records below the high watermark say, and what they may not say."""

    def __init__(self) -> None:
        self.covered: dict[str, TransactionValue] = {}
        self.batches = 0
        self.owners: dict[int, str] = {}
        self.written: dict[tuple[int, int, int], set[TopicPartitionName]] = {}
        """Markers, by producer id and epoch and the transaction's start."""
        self.aborts: set[tuple[int, int]] = set()
        """Producers that asked for an abort which leaves their epoch as it is."""
        self.history: dict[str, list[TransactionValue | None]] = defaultdict(lambda: [None])
        """What was covered of each id, one after the other."""

    def take(self, batch: Sequence[StateRecord]) -> None:
        self.batches += 1
        for record in batch:
            name = read_key(record.key)
            assert name is not None
            before = self.covered.get(name)
            if record.value is None:
                if before is not None:
                    must(before.status in state.AT_REST, "only what is at rest expires", name, before)
                    del self.covered[name]
                self.history[name].append(None)
                continue
            after = read_value(record.value)
            if after != before:
                self._check(name, before, after)
            self.covered[name] = after
            self.history[name].append(after)

    def _check(self, name: str, before: TransactionValue | None, after: TransactionValue) -> None:
        owner = self.owners.setdefault(after.producer_id, name)
        must(owner == name, "a producer id belongs to one id", name, owner, after)
        if before is None:
            must(after.status is Status.EMPTY, "an id begins with nothing", name, after)
            return
        must(before.status in state.PREVIOUS[after.status], "a transition is one", name, before, after)
        if after.producer_id == before.producer_id:
            must(after.producer_epoch >= before.producer_epoch, "no epoch falls", name, before, after)
        else:
            least = 32_766 if after.unit is None else 32_765
            must(before.producer_epoch >= least, "ids change when epochs are used up", name, before, after)
            must(after.producer_epoch == 0, "a new producer id begins anew", name, after)
        if after.status is Status.PREPARE_ABORT and after.producer_epoch == before.producer_epoch:
            pair = (before.producer_id, before.producer_epoch)
            must(pair in self.aborts, "an abort by the server has a new epoch", name, before, after)
        if after.status in state.COMPLETE:
            key = (before.producer_id, before.producer_epoch, before.start_ms)
            left = before.partitions - self.written.get(key, set())
            must(not left, "COMPLETE is behind all markers", name, before, left)

    def by_producer(self, producer_id: int) -> TransactionValue | None:
        return next((v for v in self.covered.values() if v.producer_id == producer_id), None)


class World:
    """Coordinators of one partition, one after the other; the last one leads."""

    def __init__(self, seed: int, make: type[Shard] = Shard) -> None:
        self.random = random.Random(seed)
        self.make = make
        self.now_ms = 0
        self.version = self.random.choice((1, 2))
        self.ledger = Ledger()
        self.log = FakeLog()
        self.next_id = 0
        self.epoch = 0
        self.open: dict[int, tuple[str, Any]] = {}
        self.asked = itertools.count()
        self.due: list[tuple[MarkersDue, int]] = []
        self.pairs: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
        self.ghosts: list[tuple[Shard, FakeLog]] = []
        self.seen: set[str] = set()
        """What happened at all."""
        if self.random.random() < 0.3:
            for name in NAMES[:2]:
                self._seed_exhausted(name)
        self.shard = self._lead(self.log)

    def _seed_exhausted(self, name: str) -> None:
        self.next_id += 1
        epoch = self.random.choice(LAST_EPOCHS)
        value = TransactionValue(Status.EMPTY, self.next_id, epoch, 500, WALL_BASE_MS)
        self.log.batches.append([StateRecord(put_key(name), put_value(value, 1))])
        self.pairs[name].append((self.next_id, epoch))

    def _lead(self, log: FakeLog) -> Shard:
        self.epoch += 1
        epoch = self.epoch
        self.needs_turn = False
        shard = self.make(
            log,
            TransactionSettings(id_expiration_ms=20_000),
            state_partition=0,
            coordinator_epoch=epoch,
            clock_ms=lambda: self.now_ms,
            wall_ms=lambda: WALL_BASE_MS + self.now_ms,
            version=lambda: self.version,
            take_id=self._take_id,
            exists=lambda _: True,
            has_room=lambda: True,
            send=lambda effect: self._sent(effect, epoch),
            schedule=lambda: None,
        )
        for record in itertools.chain.from_iterable(log.batches):
            shard.replay(record.key, record.value)
        shard.loaded()
        return shard

    def _take_id(self) -> int | None:
        if self.random.random() < 0.1:
            return None
        self.next_id += 1
        return self.next_id

    def _sent(self, effect: MarkersDue | MarkersWithdrawn, epoch: int) -> None:
        if isinstance(effect, MarkersWithdrawn):
            self.due = [(due, start) for due, start in self.due if due.coordinator_epoch != epoch]
            return
        value = self.ledger.by_producer(effect.producer_id)
        must(value is not None, "no marker before its decision is covered", effect)
        assert value is not None
        wanted = Status.PREPARE_COMMIT if effect.commit else Status.PREPARE_ABORT
        must(
            (value.status, value.producer_epoch, value.partitions)
            == (wanted, effect.producer_epoch, frozenset(effect.partitions)),
            "no marker before its decision is covered, and none against it",
            effect,
            value,
        )
        self.seen.add("markers")
        self.due.append((effect, value.start_ms))

    # -- requests --------------------------------------------------------------------------------

    def ask(self, shard: Shard | None = None) -> None:
        """Anything, by anybody, to whoever believes to lead."""
        ghost = shard is not None
        shard = shard or self.shard
        rng = self.random
        name = rng.choice(NAMES)
        pairs = self.pairs[name][-3:]
        pair = rng.choice(pairs) if pairs and rng.random() < 0.95 else (rng.randrange(9), rng.randrange(4))
        number = next(self.asked)
        behind = len(self.log.batches)
        version = rng.choice((0, 2))
        partitions: Partitions = frozenset(rng.sample(PARTITIONS, rng.randrange(1, 3)))
        since = len(self.ledger.history[name]) - 1

        def reply(check: Callable[[Answer], None]) -> Callable[[Answer], None]:
            def told(answer: Answer) -> None:
                must(self.open.pop(number, None) is not None, "one answer to each", answer)
                self.seen.add(f"{kind} {answer.error.value}")
                if answer.error in SENTENCES:
                    must(not ghost, "nobody is sentenced by a coordinator that was deposed", answer)
                    must(self.ledger.batches > behind, "no sentence without a barrier", answer, behind)
                elif answer.error is ErrorCode.NONE and not ghost:
                    check(answer)
                elif answer.error is ErrorCode.NONE and version == 0:
                    must(
                        kind not in ("add", "end"),
                        "who was deposed calls nothing done where another transaction may be meant",
                        answer,
                    )

            return told

        kind = rng.choice(("init", "init again", "add", "add", "add", "verify", "end", "end", "end"))
        self.open[number] = (kind, name)
        if kind.startswith("init"):
            given: dict[str, Any] = (
                {"producer_id": pair[0], "producer_epoch": pair[1]} if kind != "init" else {}
            )
            shard.init_producer(
                name, rng.choice((500, 5_000)), reply(lambda a: self._begun(name, a)), **given
            )
        elif kind == "add":
            shard.add(
                name,
                Add(*pair, partitions, version),
                reply(lambda _: self._added(name, pair, partitions, since if version == 0 else -1)),
            )
        elif kind == "verify":
            asked = Verify(*pair, partitions, has_batch=bool(number % 2))
            shard.add(name, asked, reply(lambda _: self._added(name, pair, partitions)))
        else:
            commit = rng.random() < 0.6
            if not commit and version == 0:
                self.ledger.aborts.add(pair)
            shard.end(
                name,
                End(*pair, commit, version),
                reply(lambda a: self._ended(name, commit, version, a, since)),
            )

    def _begun(self, name: str, answer: Answer) -> None:
        value = self.ledger.covered.get(name)
        pair = (answer.producer_id, answer.producer_epoch)
        must(
            value is not None
            and (value.status, value.producer_id, value.producer_epoch) == (Status.EMPTY, *pair),
            "a producer is told what counts",
            name,
            answer,
            value,
        )
        self.pairs[name].append(pair)

    def _added(self, name: str, pair: tuple[int, int], partitions: Partitions, since: int = -1) -> None:
        """`since`: behind a barrier it may have counted at any moment from there on."""
        values = self.ledger.history[name][since:]
        must(
            any(
                value is not None
                and (value.status, value.producer_id, value.producer_epoch) == (Status.ONGOING, *pair)
                and partitions <= value.partitions
                for value in values
            ),
            "a partition is said to be there when that counts",
            name,
            pair,
            values,
        )

    def _ended(self, name: str, commit: bool, version: int, answer: Answer, since: int) -> None:
        values = self.ledger.history[name][since if version == 0 else -1 :]
        outcomes = (
            (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)
            if commit
            else (Status.PREPARE_ABORT, Status.COMPLETE_ABORT)
        )
        must(
            any(value is not None and value.status in outcomes for value in values),
            "an end is told when it counts",
            name,
            values,
        )
        if version >= 2:
            must(answer.producer_epoch < 32_767, "nobody is told the last epoch", name, answer)
            self.pairs[name].append((answer.producer_id, answer.producer_epoch))

    # -- the world -------------------------------------------------------------------------------

    def turn(self) -> None:
        self.shard.end_turn()
        self.shard.validate()

    def advance(self) -> None:
        """The high watermark moves, batch by batch."""
        if self.log.committed < len(self.log.batches):
            to = self.random.randint(self.log.committed + 1, len(self.log.batches))
            for index in range(self.log.committed, to):
                self.ledger.take(self.log.batches[index])
                self.log.advance(index + 1)
        else:
            self.log.advance(self.log.committed)

    def write_marker(self) -> None:
        """A leader writes one of the markers; what it says may come twice."""
        if not self.due:
            return
        due, start_ms = self.random.choice(self.due)
        some = self.random.sample(due.partitions, self.random.randint(1, len(due.partitions)))
        self.ledger.written.setdefault((due.producer_id, due.producer_epoch, start_ms), set()).update(some)
        self.shard.markers_written(due.producer_id, due.producer_epoch, some)
        done = self.ledger.written[due.producer_id, due.producer_epoch, start_ms]
        if done >= set(due.partitions) and (due.producer_id, due.producer_epoch) not in self.shard.markers():
            self.due.remove((due, start_ms))

    def pass_ms(self, most: int) -> None:
        self.now_ms += self.random.randrange(most)
        self.shard.tick()

    def refuse(self) -> None:
        self.log.refuse = self.random.choice((None, None, ErrorCode.NOT_ENOUGH_REPLICAS))

    def move(self) -> None:
        """Another node leads; sometimes the old one does not hear of it, and goes on."""
        self.lay_ghosts()
        old, log = self.shard, self.log
        kept = self.random.randint(log.committed, len(log.batches))
        self.log = FakeLog()
        self.log.batches, self.log.committed = log.batches[:kept], log.committed
        if self.random.random() < 0.4:
            self.ghosts = [(old, log)]
            for number in list(self.open):
                self.open[number] = ("lost", number)  # sooner or later it hears of it
        else:
            old.close()
            must(not self.open or self.ghosts, "all in flight are sent away", self.open)
        self.due = []
        self.shard = self._lead(self.log)
        self.seen.add("move")

    def haunt(self) -> None:
        """Who was deposed and does not know works on, and its watermark stands still."""
        for ghost, _ in self.ghosts:
            self.ask(ghost)
            ghost.end_turn()
            ghost.tick()

    def lay_ghosts(self) -> None:
        for ghost, _ in self.ghosts:
            ghost.close()
        self.ghosts = []

    def expire(self) -> None:
        self.shard.expire()

    def check(self) -> None:
        """State is what is covered, and nothing else."""
        if not self.shard.is_loading and not self.shard.closed:
            must(
                dict(self.shard.values()) == self.ledger.covered,
                "state counts once it is covered",
                dict(self.shard.values()),
                self.ledger.covered,
            )

    def heal(self) -> None:
        """All is well again: everybody is answered, and nothing is left undecided."""
        self.lay_ghosts()
        self.log.refuse = None
        for _ in range(200):
            self.turn()
            self.advance()
            self.check()
            while self.due:
                self.write_marker()
            self.now_ms += 250
            self.shard.tick()
        must(not self.open, "everybody is answered", self.open)
        for name, value in self.ledger.covered.items():
            must(value.status in state.AT_REST, "nothing hangs", name, value)


def run(seed: int, make: type[Shard] = Shard) -> World:
    world = World(seed, make)
    steps: list[tuple[int, Callable[[], None]]] = [
        (30, world.ask),
        (20, world.turn),
        (20, world.advance),
        (12, world.write_marker),
        (5, lambda: world.pass_ms(60)),
        (1, lambda: world.pass_ms(6_000)),
        (1, world.refuse),
        (1, world.expire),
        (2, lambda: world.shard.ids_arrived()),
        (2, world.move),
        (2, world.haunt),
        (1, world.lay_ghosts),
    ]
    actions = [action for _, action in steps]
    weights = [weight for weight, _ in steps]
    for action in world.random.choices(actions, weights, k=STEPS):
        action()
        world.check()
    world.heal()
    return world


def run_many(count: int, make: type[Shard] = Shard) -> None:
    for seed in range(count):
        run(seed, make)


SEEDS = [random.SystemRandom().randrange(1 << 32) for _ in range(10)]


def test_whatever_happens_the_log_agrees() -> None:
    seen: set[str] = set()
    for seed in (*range(15), *SEEDS):
        print(f"seed {seed}")
        seen |= run(seed).seen
    # The run is worth something: it has met all of this.
    for kind in (
        "init 0",
        "init again 90",
        "add 0",
        "add 49",
        "add 90",
        "verify 120",
        "end 0",
        "end 48",
        "end 51",
    ):
        assert kind in seen, kind
    assert {"markers", "move"} <= seen


# -- planted bugs: the model finds them ------------------------------------------------------------


class MarkersAtAppend(Shard):
    """Markers go out when the decision is appended."""

    def _append(self, transitions: Any, doubts: Any) -> None:
        super()._append(transitions, doubts)
        for entry, pending in transitions:
            value = pending.value
            if (
                entry.pending is pending
                and value is not None
                and value.status.is_decided
                and value.partitions
            ):
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


class ServesItsTail(Shard):
    """It acts on what it has read before the watermark covers it."""

    def loaded(self) -> None:
        self._resume(ErrorCode.NONE)


class CompleteTooEarly(Shard):
    """One marker is enough."""

    def markers_written(self, producer_id: int, producer_epoch: int, partitions: Any) -> None:
        left = self.markers().get((producer_id, producer_epoch), frozenset())
        super().markers_written(producer_id, producer_epoch, left)


class NoBarrier(Shard):
    """It sentences at once."""

    def _doubt(self, question: Any, answer: Answer) -> None:
        question.answer(answer)


class DoneAtOnce(Shard):
    """It says at once that something is done already, to clients of either protocol."""

    def _tell(self, question: Any, answer: Answer) -> None:
        if answer.error is ErrorCode.NONE:
            question.answer(answer)
        else:
            super()._tell(question, answer)


class CountsAtAppend(Shard):
    """A transition counts when it is appended."""

    def _append(self, transitions: Any, doubts: Any) -> None:
        super()._append(transitions, doubts)
        for batch in list(self._in_flight):
            self._settled(batch, ErrorCode.NONE)

    def _settled(self, batch: Any, error: ErrorCode) -> None:
        if batch in self._in_flight:
            super()._settled(batch, error)


class BarrierOfTheCovered(Shard):
    """The barrier says what counts, though something newer is pending."""

    def _barrier(self, doubts: Any) -> StateRecord:
        for question, _ in doubts:
            entry = self._ids.get(question.transactional_id)
            if entry is not None and entry.current is not None:
                return self._record(entry.name, entry.current)
        return super()._barrier(doubts)


@pytest.mark.parametrize(
    "bug",
    [
        MarkersAtAppend,
        ServesItsTail,
        CompleteTooEarly,
        NoBarrier,
        DoneAtOnce,
        CountsAtAppend,
        BarrierOfTheCovered,
    ],
)
def test_a_planted_bug_is_found(bug: type[Shard]) -> None:
    with pytest.raises((Wrong, InvariantBroken)):
        run_many(200, bug)


def test_an_abort_by_the_server_without_a_new_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = state.fenced

    def same_epoch(current: TransactionValue, server: state.Server) -> TransactionValue | state.NeedId:
        value = real(current, server._replace(version=0))
        return (
            value
            if isinstance(value, state.NeedId)
            else value._replace(producer_epoch=current.producer_epoch)
        )

    monkeypatch.setattr(state, "fenced", same_epoch)
    with pytest.raises(Wrong, match="an abort by the server has a new epoch"):
        run_many(200)


def test_an_end_that_is_repeated_and_done_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the other outcome, after the transaction has ended."""
    real = state.completed

    def aborted(current: TransactionValue, now_ms: int) -> TransactionValue:
        return real(current, now_ms)._replace(status=Status.COMPLETE_ABORT)

    monkeypatch.setattr(state, "completed", aborted)
    with pytest.raises((Wrong, InvariantBroken), match="transition"):
        run_many(200)
