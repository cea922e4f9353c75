"""Spark's Kafka connector on Kafka 4.3.1 beside the source on Penstock: the same topics and options, the same rows.

A case whose outcome differs says so, and why; the table in docs/spark.md has each of them. It takes minutes:
`make spark-parity` runs it, in batches and as streams.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bench.peer import KafkaCluster
from confluent_kafka import Producer

from penstock.local import ports
from support.cluster import running_cluster
from support.java import needs_java
from support.kafka import create_topic
from support.spark_connector import connector_jars

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    needs_java,
    pytest.mark.skipif(
        "PENSTOCK_SPARK_PARITY" not in os.environ, reason="takes minutes: make spark-parity runs it"
    ),
]

TOPICS = {"orders": 2, "my-orders-eu": 1, "ORDERS": 1, "__private": 1, "empty": 2}
SAME, DIFFERS = "same", "differs"
TIME_MS = 1_700_000_000_000
"""Of the first record; each is a second later than the one before it."""


@dataclass(frozen=True)
class Case:
    name: str
    options: dict[str, str]
    outcome: str = SAME
    """SAME: rows; "refused": an error of both; DIFFERS: of the one rows and of the other an error, or other rows."""
    columns: list[str] = field(default_factory=list)
    stream: bool = False


def offsets(text: str) -> str:
    """`0:3 1:-1` as the connector's JSON for the topic `orders`."""
    pairs = dict(item.split(":") for item in text.split())
    return json.dumps({"orders": {part: int(offset) for part, offset in pairs.items()}})


ORDERS = {"subscribe": "orders"}
BATCH = [
    Case("subscribe", ORDERS),
    Case("subscribe two", {"subscribe": "orders, my-orders-eu"}),
    Case("an empty topic", {"subscribe": "empty"}),
    Case("pattern orders", {"subscribePattern": "orders"}),
    Case("pattern (?i)orders", {"subscribePattern": "(?i)orders"}),
    Case("pattern __private", {"subscribePattern": "__private"}),
    Case("pattern ^orders$", {"subscribePattern": "^orders$"}),
    Case("pattern .*", {"subscribePattern": ".*"}),
    Case("assign", {"assign": '{"orders":[1]}'}),
    Case("assign what is not there", {"assign": '{"orders":[1,7]}'}, DIFFERS),
    Case("a topic that is not there", {"subscribe": "absent"}, "refused"),
    Case("no strategy", {}, "refused"),
    Case("two strategies", ORDERS | {"assign": '{"orders":[1]}'}, "refused"),
    Case("startingOffsets", ORDERS | {"startingOffsets": offsets("0:7 1:-2")}),
    Case("endingOffsets", ORDERS | {"endingOffsets": offsets("0:7 1:-1")}),
    Case("a start at latest", ORDERS | {"startingOffsets": "latest"}, "refused"),
    Case("an end at earliest", ORDERS | {"endingOffsets": "earliest"}, "refused"),
    Case("a partition too few", ORDERS | {"startingOffsets": offsets("0:7")}, "refused"),
    Case("startingTimestamp", ORDERS | {"startingTimestamp": str(TIME_MS + 9_500)}),
    Case("endingTimestamp", ORDERS | {"endingTimestamp": str(TIME_MS + 9_500)}),
    Case(
        "startingOffsetsByTimestamp",
        ORDERS | {"startingOffsetsByTimestamp": offsets(f"0:{TIME_MS + 9_500} 1:1")},
    ),
    Case(
        "endingOffsetsByTimestamp", ORDERS | {"endingOffsetsByTimestamp": offsets(f"0:{TIME_MS + 9_500} 1:1")}
    ),
    Case("a start too late", ORDERS | {"startingTimestamp": str(TIME_MS * 2)}, "refused"),
    Case(
        "a start too late, strategy latest",
        ORDERS | {"startingTimestamp": str(TIME_MS * 2), "startingOffsetsByTimestampStrategy": "latest"},
    ),
    Case("minPartitions", ORDERS | {"minPartitions": "7"}),
    Case("maxRecordsPerPartition", ORDERS | {"maxRecordsPerPartition": "3", "minPartitions": "1"}),
    Case(
        "includeHeaders", ORDERS | {"includeHeaders": "true"}, columns=["to_json(struct(headers)) AS headers"]
    ),
    Case("kafka.isolation.level", ORDERS | {"kafka.isolation.level": "read_committed"}),
    Case("groupIdPrefix", ORDERS | {"groupIdPrefix": "mine"}),
    Case("kafka.group.id", ORDERS | {"kafka.group.id": "mine"}),
    Case("tuning", ORDERS | {"kafka.max.poll.records": "3", "kafka.fetch.min.bytes": "1"}),
    Case("maxOffsetsPerTrigger in a batch", ORDERS | {"maxOffsetsPerTrigger": "3"}),
    Case("auto.offset.reset", ORDERS | {"kafka.auto.offset.reset": "latest"}, "refused"),
    Case("key.deserializer", ORDERS | {"kafka.key.deserializer": "x"}, "refused"),
    Case("enable.auto.commit", ORDERS | {"kafka.enable.auto.commit": "true"}, "refused"),
    Case("interceptor.classes", ORDERS | {"kafka.interceptor.classes": "x"}, "refused"),
    Case("a misspelt option", ORDERS | {"startingOfsets": "earliest"}, DIFFERS),
]
FIRST = {"startingOffsets": "earliest"}
STREAM = [
    Case("stream", ORDERS | FIRST, stream=True),
    Case("stream from latest", ORDERS, stream=True),
    Case("stream maxOffsetsPerTrigger", ORDERS | FIRST | {"maxOffsetsPerTrigger": "7"}, stream=True),
    Case("stream minOffsetsPerTrigger", ORDERS | FIRST | {"minOffsetsPerTrigger": "1000"}, stream=True),
    Case("stream minPartitions", ORDERS | FIRST | {"minPartitions": "5"}, stream=True),
    Case("stream pattern", {"subscribePattern": "(?i)orders"} | FIRST, stream=True),
    Case("stream by time", ORDERS | {"startingTimestamp": str(TIME_MS + 9_500)}, stream=True),
    Case("stream with an end", ORDERS | FIRST | {"endingOffsets": "latest"}, "refused", stream=True),
    Case(
        "stream min above max",
        ORDERS | FIRST | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
        "refused",
        stream=True,
    ),
]
CASES = BATCH + STREAM


def fill(bootstrap: str) -> None:
    """The same records, partitions and times in every cluster."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for topic, count in TOPICS.items():
        for number in range(0 if topic == "empty" else 40):
            producer.produce(
                topic,
                key=None if number % 5 == 0 else b"k%d" % number,
                value=None if number % 7 == 0 else b"v%d" % number,
                partition=number % count,
                timestamp=TIME_MS + number * 1000,
                headers=[("a", b"1"), ("a", None)] if number % 3 == 0 else None,
            )
    assert producer.flush(120) == 0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    kafka = KafkaCluster(tmp_path_factory.mktemp("kafka"), 1, ports.choose_base(), heap="512M")
    kafka.start()
    try:
        with running_cluster(tmp_path_factory.mktemp("penstock"), controllers=1, nodes=1) as penstock:
            for bootstrap in (kafka.bootstrap, penstock.bootstrap):
                for topic, count in TOPICS.items():
                    create_topic(bootstrap, topic, count, 1)
                fill(bootstrap)
            sources = {
                "kafka": {"kafka.bootstrap.servers": kafka.bootstrap},
                "penstock": {"gateway": penstock.gateway},
            }
            yield run(sources)
    finally:
        kafka.stop()


def run(sources: dict[str, dict[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
    work = {
        "jars": [str(jar) for jar in connector_jars()],
        "sources": sources,
        "cases": [
            {"name": case.name, "options": case.options, "columns": case.columns, "stream": case.stream}
            for case in CASES
        ],
    }
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("parity_application.py"))],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    answers = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {(answer["name"], answer["format"]): answer for answer in answers}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_outcome_is_the_connectors(outcomes: dict[tuple[str, str], dict[str, Any]], case: Case) -> None:
    theirs, ours = outcomes[(case.name, "kafka")], outcomes[(case.name, "penstock")]
    if case.outcome == SAME:
        assert "error" not in theirs, theirs
        assert "error" not in ours, ours
        assert ours["rows"] == theirs["rows"]
    elif case.outcome == "refused":
        assert "error" in theirs, theirs
        # Ours is one sentence, in the last line.
        assert "Error: " in ours["error"], ours
    else:
        assert ours.get("rows") != theirs.get("rows")


def test_there_is_something_to_compare(outcomes: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert len(outcomes[("subscribe", "kafka")]["rows"]) == 40
    assert {row[2] for row in outcomes[("pattern orders", "kafka")]["rows"]} == {"orders", "my-orders-eu"}
