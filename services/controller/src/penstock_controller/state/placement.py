"""Where replicas go: even over nodes, spread over racks and hosts, leaders even too. Pure.

Replicas: partition after partition, each replica goes to the node with the least key
(its domains' uses in this partition, its domains' load in this topic per node, node's load in
this topic, node's load in the cluster, chance). A rack is a path of domains, `zone-a/host-3`:
they count from the outermost inwards. Taking the least-loaded distinct nodes each
time keeps the counts of a topic within one of each other (within each domain where domains
are of unequal size).

Leaders: given such sets, an assignment of leaders that is within one of even always
exists (each node's share of its sets is count/r, and flows round to integers). A greedy
choice that favours nodes with few leaders is mended along alternating paths until no
node leads two partitions more than another.

The striped placer of Kafka is simpler, but leaves spreads of two and more when nodes do
not divide partitions.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock_controller.state.operations.planner.domains import Domains
from penstock_core.ids import NodeId

_PARTITIONS_A_STEP = 20
"""Placed between two steps: about a millisecond's work on 30 nodes."""
_ORDERED_A_STEP = 500
"""Partitions whose leader is chosen, or whose replicas are put in order, between two steps."""
_COUNTED_A_STEP = 1_000
"""Partitions whose replicas are counted between two steps."""


@dataclass(slots=True)
class Load:
    """What nodes already carry."""

    replicas: Counter[NodeId] = field(default_factory=Counter)
    leaders: Counter[NodeId] = field(default_factory=Counter)

    def add(self, replicas: Sequence[NodeId]) -> None:
        self.replicas.update(replicas)
        if replicas:
            self.leaders[replicas[0]] += 1

    def add_all(self, partitions: Iterable[Sequence[NodeId]]) -> Generator[None, None, None]:
        """Add many, with a step now and then."""
        for count, replicas in enumerate(partitions, 1):
            self.add(replicas)
            if count % _COUNTED_A_STEP == 0:
                yield


def place_steps(
    racks: Mapping[NodeId, str],
    partition_count: int,
    replication_factor: int,
    cluster: Load,
    topic: Load,
    rng: random.Random,
) -> Generator[None, None, list[list[NodeId]]]:
    """Replicas for each new partition, the preferred leader first; a step is about a millisecond's work at most.

    `racks` holds the nodes that may be used, at least `replication_factor` of them.
    `topic` is what the topic's other partitions put on them. Neither load is changed.
    """
    sets = yield from _choose_sets(racks, partition_count, replication_factor, cluster, topic, rng)
    leaders = yield from _choose_leaders(sets, cluster, topic)
    yield from _even_out(sets, leaders, topic, racks)
    placed: list[list[NodeId]] = []
    for leader, members in zip(leaders, sets, strict=True):
        if len(placed) % _ORDERED_A_STEP == _ORDERED_A_STEP - 1:
            yield
        followers = [n for n in members if n != leader]
        rng.shuffle(followers)
        placed.append([leader, *followers])
    return placed


def _choose_sets(
    racks: Mapping[NodeId, str],
    partition_count: int,
    factor: int,
    cluster: Load,
    topic: Load,
    rng: random.Random,
) -> Generator[None, None, list[list[NodeId]]]:
    domains = Domains(racks)
    address_of = {node_id: domains.of[node_id] for node_id in racks}
    addresses = frozenset(address_of.values())
    size = Counter(domain for address in address_of.values() for domain in address)
    node_load = Counter({n: topic.replicas[n] for n in racks})
    domain_load: Counter[int] = Counter()
    for node_id, count in node_load.items():
        for domain in address_of[node_id]:
            domain_load[domain] += count
    total = Counter({n: cluster.replicas[n] for n in racks})
    sets = []
    for done in range(partition_count):
        if done and done % _PARTITIONS_A_STEP == 0:
            yield
        used: Counter[int] = Counter()
        members: list[NodeId] = []
        shares = {a: tuple([domain_load[d] / size[d] for d in a]) for a in addresses}
        # What does not change while this partition's nodes are chosen.
        load = {n: (shares[a], node_load[n], total[n], rng.random()) for n, a in address_of.items()}
        for _ in range(factor):
            uses = {a: tuple([used[d] for d in a]) for a in addresses}
            best = min(
                [n for n in address_of if n not in members],
                key=lambda n, uses=uses, load=load: (uses[address_of[n]], load[n]),  # type: ignore[misc]
            )
            members.append(best)
            used.update(address_of[best])
        for n in members:
            node_load[n] += 1
            total[n] += 1
            domain_load.update(address_of[n])
        sets.append(members)
    return sets


def _choose_leaders(
    sets: Sequence[Sequence[NodeId]], cluster: Load, topic: Load
) -> Generator[None, None, list[NodeId]]:
    here = Counter(topic.leaders)
    total = Counter(cluster.leaders)
    leaders: list[NodeId] = []
    for members in sets:
        if len(leaders) % _ORDERED_A_STEP == _ORDERED_A_STEP - 1:
            yield
        leader = min(members, key=lambda n: (here[n], total[n]))
        here[leader] += 1
        total[leader] += 1
        leaders.append(leader)
    return leaders


def _even_out(
    sets: Sequence[Sequence[NodeId]], leaders: list[NodeId], topic: Load, racks: Mapping[NodeId, str]
) -> Generator[None, None, None]:
    """Move leaders along alternating paths until the counts are within one (or no path is left)."""
    count = Counter({n: topic.leaders[n] for n in racks})
    count.update(leaders)
    while True:
        path = _find_path(sets, leaders, count)
        if path is None:
            return
        for partition, successor in path:
            count[leaders[partition]] -= 1
            count[successor] += 1
            leaders[partition] = successor
        if len(sets) >= _PARTITIONS_A_STEP:
            yield


def _find_path(
    sets: Sequence[Sequence[NodeId]], leaders: Sequence[NodeId], count: Counter[NodeId]
) -> list[tuple[int, NodeId]] | None:
    """Hand-overs (partition, next leader) from a most loaded node to one with two fewer."""
    led: dict[NodeId, list[int]] = {}
    for partition, leader in enumerate(leaders):
        led.setdefault(leader, []).append(partition)
    most = max(count.values(), default=0)
    if most - min(count.values(), default=0) < 2:
        return None
    starts = [n for n, c in count.items() if c == most]
    came: dict[NodeId, tuple[int, NodeId] | None] = dict.fromkeys(starts)
    queue = deque(starts)
    while queue:
        node_id = queue.popleft()
        for partition in led.get(node_id, ()):
            for other in sets[partition]:
                if other in came:
                    continue
                came[other] = (partition, node_id)
                if count[other] <= most - 2:
                    return _walk_back(came, other)
                queue.append(other)
    return None


def _walk_back(came: Mapping[NodeId, tuple[int, NodeId] | None], end: NodeId) -> list[tuple[int, NodeId]]:
    path: list[tuple[int, NodeId]] = []
    node_id = end
    while (step := came[node_id]) is not None:
        path.append((step[0], node_id))
        node_id = step[1]
    return path
