"""The demo's own parts: its source, its check (which must find what it looks for), its Java test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from demo import flights as source
from demo import java
from demo.__main__ import _differences
from demo.flights import Flights
from demo.traffic import WINDOW_S, Acks, Gap, Layout
from demo.verify import _Checker


@pytest.fixture(scope="module")
def flights() -> Flights:
    return source.load()


class Message:
    """A record as the consumer gives it."""

    def __init__(self, flights: Flights, seq: int, partition: int, offset: int) -> None:
        self._fields = (partition, offset, flights.keys[seq], flights.values[seq])

    def partition(self) -> int:
        return self._fields[0]

    def offset(self) -> int:
        return self._fields[1]

    def key(self) -> bytes:
        return self._fields[2]

    def value(self) -> bytes:
        return self._fields[3]


def test_events_are_json_in_order_of_departure(flights: Flights) -> None:
    assert len(flights) == source.EVENTS_EXPECTED
    assert flights.timestamps_ms == sorted(flights.timestamps_ms)
    for seq in (0, 1, 200_000, len(flights) - 1):
        event = json.loads(flights.values[seq])
        assert event["seq"] == seq
        assert flights.keys[seq].decode() in (event["tailnum"], event["carrier"])
    assert json.loads(flights.values[0]) == {
        "seq": 0,
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_summary_is_what_a_plain_loop_finds(flights: Flights) -> None:
    rows = {row["carrier"]: row for row in source.summary(flights.table, ("carrier",))}
    hawaiian = [json.loads(v) for v in flights.values if b'"carrier":"HA"' in v]
    delays = sorted(event["dep_delay"] for event in hawaiian if event["dep_delay"] is not None)
    assert rows["HA"]["flights"] == len(hawaiian)
    assert rows["HA"]["cancelled"] == len(hawaiian) - len(delays)
    place = 0.9 * (len(delays) - 1)
    low = int(place)
    expected = delays[low] + (place - low) * (delays[low + 1] - delays[low])
    assert rows["HA"]["delay_p90"] == pytest.approx(expected)
    assert set(rows) == set(source.carrier_names())
    by_month = source.summary(flights.table, ("carrier", "month"))
    assert sum(row["flights"] for row in by_month) == len(flights)
    assert _differences(by_month, list(by_month)) == 0
    changed = [*by_month[1:], {**by_month[0], "delay_p50": 99.0}]
    assert _differences(changed, by_month) == 2


def story(flights: Flights, places: list[tuple[int, int, int]], acked: list[tuple[int, int, int]]) -> Any:
    """Check records at (seq, partition, offset) against acks of the same form."""
    acks = Acks.for_events(len(flights))
    for seq, partition, offset in acked:
        acks.partitions[seq], acks.offsets[seq] = partition, offset
    checker = _Checker(flights, acks)
    for seq, partition, offset in places:
        checker.take(Message(flights, seq, partition, offset))
    return checker.finish()


def test_checker_finds_each_fault(flights: Flights) -> None:
    good = [(0, 0, 0), (1, 0, 1), (2, 1, 0)]
    rest = len(flights) - 3
    found = story(flights, good, good)
    assert (found.lost, found.doubled, found.wrong, found.disordered) == (rest, 0, 0, 0)
    assert story(flights, [*good, (1, 0, 2)], good).doubled == 1
    assert story(flights, good[:2], good).lost == rest + 1
    assert story(flights, [(0, 0, 0), (1, 0, 2)], [(0, 0, 0), (1, 0, 2)]).wrong == 1
    assert story(flights, good, [(0, 0, 0), (1, 0, 5), (2, 1, 0)]).wrong == 1
    key = flights.keys[0]
    later = flights.keys.index(key, 1)
    places = [(later, 0, 0), (0, 0, 1)]
    assert story(flights, places, places).disordered == 1


def test_busiest_node_leads_most(flights: Flights) -> None:
    assert Layout({0: 3, 1: 2, 2: 2, 3: 1}).busiest_node() == 2
    assert Layout({0: 3, 1: 2}).busiest_node() == 2
    assert Layout({0: 3, 1: 3}).led_by(3) == 2


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "25" 2025-09-16', None),
        ('java version "1.8.0_452"', "is Java 8"),
        ('openjdk version "11.0.2"', "is Java 11"),
        ("segmentation fault", "does not tell its version"),
    ],
)
def test_java_versions(
    answer: str, word: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    problem = java.missing_java()
    assert problem is None if word is None else problem is not None and word in problem


def test_missing_java_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.devnull)
    problem = java.missing_java()
    assert problem is not None
    assert "apt-get install openjdk-17" in problem


def test_gaps_and_time_line() -> None:
    acks = Acks.for_events(4)
    acks.started_s = 100.0
    for seq, (partition, after_s) in enumerate([(0, 1.0), (1, 1.5), (1, 2.5), (0, 3.0)]):
        acks.partitions[seq], acks.times_s[seq] = partition, 100.0 + after_s
    acks.last_ack_s = 103.0
    assert acks.longest_gap() == Gap(1.5, 1.0)
    assert acks.worst_partition_gap() == Gap(1.0, 2.0)
    seconds, rates = acks.time_line()
    assert len(seconds) == len(rates)
    assert sum(rates) * WINDOW_S == pytest.approx(4, abs=1)
