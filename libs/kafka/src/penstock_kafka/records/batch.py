"""Header of Kafka's RecordBatch v2 (magic 2), read and stamped in place.

Layout (big-endian; Kafka: DefaultRecordBatch): baseOffset 8, batchLength 4,
partitionLeaderEpoch 4, magic 1, crc 4, attributes 2, lastOffsetDelta 4,
baseTimestamp 8, maxTimestamp 8, producerId 8, producerEpoch 2, baseSequence 4,
recordCount 4, then records. `batchLength` counts from byte 12 on; the CRC-32C covers
byte 21 on, so a leader writes base offset and leader epoch without touching it.

Attributes: bits 0-2 compression, 3 timestamp type (1 = LogAppendTime), 4 transactional,
5 control, 6 delete horizon.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.crc import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
"""Header of a batch, up to its first record."""

PREFIX_BYTES: Final = 16
"""Base offset, length and leader epoch: what a leader writes anew."""

LENGTH_OVERHEAD_BYTES: Final = 12
"""Base offset and length, which `batch_length` does not count."""

CRC_START: Final = 21
"""First byte that the CRC covers."""

MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1

_PREFIX: Final = struct.Struct(">qii")
_LENGTH: Final = struct.Struct(">i")


@dataclass(slots=True)
class BatchInfo:
    """Header of one batch. Field by field what stands in its 61 bytes, plus `position`.

    Timestamps are ms since 1970, -1 for none.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    position: int = 0
    """Where the batch begins in the buffer that it was read from, in bytes."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 without one; wraps at 2^31-1 to 0 (KIP-98)."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


def read_header(buffer: Buffer, position: int = 0) -> BatchInfo:
    """The header at `position`; raises CORRUPT_MESSAGE when it isn't whole.

    Nothing else is checked.
    """
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise PenstockError(
            ErrorCode.CORRUPT_MESSAGE,
            f"batch header needs {HEADER_BYTES} bytes, {len(buffer) - position} are left at {position}",
        )
    info = BatchInfo(*HEADER.unpack_from(buffer, position))
    info.position = position
    return info


def is_transactional(records: Buffer) -> bool:
    """Whether the batch says that it belongs to a transaction; False for what is too short to be one."""
    return len(records) >= HEADER_BYTES and bool(records[22] & TRANSACTIONAL_BIT)


def iter_batches(buffer: Buffer, start: int = 0, end: int | None = None) -> Iterator[BatchInfo]:
    """Headers of the whole batches in `buffer[start:end]`, in order.

    Stops before a batch that is cut off: the caller sees by the last `position` plus
    `size_bytes` how far it came. Raises CORRUPT_MESSAGE on a length below the least
    possible or on another magic: nothing after that can be found. CRCs are not checked.
    """
    stop = len(buffer) if end is None else min(end, len(buffer))
    unpack = HEADER.unpack_from
    position = start
    while stop - position >= HEADER_BYTES:
        info = BatchInfo(*unpack(buffer, position))
        info.position = position
        if info.batch_length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES or info.magic != MAGIC:
            raise PenstockError(
                ErrorCode.CORRUPT_MESSAGE,
                f"no RecordBatch v2 at byte {position}: length {info.batch_length}, magic {info.magic}",
            )
        size = info.batch_length + LENGTH_OVERHEAD_BYTES
        if size > stop - position:
            return
        yield info
        position += size


def stamp(base_offset: int, leader_epoch: int, batch: Buffer) -> bytes:
    """The 16 bytes that replace a batch's first 16: then it is `prefix + batch[16:]`.

    The CRC stays right, because it covers neither field.
    """
    return _PREFIX.pack(base_offset, _LENGTH.unpack_from(batch, 8)[0], leader_epoch)


def is_crc_valid(batch: Buffer) -> bool:
    """Whether the CRC of one whole batch (exactly its bytes) is right."""
    view = memoryview(batch)
    crc: int = int.from_bytes(view[17:21], "big")
    return len(view) >= HEADER_BYTES and crc32c(view[CRC_START:]) == crc
