"""A driver of Spark in a process of its own, whose log can be read: see `tests/spark/driver_application.py`."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.spark import WAIT_S

TESTS = Path(__file__).parents[1]
ANSWER_S = 3 * WAIT_S
"""For Spark's start too."""


@dataclass(frozen=True)
class Ran:
    """A stream that ran to its end."""

    rows: list[tuple[str, int, int, str]]
    error: str | None
    """The last line of Spark's exception."""
    log: str
    """What the driver's log has got of it."""


class SparkDriver:
    """One JVM."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, name="answers of Spark's driver", daemon=True).start()

    def run(self, options: dict[str, str], checkpoint: Path, **more: Any) -> Ran:
        """One stream with AvailableNow; `more` as the application says."""
        assert self._process.stdin is not None
        before = self._log.stat().st_size
        asked = {"options": options, "checkpoint": str(checkpoint), **more}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        while True:
            line = self._lines.get(timeout=ANSWER_S)
            assert line, f"Spark's driver has ended: {self._log.read_text()[-3000:]}"
            if line.startswith("{"):
                break
        answer = json.loads(line)
        with self._log.open() as file:
            file.seek(before)
            log = file.read()
        return Ran([tuple(row) for row in answer["rows"]], answer["error"], log)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


@contextmanager
def spark_driver(directory: Path) -> Iterator[SparkDriver]:
    """Ended with the test."""
    log = directory / "driver.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(TESTS / "spark" / "driver_application.py")],
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        yield SparkDriver(process, log)
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()  # it ends when it has read that
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(60)
        process.stdout.close()
