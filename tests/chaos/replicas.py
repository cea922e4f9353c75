"""What stands on the disk of one replica: its segment files, read without the server's own log code. Markers of
transactions are passed over.

Only for a node that is not running. Each batch's CRC is checked; a batch that fails, or a file
that ends within one, counts as one UNREADABLE record at its base offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from chaos.history import UNREADABLE, Polls
from chaos.load import number_of
from penstock_core.errors import PenstockError
from penstock_kafka.records.crc import crc32c
from penstock_kafka.records.read import read_records

HEADER_BYTES = 61
LENGTH_OVERHEAD_BYTES = 12
CRC_START = 21
CONTROL_BIT = 0x20


def read_replica(
    data_dir: Path,
    process: int,
    topic: str,
    partitions: Iterable[int],
    parse: Callable[[bytes | None], int] = number_of,
) -> Polls:
    """Every record of these partitions on this disk, as polls of `process`. `parse` tells the number of a value."""
    polls = Polls()
    for partition in partitions:
        for op, file in enumerate(sorted((data_dir / f"{topic}-{partition}").glob("*.log"))):
            _read_segment(file.read_bytes(), polls, process, op, partition, parse)
    return polls


def _read_segment(
    data: bytes,
    polls: Polls,
    process: int,
    op: int,
    partition: int,
    parse: Callable[[bytes | None], int],
) -> None:
    position = 0
    while position + HEADER_BYTES <= len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        end = position + LENGTH_OVERHEAD_BYTES + length
        batch = data[position:end]
        (crc,) = struct.unpack_from(">I", batch, 17)
        if (
            end > len(data)
            or length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES
            or crc32c(batch[CRC_START:]) != crc
        ):
            polls.add(process, op, 0, partition, base_offset, UNREADABLE)
            return
        position = end
        (attributes,) = struct.unpack_from(">h", batch, CRC_START)
        if attributes & CONTROL_BIT:
            continue
        try:
            for record in read_records(batch):
                polls.add(process, op, 0, partition, record.offset, parse(record.value))
        except PenstockError:
            polls.add(process, op, 0, partition, base_offset, UNREADABLE)
