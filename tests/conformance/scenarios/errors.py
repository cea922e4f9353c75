"""What clients tell their users when something is not there or not allowed."""

from __future__ import annotations

from typing import Any

from conformance.client import Client
from conformance.frame import Case, Outcome, attempt, scenario
from conformance.scenarios.data import plain, read_back

SECTION = "Errors"


@scenario("produce-unknown-topic", SECTION, seconds=90)
def unknown_topic(c: Client, t: Case) -> Outcome:
    """a topic that is not there, and is not created by itself"""
    return attempt(lambda: c.produce(t.name("nowhere"), [{"value": "x"}], {"timeout_ms": 6_000}))


@scenario("produce-unknown-partition", SECTION, seconds=90)
def unknown_partition(c: Client, t: Case) -> Outcome:
    """a partition that is not there"""
    topic = t.topic()
    return attempt(lambda: c.produce(topic, [{"value": "x", "partition": 5}], {"timeout_ms": 6_000}))


@scenario("produce-bad-name", SECTION, seconds=90)
def bad_name(c: Client, t: Case) -> Outcome:
    """a name that no topic can have"""
    return attempt(lambda: c.produce("not a name", [{"value": "x"}], {"timeout_ms": 6_000}))


@scenario("produce-internal", SECTION, seconds=90)
def internal(c: Client, t: Case) -> Outcome:
    """nobody writes to __consumer_offsets"""
    return attempt(
        lambda: c.produce("__consumer_offsets", [{"value": "x", "partition": 0}], {"timeout_ms": 6_000})
    )


@scenario("produce-deleted-topic", SECTION, seconds=120)
def deleted(c: Client, t: Case) -> Outcome:
    """a topic deleted and made anew is empty"""
    topic = t.topic()
    first = c.produce(topic, [{"value": "old", "partition": 0}])
    gone = c.delete_topics([topic])
    again = t.topic()
    second = c.produce(again, [{"value": "new", "partition": 0}])
    return [first, gone, second, plain(read_back(c, again, 1))]


@scenario("isr-too-small", SECTION, seconds=90)
def isr_too_small(c: Client, t: Case) -> Outcome:
    """min.insync.replicas above the replicas there are: acks=all is refused, acks=1 is not"""
    name = t.name()
    made: Any = c.create_topics(
        [{"name": name, "partitions": 1, "replication": 1, "config": {"min.insync.replicas": "2"}}]
    )
    t.ready(name, 1)
    record = [{"value": "x", "partition": 0}]
    return [
        made,
        attempt(lambda: c.produce(name, record, {"acks": "all", "idempotence": False, "timeout_ms": 6_000})),
        attempt(lambda: c.produce(name, record, {"acks": "1", "idempotence": False, "timeout_ms": 6_000})),
    ]
