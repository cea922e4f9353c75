"""An attack and what it costs: quiet, under attack, quiet again, in one run, so that ratios are of one machine."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, NODE
from penstock.local.processes import ProcessState
from security import attacks
from security.target import NARROW_TOPIC, WIDE_PARTITIONS, WIDE_TOPIC, Outcome, Target
from support.cluster import running_cluster, wait_until_ready
from support.kafka import create_topic, produce

SAMPLE_S = 0.1
_FENCED = re.compile(rb"^penstock_controller_nodes_fenced (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """One attack's row."""

    attack: str
    text: str
    refused: bool
    said: str
    lag_ms: float
    """The longest that a loop of gateway or node was busy with others."""
    memory_mb: float
    """The most that one process grew."""
    lost: int
    """Processes that died, and the most nodes fenced at a time."""
    p99_ratio: float
    """Honest 1 KiB produces: p99 under attack by p99 when quiet."""
    large_ms: float
    """The slowest honest produce of 128 KiB under attack."""
    failures: int
    """Honest requests and connections that failed under attack."""


def names() -> list[str]:
    """Every attack there is."""
    return sorted(m.name for m in pkgutil.iter_modules(attacks.__path__))


def load(name: str) -> ModuleType:
    """The module of an attack."""
    return importlib.import_module(f"security.attacks.{name}")


@contextlib.contextmanager
def attackable(directory: Path, *, small: bool = False) -> Iterator[tuple[LocalCluster, Target]]:
    """A cluster with what attacks and honest clients need."""
    with running_cluster(directory, controllers=1, nodes=3) as cluster:
        create_topic(cluster.bootstrap, NARROW_TOPIC, 1, 3)
        create_topic(cluster.bootstrap, WIDE_TOPIC, WIDE_PARTITIONS, 3)
        produce(cluster.bootstrap, NARROW_TOPIC, 10)
        nodes = [f"127.0.0.1:{m.ports['direct']}" for m in cluster.state.members if m.role == NODE]
        http = cluster.http.removeprefix("http://")
        target = Target(cluster.bootstrap, tuple(nodes), http, small)
        yield cluster, target


class _Watch:
    """Memory of gateway and nodes, fenced nodes and dead processes, every tenth of a second."""

    def __init__(self, cluster: LocalCluster) -> None:
        state = cluster.state
        self._cluster = cluster
        self._pids = {p.name: p.pid or 0 for p in state.processes if p.role != CONTROLLER}
        self._controllers = [
            f"http://127.0.0.1:{m.ports['http']}/metrics" for m in state.members if m.role == CONTROLLER
        ]
        self._before = {name: _rss_bytes(pid) for name, pid in self._pids.items()}
        self.grown_bytes = 0
        self.fenced = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            for name, pid in self._pids.items():
                self.grown_bytes = max(self.grown_bytes, _rss_bytes(pid) - self._before[name])
            for url in self._controllers:
                with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as response:
                    found = _FENCED.search(response.read())
                    if found:
                        self.fenced = max(self.fenced, int(float(found[1])))

    def dead(self) -> int:
        """Processes that do not run any more."""
        return sum(p.state is not ProcessState.RUNNING for p in self._cluster.status().processes)


def _rss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return 0


@contextlib.contextmanager
def witnessed(target: Target, seconds: float) -> Iterator[dict[str, Any]]:
    """Honest clients at work for at least `seconds`; what they saw is there at the end."""
    command = [sys.executable, "-m", "security.witness", target.gateway, ",".join(target.nodes)]
    child = subprocess.Popen(
        [*command, NARROW_TOPIC, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    seen: dict[str, Any] = {}
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == "begun\n"
        yield seen
        child.stdin.close()
        seen.update(json.loads(child.stdout.readline()))
    finally:
        child.stdin.close()
        child.stdout.close()
        if child.poll() is None and not seen:
            child.terminate()
        child.wait()


def cost_of(name: str, cluster: LocalCluster, target: Target, seconds: float) -> Cost:
    """Do the attack for about `seconds`."""
    module = load(name)
    with witnessed(target, seconds) as quiet:
        pass
    with _Watch(cluster) as watch:
        with witnessed(target, seconds) as busy:
            time.sleep(0.5)
            outcome: Outcome = module.run(target)
        dead = watch.dead()
    wait_until_ready(cluster)
    time.sleep(1)
    with witnessed(target, seconds) as after:
        pass
    quiet_ms = (quiet["small_p99_ms"] + after["small_p99_ms"]) / 2
    return Cost(
        attack=name,
        text=module.TEXT,
        refused=outcome.refused,
        said=outcome.said,
        lag_ms=busy["lag_ms"],
        memory_mb=watch.grown_bytes / 1e6,
        lost=dead + watch.fenced,
        p99_ratio=busy["small_p99_ms"] / quiet_ms,
        large_ms=busy["large_max_ms"],
        failures=sum(busy["failures"].values()),
    )


def as_json(costs: list[Cost]) -> str:
    """A document that `tools/results.py` reads."""
    return json.dumps([asdict(cost) for cost in costs], indent=1)
