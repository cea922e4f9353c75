"""Rounds for people: some lines for each as it ends, a Markdown table and all fatal errors at the end."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.bank.round import Result, totals

COLUMNS = (
    "round", "protocol", "faults", "orders", "committed", "aborted", "unknown", "fatal (explained)", "anomalies",
    "reads", "slowest", "time", "result",
)  # fmt: skip


def lines_of(result: Result) -> list[str]:
    """What there is to say of one."""
    lines = [
        f"round {result.number}: {result.status}; {result.orders} orders, {result.committed} transactions committed, "
        f"{result.aborted} aborted ({result.told_to_abort} by their client's word), {result.unknown} unknown, "
        f"{len(result.fatal)} fatal, {result.not_explained} of them not explained; anomalies {result.anomalies or 0}, "
        f"counted and allowed {result.allowed}; {result.seconds:.0f} s"
    ]
    lines += [f"  fatal: {line}" for line in result.fatal]
    lines += [f"  {note}" for note in result.notes]
    if result.directory:
        lines.append(f"  {result.directory}")
    return lines


def table(results: Sequence[Result]) -> str:
    """Markdown: a row a round, then how often each class of the checker was met, then every fatal error."""
    rows = [COLUMNS, *map(_row, results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = []
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    lines += ["", ", ".join(f"{name} {count}" for name, count in totals(results).items())]
    fatal = [f"round {result.number}: {line}" for result in results for line in result.fatal]
    lines += ["", f"fatal errors of members: {len(fatal)}", *(f"* {line}" for line in fatal)]
    return "\n".join(lines)


def _row(result: Result) -> tuple[str, ...]:
    slowest = max(result.steps, key=lambda step: step.done_in_s, default=None)
    return (
        str(result.number),
        result.protocol,
        str(len(result.steps)),
        str(result.orders),
        str(result.committed),
        str(result.aborted),
        str(result.unknown),
        f"{len(result.fatal)} ({len(result.fatal) - result.not_explained})",
        str(sum(result.anomalies.values())),
        str(result.reads),
        f"{slowest.done_in_s:.1f} s, {slowest.fault}" if slowest is not None else "-",
        f"{result.seconds:.0f} s",
        result.status,
    )
