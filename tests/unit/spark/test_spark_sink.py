"""Rows of Arrow to a gateway by the sink's parts, without Spark."""

from __future__ import annotations

import datetime as dt
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import pyspark_penstock.gateway as gateway_module
from pyspark_penstock import DefaultSource
from pyspark_penstock.encode import CODECS, Rows, encode_batches
from pyspark_penstock.errors import GatewayError, OptionError, RowError
from pyspark_penstock.sink.columns import check_schema, shares
from pyspark_penstock.sink.options import CODEC_NAMES, SinkOptions, parse_sink_options
from pyspark_penstock.sink.producer import Producer
from pyspark_penstock.sink.writer import batch_writer, gathered, stream_writer, write_rows
from unit.spark.spark_sink_gateway import SinkGateway

GATEWAY = {"gateway": "127.0.0.1:9094"}
GIVEN = GATEWAY | {"delivery": "at-least-once"}


@pytest.fixture
def cluster() -> Iterator[SinkGateway]:
    memory = SinkGateway()
    memory.start()
    memory.create("t", 3)
    yield memory
    memory.stop()


def options(cluster: SinkGateway, topic: str = "t", codec: str = "none") -> SinkOptions:
    return SinkOptions(tuple(cluster.addresses), topic, codec)


TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "date": DateType(),
    "map": MapType(StringType(), BinaryType()),
    "names": ArrayType(StringType()),
}


def columns_of(text: str) -> StructType:
    pairs = [part.split() for part in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def table(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def values(count: int, first: int = 0) -> Any:
    return pa.array([b"value %d" % at for at in range(first, first + count)], pa.binary())


# -- options and columns ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (GATEWAY | {"delivery": "sometimes"}, "option delivery must be exactly-once or at-least-once, not"),
        ({"delivery": "at-least-once"}, "option gateway must be given"),
        (GIVEN | {"topci": "t"}, "unknown option topci; did you mean topic?"),
        (GIVEN | {"wherever": "t"}, "unknown option wherever; this sink knows: gateway, .*topic"),
        (GIVEN | {"topic": " "}, "option topic is empty"),
        (GIVEN | {"compression": "brotli"}, "must be one of none, gzip, snappy, lz4, zstd, not 'brotli'"),
        (GIVEN | {"compression": "lz4", "kafka.compression.type": "zstd"}, "say different things"),
        (GIVEN | {"includeHeaders": "perhaps"}, "includeHeaders must be true or false"),
        (GIVEN | {"kafka.partitioner.class": "x"}, "murmur2"),
        (GIVEN | {"kafka.security.protocol": "SASL_SSL"}, "as option credentialsFile"),
        (GIVEN | {"kafka.sasl.jaas.config": "canary"}, "give its path as option credentialsFile"),
        (GIVEN | {"credentialsFile": "canary"}, "must be the absolute path"),
        (GIVEN | {"subscribe": "t"}, "unknown option subscribe"),
    ],
)
def test_refused_options(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        parse_sink_options(given)
    assert "canary" not in str(caught.value)


def test_options_name_the_codecs_that_there_are() -> None:
    assert tuple(CODECS) == CODEC_NAMES


def test_settings_of_kafkas_clients_are_taken_and_told() -> None:
    parsed = parse_sink_options(
        GIVEN | {"kafka.linger.ms": "5", "kafka.acks": "all", "kafka.compression.type": "zstd"}
    )
    assert parsed.remarks == (
        "settings of Kafka's Java clients mean nothing to this sink: kafka.acks, kafka.linger.ms",
    )
    assert parse_sink_options(GIVEN | {"kafka.security.protocol": "PLAINTEXT"}).remarks == ()
    beside = parse_sink_options(GIVEN | {"credentialsFile": "/f", "kafka.sasl.mechanism": "SCRAM-SHA-512"})
    assert beside.claims == (("sasl.mechanism", "SCRAM-SHA-512"),)


def test_accepted_options() -> None:
    given = {"kafka.bootstrap.servers": "a:1,b:2", "delivery": "At-least-once", "topic": "t"}
    parsed = parse_sink_options(
        given | {"kafka.compression.type": "LZ4", "checkpointLocation": "x", "path": ""}
    )
    assert parsed == SinkOptions(("a:1", "b:2"), "t", "lz4")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("key binary", "no column value among key; select what is to be written AS value"),
        (
            "value binary, key binary, value binary",
            "a column is there twice: value; drop or rename one of them",
        ),
        ("value int", "column value has type int; cast it to binary or string"),
        ("value binary, key bigint", "column key has type bigint"),
        (
            "value binary, headers map",
            r"column headers has type map.*; cast it to array<struct",
        ),
        ("value binary, topic binary", "column topic has type binary; cast it to string"),
        ("value binary, topic string, partition bigint", "column partition has type bigint; cast it to int"),
        ("value binary, timestamp date", "column timestamp has type date; cast it to timestamp or double"),
        ("value string, key string", "there is no column topic; add one, or name a topic"),
    ],
)
def test_refused_columns(schema: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        check_schema(columns_of(schema), "" if "no column topic" in says else "t")


def test_a_batch_is_not_overwritten() -> None:
    schema = columns_of("value binary, other int")
    given = GIVEN | {"topic": "t"}
    with pytest.raises(OptionError, match="topics can't be overwritten"):
        batch_writer(given, schema, overwrite=True)
    batch_writer(given, schema, overwrite=False)
    stream_writer(given, schema)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_query_without_micro_batches_is_refused(tmp_path: Path, form: str, delivery: str) -> None:
    """A trigger is told to nobody. Of a micro-batch Spark's checkpoint has the plan, and not yet that it is done."""
    schema = columns_of("value binary")
    given = GIVEN | {"topic": "t", "delivery": delivery, "checkpointLocation": form.format(tmp_path)}
    stream_writer(given, schema)  # not where Spark's checkpoint is
    (tmp_path / "metadata").write_text("{}")
    for log, number in (
        ("", ""),
        ("offsets", ".0.crc"),
        ("offsets", "9"),
        ("commits", "9"),
        ("offsets", "10"),
    ):
        if log:
            (tmp_path / log).mkdir(exist_ok=True)
            (tmp_path / log / number).write_text("v1")
        if number in ("", ".0.crc") or log == "commits":
            with pytest.raises(
                OptionError, match=r"^this query has no micro-batches.*use trigger.processingTime="
            ):
                stream_writer(given, schema)
        else:
            stream_writer(given, schema)
    stream_writer(given | {"checkpointLocation": "hdfs://host/" + str(tmp_path)}, schema)


def test_columns_become_rows_by_topic() -> None:
    when = dt.datetime(2024, 1, 1, 0, 0, 0, 123456, dt.UTC)
    rows = pa.table(
        {
            "other": [1, 2, 3, 4],
            "value": ["a", None, "", "d"],
            "key": pa.array([None, b"k", b"", b"\xff"], pa.binary()),
            "topic": ["x", "y", "x", "z"],
            "partition": pa.array([1, None, None, 0], pa.int32()),
            "timestamp": pa.array([when, None, when, when], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    found = {share.topic: share for share in shares(rows, "", 77)}
    assert {name: share.rows.value.to_pylist() for name, share in found.items()} == {
        "x": [b"a", b""], "y": [None], "z": [b"d"],
    }  # fmt: skip
    assert found["x"].named is not None
    assert found["x"].named.to_pylist() == [1, None]
    assert found["x"].rows.timestamps_ms.tolist() == [1704067200123] * 2
    assert found["y"].rows.timestamps_ms.tolist() == [77]
    [whole] = shares(rows, "all", 77)
    assert whole.rows.key is not None
    assert whole.rows.key.to_pylist() == [None, b"k", b"", b"\xff"]
    large = pa.table({"value": pa.array(["ä"], pa.large_string()), "timestamp": [1704067200.5]})
    [share] = shares(large, "t", 77)
    assert (share.rows.value.to_pylist(), share.rows.timestamps_ms.tolist()) == (
        ["ä".encode()],
        [1704067200500],
    )


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"topic": ["t", None]}, "null as topic"),
        ({"topic": ["t", "t"], "timestamp": [1.0, -5.0]}, "before 1970"),
        ({"topic": ["t", "t"], "timestamp": [1.0, float("nan")]}, "no time in seconds"),
        ({"topic": ["t", "t"], "headers": [None, [{"key": None, "value": b""}]]}, "a header's key is null"),
    ],
)
def test_rows_that_cannot_be_written(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(RowError, match=says):
        list(shares(pa.table({"value": [b"a", b"b"]} | columns), "", 77))


def test_small_batches_of_spark_are_encoded_together() -> None:
    batches = [table(value=values(10)), table(value=values(0)), table(value=values(5))]
    assert [found.num_rows for found in gathered(iter(batches))] == [15]
    large = [table(value=pa.array([b"x" * (3 << 20)])) for _ in range(3)]
    assert [found.num_rows for found in gathered(iter(large))] == [2, 1]
    assert list(gathered(iter([]))) == []


# -- to a gateway -------------------------------------------------------------------------------


def test_rows_arrive_where_they_belong(cluster: SinkGateway) -> None:
    batch = table(
        value=values(3000),
        key=pa.array([b"%d" % (at % 50) for at in range(3000)], pa.binary()),
        partition=pa.array([at % 3 if at < 300 else None for at in range(3000)], pa.int32()),
    )
    write_rows(options(cluster, codec="zstd"), iter([batch, batch]))
    rows = cluster.rows("t")
    assert len(rows) == 6000
    named = [row for row in rows if int(row["value"].split()[1]) < 300]
    assert all(row["partition"] == int(row["value"].split()[1]) % 3 for row in named)
    by_key: dict[bytes, set[int]] = {}
    for row in rows:
        if row not in named:
            by_key.setdefault(row["key"], set()).add(row["partition"])
    assert all(len(found) == 1 for found in by_key.values())


def test_a_streams_writer_takes_append_and_complete(cluster: SinkGateway) -> None:
    source = DefaultSource({"gateway": cluster.addresses[0], "topic": "t", "delivery": "at-least-once"})
    for overwrite in (False, True):
        writer = source.streamWriter(columns_of("value binary"), overwrite)
        message = pickle.loads(pickle.dumps(writer)).write(iter([table(value=values(5))]))
        writer.commit([message], 0)
        writer.abort([message, None], 1)
    assert Counter(row["value"] for row in cluster.rows("t")) == Counter(values(5).to_pylist() * 2)


def test_what_is_written_again_stays_in_order(cluster: SinkGateway) -> None:
    cluster.start()
    now: str | None = None
    trouble = iter([None, "lose", "refuse", "abort", None, "lose"] + [None] * 1000)

    def refuse(context: Any, _: Any) -> tuple[int, str] | None:
        nonlocal now
        now = next(trouble)
        if now == "abort":
            context.abort(grpc.StatusCode.UNAVAILABLE, "going down")
        return (6, "NOT_LEADER_OR_FOLLOWER") if now == "refuse" else None

    def lose(context: Any, _: Any) -> None:
        if now == "lose":
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone before it answered")

    cluster.refuse, cluster.lose = refuse, lose
    producer = Producer(["127.0.0.1:1", *cluster.addresses])
    rows = Rows(None, values(500), np.full(500, 5))
    batches = encode_batches(rows, rows.timestamps_ms * 0, batch_bytes=2000)
    producer.send("t", batches)
    producer.flush()
    producer.close()
    found = [row["value"] for row in cluster.rows("t")]
    assert set(found) == set(values(500).to_pylist())
    assert 500 < len(found) < 700
    assert cluster.streams >= 4
    first = list(dict.fromkeys(found))
    assert first == values(500).to_pylist()


def test_no_more_is_held_than_the_bound(cluster: SinkGateway) -> None:
    held: list[int] = []
    producer = Producer(cluster.addresses, held_bytes_max=10_000)
    producer.partitions("t")

    def batches() -> Iterator[Any]:
        for first in range(0, 2000, 10):
            held.append(first // 10 - sum(len(log.batches) for log in cluster.topics["t"].logs))
            rows = Rows(None, values(10, first), np.full(10, 5))
            yield from encode_batches(rows, np.full(10, first // 10 % 3))

    producer.send("t", batches())
    producer.flush()
    producer.close()
    assert len(cluster.rows("t")) == 2000
    assert max(held) < 60  # of about 220 bytes each


def test_batches_above_the_topics_bound_are_cut(cluster: SinkGateway) -> None:
    cluster.batch_bytes_max = 20_000
    write_rows(
        options(cluster), iter([table(value=values(5000), partition=pa.array([0] * 5000, pa.int32()))])
    )
    assert [row["value"] for row in cluster.rows("t")] == values(5000).to_pylist()
    with pytest.raises(
        RowError, match=r"topic t: a row makes a batch of \d+ bytes.*raise the topic's max.message.by"
    ):
        write_rows(options(cluster), iter([table(value=pa.array([b"x" * 30_000]))]))


def test_a_large_row_goes_in_pieces(cluster: SinkGateway) -> None:
    large = bytes(range(256)) * (36 << 10)
    write_rows(options(cluster), iter([table(value=pa.array([b"a", large, b"b"]), key=pa.array([b"k"] * 3))]))
    assert [row["value"] for row in cluster.rows("t")] == [b"a", large, b"b"]


def test_refusals_are_one_sentence(cluster: SinkGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_penstock.sink.producer.MISSING_GRACE_MS", 200)
    wrong = table(value=values(2), partition=pa.array([2, 3], pa.int32()))
    with pytest.raises(
        RowError, match="column partition has 3, and topic t has the partitions 0 to 2; correct it"
    ):
        write_rows(options(cluster), iter([wrong]))
    with pytest.raises(RowError, match="column partition has -1"):
        write_rows(options(cluster), iter([table(value=values(1), partition=pa.array([-1], pa.int32()))]))
    cluster.refuse = lambda _, request: (29, f"User:bob may not write to topic {request.topic}")
    with pytest.raises(
        GatewayError,
        match=r"^not allowed to write to topic t \(User:bob may not.*\); who comes without.* Write$",
    ):
        write_rows(options(cluster), iter([table(value=values(2))]))
    producer = Producer(cluster.addresses, missing_grace_ms=200)
    with pytest.raises(OptionError, match="no such topic: absent; create it first"):
        producer.partitions("absent")
    assert cluster.rows("t") == []


def test_more_partitions_are_noticed(cluster: SinkGateway) -> None:
    def grown() -> Iterator[Any]:
        yield table(value=pa.array([b"x" * (5 << 20)]), partition=pa.array([0], pa.int32()))
        cluster.create("t", 5)
        yield table(value=values(1), partition=pa.array([4], pa.int32()))

    write_rows(options(cluster), grown())
    assert [row["partition"] for row in cluster.rows("t")][-1] == 4


def test_who_does_not_answer_is_named(cluster: SinkGateway) -> None:
    producer = Producer(["127.0.0.1:1"], delivery_timeout_ms=300)
    rows = Rows(None, values(1), np.full(1, 5))
    producer.send("t", encode_batches(rows, rows.timestamps_ms * 0))
    with pytest.raises(
        GatewayError, match=r"no gateway answers at 127\.0\.0\.1:1 \(nothing acknowledged for"
    ):
        producer.flush()


def test_the_time_that_spark_takes_between_rows_is_nobodys_silence(cluster: SinkGateway) -> None:
    """A gateway that goes meanwhile has not been asked for anything yet."""
    now_s, gone, asked = [0.0], threading.Event(), list[int]()

    def refuse(context: Any, request: Any) -> None:
        asked.append(request.request_id)
        if len(asked) == 1:
            gone.wait(60)
            context.abort(grpc.StatusCode.UNAVAILABLE, "going away")

    cluster.refuse = refuse
    producer = Producer(cluster.addresses, clock=lambda: now_s[0])
    for first in range(2):
        rows = Rows(None, values(1, first), np.full(1, 5))
        producer.send("t", encode_batches(rows, rows.timestamps_ms * 0))
        now_s[0] += 200
        gone.set()
    producer.flush()
    producer.close()
    assert [row["value"] for row in cluster.rows("t")] == [b"value 0", b"value 1"]


def test_whether_gateways_are_there_is_asked_as_who_writes(
    cluster: SinkGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def is_answering(*who: Any) -> bool:
        asked.append(who)
        return True

    monkeypatch.setattr(gateway_module, "is_answering", is_answering)
    monkeypatch.setattr(gateway_module.Access, "open", _nobody)
    producer = Producer(["127.0.0.1:1"], credentials_file="/no/such.properties", delivery_timeout_ms=1)
    with pytest.raises(GatewayError, match=r"gateways answer at 127\.0\.0\.1:1"):
        _write_one(producer)
    assert asked == [(("127.0.0.1:1",), "/no/such.properties")]


def _write_one(producer: Producer) -> None:
    rows = Rows(None, values(1), np.full(1, 5))
    producer.send("t", encode_batches(rows, rows.timestamps_ms * 0))
    producer.flush()


class _Gone(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "gone"


def _nobody(*_: Any) -> Any:
    raise _Gone


def test_a_gateway_that_never_answers_is_left(cluster: SinkGateway) -> None:
    end, asked = threading.Event(), list[int]()

    def refuse(_: Any, request: Any) -> None:
        asked.append(request.partition)
        if len(asked) == 1:
            end.wait(60)

    cluster.refuse = refuse
    producer = Producer(cluster.addresses, answer_timeout_ms=1_000)
    rows = Rows(None, values(1), np.full(1, 5))
    try:
        producer.send("t", encode_batches(rows, rows.timestamps_ms * 0))
        producer.flush()
    finally:
        end.set()
    assert len(asked) >= 2
    assert {row["value"] for row in cluster.rows("t")} == {b"value 0"}


def test_a_leader_that_never_takes_it_ends_in_time(cluster: SinkGateway) -> None:
    cluster.refuse = lambda *_: (19, "t-0: NOT_ENOUGH_REPLICAS")
    producer = Producer(cluster.addresses, delivery_timeout_ms=300)
    rows = Rows(None, values(1), np.full(1, 5))
    producer.send("t", encode_batches(rows, rows.timestamps_ms * 0))
    with pytest.raises(GatewayError, match="NOT_ENOUGH_REPLICAS"):
        producer.flush()
    producer.close()
