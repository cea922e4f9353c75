"""A small cluster at work, and Debian's Prometheus that scrapes it: what alerts and dashboards are tried on."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from support.kafka import CALL_TIMEOUT_S, Load, client_config
from support.waiting import wait_for

OBSERVABILITY = Path(__file__).parents[2] / "deploy" / "observability"
ROLES = (CONTROLLER, NODE, GATEWAY)
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMTOOL is None or PROMETHEUS is None, reason="Prometheus is not installed: apt-get install prometheus"
)
TOPICS = ("flights", "payments")
STALLED = "stalled"
"""A group that has committed and reads no more."""


def scrape(port: int) -> str:
    """/metrics of one process."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text: str = response.read().decode()
        return text


def http_ports(cluster: LocalCluster) -> dict[str, dict[str, int]]:
    """HTTP ports by role and name of the process."""
    found: dict[str, dict[str, int]] = {role: {} for role in ROLES}
    for member in cluster.state.members:
        found[member.role][member.name] = member.ports["http"]
    return found


class Work:
    """Producers, a group that keeps up, one that has stalled: until closed."""

    def __init__(self, cluster: LocalCluster, *, factor: int = 3) -> None:
        self.cluster = cluster
        self._stop = threading.Event()
        admin = AdminClient(client_config(cluster.bootstrap))
        new = [NewTopic(name, 3, factor) for name in TOPICS]
        for future in admin.create_topics(new, operation_timeout=CALL_TIMEOUT_S).values():
            future.result(CALL_TIMEOUT_S)
        self.loads = [Load(cluster.bootstrap, topic, rate_per_s=150, acks="all") for topic in TOPICS]
        self._threads = [
            threading.Thread(target=self._consume, args=("readers", TOPICS[0], True)),
            threading.Thread(target=self._consume, args=(STALLED, TOPICS[1], False)),
            threading.Thread(target=self._call),
        ]

    def __enter__(self) -> Work:
        for load in self.loads:
            load.__enter__()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for load in self.loads:
            load.__exit__(kind, error, trace)

    def _consume(self, group: str, topic: str, goes_on: bool) -> None:
        consumer = Consumer(
            client_config(self.cluster.bootstrap)
            | {"group.id": group, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
        )
        consumer.subscribe([topic])
        count = 0
        try:
            while not self._stop.is_set() and (goes_on or count < 20):
                message = consumer.poll(0.2)
                count += message is not None and not message.error()
            if not goes_on:
                consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    def _call(self) -> None:
        """The native API, once a second."""
        import grpc

        from penstock_proto.v1 import gateway_pb2, gateway_pb2_grpc

        with grpc.insecure_channel(self.cluster.gateway) as channel:
            stub = gateway_pb2_grpc.GatewayStub(channel)
            while not self._stop.wait(1.0):
                stub.Describe(gateway_pb2.DescribeRequest(), timeout=30)


def promtool(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs promtool; its output is in both streams together."""
    assert PROMTOOL is not None
    return subprocess.run(
        [PROMTOOL, *words],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )


class Prometheus:
    """A Prometheus that scrapes a cluster once a second."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], directory: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process = process
        self._directory = directory

    @contextmanager
    def also(self, name: str, address: str) -> Iterator[None]:
        """Scrapes one process more, that is not of the local cluster, for a while."""
        file = self._directory / f"also-{name}.json"
        row = {"targets": [address], "labels": {"process": name}}
        (self._directory / "new").write_text(json.dumps([row]))
        (self._directory / "new").rename(file)
        try:
            yield
        finally:
            file.unlink()

    def get(self, path: str, **parameters: object) -> Any:
        """What its API says."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as response:
            return json.load(response)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The value of an expression now."""
        try:
            result: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expr}: {error.read().decode()}") from error
        return result

    def query_range(self, expr: str, last_s: float, step_s: float = 1.0) -> list[dict[str, Any]]:
        """Its values over the last seconds."""
        end_s = time.time()
        found: list[dict[str, Any]] = self.get(
            "query_range", query=expr, start=end_s - last_s, end=end_s, step=step_s
        )["result"]
        return found

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {a["labels"]["alertname"] for a in self.get("alerts")["alerts"] if a["state"] == "firing"}

    def up(self) -> int:
        """How many processes it could scrape last."""
        return sum(int(float(each["value"][1])) for each in self.query("up"))


def configuration(cluster: LocalCluster, directory: Path, rules: Sequence[Path]) -> str:
    """As deploy/observability/prometheus.yaml, for the ports of a local cluster. JSON is YAML."""
    jobs: list[dict[str, Any]] = [
        {
            "job_name": f"penstock-{role}",
            "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"process": name}}
                for name, port in named.items()
            ],
        }
        for role, named in http_ports(cluster).items()
    ]
    also: dict[str, Any] = {"files": [str(directory / "also-*.json")], "refresh_interval": "1s"}
    jobs.append({"job_name": "penstock-also", "file_sd_configs": [also]})
    return json.dumps(
        {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": jobs,
        }
    )


@contextmanager
def prometheus(cluster: LocalCluster, directory: Path, rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """One that has scraped all processes; gone at the end."""
    assert PROMETHEUS is not None
    directory.mkdir()
    config = directory / "prometheus.yaml"
    config.write_text(configuration(cluster, directory, rules))
    port = ports.choose_free(1, set())[0]
    with (directory / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        made = Prometheus(port, process, directory)
        wanted = sum(len(named) for named in http_ports(cluster).values())

        def scraped() -> bool:
            assert process.poll() is None, (directory / "log.txt").read_text()
            try:
                with urllib.request.urlopen(f"{made.url}/-/ready", timeout=30):
                    return made.up() == wanted
            except OSError:  # not there yet, or 503
                return False

        wait_for(scraped, "Prometheus has scraped every process", 60)
        yield made
    finally:
        process.terminate()
        process.wait(30)
