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
from pyspark_penstock.sink.protocol import Entry, RefusedUnitError, Staged, Terms, Triple, Unit, Verdict
from unit.spark.spark_sink_broker import BUGS, Broker, Fenced

EPOCHS = 3
PARTITIONS = 2
PLAIN = Terms()
TAKEOVER = Terms(takeover=True)


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


def staged(broker: Broker, unit: Unit, partition: int, attempt: int, partitions: int) -> Actor:
    rows = rows_of(unit.epoch, partition, partitions)
    return played(broker, p.stage(unit, partition, attempt, rows, PLAIN))


def micro_batch(
    broker: Broker, query: str, epoch: int, partitions: int, rnd: random.Random | None = None
) -> Actor:
    unit = Unit("s", query, epoch)
    messages = []
    for partition in range(partitions):
        attempt = 0
        if rnd is not None and rnd.random() < 0.3:
            # An attempt that loses: it ends, or dies somewhere.
            loser = staged(broker, unit, partition, attempt, partitions)
            for _ in range(rnd.randrange(12)):
                if next(loser, "ended") == "ended":
                    break
                yield
            attempt += 1
        messages.append((yield from staged(broker, unit, partition, attempt, partitions)))
    yield from played(broker, p.commit(messages, PLAIN))


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


def result(actor: Actor) -> Any:
    while True:
        try:
            next(actor)
        except StopIteration as end:
            return end.value


def steps_of_all() -> int:
    actor, total = query(Broker(), set()), 0
    while next(actor, "ended") != "ended":
        total += 1
    return total


def is_right(broker: Broker) -> bool:
    """Each row is there once, and nothing holds readers back: no timeout is waited for."""
    run(broker.finish())
    return sorted(broker.visible) == ALL and broker.has_ended()  # type: ignore[type-var]


def test_without_trouble_nothing_is_left_open() -> None:
    broker = Broker()
    assert run(query(broker, set()))
    assert is_right(broker)
    assert [unit.epoch for unit in broker.decided] == [0, 1, 2]


@pytest.mark.parametrize("partitions", [PARTITIONS, 3, 1])
def test_a_driver_killed_at_any_step_is_followed_by_the_next(partitions: int) -> None:
    """With it goes what the broker did for it; the next one may have other partitions."""
    for steps in range(steps_of_all()):
        broker, log = Broker(), set[int]()
        assert not run(query(broker, log), steps)
        assert run(query(broker, log, partitions=partitions))
        assert is_right(broker)


def test_after_a_decision_it_counts_though_nobody_comes_back() -> None:
    for steps in range(steps_of_all()):
        broker = Broker()
        run(query(broker, set()), steps)
        run(broker.time_out())
        run(broker.finish())
        decided = {unit.epoch for unit in broker.decided}
        assert sorted(broker.visible) == [row for row in ALL if row[0] in decided]  # type: ignore[type-var]
        assert broker.has_ended()


def test_before_a_decision_a_timeout_aborts_and_the_commit_then_says_so() -> None:
    broker = Broker()
    unit = Unit("s", "q", 0)
    messages = [result(staged(broker, unit, at, 0, 2)) for at in range(2)]
    run(broker.time_out(), 1)
    with pytest.raises(
        RefusedUnitError,
        match=r"micro-batch 0 of sink s was not committed, for stage s-0-0 had ended: .*it is repeated when",
    ):
        run(played(broker, p.commit(messages, PLAIN)))
    with pytest.raises(RefusedUnitError, match=r"^this write was not committed.*so write it again$"):
        run(played(broker, p.commit(messages, Terms(once=True))))
    assert (broker.visible, broker.decided) == ([], [])


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
            run(broker.finish())
    # All that sleeps wakes, and runs beside the last one; copies of batches come late.
    actors: list[Actor] = [*asleep, query(broker, logs, rnd), *(late(broker, rnd) for _ in range(3))]
    if rnd.random() < 0.3:
        actors.append(broker.time_out())
    together(actors, rnd)
    for _ in range(20):
        with suppress(RefusedUnitError, Fenced):
            if run(query(broker, logs)):
                break
    run(late(broker, rnd))


def together(actors: list[Actor], rnd: random.Random) -> None:
    """All to their ends, in turns."""
    while actors:
        actor = rnd.choice(actors)
        with suppress(RefusedUnitError, Fenced):
            if not run(actor, rnd.randrange(1, 6)):
                continue
        actors.remove(actor)


def late(broker: Broker, rnd: random.Random) -> Actor:
    for _ in range(4):
        yield
        if broker.sent:
            with suppress(Fenced):
                yield from broker.handle(rnd.choice(broker.sent))


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_drivers_that_die_and_wake_write_each_row_once(first: int) -> None:
    for seed in range(first, first + 100):
        broker = Broker()
        driven(broker, random.Random(seed))
        assert is_right(broker), seed
        assert [unit.epoch for unit in broker.decided] == [0, 1, 2]


@pytest.mark.parametrize("bug", BUGS)
def test_each_rule_is_needed(bug: str) -> None:
    """Without it some run loses or doubles a row, or leaves a stage open."""
    for seed in range(3000):
        broker = Broker(bug)
        driven(broker, random.Random(seed))
        if not is_right(broker):
            return
    pytest.fail(f"nothing shows {bug}")


def test_speculation_counts_who_was_chosen() -> None:
    broker, unit = Broker(), Unit("s", "q", 0)
    first = result(staged(broker, unit, 0, 0, 1))
    second = result(staged(broker, unit, 0, 1, 1))
    loser = staged(broker, unit, 0, 2, 1)
    run(loser, 5)
    run(played(broker, p.commit([second], PLAIN)))
    assert broker.visible == [row for row in ALL if row[0] == 0]
    assert first.triple != second.triple
    assert {name: found.state for name, found in broker.ids.items()} == {
        "s-0-0": "aborted", "s-0-1": "committed", "s-0-2": "aborted",
    }  # fmt: skip
    with pytest.raises(Fenced):
        run(loser)


def test_a_repeated_micro_batch_is_skipped() -> None:
    broker, unit, entry = Broker(), Unit("s", "q", 4), Entry("q", 4)
    message = result(staged(broker, unit, 0, 0, 1))
    assert (message.rows, message.triple.transactional_id) == ({("t", 0): 6}, "s-0-0")
    assert result(played(broker, p.commit([message], PLAIN))) is None
    assert result(staged(broker, unit, 0, 0, 1)) == p.Skipped(unit, entry)
    assert result(played(broker, p.commit([message], PLAIN))) is None
    assert result(played(broker, p.commit([p.Skipped(unit, entry), None], PLAIN))) == entry
    assert result(played(broker, p.commit([p.Skipped(unit, entry), message], PLAIN))) == entry
    assert result(played(broker, p.commit([], PLAIN))) is None
    assert (len(broker.visible), len(broker.decided)) == (6, 1)


def test_tasks_without_rows_begin_nothing_and_their_micro_batch_counts() -> None:
    broker, unit = Broker(), Unit("s", "q", 0)
    messages = [result(played(broker, p.stage(unit, at, 0, [], PLAIN))) for at in range(2)]
    assert messages == [Staged(unit, None, {})] * 2
    assert broker.ids == {}
    run(played(broker, p.commit(messages, PLAIN)))
    assert broker.sinks == {"s": Entry("q", 0)}


def test_an_epoch_that_goes_back_and_a_foreign_query_are_refused() -> None:
    broker = Broker()
    for epoch in (3, 7):
        run(micro_batch(broker, "q", epoch, 1))
    old = Staged(Unit("s", "q", 6), None, {})
    for actor in (micro_batch(broker, "q", 5, 1), played(broker, p.commit([old], PLAIN))):
        with pytest.raises(
            RefusedUnitError, match=r"sink s has micro-batch 7 of this query, and this is [56]:.*newest"
        ):
            run(actor)
    with pytest.raises(
        RefusedUnitError, match=r"sink s belongs to query q, and this is other;.*sinkTakeover"
    ):
        run(micro_batch(broker, "other", 0, 1))
    unit = Unit("s", "other", 0)
    message = result(played(broker, p.stage(unit, 0, 0, rows_of(0, 0, 1), TAKEOVER)))
    with pytest.raises(RefusedUnitError, match="belongs to query q"):
        run(played(broker, p.commit([message], PLAIN)))
    run(played(broker, p.commit([message], TAKEOVER)))
    assert broker.sinks["s"] == Entry("other", 0)
    with pytest.raises(RefusedUnitError, match="belongs to query other"):
        run(micro_batch(broker, "q", 8, 1))


def test_a_version_that_is_not_newer_is_skipped() -> None:
    broker, terms = Broker(), Terms(versioned=True)

    def write(version: int) -> Any:
        unit = Unit("s", "app", version)
        message = result(played(broker, p.stage(unit, 0, 0, [[version]], terms)))
        return result(played(broker, p.commit([message], terms)))

    assert [write(version) for version in (3, 3, 2, 4)] == [None, Entry("app", 3), Entry("app", 3), None]
    assert broker.visible == [3, 4]
    # One that is overtaken between its begin and its commit is done, too.
    message = Staged(Unit("s", "app", 1), None, {})
    assert result(played(broker, p.commit([message], terms))) == Entry("app", 4)


def test_a_decision_that_nobody_ended_is_ended_before_its_ids_serve_again() -> None:
    broker = Broker()
    killed = micro_batch(broker, "q", 0, 3)
    while not broker.decided:
        next(killed)
    next(killed)
    assert broker.visible == []
    other = Unit("s", "other", 0)
    message = result(played(broker, p.stage(other, 0, 0, [["other"]], TAKEOVER)))
    run(played(broker, p.commit([message], TAKEOVER)))
    run(broker.finish())
    assert len(broker.visible) == 7
    assert "other" in broker.visible


def test_what_spark_gives_up_is_aborted() -> None:
    broker, unit = Broker(), Unit("s", "q", 0)
    message = result(staged(broker, unit, 0, 0, 1))
    empty = Staged(unit, None, {})
    run(played(broker, p.abort([message, None, p.Skipped(unit, Entry("q", 0)), empty])))
    assert broker.ids["s-0-0"].state == "aborted"
    with pytest.raises(RefusedUnitError, match="stage s-0-0 had ended"):
        run(played(broker, p.commit([message], PLAIN)))


def test_what_is_decided_is_not_given_up() -> None:
    broker, unit = Broker(), Unit("s", "q", 0)
    message = result(staged(broker, unit, 0, 0, 1))
    run(played(broker, p.commit([message], PLAIN)))
    run(played(broker, p.abort([message])))
    assert len(broker.visible) == 6


def test_stages_of_a_later_micro_batch_are_let_be() -> None:
    broker = Broker()
    message = result(staged(broker, Unit("s", "q", 0), 0, 0, 1))
    ahead = result(staged(broker, Unit("s", "q", 1), 0, 1, 1))
    run(played(broker, p.commit([message], PLAIN)))
    assert broker.ids[ahead.triple.transactional_id].state == "ongoing"


def test_one_write_has_one_unit() -> None:
    triple = Triple("s-0-0", 1, 0)
    messages = [Staged(Unit("s", "q", epoch), triple, {}) for epoch in (1, 2)]
    with pytest.raises(OptionError, match=r"several micro-batches \(q 1 and q 2\)"):
        p.unit_of(messages)
    assert p.unit_of([None]) is None


def test_the_coordinators_rule() -> None:
    unit = Unit("s", "q", 5)

    def verdicts() -> Iterator[Verdict]:
        for entry in (None, Entry("q", 4), Entry("q", 5), Entry("q", 6), Entry("r", 5)):
            yield p.judge(unit, entry, takeover=False)

    write = Verdict.WRITE
    assert list(verdicts()) == [write, write, Verdict.DONE, Verdict.STALE, Verdict.FOREIGN]
    assert p.judge(unit, Entry("r", 5), takeover=True) is write
    assert p.judge(unit, Entry("q", 6), takeover=True) is Verdict.STALE
