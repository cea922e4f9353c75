"""Exactly-once writing as Spark calls it: a task's stage, and what the driver decides of all of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_penstock.errors import PenstockError
from pyspark_penstock.sink import protocol
from pyspark_penstock.sink.appending import Appending
from pyspark_penstock.sink.calls import ABORT_BUDGET_MS, SinkCalls
from pyspark_penstock.sink.options import SinkOptions
from pyspark_penstock.sink.protocol import (
    AbortStage,
    Append,
    BeginStage,
    Call,
    CommitUnit,
    Flush,
    Message,
    Unit,
)
from pyspark_penstock.sink.units import Task, terms_of

_log = logging.getLogger("pyspark_penstock")

ABORTS_BUDGET_MS = 20_000
"""Of all stages of a write that is given up: Spark waits for that before it tells why."""
FAILED_ABORT_BUDGET_MS = 3_000
"""A task that fails tells so at once, and its stage's timeout is there for what it can't tell."""


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task has staged, for the driver."""

    said: Message


def stage_rows(
    options: SinkOptions, gateways: Sequence[str], unit: Unit, task: Task, tables: Iterable[Any]
) -> TaskMessage:
    """One task. Returns when all in-sync replicas have every row, in a transaction that is left open.

    Raises PenstockError; the stage is aborted then, if that can be told.
    """
    calls = _TaskCalls(options, gateways)
    script = protocol.stage(unit, task.partition, task.attempt, tables, terms_of(options, unit))
    try:
        return TaskMessage(_run(script, calls.handle))
    except BaseException:
        calls.give_up(unit.sink)
        raise
    finally:
        calls.close()


def commit_messages(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], made_of: bytes = b""
) -> None:
    """The driver, once Spark has chosen the attempts that count. `made_of`: of a micro-batch, what it was planned from.

    Raises PenstockError.
    """
    said = _said(messages)
    if not options.exactly_once or not said:
        return
    calls = _driver(options)
    before = _run(protocol.commit(said, terms_of(options, said[0].unit), made_of), calls.handle)
    unit = said[0].unit
    if before is not None:
        what = "txnVersion" if options.version is not None else "micro-batch"
        _log.warning(
            "sink %s has %s %d of %s already: %s %d was skipped, and nothing written",
            unit.sink, what, before.epoch, before.query, what, unit.epoch,
        )  # fmt: skip


def abort_messages(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """The driver, when Spark gives a write up: the reason for that is the error that counts."""
    if not options.exactly_once:
        return
    calls = _AbortCalls(_driver(options))
    _run(protocol.abort(_said(messages)), calls.handle)
    if calls.failed:
        _log.warning(
            "stages of a write that failed, %d, end by stagingTimeoutMs: %s", calls.failed, calls.why
        )


def _said(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    return [message.said for message in messages if isinstance(message, TaskMessage)]


def _run(script: Generator[Call, Any, Any], handle: Any) -> Any:
    answer: Any = None
    while True:
        try:
            call = script.send(answer)
        except StopIteration as end:
            return end.value
        answer = handle(call)


class _TaskCalls:
    """What a task yields, done."""

    def __init__(self, options: SinkOptions, gateways: Sequence[str]) -> None:
        self._options = options
        self._gateways = gateways
        self._calls = SinkCalls(gateways, options.credentials_file)
        self._triple: protocol.Triple | None = None
        self._rows: Appending | None = None

    def handle(self, call: Call) -> Any:
        if isinstance(call, BeginStage):
            begun = self._calls.begin(call)
            self._triple = begun.triple
            if begun.triple is not None:
                self._rows = Appending(self._options, self._gateways, begun.triple)
            return begun
        assert self._rows is not None
        if isinstance(call, Append):
            return self._rows.append(call.rows)
        assert isinstance(call, Flush)
        self._rows.flush()
        return self._rows.rows

    def give_up(self, sink: str) -> None:
        if self._triple is not None:
            self.close()
            with suppress(PenstockError):
                self._calls.abort(AbortStage(sink, self._triple), FAILED_ABORT_BUDGET_MS)

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()


class _DriverCalls:
    """What a driver yields, done."""

    def __init__(self, calls: SinkCalls) -> None:
        self._calls = calls

    def handle(self, call: Call) -> Any:
        if isinstance(call, CommitUnit):
            return self._calls.commit(call)
        assert isinstance(call, AbortStage)
        return self.abort(call, ABORT_BUDGET_MS)

    def abort(self, call: AbortStage, budget_ms: int) -> None:
        self._calls.abort(call, budget_ms)


class _AbortCalls:
    """Those of a driver that gives a write up: each stage for itself, and no longer than ABORTS_BUDGET_MS together."""

    def __init__(self, calls: _DriverCalls) -> None:
        self._calls = calls
        self._deadline_s = time.monotonic() + ABORTS_BUDGET_MS / 1000
        self.failed = 0
        self.why: PenstockError | None = None
        """Of the first."""

    def handle(self, call: Call) -> None:
        assert isinstance(call, AbortStage)
        left_ms = int((self._deadline_s - time.monotonic()) * 1000)
        if self.why is not None and left_ms <= 0:
            self.failed += 1
            return
        try:
            self._calls.abort(call, max(min(left_ms, ABORT_BUDGET_MS), 0))
        except PenstockError as error:
            self.failed += 1
            self.why = self.why or error


def _driver(options: SinkOptions) -> _DriverCalls:
    calls = SinkCalls(options.gateways + options.others, options.credentials_file)
    with suppress(PenstockError):  # then the configured ones are tried alone
        calls.learn()
    return _DriverCalls(calls)
