"""A local cluster for a test: in a directory of its own, on ports of its own, gone at the end."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec

LOG_LINES_SHOWN = 15
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
) -> Iterator[LocalCluster]:
    """A cluster that is ready, stopped at the end; no process may be left and no log may hold a stack trace.

    When the test fails, the ends of the logs go to stderr, where pytest shows them.
    """
    cluster = LocalCluster(directory)
    spec = ClusterSpec(
        controllers=controllers,
        nodes=nodes,
        gateways=gateways,
        racks=racks,
        port=ports.choose_base(),
        single=single,
        settings=settings or {},
    )
    try:
        cluster.up(spec)
        yield cluster
    except BaseException:
        show_logs(directory)
        raise
    finally:
        if cluster.store.exists():
            cluster.down()
    assert cluster.alive() == []
    if not traces_allowed:
        traces = [str(log) for log in sorted(directory.glob("*/log.txt")) if _TRACE.search(log.read_text())]
        assert not traces, f"stack traces in {traces}"


def show_logs(directory: Path) -> None:
    """The last lines of every log on stderr."""
    for log in sorted(directory.glob("*/log.txt")):
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        sys.stderr.write(f"--- {log.parent.name}\n" + "".join(f"{line[:400]}\n" for line in lines))
