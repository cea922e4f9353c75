"""pytest's side, a plugin: only tests of the chosen lines run, and a line of JSON is written as each of them ends.

A run that is cut short has told by then what it did.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import pytest

from ops.lines import line_of

RECORD_VARIABLE: Final = "PENSTOCK_OPS_RECORD"
"""The file that lines are appended to."""
LINES_VARIABLE: Final = "PENSTOCK_OPS_LINES"
"""Names of the chosen lines, with commas."""


class Recorder:
    """A test is its setup, its call and its teardown: it is as bad as the worst of them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds = 0.0
        self._outcome, self._why = "passed", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._outcome = "failed"
            self._why = self._why or _first_line(crash.message if crash else report.longrepr)
        elif report.skipped and self._outcome == "passed":
            self._outcome, self._why = "skipped", _why_skipped(report)
        if report.when == "teardown":
            self._write(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read is a failure of its own."""
        if report.failed:
            self._outcome, self._why = "failed", _first_line(str(report.longrepr).strip().rpartition("\n")[2])
            self._write(f"{report.nodeid}::collection")

    def _write(self, test: str) -> None:
        told = {"test": test, "outcome": self._outcome, "why": self._why, "seconds": round(self._seconds, 2)}
        with self._file.open("a") as file:
            file.write(json.dumps(told) + "\n")
        self._seconds, self._outcome, self._why = 0.0, "passed", ""


def _why_skipped(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    where = report.longrepr
    return _first_line(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0][:200]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(Path(os.environ[RECORD_VARIABLE])), "ops-recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(os.environ[LINES_VARIABLE].split(","))
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        line = line_of(item.nodeid)
        (kept if line is not None and line.name in wanted else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
