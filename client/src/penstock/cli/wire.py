"""A Kafka connection for the few requests that librdkafka does not know: reassignments, the cluster's settings.

One connection to the first address that answers, one request at a time. Those about users, ACLs and
quotas are in `security_wire`; here are DescribeConfigs 3, IncrementalAlterConfigs 0, and version 0 of
UnregisterBroker and the two requests of KIP-455, whose messages are flexible (compact lengths, tagged fields)
in every version.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from penstock import connector
from penstock.cli.kafka import CALL_TIMEOUT_S, kafka_connection
from penstock.errors import CommandError, ExitCode

DESCRIBE_CONFIGS: Final = 32
INCREMENTAL_ALTER_CONFIGS: Final = 44
ALTER_REASSIGNMENTS: Final = 45
LIST_REASSIGNMENTS: Final = 46
UNREGISTER_BROKER: Final = 64
KINDS: Final = {"topic": 2, "node": 4, "cluster": 4, "group": 32}
"""Kafka's number of each kind of resource; the cluster is the broker without a name."""
SET: Final = 0
DELETE: Final = 1
SOURCES: Final = {
    1: "topic",
    2: "node",
    3: "cluster",
    4: "node's own file",
    5: "default",
    8: "group",
}
"""Where a setting's value comes from."""


@dataclass(frozen=True)
class Ongoing:
    """A reassignment that is under way."""

    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]


_AUTHOR: Final = re.compile(
    r"(?P<text>.*) \[set by (?P<author>.+) at (?P<at>\d{4}-\d\d-\d\dT[\d:.]+\+00:00)\]", re.DOTALL
)
"""The end of a setting's description, as this build's processes write it."""


@dataclass(frozen=True)
class Setting:
    """One setting of a resource."""

    name: str
    value: str | None
    source: str
    read_only: bool
    text: str
    author: str | None = None
    """Who set it, where the cluster says so; and when, in ms since 1970."""
    set_ms: int | None = None


def describe_configs(bootstrap: str, kind: str, name: str) -> list[Setting]:
    """Every setting of one resource. Raises CommandError."""
    body = struct.pack(">ib", 1, KINDS[kind]) + text_of(name) + struct.pack(">ibb", -1, 0, 1)
    reader = Reader(ask(bootstrap, DESCRIBE_CONFIGS, body, version=3))
    reader.unpack(">ii")
    code, message = reader.unpack(">h")[0], reader.text()
    if code:
        raise CommandError(message or f"the cluster refused with Kafka's error {code}")
    reader.unpack(">b")
    reader.text()
    found = []
    for _ in range(reader.unpack(">i")[0]):
        setting, value = reader.text() or "", reader.text()
        read_only, source, _ = reader.unpack(">bbb")
        for _ in range(reader.unpack(">i")[0]):
            reader.text(), reader.text(), reader.unpack(">b")
        reader.unpack(">b")
        text = reader.text() or ""
        found.append(Setting(setting, value, SOURCES.get(source, ""), bool(read_only), *_authored(text)))
    return found


def _authored(text: str) -> tuple[str, str | None, int | None]:
    """A description without who set the setting; and who, and when in ms since 1970."""
    found = _AUTHOR.fullmatch(text)
    if found is None:
        return text, None, None
    at = datetime.fromisoformat(found["at"])
    return found["text"], found["author"], round(at.timestamp() * 1000)


def alter_configs(
    bootstrap: str, kind: str, name: str, changes: Sequence[tuple[str, str | None]], *, check: bool = False
) -> None:
    """Set settings of one resource; a value of None removes one. Raises CommandError.

    With `check` nothing is changed.
    """
    body = struct.pack(">ib", 1, KINDS[kind]) + text_of(name) + struct.pack(">i", len(changes))
    for key, value in changes:
        body += text_of(key) + struct.pack(">b", DELETE if value is None else SET) + text_of(value)
    body += struct.pack(">b", check)
    reader = Reader(ask(bootstrap, INCREMENTAL_ALTER_CONFIGS, body))
    reader.unpack(">ii")
    code, message = reader.unpack(">h")[0], reader.text()
    if code:
        raise CommandError(message or f"the cluster refused with Kafka's error {code}")


def alter_reassignments(
    bootstrap: str, targets: dict[tuple[str, int], list[int] | None], timeout_ms: int = 30_000
) -> dict[tuple[str, int], str]:
    """Move replicas of partitions (None cancels); what was refused, with its reason."""
    by_topic: dict[str, list[tuple[int, list[int] | None]]] = {}
    for (topic, partition), replicas in targets.items():
        by_topic.setdefault(topic, []).append((partition, replicas))
    body = struct.pack(">i", timeout_ms) + count_of(len(by_topic))
    for topic, partitions in by_topic.items():
        body += compact(topic) + count_of(len(partitions))
        for partition, replicas in partitions:
            body += struct.pack(">i", partition) + _ids(replicas) + b"\x00"
        body += b"\x00"
    reader = Reader(ask(bootstrap, ALTER_REASSIGNMENTS, body + b"\x00", flexible=True))
    code, message = reader.unpack(">ih")[1], reader.compact()
    if code:
        raise CommandError(message or f"the cluster refused with Kafka's error {code}")
    refused: dict[tuple[str, int], str] = {}
    for _ in range(reader.count()):
        topic = reader.compact() or ""
        for _ in range(reader.count()):
            partition, code = reader.unpack(">ih")
            why = reader.compact()
            reader.skip_tags()
            if code:
                refused[topic, partition] = why or f"Kafka's error {code}"
        reader.skip_tags()
    return refused


def ongoing_reassignments(bootstrap: str, timeout_ms: int = 30_000) -> list[Ongoing]:
    """Every reassignment that is under way."""
    body = struct.pack(">i", timeout_ms) + b"\x00\x00"
    reader = Reader(ask(bootstrap, LIST_REASSIGNMENTS, body, flexible=True))
    code, message = reader.unpack(">ih")[1], reader.compact()
    if code:
        raise CommandError(message or f"the cluster refused with Kafka's error {code}")
    found = []
    for _ in range(reader.count()):
        topic = reader.compact() or ""
        for _ in range(reader.count()):
            (partition,) = reader.unpack(">i")
            found.append(Ongoing(topic, partition, reader.ids(), reader.ids(), reader.ids()))
            reader.skip_tags()
        reader.skip_tags()
    return found


def unregister_node(bootstrap: str, node_id: int) -> None:
    """Have the cluster forget a node that is gone. Raises CommandError."""
    body = struct.pack(">i", node_id) + b"\x00"
    reader = Reader(ask(bootstrap, UNREGISTER_BROKER, body, flexible=True))
    code, message = reader.unpack(">ih")[1], reader.compact()
    if code:
        raise CommandError(message or f"the cluster refused with Kafka's error {code}")


def ask(bootstrap: str, key: int, body: bytes, *, version: int = 0, flexible: bool = False) -> bytes:
    """One request; the response without its header."""
    with kafka_connection(bootstrap) as connection:
        connection.settimeout(CALL_TIMEOUT_S)
        try:
            return connector.call(connection, key, version, body, flexible=flexible)
        except OSError as error:
            raise CommandError(
                f"{bootstrap}: no answer ({error or 'timed out'}): is it a gateway of this version, and does it ask "
                "to sign in (--client-config FILE)? Look at `penstock local status`",
                ExitCode.UNREACHABLE,
            ) from error


def text_of(text: str | None) -> bytes:
    """A string with its length before it; null has length -1."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def count_of(count: int) -> bytes:
    """Length + 1 as an unsigned varint; 0 is null."""
    value, out = count + 1, bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact(text: str | bytes) -> bytes:
    """A string or bytes of a flexible message."""
    data = text.encode() if isinstance(text, str) else text
    return count_of(len(data)) + data


def _ids(ids: Sequence[int] | None) -> bytes:
    return b"\x00" if ids is None else count_of(len(ids)) + struct.pack(f">{len(ids)}i", *ids)


class Reader:
    """Takes a response apart."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        """Numbers, by a layout of `struct`."""
        values = struct.unpack_from(layout, self._data, self._pos)
        self._pos += struct.calcsize(layout)
        return values

    def _take(self, count: int) -> bytes:
        start, self._pos = self._pos, self._pos + count
        return self._data[start : self._pos]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._pos]
            self._pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> str | None:
        """A string."""
        (length,) = self.unpack(">h")
        return None if length < 0 else self._take(length).decode()

    def compact(self) -> str | None:
        """A string of a flexible message."""
        length = self._varint() - 1
        return None if length < 0 else self._take(length).decode()

    def count(self) -> int:
        """Length of an array of a flexible message; that of null is 0."""
        return max(0, self._varint() - 1)

    def ids(self) -> list[int]:
        """Node ids of a flexible message."""
        return list(self.unpack(f">{self.count()}i"))

    def tags(self) -> list[tuple[int, bytes]]:
        """Tagged fields: number and content."""
        return [(self._varint(), self._take(self._varint())) for _ in range(self._varint())]

    def skip_tags(self) -> None:
        """Go past tagged fields, none of which is known here."""
        self.tags()
