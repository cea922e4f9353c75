"""Consumer groups: what a heartbeat and a commit cost, a thousand live groups, a large rebalance, idempotence.

    make bench-groups                                   all of it, Apache Kafka beside Penstock (java, mvn, kcat)
    .venv/bin/python -m bench.groups --systems penstock --parts cost,rebalance
    .venv/bin/python -m bench.groups --quick            a look: small counts, seconds

Each system is started as real processes on loopback (three storage nodes, replication factor 3), driven by
raw-protocol connections, and ended. Only ratios carry over from a shared machine; CPU time and
memory come from /proc and are fair beside other work, seconds on the wall are not: read the
medians. One row per system and way in: `proxy` is through the gateway, `direct` is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.groups.cost import Cost, CostPlan, measure_costs
from bench.groups.live import Live, LivePlan, measure_live
from bench.groups.produce import Produced, ProducePlan, measure_produce, need_kcat, write_records
from bench.groups.rebalance import Rebalance, RebalancePlan, measure_rebalance
from bench.groups.systems import SYSTEMS, System, create_topic, settle_disk
from rich.console import Console
from rich.table import Table

PARTS: Final = ("cost", "live", "rebalance", "produce")
WAYS: Final = ("proxy", "direct")


@dataclass
class Results:
    """All rows."""

    cost: list[Cost] = field(default_factory=list)
    live: list[Live] = field(default_factory=list)
    rebalance: list[Rebalance] = field(default_factory=list)
    produce: list[Produced] = field(default_factory=list)


@dataclass
class Plans:
    """What each part does."""

    cost: CostPlan
    live: LivePlan
    rebalance: RebalancePlan
    produce: ProducePlan


class Progress:
    """Lines on stderr, with the seconds since the start."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def __call__(self, message: str) -> None:
        print(f"{time.monotonic() - self._begin:6.1f} s  {message}", file=sys.stderr, flush=True)


def run_system(
    name: str, options: argparse.Namespace, plans: Plans, results: Results, note: Progress, records: Path
) -> None:
    """Every part on one kind of cluster, each on one that was just started, so that none sees what another
    left behind."""
    for part in options.parts:
        # Memory is looked at with one crowd alone.
        for ways in [[way] for way in options.ways] if part == "live" else [options.ways]:
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
                settle_disk()
                with SYSTEMS[name](Path(scratch)) as system:
                    for way in ways:
                        if way in system.bootstraps:
                            note(f"{name} {way}: {part}")
                            run_part(part, system, way, plans, results, note, records)
                            save(results, options.json)


def run_part(
    part: str, system: System, way: str, plans: Plans, results: Results, note: Progress, records: Path
) -> None:
    bootstrap = system.bootstraps[way]
    if part == "cost":
        create_topic(bootstrap, "cost", 3)
        results.cost += asyncio.run(measure_costs(system, way, "cost", plans.cost, note))
    elif part == "live":
        create_topic(bootstrap, "live", 3)
        results.live.append(asyncio.run(measure_live(system, way, "live", plans.live, note)))
    elif part == "rebalance":
        create_topic(bootstrap, "wide", plans.rebalance.partitions)
        results.rebalance += asyncio.run(measure_rebalance(system, way, "wide", plans.rebalance, note))
    else:
        for partitions in plans.produce.partitions:
            found = measure_produce(system, way, records, partitions, plans.produce, note)
            results.produce.append(found)


def save(results: Results, file: Path | None) -> None:
    """What there is so far: a run that is cut short leaves it."""
    if file is not None:
        file.write_text(json.dumps(asdict(results), indent=1) + "\n")


# -- showing ----------------------------------------------------------------------------------


def show(results: Results, plans: Plans) -> None:
    """The tables, on stdout."""
    console = Console(width=140)
    if results.cost:
        rows = [
            (c.system, c.way, c.kind, c.requests, f"{c.target_ms:.3f}", f"{c.best_ms:.3f}", f"{c.coordinator_ms:.3f}",
             f"{c.gateway_ms:.3f}" if c.way == "proxy" else "-", f"{c.others_ms:.3f}")
            for c in results.cost
        ]  # fmt: skip
        console.print(
            _table(
                "CPU ms per request, median of the rounds (others: replicas and controllers)",
                ("system", "way", "request", "count", "gateway + coordinator", "best round", "coordinator", "gateway",
                 "others"),
                rows,
            )
        )  # fmt: skip
    if results.live:
        title = (
            f"{plans.live.groups} groups of 3, a heartbeat every {plans.live.heartbeat_s:g} s and a commit"
            f" every {plans.live.commit_s:g} s for {plans.live.seconds:g} s; RSS in MB"
        )
        columns = ("system", "way", "heartbeats", "commits", "errors", "nodes before", "formed", "after",
                   "cores", "gateway after", "cores")  # fmt: skip
        console.print(_table(title, columns, [_live_row(one) for one in results.live]))
    if results.rebalance:
        title = (
            f"{plans.rebalance.members} members, {plans.rebalance.partitions} partitions, heartbeats every"
            f" {plans.rebalance.heartbeat_ms} ms; seconds of the rounds"
        )
        shown = ("system", "way", "protocol", "after the last join", "worst", "since the newcomer", "CPU s")
        console.print(_table(title, shown, [_rebalance_row(one) for one in results.rebalance]))
    if results.produce:
        console.print(
            _table(
                "Producer of 1 KiB records, acks=all: idempotence on against off, medians",
                (
                    "system",
                    "way",
                    "partitions",
                    "MB/s off",
                    "MB/s on",
                    "ratio",
                    "CPU s/GB off",
                    "on",
                    "ratio",
                ),
                [_produce_row(one) for one in results.produce],
            )
        )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    table = Table(title=title)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < 2 else "right")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _of(values: dict[str, float], prefix: str, digits: int) -> str:
    return " ".join(f"{v:.{digits}f}" for name, v in sorted(values.items()) if name.startswith(prefix)) or "-"


def _live_row(one: Live) -> tuple[object, ...]:
    return (
        one.system, one.way, one.heartbeats, one.commits, one.errors,
        _of(one.before_mb, "node-", 0), _of(one.formed_mb, "node-", 0), _of(one.after_mb, "node-", 0),
        _of(one.cores, "node-", 2), _of(one.after_mb, "gateway", 0), _of(one.cores, "gateway", 2),
    )  # fmt: skip


def _rebalance_row(one: Rebalance) -> tuple[object, ...]:
    middle = statistics.median
    return (
        one.system, one.way, one.protocol, f"{middle(one.after_last_join_s):.2f}",
        f"{max(one.after_last_join_s):.2f}", f"{middle(one.since_newcomer_s):.2f}",
        f"{middle(one.cpu_s):.2f}",
    )  # fmt: skip


def _produce_row(one: Produced) -> tuple[object, ...]:
    middle = statistics.median
    return (
        one.system, one.way, one.partitions, f"{middle(one.mb_per_s['plain']):.1f}",
        f"{middle(one.mb_per_s['idempotent']):.1f}", f"{one.ratio:.2f}",
        f"{middle(one.cpu_s_per_gb['plain']):.1f}", f"{middle(one.cpu_s_per_gb['idempotent']):.1f}",
        f"{one.cpu_ratio:.2f}",
    )  # fmt: skip


# -- command line -------------------------------------------------------------------------------


def _several(text: str, known: Sequence[str]) -> list[str]:
    words = text.split(",")
    unknown = [word for word in words if word not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
    return words


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.groups",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def choice(known: Sequence[str]) -> dict[str, Any]:
        return {"type": lambda text: _several(text, known), "default": list(known)}

    parser.add_argument(
        "--systems", **choice(list(SYSTEMS)), help=f"comma-separated, of {', '.join(SYSTEMS)}"
    )
    parser.add_argument("--parts", **choice(PARTS), help=f"comma-separated, of {', '.join(PARTS)}")
    parser.add_argument("--ways", **choice(WAYS), help=f"comma-separated, of {', '.join(WAYS)}")
    parser.add_argument("--rounds", type=int, help="rounds of cost (3), rebalance (5) and produce (5)")
    parser.add_argument("--seconds", type=float, help="length of a round of cost (10) and of live (60)")
    parser.add_argument("--groups", type=int, default=1000, help="groups of `live`, three members each")
    parser.add_argument("--members", type=int, default=100, help="members of `rebalance`")
    parser.add_argument("--partitions", type=int, default=1000, help="partitions of `rebalance`")
    parser.add_argument("--heartbeat-ms", type=int, default=500, help="heartbeat interval of `rebalance`")
    parser.add_argument("--megabytes", type=int, default=150, help="MiB of each run of `produce`")
    parser.add_argument("--quick", action="store_true", help="small counts and one round of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row there")
    return parser.parse_args(arguments)


def plans_of(options: argparse.Namespace) -> Plans:
    """The options as plans."""
    if options.quick:
        return Plans(
            CostPlan(groups=3, rate_per_s=100, seconds=2, rounds=1),
            LivePlan(groups=30, seconds=5, heartbeat_s=1, commit_s=1),
            RebalancePlan(members=10, partitions=50, rounds=1, heartbeat_ms=200),
            ProducePlan(megabytes=20, rounds=1),
        )
    rounds, seconds = options.rounds, options.seconds
    return Plans(
        CostPlan(seconds=seconds or 10.0, rounds=rounds or 3),
        LivePlan(groups=options.groups, seconds=seconds or 60.0),
        RebalancePlan(options.members, options.partitions, rounds or 5, options.heartbeat_ms),
        ProducePlan(options.megabytes, rounds or 5),
    )


def main() -> int:
    options = parse()
    if "produce" in options.parts:
        need_kcat()
    plans, results, note = plans_of(options), Results(), Progress()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        records = Path(scratch) / "records"
        if "produce" in options.parts:
            write_records(records, plans.produce.megabytes)
        for name in options.systems:
            run_system(name, options, plans, results, note, records)
    show(results, plans)
    return 0


if __name__ == "__main__":
    sys.exit(main())
