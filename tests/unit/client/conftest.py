"""Fixtures of the client's unit tests: a local cluster of stand-in roles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local import plan
from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec, ClusterState, ProcessRecord
from support.cluster import free_base_port

FAKE_ROLE = Path(__file__).with_name("fake_role.py")


@pytest.fixture
def fake_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """`local` starts the stand-in instead of each role."""

    def command_line(_state: ClusterState, process: ProcessRecord, directory: Path) -> list[str]:
        config = directory / process.members[0] / plan.SETTINGS_FILE
        return [sys.executable, str(FAKE_ROLE), "--config", str(config)]

    monkeypatch.setattr(plan, "command_line", command_line)


@pytest.fixture
def fake_cluster(tmp_path: Path, fake_roles: None) -> Iterator[LocalCluster]:
    """One controller, two nodes, one gateway, running."""
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.up(ClusterSpec(controllers=1, nodes=2, gateways=1, port=free_base_port()))
    yield cluster
    if cluster.store.exists():
        cluster.down()
