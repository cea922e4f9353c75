"""Options: names, defaults and errors of Spark's Kafka connector."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructType

from pyspark_penstock.errors import NotBuiltYetError, OptionError
from pyspark_penstock.gateway import GatewayClient
from pyspark_penstock.options import Bound, SourceOptions, parse_options
from pyspark_penstock.schema import COLUMNS, arrow_schema, spark_schema

BASE = {"gateway": "127.0.0.1:9094", "subscribe": "flights"}


def parse(streaming: bool = False, **more: str) -> SourceOptions:
    return parse_options(
        BASE | {name.replace("_", "."): value for name, value in more.items()}, streaming=streaming
    )


def test_defaults() -> None:
    batch, stream = parse(), parse(streaming=True)
    assert batch.gateways == ("127.0.0.1:9094",)
    assert (batch.starting.kind, batch.ending.kind) == ("earliest", "latest")
    assert stream.starting.kind == "latest"
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert stream.trigger_delay_max_ms == 15 * 60_000
    assert stream.latest_wait_ms == 50
    assert pickle.loads(pickle.dumps(batch)) == batch


def test_names_are_case_insensitive_and_gateways_a_list() -> None:
    raw = {
        "GATEWAY": "a:1, b:2,a:1 ,[::1]:3",
        "SubscribePattern": "f.*",
        "FAILONDATALOSS": "False",
        "path": "",
    }
    options = parse_options(raw, streaming=False)
    assert options.gateways == ("a:1", "b:2", "[::1]:3")
    assert options.subscribe_pattern == "f.*"
    assert not options.fail_on_data_loss


def test_bootstrap_servers_is_another_spelling() -> None:
    raw = {"kafka.bootstrap.servers": "a:1", "subscribe": "x"}
    assert parse_options(raw, streaming=False).gateways == ("a:1",)
    assert parse_options(raw | {"gateway": "a:1"}, streaming=False).gateways == ("a:1",)
    with pytest.raises(OptionError, match="differ"):
        parse_options(raw | {"gateway": "b:1"}, streaming=False)


@pytest.mark.parametrize(
    "value", ["", " , ", "host", "host:", ":1", "host:0", "host:65536", "host:x", "http://h:1"]
)
def test_bad_gateways(value: str) -> None:
    with pytest.raises(OptionError, match="gateway"):
        parse(gateway=value)


@pytest.mark.parametrize(
    "value", ["alice:hunter2@h:9094", "penstock://alice:hunter2@h:9094", "h:1,hunter2@h:2"]
)
def test_who_somebody_is_in_an_address_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(OptionError, match="option gateway has somebody's name or password in it") as caught:
        parse(gateway=value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (
            {"gateway": "a:1"},
            "One of the following options must be given: subscribe, subscribePattern, assign",
        ),
        ({"gateway": "a:1", "subscribe": "a", "assign": "{}"}, "Only one of"),
        ({"subscribe": "a"}, "gateway must be given"),
        ({"gateway": "a:1", "subscribe": " , "}, "No topics"),
        ({"gateway": "a:1", "subscribePattern": " "}, "Pattern"),
        ({"gateway": "a:1", "subscribePattern": "("}, "no regular expression"),
        ({"gateway": "a:1", "subscribePattern": r"\p{Alpha}"}, "no regular expression of Python"),
        ({"gateway": "a:1", "subscribePattern": "[a-z&&[^b]]"}, "no regular expression of Python"),
        (
            {"gateway": "a:1", "subscribePattern": "[a-z[0-9]]+"},
            r"Java: it has a set in a set; write it as one, or \[ as",
        ),
        ({"gateway": "a:1", "subscribePattern": "[^a[b]"}, "a set in a set"),
        ({"gateway": "a:1", "subscribePattern": "orders(?i)"}, "no regular expression of Python"),
        ({"gateway": "a:1", "assign": "flights"}, "JSON like"),
        ({"gateway": "a:1", "assign": "{}"}, "No topic partitions"),
        ({"gateway": "a:1", "assign": '{"a":[-1]}'}, "partitions of topic 'a'"),
    ],
)
def test_selection_errors(raw: dict[str, str], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        parse_options(raw, streaming=False)


@pytest.mark.parametrize(
    "pattern", [r"[a-z\[0-9]+", r"\[[a-z]", "[]a]", "[^]a-z]+[b]", "[a][b]", r"[\]]x[y]", "[^^][a]"]
)
def test_brackets_that_are_no_set_in_a_set(pattern: str) -> None:
    raw = {"gateway": "a:1", "subscribePattern": pattern}
    assert parse_options(raw, streaming=False).subscribe_pattern == pattern


def test_assign() -> None:
    raw = {"gateway": "a:1", "assign": '{"t":[2,0,2],"u":[1]}'}
    assert parse_options(raw, streaming=False).assign == (("t", (0, 2)), ("u", (1,)))


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("failOnDataLos", "true", "unknown option failondatalos"),
        ("failOnDataLoss", "yes", "true or false"),
        ("minPartitions", "0", "minPartitions must be positive"),
        ("maxRecordsPerPartition", "-1", "must be positive"),
        ("maxOffsetsPerTrigger", "many", "whole number"),
        (
            "maxOffsetsPerTrigger",
            str(1 << 63),
            "9223372036854775807 at most, not 9223372036854775808; leave it out",
        ),
        ("startingTimestamp", str(1 << 63), "must be a time in ms"),
        ("startingTimestamp", "9" * 5_000, "must be a time in ms"),
        ("endingOffsets", '{"flights":{"0":9223372036854775808}}', "bad value 9223372036854775808"),
        ("startingOffsets", "latest", "can't be latest for batch"),
        ("startingOffsets", '{"flights":{"0":-1}}', "flights-0 can't be latest"),
        ("startingOffsets", "newest", "JSON like"),
        ("startingOffsets", '{"flights":{"0":-3}}', "bad value -3"),
        ("startingOffsets", '{"flights":[1]}', "JSON like"),
        ("endingOffsets", "earliest", "can't be earliest for batch"),
        ("endingOffsets", '{"flights":{"0":-2}}', "flights-0 can't be earliest"),
        ("startingTimestamp", "yesterday", "ms since 1970"),
        ("startingOffsetsByTimestamp", '{"flights":{"0":-1}}', "bad value"),
        ("startingOffsetsByTimestampStrategy", "guess", "error or latest"),
        ("maxTriggerDelay", "soon", "like 30s"),
        ("verifyCrc", "false", "can't be switched off"),
        ("fetchMode", "straight", "fetchMode is auto, gateway or direct, not 'straight'"),
        ("fetch.chunkBytes", "10", "between"),
        ("kafka.auto.offset.reset", "latest", "startingOffsets"),
        ("kafka.key.deserializer", "x", "bytes"),
        ("kafka.enable.auto.commit", "true", "not supported"),
        ("kafka.interceptor.classes", "x", "not supported"),
        ("failOnDataLos", "true", r"did you mean failOnDataLoss\?"),
        ("startingOfsets", "latest", r"did you mean startingOffsets\?"),
        ("kafka.max.pol.records", "1", r"did you mean kafka\.max\.poll\.records\?"),
        ("max.poll.records", "1", "unknown option max.poll.records"),
        ("kafka.bootstrap.server", "a:1", r"did you mean kafka\.bootstrap\.servers\?"),
        ("kafka.nothing.of.the.kind.at.all", "1", "this source knows: gateway"),
    ],
)
def test_refused(name: str, value: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        parse_options(BASE | {name: value}, streaming=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("columns", "value"),
        ("fetch.prefetch", "2"),
    ],
)
def test_not_built_yet(name: str, value: str) -> None:
    with pytest.raises(NotBuiltYetError, match="not built yet"):
        parse_options(BASE | {name: value}, streaming=False)


def test_settings_of_kafkas_clients_are_taken_and_told_once() -> None:
    options = parse(
        kafka_max_poll_records="1",
        kafka_fetch_min_bytes="1",
        kafka_acks="1",
        groupIdPrefix="p",
        kafka_group_id="g",
    )
    assert options.remarks == (
        "settings of Kafka's Java clients mean nothing to this source: kafka.acks, kafka.fetch.min.bytes, "
        "kafka.max.poll.records",
        "this source reads without a consumer group: groupIdPrefix, kafka.group.id changes nothing",
    )
    assert parse().remarks == ()
    assert parse(maxOffsetsPerTrigger="5").remarks == (
        "a batch read has no triggers: maxOffsetsPerTrigger is ignored",
    )
    assert parse(streaming=True, maxOffsetsPerTrigger="5").remarks == ()


def test_each_remark_is_in_the_drivers_log(caplog: pytest.LogCaptureFixture) -> None:
    GatewayClient.of(parse(kafka_max_poll_records="1"))
    assert caplog.text.count("mean nothing to this source: kafka.max.poll.records") == 1


def test_what_is_no_secret_may_stand_beside_the_credentials_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=u\nsasl.password=canary\n"
        "ssl.truststore.location=/ca.pem\nssl.truststore.type=PEM\n"
    )
    path.chmod(0o600)
    given = BASE | {
        "credentialsFile": str(path),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "scram-sha-512",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
    }
    GatewayClient.of(parse_options(given, streaming=False))
    for name, value in (("kafka.security.protocol", "SSL"), ("kafka.ssl.truststore.location", "/other.pem")):
        with pytest.raises(OptionError, match=f"option {name} says otherwise than credentialsFile {path}"):
            GatewayClient.of(parse_options(given | {name: value}, streaming=False))
    for name in ("kafka.sasl.jaas.config", "kafka.ssl.keystore.password"):
        with pytest.raises(OptionError, match="as option credentialsFile") as refused:
            parse_options(given | {name: "canary"}, streaming=False)
        assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        *("topic", "delivery", "compression", "sinkId", "sinkTakeover", "txnAppId", "txnVersion"),
        "stagingTimeoutMs",
    ],
)
def test_what_says_how_to_write_is_refused_where_something_is_read(name: str) -> None:
    with pytest.raises(OptionError, match=r"it says (where|how) to write.*read") as caught:
        parse_options(BASE | {name: "t"}, streaming=False)
    assert not isinstance(caught.value, NotBuiltYetError)


def test_allowed_values_of_fixed_options() -> None:
    parse_options(
        BASE | {"verifyCrc": "true", "isolation": "read_uncommitted", "kafka.security.protocol": "PLAINTEXT"},
        streaming=False,
    )


def test_fetch_modes() -> None:
    assert parse().fetch_mode == "auto"
    for mode in ("auto", "gateway", "direct"):
        assert parse(fetchMode=mode.upper()).fetch_mode == mode
    assert parse(rack="zone-a").rack == "zone-a"
    assert parse(rack="zone-a", fetchMode="direct").remarks == ()
    assert "rack changes nothing" in parse(rack="zone-a", fetchMode="gateway").remarks[0]


def test_isolation() -> None:
    assert not parse().read_committed
    assert not parse(isolation="read_uncommitted").read_committed
    assert parse(isolation="Read_Committed").read_committed
    assert parse(kafka_isolation_level="read_committed").read_committed
    both = {"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"}
    with pytest.raises(OptionError, match="leave one out"):
        parse_options(BASE | both, streaming=False)
    with pytest.raises(OptionError, match="read_uncommitted or read_committed, not 'serializable'"):
        parse(isolation="serializable")


def test_precedence_of_starts() -> None:
    offsets = '{"flights":{"0":23}}'
    assert parse(startingOffsets=offsets).starting == Bound("offsets", {"flights": {0: 23}})
    assert parse(startingOffsets=offsets, startingOffsetsByTimestamp=offsets).starting.kind == "timestamps"
    chosen = parse(
        startingOffsets=offsets, startingOffsetsByTimestamp=offsets, startingTimestamp="5"
    ).starting
    assert chosen == Bound("timestamp", timestamp_ms=5)
    assert parse(endingTimestamp="9", endingOffsets=offsets).ending == Bound("timestamp", timestamp_ms=9)


def test_start_and_end_must_agree() -> None:
    with pytest.raises(OptionError, match="only one of them names t-1"):
        parse(startingOffsets='{"t":{"0":1,"1":1}}', endingOffsets='{"t":{"0":2}}')
    with pytest.raises(OptionError, match=r"start \(3\) of t-0 is greater than its end \(2\)"):
        parse(startingOffsets='{"t":{"0":3}}', endingOffsets='{"t":{"0":2}}')
    parse(startingOffsets='{"t":{"0":3}}', endingOffsets='{"t":{"0":-1}}')


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_streams_have_no_end(name: str) -> None:
    with pytest.raises(OptionError, match="not valid in streaming"):
        parse(streaming=True, **{name: "latest"})


def test_streams_may_start_at_latest() -> None:
    assert parse(streaming=True, startingOffsets='{"t":{"0":-1}}').starting.offsets == {"t": {0: -1}}


def test_least_and_most_per_trigger() -> None:
    with pytest.raises(OptionError, match="higher than"):
        parse(streaming=True, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4")
    for text, delay_ms in (
        ("90s", 90_000), ("5", 5), ("2500us", 2), ("1500 ms", 1500), ("2min", 120_000), ("1d", 86_400_000),
    ):  # fmt: skip
        assert parse(streaming=True, maxTriggerDelay=text).trigger_delay_max_ms == delay_ms


def test_schema_is_what_spark_expects() -> None:
    full = spark_schema(include_headers=True)
    assert full.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert spark_schema(include_headers=False).names == list(COLUMNS)[:-1]
    for names in (list(COLUMNS), ["value"], ["offset", "key"], ["headers"], ["timestamp", "timestampType"]):
        schema = StructType([full[name] for name in names])
        assert arrow_schema(schema, include_headers=True).equals(to_arrow_schema(schema, timezone="UTC"))
    strict = StructType().add("value", COLUMNS["value"], nullable=False)
    assert arrow_schema(strict, include_headers=False).equals(to_arrow_schema(strict, timezone="UTC"))
    assert arrow_schema(strict, include_headers=False).field(0).type == pa.binary()


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (StructType(), "no column"),
        (StructType().add("payload", COLUMNS["value"]), "no column 'payload'"),
        (StructType().add("value", "string"), "type binary, not string"),
        (StructType().add("partition", "long"), "type int"),
        (StructType().add("headers", COLUMNS["headers"]), "includeHeaders"),
        (StructType().add("offset", "long").add("offset", "long"), "twice"),
    ],
)
def test_schemas_refused(schema: StructType, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        arrow_schema(schema, include_headers=False)
    assert isinstance(COLUMNS["partition"], IntegerType)


@pytest.mark.parametrize(
    "name", ["kafka.security.protocol", "kafka.sasl.jaas.config", "kafka.SASL.password", "kafka.ssl.key.pem"]
)
def test_secrets_are_not_for_options(name: str) -> None:
    with pytest.raises(OptionError, match="as option credentialsFile") as refused:
        parse_options({"gateway": "a:1", "subscribe": "t", name: "SASL_SSL:canary"}, streaming=False)
    assert "canary" not in str(refused.value)


def test_the_credentials_file_is_a_path_that_holds_everywhere() -> None:
    given = {"gateway": "a:1", "subscribe": "t"}
    assert parse_options(
        given | {"credentialsFile": " /etc/penstock/spark.properties "}, streaming=True
    ).credentials_file == ("/etc/penstock/spark.properties")
    for wrong in ("spark.properties", "", "sasl.password=canary"):
        with pytest.raises(OptionError, match="absolute path") as refused:
            parse_options(given | {"credentialsFile": wrong}, streaming=False)
        assert "canary" not in str(refused.value)
