"""One cluster at work for all tests here, with a Prometheus that scrapes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from observability.live import OBSERVABILITY, Prometheus, Work, prometheus
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the cluster starts real processes."""
    for item in items:
        if item.path.is_relative_to(HERE) and "working_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="package")
def working_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """3 controllers, 3 storage nodes, 1 gateway, with producers and groups."""
    directory = tmp_path_factory.mktemp("observability")
    settings = {"storage-node": {"lag_interval_ms": "1000"}}
    with running_cluster(directory, steady=True, settings=settings) as cluster, Work(cluster) as work:
        for load in work.loads:
            load.wait_for_acks(200)
        yield cluster


@pytest.fixture(scope="package")
def watching(working_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the alerts of deploy/observability."""
    directory = tmp_path_factory.mktemp("prometheus") / "run"
    with prometheus(working_cluster, directory, [OBSERVABILITY / "alerts.yaml"]) as made:
        yield made
