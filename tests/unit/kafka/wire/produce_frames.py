"""Produce requests by chance, whole and spoiled, for whoever reads them while they come."""

from __future__ import annotations

import random
from collections.abc import Sequence

from penstock_core.ids import TopicId
from penstock_kafka.wire.produce import ProducePartition, ProduceSkim, encode_produce_request

VERSIONS = range(3, 14)


def frame_of(version: int, rng: random.Random, sizes: Sequence[int]) -> tuple[bytes, ProduceSkim]:
    """A request without its length, and what it says; records are of one of `sizes`."""
    partitions = [
        ProducePartition(
            "" if version >= 13 else f"topic-{topic}",
            TopicId(rng.randbytes(16)) if version >= 13 else None,
            partition,
            memoryview(rng.randbytes(rng.choice(sizes))),
        )
        for topic in range(rng.randrange(4))
        for partition in range(rng.randrange(1, 6))
    ]
    acks, receipt = rng.choice((-1, 0, 1)), version >= 9 and rng.random() < 0.5
    skim = ProduceSkim(rng.choice((None, "tx")), acks, 30_000, partitions, want_receipt=receipt)
    client_id = rng.choice((None, "", "client"))
    return b"".join(bytes(part) for part in encode_produce_request(version, 7, client_id, skim)), skim


def spoiled(version: int, rng: random.Random, sizes: Sequence[int]) -> bytes:
    """A request with some bytes of its beginning changed, perhaps one too short or too long."""
    frame = bytearray(frame_of(version, rng, sizes)[0])
    for _ in range(rng.randrange(1, 4)):
        frame[rng.randrange(min(len(frame), 80))] = rng.randrange(256)
    length = max(1, len(frame) + rng.choice((-1, 0, 0, 1)))
    return bytes(frame + bytes(1))[:length]
