"""When a run is void: somebody else had the machine. Pure; what it judges comes from `machine`.

Three things are looked at. Steal is what the hypervisor took from the machine during the run, and others' CPU
time is what processes took that belong neither to the system nor to the clients: both as a share of all cores'
time, from /proc/stat. The calibration is a loop of fixed work before and after, when the system has come to rest
(`machine.await_rest`): the time that it took over the CPU time that it got says how long it was kept waiting,
whoever did it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STEAL_MAX: Final = 0.05
OTHERS_MAX: Final = 0.10
"""The kernel's own threads count as others, and writing back what a run wrote is theirs: a few percent are
always there."""
WAITING_MAX: Final = 0.15


@dataclass(frozen=True)
class Reading:
    """At one moment, seconds since the machine started: of all cores together, and what was ours."""

    total_s: float
    busy_s: float
    """Steal is not in it."""
    steal_s: float
    ours_s: float


@dataclass(frozen=True)
class Noise:
    """Shares from 0 to 1, of one run."""

    steal: float
    others: float
    waiting: float

    @property
    def verdict(self) -> str:
        """Why the run is void, or ""."""
        for name, value, most in (
            ("the hypervisor took", self.steal, STEAL_MAX),
            ("other processes took", self.others, OTHERS_MAX),
            ("a loop beside the run waited for", self.waiting, WAITING_MAX),
        ):
            if value > most:
                return f"{name} {value:.0%} of the time, and {most:.0%} is the most that counts"
        return ""


def noise(before: Reading, after: Reading, waits: tuple[float, float]) -> Noise:
    """Of the run between two readings. `waits`: what each calibration says, elapsed over CPU time, less one."""
    total_s = after.total_s - before.total_s
    if total_s <= 0:
        return Noise(0.0, 0.0, max(0.0, *waits))
    others_s = (after.busy_s - before.busy_s) - (after.ours_s - before.ours_s)
    return Noise(
        max(0.0, after.steal_s - before.steal_s) / total_s,
        # The clock of /proc/stat and those of processes are not read at one moment, nor to the same tick.
        max(0.0, others_s) / total_s,
        max(0.0, *waits),
    )
