"""The vectorised decoder against a decoder in plain Python, and against broken bytes."""

from __future__ import annotations

import random
import struct
import warnings
from typing import Any

import google_crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql.types import StructType

from pyspark_penstock.decode import Decoder, records
from pyspark_penstock.errors import CorruptRecordsError
from pyspark_penstock.schema import COLUMNS, arrow_schema, spark_schema
from unit.spark.spark_batches import Rec, decode_plainly, encode_batch, stamp

with warnings.catch_warnings():
    # kafka-python reads its schemas at import by a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

ALL = arrow_schema(spark_schema(include_headers=True), include_headers=True)
FAR = 1 << 62
CODECS = ["none", "gzip", "snappy", "xerial", "lz4", "zstd"]


def rows_of(
    run: bytes, first: int = 0, end: int = FAR, *, schema: Any = ALL, chunk: int = 1 << 20
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in Decoder("flights", 3, schema, chunk).decode(run, first, end):
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        if "timestamp" in schema.names:
            at = schema.get_field_index("timestamp")
            batch = batch.set_column(at, "timestamp", batch.column(at).cast("int64"))
        rows += batch.to_pylist()
    for row in rows:
        if "timestamp" in row:
            row["timestamp"] //= 1000
    return rows


def random_records(rnd: random.Random, offset: int, count: int) -> list[Rec]:
    shape = rnd.choice(["small", "mixed", "big", "zeros"])
    out = []
    for _ in range(count):
        size = {
            "small": rnd.randrange(40),
            "mixed": rnd.choice([0, 5, 120, 3000]),
            "big": rnd.randrange(20_000),
            "zeros": rnd.randrange(300),
        }[shape]
        value = b"\0" * size if shape == "zeros" else rnd.randbytes(size)
        headers: list[tuple[str, bytes | None]] = []
        if rnd.random() < 0.1:
            headers = [
                (rnd.choice(["", "trace", "ключ"]), rnd.choice([None, b"", rnd.randbytes(9)]))
                for _ in range(rnd.randrange(4))
            ]
        out.append(
            Rec(
                offset,
                1_700_000_000_000 + rnd.choice([0, 1, -5, 70_000, 10**7]),
                rnd.choice([None, b"", rnd.randbytes(8), rnd.randbytes(100)]),
                rnd.choice([None, value, value, value]),
                headers,
            )
        )
        offset += 1 if rnd.random() < 0.97 else rnd.randrange(1, 9)
    return out


def random_run(rnd: random.Random) -> tuple[bytes, int]:
    run, offset = b"", rnd.choice([0, 17, 1 << 40])
    for _ in range(rnd.choice([1, 3, 80])):
        kind = rnd.random()
        if kind < 0.05:
            marker = Rec(offset, 5, b"\0\0\0\1", b"\0\0\0\0\0\0")
            run += encode_batch([marker], attributes=0x30)
            offset += 1
        elif kind < 0.08:
            run += encode_batch([], base_offset=offset, last_offset=offset + 4)
            offset += 5
        else:
            recs = random_records(rnd, offset, rnd.choice([1, 2, 30, 600]))
            stamped = rnd.random() < 0.2
            last = recs[-1].offset + rnd.choice([0, 0, 3])
            run += encode_batch(
                recs,
                codec=rnd.choice(["none", "none", *CODECS]),
                last_offset=last,
                attributes=8 if stamped else 0,
                max_timestamp_ms=1_700_000_123_456 if stamped else None,
            )
            offset = last + 1
    return run, offset


@pytest.mark.parametrize("seed", range(60))
def test_same_rows_as_the_plain_decoder(seed: int) -> None:
    rnd = random.Random(seed)
    print("seed", seed)
    run, end = random_run(rnd)
    assert rows_of(run, chunk=rnd.choice([500, 40_000, 1 << 20])) == decode_plainly(run, "flights", 3, 0, FAR)
    first = rnd.randrange(end)
    stop = rnd.randrange(first, end + 2)
    assert rows_of(run, first, stop) == decode_plainly(run, "flights", 3, first, stop)


@pytest.mark.parametrize("walk", list(records.Walk))
@pytest.mark.parametrize("seed", range(100, 112))
def test_every_walk_gives_the_same_rows(
    seed: int, walk: records.Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = random_run(random.Random(seed))
    monkeypatch.setattr(records, "choose_walk", lambda *_: walk)
    assert rows_of(run) == decode_plainly(run, "flights", 3, 0, FAR)


@pytest.mark.parametrize(
    ("total", "longest", "size", "walk"),
    [
        (1_000, 1_000, 1 << 20, "PLAIN"),  # 1 KiB records, one batch of 1 MB
        (9_300, 9_300, 1 << 20, "SPLIT"),  # 100 B records, one batch of 1 MB
        (9_300, 146, 1 << 20, "LANES"),  # the same in batches of 16 KiB
        (1_000, 16, 1 << 20, "LANES"),
        (7_000, 7_000, 700 << 20, "PLAIN"),  # 100 KB records: to look for starts would cost more than to walk
        (20, 20, 2_000, "PLAIN"),
        (100_000, 100_000, 8 << 20, "SPLIT"),
    ],
)
def test_the_walk_is_chosen_by_records_and_bytes(total: int, longest: int, size: int, walk: str) -> None:
    assert records.choose_walk(total, longest, size).name == walk


@pytest.mark.parametrize("count", [512, 9_000, 40_000])
@pytest.mark.parametrize("size", [0, 3, 60, 200])
def test_long_batches_are_cut_into_lanes(count: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes are really used: the plain walk is taken away (values have no zero bytes to mislead it)."""
    rnd = random.Random(count * size)
    recs = [
        Rec(i, 1_700_000_000_000 + i // 3, b"k%d" % i, (b"%d" % rnd.getrandbits(60)).ljust(size, b"x")[:size])
        for i in range(count)
    ]
    run = encode_batch(recs)
    monkeypatch.delattr(records.RecordBuffer, "_one_by_one")
    monkeypatch.setattr(records, "choose_walk", lambda *_: records.Walk.SPLIT)
    assert rows_of(run) == decode_plainly(run, "flights", 3, 0, FAR)


def test_a_wrong_guess_falls_back() -> None:
    """Values that imitate records at every turn still decode right."""
    fake = encode_batch([Rec(i, 0, None, b"") for i in range(40)])[61:]
    recs = [Rec(i, 0, None, fake) for i in range(2000)]
    run = encode_batch(recs)
    assert rows_of(run) == decode_plainly(run, "flights", 3, 0, FAR)


# kafka-python needs libraries of its own for the codecs above gzip, which aren't installed.
@pytest.mark.parametrize(
    ("builder", "codec"),
    [
        *((DefaultRecordBatchBuilder, codec) for codec in range(5)),
        (KafkaPythonBuilder, 0),
        (KafkaPythonBuilder, 1),
    ],
)
def test_batches_of_client_libraries(builder: Any, codec: int) -> None:
    run, offset = b"", 0
    for size in (1, 40, 700):
        built = builder(
            magic=2,
            compression_type=codec,
            is_transactional=False,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=10**7,
        )
        for index in range(size):
            built.append(
                index,
                timestamp=1_700_000_000_000 + index,
                key=b"k",
                value=b"v" * (index % 50),
                headers=[("h", b"1")] if index % 7 == 0 else [],
            )
        run += stamp(bytes(built.build()), offset)
        offset += size
    got = rows_of(run)
    assert got == decode_plainly(run, "flights", 3, 0, FAR)
    assert [row["offset"] for row in got] == list(range(741))


@pytest.mark.parametrize(
    "names",
    [
        ["value"],
        ["offset"],
        ["timestamp", "key"],
        ["headers"],
        ["topic", "partition"],
        ["timestampType", "offset", "value"],
    ],
)
def test_projection(names: list[str]) -> None:
    run, _ = random_run(random.Random(5))
    schema = arrow_schema(
        StructType([spark_schema(include_headers=True)[name] for name in names]), include_headers=True
    )
    want = [{name: row[name] for name in names} for row in decode_plainly(run, "flights", 3, 0, FAR)]
    assert rows_of(run, schema=schema) == want


def small() -> bytes:
    return encode_batch([Rec(i, 1000 + i, b"key", b"value %d" % i, [("a", b"b")]) for i in range(20)])


def test_every_truncation_is_an_error() -> None:
    run = small() + stamp(small(), 20)
    whole = len(small())
    for cut in range(1, len(run)):
        if cut == whole:
            continue
        with pytest.raises(CorruptRecordsError, match="topic flights partition 3"):
            rows_of(run[:cut])


def test_every_flipped_byte_under_the_crc_is_an_error() -> None:
    run = small()
    for at in range(16, len(run)):
        broken = bytearray(run)
        broken[at] ^= 0x41
        with pytest.raises(CorruptRecordsError):
            rows_of(bytes(broken))


def test_broken_batches_outside_the_range_are_errors_too() -> None:
    broken = bytearray(small())
    broken[-1] ^= 1
    with pytest.raises(CorruptRecordsError, match="CRC"):
        rows_of(bytes(broken) + stamp(small(), 20), 20, 40)


@pytest.mark.parametrize("seed", range(300))
def test_wrong_records_under_a_right_crc(seed: int) -> None:
    """A bad producer's bytes end in an error or in rows, never in a crash or a read past the buffer."""
    rnd = random.Random(seed)
    count = rnd.choice([1, 20, 600])
    batch = bytearray(
        encode_batch([Rec(i, 1000, b"key", rnd.randbytes(20), [("a", b"b")]) for i in range(count)])
    )
    for _ in range(rnd.choice([1, 1, 5, 50])):
        batch[rnd.randrange(61, len(batch))] = rnd.choice([0, 1, 0x7F, 0x80, 0xFF, rnd.randrange(256)])
    struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
    try:
        rows_of(bytes(batch))
    except CorruptRecordsError:
        return


def test_wrong_counts_under_a_right_crc() -> None:
    recs = [Rec(i, 1000, b"key", b"value") for i in range(20)]
    for count in (-1, 19, 21, 2**31 - 1):
        with pytest.raises(CorruptRecordsError):
            rows_of(encode_batch(recs, count=count, last_offset=2**31 - 5))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_broken_compression(codec: str) -> None:
    recs = [Rec(i, 1000, b"key", b"value") for i in range(20)]
    batch = bytearray(encode_batch(recs, codec=codec))
    del batch[len(batch) - 5 :]
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
    with pytest.raises(CorruptRecordsError):
        rows_of(bytes(batch))


def test_unknown_codec_and_magic() -> None:
    batch = encode_batch([Rec(0, 1, None, b"v")], attributes=5)
    with pytest.raises(CorruptRecordsError, match="compression type 5"):
        rows_of(batch)
    old = bytearray(small())
    old[16] = 1
    with pytest.raises(CorruptRecordsError, match="format 1"):
        rows_of(bytes(old))


def test_timestamp_that_spark_cannot_hold() -> None:
    run = encode_batch([Rec(0, 2**62, None, b"v")])
    with pytest.raises(CorruptRecordsError, match="without the column timestamp"):
        rows_of(run)
    schema = arrow_schema(StructType([spark_schema(include_headers=False)["value"]]), include_headers=False)
    assert rows_of(run, schema=schema) == [{"value": b"v"}]


def test_null_in_a_column_declared_not_null() -> None:
    field = spark_schema(include_headers=False)["key"]
    schema = arrow_schema(StructType().add("key", field.dataType, nullable=False), include_headers=False)
    assert rows_of(encode_batch([Rec(0, 1, b"", b"v")]), schema=schema) == [{"key": b""}]
    with pytest.raises(CorruptRecordsError, match="not null"):
        rows_of(encode_batch([Rec(0, 1, None, b"v")]), schema=schema)


def test_output_is_cut_to_chunks() -> None:
    run = encode_batch([Rec(i, 1, None, b"x" * 1000) for i in range(5000)])
    sizes = [batch.num_rows for batch in Decoder("t", 0, ALL, 256 * 1024).decode(run, 0, FAR)]
    assert sum(sizes) == 5000
    assert max(sizes) <= 262


def test_header_keys_that_are_no_utf8() -> None:
    body = b"\0\0\0" + b"\1" + b"\2v" + b"\2" + b"\4\xff\xfe" + b"\1"
    run = encode_batch([Rec(0, 1, None, None)], payload=bytes([len(body) * 2]) + body)
    assert rows_of(run)[0]["headers"] == [{"key": "\ufffd\ufffd", "value": None}]


def test_nothing_in_nothing_out() -> None:
    assert rows_of(b"") == []
    assert rows_of(small(), 20, 40) == []
    assert list(COLUMNS) == ALL.names
