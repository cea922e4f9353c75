"""Many of something."""

from __future__ import annotations

from conformance.client import Client
from conformance.frame import Case, Outcome, scenario
from conformance.scenarios.groups import group_settings, settle, sizes

SECTION = "Many"
PARTITIONS = 1_000
ENOUGH = ("confluent-kafka", "java")
"""A thousand partitions on three nodes of Kafka take a minute and stay slow until they are deleted."""


@scenario("partitions-1000", SECTION, clients=ENOUGH, alone=True, seconds=240)
def thousand(c: Client, t: Case) -> Outcome:
    """a topic of 1,000 partitions: written and read"""
    topic = t.topic(partitions=PARTITIONS)
    records = [{"value": str(n), "partition": n} for n in range(PARTITIONS)]
    acks = c.produce(topic, records, {"timeout_ms": 60_000})
    c.open_consumer("c", {"reset": "earliest"})
    c.assign("c", [[topic, p, "beginning"] for p in range(PARTITIONS)])
    read = c.poll("c", PARTITIONS, 60_000)
    c.close_consumer("c")
    gone = c.delete_topics([topic])
    return [
        [ack for ack in acks if ack.get("offset") != 0],
        sorted(int(str(record["value"])) for record in read) == list(range(PARTITIONS)),
        gone,
    ]


@scenario("group-partitions-1000", SECTION, clients=ENOUGH, alone=True, seconds=240)
def thousand_in_a_group(c: Client, t: Case) -> Outcome:
    """1,000 partitions shared by two members"""
    topic, group = t.topic(partitions=PARTITIONS), t.group()
    members = [(c, name) for name in ("a", "b")]
    for _, name in members:
        c.open_consumer(name, group_settings(group, strategy="range"))
        c.subscribe(name, [topic])
    found = sizes(settle(members, topic, PARTITIONS, seconds=120))
    for _, name in members:
        c.close_consumer(name)
    return [found, c.delete_topics([topic])]


@scenario("records-20000", SECTION, seconds=180)
def records(c: Client, t: Case) -> Outcome:
    """20,000 records through one idempotent producer, in order"""
    topic = t.topic(partitions=2)
    sent = [{"value": f"{n}", "partition": n % 2} for n in range(20_000)]
    acks = c.produce(topic, sent, {"idempotence": True, "acks": "all", "linger_ms": 20, "timeout_ms": 90_000})
    wrong = [ack for ack in acks if "error" in ack]
    c.open_consumer("c", {"reset": "earliest"})
    c.assign("c", [[topic, 0, "beginning"], [topic, 1, "beginning"]])
    read = c.poll("c", 20_000, 60_000)
    values = [[r["value"] for r in read if r["partition"] == p] for p in range(2)]
    return [wrong, [one == [str(n) for n in range(p, 20_000, 2)] for p, one in enumerate(values)]]
