"""Networks that break: each process in a namespace of its own, packets dropped in silence."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.cluster import HOST, Needs
from chaos.network import Network
from chaos.run import Run
from chaos.scenario import scenario

NETWORK = Needs(network=True)


def net(run: Run) -> Network:
    assert run.cluster.network is not None
    return run.cluster.network


def held_and_mended(run: Run) -> None:
    run.hold()
    run.heal()
    net(run).mend()


def cut_off(run: Run, victim: str, others: Sequence[str]) -> None:
    """The whole fault: `victim` and the others do not hear each other for a while."""
    run.fault()
    net(run).isolate(victim, others)
    held_and_mended(run)


def everyone(run: Run) -> list[str]:
    return [*run.cluster.names, HOST]


@scenario("leader-isolated", "a leader is cut off from everything", NETWORK)
def leader_isolated(run: Run) -> None:
    cut_off(run, run.leader(), everyone(run))


@scenario("follower-isolated", "a follower is cut off from everything", NETWORK)
def follower_isolated(run: Run) -> None:
    cut_off(run, run.follower(), everyone(run))


@scenario("leader-deaf", "one way: nothing reaches a leader, what it sends arrives", NETWORK)
def leader_deaf(run: Run) -> None:
    victim = run.leader()
    run.fault()
    net(run).drop(everyone(run), victim)
    held_and_mended(run)


@scenario("leader-mute", "one way: nothing that a leader sends arrives, except at the clients", NETWORK)
def leader_mute(run: Run) -> None:
    victim = run.leader()
    run.fault()
    for other in run.cluster.names:
        if other != victim:
            net(run).drop([victim], other)
    held_and_mended(run)


@scenario("non-transitive", "two nodes do not hear each other, everybody else hears both", NETWORK)
def non_transitive(run: Run) -> None:
    cut_off(run, run.leader(), [run.follower()])


@scenario("controller-leader-isolated", "the active controller is cut off from everything", NETWORK)
def controller_leader_isolated(run: Run) -> None:
    cut_off(run, run.controller_leader(), everyone(run))


@scenario("controllers-non-transitive", "the active controller and one other do not hear each other", NETWORK)
def controllers_non_transitive(run: Run) -> None:
    cut_off(run, run.controller_leader(), [run.controller_follower()])


@scenario("leader-without-controllers", "a leader hears its peers and clients, but no controller", NETWORK)
def leader_without_controllers(run: Run) -> None:
    cut_off(run, run.leader(), run.cluster.controllers)


@scenario("nodes-without-controllers", "no node hears any controller", NETWORK)
def nodes_without_controllers(run: Run) -> None:
    run.fault()
    for name in run.cluster.nodes:
        net(run).isolate(name, run.cluster.controllers)
    held_and_mended(run)


@scenario("leader-without-followers", "a leader hears controllers and clients, but no other node", NETWORK)
def leader_without_followers(run: Run) -> None:
    cut_off(run, run.leader(), run.cluster.nodes)


@scenario("gateways-without-leader", "no gateway hears a leader, everybody else does", NETWORK)
def gateways_without_leader(run: Run) -> None:
    cut_off(run, run.leader(), run.cluster.gateways)


@scenario("gateway-without-leader", "one of two gateways does not hear a leader", NETWORK)
def gateway_without_leader(run: Run) -> None:
    cut_off(run, run.leader(), [run.cluster.gateways[0]])


@scenario("halves", "a leader, the active controller and a gateway here, all others there", NETWORK)
def halves(run: Run) -> None:
    cluster = run.cluster
    inside = {run.leader(), run.controller_leader(), cluster.gateways[0]}
    run.fault()
    for name in inside:
        net(run).isolate(name, [other for other in cluster.names if other not in inside])
    held_and_mended(run)


@scenario("partitions-by-turns", "each node in turn is cut off from the two others", NETWORK)
def partitions_by_turns(run: Run) -> None:
    run.fault()
    for _ in range(2):
        for name in run.cluster.nodes:
            net(run).isolate(name, run.cluster.nodes)
            run.hold(0.12)
            net(run).mend()
            run.hold(0.04)
    run.heal()


@scenario("packet-loss", "a tenth of the packets between all processes is lost", NETWORK)
def packet_loss(run: Run) -> None:
    run.fault()
    for name in run.cluster.names:
        net(run).lose(name, 0.1)
    held_and_mended(run)


@scenario("slow-leader-link", "a leader's link carries 1 Mbit/s", NETWORK)
def slow_leader_link(run: Run) -> None:
    victim = run.leader()
    run.fault()
    net(run).slow(victim, 1_000)
    held_and_mended(run)


@scenario("client-connections-reset", "each TCP connection of the clients is reset, many times", NETWORK)
def client_connections_reset(run: Run) -> None:
    run.fault()
    for _ in range(10):
        for name in (*run.cluster.gateways, *run.cluster.nodes):
            net(run).reset_tcp(HOST, name)
        run.hold(0.02)
        net(run).mend()
        run.hold(0.08)
    run.heal()
