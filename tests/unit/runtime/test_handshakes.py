"""Whose TLS handshake begins next, and which one is ended for it."""

from __future__ import annotations

import random

import pytest

from penstock_runtime import handshakes
from penstock_runtime.handshakes import (
    PACED_PER_S,
    PATIENCE_AMONG_EQUALS_S,
    PATIENCE_S,
    SIGN_IN_PATIENCE_AMONG_EQUALS_S,
    SIGN_IN_PATIENCE_S,
    SILENT_PER_S,
    WASTED_BURST,
    WASTED_PER_S,
    Begin,
    End,
    HandshakeLine,
    HandshakePace,
    Later,
    SilentPace,
)


def begun(line: HandshakeLine[str], now_s: float = 0.0) -> list[str]:
    """Who begins now."""
    found = []
    while isinstance(step := line.step(now_s), Begin):
        found.append(step.one)
    return found


def test_no_more_than_a_few_are_under_way_and_the_others_follow_in_order() -> None:
    line: HandshakeLine[str] = HandshakeLine(2, 100)
    assert line.step(0.0) is None
    for number in range(5):
        line.come("a", f"a{number}")
    assert begun(line) == ["a0", "a1"]
    assert isinstance(line.step(0.0), Later)
    line.over("a", "a0")
    assert begun(line) == ["a2"]
    line.over("a", "a4")  # it went away while it waited
    line.over("a", "a4")
    line.over("b", "unknown")
    for each in ("a1", "a2"):
        line.over("a", each)
    assert begun(line) == ["a3"]
    line.over("a", "a3")
    assert line.step(0.0) is None
    assert not len(line)


def test_addresses_take_turns_and_who_has_none_comes_first() -> None:
    line: HandshakeLine[str] = HandshakeLine(3, 100)
    for number in range(4):
        line.come("a", f"a{number}")
    assert begun(line) == ["a0", "a1", "a2"]
    line.come("b", "b0")
    line.come("b", "b1")
    line.come("c", "c0")
    line.over("a", "a0")
    assert begun(line) == ["b0"]
    line.over("a", "a1")
    assert begun(line) == ["c0"]
    line.over("a", "a2")
    assert begun(line) == ["a3"]  # it has none any more
    line.over("c", "c0")
    assert begun(line) == ["b1"]


def test_of_the_address_with_most_the_oldest_ends_for_another_one_after_a_few_round_trips() -> None:
    line: HandshakeLine[str] = HandshakeLine(4, 100)
    for number in range(6):
        line.come("greedy", f"g{number}")
    assert begun(line, 10.0) == ["g0", "g1", "g2", "g3"]
    line.come("honest", "h0")
    assert line.step(10.0) == Later(PATIENCE_S)
    assert line.step(10.0 + PATIENCE_S) == End("greedy", "g0")
    line.over("greedy", "g0")  # which its task says again
    assert begun(line, 10.0 + PATIENCE_S) == ["h0"]


def test_among_equals_it_takes_longer() -> None:
    line: HandshakeLine[str] = HandshakeLine(2, 100)
    for number in range(4):
        line.come("a", f"a{number}")
    assert begun(line, 1.0) == ["a0", "a1"]
    assert line.step(1.0 + PATIENCE_S) == Later(PATIENCE_AMONG_EQUALS_S - PATIENCE_S)
    assert line.step(1.0 + PATIENCE_AMONG_EQUALS_S) == End("a", "a0")
    assert begun(line, 1.0 + PATIENCE_AMONG_EQUALS_S) == ["a2"]


def test_whatever_comes_and_goes_the_counts_stay_right() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    line: HandshakeLine[int] = HandshakeLine(5, 100)
    waiting: dict[int, str] = {}
    under_way: dict[int, str] = {}
    now_s = 0.0
    for number in range(3_000):
        now_s += rng.random() / 10
        if rng.random() < 0.5:
            waiting[number] = address = f"address {rng.randrange(8)}"
            line.come(address, number)
        for them in (waiting, under_way):
            if them and rng.random() < 0.3:
                one = rng.choice(list(them))
                line.over(them.pop(one), one)
        while isinstance(step := line.step(now_s), Begin | End):
            if isinstance(step, Begin):
                under_way[step.one] = waiting.pop(step.one)
            else:
                assert under_way.pop(step.one) == step.address
        assert len(under_way) <= 5
        assert len(line) == len(waiting) + len(under_way)
        if waiting:
            assert len(under_way) == 5
    for them in (waiting, under_way):
        for one, address in them.items():
            line.over(address, one)
    assert not len(line)
    assert line.step(now_s) is None


def test_those_that_are_about_to_sign_in_keep_a_place_and_the_next_ones_wait_for_it() -> None:
    line: HandshakeLine[str] = HandshakeLine(2, 4)

    def shakes(address: str, one: str, now_s: float) -> None:
        line.come(address, one)
        assert begun(line, now_s) == [one]
        line.over(address, one)
        line.greeted(address, f"{one} greeted", now_s)

    for number in range(4):
        shakes("a", f"a{number}", number / 10)
    assert len(line) == 0
    line.come("a", "a4")
    line.come("b", "b0")
    # Nobody is sent away for another one of its own address before it had time to sign in.
    first = line.step(0.3)
    assert isinstance(first, Later) and first.wait_s == pytest.approx(SIGN_IN_PATIENCE_AMONG_EQUALS_S - 0.3)
    line.over("a", "a1 greeted")  # it has signed in
    assert begun(line, 0.4) == ["a4"]
    line.over("a", "a4")
    line.greeted("a", "a4 greeted", 0.4)
    # Somebody of another address waits less.
    assert line.step(0.4) == Later(SIGN_IN_PATIENCE_S - 0.4)
    assert line.step(SIGN_IN_PATIENCE_S) == End("a", "a0 greeted")
    assert begun(line, SIGN_IN_PATIENCE_S) == ["b0"]
    line.over("b", "b0")
    for gone in ("a2 greeted", "a3 greeted", "a4 greeted", "unknown"):
        line.over("a", gone)
    assert line._greeted.count == 0 == line._begun.count and not line._greeted.by_address


def test_who_has_handshakes_for_nothing_is_slowed_down_and_nobody_else() -> None:
    pace = HandshakePace()
    for _ in range(WASTED_BURST):
        pace.wasted("bad", 100.0)
        assert pace.wait_s("bad", 100.0, 10.0) == 0.0
    pace.wasted("bad", 100.0)
    waits = [pace.wait_s("bad", 100.0, 0.2) for _ in range(6)]
    assert waits[:4] == pytest.approx([n / PACED_PER_S for n in range(4)])
    # Who is sent away takes no time of the next one.
    assert waits[5] is None
    assert pace.wait_s("bad", 100.0, 10.0) == pytest.approx(5 / PACED_PER_S)
    assert pace.wait_s("good", 100.0, 10.0) == 0.0
    # That was 1 too many: forgiven after a tenth of a second.
    assert pace.wait_s("bad", 100.0 + 1.01 / WASTED_PER_S, 10.0) == 0.0


def test_however_much_was_for_nothing_it_is_forgiven_after_seconds() -> None:
    pace = HandshakePace()
    for _ in range(10_000):
        pace.wasted("bad", 0.0)
    soon_s = WASTED_BURST / WASTED_PER_S
    assert pace.wait_s("bad", soon_s - 0.1, 10.0) == 0.0  # its first one, but the next waits
    assert pace.wait_s("bad", soon_s - 0.1, 10.0) == pytest.approx(1 / PACED_PER_S)
    assert pace.wait_s("bad", soon_s + 0.01, 10.0) == 0.0
    assert pace.wait_s("bad", soon_s + 0.01, 10.0) == 0.0
    assert pace.wait_s("bad", 3 * soon_s, 10.0) == 0.0
    assert not pace._of


def test_of_very_many_addresses_those_that_wasted_something_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshakes, "_ADDRESSES_MAX", 100)
    pace = HandshakePace()
    for number in range(1_000):
        pace.wasted(str(number), 0.0)
        pace.wasted("bad", 0.0)
        assert len(pace._of) <= 101
    assert pace.wait_s("bad", 0.0, 10.0) == 0.0
    assert pace.wait_s("bad", 0.0, 10.0) == pytest.approx(1 / PACED_PER_S)


def test_addresses_with_many_that_say_nothing_share_one_pace() -> None:
    pace = SilentPace()
    waits = [pace.wait_s(100.0, 4.5 / SILENT_PER_S) for _ in range(8)]
    assert waits[:5] == pytest.approx([n / SILENT_PER_S for n in range(5)])
    # Who is sent away takes no time of the next one.
    assert waits[5:] == [None, None, None]
    assert pace.wait_s(100.0, 10.0) == pytest.approx(5 / SILENT_PER_S)
    assert pace.wait_s(200.0, 0.2) == 0.0
