"""Charts as SVG files, by matplotlib; the same document gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.runner.charts import Chart

_COLOURS: Final = {
    "kafka": "#555555",
    "replicated": "#1f77b4",
    "direct": "#1f77b4",
    "fsync": "#6baed6",
    "gateway-replicated": "#e6550d",
    "gateway": "#e6550d",
    "gateway-fsync": "#fdae6b",
}


def draw(charts: Sequence[Chart], folder: Path, prefix: str) -> list[Path]:
    """One file each, `prefix`-name.svg in `folder`."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "penstock"
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for chart in charts:
        figure, axis = plt.subplots(figsize=(10, 5), constrained_layout=True)
        (_curves if chart.curve else _bars)(axis, chart)
        axis.set_title(chart.title)
        axis.set_ylabel(chart.y_title)
        axis.grid(axis="y", linewidth=0.3)
        axis.legend(fontsize=8)
        made.append(folder / f"{prefix}-{chart.name}.svg")
        figure.savefig(made[-1], metadata={"Date": None})
        plt.close(figure)
    return made


def _bars(axis: Any, chart: Chart) -> None:
    names = list(dict.fromkeys(point.x for points in chart.series.values() for point in points))
    width = 0.8 / len(chart.series)
    for index, (contender, points) in enumerate(chart.series.items()):
        places = [names.index(point.x) + (index + 0.5) * width - 0.4 for point in points]
        heights = [point.median for point in points]
        reach = [[p.median - p.low for p in points], [p.high - p.median for p in points]]
        axis.bar(
            places, heights, width * 0.92, yerr=reach, capsize=2, label=contender,
            color=_COLOURS.get(contender), error_kw={"linewidth": 0.8},
        )  # fmt: skip
    axis.set_xticks(range(len(names)), names, rotation=20, ha="right", fontsize=8)


def _curves(axis: Any, chart: Chart) -> None:
    for contender, points in chart.series.items():
        xs = [float(point.x) for point in points]
        colour = _COLOURS.get(contender)
        axis.plot(
            xs, [point.median for point in points], marker="o", linewidth=1.2, label=contender, color=colour
        )
        axis.fill_between(
            xs, [point.low for point in points], [point.high for point in points], alpha=0.12, color=colour
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("records/s")
