"""Requests of transactions in every version, about ids in every state, right and wrong: Kafka's codes.

Each case has an id of its own, brought into its state by requests of the old generation, and asks once. What a
coordinator says while it is on its way, or while a transaction ends, is asked again: how long that takes is nobody's
promise.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from conformance import build
from conformance.client import Client
from conformance.frame import Case, Outcome, scenario
from conformance.scenarios.raw import RAW, produce_values
from conformance.wire import Wire, coordinator_of, leader_of, topic_id_of
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.apis import SPECS, ApiKey

SECTION = "Transactions"

STATES: Final = ("unknown", "empty", "ongoing", "committed", "aborted")
PRODUCERS: Final = ("right", "another id", "lower epoch", "higher epoch")
PASSING: Final = frozenset({3, 5, 6, 14, 15, 16, 51})
WORKERS: Final = 6
PATIENCE_S: Final = 60.0
_STRANGE_ID: Final = 1_000_000_007
_TIMEOUT_MS: Final = 600_000


@dataclass(frozen=True)
class Producer:
    """What an id's producer was given."""

    producer_id: int
    epoch: int

    def as_(self, kind: str) -> Producer:
        """The same, or wrong in one way."""
        return {
            "right": self,
            "another id": Producer(_STRANGE_ID, self.epoch),
            "lower epoch": Producer(self.producer_id, self.epoch - 1),
            "higher epoch": Producer(self.producer_id, self.epoch + 1),
        }[kind]

    @property
    def fields(self) -> dict[str, int]:
        return {"producer_id": self.producer_id, "producer_epoch": self.epoch}


class Asker:
    """Connections of one worker, by address."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._wires: dict[str, Wire] = {}

    def close(self) -> None:
        for wire in self._wires.values():
            wire.__exit__()

    def _wire(self, address: str) -> Wire:
        if address not in self._wires:
            self._wires[address] = Wire(address)
        return self._wires[address]

    def once(self, address: str, request: Any) -> Any:
        """The answer, whatever it is."""
        return self._wire(address).call(request)

    def coordinator(self, name: str) -> str:
        """Where an id's coordinator is reached."""
        request = build.request("find_coordinator", 1, {"key": name, "key_type": 1})
        answer = self.settled(self._bootstrap, request)
        return f"{answer.host}:{answer.port}"

    def settled(self, address: str, request: Any) -> Any:
        """The answer, once it is none of what passes."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            answer = self._wire(address).call(request)
            if not PASSING & {code for code, _ in codes(answer)} or time.monotonic() > deadline_s:
                return answer
            time.sleep(0.02)

    def prepared(self, name: str, state: str, topic: str) -> tuple[str, Producer]:
        """An id in a state, and its coordinator."""
        at = self.coordinator(name)
        if state == "unknown":
            return at, Producer(_STRANGE_ID - 1, 1)
        init = {"transactional_id": name, "transaction_timeout": _TIMEOUT_MS}
        for _ in range(2):  # so that there is a lower epoch
            made = self.settled(at, build.request("init_producer_id", 1, init))
        found = Producer(int(made.producer_id), int(made.producer_epoch))
        if state != "empty":
            self.add(at, name, found, topic, 0)
        if state in ("committed", "aborted"):
            self.end(at, name, found, commit=state == "committed")
        return at, found

    def add(self, at: str, name: str, producer: Producer, topic: str, partition: int) -> None:
        """A partition to the transaction of an id."""
        self._ok(at, "add_partitions_to_txn", 0, added(name, producer, topic, partition))

    def end(self, at: str, name: str, producer: Producer, *, commit: bool = True) -> None:
        """The transaction of an id, and wait until its markers are written."""
        ending = {"transactional_id": name, "committed": commit, **producer.fields}
        self._ok(at, "end_txn", 0, ending)
        # Until then everything else is told that it is under way.
        self._ok(at, "end_txn", 0, ending)

    def _ok(self, at: str, api: str, version: int, values: dict[str, Any]) -> None:
        answer = self.settled(at, build.request(api, version, values))
        assert not any(code for code, _ in codes(answer)), (api, values, answer)


def codes(value: Any) -> Iterator[tuple[int, str]]:
    """Every code of an answer, with its name."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            one = getattr(value, field.name)
            if field.name in ("error_code", "partition_error_code"):
                yield int(one), one.name.upper()
            else:
                yield from codes(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from codes(one)


def said(answer: Any) -> str:
    """The codes of an answer that are none, or NONE."""
    return ", ".join(sorted({name for code, name in codes(answer) if code})) or "NONE"


def added(name: str, producer: Producer, topic: str, partition: int = 0) -> dict[str, Any]:
    """AddPartitionsToTxn of any version."""
    places = [{"name": topic, "partitions": [partition]}]
    return {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": producer.producer_id,
        "v3_and_below_producer_epoch": producer.epoch,
        "v3_and_below_topics": places,
        "transactions": [
            {"transactional_id": name, "verify_only": False, "topics": places, **producer.fields}
        ],
    }


Ask = Callable[[Asker, str, str, Producer], Any]
"""Asker, the id, its coordinator's address, the producer as the request names it."""


def _played(t: Case, topic: str, cases: Iterable[tuple[str, str, str, Ask]]) -> Outcome:
    """Each case by name: state, producer, request."""

    def play(numbered: list[tuple[int, tuple[str, str, str, Ask]]]) -> dict[str, str]:
        asker = Asker(t.bootstrap)
        found = {}
        try:
            for number, (what, state, producer, ask) in numbered:
                name = t.name(f"x{number}")
                at, made = asker.prepared(name, state, topic)
                found[f"{what}/{state}/{producer}"] = said(ask(asker, name, at, made.as_(producer)))
        finally:
            asker.close()
        return found

    numbered = list(enumerate(cases))
    with ThreadPoolExecutor(WORKERS) as pool:
        parts = pool.map(play, [numbered[worker::WORKERS] for worker in range(WORKERS)])
        found = {key: value for part in parts for key, value in part.items()}
    return dict(sorted(found.items()))


def _asking(api: str, version: int, values: Callable[[str, Producer], dict[str, Any]]) -> Ask:
    def ask(asker: Asker, name: str, at: str, producer: Producer) -> Any:
        return asker.settled(at, build.request(api, version, values(name, producer)))

    return ask


def _versions(key: ApiKey, low: int = 0, high: int = 99) -> list[int]:
    return [version for version in SPECS[key].readable if low <= version <= high]


@scenario("transaction-init", SECTION, clients=RAW, seconds=300, fast=True)
def init(c: Client, t: Case) -> Outcome:
    """InitProducerId with an id: new, again, with what the producer has, with what it has not"""

    def values(name: str, producer: Producer, **more: Any) -> dict[str, Any]:
        return {"transactional_id": name, "transaction_timeout": _TIMEOUT_MS, **producer.fields, **more}

    topic = t.topic()
    cases: list[tuple[str, str, str, Ask]] = []
    for version in _versions(ApiKey.INIT_PRODUCER_ID):
        for state in STATES:
            none = _asking("init_producer_id", version, lambda n, _p: values(n, Producer(-1, -1)))
            cases.append((f"{version} without", state, "right", none))
            if version >= 3:
                for kind in PRODUCERS:
                    cases.append(
                        (f"{version} with", state, kind, _asking("init_producer_id", version, values))
                    )
        for what, change in (
            ("timeout 0", {"transaction_timeout": 0}),
            ("timeout too long", {"transaction_timeout": 2**31 - 1}),
            ("empty id", {"transactional_id": ""}),
            ("an id alone", {"producer_id": 5, "producer_epoch": -1}),
            ("an epoch alone", {"producer_id": -1, "producer_epoch": 5}),
        ):
            if version < 3 and "alone" in what:
                continue
            ask = _asking(
                "init_producer_id",
                version,
                lambda n, _p, change=change: values(n, Producer(-1, -1), **change),  # type: ignore[misc]
            )
            cases.append((f"{version} {what}", "empty", "right", ask))
    return _played(t, topic, cases)


@scenario("transaction-add-partitions", SECTION, clients=RAW, seconds=300, fast=True)
def add_partitions(c: Client, t: Case) -> Outcome:
    """AddPartitionsToTxn: to ids in every state, twice, of topics and partitions that are not there, asked only"""
    topic = t.topic(partitions=2)
    cases: list[tuple[str, str, str, Ask]] = []
    for version in _versions(ApiKey.ADD_PARTITIONS_TO_TXN):
        for state in STATES:
            for kind in PRODUCERS:
                one = _asking("add_partitions_to_txn", version, lambda n, p: added(n, p, topic, 1))
                cases.append((f"{version}", state, kind, one))
                if version >= 4:
                    verified = _asking("add_partitions_to_txn", version, lambda n, p: _verified(n, p, topic))
                    cases.append((f"{version} asked only", state, kind, verified))
        again = _asking("add_partitions_to_txn", version, lambda n, p: added(n, p, topic))
        cases.append((f"{version} again", "ongoing", "right", again))
    return _played(t, topic, cases)


def _verified(name: str, producer: Producer, topic: str) -> dict[str, Any]:
    values = added(name, producer, topic)
    values["transactions"][0]["verify_only"] = True
    return values


@scenario("transaction-add-offsets", SECTION, clients=RAW, seconds=300, fast=True)
def add_offsets(c: Client, t: Case) -> Outcome:
    """AddOffsetsToTxn: to ids in every state"""
    group, topic = t.group(), t.topic()
    coordinator_of(t.bootstrap, group)
    cases = [
        (
            f"{version}",
            state,
            kind,
            _asking(
                "add_offsets_to_txn",
                version,
                lambda n, p: {"transactional_id": n, "group_id": group, **p.fields},
            ),
        )
        for version in _versions(ApiKey.ADD_OFFSETS_TO_TXN)
        for state in STATES
        for kind in PRODUCERS
    ]
    return _played(t, topic, cases)


@scenario("transaction-end", SECTION, clients=RAW, seconds=300, fast=True)
def end(c: Client, t: Case) -> Outcome:
    """EndTxn of both generations: commit and abort, of ids in every state"""
    topic = t.topic()
    cases = [
        (
            f"{version} {'commit' if commit else 'abort'}",
            state,
            kind,
            _asking(
                "end_txn",
                version,
                lambda n, p, commit=commit: {"transactional_id": n, "committed": commit, **p.fields},  # type: ignore[misc]
            ),
        )
        for version in _versions(ApiKey.END_TXN)
        for commit in (True, False)
        for state in STATES
        for kind in PRODUCERS
    ]
    return _played(t, topic, cases)


@scenario("transaction-offsets", SECTION, clients=RAW, seconds=300, fast=True)
def offsets(c: Client, t: Case) -> Outcome:
    """TxnOffsetCommit: of producers in every state, with offsets added and not"""
    topic = t.topic()

    def asking(version: int, add: bool) -> Ask:
        def ask(asker: Asker, name: str, at: str, producer: Producer) -> Any:
            group = f"{name}-group"
            group_at = coordinator_of(t.bootstrap, group)
            if add:
                values = {"transactional_id": name, "group_id": group, **producer.fields}
                asker.settled(at, build.request("add_offsets_to_txn", 0, values))
            commit = {
                "transactional_id": name,
                "group_id": group,
                "generation_id": -1,
                "topics": [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
                **producer.fields,
            }
            return asker.settled(group_at, build.request("txn_offset_commit", version, commit))

        return ask

    cases = [
        (f"{version}{' added' if add else ''}", state, kind, asking(version, add))
        for version in _versions(ApiKey.TXN_OFFSET_COMMIT)
        for add in (True, False)
        for state in STATES
        for kind in PRODUCERS
    ]
    return _played(t, topic, cases)


@scenario("transaction-produce", SECTION, clients=RAW, seconds=300, fast=True)
def produce(c: Client, t: Case) -> Outcome:
    """Produce in transactions: partitions that are in them and that are not, by versions that add and that do not"""
    topic = t.topic(partitions=2)
    topic_id = topic_id_of(t.bootstrap, topic)
    leaders = [leader_of(t.bootstrap, topic, partition) for partition in range(2)]

    def asking(version: int, partition: int, sequence: int) -> Ask:
        def ask(asker: Asker, name: str, at: str, producer: Producer) -> Any:
            batch = build_batch(
                [NewRecord(None, b"x")],
                producer_id=producer.producer_id,
                producer_epoch=max(producer.epoch, 0),
                base_sequence=sequence,
                transactional=True,
            )
            values = produce_values(topic, topic_id, bytes(batch), transactional_id=name, partition=partition)
            return asker.settled(leaders[partition], build.request("produce", version, values))

        return ask

    cases = [
        (f"{version} {what}", state, kind, asking(version, partition, sequence))
        for version in (3, 10, 11, 12, 13)
        for what, partition, sequence in (("added", 0, 0), ("not added", 1, 0), ("added, sequence 7", 0, 7))
        for state in STATES
        for kind in PRODUCERS
    ]
    return _played(t, topic, cases)
