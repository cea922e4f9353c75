"""What is built once for all tests of this folder."""

from __future__ import annotations

import pytest

from support.packages import Packages


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return Packages(tmp_path_factory.mktemp("packages"))
