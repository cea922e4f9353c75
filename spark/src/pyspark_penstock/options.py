"""Options of the source: the names, defaults and errors of Spark's Kafka connector.

`gateway` takes the place of `kafka.bootstrap.servers`: a comma-separated list of the
gRPC addresses (`host:port`) of one or more gateways, any of which answers for the whole
cluster. `kafka.bootstrap.servers` is taken as another spelling of it, so that it too
must hold gRPC addresses and not Kafka ports.

Rules: an option that is not known is refused, because a misspelt `failOnDataLoss` must
not be ignored; one that a later version will know says so. Settings of Kafka's clients that
mean nothing here are taken and told once, so that a job moves over as it is. Names are
case-insensitive, as everywhere in Spark. No value is shown that may be a secret.

Sources of defaults and messages: KafkaSourceProvider and the Structured Streaming + Kafka
integration guide.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, cast, get_args

from pyspark_penstock.client_settings import MEANINGLESS, PLAIN_SIGN_IN, SIGN_IN
from pyspark_penstock.errors import NotBuiltYetError, OptionError

TopicOffsets = dict[str, dict[int, int]]
"""By topic and partition: offsets, or timestamps in ms."""

EARLIEST = -2
LATEST = -1

_LONG_MAX = (1 << 63) - 1
"""Of numbers that Spark or the gateway is told: both would end in an error of their own above it."""
_LONG_DIGITS = 19

FetchMode = Literal["auto", "gateway", "direct"]

_T = TypeVar("_T")

_KNOWN = {
    name.lower(): name
    for name in (
        "gateway",
        "kafka.bootstrap.servers",
        "subscribe",
        "subscribePattern",
        "assign",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsets",
        "startingOffsetsByTimestampStrategy",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "endingOffsets",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "includeHeaders",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "fetchMode",
        "rack",
        "fetch.chunkBytes",
        "latestWaitMs",
        "verifyCrc",
        "isolation",
        "kafka.isolation.level",
        "kafka.security.protocol",
        "credentialsFile",
        "groupIdPrefix",
        "kafka.group.id",
        "pushdown",
        "rows",
        "commitGroupId",
        "maxBytesPerTrigger",
        "maxBytesPerPartition",
    )
}

_GROUPS = ("groupidprefix", "kafka.group.id")
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "commitGroupId",
)

_NOT_BUILT_YET = {
    "columns": 'choosing columns by an option (give a schema instead: .schema("value binary"))',
    "fetch.prefetch": "prefetching chunks beyond what a gRPC stream does by itself",
}

_USE_FILE = (
    "options stand in query plans and in Spark's UI; write security.protocol, sasl.* and ssl.* into a file of mode "
    "0600 on each machine and give its path as option credentialsFile"
)

_REFUSED = {
    "topic": "it says where to write to; to read name topics by subscribe, subscribePattern or assign",
    **dict.fromkeys(
        ("delivery", "compression", "sinkid", "sinktakeover", "txnappid", "txnversion", "stagingtimeoutms"),
        "it says how to write, and this is a read",
    ),
    "kafka.auto.offset.reset": "set startingOffsets to 'earliest' or 'latest' instead; "
    "the query keeps its own offsets, and resuming goes on where it left off",
    "kafka.key.deserializer": "keys come as bytes; decode them with DataFrame operations",
    "kafka.value.deserializer": "values come as bytes; decode them with DataFrame operations",
    "kafka.key.serializer": "keys are bytes; encode them with DataFrame operations",
    "kafka.value.serializer": "values are bytes; encode them with DataFrame operations",
    "kafka.enable.auto.commit": "the query keeps its own offsets",
    "kafka.interceptor.classes": "interceptors can change the payload",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to start or end: a fixed end of the log, offsets, or timestamps (the first given wins)."""

    kind: Literal["earliest", "latest", "offsets", "timestamp", "timestamps", "group"]
    offsets: TopicOffsets = field(default_factory=dict)
    """For "offsets" (-2 earliest, -1 latest) and for "timestamps" (ms)."""
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options of one read. Picklable; holds no secret."""

    gateways: tuple[str, ...]
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str = ""
    assign: tuple[tuple[str, tuple[int, ...]], ...] = ()
    starting: Bound = field(default_factory=lambda: Bound("earliest"))
    ending: Bound = field(default_factory=lambda: Bound("latest"))
    latest_when_no_match: bool = False
    """A starting timestamp later than every record: start at the latest offset instead of failing."""
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = 15 * 60_000
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    poll_timeout_ms: int = 120_000
    retries_max: int = 3
    retry_interval_ms: int = 10
    chunk_bytes: int = 1024 * 1024
    latest_wait_ms: int = 50
    read_committed: bool = False
    """Leave out what transactions have aborted, and wait at what they have not decided."""
    credentials_file: str = ""
    """Path of a client file, which each process reads for itself; "" for none."""
    claims: tuple[tuple[str, str], ...] = ()
    """Kafka's settings that were given beside that file, and what it must say of them."""
    pushdown: bool = False
    """Plan batch reads for what the query's filters leave."""
    remarks: tuple[str, ...] = ()
    """What was given and means nothing, for the driver's log: one line each."""
    batch_rows: bool = False
    """A row per stored batch instead of one per record."""
    bytes_per_trigger_max: int | None = None
    bytes_per_partition_max: int | None = None
    commit_group: str = ""
    """Group that a stream's progress is committed to; "" for none."""
    fetch_mode: FetchMode = "auto"
    """Whether executors ask leaders themselves (direct), gateways, or leaders where that goes (auto)."""
    rack: str = ""
    """That of the executors; a follower in it may be read from."""


def parse_options(raw: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Validates what was given to `.option(...)`. Raises OptionError or NotBuiltYetError.

    At load() nobody knows yet whether it is a stream (None): then what only one of the two takes is let through.
    """
    given = {name.lower(): value for name, value in raw.items()}
    given.pop("path", None)  # Spark adds it by itself to some reads
    _refuse(given)
    reader = _Reader(given)
    ending_default = Bound("latest")
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name.lower() in given:
                raise OptionError(f"option {name} is not valid in streaming queries: they have no end")
    starting = _bound(given, "starting", Bound("latest" if streaming else "earliest"))
    ending = ending_default if streaming else _bound(given, "ending", ending_default)
    if streaming is False:
        _check_batch_bounds(starting, ending)
    low, high = reader.positive("minOffsetsPerTrigger"), reader.positive("maxOffsetsPerTrigger")
    if low is not None and high is not None and low > high:
        raise OptionError(f"minOffsetsPerTrigger ({low}) is higher than maxOffsetsPerTrigger ({high})")
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy is error or latest, not {strategy!r}")
    _check_fixed(reader)
    return SourceOptions(
        gateways=_gateways(given),
        **_selection(given),
        starting=starting,
        ending=ending,
        latest_when_no_match=strategy == "latest",
        offsets_per_trigger_max=high,
        offsets_per_trigger_min=low,
        trigger_delay_max_ms=_duration_ms(given.get("maxtriggerdelay", "15m")),
        partitions_min=reader.positive("minPartitions"),
        records_per_partition_max=reader.positive("maxRecordsPerPartition"),
        fail_on_data_loss=reader.boolean("failOnDataLoss", True),
        include_headers=reader.boolean("includeHeaders", False),
        poll_timeout_ms=reader.number("kafkaConsumer.pollTimeoutMs", 120_000, least=1),
        retries_max=reader.number("fetchOffset.numRetries", 3, least=0),
        retry_interval_ms=reader.number("fetchOffset.retryIntervalMs", 10, least=0),
        chunk_bytes=reader.number("fetch.chunkBytes", 1024 * 1024, least=1024, most=8 * 1024 * 1024),
        latest_wait_ms=reader.number("latestWaitMs", 50, least=0, most=30_000),
        read_committed=_isolation(reader),
        credentials_file=_credentials_file(given),
        claims=_claims(given),
        pushdown=reader.boolean("pushdown", False),
        remarks=_remarks(given, streaming),
        batch_rows=_batch_rows(reader, streaming),
        bytes_per_trigger_max=reader.positive("maxBytesPerTrigger"),
        bytes_per_partition_max=reader.positive("maxBytesPerPartition"),
        commit_group=_commit_group(given, starting, streaming),
        fetch_mode=_fetch_mode(reader),
        rack=given.get("rack", "").strip(),
    )


def _refuse(given: Mapping[str, str]) -> None:
    for name in given:
        if name in _KNOWN:
            continue
        if name in _REFUSED:
            raise OptionError(f"option {name} is not supported: {_REFUSED[name]}")
        if name in _NOT_BUILT_YET:
            raise NotBuiltYetError(f"option {name} is not built yet: it belongs to {_NOT_BUILT_YET[name]}")
        setting = name.removeprefix("kafka.")
        if setting == name or setting not in MEANINGLESS:
            if setting != name and setting.startswith(SIGN_IN):
                if setting in PLAIN_SIGN_IN and "credentialsfile" in given:
                    continue
                raise OptionError(f"option {name} is not taken: {_USE_FILE}")
            raise OptionError(f"unknown option {name}{_nearest(name)}")


def _nearest(name: str) -> str:
    """Words for the accepted name that is most like this one."""
    names = _KNOWN | {f"kafka.{setting}": f"kafka.{setting}" for setting in MEANINGLESS}
    found = get_close_matches(name, names, n=1, cutoff=0.7)
    if found:
        return f"; did you mean {names[found[0]]}?"
    return f"; this source knows: {', '.join(_KNOWN.values())}"


def _claims(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if "credentialsfile" not in given:
        return ()
    names = sorted(PLAIN_SIGN_IN)
    return tuple((name, given[f"kafka.{name}"].strip()) for name in names if f"kafka.{name}" in given)


def _remarks(given: Mapping[str, str], streaming: bool | None) -> tuple[str, ...]:
    remarks = []
    tuning = sorted(name for name in given if name.removeprefix("kafka.") in MEANINGLESS)
    if tuning:
        remarks.append(f"settings of Kafka's Java clients mean nothing to this source: {', '.join(tuning)}")
    groups = [_KNOWN[name] for name in _GROUPS if name in given]
    if groups:
        remarks.append(f"this source reads without a consumer group: {', '.join(groups)} changes nothing")
    stream_only = [name for name in _STREAM_ONLY if name.lower() in given]
    if streaming is False and stream_only:
        remarks.append(f"a batch read has no triggers: {', '.join(stream_only)} is ignored")
    if streaming and "pushdown" in given:
        remarks.append("Spark hands filters to batch reads alone: pushdown changes nothing in a stream")
    if given.get("rack") and given.get("fetchmode", "").strip().lower() == "gateway":
        remarks.append("behind a gateway clients choose no node: rack changes nothing with fetchMode=gateway")
    return tuple(remarks)


def _credentials_file(given: Mapping[str, str]) -> str:
    path = given.get("credentialsfile", "").strip()
    if "credentialsfile" in given and not path.startswith("/"):
        # Not what was given: somebody may have put the secret itself there.
        raise OptionError(
            "option credentialsFile must be the absolute path of a client file, which driver and executors can read"
        )
    return path


def _check_fixed(reader: _Reader) -> None:
    """Options that have one value in this build."""
    if not reader.boolean("verifyCrc", True):
        raise OptionError("verifyCrc can't be switched off: the check runs faster than the data comes")
    is_plain = reader.word("kafka.security.protocol", "plaintext") == "plaintext"
    if not is_plain and not reader.word("credentialsFile", ""):
        raise OptionError(f"option kafka.security.protocol other than PLAINTEXT is not taken: {_USE_FILE}")


def _commit_group(given: Mapping[str, str], starting: Bound, streaming: bool | None) -> str:
    group = given.get("commitgroupid", "").strip()
    if "commitgroupid" in given and not group:
        raise OptionError("option commitGroupId is empty: name a consumer group, or leave it out")
    if starting.kind == "group":
        if streaming is False:
            raise OptionError("startingOffsets=group is for streaming queries; give offsets to a batch read")
        if not group:
            raise OptionError("startingOffsets=group needs option commitGroupId, which names the group")
    return group


def _isolation(reader: _Reader) -> bool:
    """Whether committed records alone are read. The option has a name of its own and Kafka's; they may not differ."""
    said = set()
    for name in ("isolation", "kafka.isolation.level"):
        level = reader.word(name, "")
        if level not in ("", "read_uncommitted", "read_committed"):
            raise OptionError(f"option {name} is read_uncommitted or read_committed, not {level!r}")
        said |= {level} - {""}
    if len(said) > 1:
        raise OptionError("options isolation and kafka.isolation.level say different things; leave one out")
    return said == {"read_committed"}


def _fetch_mode(reader: _Reader) -> FetchMode:
    mode = reader.word("fetchMode", "auto")
    for known in get_args(FetchMode):
        if mode == known:
            return cast(FetchMode, known)
    raise OptionError(f"option fetchMode is auto, gateway or direct, not {mode!r}")


def _batch_rows(reader: _Reader, streaming: bool | None) -> bool:
    kind = reader.word("rows", "records")
    if kind not in ("records", "batches"):
        raise OptionError(f"option rows is records or batches, not {kind!r}")
    if kind == "batches" and streaming:
        raise OptionError("option rows=batches is for batch reads; leave it out of a streaming query")
    return kind == "batches"


class _Reader:
    """Typed access to single options."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def _parse(self, name: str, default: _T, parse: Callable[[str], _T], kind: str) -> _T:
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text.strip())
        except ValueError:
            raise OptionError(f"option {name} must be {kind}, not {text!r}") from None

    def word(self, name: str, default: str) -> str:
        return self._parse(name, default, str.lower, "a word")

    def boolean(self, name: str, default: bool) -> bool:
        def parse(text: str) -> bool:
            if text.lower() not in ("true", "false"):
                raise ValueError(text)
            return text.lower() == "true"

        return self._parse(name, default, parse, "true or false")

    def number(self, name: str, default: int, *, least: int, most: int = _LONG_MAX) -> int:
        value = self._parse(name, default, int, "a whole number")
        if not least <= value <= most:
            raise OptionError(f"option {name} must be between {least} and {most}, not {value}")
        return value

    def positive(self, name: str) -> int | None:
        if name.lower() not in self._given:
            return None
        value = self._parse(name, 0, int, "a whole number")
        if value <= 0:
            raise OptionError(f"{name} must be positive, not {value}")
        if value > _LONG_MAX:
            raise OptionError(f"{name} must be {_LONG_MAX} at most, not {value}; leave it out for no bound")
        return value


def _gateways(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("gateway")
    other = given.get("kafka.bootstrap.servers")
    if text is not None and other is not None and text != other:
        raise OptionError("options gateway and kafka.bootstrap.servers differ; give gateway alone")
    text = text if text is not None else other
    if text is None or not text.strip(" ,"):
        raise OptionError(
            'option gateway must be given: the gRPC address of one or more gateways, as "host:port,host:port"'
        )
    if "@" in text:
        # Not what was given: before it stands a name, and often a password.
        raise OptionError(
            "option gateway has somebody's name or password in it, which options show to everybody; give host:port "
            "alone, and write who comes in into the file of option credentialsFile"
        )
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OptionError(f"gateway address {address!r} is not of the form host:port")
    return tuple(dict.fromkeys(addresses))


_STRATEGIES = ("subscribe", "subscribePattern", "assign")


def _selection(given: Mapping[str, str]) -> dict[str, Any]:
    chosen = [name for name in _STRATEGIES if name.lower() in given]
    if len(chosen) != 1:
        word = "One" if not chosen else "Only one"
        verb = "must" if not chosen else "can"
        raise OptionError(f"{word} of the following options {verb} be given: {', '.join(_STRATEGIES)}")
    value = given[chosen[0].lower()].strip()
    if chosen[0] == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not topics:
            raise OptionError(f"No topics to subscribe to in option subscribe: {value!r}")
        return {"subscribe": topics}
    if chosen[0] == "subscribePattern":
        if not value:
            raise OptionError("Pattern to subscribe is empty in option subscribePattern")
        topic_pattern(value)
        return {"subscribe_pattern": value}
    parsed = _json(value, "assign", 'JSON like {"topicA":[0,1],"topicB":[2,4]}')
    if not isinstance(parsed, dict) or not parsed:
        raise OptionError(f"No topic partitions to assign in option assign: {value!r}")
    assigned = []
    for topic, partitions in parsed.items():
        if (
            not isinstance(partitions, list)
            or not partitions
            or not all(_is_index(item) for item in partitions)
        ):
            raise OptionError(f"option assign must list partitions of topic {topic!r} like [0,1]")
        assigned.append((topic, tuple(sorted(set(partitions)))))
    return {"assign": tuple(assigned)}


def topic_pattern(text: str) -> re.Pattern[str]:
    """The pattern of topic names. Raises OptionError for what Python doesn't read, or reads otherwise than Java."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error", FutureWarning
            )  # Java's && in a set, which Python takes by the letter
            found = re.compile(text)
    except (re.error, FutureWarning) as error:
        raise OptionError(
            f"subscribePattern {text!r} is no regular expression of Python's, in which topics are looked for: {error}"
        ) from None
    if _has_nested_set(text):
        raise OptionError(
            f"subscribePattern {text!r} is read otherwise by Python, in which topics are looked for, than by Java: it "
            "has a set in a set; write it as one, or [ as \\["
        )
    return found


def _has_nested_set(text: str) -> bool:
    """Java's union: Python takes the inner bracket by the letter, and warns of the first in a set alone."""
    is_in_set = is_first = False
    for piece in re.findall(r"\\.|\[\^?|.", text, re.DOTALL):
        if not is_in_set:
            is_in_set = is_first = piece[0] == "["
            continue
        if piece[0] == "[":
            return True
        if piece == "]" and not is_first:
            is_in_set = False
        is_first = False
    return False


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _json(text: str, name: str, example: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(f"option {name} must be {example}, not {text!r}") from None


def _topic_offsets(text: str, name: str, *, least: int) -> TopicOffsets:
    example = 'JSON like {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    parsed = _json(text, name, example)
    result: TopicOffsets = {}
    if not isinstance(parsed, dict):
        raise OptionError(f"option {name} must be {example}, not {text!r}")
    for topic, partitions in parsed.items():
        if not isinstance(partitions, dict):
            raise OptionError(f"option {name} must be {example}, not {text!r}")
        result[topic] = {}
        for partition, value in partitions.items():
            if (
                not partition.isdecimal()
                or isinstance(value, bool)
                or not isinstance(value, int)
                or not least <= value <= _LONG_MAX
            ):
                raise OptionError(
                    f"option {name}: topic {topic!r}, partition {partition!r}: bad value {value!r}"
                )
            result[topic][int(partition)] = value
    return result


def _bound(given: Mapping[str, str], prefix: str, default: Bound) -> Bound:
    """Precedence as in Kafka's connector: one timestamp, timestamps by partition, offsets."""
    name = f"{prefix}Timestamp"
    if (text := given.get(name.lower())) is not None:
        digits = text.strip()
        if not digits.isdecimal() or len(digits) > _LONG_DIGITS or int(digits) > _LONG_MAX:
            raise OptionError(f"option {name} must be a time in ms since 1970, not {text!r}")
        return Bound("timestamp", timestamp_ms=int(digits))
    name = f"{prefix}OffsetsByTimestamp"
    if (text := given.get(name.lower())) is not None:
        return Bound("timestamps", _topic_offsets(text.strip(), name, least=0))
    name = f"{prefix}Offsets"
    text = given.get(name.lower())
    if text is None:
        return default
    word = text.strip().lower()
    if word == "earliest":
        return Bound("earliest")
    if word == "latest":
        return Bound("latest")
    if word == "group" and prefix == "starting":
        return Bound("group")
    return Bound("offsets", _topic_offsets(text.strip(), name, least=EARLIEST))


def _check_batch_bounds(starting: Bound, ending: Bound) -> None:
    if starting.kind == "latest":
        raise OptionError("startingOffsets can't be latest for batch queries")
    if ending.kind == "earliest":
        raise OptionError("endingOffsets can't be earliest for batch queries")
    for name, bound, banned, word in (
        ("startingOffsets", starting, LATEST, "latest"),
        ("endingOffsets", ending, EARLIEST, "earliest"),
    ):
        if bound.kind != "offsets":
            continue
        for topic, partitions in bound.offsets.items():
            for partition, offset in partitions.items():
                if offset == banned:
                    raise OptionError(f"{name} for {topic}-{partition} can't be {word} for batch queries")
    if starting.kind == ending.kind and starting.kind in ("offsets", "timestamps"):
        _check_same_partitions(starting.offsets, ending.offsets)


def _check_same_partitions(starting: TopicOffsets, ending: TopicOffsets) -> None:
    first = {(topic, partition) for topic, item in starting.items() for partition in item}
    last = {(topic, partition) for topic, item in ending.items() for partition in item}
    if first != last:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(first ^ last))
        raise OptionError(f"start and end must name the same partitions; only one of them names {names}")
    for topic, partition in sorted(first):
        start, end = starting[topic][partition], ending[topic][partition]
        if start > end >= 0:
            raise OptionError(f"start ({start}) of {topic}-{partition} is greater than its end ({end})")


_UNITS_US = {
    "us": 1, "ms": 1000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000,
}  # fmt: skip


def _duration_ms(text: str) -> int:
    """Spark's time strings: a number and us, ms, s, m, min, h or d; a bare number is ms."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or (match[2] and match[2] not in _UNITS_US):
        raise OptionError(f"option maxTriggerDelay must be a time like 30s or 15m, not {text!r}")
    return int(match[1]) * _UNITS_US[match[2] or "ms"] // 1000


# What the sink reads in the same way.
OptionReader = _Reader
USE_FILE = _USE_FILE
gateways, credentials_file, claims = _gateways, _credentials_file, _claims
