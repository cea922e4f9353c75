"""A session with kafka-transactions and `penstock transaction`, each against whatever cluster it is.

    python -m conformance.java.transaction_tools record            # against Apache Kafka: writes their transcript
    python -m conformance.java.transaction_tools show <bootstrap>  # what any cluster says

Producers with transactions in every state, two that hang (no coordinator knows them), found and ended by one tool
each, and one that is ended by force. Both tools speak Kafka's protocol, so each judges both systems. What they print
is put into a neutral form: names back, ids of nodes and producers, epochs of coordinators and times taken out.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import socket
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from conformance.java.tools import Line
from conformance.targets import AUTO_CREATE, KAFKA, Worlds
from conformance.wire import leader_of
from penstock.cli.main import run
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from support.java import JavaDriver, shared_driver
from support.kafka import client_config, create_topic, read_all
from support.waiting import wait_for

ORACLE = Path(__file__).parent / "transaction_tools_oracle.json"
VERIFICATION = "transaction.partition.verification.enable"
TIMEOUT_MS = 50_000
HOUR_MS = 3_600_000
STRANGE_IDS = (1_900_000_001, 1_900_000_002)
"""Of the producers that hang, one per partition."""
_VARYING = frozenset(
    {
        "Coordinator", "CoordinatorId", "ProducerId", "LatestCoordinatorEpoch", "CoordinatorEpoch", "LastTimestamp",
        "Duration(min)", "CurrentTransactionStartTimeMs", "TransactionDurationMs",
        "producer_id", "coordinator_epoch", "idle_ms", "start_ms",
    }
)  # fmt: skip
"""Columns of Kafka's tool, and names in the JSON of ours, that have another value each time."""


class Session:
    """One cluster, and the two tools."""

    def __init__(self, driver: JavaDriver, bootstrap: str) -> None:
        self._driver = driver
        self._bootstrap = bootstrap
        self._prefix = f"tools-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self._prefix}-topic"

    def id(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def producer(self, name: str) -> Producer:
        more = {"transactional.id": self.id(name), "transaction.timeout.ms": TIMEOUT_MS}
        made = Producer(client_config(self._bootstrap, **more))
        made.init_transactions(60)
        return made

    # -- the tools -------------------------------------------------------------------------

    def kafkas(self, step: str, words: str) -> Line:
        """kafka-transactions: the rows of its table as "column=value"."""
        arguments = ["--bootstrap-server", self._bootstrap, *words.split()]
        found = self._driver.tool("TransactionsCommand", *arguments, timeout_s=120, exit=None)
        lines = [line for line in found.stdout.splitlines() if line.strip()]
        if not lines:
            return Line(f"kafka-transactions: {step}", found.exit, [])
        head = [word.strip() for word in lines[0].split("\t")]
        rows = [[word.strip() for word in line.split("\t")] for line in lines[1:]]
        said = [
            " ".join(f"{name}={self._put_back(name, value)}" for name, value in zip(head, row, strict=False))
            for row in rows
            if row[0].startswith((self._prefix, self.topic))
            or self._prefix in " ".join(row)
            or step == "producers"
        ]
        return Line(f"kafka-transactions: {step}", found.exit, [" ".join(filter(None, head)), *sorted(said)])

    def ours(self, step: str, *words: str) -> Line:
        """`penstock transaction --json`."""
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            code = run(["transaction", *words, "--bootstrap", self._bootstrap, "--json"])
        told = json.loads(out.getvalue()) if out.getvalue() else None
        return Line(f"penstock transaction: {step}", code, [json.dumps(self._neutral(told), sort_keys=True)])

    def _put_back(self, name: str, value: str) -> str:
        if name in _VARYING and value != "None":
            return "~"
        return value.replace(self._prefix, "~")

    def _neutral(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                self._put_back("", key): "~" if key in _VARYING and one is not None else self._neutral(one)
                for key, one in value.items()
            }
        if isinstance(value, list):
            return sorted((self._neutral(one) for one in value), key=json.dumps)
        return value.replace(self._prefix, "~") if isinstance(value, str) else value

    # -- what they look at -----------------------------------------------------------------

    def verification(self, change: str) -> None:
        """Change whether leaders ask the coordinator before they take a transactional batch."""
        words = f"--entity-type brokers --entity-default --alter {change}".split()
        made = self._driver.tool(
            "ConfigCommand", "--bootstrap-server", self._bootstrap, *words, timeout_s=120
        )
        assert "Completed" in made.stdout, made

    def plant(self, partition: int) -> int:
        """A transactional batch of an hour ago that no coordinator knows of; its offset."""
        self.verification(f"--add-config {VERIFICATION}=false")
        try:
            offset = wait_for(lambda: self._unseen(partition), "a batch that nobody was asked about")
        finally:
            self.verification(f"--delete-config {VERIFICATION}")
        assert offset is not None
        return offset - 1

    def _unseen(self, partition: int) -> int | None:
        """One more than its offset; None while the leader has not heard that it need not ask."""
        records = [NewRecord(None, b"unseen", time.time_ns() // 1_000_000 - HOUR_MS)]
        batch = build_batch(
            records,
            producer_id=STRANGE_IDS[partition],
            producer_epoch=3,
            base_sequence=0,
            transactional=True,
        )
        skim = ProduceSkim(
            "nobody", -1, 30_000, [ProducePartition(self.topic, None, partition, memoryview(batch))]
        )
        frame = b"".join(encode_produce_request(9, 7, "test", skim))
        host, _, port = leader_of(self._bootstrap, self.topic, partition).rpartition(":")
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            file = connection.makefile("rb")
            (size,) = struct.unpack(">i", file.read(4))
            (result,) = decode_produce_response(file.read(size), 9).results
        return None if result.error else int(result.base_offset) + 1

    def committed(self, step: str) -> Line:
        """What a reader of committed records sees."""
        level: dict[str, Any] = {"isolation.level": "read_committed"}
        found = [f"{r.partition}: {r.value.decode()}" for r in read_all(self._bootstrap, self.topic, **level)]
        return Line(f"a reader: {step}", 0, sorted(found))


def _is_ended(s: Session, name: str) -> bool:
    line = s.ours("ended", "describe", s.id(name))
    return bool(re.search('"state": "(Complete|Empty)', line.said[0]))


def session(driver: JavaDriver, bootstrap: str) -> Iterator[Line]:
    """The whole of it."""
    s = Session(driver, bootstrap)
    create_topic(bootstrap, s.topic, 2)
    producers = {name: s.producer(name) for name in ("idle", "open", "committed", "aborted")}
    for name in ("open", "committed", "aborted"):
        producers[name].begin_transaction()
        producers[name].produce(s.topic, name.encode(), partition=1 if name == "aborted" else 0)
        producers[name].flush(60)
    producers["committed"].commit_transaction(60)
    producers["aborted"].abort_transaction(60)
    for name in ("committed", "aborted"):
        wait_for(lambda name=name: _is_ended(s, name), f"the end of {name}")  # type: ignore[misc]
    yield from _looking(s)
    producers["open"].commit_transaction(60)
    wait_for(lambda: _is_ended(s, "open"), "the end of open")
    yield from _hanging(s)
    yield from _by_force(s, producers["open"])


def _looking(s: Session) -> Iterator[Line]:
    yield s.kafkas("list", "list")
    yield s.ours("list", "list", "--pattern", f"{s.id('')}.*")
    for name in ("idle", "open", "committed", "aborted"):
        yield s.kafkas(f"describe {name}", f"describe --transactional-id {s.id(name)}")
        yield s.ours(f"describe {name}", "describe", s.id(name))
    yield s.kafkas("describe nobody", f"describe --transactional-id {s.id('nobody')}")
    yield s.ours("describe nobody", "describe", s.id("nobody"))
    for partition in (0, 1):
        yield s.kafkas("producers", f"describe-producers --topic {s.topic} --partition {partition}")
    yield s.kafkas("nothing hangs", f"find-hanging --topic {s.topic}")
    yield s.ours("nothing hangs", "find-hanging", "--topic", s.topic)
    yield s.kafkas("no such start", f"abort --topic {s.topic} --partition 0 --start-offset 4711")
    yield s.ours("no such start", "abort", s.topic, "0", "--start-offset", "4711", "--yes")
    yield s.committed("one is open")


def _hanging(s: Session) -> Iterator[Line]:
    starts = [s.plant(partition) for partition in (0, 1)]
    yield s.kafkas("two hang", f"find-hanging --topic {s.topic}")
    yield s.ours("two hang", "find-hanging", "--topic", s.topic)
    yield s.kafkas("one hangs", f"find-hanging --topic {s.topic} --partition 1")
    yield s.ours("one hangs", "find-hanging", "--topic", s.topic, "--partition", "1")
    yield s.committed("two hang")
    yield s.kafkas("abort", f"abort --topic {s.topic} --partition 0 --start-offset {starts[0]}")
    yield s.ours("abort", "abort", s.topic, "1", "--start-offset", str(starts[1]), "--yes")
    yield s.kafkas("none hangs any more", f"find-hanging --topic {s.topic}")
    yield s.ours("none hangs any more", "find-hanging", "--topic", s.topic)
    for partition in (0, 1):
        yield s.kafkas("producers", f"describe-producers --topic {s.topic} --partition {partition}")
    after = s.producer("after")
    after.begin_transaction()
    for partition in (0, 1):
        after.produce(s.topic, b"after", partition=partition)
    after.commit_transaction(60)
    wait_for(lambda: _is_ended(s, "after"), "the end of after")
    yield s.committed("go on")


def _by_force(s: Session, producer: Producer) -> Iterator[Line]:
    producer.begin_transaction()
    producer.produce(s.topic, b"by force", partition=0)
    producer.flush(60)
    yield s.kafkas("end by force", f"forceTerminateTransaction --transactionalId {s.id('open')}")
    wait_for(lambda: _is_ended(s, "open"), "the end by force")
    yield Line("the producer that was ended", 0, [_told(lambda: producer.commit_transaction(60))])
    yield s.committed("nothing came of it")


def _told(call: Callable[[], Any]) -> str:
    try:
        call()
    except KafkaException as error:
        cause = error.args[0]
        return str(cause.name()) if isinstance(cause, KafkaError) else str(cause)
    return "NONE"


def oracle() -> list[Line]:
    """Kafka's transcript, in order."""
    rows: list[dict[str, Any]] = json.loads(ORACLE.read_text())
    return [Line(**row) for row in rows]


def main(words: list[str]) -> None:
    if words == ["record"]:
        with tempfile.TemporaryDirectory() as folder, Worlds(Path(folder)) as worlds:
            # One node: what the tools say is the same, and there is less to start.
            lines = list(session(shared_driver(), worlds.address(KAFKA, AUTO_CREATE)))
        ORACLE.write_text(json.dumps([dataclasses.asdict(line) for line in lines], indent=1) + "\n")
        return
    for line in session(shared_driver(), words[1]):
        sys.stdout.write(f"--- {line.step}: {line.exit}\n" + "".join(f"    {one}\n" for one in line.said))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
