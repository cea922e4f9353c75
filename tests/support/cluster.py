"""A local cluster for a test: in a directory of its own, on ports of its own, gone at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, NODE, ClusterSpec
from penstock.local.processes import ProcessState
from support.waiting import wait_for
from support.watched import watched

UP_TIMEOUT_S = 180.0
STEADY_SESSION_MS = "30000"
REBALANCE_DELAY_MS = "300"
"""A new group waits for this long for more members: the default, 3 s as with Kafka, would be most of many a test."""
_TRACE = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)


@contextmanager
def running_cluster(
    directory: Path,
    *,
    controllers: int = 3,
    nodes: int = 3,
    gateways: int = 1,
    racks: tuple[str, ...] = (),
    single: bool = False,
    settings: dict[str, dict[str, str]] | None = None,
    traces_allowed: bool = False,
    steady: bool = False,
    port: int | None = None,
    secure: bool = False,
) -> Iterator[LocalCluster]:
    """A cluster that is ready, stopped at the end; no process may be left and no log may hold a stack trace.

    A node that the machine or its disk holds up for 2 s is fenced: leaders move, it is missing in metadata,
    and that is right. `steady` is for tests that say who leads or who is alive, and want no node fenced but
    one that they kill (its refused connection tells of it, not its silence).
    When the test fails, the ends of the logs are shown, and no process outlives this one, however it ends.
    """
    cluster = LocalCluster(directory)
    chosen = {role: dict(values) for role, values in (settings or {}).items()}
    chosen.setdefault(NODE, {}).setdefault("group_initial_rebalance_delay_ms", REBALANCE_DELAY_MS)
    if steady:
        chosen.setdefault(CONTROLLER, {}).setdefault("node_session_timeout_ms", STEADY_SESSION_MS)
    spec = ClusterSpec(
        controllers=controllers,
        nodes=nodes,
        gateways=gateways,
        racks=racks,
        port=ports.choose_base() if port is None else port,
        single=single,
        secure=secure,
        settings=chosen,
    )
    try:
        with watched(directory):
            cluster.up(spec, UP_TIMEOUT_S)
            yield cluster
    finally:
        if cluster.store.exists():
            cluster.down()
    assert cluster.alive() == []
    if not traces_allowed:
        traces = [str(log) for log in sorted(directory.glob("*/log.txt")) if _TRACE.search(log.read_text())]
        assert not traces, f"stack traces in {traces}"


def start_ready(cluster: LocalCluster, *names: str) -> None:
    """Start dead processes and wait until the whole cluster is ready.

    `LocalCluster.start` alone returns when it has heard one and the same reason for not being ready for
    5 s, which an election on a slow disk can take.
    """
    cluster.start(*names)
    wait_until_ready(cluster)


def wait_until_ready(cluster: LocalCluster) -> None:
    """Every process of the cluster runs and says that it is ready."""

    def ready() -> bool:
        return all(p.state is ProcessState.RUNNING and not p.detail for p in cluster.status().processes)

    wait_for(ready, "every process is ready", UP_TIMEOUT_S)
