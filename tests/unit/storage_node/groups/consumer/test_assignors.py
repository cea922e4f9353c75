"""Server-side assignors: complete, allowed, even, sticky."""

from __future__ import annotations

import random

from penstock_core.ids import TopicId
from penstock_storage_node.groups.consumer.assignors import Subscriber, assign_range, assign_uniform
from penstock_storage_node.groups.consumer.group import NOTHING, Parts

TOPICS = [TopicId(bytes([n]) * 16) for n in range(6)]


def check(members: list[Subscriber], counts: dict[TopicId, int], given: dict[str, Parts]) -> None:
    assert set(given) == {m.member_id for m in members}
    everything = [part for parts in given.values() for part in parts]
    assert len(everything) == len(set(everything))
    wanted = {(t, p) for t, n in counts.items() for p in range(n) if any(t in m.topics for m in members)}
    assert set(everything) == wanted
    assert all(part[0] in m.topics for m in members for part in given[m.member_id])


def test_uniform_spreads_and_moves_little() -> None:
    counts = {TOPICS[0]: 7, TOPICS[1]: 5}
    topics = frozenset(counts)
    members = [Subscriber(name, None, topics) for name in "abc"]
    first = assign_uniform(members, counts)
    check(members, counts, first)
    assert {len(p) for p in first.values()} == {4}
    again = assign_uniform(
        [Subscriber(m.member_id, None, topics, first[m.member_id]) for m in members], counts
    )
    assert again == first
    more = [Subscriber(n, None, topics, first.get(n, NOTHING)) for n in "abcd"]
    second = assign_uniform(more, counts)
    check(more, counts, second)
    assert sum(len(second[n] - first[n]) for n in "abc") == 0
    assert {len(p) for p in second.values()} == {3}


def test_range_gives_partners_in_topics_of_equal_size() -> None:
    counts = {TOPICS[0]: 5, TOPICS[1]: 5, TOPICS[2]: 2}
    topics = frozenset(counts)
    members = [
        Subscriber("z", "static", topics),
        Subscriber("a", None, topics),
        Subscriber("b", None, topics),
    ]
    given = assign_range(members, counts)
    check(members, counts, given)
    numbers = {m: [sorted(p for t, p in given[m] if t == topic) for topic in TOPICS[:3]] for m in given}
    assert numbers == {"z": [[0, 1], [0, 1], [0]], "a": [[2, 3], [2, 3], [1]], "b": [[4], [4], []]}


def test_random_subscriptions() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        counts = {t: rng.randint(1, 9) for t in rng.sample(TOPICS, rng.randint(1, 5))}
        same = rng.random() < 0.4
        shared = frozenset(rng.sample(sorted(counts), rng.randint(1, len(counts))))
        had: dict[str, Parts] = {}
        for _ in range(4):
            members = []
            for n in range(rng.randint(1, 6)):
                topics = (
                    shared if same else frozenset(rng.sample(sorted(counts), rng.randint(1, len(counts))))
                )
                members.append(Subscriber(f"m{n}", None, topics, had.get(f"m{n}", NOTHING)))
            check(members, counts, assign_range(members, counts))
            had = assign_uniform(members, counts)
            check(members, counts, had)
            sizes = [len(p) for p in had.values()]
            if same:
                assert max(sizes) - min(sizes) <= 1
            for giver in members:
                for taker in members:
                    if any(part[0] in taker.topics for part in had[giver.member_id]):
                        assert len(had[giver.member_id]) <= len(had[taker.member_id]) + 1
    assert assign_uniform([], {}) == {}
    assert assign_range([], {TOPICS[0]: 3}) == {}
