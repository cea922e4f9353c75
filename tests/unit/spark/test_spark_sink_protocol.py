"""Exactly-once writing against a model of the broker: whoever dies, wakes or comes twice, each row counts once."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from pyspark_penstock.errors import OptionError
from pyspark_penstock.sink import protocol as p
from pyspark_penstock.sink.protocol import Entry, RefusedUnitError, Staged, Triple, Unit, Verdict
from unit.spark.spark_sink_broker import Broker, Fenced

EPOCHS = 3
PARTITIONS = 2


def rows_of(epoch: int, partition: int, partitions: int) -> list[list[object]]:
    """A micro-batch's rows are the same whenever it is repeated; how they are cut may differ."""
    mine: list[object] = [(epoch, row) for row in range(6) if row % partitions == partition]
    return [mine[:2], mine[2:]]


ALL = sorted((epoch, row) for epoch in range(EPOCHS) for row in range(6))

Actor = Generator[None, None, Any]
"""Each step is one of the broker's, or the way of a call or an answer."""


def played(broker: Broker, script: Generator[p.Call, Any, Any]) -> Actor:
    """A task or driver, whose calls the broker handles step by step."""
    answer: Any = None
    while True:
        try:
            call = script.send(answer)
        except StopIteration as end:
            return end.value
        yield
        answer = yield from broker.handle(call)
        yield


def micro_batch(
    broker: Broker, query: str, epoch: int, partitions: int, rnd: random.Random | None = None
) -> Actor:
    unit = Unit("s", query, epoch)
    messages = []
    for partition in range(partitions):
        attempt = 0
        if rnd is not None and rnd.random() < 0.3:
            # An attempt that loses: it ends, or dies somewhere.
            loser = played(broker, p.stage(unit, partition, attempt, rows_of(epoch, partition, partitions)))
            for _ in range(rnd.randrange(12)):
                if next(loser, "ended") == "ended":
                    break
                yield
            attempt += 1
        chosen = p.stage(unit, partition, attempt, rows_of(epoch, partition, partitions))
        messages.append((yield from played(broker, chosen)))
    yield from played(broker, p.commit(messages))


def query(
    broker: Broker, log: set[int], rnd: random.Random | None = None, partitions: int = PARTITIONS
) -> Actor:
    """A driver: micro-batches from where Spark's commit log ends. `log` is in the checkpoint, and outlives it."""
    for epoch in range(max(log, default=-1) + 1, EPOCHS):
        yield from micro_batch(broker, "q", epoch, partitions, rnd)
        yield
        log.add(epoch)


def run(actor: Actor, steps: int | None = None) -> bool:
    """True when it came to its end."""
    for done in count():
        if done == steps:
            return False
        try:
            next(actor)
        except StopIteration:
            return True
    raise AssertionError


def settle(broker: Broker) -> None:
    run(broker.finish("s"))
    run(broker.time_out())


def check(broker: Broker) -> None:
    assert sorted(broker.visible) == ALL  # type: ignore[type-var]
    assert all(found.state not in ("ongoing", "prepared") for found in broker.ids.values())


def steps_of_all() -> int:
    actor, total = query(Broker(), set()), 0
    while next(actor, "ended") != "ended":
        total += 1
    return total


def test_without_trouble_nothing_is_left_open() -> None:
    broker = Broker()
    assert run(query(broker, set()))
    check(broker)
    assert [unit.epoch for unit in broker.decided] == [0, 1, 2]


@pytest.mark.parametrize("partitions", [PARTITIONS, 3, 1])
def test_a_driver_killed_at_any_step_is_followed_by_the_next(partitions: int) -> None:
    """With it goes what the broker did for it; the next one may have other partitions."""
    for steps in range(steps_of_all()):
        broker, log = Broker(), set[int]()
        assert not run(query(broker, log), steps)
        assert run(query(broker, log, partitions=partitions))
        settle(broker)
        check(broker)


def test_after_a_decision_it_counts_though_nobody_comes_back() -> None:
    for steps in range(steps_of_all()):
        broker = Broker()
        run(query(broker, set()), steps)
        settle(broker)
        decided = {unit.epoch for unit in broker.decided}
        assert sorted(broker.visible) == [row for row in ALL if row[0] in decided]  # type: ignore[type-var]


def test_before_a_decision_a_timeout_aborts_and_the_commit_then_says_so() -> None:
    broker = Broker()
    unit = Unit("s", "q", 0)
    messages = [yielded(played(broker, p.stage(unit, at, 0, rows_of(0, at, 2)))) for at in range(2)]
    driver = played(broker, p.commit(messages))
    while not all(found.state == "prepared" for found in broker.ids.values()):
        next(driver)
    run(broker.time_out())
    with pytest.raises(
        RefusedUnitError, match=r"micro-batch 0 of sink s was not committed: s-0-0 was given up; it is"
    ):
        run(driver)
    assert broker.visible == []


def yielded(actor: Actor) -> Any:
    while True:
        try:
            next(actor)
        except StopIteration as end:
            return end.value


def driven(broker: Broker, rnd: random.Random) -> None:
    """Drivers on one checkpoint that die, stop and wake, with tasks of theirs that come late; then one to the end."""
    logs = set[int]()
    asleep: list[Actor] = []
    for _ in range(rnd.randrange(1, 5)):
        driver = query(broker, logs, rnd, rnd.choice([1, 2, 3]))
        with suppress(RefusedUnitError, Fenced):
            run(driver, rnd.randrange(steps_of_all()))
        if rnd.random() < 0.6:
            asleep.append(driver)
        if rnd.random() < 0.2:
            run(broker.time_out(), rnd.randrange(20))
        if rnd.random() < 0.3:
            settle(broker)
    # All that sleeps wakes, and runs beside the last one.
    actors: list[Actor] = [*asleep, query(broker, logs, rnd)]
    if rnd.random() < 0.3:
        actors.append(broker.time_out())
    while actors:
        actor = rnd.choice(actors)
        with suppress(RefusedUnitError, Fenced):
            if not run(actor, rnd.randrange(1, 6)):
                continue
        actors.remove(actor)
    for _ in range(20):
        with suppress(RefusedUnitError, Fenced):
            if run(query(broker, logs)):
                break
    settle(broker)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_drivers_that_die_and_wake_write_each_row_once(first: int) -> None:
    for seed in range(first, first + 100):
        broker = Broker()
        driven(broker, random.Random(seed))
        check(broker)
        assert [unit.epoch for unit in broker.decided] == [0, 1, 2]


@pytest.mark.parametrize("bug", ["no-prepare", "prepared-is-ongoing", "no-veto", "decide-twice"])
def test_each_rule_is_needed(bug: str) -> None:
    """Without it some run loses or doubles a row."""
    for seed in range(2000):
        broker = Broker(bug)
        driven(broker, random.Random(seed))
        if sorted(broker.visible) != ALL:  # type: ignore[type-var]
            return
    pytest.fail(f"nothing shows {bug}")


def test_speculation_counts_who_was_chosen() -> None:
    broker, unit = Broker(), Unit("s", "q", 0)
    first = yielded(played(broker, p.stage(unit, 0, 0, rows_of(0, 0, 1))))
    second = yielded(played(broker, p.stage(unit, 0, 1, rows_of(0, 0, 1))))
    late = played(broker, p.stage(unit, 0, 2, rows_of(0, 0, 1)))
    run(late, 8)
    run(played(broker, p.commit([second])))
    assert broker.visible == [row for row in ALL if row[0] == 0]
    assert first.triple != second.triple
    assert {name: found.state for name, found in broker.ids.items()} == {
        "s-0-0": "aborted", "s-0-1": "committed", "s-0-2": "aborted",
    }  # fmt: skip
    with pytest.raises(Fenced):
        run(late)


def test_a_repeated_micro_batch_is_skipped() -> None:
    broker, unit = Broker(), Unit("s", "q", 4)
    staged = yielded(played(broker, p.stage(unit, 0, 0, rows_of(0, 0, 1))))
    run(played(broker, p.commit([staged])))
    assert yielded(played(broker, p.stage(unit, 0, 0, rows_of(0, 0, 1)))) == p.Skipped(unit)
    run(played(broker, p.commit([staged])))
    run(played(broker, p.commit([p.Skipped(unit), None])))
    run(played(broker, p.commit([])))
    assert (len(broker.visible), len(broker.decided)) == (6, 1)


def test_an_epoch_that_goes_back_and_a_foreign_query_are_refused() -> None:
    broker = Broker()
    for epoch in (3, 7):
        run(micro_batch(broker, "q", epoch, 1))
    for actor in (micro_batch(broker, "q", 5, 1), played(broker, p.stage(Unit("s", "q", 6), 0, 0, []))):
        with pytest.raises(
            RefusedUnitError, match=r"sink s has micro-batch 7 of this query, and this is [56]:.*newest"
        ):
            run(actor)
    with pytest.raises(
        RefusedUnitError, match=r"sink s belongs to query q, and this is other;.*sinkTakeover"
    ):
        run(micro_batch(broker, "other", 0, 1))
    unit = Unit("s", "other", 0)
    staged = yielded(played(broker, p.stage(unit, 0, 0, rows_of(0, 0, 1), takeover=True)))
    with pytest.raises(RefusedUnitError, match="belongs to query q"):
        run(played(broker, p.commit([staged])))
    run(played(broker, p.commit([staged], takeover=True)))
    assert broker.ledger["s"].entry == Entry("other", 0)
    with pytest.raises(RefusedUnitError, match="belongs to query other"):
        run(micro_batch(broker, "q", 8, 1))


@pytest.mark.parametrize("bug", ["", "decides-over-it"])
def test_a_decision_that_nobody_ended_is_ended_before_the_next(bug: str) -> None:
    broker = Broker(bug)
    killed = micro_batch(broker, "q", 0, 3)
    while not broker.decided:
        next(killed)
    assert broker.visible == []
    other = Unit("s", "other", 0)
    staged = yielded(played(broker, p.stage(other, 0, 0, [["other"]], takeover=True)))
    run(played(broker, p.commit([staged], takeover=True)))
    settle(broker)
    assert (len(broker.visible) == 7) is (not bug)
    assert "other" in broker.visible


def test_what_spark_gives_up_is_aborted() -> None:
    broker, unit = Broker(), Unit("s", "q", 0)
    staged = yielded(played(broker, p.stage(unit, 0, 0, rows_of(0, 0, 1))))
    run(played(broker, p.abort([staged, None, p.Skipped(unit)])))
    assert broker.ids["s-0-0"].state == "aborted"
    with pytest.raises(RefusedUnitError, match="s-0-0 has ended"):
        run(played(broker, p.commit([staged])))


def test_stages_of_a_later_micro_batch_are_let_be() -> None:
    broker = Broker()
    staged = yielded(played(broker, p.stage(Unit("s", "q", 0), 0, 0, rows_of(0, 0, 1))))
    ahead = yielded(played(broker, p.stage(Unit("s", "q", 1), 0, 1, rows_of(1, 0, 1))))
    run(played(broker, p.commit([staged])))
    assert broker.ids[ahead.triple.transactional_id].state == "ongoing"


def test_one_write_has_one_unit() -> None:
    triple = Triple("s-0-0", 1, 0)
    messages = [Staged(Unit("s", "q", epoch), triple, 1) for epoch in (1, 2)]
    with pytest.raises(OptionError, match=r"several micro-batches \(q 1 and q 2\)"):
        p.unit_of(messages)
    assert p.unit_of([None]) is None


def test_the_ledgers_rule() -> None:
    unit = Unit("s", "q", 5)

    def verdicts() -> Iterator[Verdict]:
        for entry in (None, Entry("q", 4), Entry("q", 5), Entry("q", 6), Entry("r", 5)):
            yield p.judge(unit, entry, takeover=False)

    write = Verdict.WRITE
    assert list(verdicts()) == [write, write, Verdict.DONE, Verdict.STALE, Verdict.FOREIGN]
    assert p.judge(unit, Entry("r", 5), takeover=True) is write
    assert p.judge(unit, Entry("q", 6), takeover=True) is Verdict.STALE
