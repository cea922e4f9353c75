"""What the pictures show, as plain data: bars with their spread, and latencies over the rate. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.runner.documents import Document, Summary, summaries
from bench.runner.rows import SPEED, Kind


@dataclass(frozen=True)
class Point:
    """A bar, or a point of a curve: median, lowest and highest."""

    x: str
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Chart:
    """One picture: series by contender. `curve` has numbers on its x axis, and logarithms on both."""

    name: str
    title: str
    y_title: str
    series: dict[str, tuple[Point, ...]]
    curve: bool = False


BARS: Final = (
    ("produce", Kind.PRODUCE, "Producing", SPEED, "MB/s"),
    ("consume", Kind.CONSUME, "Reading", SPEED, "MB/s"),
    ("transact", Kind.TRANSACT, "Producing in transactions", SPEED, "MB/s"),
    (
        "cpu-produce",
        Kind.PRODUCE,
        "CPU of all servers while producing",
        "servers_cpu_s_per_gb",
        "CPU s per GB",
    ),
)
CURVES: Final = (
    ("ack", "ack_p99_ms", "due to acknowledged, 99 %"),
    ("ack-median", "ack_p50_ms", "due to acknowledged, median"),
)


def charts(document: Document) -> list[Chart]:
    """Those that have something to show."""
    found = summaries(document)
    made = [_bars(found, name, kind, title, figure, unit) for name, kind, title, figure, unit in BARS]
    made += [_curve(found, name, figure, title) for name, figure, title in CURVES]
    return [chart for chart in made if chart.series]


def _bars(found: Sequence[Summary], name: str, kind: Kind, title: str, figure: str, unit: str) -> Chart:
    mine = [one for one in found if one.row.kind is kind and not one.row.name.startswith("growth")]
    return Chart(name, title, unit, _series(mine, figure, lambda one: one.row.name))


def _curve(found: Sequence[Summary], name: str, figure: str, title: str) -> Chart:
    mine = sorted(
        (one for one in found if one.row.kind is Kind.LATENCY), key=lambda one: one.row.load.rate_per_s
    )
    series = _series(mine, figure, lambda one: str(one.row.load.rate_per_s))
    return Chart(
        name, title, "ms", {who: points for who, points in series.items() if len(points) > 1}, curve=True
    )


def _series(
    mine: Sequence[Summary], figure: str, label: Callable[[Summary], str]
) -> dict[str, tuple[Point, ...]]:
    series: dict[str, tuple[Point, ...]] = {}
    for one in mine:
        for contender in one.contenders:
            spread = one.spreads.get((contender, figure))
            if spread is not None:
                point = Point(label(one), spread.median, spread.low, spread.high)
                series[contender] = (*series.get(contender, ()), point)
    return series
