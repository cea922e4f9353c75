"""Options of the sink: names and meaning of Spark's Kafka connector, and what is Penstock's own.

An unknown option is refused, as in the source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from pyspark_penstock.client_settings import MEANINGLESS, PLAIN_SIGN_IN, SIGN_IN
from pyspark_penstock.errors import OptionError
from pyspark_penstock.options import USE_FILE, OptionReader, claims, credentials_file, gateways
from pyspark_penstock.sink.protocol import STAGING_TIMEOUT_MS

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""Those of `encode`, which this module does not import: options come to executors before it is known what is there."""

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
    )
}
_EXACTLY_ONCE = {
    name.lower(): name for name in ("sinkId", "sinkTakeover", "txnAppId", "txnVersion", "stagingTimeoutMs")
}
_KNOWN |= _EXACTLY_ONCE
_SPARKS = frozenset({"path", "checkpointlocation", "queryname"})
"""What Spark adds by itself."""
_REFUSED = {
    "kafka.key.serializer": "keys are bytes or strings; encode them with DataFrame operations",
    "kafka.value.serializer": "values are bytes or strings; encode them with DataFrame operations",
    "kafka.interceptor.classes": "interceptors can change the payload",
    "kafka.partitioner.class": "rows go where Kafka's murmur2 puts their key, or where the column partition says",
}
_NAME = re.compile(r"[A-Za-z0-9._:/@+-]+")
"""Of a sink: transactional ids begin with it."""
_SINK_BYTES_MAX, _APPLICATION_BYTES_MAX = 200, 190
"""Of the first by the gateway, of the second because a sink's name is made of it."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Validated options of one write. Picklable; holds no secret."""

    gateways: tuple[str, ...]
    topic: str = ""
    """Where every row goes; "" when the column topic says it."""
    codec: str = "none"
    credentials_file: str = ""
    """Path of a client file, which each process reads for itself; "" for none."""
    claims: tuple[tuple[str, str], ...] = ()
    """Kafka's settings beside the client file, which must say what it says."""
    remarks: tuple[str, ...] = ()
    """For the driver's log."""
    exactly_once: bool = False
    sink: str = ""
    """What sinkId says; "" for a name that is made from the query's id, from txnAppId, or for one write."""
    takeover: bool = False
    version: tuple[str, int] | None = None
    """txnAppId and txnVersion."""
    staging_timeout_ms: int = STAGING_TIMEOUT_MS
    single: str = ""
    """Name that was made for this batch write; "" in a stream."""
    others: tuple[str, ...] = ()
    """Gateways that the cluster has named beside the configured ones."""
    checkpoint: str = ""
    """Of a stream, as its writer names it; "" where the session does."""


def parse_sink_options(raw: Mapping[str, str], *, single: str = "") -> SinkOptions:
    """Validates what was given to `.option(...)`. `single`: a new name for a batch write; "" for a stream.

    Raises OptionError.
    """
    given = {name.lower(): value for name, value in raw.items() if name.lower() not in _SPARKS}
    _refuse(given)
    reader = OptionReader(given)
    exactly_once = _is_exactly_once(reader, given)
    # As with the connector, headers are written wherever their column is there.
    reader.boolean("includeHeaders", True)
    topic = given.get("topic", "").strip()
    if "topic" in given and not topic:
        raise OptionError("option topic is empty; name a topic, or leave it out and have a column topic")
    return SinkOptions(
        gateways(given),
        topic,
        _codec(reader),
        credentials_file(given),
        claims(given),
        _remarks(given),
        exactly_once,
        _name("sinkId", given, _SINK_BYTES_MAX),
        reader.boolean("sinkTakeover", False),
        _version(reader, given, is_stream=not single),
        # The cluster bounds it, too (transaction.max.timeout.ms).
        reader.number("stagingTimeoutMs", STAGING_TIMEOUT_MS, least=1_000, most=(1 << 31) - 1),
        single if exactly_once else "",
        checkpoint=checkpoint_of(raw) if exactly_once and not single else "",
    )


def checkpoint_of(raw: Mapping[str, str]) -> str:
    """That of the query, as its user gave it; "" for none."""
    return next((value for name, value in raw.items() if name.lower() == "checkpointlocation"), "")


def _is_exactly_once(reader: OptionReader, given: Mapping[str, str]) -> bool:
    delivery = reader.word("delivery", "exactly-once")
    if delivery not in ("exactly-once", "at-least-once"):
        raise OptionError(f"option delivery must be exactly-once or at-least-once, not {delivery!r}")
    if delivery == "at-least-once":
        for name in _EXACTLY_ONCE:
            if name in given:
                raise OptionError(
                    f"option {_EXACTLY_ONCE[name]} belongs to delivery=exactly-once; leave one of them out"
                )
    return delivery == "exactly-once"


def _name(option: str, given: Mapping[str, str], most: int) -> str:
    """ "" when it is not given."""
    name = given.get(option.lower())
    if name is None:
        return ""
    if not _NAME.fullmatch(name) or len(name) > most:
        kinds = "letters, digits, and characters of . _ : / @ + -"
        raise OptionError(f"option {option} must be 1 to {most} {kinds}, not {name!r}")
    return name


def _version(reader: OptionReader, given: Mapping[str, str], *, is_stream: bool) -> tuple[str, int] | None:
    names = [name for name in ("txnappid", "txnversion") if name in given]
    if not names:
        return None
    if is_stream:
        raise OptionError(
            f"option {_EXACTLY_ONCE[names[0]]} is for batch writes: a stream has its query's id and the number of the "
            "micro-batch; leave it out"
        )
    if len(names) == 1:
        other = "txnVersion" if names[0] == "txnappid" else "txnAppId"
        raise OptionError(f"option {_EXACTLY_ONCE[names[0]]} is given without {other}; give both, or neither")
    return _name("txnAppId", given, _APPLICATION_BYTES_MAX), reader.number("txnVersion", 0, least=0)


def _refuse(given: Mapping[str, str]) -> None:
    for name in given:
        if name in _KNOWN:
            continue
        if name in _REFUSED:
            raise OptionError(f"option {name} is not supported: {_REFUSED[name]}")
        setting = name.removeprefix("kafka.")
        if setting == name or setting not in MEANINGLESS:
            if setting != name and setting.startswith((*SIGN_IN, "security.protocol")):
                if _may_stand(setting, given):
                    continue
                raise OptionError(f"option {name} is not taken: {USE_FILE}")
            raise OptionError(f"unknown option {name}{_nearest(name)}")


def _may_stand(setting: str, given: Mapping[str, str]) -> bool:
    """It holds no secret, and says what credentialsFile says (which is looked at later), or that nobody signs in."""
    if "credentialsfile" in given:
        return setting in PLAIN_SIGN_IN
    return setting == "security.protocol" and given["kafka.security.protocol"].strip().lower() == "plaintext"


def _nearest(name: str) -> str:
    """Words for the accepted name that is most like this one."""
    names = _KNOWN | {f"kafka.{setting}": f"kafka.{setting}" for setting in MEANINGLESS}
    found = get_close_matches(name, names, n=1, cutoff=0.7)
    if found:
        return f"; did you mean {names[found[0]]}?"
    return f"; this sink knows: {', '.join(_KNOWN.values())}"


def _remarks(given: Mapping[str, str]) -> tuple[str, ...]:
    tuning = sorted(
        name for name in given if name not in _KNOWN and name.removeprefix("kafka.") in MEANINGLESS
    )
    if not tuning:
        return ()
    return (f"settings of Kafka's Java clients mean nothing to this sink: {', '.join(tuning)}",)


def _codec(reader: OptionReader) -> str:
    """The option has a name of its own and Kafka's; they may not differ."""
    said = set()
    for name in ("compression", "kafka.compression.type"):
        codec = reader.word(name, "")
        if codec and codec not in CODEC_NAMES:
            raise OptionError(f"option {name} must be one of {', '.join(CODEC_NAMES)}, not {codec!r}")
        said |= {codec} - {""}
    if len(said) > 1:
        raise OptionError(
            "options compression and kafka.compression.type say different things; leave one out"
        )
    return said.pop() if said else "none"
