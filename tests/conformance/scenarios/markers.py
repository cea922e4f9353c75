"""WriteTxnMarkers in every version, as an operator's tool sends it to a leader: Kafka's codes, and what became of the
producer in the partition.

Every case has a producer of its own, whose coordinator holds a transaction with the partition open and is not asked:
what counts is what the partition knows. Whoever sends a marker names the epoch of a coordinator, and a lower one than
was named before is refused; so states with a marker in them name `FIRST_COORDINATOR_EPOCH` first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from conformance import build
from conformance.client import Client
from conformance.frame import Case, Outcome, scenario
from conformance.scenarios.raw import RAW, produce_values
from conformance.scenarios.transactions import SECTION, WORKERS, Asker, Producer
from conformance.wire import coordinator_of, leader_of, topic_id_of
from penstock_kafka.records.batch import iter_batches
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import read_marker
from penstock_kafka.wire.apis import SPECS, ApiKey
from penstock_kafka.wire.groups import group_partition

STATES: Final = ("none", "open", "committed", "ended", "open again")
"""Of the producer in the partition: not known; in a transaction; the coordinator's marker behind it; one by hand behind
it; and in the next after that."""
PRODUCERS: Final = ("right", "lower epoch", "higher epoch")
FIRST_COORDINATOR_EPOCH: Final = 1_000
"""Above that of any coordinator here."""
VERSIONS: Final = SPECS[ApiKey.WRITE_TXN_MARKERS].readable
_LAST_EPOCH: Final = 32_767


@dataclass(frozen=True)
class Place:
    """A partition, and who leads it."""

    topic: str
    topic_id: Any
    partition: int
    leader: str


@dataclass(frozen=True)
class Marker:
    """One marker of a request."""

    producer: Producer
    places: tuple[tuple[str, tuple[int, ...]], ...]
    commit: bool = True
    coordinator_epoch: int = FIRST_COORDINATOR_EPOCH
    transaction_version: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        return {
            **self.producer.fields,
            "transaction_result": self.commit,
            "coordinator_epoch": self.coordinator_epoch,
            "transaction_version": self.transaction_version,
            "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in self.places],
        }


class Hand(Asker):
    """Writes batches and markers by hand."""

    def write(self, place: Place, name: str, producer: Producer, sequence: int) -> None:
        """A batch of a transaction."""
        batch = build_batch(
            [NewRecord(None, b"x")],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        values = produce_values(
            place.topic, place.topic_id, batch, transactional_id=name, partition=place.partition
        )
        answer = self.settled(place.leader, build.request("produce", 10, values))
        (code,) = (part.error_code for one in answer.responses for part in one.partition_responses)
        assert not int(code), (name, producer, code)

    def mark(self, leader: str, version: int, markers: Iterable[Marker]) -> Any:
        """What a leader answers, once."""
        values = {"markers": [marker.fields for marker in markers]}
        return self.once(leader, build.request("write_txn_markers", version, values))

    def state(self, place: Place, producer: Producer) -> list[Any] | None:
        """What the partition knows of a producer: by how much its epoch is above that which it was given, its last
        sequence, its coordinator's epoch, whether it is in a transaction."""
        values = {"topics": [{"name": place.topic, "partition_indexes": [place.partition]}]}
        answer = self.settled(place.leader, build.request("describe_producers", 0, values))
        (part,) = (part for topic in answer.topics for part in topic.partitions)
        for one in part.active_producers:
            if int(one.producer_id) == producer.producer_id:
                coordinators = int(one.coordinator_epoch)
                return [
                    int(one.producer_epoch) - producer.epoch,
                    int(one.last_sequence),
                    "its own" if 0 <= coordinators < FIRST_COORDINATOR_EPOCH - 1 else coordinators,
                    int(one.current_txn_start_offset) >= 0,
                ]
        return None

    def bring(self, place: Place, name: str, state: str) -> Producer:
        """A producer of its own, in this state in the partition."""
        at, producer = self.prepared(name, "ongoing", place.topic)
        if state == "none":
            return producer
        self.write(place, name, producer, 0)
        if state == "committed":
            self.end(at, name, producer)
        elif state != "open":
            here = ((place.topic, (place.partition,)),)
            answer = self.mark(place.leader, VERSIONS[0], [Marker(producer, here, commit=False)])
            assert told(answer, {}) == [["?", place.topic, place.partition, "NONE"]], answer
        if state == "open again":
            self.write(place, name, producer, 1)
        return producer


def told(answer: Any, names: dict[int, str]) -> list[list[Any]]:
    """Each code of an answer, with the name of the producer that it is about."""
    return sorted(
        [
            names.get(int(marker.producer_id), "?"),
            topic.name,
            int(part.partition_index),
            part.error_code.name.upper(),
        ]
        for marker in answer.markers
        for topic in marker.topics
        for part in topic.partitions
    )


def _made(t: Case, partitions: int = 1, suffix: str = "t") -> list[Place]:
    """A topic's partitions with the leader that leads most of them: a broker answers for its own alone."""
    topic = t.topic(suffix, partitions=partitions)
    by_leader: dict[str, list[int]] = defaultdict(list)
    for partition in range(partitions):
        by_leader[leader_of(t.bootstrap, topic, partition)].append(partition)
    leader, mine = max(by_leader.items(), key=lambda item: len(item[1]))
    topic_id = topic_id_of(t.bootstrap, topic)
    return [Place(topic, topic_id, partition, leader) for partition in mine]


_Case = tuple[str, str, str, int, Marker]
"""Name, state of the producer in the partition, which producer, version, and a marker without producer or places."""
_BLANK: Final = Producer(0, 0)


def _cases() -> Iterable[_Case]:
    for version in VERSIONS:
        for tv in (0,) if version < 2 else (0, 1, 2):
            for state in STATES:
                for kind in PRODUCERS:
                    for above in (-1, 0, 1):
                        marker = Marker(_BLANK, (), True, FIRST_COORDINATOR_EPOCH + above, tv)
                        yield f"{version} TV{tv} coordinator {above:+}", state, kind, version, marker
                    for what, epoch in (("0", 0), ("none", -1)):
                        # Which epoch a coordinator here has is another thing each time.
                        if kind == "right" and tv != 1 and (epoch < 0 or state != "committed"):
                            marker = Marker(_BLANK, (), True, epoch, tv)
                            yield f"{version} TV{tv} coordinator {what}", state, kind, version, marker
                    if tv != 1:
                        marker = Marker(_BLANK, (), False, transaction_version=tv)
                        yield f"{version} TV{tv} abort", state, kind, version, marker


@scenario("transaction-markers", SECTION, clients=RAW, seconds=300, fast=True)
def markers(c: Client, t: Case) -> Outcome:
    """WriteTxnMarkers: to producers in every state, of wrong epochs and wrong coordinators"""
    (place,) = _made(t)
    here = ((place.topic, (place.partition,)),)

    def play(numbered: list[tuple[int, _Case]]) -> dict[str, Any]:
        hand = Hand(t.bootstrap)
        found = {}
        try:
            for number, (what, state, kind, version, marker) in numbered:
                producer = hand.bring(place, t.name(f"x{number}"), state)
                sent = Marker(
                    producer.as_(kind),
                    here,
                    marker.commit,
                    marker.coordinator_epoch,
                    marker.transaction_version,
                )
                ((_, _, _, code),) = told(hand.mark(place.leader, version, [sent]), {})
                found[f"{what}/{state}/{kind}"] = [code, hand.state(place, producer)]
        finally:
            hand.close()
        return found

    numbered = list(enumerate(_cases()))
    with ThreadPoolExecutor(WORKERS) as pool:
        parts = pool.map(play, [numbered[worker::WORKERS] for worker in range(WORKERS)])
        found = {key: value for part in parts for key, value in part.items()}
    return dict(sorted(found.items()))


@scenario("transaction-markers-several", SECTION, clients=RAW, seconds=120, fast=True)
def several(c: Client, t: Case) -> Outcome:
    """WriteTxnMarkers with several markers, partitions and topics in one request, and of what is not there"""
    # A broker that leads one of them leads another: there are more of them than brokers.
    one, two = _made(t, partitions=7)[:2]
    gone, both = t.name("gone"), (one.partition, two.partition)
    hand = Hand(t.bootstrap)
    found: dict[str, Any] = {}

    def ask(what: str, version: int, *markers: Marker) -> None:
        answer = hand.mark(one.leader, version, markers)
        # Which partitions a broker leads is another thing each time.
        rows = [
            [name, "gone", part, code]
            if topic == gone
            else [name, "there", both.index(part) if part in both else part, code]
            for name, topic, part, code in told(answer, names)
        ]
        found[f"{version} {what}"] = sorted(rows)

    try:
        for version in VERSIONS:
            made = []
            for number in range(4):
                name = t.name(f"x{version}.{number}")
                at, producer = hand.prepared(name, "ongoing", one.topic)
                for place in (one, two):
                    hand.add(at, name, producer, place.topic, place.partition)
                    hand.write(place, name, producer, 0)
                made.append(producer)
            names = {producer.producer_id: f"producer {n}" for n, producer in enumerate(made)}
            here = (one.topic, both)
            wrong = made[1].as_("lower epoch")
            ask("nothing", version)
            ask("no topic", version, Marker(made[0], ()))
            ask("no partition", version, Marker(made[0], ((one.topic, ()),)))
            ask("topic gone", version, Marker(made[0], ((gone, (0, 1)),)))
            ask("partition gone", version, Marker(made[0], ((one.topic, (99, -1)),)))
            # What is not there stands first: where it is last, Kafka may never answer.
            ask("topic gone, and one there", version, Marker(made[0], ((gone, (0,)), (one.topic, both[:1]))))
            ask("two producers", version, Marker(made[0], (here,)), Marker(made[1], (here,), commit=False))
            ask("one of a lower epoch", version, Marker(wrong, (here,)), Marker(made[2], (here,)))
            ask(
                "gone, and another there",
                version,
                Marker(made[2], ((gone, (0,)),)),
                Marker(made[3], ((one.topic, both[1:]),)),
            )
            ask("the same twice", version, Marker(made[3], (here,)), Marker(made[3], (here,)))
            for number, producer in enumerate(made):
                states = [hand.state(place, producer) for place in (one, two)]
                found[f"{version} producer {number}"] = states
    finally:
        hand.close()
    return found


@scenario("transaction-markers-bounds", SECTION, clients=RAW, seconds=120, fast=True)
def bounds(c: Client, t: Case) -> Outcome:
    """WriteTxnMarkers with the last epochs there are, and with versions of transactions that nobody knows"""
    (place,) = _made(t)
    here = ((place.topic, (place.partition,)),)
    hand = Hand(t.bootstrap)
    found: dict[str, Any] = {}
    try:
        for version in VERSIONS:
            for tv in (0,) if version < 2 else (0, 2, 3):
                name = t.name(f"x{version}.{tv}")
                producer = hand.bring(place, name, "open")
                last = Producer(producer.producer_id, _LAST_EPOCH)
                coordinator = 2**31 - 1
                for what, epoch in (("the last", coordinator), ("again", coordinator), ("less", 0)):
                    sent = Marker(last, here, True, epoch, tv)
                    ((_, _, _, code),) = told(hand.mark(place.leader, version, [sent]), {})
                    state = hand.state(place, last)
                    found[f"{version} TV{tv} epoch 32767 {what}"] = [code, state]
    finally:
        hand.close()
    return found


@scenario("transaction-markers-read", SECTION, clients=RAW, seconds=120, fast=True)
def read(c: Client, t: Case) -> Outcome:
    """what readers see of transactions that markers end: the last stable offset, what is aborted, the markers"""
    hand = Hand(t.bootstrap)
    found: dict[str, Any] = {}
    try:
        for version in VERSIONS:
            (place,) = _made(t, suffix=f"t{version}")
            here = ((place.topic, (place.partition,)),)
            seen: list[Any] = []
            producers = [hand.bring(place, t.name(f"x{version}.{n}"), "open") for n in range(3)]
            names = {producer.producer_id: n for n, producer in enumerate(producers)}
            for number, commit in ((1, True), (0, False), (2, False), (2, True)):
                seen.append(_seen(hand, place, names))
                hand.mark(place.leader, version, [Marker(producers[number], here, commit)])
            seen.append(_seen(hand, place, names))
            found[str(version)] = seen
    finally:
        hand.close()
    return found


def _seen(hand: Hand, place: Place, names: dict[int, int]) -> dict[str, Any]:
    part = {
        "partition": place.partition, "fetch_offset": 0, "partition_max_bytes": 100_000, "current_leader_epoch": -1,
        "last_fetched_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    values = {
        "replica_id": -1, "max_wait": 10, "min_bytes": 1, "max_bytes": 100_000, "session_epoch": -1,
        "isolation_level": 1, "topics": [{"topic": place.topic, "partitions": [part]}],
    }  # fmt: skip
    answer = hand.settled(place.leader, build.request("fetch", 11, values))
    (got,) = (part for one in answer.responses for part in one.partitions)
    data = bytes(got.records or b"")
    batches = []
    for info in iter_batches(data):
        marker = read_marker(data, info, info.position)
        what = None if marker is None else [marker.commits, marker.coordinator_epoch]
        batches.append([names.get(info.producer_id), what])
    ends = {
        "replica_id": -1,
        "isolation_level": 1,
        "topics": [
            {
                "name": place.topic,
                "partitions": [
                    {"partition_index": place.partition, "current_leader_epoch": -1, "timestamp": -1}
                ],
            }
        ],
    }
    listed = hand.settled(place.leader, build.request("list_offsets", 4, ends))
    return {
        "stable": int(got.last_stable_offset),
        "end": int(got.high_watermark),
        "aborted": sorted(
            [names.get(int(one.producer_id)), int(one.first_offset)] for one in got.aborted_transactions or ()
        ),
        "batches": batches,
        "listed": [int(part.offset) for one in listed.topics for part in one.partitions],
    }


@scenario("transaction-markers-offsets", SECTION, clients=RAW, seconds=120, fast=True)
def offsets(c: Client, t: Case) -> Outcome:
    """markers in the partition of a group: what becomes of its pending offsets"""
    hand = Hand(t.bootstrap)
    topic = t.topic()
    found: dict[str, Any] = {}
    try:
        for version in VERSIONS:
            for what, kind, commit, above in (
                ("commit", "right", True, 0),
                ("abort", "right", False, 0),
                ("lower epoch", "lower epoch", True, 0),
                ("higher epoch", "higher epoch", True, 0),
                ("the coordinator before", "right", True, -1),
            ):
                name = t.name(f"x{version}.{what.replace(' ', '-')}")
                group = f"{name}-group"
                place = _place_of_group(t, hand, group)
                at, producer = hand.prepared(name, "ongoing", topic)
                _pend(hand, at, place.leader, name, group, producer, topic, 5)
                here = ((place.topic, (place.partition,)),)
                if above:
                    first = Marker(producer, here, commit=False)
                    assert told(hand.mark(place.leader, version, [first]), {})[0][-1] == "NONE"
                    _pend(hand, at, place.leader, name, group, producer, topic, 6)
                sent = Marker(producer.as_(kind), here, commit, FIRST_COORDINATOR_EPOCH + above)
                ((_, _, _, code),) = told(hand.mark(place.leader, version, [sent]), {})
                found[f"{version} {what}"] = [code, _offset(hand, place.leader, group, topic)]
    finally:
        hand.close()
    return found


def _place_of_group(t: Case, hand: Hand, group: str) -> Place:
    """The partition that has its offsets."""
    leader = coordinator_of(t.bootstrap, group)
    topic = "__consumer_offsets"
    answer = hand.settled(t.bootstrap, build.request("metadata", 4, {"topics": [{"name": topic}]}))
    count = len(answer.topics[0].partitions)
    return Place(topic, None, group_partition(group, count), leader)


def _pend(
    hand: Hand, at: str, group_at: str, name: str, group: str, producer: Producer, topic: str, offset: int
) -> None:
    add = {"transactional_id": name, "group_id": group, **producer.fields}
    hand.settled(at, build.request("add_offsets_to_txn", 0, add))
    commit = {
        "transactional_id": name,
        "group_id": group,
        "generation_id": -1,
        "topics": [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
        **producer.fields,
    }
    answer = hand.settled(group_at, build.request("txn_offset_commit", 2, commit))
    assert not any(int(part.error_code) for one in answer.topics for part in one.partitions), answer


def _offset(hand: Hand, at: str, group: str, topic: str) -> list[list[Any]]:
    """As told to whoever asks for what is stable, and to whoever does not."""
    found = []
    for stable in (True, False):
        topics = [{"name": topic, "partition_indexes": [0]}]
        values = {"group_id": group, "topics": topics, "require_stable": stable}
        answer = hand.once(at, build.request("offset_fetch", 7, values))
        (part,) = (part for one in answer.topics for part in one.partitions)
        found.append([part.error_code.name.upper(), int(part.committed_offset)])
    return found
