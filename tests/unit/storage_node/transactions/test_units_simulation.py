"""Units of sinks under random tasks, drivers, watermarks, refusals, timeouts, moves and unheard depositions.

What counts is what the log says below the high watermark: each unit is decided once, by one batch that has its sink's
entry and the end of every stage that its driver has named, and of no other; and nothing that it leaves over stays open.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_storage_node.transactions import units
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
from penstock_storage_node.transactions.shard import Shard
from penstock_storage_node.transactions.state import Add, Answer, UnitSaid, is_open_stage
from penstock_storage_node.transactions.unit_records import SinkEntry, Unit, read_entry, read_sink_key
from penstock_storage_node.transactions.units import AbortStage, CommitUnit, Decision, Triple, Units
from unit.storage_node.transactions.test_simulation import (
    LAST_EPOCHS,
    PARTITIONS,
    SEEDS,
    STEPS,
    Ledger,
    World,
    Wrong,
    must,
)
from unit.storage_node.transactions.transaction_rig import WALL_BASE_MS

SINKS = ("s", "t")
QUERIES = ("q", "r")
STAGES = ("0-0-0", "0-1-0", "1-0-0", "2-0-0")


class UnitLedger(Ledger):
    """What is covered, sinks included."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, SinkEntry] = {}
        self.asked: dict[Unit, list[frozenset[Triple]]] = {}
        """Commits: the stages that they name."""
        self.takeovers: set[Unit] = set()
        self.decided: set[Unit] = set()

    def take(self, batch: Sequence[StateRecord]) -> None:
        sinks = [record for record in batch if read_sink_key(record.key) is not None]
        if not sinks:
            for name, before, after in self._changes(batch):
                if after.unit is not None and after.status is Status.PREPARE_COMMIT and after != before:
                    raise Wrong(f"a stage ends alone: {name} {before} {after}")
            super().take(batch)
            return
        must(len(sinks) == 1, "a decision is of one sink", sinks)
        self._decision(sinks[0], self._changes(batch))
        super().take([record for record in batch if record is not sinks[0]])

    def _changes(
        self, batch: Sequence[StateRecord]
    ) -> list[tuple[str, TransactionValue | None, TransactionValue]]:
        found = []
        for record in batch:
            name = read_key(record.key)
            if name is not None and record.value is not None:
                found.append((name, self.covered.get(name), read_value(record.value)))
        return found

    def _decision(
        self, record: StateRecord, stages: list[tuple[str, TransactionValue | None, TransactionValue]]
    ) -> None:
        sink = read_sink_key(record.key)
        assert sink is not None
        if record.value is None:
            must(self.entries.pop(sink).once, "only a single write's entry expires", sink)
            return
        entry, last = read_entry(record.value), self.entries.get(sink)
        unit = Unit(sink, entry.query, entry.epoch)
        is_next = last is None or (last.query == unit.query and last.epoch < unit.epoch)
        must(is_next or unit in self.takeovers, "units of a sink rise", last, unit)
        must(unit not in self.decided or unit in self.takeovers, "a unit is decided once", unit)
        self.decided.add(unit)
        self.entries[sink] = entry
        ended = set()
        for name, before, after in stages:
            must(before is not None and is_open_stage(before), "what a decision ends was open", name, before)
            assert before is not None
            must(before.unit == unit, "a stage ends with its own unit", name, before, unit)
            ended.add(Triple(name, before.producer_id, before.producer_epoch))
            must(after.producer_epoch == before.producer_epoch + 1, "its epoch rises", before, after)
            if before.status is Status.ONGOING:
                must(after.status is Status.PREPARE_COMMIT, "a stage of a decision commits", name, after)
                must(after.partitions == before.partitions, "with all its rows", before, after)
            else:
                must(after.status is Status.EMPTY and after.unit is None, "without rows it is over", after)
        must(frozenset(ended) in self.asked.get(unit, ()), "all that its driver names", unit, ended)


class UnitWorld(World):
    """Beside plain producers: tasks and drivers of two sinks."""

    ledger: UnitLedger

    def __init__(self, seed: int, make: type[Shard] = Shard) -> None:
        super().__init__(seed, make)
        self.version = 2
        self.ledger = UnitLedger()
        self.triples: dict[Unit, list[Triple]] = {}
        self.top = dict.fromkeys(itertools.product(SINKS, QUERIES), 0)
        if self.random.random() < 0.4:
            for stage in STAGES:
                self._seed_stage(f"s-{stage}")
            self.move()

    def _seed_stage(self, name: str) -> None:
        self.next_id += 1
        value = TransactionValue(
            Status.EMPTY,
            self.next_id,
            self.random.choice((32_763, *LAST_EPOCHS)),
            500,
            WALL_BASE_MS,
        )
        self.log.batches.append([StateRecord(put_key(name), put_value(value, 1))])

    # -- tasks and drivers -------------------------------------------------------------------------

    def _unit(self) -> Unit:
        sink = self.random.choice(SINKS)
        query = QUERIES[0] if self.random.random() < 0.9 else QUERIES[1]
        top = self.top[sink, query]
        return Unit(sink, query, max(0, top - self.random.choice((0, 0, 0, 0, 1, 2))))

    def ask_unit(self, shard: Shard | None = None) -> None:
        ghost = shard is not None
        shard = shard or self.shard
        rng = self.random
        unit = self._unit()
        number, behind = next(self.asked), len(self.log.batches)
        kind = rng.choice(("stage", "stage", "write", "write", "commit", "commit", "abort", "next"))

        def reply(check: Callable[[Answer], None]) -> Callable[[Answer], None]:
            def told(answer: Answer) -> None:
                must(self.open.pop(number, None) is not None, "one answer to each", answer)
                self.seen.add(f"{kind} {answer.error.value}")
                if answer.error is not ErrorCode.NONE or ghost:
                    must(not (ghost and answer.verdict), "a deposed coordinator gives no verdict", answer)
                    return
                if answer.verdict is not None:
                    self.seen.add(f"{kind} {answer.verdict.said.name}")
                    self._verdict(unit, answer, behind)
                else:
                    check(answer)

            return told

        if kind == "next":
            if unit in self.ledger.decided:
                self.top[unit.sink, unit.query] += 1
            return
        takeover = rng.random() < 0.05
        if takeover:
            self.ledger.takeovers.add(unit)
        self.open[number] = (kind, unit)
        if kind == "stage":
            name = f"{unit.sink}-{rng.choice(STAGES)}"
            shard.stage(
                name,
                unit,
                rng.choice((500, 5_000)),
                reply(lambda a: self._staged(name, unit, a)),
                takeover=takeover,
            )
            return
        known = self.triples.get(unit, [])
        if kind == "write":
            if not known:
                del self.open[number]
                return
            triple = rng.choice(known[-4:])
            wanted: Partitions = frozenset(rng.sample(PARTITIONS, rng.randrange(1, 3)))
            shard.add(
                triple.transactional_id,
                Add(*triple[1:], wanted, 2),
                reply(lambda _: self._added(triple.transactional_id, triple[1:], wanted)),
            )
        elif kind == "abort":
            triple = rng.choice(known) if known else Triple(f"{unit.sink}-0-0-0", 1, 1)
            shard.unit(unit.sink, AbortStage(unit.sink, triple), reply(lambda _: self._aborted(triple)))
        else:
            newest = {triple.transactional_id: triple for triple in known}
            some = rng.sample(list(newest.values()), rng.randrange(len(newest) + 1))
            if known and rng.random() < 0.1:
                some = [rng.choice(known)]
            self.ledger.asked.setdefault(unit, []).append(frozenset(some))
            request = CommitUnit(unit, tuple(some), takeover, once=unit.sink == "t")
            shard.unit(unit.sink, request, reply(lambda a: must(False, "a commit has a verdict", a)))

    def _staged(self, name: str, unit: Unit, answer: Answer) -> None:
        value = self.ledger.covered.get(name)
        must(
            value is not None
            and value.unit == unit
            and (value.producer_id, value.producer_epoch) == (answer.producer_id, answer.producer_epoch),
            "a task is told what counts",
            name,
            answer,
            value,
        )
        must(answer.producer_epoch <= 32_765, "an epoch is left for the end", answer)
        self.triples.setdefault(unit, []).append(Triple(name, answer.producer_id, answer.producer_epoch))

    def _aborted(self, triple: Triple) -> None:
        value = self.ledger.covered.get(triple.transactional_id)
        is_there = value is not None and (value.producer_id, value.producer_epoch) == triple[1:]
        must(not is_there or not is_open_stage(value), "an aborted stage is not open", triple, value)

    def _verdict(self, unit: Unit, answer: Answer, behind: int) -> None:
        assert answer.verdict is not None
        said = answer.verdict.said
        must(self.ledger.batches > behind, "no verdict without a write behind it", answer, behind)
        last = self.ledger.entries.get(unit.sink)
        if said is UnitSaid.DONE:
            must(unit in self.ledger.decided, "done is what is decided", unit, last)
        elif said is UnitSaid.STALE:
            later = any(unit[:2] == each[:2] and each.epoch > unit.epoch for each in self.ledger.decided)
            must(later, "stale is what comes too late", unit, last)
        elif said is UnitSaid.FOREIGN:
            must(any(each.query != unit.query for each in self.ledger.decided), "foreign", unit, last)

    # -- the world -----------------------------------------------------------------------------------

    def haunt(self) -> None:
        for ghost, _ in self.ghosts:
            self.ask_unit(ghost)
        super().haunt()

    def check(self) -> None:
        super().check()
        if not self.shard.is_loading and not self.shard.closed:
            found = {name: self.shard.units.last(name) for name in self.shard.units.names()}
            found = {name: entry for name, entry in found.items() if entry is not None}
            must(
                found == self.ledger.entries,
                "a decision counts once it is covered",
                found,
                self.ledger.entries,
            )

    def heal(self) -> None:
        """Before time passes: what a decision leaves over is ended at once, not by its timeout."""
        self.lay_ghosts()
        self.log.refuse = None
        for _ in range(30):
            self.turn()
            self.advance()
            while self.due:
                self.write_marker()
        self.now_ms += 600  # what the log has refused is tried again
        self.shard.tick()
        for _ in range(30):
            self.turn()
            self.advance()
            while self.due:
                self.write_marker()
        self.check()
        for name, value in self.ledger.covered.items():
            last = None if value.unit is None else self.ledger.entries.get(value.unit.sink)
            if last is not None and value.unit is not None and value.unit.query == last.query:
                must(value.unit.epoch > last.epoch, "nothing of a decided unit is open", name, value, last)
        super().heal()


def run(seed: int, make: type[Shard] = Shard) -> UnitWorld:
    world = UnitWorld(seed, make)
    steps: list[tuple[int, Callable[[], None]]] = [
        (5, world.ask),
        (45, world.ask_unit),
        (20, world.turn),
        (20, world.advance),
        (12, world.write_marker),
        (5, lambda: world.pass_ms(60)),
        (0.3, lambda: world.pass_ms(6_000)),  # type: ignore[list-item]
        (1, world.refuse),
        (1, world.expire),
        (2, lambda: world.shard.ids_arrived()),
        (1, world.move),
        (2, world.haunt),
        (1, world.lay_ghosts),
    ]
    for action in world.random.choices([a for _, a in steps], [w for w, _ in steps], k=STEPS):
        action()
        world.check()
    world.heal()
    return world


def run_many(make: type[Shard]) -> None:
    for seed in range(100):
        run(seed, make)


def test_whatever_happens_units_are_decided_once_and_whole() -> None:
    seen: set[str] = set()
    decided = 0
    for seed in (*range(15), *SEEDS):
        print(f"seed {seed}")
        world = run(seed)
        seen |= world.seen
        decided += len(world.ledger.decided)
    for kind in ("stage 0", "write 0", "write 90", "abort 0", "commit DONE", "commit LOST", "commit STALE"):
        assert kind in seen, kind
    assert {"stage DONE", "stage STALE", "stage FOREIGN", "commit FOREIGN", "commit 15", "commit 16"} <= seen
    assert decided > 100


# -- planted bugs: the model finds them ------------------------------------------------------------


class SplitsDecisions(Shard):
    """A decision is appended in two batches."""

    def _append_decision(self, decision: Decision) -> None:
        if len(decision.stages) > 1:
            rest, decision.stages = decision.stages[1:], decision.stages[:1]
            super()._append_decision(decision)
            self._append(rest, [])
        else:
            super()._append_decision(decision)


class NoBarrier(Shard):
    """It says verdicts at once."""

    def _doubt(self, question: Any, answer: Answer) -> None:
        question.answer(answer)


class MarkersAlone(Shard):
    """The sink's entry is told when it is appended."""

    def _append_decision(self, decision: Decision) -> None:
        super()._append_decision(decision)
        if decision.is_written:
            self.units.answer(decision, None)


@pytest.mark.parametrize("bug", [SplitsDecisions, NoBarrier, MarkersAlone])
def test_a_planted_bug_is_found(bug: type[Shard]) -> None:
    with pytest.raises((Wrong, InvariantBroken)):
        run_many(bug)


def _no_losers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Units, "look_at_stage", lambda self, entry: None)


def _any_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_is", lambda current, triple: is_open_stage(current))


def _any_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "verdict_of", lambda last, unit, takeover: None)


def _entry_before_it_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Units._decide

    def decide(self: Units, sink: Any, entry: Any, question: Any) -> Decision:
        sink.current = entry
        return real(self, sink, entry, question)

    monkeypatch.setattr(Units, "_decide", decide)


@pytest.mark.parametrize("bug", [_no_losers, _any_epoch, _any_verdict, _entry_before_it_is_covered])
def test_another_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((Wrong, InvariantBroken)):
        run_many(Shard)
