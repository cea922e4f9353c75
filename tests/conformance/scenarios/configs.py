"""Configs: described, changed, refused, and in effect at once."""

from __future__ import annotations

from typing import Any

from conformance.client import Client
from conformance.frame import Case, Outcome, attempt, scenario, until

SECTION = "Configs"
TOPIC_KEYS = (
    "cleanup.policy", "compression.type", "delete.retention.ms", "file.delete.delay.ms", "flush.messages",
    "flush.ms", "index.interval.bytes", "max.compaction.lag.ms", "max.message.bytes",
    "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type",
    "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "preallocate",
    "retention.bytes", "retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms",
    "unclean.leader.election.enable",
)  # fmt: skip


def some(described: Any, keys: tuple[str, ...], *fields: str) -> Any:
    """Only these keys and fields of a description."""
    if not isinstance(described, dict):
        return described
    return {
        key: {field: entry.get(field) for field in fields or ("value", "source")}
        for key, entry in described.items()
        if key in keys
    }


@scenario("configs-topic-defaults", SECTION, fast=True)
def topic_defaults(c: Client, t: Case) -> Outcome:
    """every config of a new topic: value, read-only, sensitive"""
    topic = t.topic(retention_ms="default")
    found = c.describe_configs([["topic", topic]])[f"topic:{topic}"]
    return some(found, TOPIC_KEYS, "value", "read_only", "sensitive")


@scenario("configs-topic-sources", SECTION)
def topic_sources(c: Client, t: Case) -> Outcome:
    """where a value comes from, and what stands behind it"""
    topic = t.topic(retention_ms="123456", cleanup_policy="compact,delete")
    found = c.describe_configs([["topic", topic]])[f"topic:{topic}"]
    keys = ("retention.ms", "cleanup.policy", "segment.ms", "max.message.bytes")
    return some(found, keys, "value", "source", "type")


@scenario("configs-topic-keys", SECTION)
def topic_keys(c: Client, t: Case) -> Outcome:
    """which of Kafka's topic configs are told"""
    topic = t.topic()
    found = c.describe_configs([["topic", topic]])[f"topic:{topic}"]
    return sorted(key for key in found if key in TOPIC_KEYS)


@scenario("configs-alter-topic", SECTION, fast=True)
def alter_topic(c: Client, t: Case) -> Outcome:
    """set, append, subtract, delete; what is described after each"""
    topic = t.topic(retention_ms="default")
    label = f"topic:{topic}"
    keys = ("retention.ms", "cleanup.policy", "max.message.bytes")

    def now() -> Any:
        return some(c.describe_configs([["topic", topic]])[label], keys)

    def change(*changes: list[str | None], settled: Any) -> Any:
        answer = attempt(lambda: c.alter_configs("topic", topic, changes))
        # A change reaches each node in its own time.
        return [answer, until(now, lambda found: found == settled or settled is None)]

    first = change(["retention.ms", "set", "1000000"], ["max.message.bytes", "set", "5000"], settled=None)
    second = change(["cleanup.policy", "append", "compact"], settled=None)
    third = change(["cleanup.policy", "subtract", "delete"], ["retention.ms", "delete", None], settled=None)
    final = until(
        now, lambda f: isinstance(f, dict) and f.get("cleanup.policy", {}).get("value") == "compact"
    )
    return [first[0], second[0], third[0], final]


@scenario("configs-alter-errors", SECTION, fast=True)
def alter_errors(c: Client, t: Case) -> Outcome:
    """unknown keys, values that cannot be, unknown topics, appending to what is no list, validate_only"""
    topic = t.topic()

    def change(*changes: list[str | None], name: str = topic, validate: bool = False) -> Any:
        return attempt(lambda: c.alter_configs("topic", name, changes, validate))

    return [
        change(["no.such.key", "set", "1"]),
        change(["retention.ms", "set", "soon"]),
        change(["min.insync.replicas", "set", "0"]),
        change(["cleanup.policy", "set", "burn"]),
        change(["retention.ms", "append", "1"]),
        change(["retention.ms", "set", "1"], name=t.name("nowhere")),
        change(["retention.ms", "set", "77777"], validate=True),
        change(["retention.ms", "set", "1"], ["retention.ms", "delete", None]),
        some(c.describe_configs([["topic", topic]])[f"topic:{topic}"], ("retention.ms",)),
    ]


@scenario("configs-replace", SECTION)
def replace(c: Client, t: Case) -> Outcome:
    """AlterConfigs, the old form: what is not named goes back"""
    topic = t.topic(retention_ms="123456")
    label = f"topic:{topic}"
    keys = ("retention.ms", "max.message.bytes")
    answer = attempt(lambda: c.replace_configs("topic", topic, {"max.message.bytes": "7000"}))
    found = until(
        lambda: some(c.describe_configs([["topic", topic]])[label], keys),
        lambda f: isinstance(f, dict) and f.get("max.message.bytes", {}).get("value") == "7000",
    )
    return [answer, found]


@scenario("configs-live", SECTION, seconds=90)
def live(c: Client, t: Case) -> Outcome:
    """max.message.bytes is changed, and producers feel it"""
    topic = t.topic()

    def send(size: int) -> Any:
        return c.produce(topic, [{"value": "x" * size, "partition": 0}], {"compression": "none"})[0]

    seen: list[Any] = [send(5_000)]
    seen += [attempt(lambda: c.alter_configs("topic", topic, [["max.message.bytes", "set", "1000"]]))]
    seen += [until(lambda: send(5_000), lambda answer: "error" in answer, 20)]
    seen += [attempt(lambda: c.alter_configs("topic", topic, [["max.message.bytes", "delete", None]]))]
    last = until(lambda: send(5_000), lambda answer: "offset" in answer, 20)
    return [seen[0], seen[1], seen[2], seen[3], "offset" in last]


@scenario("configs-broker", SECTION)
def broker(c: Client, t: Case) -> Outcome:
    """a node's configs: some that every broker has"""
    found = c.describe_configs([["broker", "1"]])["broker:1"]
    keys = ("node.id", "message.max.bytes", "min.insync.replicas", "compression.type", "log.segment.bytes")
    return some(found, keys, "read_only", "sensitive")


@scenario("configs-broker-unknown", SECTION)
def broker_unknown(c: Client, t: Case) -> Outcome:
    """configs of a node that is not there, and of a topic that is not there"""
    return [
        attempt(lambda: c.describe_configs([["topic", t.name("nowhere")]])),
        attempt(lambda: c.alter_configs("broker", "1", [["node.id", "set", "7"]])),
    ]


@scenario("configs-group", SECTION)
def group(c: Client, t: Case) -> Outcome:
    """a group's configs (KIP-848)"""
    name = t.group()
    keys = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
    seen: list[Any] = [attempt(lambda: c.alter_configs("group", name, [[keys[0], "set", "7000"]]))]
    seen += [attempt(lambda: c.alter_configs("group", name, [["no.such.key", "set", "1"]]))]
    found = until(
        lambda: attempt(lambda: some(c.describe_configs([["group", name]])[f"group:{name}"], keys)),
        lambda f: isinstance(f, dict) and f.get(keys[0], {}).get("value") == "7000",
    )
    return [*seen, found]
