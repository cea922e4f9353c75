"""What each row has to reach, as issue 14 says: ratios to the connector in one run, CPU seconds, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Key = tuple[str, str, str]
"""Job, size, mode."""

COUNT, VALUE_ONLY, FROM_JSON = "count", "count, value alone", "from_json"
AT_LEAST_ONCE, EXACTLY_ONCE = "write, at-least-once", "write, exactly-once"
MICRO_BATCH, JVM = "micro-batch p50", "JVM peak RSS"
KIB, SMALL = "1 KiB", "100 B"
GATEWAY, DIRECT = "gateway", "direct"
BOTH: Final = "gateway and direct"
"""Of the session in which both are read in turn."""
WORKER_MB_MAX: Final = 250.0
LATE_READS: Final = 30
"""Over the last so many reads the largest worker stays as it is."""


@dataclass(frozen=True)
class Goal:
    """Bounds; None where there is none."""

    ratio_min: float | None = None
    ratio_max: float | None = None
    cpu_max_s: float | None = None
    """Penstock's CPU seconds of JVM and workers, a million records."""

    @property
    def text(self) -> str:
        parts = [f">= {self.ratio_min:g}" if self.ratio_min is not None else ""]
        parts.append(f"<= {self.ratio_max:g}" if self.ratio_max is not None else "")
        parts.append(f"CPU <= {self.cpu_max_s:g}" if self.cpu_max_s is not None else "")
        return ", ".join(part for part in parts if part)

    def missed(self, ratio: float, cpu_s: float) -> str:
        """Which of them is not reached, or ""."""
        parts = []
        if self.ratio_min is not None and ratio < self.ratio_min:
            parts.append(f"{ratio:g} < {self.ratio_min:g}")
        if self.ratio_max is not None and ratio > self.ratio_max:
            parts.append(f"{ratio:g} > {self.ratio_max:g}")
        if self.cpu_max_s is not None and cpu_s > self.cpu_max_s:
            parts.append(f"CPU {cpu_s:g} > {self.cpu_max_s:g}")
        return ", ".join(parts)


GOALS: Final[dict[Key, Goal]] = {
    (COUNT, KIB, GATEWAY): Goal(1.0, cpu_max_s=1.2),
    (COUNT, KIB, DIRECT): Goal(1.5, cpu_max_s=0.85),
    (COUNT, SMALL, GATEWAY): Goal(1.9, cpu_max_s=0.75),
    (COUNT, SMALL, DIRECT): Goal(2.3, cpu_max_s=0.6),
    (VALUE_ONLY, KIB, GATEWAY): Goal(1.3),
    (VALUE_ONLY, KIB, DIRECT): Goal(2.0),
    (VALUE_ONLY, SMALL, GATEWAY): Goal(2.4),
    (VALUE_ONLY, SMALL, DIRECT): Goal(3.0),
    (FROM_JSON, KIB, GATEWAY): Goal(1.0),
    (FROM_JSON, KIB, DIRECT): Goal(1.2),
    (FROM_JSON, SMALL, GATEWAY): Goal(1.3),
    (FROM_JSON, SMALL, DIRECT): Goal(1.4),
    (AT_LEAST_ONCE, SMALL, GATEWAY): Goal(1.5),
    (EXACTLY_ONCE, SMALL, GATEWAY): Goal(1.2),
    (MICRO_BATCH, SMALL, GATEWAY): Goal(ratio_max=1.2),
    (JVM, KIB, BOTH): Goal(ratio_max=1.0),
}
"""The table has no micro-batches for direct reading: that row is told without a goal."""
