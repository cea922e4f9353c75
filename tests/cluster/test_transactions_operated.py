"""A cluster is changed as planned under transactions of both generations: each process is restarted, and
`transaction.version` goes down and up. Nothing is lost, doubled or torn, and no client hears anything fatal.

`make transactions-test ROUNDS=3` runs so many rounds of each. None is short enough for `make test`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY
from support.both_generations import BothGenerations
from support.cluster import running_cluster, start_ready
from support.java import needs_java
from support.operated import penstock, said, wait_until_settled
from support.transactions import only_in_long_form

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.alone,
    pytest.mark.timeout(3_600),
    needs_java,
    only_in_long_form,
]

ROUNDS = int(os.environ.get("PENSTOCK_TRANSACTIONS_ROUNDS") or 3)
PROCESSES = 8


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {GATEWAY: {"drain_delay_ms": "1000"}}
    with running_cluster(tmp_path, nodes=3, gateways=2, steady=True, settings=settings) as made:
        yield made


def pids(cluster: LocalCluster) -> dict[str, int | None]:
    return {process.name: process.pid for process in cluster.state.processes}


def test_every_process_is_restarted_under_transactions(cluster: LocalCluster) -> None:
    with BothGenerations(cluster.bootstrap, cluster.direct_bootstrap).at_work() as load:
        load.begin_transactions()
        for _ in range(ROUNDS):
            before = pids(cluster)
            done = said(cluster, "cluster", "rolling-restart", "--yes")
            assert done["state"] == "done", done
            assert len([step for step in done["steps"] if step["state"] == "done"]) == PROCESSES
            after = pids(cluster)
            assert all(after[name] != pid for name, pid in before.items())
            load.go_on()
            wait_until_settled(cluster)


def test_transactions_change_over_with_their_version(cluster: LocalCluster) -> None:
    """A client reads the cluster's features when it makes a connection: nobody is asked to, and until then both
    protocols go on side by side."""
    with BothGenerations(cluster.bootstrap, cluster.direct_bootstrap).at_work() as load:
        load.begin_transactions()
        load.wait_for_protocol(is_new=True)
        for _ in range(ROUNDS):
            for level, words in ((1, ["--downgrade"]), (2, [])):
                penstock(cluster, "feature", "set", f"transaction.version={level}", *words)
                load.go_on()
                for name in ("gateway-1", "gateway-2", "node-1"):
                    cluster.kill(name, signal.SIGTERM)
                    start_ready(cluster, name)
                load.wait_for_protocol(is_new=level == 2)
