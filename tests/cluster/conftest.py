"""Clusters of real processes, shared where tests do not break them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster

HERE = Path(__file__).parent


class Shared:
    """One cluster for many modules. It ends with the last test of this folder: even idle, seven processes take time
    from the tests that come after."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._cluster: LocalCluster | None = None

    def get(self, factory: pytest.TempPathFactory) -> LocalCluster:
        if self._cluster is None:
            directory = factory.mktemp("shared")
            self._cluster = self._stack.enter_context(running_cluster(directory, steady=True))
        return self._cluster

    def close(self) -> None:
        self._cluster = None
        self._stack.close()


SHARED = Shared()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts real processes."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Ends the shared cluster, after what uses it, when the next test is none of this folder."""
    yield
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        SHARED.close()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> LocalCluster:
    """3 controllers, 3 storage nodes, 1 gateway. Tests make topics of their own, and kill nothing."""
    return SHARED.get(tmp_path_factory)
