"""Summaries as text: cells, and Markdown for the pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bench.runner.documents import Document, Judged, Summary, summaries
from bench.runner.figures import Ratio, Spread
from bench.runner.plan import PAIRS_MIN
from bench.runner.rows import Kind, Row

UNITS: Final = (
    ("_mb_per_s", "MB/s"), ("mb_per_s", "MB/s"), ("_per_s", "1/s"),
    ("_cpu_s_per_gb", "CPU s/GB"), ("_rss_mb", "MB"), ("_cpu_ms", "ms"),
    ("_ms", "ms"), ("_cores", "cores"), ("_s", "s"),
)  # fmt: skip
HEAD: Final = (
    "row",
    "contender",
    "figure",
    "median",
    "lowest to highest",
    "ratio to the first",
    "95 % interval",
    "runs",
)
GOALS_HEAD: Final = ("row", "contender", "figure", "goal", "measured", "95 % interval", "pairs", "verdict")


def number(value: float) -> str:
    """Three digits that count."""
    if value == 0:
        return "0"
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 100
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 0.1
        else f"{value:.2g}"
    )


def words(figure: str) -> str:
    """A figure's name for people: what, and the unit."""
    for end, unit in UNITS:
        if figure.endswith(end):
            what = figure.removesuffix(end).replace("_", " ").strip()
            return f"{what}, {unit}" if what else unit
    return figure.replace("_", " ")


def span(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"


def spread_cell(found: Spread | None) -> str:
    """A median with its spread, for narrow tables."""
    if found is None:
        return ""
    return (
        number(found.median)
        if found.count == 1
        else f"{number(found.median)} ({span(found.low, found.high)})"
    )


def ratio_cells(found: Ratio | None) -> tuple[str, str]:
    """The ratio, and its interval: one pair has none."""
    if found is None:
        return "", ""
    return number(found.median), span(found.low, found.high) if found.pairs > 1 else "one pair"


def lines(summary: Summary) -> Iterable[tuple[str, ...]]:
    """A row's cells under HEAD: a line for each contender and figure."""
    for contender in summary.contenders:
        for figure in summary.row.figures:
            found = summary.spreads.get((contender, figure))
            if found is not None:
                yield (
                    summary.row.name, contender, words(figure), number(found.median), span(found.low, found.high),
                    *ratio_cells(summary.ratios.get((contender, figure))), str(found.count),
                )  # fmt: skip


def goal_line(row: Row, judged: Judged) -> tuple[str, ...]:
    """A goal's cells under GOALS_HEAD."""
    goal, found = judged.goal, judged.found
    measured, interval = ratio_cells(found)
    few = " (few pairs)" if found.pairs < PAIRS_MIN else ""
    return (
        row.name, goal.contender, words(goal.figure), goal.text, measured, interval, str(found.pairs),
        judged.verdict + few,
    )  # fmt: skip


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    made = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    made.insert(1, "|" + "---|" * len(head))
    return "\n".join(made)


def origin(document: Document) -> str:
    """What was run where, in a sentence or two."""
    counting = list(document.counting())
    rounds = max((one.round for one in counting), default=-1) + 1
    void = sum(bool(one.void) for one in document.samples)
    machine = ", ".join(f"{name} {value}" for name, value in document.machine.items())
    doors = " TLS and SCRAM-SHA-512 on both." if document.secure else ""
    noisy = (
        f" **The machine had other work: {void} of {len(document.samples)} runs were noisy, and count all the same"
        " (`--accept-noise`).**"
        if document.accepted_noise and void
        else f" {void} runs were void." if void else ""
    )  # fmt: skip
    size = "" if document.size == "full" else f" Runs of size {document.size}."
    versions = ", ".join(f"{name} {value}" for name, value in document.versions.items())
    return f"Up to {rounds} pairs; {versions}; {machine}.{size}{doors}{noisy}"


def page_block(document: Document) -> str:
    """What pages of docs/results have between their marks: a table by figure, and the goals."""
    found = summaries(document)
    parts = [origin(document)]
    for kind, title in _TITLES:
        mine = [one for one in found if one.row.kind is kind]
        if mine:
            parts += [f"**{title}**", markdown(*_matrix(mine))]
    judged = [goal_line(one.row, goal) for one in found for goal in one.goals]
    if judged:
        parts += ["**Goals**", markdown(GOALS_HEAD, judged)]
    return "\n\n".join(parts)


_TITLES: Final = (
    (Kind.PRODUCE, "Producing"),
    (Kind.CONSUME, "Reading"),
    (Kind.LATENCY, "From due to acknowledged, and to the reader"),
    (Kind.CONNECTIONS, "Many connections"),
    (Kind.IDLE, "Nothing to do"),
    (Kind.START, "Starting"),
    (Kind.PARTITIONS, "Many partitions"),
    (Kind.TRANSACT, "Producing in transactions"),
    (Kind.COMMITS, "Committing"),
    (Kind.REPEAT, "Transactions of one record"),
    (Kind.COPY, "Consume, transform, produce"),
    (Kind.ISOLATION, "Reading what is committed"),
    (Kind.FAULT, "Faults"),
    (Kind.IDS, "Many transactional ids"),
    (Kind.OPEN, "Many open transactions"),
    (Kind.ELSEWHERE, "Benchmarks of their own"),
)


def _matrix(mine: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Contenders as columns, a line for each row and figure: the median (lowest to highest), the ratio to the first."""
    contenders = list(
        dict.fromkeys(c.name for one in mine for c in one.row.contenders if c.name in one.contenders)
    )
    rows = []
    for one in mine:
        for figure in one.row.figures:
            cells = []
            for contender in contenders:
                cell = spread_cell(one.spreads.get((contender, figure)))
                times = one.ratios.get((contender, figure))
                cells.append(f"{cell}, x {number(times.median)}" if times else cell)
            if any(cells):
                rows.append([one.row.title, words(figure), *cells])
    return ["row", "figure", *contenders], rows


README_ROWS: Final = (
    "produce-1k-1p", "produce-1k-100p", "produce-100b-1p", "produce-lone-1k", "consume-1k-1p", "latency-1000", "idle",
    "start-cluster",
)  # fmt: skip
"""Rows of README's table; each with its first figure, but for those below."""
README_FIGURES: Final = {
    "produce-1k-1p": ("mb_per_s", "servers_cpu_s_per_gb", "node_rss_mb"),
    "latency-1000": ("ack_p50_ms", "ack_p99_ms"),
}


def readme_block(document: Document) -> str:
    """README's table: a figure or some of a few rows."""
    found = [one for one in summaries(document) if one.row.name in README_ROWS]
    columns = ("kafka", "direct", "gateway")
    rows = []
    for one in found:
        contenders = {contender.name for contender in one.row.contenders}
        for figure in README_FIGURES.get(one.row.name, one.row.figures[:1]):
            cells = []
            for column in columns:
                found_here = [
                    one.spreads.get((name, figure)) for name in _SPOKEN[column] if name in contenders
                ]
                shown = ["-" if spread is None else number(spread.median) for spread in found_here]
                cells.append(" / ".join(shown) if any(found_here) else "")
            rows.append([f"{one.row.title}: {words(figure)}", *cells])
    return f"{origin(document)}\n\n" + markdown(
        ("", "Kafka", "Penstock, direct (`replicated` / `fsync`)", "by gateway"), rows
    )


_SPOKEN: Final = {
    "kafka": ("kafka",),
    "direct": ("direct", "replicated", "fsync", "penstock"),
    "gateway": ("gateway", "gateway-replicated", "gateway-fsync"),
}
