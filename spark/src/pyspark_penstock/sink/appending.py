"""One task's rows to the partitions where they belong."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyspark_penstock.encode import Placing, encode_batches
from pyspark_penstock.errors import RowError
from pyspark_penstock.sink.columns import Share, shares
from pyspark_penstock.sink.options import SinkOptions
from pyspark_penstock.sink.producer import Producer
from pyspark_penstock.sink.protocol import Rows, Triple


class Appending:
    """Not thread-safe. Its calls raise PenstockError."""

    def __init__(self, options: SinkOptions, gateways: Sequence[str], stage: Triple | None = None) -> None:
        """`stage`: what the rows belong to; None: they are visible as soon as they are there."""
        self._options = options
        self._producer = Producer(
            gateways, credentials_file=options.credentials_file, codec=options.codec, stage=stage
        )
        self._places = _Places(self._producer)
        self.rows: Rows = {}

    def append(self, table: Any) -> None:
        """Takes the rows of an Arrow table; they may still be on their way when it returns."""
        codec = self._options.codec
        for share in shares(table, self._options.topic, time.time_ns() // 1_000_000):
            partitions = self._places.of(share)
            for partition, count in enumerate(np.bincount(partitions).tolist()):
                if count:
                    place = share.topic, partition
                    self.rows[place] = self.rows.get(place, 0) + count
            sequences = self._producer.sequences(share.topic)
            batches = encode_batches(share.rows, partitions, codec=codec, sequences=sequences)
            self._producer.send(share.topic, batches)

    def flush(self) -> None:
        """Returns when all in-sync replicas have every row."""
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()


class _Places:
    """The partitions of rows, for each topic that a task meets."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._counts: dict[str, int] = {}
        self._placing: dict[str, Placing] = {}

    def of(self, share: Share) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Raises RowError for a partition that the topic doesn't have."""
        topic = share.topic
        if topic not in self._counts:
            self._counts[topic] = self._producer.partitions(topic)
            self._placing[topic] = Placing(self._counts[topic])
        placed = self._placing[topic].place(share.rows.key, share.rows.size_bounds(), share.named)
        low, high = int(placed.min()), int(placed.max())
        if high >= self._counts[topic]:
            self._counts[topic] = self._producer.partitions(topic)  # it may have more by now
        count = self._counts[topic]
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            raise RowError(
                f"column partition has {wrong}, and topic {topic} has the partitions 0 to {count - 1}; correct "
                "it, or leave it null to have the key decide"
            )
        return placed
