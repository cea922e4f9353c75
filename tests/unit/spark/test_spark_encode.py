"""The vectorised encoder against an encoder and a decoder in plain Python, and Kafka's hash of keys."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.config.topic import TopicConfig
from penstock_kafka.records.check import accept_produced
from pyspark_penstock.encode import (
    CODECS,
    Placing,
    Rows,
    Sequences,
    encode_batches,
    header_tails,
    murmur2,
    split,
)
from pyspark_penstock.errors import RowError
from unit.spark.spark_batches import HEADER, Rec, decode_plainly, encode_batch

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FAR = 1 << 62

PUBLISHED = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""Of Kafka's UtilsTest.testMurmur2."""

binaries = st.one_of(
    st.none(), st.binary(max_size=40), st.binary(min_size=60, max_size=70).map(lambda b: b * 130)
)
headers = st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=5), binaries), max_size=5))
times = st.integers(-(1 << 50), 1 << 50) | st.integers(1_700_000_000_000, 1_700_000_100_000)
records = st.lists(st.tuples(binaries, binaries, times, headers, st.integers(0, 4)), min_size=1, max_size=60)


def producer_of(batch: bytes) -> tuple[int, ...]:
    """Attributes, producer id, epoch, first sequence, records."""
    header = HEADER.unpack_from(batch)
    return header[5], *header[9:13]


def plain_murmur2(data: bytes) -> int:
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    for at in range(0, len(data) & ~3, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = h * m & mask ^ (k ^ k >> 24) * m & mask
    rest = data[len(data) & ~3 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def rows_of(given: list[Any]) -> Rows:
    lists = [None if item[3] is None else [{"key": k, "value": v} for k, v in item[3]] for item in given]
    return Rows(
        pa.array([item[0] for item in given], pa.binary()),
        pa.array([item[1] for item in given], pa.binary()),
        np.array([item[2] for item in given], np.int64),
        header_tails(pa.array(lists, HEADERS)),
    )


def read(batch: bytes, partition: int = 0) -> list[tuple[Any, ...]]:
    return [
        (row["key"], row["value"], row["timestamp"], [(h["key"], h["value"]) for h in row["headers"] or []])
        for row in decode_plainly(batch, "t", partition, 0, FAR)
    ]


@settings(deadline=None)
@given(records, st.sampled_from(sorted(CODECS)), st.sampled_from([100, 1000, 20_000, 1_000_000]))
def test_what_is_encoded_is_read_back(rows: list[Any], codec: str, batch_bytes: int) -> None:
    partitions = np.array([row[4] for row in rows], np.int64)
    found: dict[int, list[Any]] = {}
    for batch in encode_batches(rows_of(rows), partitions, codec=codec, batch_bytes=batch_bytes):
        back = read(batch.records)
        assert len(back) == batch.count
        assert batch.count == 1 or codec != "none" or len(batch.records) <= batch_bytes
        found.setdefault(batch.partition, []).extend(back)
    for partition in range(5):
        wanted = [(*row[:3], row[3] or []) for row in rows if row[4] == partition]
        assert found.get(partition, []) == wanted


@settings(deadline=None)
@given(records)
def test_bytes_are_those_of_the_plain_encoder(rows: list[Any]) -> None:
    [batch] = encode_batches(rows_of(rows), np.zeros(len(rows), np.int64), batch_bytes=1 << 30)
    plain = encode_batch([Rec(at, row[2], row[0], row[1], row[3] or []) for at, row in enumerate(rows)])
    assert batch.records[:12] == plain[:12]  # the leader epoch is the leader's
    assert batch.records[16:] == plain[16:]


def test_a_node_takes_what_is_encoded() -> None:
    rnd = random.Random(7)
    rows = [
        (rnd.randbytes(rnd.randrange(30)), rnd.randbytes(rnd.randrange(300)), 1000 + at, [("h", None)], 0)
        for at in range(5000)
    ]
    for codec in CODECS:
        for batch in encode_batches(
            rows_of(rows), np.zeros(5000, np.int64), codec=codec, batch_bytes=100_000
        ):
            stored, info = accept_produced(batch.records, TopicConfig(), 10_000)
            assert bytes(stored) == batch.records  # its largest time, too
            assert info.record_count == batch.count


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_slice_of_an_arrow_array_is_what_it_shows(column: str) -> None:
    whole = pa.array([b"before", None, b"", b"abc", None, b"behind"], pa.binary())[1:5]
    other = pa.array([b"x"] * 4, pa.binary())
    key, value = (whole, other) if column == "key" else (other, whole)
    rows = Rows(key, value, np.full(4, 5, np.int64))
    [batch] = encode_batches(rows, np.zeros(4, np.int64))
    at = 0 if column == "key" else 1
    assert [row[at] for row in read(batch.records)] == [None, b"", b"abc", None]


def test_rows_without_keys_and_large_ones() -> None:
    values = [b"", None, b"v" * (1 << 20), b"w"]
    rows = Rows(None, pa.array(values, pa.binary()), np.full(4, 5, np.int64))
    batches = list(encode_batches(rows, np.zeros(4, np.int64)))
    assert [batch.count for batch in batches] == [2, 1, 1]
    assert [row[:2] for batch in batches for row in read(batch.records)] == [
        (None, value) for value in values
    ]
    assert list(encode_batches(rows.take(np.empty(0, np.int64)), np.empty(0, np.int64))) == []


def test_a_batch_that_is_too_large_becomes_two() -> None:
    rows = [(b"k%d" % at, None if at == 3 else b"v", 10_000 - at, [("h", b"%d" % at)], 0) for at in range(7)]
    [batch] = encode_batches(rows_of(rows), np.zeros(7, np.int64), codec="lz4")
    parts = split(batch.records, 3, "lz4")
    assert [(part.partition, part.count) for part in parts] == [(3, 3), (3, 4)]
    assert read(parts[0].records) + read(parts[1].records) == read(batch.records)
    alone = split(parts[0].records, 3, "none")[0]
    assert alone.count == 1
    with pytest.raises(RowError, match=f"a row makes a batch of {len(alone.records)} bytes"):
        split(alone.records, 3, "none")


def test_headers_of_a_slice_and_with_large_offsets() -> None:
    rows = [
        [{"key": "before", "value": b"x"}],
        None,
        [{"key": "h", "value": b"v"}],
        [],
        [{"key": "", "value": None}],
    ]
    large = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    for kind in (HEADERS, large):
        tails = header_tails(pa.array([*rows, None], kind)[1:5]).to_pylist()
        assert tails == [b"\0", b"\2\2h\2v", b"\0", b"\2\0\1"]


def test_a_header_needs_a_name() -> None:
    with pytest.raises(RowError, match="a header's key is null"):
        header_tails(pa.array([[{"key": None, "value": b"v"}]], HEADERS))


def test_murmur2_is_kafkas() -> None:
    found = murmur2(pa.array(list(PUBLISHED), pa.binary())).view(np.int32).tolist()
    assert found == list(PUBLISHED.values())
    assert [plain_murmur2(key) for key in PUBLISHED] == [value & 0xFFFFFFFF for value in PUBLISHED.values()]


@pytest.mark.parametrize("longest", [3, 100, 5000])
def test_murmur2_of_many_keys_is_that_of_each(longest: int) -> None:
    rnd = random.Random(longest)
    keys = [rnd.randbytes(rnd.randrange(longest + 1)) for _ in range(2000)] + [rnd.randbytes(1 << 20), b""]
    rnd.shuffle(keys)
    for array in (pa.array(keys, pa.binary()), pa.array([b"before", *keys, b"behind"], pa.binary())[1:-1]):
        assert murmur2(array).tolist() == [plain_murmur2(key) for key in keys]
    assert murmur2(pa.array([], pa.binary())).tolist() == []
    assert murmur2(pa.array([None, b""], pa.binary())).tolist() == [plain_murmur2(b"")] * 2


def test_where_rows_go() -> None:
    keys = pa.array([b"a", None, b"", None, b"b", None], pa.binary())
    named = pa.array([None, None, None, 9, 7, None], pa.int32())
    placing = Placing(5, sticky_bytes=100, first=3)
    placed = placing.place(keys, np.full(6, 60, np.int64), named).tolist()
    by_key = [(plain_murmur2(key) & 0x7FFFFFFF) % 5 for key in (b"a", b"")]
    assert placed == [by_key[0], 3, by_key[1], 9, 7, 3]
    # They begin behind 120, 180, 240, 300 and 360 bytes: each 100 the next partition, and around.
    assert placing.place(None, np.full(5, 60, np.int64)).tolist() == [4, 4, 0, 1, 1]


def test_batches_of_a_stage_say_whose_they_are() -> None:
    """Sequences go on over calls, by partition, and through the parts of a batch that was too large."""
    rows = rows_of([(b"k", b"v", 5, None, 0)] * 10)
    sequences = Sequences(77, 3)
    partitions = np.array([0, 1] * 5)
    found = []
    for _ in range(2):
        found += list(encode_batches(rows, partitions, codec="zstd", sequences=sequences))
    assert [(item.partition, producer_of(item.records)) for item in found] == [
        (0, (0x14, 77, 3, 0, 5)), (1, (0x14, 77, 3, 0, 5)), (0, (0x14, 77, 3, 5, 5)), (1, (0x14, 77, 3, 5, 5)),
    ]  # fmt: skip
    config = TopicConfig()
    for item in found:
        accept_produced(item.records, config, 5, allow_transactional=True)
    parts = split(found[2].records, 0, "none")
    assert [producer_of(item.records) for item in parts] == [(0x10, 77, 3, 5, 2), (0x10, 77, 3, 7, 3)]
    [plain] = encode_batches(rows, partitions * 0)
    assert [producer_of(item.records) for item in split(plain.records, 0, "none")] == [(0, -1, -1, -1, 5)] * 2


def test_a_sequence_behind_the_largest_is_0() -> None:
    sequences = Sequences(77, 0)
    top = (1 << 31) - 1
    assert [sequences.take(0, count).base_sequence for count in (top - 1, 3, 2)] == [0, top - 1, 1]
