"""Results for people: a line each while they come, a Markdown table at the end."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.run import Result

COLUMNS = (
    "scenario", "acks before", "acked", "lost", "doubled", "longest gap", "gap direct", "next ack",
    "recovered in", "result",
)  # fmt: skip


def one_line(result: Result) -> str:
    if result.status == "skipped":
        return f"{result.scenario}: skipped: {'; '.join(result.notes)}"
    notes = f"; {'; '.join(result.notes)}" if result.notes else ""
    return (
        f"{result.scenario}: {result.status}; {result.acks_per_s:.0f} acks/s before, {result.acked} acked, "
        f"{result.lost} lost, {result.duplicated} doubled, gap {_s(result.gap_s)} (direct "
        f"{_s(result.gap_direct_s)}), next ack {_s(result.next_ack_s)}, recovered in {_s(result.recovered_s)}{notes}"
        f"{f'; {result.directory}' if result.directory else ''}"
    )


def table(results: Sequence[Result]) -> str:
    """Markdown. Gaps are of one partition, the worst of them."""
    rows = [COLUMNS, *map(_row, results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = []
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _row(result: Result) -> tuple[str, ...]:
    if result.status == "skipped":
        return (result.scenario, *[""] * (len(COLUMNS) - 2), f"skipped: {'; '.join(result.notes)}")
    return (
        result.scenario,
        str(result.acks_before),
        str(result.acked),
        str(result.lost),
        str(result.duplicated),
        _s(result.gap_s),
        _s(result.gap_direct_s),
        _s(result.next_ack_s),
        _s(result.recovered_s),
        result.status,
    )


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
