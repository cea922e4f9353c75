"""Rows for people: for a terminal, and Markdown for docs/results/spark.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bench.connector.documents import Document, Profile, Row
from bench.connector.goals import JVM, LATE_READS, MICRO_BATCH, WORKER_MB_MAX

HEAD: Final = (
    "job", "size", "mode", "connector", "Penstock", "unit", "ratio", "CPU s a million: connector", "Penstock", "goal",
    "reached", "rounds",
)  # fmt: skip
_UNITS: Final = {MICRO_BATCH: "ms", JVM: "MB"}
_SHOWN: Final = 8


def cells(row: Row) -> tuple[str, ...]:
    reached = f"no: {row.missed}" if row.missed else "yes"
    return (
        row.job,
        row.size,
        row.mode,
        f"{row.kafka:,.0f}",
        f"{row.penstock:,.0f}",
        _UNITS.get(row.job, "records/s"),
        f"{row.ratio:.2f}",
        f"{row.kafka_cpu_s:.2f}" if row.kafka_cpu_s else "",
        f"{row.penstock_cpu_s:.2f}" if row.penstock_cpu_s else "",
        row.goal,
        reached if row.goal else "",
        str(row.rounds),
    )


def workers(worker_mb: Sequence[float]) -> str:
    """A sentence, or ""."""
    if not worker_mb:
        return ""
    late = worker_mb[-LATE_READS:]
    most = max(worker_mb)
    bound = (
        f"within {WORKER_MB_MAX:g} MB"
        if most <= WORKER_MB_MAX
        else f"above the {WORKER_MB_MAX:g} MB of its goal"
    )
    return (
        f"Largest Python worker in {len(worker_mb)} reads: {most:g} MB, {bound}; "
        f"over the last {len(late)} {min(late):g} to {max(late):g} MB."
    )


def profile_lines(profile: Profile) -> list[str]:
    """A heading and a line for each function."""
    head = (
        f"{profile.job}, {profile.size}, {profile.mode}: {profile.seconds:.2f} s of Python under the profiler"
    )
    return [head] + [
        f"  {one.own_s:7.2f} s own, {one.total_s:7.2f} s in all, {one.calls:>9,} calls  {one.function}"
        for one in profile.top[:_SHOWN]
    ]


def page(document: Document) -> str:
    """All of it in Markdown."""
    parts = [_markdown(HEAD, map(cells, document.rows()))]
    parts += [workers(document.worker_mb)] if document.worker_mb else []
    for profile in document.profiles:
        parts.append(
            f"{profile.job}, {profile.size}, {profile.mode}, by Spark's profiler ({profile.seconds:.2f} s of Python):"
        )
        parts.append(
            _markdown(
                ("function", "own s", "in all s", "calls"),
                (
                    (f"`{one.function}`", f"{one.own_s:.2f}", f"{one.total_s:.2f}", f"{one.calls:,}")
                    for one in profile.top[:_SHOWN]
                ),
            )
        )
    return "\n\n".join(parts)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)
