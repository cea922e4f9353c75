"""Clusters of real processes, shared where tests do not break them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts real processes."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """3 controllers, 3 storage nodes, 1 gateway. Tests make topics of their own, and kill nothing."""
    with running_cluster(tmp_path_factory.mktemp("shared"), steady=True) as cluster:
        yield cluster
