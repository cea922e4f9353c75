"""Planned operations, hurt while they are under way: they end as planned, by themselves.

Four nodes, the fourth is empty: what moves goes there. A second topic is there for its weight, so that there is time
for harm. A rolling restart moves nothing: its source is the node that comes next, its target the one at hand.

A node that is removed or replaced ends by itself, also when it was dead meanwhile, and is refused when it is started
again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from chaos.cluster import Needs
from chaos.operations import COMMAND_TIMEOUT_S, Commands, Json, Operation, Restarter, running_nodes
from chaos.run import TOPIC, Run
from chaos.scenario import scenario
from chaos.scene import ASSIGNMENT
from penstock_controller.state.operations.engine.window import LIMITS
from support.kafka import CALL_TIMEOUT_S, check_nothing_lost, client_config, produce, read_all
from support.waiting import wait_for

BALLAST = "ballast"
BALLAST_RECORDS = 12_000
BALLAST_VALUE_BYTES = 1_000
RATE_MIN_BYTES_PER_S = 400_000
"""More than the load of a run writes: less would never catch up."""
SOURCE, TARGET = "node-2", "node-4"
SOURCE_ID, TARGET_ID = 2, 4
ROLLING = "rolling-restart"
REBALANCE = "rebalance"
NODES = 4
RAISED = 4
"""Replicas of each partition afterwards."""


@dataclass(frozen=True)
class Change:
    """An operation: the words of its command, and what must hold when it is done."""

    name: str
    words: tuple[str, ...]
    source: str
    """Whom the copies are made from, or whom they leave."""
    holds: Callable[[dict[tuple[str, int], list[int]]], bool]
    """Asked of the replicas of each partition."""
    removes: bool = False
    """The source, at its end."""
    into_empty: bool = False
    """The target has to hold nothing before."""


@dataclass(frozen=True)
class Hurt:
    """An operation that was hurt, at its end."""

    name: str
    """Of the process that was killed; empty for the command."""
    away_s: float
    """From then until it was ready again."""
    ended: Json


def _is_drained(placed: dict[tuple[str, int], list[int]]) -> bool:
    return not any(SOURCE_ID in nodes for nodes in placed.values())


def _is_even(placed: dict[tuple[str, int], list[int]]) -> bool:
    held = Counter(node for nodes in placed.values() for node in nodes)
    return len(held) == RAISED and max(held.values()) - min(held.values()) <= 1


def _has_share(placed: dict[tuple[str, int], list[int]]) -> bool:
    """The empty node has as much of each topic as the others."""
    for topic in {topic for topic, _ in placed}:
        held = Counter(node for (name, _), nodes in placed.items() if name == topic for node in nodes)
        if held[TARGET_ID] < sum(held.values()) // NODES:
            return False
    return True


def _is_replaced(placed: dict[tuple[str, int], list[int]]) -> bool:
    """Topics of a run have the same assignment, and the new node is where the old one was."""
    wanted = [[TARGET_ID if n == SOURCE_ID else n for n in replicas] for replicas in ASSIGNMENT]
    return all(sorted(nodes) == sorted(wanted[number]) for (_, number), nodes in placed.items())


def _is_raised(placed: dict[tuple[str, int], list[int]]) -> bool:
    return all(len(nodes) == RAISED for nodes in placed.values())


BOTH = f"{TOPIC},{BALLAST}"
CHANGES = (
    Change("drain", ("node", "drain", str(SOURCE_ID)), SOURCE, _is_drained),
    Change("node-add", ("node", "add", str(TARGET_ID)), "node-1", _has_share),
    Change(
        "node-replace",
        ("node", "replace", str(SOURCE_ID), "--with", str(TARGET_ID)),
        SOURCE,
        _is_replaced,
        removes=True,
        into_empty=True,
    ),
    Change("node-remove", ("node", "remove", str(SOURCE_ID)), SOURCE, _is_drained, removes=True),
    Change(REBALANCE, ("cluster", REBALANCE, "--topic", TOPIC, "--topic", BALLAST), "node-1", _is_even),
    Change(
        "replication-factor", ("topic", "set-replication-factor", BOTH, str(RAISED)), "node-1", _is_raised
    ),
)
VICTIMS = {
    "controller": "the active controller",
    "source": "who has what is moved",
    "target": "who gets it",
    "gateway": "the gateway that the command speaks to",
    "command": "the command that began it",
}


def _register(change: Change, victim: str) -> None:
    @scenario(
        f"{change.name}-{victim}-kill",
        f"kill -9 of {VICTIMS[victim]} while `{' '.join(change.words[:2])}` is under way",
        Needs(nodes=NODES),
    )
    def inject(run: Run) -> None:
        _add_ballast(run)
        commands = Commands(run.cluster)
        if change.into_empty:
            _empty(commands, TARGET_ID)
        words = (*change.words, "--throttle", str(_rate(run, commands, change.words)))
        by_name = {"source": change.source, "target": TARGET}
        going = change.source if change.removes else ""
        hurt = _put_on_record_and_hurt(run, commands, words, victim, by_name, going=going)
        if change.name == REBALANCE and victim == "target" and hurt.ended["progress"]["moves_skipped"]:
            # A rebalance does without a node that stays away, and says so. On a busy machine it is away for so long.
            assert hurt.away_s * 1000 >= LIMITS.skip_after_ms, f"given up too early: {hurt}"
            run.note(f"{TARGET} was away for {hurt.away_s:.0f} s: the rebalance goes on with another one")
            with Operation.begun(commands, run.cluster.directory / "again.txt", *words) as again:
                again.wait_until_done()
        if change.removes:
            _check_removed(run, commands, change.source)
        _check(run, commands, change)


def _register_rolling(victim: str) -> None:
    @scenario(
        f"{ROLLING}-{victim}-kill",
        f"kill -9 of {_ROLLING_VICTIMS.get(victim) or VICTIMS[victim]} during `cluster {ROLLING}`",
    )
    def inject(run: Run) -> None:
        with Restarter(run.cluster) as restarter:
            words = ("cluster", ROLLING, *restarter.words)
            killed = _put_on_record_and_hurt(run, Commands(run.cluster), words, victim, {}, restarter).name
            assert not restarter.failures, restarter.failures
            # Who was killed and started while the restart was under way is a new process already, and is left alone.
            counts = {name: restarter.counts[name] for name in run.cluster.names}
            assert max(counts.values()) == 1, counts
            assert {name for name, count in counts.items() if not count} <= {killed}, counts


_ROLLING_VICTIMS = {"source": "the node that comes next", "target": "the node at hand"}


def _put_on_record_and_hurt(
    run: Run,
    commands: Commands,
    words: tuple[str, ...],
    victim: str,
    by_name: dict[str, str],
    restarter: Restarter | None = None,
    going: str = "",
) -> Hurt:
    """`going`: who is removed at the end, and may be so before it is ready again."""
    cluster = run.cluster
    alone: AbstractContextManager[object] = restarter.lock if restarter is not None else nullcontext()
    with ExitStack() as stack:
        log = cluster.directory / "command.txt"
        operation = stack.enter_context(Operation.begun(commands, log, *words))
        shown = operation.wait_until_under_way()
        nodes = [step["name"] for step in shown["steps"] if step["role"] == "storage-node"]
        if restarter is not None and victim in ("source", "target"):
            at = nodes.index(running_nodes(shown)[0])
            by_name = {"source": nodes[min(at + 1, len(nodes) - 1)], "target": nodes[at]}
        name = {
            "controller": cluster.active_controller() if victim == "controller" else "",
            "gateway": cluster.gateways[0],
            **by_name,
        }.get(victim, "")
        with alone:
            run.fault()
            if name:
                cluster.kill(name)
            else:
                operation.kill_command()
        run.hold()
        run.heal()
        if name:
            with alone:
                cluster.start(name, ready=False)
            if name != going:
                cluster.wait_ready(name)
        assert run.fault_s is not None
        away_s = time.monotonic() - run.fault_s
        resume = restarter.words if restarter is not None else []
        ended = operation.wait_until_done(*resume)
        if operation.reasons:
            run.note(f"paused: {operation.reasons[0]}")
        if victim != "command" or operation.reasons:
            status = operation.command_status()
            assert status == 0, f"the command ended with {status}: {operation.last_words()}"
    return Hurt(name, away_s, ended)


def _check_removed(run: Run, commands: Commands, name: str) -> None:
    """Its process has ended, nobody knows it any more, and its directory is refused."""
    cluster = run.cluster
    node_id = cluster.state.member(name).id
    known = commands.told("node", "list")
    assert known is not None, "nobody tells which nodes there are"
    assert node_id not in [node["node_id"] for node in known], known
    cluster.let_go(name)
    cluster.names.append(name)
    cluster.start(name, ready=False)
    told = cluster.let_go(name)
    assert "retired" in told, f"{name} was started again and does not say that it was retired: {told}"


def _add_ballast(run: Run) -> None:
    """A topic with weight, on the same nodes."""
    clients: dict[str, Any] = dict(run.cluster.clients("kafka"))
    admin = AdminClient(client_config(clients["bootstrap.servers"], **clients))
    new = NewTopic(BALLAST, len(ASSIGNMENT), replica_assignment=[list(one) for one in ASSIGNMENT])
    admin.create_topics([new], operation_timeout=CALL_TIMEOUT_S)[BALLAST].result(CALL_TIMEOUT_S)
    run.ballast = produce(
        clients["bootstrap.servers"],
        BALLAST,
        BALLAST_RECORDS,
        value_bytes=BALLAST_VALUE_BYTES,
        **clients,
    )


def _empty(commands: Commands, node_id: int) -> None:
    """A node holds nothing and takes part: it has got its share of what the cluster has made for itself meanwhile."""
    for word in ("drain", "uncordon"):
        told = commands.told("node", word, str(node_id), "--yes", "--wait", str(COMMAND_TIMEOUT_S))
        assert told is not None, f"`penstock node {word} {node_id}` failed"


def _rate(run: Run, commands: Commands, words: tuple[str, ...]) -> int:
    """Bytes per second with which it lasts about as long as the fault, once nodes have told how large replicas are."""

    def planned() -> int:
        plan = commands.told(*words, "--dry-run")
        size = plan["totals"]["bytes"] if plan is not None else 0
        return size if size * 2 > BALLAST_RECORDS * BALLAST_VALUE_BYTES else 0

    return max(RATE_MIN_BYTES_PER_S, int(wait_for(planned, "nodes tell sizes") / (run.phases.during_s or 1)))


def _check(run: Run, commands: Commands, change: Change) -> None:
    """What was planned is so, nothing moves any more, and the ballast is whole."""
    assert not commands.reassigned(TOPIC) + commands.reassigned(BALLAST)
    placed = {(topic, n): nodes for topic in (TOPIC, BALLAST) for n, nodes in run.placed(topic).items()}
    assert change.holds(placed), f"done, and not as planned: {placed}"
    clients: dict[str, Any] = dict(run.cluster.clients("kafka"))
    assert run.ballast is not None
    check_nothing_lost(run.ballast, read_all(clients["bootstrap.servers"], BALLAST, **clients))


for _change in CHANGES:
    for _victim in VICTIMS:
        _register(_change, _victim)
for _victim in VICTIMS:
    _register_rolling(_victim)
