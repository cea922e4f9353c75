"""Transactions of every end in a cluster, Penstock's or Kafka's, and what Kafka's DumpLogSegments has to print of them.

`write_history` leaves: committed and aborted transactions of a client of each generation, one that was open while
segments ended and then committed, offsets of a group committed, aborted and pending, and two that stay open with a
committed one behind them, which readers of committed records do not see yet.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from support.java import JavaDriver
from support.kafka import COMMITTED_AGAIN, client_config, commit, create_topic, produce
from support.transactional_writers import CALL_S, ByJava, ByLibrdkafka, Writer
from support.transactions import read_to_end
from support.waiting import wait_for

TOPIC, INPUT, GROUP = "decided", "input", "readers"
PARTITIONS = 2
ROUNDS = 13
VALUE_BYTES, FILLING = 20_000, "x"
SEGMENT_BYTES = 1 << 20
"""The least that Kafka takes."""
TIMEOUT_MS = 600_000
"""None of the transactions ends by its timeout."""
ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT = 1, 4, 5
"""Statuses as they are stored."""
STATUSES = {
    "old": COMPLETE_COMMIT,
    "new": COMPLETE_COMMIT,
    "long": COMPLETE_COMMIT,
    "last": COMPLETE_COMMIT,
    "offsets": COMPLETE_ABORT,
    "open-old": ONGOING,
    "open-new": ONGOING,
}
"""Where the history leaves each transactional id."""
STABLE_OFFSET, ABORTED_OFFSET, PENDING_OFFSET = 3, 5, 7


@dataclass
class History:
    """What was written to `TOPIC`."""

    committed: set[str] = field(default_factory=set)
    """Values that count, those without a transaction among them."""
    commits: int = 0
    """Commit markers in each partition."""
    aborts: int = 0

    def seen(self, everything: dict[int, list[str]]) -> dict[int, list[str]]:
        """What a reader of committed records finds once nothing is open, of what others find."""
        return {n: [value for value in values if value in self.committed] for n, values in everything.items()}


def make_topics(bootstrap: str) -> None:
    """The topics of a history, those of both coordinators too."""
    create_topic(bootstrap, TOPIC, PARTITIONS, segment_bytes=str(SEGMENT_BYTES))
    create_topic(bootstrap, INPUT)
    produce(bootstrap, INPUT, 10)
    ByLibrdkafka(bootstrap, "maker").close()
    consumer = Consumer(client_config(bootstrap, **{"group.id": "maker"}))
    commit(consumer, [TopicPartition(INPUT, 0, 1)])
    consumer.close()


def write_history(bootstrap: str) -> History:
    """Into topics that `make_topics` has made. The clients of what is open are dead when it returns."""
    history = History()
    plain = ByLibrdkafka(bootstrap, "long", TIMEOUT_MS)
    plain.begin()
    _send(plain, "long", 0, history, counts=True)
    plain.flush()
    driver = JavaDriver()
    try:
        writers: dict[str, Writer] = {
            "old": ByLibrdkafka(bootstrap, "old", TIMEOUT_MS),
            "new": ByJava(bootstrap, "new", TIMEOUT_MS, driver=driver),
        }
        for number in range(ROUNDS):
            for name, writer in writers.items():
                _one(writer, name, number, history, counts=number % 3 != 2)
        plain.commit()
        history.commits += 1
        plain.close()
        _commit_offsets(bootstrap)
        openers: dict[str, Writer] = {
            "open-old": ByLibrdkafka(bootstrap, "open-old", TIMEOUT_MS),
            "open-new": ByJava(bootstrap, "open-new", TIMEOUT_MS, driver=driver),
        }
        for name, writer in openers.items():
            writer.begin()
            _send(writer, name, 0, history, counts=False)
            writer.flush()
        _send_offset(openers["open-old"], bootstrap, PENDING_OFFSET)
        last = ByLibrdkafka(bootstrap, "last", TIMEOUT_MS)
        _one(last, "last", 0, history, counts=True)
        wait_for(lambda: _is_complete(driver, bootstrap), "every ended transaction is complete")
    finally:
        driver.kill()
    for each in (last, openers["open-old"], writers["old"]):
        each.close()
    return history


def one_more(writer: Writer, name: str, history: History) -> None:
    """A transaction after those of the history; it commits."""
    _one(writer, name, ROUNDS, history, counts=True)


def _one(writer: Writer, name: str, number: int, history: History, *, counts: bool) -> None:
    writer.begin()
    _send(writer, name, number, history, counts=counts)
    writer.flush()
    if counts:
        writer.commit()
        history.commits += 1
    else:
        writer.abort()
        history.aborts += 1


def _send(writer: Writer, name: str, number: int, history: History, *, counts: bool) -> None:
    for row in range(3):
        for partition in range(PARTITIONS):
            value = f"{name}:{number}:{row}:{partition}:"
            writer.send(TOPIC, partition, value.ljust(VALUE_BYTES, FILLING))
            if counts:
                history.committed.add(value)


def _commit_offsets(bootstrap: str) -> None:
    writer = ByLibrdkafka(bootstrap, "offsets", TIMEOUT_MS)
    writer.begin()
    _send_offset(writer, bootstrap, STABLE_OFFSET)
    writer.commit()
    writer.begin()
    _send_offset(writer, bootstrap, ABORTED_OFFSET)
    writer.abort()
    writer.close()


def _send_offset(writer: Any, bootstrap: str, offset: int) -> None:
    consumer = Consumer(client_config(bootstrap, **{"group.id": GROUP}))
    place = [TopicPartition(INPUT, 0, offset)]
    writer.producer.send_offsets_to_transaction(place, consumer.consumer_group_metadata(), CALL_S)
    consumer.close()


def _is_complete(driver: JavaDriver, bootstrap: str) -> bool:
    told = driver.tool("TransactionsCommand", "--bootstrap-server", bootstrap, "list").text
    return "Complete" in told and "Prepare" not in told


def committed_offset(bootstrap: str) -> int | None:
    """Of the group, in the input's only partition; pending ones left out. None while its coordinator is on its way."""
    admin = AdminClient(client_config(bootstrap))
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])
    try:
        (place,) = asked[GROUP].result(CALL_S).topic_partitions
    except KafkaException as error:
        if error.args[0].code() not in COMMITTED_AGAIN:
            raise
        return None
    return int(place.offset)


def readings(bootstrap: str) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """What readers of committed records find, and what all others do."""
    return _read(bootstrap, "read_committed"), _read(bootstrap, "read_uncommitted")


def _read(bootstrap: str, isolation: str) -> dict[int, list[str]]:
    found = read_to_end(bootstrap, TOPIC, isolation)
    return {partition: [value.rstrip(FILLING) for value in values] for partition, values in found.items()}


# -- what Kafka's tool prints of the files -------------------------------------------------------

_NUMBERS = re.compile(r"(\w+): (-?\d+|true|false|OptionalLong\[\d+\]|OptionalLong\.empty)")
_MARKER = re.compile(r"\| offset: (\d+) .*endTxnMarker: (COMMIT|ABORT) coordinatorEpoch: (\d+)")
_KEYED = re.compile(r"\bkey: (\{.*?\}) payload: (.*)$")


def by_file(output: str) -> dict[Path, list[str]]:
    """Lines of DumpLogSegments by the file that they are of."""
    found: dict[Path, list[str]] = defaultdict(list)
    where = None
    for line in output.splitlines():
        if line.startswith("Dumping "):
            where = Path(line.removeprefix("Dumping "))
        elif where is not None:
            found[where].append(line)
    return found


def _fields(line: str) -> dict[str, str]:
    return dict(_NUMBERS.findall(line))


def _offset(told: str) -> int | None:
    return None if told == "OptionalLong.empty" else int(told.removeprefix("OptionalLong[").removesuffix("]"))


@dataclass
class Replay:
    """A partition's transactions, by what the tool prints of its batches."""

    commits: int = 0
    aborts: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """First offset by producer."""
    index: dict[str, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    """By segment what its `.txnindex` has to hold: producer, first, last, last stable offset."""
    at: dict[int, dict[int, int | None]] = field(default_factory=dict)
    """By the first offset of each batch what a snapshot of there has to hold: where a producer's transaction began."""
    _known: set[int] = field(default_factory=set)

    def batch(self, told: dict[str, str]) -> None:
        """A batch of records."""
        producer = int(told["producerId"])
        if producer >= 0 and told["isControl"] == "false":
            self._known.add(producer)
            if told["isTransactional"] == "true":
                self.open.setdefault(producer, int(told["baseOffset"]))

    def marker(self, segment: str, producer: int, offset: int, kind: str) -> None:
        """The line of a marker."""
        self._known.add(producer)
        first = self.open.pop(producer, None)
        self.commits += kind == "COMMIT"
        self.aborts += kind == "ABORT"
        if kind == "ABORT" and first is not None:
            stable = min(self.open.values(), default=offset + 1)
            self.index[segment].append((producer, first, offset, stable))

    def note(self, offset: int) -> None:
        """A batch begins, or the log ends."""
        self.at[offset] = {producer: self.open.get(producer) for producer in self._known}


def replay(directory: Path, lines: dict[Path, list[str]]) -> Replay:
    """The logs of one partition."""
    found = Replay()
    end = 0
    for log in sorted(directory.glob("*.log")):
        producer = -1
        for line in lines[log]:
            marker = _MARKER.search(line)
            if marker is not None:
                found.marker(log.stem, producer, int(marker[1]), marker[2])
            elif line.startswith("baseOffset: "):
                batch = _fields(line)
                found.note(int(batch["baseOffset"]))
                producer, end = int(batch["producerId"]), int(batch["lastOffset"]) + 1
                found.batch(batch)
    found.note(end)
    return found


def aborted_rows(directory: Path, lines: dict[Path, list[str]]) -> dict[str, list[tuple[int, ...]]]:
    """By segment what the tool reads in the `.txnindex` files."""
    names = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
    found = {}
    for file in sorted(directory.glob("*.txnindex")):
        rows = [_fields(line) for line in lines[file] if line.startswith("version: ")]
        if rows:
            found[file.stem] = [tuple(int(row[name]) for name in names) for row in rows]
    return found


def snapshots(directory: Path, lines: dict[Path, list[str]]) -> dict[int, dict[int, int | None]]:
    """By offset what the tool reads in the `.snapshot` files."""
    found = {}
    for file in sorted(directory.glob("*.snapshot")):
        rows = [_fields(line) for line in lines[file] if line.startswith("producerId: ")]
        found[int(file.stem)] = {
            int(row["producerId"]): _offset(row["currentTxnFirstOffset"]) for row in rows
        }
    return found


def decoded(
    directories: Sequence[Path], lines: dict[Path, list[str]]
) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Keys and values of a coordinator's records, without their versions, in the order of each partition."""
    rows = []
    for log in (log for directory in directories for log in sorted(directory.glob("*.log"))):
        for line in lines[log]:
            match = _KEYED.search(line)
            if match is not None:
                value = None if match[2] == "<DELETE>" else json.loads(match[2])["data"]
                rows.append((json.loads(match[1])["data"], value))
    return rows
