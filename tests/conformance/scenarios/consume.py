"""Reading: positions, ends, times, long polls, pauses, resets, metadata."""

from __future__ import annotations

import time
from typing import Any

from conformance.client import Client
from conformance.frame import Case, Outcome, attempt, scenario
from conformance.scenarios.data import AT_MS, plain, read_back

SECTION = "Reading"
ASKING = ("confluent-kafka", "kafka-python", "kcat", "java")
"""Those that give up on a topic that is not there; aiokafka asks for ever."""


def values(records: list[Any]) -> list[Any]:
    """The values alone."""
    return [record["value"] for record in records]


@scenario("watermarks", SECTION, fast=True)
def watermarks(c: Client, t: Case) -> Outcome:
    """first and end offsets, of an empty partition too"""
    topic = t.topic(partitions=2)
    t.fill(topic, [str(n) for n in range(7)])
    c.open_consumer("c")
    return [c.watermarks("c", topic, p) for p in range(2)]


@scenario("seek", SECTION, fast=True)
def seek(c: Client, t: Case) -> Outcome:
    """to an offset, back, to both ends; the position after each"""
    topic = t.topic()
    t.fill(topic, [str(n) for n in range(20)])
    c.open_consumer("c", {"reset": "earliest"})
    c.assign("c", [[topic, 0, 5]])
    seen: list[Any] = [values(c.poll("c", 3, 20_000)), c.position("c", topic, 0)]
    for where in (12, 0, "beginning"):
        c.seek("c", topic, 0, where)
        seen.append(values(c.poll("c", 2, 20_000)))
    c.seek("c", topic, 0, "end")
    # Long enough that a busy client has asked where the end is before there is another.
    seen.append(values(c.poll("c", 1, 5_000)))
    t.fill(topic, ["late"])
    seen.append(values(c.poll("c", 1, 20_000)))
    return seen


@scenario("start-at-end", SECTION)
def at_end(c: Client, t: Case) -> Outcome:
    """assigned at the end: only what comes later"""
    topic = t.topic()
    t.fill(topic, ["before"])
    c.open_consumer("c", {"reset": "latest"})
    c.assign("c", [[topic, 0, "end"]])
    first = values(c.poll("c", 1, 2_000))
    t.fill(topic, ["after"])
    return [first, values(c.poll("c", 1, 20_000))]


@scenario("pause-resume", SECTION, fast=True)
def pause(c: Client, t: Case) -> Outcome:
    """a paused partition gives nothing, the other one goes on"""
    topic = t.topic(partitions=2)
    for partition in range(2):
        t.fill(topic, [f"{partition}-{n}" for n in range(5)], partition)
    c.open_consumer("c", {"reset": "earliest"})
    c.assign("c", [[topic, 0, "beginning"], [topic, 1, "beginning"]])
    c.pause("c", [[topic, 0]])
    first = c.poll("c", 5, 10_000)
    c.resume("c", [[topic, 0]])
    second = c.poll("c", 5, 20_000)
    return [sorted(values(first)), sorted(values(second))]


@scenario("offsets-for-times", SECTION, fast=True)
def for_times(c: Client, t: Case) -> Outcome:
    """before the first, exactly, between two, after the last record; compressed ones too"""
    topic = t.topic(partitions=2)
    for n in range(6):
        t.fill(topic, [str(n)], timestamp_ms=AT_MS + 1_000 * n)
    c.open_consumer("c")
    wanted = (0, AT_MS, AT_MS + 1, AT_MS + 3_000, AT_MS + 4_999, AT_MS + 5_000, AT_MS + 5_001)
    found = [c.offsets_for_times("c", [[topic, 0, at]]) for at in wanted]
    return [found, c.offsets_for_times("c", [[topic, 1, AT_MS]])]


@scenario("offsets-for-times-unordered", SECTION)
def for_times_unordered(c: Client, t: Case) -> Outcome:
    """records whose timestamps go up and down"""
    topic = t.topic()
    for at in (5, 1, 9, 3, 7):
        t.fill(topic, [str(at)], timestamp_ms=AT_MS + at)
    c.open_consumer("c")
    return [c.offsets_for_times("c", [[topic, 0, AT_MS + at]]) for at in range(11)]


@scenario("long-poll-waits", SECTION)
def long_poll(c: Client, t: Case) -> Outcome:
    """a poll that began before the record comes gets it"""
    topic = t.topic()
    c.open_consumer("c", {"reset": "earliest", "fetch_wait_ms": 5_000})
    c.assign("c", [[topic, 0, "beginning"]])
    nothing = values(c.poll("c", 1, 1_000))
    t.fill(topic, ["now"])
    return [nothing, values(c.poll("c", 1, 20_000))]


@scenario("long-poll-min-bytes", SECTION)
def min_bytes(c: Client, t: Case) -> Outcome:
    """fetch.min.bytes that are never there: the wait ends it, and not much sooner"""
    topic = t.topic()
    t.fill(topic, ["small"])
    c.open_consumer("c", {"reset": "earliest", "fetch_bytes_min": 1_000_000, "fetch_wait_ms": 3_000})
    c.assign("c", [[topic, 0, "beginning"]])
    begun = time.monotonic()
    found = values(c.poll("c", 1, 20_000))
    return [found, time.monotonic() - begun > 1.5]


@scenario("small-fetches", SECTION)
def small_fetches(c: Client, t: Case) -> Outcome:
    """fetches smaller than a batch still make progress"""
    topic = t.topic()
    for n in range(4):
        t.fill(topic, [f"{n}" * 5_000])
    read = read_back(c, topic, 4, partition_bytes_max=1_000)
    return plain(read)


@scenario("many-partitions-read", SECTION)
def many_partitions(c: Client, t: Case) -> Outcome:
    """24 partitions on all nodes in one consumer"""
    topic = t.topic(partitions=24)
    for partition in range(24):
        t.fill(topic, [f"{partition}-{n}" for n in range(5)], partition)
    c.open_consumer("c", {"reset": "earliest"})
    c.assign("c", [[topic, p, "beginning"] for p in range(24)])
    return sorted(values(c.poll("c", 120, 30_000)))


@scenario("out-of-range-reset", SECTION)
def out_of_range(c: Client, t: Case) -> Outcome:
    """an offset past the end: earliest and latest take it back, none says so"""
    topic = t.topic()
    t.fill(topic, ["a", "b"])
    seen: list[Any] = []
    for reset in ("earliest", "latest", "none"):
        c.open_consumer(reset, {"reset": reset})
        c.assign(reset, [[topic, 0, 1_000]])
        wait_ms = 20_000 if reset == "earliest" else 3_000
        seen.append(attempt(lambda r=reset, w=wait_ms: values(c.poll(r, 2, w))))  # type: ignore[misc]
        c.close_consumer(reset)
    return seen


@scenario("after-delete-records", SECTION)
def after_delete(c: Client, t: Case) -> Outcome:
    """what was deleted is not read, the first offset is the new one"""
    topic = t.topic()
    t.fill(topic, [str(n) for n in range(10)])
    deleted = c.delete_records([[topic, 0, 4]])
    c.open_consumer("c", {"reset": "earliest"})
    low = c.watermarks("c", topic, 0)
    c.assign("c", [[topic, 0, 0]])
    return [deleted, low, values(c.poll("c", 6, 20_000))]


@scenario("unknown-topic-read", SECTION, clients=ASKING)
def unknown_topic(c: Client, t: Case) -> Outcome:
    """reading a topic that is not there"""
    c.open_consumer("c", {"reset": "earliest", "auto_create": False})

    def read() -> Any:
        c.assign("c", [[t.name("nowhere"), 0, "beginning"]])
        return values(c.poll("c", 1, 5_000))

    return attempt(read)


@scenario("compacted", SECTION, seconds=150)
def tombstones(c: Client, t: Case) -> Outcome:
    """a compacted topic is read like any other, tombstones included"""
    topic = t.topic(cleanup_policy="compact")
    records = [
        {"key": f"k{n % 3}", "value": None if n % 4 == 3 else str(n), "partition": 0} for n in range(12)
    ]
    return [c.produce(topic, records, {"acks": "all"}), plain(read_back(c, topic, 12))]
