"""Batches: golden bytes, header access, building and reading, against aiokafka and kafka-python."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KpBatch

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.batch import HEADER_BYTES, is_crc_valid, iter_batches, read_header, stamp
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import Record, find_timestamp, read_all, read_records

GOLDEN = bytes.fromhex(
    "0000000000000000"  # base offset
    "00000047"  # length 71 = 83 - 12
    "ffffffff"  # leader epoch
    "02"  # magic
    "dc06a2a0"  # CRC-32C of what follows
    "0000"  # attributes
    "00000001"  # last offset delta
    "0000018bcfe56800"  # 1,700,000,000,000 ms
    "0000018bcfe56807"
    "ffffffffffffffff"  # no producer
    "ffff"
    "ffffffff"
    "00000002"  # records
    "10000000026b027600"  # length 8: key k, value v, no headers
    "18000e02010102026806787978"  # length 12: no key, no value, header h=xyx
)  # fmt: skip

records_strategy = st.lists(
    st.builds(
        NewRecord,
        key=st.none() | st.binary(max_size=40),
        value=st.none() | st.binary(max_size=200),
        timestamp_ms=st.integers(0, 2**40),
        headers=st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def small() -> bytes:
    return build_batch(
        [
            NewRecord(b"k", b"v", 1_700_000_000_000),
            NewRecord(None, None, 1_700_000_000_007, [("h", b"xyx")]),
        ]
    )


def test_golden_bytes() -> None:
    """Written out by hand from Kafka's description of the format."""
    assert small() == GOLDEN
    assert read_header(GOLDEN).batch_length == len(GOLDEN) - 12
    assert is_crc_valid(GOLDEN)


def test_golden_batch_of_another_codec() -> None:
    builder = AioBuilder(2, 0, 0, 77, 3, 9, 10_000)
    builder.append(0, 1_700_000_000_000, b"k", b"v", [])
    builder.append(1, 1_700_000_000_007, None, None, [("h", b"xyx")])
    theirs = bytes(builder.build())
    ours = build_batch(
        [
            NewRecord(b"k", b"v", 1_700_000_000_000),
            NewRecord(None, None, 1_700_000_000_007, [("h", b"xyx")]),
        ],
        producer_id=77,
        producer_epoch=3,
        base_sequence=9,
    )
    assert ours == theirs


@given(records=records_strategy, codec=st.integers(0, 4), base=st.integers(0, 2**50))
def test_what_is_built_is_read(records: list[NewRecord], codec: int, base: int) -> None:
    batch = build_batch(records, codec=codec, base_offset=base, leader_epoch=6)
    expected = [
        Record(base + i, r.timestamp_ms, r.key, r.value, list(r.headers)) for i, r in enumerate(records)
    ]
    assert list(read_records(batch)) == expected
    if codec in (0, 1):  # for the others kafka-python wants packages that aren't here
        assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in KpBatch(batch)] == [
            (r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in expected
        ]
    aio = AioBatch(batch)
    assert aio.validate_crc()
    assert [r.offset for r in aio] == [r.offset for r in expected]
    assert is_crc_valid(batch)


def test_header_fields() -> None:
    batch = build_batch(
        [NewRecord(None, b"v", 5), NewRecord(None, b"w", 3)],
        codec=2,
        base_offset=40,
        leader_epoch=7,
        producer_id=9,
        producer_epoch=1,
        base_sequence=2**31 - 1,
        transactional=True,
    )
    info = read_header(b"junk" + batch, 4)
    assert info.size_bytes == len(batch)
    assert (info.base_offset, info.last_offset, info.next_offset) == (40, 41, 42)
    assert (info.leader_epoch, info.magic, info.record_count) == (7, 2, 2)
    assert (info.base_timestamp, info.max_timestamp) == (5, 5)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (9, 1, 2**31 - 1)
    assert info.last_sequence == 0
    assert (info.compression, info.is_transactional, info.is_control) == (2, True, False)
    assert info.position == 4
    with pytest.raises(PenstockError):
        read_header(batch[:60])


def test_stamp_changes_neither_crc_nor_records() -> None:
    batch = small()
    stamped = stamp(1000, 12, batch) + memoryview(batch)[16:]
    info = read_header(stamped)
    assert (info.base_offset, info.leader_epoch, info.size_bytes) == (1000, 12, len(batch))
    assert is_crc_valid(stamped)
    assert [r.offset for r in read_records(stamped)] == [1000, 1001]


def test_walk_over_headers() -> None:
    batches = [build_batch([NewRecord(None, bytes(i))], base_offset=i) for i in range(5)]
    data = b"".join(batches)
    found = list(iter_batches(data))
    assert [info.base_offset for info in found] == list(range(5))
    assert [data[i.position : i.position + i.size_bytes] for i in found] == batches
    for cut in range(len(batches[4])):
        assert len(list(iter_batches(data[: len(data) - cut]))) == (5 if cut == 0 else 4)
    assert [i.base_offset for i in iter_batches(data, found[2].position, found[4].position)] == [2, 3]
    assert list(iter_batches(b"")) == []


def test_walk_stops_at_what_is_no_batch() -> None:
    batch = small()
    for position, value in ((16, 1), (8, 0x80), (11, 3)):
        broken = bytearray(batch)
        broken[position] = value
        if position == 11:
            broken[8:12] = b"\x00\x00\x00\x03"
        with pytest.raises(PenstockError) as caught:
            list(iter_batches(batch + broken))
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_find_timestamp() -> None:
    batch = build_batch([NewRecord(None, b"", t) for t in (10, 30, 20, 40)], codec=4, base_offset=5)
    assert [(r.offset if (r := find_timestamp(batch, t)) else None) for t in (0, 10, 11, 31, 40, 41)] == [
        5,
        5,
        6,
        8,
        8,
        None,
    ]


def test_read_all_skips_control_batches() -> None:
    data = small() + build_batch([NewRecord(b"\x00\x00\x00\x00", b"", 1)], control=True) + small()
    assert len(list(read_all(data))) == 4
    assert len(list(read_all(data, skip_control=False))) == 5


@given(data=st.data())
def test_reading_damage_raises_only_penstock_errors(data: st.DataObject) -> None:
    batch = bytearray(
        build_batch([NewRecord(b"k", b"v" * 20, 5, [("h", b"x")])] * 4, codec=data.draw(st.integers(0, 4)))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(read_records(batch))
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_RECORD
