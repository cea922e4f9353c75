"""bench.runner.machine: when a machine may be calibrated."""

from __future__ import annotations

import subprocess
import sys

import psutil
from bench.runner.machine import REST_AWAITED_S, CpuCounter, await_rest


class _System:
    """One that is busy with `cores` until `busy_until_s`, on a clock of its own."""

    def __init__(self, busy_until_s: float, cores: float = 1.0) -> None:
        self.now_s = 100.0
        self._busy_until_s = self.now_s + busy_until_s
        self._cores = cores

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def cpu_s(self) -> float:
        return self._cores * min(self.now_s, self._busy_until_s)


def test_a_system_that_works_on_after_a_run_is_waited_for() -> None:
    system = _System(3.0)
    assert await_rest(system.cpu_s, system.clock, system.sleep)
    assert 103.0 <= system.now_s <= 104.0


def test_an_idle_cluster_is_at_rest() -> None:
    system = _System(1000.0, cores=0.14)
    assert await_rest(system.cpu_s, system.clock, system.sleep)
    assert system.now_s < 101.0


def test_one_that_does_not_come_to_rest_is_not_waited_for_for_ever() -> None:
    system = _System(1000.0, cores=0.5)
    assert not await_rest(system.cpu_s, system.clock, system.sleep)
    assert system.now_s <= 100.0 + REST_AWAITED_S + 1


def test_who_is_killed_counts_with_what_was_last_read() -> None:
    busy = [sys.executable, "-c", "while sum(range(1000)): print(flush=True)"]
    with subprocess.Popen(busy, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        counter = CpuCounter([("node", psutil.Process(one.pid))])
        while counter.cpu_s() < 0.05:
            one.stdout.readline()
        known_s = counter.cpu_s()
        one.kill()
        one.stdout.read()
    assert counter.cpu_s() >= known_s
