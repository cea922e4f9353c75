"""The CA and all certificates of a secure cluster replaced twice under load: 3 controllers, 3 storage nodes, a gateway.

No produce fails, no controller is elected, no node is fenced, and each process uses its new files within seconds.
`make rotation` has it at 1,000 messages a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER
from penstock_core.process.credentials import load_client_file
from support.cluster import running_cluster
from support.kafka import Load, read_all
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.timeout(600)]

RATE_PER_S = float(os.environ.get("PENSTOCK_ROTATION_RATE", "100"))
TOPIC = "rotation"
PATIENCE_S = 60.0
SAID = "new certificate in use for new connections"
STEPS = (["rotate", "--add"], ["renew", "--all"], ["rotate", "--remove"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("rotation") / "c"
    settings = {CONTROLLER: {"raft_silence_ms": "3000"}}
    with running_cluster(
        directory, controllers=3, nodes=3, secure=True, steady=True, settings=settings
    ) as running:
        yield running


def logs(cluster: LocalCluster, word: str) -> dict[str, int]:
    """How often each process has said it."""
    return {
        member.name: cluster.log_file(member.name).read_text(errors="replace").count(word)
        for member in cluster.state.members
    }


def taken(cluster: LocalCluster, before: dict[str, int]) -> bool:
    return all(count > before[name] for name, count in logs(cluster, SAID).items())


def client_settings(cluster: LocalCluster) -> dict[str, Any]:
    """Of an admin's librdkafka, by the files of now."""
    assert cluster.client_file is not None
    return dict(load_client_file(cluster.client_file).librdkafka())


def goes_on(load: Load, acked: int) -> bool:
    return len(load.ledger.acked) > acked + 100


def test_everything_is_replaced_twice_under_load(cluster: LocalCluster) -> None:
    made = cluster.directory / "secure"
    here = ["--dir", str(cluster.directory)]
    assert run(["topic", "create", TOPIC, "--partitions", "3", *here]) == 0
    elected, fenced = logs(cluster, "active=True"), logs(cluster, " fence ")
    slowest_s, acked = 0.0, 0
    for turn in (1, 2):
        # Each turn by a client of its own: it knows the CA that there is when it starts.
        config = client_settings(cluster)
        bootstrap = config.pop("bootstrap.servers")
        with Load(bootstrap, TOPIC, rate_per_s=RATE_PER_S, keys=8, **config) as load:
            wait_for(partial(goes_on, load, 0), "records flow", PATIENCE_S)
            for command, flag in STEPS:
                before = logs(cluster, SAID)
                assert run(["cert", command, str(made), flag]) == 0
                written_s = time.monotonic()
                wait_for(partial(taken, cluster, before), f"all have taken {command} {flag}", PATIENCE_S)
                slowest_s = max(slowest_s, time.monotonic() - written_s)
                wait_for(partial(goes_on, load, len(load.ledger.acked)), "records go on", PATIENCE_S)
        assert not load.ledger.errors, turn
        acked += len(load.ledger.acked)
    assert logs(cluster, "active=True") == elected, "no election"
    assert logs(cluster, " fence ") == fenced, "no node fenced"
    config = client_settings(cluster)
    assert len(read_all(config.pop("bootstrap.servers"), TOPIC, **config)) == acked
    print(f"{acked} records, new files in use after {slowest_s:.1f} s at most")
    # What was issued last is what new connections are made with.
    for name in ("node-1", "gateway-1", "controller-1"):
        cluster.kill(name)
        cluster.start(name)
