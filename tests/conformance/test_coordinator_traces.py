"""The same random sequences of requests to Kafka's transaction coordinator and to ours: equal answers, equal records.

`make transactions-test` plays 1,000 sequences of each generation of clients, half as many of both mixed, and some at
`transaction.version` 1 and 0; `make test` plays some of each. `PENSTOCK_TRACES=n` says how many,
`PENSTOCK_TRACES_SEED=word` from which seed, `PENSTOCK_TRACES_ONLY="2 17"` plays one sequence
(generation, number; "0 at-1-3" at version 1).
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from queue import SimpleQueue
from typing import Any

import pytest

from conformance import build, transaction_records
from conformance.traces import (
    GENERATIONS,
    TIMEOUT_MAX_MS,
    TOPICS,
    Names,
    Player,
    Sequence,
    Step,
    Transcript,
    make_sequence,
)
from conformance.transaction_records import StateRecord
from conformance.wire import Wire, coordinator_known, leaders_lead
from support.cluster import running_cluster
from support.java import needs_java
from support.kafka import create_topic
from support.kafka_tools import running_kafka, wait_for_kafka
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(7200), needs_java]

LONG = "PENSTOCK_TRANSACTIONS" in os.environ
COUNT = int(os.environ.get("PENSTOCK_TRACES") or (1000 if LONG else 16))
SEED = os.environ.get("PENSTOCK_TRACES_SEED") or (str(random.randrange(10**6)) if LONG else "1")
ONLY = os.environ.get("PENSTOCK_TRACES_ONLY", "")
WORKERS = 8
SHOWN_MAX = 12
FEATURE = "transaction.version"
OF_KAFKA = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.max.timeout.ms": str(TIMEOUT_MAX_MS),
}
OF_PENSTOCK = {"storage-node": {"transaction_max_timeout_ms": str(TIMEOUT_MAX_MS)}}


@dataclass(frozen=True)
class Played:
    """One sequence on both sides."""

    sequence: Sequence
    kafka: Transcript
    ours: Transcript

    def meant(self, number: int) -> Step:
        """The request that a step sends, where it sends one again."""
        while self.sequence.steps[number].kind == "again":
            number -= 1
        return self.sequence.steps[number]


@dataclass(frozen=True)
class OnPurpose:
    """A difference that stays. docs/compatibility.md has each."""

    reason: str
    is_meant: Callable[[Played, int], bool]
    """By the number of the step where both differ."""
    forks: bool = False
    """What follows cannot be compared."""


def _said(played: Played, number: int) -> tuple[set[str], set[str]]:
    """Kafka's codes and ours."""
    return set(_codes(played.kafka.entries[number].said)), set(_codes(played.ours.entries[number].said))


def _told_for_another(played: Played, number: int) -> bool:
    """Of TRANSACTION_ABORTABLE and INVALID_TXN_STATE we say the one that goes with the version."""
    step = played.meant(number)
    if step.kind not in ABORTABLE_SINCE:
        return False
    codes = {"TRANSACTION_ABORTABLE", "INVALID_TXN_STATE"}
    right = "TRANSACTION_ABORTABLE" if step.version >= ABORTABLE_SINCE[step.kind] else "INVALID_TXN_STATE"
    same = played.kafka.entries[number].states == played.ours.entries[number].states
    return same and _said(played, number) == (codes - {right}, {right})


def _after_a_refused_one(played: Played, number: int) -> bool:
    """An earlier batch for that partition was refused on both sides."""
    return _said(played, number) == ({"OUT_OF_ORDER_SEQUENCE_NUMBER"}, {"NONE"}) and bool(
        _refused_before(played, number)
    )


def _after_a_refused_old_one(played: Played, number: int) -> bool:
    """The same, by a version with which leaders add no partitions; and this one does not begin at 0."""
    if _said(played, number) != ({"NONE"}, {"OUT_OF_ORDER_SEQUENCE_NUMBER"}):
        return False
    step, refused = played.meant(number), _refused_before(played, number)
    return step.version >= ADDS_SINCE and step.gap > 0 and any(one.version < ADDS_SINCE for one in refused)


def _refused_before(played: Played, number: int) -> list[Step]:
    """Batches for the partition of a step that both refused before it."""
    step = played.meant(number)
    earlier = [(played.meant(n), _said(played, n)) for n in range(number)] if step.kind == "produce" else []
    return [
        one
        for one, said in earlier
        if one.kind == "produce"
        and one.partitions == step.partitions
        and all(codes and codes <= REFUSALS for codes in said)
    ]


REFUSALS = frozenset({"INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE", "TRANSACTION_ABORTABLE"})
ADDS_SINCE = 12
"""Version of Produce."""
ABORTABLE_SINCE = {"produce": 11, "commit-offsets": 4}
"""Versions of requests whose clients know TRANSACTION_ABORTABLE."""
ON_PURPOSE = (
    OnPurpose(
        "Kafka answers what a leader asks for at once as the first one's version wants", _told_for_another
    ),
    OnPurpose("in Kafka a batch that was refused orders those after it", _after_a_refused_one, forks=True),
    OnPurpose(
        "in Kafka an old client's batch that was refused lets a new client's begin anywhere",
        _after_a_refused_old_one,
        forks=True,
    ),
)


@dataclass
class Sides:
    """The addresses of both."""

    kafka: str
    ours: str

    @property
    def both(self) -> tuple[str, str]:
        return self.kafka, self.ours


@dataclass
class Tally:
    """What was compared."""

    sequences: int = 0
    requests: int = 0
    records: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    on_purpose: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def differs(self, what: str) -> None:
        """Shown at once too: what follows may take long."""
        print(f"\n{what}")
        self.differences.append(what)

    def report(self) -> str:
        counts = f"{self.sequences} sequences, {self.requests} requests, {self.records} records"
        codes = ", ".join(f"{code} {count}" for code, count in self.codes.most_common())
        again = ", ".join(f"{side} {count}" for side, count in sorted(self.repeated.items()))
        purpose = "; ".join(f"{reason}: {count}" for reason, count in self.on_purpose.items())
        return "\n".join(
            (
                f"seed {SEED}: {counts}; {len(self.differences)} differ",
                f"  Kafka's answers: {codes}",
                f"  asked again: {again}",
                f"  on purpose: {purpose or 'nothing'}",
            )
        )


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """A Kafka of one node, and a gateway before three of ours."""
    folder = tmp_path_factory.mktemp("traces")
    with (
        running_kafka(folder / "kafka", heap="512M", settings=OF_KAFKA) as kafka,
        running_cluster(folder / "penstock", controllers=1, steady=True, settings=OF_PENSTOCK) as cluster,
    ):
        wait_for_kafka(kafka)
        found = Sides(kafka.bootstrap, cluster.bootstrap)
        for address, replicas in ((found.kafka, 1), (found.ours, 3)):
            for topic, partitions in TOPICS.items():
                create_topic(address, topic, partitions=partitions, replication_factor=replicas)
                wait_for(lambda a=address, t=topic: leaders_lead(a, t), f"{topic} has leaders")  # type: ignore[misc]
            wait_for(lambda a=address: coordinator_known(a, "nobody"), "groups have a coordinator")  # type: ignore[misc]
            wait_for(lambda a=address: _transactions_begin(a), "ids get producer ids")  # type: ignore[misc]
        yield found


def _transactions_begin(address: str) -> bool:
    find = build.request("find_coordinator", 1, {"key": "nobody", "key_type": 1})
    begin = {
        "transactional_id": "nobody",
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    with Wire(address) as wire:
        if int(wire.call(find).error_code):
            return False
        return int(wire.call(build.request("init_producer_id", 4, begin)).error_code) == 0


def _set_version(address: str, level: int) -> None:
    """`transaction.version`; at rest, and told by the process at the address."""
    update = {"feature": FEATURE, "max_version_level": level, "upgrade_type": 2}
    values = {"feature_updates": [update], "timeout": 60_000, "validate_only": False}
    with Wire(address) as wire:
        answer = wire.call(build.request("update_features", 1, values))
        assert int(answer.error_code) == 0, answer

        def is_told() -> bool:
            request = build.request(
                "api_versions", 3, {"client_software_name": "x", "client_software_version": "1"}
            )
            told = {one.name: int(one.max_version_level) for one in wire.call(request).finalized_features}
            return told.get(FEATURE, 0) == level

        wait_for(is_told, f"{FEATURE} is {level}")


class Players:
    """A pair of players for each worker."""

    def __init__(self, sides: Sides) -> None:
        self._free: SimpleQueue[tuple[Player, Player]] = SimpleQueue()
        self._all = [(Player(sides.kafka), Player(sides.ours)) for _ in range(WORKERS)]
        for pair in self._all:
            self._free.put(pair)

    def __enter__(self) -> Players:
        return self

    def __exit__(self, *_: object) -> None:
        for player in (player for pair in self._all for player in pair):
            player.close()

    def play(self, sequence: Sequence) -> Played:
        pair = self._free.get()
        try:
            kafka, ours = pair
            return Played(sequence, kafka.play(sequence), ours.play(sequence))
        finally:
            self._free.put(pair)


def _compare(played: Played, tally: Tally) -> bool:
    """Whether the records are to be compared too."""
    tally.sequences += 1
    for number, (theirs, ours) in enumerate(zip(played.kafka.entries, played.ours.entries, strict=True)):
        tally.requests += 1
        tally.codes.update(_codes(theirs.said))
        tally.repeated.update(kafka=theirs.repeated, penstock=ours.repeated)
        if (theirs.asked, theirs.said, theirs.states) == (ours.asked, ours.said, ours.states):
            continue
        purpose = next((one for one in ON_PURPOSE if one.is_meant(played, number)), None)
        if purpose is None:
            tally.differs(_told(played, number))
            return False
        tally.on_purpose[purpose.reason] += 1
        if purpose.forks:
            return False
    return True


def _codes(said: Any) -> Iterator[str]:
    if isinstance(said, str):
        if said.isupper():
            yield said
    elif isinstance(said, list):
        for one in said:
            yield from _codes(one)


def _told(played: Played, number: int) -> str:
    lines = [f"generation {played.sequence.generation}, sequence {played.sequence.name}:"]
    for step in range(number + 1):
        theirs, ours = played.kafka.entries[step], played.ours.entries[step]
        lines.append(f"  {step}: {theirs.asked}")
        if step < number:
            lines.append(f"     both: {theirs.said} {theirs.states or ''}")
        else:
            lines.append(f"     Kafka: {theirs.said} {theirs.states}")
            lines.append(
                f"     ours:  {ours.said} {ours.states}"
                + (f"; asked: {ours.asked}" if ours.asked != theirs.asked else "")
            )
    return "\n".join(lines)


def _shown(records: list[StateRecord | None], names: Names) -> list[Any]:
    """Records with their ids by name. Left out is what ours writes to be sure that it still is the coordinator before
    it says no (decision 0068): the same record once more, and a tombstone where there is none."""
    told: list[Any] = []
    for record in records:
        if record is None:
            if told:
                told.append("tombstone")
            continue
        one = dataclasses.asdict(record)
        for name in ("producer_id", "previous_id", "next_id"):
            one[name] = names.of(one[name])
        told.append(one)
    return [one for one, _ in groupby(told)]


def _compare_records(sides: Sides, played: list[Played], tally: Tally) -> None:
    kafkas, ours = (transaction_records.read_all(address) for address in sides.both)
    for one in played:
        for name in one.sequence.ids:
            left = _shown(kafkas.get(name, []), one.kafka.names)
            right = _shown(ours.get(name, []), one.ours.names)
            tally.records += len(left)
            if left == right:
                continue
            number = next(i for i, pair in enumerate(zip_longest(left, right)) if pair[0] != pair[1])
            tally.differs(
                "\n".join(
                    (
                        f"records of {name}: {len(left)} of Kafka's, {len(right)} of ours, and number {number}:",
                        f"  before: {left[max(number - 1, 0) : number]}",
                        f"  Kafka: {left[number : number + 2]}",
                        f"  ours:  {right[number : number + 2]}",
                        _told(one, len(one.sequence.steps) - 1),
                    )
                )
            )


def _run(sides: Sides, generation: str, prefix: str, count: int) -> None:
    tally = Tally()
    names = [f"{prefix}{number}" for number in range(count)]
    if ONLY:
        wanted, _, name = ONLY.partition(" ")
        is_here = wanted == generation and name.startswith(prefix) and name.removeprefix(prefix).isdigit()
        names = [name] if is_here else []
    compared = []
    with Players(sides) as players, ThreadPoolExecutor(WORKERS) as pool:
        for played in pool.map(players.play, (make_sequence(name, SEED, generation) for name in names)):
            if _compare(played, tally):
                compared.append(played)
    _compare_records(sides, compared, tally)
    print(f"\ngeneration {generation} {prefix}: {tally.report()}")
    assert not tally.differences, "\n\n".join([tally.report(), *tally.differences[:SHOWN_MAX]])


@pytest.mark.parametrize("generation", GENERATIONS)
def test_answers_and_records_are_kafkas(sides: Sides, generation: str) -> None:
    _run(sides, generation, "", COUNT if generation != "both" else max(COUNT // 2, 4))


@pytest.mark.parametrize("level", [1, 0])
def test_at_lower_versions_too(sides: Sides, level: int) -> None:
    """Old clients, where the server does not raise epochs either, and writes records of before."""
    for address in sides.both:
        _set_version(address, level)
    _run(sides, "0", f"at-{level}-", max(COUNT // 4, 4))
