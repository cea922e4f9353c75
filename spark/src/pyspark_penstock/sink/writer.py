"""What Spark calls to write: made on the driver, pickled, and used up by tasks."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_penstock.errors import OptionError
from pyspark_penstock.gateway import check_claims
from pyspark_penstock.parts import restore
from pyspark_penstock.sink.appending import Appending
from pyspark_penstock.sink.calls import others
from pyspark_penstock.sink.columns import check_schema
from pyspark_penstock.sink.options import SinkOptions, checkpoint_of, parse_sink_options
from pyspark_penstock.sink.staging import abort_messages, commit_messages, stage_rows
from pyspark_penstock.sink.units import current_task, has_no_micro_batch, planned_from, unit_of

_log = logging.getLogger("pyspark_penstock")
_told: set[str] = set()

GATHERED_BYTES = 4 * 1024 * 1024
"""Rows that are encoded together: of the 10,000 that Spark hands on at a time many partitions get few each."""

_NO_OVERWRITE = (
    'topics can\'t be overwritten; write with mode("append"), and delete the topic or its records first if they '
    "are to go (penstock topic delete, penstock topic trim)"
)
_NO_MICRO_BATCH = (
    "this query has no micro-batches, and Spark hands rows to a sink in Python by micro-batches alone: its trigger is "
    "continuous or realTime; use trigger(processingTime=...) or trigger(availableNow=True)"
)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Raises OptionError."""
    if overwrite:
        raise OptionError(_NO_OVERWRITE)
    return BatchWriter(_checked(parse_sink_options(options, single=uuid.uuid4().hex), schema))


def stream_writer(options: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """Output modes append and complete: with either, what Spark hands on is written behind what is there.

    Raises OptionError.
    """
    parsed = parse_sink_options(options)
    if has_no_micro_batch(checkpoint_of(options)):
        raise OptionError(_NO_MICRO_BATCH)
    return StreamWriter(_checked(parsed, schema))


def _checked(parsed: SinkOptions, schema: StructType) -> SinkOptions:
    check_claims(parsed)
    for remark in parsed.remarks:
        if remark not in _told:  # Spark makes a writer anew for each micro-batch, in the same process
            _told.add(remark)
            _log.warning("%s", remark)
    check_schema(schema, parsed.topic)
    return replace(parsed, others=others(parsed.gateways, parsed.credentials_file))


class BatchWriter(DataSourceArrowWriter):
    """Of a batch. With delivery=at-least-once rows are there as soon as their leaders have them, whatever becomes of
    the job."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, ("sink.writer", "BatchWriter", self._options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_messages(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_messages(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Of a stream: likewise; a micro-batch that is repeated is written again, at least once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, ("sink.writer", "StreamWriter", self._options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(self._options, iterator, streaming=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit_messages(self._options, messages, planned_from(self._options.checkpoint, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort_messages(self._options, messages)


def write_rows(
    options: SinkOptions, iterator: Iterator[Any], *, streaming: bool = False
) -> WriterCommitMessage:
    """One task. Returns when all in-sync replicas have every row. Raises PenstockError."""
    task = current_task()
    turn = task.partition % len(options.gateways)
    gateways = options.gateways[turn:] + options.gateways[:turn] + options.others
    if options.exactly_once:
        unit = unit_of(options, task, streaming=streaming)
        return stage_rows(options, gateways, unit, task, gathered(iterator))
    rows = Appending(options, gateways)
    try:
        for table in gathered(iterator):
            rows.append(table)
        rows.flush()
    finally:
        rows.close()
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
