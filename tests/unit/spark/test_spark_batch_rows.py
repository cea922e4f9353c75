"""`rows=batches`: what a row says of a stored batch, splits, damage, and the way around it. No Spark."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType

from pyspark_penstock import batch_rows
from pyspark_penstock.batch_rows import BatchDecoder, TellingReader, arrow_schema, describe, spark_schema
from pyspark_penstock.errors import CorruptRecordsError, GatewayError, OptionError
from pyspark_penstock.options import parse_options
from pyspark_penstock.tiling import OffsetRange
from unit.spark.spark_batches import Rec, encode_batch

BASE = {"gateway": "127.0.0.1:9094", "subscribe": "flights", "rows": "batches"}


def recs(first: int, count: int) -> list[Rec]:
    return [Rec(first + i, 1_700_000_000_000 + i, b"k", b"value %d" % i) for i in range(count)]


def marker(offset: int, kind: int) -> bytes:
    record = Rec(offset, 1_700_000_000_000, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 1))
    return encode_batch([record], attributes=0x30)


def chosen(*names: str, **others: DataType) -> StructType:
    fields = {name: batch_rows.COLUMNS[name] for name in names} | others
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def rows(run: bytes, first: int = 0, end: int = 1 << 40, *names: str) -> list[dict[str, Any]]:
    whole = arrow_schema(chosen(*names) if names else spark_schema())
    decoder = BatchDecoder("flights", 3, whole)
    return [row for batch in decoder.decode(run, first, end) for row in batch.to_pylist()]


def test_a_row_says_what_the_header_says() -> None:
    batch = encode_batch(recs(100, 7), codec="zstd", attributes=0x08, last_offset=109)
    (row,) = rows(batch)
    assert list(row) == [
        "partition", "baseOffset", "lastOffset", "records", "bytes", "codec", "timestampType", "baseTimestamp",
        "maxTimestamp", "leaderEpoch", "producerId", "producerEpoch", "baseSequence", "isTransactional", "isControl",
        "crcOk",
    ]  # fmt: skip
    assert row["maxTimestamp"].timestamp() == 1_700_000_000.006
    assert row["baseTimestamp"].timestamp() == 1_700_000_000.0
    del row["maxTimestamp"], row["baseTimestamp"]
    assert row == {
        "partition": 3, "baseOffset": 100, "lastOffset": 109, "records": 7, "bytes": len(batch), "codec": "zstd",
        "timestampType": 1, "leaderEpoch": 0, "producerId": -1, "producerEpoch": -1, "baseSequence": -1,
        "isTransactional": False, "isControl": False, "crcOk": True,
    }  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs_have_names(codec: str) -> None:
    assert rows(encode_batch(recs(0, 3), codec=codec))[0]["codec"] == codec


def test_markers_and_their_kinds() -> None:
    run = marker(5, 0) + marker(6, 1) + encode_batch(recs(7, 1), attributes=0x10)
    found = rows(run, 0, 100, "topic", "isControl", "controlType", "isTransactional")
    assert [tuple(row.values()) for row in found] == [
        ("flights", True, 0, True), ("flights", True, 1, True), ("flights", False, None, True),
    ]  # fmt: skip


def test_a_marker_of_nonsense_has_no_kind() -> None:
    (row,) = rows(encode_batch(recs(0, 1), attributes=0x20), 0, 100, "controlType", "isControl")
    assert row == {"controlType": None, "isControl": True}


def test_a_wrong_byte_is_a_row_and_no_error() -> None:
    good, bad = encode_batch(recs(0, 5)), bytearray(encode_batch(recs(5, 5)))
    bad[-1] ^= 1
    assert [row["crcOk"] for row in rows(good + bytes(bad) + good)] == [True, False, True]


def test_splits_show_each_batch_once() -> None:
    run = b"".join(encode_batch(recs(first, 10)) for first in range(0, 100, 10))
    for cut in range(101):
        found = [row["baseOffset"] for part in ((0, cut), (cut, 100)) for row in rows(run, *part)]
        assert found == list(range(0, 100, 10)), cut


def test_a_log_that_starts_inside_a_batch() -> None:
    assert [row["baseOffset"] for row in rows(encode_batch(recs(0, 10)), 4, 10)] == [0]


@pytest.mark.parametrize("size", [30, 65])
def test_what_is_no_batch_is_an_error(size: int) -> None:
    with pytest.raises(CorruptRecordsError):
        list(describe(encode_batch(recs(0, 5))[:size]))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (chosen(value=StringType()), "no column 'value' with rows=batches"),
        (chosen(baseOffset=IntegerType()), "column 'baseOffset' has type bigint, not int"),
        (StructType(chosen("crcOk").fields * 2), "named twice"),
        (StructType([]), "the schema has no column"),
    ],
)
def test_schemas_refused(schema: StructType, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        arrow_schema(schema)


def test_option() -> None:
    assert parse_options(BASE, streaming=False).batch_rows
    assert not parse_options(BASE | {"rows": "Records"}, streaming=True).batch_rows
    with pytest.raises(OptionError, match="rows=batches is for batch reads"):
        parse_options(BASE, streaming=True)
    with pytest.raises(OptionError, match="option rows is records or batches, not 'many'"):
        parse_options(BASE | {"rows": "many"}, streaming=False)


class Node:
    """Gives batches whole, like FetchRange; damaged ones not at all."""

    def __init__(self, damaged: set[int], error: str = "Kafka error 2, the batch is damaged") -> None:
        self.batches = [(first, encode_batch(recs(first, 10))) for first in range(0, 300, 10)]
        self.damaged = damaged
        self.error = error
        self.reads = 0

    def read(self, wanted: OffsetRange, decoder: BatchDecoder) -> Iterator[Any]:
        self.reads += 1
        first = wanted.start
        for base, data in self.batches:
            if base + 9 < first or base >= wanted.end:
                continue
            if base in self.damaged:
                raise GatewayError(self.error)
            yield from decoder.decode(data, first, wanted.end)
            first = base + 10


def told(
    node: Node, start: int = 0, end: int = 300, patience_s: float = 600.0
) -> list[tuple[int, int, bool]]:
    schema = arrow_schema(chosen("baseOffset", "lastOffset", "unreadable"))
    decoder = BatchDecoder("flights", 0, schema)
    reader = TellingReader(OffsetRange("flights", 0, start, end), decoder, node.read, patience_s)
    found = pa.Table.from_batches(list(reader.batches()), schema=schema).to_pylist()
    return [(row["baseOffset"], row["lastOffset"], row["unreadable"] is None) for row in found]


@pytest.mark.parametrize(
    "damaged", [set(), {0}, {290}, {100}, {100, 110}, {50, 200}, {100, 120}, set(range(0, 300, 10))]
)
def test_a_damaged_batch_is_told_and_the_rest_is_read(damaged: set[int]) -> None:
    node = Node(damaged)
    found = told(node)
    assert [row[:2] for row in found if row[2]] == [
        (at, at + 9) for at in range(0, 300, 10) if at not in damaged
    ]
    lost = {base + i for base in damaged for i in range(10)}
    assert {at for first, last, good in found if not good for at in range(first, last + 1)} == lost
    assert node.reads < 200


def test_a_range_that_starts_inside_a_damaged_batch() -> None:
    assert told(Node({100}), 104, 130) == [(104, 109, False), (110, 119, True), (120, 129, True)]


def test_nobody_answers_for_the_whole_patience() -> None:
    node = Node({100}, "no gateway answers")
    assert told(node, patience_s=0.0)[-1] == (100, 299, False)
    assert node.reads == 2


def test_other_errors_end_the_read() -> None:
    with pytest.raises(GatewayError, match="has no right"):
        told(Node({100}, "Kafka error 29, User:x has no right to READ topic flights"))
