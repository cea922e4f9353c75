"""Dashboards: as the generator writes them, portable, and every query returns data of a cluster at work."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from observability.live import OBSERVABILITY, Prometheus, needs_prometheus
from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from support.kafka import create_topic, produce
from support.waiting import wait_for

DIRECTORY = OBSERVABILITY / "grafana" / "dashboards"
TOOL = OBSERVABILITY.parents[1] / "tools" / "dashboards.py"
RATE_INTERVAL = "20s"
"""In place of Grafana's own, which is at least four scrapes."""
ANSWERS = os.environ.get("PENSTOCK_DASHBOARD_ANSWERS", "")
"""A file for what the queries were answered, from which `tools/dashboards.py --pictures` draws."""
HISTORY_S = 75.0
"""Of what pictures show."""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("penstock_dashboards_tool", TOOL)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def boards() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(DIRECTORY.glob("*.json"))}


def test_the_files_are_what_the_tool_writes(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0


def test_no_dashboard_is_bound_to_one_grafana() -> None:
    found = boards()
    assert list(found) == ["cluster", "controllers", "gateways", "groups", "storage-nodes"]
    for name, board in found.items():
        assert "id" not in board and board["uid"] == f"penstock-{name}"
        (variable,) = board["templating"]["list"]
        assert (variable["name"], variable["type"]) == ("datasource", "datasource")
        for panel in board["panels"]:
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


@pytest.fixture(scope="module")
def operation(working_cluster: LocalCluster) -> Iterator[None]:
    """One that goes on all the while: a topic is copied slowly."""
    create_topic(working_cluster.bootstrap, "moved", partitions=3, replication_factor=1)
    produce(working_cluster.bootstrap, "moved", 600, value_bytes=10_000)
    change = ("topic", "set-replication-factor", "moved", "3", "--throttle", "50000", "--yes", "--json")
    started = json.loads(command(working_cluster, *change))
    yield
    command(working_cluster, "operation", "cancel", str(started["operation_id"]), "--yes")


def command(cluster: LocalCluster, *words: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*words, "--gateway", cluster.gateway])
    assert code == 0, (words, code, out.getvalue(), err.getvalue())
    return out.getvalue()


@needs_prometheus
@pytest.mark.usefixtures("operation")
def test_every_query_of_every_dashboard_returns_data(watching: Prometheus) -> None:
    answers: dict[str, dict[str, list[dict[str, Any]]]] = {}

    missing: list[str] = []

    def all_have_data() -> bool:
        missing.clear()
        for name, board in boards().items():
            for panel in board["panels"]:
                lines = answers.setdefault(name, {})[panel["title"]] = []
                for target in panel["targets"]:
                    found = data_of(watching, target["expr"])
                    if not found:
                        missing.append(f"{name}: {panel['title']}: {target['expr']}")
                    lines += [
                        {"legend": legend(target["legendFormat"], s), "values": s["values"]} for s in found
                    ]
        return not missing

    # Rates need their interval, lags a round of questions, the time left of an operation some progress.
    try:
        wait_for(all_have_data, "every query returns data", 90)
    except AssertionError:
        assert missing == []
    if ANSWERS:
        time.sleep(HISTORY_S)
        assert all_have_data()
        Path(ANSWERS).write_text(json.dumps(answers))


def data_of(watching: Prometheus, expr: str) -> list[dict[str, Any]]:
    """Series with a number at last."""
    series = watching.query_range(expr.replace("$__rate_interval", RATE_INTERVAL), 120)
    for each in series:
        each["values"] = [(at, float(v)) for at, v in each["values"] if math.isfinite(float(v))]
    return [each for each in series if each["values"]]


def legend(text: str, series: dict[str, Any]) -> str:
    for label, value in series["metric"].items():
        text = text.replace("{{" + label + "}}", value)
    return text
