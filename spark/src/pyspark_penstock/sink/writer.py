"""What Spark calls to write: made on the driver, pickled, and used up by tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_penstock.encode import Placing, encode_batches
from pyspark_penstock.errors import OptionError, RowError
from pyspark_penstock.gateway import check_claims
from pyspark_penstock.parts import restore
from pyspark_penstock.sink.columns import Share, check_schema, shares
from pyspark_penstock.sink.options import SinkOptions, parse_sink_options
from pyspark_penstock.sink.producer import Producer

_log = logging.getLogger("pyspark_penstock")
_told: set[str] = set()

GATHERED_BYTES = 4 * 1024 * 1024
"""Rows that are encoded together: of the 10,000 that Spark hands on at a time many partitions get few each."""

_NO_OVERWRITE = (
    'topics can\'t be overwritten; write with mode("append"), and delete the topic or its records first if they '
    "are to go (penstock topic delete, penstock topic trim)"
)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Raises OptionError."""
    if overwrite:
        raise OptionError(_NO_OVERWRITE)
    return AtLeastOnceWriter(_checked(options, schema))


def stream_writer(options: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """Output modes append and complete: with either, what Spark hands on is written behind what is there.

    Raises OptionError.
    """
    return AtLeastOnceStreamWriter(_checked(options, schema))


def _checked(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    parsed = parse_sink_options(options)
    check_claims(parsed)
    for remark in parsed.remarks:
        if remark not in _told:  # Spark makes a writer anew for each micro-batch, in the same process
            _told.add(remark)
            _log.warning("%s", remark)
    check_schema(schema, parsed.topic)
    return parsed


class AtLeastOnceWriter(DataSourceArrowWriter):
    """Of a batch: rows are there as soon as their leaders have them, whatever becomes of the job."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, ("sink.writer", "AtLeastOnceWriter", self._options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._options, iterator)


class AtLeastOnceStreamWriter(DataSourceStreamArrowWriter):
    """Of a stream: likewise; a micro-batch that is repeated is written again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, ("sink.writer", "AtLeastOnceStreamWriter", self._options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: the rows are there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be taken back."""


def write_rows(options: SinkOptions, iterator: Iterator[Any]) -> WriterCommitMessage:
    """One task. Returns when all in-sync replicas have every row. Raises PenstockError."""
    task = TaskContext.get()
    turn = (0 if task is None else task.partitionId()) % len(options.gateways)
    gateways = options.gateways[turn:] + options.gateways[:turn]
    producer = Producer(gateways, credentials_file=options.credentials_file, codec=options.codec)
    try:
        places = _Places(producer)
        for table in gathered(iterator):
            for share in shares(table, options.topic, time.time_ns() // 1_000_000):
                partitions = places.of(share)
                producer.send(share.topic, encode_batches(share.rows, partitions, codec=options.codec))
        producer.flush()
    finally:
        producer.close()
    return WriterCommitMessage()


def gathered(iterator: Iterator[Any]) -> Iterator[Any]:
    """Tables of several of Spark's batches."""
    held: list[Any] = []
    held_bytes = 0
    for batch in iterator:
        if not batch.num_rows:
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= GATHERED_BYTES:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


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
