"""Which unit a task of Spark writes: what Spark tells its tasks, and what the options say.

On a replay the query's id and the number of the micro-batch are the same, and nothing else is.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final, NamedTuple

from pyspark import TaskContext

from pyspark_penstock.errors import OptionError
from pyspark_penstock.sink.options import SinkOptions
from pyspark_penstock.sink.protocol import Terms, Unit

_FORM: Final = b"\x01"
"""Of how `planned_from` takes its digest: those of another form can't be compared."""
_DIGEST_BYTES: Final = 16


class Task(NamedTuple):
    """One attempt."""

    partition: int = 0
    attempt: int = 0
    query: str = ""
    """Of the streaming query that it belongs to; "" for none."""
    batch: int = 0
    """The micro-batch of that query; -1 where nobody tells."""


def current_task() -> Task:
    """What Spark tells of the task that this process runs."""
    context = TaskContext.get()
    if context is None:
        return Task()
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    # One that is not told must not pass for the first: what is decided already is left out.
    batch = context.getLocalProperty("streaming.sql.batchId") or "-1"
    return Task(context.partitionId(), context.attemptNumber(), query, int(batch))


def unit_of(options: SinkOptions, task: Task, *, streaming: bool) -> Unit:
    """Raises OptionError where nothing would tell a repeated write from a new one."""
    if options.version is not None:
        application, version = options.version
        return Unit(options.sink or f"spark-{application}", application, version)
    if streaming and (not task.query or task.batch < 0):
        raise OptionError(
            "Spark does not tell this task which query and micro-batch it belongs to, so that a repeated one would "
            'not be known; set option("delivery", "at-least-once")'
        )
    if streaming or (task.query and task.batch >= 0 and options.sink):
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


def planned_from(checkpoint: str, batch: int) -> bytes:
    """A digest of what a checkpoint has of a micro-batch: where its sources begin and end, and when it was planned.

    Spark writes that before the micro-batch runs, and repeats it from there, so that it is the same as long as the
    checkpoint has it: one that has lost it gets another. b"" where this process can't read it.
    """
    directory = _directory(checkpoint)
    if directory is None:
        return b""
    try:
        planned = (directory / "offsets" / str(batch)).read_bytes()
    except (OSError, ValueError):
        return b""
    return _FORM + hashlib.sha256(planned).digest()[:_DIGEST_BYTES] if planned else b""


def has_no_micro_batch(checkpoint: str) -> bool:
    """Whether a query runs without any, by a trigger that is continuous or in real time.

    Spark writes a micro-batch down before it asks for a writer of it, and that it is done when the writer has
    committed. False where this process can't read the checkpoint.
    """
    directory = _directory(checkpoint)
    if directory is None:
        return False
    try:
        # Written before anything else: a directory without it is not the one that Spark uses.
        is_there = (directory / "metadata").exists()
        return is_there and _newest(directory / "offsets") <= _newest(directory / "commits")
    except (OSError, ValueError):
        return False


def _newest(log: Path) -> int:
    """The last entry of a log of Spark's; -1 for none."""
    if not log.exists():
        return -1
    return max((int(entry.name) for entry in log.iterdir() if entry.name.isdecimal()), default=-1)


def _directory(checkpoint: str) -> Path | None:
    """Where a checkpoint is, if that is in a file system of this machine."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?", checkpoint)
    if not checkpoint or (scheme is not None and scheme[1].lower() != "file"):
        return None
    return Path(checkpoint[scheme.end() :] if scheme is not None else checkpoint)


def terms_of(options: SinkOptions, unit: Unit | None) -> Terms:
    """How a unit of `unit_of` is meant."""
    return Terms(
        takeover=options.takeover,
        timeout_ms=options.staging_timeout_ms,
        versioned=options.version is not None,
        once=unit is not None and bool(options.single) and unit.query == options.single,
    )
