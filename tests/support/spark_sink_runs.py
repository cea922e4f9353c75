"""Runs of `spark_sink_faults`: started, killed with all that they have started, stopped and woken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from support.waiting import wait_for

RUN_TIMEOUT_S = 400.0
STARTUP = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


class Run:
    """One driver."""

    def __init__(
        self,
        gateway: str,
        directory: Path,
        *,
        source: str,
        topic: str,
        checkpoint: Path,
        sink: str,
        tasks: int,
        per_trigger: int,
        point: str = "",
        batch: int = 0,
        master: str = "local[2,4]",
        confs: dict[str, str] | None = None,
    ) -> None:
        """`directory`: where its fault and its words are; it is made."""
        directory.mkdir(parents=True)
        self.directory = directory
        here = Path(__file__)
        given = {
            "gateway": gateway, "source": source, "topic": topic, "checkpoint": str(checkpoint), "sink": sink,
            "tasks": str(tasks), "per-trigger": str(per_trigger), "master": master,
            "faults": json.dumps({"dir": str(directory), "point": point, "batch": batch}),
        }  # fmt: skip
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        for name, value in (STARTUP | (confs or {})).items():
            words += ["--conf", f"{name}={value}"]
        with (directory / "log.txt").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(here.with_name("spark_sink_faults.py")), *words],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(here.parents[1])},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(RUN_TIMEOUT_S)

    def check_done(self) -> None:
        """It copies all that there is."""
        code = self.wait()
        assert code == 0, self.said()

    def said(self) -> str:
        return (self.directory / "log.txt").read_text()[-3000:]

    def has_struck(self) -> bool:
        return (self.directory / "struck").exists()

    def wait_until(self, name: str) -> None:
        """The fault is there; or the run has ended, and then it is an error."""

        def there() -> bool:
            assert self.process.poll() is None, self.said()
            return (self.directory / name).exists()

        wait_for(there, f"{name} in {self.directory}", RUN_TIMEOUT_S)

    def go_on(self) -> None:
        (self.directory / "go").touch()

    def kill(self) -> None:
        """With its JVM and all Python processes: all that are in its session."""
        for pid in members(self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(RUN_TIMEOUT_S)
        wait_for(lambda: not members(self.process.pid), "all of a driver's processes are gone", RUN_TIMEOUT_S)


def members(session: int) -> list[int]:
    """Processes of a session that are not dead."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, sid = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(sid) == session and state != "Z":
            found.append(int(path.parent.name))
    return found
