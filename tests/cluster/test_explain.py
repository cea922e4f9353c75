"""`penstock explain` on a cluster of real processes: who was not there can read what happened, whoever is active."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster, start_ready
from support.kafka import create_topic, describe, wait_for_full_isr
from support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)
TOPIC = "told"


def penstock(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """What a command prints, on stdout or, where it fails, on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = run([*words, "--gateway", cluster.gateway])
    assert got == code, (words, got, out.getvalue(), err.getvalue())
    return err.getvalue() if code else out.getvalue()


def explained(cluster: LocalCluster, *words: str) -> Any:
    return json.loads(penstock(cluster, "explain", *words, "--json"))


def lines(found: Any) -> list[str]:
    return [line["detail"] for line in found["story"]]


def active_controller(cluster: LocalCluster) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["controller", "list", "--json", "--dir", str(cluster.directory)]) == 0
    (active,) = [row["id"] for row in json.loads(out.getvalue()) if row["state"] == "active"]
    return f"controller-{active}"


def test_a_death_a_drain_and_the_loss_of_a_controller_read_well(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_cluster(tmp_path_factory.mktemp("explain"), nodes=4, steady=True) as cluster:
        create_topic(cluster.bootstrap, TOPIC, 4, 3)
        old = describe(cluster.bootstrap, TOPIC)[0].leader
        cluster.kill(f"node-{old}")

        def is_told() -> bool:
            return any(
                "refused connections" in line for line in lines(explained(cluster, "partition", f"{TOPIC}-0"))
            )

        wait_for(is_told, "the death of the leader is told")
        found = explained(cluster, "partition", f"{TOPIC}-0")
        new = describe(cluster.bootstrap, TOPIC)[0].leader
        (death,) = [line for line in found["story"] if "refused connections" in line["detail"]]
        assert death["cause"] == "fence"
        assert f"node {old} refused connections" in death["detail"]
        assert f"node {new}" in death["detail"]
        assert "leads since epoch" in death["detail"]
        assert f"node {old}" in found["summary"], found
        assert any(f"topic {TOPIC} was created by User:ANONYMOUS" in line for line in lines(found)), found
        assert "start it" in explained(cluster, "node", str(old))["summary"]

        start_ready(cluster, f"node-{old}")
        wait_for_full_isr(cluster.bootstrap, TOPIC)
        drained = json.loads(penstock(cluster, "node", "drain", str(old), "--yes", "--wait", "120", "--json"))
        number = str(drained["operation_id"])
        found = explained(cluster, "operation", number)
        assert found["summary"].endswith("has ended: done"), found
        assert found["story"][0]["by"] == "User:ANONYMOUS"
        assert any("node-drain" in line for line in lines(found)), found
        assert any("begin to move" in line or "its move began" in line for line in lines(found)), found
        told = lines(explained(cluster, "partition", f"{TOPIC}-0"))
        assert any(f"operation {number}" in line for line in told), told
        assert any("its move ended" in line for line in told), told
        (node,) = [n for n in explained(cluster, "node", str(old))["now"] if "cordoned by operation" in n]
        assert node.endswith(number)

        before = explained(cluster, "partition", f"{TOPIC}-0")
        assert before["incomplete_before_ms"] is None
        killed = active_controller(cluster)
        cluster.kill(killed)
        after = explained(cluster, "partition", f"{TOPIC}-0")
        assert after["story"][: len(before["story"])] == before["story"]
        start_ready(cluster, killed)

        def has_all() -> bool:
            return explained(cluster, "partition", f"{TOPIC}-0")["incomplete_before_ms"] is None

        wait_for(has_all, "nothing is missing")
        again = explained(cluster, "partition", f"{TOPIC}-0")
        assert again["story"][: len(before["story"])] == before["story"], (
            "nothing is told twice after a restart"
        )
        print(penstock(cluster, "explain", "partition", f"{TOPIC}-0"))
        print(penstock(cluster, "explain", "node", str(old)))
        print(penstock(cluster, "explain", "operation", number))

        assert "no topic has the name 'nowhere'" in penstock(
            cluster, "explain", "partition", "nowhere-0", code=1
        )
        assert "it has 0 to 3" in penstock(cluster, "explain", "partition", f"{TOPIC}-9", code=1)
        assert "no storage node has the id 77" in penstock(cluster, "explain", "node", "77", code=1)
        assert "there is no operation 5" in penstock(cluster, "explain", "operation", "5", code=1)
        assert "say TOPIC-N" in penstock(cluster, "explain", "partition", TOPIC, code=2)
