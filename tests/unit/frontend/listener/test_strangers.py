"""Who goes when too many connections made no request yet, against a slow reference."""

from __future__ import annotations

import random

from penstock_frontend.listener.strangers import Strangers


class _Slow:
    """The rule as it is written down: the oldest of the address that has most."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.here: list[tuple[str, int]] = []

    def count(self, address: str) -> int:
        return sum(a == address for a, _ in self.here)

    def come(self, address: str, one: int) -> None:
        self.here.append((address, one))

    def may_go(self) -> set[tuple[str, int]]:
        """The oldest of each address that has most; empty when nobody has to."""
        if len(self.here) <= self.most:
            return set()
        highest = max(self.count(a) for a, _ in self.here)
        first: dict[str, tuple[str, int]] = {}
        for each in self.here:
            first.setdefault(each[0], each)
        return {each for address, each in first.items() if self.count(address) == highest}


def test_the_oldest_of_the_address_with_most_goes() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(200):
        most = rng.randrange(1, 12)
        fast: Strangers[int] = Strangers(most, lambda _: True)
        slow = _Slow(most)
        for number in range(rng.randrange(120)):
            if rng.random() < 0.15 and slow.here:
                one = rng.choice(slow.here)
                slow.here.remove(one)
                fast.gone(*one)
            address = f"10.0.0.{min(rng.randrange(6), rng.randrange(6))}"
            slow.come(address, number)
            went, may = fast.come(address, number), slow.may_go()
            assert went in may if may else went is None
            if went is not None:
                slow.here.remove(went)
            assert len(fast) == len(slow.here)


def test_who_made_a_request_is_let_off_and_never_goes() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    known: set[int] = set()
    strangers: Strangers[int] = Strangers(20, lambda one: one not in known)
    silent: list[int] = []
    for number in range(5_000):
        went = strangers.come(f"10.0.0.{rng.randrange(4)}", number)
        assert len(strangers) <= 20
        if went is not None:
            assert went[1] not in known
            silent.remove(went[1])
        if rng.random() < 0.5:
            known.add(number)
        else:
            silent.append(number)
    assert len(silent) <= 20


def test_who_is_not_here_is_ignored_and_the_last_one_leaves_nothing() -> None:
    strangers: Strangers[int] = Strangers(3, lambda _: True)
    strangers.gone("a", 1)
    for one in range(3):
        assert strangers.come("a", one) is None
    strangers.gone("a", 9)
    for one in range(3):
        strangers.gone("a", one)
    assert not len(strangers)
    assert strangers.come("b", 1) is None
    assert [strangers.come("b", one) for one in (2, 3, 4)] == [None, None, ("b", 1)]


def test_nobody_goes_while_most_of_those_that_are_here_made_a_request() -> None:
    """A few are slow to speak, thousands are at work: who is slow does not go for them."""
    at_work: set[int] = set()
    strangers: Strangers[int] = Strangers(200, lambda one: one not in at_work)
    for number in range(5_000):
        assert strangers.come(f"10.0.0.{number % 3}", number) is None
        if number % 500 >= 15:
            at_work.add(number)


def test_a_flood_has_few_asked_for_each_that_comes() -> None:
    """All at once would hold the loop of those who are at work."""
    asked = 0

    def is_one(_: int) -> bool:
        nonlocal asked
        asked += 1
        return True

    strangers: Strangers[int] = Strangers(1_000, is_one)
    for number in range(1_001):
        strangers.come("10.0.0.1", number)
    for number in range(1_001, 5_000):
        asked = 0
        assert strangers.come("10.0.0.1", number) is not None
        assert asked <= 11


def test_who_made_a_request_does_not_count_for_long() -> None:
    """A listener with thousands at work and no stranger has few, as newcomers come in by that number."""
    strangers: Strangers[int] = Strangers(1_000, lambda one: one >= 5_000)
    for number in range(5_000):
        strangers.come("10.0.0.1", number)
        assert len(strangers) <= 10
