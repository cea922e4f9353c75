"""Options of the sink: names and meaning of Spark's Kafka connector, and what is Penstock's own.

An unknown option is refused, as in the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_penstock.client_settings import SIGN_IN
from pyspark_penstock.encode import CODECS
from pyspark_penstock.errors import NotBuiltYetError, OptionError
from pyspark_penstock.options import USE_FILE, OptionReader, credentials_file, gateways

_KNOWN = {
    name.lower(): name
    for name in (
        "gateway",
        "kafka.bootstrap.servers",
        "credentialsFile",
        "topic",
        "includeHeaders",
        "delivery",
        "compression",
        "kafka.compression.type",
        "kafka.security.protocol",
    )
}
_SPARKS = frozenset({"path", "checkpointlocation", "queryname"})
"""What Spark adds by itself."""
_EXACTLY_ONCE = {
    name.lower(): name for name in ("sinkId", "sinkTakeover", "txnAppId", "txnVersion", "stagingTimeoutMs")
}
_REFUSED = {
    "kafka.key.serializer": "keys are bytes or strings; encode them with DataFrame operations",
    "kafka.value.serializer": "values are bytes or strings; encode them with DataFrame operations",
    "kafka.interceptor.classes": "interceptors can change the payload",
    "kafka.partitioner.class": "rows go where Kafka's murmur2 puts their key, or where the column partition says",
    "kafka.acks": "every batch waits for all in-sync replicas; remove it",
}
_DELIVERY = (
    "option delivery must be at-least-once, the one that is built: each row is written, and those of a task or a "
    "micro-batch that Spark repeats are written again; exactly-once is not built yet"
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Validated options of one write. Picklable; holds no secret."""

    gateways: tuple[str, ...]
    topic: str = ""
    """Where every row goes; "" when the column topic says it."""
    codec: str = "none"
    credentials_file: str = ""
    """Path of a client file, which each process reads for itself; "" for none."""


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Validates what was given to `.option(...)`. Raises OptionError or NotBuiltYetError."""
    given = {name.lower(): value for name, value in raw.items() if name.lower() not in _SPARKS}
    _refuse(given)
    reader = OptionReader(given)
    if reader.word("delivery", "") != "at-least-once":
        kind = NotBuiltYetError if reader.word("delivery", "") == "exactly-once" else OptionError
        raise kind(_DELIVERY)
    if reader.word("kafka.security.protocol", "plaintext") != "plaintext":
        raise OptionError(f"option kafka.security.protocol other than PLAINTEXT is not taken: {USE_FILE}")
    # As with the connector, headers are written wherever their column is there.
    reader.boolean("includeHeaders", True)
    topic = given.get("topic", "").strip()
    if "topic" in given and not topic:
        raise OptionError("option topic is empty; name a topic, or leave it out and have a column topic")
    return SinkOptions(gateways(given), topic, _codec(reader), credentials_file(given))


def _refuse(given: Mapping[str, str]) -> None:
    for name in given:
        if name in _KNOWN:
            continue
        if name in _EXACTLY_ONCE:
            raise NotBuiltYetError(
                f"option {_EXACTLY_ONCE[name]} is not built yet: it belongs to exactly-once writing; leave it out"
            )
        if name in _REFUSED:
            raise OptionError(f"option {name} is not supported: {_REFUSED[name]}")
        if name.removeprefix("kafka.").startswith(SIGN_IN):
            raise OptionError(f"option {name} is not taken: {USE_FILE}")
        if name.startswith("kafka."):
            raise OptionError(
                f"option {name} is for Kafka's Java producer, which this sink doesn't use; remove it"
            )
        raise OptionError(f"unknown option {name}; this sink knows: {', '.join(_KNOWN.values())}")


def _codec(reader: OptionReader) -> str:
    """The option has a name of its own and Kafka's; they may not differ."""
    said = set()
    for name in ("compression", "kafka.compression.type"):
        codec = reader.word(name, "")
        if codec and codec not in CODECS:
            raise OptionError(f"option {name} must be one of {', '.join(CODECS)}, not {codec!r}")
        said |= {codec} - {""}
    if len(said) > 1:
        raise OptionError(
            "options compression and kafka.compression.type say different things; leave one out"
        )
    return said.pop() if said else "none"
