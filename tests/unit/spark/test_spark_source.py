"""The data source as Spark calls it: what is refused when, in words that arrive."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow

from pyspark_penstock import DefaultSource
from pyspark_penstock.errors import OptionError
from pyspark_penstock.schema import spark_schema

BASE = {"gateway": "127.0.0.1:9", "subscribe": "flights"}
SCHEMA = spark_schema(include_headers=False)
REFUSED_STREAMS = [
    ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive, not 0"),
    ({"endingTimestamp": "1"}, "endingTimestamp is not valid in streaming"),
    ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "higher than maxOffsetsPerTrigger"),
    ({"failOnDataLos": "true"}, "unknown option failondatalos"),
]


@pytest.mark.parametrize(("options", "text"), REFUSED_STREAMS)
def test_a_refused_stream_says_so_at_its_first_call(options: dict[str, str], text: str) -> None:
    """PySpark's runner calls `reader.stop()` on the way out, and has no reader when streamReader() raised:
    its own UnboundLocalError would be the last line that the user sees."""
    reader: Any = DefaultSource(BASE | options).streamReader(SCHEMA)
    assert isinstance(reader, DataSourceStreamReader)
    assert isinstance(reader, SupportsTriggerAvailableNow)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("initialOffset", ()),
        ("latestOffset", ({}, ReadAllAvailable())),
        ("getDefaultReadLimit", ()),
        ("prepareForTriggerAvailableNow", ()),
        ("partitions", ({}, {})),
        ("reportLatestOffset", ()),
    ]
    for name, arguments in calls:
        with pytest.raises(OptionError, match=text):
            getattr(reader, name)(*arguments)
    reader.stop()


def test_a_schema_that_a_stream_cannot_have_is_told_likewise() -> None:
    schema = spark_schema(include_headers=False).add("payload", "binary")
    reader: Any = DefaultSource(BASE).streamReader(schema)
    with pytest.raises(OptionError, match="no column 'payload'"):
        reader.initialOffset()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"failOnDataLos": "true"}, "unknown option"),
        ({"assign": '{"t":[0]}'}, "Only one of"),
        ({"maxOffsetsPerTrigger": "0"}, "must be positive"),
        ({"includeHeaders": "maybe"}, "true or false"),
    ],
)
def test_what_holds_for_batch_and_stream_is_refused_at_load(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        DefaultSource(BASE | options).schema()


def test_what_only_one_of_them_takes_is_not_refused_at_load() -> None:
    for options in ({"startingOffsets": "latest"}, {"endingTimestamp": "5"}):
        assert DefaultSource(BASE | options).schema() == SCHEMA
