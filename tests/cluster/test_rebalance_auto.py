"""A node that joins gets its share by itself, where the cluster is set so; and never a second time."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from penstock.local.plan import NODE
from support.cluster import running_cluster
from support.kafka import CALL_TIMEOUT_S, client_config, describe
from support.waiting import wait_for

TOPIC = "shared-out"
PARTITIONS = 8
TIMEOUT_S = 240.0
SETTING = "penstock.rebalance.auto"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("auto"), controllers=1, nodes=2, steady=True) as made:
        admin = AdminClient(client_config(made.bootstrap))
        for future in admin.create_topics(
            [NewTopic(TOPIC, PARTITIONS, 1)], operation_timeout=CALL_TIMEOUT_S
        ).values():
            future.result(CALL_TIMEOUT_S)
        yield made


def penstock(cluster: LocalCluster, *words: str) -> str:
    """What a command prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*words, "--dir", str(cluster.directory)])
    assert code == 0, (words, code, out.getvalue(), err.getvalue())
    return out.getvalue()


def said(cluster: LocalCluster, *words: str) -> Any:
    """The same, of a command that prints JSON."""
    return json.loads(penstock(cluster, *words, "--json"))


def replicas(cluster: LocalCluster) -> Counter[int]:
    return Counter(n for p in describe(cluster.bootstrap, TOPIC).values() for n in p.replicas)


def test_a_node_that_joins_gets_its_share_by_itself_once(cluster: LocalCluster) -> None:
    penstock(cluster, "config", "set", "cluster", f"{SETTING}=true")
    assert said(cluster, "operation", "list", "--all") == []
    name = cluster.add(NODE)

    def ended() -> list[Any]:
        found: list[Any] = said(cluster, "operation", "list", "--all")
        return found if found and all(each["state"] == "done" for each in found) else []

    (operation,) = wait_for(ended, "the operation that nobody asked for", TIMEOUT_S)
    assert (operation["kind"], operation["created_by"]) == ("node-add", SETTING)
    assert operation["parameters"]["node_ids"] == [int(name.removeprefix("node-"))]
    assert operation["throttle"]["mode"] == "auto"
    assert operation["progress"]["moves_done"] == operation["progress"]["moves_total"] > 0
    counts = wait_for(
        lambda: c if len(c := replicas(cluster)) == 3 else None, "replicas on all three", TIMEOUT_S
    )
    assert counts is not None and max(counts.values()) - min(counts.values()) <= 1
    assert [each["operation_id"] for each in said(cluster, "operation", "list", "--all")] == [
        operation["operation_id"]
    ]
