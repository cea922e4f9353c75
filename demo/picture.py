"""The picture of the report: what the cluster did when a node died, and what Spark found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from demo.traffic import Acks

FILE = "report.png"
BLUE, RED, GREY, INK = "#2b6cb0", "#c53030", "#a0aec0", "#2d3748"
STYLE: Any = {
    "font.size": 10,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 12,
    "axes.titlepad": 14,
}


def draw(
    output: Path, acks: Acks, killed: str, carriers: list[dict[str, Any]], names: dict[str, str]
) -> Path:
    """Write the PNG; returns its path."""
    mpl.use("Agg")
    with mpl.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(14, 6.2), gridspec_kw={"width_ratios": (1.05, 1)})
        _throughput(left, acks, killed)
        _delays(right, carriers, names)
        figure.tight_layout(w_pad=4)
        file = output / FILE
        figure.savefig(file, dpi=130)
        plt.close(figure)
    return file


def _throughput(axes: Axes, acks: Acks, killed: str) -> None:
    seconds, rates = acks.time_line()
    thousands = [rate / 1000 for rate in rates]
    top = max(thousands) * 1.3
    # The last window is not a whole one.
    seconds, thousands = seconds[:-1], thousands[:-1]
    axes.fill_between(seconds, thousands, step="mid", color=BLUE, alpha=0.18, linewidth=0)
    axes.step(seconds, thousands, where="mid", color=BLUE, linewidth=1.6)
    axes.set_title(f"{acks.acked:,} flight events, acknowledged with acks=all")
    axes.set_xlabel("seconds since the first event was sent")
    axes.set_ylabel("thousand events acknowledged per second")
    axes.set_ylim(0, top)
    axes.set_xlim(0, acks.took_s)
    axes.grid(axis="y", color=GREY, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    if acks.killed_s is None:
        return
    kill_s = acks.killed_s - acks.started_s
    axes.axvline(kill_s, color=RED, linewidth=1.6)
    gap = acks.worst_partition_gap()
    axes.axvspan(gap.begin_s, gap.begin_s + gap.took_s, color=RED, alpha=0.10, linewidth=0)
    late = kill_s > acks.took_s / 2
    axes.annotate(
        f"kill -9 {killed}\nlongest pause of any: {gap.took_s:.2f} s",
        (kill_s, top * 0.96),
        xytext=(-8 if late else 8, 0),
        textcoords="offset points",
        ha="right" if late else "left",
        va="top",
        color=RED,
        weight="bold",
    )


def _delays(axes: Axes, carriers: list[dict[str, Any]], names: dict[str, str]) -> None:
    rows = sorted(carriers, key=lambda row: float(row["delay_p90"]))
    places = range(len(rows))
    medians = [row["delay_p50"] for row in rows]
    worst = [row["delay_p90"] for row in rows]
    axes.hlines(places, medians, worst, color=BLUE, alpha=0.35, linewidth=5, capstyle="round")
    axes.scatter(medians, places, color=BLUE, s=34, zorder=3, label="median")
    axes.scatter(worst, places, color=RED, s=34, zorder=3, label="1 of 10 is later than this")
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks(list(places), [names.get(row["carrier"], row["carrier"]) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("minutes of departure delay")
    axes.set_title("Delays by carrier, by Spark through the same gateway")
    axes.grid(axis="x", color=GREY, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    edge = max(worst) * 1.08
    axes.set_xlim(min([*medians, -5.0]) - 3, edge + 30)
    axes.set_ylim(-0.8, len(rows) + 0.4)
    for place, row in zip(places, rows, strict=True):
        share = row["cancelled"] / row["flights"]
        axes.text(edge + 29, place, f"{row['flights']:,} · {share:.1%}", ha="right", va="center", size=8.5)
    axes.text(
        edge + 29, len(rows) - 0.1, "flights · cancelled", ha="right", va="center", size=8.5, weight="bold"
    )
    axes.legend(loc="lower right", bbox_to_anchor=(0.8, 0.02), frameon=False)
