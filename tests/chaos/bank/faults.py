"""The ways of doing harm to the bank's cluster. Most are scenarios of `chaos.scenarios`, of each kind one by the dice.

Rules: a fault is held while orders flow, and is healed when the function returns.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import chaos.scenarios
from chaos.bank.books import BOOKINGS, ORDERS
from chaos.bank.member import GROUP, LATE_MS
from chaos.bank.members import JAVA, LIBRDKAFKA, Members
from chaos.cluster import Cluster, Needs
from chaos.coordinators import Coordinators
from chaos.operations import Commands
from chaos.run import Run
from chaos.scenario import SCENARIOS
from chaos.scene import Phases, Scene
from penstock_core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock_kafka.wire.groups import group_partition, transaction_partition
from support.waiting import wait_for

assert chaos.scenarios.__all__

JOINS, JOINS_ID = "node-4", 4
JOIN_TIMEOUT_S = 200
MOVES, MOVE_EVERY_S = 3, 5.0
STOPPED_MORE_S = 3.0
"""So much longer than its transaction may last is a member stopped."""
REPLICAS = 3
SETTINGS = (
    ("controller", "transaction_state_log_num_partitions", "4"),
    ("controller", "offsets_topic_num_partitions", "4"),
    ("storage-node", "group_initial_rebalance_delay_ms", "0"),
    ("storage-node", "group_consumer_session_timeout_ms", "10000"),
    ("storage-node", "group_consumer_heartbeat_interval_ms", "2000"),
)


class BankScene(Scene):
    """What a fault is given."""

    def __init__(self, cluster: Cluster, dice: random.Random, members: Members) -> None:
        super().__init__(cluster, Phases(), dice, [BOOKINGS, ORDERS])
        self.members = members
        self.coordinators = Coordinators(cluster, self.admin)

    def coordinators_of_members(self) -> list[tuple[str, int]]:
        """Partitions whose leaders coordinate the members' ids, and their group."""
        count = len(self.coordinators.partitions(TRANSACTIONS_TOPIC))
        ids = {transaction_partition(name, count) for name in self.members.names}
        group = group_partition(GROUP, len(self.coordinators.partitions(OFFSETS_TOPIC)))
        return [*((TRANSACTIONS_TOPIC, partition) for partition in sorted(ids)), (OFFSETS_TOPIC, group)]


Inject = Callable[[BankScene], None]


@dataclass(frozen=True)
class Fault:
    """`what` is one line for people."""

    name: str
    what: str
    inject: Inject
    scenarios: tuple[str, ...] = ()
    """One of these, by the dice."""

    def missing(self) -> str:
        """Why this machine cannot do it; empty when it can."""
        reasons = [SCENARIOS[name].missing() for name in self.scenarios]
        return "; ".join(sorted({reason for reason in reasons if reason}))


def _by_scenarios(name: str, what: str, *names: str) -> Fault:
    def inject(scene: BankScene) -> None:
        chosen = scene.dice.choice(names)
        scene.note(chosen)
        # Scenarios of processes, networks and disks ask for nothing of a Run that a Scene has not.
        SCENARIOS[chosen].inject(cast(Run, scene))

    return Fault(name, what, inject, names)


def _coordinator_killed(scene: BankScene) -> None:
    topic, partition = scene.dice.choice(scene.coordinators_of_members())

    def leader() -> int:
        return max(0, scene.coordinators.partitions(topic)[partition].leader)

    victim = scene.cluster.node_name(wait_for(leader, f"somebody leads {topic}-{partition}"))
    scene.note(f"{victim}, which leads {topic}-{partition}")
    scene.fault()
    scene.cluster.kill(victim)
    scene.hold()
    scene.heal()
    scene.cluster.start(victim)


def _coordinators_moved(scene: BankScene) -> None:
    scene.fault()
    for _ in range(MOVES):
        begun_s = time.monotonic()
        for topic, partition in scene.coordinators_of_members():
            scene.coordinators.move(topic, partition)
        time.sleep(max(0.0, begun_s + MOVE_EVERY_S - time.monotonic()))
    scene.heal()


def _node_joins(scene: BankScene) -> None:
    """It takes its share of what is there."""
    scene.fault()
    scene.cluster.join(JOINS)
    words = ("node", "add", str(JOINS_ID), "--yes", "--wait", str(JOIN_TIMEOUT_S))
    assert Commands(scene.cluster).told(*words) is not None, f"`penstock {' '.join(words[:3])}` failed"
    scene.heal()
    for topic in (ORDERS, BOOKINGS):
        assert any(JOINS_ID in nodes for nodes in scene.placed(topic).values()), f"{JOINS} has got nothing"


def _reassigned(scene: BankScene) -> None:
    """Everything that the bank needs, its coordinators too, to nodes by the dice."""
    nodes = [scene.cluster.state.member(name).id for name in scene.cluster.nodes]
    targets = {}
    for topic in (ORDERS, BOOKINGS, TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
        for partition in sorted(scene.coordinators.partitions(topic)):
            targets[topic, partition] = scene.dice.sample(nodes, REPLICAS)
    scene.fault()
    scene.coordinators.reassign(targets)
    scene.hold()
    scene.heal()

    def moved() -> bool:
        now = {topic: scene.placed(topic) for topic in {topic for topic, _ in targets}}
        return all(sorted(now[topic][n]) == sorted(nodes) for (topic, n), nodes in targets.items())

    wait_for(moved, f"{len(targets)} partitions are where they were to go", JOIN_TIMEOUT_S)


def _one_of_each(scene: BankScene) -> list[int]:
    found = [scene.dice.choice(scene.members.of_kind(kind)) for kind in (LIBRDKAFKA, JAVA)]
    scene.note(", ".join(map(scene.members.name, found)))
    return found


def _members_killed(scene: BankScene) -> None:
    victims = _one_of_each(scene)
    scene.fault()
    for victim in victims:
        scene.members.kill(victim)
    scene.hold()
    scene.heal()
    scene.members.start(*victims)


def _members_stopped(scene: BankScene) -> None:
    victims = _one_of_each(scene)
    scene.fault()
    for victim in victims:
        scene.members.hang(victim)
    # What the fault is about.
    time.sleep(LATE_MS / 1000 + STOPPED_MORE_S)
    scene.heal()
    for victim in victims:
        scene.members.go_on(victim)


JOIN, REASSIGN = "node-joins", "reassignment"
_ALL = (
    _by_scenarios("leader-kill", "kill -9 of the node that leads most bookings", "leader-kill"),
    Fault("coordinator-kill", "kill -9 of who coordinates the group or a member's id", _coordinator_killed),
    _by_scenarios("controller-kill", "kill -9 of the active controller", "controller-leader-kill"),
    _by_scenarios(
        "stop",
        "SIGSTOP of a leader, the active controller or a gateway",
        *("leader-stop", "controller-leader-stop", "gateway-stop"),
    ),
    _by_scenarios(
        "partition",
        "a network that broke",
        *("leader-isolated", "follower-isolated", "leader-deaf", "leader-mute", "non-transitive", "halves"),
        *("controller-leader-isolated", "leader-without-controllers", "nodes-without-controllers"),
        *("leader-without-followers", "gateways-without-leader", "gateway-without-leader"),
    ),
    _by_scenarios(
        "slow-disk",
        "flushes take 200 ms longer, a node's or everybody's",
        "leader-slow-flushes",
        "all-slow-flushes",
    ),
    _by_scenarios("full-disk", "a node's disk has no space left", "leader-disk-full"),
    _by_scenarios(
        "clock-step", "a node's wall clock jumps, or all do", "leader-clock-jumps", "all-clocks-jump"
    ),
    _by_scenarios("gateway-loss", "kill -9 of a gateway, or SIGTERM to it", "gateway-kill", "gateway-term"),
    Fault(JOIN, "a fourth node joins and gets its share", _node_joins),
    Fault(REASSIGN, "everything is moved to nodes by the dice", _reassigned),
    Fault("coordinators-moved", f"all coordinators move every {MOVE_EVERY_S:g} s", _coordinators_moved),
    Fault(
        "member-kill", "kill -9 of a member of each client, in the midst of a transaction", _members_killed
    ),
    Fault(
        "member-stop", "a member of each client hangs longer than a transaction may last", _members_stopped
    ),
)
FAULTS = {fault.name: fault for fault in _ALL}


def in_order(names: Sequence[str], dice: random.Random) -> list[Fault]:
    """By the dice; but a node has joined before everything is moved, as else there is nowhere to move it."""
    drawn = list(names)
    dice.shuffle(drawn)
    if JOIN in drawn and REASSIGN in drawn and drawn.index(REASSIGN) < drawn.index(JOIN):
        first, second = drawn.index(REASSIGN), drawn.index(JOIN)
        drawn[first], drawn[second] = drawn[second], drawn[first]
    return [FAULTS[name] for name in drawn]


def needs_of(faults: Sequence[Fault]) -> Needs:
    """What their cluster is made of."""
    needs = [SCENARIOS[name].needs for fault in faults for name in fault.scenarios]
    return Needs(
        network=any(one.network for one in needs),
        shim=any(one.shim for one in needs),
        small_disk=tuple(sorted({name for one in needs for name in one.small_disk})),
        settings=SETTINGS,
        nodes=JOINS_ID,
        late=(JOINS,),
    )
