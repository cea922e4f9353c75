"""A controller whose disk is lost, replaced by an operation: planned, admitted, done once it votes."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER
from support.cluster import running_cluster
from support.waiting import wait_for

TIMEOUT_S = 120.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {CONTROLLER: {"raft_silence_ms": "3000"}}
    directory = tmp_path_factory.mktemp("replaced")
    with running_cluster(directory, nodes=1, steady=True, settings=settings) as made:
        yield made


def penstock(cluster: LocalCluster, *words: str) -> tuple[int, str, str]:
    """What a command returns and prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*words, "--dir", str(cluster.directory)])
    return code, out.getvalue(), err.getvalue()


def states(cluster: LocalCluster) -> dict[int, str]:
    code, out, err = penstock(cluster, "controller", "list", "--json")
    assert code == 0, err
    return {row["id"]: row["state"] for row in json.loads(out)}


def all_vote(cluster: LocalCluster) -> bool:
    return sorted(states(cluster).values()) == ["active", "voter", "voter"]


def test_a_lost_disk_is_replaced_by_an_operation(cluster: LocalCluster) -> None:
    wait_for(lambda: all_vote(cluster), "every controller votes", TIMEOUT_S)
    lost = next(i for i, state in states(cluster).items() if state == "voter")
    words = ("controller", "replace", str(lost))
    # While it is well there is nothing to replace, and off a terminal nothing is changed unasked.
    code, out, err = penstock(cluster, *words, "--dry-run")
    assert (code, out, "nothing is to be replaced" in err) == (1, "", True), err
    assert penstock(cluster, *words)[0] == 2

    cluster.kill(f"controller-{lost}")
    shutil.rmtree(cluster.directory / f"controller-{lost}" / "data")
    with ThreadPoolExecutor(1) as starting:
        # It is ready once it votes, which is what this test is about.
        started = starting.submit(cluster.start, f"controller-{lost}", timeout_s=2 * TIMEOUT_S)
        wait_for(lambda: states(cluster)[lost] == "not admitted", "the new directory is seen", TIMEOUT_S)

        def planned() -> Any:
            code, out, _ = penstock(cluster, *words, "--dry-run", "--json")
            return json.loads(out) if code == 0 else None

        plan = wait_for(planned, "a plan", TIMEOUT_S)
        assert (plan["kind"], plan["runnable"]) == ("controller-replace", True)
        assert [step["name"] for step in plan["steps"]] == [f"controller-{lost}"]
        assert plan["parameters"]["controller_id"] == lost
        assert states(cluster)[lost] == "not admitted"

        refused = penstock(cluster, *words, "--yes", "--plan-id", "0" * 16)
        assert (refused[0], "plan-changed" in refused[2]) == (4, True), refused
        code, out, err = penstock(
            cluster, *words, "--yes", "--wait", str(TIMEOUT_S), "--json", "--plan-id", plan["plan_id"]
        )
        assert code == 0, err
        started.result(TIMEOUT_S)
    operation = json.loads(out)
    assert (operation["kind"], operation["state"]) == ("controller-replace", "done")
    assert operation["steps"][0]["state"] == "done"
    assert (operation["plan_id"], operation["created_by"] is not None) == (plan["plan_id"], True)
    wait_for(lambda: all_vote(cluster), "every controller votes", TIMEOUT_S)

    # It counts again: with another one away it is in the majority, and a controller that does not vote is no third one.
    listed = json.loads(penstock(cluster, "operation", "list", "--all", "--json")[1])
    assert [each["operation_id"] for each in listed] == [operation["operation_id"]]
    other = next(i for i, state in states(cluster).items() if state == "voter" and i != lost)
    cluster.kill(f"controller-{other}")
    wait_for(lambda: states(cluster)[other] == "absent", "the other one is away", TIMEOUT_S)
    code, _, err = penstock(cluster, "config", "set", "cluster", "log.retention.ms=1000000")
    assert code == 0, err
    cluster.start(f"controller-{other}")
