"""A cluster that is operated: its commands run in this process, what they say as JSON, and where its replicas are."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

from confluent_kafka.admin import AdminClient

from penstock.cli.main import run
from penstock.errors import CommandError
from penstock.local.cluster import LocalCluster
from support.kafka import CALL_TIMEOUT_S, client_config, create_topic, describe
from support.waiting import wait_for

LONG = os.environ.get("PENSTOCK_OPERATIONS_LONG") == "1"
"""More load and more data than a short test run has time for: `make ops-test`."""
TIMEOUT_S = 120.0

Placed = dict[tuple[str, int], list[int]]
"""Replicas by topic and partition, the preferred leader first."""


def penstock(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """What a command prints: on stdout, or on stderr where it fails."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = run([*words, "--dir", str(cluster.directory)])
    assert got == code, (words, got, out.getvalue(), err.getvalue())
    return out.getvalue() if code in (0, 4) else err.getvalue()


def outcome(cluster: LocalCluster, *words: str) -> int:
    """The exit code alone."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run([*words, "--dir", str(cluster.directory)])


def refused(cluster: LocalCluster, *words: str) -> str:
    """The line of a command that a gate refused."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = run([*words, "--dir", str(cluster.directory)])
    assert got == 4, (words, got, out.getvalue(), err.getvalue())
    (line,) = err.getvalue().splitlines()
    return line


def said(cluster: LocalCluster, *words: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    return json.loads(penstock(cluster, *words, "--json", code=code))


def begin(cluster: LocalCluster, *words: str) -> tuple[Any, Any]:
    """Begin what was planned, and nothing else: the plan, and the operation.

    Which of two plans that are as good as each other it is may change with the sizes while records come in: then the
    plan is made again, as a person would.
    """

    def begun() -> Any:
        plan = said(cluster, *words, "--dry-run")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(
                [*words, "--yes", "--plan-id", plan["plan_id"], "--json", "--dir", str(cluster.directory)]
            )
        found = json.loads(out.getvalue())
        if code == 4:
            assert [g["name"] for g in found["gates"] if g["blocking"]] == ["plan-changed"], err.getvalue()
            return None
        assert code == 0, (words, code, err.getvalue())
        assert found["plan_id"] == plan["plan_id"]
        return plan, found

    plan, found = wait_for(begun, "it is begun as planned", TIMEOUT_S)
    return plan, found


def operation(cluster: LocalCluster, operation_id: int) -> Any:
    """`operation show`."""
    return said(cluster, "operation", "show", str(operation_id))


def wait_for_state(cluster: LocalCluster, operation_id: int, *states: str) -> Any:
    """Until the operation is in one of these states; it, then."""

    def there() -> Any:
        found = operation(cluster, operation_id)
        return found if found["state"] in states else None

    return wait_for(there, f"operation {operation_id} is {' or '.join(states)}", TIMEOUT_S)


def wait_for_moving(cluster: LocalCluster, operation_id: int) -> Any:
    """Until moves are under way; the operation, then."""

    def moving() -> Any:
        found = operation(cluster, operation_id)
        assert found["state"] not in ("done", "failed", "cancelled"), found
        return found if found["progress"]["moves_running"] > 0 else None

    return wait_for(moving, f"operation {operation_id} moves something", TIMEOUT_S)


def refused_at_start(cluster: LocalCluster, name: str) -> str:
    """Start a process that is to end by itself for what it finds: what it says in its log."""
    log = cluster.log_file(name)
    begun = log.stat().st_size
    with contextlib.suppress(CommandError):
        cluster.start(name)
    wait_for(lambda: name not in cluster.alive(), f"{name} ends", TIMEOUT_S)
    return log.read_bytes()[begun:].decode(errors="replace")


def story(cluster: LocalCluster, operation_id: int) -> str:
    """What `explain operation` prints: shown to whoever reads the test's output, and returned."""
    told = penstock(cluster, "explain", "operation", str(operation_id))
    print(told)
    return told


def create(cluster: LocalCluster, partitions: int, factor: int, *names: str) -> None:
    """Topics of one shape."""
    for name in names:
        create_topic(cluster.bootstrap, name, partitions, factor)


def topics_of(cluster: LocalCluster) -> list[str]:
    """All topics, internal ones too."""
    return sorted(AdminClient(client_config(cluster.bootstrap)).list_topics(timeout=CALL_TIMEOUT_S).topics)


def replicas(cluster: LocalCluster, topic: str) -> dict[int, list[int]]:
    """Of each partition."""
    return {number: list(p.replicas) for number, p in sorted(describe(cluster.bootstrap, topic).items())}


def everything(cluster: LocalCluster, topics: Iterable[str] | None = None) -> Placed:
    """Of these topics, or of all."""
    return {
        (topic, number): nodes
        for topic in (topics_of(cluster) if topics is None else topics)
        for number, nodes in replicas(cluster, topic).items()
    }


def counts(placed: Placed) -> Counter[int]:
    """Replicas by node."""
    return Counter(node for nodes in placed.values() for node in nodes)


def spread(numbers: Iterable[int]) -> int:
    """How far apart the largest and the smallest are."""
    found = list(numbers)
    return max(found) - min(found)


def is_settled(cluster: LocalCluster, topics: Iterable[str] | None = None) -> bool:
    """Every partition is in sync everywhere and led by its preferred leader."""
    return all(
        sorted(p.isrs) == sorted(p.replicas) and p.leader == p.replicas[0]
        for topic in (topics_of(cluster) if topics is None else topics)
        for p in describe(cluster.bootstrap, topic).values()
    )


def wait_until_settled(cluster: LocalCluster, topics: Iterable[str] | None = None) -> None:
    """Until it is."""
    wait_for(partial(is_settled, cluster, topics), "all is in sync and preferred leaders lead", TIMEOUT_S)


def planned_moves(plan: Any) -> Placed:
    """Where a plan's moves lead."""
    return {(m["topic"], m["partition"]): m["to"] for m in plan["moves"]}


def node_rows(cluster: LocalCluster) -> dict[int, Any]:
    """`node list`, by id."""
    return {row["node_id"]: row for row in said(cluster, "node", "list")}


def active_controller(cluster: LocalCluster) -> str:
    """Name of the process that is the active controller; waits until there is one."""

    def active() -> Any:
        rows = said(cluster, "controller", "list")
        return [row["id"] for row in rows if row["state"] == "active"]

    return f"controller-{wait_for(active, 'a controller is active', TIMEOUT_S)[0]}"
