"""Which unit a task of Spark writes: what Spark tells its tasks, and what the options say.

On a replay the query's id and the number of the micro-batch are the same, and nothing else is.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark import TaskContext

from pyspark_penstock.errors import OptionError
from pyspark_penstock.sink.options import SinkOptions
from pyspark_penstock.sink.protocol import Terms, Unit


class Task(NamedTuple):
    """One attempt."""

    partition: int = 0
    attempt: int = 0
    query: str = ""
    """Of the streaming query that it belongs to; "" for none."""
    batch: int = 0
    """The micro-batch of that query."""


def current_task() -> Task:
    """What Spark tells of the task that this process runs."""
    context = TaskContext.get()
    if context is None:
        return Task()
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    batch = context.getLocalProperty("streaming.sql.batchId") or "0"
    return Task(context.partitionId(), context.attemptNumber(), query, int(batch))


def unit_of(options: SinkOptions, task: Task, *, streaming: bool) -> Unit:
    """Raises OptionError where nothing would tell a repeated write from a new one."""
    if options.version is not None:
        application, version = options.version
        return Unit(options.sink or f"spark-{application}", application, version)
    if streaming and not task.query:
        raise OptionError(
            "Spark does not tell this task which query it belongs to, so that a repeated micro-batch would not be "
            'known; set option("delivery", "at-least-once")'
        )
    if streaming or (task.query and options.sink):
        return Unit(options.sink or f"spark-{task.query}", task.query, task.batch)
    if task.query:
        raise OptionError(
            "a batch write in foreachBatch is repeated with its micro-batch: give each its own txnAppId, and the "
            'micro-batch\'s number as txnVersion, or set option("delivery", "at-least-once")'
        )
    if options.sink:
        raise OptionError(
            "option sinkId is given for a batch write that has neither a query nor a version; give txnAppId and "
            "txnVersion, or leave sinkId out"
        )
    return Unit(f"spark-{options.single}", options.single, 0)


def terms_of(options: SinkOptions, unit: Unit | None) -> Terms:
    """How a unit of `unit_of` is meant."""
    return Terms(
        takeover=options.takeover,
        timeout_ms=options.staging_timeout_ms,
        versioned=options.version is not None,
        once=unit is not None and bool(options.single) and unit.query == options.single,
    )
