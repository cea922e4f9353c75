"""Topics that come by themselves, on a pair of clusters that allow it."""

from __future__ import annotations

from conformance.client import Client
from conformance.frame import Case, Outcome, attempt, scenario
from conformance.scenarios.admin import described

SECTION = "Topics that come by themselves"
CAREFUL = ("confluent-kafka", "kafka-python", "java")
"""Those whose descriptions ask for no topic to be made."""


@scenario("auto-create-produce", SECTION, world="auto-create", seconds=90)
def produce(c: Client, t: Case) -> Outcome:
    """a producer's first record makes the topic"""
    name = t.name()
    acks = c.produce(name, [{"value": "first", "partition": 0}], {"timeout_ms": 30_000})
    return [acks, described(c, name)]


@scenario("auto-create-consume", SECTION, world="auto-create", seconds=90)
def consume(c: Client, t: Case) -> Outcome:
    """a subscriber that allows it makes the topic"""
    name = t.name()
    c.open_consumer("a", {"group": t.group(), "reset": "earliest", "auto_create": True})
    c.subscribe("a", [name])
    attempt(lambda: c.poll("a", 0, 5_000))
    return name in c.list_topics()


@scenario("auto-create-describe", SECTION, clients=CAREFUL, world="auto-create")
def describe(c: Client, t: Case) -> Outcome:
    """asking for a description makes nothing"""
    name = t.name()
    return [attempt(lambda: c.describe_topics([name])), name in c.list_topics()]


@scenario("auto-create-bad-name", SECTION, world="auto-create", seconds=90)
def bad_name(c: Client, t: Case) -> Outcome:
    """a name that no topic can have"""
    return attempt(lambda: c.produce("not a name", [{"value": "x"}], {"timeout_ms": 6_000}))
