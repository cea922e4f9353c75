"""Records that take no room compressed and time to walk."""

from __future__ import annotations

import struct
from functools import cache

from penstock_kafka.records import compression
from penstock_kafka.records.batch import HEADER, LENGTH_OVERHEAD_BYTES, MAGIC
from penstock_kafka.records.build import with_crc
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from security.target import WIDE_PARTITIONS, WIDE_TOPIC, Outcome, Target, answer

TEXT = "one Produce of 60 partitions with 1,000,000 empty zstd records each"
RECORDS = 1_000_000
VERSION = 9


def run(target: Target) -> Outcome:
    """Send it once through the gateway; all nodes lead some of the partitions."""
    return write_once(target, empty_batch(50_000 if target.small else RECORDS))


def write_once(target: Target, records: bytes) -> Outcome:
    """One Produce of that batch to every partition."""
    batch = memoryview(records)
    items = [ProducePartition(WIDE_TOPIC, None, p, batch) for p in range(WIDE_PARTITIONS)]
    parts = encode_produce_request(VERSION, 7, "bad", ProduceSkim(None, -1, 30_000, items))
    body = b"".join(bytes(part) for part in parts)
    with target.connect() as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        response = answer(connection)
    if response is None:
        return Outcome(True, "closed")
    codes = {result.error for result in decode_produce_response(response, VERSION).results}
    # Where clients sign in nobody without rights writes (29: TOPIC_AUTHORIZATION_FAILED).
    refused = not target.entry.ca or codes == {29}
    return Outcome(refused, f"{len(body) / 1e6:.1f} MB, codes {sorted(codes)}")


@cache
def empty_batch(count: int) -> bytes:
    """A batch of `count` records without key, value or headers."""
    body = bytearray()
    for delta in range(count):
        value = delta << 1
        offset = bytearray()
        while value >= 128:
            offset.append(value & 0x7F | 0x80)
            value >>= 7
        offset.append(value)
        body.append((5 + len(offset)) << 1)
        body += b"\x00\x00" + offset + b"\x01\x01\x00"
    packed = compression.compress(compression.ZSTD, bytes(body))
    size = HEADER.size + len(packed)
    head = HEADER.pack(
        *(0, size - LENGTH_OVERHEAD_BYTES, -1, MAGIC, 0, compression.ZSTD, count - 1),
        *(0, 0, -1, -1, -1, count),
    )
    return with_crc(bytearray(head + packed))
