"""Fixtures of the client's unit tests: a local cluster of stand-in roles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.local import launch, plan, probe
from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec, ClusterState, ProcessRecord
from penstock.local.ports import choose_base

ANSWER_TIMEOUT_S = 60.0


@pytest.fixture
def fake_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """`local` starts the stand-in instead of each role."""

    def module_and_arguments(_state: ClusterState, process: ProcessRecord, directory: Path) -> list[str]:
        return ["fake_role", "--config", str(directory / process.members[0] / plan.SETTINGS_FILE)]

    monkeypatch.setattr(plan, "module_and_arguments", module_and_arguments)
    monkeypatch.setattr(launch, "PRELOADED", ())
    # One question decides what a test sees: a stand-in that gets no processor for a second is not unready.
    for ask in ("http_ready", "kafka_ready"):
        monkeypatch.setattr(probe, ask, partial(getattr(probe, ask), timeout_s=ANSWER_TIMEOUT_S))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def fake_cluster(tmp_path: Path, fake_roles: None) -> Iterator[LocalCluster]:
    """One controller, two nodes, one gateway, running."""
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.up(ClusterSpec(controllers=1, nodes=2, gateways=1, port=choose_base()))
    yield cluster
    if cluster.store.exists():
        cluster.down()
