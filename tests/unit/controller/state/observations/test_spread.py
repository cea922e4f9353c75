"""What outlives the loss of a domain: as trying every loss has it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_controller.state.observations.spread import Spread, even_groups, level_names, present
from penstock_core.ids import NodeId
from penstock_core.racks import path_of
from unit.controller.state.operations.images import ids, partition

LEVEL = st.sampled_from(("a", "b", "c"))
RACK = st.lists(LEVEL, max_size=3).map("/".join)
RACKS = st.dictionaries(st.integers(1, 9).map(NodeId), RACK, min_size=1)


def losses_by_trying(racks: dict[NodeId, str]) -> list[list[frozenset[NodeId]]]:
    """Of each level the nodes of each domain, outermost first; of levels with several."""
    depth = max(len(path_of(rack)) for rack in racks.values())
    levels = []
    for level in range(depth):
        domains: dict[tuple[str, ...], set[NodeId]] = {}
        for node, rack in racks.items():
            path = path_of(rack)
            domains.setdefault((*path, *[""] * (depth - len(path)))[: level + 1], set()).add(node)
        levels.append([frozenset(nodes) for nodes in domains.values()])
    levels.append([frozenset((node,)) for node in racks])
    return [domains if len(domains) > 1 else [] for domains in levels]


@settings(max_examples=150, deadline=None)
@given(racks=RACKS, data=st.data(), min_isr=st.integers(1, 3))
def test_it_is_what_trying_every_loss_shows(
    racks: dict[NodeId, str], data: st.DataObject, min_isr: int
) -> None:
    count = data.draw(st.integers(1, min(4, len(racks))))
    replicas = data.draw(st.permutations(sorted(racks)))[:count]
    min_isr = min(min_isr, count)
    spread = Spread(racks)
    levels = losses_by_trying(racks)
    left = [[sum(n not in lost for n in replicas) for lost in domains] for domains in levels]
    dark = [level for level, counts in enumerate(left) if any(c < min_isr for c in counts)]
    gone = [level for level, counts in enumerate(left) if any(c == 0 for c in counts)]
    found = spread.losses(replicas, min_isr)
    assert (found.writes is None) == (not dark)
    assert (found.data is None) == (not gone)
    assert spread.is_safe(replicas, min_isr) == (not dark)
    for loss, at in ((found.writes, dark), (found.data, gone)):
        if loss is not None:
            assert loss.level == max(at), "the innermost level"
            assert loss.replicas_lost == len(replicas) - min(left[loss.level])
            assert loss.node_id in replicas


@settings(max_examples=80, deadline=None)
@given(racks=RACKS, factor=st.integers(1, 4))
def test_the_best_that_any_placement_leaves(racks: dict[NodeId, str], factor: int) -> None:
    spread = Spread(racks)
    factor = min(factor, len(racks))

    def left(chosen: Sequence[NodeId], level: int) -> int:
        return min(sum(n not in nodes for n in chosen) for nodes in map(set, spread.domains(level).values()))

    def choices(nodes: Sequence[NodeId], count: int) -> list[tuple[NodeId, ...]]:
        if not count:
            return [()]
        return [(n, *rest) for i, n in enumerate(nodes) for rest in choices(nodes[i + 1 :], count - 1)]

    for level in range(len(spread.levels)):
        best = max(left(chosen, level) for chosen in choices(sorted(racks), factor))
        assert spread.best_left(level, factor, racks.keys()) == best


def test_names_of_levels() -> None:
    assert level_names(0) == ("node",)
    assert level_names(1) == ("rack", "node")
    assert level_names(2) == ("rack", "host", "node")
    assert level_names(3) == ("rack", "domain", "host", "node")


def test_domains_in_words() -> None:
    spread = Spread({NodeId(1): "a/h1", NodeId(2): ""})
    said = [spread.domain(level, NodeId(1)) for level in range(3)]
    assert said == ["rack a", "host a/h1", "node 1"]
    assert spread.domain(0, NodeId(2)) == "the nodes without a rack"


def test_only_what_is_alike_is_to_be_even() -> None:
    def groups(*racks: str) -> list[list[int]]:
        nodes = {NodeId(n): rack for n, rack in enumerate(racks, 1)}
        return sorted(sorted(map(int, group)) for group in even_groups(Spread(nodes), sorted(nodes)))

    assert groups("", "", "") == [[1, 2, 3]]
    assert groups("a", "b", "a", "b") == [[1, 2, 3, 4]]
    assert groups("a", "a", "b") == [[1, 2], [3]]
    assert groups("a/1", "a/1", "a/2", "a/2", "b/3") == [[1, 2, 3, 4], [5]]
    assert groups("a/1", "a/2", "b/3", "b/4") == [[1, 2, 3, 4]]


def test_a_replica_that_is_only_being_made_does_not_count() -> None:
    from dataclasses import replace

    moving = replace(partition("t", 0, [1, 2, 3]), adding_replicas=ids([3]), removing_replicas=ids([1]))
    assert present(moving) == ids([1, 2])
