"""What the Python side of a row spends its time on, by Spark's own profiler of data sources.

That is a run of its own, after the rounds: a profiler costs most where functions are small, so its seconds are to be
held against nothing but each other. `own_s` says where time goes, `total_s` by way of what.

Spark profiles what tasks do, the reading and the writing. Micro-batches are planned in a process that it does not look
into.
"""

from __future__ import annotations

import pstats
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from bench.connector.documents import Profile, Spent

SETTING: Final = "spark.sql.pyspark.dataSource.profiler"
TOP: Final = 15


def profiled(spark: Any, job: str, size: str, mode: str, work: Callable[[], Any]) -> Profile:
    """Runs `work` under it."""
    spark.profile.clear(type="perf")
    spark.conf.set(SETTING, "perf")
    try:
        work()
        found = list(spark._profiler_collector._perf_profile_results.values())
    finally:
        spark.conf.unset(SETTING)
        spark.profile.clear(type="perf")
    return profile_of(job, size, mode, found)


def profile_of(job: str, size: str, mode: str, found: Iterable[pstats.Stats]) -> Profile:
    """Of all tasks together."""
    sums: dict[tuple[str, int, str], list[float]] = {}
    for stats in found:
        for function, (_, calls, own_s, total_s, _) in stats.stats.items():  # type: ignore[attr-defined]
            one = sums.setdefault(function, [0, 0.0, 0.0])
            one[0] += calls
            one[1] += own_s
            one[2] += total_s
    most = sorted(sums.items(), key=lambda item: -item[1][1])[:TOP]
    top = tuple(
        Spent(name_of(*function), int(calls), round(own_s, 3), round(total_s, 3))
        for function, (calls, own_s, total_s) in most
    )
    return Profile(job, size, mode, round(sum(one[1] for one in sums.values()), 3), top)


def name_of(file: str, line: int, function: str) -> str:
    """As short as it tells: `fetch.py:88 chunks`, or the name of a built-in."""
    if file in ("~", "") and not line:
        return re.sub(r"<(?:built-in )?method (.*?)(?: of .*)?>", r"\1", function).strip("<>")
    parts = file.replace("\\", "/").split("/")
    at = next((index for index, part in enumerate(parts) if part in ("site-packages", "src")), len(parts) - 2)
    return f"{'/'.join(parts[at + 1 :])}:{line} {function}"
