"""The record that ends a transaction in a partition: built and read.

A marker is a control batch (attributes transactional and control) of one record without headers, never
compressed, with the producer's id and epoch and no sequence. Key: int16 version 0, int16 type (0 abort,
1 commit). Value: int16 version 0, int32 epoch of the coordinator that wrote it. Sources: KIP-98; Kafka:
EndTransactionMarker, ControlRecordType, MemoryRecords.withEndTransactionMarker. Compaction may have given a
marker a delete horizon (KIP-534), or taken its record: an empty control batch ends nothing.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records import compression
from penstock_kafka.records.batch import HEADER_BYTES, BatchInfo, Buffer
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.varint import read_varint

MARKER_VERSION: Final = 0
ABORT: Final = 0
COMMIT: Final = 1

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_TIMESTAMP_BYTES_MAX: Final = 10


class Marker(NamedTuple):
    """What a transaction's end marker says."""

    commits: bool
    """Else it aborts."""
    coordinator_epoch: int
    """Leader epoch of the `__transaction_state` partition whose leader had it written."""


def build_marker(
    producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int, *, base_offset: int = 0
) -> bytes:
    """The batch that a leader appends; `timestamp_ms` is ms since 1970."""
    key = _KEY.pack(MARKER_VERSION, COMMIT if marker.commits else ABORT)
    value = _VALUE.pack(MARKER_VERSION, marker.coordinator_epoch)
    return build_batch(
        [NewRecord(key, value, timestamp_ms)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: Buffer, info: BatchInfo, position: int = 0) -> Marker | None:
    """What the control batch that begins at `position` of `batch` says of a transaction.

    None for every batch that ends none: data, an empty control batch, a control record of another type (those of
    KRaft). Later versions of key and value may be longer; what is known of them stands first. Raises CORRUPT_MESSAGE
    for a control batch whose record can't be read.
    """
    if not info.is_control or info.record_count < 1 or not info.is_transactional:
        return None
    try:
        key, value = _key_and_value(batch, info, position)
        version, kind = _KEY.unpack_from(key)
        if kind not in (ABORT, COMMIT):
            return None
        value_version, coordinator_epoch = _VALUE.unpack_from(value)
    except (struct.error, PenstockError) as error:
        raise PenstockError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the control batch at offset {info.base_offset} holds no marker: {error}",
        ) from error
    if version < MARKER_VERSION or value_version < MARKER_VERSION:
        raise PenstockError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the marker at offset {info.base_offset} has version {min(version, value_version)}",
        )
    return Marker(kind == COMMIT, coordinator_epoch)


def _key_and_value(batch: Buffer, info: BatchInfo, position: int) -> tuple[bytes, bytes]:
    start, end = position + HEADER_BYTES, position + info.size_bytes
    body: Buffer = memoryview(batch)[start:end]
    if info.compression:  # nobody writes it so, and whoever reads a record batch could
        body = bytes(compression.decompress(info.compression, body))
    end = len(body)
    _, at = read_varint(body, 0, end)
    _, at = read_varint(body, at + 1, end, _TIMESTAMP_BYTES_MAX)
    _, at = read_varint(body, at, end)
    key, at = _bytes_at(body, at, end)
    value, _ = _bytes_at(body, at, end)
    return key, value


def _bytes_at(body: Buffer, at: int, end: int) -> tuple[bytes, int]:
    size, at = read_varint(body, at, end)
    if not 0 <= size <= end - at:
        raise PenstockError(ErrorCode.INVALID_RECORD, f"{size} bytes at byte {at} of {end}")
    return bytes(body[at : at + size]), at + size


__all__ = ["ABORT", "COMMIT", "Marker", "build_marker", "read_marker"]
