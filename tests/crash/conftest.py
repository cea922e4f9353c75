"""Tests that start a cluster say so."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`test_crash_cluster.py` starts real processes."""
    for item in items:
        if item.path == Path(__file__).with_name("test_crash_cluster.py"):
            item.add_marker(pytest.mark.cluster)
