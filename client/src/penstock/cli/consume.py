"""`penstock consume`: records of a topic, by partition and offset, with no consumer group.

Theory: partitions are assigned, not subscribed to, so nothing is committed and nothing is
shared with other readers. Records of one partition come in order; between partitions there
is none.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.kafka import (
    CALL_TIMEOUT_S,
    bootstrap_option,
    check_reachable,
    client_config,
    failure,
    topic_metadata,
)
from penstock.cli.output import note
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

RECORDS_PER_CALL_MAX = 1_000
NAMED_FORMATS = {"value": "%v\\n", "key-value": "%k\\t%v\\n", "full": "%t/%p@%o %T %k %v\\n"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX = 2**63 - 1
_TOKEN = re.compile(r"%([tpokvTh%])|\\([nt\\0])")

Format = Callable[["Message"], bytes]


@click.command("consume")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help="earliest, latest, an offset, -N (the last N of each partition), @MILLISECONDS since 1970, "
    "or a time such as 2013-01-01T05:00:00Z.",
)
@click.option("--count", "-n", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--until-end", "-e", is_flag=True, help="Stop where the topic ended when the command began.")
@click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option(
    "--format",
    "form",
    default="value",
    show_default=True,
    help="value, key-value, full, json, or a template of %t topic, %p partition, %o offset, %k key, "
    "%v value, %T timestamp in ms, %h headers, \\n, \\t.",
)
@bootstrap_option
@click.option("--json", "as_json", is_flag=True, help="As --format json: one object per line.")
def COMMAND(  # noqa: N802 (the name that cli.main looks for)
    topic: str,
    start: str,
    count: int | None,
    until_end: bool,
    numbers: tuple[int, ...],
    form: str,
    bootstrap: str,
    as_json: bool,
) -> int:
    """Read records of a topic; goes on as new ones come, until Ctrl-C, --count or --until-end.

    \b
    Examples:
      penstock consume flights --count 10
      penstock consume flights --from latest
      penstock consume flights --from 2013-06-01 --until-end --format '%p %o %k %v\\n'
      penstock consume flights --until-end --json | jq .key
    """
    from confluent_kafka import Consumer

    formatter = make_format("json" if as_json else form)
    where = parse_start(start)
    check_reachable(bootstrap)
    consumer = Consumer(
        client_config(
            bootstrap,
            **{
                "group.id": "penstock-consume-unused",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 500,
                # librdkafka's own second of rest, each time its queue is full, is most of a fast read.
                "fetch.queue.backoff.ms": 5,
                "check.crcs": True,
            },
        )
    )
    try:
        starts, ends = _assignment(consumer, bootstrap, topic, numbers, where)
        consumer.assign(starts)
        _copy(consumer, topic, formatter, count, ends if until_end else None)
    except KeyboardInterrupt:
        sys.stdout.flush()
        return ExitCode.INTERRUPTED
    finally:
        consumer.close()
    return ExitCode.OK


def parse_start(word: str) -> tuple[str, int]:
    """("earliest"|"latest", 0), ("offset", n), ("last", n) or ("time", ms since 1970, UTC unless told).

    Times are those that a record may have: negative ones mean other things to a broker, -1 the end.
    """
    if word in ("earliest", "latest"):
        return word, 0
    if re.fullmatch(r"[0-9]+", word):
        return "offset", int(word)
    if re.fullmatch(r"-[0-9]+", word):
        return "last", int(word[1:])
    if re.fullmatch(r"@[0-9]+", word):
        return "time", min(int(word[1:]), _TIME_MS_MAX)
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise CommandError(
            f"--from {word!r}: give earliest, latest, an offset, -N, @MILLISECONDS or a time like 2013-01-31",
            ExitCode.USAGE,
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return "time", max((moment - _EPOCH) // timedelta(milliseconds=1), 0)


def make_format(form: str) -> Format:
    """A function that turns a record into the bytes to print. Keys and values stay as they are."""
    if form == "json":
        return lambda message: json.dumps(record_as_json(message)).encode() + b"\n"
    template = NAMED_FORMATS.get(form, form)
    if "%" not in template:
        names = ", ".join([*NAMED_FORMATS, "json"])
        raise CommandError(
            f"--format {form!r}: give {names}, or a template with %v or the like", ExitCode.USAGE
        )
    if template == NAMED_FORMATS["value"]:
        return lambda message: (message.value() or b"") + b"\n"
    parts: list[bytes | Format] = []
    position = 0
    for match in _TOKEN.finditer(template):
        parts.append(template[position : match.start()].encode())
        position = match.end()
        parts.append(_FIELDS[match[1]] if match[1] else _ESCAPES[match[2]])
    parts.append(template[position:].encode())
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def record_as_json(message: Message) -> dict[str, Any]:
    """One record: bytes that are no UTF-8 come as base64 under NAME_base64."""
    kind, timestamp = message.timestamp()
    record: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp if kind else None,
    }
    for name, data in (("key", message.key()), ("value", message.value())):
        record.update(_text_or_base64(name, data))
    headers = _header_pairs(message)
    if headers:
        record["headers"] = [{"name": name, **_text_or_base64("value", data)} for name, data in headers]
    return record


def _text_or_base64(name: str, data: Any) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    raw = data.encode() if isinstance(data, str) else bytes(data)
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode()}


def _header_pairs(message: Message) -> list[tuple[str, bytes | None]]:
    pairs: Any = message.headers()
    return list(pairs or ())


def _headers(message: Message) -> bytes:
    return b",".join(name.encode() + b"=" + (data or b"") for name, data in _header_pairs(message))


_FIELDS: dict[str, Any] = {
    "t": lambda message: (message.topic() or "").encode(),
    "p": lambda message: b"%d" % message.partition(),
    "o": lambda message: b"%d" % message.offset(),
    "k": lambda message: message.key() or b"",
    "v": lambda message: message.value() or b"",
    "T": lambda message: b"%d" % message.timestamp()[1],
    "h": _headers,
    "%": lambda _message: b"%",
}
_ESCAPES = {"n": b"\n", "t": b"\t", "\\": b"\\", "0": b"\0"}


def _assignment(
    consumer: Consumer, bootstrap: str, topic: str, numbers: tuple[int, ...], where: tuple[str, int]
) -> tuple[list[Any], dict[int, int]]:
    """Partitions with the offset to start at, and the end of each as it is now."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    known = topic_metadata(consumer, bootstrap, topic).partitions
    for number in numbers:
        if number not in known:
            thing = f"partition {number} of topic {topic!r}"
            raise CommandError(f"{thing} does not exist; there are 0 to {len(known) - 1}")
    chosen = sorted(set(numbers) or set(known))
    kind, amount = where
    try:
        bounds = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=CALL_TIMEOUT_S)
            for number in chosen
        }
        if any(bound is None for bound in bounds.values()):
            raise failure(KafkaError(KafkaError._TIMED_OUT), f"topic {topic!r}")
        by_time = {}
        if kind == "time":
            asked = [TopicPartition(topic, number, amount) for number in chosen]
            found = consumer.offsets_for_times(asked, timeout=CALL_TIMEOUT_S)
            by_time = {part.partition: part.offset for part in found}
    except KafkaException as error:
        raise failure(error.args[0], f"topic {topic!r}") from error
    starts = []
    for number, (low, high) in bounds.items():
        offset = {"earliest": low, "latest": high, "last": max(low, high - amount), "offset": amount}.get(
            kind
        )
        if offset is None:
            offset = by_time[number] if by_time[number] >= 0 else high
        if kind == "offset" and len(chosen) == 1 and not low <= offset <= high:
            raise CommandError(
                f"offset {offset} is not in partition {number} of {topic!r}: it has {low} to {high}"
            )
        starts.append(TopicPartition(topic, number, min(max(offset, low), high)))
    return starts, {number: high for number, (_, high) in bounds.items()}


def _copy(
    consumer: Consumer, topic: str, formatter: Format, count: int | None, ends: dict[int, int] | None
) -> None:
    """Print records until `count` of them, or until every partition has reached its end."""
    from confluent_kafka import KafkaError

    out = sys.stdout.buffer
    left = count
    open_ends = {p.partition: ends[p.partition] for p in consumer.assignment()} if ends is not None else None
    if open_ends is not None:
        for part in consumer.assignment():
            if part.offset >= open_ends[part.partition]:
                del open_ends[part.partition]
    troubled_since: float | None = None
    while (left is None or left > 0) and (open_ends is None or open_ends):
        messages = consumer.consume(min(RECORDS_PER_CALL_MAX, left or RECORDS_PER_CALL_MAX), timeout=0.2)
        chunk = []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._ALL_BROKERS_DOWN or error.retriable():
                    troubled_since = troubled_since or _say_waiting(error)
                    continue
                raise failure(error, f"topic {topic!r}")
            troubled_since = None
            number, offset = message.partition() or 0, message.offset() or 0
            if open_ends is not None:
                if number not in open_ends or offset >= open_ends[number]:
                    open_ends.pop(number, None)
                    continue
                if offset + 1 >= open_ends[number]:
                    del open_ends[number]
            chunk.append(formatter(message))
            if left is not None:
                left -= 1
        if chunk:
            data = b"".join(chunk)
            if out.isatty():  # what others wrote does nothing to a terminal; files and pipes get it as it is
                data = harmless(data.decode("utf-8", "backslashreplace"), keep="\n\t").encode()
            out.write(data)
            out.flush()
        elif open_ends:
            _drop_reached(consumer, open_ends)


def _drop_reached(consumer: Consumer, open_ends: dict[int, int]) -> None:
    """Ends that hold no record (a control batch, a compacted one) are reached by position alone."""
    for part in consumer.position(consumer.assignment()):
        if part.offset >= open_ends.get(part.partition, sys.maxsize):
            del open_ends[part.partition]


def _say_waiting(error: Any) -> float:
    note(f"waiting: {error.str()}")
    return time.monotonic()
