"""Alerts as Prometheus reads them: right in form, each fires when it should and no sooner, and has its row."""

from __future__ import annotations

import re

import yaml  # type: ignore[import-untyped]

from observability.live import OBSERVABILITY, needs_prometheus, promtool

ALERTS = OBSERVABILITY / "alerts.yaml"
CASES = OBSERVABILITY / "alerts_test.yaml"
RUNBOOK = OBSERVABILITY.parents[1] / "docs" / "operations.md"


def rules() -> list[dict[str, object]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, object]] = group["rules"]
    return found


@needs_prometheus
def test_promtool_reads_the_rules_and_every_case_holds() -> None:
    checked = promtool("check", "rules", str(ALERTS))
    assert checked.returncode == 0, checked.stdout
    tested = promtool("test", "rules", str(CASES))
    assert tested.returncode == 0, tested.stdout


@needs_prometheus
def test_promtool_reads_the_configuration() -> None:
    checked = promtool("check", "config", str(OBSERVABILITY / "prometheus.yaml"))
    assert checked.returncode == 0, checked.stdout


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    fires = {(t["alertname"], bool(t["exp_alerts"])) for case in cases for t in case["alert_rule_test"]}
    assert fires == {(rule["alert"], way) for rule in rules() for way in (True, False)}


def test_each_alert_has_a_row_in_the_runbook() -> None:
    rows = re.findall(r"^\| <a id=\"(\w+)\"></a>`(\w+)` \| .+ \| .+ \|$", RUNBOOK.read_text(), re.MULTILINE)
    assert [name for _, name in rows] == [rule["alert"] for rule in rules()]
    assert all(anchor == name.lower() for anchor, name in rows)
