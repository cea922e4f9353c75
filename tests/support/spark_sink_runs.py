"""Runs of `spark_sink_faults`: started, killed with all that they have started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.waiting import wait_for

RUN_TIMEOUT_S = 900.0
STARTUP = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
LIGHT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
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
        master: str,
        faults: str,
        cores: int,
    ) -> None:
        """`directory`: where its words are; it is made. Tasks run on both hosts of `standalone_spark`."""
        directory.mkdir(parents=True)
        self.directory = directory
        self.tasks = tasks
        self.opened_s = time.monotonic()
        """When the stages of its micro-batch began, at the earliest."""
        here = Path(__file__)
        given = {
            "gateway": gateway, "source": source, "topic": topic, "checkpoint": str(checkpoint), "sink": sink,
            "tasks": str(tasks), "per-trigger": str(per_trigger), "master": master, "faults": faults,
        }  # fmt: skip
        confs = {
            **STARTUP,
            **SPECULATION,
            "spark.cores.max": str(cores),
            "spark.executor.cores": str(cores // 2),
            "spark.executor.memory": "600m",
            # It runs for a minute: what is compiled further costs more than it saves.
            "spark.driver.extraJavaOptions": LIGHT_JVM,
            "spark.executor.extraJavaOptions": LIGHT_JVM,
            # Rows come in several Arrow batches, of which a task has sent some when it is held.
            "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
        }
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        words += [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
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

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        return (self.directory / "log.txt").read_text()[-6000:]

    def last_line(self) -> str:
        """What it says last, which is why it has failed."""
        return ([line for line in self.said().splitlines() if line.strip()] or [""])[-1]

    def kill(self) -> None:
        """With its JVM and all Python processes: all that are in its session."""
        for pid in members(self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(RUN_TIMEOUT_S)
        wait_for(lambda: not members(self.process.pid), "all of a driver's processes are gone", RUN_TIMEOUT_S)


def holds_of(directory: Path, run: int, holds: list[tuple[str, int]], *, gated: bool) -> str:
    """What `Faults` reads: pairs of a point and a micro-batch, and whether each micro-batch waits for its gate."""
    return json.dumps({"dir": str(directory), "run": run, "holds": holds, "gated": gated})


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
