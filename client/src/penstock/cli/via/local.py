"""Processes of the local cluster: TERM, wait, start."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.cli.via.ways import ProcessName
from penstock.local.cluster import LocalCluster

STOP_TIMEOUT_S: Final = 60.0
"""More than a process gives itself to drain."""


class LocalWay:
    """The local cluster in a directory. Implements `Way`."""

    via = "local"

    def __init__(self, directory: Path) -> None:
        self._cluster = LocalCluster(directory)

    def restart(self, process: ProcessName) -> None:
        """TERM it, if it lives, and start it again. Raises CommandError."""
        self._cluster.state.process(process.name)
        if process.name in self._cluster.alive():
            self._cluster.kill(process.name, signal.SIGTERM, STOP_TIMEOUT_S)
        self._cluster.start(process.name)

    def restarted_since(self, process: ProcessName, since_ms: int) -> bool:
        """Whether it lives and was started after that (ms since 1970): somebody has restarted it already."""
        record = self._cluster.state.process(process.name)
        if record.pid is None or process.name not in self._cluster.alive():
            return False
        started_s = _started_s(record.pid)
        return started_s is not None and started_s * 1000 > since_ms

    def start_more(self, role: str, count: int) -> list[str]:
        """Add processes of a role, one after another. Raises CommandError."""
        return [self._cluster.add(role) for _ in range(count)]

    def stop(self, processes: Sequence[ProcessName]) -> None:
        """TERM those that live, one after another. Raises CommandError."""
        for process in processes:
            if process.name in self._cluster.alive():
                self._cluster.kill(process.name, signal.SIGTERM, STOP_TIMEOUT_S)


def _started_s(pid: int) -> float | None:
    """When a process was started, s since 1970; None where the system does not tell."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")
