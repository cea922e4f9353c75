"""Logs that a node has set aside, listed and deleted by command."""

from __future__ import annotations

import contextlib
import io
import shutil
import time
from pathlib import Path

import pytest

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from support.kafka import create_topic, describe, produce, wait_for_full_isr
from support.operated import penstock, said

pytestmark = pytest.mark.cluster

TOPIC = "set-aside"


def node_directory(cluster: LocalCluster, node_id: int) -> Path:
    return cluster.directory / f"node-{node_id}" / "data"


def put_stray(cluster: LocalCluster, node_id: int, log: Path, name: str) -> Path:
    """As if the node had set a copy of this log aside just now."""
    stamp_ms = time.time_ns() // 1_000_000
    path = node_directory(cluster, node_id) / f"{name}.{stamp_ms}.{'a' * 32}-stray"
    shutil.copytree(log, path)
    return path


def test_strays_are_told_with_what_becomes_of_them_and_deleted_by_name(shared_cluster: LocalCluster) -> None:
    cluster = shared_cluster
    create_topic(cluster.bootstrap, TOPIC, 1, 2)
    produce(cluster.bootstrap, TOPIC, 100)
    wait_for_full_isr(cluster.bootstrap, TOPIC)
    replicas = describe(cluster.bootstrap, TOPIC)[0].replicas
    (node_id,) = {1, 2, 3} - set(replicas)
    log = node_directory(cluster, replicas[0]) / f"{TOPIC}-0"
    known = put_stray(cluster, node_id, log, f"{TOPIC}-0")
    unknown = put_stray(cluster, node_id, log, "gone-7")
    metadata = (unknown / "partition.metadata").read_text()
    at = metadata.index("topic_id: ") + len("topic_id: ")
    (unknown / "partition.metadata").write_text(f"{metadata[:at]}AAAAAAAAAAAAAAAAAAAAEQ")
    node = str(node_id)
    found = {row["name"]: row for row in said(cluster, "node", "strays", node)}
    assert set(found) == {known.name, unknown.name}
    assert found[known.name]["superfluous"]
    assert (found[known.name]["topic"], found[known.name]["partition"]) == (TOPIC, 0)
    assert found[known.name]["bytes"] == sum(p.stat().st_size for p in known.iterdir())
    assert "1 d" in found[known.name]["reason"]
    assert not found[unknown.name]["superfluous"]
    assert (found[unknown.name]["topic"], found[unknown.name]["partition"]) == (None, 7)
    assert "no topic with the id" in penstock(cluster, "node", "strays", node)
    # Nothing is deleted by the way.
    assert "--yes" in penstock(cluster, "node", "strays", node, "--delete", unknown.name, code=2)
    for words, text in (
        ((node, "--delete", f"{TOPIC}-0", "--yes"), f"{TOPIC}-0"),
        ((str(replicas[0]), "--delete", unknown.name, "--yes"), unknown.name),
        (("77",), "77"),
    ):
        assert text in penstock(cluster, "node", "strays", *words, code=1)
    assert known.exists()
    assert unknown.exists()
    deleted = said(cluster, "node", "strays", node, "--delete", unknown.name, "--yes")
    assert deleted == {
        "node_id": node_id,
        "deleted": unknown.name,
        "freed_bytes": found[unknown.name]["bytes"],
    }
    assert not unknown.exists()
    assert [row["name"] for row in said(cluster, "node", "strays", node)] == [known.name]
    said(cluster, "node", "strays", node, "--delete", known.name, "--yes")
    assert "nothing" in penstock_notes(cluster, "node", "strays", node)


def penstock_notes(cluster: LocalCluster, *words: str) -> str:
    """What a command tells people on stderr."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        assert run([*words, "--gateway", cluster.gateway]) == 0
    return err.getvalue()
