"""Checks of produced batches: each row of the table, and damage of every kind."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records import compression
from penstock_kafka.records.batch import HEADER_BYTES, is_crc_valid, read_header
from penstock_kafka.records.build import NewRecord, build_batch, with_crc
from penstock_kafka.records.check import InvalidRecords, accept_produced, check_produced
from penstock_kafka.records.read import read_records
from penstock_kafka.records.varint import put_varint

NOW = 1_700_000_000_000
DEFAULT = TopicConfig()
CODECS = range(5)


def batch(count: int = 3, codec: int = 0, **values: object) -> bytes:
    records = [NewRecord(b"key%d" % i, b"value" * 5, NOW + i, [("h", b"x")]) for i in range(count)]
    return build_batch(records, codec=codec, **values)  # type: ignore[arg-type]


def changed(data: bytes, position: int, value: bytes, *, fix_crc: bool = True) -> bytes:
    out = bytearray(data)
    out[position : position + len(value)] = value
    return with_crc(out) if fix_crc else bytes(out)


def raw_batch(body: bytes, count: int) -> bytes:
    """A batch of right header and CRC around any bytes."""
    out = bytearray(build_batch([NewRecord(None, b"", NOW)])[:HEADER_BYTES]) + body
    out[8:12] = (len(out) - 12).to_bytes(4, "big")
    out[23:27] = (count - 1).to_bytes(4, "big")
    out[57:61] = count.to_bytes(4, "big")
    return with_crc(out)


def code_of(data: bytes, settings: TopicConfig = DEFAULT, **values: object) -> ErrorCode:
    with pytest.raises(PenstockError) as caught:
        check_produced(data, settings, NOW, **values)  # type: ignore[arg-type]
    assert "\n" not in caught.value.message
    return caught.value.code


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1000])
def test_good_batches_pass_unchanged(codec: int, count: int) -> None:
    data = batch(count, codec)
    for form in (data, bytearray(data), memoryview(data), memoryview(bytearray(b"xx" + data + b"yy"))[2:-2]):
        stored, info = accept_produced(form, DEFAULT, NOW)
        assert stored is form
        assert info == read_header(data)
        assert check_produced(form, DEFAULT, NOW) == info


TABLE: list[tuple[str, Callable[[], bytes], ErrorCode]] = [
    ("nothing", lambda: b"", ErrorCode.INVALID_RECORD),
    ("a few bytes", lambda: batch()[:11], ErrorCode.INVALID_RECORD),
    ("cut off", lambda: batch()[:-1], ErrorCode.INVALID_RECORD),
    ("header cut off", lambda: batch()[:40], ErrorCode.INVALID_RECORD),
    ("two batches", lambda: batch() + batch(), ErrorCode.INVALID_RECORD),
    ("bytes after it", lambda: batch() + b"\0\0", ErrorCode.INVALID_RECORD),
    ("length below minimum", lambda: changed(batch(), 8, b"\0\0\0\x0d"), ErrorCode.CORRUPT_MESSAGE),
    ("negative length", lambda: changed(batch(), 8, b"\xff\xff\xff\xff"), ErrorCode.CORRUPT_MESSAGE),
    ("length of no header", lambda: changed(batch(), 8, b"\0\0\0\x10"), ErrorCode.CORRUPT_MESSAGE),
    ("short, length below minimum", lambda: bytes(12), ErrorCode.CORRUPT_MESSAGE),
    ("short, unknown magic", lambda: bytes(11) + b"\x10" + bytes(4) + b"\x07", ErrorCode.CORRUPT_MESSAGE),
    ("short, whole", lambda: bytes(11) + b"\x10" + bytes(4) + b"\x02" + bytes(30), ErrorCode.CORRUPT_MESSAGE),
    ("magic 1", lambda: changed(batch(), 16, b"\x01"), ErrorCode.INVALID_RECORD),
    ("magic 3", lambda: changed(batch(), 16, b"\x03"), ErrorCode.CORRUPT_MESSAGE),
    ("base offset", lambda: batch(base_offset=1), ErrorCode.INVALID_RECORD),
    ("CRC", lambda: changed(batch(), 17, b"\0\0\0\0", fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
    ("a flipped bit", lambda: changed(batch(), 70, b"\xff", fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
    ("count 0", lambda: changed(batch(), 57, b"\0\0\0\0"), ErrorCode.INVALID_RECORD),
    ("count negative", lambda: changed(batch(), 57, b"\xff\xff\xff\xff"), ErrorCode.INVALID_RECORD),
    ("count and last delta", lambda: changed(batch(), 23, b"\0\0\0\x07"), ErrorCode.INVALID_RECORD),
    ("fewer records than said", lambda: raw_batch(batch()[HEADER_BYTES:], 4), ErrorCode.INVALID_RECORD),
    ("more records than said", lambda: raw_batch(batch()[HEADER_BYTES:], 2), ErrorCode.INVALID_RECORD),
    ("bytes after the last record", lambda: raw_batch(batch()[HEADER_BYTES:] + b"\0", 3), ErrorCode.INVALID_RECORD),
    ("two billion records", lambda: raw_batch(batch()[HEADER_BYTES:], 2**31 - 1), ErrorCode.INVALID_RECORD),
    ("no records", lambda: raw_batch(b"", 1), ErrorCode.INVALID_RECORD),
    ("control", lambda: batch(control=True), ErrorCode.INVALID_RECORD),
    ("producer without sequence", lambda: batch(producer_id=5, producer_epoch=0), ErrorCode.INVALID_RECORD),
    ("delete horizon", lambda: changed(batch(), 21, b"\x00\x40"), ErrorCode.INVALID_RECORD),
    ("LogAppendTime by producer", lambda: changed(batch(), 21, b"\x00\x08"), ErrorCode.INVALID_TIMESTAMP),
    ("transactional", lambda: batch(transactional=True, producer_id=5, base_sequence=0), ErrorCode.INVALID_TXN_STATE),
    ("unknown codec", lambda: changed(batch(), 21, b"\x00\x05"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("says gzip and is not", lambda: changed(batch(), 21, b"\x00\x01"), ErrorCode.INVALID_RECORD),
    ("too far ahead", lambda: build_batch([NewRecord(None, b"", NOW + 3_600_001)]), ErrorCode.INVALID_TIMESTAMP),
]  # fmt: skip


@pytest.mark.parametrize(("what", "make", "code"), TABLE, ids=[row[0] for row in TABLE])
def test_table_of_errors(what: str, make: Callable[[], bytes], code: ErrorCode) -> None:
    assert code_of(make()) == code


def test_limits_of_size() -> None:
    data = batch()
    assert code_of(data, replace(DEFAULT, max_message_bytes=len(data) - 1)) == ErrorCode.MESSAGE_TOO_LARGE
    check_produced(data, replace(DEFAULT, max_message_bytes=len(data)), NOW)
    assert code_of(data, replace(DEFAULT, segment_bytes=len(data) - 1)) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_zstd_needs_version_7() -> None:
    data = batch(codec=4)
    assert code_of(data, produce_version=6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    check_produced(data, DEFAULT, NOW, produce_version=7)
    check_produced(batch(codec=3), DEFAULT, NOW, produce_version=3)


def test_transactional_batches_pass_when_allowed() -> None:
    data = batch(transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    check_produced(data, DEFAULT, NOW, allow_transactional=True)


def test_timestamps_of_the_past() -> None:
    settings_ = replace(DEFAULT, message_timestamp_before_max_ms=1000)
    data = build_batch([NewRecord(None, b"", t) for t in (NOW, NOW - 1000, -1)])
    check_produced(data, settings_, NOW)
    late = build_batch([NewRecord(None, b"", t) for t in (NOW, NOW - 1001)])
    with pytest.raises(InvalidRecords) as caught:
        check_produced(late, settings_, NOW)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
    assert caught.value.record_errors == [(1, "timestamp is out of range")]


@pytest.mark.parametrize("codec", [0, 3])
def test_compacted_topics_want_keys(codec: int) -> None:
    compacted = replace(DEFAULT, cleanup_policy=frozenset({"compact"}))
    check_produced(batch(300, codec), compacted, NOW)
    records = [NewRecord(None if i in (1, 290) else b"k", b"v", NOW) for i in range(300)]
    with pytest.raises(InvalidRecords) as caught:
        check_produced(build_batch(records, codec=codec), compacted, NOW)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in caught.value.record_errors] == [1]
    check_produced(build_batch(records), DEFAULT, NOW)


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time(codec: int) -> None:
    settings_ = replace(DEFAULT, message_timestamp_type="LogAppendTime")
    data = build_batch([NewRecord(None, b"x", 5), NewRecord(None, b"y", 2**42)], codec=codec)
    stored, info = accept_produced(data, settings_, NOW)
    assert info == read_header(stored)
    assert info.is_log_append_time
    assert info.max_timestamp == NOW
    assert is_crc_valid(stored)
    assert [r.timestamp_ms for r in read_records(stored)] == [NOW, NOW]
    assert [r.value for r in read_records(stored)] == [b"x", b"y"]


def test_a_wrong_max_timestamp_is_corrected() -> None:
    data = changed(batch(3), 35, (NOW + 999).to_bytes(8, "big"))
    stored, info = accept_produced(data, DEFAULT, NOW)
    assert info.max_timestamp == NOW + 2
    assert info == read_header(stored)
    assert is_crc_valid(stored)


def record(
    *, length: int | None = None, offset: int = 0, key: int = -1, value: int = -1, headers: bytes = b"\0"
) -> bytes:
    body = bytearray(b"\0\0")
    put_varint(body, offset)
    put_varint(body, key)
    put_varint(body, value)
    body += headers
    out = bytearray()
    put_varint(out, len(body) if length is None else length)
    return bytes(out + body)


@pytest.mark.parametrize(
    "body",
    [
        record(length=3),
        record(length=200),
        record(length=-1),
        record(offset=1),
        record(offset=-1),
        record(key=5),
        record(value=1000),
        record(key=2**62),
        record(value=2**63 - 1),
        record(key=2**63 - 200),
        record(headers=b"\x01"),  # -1 headers
        record(headers=b"\x04\x00\x00"),  # two said, one there
        record(headers=b"\xfe\xff\xff\xff\x0f"),
        record(headers=b"\x02\x01\x00"),  # header without a name
        record(headers=b"\x02\x04\xff\xfe\x00"),  # name that is not UTF-8
        b"\x80",
        b"\xff" * 11,
        b"\x00",
    ],
)
def test_malformed_records_with_a_right_crc(body: bytes) -> None:
    assert code_of(raw_batch(body, 1)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("offsets", [(0, 2), (1, 0), (0, 0)])
def test_offset_deltas_count_up(offsets: tuple[int, int]) -> None:
    assert code_of(raw_batch(b"".join(record(offset=o) for o in offsets), 2)) == ErrorCode.INVALID_RECORD


@settings(max_examples=400)
@given(data=st.data())
def test_damage_raises_only_penstock_errors(data: st.DataObject) -> None:
    codec = data.draw(st.integers(0, 4))
    broken = bytearray(batch(data.draw(st.integers(1, 6)), codec))
    for _ in range(data.draw(st.integers(1, 5))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = broken[: data.draw(st.integers(len(broken) // 2, len(broken)))]
    if len(cut) >= HEADER_BYTES:
        if data.draw(st.booleans()):
            cut[8:12] = (len(cut) - 12).to_bytes(4, "big")
        cut = bytearray(with_crc(cut))
    try:
        info = check_produced(cut, DEFAULT, NOW)
    except PenstockError:
        return
    assert len(list(read_records(cut))) == info.record_count


@settings(max_examples=300)
@given(body=st.binary(max_size=80), count=st.integers(1, 4))
def test_random_bodies_agree_with_the_plain_reader(body: bytes, count: int) -> None:
    """What the compiled reader accepts, a reader written apart from it reads too."""
    data = raw_batch(body, count)
    try:
        check_produced(data, DEFAULT, NOW)
    except PenstockError:
        return
    assert len(list(read_records(data))) == count


@pytest.mark.parametrize(("codec", "name"), [(1, "gzip"), (3, "lz4"), (4, "zstd")])
def test_a_bomb_is_stopped(codec: int, name: str) -> None:
    body = bytes(getattr(cramjam, name).compress(bytes(40 * 1024 * 1024)))
    data = changed(raw_batch(body, 1), 21, codec.to_bytes(2, "big"))
    assert code_of(data, replace(DEFAULT, max_message_bytes=8 << 20)) == ErrorCode.INVALID_RECORD


def test_a_snappy_bomb_is_stopped() -> None:
    """Raw snappy says its size at the start: that alone must reserve nothing."""
    data = changed(raw_batch(b"\xff\xff\xff\xff\x0f" + bytes(20), 1), 21, b"\x00\x02")
    assert code_of(data) == ErrorCode.INVALID_RECORD


def test_bounds_of_decompression() -> None:
    assert compression.output_bound(10) == 1024 * 1024
    assert compression.output_bound(100 << 20) == 1 << 30
    assert compression.output_bound(100 << 20, 32 << 20) == 32 << 20


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_topic_of_large_records_takes_them_compressed(codec: int) -> None:
    """What a batch may decompress to follows max.message.bytes, once that is above 32 MiB."""
    # Not of zeros alone: that would look like a bomb at any size.
    rng = random.Random(7)
    value = b"".join(rng.randbytes(100) + bytes(4000) for _ in range(10_000))
    data = build_batch([NewRecord(None, value, NOW)], codec=codec)
    assert code_of(data, replace(DEFAULT, max_message_bytes=32 << 20)) == ErrorCode.INVALID_RECORD
    check_produced(data, replace(DEFAULT, max_message_bytes=40 << 20), NOW)


def test_large_and_well_compressible_batches_pass() -> None:
    records = [NewRecord(None, b"a" * 1000, NOW) for _ in range(5000)]
    for codec in (1, 2, 3, 4):
        data = build_batch(records, codec=codec)
        check_produced(data, replace(DEFAULT, max_message_bytes=8 << 20), NOW)
    plain = build_batch(records)
    check_produced(plain, replace(DEFAULT, max_message_bytes=8 << 20), NOW)


def test_both_forms_of_snappy() -> None:
    body = bytearray()
    plain = batch(50)[HEADER_BYTES:]
    body += bytes(cramjam.snappy.compress_raw(plain))
    check_produced(changed(raw_batch(bytes(body), 50), 21, b"\x00\x02"), DEFAULT, NOW)
    framed = compression.compress(2, plain)
    # Java concatenates streams, each with its header.
    twice = compression.compress(2, plain[:100]) + compression.compress(2, plain[100:])
    for form in (framed, twice):
        check_produced(changed(raw_batch(form, 50), 21, b"\x00\x02"), DEFAULT, NOW)
    assert code_of(changed(raw_batch(framed[:-1], 50), 21, b"\x00\x02")) == ErrorCode.INVALID_RECORD
    assert code_of(changed(raw_batch(framed[:17], 50), 21, b"\x00\x02")) == ErrorCode.INVALID_RECORD


def test_the_reader_comes_without_aiokafkas_client() -> None:
    code = (
        "import sys, penstock_kafka.records.check\n"
        "assert not any(n.split('.')[0] == 'aiokafka' for n in sys.modules)\n"
        "assert 'asyncio' not in sys.modules\n"
        "import aiokafka, aiokafka.errors\n"
        "from aiokafka.record._crecords import DefaultRecordBatch\n"
        "assert DefaultRecordBatch is penstock_kafka.records.compiled.RecordReader\n"
        "assert aiokafka.AIOKafkaProducer\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    other = "import aiokafka, penstock_kafka.records.check, sys; assert 'aiokafka.client' in sys.modules"
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_random_batches() -> None:
    """Real sizes, random content, every codec."""
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        records = [
            NewRecord(
                rng.choice([None, rng.randbytes(rng.randrange(20))]),
                rng.choice([None, rng.randbytes(rng.randrange(2000))]),
                NOW + rng.randrange(-(10**6), 10**6),
                [("h" * rng.randrange(5), rng.randbytes(3))] * rng.randrange(3),
            )
            for _ in range(rng.randrange(1, 400))
        ]
        data = build_batch(records, codec=rng.randrange(5))
        stored, info = accept_produced(data, DEFAULT, NOW)
        assert stored is data
        assert info.record_count == len(records)
