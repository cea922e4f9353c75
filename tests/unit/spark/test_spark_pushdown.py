"""Filters that leave out what is read, and never a row of the answer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from pyspark_penstock.gateway import GatewayClient
from pyspark_penstock.options import parse_options
from pyspark_penstock.planning import batch_ranges
from pyspark_penstock.pushdown import narrow
from pyspark_penstock.reader import FilteringReader, PenstockReader, batch_reader
from pyspark_penstock.schema import arrow_schema, spark_schema
from unit.spark.spark_memory_gateway import MemoryGateway

HOLDS: dict[type, Any] = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    In: lambda a, b: a in b,
}
ONE = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(["topic", "partition", "offset"]))
    value = st.sampled_from("tuv") if column == "topic" else st.integers(-2, 12)
    if draw(st.booleans()):
        return In((column,), tuple(draw(st.lists(value, min_size=1, max_size=3))))
    kinds = (EqualTo,) if column == "topic" else ONE
    made: Filter = draw(st.sampled_from(kinds))((column,), draw(value))
    return Not(made) if draw(st.integers(0, 5)) == 0 else made


def holds(one: Filter, row: dict[str, Any]) -> bool:
    if isinstance(one, Not):
        return not holds(one.child, row)
    answer: bool = HOLDS[type(one)](row[one.attribute[0]], one.value)  # type: ignore[attr-defined]
    return answer


@given(st.lists(filters(), max_size=4))
def test_no_row_of_the_answer_is_left_out(some: list[Filter]) -> None:
    found = narrow(some)
    for topic in "tu":
        for partition in range(4):
            start, end = found.clip(0, 10)
            taken = set(range(start, end)) if found.takes(topic, partition) else set()
            for offset in range(10):
                row = {"topic": topic, "partition": partition, "offset": offset}
                if all(holds(one, row) for one in some):
                    assert offset in taken
                elif not any(isinstance(one, Not | In) for one in some):
                    assert offset not in taken


def test_what_is_not_certain_is_left_alone() -> None:
    some: list[Filter] = [
        IsNotNull(("offset",)),
        EqualNullSafe(("partition",), 1),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "k"),
        LessThan(("timestamp",), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        GreaterThan(("timestamp",), dt.datetime(2020, 1, 1)),  # noqa: DTZ001 # of no zone
        In(("partition",), ("1", None)),
    ]
    assert narrow(some) == narrow([])


@pytest.mark.parametrize(
    ("kind", "micros", "least_ms"),
    [
        (GreaterThanOrEqual, 5_000, 5),
        (GreaterThanOrEqual, 5_001, 6),
        (GreaterThan, 5_000, 6),
        (GreaterThan, 5_999, 6),
        (EqualTo, 5_000, 5),
    ],
)
def test_times_are_cut_to_whole_ms(kind: Any, micros: int, least_ms: int) -> None:
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    assert narrow([kind(("timestamp",), at)]).time_min_ms == least_ms


@pytest.fixture
def cluster() -> Iterator[MemoryGateway]:
    memory = MemoryGateway()
    memory.start()
    memory.create("t", 2)
    for stamp in (1000, 3000, 2000, 4000):  # times need not be in order
        memory.append("t", 0, [b"v"] * 10, timestamp_ms=stamp)
    memory.append("t", 1, [b"v"] * 10, timestamp_ms=1000)
    yield memory
    memory.stop()


def test_ranges_are_planned_for_what_is_left(cluster: MemoryGateway) -> None:
    options = parse_options(
        {"gateway": cluster.addresses[0], "subscribe": "t", "pushdown": "true"}, streaming=False
    )
    client = GatewayClient.of(options)

    def ranges(*some: Filter) -> list[tuple[int, int, int]]:
        return [(r.partition, r.start, r.end) for r in batch_ranges(client, options, narrow(some))]

    assert ranges() == [(0, 0, 40), (1, 0, 10)]
    assert ranges(GreaterThan(("offset",), 6), LessThan(("offset",), 20)) == [(0, 7, 20), (1, 7, 10)]
    assert ranges(EqualTo(("partition",), 1)) == [(1, 0, 10)]
    assert ranges(EqualTo(("topic",), "u")) == []
    late = dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC)
    # From the first record that is as late on, the older ones behind it too.
    assert ranges(GreaterThanOrEqual(("timestamp",), late)) == [(0, 10, 40)]
    assert ranges(GreaterThanOrEqual(("timestamp",), late), LessThan(("offset",), 10)) == []


def test_the_reader_takes_filters_only_when_asked_to(cluster: MemoryGateway) -> None:
    """While Spark's switch is off, a reader that merely has the method is refused."""
    schema = arrow_schema(spark_schema(include_headers=False), include_headers=False)
    raw = {"gateway": cluster.addresses[0], "subscribe": "t"}
    assert type(batch_reader(parse_options(raw, streaming=False), schema)) is PenstockReader
    reader = batch_reader(parse_options(raw | {"pushdown": "true"}, streaming=False), schema)
    assert isinstance(reader, FilteringReader)
    some: list[Filter] = [EqualTo(("partition",), 1)]
    assert list(reader.pushFilters(some)) == some
    assert [part.wanted.partition for part in reader.partitions()] == [1]  # type: ignore[attr-defined]
