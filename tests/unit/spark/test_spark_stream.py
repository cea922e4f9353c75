"""Offsets of streaming queries: the stored form, how they advance, and the reader without Spark."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from pyspark_penstock import planning
from pyspark_penstock import stream as stream_module
from pyspark_penstock.errors import DataLossError, OptionError, PenstockError
from pyspark_penstock.options import parse_options
from pyspark_penstock.progress import Observed, Progress, advance, unknown
from pyspark_penstock.schema import arrow_schema, spark_schema
from pyspark_penstock.stream import PenstockStreamReader
from unit.spark.spark_memory_gateway import MemoryGateway

SCHEMA = arrow_schema(spark_schema(include_headers=False), include_headers=False)
ALL = ReadAllAvailable()
A, B = b"a" * 16, b"b" * 16


def stored(form: dict[str, Any]) -> dict[str, Any]:
    """As Spark gives it back: through JSON."""
    loaded: dict[str, Any] = json.loads(json.dumps(form))
    return loaded


def test_stored_form() -> None:
    progress = Progress({("t", 0): 5, ("t", 10): 7, ("s", 0): 1}, {"t": A, "s": B}, {("t", 0): 1})
    form = progress.to_json()
    assert list(form) == ["v", "from", "to", "ids"]
    assert form["to"] == {"s": {"0": 1}, "t": {"0": 5, "10": 7}}
    assert form["ids"] == {"s": B.hex(), "t": A.hex()}
    assert Progress.from_json(stored(form)) == progress
    assert json.dumps(Progress.from_json(stored(form)).to_json()) == json.dumps(form)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"v": 2, "to": {}, "ids": {}},
        {"v": 1},
        {"v": 1, "to": {"t": {"x": 1}}, "ids": {}},
        {"v": 1, "to": 3},
    ],
)
def test_forms_that_cannot_be_read(form: dict[str, Any]) -> None:
    with pytest.raises(PenstockError, match="checkpoint"):
        Progress.from_json(form)


def test_the_initial_offset_reads_nothing() -> None:
    assert Progress({("t", 0): 5}, {"t": A}).ranges() == []


offsets = st.dictionaries(
    st.tuples(st.sampled_from("st"), st.integers(0, 3)), st.integers(0, 1000), min_size=1
)


@given(offsets, offsets, st.none() | st.integers(1, 500))
def test_advancing_never_leaves_out_or_goes_back(known: Any, latest: Any, most: int | None) -> None:
    ids = {"s": A, "t": B}
    current = Progress(known, ids, {}, dict.fromkeys(known, 0))
    new = unknown(current, ids, list(latest))
    step = advance(current, Observed(ids, latest, dict.fromkeys(new, 0)), most)
    after = step.progress
    assert after.start is not None
    assert set(after.to) == set(known) | set(latest)
    assert all(after.start[key] == known.get(key, 0) for key in after.to)
    assert all(
        after.start[key] <= after.to[key] <= max(latest.get(key, 0), after.start[key]) for key in after.to
    )
    moved = sum(after.to.values()) - sum(after.start.values())
    assert moved == (step.news if most is None else min(most, step.news))
    gone = [key for key in known if latest.get(key, -1) < known[key]]
    assert len(step.losses) == len(gone)


def test_topic_made_anew_starts_over() -> None:
    current = Progress({("t", 0): 50}, {"t": A}, {})
    assert unknown(current, {"t": B}, [("t", 0)]) == [("t", 0)]
    step = advance(current, Observed({"t": B}, {("t", 0): 8}, {("t", 0): 2}), None)
    assert step.losses == ("t-0 was deleted and made anew; 50 was its next offset",)
    assert [(item.start, item.end, item.topic_id) for item in step.progress.ranges()] == [(2, 8, B)]


def test_new_partition_that_lost_its_beginning() -> None:
    current = Progress({("t", 0): 5}, {"t": A}, {})
    step = advance(current, Observed({"t": A}, {("t", 0): 5, ("t", 1): 9}, {("t", 1): 3}), None)
    assert step.losses == ("t-1 is new but starts at 3, not at 0",)


def test_retention_is_seen_before_the_cap_is_shared_out() -> None:
    current = Progress({("t", 0): 5, ("t", 1): 5}, {"t": A}, {})
    latest = {("t", 0): 205, ("t", 1): 105}
    step = advance(current, Observed({"t": A}, latest, {}, first={("t", 0): 105}), 50)
    assert step.losses == ("t-0: offsets 5 to 104 are gone: the log now starts at 105",)
    assert step.news == 200
    assert [(item.start, item.end) for item in step.progress.ranges()] == [(105, 130), (5, 30)]


def test_after_a_cut_what_is_new_below_the_old_position_is_read() -> None:
    current = Progress({("t", 0): 105}, {"t": A}, {}, {("t", 0): 3})
    seen = Observed({"t": A}, {("t", 0): 120}, {}, epochs={("t", 0): 4}, cuts={("t", 0): 50})
    step = advance(current, seen, None)
    assert step.losses == (
        "t-0: offsets 50 to 104 are gone: the log was cut at 50 and written anew from there",
    )
    assert [(item.start, item.end) for item in step.progress.ranges()] == [(50, 120)]
    assert step.progress.epochs == {("t", 0): 4}


def test_a_log_that_ends_early_waits_for_its_new_records() -> None:
    """Under which epoch it was read stays known, so that they are told from the old ones when they come."""
    current = Progress({("t", 0): 105}, {"t": A}, {}, {("t", 0): 3})
    step = advance(current, Observed({"t": A}, {("t", 0): 50}, {}, epochs={("t", 0): 4}), None)
    assert step.losses == ("t-0: offsets 50 to 104 are gone: the log now ends at 50",)
    assert step.progress.to == {("t", 0): 105}
    assert step.progress.epochs == {("t", 0): 3}
    # A checkpoint of before has no epochs: it goes on from the lower end.
    old = Progress({("t", 0): 105}, {"t": A}, {})
    step = advance(old, Observed({"t": A}, {("t", 0): 50}, {}, epochs={("t", 0): 4}), None)
    assert step.progress.to == {("t", 0): 50}
    assert step.progress.epochs == {("t", 0): 4}


def test_epochs_are_stored_and_old_forms_have_none() -> None:
    progress = Progress({("t", 0): 5}, {"t": A}, {("t", 0): 1}, {("t", 0): 7})
    form = progress.to_json()
    assert form["epochs"] == {"t": {"0": 7}}
    assert Progress.from_json(stored(form)) == progress
    del form["epochs"]
    assert Progress.from_json(stored(form)).epochs == {}


# -- the reader against a real server ---------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGateway]:
    monkeypatch.setattr(stream_module, "TOPICS_AGE_MAX_MS", 0)
    monkeypatch.setattr(stream_module, "REGRESSION_GRACE_MS", 600)
    monkeypatch.setattr(planning, "REGRESSION_GRACE_MS", 0)
    memory = MemoryGateway()
    memory.start()
    memory.create("t", 2)
    memory.append("t", 0, [b"v"] * 100)
    yield memory
    memory.stop()


class Time:
    """The stream's `time`: it passes only where the stream sleeps or the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.sleeps = 0
        self.after_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.sleeps += 1
        self.after_sleep()


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(stream_module, "time", fake)
    return fake


Make = Callable[..., PenstockStreamReader]


@pytest.fixture
def make(cluster: MemoryGateway) -> Make:
    def make_reader(**options: str) -> PenstockStreamReader:
        raw = {"gateway": cluster.addresses[0], "subscribe": "t", "startingOffsets": "earliest"} | options
        return PenstockStreamReader(parse_options(raw, streaming=True), SCHEMA)

    return make_reader


def spans(reader: PenstockStreamReader, end: dict[str, Any]) -> list[tuple[int, int, int]]:
    wanted = [part.wanted for part in reader.partitions({}, stored(end))]  # type: ignore[attr-defined]
    return [(item.partition, item.start, item.end) for item in wanted]


def test_latest_moves_but_nothing_is_lost(cluster: MemoryGateway, make: Make) -> None:
    """The trap: records between two answers of initialOffset, in one process and in the next."""
    reader = make(startingOffsets="latest")
    initial = stored(reader.initialOffset())
    cluster.append("t", 0, [b"v"] * 10)
    assert stored(reader.initialOffset()) == initial
    end = stored(reader.latestOffset(initial, ALL))
    # The query is killed; a new process asks again for where to start and gets another answer.
    cluster.append("t", 0, [b"v"] * 10)
    again = make(startingOffsets="latest")
    assert stored(again.initialOffset()) != initial
    assert spans(again, end) == [(0, 100, 110)]
    after = stored(again.latestOffset(end, ALL))
    assert spans(again, after) == [(0, 110, 120)]


def test_an_idle_start_is_written_down(cluster: MemoryGateway, make: Make) -> None:
    reader = make(startingOffsets="latest")
    initial = stored(reader.initialOffset())
    first = stored(reader.latestOffset(initial, ALL))
    assert first != initial
    assert spans(reader, first) == []
    cluster.append("t", 1, [b"v"] * 3)
    assert spans(reader, stored(make(startingOffsets="latest").latestOffset(first, ALL))) == [(1, 0, 3)]


def test_nothing_new_gives_back_the_start(cluster: MemoryGateway, make: Make) -> None:
    reader = make()
    end = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    assert spans(reader, end) == [(0, 0, 100)]
    cluster.waits_ms.clear()
    assert reader.latestOffset(end, ALL) is end
    assert cluster.waits_ms == [50]
    assert reader.reportLatestOffset()["to"] == {"t": {"0": 100, "1": 0}}  # type: ignore[index]


def test_the_long_poll_ends_with_news(cluster: MemoryGateway, make: Make) -> None:
    reader = make(latestWaitMs="20000")
    end = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    cluster.waits_ms.clear()
    cluster.holds.clear()

    def produce() -> None:
        assert cluster.holds.wait(60)
        cluster.append("t", 1, [b"v"])

    producer = threading.Thread(target=produce)
    producer.start()
    after = reader.latestOffset(end, ALL)
    producer.join()
    assert [wait_ms for wait_ms in cluster.waits_ms if wait_ms] == [20_000]
    assert spans(reader, after) == [(1, 0, 1)]


def test_caps(cluster: MemoryGateway, make: Make) -> None:
    cluster.append("t", 1, [b"v"] * 50)
    reader = make(maxOffsetsPerTrigger="60")
    assert reader.getDefaultReadLimit() == ReadMaxRows(60)
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ReadMaxRows(60)))
    assert spans(reader, at) == [(0, 0, 40), (1, 0, 20)]
    at = stored(reader.latestOffset(at, ALL))
    assert spans(reader, at) == [(0, 40, 100), (1, 20, 50)]


def test_least_per_trigger(cluster: MemoryGateway, fake_time: Time, make: Make) -> None:
    reader = make(minOffsetsPerTrigger="20", maxTriggerDelay="700ms", latestWaitMs="10")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(20)
    at = stored(reader.latestOffset(stored(reader.initialOffset()), limit))
    cluster.append("t", 0, [b"v"] * 5)
    assert reader.latestOffset(at, limit) is at
    cluster.append("t", 0, [b"v"] * 20)
    at = stored(reader.latestOffset(at, limit))
    assert spans(reader, at) == [(0, 100, 125)]
    cluster.append("t", 0, [b"v"])
    assert reader.latestOffset(at, limit) is at
    assert reader.latestOffset(at, ALL) != at
    fake_time.now_s += 0.6875
    assert reader.latestOffset(at, limit) is at
    fake_time.now_s += 0.0625
    assert spans(reader, reader.latestOffset(at, limit)) == [(0, 125, 126)]


def test_the_first_look_after_a_start_does_not_wait_for_more(
    cluster: MemoryGateway, fake_time: Time, make: Make
) -> None:
    """As in the connector, whose clock of maxTriggerDelay begins at 0: what little waited since a stop goes out."""
    options = {"minOffsetsPerTrigger": "20", "maxTriggerDelay": "15m"}
    reader = make(**options)
    limit = reader.getDefaultReadLimit()
    at = stored(reader.latestOffset(stored(reader.initialOffset()), limit))
    cluster.append("t", 0, [b"v"] * 5)
    assert reader.latestOffset(at, limit) is at
    again = make(**options)
    at = stored(again.latestOffset(at, limit))
    assert spans(again, at) == [(0, 100, 105)]
    cluster.append("t", 0, [b"v"] * 5)
    assert again.latestOffset(at, limit) is at
    # A first look that finds nothing starts the clock too.
    end = stored(make(**options).latestOffset(at, limit))
    third = make(**options, latestWaitMs="0")
    assert third.latestOffset(end, limit) is end
    cluster.append("t", 0, [b"v"])
    assert third.latestOffset(end, limit) is end
    fake_time.now_s += 15 * 60
    assert spans(third, stored(third.latestOffset(end, limit))) == [(0, 110, 111)]


def test_available_now_stops_at_the_frozen_end(cluster: MemoryGateway, make: Make) -> None:
    reader = make(maxOffsetsPerTrigger="70", minOffsetsPerTrigger="50")
    reader.prepareForTriggerAvailableNow()
    cluster.append("t", 0, [b"v"] * 500)
    cluster.create("other", 1)
    at, seen = stored(reader.initialOffset()), []
    while True:
        after = stored(reader.latestOffset(at, ReadMaxRows(70)))
        if after == at:
            break
        seen += spans(reader, after)
        at = after
    assert seen == [(0, 0, 70), (0, 70, 100)]


def test_available_now_on_nothing(make: Make) -> None:
    reader = make(startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    assert spans(reader, at) == []
    assert reader.latestOffset(at, ALL) is at


def test_new_partitions_and_topics_start_at_earliest(cluster: MemoryGateway, make: Make) -> None:
    raw = {"gateway": cluster.addresses[0], "subscribePattern": "t.*"}
    reader = PenstockStreamReader(parse_options(raw, streaming=True), SCHEMA)
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    assert spans(reader, at) == []
    cluster.create("t2", 1)
    cluster.append("t2", 0, [b"v"] * 7)
    cluster.topics["t"].logs.append(type(cluster.topics["t"].logs[0])())
    cluster.append("t", 2, [b"v"] * 4)
    assert spans(reader, reader.latestOffset(at, ALL)) == [(2, 0, 4), (0, 0, 7)]


def test_a_topic_that_goes_away(cluster: MemoryGateway, make: Make) -> None:
    strict, lenient = make(), make(failOnDataLoss="false")
    at = stored(strict.latestOffset(stored(strict.initialOffset()), ALL))
    old = cluster.topics.pop("t")
    with pytest.raises(DataLossError, match="t"):
        strict.latestOffset(at, ALL)
    assert lenient.latestOffset(at, ALL) is at
    cluster.create("t", 2)
    cluster.append("t", 1, [b"v"] * 3)
    with pytest.raises(DataLossError, match="made anew"):
        strict.latestOffset(at, ALL)
    after = stored(lenient.latestOffset(at, ALL))
    assert spans(lenient, after) == [(1, 0, 3)]
    assert after["ids"]["t"] == cluster.topics["t"].topic_id.hex() != old.topic_id.hex()


def test_a_high_watermark_that_lags_is_no_loss(cluster: MemoryGateway, fake_time: Time, make: Make) -> None:
    reader = make()
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    cluster.latest_shift = -30

    def catch_up() -> None:
        if fake_time.sleeps == 3:
            cluster.latest_shift = 0

    fake_time.after_sleep = catch_up
    assert reader.latestOffset(at, ALL) is at
    assert fake_time.sleeps == 3
    cluster.latest_shift = -30
    began_s = fake_time.now_s
    with pytest.raises(DataLossError, match="offsets 70 to 99 are gone: the log now ends at 70"):
        reader.latestOffset(at, ALL)
    assert fake_time.now_s - began_s == pytest.approx(0.6, abs=0.11)  # all of its grace
    lenient = make(failOnDataLoss="false")
    assert lenient.latestOffset(at, ALL) is at
    # It waited once, and does not again.
    sleeps = fake_time.sleeps
    assert lenient.latestOffset(at, ALL) is at
    assert fake_time.sleeps == sleeps


def test_a_partition_that_came_back_is_waited_for_again(
    cluster: MemoryGateway, fake_time: Time, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    lenient = make(failOnDataLoss="false")
    at = stored(lenient.latestOffset(stored(lenient.initialOffset()), ALL))
    cluster.latest_shift = -30
    assert lenient.latestOffset(at, ALL) is at  # believed, after all of its grace
    cluster.latest_shift = 0
    cluster.append("t", 0, [b"v"] * 10)
    at = stored(lenient.latestOffset(at, ALL))
    assert spans(lenient, at) == [(0, 100, 110)]
    # The next leader's high watermark lags for a moment.
    cluster.latest_shift = -30
    fake_time.sleeps = 0

    def catch_up() -> None:
        if fake_time.sleeps == 3:
            cluster.latest_shift = 0

    fake_time.after_sleep = catch_up
    caplog.clear()
    assert lenient.latestOffset(at, ALL) is at
    assert fake_time.sleeps == 3
    assert "are gone" not in caplog.text


def test_a_log_cut_and_written_anew(cluster: MemoryGateway, make: Make) -> None:
    """All new records are read: those below the old position, and where the log grew past it between two looks."""
    strict, lenient = make(), make(failOnDataLoss="false")
    at = stored(strict.latestOffset(stored(strict.initialOffset()), ALL))
    assert at["epochs"] == {"t": {"0": 0, "1": 0}}
    cluster.append("t", 0, [b"v"] * 100)
    at = stored(strict.latestOffset(at, ALL))
    cluster.cut("t", 0, 100)
    cluster.append("t", 0, [b"v"] * 150)
    gone = r"t-0: offsets 100 to 199 are gone: the log was cut at 100 and written anew"
    with pytest.raises(DataLossError, match=gone):
        strict.latestOffset(at, ALL)
    after = stored(lenient.latestOffset(at, ALL))
    assert spans(lenient, after) == [(0, 100, 250)]
    assert after["epochs"]["t"]["0"] == 1
    assert lenient.latestOffset(after, ALL) is after


def test_a_log_cut_to_where_it_then_ends_just_as_before(cluster: MemoryGateway, make: Make) -> None:
    lenient = make(failOnDataLoss="false")
    at = stored(lenient.latestOffset(stored(lenient.initialOffset()), ALL))
    cluster.cut("t", 0, 0)
    cluster.append("t", 0, [b"v"] * 100)
    after = stored(lenient.latestOffset(at, ALL))
    assert after != at
    assert spans(lenient, after) == [(0, 0, 100)]


def test_a_log_cut_and_slowly_written_anew(cluster: MemoryGateway, fake_time: Time, make: Make) -> None:
    lenient = make(failOnDataLoss="false")
    at = stored(lenient.latestOffset(stored(lenient.initialOffset()), ALL))
    cluster.cut("t", 0, 0)
    assert lenient.latestOffset(at, ALL) is at  # nothing there yet
    cluster.append("t", 0, [b"v"] * 40)
    after = stored(lenient.latestOffset(at, ALL))
    assert spans(lenient, after) == [(0, 0, 40)]
    cluster.append("t", 0, [b"v"] * 80)
    last = stored(lenient.latestOffset(after, ALL))
    assert spans(lenient, last) == [(0, 40, 120)]


def test_a_new_leader_with_the_whole_log_is_asked_once(cluster: MemoryGateway, make: Make) -> None:
    reader = make()
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    cluster.topics["t"].logs[0].epoch += 1
    cluster.calls.clear()
    assert reader.latestOffset(at, ALL) is at
    assert reader.latestOffset(at, ALL) is at
    assert [call for call in cluster.calls if call.startswith("FetchRange")] == ["FetchRange 99"]
    cluster.append("t", 0, [b"v"])
    after = stored(reader.latestOffset(at, ALL))
    assert spans(reader, after) == [(0, 100, 101)]
    assert after["epochs"]["t"]["0"] == 1


def test_retention_under_a_stream_is_told_by_the_driver(
    cluster: MemoryGateway, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = make(), make(failOnDataLoss="false", maxOffsetsPerTrigger="50")
    at = stored(strict.latestOffset(stored(strict.initialOffset()), ALL))
    cluster.append("t", 0, [b"v"] * 200)
    cluster.trim("t", 0, 200)
    with pytest.raises(DataLossError, match="t-0: offsets 100 to 199 are gone: the log now starts at 200"):
        strict.latestOffset(at, ALL)
    after = stored(lenient.latestOffset(at, ReadMaxRows(50)))
    assert spans(lenient, after) == [(0, 200, 250)]
    assert "offsets 100 to 199 are gone" in caplog.text


def test_what_went_before_a_planned_batch_is_read_again_is_told_by_the_driver(
    cluster: MemoryGateway, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The query stopped between plan and commit: its checkpoint has the range, retention the records."""
    first = make(failOnDataLoss="false")
    end = stored(first.latestOffset(stored(first.initialOffset()), ALL))
    cluster.calls.clear()
    assert spans(first, end) == [(0, 0, 100)]
    assert cluster.calls == []  # its own plan, a moment old
    cluster.append("t", 0, [b"v"] * 100)
    cluster.trim("t", 0, 60)
    lenient, strict = make(failOnDataLoss="false"), make()
    assert spans(lenient, end) == [(0, 60, 100)]
    assert "t-0: offsets 0 to 59 are gone: the log now starts at 60" in caplog.text
    with pytest.raises(DataLossError, match="t-0: offsets 0 to 59 are gone"):
        strict.partitions({}, end)
    cluster.trim("t", 0, 150)
    assert spans(make(failOnDataLoss="false"), end) == []
    # A topic that is gone is for the task to make sure of: a gateway may be behind.
    del cluster.topics["t"]
    assert spans(make(failOnDataLoss="false"), end) == [(0, 0, 100)]


def test_an_idle_stream_asks_for_nothing_but_news(cluster: MemoryGateway, make: Make) -> None:
    reader = make()
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    cluster.calls.clear()
    reader.latestOffset(at, ALL)
    assert cluster.calls.count("ListOffsets") == 1


def test_available_now_goes_on_without_a_topic_that_is_gone(
    cluster: MemoryGateway, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("u", 1)
    cluster.append("u", 0, [b"v"] * 10)
    first = make(subscribe="t,u")
    at = stored(first.latestOffset(stored(first.initialOffset()), ALL))
    del cluster.topics["u"]
    cluster.append("t", 1, [b"v"] * 3)
    lenient = make(subscribe="t,u", failOnDataLoss="false")
    lenient.prepareForTriggerAvailableNow()
    after = stored(lenient.latestOffset(at, ALL))
    assert spans(lenient, after) == [(1, 0, 3)]
    assert lenient.latestOffset(after, ALL) is after
    assert "u" in caplog.text
    # The first batch was not committed: Spark asks again where to start.
    assert set(make(subscribe="t,u", failOnDataLoss="false").initialOffset()["to"]) == {"t"}
    with pytest.raises(OptionError, match="no such topic"):
        make(subscribe="u,w", failOnDataLoss="false").initialOffset()


@pytest.mark.parametrize("available_now", [True, False])
def test_a_query_that_ends_for_a_topic_says_where_it_was(
    cluster: MemoryGateway, make: Make, available_now: bool
) -> None:
    """Deleted before it starts again, or while it runs; a topic that it knows nothing of may as well be misspelt."""
    cluster.create("u", 1)
    cluster.append("u", 0, [b"v"] * 10)
    reader = make(subscribe="t,u")
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    del cluster.topics["u"]
    cases: list[tuple[str, type[PenstockError], str]] = [
        (
            "t,u",
            DataLossError,
            '^u-0 was deleted; 10 was its next offset; set option."failOnDataLoss", "false".',
        ),
        ("t,w", OptionError, "^no such topic or partition: w; create it first"),
        ("u", DataLossError, "u-0 was deleted; 10 was its next offset"),
    ]
    for topics, kind, match in cases:
        started = make(subscribe=topics)
        if available_now:
            started.prepareForTriggerAvailableNow()
        position = at if "u" in topics else stored({**at, "to": {"t": at["to"]["t"]}})
        for _ in range(2):  # also when it is asked again
            with pytest.raises(kind, match=match):
                started.latestOffset(position, ALL)
    # Of a new query nobody knows a position.
    started = make(subscribe="t,w")
    if available_now:
        started.prepareForTriggerAvailableNow()
    with pytest.raises(OptionError, match="no such topic or partition: w"):
        started.initialOffset()


def test_given_starts_must_exist(make: Make) -> None:
    with pytest.raises(DataLossError, match=r"outside 0\.\.100"):
        make(startingOffsets='{"t":{"0":101,"1":-1}}').initialOffset()
    lenient = make(startingOffsets='{"t":{"0":101,"1":-1}}', failOnDataLoss="false")
    assert lenient.initialOffset()["to"] == {"t": {"0": 100, "1": 0}}
    with pytest.raises(OptionError, match="no such topic"):
        make(subscribe="absent").initialOffset()


def test_readers_pickle_without_state(make: Make) -> None:
    reader = make()
    end = reader.latestOffset(reader.initialOffset(), ALL)
    copy = pickle.loads(pickle.dumps(reader))
    assert len(pickle.dumps(reader)) < 3000
    rows = [batch.num_rows for part in reader.partitions({}, end) for batch in copy.read(part)]
    assert sum(rows) == 100


# -- sizes, epochs and groups, asked of a gateway -------------------------------------------------


def reader_at(memory: MemoryGateway, **options: str) -> PenstockStreamReader:
    raw = {"gateway": ",".join(memory.addresses), "subscribe": "t", "startingOffsets": "earliest"} | options
    return PenstockStreamReader(parse_options(raw, streaming=True), SCHEMA)


def drained(reader: PenstockStreamReader) -> list[dict[str, Any]]:
    """All ends of a query that runs until nothing is left."""
    found = [stored(reader.initialOffset())]
    while True:
        end = stored(reader.latestOffset(found[-1], ALL))
        if end == found[-1]:
            return found
        found.append(end)


def test_a_micro_batch_stays_within_its_bytes(cluster: MemoryGateway) -> None:
    cluster.create("t", 2)
    for part in (0, 1):
        cluster.append("t", part, [b"x" * 1_000] * 300, size=10)
    cluster.knows_sizes = True
    steps = drained(reader_at(cluster, maxBytesPerTrigger="100000"))
    assert len(steps) > 6
    assert steps[-1]["to"] == {"t": {"0": 300, "1": 300}}
    one = len(cluster.topics["t"].logs[0].batches[0][2])
    for step in steps[1:]:
        moved = sum(step["to"]["t"][part] - step["from"]["t"][part] for part in "01")
        assert 0 < moved // 10 * one <= 100_000
    both = drained(reader_at(cluster, maxBytesPerTrigger="100000"))
    assert both == steps
    cluster.knows_sizes = False
    assert len(drained(reader_at(cluster, maxBytesPerTrigger="100000"))) == 2


def test_ends_of_epochs_are_asked_where_they_are_known(cluster: MemoryGateway) -> None:
    cluster.create("t")
    cluster.append("t", 0, [b"x"] * 100, size=10)
    cluster.knows_epochs = True
    reader = reader_at(cluster, failOnDataLoss="false")
    last = drained(reader)[-1]
    cluster.cut("t", 0, 50)
    cluster.append("t", 0, [b"y"] * 100, size=10)
    cluster.calls.clear()
    after = stored(reader.latestOffset(last, ALL))
    assert (after["from"], after["to"]) == ({"t": {"0": 50}}, {"t": {"0": 150}})
    assert "EpochEnds" in cluster.calls
    assert not [call for call in cluster.calls if call.startswith("FetchRange")]


def test_progress_is_committed_to_the_group(cluster: MemoryGateway) -> None:
    cluster.create("t", 2)
    cluster.append("t", 0, [b"x"] * 30)
    reader = reader_at(cluster, commitGroupId="g")
    steps = drained(reader)
    reader.stop()
    [request] = cluster.commits
    assert request.group == "g"
    assert {(each.topic, each.partition): each.offset for each in request.offsets} == {
        ("t", 0): 30,
        ("t", 1): 0,
    }
    assert {each.metadata for each in request.offsets} == {f"spark {steps[-1]['query']} 0"}
    cluster.append("t", 0, [b"x"] * 5)
    again = reader_at(cluster, commitGroupId="g")
    end = stored(again.latestOffset(steps[-1], ALL))
    assert (end["query"], end["batch"]) == (steps[-1]["query"], 1)
    again.latestOffset(end, ALL)
    again.stop()
    assert cluster.group["t", 0] == 35
    assert cluster.commits[-1].offsets[0].metadata == f"spark {end['query']} 1"


def test_a_new_query_goes_on_where_the_group_is(cluster: MemoryGateway) -> None:
    cluster.create("t", 2)
    cluster.append("t", 0, [b"x"] * 30)
    cluster.append("t", 1, [b"x"] * 30)
    cluster.group["t", 1] = 12
    reader = reader_at(cluster, commitGroupId="g", startingOffsets="group")
    assert reader.initialOffset()["to"] == {"t": {"0": 0, "1": 12}}
    cluster.group["t", 1] = 40
    late = reader_at(cluster, commitGroupId="g", startingOffsets="group")
    with pytest.raises(DataLossError, match=r"t-1: start 40 is outside 0\.\.30"):
        late.initialOffset()


def test_a_group_to_start_at_must_be_named() -> None:
    raw = {"gateway": "h:1", "subscribe": "t", "startingOffsets": "group"}
    with pytest.raises(OptionError, match="needs option commitGroupId"):
        parse_options(raw, streaming=True)
    with pytest.raises(OptionError, match="for streaming queries"):
        parse_options(raw | {"commitGroupId": "g"}, streaming=False)


@pytest.mark.parametrize("what", ["gone", "made anew", "new", "more partitions"])
def test_what_becomes_of_topics_between_the_freeze_and_the_start_ends_no_query(
    cluster: MemoryGateway, what: str
) -> None:
    """Spark asks for the start some time after it had the ends frozen, and topics are listed anew then."""
    cluster.create("t2", 1)
    cluster.append("t2", 0, [b"v"] * 7)
    raw = {"gateway": cluster.addresses[0], "subscribePattern": "t.*", "startingOffsets": "earliest"}
    reader = PenstockStreamReader(parse_options(raw, streaming=True), SCHEMA)
    reader.prepareForTriggerAvailableNow()
    if what == "gone":
        del cluster.topics["t2"]
    elif what == "made anew":
        cluster.create("t2", 1)
    elif what == "new":
        cluster.create("t3", 1)
        cluster.append("t3", 0, [b"v"] * 5)
    else:
        cluster.topics["t2"].logs.append(type(cluster.topics["t2"].logs[0])())
        cluster.append("t2", 1, [b"v"] * 5)
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    left = [(0, 0, 7)] if what in ("new", "more partitions") else []
    assert spans(reader, at) == [(0, 0, 100), *left]
    assert reader.latestOffset(at, ALL) is at


def test_where_there_is_room_for_one_batch_each_partition_has_its_turn(cluster: MemoryGateway) -> None:
    """Batches of as many records everywhere: sums of offsets would choose the same partition again and again."""
    cluster.create("t", 2)
    for part in (0, 1):
        cluster.append("t", part, [b"x"] * 100, size=10)
    cluster.knows_sizes = True
    steps = drained(reader_at(cluster, maxBytesPerTrigger="1"))
    assert len(steps) == 21
    for step in steps[2::2]:
        assert len(set(step["to"]["t"].values())) == 1


def test_a_log_cut_and_written_anew_before_a_planned_batch_is_read_gives_each_new_record_once(
    cluster: MemoryGateway, make: Make
) -> None:
    reader = make(failOnDataLoss="false")
    end = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    cluster.cut("t", 0, 0)
    cluster.append("t", 0, [b"new"] * 140, size=20)
    seen: list[int] = []
    for _ in range(2):
        for part in reader.partitions({}, end):
            seen += [offset for batch in reader.read(part) for offset in batch.column("offset").to_pylist()]
        end = stored(reader.latestOffset(end, ALL))
    assert sorted(seen) == list(range(140))


def test_a_second_leader_while_the_first_lags_is_told_with_its_epoch(
    cluster: MemoryGateway, fake_time: Time, make: Make
) -> None:
    """What it has written is of its epoch, not of the one in which the log seemed to end early."""
    reader = make()
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    cluster.topics["t"].logs[0].epoch = 1
    cluster.latest_shift = -40

    def elected() -> None:
        cluster.topics["t"].logs[0].epoch = 2
        cluster.latest_shift = 0
        cluster.append("t", 0, [b"v"] * 10)
        fake_time.after_sleep = lambda: None

    fake_time.after_sleep = elected
    at = stored(reader.latestOffset(at, ALL))
    assert (at["to"]["t"]["0"], at["epochs"]["t"]["0"]) == (110, 2)
    assert reader.latestOffset(at, ALL) is at


def test_progress_is_committed_by_gateways_that_were_learned(cluster: MemoryGateway) -> None:
    """The configured one may go when the query has begun."""
    configured = cluster.addresses[0]
    cluster.start()
    raw = {"gateway": configured, "subscribe": "t", "startingOffsets": "earliest", "commitGroupId": "g"}
    reader = PenstockStreamReader(parse_options(raw, streaming=True), SCHEMA)
    at = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
    cluster.stop_one(0)
    assert reader.latestOffset(at, ALL) is at
    assert reader._commits is not None
    reader._commits.settle(60)
    assert cluster.group["t", 0] == 100
