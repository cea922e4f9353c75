"""Checks of what producers send, before it is stored
(rule "Records are checked before they are stored").

A batch with a right CRC and broken records would stop every consumer for ever, so each
record is walked by compiled code: some 150 ns per record, the CRC at 20-30 GB/s, and a few
microseconds of Python per batch. The order and codes are Kafka's (ProduceRequest,
UnifiedLog.analyzeAndValidateRecords, LogValidator of 4.3).

Stricter than Kafka, on purpose: offset deltas must count up from 0; bytes after the
batch are refused; a producer may set neither LogAppendTime nor a delete horizon; header
names must be UTF-8 (Python consumers fail on others); growth by decompression is bounded.

Warts: the compiled reader takes varints of up to 10 bytes where Kafka stops at 5, and
the (unused) attributes byte of a record as a varint. Only a batch forged by hand tells
the difference.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final

from penstock_core.config.topic import LONG_MAX, TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import DECOMPRESSED_BATCH_BYTES_MAX
from penstock_kafka.records import compression
from penstock_kafka.records.batch import (
    COMPRESSION_MASK,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_TIMESTAMP,
    BatchInfo,
    Buffer,
)
from penstock_kafka.records.compiled import OVERREAD_BYTES, RecordReader
from penstock_kafka.records.crc import crc32c

_BYTES_TO_MAGIC: Final = 17
_LENGTH_MIN: Final = 14
"""Kafka's LegacyRecord.RECORD_OVERHEAD_V0: a shorter length is damage, not an old format."""
_ZSTD_VERSION_MIN: Final = 7

_SCRATCH_BYTES: Final = 1024 * 1024 + 64 * 1024
_WALK_CHUNK: Final = 256
"""Records of a step. As many are alive at once, where they are kept: bounds memory, and stays in the cache."""

_timestamp_of: Final = attrgetter("timestamp")
_key_of: Final = attrgetter("key")


class _Scratch(threading.local):
    """Memory of each thread that batches are copied to for the walk.

    The compiled reader may look a few bytes past its buffer (see `compiled`): there it
    must find memory of ours. Keeping it saves the page faults of fresh memory.
    """

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_SCRATCH_BYTES + OVERREAD_BYTES))


_scratch: Final = _Scratch()
_THREADS_OWN: Final = memoryview(b"")
"""Stands for the thread's own scratch memory."""


class InvalidRecords(PenstockError):
    """A batch refused because of single records: `record_errors` are (index, message)."""

    def __init__(
        self, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str | None]] = ()
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def accept_produced(
    records: Buffer,
    settings: TopicConfig,
    now_ms: int,
    *,
    produce_version: int = 11,
    allow_transactional: bool = False,
) -> tuple[Buffer, BatchInfo]:
    """Check a batch, and give it as it is to be stored, with its header.

    It is the very same buffer but for two cases, in which it is a copy with another
    header and CRC: the topic has LogAppendTime (every record then counts as of
    `now_ms`), or the header's max timestamp was not that of its records. Base offset and
    leader epoch are still the producer's: see `batch.stamp`. Raises as `check_produced`.
    """
    view, info = _check_head(records, settings, produce_version, allow_transactional)
    latest = _walk(_owned_copy(view, info, settings), settings, now_ms)
    return _as_stored(records, info, latest, settings, now_ms)


def accept_steps(
    records: Buffer,
    opened: memoryview | None,
    settings: TopicConfig,
    now_ms: int,
    *,
    produce_version: int = 11,
    allow_transactional: bool = False,
) -> Generator[None, None, tuple[Buffer, BatchInfo]]:
    """As `accept_produced`, with a step for every few hundred records: for batches of very many.

    `opened` is what `open_batch` gave, which may have worked in another thread.
    """
    view, info = _check_head(records, settings, produce_version, allow_transactional)
    owned = _owned_copy(view, info, settings) if opened is None else opened
    latest = yield from _walk_steps(owned, settings, now_ms)
    return _as_stored(records, info, latest, settings, now_ms)


def open_batch(records: Buffer, settings: TopicConfig) -> memoryview | None:
    """A batch uncompressed, in memory of its own; None when it cannot be, which `accept_steps` will say."""
    view = memoryview(records)
    try:
        info = BatchInfo(*HEADER.unpack_from(view))
        if not info.attributes & COMPRESSION_MASK or crc32c(view[CRC_START:]) != info.crc:
            return None
        return _owned_copy(view, info, settings, scratch=None)
    except (PenstockError, struct.error):
        return None


def declared_records(records: Buffer) -> int:
    """How many records a batch says that it has; 0 for what is too short to be one."""
    return int.from_bytes(records[57:61], "big") if len(records) >= HEADER_BYTES else 0


def _as_stored(
    records: Buffer, info: BatchInfo, max_timestamp: int, settings: TopicConfig, now_ms: int
) -> tuple[Buffer, BatchInfo]:
    if len(records) > settings.segment_bytes:
        raise PenstockError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"batch of {len(records)} bytes is above segment.bytes={settings.segment_bytes}",
        )
    if settings.is_log_append_time:
        return _with_times(records, info, info.attributes | LOG_APPEND_TIME_BIT, now_ms)
    if max_timestamp != info.max_timestamp:
        return _with_times(records, info, info.attributes, max_timestamp)
    return records, info


def check_produced(
    records: Buffer,
    settings: TopicConfig,
    now_ms: int,
    *,
    produce_version: int = 11,
    allow_transactional: bool = False,
) -> BatchInfo:
    """Check one partition's records of a Produce request; returns the header as received.

    `now_ms` is the wall clock in ms since 1970. Raises PenstockError (InvalidRecords
    where single records are to blame) with Kafka's code: CORRUPT_MESSAGE,
    MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, INVALID_TXN_STATE,
    UNSUPPORTED_COMPRESSION_TYPE or INVALID_RECORD. To store a batch use
    `accept_produced`, which also writes what LogAppendTime topics need.
    """
    view, info = _check_head(records, settings, produce_version, allow_transactional)
    latest = _walk(_owned_copy(view, info, settings), settings, now_ms)
    _as_stored(records, info, latest, settings, now_ms)
    return info


def _invalid(message: str) -> PenstockError:
    return PenstockError(ErrorCode.INVALID_RECORD, message)


def _check_head(
    records: Buffer, settings: TopicConfig, produce_version: int, allow_transactional: bool
) -> tuple[memoryview, BatchInfo]:
    """The checks in Kafka's order, up to the walk over the records."""
    view = memoryview(records)
    size = len(view)
    if size < HEADER_BYTES:
        raise _short(view, size)
    info = BatchInfo(*HEADER.unpack_from(view))
    _check_frame(info, size, produce_version)
    if info.base_offset != 0:
        raise _invalid(f"base offset of a produced batch is {info.base_offset}, must be 0")
    if size > settings.max_message_bytes:
        raise PenstockError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {size} bytes is above max.message.bytes={settings.max_message_bytes}",
        )
    if crc32c(view[CRC_START:]) != info.crc:
        raise PenstockError(ErrorCode.CORRUPT_MESSAGE, "CRC of the batch is wrong: it was damaged on the way")
    _check_header(info, settings, allow_transactional)
    return view, info


def _short(view: memoryview, size: int) -> PenstockError:
    """What Kafka says of fewer bytes than a batch header."""
    if size >= LENGTH_OVERHEAD_BYTES and int.from_bytes(view[8:12], "big", signed=True) < _LENGTH_MIN:
        return PenstockError(ErrorCode.CORRUPT_MESSAGE, "length field of the batch is below the minimum")
    if size >= _BYTES_TO_MAGIC and not 0 <= view[16] <= MAGIC:
        return PenstockError(ErrorCode.CORRUPT_MESSAGE, f"magic {view[16]} is unknown")
    if size >= _BYTES_TO_MAGIC and view[16] == MAGIC:
        length = int.from_bytes(view[8:12], "big", signed=True)
        if length + LENGTH_OVERHEAD_BYTES <= size:
            return PenstockError(ErrorCode.CORRUPT_MESSAGE, f"batch of {size} bytes is below {HEADER_BYTES}")
    return _invalid(f"no complete batch in {size} bytes")


def _check_frame(info: BatchInfo, size: int, produce_version: int) -> None:
    """That there is exactly one batch of the right format."""
    batch_bytes = info.batch_length + LENGTH_OVERHEAD_BYTES
    if batch_bytes == size and info.magic == MAGIC and info.attributes & COMPRESSION_MASK == 0:
        return
    if info.batch_length < _LENGTH_MIN:
        raise PenstockError(ErrorCode.CORRUPT_MESSAGE, f"length field of the batch is {info.batch_length}")
    if not 0 <= info.magic <= MAGIC:
        raise PenstockError(ErrorCode.CORRUPT_MESSAGE, f"magic {info.magic} is unknown")
    if batch_bytes > size:
        raise _invalid(f"batch of {batch_bytes} bytes is cut off at {size}")
    if info.magic != MAGIC:
        raise _invalid(f"message format {info.magic} is not taken: use RecordBatch v2 (magic 2)")
    if batch_bytes < size and batch_bytes >= HEADER_BYTES:
        raise _invalid(f"{size - batch_bytes} bytes follow the batch: send exactly one per partition")
    if batch_bytes < HEADER_BYTES:
        raise PenstockError(
            ErrorCode.CORRUPT_MESSAGE, f"batch of {batch_bytes} bytes is below {HEADER_BYTES}"
        )
    codec = info.attributes & COMPRESSION_MASK
    if codec not in compression.CODEC_NAMES:
        raise PenstockError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")
    if codec == compression.ZSTD and produce_version < _ZSTD_VERSION_MIN:
        raise PenstockError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later")


def _check_header(info: BatchInfo, settings: TopicConfig, allow_transactional: bool) -> None:
    count = info.record_count
    if count <= 0 or info.last_offset_delta + 1 != count:
        raise _invalid(f"batch has {count} records but last offset delta {info.last_offset_delta}")
    # Nearly every batch has none of the bits below and ends here.
    if info.producer_id < 0 and info.attributes & ~COMPRESSION_MASK == 0:
        return
    if info.is_control:
        raise _invalid("control batches come from the broker alone")
    if info.producer_id >= 0 and info.base_sequence < 0:
        raise _invalid(f"producer {info.producer_id} sent sequence {info.base_sequence}")
    if info.attributes & DELETE_HORIZON_BIT:
        raise _invalid("a producer may not set a delete horizon")
    if info.attributes & LOG_APPEND_TIME_BIT:
        raise PenstockError(
            ErrorCode.INVALID_TIMESTAMP,
            "a producer may not set the timestamp type LogAppendTime: set message.timestamp.type instead",
        )
    if info.is_transactional and not allow_transactional:
        raise PenstockError(
            ErrorCode.INVALID_TXN_STATE, "transactional batch outside a transaction that this broker knows"
        )
    if info.is_transactional and info.producer_id < 0:
        raise _invalid("transactional batch without a producer id")


def _walk(owned: memoryview, settings: TopicConfig, now_ms: int) -> int:
    """Read every record; returns the largest timestamp (-1 when none has one)."""
    steps = _walk_steps(owned, settings, now_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            latest: int = end.value
            return latest


def _walk_steps(owned: memoryview, settings: TopicConfig, now_ms: int) -> Generator[None, None, int]:
    """As `_walk`, with a step after each _WALK_CHUNK of records.

    Where nothing else is to be looked at one record is alive at a time, and the next one gets its memory: a third
    less than lists of records take, though C compares those.
    """
    # The reader itself may be asked for an iterator but once.
    reader = chain(RecordReader(owned))
    check_keys = settings.is_compacted
    check_past = not settings.is_log_append_time and settings.message_timestamp_before_max_ms < LONG_MAX
    latest = NO_TIMESTAMP
    end = 0
    while True:
        start = end
        records: Iterable[Any] = islice(reader, _WALK_CHUNK)
        try:
            if check_keys or check_past:
                records = list(records)
            for record in records:
                if record.offset != end:
                    raise _invalid("offset deltas of the records do not count up from 0")
                timestamp = record.timestamp
                if timestamp > latest:
                    latest = timestamp
                end += 1
        except PenstockError:
            raise
        except Exception as error:
            # Whatever the reader trips over (MemoryError and OverflowError on absurd
            # lengths among it), it is the batch that is broken.
            raise _invalid(f"records of the batch are malformed: {error}") from None
        if check_keys and None in map(_key_of, records):
            raise _null_keys([i for i, record in enumerate(records, start) if record.key is None])
        if check_past:
            _check_past(list(map(_timestamp_of, records)), start, settings, now_ms)
        if end - start < _WALK_CHUNK:
            break
        yield
    if not settings.is_log_append_time and latest > now_ms + settings.message_timestamp_after_max_ms:
        raise PenstockError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {latest} is more than message.timestamp.after.max.ms="
            f"{settings.message_timestamp_after_max_ms} after the broker's clock {now_ms}",
        )
    return latest


def _owned_copy(
    view: memoryview, info: BatchInfo, settings: TopicConfig, scratch: memoryview | None = _THREADS_OWN
) -> memoryview:
    """The batch, uncompressed, in memory that goes on for OVERREAD_BYTES behind it."""
    if scratch is _THREADS_OWN:
        scratch = _scratch.view
    size = len(view)
    codec = info.attributes & COMPRESSION_MASK
    if codec:
        owned = compression.decompress(
            codec,
            view[HEADER_BYTES:],
            reserve_bytes=HEADER_BYTES,
            pad_bytes=OVERREAD_BYTES,
            scratch=scratch,
            most_bytes=max(DECOMPRESSED_BATCH_BYTES_MAX, settings.max_message_bytes),
        )
        owned[:HEADER_BYTES] = view[:HEADER_BYTES]
        owned[22] &= ~COMPRESSION_MASK & 0xFF
        return owned
    memory = (
        scratch
        if scratch is not None and size <= _SCRATCH_BYTES
        else compression.fresh_memory(size + OVERREAD_BYTES)
    )
    owned = memory[:size]
    owned[:] = view
    return owned


def _null_keys(indexes: list[int]) -> InvalidRecords:
    return InvalidRecords(
        ErrorCode.INVALID_RECORD,
        "a compacted topic takes no records without a key",
        [(index, "record has no key") for index in indexes[:100]],
    )


def _check_past(timestamps: list[int], start: int, settings: TopicConfig, now_ms: int) -> None:
    oldest = now_ms - settings.message_timestamp_before_max_ms
    for index, timestamp in enumerate(timestamps, start):
        if timestamp < oldest and timestamp != NO_TIMESTAMP:
            raise InvalidRecords(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {timestamp} is more than message.timestamp.before.max.ms="
                f"{settings.message_timestamp_before_max_ms} before the broker's clock {now_ms}",
                [(index, "timestamp is out of range")],
            )


def _with_times(
    records: Buffer, info: BatchInfo, attributes: int, max_timestamp: int
) -> tuple[bytes, BatchInfo]:
    """A copy with these attributes and max timestamp, and the CRC that goes with them."""
    out = bytearray(records)
    # Signed: Kafka leaves bits that it does not use alone, the highest too.
    out[21:23] = attributes.to_bytes(2, "big", signed=True)
    out[35:43] = max_timestamp.to_bytes(8, "big", signed=True)
    crc = crc32c(memoryview(out)[CRC_START:])
    out[17:21] = crc.to_bytes(4, "big")
    return bytes(out), replace(info, attributes=attributes, max_timestamp=max_timestamp, crc=crc)
