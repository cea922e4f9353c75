"""How busy and how late the event loop of a role is, and how much it logs.

The loop's own idle time is told by nobody (uvloop has no hook for it), but its thread's processor time is: the rate of
`penstock_loop_cpu_seconds_total` is the busy fraction, 1 for a loop that does nothing but compute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from penstock_runtime.plain_histogram import PlainHistogram

LAG_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


def thread_cpu_clock() -> Callable[[], float]:
    """Processor time of the calling thread in s, to be asked for from any thread."""
    get_clock = getattr(time, "pthread_getcpuclockid", None)
    if get_clock is None:  # neither Linux nor macOS of late: right as long as the thread itself asks
        return time.thread_time
    clock_id: int = get_clock(threading.get_ident())
    return lambda: time.clock_gettime(clock_id)


class LoopMetrics(Collector):
    """Of one role. Made in the thread of its event loop."""

    def __init__(self, log_lines: Callable[[], Mapping[str, int]]) -> None:
        """`log_lines()`: how many were logged so far, by level."""
        self.lag = PlainHistogram(LAG_BOUNDS_S)
        self.cpu_s = thread_cpu_clock()
        self._log_lines = log_lines

    def collect(self) -> Iterator[Metric]:
        """For a scrape."""
        yield CounterMetricFamily(
            "penstock_loop_cpu_seconds",
            "Processor time of the event loop's thread; its rate is the busy fraction.",
            value=self.cpu_s(),
        )
        yield HistogramMetricFamily(
            "penstock_loop_lag_seconds",
            "How late the event loop's tick came: every 100 ms, of a loop at rest every 250 ms.",
            buckets=self.lag.buckets(),
            sum_value=self.lag.sum,
        )
        lines = CounterMetricFamily(
            "penstock_log_lines",
            "Lines logged by this process, by level; those folded into one line count too.",
            labels=("level",),
        )
        for level, number in self._log_lines().items():
            lines.add_metric((level,), number)
        yield lines


__all__ = ["LAG_BOUNDS_S", "LoopMetrics", "thread_cpu_clock"]
