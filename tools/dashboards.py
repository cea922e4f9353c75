"""Grafana's dashboards of a cluster, written from the panels below: deploy/observability/grafana/dashboards/*.json.

    python tools/dashboards.py            write them
    python tools/dashboards.py --check    fail when they are not what this would write
    python tools/dashboards.py --pictures ANSWERS.json
                                          draw docs/pictures/*.svg from what a real Prometheus answered

A panel names no data source and no id: the data source is a variable, and a dashboard goes by its uid.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
DASHBOARDS: Final = ROOT / "deploy" / "observability" / "grafana" / "dashboards"
PICTURES: Final = ROOT / "docs" / "pictures"
WIDTH: Final = 24
"""Of Grafana's grid."""
HEIGHT: Final = 8
STEP: Final = 3
"""Of the values that were answered every how many is drawn."""
RATE: Final = "$__rate_interval"
"""At least four scrapes."""


@dataclass(frozen=True)
class Query:
    """A line, or several by their labels."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    unit: str
    """Of Grafana's units: s, bytes, Bps, short, percentunit."""
    queries: tuple[Query, ...]
    stacked: bool = False
    kind: str = "timeseries"
    width: int = 8
    text: str = ""


def panel(title: str, unit: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """A panel of (expression, legend)."""
    return Panel(title, unit, tuple(Query(*each) for each in queries), **more)


def stat(title: str, unit: str, expr: str, legend: str = "", *, width: int = 4) -> Panel:
    """One number."""
    return panel(title, unit, (expr, legend), kind="stat", width=width)


def rate(name: str, by: str = "", where: str = "") -> str:
    """Of a counter, summed."""
    selected = f"penstock_{name}_total" + (f"{{{where}}}" if where else "")
    return f"sum{f' by ({by})' if by else ''} (rate({selected}[{RATE}]))"


def quantile(part: float, name: str, by: str = "", where: str = "") -> str:
    """Of a histogram."""
    selected = f"penstock_{name}_bucket" + (f"{{{where}}}" if where else "")
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({part}, sum by ({labels}) (rate({selected}[{RATE}])))"


def mean(name: str, by: str, where: str = "") -> str:
    """Of a histogram: time in it per request."""
    chosen = f"{{{where}}}" if where else ""
    top = f"sum by ({by}) (rate(penstock_{name}_sum{chosen}[{RATE}]))"
    return f"{top} / (sum by ({by}) (rate(penstock_{name}_count{chosen}[{RATE}])) > 0)"


def or_none(expr: str) -> str:
    """0 of the code `none` where there is no error at all."""
    return f'{expr} or label_replace(vector(0), "code", "none", "", "")'


TROUBLE: Final = (
    "offline",
    "under_min_isr",
    "under_replicated",
    "at_min_isr",
    "reassigning",
    "not_preferred",
)
NODES: Final = 'job=~".*storage-node"'
GATEWAYS: Final = 'job=~".*gateway"'
CONTROLLERS: Final = 'job=~".*controller"'


def process_panels(where: str) -> tuple[Panel, ...]:
    """What every role has."""
    return (
        panel(
            "Busy fraction of the event loop",
            "percentunit",
            (f"rate(penstock_loop_cpu_seconds_total{{{where}}}[{RATE}])", "{{instance}}"),
        ),
        panel(
            "Loop lag, p99",
            "s",
            (quantile(0.99, "loop_lag_seconds", "instance", where), "{{instance}}"),
        ),
        panel("Resident memory", "bytes", (f"process_resident_memory_bytes{{{where}}}", "{{instance}}")),
    )


BOARDS: Final[dict[str, tuple[str, tuple[Panel, ...]]]] = {
    "cluster": (
        "Penstock: cluster",
        (
            stat("Active controllers", "short", "sum(penstock_controller_is_active)"),
            stat("Offline partitions", "short", "max(penstock_cluster_offline_partitions)"),
            stat("Below min.insync.replicas", "short", "max(penstock_cluster_under_min_isr_partitions)"),
            stat("Under-replicated", "short", "max(penstock_cluster_under_replicated_partitions)"),
            stat("Partitions", "short", "max(penstock_cluster_partitions)"),
            stat("Processes not ready", "short", "count(penstock_ready == 0) or vector(0)"),
            panel(
                "Partitions by trouble",
                "short",
                *((f"max(penstock_cluster_{each}_partitions)", each.replace("_", " ")) for each in TROUBLE),
            ),
            panel(
                "Storage nodes by state",
                "short",
                ("max by (state) (penstock_cluster_nodes)", "{{state}}"),
                stacked=True,
            ),
            panel(
                "Imbalance: most over mean, less 1",
                "percentunit",
                *(
                    (f"max(penstock_cluster_{each}_imbalance_ratio)", each)
                    for each in ("replica", "leader", "bytes")
                ),
            ),
            panel(
                "Bytes in by topic",
                "Bps",
                (f"topk(10, {rate('topic_received_bytes', 'topic')})", "{{topic}}"),
                stacked=True,
            ),
            panel(
                "Records in by topic",
                "short",
                (f"topk(10, {rate('topic_received_records', 'topic')})", "{{topic}}"),
                stacked=True,
            ),
            panel(
                "Bytes out by topic",
                "Bps",
                (f"topk(10, {rate('topic_sent_bytes', 'topic')})", "{{topic}}"),
                stacked=True,
            ),
            panel("Operations by state", "short", ("max by (state) (penstock_operations)", "{{state}}")),
            panel(
                "Progress of operations",
                "percentunit",
                ("max by (kind, operation) (penstock_operation_progress_ratio)", "{{kind}} {{operation}}"),
            ),
            panel(
                "Time that operations still take",
                "s",
                ("max by (kind, operation) (penstock_operation_eta_seconds)", "{{kind}} {{operation}}"),
            ),
            panel(
                "Bytes moved by operations",
                "Bps",
                (
                    f"sum by (kind, operation) (rate(penstock_operation_moved_bytes_total[{RATE}]))",
                    "{{kind}} {{operation}}",
                ),
                (
                    "max by (kind, operation) (penstock_operation_limit_bytes_per_second)",
                    "limit of {{operation}}",
                ),
            ),
            panel(
                "Unclean elections",
                "short",
                ("sum(penstock_cluster_unclean_elections_total)", "since the start"),
            ),
            panel(
                "Versions", "short", ("count by (version) (penstock_build_info)", "{{version}}"), stacked=True
            ),
        ),
    ),
    "storage-nodes": (
        "Penstock: storage nodes",
        (
            panel(
                "Where the time of a Produce goes",
                "s",
                (mean("node_request_phase_seconds", "phase", 'api="Produce"'), "{{phase}}"),
                stacked=True,
            ),
            panel(
                "Where the time of a Fetch goes",
                "s",
                (mean("node_request_phase_seconds", "phase", 'api="Fetch"'), "{{phase}}"),
                stacked=True,
            ),
            panel(
                "Produce on the node, p99",
                "s",
                (quantile(0.99, "node_request_seconds", "instance", 'api="Produce"'), "{{instance}}"),
            ),
            *process_panels(NODES),
            panel("Flush, p99", "s", (quantile(0.99, "node_flush_seconds", "instance"), "{{instance}}")),
            panel("Flushes", "short", (rate("node_flushes", "instance, result"), "{{instance}} {{result}}")),
            panel("Bytes for each flush", "bytes", (mean("node_flush_bytes", "instance"), "{{instance}}")),
            panel(
                "Lag of followers, bytes",
                "bytes",
                ("max by (follower) (penstock_node_replica_lag_bytes)", "node {{follower}}"),
            ),
            panel(
                "Lag of followers, time",
                "s",
                ("max by (follower) (penstock_node_replica_lag_seconds)", "node {{follower}}"),
            ),
            panel(
                "Rebuilding replicas",
                "Bps",
                (f"rate(penstock_node_catch_up_in_bytes_total[{RATE}])", "{{instance}} in"),
                (f"rate(penstock_node_catch_up_out_bytes_total[{RATE}])", "{{instance}} out"),
            ),
            panel("Free on the disk", "bytes", ("penstock_node_disk_free_bytes", "{{instance}}")),
            panel("Bytes of logs", "bytes", ("penstock_node_log_bytes", "{{instance}}")),
            panel(
                "Disks in trouble, strays",
                "short",
                ("penstock_node_disk_full", "{{instance}} full"),
                ("penstock_node_disk_failed", "{{instance}} failed"),
                ("penstock_node_stray_logs", "{{instance}} strays"),
            ),
            panel("Leaders", "short", ("penstock_node_leaders", "{{instance}}"), stacked=True),
            panel(
                "Appends that wait for acks",
                "short",
                ("penstock_node_waiting_produce_partitions", "{{instance}}"),
            ),
            panel(
                "ISR changes",
                "short",
                (rate("node_isr_shrinks", "instance"), "{{instance}} shrinks"),
                (rate("node_isr_expands", "instance"), "{{instance}} expands"),
            ),
        ),
    ),
    "gateways": (
        "Penstock: gateways",
        (
            panel(
                "Produce where the client's socket is",
                "s",
                *(
                    (quantile(q, "kafka_request_seconds", "", f'api="Produce", {GATEWAYS}'), f"p{q * 100:g}")
                    for q in (0.5, 0.95, 0.99)
                ),
            ),
            panel(
                "Hops of a Produce",
                "s",
                (mean("gateway_hop_seconds", "hop", 'api="Produce"'), "{{hop}}"),
                stacked=True,
            ),
            panel(
                "Hops of a Fetch",
                "s",
                (mean("gateway_hop_seconds", "hop", 'api="Fetch"'), "{{hop}}"),
                stacked=True,
            ),
            panel(
                "Requests",
                "short",
                (
                    f"sum by (api) (rate(penstock_kafka_request_seconds_count{{{GATEWAYS}}}[{RATE}]))",
                    "{{api}}",
                ),
            ),
            panel(
                "Connections",
                "short",
                (
                    f"sum by (instance, listener) (penstock_kafka_connections{{{GATEWAYS}}})",
                    "{{instance}} {{listener}}",
                ),
            ),
            panel(
                "Errors by code",
                "short",
                (
                    or_none(rate("kafka_errors", "code")),
                    "{{code}}",
                ),
                (
                    or_none(rate("node_request_errors", "code")),
                    "{{code}} of nodes",
                ),
            ),
            panel(
                "Routed again",
                "short",
                (rate("gateway_reroutes", "instance"), "{{instance}}"),
                (rate("gateway_streams_lost", "instance"), "{{instance}} streams lost"),
            ),
            panel("In flight", "short", ("penstock_gateway_in_flight_requests", "{{instance}}")),
            panel("Relayed", "Bps", (rate("gateway_relayed_bytes", "direction"), "{{direction}}")),
            panel("Native API, p99", "s", (quantile(0.99, "gateway_native_seconds", "method"), "{{method}}")),
            panel("Age of metadata", "s", ("penstock_gateway_metadata_age_seconds", "{{instance}}")),
            panel("Lines logged", "short", (rate("log_lines", "level", GATEWAYS), "{{level}}")),
            *process_panels(GATEWAYS),
        ),
    ),
    "controllers": (
        "Penstock: controllers",
        (
            panel("Active", "short", ("penstock_controller_is_active", "{{instance}}"), stacked=True),
            panel("Peers connected", "short", ("penstock_controller_raft_peers_connected", "{{instance}}")),
            panel(
                "Voters",
                "short",
                ("sum(penstock_controller_raft_is_voter)", "voters"),
                ("max(penstock_controller_raft_peers) + 1", "members"),
            ),
            panel("Term", "short", ("penstock_controller_raft_term", "{{instance}}")),
            panel(
                "Elections stood in", "short", ("penstock_controller_raft_elections_total", "{{instance}}")
            ),
            panel(
                "Leader last heard",
                "s",
                ("penstock_controller_raft_leader_contact_age_seconds", "{{instance}}"),
            ),
            panel(
                "Log not applied yet",
                "short",
                (
                    "penstock_controller_raft_commit_index - penstock_controller_raft_applied_index",
                    "{{instance}}",
                ),
            ),
            panel("Commit, p99", "s", (quantile(0.99, "controller_commit_seconds"), "commit")),
            panel(
                "Sync of the journal, p99",
                "s",
                (quantile(0.99, "controller_journal_sync_seconds", "instance"), "{{instance}}"),
            ),
            panel("Requests waiting", "short", ("penstock_controller_command_queue", "{{instance}}")),
            panel(
                "Commands applied", "short", (rate("controller_commands_applied", "instance"), "{{instance}}")
            ),
            panel(
                "Sessions lost",
                "short",
                ("sum by (kind, reason) (penstock_controller_sessions_lost_total)", "{{kind}} {{reason}}"),
            ),
            panel("Journal", "bytes", ("penstock_controller_raft_journal_bytes", "{{instance}}")),
            panel("Snapshot", "bytes", ("penstock_controller_raft_snapshot_bytes", "{{instance}}")),
            panel("Metadata version", "short", ("penstock_controller_metadata_version", "{{instance}}")),
            *process_panels(CONTROLLERS),
        ),
    ),
    "groups": (
        "Penstock: groups",
        (
            panel(
                "Lag in records",
                "short",
                ("topk(20, sum by (group, topic) (penstock_group_lag_records))", "{{group}} {{topic}}"),
                width=12,
            ),
            panel(
                "Lag in time: how long the oldest record has waited",
                "s",
                ("topk(20, max by (group, topic) (penstock_group_lag_seconds))", "{{group}} {{topic}}"),
                width=12,
            ),
            panel(
                "Groups by state",
                "short",
                ("sum by (state) (penstock_node_groups)", "{{state}}"),
                stacked=True,
            ),
            panel(
                "Groups by coordinator",
                "short",
                ("sum by (instance) (penstock_node_groups)", "{{instance}}"),
                stacked=True,
            ),
            panel("Rows left out", "short", ("sum(penstock_group_lag_left_out)", "left out")),
            panel(
                "Commits of offsets",
                "short",
                (f'sum(rate(penstock_node_request_seconds_count{{api="OffsetCommit"}}[{RATE}]))', "commits"),
            ),
            panel(
                "Commit of offsets, p99",
                "s",
                (quantile(0.99, "node_request_seconds", "", 'api="OffsetCommit"'), "p99"),
            ),
            panel(
                "Partitions of __consumer_offsets that are still read",
                "short",
                ("sum(penstock_node_group_partitions_loading)", "loading"),
            ),
        ),
    ),
}
"""By uid: title and panels, in the order in which they are read."""


# --- Grafana's form ---------------------------------------------------------------------------


def dashboard(uid: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """One dashboard."""
    drawn, x, y, row_height = [], 0, 0, 0
    for number, each in enumerate(panels, 1):
        height = HEIGHT // 2 if each.kind == "stat" else HEIGHT
        if x + each.width > WIDTH or (row_height and height != row_height):
            x, y = 0, y + row_height
        row_height = height
        drawn.append(_panel(number, each, {"x": x, "y": y, "w": each.width, "h": height}))
        x += each.width
    return {
        "uid": f"penstock-{uid}",
        "title": title,
        "tags": ["penstock"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 38,
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "refresh": 1,
                }
            ]
        },
        "links": [
            {
                "type": "dashboards",
                "tags": ["penstock"],
                "title": "Penstock",
                "asDropdown": True,
                "keepTime": True,
            }
        ],
        "panels": drawn,
    }


def _panel(number: int, each: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 30 if each.stacked else 5, "showPoints": "never"}
    if each.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    defaults: dict[str, Any] = {"unit": each.unit, "min": 0}
    if each.kind == "timeseries":
        defaults["custom"] = custom
    return {
        "id": number,
        "title": each.title,
        "description": each.text,
        "type": each.kind,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[each.kind],
        "targets": [
            {"refId": chr(65 + index), "datasource": source, "expr": q.expr, "legendFormat": q.legend}
            for index, q in enumerate(each.queries)
        ],
    }


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
    },
}


def files() -> dict[Path, str]:
    """What is to be in which file."""
    return {
        DASHBOARDS / f"{uid}.json": json.dumps(dashboard(uid, title, panels), indent=2) + "\n"
        for uid, (title, panels) in BOARDS.items()
    }


# --- pictures -----------------------------------------------------------------------------------


def draw(answers: dict[str, Any]) -> None:
    """Pictures of what Prometheus answered: by uid, title and legend of the queries, see `tests/observability`."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "penstock"
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt

    PICTURES.mkdir(exist_ok=True)
    for uid, (title, panels) in BOARDS.items():
        shown = [each for each in panels if each.kind == "timeseries"][:9]
        figure, axes = plt.subplots(3, 3, figsize=(15, 9), constrained_layout=True, squeeze=False)
        figure.suptitle(title)
        for axis, each in zip(axes.flat, shown, strict=False):
            lines = answers[uid][each.title]
            times = sorted({at for line in lines for at, _ in line["values"]})
            ends = times[-1] if times else 0.0
            series = [
                (
                    line["legend"],
                    [at - ends for at, _ in line["values"][::STEP]],
                    [value for _, value in line["values"][::STEP]],
                )
                for line in lines
            ]
            for legend, xs, ys in series[:10]:
                axis.plot(xs, ys, linewidth=1, label=legend[:40])
            axis.set_title(f"{each.title} ({each.unit})", fontsize=9)
            axis.tick_params(labelsize=7)
            axis.set_ylim(bottom=0)
            axis.set_xlabel("s before the last scrape", fontsize=7)
            axis.legend(fontsize=6, loc="upper left")
        for axis in list(axes.flat)[len(shown) :]:
            axis.axis("off")
        figure.savefig(PICTURES / f"dashboard-{uid}.svg", metadata={"Date": None})
        plt.close(figure)


def main(arguments: Sequence[str]) -> int:
    """Write, check or draw."""
    if arguments[:1] == ["--pictures"]:
        draw(json.loads(Path(arguments[1]).read_text()))
        return 0
    wanted = files()
    if arguments == ["--check"]:
        stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
        if stale:
            print(f"not what tools/dashboards.py writes: {', '.join(stale)}; run it", file=sys.stderr)
        return int(bool(stale))
    DASHBOARDS.mkdir(parents=True, exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
