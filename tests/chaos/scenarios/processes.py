"""Processes that die, end, hang and come back."""

from __future__ import annotations

import signal
from collections.abc import Callable

from chaos.run import Run, signal_all
from chaos.scenario import SCENARIOS, scenario

Victims = Callable[[Run], list[str]]

VERBS = {
    "kill": (signal.SIGKILL, "kill -9 of"),
    "term": (signal.SIGTERM, "SIGTERM to"),
    "stop": (signal.SIGSTOP, "SIGSTOP, then SIGCONT, of"),
}

VICTIMS: dict[str, tuple[str, Victims]] = {
    "leader": ("the node that leads most partitions", lambda run: [run.leader()]),
    "follower": ("a node that only follows", lambda run: [run.follower()]),
    "two-nodes": ("two of three nodes at once", lambda run: [run.leader(), run.follower()]),
    "all-nodes": ("all nodes at once", lambda run: run.cluster.nodes),
    "controller-leader": ("the active controller", lambda run: [run.controller_leader()]),
    "controller-follower": ("a controller that is not active", lambda run: [run.controller_follower()]),
    "all-controllers": ("all controllers at once", lambda run: run.cluster.controllers),
    "gateway": ("one of two gateways", lambda run: run.cluster.gateways[:1]),
    "everything": ("every process at once", lambda run: run.cluster.names),
    "leader-and-gateway": (
        "a leader and a gateway at once", lambda run: [run.leader(), run.cluster.gateways[0]],
    ),
    "leader-and-controller-leader": (
        "a leader and the active controller at once", lambda run: [run.leader(), run.controller_leader()],
    ),
}  # fmt: skip

MATRIX = {
    "kill": list(VICTIMS),
    "term": ["leader", "follower", "all-nodes", "controller-leader", "gateway"],
    "stop": [
        "leader", "follower", "all-nodes", "controller-leader", "all-controllers", "gateway", "everything",
        "leader-and-controller-leader",
    ],
}  # fmt: skip


def _register(verb: str, victims: str) -> None:
    number, words = VERBS[verb]
    whom, choose = VICTIMS[victims]

    @scenario(f"{victims}-{verb}", f"{words} {whom}")
    def inject(run: Run) -> None:
        names = choose(run)
        run.fault()
        signal_all(run.cluster, names, number)
        run.hold()
        run.heal()
        run.cluster.start(*names)


for _verb, _kinds in MATRIX.items():
    for _victims in _kinds:
        _register(_verb, _victims)


@scenario("rolling-restart", "SIGTERM and start of every process, one after another")
def rolling_restart(run: Run) -> None:
    cluster = run.cluster
    run.fault()
    for name in (*cluster.controllers, *cluster.nodes, *cluster.gateways):
        cluster.terminate(name)
        cluster.start(name)
        run.wait_in_sync()
        run.hold(0.05)
    run.heal()


@scenario("rolling-kill", "kill -9 and start of every process, one after another")
def rolling_kill(run: Run) -> None:
    cluster = run.cluster
    run.fault()
    for name in (*cluster.nodes, *cluster.controllers, *cluster.gateways):
        cluster.kill(name)
        run.hold(0.1)
        cluster.start(name)
        run.wait_in_sync()
    run.heal()


@scenario("cascade", "a leader is killed, then who took over, then the last one; back in the same order")
def cascade(run: Run) -> None:
    cluster = run.cluster
    first = run.leader()
    run.fault()
    killed = [first]
    cluster.kill(first)
    for _ in cluster.nodes[1:]:
        run.hold(0.25)
        victim = next(name for name in cluster.nodes if name not in killed)
        killed.append(victim)
        cluster.kill(victim)
    run.hold(0.25)
    run.heal()
    for name in killed:
        cluster.start(name, ready=False)
    cluster.wait_ready(*killed)


@scenario("flapping-node", "a leader is killed and started again and again, faster than it gets in sync")
def flapping_node(run: Run) -> None:
    victim = run.leader()
    run.fault()
    for _ in range(6):
        run.cluster.kill(victim)
        run.cluster.start(victim, ready=False)
        run.hold(0.15)
    run.heal()
    run.cluster.start(victim)


@scenario("flapping-pauses", "a leader hangs for short times, around the session timeout")
def flapping_pauses(run: Run) -> None:
    victim = run.leader()
    run.fault()
    for part in range(8):
        run.cluster.stop(victim)
        run.hold(0.04 + 0.02 * (part % 4))
        run.cluster.resume(victim)
        run.hold(0.05)
    run.heal()


@scenario("random", "any process killed, ended or stopped, again and again, by the seed")
def random_faults(run: Run) -> None:
    cluster = run.cluster
    run.fault()
    for _ in range(6):
        name = run.dice.choice(cluster.names)
        number = run.dice.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP))
        run.note(f"{name} {number.name}")
        signal_all(cluster, [name], number)
        run.hold(run.dice.uniform(0.02, 0.2))
        cluster.start(name)
    run.heal()


assert {f"{victims}-{verb}" for verb, kinds in MATRIX.items() for victims in kinds} <= set(SCENARIOS)
