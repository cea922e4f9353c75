"""Server-side assignors of the consumer protocol: `uniform` and `range`. Pure functions.

`uniform` spreads partitions evenly and moves as few as it can; `range` gives each member a run of
partitions of each topic, the same one in topics of equal size, so that joins find their partners.
Semantics: KIP-848; the outcome may differ in detail from Kafka's, its properties do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock_core.ids import TopicId
from penstock_storage_node.groups.consumer.group import NOTHING, Parts

Part = tuple[TopicId, int]

BALANCE_ROUNDS_MAX: Final = 10_000
"""Moves that `uniform` makes at most for members with different subscriptions."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member, seen by an assignor. `had` is its present target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[TopicId]
    had: Parts = NOTHING


Assignor = Callable[[Sequence[Subscriber], Mapping[TopicId, int]], dict[str, Parts]]


def assign_range(members: Sequence[Subscriber], counts: Mapping[TopicId, int]) -> dict[str, Parts]:
    """Runs of partitions by topic, static members first, then by member id."""
    given: dict[str, set[Part]] = {m.member_id: set() for m in members}
    ordered = sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))
    for topic_id in sorted(counts):
        readers = [m for m in ordered if topic_id in m.topics]
        if not readers:
            continue
        each, more = divmod(counts[topic_id], len(readers))
        start = 0
        for index, member in enumerate(readers):
            end = start + each + (index < more)
            given[member.member_id].update((topic_id, p) for p in range(start, end))
            start = end
    return {member_id: frozenset(parts) for member_id, parts in given.items()}


def assign_uniform(members: Sequence[Subscriber], counts: Mapping[TopicId, int]) -> dict[str, Parts]:
    """As even as subscriptions allow; nothing moves that need not."""
    if not members:
        return {}
    parts = [(topic_id, p) for topic_id in sorted(counts) for p in range(counts[topic_id])]
    ordered = sorted(members, key=lambda m: m.member_id)
    if all(m.topics == ordered[0].topics for m in ordered):
        return _uniform_same(ordered, [part for part in parts if part[0] in ordered[0].topics])
    return _uniform_mixed(ordered, parts)


def _uniform_same(members: Sequence[Subscriber], parts: Sequence[Part]) -> dict[str, Parts]:
    least, more = divmod(len(parts), len(members))
    known = frozenset(parts)
    given: dict[str, set[Part]] = {}
    taken: set[Part] = set()
    # Who has most keeps one more, as long as there is one more to keep.
    for member in sorted(members, key=lambda m: (-len(m.had), m.member_id)):
        had = sorted((member.had & known) - taken)
        quota = least
        if len(had) > least and more:
            quota, more = least + 1, more - 1
        given[member.member_id] = set(had[:quota])
        taken.update(had[:quota])
    left = iter([part for part in parts if part not in taken])
    for member in members:
        mine = given[member.member_id]
        quota = least
        if len(mine) <= least and more:
            quota, more = least + 1, more - 1
        while len(mine) < quota:
            mine.add(next(left))
    return {member_id: frozenset(mine) for member_id, mine in given.items()}


def _uniform_mixed(members: Sequence[Subscriber], parts: Sequence[Part]) -> dict[str, Parts]:
    known = frozenset(parts)
    readers = {topic_id: [m for m in members if topic_id in m.topics] for topic_id in {p[0] for p in parts}}
    given: dict[str, set[Part]] = {}
    owner: dict[Part, str] = {}
    for member in members:
        mine = {p for p in member.had & known if p[0] in member.topics and p not in owner}
        given[member.member_id] = mine
        owner.update(dict.fromkeys(mine, member.member_id))
    # What few can read is given first.
    for part in sorted((p for p in parts if p not in owner), key=lambda p: (len(readers[p[0]]), p)):
        if readers[part[0]]:
            best = min(readers[part[0]], key=lambda m: (len(given[m.member_id]), m.member_id))
            given[best.member_id].add(part)
            owner[part] = best.member_id
    for _ in range(BALANCE_ROUNDS_MAX):
        if not _move_one(members, readers, given):
            break
    return {member_id: frozenset(mine) for member_id, mine in given.items()}


def _move_one(
    members: Sequence[Subscriber],
    readers: Mapping[TopicId, Sequence[Subscriber]],
    given: dict[str, set[Part]],
) -> bool:
    """Move one partition to somebody who has at least two fewer; False when nobody does."""
    for member in sorted(members, key=lambda m: (-len(given[m.member_id]), m.member_id)):
        mine = given[member.member_id]
        for topic_id in sorted({part[0] for part in mine}):
            taker = min(readers[topic_id], key=lambda m: (len(given[m.member_id]), m.member_id))
            if len(given[taker.member_id]) + 2 <= len(mine):
                part = max(p for p in mine if p[0] == topic_id)
                mine.remove(part)
                given[taker.member_id].add(part)
                return True
    return False


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that members use; the first is the default."""
