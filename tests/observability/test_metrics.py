"""Every metric of docs/metrics.md is told by those who should, with its type, labels and help, and within its bound."""

from __future__ import annotations

import io

import pytest
from prometheus_client.parser import text_fd_to_metric_families

from observability.catalogue import ACTIVE, DOCUMENT, NOT_ALWAYS, Metric, read
from observability.live import Prometheus, http_ports, needs_prometheus, promtool, scrape
from penstock.local.cluster import LocalCluster
from support.waiting import wait_for

CATALOGUE = read(DOCUMENT.read_text())
_SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_created")


class Told:
    """What one process tells: by name as in # TYPE, the type, the help and the labels of each series."""

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.series: dict[str, set[tuple[tuple[str, str], ...]]] = {}
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name, _, words = line[7:].partition(" ")
                self.helps[name] = words
            elif line.startswith("# TYPE "):
                name, _, kind = line[7:].partition(" ")
                self.kinds[name] = kind
        for family in text_fd_to_metric_families(io.StringIO(text)):
            for sample in family.samples:
                name = sample.name
                for suffix in _SUFFIXES:
                    if name not in self.kinds and name.endswith(suffix):
                        name = name.removesuffix(suffix)
                labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
                self.series.setdefault(name, set()).add(labels)

    def names(self) -> set[str]:
        """Ours."""
        return {n for n in self.kinds if n.startswith("penstock_") and not n.endswith("_created")}


def test_the_whole_catalogue_is_told_and_nothing_else(working_cluster: LocalCluster) -> None:
    seen: dict[str, set[str]] = {}
    faults: list[str] = []
    for role, named in http_ports(working_cluster).items():
        for process, port in named.items():
            text = scrape(port)
            told = Told(text)
            is_active = "penstock_controller_is_active 1.0" in text
            for name in sorted(told.names()):
                row = CATALOGUE.get(name)
                if row is None:
                    faults.append(f"{process}: {name} has no row in docs/metrics.md")
                    continue
                seen.setdefault(name, set()).add(role)
                if is_active and role == "controller":
                    seen[name].add(ACTIVE)
                faults += [f"{process}: {name}: {fault}" for fault in faults_of(row, told, role, is_active)]
    for name, row in CATALOGUE.items():
        missing = set(row.roles) - seen.get(name, set())
        if missing and NOT_ALWAYS not in row.text:
            faults.append(f"{name}: {sorted(missing)} do not tell it")
    assert not faults, "\n".join(faults)


def faults_of(row: Metric, told: Told, role: str, is_active: bool) -> list[str]:
    faults = []
    if told.kinds[row.name] != row.kind:
        faults.append(f"it is a {told.kinds[row.name]}, not a {row.kind}")
    if told.helps.get(row.name, "") != row.text:
        faults.append(f"its help is {told.helps.get(row.name)!r}")
    if role not in row.roles and not (ACTIVE in row.roles and is_active):
        faults.append(f"it is told by {role}")
    series = told.series.get(row.name, set())
    for labels in series:
        if {key for key, _ in labels} != row.labels:
            faults.append(f"it has the labels {dict(labels)}, not {sorted(row.labels)}")
            break
    if row.series_max is not None and len(series) > row.series_max:
        faults.append(f"it has {len(series)} series, at most {row.series_max} are expected")
    return faults


@needs_prometheus
def test_promtool_finds_nothing_to_mend(working_cluster: LocalCluster) -> None:
    for named in http_ports(working_cluster).values():
        for process, port in named.items():
            checked = promtool("check", "metrics", text=scrape(port))
            assert checked.returncode == 0 and not checked.stdout.strip(), (process, checked.stdout)


@needs_prometheus
def test_prometheus_scrapes_every_role(working_cluster: LocalCluster, watching: Prometheus) -> None:
    del working_cluster
    roles = {each["metric"]["role"] for each in watching.query("penstock_build_info")}
    assert roles == {"controller", "storage-node", "gateway"}
    wait_for(lambda: not watching.query("max(scrape_duration_seconds) > 0.5"), "scrapes are quick", 60)


@pytest.mark.parametrize("role", ["controller", "storage-node", "gateway"])
def test_metrics_say_what_clients_do(working_cluster: LocalCluster, role: str) -> None:
    wanted = {
        "controller": ["penstock_cluster_topics ", 'penstock_cluster_nodes{state="live"} 3.0'],
        "storage-node": [
            'penstock_topic_received_records_total{topic="flights"}',
            'penstock_topic_sent_bytes_total{topic="flights"}',
            'penstock_node_request_phase_seconds_count{api="Produce",phase="remote"}',
            'penstock_node_groups{state="Stable"} 1.0',
            'penstock_group_lag_seconds{group="stalled",topic="payments"}',
        ],
        "gateway": [
            'penstock_gateway_hop_seconds_count{api="Produce",hop="answer"}',
            'penstock_gateway_native_seconds_count{method="Describe"}',
        ],
    }
    for words in wanted[role]:

        def told(words: str = words) -> bool:
            return any(words in scrape(port) for port in http_ports(working_cluster)[role].values())

        wait_for(told, words, 60)
