"""Stored batches with producers, markers and faults, for the jobs' tests."""

from __future__ import annotations

import struct

import google_crc32c

from unit.spark.spark_batches import Rec, encode_batch
from unit.spark.spark_memory_gateway import MemoryGateway

_PRODUCER = 43
"""Where producer id, epoch and first sequence stand in a batch."""
TRANSACTIONAL, CONTROL = 0x10, 0x20


def by_producer(batch: bytes, producer_id: int, epoch: int, sequence: int) -> bytes:
    """The batch as written by that producer."""
    made = bytearray(batch)
    struct.pack_into(">qhi", made, _PRODUCER, producer_id, epoch, sequence)
    struct.pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    return bytes(made)


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    """What ends a transaction."""
    record = Rec(offset, 1_700_000_000_000, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 1))
    return by_producer(encode_batch([record], attributes=TRANSACTIONAL | CONTROL), producer_id, 0, -1)


def data(
    first: int,
    count: int = 10,
    *,
    producer: tuple[int, int, int] | None = None,
    last: int | None = None,
    attributes: int = 0,
    damaged: bool = False,
) -> bytes:
    """A batch of `count` records from offset `first`; `producer` is (id, epoch, sequence)."""
    recs = [
        Rec(first + i, 1_700_000_000_000 + first + i, b"k%d" % (i % 3), b"value %d" % (first + i))
        for i in range(count)
    ]
    made = encode_batch(recs, last_offset=last, attributes=attributes)
    if producer is not None:
        made = by_producer(made, *producer)
    return made[:-1] + bytes([made[-1] ^ 1]) if damaged else made


def store(cluster: MemoryGateway, topic: str, partition: int, *batches: bytes, start: int = 0) -> None:
    """Puts batches into a partition as they are; its log starts at `start`."""
    log = cluster.topics[topic].logs[partition]
    for batch in batches:
        (base,) = struct.unpack_from(">q", batch)
        (delta,) = struct.unpack_from(">i", batch, 23)
        log.batches.append((base, base + delta, batch))
        log.end = max(log.end, base + delta + 1)
    log.start = start
