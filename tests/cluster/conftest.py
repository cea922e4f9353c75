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
    """One cluster for many modules, which run one after another. It ends with the last of them: even idle, seven
    processes take time from the tests that come after."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._cluster: LocalCluster | None = None
        self.files: set[Path] = set()
        """Those that use it."""

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
    """Everything in this folder starts real processes; what shares a cluster comes first, all of it."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)
            if "shared_cluster" in getattr(item, "fixturenames", ()):
                SHARED.files.add(item.path)
    items.sort(key=lambda item: item.path not in SHARED.files)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Ends the shared cluster, after what uses it, when the next test is in none of its files."""
    yield
    if nextitem is None or nextitem.path not in SHARED.files:
        SHARED.close()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> LocalCluster:
    """3 controllers, 3 storage nodes, 1 gateway. Tests make topics of their own, and kill nothing."""
    return SHARED.get(tmp_path_factory)
