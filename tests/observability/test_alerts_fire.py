"""Alerts fire by their fault: on a cluster of real processes, scraped by Prometheus, each fault as it comes in life.

The rules are those of deploy/observability with less patience: `for` is a second, rates are of ten. `make alerts-test`
runs all of it, `make test` the faults that take little time: twelve alerts.

Two faults come from no outside: an error that nothing expects (if we knew one we would expect it) and a loop that only
computes. `faults/sitecustomize.py` is laid over every process for them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cluster.test_slots import pool
from observability.live import OBSERVABILITY, STALLED, Prometheus, Work, needs_prometheus, prometheus
from observability.test_dashboards import command
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster, start_ready
from support.kafka import client_config, create_topic, delete_topic, describe, produce, wait_for_full_isr
from support.waiting import wait_for

FAULTS = Path(__file__).parent / "faults"
FIRES_S = 90.0
HELD_UP_S = 0.7
WHOLE = bool(os.environ.get("PENSTOCK_ALERTS"))
pytestmark = [needs_prometheus, pytest.mark.cluster, pytest.mark.timeout(900)]
long_form = pytest.mark.skipif(not WHOLE, reason="of the long form: make alerts-test")


def impatient(text: str) -> str:
    """The alerts as they are, but sooner."""
    text = re.sub(r"(?m)^(\s+for:) \w+$", r"\1 1s", text)
    text = re.sub(r"\[\d+[mh]\]", "[10s]", text)
    for patient, quick in (
        ("lag_seconds > 300", "lag_seconds > 10"),
        ("age_seconds > 10", "age_seconds > 4"),
        ("stalled_seconds > 1200", "stalled_seconds > 3"),
        # A machine that is shared gives a thread that computes less than 0.9 of a processor, and at times a quarter.
        ("cpu_seconds_total[10s]) > 0.9", "cpu_seconds_total[10s]) > 0.2"),
    ):
        text = text.replace(patient, quick)
    return text


class Watched:
    """A cluster, its Prometheus, and the files that arm failpoints of its processes."""

    def __init__(self, cluster: LocalCluster, watching: Prometheus) -> None:
        self.cluster = cluster
        self.watching = watching

    def fires(self, *alerts: str) -> None:
        """All of these, now or soon."""
        wanted, seen = set(alerts), set[str]()

        def all_fired() -> bool:
            seen.update(self.watching.firing())
            return wanted <= seen

        try:
            wait_for(all_fired, f"{sorted(wanted)} fire", FIRES_S)
        except AssertionError:
            assert seen >= wanted

    def is_quiet(self, *alerts: str) -> None:
        """None of these any more."""
        wait_for(lambda: not set(alerts) & self.watching.firing(), f"{alerts} are over", FIRES_S)

    @contextmanager
    def file(self, name: str, what: str) -> Iterator[None]:
        """A file in the working directory of a process, for a while."""
        file = self.cluster.directory / name / what
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    @contextmanager
    def fault(self, name: str, entry: str) -> Iterator[None]:
        """A failpoint of one process, for a while."""
        file = self.cluster.directory / name / "faults"
        file.write_text(entry)
        try:
            yield
        finally:
            file.unlink()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("alerts")
    rules = directory / "alerts.yaml"
    rules.write_text(impatient((OBSERVABILITY / "alerts.yaml").read_text()))
    settings = {
        "storage-node": {"lag_interval_ms": "1000"},
        "gateway": {"stale_after_ms": "3000"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_FAILPOINTS", "@faults")
        patch.setenv("PENSTOCK_ALLOW_FAILPOINTS", "true")
        patch.setenv("PYTHONPATH", str(FAULTS))
        with (
            running_cluster(directory / "cluster", settings=settings) as cluster,
            prometheus(cluster, directory / "prometheus", [rules]) as watching,
        ):
            create_topic(cluster.bootstrap, "strict", 3, 3, min_insync_replicas="3")
            create_topic(cluster.bootstrap, "single", 3, 1)
            produce(cluster.bootstrap, "strict", 50)
            yield Watched(cluster, watching)


def test_nothing_fires_on_a_cluster_that_is_well(watched: Watched) -> None:
    watched.is_quiet(*names())


def names() -> list[str]:
    return re.findall(r"- alert: (\w+)", (OBSERVABILITY / "alerts.yaml").read_text())


def test_a_node_that_is_killed(watched: Watched) -> None:
    cluster = watched.cluster
    victim = next(iter(describe(cluster.bootstrap, "single").values())).leader
    cluster.kill(f"node-{victim}")
    watched.fires("ProcessDown", "UnderReplicated", "OfflinePartitions", "UnderMinIsr")
    refused = Producer(client_config(cluster.bootstrap, acks="all", **{"message.timeout.ms": 20_000}))
    for number in range(20):
        refused.produce("strict", b"%d" % number)
    refused.flush(0.5)
    watched.fires("ServerErrors")
    start_ready(cluster, f"node-{victim}")
    wait_for_full_isr(cluster.bootstrap, "strict")
    refused.flush(30)
    watched.is_quiet("ProcessDown", "UnderReplicated", "OfflinePartitions", "UnderMinIsr")


def controllers(watched: Watched) -> tuple[str, list[str]]:
    """The active one, and the others."""
    found = watched.watching.query("penstock_controller_is_active")
    by_state = {each["metric"]["process"]: each["value"][1] == "1" for each in found}
    (active,) = [name for name, is_active in by_state.items() if is_active]
    return active, [name for name in by_state if name != active]


def asked(watched: Watched, name: str, path: str) -> tuple[int, str]:
    """What a process says of itself."""
    port = next(m.ports["http"] for m in watched.cluster.state.members if m.name == name)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


def test_a_controller_that_is_killed_then_the_majority(watched: Watched) -> None:
    cluster = watched.cluster
    active, others = controllers(watched)
    cluster.kill(others[0])
    watched.fires("QuorumAtRisk")
    cluster.kill(active)
    watched.fires("NoActiveController", "MetadataStale", "NotReady")
    # Route on /readyz, restart on /healthz, never the other way: a node serves as long as it can, and no process is
    # better off for being started anew.
    wanted = {
        "gateway-1": (503, "no controller heard of for more than stale_after_ms = 3000"),
        others[1]: (503, "no active controller is known; a majority of raft_peers must run"),
        "node-1": (200, "ready"),
    }
    wait_for(
        lambda: {name: asked(watched, name, "readyz") for name in wanted} == wanted,
        "each says why it is not ready",
        FIRES_S,
    )
    assert {asked(watched, name, "healthz") for name in wanted} == {(200, "ok")}
    start_ready(cluster, others[0], active)
    watched.is_quiet("NoActiveController", "MetadataStale", "NotReady", "QuorumAtRisk")


def test_a_process_that_is_held_up(watched: Watched) -> None:
    pid = next(p.pid for p in watched.cluster.state.processes if p.name == "gateway-1")
    assert pid is not None

    def held_up_again() -> bool:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(HELD_UP_S)  # the fault itself
        os.kill(pid, signal.SIGCONT)
        return "LoopLag" in watched.watching.firing()

    wait_for(held_up_again, "LoopLag fires", FIRES_S)


def test_an_error_that_nothing_expected(watched: Watched) -> None:
    with watched.file("gateway-1", "fail"):
        watched.fires("UnhandledError")


@long_form
def test_a_process_of_another_build(watched: Watched, tmp_path: Path) -> None:
    told = tmp_path / "penstock_runtime-99.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-runtime\nVersion: 99.0\n")
    _, (other, *_) = controllers(watched)
    watched.cluster.kill(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(FAULTS))))
        start_ready(watched.cluster, other)
    watched.fires("MixedVersions")
    watched.cluster.kill(other)
    start_ready(watched.cluster, other)
    watched.is_quiet("MixedVersions")


@long_form
def test_a_loop_that_only_computes(watched: Watched) -> None:
    with watched.file("gateway-1", "compute"):
        watched.fires("LoopBusy")
    watched.is_quiet("LoopBusy")


@long_form
def test_a_disk_that_fills_up(watched: Watched, tmp_path: Path) -> None:
    """Room goes at a rate that leaves none within six hours; a tenth of it goes at most."""
    found = os.statvfs(watched.cluster.directory)
    step_bytes = found.f_bavail * found.f_frsize // 1000
    with (tmp_path / "filler").open("wb") as filler:
        size_bytes = 0

        def fills() -> bool:
            nonlocal size_bytes
            if size_bytes < 100 * step_bytes:
                os.posix_fallocate(filler.fileno(), size_bytes, step_bytes)
                size_bytes += step_bytes
            time.sleep(0.3)  # the rate of the fault
            return "DiskFillsSoon" in watched.watching.firing()

        wait_for(fills, "DiskFillsSoon fires", FIRES_S)
    (tmp_path / "filler").unlink()
    watched.is_quiet("DiskFillsSoon")


@long_form
def test_an_operation_that_is_paused(watched: Watched) -> None:
    cluster = watched.cluster
    create_topic(cluster.bootstrap, "slow", 3, 1)
    produce(cluster.bootstrap, "slow", 600, value_bytes=10_000)
    change = ("topic", "set-replication-factor", "slow", "3", "--throttle", "20000", "--yes", "--json")
    operation = str(json.loads(command(cluster, *change))["operation_id"])
    command(cluster, "operation", "pause", operation)
    watched.fires("OperationStuck")
    command(cluster, "operation", "cancel", operation, "--yes")
    watched.is_quiet("OperationStuck")


@long_form
def test_a_slow_disk(watched: Watched) -> None:
    with watched.fault("node-1", "log.flush.before_sync=pause:1500"):
        producer = Producer(client_config(watched.cluster.bootstrap, acks="all"))
        for number in range(60):
            producer.produce("strict", b"%d" % number)
            producer.flush(1)
        watched.fires("FlushSlow", "ProduceSlow")
    producer.flush(60)
    watched.is_quiet("FlushSlow", "ProduceSlow")


@long_form
def test_a_full_disk(watched: Watched) -> None:
    with watched.fault("node-2", "log.append.before_write=enospc"):
        producer = Producer(
            client_config(watched.cluster.bootstrap, acks="all", **{"message.timeout.ms": 5_000})
        )
        for number in range(30):
            producer.produce("strict", b"%d" % number)
        watched.fires("DiskFull")
        producer.flush(10)


@long_form
def test_a_group_that_stalls(watched: Watched) -> None:
    with Work(watched.cluster):
        watched.fires("GroupLag")
        rows = watched.watching.query("penstock_group_lag_seconds > 10")
        assert {row["metric"]["group"] for row in rows} == {STALLED}


@long_form
def test_a_transaction_that_stays_open(watched: Watched) -> None:
    producer = Producer(client_config(watched.cluster.bootstrap, **{"transactional.id": "idle"}))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("strict", b"held")
    producer.flush(60)
    watched.fires("TransactionStuck")
    producer.abort_transaction(60)
    watched.is_quiet("TransactionStuck")


@long_form
def test_an_unclean_election(watched: Watched) -> None:
    cluster = watched.cluster
    create_topic(
        cluster.bootstrap, "risky", 1, 2, unclean_leader_election_enable="true", min_insync_replicas="1"
    )
    (before,) = describe(cluster.bootstrap, "risky").values()
    leader = before.leader
    (follower,) = [node for node in before.replicas if node != leader]
    cluster.kill(f"node-{follower}")
    wait_for(
        lambda: next(iter(describe(cluster.bootstrap, "risky").values())).isrs == [leader], "it leads alone"
    )
    produce(cluster.bootstrap, "risky", 50)
    cluster.kill(f"node-{leader}")
    cluster.start(f"node-{follower}")
    watched.fires("UncleanElection")
    start_ready(cluster, f"node-{leader}")


@long_form
def test_a_topic_that_was_deleted_while_a_node_was_away(watched: Watched) -> None:
    cluster = watched.cluster
    create_topic(cluster.bootstrap, "gone", 3, 3)
    produce(cluster.bootstrap, "gone", 30)
    cluster.kill("node-3")
    delete_topic(cluster.bootstrap, "gone")
    start_ready(cluster, "node-3")
    watched.fires("Strays")


@long_form
def test_a_disk_that_fails(watched: Watched) -> None:
    with watched.fault("node-1", "log.flush.before_sync=eio"):
        producer = Producer(
            client_config(watched.cluster.bootstrap, acks="all", **{"message.timeout.ms": 20_000})
        )
        for number in range(30):
            producer.produce("strict", b"%d" % number)
        watched.fires("DiskFailed")
        producer.flush(25)
    watched.cluster.kill("node-1")
    start_ready(watched.cluster, "node-1")


@long_form
def test_a_slot_whose_process_is_gone(watched: Watched, tmp_path: Path) -> None:
    """The last one: two nodes that are none of the local cluster's stay behind in its metadata."""
    with (
        pool(watched.cluster, tmp_path / "pool", 2) as (first, second),
        watched.watching.also("slot", first.http),
    ):
        second.end()
        watched.fires("SlotUnclaimed")


def test_every_alert_has_a_fault_here() -> None:
    """Of all rules there are; none is left that no test makes fire."""
    fired = set(re.findall(r'"([A-Z][A-Za-z]+)"', Path(__file__).read_text()))
    assert set(names()) <= fired
