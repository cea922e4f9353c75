"""Jobs that write topics, where no Spark is needed: times, slices, pace, checkpoints and sums."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs import writing
from pyspark_penstock.jobs.frame import Cluster, JobError, Span
from pyspark_penstock.jobs.pacing import GRAIN_S, Pace, paced
from pyspark_penstock.jobs.replay import SLICE_S, Beat, Origin, Wanted, _cut, _share
from pyspark_penstock.jobs.replay_runs import NamedRun, Plan, Slice
from pyspark_penstock.jobs.slices import Ranges, Stretch, by_count, by_time, covered
from pyspark_penstock.jobs.streams import Tally
from pyspark_penstock.jobs.times import duration_ms, time_ms
from pyspark_penstock.jobs.writing import Checkpoint, Target, sink_name, written_by_one
from pyspark_penstock.sink.calls import SinkCalls
from pyspark_penstock.sink.protocol import Entry, RefusedUnitError, Skipped, Terms, Unit, commit
from unit.spark.spark_memory_gateway import MemoryGateway

# -- times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.5Z", 1_500),
        ("1970-01-01T02:00:00+02:00", 0),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert time_ms("since", text) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "1969-12-31T23:59:59Z", "9" * 18, "٣", "9" * 30])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(
        OptionError, match="since must be a time like 2026-11-26T14:00:00Z, or ms since 1970, not"
    ):
        time_ms("since", text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("30s", 30_000), ("10 Minutes", 600_000), ("1 hour", 3_600_000), ("2d", 172_800_000), ("5 ms", 5)],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms("window", text) == ms


@pytest.mark.parametrize("text", ["", "10", "0s", "ten minutes", "1.5h", "1 hour 5 minutes", "9" * 15 + "d"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="window must be a duration like 30s, 10m, 1h or 1d, not"):
        duration_ms("window", text)


# -- slices --------------------------------------------------------------------------------------


def joined(slices: list[Ranges]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for ranges in slices:
        for part, (low, high) in ranges.items():
            assert low < high
            found.setdefault(part, []).extend(range(low, high))
    return found


def test_slices_by_count_have_each_offset_once_in_order() -> None:
    first, end = {0: 5, 1: 0, 2: 7}, {0: 105, 1: 31, 2: 7}
    slices = list(by_count(first, end, 40))
    assert joined(slices) == {0: list(range(5, 105)), 1: list(range(31))}
    assert len(slices) == 4
    assert all(sum(high - low for low, high in ranges.values()) <= 41 for ranges in slices)
    assert list(by_count({0: 3}, {0: 3}, 10)) == []


def test_slices_by_time_keep_the_order_of_offsets() -> None:
    """However records' times lie: a partition's slices are its offsets in order, each in the step it first gets to."""
    dice = random.Random(3)
    for _ in range(200):
        steps = {part: [dice.randrange(6) for _ in range(dice.randrange(12))] for part in range(3)}
        stretches = [
            Stretch(
                part,
                step,
                min(at for at, one in enumerate(items) if one == step),
                max(at for at, one in enumerate(items) if one == step) + 1,
                items.count(step),
                step,
            )
            for part, items in steps.items()
            for step in set(items)
        ]
        slices = by_time(stretches)
        assert [step for step, _ in slices] == sorted({step for step, _ in slices})
        assert joined([ranges for _, ranges in slices]) == {
            part: list(range(len(items))) for part, items in steps.items() if items
        }
        for step, ranges in slices:
            for part, (low, high) in ranges.items():
                for at in range(low, high):
                    assert max(steps[part][: at + 1]) == step
        first, end = covered(stretches)
        assert end == {part: len(items) for part, items in steps.items() if items}
        assert set(first.values()) <= {0}


# -- pace ----------------------------------------------------------------------------------------


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def batch(times_ms: list[int], partition: int = 0) -> Any:
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition] * len(times_ms), pa.int32()),
            "timestamp": pa.array([time * 1000 for time in times_ms], pa.timestamp("us", tz="UTC")),
            "offset": pa.array(range(len(times_ms)), pa.int64()),
        }
    )


def let_through(pace: Pace, batches: list[Any], late_s: float = 0.0) -> list[tuple[float, int]]:
    """When how many rows came, in s since the task began."""
    clock = Clock()
    return [
        (clock() - 100.0, item.num_rows)
        for item in paced(pace, batches, late_s=late_s, clock=clock, sleep=clock.sleep)
    ]


def test_a_rate_is_kept_over_batches() -> None:
    pace = pickle.loads(pickle.dumps(Pace(0.0, 5.0, {7: 100.0})))
    told = let_through(pace, [batch([0] * 150, 7), batch([], 7), batch([0] * 100, 7)])
    assert sum(count for _, count in told) == 250
    sent = 0
    for at_s, count in told:
        sent += count
        assert sent <= (at_s + GRAIN_S) * 100 + 1.01
    assert told[-1][0] == pytest.approx(2.4, abs=0.11)


def test_what_is_late_catches_up() -> None:
    told = let_through(Pace(0.0, 5.0, {0: 100.0}), [batch([0] * 300)], late_s=2.0)
    assert told[0] == (0.0, 211)
    assert told[-1][0] == pytest.approx(0.9, abs=0.11)


def test_the_clock_of_an_executor_may_differ() -> None:
    pace = Pace(1000.0, 5.0)
    assert [pace.late_s(now) for now in (0.0, 1000.0, 1001.5, 9e9)] == [0.0, 0.0, 1.5, 5.0]


def test_a_drivers_clock_that_is_set_back_holds_no_slice_up() -> None:
    monotonic, time_of_day = Clock(), Clock()
    beat = Beat(monotonic, time_of_day)
    assert (beat.left_s(5.0), beat.at(5.0)) == (5.0, time_of_day() + 5.0)
    monotonic.sleep(7.0)
    time_of_day.now_s -= 3_600.0
    # Late by 2 s, by the clock as tasks have it now.
    assert (beat.left_s(5.0), beat.at(5.0)) == (-2.0, time_of_day() - 2.0)
    assert Pace(beat.at(5.0), 5.0).late_s(time_of_day()) == 2.0


def test_by_time_and_out_of_order() -> None:
    times = [1000, 3000, 2000, 5000]
    told = let_through(Pace(0.0, 5.0, speed=2.0, from_ms=1000), [batch(times[:2]), batch(times[2:])])
    assert [(round(at_s, 6), count) for at_s, count in told] == [(0.0, 1), (1.0, 1), (1.0, 1), (2.0, 1)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("", "", 5.0, 2.0), "a replay has a rate or a speed, not both"),
        (("", "", -1.0, 0.0), "rate must be a number above 0, not -1.0"),
        (("", "", 0.0, float("nan")), "speed must be a number above 0, not nan"),
        (("soon", "", 0.0, 0.0), "since must be a time like"),
        (("5", "5", 0.0, 0.0), r"since \(5\) must lie before until \(5\)"),
    ],
)
def test_what_a_replay_is_not(given: tuple[str, str, float, float], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Wanted.of(*given)


def test_what_of_the_records() -> None:
    assert Wanted.of("", "", 0.0, 0.0).filter() == ""
    assert (
        Wanted.of("5", "1970-01-01T00:00:01Z", 0.0, 0.0).filter()
        == "unix_millis(timestamp) >= 5 AND unix_millis(timestamp) < 1000"
    )


def test_a_replay_at_a_rate_needs_no_look_at_the_times() -> None:
    def rows(_ranges: Ranges) -> Any:
        raise AssertionError

    origin = Origin("flights", b"a" * 16, {0: 0, 1: 10}, {0: 60_000, 1: 40_010}, rows)
    plan = _cut(origin, Wanted.of("", "", 5_000.0, 0.0), 1_000_000)
    ranges = [item.ranges for item in plan.slices]
    assert (plan.first, plan.end) == (origin.first, origin.end)
    assert joined(ranges) == {0: list(range(60_000)), 1: list(range(10, 40_010))}
    assert len(ranges) == 100_000 / 5_000 / SLICE_S
    pace = _share(ranges[0], 5_000.0, 7.0)
    assert (pace.begun_s, pace.length_s, pace.per_s) == (7.0, SLICE_S, {0: 3_000.0, 1: 2_000.0})
    whole = _cut(origin, Wanted.of("", "", 0.0, 0.0), 1_000_000)
    assert [item.ranges for item in whole.slices] == [{0: (0, 60_000), 1: (10, 40_010)}]


# -- replays that have a name --------------------------------------------------------------------


PLAN = Plan(
    {0: 0, 1: 10, 2: 7},
    {0: 60, 1: 40, 2: 7},
    (
        Slice({0: (0, 30), 1: (10, 20)}, 0.0, 1_700_000_000_000),
        Slice({1: (20, 40)}, 0.5, 1_700_000_005_000),
        Slice({0: (30, 60)}, 7.25),
    ),
)


def test_the_slices_that_are_read_again_are_those_that_were_cut(tmp_path: Path) -> None:
    assert Plan.parse(PLAN.text(), tmp_path) == PLAN
    assert [PLAN.first_from(number) for number in range(4)] == [
        {0: 0, 1: 10, 2: 7}, {0: 30, 1: 20, 2: 7}, {0: 30, 1: 40, 2: 7}, PLAN.end,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "[]", '{"form": 2}', '{"form": 1, "from": {}, "to": {}, "slices": [{}]}']
)
def test_what_are_no_slices_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        JobError, match=r"slices.json: these are no slices of a replay \(.*\); give another --run"
    ):
        Plan.parse(text, tmp_path / "slices.json")


def cut_once() -> Plan:
    return PLAN


def cut_again() -> Plan:
    raise AssertionError("the slices are those of the first start")


def test_a_run_with_a_name_goes_on_behind_what_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {"rate": 5.0, "since_ms": None}
    run = NamedRun.at("monday", str(tmp_path / "c"), SOURCE, TARGET, told)
    last: list[Entry | None] = [None]
    monkeypatch.setattr(SinkCalls, "last", lambda _self, sink: last[0] if sink == run.sink else None)
    assert run.plan(cut_once) == (PLAN, 0)
    assert run.plan(cut_again) == (PLAN, 0), "killed before its first slice was decided"
    last[0] = Entry(run.sink, 1)
    again = NamedRun.at("monday", str(tmp_path / "c"), SOURCE, TARGET, told)
    assert again.plan(cut_again) == (PLAN, 2)
    with pytest.raises(
        JobError, match=r"another job \(rate 5.0\); give another --run, or say what that one was"
    ):
        NamedRun.at("monday", str(tmp_path / "c"), SOURCE, TARGET, told | {"rate": 6.0})
    lost = NamedRun.at("monday", str(tmp_path / "lost"), SOURCE, TARGET, told)
    with pytest.raises(
        JobError, match=r"copy has 2 slices of run 'monday', and .*lost does not say which: name its"
    ):
        lost.plan(cut_once)
    assert NamedRun.at("tuesday", str(tmp_path / "t"), SOURCE, TARGET, told).plan(cut_once) == (PLAN, 0)


def test_one_at_a_time_under_a_name(tmp_path: Path) -> None:
    runs = [NamedRun.at("monday", str(tmp_path / "c"), SOURCE, TARGET, {}) for _ in range(2)]
    with (
        runs[0].alone(),
        pytest.raises(JobError, match="run 'monday' of this replay is at work already; wait for its end"),
        runs[1].alone(),
    ):
        pass
    with runs[1].alone():
        pass


# -- sinks and checkpoints -----------------------------------------------------------------------

CLUSTER = Cluster("h:1", "/f", "read_committed")
SOURCE = Span(CLUSTER, "flights", b"a" * 16, {0: 0}, {0: 9}, {0: 9})
TARGET = Target(CLUSTER, "copy", b"b" * 16, 3)


def test_the_delivery_is_exactly_once() -> None:
    assert TARGET.options(sinkId="s") == {
        "gateway": "h:1", "credentialsFile": "/f", "topic": "copy", "delivery": "exactly-once", "sinkId": "s",
    }  # fmt: skip


@pytest.fixture
def memory() -> Iterator[MemoryGateway]:
    made = MemoryGateway()
    made.start()
    made.create("copy", 3)
    yield made
    made.stop()


def target(memory: MemoryGateway, topic: str, partitions: int = 0) -> Target:
    return writing.target_of(Cluster(memory.addresses[0]), topic, "flights", partitions)


def test_a_topic_is_made_with_so_many_partitions_where_it_is_missing(memory: MemoryGateway) -> None:
    made = target(memory, "new", 12)
    assert (made.partitions, made.topic_id) == (12, memory.topics["new"].topic_id)
    assert [call for call in memory.calls if call.startswith("CreateTopic")] == ["CreateTopic new 12"]
    assert target(memory, "new", 12) == made == target(memory, "new")
    memory.no_topic = (36, "it exists")  # an answer was lost, and the call repeated
    assert target(memory, "newer", 5).partitions == 5


def test_a_topic_that_is_there_is_never_changed(memory: MemoryGateway) -> None:
    assert target(memory, "copy", 3).partitions == target(memory, "copy").partitions == 3
    with pytest.raises(
        JobError, match="topic 'copy' has 3 partitions, not 12: name another topic, which is made"
    ):
        target(memory, "copy", 12)
    with pytest.raises(
        JobError, match="there is no topic 'new' to write to; make it first: penstock topic cre"
    ):
        target(memory, "new")
    memory.no_topic = (36, "it exists")
    memory.create("new", 2)
    with pytest.raises(JobError, match="topic 'new' has 2 partitions, not 5"):
        target(memory, "new", 5)
    assert not [call for call in memory.calls if call.startswith("CreateTopic")]


def test_a_topic_that_can_not_be_made(memory: MemoryGateway) -> None:
    memory.no_topic = (29, "User:a has no right to make topic 'new': Create on it, or on the cluster")
    with pytest.raises(
        JobError, match="topic 'new' can't be made: User:a has no right to make topic 'new': Cr"
    ):
        target(memory, "new", 5)
    memory.no_topic = (37, "")
    with pytest.raises(JobError, match="topic 'new' can't be made: Kafka error 37"):
        target(memory, "new", 5)
    memory.makes_topics = False
    with pytest.raises(
        JobError,
        match="older build, which makes no topics; make it first: penstock topic create new --partitions 5",
    ):
        target(memory, "new", 5)


def test_a_sink_is_named_by_its_topics() -> None:
    name = sink_name("repartition", SOURCE, TARGET)
    assert name == sink_name("repartition", SOURCE, TARGET)
    assert name.startswith("repartition-flights-copy-")
    anew = Target(CLUSTER, "copy", b"c" * 16, 3)
    others = {sink_name("repartition", SOURCE, anew), sink_name("windowed", SOURCE, TARGET), name}
    assert len(others | {sink_name("repartition", SOURCE, TARGET, "more")}) == 4
    long = Target(CLUSTER, "x" * 249, b"b" * 16, 3)
    assert len(sink_name("repartition", SOURCE, long)) < 200


def test_a_checkpoint_is_of_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = Checkpoint.at("", "sink", {"job": "repartition", "key": ""})
    assert place.directory == tmp_path / "state" / "penstock" / "spark" / "sink"
    assert Checkpoint.at("", "sink", {"job": "repartition", "key": ""}) == place
    with pytest.raises(
        JobError, match=r"is the checkpoint of another job \(key ''\); name another with --chec"
    ):
        Checkpoint.at("", "sink", {"job": "repartition", "key": "upper(key)"})
    with pytest.raises(OptionError, match="the checkpoint must be a directory of this machine, not s3://b/c"):
        Checkpoint.at("s3://b/c", "sink", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match=r"the checkpoint .*file/c can't be used \(.*\); name another"):
        Checkpoint.at(str(tmp_path / "file" / "c"), "sink", {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metadata").write_text("{}")
    with pytest.raises(JobError, match="is the checkpoint of another query; name another"):
        Checkpoint.at(str(tmp_path / "other"), "sink", {})


def test_where_a_checkpoint_stands(tmp_path: Path) -> None:
    place = Checkpoint.at(str(tmp_path), "sink", {})
    assert place.upto("flights") == {}
    for name in ("commits", "offsets"):
        (tmp_path / name).mkdir()
    for number, end in ((9, 5), (10, 7), (11, 9)):
        line = json.dumps({"v": 1, "from": {}, "to": {"flights": {"0": end}}})
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{line}")
        if number < 11:
            (tmp_path / "commits" / str(number)).write_text("v1\n{}")
    assert place.upto("flights") == {0: 7}


def test_a_sink_of_another_query(tmp_path: Path) -> None:
    place = Checkpoint.at(str(tmp_path), "sink", {})
    with (
        pytest.raises(
            JobError, match=r"copy has been written from flights by a run whose checkpoint is not .*: name"
        ),
        written_by_one(SOURCE, TARGET, place),
    ):
        raise RuntimeError('set option("sinkTakeover", "true") if that query is never to go on')
    lost = refused_input(Unit("s", "q", 3))
    with (
        pytest.raises(
            JobError, match=r"has lost a micro-batch that is in copy, and planned it anew:.* to a new topic"
        ),
        written_by_one(SOURCE, TARGET, place),
    ):
        raise RuntimeError(f"RefusedUnitError: {lost}")
    with pytest.raises(RuntimeError, match="disk full"), written_by_one(SOURCE, TARGET, place):
        raise RuntimeError("disk full")


def refused_input(unit: Unit) -> str:
    """What the sink says of a micro-batch that was planned anew."""
    skipped = [Skipped(unit, Entry(unit.query, unit.epoch, b"\x01one"))]
    with pytest.raises(RefusedUnitError) as told:
        next(commit(skipped, Terms(), b"\x01other"))
    return str(told.value)


@pytest.mark.parametrize(("kind", "sql"), [("binary", "k"), ("string", "k"), ("int", "CAST(k AS STRING)")])
def test_keys(kind: str, sql: str) -> None:
    assert writing.to_key(SimpleNamespace(simpleString=lambda: kind), "k") == sql


# -- sums ----------------------------------------------------------------------------------------


def row(**numbers: int) -> Any:
    return SimpleNamespace(asDict=lambda: numbers)


def test_reports_of_micro_batches_are_added_once() -> None:
    told: list[str] = []
    tally = Tally("flights", told.append)
    late = [SimpleNamespace(numRowsDroppedByWatermark=2)]
    tally.take(1, {})  # it waits
    tally.take(0, {"written": row(rows=5, bytes=50)})
    tally.take(0, {"written": row(rows=5, bytes=50)})
    tally.take(1, {"read": row(rows=3, bytes=9), "closed": row(windows=1)}, late)
    assert [tally.total(name) for name in ("rows", "bytes", "windows", "late")] == [8, 59, 1, 2]
    assert told == ["flights: batch 0, 5 rows", "flights: batch 1, 3 rows, 1 windows, 2 late"]


def test_a_note_that_was_not_written_whole_shuts_no_later_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"job": "repartition", "key": ""}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(JobError, match="No space left on device"):
            Checkpoint.at(str(tmp_path), "sink", told)
    assert Checkpoint.at(str(tmp_path), "sink", told) == Checkpoint(tmp_path)
    with pytest.raises(JobError, match="the checkpoint of another job"):
        Checkpoint.at(str(tmp_path), "sink", told | {"key": "upper(key)"})
