"""What holds for every test."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Importing PySyncObj replaces socket.inet_pton of the process, and a test that imports it would
# spoil that for all others; the controller's package takes care of it when it comes first.
import penstock_controller.quorum  # noqa: F401
from penstock.local import ports

# How long an example takes says how busy the machine is; CI's own profile, if it is loaded, stands behind this one.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Ports of its own for each worker of pytest-xdist.

    A port is looked for, found free and only then listened on: two workers that look in the same range would now and
    then find the same one.
    """
    worker: dict[str, object] | None = getattr(config, "workerinput", None)
    if worker is None:
        return
    number, count = int(str(worker["workerid"]).removeprefix("gw")), int(str(worker["workercount"]))
    ports.PORTS_FROM, ports.PORTS_TO_DEFAULT = part(ports.PORTS_FROM, ports.PORTS_TO_DEFAULT, number, count)
    ports.BASE_FROM, ports.BASE_TO = part(ports.BASE_FROM, ports.BASE_TO, number, count)


def part(first: int, last: int, number: int, count: int) -> tuple[int, int]:
    """The `number`th of `count` even parts of a range, with nothing between it and the next but its end."""
    size = (last - first) // count
    return first + number * size, first + (number + 1) * size - 1
