"""Spark's Kafka connector on Kafka 4.3.1 beside source and sink on Penstock: same topics and options, same rows.

A case whose outcome differs says so, and names the row of the table in docs/spark.md that says why. `make test` runs
those of SHORT; `make spark-parity` runs all, -k some.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from bench.peer import KafkaCluster
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from penstock.local import ports
from support.cluster import running_cluster
from support.java import needs_java
from support.kafka import client_config, create_topic, lose
from support.spark import WAIT_S
from support.spark_connector import connector_jars

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    needs_java,
]

TOPICS = {"orders": 2, "my-orders-eu": 1, "ORDERS": 1, "__private": 1, "empty": 2, "trimmed": 1}
TRIMMED = "trimmed"
"""Whose first records are deleted."""
TRIMMED_AT = 15
WRITTEN_PARTITIONS = 3
SAME, DIFFERS = "same", "differs"
SPARK_PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
TIME_MS = 1_700_000_000_000
"""Of the first record; each is a second later than the one before it."""


@dataclass(frozen=True)
class Case:
    name: str
    options: dict[str, str]
    outcome: str = SAME
    """SAME: rows; DIFFERS: rows of the connector, and of ours other ones or a refusal; else an error of both, and this
    regular expression is in each."""
    row: str = ""
    """Where the outcome differs: how the row of docs/spark.md begins that says so."""
    columns: list[str] = field(default_factory=list)
    stream: bool = False
    bare: bool = False
    """Without the address of the cluster."""
    write: str = ""
    """A SELECT whose rows are written; compared is what a Kafka client reads then. {topic} is one of its own."""
    reads: dict[str, str] = field(default_factory=dict)
    """Options by which a stream that is written is read."""
    resumed: bool = False
    """Of a stream: its checkpoint is looked at by `penstock spark offsets`, and read on from there."""
    write_times: bool = False
    """Timestamps of what was written are compared too."""
    loses: bool = False
    """A stream that is started again, on a topic of its own ({topic}), of which records that it has not read yet are
    deleted in between."""


def offsets(text: str) -> str:
    """`0:3 1:-1` as the connector's JSON for the topic `orders`."""
    pairs = dict(item.split(":") for item in text.split())
    return json.dumps({"orders": {part: int(offset) for part, offset in pairs.items()}})


ORDERS = {"subscribe": "orders"}
HEADERS = ["to_json(struct(headers)) AS headers"]
FROM_WHAT_IS_GONE = {"subscribe": TRIMMED, "startingOffsets": '{"trimmed":{"0":7}}'}
GOES_ON = {"failOnDataLoss": "false"}
LOST = "(?i)(data may have been lost|was 7 but consumer reset to 15|outside 15)"
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
    Case("pattern of a set", {"subscribePattern": "[n-p&&[^q]]rders"}, DIFFERS, "| `subscribePattern`"),
    Case("assign what is not there", {"assign": '{"orders":[1,7]}'}, DIFFERS, "| a topic of `subscribe`"),
    Case(
        "a topic that is not there",
        {"subscribe": "absent"},
        "UnknownTopicOrPartition|no such topic or partition: absent",
    ),
    Case("no strategy", {}, "must be specified|subscribe, subscribePattern"),
    Case("two strategies", ORDERS | {"assign": '{"orders":[1]}'}, "Only one of"),
    Case("startingOffsets", ORDERS | {"startingOffsets": offsets("0:7 1:-2")}),
    Case("endingOffsets", ORDERS | {"endingOffsets": offsets("0:7 1:-1")}),
    Case("a start at latest", ORDERS | {"startingOffsets": "latest"}, "can't be latest for batch"),
    Case("an end at earliest", ORDERS | {"endingOffsets": "earliest"}, "can't be earliest for batch"),
    Case(
        "a partition too few",
        ORDERS | {"startingOffsets": offsets("0:7")},
        "Assigned: Set.orders-0, orders-1|missing: orders-1",
    ),
    Case("startingTimestamp", ORDERS | {"startingTimestamp": str(TIME_MS + 9_500)}),
    Case("endingTimestamp", ORDERS | {"endingTimestamp": str(TIME_MS + 9_500)}),
    Case(
        "startingOffsetsByTimestamp",
        ORDERS | {"startingOffsetsByTimestamp": offsets(f"0:{TIME_MS + 9_500} 1:1")},
    ),
    Case(
        "endingOffsetsByTimestamp", ORDERS | {"endingOffsetsByTimestamp": offsets(f"0:{TIME_MS + 9_500} 1:1")}
    ),
    Case(
        "a start too late",
        ORDERS | {"startingTimestamp": str(TIME_MS * 2)},
        "(No offset matched|no record is as late).*orders-0",
    ),
    Case(
        "a start too late, strategy latest",
        ORDERS | {"startingTimestamp": str(TIME_MS * 2), "startingOffsetsByTimestampStrategy": "latest"},
    ),
    Case("minPartitions", ORDERS | {"minPartitions": "7"}),
    Case("maxRecordsPerPartition", ORDERS | {"maxRecordsPerPartition": "3", "minPartitions": "1"}),
    Case("includeHeaders", ORDERS | {"includeHeaders": "true"}, columns=HEADERS),
    Case("kafka.isolation.level", ORDERS | {"kafka.isolation.level": "read_committed"}),
    Case("groupIdPrefix", ORDERS | {"groupIdPrefix": "mine"}),
    Case("kafka.group.id", ORDERS | {"kafka.group.id": "mine"}),
    Case("tuning", ORDERS | {"kafka.max.poll.records": "3", "kafka.fetch.min.bytes": "1"}),
    Case("maxOffsetsPerTrigger in a batch", ORDERS | {"maxOffsetsPerTrigger": "3"}),
    Case("auto.offset.reset", ORDERS | {"kafka.auto.offset.reset": "latest"}, "auto.offset.reset"),
    Case("key.deserializer", ORDERS | {"kafka.key.deserializer": "x"}, "key.deserializer"),
    Case("enable.auto.commit", ORDERS | {"kafka.enable.auto.commit": "true"}, "enable.auto.commit"),
    Case("interceptor.classes", ORDERS | {"kafka.interceptor.classes": "x"}, "interceptor.classes"),
    Case("value.deserializer", ORDERS | {"kafka.value.deserializer": "x"}, "value.deserializer"),
    Case("no address", ORDERS, "kafka.bootstrap.servers|option gateway", bare=True),
    Case(
        "a start by time before one by offsets",
        ORDERS
        | {"startingTimestamp": str(TIME_MS + 9_500), "startingOffsetsByTimestamp": offsets("0:1 1:1")}
        | {"startingOffsets": offsets("0:3 1:3")},
    ),
    Case(
        "an end by time before one by offsets",
        ORDERS
        | {"endingOffsetsByTimestamp": offsets(f"0:{TIME_MS + 9_500} 1:1")}
        | {"endingOffsets": offsets("0:3 1:3")},
    ),
    Case(
        "patience",
        ORDERS
        | {"failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": "60000"}
        | {"fetchOffset.numRetries": "5", "fetchOffset.retryIntervalMs": "20"},
    ),
    Case(
        "a misspelt option", ORDERS | {"startingOfsets": "earliest"}, DIFFERS, "| an option that is not known"
    ),
    Case("a start that is gone", FROM_WHAT_IS_GONE, LOST),
    Case("a start that is gone, failOnDataLoss=false", FROM_WHAT_IS_GONE | GOES_ON),
]
FIRST = {"startingOffsets": "earliest"}
STREAM = [
    Case("stream", ORDERS | FIRST, stream=True),
    Case("stream from latest", ORDERS, stream=True),
    Case(
        "stream maxOffsetsPerTrigger",
        ORDERS | FIRST | {"maxOffsetsPerTrigger": "8"},
        stream=True,
        resumed=True,
    ),
    Case(
        "stream maxOffsetsPerTrigger, uneven",
        ORDERS | FIRST | {"maxOffsetsPerTrigger": "7"},
        DIFFERS,
        "| `maxOffsetsPerTrigger` that leaves a remainder",
        stream=True,
    ),
    Case("stream minOffsetsPerTrigger", ORDERS | FIRST | {"minOffsetsPerTrigger": "1000"}, stream=True),
    Case(
        "stream maxTriggerDelay",
        ORDERS | FIRST | {"minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1s"},
        stream=True,
    ),
    Case("stream assign", {"assign": '{"orders":[0]}'} | FIRST, stream=True),
    Case("stream from offsets", ORDERS | {"startingOffsets": offsets("0:7 1:-1")}, stream=True),
    Case("stream includeHeaders", ORDERS | FIRST | {"includeHeaders": "true"}, columns=HEADERS, stream=True),
    Case("stream failOnDataLoss", ORDERS | FIRST | {"failOnDataLoss": "false"}, stream=True),
    Case("stream minPartitions", ORDERS | FIRST | {"minPartitions": "5"}, stream=True),
    Case("stream pattern", {"subscribePattern": "(?i)orders"} | FIRST, stream=True),
    Case("stream by time", ORDERS | {"startingTimestamp": str(TIME_MS + 9_500)}, stream=True),
    Case(
        "stream with an end by time",
        ORDERS | FIRST | {"endingTimestamp": str(TIME_MS)},
        DIFFERS,
        "| `endingTimestamp` and the like in a stream",
        stream=True,
    ),
    Case(
        "stream with an end",
        ORDERS | FIRST | {"endingOffsets": "latest"},
        "not valid in streaming queries",
        stream=True,
    ),
    Case("stream subscribe two", {"subscribe": "orders, my-orders-eu"} | FIRST, stream=True),
    Case("stream an empty topic", {"subscribe": "empty"} | FIRST, stream=True),
    Case("stream pattern orders", {"subscribePattern": "orders"} | FIRST, stream=True),
    Case("stream pattern __private", {"subscribePattern": "__private"} | FIRST, stream=True),
    Case(
        "stream startingOffsetsByTimestamp",
        ORDERS | {"startingOffsetsByTimestamp": offsets(f"0:{TIME_MS + 9_500} 1:1")},
        stream=True,
    ),
    Case(
        "stream a start by time before one by offsets",
        ORDERS
        | {"startingTimestamp": str(TIME_MS + 9_500), "startingOffsetsByTimestamp": offsets("0:1 1:1")}
        | {"startingOffsets": offsets("0:3 1:3")},
        stream=True,
    ),
    Case(
        "stream a start too late",
        ORDERS | {"startingTimestamp": str(TIME_MS * 2)},
        "(No offset matched|no record is as late).*orders-0",
        stream=True,
    ),
    Case(
        "stream a start too late, strategy latest",
        ORDERS | {"startingTimestamp": str(TIME_MS * 2), "startingOffsetsByTimestampStrategy": "latest"},
        stream=True,
    ),
    Case("stream maxRecordsPerPartition", ORDERS | FIRST | {"maxRecordsPerPartition": "3"}, stream=True),
    Case(
        "stream kafka.isolation.level",
        ORDERS | FIRST | {"kafka.isolation.level": "read_committed"},
        stream=True,
    ),
    Case("stream groupIdPrefix", ORDERS | FIRST | {"groupIdPrefix": "mine"}, stream=True),
    Case("stream kafka.group.id", ORDERS | FIRST | {"kafka.group.id": "mine"}, stream=True),
    Case(
        "stream tuning",
        ORDERS | FIRST | {"kafka.max.poll.records": "3", "kafka.fetch.min.bytes": "1"},
        stream=True,
    ),
    Case(
        "stream patience",
        ORDERS
        | FIRST
        | {"kafkaConsumer.pollTimeoutMs": "60000"}
        | {"fetchOffset.numRetries": "5", "fetchOffset.retryIntervalMs": "20"},
        stream=True,
    ),
    Case("stream no strategy", FIRST, "must be specified|subscribe, subscribePattern", stream=True),
    Case("stream two strategies", ORDERS | {"assign": '{"orders":[1]}'}, "Only one of", stream=True),
    Case("stream no address", ORDERS, "kafka.bootstrap.servers|option gateway", bare=True, stream=True),
    Case(
        "stream a partition too few",
        ORDERS | {"startingOffsets": offsets("0:7")},
        "Assigned: Set.orders-0, orders-1|missing: orders-1",
        stream=True,
    ),
    Case(
        "stream a topic that is not there",
        {"subscribe": "absent"} | FIRST,
        "UnknownTopicOrPartition|no such topic or partition: absent",
        stream=True,
    ),
    Case(
        "stream endingOffsetsByTimestamp",
        ORDERS | FIRST | {"endingOffsetsByTimestamp": offsets(f"0:{TIME_MS + 9_500} 1:1")},
        "not valid in streaming queries",
        stream=True,
    ),
    *(
        Case(f"stream {name}", ORDERS | FIRST | {f"kafka.{name}": value}, name, stream=True)
        for name, value in (
            ("auto.offset.reset", "latest"),
            ("key.deserializer", "x"),
            ("value.deserializer", "x"),
            ("enable.auto.commit", "true"),
            ("interceptor.classes", "x"),
        )
    ),
    Case(
        "stream a misspelt option",
        ORDERS | {"startingOfsets": "earliest"},
        DIFFERS,
        "| an option that is not known",
        stream=True,
    ),
    Case("stream a start that is gone", FROM_WHAT_IS_GONE, LOST, stream=True),
    Case("stream a start that is gone, failOnDataLoss=false", FROM_WHAT_IS_GONE | GOES_ON, stream=True),
    Case(
        "stream a loss between two runs",
        {"subscribe": "{topic}"} | FIRST,
        "(?i)data may have been lost|offsets 20 to 29 are gone",
        stream=True,
        loses=True,
    ),
    Case(
        "stream a loss between two runs, failOnDataLoss=false",
        {"subscribe": "{topic}"} | FIRST | GOES_ON,
        stream=True,
        loses=True,
    ),
    Case(
        "stream min above max",
        ORDERS | FIRST | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
        r"\(9\) is higher than",
        stream=True,
    ),
]
NUMBERS = "FROM (SELECT id, CAST(id AS STRING) AS text FROM range(30))"
OWN = {"topic": "{topic}"}
WRITES = [
    Case("write by key", OWN, write=f"SELECT if(id = 7, '', text) AS key, text AS value {NUMBERS}"),
    Case(
        "write binary and null",
        OWN,
        write=f"SELECT 0 AS partition, CAST(if(id % 3 = 0, NULL, text) AS BINARY) AS key, "
        f"CAST(if(id % 2 = 0, NULL, text) AS BINARY) AS value {NUMBERS}",
    ),
    Case(
        "write to a partition", OWN, write=f"SELECT CAST(id % 3 AS INT) AS partition, text AS value {NUMBERS}"
    ),
    Case("write by a column", {}, write=f"SELECT '{{topic}}' AS topic, text AS key, text AS value {NUMBERS}"),
    Case("write by option", OWN, write=f"SELECT 'absent' AS topic, text AS key, text AS value {NUMBERS}"),
    Case(
        "write headers",
        OWN,
        write="SELECT text AS key, text AS value, if(id % 4 = 0, NULL, array(named_struct('key', 'a', 'value', "
        f"CAST(text AS BINARY)), named_struct('key', 'a', 'value', CAST(NULL AS BINARY)))) AS headers {NUMBERS}",
    ),
    Case("write other columns", OWN, write=f"SELECT text AS key, text AS value, id {NUMBERS}"),
    Case(
        "write gzip",
        OWN | {"kafka.compression.type": "gzip"},
        write=f"SELECT text AS key, text AS value {NUMBERS}",
    ),
    Case(
        "write a stream",
        OWN,
        write="SELECT key, value, partition, headers FROM incoming WHERE topic = 'orders'",
        stream=True,
        reads=ORDERS | FIRST | {"includeHeaders": "true"},
    ),
    Case(
        "write a stream by key",
        {},
        write="SELECT '{topic}' AS topic, key, key AS value FROM incoming WHERE key IS NOT NULL",
        stream=True,
        reads={"assign": '{"orders":[0]}'} | FIRST,
    ),
    Case(
        "write timestamps",
        OWN,
        DIFFERS,
        "| a column `timestamp` that is written",
        write=f"SELECT text AS key, text AS value, timestamp_seconds(1700000000 + id) AS timestamp {NUMBERS}",
        write_times=True,
    ),
    Case(
        "write without value",
        OWN,
        "'?value'? not found|no column value",
        write=f"SELECT text AS key {NUMBERS}",
    ),
    Case("write a number", OWN, "value.*(BINARY|binary)", write=f"SELECT id AS value {NUMBERS}"),
    Case("write without a topic", {}, "(?i)topic", write=f"SELECT text AS value {NUMBERS}"),
    Case(
        "write to no topic",
        {},
        "(?i)null (as )?topic",
        write=f"SELECT CAST(NULL AS STRING) AS topic, text AS value {NUMBERS}",
    ),
    Case(
        "write by key.serializer",
        OWN | {"kafka.key.serializer": "x"},
        "key.serializer",
        write=f"SELECT text AS value {NUMBERS}",
    ),
    Case(
        "write by partitioner.class",
        OWN | {"kafka.partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"},
        DIFFERS,
        "| `kafka.partitioner.class`",
        write=f"SELECT text AS key, text AS value {NUMBERS}",
    ),
]
CASES = BATCH + STREAM + WRITES
WITHOUT_ROWS = {
    *("an empty topic", "a start too late, strategy latest", "stream from latest"),
    *("stream an empty topic", "stream a start too late, strategy latest"),
}
SHORT = {
    "subscribe two", "pattern orders", "pattern (?i)orders", "pattern __private", "assign", "startingOffsets",
    "endingTimestamp", "startingOffsetsByTimestamp", "minPartitions", "includeHeaders", "kafka.isolation.level",
    "no strategy", "a partition too few", "auto.offset.reset", "a misspelt option", "stream maxOffsetsPerTrigger",
    "stream pattern", "write by key", "write headers", "write timestamps", "write without value",
}  # fmt: skip
WHOLE = "PENSTOCK_SPARK_PARITY" in os.environ
ASKED = [case for case in CASES if WHOLE or case.name in SHORT]


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
def chosen(request: pytest.FixtureRequest) -> list[Case]:
    """The cases that are to run: -k leaves some out, and each costs seconds."""
    wanted = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_the_outcome_is_the_connectors"
    ]
    return [case for case in ASKED if case in wanted]


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, chosen: list[Case]
) -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    kafka = KafkaCluster(tmp_path_factory.mktemp("kafka"), 1, ports.choose_base(), heap="512M")
    kafka.start()
    try:
        with running_cluster(tmp_path_factory.mktemp("penstock"), controllers=1, nodes=1) as penstock:
            for bootstrap in (kafka.bootstrap, penstock.bootstrap):
                for topic, count in TOPICS.items():
                    # The records are years old, and retention would take them.
                    create_topic(bootstrap, topic, count, 1, retention_ms="-1")
                fill(bootstrap)
                lose(bootstrap, TRIMMED, TRIMMED_AT)
                for case in chosen:
                    if case.write or case.loses:
                        partitions = WRITTEN_PARTITIONS if case.write else 1
                        create_topic(bootstrap, topic_of(case), partitions, 1, retention_ms="-1")
            sources = {
                "kafka": {"kafka.bootstrap.servers": kafka.bootstrap},
                "penstock": {"gateway": penstock.gateway},
            }
            addresses = {"kafka": kafka.bootstrap, "penstock": penstock.bootstrap}
            found = run(sources, addresses, chosen)
            for case, (form, address) in product(
                chosen, (("kafka", kafka.bootstrap), ("penstock", penstock.bootstrap))
            ):
                if case.write and "rows" in found[(case.name, form)]:
                    found[(case.name, form)]["rows"] = written(address, case)
            yield found
    finally:
        kafka.stop()


def topic_of(case: Case) -> str:
    """Where a case writes to, or what it has for itself."""
    return re.sub("[ ,=]+", "-", case.name)


def written(bootstrap: str, case: Case) -> list[tuple[Any, ...]]:
    """The records of its topic: partition, offset, key, value, headers, and the time where that counts."""
    consumer = Consumer(
        client_config(bootstrap, **{"group.id": "unused", "enable.partition.eof": True, "check.crcs": True})
    )
    found: list[tuple[Any, ...]] = []
    left = set(range(WRITTEN_PARTITIONS))
    deadline_s = time.monotonic() + WAIT_S
    try:
        consumer.assign([TopicPartition(topic_of(case), number, 0) for number in left])
        while left:
            assert time.monotonic() < deadline_s, f"{topic_of(case)}: {len(found)} records, no end of {left}"
            for message in consumer.consume(100, timeout=0.2):
                error = message.error()
                if error is None:
                    time_ms = message.timestamp()[1] if case.write_times else 0
                    headers: Any = message.headers()
                    found.append(
                        (
                            message.partition(),
                            message.offset(),
                            message.key(),
                            message.value(),
                            headers,
                            time_ms,
                        )
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    assert error.retriable(), error
    finally:
        consumer.close()
    return sorted(found, key=lambda record: record[:2])


def run(
    sources: dict[str, dict[str, str]], addresses: dict[str, str], cases: list[Case]
) -> dict[tuple[str, str], dict[str, Any]]:
    work = {
        "jars": [str(jar) for jar in connector_jars()],
        "sources": sources,
        "addresses": addresses,
        "cases": [
            asdict(case)
            | {
                "options": {name: value.format(topic=topic_of(case)) for name, value in case.options.items()}
                if case.write or case.loses
                else case.options,
                "topic": topic_of(case),
                "write": case.write.format(topic=topic_of(case)),
            }
            for case in cases
        ],
    }
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("parity_application.py"))],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        input=json.dumps(work),
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    answers = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {(answer["name"], answer["format"]): answer for answer in answers}


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_the_outcome_is_the_connectors(outcomes: dict[tuple[str, str], dict[str, Any]], case: Case) -> None:
    theirs, ours = outcomes[(case.name, "kafka")], outcomes[(case.name, "penstock")]
    if case.outcome == SAME:
        assert "error" not in theirs, theirs
        assert "error" not in ours, ours
        assert bool(theirs["rows"]) == (case.name not in WITHOUT_ROWS)
        assert ours["rows"] == theirs["rows"]
    elif case.outcome == DIFFERS:
        assert f"\n{case.row}" in SPARK_PAGE.read_text()
        assert "error" not in theirs, theirs
        assert ours.get("rows") != theirs["rows"]
        if "error" in ours:
            assert "Error: " in ours["error"], ours
        elif case.stream:
            # In other micro-batches.
            assert [row[:-1] for row in ours["rows"]] == [row[:-1] for row in theirs["rows"]]
    else:
        assert re.search(case.outcome, theirs["error"]), theirs
        # Ours is one sentence, in the last line.
        assert "Error: " in ours["error"], ours
        assert re.search(case.outcome, ours["error"]), ours


@pytest.mark.parametrize("form", ["kafka", "penstock"])
def test_offsets_of_a_checkpoint_are_where_the_next_query_starts(
    outcomes: dict[tuple[str, str], dict[str, Any]], form: str
) -> None:
    """Of checkpoints that Spark has written, of the connector's source and of ours."""
    found = [answer for (_, of), answer in outcomes.items() if of == form and "rest" in answer]
    if not found:
        pytest.skip("the case with a checkpoint was not asked for")
    (answer,) = found
    (source,) = answer["offsets"]["sources"]
    ends = {"orders": {str(part): 20 for part in range(TOPICS["orders"])}}
    assert (source["kind"], source["startingOffsets"]) == (form, ends)
    assert answer["offsets"]["batch_id"] == max(int(row[-1]) for row in answer["rows"]) > 0
    # And of the first micro-batch: the batch has read all that came behind it, and nothing else.
    assert answer["rest"] == [row[:-1] for row in answer["rows"] if row[-1] != "0"]


def test_the_short_form_has_cases_of_the_table() -> None:
    assert {case.name for case in CASES} >= SHORT | WITHOUT_ROWS
