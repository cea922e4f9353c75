"""Record batches: what producers send, what is read back, and what Spark takes of nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from fuzz.target import MIB, Target, expect
from penstock_core.config.topic import TopicConfig
from penstock_core.errors import PenstockError
from penstock_core.ids import TopicId
from penstock_core.limits import DECOMPRESSED_BATCH_BYTES_MAX
from penstock_kafka.records import compression
from penstock_kafka.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    BatchInfo,
    is_crc_valid,
    iter_batches,
    read_header,
)
from penstock_kafka.records.build import NewRecord, build_batch, with_crc
from penstock_kafka.records.check import accept_produced
from penstock_kafka.records.read import find_timestamp, read_all, read_records
from penstock_kafka.records.recompress import recompress
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.fetch import FetchResult, encode_fetch_response
from penstock_kafka.wire.frames import RequestHeader
from penstock_storage_node.log.compaction.record_filter import filter_batch
from pyspark_penstock.decode import Decoder
from pyspark_penstock.direct.batches import whole, without_aborted
from pyspark_penstock.direct.frames import MalformedFrame, read_authenticate, read_fetch, read_handshake
from pyspark_penstock.errors import CorruptRecordsError
from pyspark_penstock.schema import arrow_schema, spark_schema

NOW_MS: Final = 1_700_000_000_000
_CODECS: Final = tuple(compression.CODEC_NAMES)
_SETTINGS: Final = (
    TopicConfig(),
    TopicConfig(cleanup_policy=frozenset({"compact"}), message_timestamp_before_max_ms=1000),
    TopicConfig(message_timestamp_type="LogAppendTime", max_message_bytes=8 * MIB),
)
_ALL_COLUMNS: Final = arrow_schema(spark_schema(include_headers=True), include_headers=True)
_FEW_COLUMNS: Final = arrow_schema(spark_schema(include_headers=False), include_headers=False)
_FAR: Final = 1 << 62
_TOPIC_ID: Final = TopicId(b"0123456789abcdef")
_FETCH: Final = RequestHeader(ApiKey.FETCH, 13, 7, "fuzz", 0)


def _records(count: int = 3, size: int = 8) -> list[NewRecord]:
    return [
        NewRecord(
            None if n == 1 else b"k%d" % n,
            None if n == 2 else b"v" * size,
            NOW_MS + n,
            [("h", b"x"), ("name", None)] if n & 1 else (),
        )
        for n in range(count)
    ]


def batches() -> Iterator[bytes]:
    """One valid batch of each kind."""
    for codec in _CODECS:
        yield build_batch(_records(), codec=codec)
        yield build_batch(_records(40, 100), codec=codec, producer_id=5, producer_epoch=1, base_sequence=7)
    yield build_batch([NewRecord(b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x05", NOW_MS)], control=True)
    yield build_batch(_records(), transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    # Raw snappy, as librdkafka writes it.
    plain = build_batch(_records())
    packed = bytearray(plain[:HEADER_BYTES]) + _raw_snappy(plain[HEADER_BYTES:])
    packed[22] |= compression.SNAPPY
    yield _whole(bytes(packed))


def _raw_snappy(data: bytes) -> bytes:
    """One literal: a length, and the bytes as they are (at most 60)."""
    out = bytearray((len(data) & 0x7F | 0x80, len(data) >> 7) if len(data) > 127 else (len(data),))
    for start in range(0, len(data), 60):
        part = data[start : start + 60]
        out += bytes(((len(part) - 1) << 2,)) + part
    return bytes(out)


def bombs() -> Iterator[bytes]:
    """Few bytes that become very many: 64 MiB of zeros by each codec (snappy's own limit is 1:21)."""
    for codec in (compression.GZIP, compression.LZ4, compression.ZSTD, compression.SNAPPY):
        size = (64 if codec != compression.SNAPPY else 2) * MIB
        packed = bytearray(build_batch(_records())[:HEADER_BYTES]) + compression.compress(codec, bytes(size))
        packed[22] |= codec
        yield _whole(bytes(packed))


def _whole(data: bytes) -> bytes:
    """The bytes with the length and CRC that a batch of their size has."""
    if len(data) < HEADER_BYTES:
        return data
    out = bytearray(data)
    out[8:12] = (len(out) - LENGTH_OVERHEAD_BYTES).to_bytes(4, "big")
    return with_crc(out)


def shaped(data: bytes) -> bytes:
    """The batch that an input stands for, by its first byte, so that a CRC does not end every one of them.

    Bits 0-1: as it is; with length and CRC put right; that, and the records compressed first by the codec
    in bits 2-4 (broken records in sound compression).
    """
    if not data:
        return data
    how, batch = data[0], data[1:]
    if how & 3 == 0 or len(batch) < HEADER_BYTES:
        return batch
    if how & 3 == 3:
        codec = _CODECS[(how >> 2) % len(_CODECS)]
        head = bytearray(batch[:HEADER_BYTES])
        head[22] = head[22] & 0xF8 | codec
        batch = bytes(head) + compression.compress(codec, batch[HEADER_BYTES:])
    return _whole(batch)


def _seeds() -> Iterator[bytes]:
    for batch in batches():
        yield b"\x00" + batch
        yield b"\x01" + batch
    plain = build_batch(_records())
    for codec in _CODECS:
        yield bytes((3 | codec << 2,)) + plain
    yield from (b"\x00" + bomb for bomb in bombs() if len(bomb) < 16_000)


def _accept(data: bytes) -> None:
    if not data:
        return
    batch = shaped(data)
    settings = _SETTINGS[(data[0] >> 5) % len(_SETTINGS)]
    stored, info = accept_produced(batch, settings, NOW_MS)
    expect(is_crc_valid(stored), "a batch that was accepted has a right CRC")
    expect(info == read_header(stored), "its header is what is told")
    # Plain Python reads what the compiled reader took: every consumer can.
    records = list(read_records(stored))
    expect(len(records) == info.record_count, "its records are all there")
    expect([r.offset for r in records] == list(range(info.record_count)), "its offsets count up")
    again, _ = accept_produced(stored, settings, NOW_MS) if not info.is_log_append_time else (stored, info)
    expect(bytes(again) == bytes(stored), "accepted again it stays as it is")


def _read(data: bytes) -> None:
    batch = shaped(data)
    info = read_header(batch)
    for _ in read_records(batch, info):
        pass
    find_timestamp(batch, NOW_MS + 1, info)


def _iterate(data: bytes) -> None:
    end = 0
    for info in iter_batches(data):
        expect(info.position == end and info.size_bytes >= HEADER_BYTES, "batches lie one behind the other")
        end = info.position + info.size_bytes
    expect(end <= len(data), "none reaches past the end")
    for _ in read_all(data):
        pass


def _iterate_seeds() -> Iterator[bytes]:
    found = list(batches())
    yield from found
    yield b"".join(found[:3])
    yield b"".join(found[:2])[:-5]


def _decompress(data: bytes) -> None:
    if not data:
        return
    codec = 1 + data[0] % 4
    plain = compression.decompress(codec, data[1:], most_bytes=DECOMPRESSED_BATCH_BYTES_MAX)
    expect(len(plain) <= DECOMPRESSED_BATCH_BYTES_MAX, "decompression is bounded")
    expect(bytes(compression.decompress(codec, compression.compress(codec, plain))) == plain, "both ways")


def _decompress_seeds() -> Iterator[bytes]:
    rng = random.Random(1)
    for codec in (1, 2, 3, 4):
        for plain in (b"", b"a", b"ab" * 500, rng.randbytes(300)):
            yield bytes((codec - 1,)) + compression.compress(codec, plain)
    yield b"\x01" + _raw_snappy(b"abc" * 40)


def _recompress(data: bytes) -> None:
    batch = shaped(data)
    plain = recompress(batch, compression.NONE)
    back = recompress(recompress(plain, compression.ZSTD), compression.NONE)
    expect(back == plain, "through a codec and back")


def _filter(data: bytes) -> None:
    """What compaction does, with batches that were checked when they came."""
    stored, info = accept_produced(shaped(data), _SETTINGS[0], NOW_MS)
    view = memoryview(stored)
    left = filter_batch(view, info, lambda record: record.key != b"k0", new_horizon_ms=5, keep_empty=True)
    expect(left.data is not None and is_crc_valid(left.data), "what is left has a right CRC")
    kept: BatchInfo = read_header(left.data or b"")
    expect(len(list(read_records(left.data or b"", kept))) == left.kept_count, "and all its records")


def _spark(data: bytes) -> None:
    if not data:
        return
    schema = _FEW_COLUMNS if data[0] & 0x80 else _ALL_COLUMNS
    run = shaped(data)
    if data[0] & 0x40:
        run = build_batch(_records(2)) + run
    for batch in Decoder("t", 0, schema).decode(run, 0, _FAR):
        batch.validate(full=True)


def _spark_fetch(data: bytes) -> None:
    """A frame of a node, as far as a decoder."""
    if data[:1] == b"\x01":
        read_handshake(memoryview(data)[1:], 7)
        return
    if data[:1] == b"\x02":
        read_authenticate(memoryview(data)[1:], 7)
        return
    answer = read_fetch(memoryview(data)[1:], 7, _TOPIC_ID, 3)
    run, next_offset = whole(answer.records)
    left = without_aborted(run, answer.aborted)
    expect(len(left) <= len(run) <= len(answer.records), "nothing is added")
    expect(next_offset == -1 or len(run) > 0, "an end goes with batches")


def _spark_fetch_seeds() -> Iterator[bytes]:
    for version_of, batch in enumerate(batches()):
        aborted = [(1, 0), (5, 2)] if version_of % 2 else None
        result = FetchResult(
            "", _TOPIC_ID, 3, 0, 100, 90, 0, records=[batch, batch], aborted=aborted, preferred_replica=-1
        )
        yield b"\x00" + b"".join(bytes(part) for part in encode_fetch_response(_FETCH, [result], 20))
    yield b"\x01\x00\x00\x00\x07\x00\x21\x00\x00\x00\x01\x00\x05PLAIN"
    yield b"\x02\x00\x00\x00\x07\x00\x00\xff\xff\x00\x00\x00\x02ok" + bytes(8)


REFUSED: Final = (PenstockError,)
_BOMB_BYTES: Final = 3 * DECOMPRESSED_BATCH_BYTES_MAX + 16 * MIB
"""Room is made in steps; the last but one, the last, and what is made of them."""

TARGETS: Final = [
    Target("records.produced", _accept, REFUSED, _seeds, share=80, peak_bytes_max=_BOMB_BYTES),
    Target("records.read", _read, REFUSED, _seeds, share=30, peak_bytes_max=_BOMB_BYTES),
    Target("records.iterate", _iterate, REFUSED, _iterate_seeds, share=30, peak_bytes_max=_BOMB_BYTES),
    Target(
        "records.decompress", _decompress, REFUSED, _decompress_seeds, share=20, peak_bytes_max=_BOMB_BYTES
    ),
    Target("records.recompress", _recompress, REFUSED, _seeds, share=10, peak_bytes_max=_BOMB_BYTES),
    Target("records.compact", _filter, REFUSED, _seeds, share=10, peak_bytes_max=_BOMB_BYTES),
    # Spark reads what a node has checked, so it unpacks whatever is there.
    Target("spark.fetch", _spark_fetch, (MalformedFrame, CorruptRecordsError), _spark_fetch_seeds, share=20),
    Target("spark.decode", _spark, (CorruptRecordsError,), _seeds, share=8, peak_bytes_max=4 * _BOMB_BYTES),
]
