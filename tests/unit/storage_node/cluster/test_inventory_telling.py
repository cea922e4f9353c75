"""What the metadata do not account for is told to the end, again after a break, and when it changed."""

from __future__ import annotations

from penstock_proto.v1.operations_pb2 import UnknownReplica
from penstock_storage_node.cluster.inventory_telling import InventoryPart, InventoryTelling


def rows(count: int, end: int = 0) -> list[UnknownReplica]:
    return [UnknownReplica(partition=n, flushed_end_offset=end) for n in range(count)]


def everything(telling: InventoryTelling) -> list[InventoryPart]:
    parts = []
    while (part := telling.next_part()) is not None:
        parts.append(part)
    return parts


def test_nothing_is_told_before_a_look_and_an_empty_one_once() -> None:
    telling = InventoryTelling()
    assert telling.next_part() is None
    telling.looked(5, [], 0)
    (part,) = everything(telling)
    assert (list(part.replicas), part.version, part.is_first, part.is_last) == ([], 5, True, True)
    telling.looked(6, [], 0)
    assert everything(telling) == []


def test_it_comes_in_parts_and_again_when_it_changed() -> None:
    telling = InventoryTelling(part_max=2)
    telling.looked(5, rows(5), 0)
    parts = everything(telling)
    assert [len(p.replicas) for p in parts] == [2, 2, 1]
    assert [(p.is_first, p.is_last) for p in parts] == [(True, False), (False, False), (False, True)]
    telling.looked(6, rows(5), 0)
    assert everything(telling) == []
    telling.looked(7, rows(5, end=3), 0)
    assert [p.version for p in everything(telling)] == [7, 7, 7]


def test_a_telling_that_was_begun_ends_as_it_began() -> None:
    telling = InventoryTelling(part_max=2)
    telling.looked(5, rows(3), 0)
    first = telling.next_part()
    telling.looked(6, rows(1), 0)
    second, third = everything(telling)
    assert first is not None and (first.version, second.version, third.version) == (5, 5, 6)


def test_a_new_session_is_told_all_of_it() -> None:
    telling = InventoryTelling(part_max=2)
    telling.looked(5, rows(3), 0)
    telling.next_part()
    telling.begin()
    assert [len(p.replicas) for p in everything(telling)] == [2, 1]
    telling.begin()
    assert [len(p.replicas) for p in everything(telling)] == [2, 1]


def test_restored_metadata_hear_of_it_though_it_is_the_same() -> None:
    telling = InventoryTelling()
    telling.looked(5, [], 0)
    everything(telling)
    assert telling.is_wanted(1_000)
    telling.looked(1_005, [], 1_000)
    assert [p.version for p in everything(telling)] == [1_005]
    assert not telling.is_wanted(1_000)
    telling.looked(1_006, rows(1), 1_000)
    everything(telling)
    assert telling.is_wanted(1_000), "it changes as logs get leaders"
