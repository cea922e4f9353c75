"""Kafka's small text files, byte for byte.

  leader-epoch-checkpoint          "0\\n<count>\\n<epoch> <start offset>\\n..."   in each partition
  partition.metadata               "version: 0\\ntopic_id: <base64 uuid>"         in each partition
  recovery-point-offset-checkpoint "0\\n<count>\\n<topic> <partition> <offset>\\n..."
  replication-offset-checkpoint    same form, the high watermarks
  log-start-offset-checkpoint      same form, only where records were deleted by hand
  cleaner-offset-checkpoint        same form, where the compacted part of a log ends
  tombstone-offset-checkpoint      same form, ours: below it tombstones may be missing
  meta.properties                  Java properties: version, node.id, cluster.id, directory.id
  retired                          Java properties, ours: operation; the directory's node was removed

Source: org.apache.kafka.server.common.CheckpointFile and its users, and
org.apache.kafka.metadata.properties.MetaProperties (Kafka 4.3). Everything here is pure:
text in, values out; `fs.write_file_atomically` writes it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

from penstock_core.errors import ErrorCode, PenstockError

LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
TOMBSTONE_FILE = "tombstone-offset-checkpoint"
META_PROPERTIES_FILE = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"
RETIRED_FILE = "retired"
OFFSET_FILES = (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, CLEANER_FILE, TOMBSTONE_FILE)
"""Those with rows by partition."""

META_VERSION = 1
"""Version of meta.properties since KRaft."""


def _corrupt(what: str) -> PenstockError:
    return PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what} is corrupt; delete it to have it rebuilt")


def _rows(text: str, what: str, fields: int) -> list[list[str]]:
    lines = text.splitlines()
    try:
        if int(lines[0]) != 0:
            raise PenstockError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{what} has format {lines[0]!r}, this build reads 0: it was written by a newer version",
            )
        rows = [line.split() for line in lines[2:] if line]
        if len(rows) != int(lines[1]) or any(len(row) != fields for row in rows):
            raise _corrupt(what)
    except (IndexError, ValueError) as error:
        raise _corrupt(what) from error
    return rows


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """(epoch, start offset) in order."""
    rows = [f"{epoch} {start}\n" for epoch, start in entries]
    return f"0\n{len(rows)}\n{''.join(rows)}".encode("ascii")


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    try:
        rows = _rows(data.decode("ascii"), LEADER_EPOCH_FILE, 2)
        return [(int(epoch), int(start)) for epoch, start in rows]
    except ValueError as error:
        raise _corrupt(LEADER_EPOCH_FILE) from error


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Offset by (topic, partition)."""
    rows = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    return f"0\n{len(rows)}\n{''.join(rows)}".encode("ascii")


def decode_offsets(data: bytes, what: str) -> dict[tuple[str, int], int]:
    try:
        rows = _rows(data.decode("ascii"), what, 3)
        return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except ValueError as error:
        raise _corrupt(what) from error


def encode_uuid(value: bytes) -> str:
    """Kafka's Uuid.toString: base64, URL-safe, no padding."""
    return base64.urlsafe_b64encode(value).decode("ascii").rstrip("=")


def decode_uuid(text: str) -> bytes:
    """Raises ValueError."""
    value = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(value) != 16:
        raise ValueError(f"uuid {text!r} has {len(value)} bytes, not 16")
    return value


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode("ascii")


def decode_partition_metadata(data: bytes) -> bytes:
    """The topic id; raises KAFKA_STORAGE_ERROR."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode("ascii").splitlines() if line)
        if int(fields["version"]) != 0:
            raise PenstockError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{PARTITION_METADATA_FILE} has format {fields['version']}, this build reads 0",
            )
        return decode_uuid(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise PenstockError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{PARTITION_METADATA_FILE} is corrupt: {error}"
        ) from error


def encode_properties(values: Mapping[str, str]) -> bytes:
    """Java's properties, for the plain ASCII values that we write."""
    return ("#\n" + "".join(f"{key}={value}\n" for key, value in values.items())).encode("ascii")


def decode_properties(data: bytes) -> dict[str, str]:
    """Raises ValueError on anything that `encode_properties` or Kafka would not write."""
    values: dict[str, str] = {}
    for line in data.decode("ascii").splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"line without '=': {line!r}")
        values[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return values
