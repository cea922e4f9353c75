"""What failed, told again at the very end: of a long log often only the last lines are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FILE_VARIABLE = "PENSTOCK_TEST_FAILURES"
LINES = 60


class Failures:
    """A plugin of pytest that appends what fails to a file: its name and the end of what there is to say."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._append(f"{report.nodeid} ({report.when})", report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._append(f"{report.nodeid} (collection)", report.longreprtext)

    def _append(self, name: str, text: str) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write("\n".join([f"FAILED {name}", *text.splitlines()[-LINES:], "", ""]))


def wanted() -> Failures | None:
    """The plugin, where the environment names a file for it."""
    name = os.environ.get(FILE_VARIABLE)
    return Failures(Path(name)) if name else None
