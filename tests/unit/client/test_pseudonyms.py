"""Other names, the same everywhere, and nothing else changed."""

from __future__ import annotations

import json

from penstock.cli.pseudonyms import Pseudonyms


def some() -> Pseudonyms:
    names = Pseudonyms(b"k" * 32)
    names.add("topic", "flights")
    names.add("topic", "flights.late")
    names.add("group", "team a: readers")
    names.add_address("broker-1.example.com:9092")
    names.add_address("[2001:db8::7]:9092")
    return names


def test_a_name_has_one_other_name_wherever_it_stands() -> None:
    names = some()
    other = names.text("flights")
    assert other.startswith("topic-") and "flights" not in other
    assert names.text("flights-12 has no leader") == f"{other}-12 has no leader"
    assert names.text("partition flights-3: see flights.") == f"partition {other}-3: see {other}."
    assert names.text("flights.late") != other
    assert names.text("flightsandmore preflights") == "flightsandmore preflights"
    assert names.text("at broker-1.example.com:9092") == f"at {names.text('broker-1.example.com')}:9092"
    assert "2001" not in names.text("[2001:db8::7]:9092 is down")
    assert "readers" not in names.text("group team a: readers lags")


def test_keys_numbers_and_names_of_the_system_stay() -> None:
    names = some()
    names.add("topic", "1")
    names.add("topic", "__consumer_offsets")
    names.add("host", "127.0.0.1")
    document = {"flights": 1, "at": ["__consumer_offsets-7", "127.0.0.1:9092", True, None, 1.5]}
    assert names.document(json.loads(json.dumps(document))) == document


def test_labels_of_metrics_are_names() -> None:
    names = some()
    page = 'lag{group="of nobody \\"else\\"",topic="flights",partition="0"} 5\nup 1\n'
    names.learn_metrics(page)
    told = names.metrics(page)
    assert "nobody" not in told and "flights" not in told
    assert 'partition="0"} 5\nup 1\n' in told
    assert names.text("flights") in told


def test_two_bundles_give_other_names() -> None:
    other = Pseudonyms(b"x" * 32)
    other.add("topic", "flights")
    assert other.text("flights") != some().text("flights")


def test_names_that_only_processes_tell_are_other_ones_too() -> None:
    names = Pseudonyms(b"k" * 32)
    line = {
        "timestamp": "2026-11-25T02:01:52Z",
        "event": "connection closed",
        "topic": "secret-orders",
        "group": "night shift",
        "peer": "10.1.2.3:50123",
        "reason": "10.1.2.9 spoke no Kafka at 12:04:07 (role.py:31)",
        "settings": {"raft_peers": ["1@ctl-1.example:9101", "2@127.0.0.1:9102"], "http_bind": "0.0.0.0:8080"},
    }
    names.learn_line(line)
    names.learn_listing("12\t5\tslot-3/gone-7.1700000000000-0a1b-stray/00.log\n3\t5\tdeleted.topic-12/\n")
    told = json.dumps(names.document(line)) + names.text(
        "gone-7.1700000000000-0a1b-stray deleted.topic-12 slot-3"
    )
    for name in ("secret-orders", "night shift", "10.1.2.3", "10.1.2.9", "ctl-1", "gone", "deleted"):
        assert name not in told
    for kept in ("2026-11-25T02:01:52Z", "12:04:07 (role.py:31)", "127.0.0.1:9102", "0.0.0.0:8080", "slot-3"):
        assert kept in told
    assert names.text("at 10.1.2.3:9") == f"at {names.text('10.1.2.3')}:9"
