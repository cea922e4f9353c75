"""What holds for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Importing PySyncObj replaces socket.inet_pton of the process, and a test that imports it would
# spoil that for all others; the controller's package takes care of it when it comes first.
import penstock_controller.quorum  # noqa: F401
from penstock.local import ports
from support import failures, watched, whole
from support.progress import Progress
from support.watchdog import Watchdog

# How long an example takes says how busy the machine is; CI's own profile, if it is loaded, stands behind this one.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


UNIT = Path(__file__).parent / "unit"
WORKERS_REPLACED_MAX = 2


def pytest_configure(config: pytest.Config) -> None:
    """Ports of its own for each worker of pytest-xdist, and for the commands that its tests call."""
    config.pluginmanager.register(Watchdog(float(config.getini("timeout"))))
    config.pluginmanager.register(watched)
    worker: dict[str, object] | None = getattr(config, "workerinput", None)
    if worker is None:
        config.pluginmanager.register(Progress())
        if (told_again := failures.wanted()) is not None:
            config.pluginmanager.register(told_again)
        return
    number, count = int(str(worker["workerid"]).removeprefix("gw")), int(str(worker["workercount"]))
    # One that takes a crashed worker's place has a new number.
    parts = count + WORKERS_REPLACED_MAX
    os.environ[ports.PART_VARIABLE] = f"{number % parts + 1}/{parts}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Unit tests come last: of two workers neither waits long for the other where files are short. What is left out
    of `make test` is skipped."""
    names = whole.named(whole.LIST.read_text())
    by_file = not any("::" in argument for argument in config.args)
    if by_file and (wrong := whole.gone((item.nodeid for item in items), names)):
        raise pytest.UsageError(f"{whole.LIST.name} names tests that are not there: {', '.join(wrong)}")
    if not whole.is_whole():
        whole.skip(items, names)
    items.sort(key=lambda item: item.path.is_relative_to(UNIT))
