"""Random sequences of requests, of either generation of clients, against a plain model of the coordinator.

The model is written from the tables of Kafka's behaviour (TransactionCoordinator, TransactionMetadata of 4.3), not
from the code: one variable for each thing that an id has, no pending transition, markers written at once. Each answer
and each state that comes of it must be the model's, over moves of the coordinator, timeouts and the end of epochs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from penstock_core.errors import ErrorCode
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.records import Status, TransactionValue
from penstock_storage_node.transactions.state import NO_EPOCH, NO_ID, Answer
from unit.storage_node.transactions.transaction_rig import A0, A1, B0, LATE_MS, TIMEOUT_MS, Rig

OLD, NEW = 0, 2
"""By `transaction.version`: clients that add partitions themselves, and those of KIP-890."""
SEQUENCES = 1_000
REQUESTS = 25
EXHAUSTED = 32_766
PARTITIONS = (A0, A1, B0)

Pair = tuple[int, int]
Told = tuple[ErrorCode, Pair | None]
"""A code, and a pair where the answer has one."""


@dataclass(slots=True)
class Model:
    """One transactional id."""

    generation: int
    version: int
    """The cluster's `transaction.version`: by it the server aborts."""
    take_id: Callable[[], int]
    status: Status | None = None
    producer_id: int = -1
    epoch: int = -1
    last: int = -1
    """The epoch before, where who has it may ask again."""
    before: int = -1
    """Producer id before the last transition."""
    partitions: set[TopicPartitionName] = field(default_factory=set)
    early: Pair | None = None
    """With which a commit came before anything of its transaction."""

    @property
    def pair(self) -> Pair:
        """What its producer has."""
        return self.producer_id, self.epoch

    # -- the end of a transaction

    def _raise(self, server: bool) -> None:
        """Another epoch, as the end of a transaction brings one."""
        if self.generation == NEW or (server and self.version == NEW):
            self.last = self.epoch
            if self.epoch >= EXHAUSTED:
                self.before, self.producer_id, self.epoch = self.producer_id, self.take_id(), 0
            else:
                self.before, self.epoch = self.producer_id, self.epoch + 1
        elif server:
            self.before, self.epoch, self.last = self.producer_id, self.epoch + 1, -1
        else:
            self.before = self.producer_id

    def _finish(self, commits: bool, *, server: bool = False) -> None:
        self._raise(server)
        self.status = Status.COMPLETE_COMMIT if commits else Status.COMPLETE_ABORT
        self.partitions = set()

    def time_out(self) -> None:
        """A transaction has taken too long."""
        if self.status is Status.ONGOING:
            self._finish(False, server=True)

    # -- requests

    def init(self, given: Pair | None) -> Told:
        if self.status is None:
            self.status, self.producer_id, self.epoch = Status.EMPTY, self.take_id(), 0
            self.before = self.producer_id
            return ErrorCode.NONE, self.pair
        if self._is_strange(given):
            return ErrorCode.PRODUCER_FENCED, None
        if self.status is Status.ONGOING:
            self._finish(False, server=True)
            if self._is_strange(given):
                return ErrorCode.PRODUCER_FENCED, None
        if given is not None and given[1] != self.epoch:
            if given[1] != self.last:
                return ErrorCode.PRODUCER_FENCED, None
            self.before = self.producer_id
        else:
            self.last = -1 if given is None else self.epoch
            self.before = self.producer_id
            if self.epoch >= EXHAUSTED:
                self.producer_id, self.epoch = self.take_id(), 0
            else:
                self.epoch += 1
        self.status = Status.EMPTY
        return ErrorCode.NONE, self.pair

    def _is_strange(self, given: Pair | None) -> bool:
        if given is None or given[0] == self.producer_id:
            return False
        return given[0] != self.before or given[1] < EXHAUSTED

    def _refusal(self, pair: Pair) -> ErrorCode:
        if self.status is None or pair[0] != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if pair[1] == self.epoch else ErrorCode.PRODUCER_FENCED

    def add(self, pair: Pair, partitions: set[TopicPartitionName]) -> Told:
        if refusal := self._refusal(pair):
            return refusal, None
        if self.status is not Status.ONGOING or not partitions <= self.partitions:
            self.before = self.producer_id
        self.status = Status.ONGOING
        self.partitions |= partitions
        return ErrorCode.NONE, None

    def verify(self, pair: Pair, partitions: set[TopicPartitionName]) -> Told:
        if refusal := self._refusal(pair):
            return refusal, None
        known = partitions <= self.partitions
        return (ErrorCode.NONE if known else ErrorCode.TRANSACTION_ABORTABLE), None

    def end(self, pair: Pair, commits: bool) -> Told:
        return self._end_new(pair, commits) if self.generation == NEW else self._end_old(pair, commits)

    def _end_old(self, pair: Pair, commits: bool) -> Told:
        if refusal := self._refusal(pair):
            return refusal, None
        if self.status is Status.ONGOING:
            self._finish(commits)
        elif not self._has_ended_so(commits):
            return ErrorCode.INVALID_TXN_STATE, None
        return ErrorCode.NONE, None

    def _end_new(self, pair: Pair, commits: bool) -> Told:
        switched = pair == (self.before, EXHAUSTED) and self.before != self.producer_id and self.epoch == 0
        refusal = self._refusal(pair)
        one_lower = (pair[0], pair[1] + 1) == self.pair and self.epoch <= EXHAUSTED
        if (switched or one_lower) and self.status in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT):
            # The answer was lost, and it is asked again.
            same = self._has_ended_so(commits)
            return (ErrorCode.NONE, self.pair) if same else (ErrorCode.INVALID_TXN_STATE, None)
        if switched:
            return ErrorCode.PRODUCER_FENCED, None
        if refusal:
            return refusal, None
        if self.status is not Status.ONGOING and commits:
            # Kafka refuses it at once; its records may be behind it (decision 0179).
            is_first, self.early = self.early != pair, pair
            return (ErrorCode.CONCURRENT_TRANSACTIONS if is_first else ErrorCode.INVALID_TXN_STATE), None
        self._finish(commits)
        return ErrorCode.NONE, self.pair

    def _has_ended_so(self, commits: bool) -> bool:
        return self.status is (Status.COMPLETE_COMMIT if commits else Status.COMPLETE_ABORT)


class Trace:
    """One sequence: what is asked, of whom, and what both say."""

    def __init__(self, seed: int, generation: int) -> None:
        self.rng = random.Random(f"{generation} {seed}")
        version = NEW if generation == NEW else self.rng.choice((1, NEW))
        self.rig = Rig(version=version)
        self.generation = generation
        self._id = self.rig.next_id
        self.model = Model(generation, version, self._take_id)
        self.pairs: list[Pair] = []
        self.steps: list[str] = []
        if self.rng.random() < 0.3:
            self._near_the_end()

    def _take_id(self) -> int:
        self._id += 1
        return self._id

    def _near_the_end(self) -> None:
        """The id has been used for long: its epochs are nearly over."""
        epoch = self.rng.randint(EXHAUSTED - 3, EXHAUSTED)
        now_ms = self.rig.wall_ms()
        self.rig.put("t", TransactionValue(Status.EMPTY, 500, epoch, TIMEOUT_MS, now_ms, previous_id=500))
        self.rig.fail_over()
        model = self.model
        model.status, model.producer_id, model.epoch, model.before = Status.EMPTY, 500, epoch, 500
        self.pairs.append((500, epoch))

    def _pair(self) -> Pair:
        rng = self.rng
        if not self.pairs:
            return rng.choice(((7, 0), (self._id, 0)))
        if rng.random() < 0.75:
            return self.pairs[-1]
        producer_id, epoch = rng.choice(self.pairs)
        return producer_id + rng.choice((0, 0, 0, 1)), max(epoch + rng.choice((-1, 0, 0, 1)), 0)

    def step(self) -> None:
        rng = self.rng
        kind = rng.choices(("init", "add", "verify", "end", "move", "time"), (2, 6, 1, 6, 1.5, 0.5))[0]
        if kind == "move":
            self.steps.append("the coordinator moves")
            self.model.early = None
            self.rig.fail_over()
            self.rig.settle()
        elif kind == "time":
            self.steps.append("time passes")
            self.rig.pass_ms(LATE_MS + 1_000)
            self.model.time_out()
        else:
            self._ask(kind)
        self._compare_state()

    def _ask(self, kind: str) -> None:
        rng, rig, model = self.rng, self.rig, self.model
        if kind == "init":
            given = self._pair() if rng.random() < 0.5 else None
            self.steps.append(f"InitProducerId {given}")
            producer_id, epoch = given or (NO_ID, NO_EPOCH)
            answers = rig.init(timeout_ms=TIMEOUT_MS, producer_id=producer_id, producer_epoch=epoch)
            told = model.init(given)
        elif kind == "end":
            pair, commits = self._pair(), rng.random() < 0.6
            self.steps.append(f"EndTxn {pair} commit={commits}")
            answers, told = rig.end(pair, commit=commits, version=self.generation), model.end(pair, commits)
        else:
            pair = self._pair()
            partitions = set(rng.sample(PARTITIONS, rng.randint(1, 3)))
            self.steps.append(f"{kind} {pair} {sorted(partitions)}")
            if kind == "add":
                answers = rig.add(pair, *partitions, version=self.generation)
                told = model.add(pair, partitions)
            else:
                answers, told = rig.verify(pair, *partitions), model.verify(pair, partitions)
        rig.settle()
        self._compare(answers, told)

    def _compare(self, answers: list[Answer], told: Told) -> None:
        assert len(answers) == 1, self.steps
        code, pair = told
        (answer,) = answers
        assert answer.error is code, (answer, told, self.steps)
        if pair is not None:
            assert (answer.producer_id, answer.producer_epoch) == pair, (answer, told, self.steps)
            self.pairs.append(pair)

    def _compare_state(self) -> None:
        model, found = self.model, dict(self.rig.shard.values()).get("t")
        assert found == self.rig.log.newest("t"), self.steps
        if found is None:
            assert model.status is None, self.steps
            return
        assert (found.status, found.producer_id, found.producer_epoch, set(found.partitions)) == (
            model.status,
            model.producer_id,
            model.epoch,
            model.partitions,
        ), (found, model, self.steps)


@pytest.mark.parametrize("generation", [OLD, NEW])
def test_answers_and_records_are_the_models(generation: int) -> None:
    for seed in range(SEQUENCES):
        trace = Trace(seed, generation)
        for _ in range(REQUESTS):
            trace.step()
