"""What Kafka's own tool reassigns is an operation: listed while it goes on, and done when the tool says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.local.cluster import LocalCluster
from support.java import needs_java, shared_driver
from support.kafka import create_topic, describe, produce, wait_for_full_isr
from support.operated import TIMEOUT_S, operation, penstock, replicas, said, story, wait_for_state
from support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_java]

TOPIC = "moved-by-kafkas-tool"
RECORDS, RECORD_BYTES = 1_000, 10_000


def reassign(cluster: LocalCluster, file: Path, *words: str) -> str:
    """`kafka-reassign-partitions.sh`."""
    # Its throttle is of nodes, which it has to see.
    address = ("--bootstrap-server", cluster.direct_bootstrap)
    named = ("--reassignment-json-file", str(file))
    return shared_driver().tool("ReassignPartitionsCommand", *address, *named, *words).text


def test_what_kafkas_tool_moves_shows_in_the_list(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    cluster = shared_cluster
    create_topic(cluster.bootstrap, TOPIC, 2, 2)
    produce(cluster.bootstrap, TOPIC, RECORDS, value_bytes=RECORD_BYTES)
    wait_for_full_isr(cluster.bootstrap, TOPIC)
    before = {row["operation_id"] for row in said(cluster, "operation", "list", "--all")}
    # The third node takes the place of whoever follows.
    wanted = {n: [now[0], *({1, 2, 3} - {*now})] for n, now in replicas(cluster, TOPIC).items()}
    rows = [{"topic": TOPIC, "partition": n, "replicas": nodes} for n, nodes in wanted.items()]
    file = tmp_path / "wanted.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    told = reassign(cluster, file, "--execute", "--throttle", "500000")
    assert "Successfully started partition reassignments" in told, told

    def listed() -> Any:
        found = [row for row in said(cluster, "operation", "list") if row["operation_id"] not in before]
        return found[0] if found else None

    found = wait_for(listed, "it is in the list while it goes on", TIMEOUT_S)
    number = found["operation_id"]
    assert (found["kind"], found["state"], found["created_by"]) == (
        "reassignment",
        "running",
        "User:ANONYMOUS",
    )
    assert found["progress"]["moves_total"] == 2
    assert "reassignment" in penstock(cluster, "operation", "list")
    assert "still in progress" in reassign(cluster, file, "--verify", "--preserve-throttles")

    def completed() -> bool:
        return reassign(cluster, file, "--verify").count("is completed.") >= len(wanted)

    wait_for(completed, "the tool says that it is done", TIMEOUT_S)
    done = wait_for_state(cluster, number, "done", "failed", "cancelled")
    assert (done["state"], done["progress"]["moves_done"]) == ("done", 2), done
    assert replicas(cluster, TOPIC) == wanted
    assert all(sorted(p.isrs) == sorted(p.replicas) for p in describe(cluster.bootstrap, TOPIC).values())
    assert operation(cluster, number)["finished_ms"] is not None
    assert "asked for by User:ANONYMOUS" in story(cluster, number)
