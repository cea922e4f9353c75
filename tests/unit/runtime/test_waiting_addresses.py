"""Which addresses have to wait before they dial again, and how long."""

from __future__ import annotations

from penstock_runtime.waiting_addresses import FIRST_S, MOST_S, WaitingAddresses


def test_who_comes_again_for_nothing_waits_twice_as_long_each_time() -> None:
    waiting = WaitingAddresses(64)
    now_s, waits = 100.0, []
    for _ in range(6):
        waiting.send_away(["192.0.2.1"], now_s)
        until_s = waiting.next_s(now_s)
        assert until_s is not None
        # What came before it began to wait changes nothing.
        waiting.send_away(["192.0.2.1"], now_s + 0.1)
        assert waiting.next_s(now_s) == until_s
        waits.append(until_s - now_s)
        assert waiting.waiting(until_s - 0.001) == ["192.0.2.1"]
        assert waiting.waiting(until_s) == []
        now_s = until_s
    assert waits == [FIRST_S, 2, 4, MOST_S, MOST_S, MOST_S]


def test_who_was_well_for_a_minute_begins_anew() -> None:
    waiting = WaitingAddresses(64)
    waiting.send_away(["192.0.2.1"], 0.0)
    waiting.send_away(["192.0.2.1"], 30.0)
    assert waiting.next_s(30.0) == 32.0
    waiting.send_away(["192.0.2.2"], 93.0)
    waiting.send_away(["192.0.2.1"], 93.0)
    assert waiting.next_s(93.0) == 94.0


def test_who_has_waited_comes_back_by_and_by_for_as_long_again() -> None:
    waiting = WaitingAddresses(64)
    waiting.send_away(["192.0.2.1"], 0.0)
    waiting.send_away(["192.0.2.1"], 10.0)
    assert waiting.waiting(11.9) == ["192.0.2.1"] and waiting.returning(11.9) == []
    assert waiting.waiting(12.0) == [] and waiting.returning(12.0) == ["192.0.2.1"]
    assert waiting.next_s(11.9) == 12.0 and waiting.next_s(12.0) == 14.0
    assert waiting.returning(13.9) == ["192.0.2.1"]
    assert waiting.returning(14.0) == [] and waiting.next_s(14.0) is None
    waiting.send_away(["192.0.2.1"], 13.0)
    assert waiting.returning(13.0) == [] and waiting.next_s(13.0) == 17.0


def test_of_too_many_those_with_the_longest_to_wait_stay() -> None:
    waiting = WaitingAddresses(2)
    waiting.send_away(["192.0.2.1"], 0.0)
    waiting.send_away(["192.0.2.1"], 2.0)
    waiting.send_away(["192.0.2.2", "192.0.2.3", "192.0.2.4"], 2.5)
    assert len(waiting.waiting(2.5)) == 2
    assert "192.0.2.1" in waiting.waiting(2.5)
