"""LogData: what is known of a log, without any disk, and what `validate` finds wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import InvariantBroken, PenstockError
from penstock_kafka.records.batch import read_header
from penstock_storage_node.log.epochs import LeaderEpochs
from penstock_storage_node.log.index import IndexHeads
from penstock_storage_node.log.producer_state import ProducerState
from penstock_storage_node.log.segment import Segment
from penstock_storage_node.log.state import Appended, LogData, LogIdentity, LogState, Recovered
from unit.storage_node.log.log_model import NOW_MS, SMALL, TOPIC_ID, filled, make_batch


def new_data(settings: TopicConfig = SMALL, *, at: int = 0) -> LogData:
    """The state of an empty log that begins at an offset."""
    heads = IndexHeads()
    first = Segment("/nowhere", at, heads, NOW_MS)
    recovered = Recovered(
        (first,), LeaderEpochs(), ProducerState(), at, at, was_scanned=False, flush_point=at
    )
    identity = LogIdentity("t", 0, TOPIC_ID)
    return LogData(
        identity,
        "/nowhere",
        settings,
        recovered,
        heads=heads,
        clock_ms=lambda: NOW_MS,
        idle_clock_ms=lambda: NOW_MS,
    )


def stage(data: LogData, count: int = 1) -> Appended:
    batch = make_batch(count)
    staged = data.append_as_leader(batch, read_header(batch), 0)
    assert isinstance(staged, Appended)
    return staged


def test_appending_and_rolling_need_no_disk() -> None:
    data = new_data(at=40)
    sizes = [stage(data, 2).size_bytes for _ in range(20)]
    data.validate()
    assert (data.start, data.written, data.end) == (40, 40, 80)
    assert data.staged_bytes == data.size_bytes == sum(sizes)
    assert len(data.segments) > 2
    assert [chunk.segment for chunk in data.staged if chunk.segment is data.segments[1]]
    assert data.segment_of(79) is data.segments[-1]
    assert data.end_of(data.segments[0]) == data.segments[1].base_offset
    assert data.checkpoint() == 40


@pytest.mark.parametrize(
    ("state", "words"), [(LogState.FULL, "full"), (LogState.FAILED, "failed"), (LogState.CLOSED, "closed")]
)
def test_a_log_that_is_not_ok_says_why_it_takes_nothing(state: LogState, words: str) -> None:
    data = new_data()
    data.state = state
    with pytest.raises(PenstockError, match=words):
        stage(data)


def test_segments_that_were_let_go_take_their_unflushed_part_along() -> None:
    data = new_data()
    for _ in range(30):
        stage(data, 2)
    data.unflushed = list(data.segments)
    gone = data.segments[:2]
    data.let_go(gone)
    assert data.start == data.segments[0].base_offset > 0
    assert list(data.leaving.values()) == list(gone)
    assert data.unflushed == list(data.segments)


def swap_first_two(data: LogData) -> None:
    first, second, *rest = data.segments
    data.segments = (second, first, *rest)
    data.start = data.written


def take_a_staged_batch(data: LogData) -> None:
    del data.staged[0]


def note_more_staged_bytes(data: LogData) -> None:
    data.staged_bytes += 1


def write_beyond_the_end(data: LogData) -> None:
    data.written = data.end + 1


def flush_beyond_what_is_written(data: LogData) -> None:
    data.flushed = data.written + 1


def start_beyond_the_end(data: LogData) -> None:
    data.start = data.end + 1


def start_before_the_files(data: LogData) -> None:
    data.start = data.segments[0].base_offset - 1


def forget_what_is_staged(data: LogData) -> None:
    data.staged = []


def end_before_the_last_segment(data: LogData) -> None:
    data.staged, data.staged_bytes = [], 0
    data.start = data.flushed = data.written = data.end = data.segments[-1].base_offset - 1


def stage_for_a_segment_that_is_gone(data: LogData) -> None:
    data.staged[-1] = replace(data.staged[-1], segment=Segment("/nowhere", 1000, IndexHeads(), NOW_MS))


def write_more_than_there_is(data: LogData) -> None:
    data.segments[0].written = data.segments[0].size + 1


BREAKS: list[Callable[[LogData], None]] = [
    swap_first_two,
    take_a_staged_batch,
    note_more_staged_bytes,
    write_beyond_the_end,
    flush_beyond_what_is_written,
    start_beyond_the_end,
    start_before_the_files,
    forget_what_is_staged,
    end_before_the_last_segment,
    stage_for_a_segment_that_is_gone,
    write_more_than_there_is,
]


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda each: each.__name__)
def test_a_contradiction_is_found(break_it: Callable[[LogData], None]) -> None:
    log, _ = filled(40)
    log.validate()
    assert log._data.staged and log.segment_count > 3
    break_it(log._data)
    with pytest.raises(InvariantBroken):
        log.validate()


def test_a_log_that_failed_promises_nothing() -> None:
    log, _ = filled(40)
    note_more_staged_bytes(log._data)
    log._data.state = LogState.FAILED
    log.validate()
