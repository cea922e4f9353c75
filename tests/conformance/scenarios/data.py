"""What is written comes back: compressions, sizes, headers, timestamps, keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.client import Client, Record
from conformance.frame import Case, Outcome, Play, scenario

SECTION = "Records"
AT_MS = 1_700_000_000_000
"""A time for records whose timestamp is looked at."""


def read_back(
    c: Client, topic: str, count: int, partition: int = 0, start: int | str = "beginning", **settings: Any
) -> list[Record]:
    """So many records of one partition, by hand."""
    c.open_consumer("reader", {"reset": "earliest", **settings})
    c.assign("reader", [[topic, partition, start]])
    records = c.poll("reader", count, 20_000)
    c.close_consumer("reader")
    return records


def plain(records: list[Record], *, times: bool = False) -> list[Any]:
    """Records without what is different each time."""
    left_out = {"topic"} if times else {"topic", "timestamp_ms"}
    return [{name: value for name, value in record.items() if name not in left_out} for record in records]


def _compression(codec: str) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic = t.topic()
        values = ["", "x", "y" * 1_000, "ab" * 50_000, "\x00\xff\x80", *(f"value {n}" for n in range(50))]
        records = [
            {"value": value, "key": f"k{n % 3}", "partition": 0, "timestamp_ms": AT_MS + n}
            for n, value in enumerate(values)
        ]
        acks = c.produce(topic, records, {"compression": codec, "linger_ms": 50})
        return {"acks": acks, "read": plain(read_back(c, topic, len(values)), times=True)}

    play.__doc__ = f"records of many sizes, {codec}"
    return play


for _codec in ("none", "gzip", "snappy", "lz4", "zstd"):
    scenario(f"produce-{_codec}", SECTION, fast=_codec in ("gzip", "zstd"))(_compression(_codec))


def _converted(codec: str) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic = t.topic(compression_type=codec)
        records = [{"value": "z" * 500 + str(n), "partition": 0, "timestamp_ms": AT_MS} for n in range(20)]
        acks = c.produce(topic, records, {"compression": "gzip", "linger_ms": 50})
        return {"acks": acks, "read": plain(read_back(c, topic, 20), times=True)}

    play.__doc__ = f"a topic with compression.type={codec}, gzip sent"
    return play


for _codec in ("uncompressed", "lz4", "snappy", "zstd"):
    scenario(f"topic-compression-{_codec}", SECTION)(_converted(_codec))


def _sized(value: str | None, key: str | None, what: str) -> Callable[[Client, Case], Outcome]:
    def play(c: Client, t: Case) -> Outcome:
        topic = t.topic()
        acks = c.produce(
            topic, [{"value": value, "key": key, "partition": 0}], {"request_bytes_max": 4_000_000}
        )
        return {"acks": acks, "read": plain(read_back(c, topic, 1, fetch_bytes_max=4_000_000))}

    play.__doc__ = what
    return play


scenario("size-null-value", SECTION, fast=True)(_sized(None, "k", "a tombstone"))
scenario("size-null-key", SECTION)(_sized("v", None, "no key"))
scenario("size-all-null", SECTION)(_sized(None, None, "neither key nor value"))
scenario("size-empty", SECTION, fast=True)(_sized("", "", "empty key and value: not the same as none"))
scenario("size-1-byte", SECTION)(_sized("x", "k", "1 B"))
scenario("size-1-kb", SECTION)(_sized("x" * 1024, "k", "1 KB"))
scenario("size-900-kb", SECTION)(_sized("x" * 900_000, "k", "900 KB"))
scenario("size-large-key", SECTION)(_sized("v", "k" * 200_000, "a key of 200 KB"))


@scenario("size-too-large", SECTION, fast=True)
def too_large(c: Client, t: Case) -> Outcome:
    """over the broker's message.max.bytes: refused, and the topic goes on"""
    topic = t.topic()
    settings = {"request_bytes_max": 4_000_000, "compression": "none"}
    first = c.produce(topic, [{"value": "x" * 2_000_000, "partition": 0}], settings)
    second = c.produce(topic, [{"value": "small", "partition": 0}], settings)
    return [first, second, plain(read_back(c, topic, 1))]


@scenario("size-topic-limit", SECTION)
def topic_limit(c: Client, t: Case) -> Outcome:
    """over and under a topic's max.message.bytes"""
    topic = t.topic(max_message_bytes="2000")
    settings = {"compression": "none"}
    acks = [
        c.produce(topic, [{"value": "x" * size, "partition": 0}], settings) for size in (1_000, 2_500, 1_900)
    ]
    return [acks, plain(read_back(c, topic, 2))]


@scenario("size-raised-limit", SECTION)
def raised_limit(c: Client, t: Case) -> Outcome:
    """a topic that allows 5 MB takes 3 MB"""
    topic = t.topic(max_message_bytes="5000000")
    settings = {"request_bytes_max": 5_000_000, "compression": "none"}
    acks = c.produce(topic, [{"value": "x" * 3_000_000, "partition": 0}], settings)
    # Larger than what a consumer asks for: it must get it all the same (KIP-74).
    return [acks, plain(read_back(c, topic, 1, partition_bytes_max=100_000))]


@scenario("headers", SECTION, fast=True)
def headers(c: Client, t: Case) -> Outcome:
    """headers, doubled names and empty values among them"""
    topic = t.topic()
    wanted = [["a", "1"], ["b", "\x00\xff"], ["a", "2"], ["empty", ""]]
    acks = c.produce(
        topic, [{"value": "v", "headers": wanted, "partition": 0}, {"value": "w", "partition": 0}]
    )
    return [acks, plain(read_back(c, topic, 2))]


@scenario("headers-null", SECTION)
def null_headers(c: Client, t: Case) -> Outcome:
    """headers without value, and one without name"""
    topic = t.topic()
    wanted = [["null", None], ["", "no name"], ["last", "1"]]
    return [
        c.produce(topic, [{"value": "v", "headers": wanted, "partition": 0}]),
        plain(read_back(c, topic, 1)),
    ]


@scenario("timestamps-create", SECTION, fast=True)
def create_time(c: Client, t: Case) -> Outcome:
    """CreateTime: the producer's timestamps come back, in no order and far from now"""
    topic = t.topic()
    times = (AT_MS, AT_MS - 5_000, 1, AT_MS + 7)
    records = [{"value": str(at), "timestamp_ms": at, "partition": 0} for at in times]
    return [c.produce(topic, records), plain(read_back(c, topic, len(times)), times=True)]


@scenario("timestamps-append", SECTION, fast=True)
def append_time(c: Client, t: Case) -> Outcome:
    """LogAppendTime: the broker's time, the same type for all clients"""
    topic = t.topic(message_timestamp_type="LogAppendTime")
    records = [{"value": str(n), "timestamp_ms": AT_MS, "partition": 0} for n in range(3)]
    acks = c.produce(topic, records, {"compression": "gzip", "linger_ms": 50})
    read = read_back(c, topic, 3)
    return [acks, plain(read), [record["timestamp_ms"] > AT_MS for record in read]]


@scenario("timestamps-future", SECTION)
def future(c: Client, t: Case) -> Outcome:
    """a timestamp further ahead than message.timestamp.after.max.ms is refused"""
    topic = t.topic()
    far = [{"value": "far", "timestamp_ms": 4_000_000_000_000, "partition": 0}]
    near = [{"value": "near", "timestamp_ms": AT_MS, "partition": 0}]
    return [c.produce(topic, far), c.produce(topic, near), plain(read_back(c, topic, 1), times=True)]


@scenario("timestamps-too-old", SECTION)
def too_old(c: Client, t: Case) -> Outcome:
    """a timestamp before message.timestamp.before.max.ms is refused"""
    topic = t.topic(message_timestamp_before_max_ms="3600000")
    old = [{"value": "old", "timestamp_ms": AT_MS, "partition": 0}]
    return [c.produce(topic, old), c.produce(topic, [{"value": "now", "partition": 0}])]


@scenario("compacted-null-key", SECTION)
def compacted_null_key(c: Client, t: Case) -> Outcome:
    """a record without key in a compacted topic is refused, others are not"""
    topic = t.topic(cleanup_policy="compact")
    return [
        c.produce(topic, [{"value": "v", "partition": 0}]),
        c.produce(topic, [{"value": "v", "key": "k", "partition": 0}]),
        plain(read_back(c, topic, 1)),
    ]


def _acks(acks: str, *, idempotence: bool) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic = t.topic(partitions=3)
        before = 0
        if acks == "0":  # a leader that does not lead yet has no way to say so
            before = 1
            for partition in range(3):
                t.fill(topic, ["first"], partition)
        records = [{"value": str(n), "partition": n % 3} for n in range(90)]
        answers = c.produce(topic, records, {"acks": acks, "idempotence": idempotence})
        return [answers, [plain(read_back(c, topic, before + 30, p)) for p in range(3)]]

    play.__doc__ = f"three partitions, acks={acks}, {'idempotent' if idempotence else 'not idempotent'}"
    return play


scenario("acks-0", SECTION)(_acks("0", idempotence=False))
scenario("acks-1", SECTION)(_acks("1", idempotence=False))
scenario("acks-all", SECTION, fast=True)(_acks("all", idempotence=False))
scenario("idempotent", SECTION, fast=True)(_acks("all", idempotence=True))


@scenario("keyed", SECTION)
def keyed(c: Client, t: Case) -> Outcome:
    """the client's own partitioner: a key's records are in one partition and in order"""
    topic = t.topic(partitions=4)
    records = [{"value": f"{n}", "key": f"key {n % 20}"} for n in range(100)]
    acks = c.produce(topic, records, {"acks": "all"})
    counts = [sum(1 for a in acks if a.get("partition") == p) for p in range(4)]
    read = [plain(read_back(c, topic, counts[p], p)) if counts[p] else [] for p in range(4)]
    return [counts, [[(r["key"], r["value"]) for r in part] for part in read]]
