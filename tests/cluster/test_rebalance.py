"""Two nodes without racks, then four: a rebalance ends even with as few copies as any plan can make, and once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil

import pytest

from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster
from support.kafka import Load, check_nothing_lost, produce, read_all
from support.operated import Placed, begin, counts, create, everything, said, spread, wait_until_settled

pytestmark = pytest.mark.timeout(600)

SHAPES = {"one": 1, "three": 3, "four": 4, "five": 5, "nine": 9}
WRITTEN = "nine"
NODES = {1, 2, 3, 4}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("rebalance")
    with running_cluster(directory, controllers=1, nodes=2, steady=True) as made:
        yield made


def least_added(placed: Placed) -> int:
    """No plan that ends within one on these nodes makes fewer new replicas: for one set of replicas, what nodes have
    above the rounded-up mean has to go, and what they lack below the rounded-down mean has to come. For all topics
    together that holds as for each."""

    def of(held: Counter[int]) -> int:
        total = sum(held.values())
        most, least = ceil(total / len(NODES)), total // len(NODES)
        above = sum(max(0, held[n] - most) for n in NODES)
        below = sum(max(0, least - held[n]) for n in NODES)
        return max(above, below)

    topics = {topic for topic, _ in placed}
    each = sum(of(counts({w: r for w, r in placed.items() if w[0] == topic})) for topic in topics)
    return max(each, of(counts(placed)))


def test_a_rebalance_onto_new_nodes_copies_the_least_and_only_once(cluster: LocalCluster) -> None:
    for topic, partitions in SHAPES.items():
        create(cluster, partitions, 2, topic)
        produce(cluster.bootstrap, topic, 200)
    wait_until_settled(cluster)
    before = everything(cluster)
    assert set(counts(before)) == {1, 2}
    assert [cluster.add("storage-node") for _ in range(2)] == ["node-3", "node-4"]
    assert everything(cluster) == before, "nothing moves by itself"
    plan = said(cluster, "cluster", "rebalance", "--dry-run")
    assert plan["runnable"], plan["gates"]
    assert plan["totals"]["replicas_added"] == plan["totals"]["replicas_removed"] == least_added(before)
    with Load(cluster.bootstrap, WRITTEN, rate_per_s=200, acks="all") as load:
        load.wait_for_acks(100)
        plan, done = begin(cluster, "cluster", "rebalance", "--wait", "200")
        assert done["state"] == "done", done
        assert plan["totals"]["replicas_added"] == plan["totals"]["replicas_removed"] == least_added(before)
        load.wait_for_acks(100)
    wait_until_settled(cluster)
    after = everything(cluster)
    assert sum(len(set(nodes) - set(before[where])) for where, nodes in after.items()) == least_added(before)
    assert spread(counts(after)[n] for n in NODES) <= 1, counts(after)
    led = Counter(nodes[0] for nodes in after.values())
    assert spread(led[n] for n in NODES) <= 1, led
    for topic in SHAPES:
        held = counts({w: nodes for w, nodes in after.items() if w[0] == topic})
        assert spread(held[n] for n in NODES) <= 1, (topic, held)
    again = said(cluster, "cluster", "rebalance", "--dry-run")
    assert (again["moves"], again["totals"]["moves"]) == ([], 0)
    nothing = said(cluster, "cluster", "rebalance", "--yes", "--wait", "60")
    assert nothing["progress"]["moves_total"] == 0
    assert everything(cluster) == after
    check_nothing_lost(load.ledger, [r for r in read_all(cluster.bootstrap, WRITTEN) if r.key is not None])
