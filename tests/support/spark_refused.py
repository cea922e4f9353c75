"""Every option that a stream is refused for, with the sentence that its user reads last."""

from __future__ import annotations

from typing import NamedTuple

LONG = str(1 << 63)
SINK = "it says how to write, and this is a read"
BYTES = "decode them with DataFrame operations"


class Refused(NamedTuple):
    """`options` are set beside a gateway and `subscribe`; a value of "" takes an option away, `{file}` is the path of
    a client file of mode 0600, `{open}` of one that others can read, and `{none}` of none."""

    options: dict[str, str]
    sentence: str
    """How it begins."""
    schema: str = ""


AT_START = [
    Refused(
        {"endingOffsets": "latest"},
        "option endingOffsets is not valid in streaming queries: they have no end",
    ),
    Refused(
        {"endingOffsetsByTimestamp": '{"flights":{"0":5}}'}, "option endingOffsetsByTimestamp is not valid in"
    ),
    Refused(
        {"endingTimestamp": "5"}, "option endingTimestamp is not valid in streaming queries: they have no end"
    ),
    Refused({"rows": "batches"}, "option rows=batches is for batch reads; leave it out of a streaming query"),
    Refused({"credentialsFile": "{open}"}, "127.0.0.1:"),
    Refused({"credentialsFile": "{none}"}, "127.0.0.1:"),
    Refused(
        {"credentialsFile": "{file}", "kafka.sasl.mechanism": "PLAIN"},
        "option kafka.sasl.mechanism says otherwise than credentialsFile",
    ),
    Refused(
        {"subscribe": "absent"}, "no such topic or partition: absent; create it first, or correct the option"
    ),
    Refused(
        {"subscribe": "", "assign": '{"flights":[7]}'},
        "no such topic or partition: flights-7; create it first",
    ),
    Refused(
        {"startingOffsets": '{"flights":{"0":1}}'},
        "startingOffsets must name every partition that is read and no other (-1 for latest, -2 for earliest); "
        "missing: flights-1",
    ),
    Refused(
        {"startingTimestamp": "9000000000000"},
        "no record is as late as the starting timestamp in: flights-0, ",
    ),
    Refused(
        {"startingOffsets": '{"flights":{"0":99,"1":0}}'},
        'flights-0: start 99 is outside 0..0; set option("failOnDataLoss", "false") to go on with what is left',
    ),
    Refused({}, "no column 'valeu' in this source; it has: key, value, topic", "valeu BINARY"),
    Refused(
        {}, "column 'value' has type binary, not string; read it so and cast it in the query", "value STRING"
    ),
    Refused(
        {},
        'column headers needs option("includeHeaders", "true")',
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>",
    ),
]
"""What only a stream refuses, or what needs the cluster: known when the query has started."""

AT_LOAD = [
    *(
        Refused({name: "0"}, f"{name} must be positive, not 0")
        for name in (
            *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"),
            *("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition"),
        )
    ),
    Refused({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger must be positive, not -1"),
    Refused(
        {"maxOffsetsPerTrigger": "many"}, "option maxOffsetsPerTrigger must be a whole number, not 'many'"
    ),
    Refused({"maxOffsetsPerTrigger": LONG}, "maxOffsetsPerTrigger must be 9223372036854775807 at most"),
    Refused(
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
        "minOffsetsPerTrigger (9) is higher than maxOffsetsPerTrigger (3)",
    ),
    Refused({"maxTriggerDelay": "soon"}, "option maxTriggerDelay must be a time like 30s or 15m, not 'soon'"),
    *(
        Refused({name: "yes"}, f"option {name} must be true or false, not 'yes'")
        for name in ("failOnDataLoss", "includeHeaders", "pushdown", "verifyCrc")
    ),
    Refused({"verifyCrc": "false"}, "verifyCrc can't be switched off"),
    Refused({"startingOfsets": "latest"}, "unknown option startingofsets; did you mean startingOffsets?"),
    Refused(
        {"kafka.max.pol.records": "1"},
        "unknown option kafka.max.pol.records; did you mean kafka.max.poll.recor",
    ),
    Refused(
        {"max.poll.records": "1"}, "unknown option max.poll.records; did you mean kafka.max.poll.records?"
    ),
    Refused({"colour": "red"}, "unknown option colour; this source knows: gateway, "),
    Refused(
        {"topic": "t"}, "option topic is not supported: it says where to write to; to read name topics by"
    ),
    *(
        Refused({name: "x"}, f"option {name.lower()} is not supported: {SINK}")
        for name in (
            *("delivery", "compression", "sinkId", "sinkTakeover", "txnAppId", "txnVersion"),
            "stagingTimeoutMs",
        )
    ),
    *(
        Refused({f"kafka.{name}": "x"}, f"option kafka.{name} is not supported: {why}")
        for name, why in (
            ("auto.offset.reset", "set startingOffsets to 'earliest' or 'latest' instead"),
            ("key.deserializer", f"keys come as bytes; {BYTES}"),
            ("value.deserializer", f"values come as bytes; {BYTES}"),
            ("key.serializer", "keys are bytes; encode"),
            ("value.serializer", "values are bytes; encode"),
            ("enable.auto.commit", "the query keeps its own offsets"),
            ("interceptor.classes", "interceptors can change the payload"),
        )
    ),
    *(Refused({name: "x"}, f"option {name} is not built yet: ") for name in ("columns", "fetch.prefetch")),
    *(
        Refused(
            {f"kafka.{name}": "canary"}, f"option kafka.{name} is not taken: options stand in query plans"
        )
        for name in ("sasl.jaas.config", "ssl.keystore.password", "sasl.mechanism", "ssl.truststore.location")
    ),
    Refused(
        {"kafka.security.protocol": "SASL_SSL"},
        "option kafka.security.protocol other than PLAINTEXT is not",
    ),
    Refused(
        {"credentialsFile": "canary"}, "option credentialsFile must be the absolute path of a client file"
    ),
    Refused({"gateway": ""}, "option gateway must be given: the gRPC address of one or more gateways"),
    Refused(
        {"kafka.bootstrap.servers": "a:1"}, "options gateway and kafka.bootstrap.servers differ; give gateway"
    ),
    Refused({"gateway": "user:canary@a:1"}, "option gateway has somebody's name or password in it"),
    Refused({"gateway": "http://a:1"}, "gateway address 'http://a:1' is not of the form host:port"),
    Refused({"gateway": "a"}, "gateway address 'a' is not of the form host:port"),
    Refused(
        {"subscribe": ""}, "One of the following options must be given: subscribe, subscribePattern, assign"
    ),
    Refused(
        {"assign": '{"flights":[0]}'},
        "Only one of the following options can be given: subscribe, subscribePa",
    ),
    Refused({"subscribe": ","}, "No topics to subscribe to in option subscribe: ','"),
    Refused(
        {"subscribe": "", "subscribePattern": " "}, "Pattern to subscribe is empty in option subscribePattern"
    ),
    Refused(
        {"subscribe": "", "subscribePattern": "("},
        "subscribePattern '(' is no regular expression of Python's",
    ),
    Refused(
        {"subscribe": "", "subscribePattern": "[a-z[0-9]]"},
        "subscribePattern '[a-z[0-9]]' is read otherwise by",
    ),
    Refused({"subscribe": "", "assign": "flights"}, "option assign must be JSON like"),
    Refused({"subscribe": "", "assign": "{}"}, "No topic partitions to assign in option assign: '{}'"),
    Refused(
        {"subscribe": "", "assign": '{"a":[-1]}'},
        "option assign must list partitions of topic 'a' like [0,1]",
    ),
    Refused(
        {"isolation": "serializable"},
        "option isolation is read_uncommitted or read_committed, not",
    ),
    Refused(
        {"kafka.isolation.level": "x"},
        "option kafka.isolation.level is read_uncommitted or read_committed, not",
    ),
    Refused(
        {"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"},
        "options isolation and kafka.isolation.level say different things; leave one out",
    ),
    Refused({"fetchMode": "straight"}, "option fetchMode is auto, gateway or direct, not 'straight'"),
    Refused({"rows": "columns"}, "option rows is records or batches, not 'columns'"),
    Refused(
        {"startingOffsetsByTimestampStrategy": "guess"},
        "startingOffsetsByTimestampStrategy is error or latest",
    ),
    Refused(
        {"startingTimestamp": "yesterday"}, "option startingTimestamp must be a time in ms since 1970, not"
    ),
    Refused({"startingTimestamp": LONG}, "option startingTimestamp must be a time in ms since 1970, not"),
    Refused({"startingOffsets": "newest"}, "option startingOffsets must be JSON like"),
    Refused({"startingOffsets": '{"flights":[1]}'}, "option startingOffsets must be JSON like"),
    Refused(
        {"startingOffsets": '{"flights":{"0":-3}}'},
        "option startingOffsets: topic 'flights', partition '0': bad value -3",
    ),
    Refused(
        {"startingOffsetsByTimestamp": '{"flights":{"0":-1}}'},
        "option startingOffsetsByTimestamp: topic 'flights', partition '0': bad value -1",
    ),
    Refused(
        {"startingOffsets": "group"},
        "startingOffsets=group needs option commitGroupId, which names the group",
    ),
    Refused({"commitGroupId": " "}, "option commitGroupId is empty: name a consumer group, or leave it out"),
    *(
        Refused({name: value}, f"option {name} must be between {least} and ")
        for name, value, least in (
            ("kafkaConsumer.pollTimeoutMs", "0", 1),
            ("fetchOffset.numRetries", "-1", 0),
            ("fetchOffset.retryIntervalMs", "-1", 0),
            ("fetch.chunkBytes", "10", 1024),
            ("latestWaitMs", "30001", 0),
        )
    ),
]
"""What is refused before the query starts, whether it is a stream or not."""

IN_SHORT_FORM = [
    *(case for case in AT_START if {"endingOffsets", "endingTimestamp", "rows"} & case.options.keys()),
    *(case for case in AT_START if case.options in ({"credentialsFile": "{open}"}, {"subscribe": "absent"})),
    *(
        next(case for case in AT_LOAD if name in case.options)
        for name in ("maxOffsetsPerTrigger", "startingOfsets", "kafka.sasl.jaas.config")
    ),
]
"""Those of `make test`: each starts processes of Spark's, which takes a second or two."""
