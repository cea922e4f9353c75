"""Clusters that a test has at work: their logs are shown when it fails, and no process outlives who started them.

A child process holds the read end of a pipe and is told of each directory. When the pipe closes, in whatever way its
writer ended (a client library's own abort, `kill -9`, the machine's memory), it kills what still runs there, by pid
and start time. Data and logs stay. Of a cluster that was stopped in time nothing is left to kill.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from penstock.errors import CommandError
from penstock.local.cluster import LocalCluster
from penstock.local.processes import send_signal

_TESTS: Final = Path(__file__).resolve().parents[1]
_LINES_SHOWN: Final = 15
_LINE_CHARACTERS_MAX: Final = 400
_at_work: list[Path] = []


@contextmanager
def watched(directory: Path) -> Iterator[None]:
    """As long as a test may need a cluster in this directory. Whoever starts it stops it, too, and only then: what a
    process tells of its stop would be all that is shown."""
    os.write(_pipe(), f"{directory.resolve()}\n".encode())
    _at_work.append(directory)
    try:
        yield
    except BaseException:
        sys.stderr.write(last_lines(directory))
        raise
    finally:
        _at_work.remove(directory)


def last_lines(directory: Path) -> str:
    """The ends of all logs of a cluster."""
    shown = []
    for log in sorted(directory.glob("*/log.txt")):
        lines = log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:]
        shown.append(
            f"--- {log.parent.name}\n" + "".join(f"{line[:_LINE_CHARACTERS_MAX]}\n" for line in lines)
        )
    return "".join(shown)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A plugin's: a failed test's report gets the logs of all clusters at work.

    A fixture does not hear that its test failed, and by its own end it has stopped the cluster.
    """
    report = yield
    if report.failed:
        report.sections += [(f"logs of {directory}", last_lines(directory)) for directory in _at_work]
    return report


@cache
def _pipe() -> int:
    """The child's, whose end is this process's end."""
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "support.watched"],
        stdin=reading,
        cwd=_TESTS,
        start_new_session=True,  # Ctrl-C is for the tests; this one ends after them
    )
    os.close(reading)
    # It ends after this process; the object would warn of a child that still runs.
    child.returncode = 0
    return writing


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for line in list(dict.fromkeys(sys.stdin)):
        cluster = LocalCluster(Path(line.rstrip("\n")))
        # The directory may be gone with its test, before or after anything was started there.
        with suppress(CommandError):
            for record in cluster.state.processes:
                send_signal(record.pid, record.identity, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
