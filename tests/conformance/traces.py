"""Random sequences of raw requests to a transaction coordinator, played alike against Kafka and against Penstock.

A sequence (`make_sequence`) comes from its seed alone: it names pairs of producer id and epoch by who was told them
and how long ago, so it is the same on both sides whatever their ids are. `Player` plays it on one side and gives a
transcript: each answer's codes and pairs, and the state of each id once no markers are under way. Producer ids are
numbered as they first appear. What passes (CONCURRENT_TRANSACTIONS, a coordinator on its way) is asked again, as
clients do, and what comes then is kept.

Generation 0 are clients that add partitions themselves, with every version that they speak; generation 2 are those of
KIP-890, for which the leaders add (Produce 12, TxnOffsetCommit 5); "both" mixes them on one transactional id.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from conformance import build
from conformance.scenarios.raw import produce_values
from conformance.transaction_records import Plain
from conformance.wire import Closed, Wire, frame_of
from penstock_kafka.records.build import NewRecord, build_batch

GENERATIONS: Final = ("0", "2", "both")
REQUESTS: Final = 20
TOPICS: Final = {"traces-a": 2, "traces-b": 1}
PARTITIONS: Final = tuple((topic, number) for topic, count in TOPICS.items() for number in range(count))
NO_SUCH_PARTITION: Final = ("traces-a", 99)
GROUPS: Final = ("traces-g0", "traces-g1", "traces-g2")
PASSING: Final = frozenset({6, 14, 15, 16, 19, 20, 51})
"""NOT_LEADER_OR_FOLLOWER, COORDINATOR_*, NOT_COORDINATOR, NOT_ENOUGH_REPLICAS*, CONCURRENT_TRANSACTIONS."""
PATIENCE_S: Final = 90.0
PAUSE_S: Final = 0.005
STRANGE_ID: Final = 4_000_000_007
"""A producer id that neither side gives."""
TIMEOUT_MAX_MS: Final = 7_200_000
"""For both sides to allow: no transaction of a long run may end by itself before its records are read."""
TIMEOUTS_MS: Final = (TIMEOUT_MAX_MS, TIMEOUT_MAX_MS - 100_000)
BAD_TIMEOUTS_MS: Final = (0, 2**31 - 1)
UNDER_WAY: Final = ("PrepareCommit", "PrepareAbort")

Partition = tuple[str, int]
Pair = tuple[int, int]
NO_PAIR: Final[Pair] = (-1, -1)


@dataclass(frozen=True, slots=True)
class PairName:
    """A pair by who was told it."""

    whose: int
    """Number of the transactional id."""
    back: int = 0
    """0 for the newest that was told, 1 for the one before."""
    other_id: bool = False
    epoch_change: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One request. `again` repeats the one before, byte for byte but for its correlation id."""

    kind: str
    """init, add, verify, add-offsets, commit-offsets, produce, end or again."""
    whose: int
    version: int
    pair: PairName | None = None
    partitions: tuple[Partition, ...] = ()
    group: str = ""
    commit: bool = True
    timeout_ms: int = TIMEOUTS_MS[0]
    gap: int = 0
    """Added to the sequence number that is right."""
    at_once: bool = False
    """Though markers may still be under way."""

    def __str__(self) -> str:
        parts = [f"{self.kind} {self.version}" if self.kind != "again" else "again", f"id {self.whose}"]
        if self.pair is not None:
            name = self.pair
            parts.append(
                f"pair {name.back} back of id {name.whose}{', another id' if name.other_id else ''}"
                f"{f', epoch {name.epoch_change:+}' if name.epoch_change else ''}"
            )
        if self.kind == "end":
            parts.append("commit" if self.commit else "abort")
        if self.kind == "init":
            parts.append(f"timeout {self.timeout_ms}")
        parts += [f"{topic}-{number}" for topic, number in self.partitions]
        parts += [self.group] if self.group else []
        parts += [f"gap {self.gap}"] if self.gap else []
        parts += ["at once"] if self.at_once else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Sequence:
    """Steps, and the transactional ids that they are about."""

    name: str
    generation: str
    ids: tuple[str, ...]
    steps: tuple[Step, ...]


# -- making sequences ----------------------------------------------------------------------------

_WEIGHTS: Final[Mapping[str, Mapping[str, float]]] = {
    # By what such clients send; the order is part of what a seed gives.
    "0": {
        "init": 2, "add": 5, "verify": 0.5, "add-offsets": 1.5, "commit-offsets": 1.5,
        "produce": 2, "end": 6, "again": 2,
    },
    "2": {
        "init": 2, "add": 0.7, "verify": 0.5, "add-offsets": 0.5, "commit-offsets": 1.5,
        "produce": 5, "end": 6, "again": 2,
    },
}  # fmt: skip
_VERSIONS: Final[Mapping[str, Mapping[str, tuple[int, ...]]]] = {
    # The first is what clients of today speak, and most requests are of it.
    "0": {
        "init": (4, 3, 2, 1, 0),
        "add": (3, 2, 1, 0),
        "verify": (4, 5),
        "add-offsets": (3, 2, 1, 0),
        "commit-offsets": (3, 4, 2, 1, 0),
        "produce": (10, 11, 9, 7, 3),
        "end": (3, 4, 2, 1, 0),
    },
    "2": {
        "init": (5,),
        "add": (5, 4),
        "verify": (5, 4),
        "add-offsets": (4,),
        "commit-offsets": (5,),
        "produce": (12,),
        "end": (5,),
    },
}
_WITH_PAIR_SINCE: Final = 3
"""InitProducerId (KIP-360)."""


def make_sequence(name: str, seed: str, generation: str, requests: int = REQUESTS) -> Sequence:
    """The sequence of a seed."""
    rng = random.Random(f"{seed} {generation} {name}")
    count = rng.choice((1, 1, 1, 2))
    ids = tuple(f"traces-{generation}-{name}-{number}" for number in range(count))
    steps: list[Step] = []
    for number in range(requests):
        side = rng.choice(("0", "2")) if generation == "both" else generation
        steps.append(_step(rng, side, number, count, steps))
    return Sequence(name, generation, ids, tuple(steps))


def _step(rng: random.Random, generation: str, number: int, ids: int, before: list[Step]) -> Step:
    weights = _WEIGHTS[generation]
    kind = rng.choices(tuple(weights), tuple(weights.values()))[0]
    whose = rng.randrange(ids)
    if number < ids and rng.random() < 0.9:
        kind, whose = "init", number
    if kind == "again":
        if before:
            return Step("again", before[-1].whose, before[-1].version, at_once=rng.random() < 0.5)
        kind = "end"
    of_kind = _VERSIONS[generation][kind]
    version = of_kind[0] if rng.random() < 0.7 else rng.choice(of_kind)
    if kind == "init":
        return _init(rng, whose, version, ids, number)
    pair = _pair(rng, whose, ids)
    if kind == "end":
        # What is asked with the newest pair while markers are under way is a matter of time in Kafka.
        at_once = generation == "0" and rng.random() < 0.3
        return Step(kind, whose, version, pair, commit=rng.random() < 0.6, at_once=at_once)
    if kind in ("add", "verify"):
        partitions = tuple(sorted(rng.sample(PARTITIONS, rng.randint(1, len(PARTITIONS)))))
        if kind == "add" and rng.random() < 0.04:
            partitions += (NO_SUCH_PARTITION,)
        return Step(kind, whose, version, pair, partitions, at_once=kind == "add" and rng.random() < 0.3)
    if kind == "produce":
        gap = rng.choice((1, 5)) if rng.random() < 0.03 else 0
        return Step(kind, whose, version, pair, (rng.choice(PARTITIONS),), gap=gap)
    group = rng.choice(GROUPS)
    return Step(kind, whose, version, pair, group=group, at_once=kind == "add-offsets" and rng.random() < 0.3)


def _init(rng: random.Random, whose: int, version: int, ids: int, number: int) -> Step:
    with_pair = version >= _WITH_PAIR_SINCE and number >= ids and rng.random() < 0.5
    timeout_ms = rng.choice(TIMEOUTS_MS) if rng.random() < 0.97 else rng.choice(BAD_TIMEOUTS_MS)
    pair = _pair(rng, whose, ids) if with_pair else None
    return Step("init", whose, version, pair, timeout_ms=timeout_ms, at_once=rng.random() < 0.3)


def _pair(rng: random.Random, whose: int, ids: int) -> PairName:
    if rng.random() < 0.75:
        return PairName(whose)
    kind = rng.choice(("before", "before", "long before", "lower", "higher", "another id", "another's"))
    match kind:
        case "before":
            return PairName(whose, back=1)
        case "long before":
            return PairName(whose, back=rng.randint(2, 5))
        case "lower":
            return PairName(whose, epoch_change=-1)
        case "higher":
            return PairName(whose, epoch_change=rng.choice((1, 1, 2)))
        case "another id":
            return PairName(whose, other_id=True)
    return PairName((whose + 1) % ids)


# -- playing them --------------------------------------------------------------------------------


@dataclass
class Entry:
    """What came of one step."""

    asked: str
    said: Any
    states: Any = None
    """Of each id; None while markers may be under way."""
    repeated: int = 0
    """How often something passing was answered; not compared."""


@dataclass
class Names:
    """Producer ids by their first appearance."""

    given: dict[int, str] = field(default_factory=dict)

    def of(self, producer_id: int) -> str:
        if producer_id == -1:
            return "none"
        if producer_id == STRANGE_ID:
            return "strange"
        return self.given.setdefault(producer_id, f"p{len(self.given)}")


@dataclass
class Transcript:
    """One side's."""

    entries: list[Entry]
    names: Names


@dataclass
class _Run:
    """What a side knows in the course of one sequence."""

    sequence: Sequence
    names: Names = field(default_factory=Names)
    told: list[list[Pair]] = field(default_factory=list)
    sequences: dict[tuple[Pair, Partition], int] = field(default_factory=dict)
    """The next sequence number of a pair in a partition."""
    last: Callable[[], tuple[Any, int]] | None = None
    """Sends the request before once more."""


class Player:
    """One side: a connection to an address that answers for all nodes (a single node, or a gateway)."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._opened: Wire | None = None

    @property
    def _wire(self) -> Wire:
        """Opened when it is needed: who comes and says nothing is not kept for long."""
        if self._opened is None:
            self._opened = Wire(self._address, timeout_s=PATIENCE_S)
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.__exit__()
            self._opened = None

    def play(self, sequence: Sequence) -> Transcript:
        run = _Run(sequence, told=[[] for _ in sequence.ids])
        entries = []
        for number, step in enumerate(sequence.steps):
            asked, said, repeated = self._play(run, step)
            entry = Entry(asked, said, repeated=repeated)
            following = sequence.steps[number + 1 : number + 2]
            if not (following and following[0].at_once):
                entry.states = self._states(run)
            entries.append(entry)
        return Transcript(entries, run.names)

    def _play(self, run: _Run, step: Step) -> tuple[str, Any, int]:
        if step.kind == "again":
            assert run.last is not None
            said, repeated = run.last()
            return str(step), said, repeated
        pair = NO_PAIR if step.pair is None else self._resolve(run, step.pair)
        sender = _SENDERS[step.kind](run, step, pair)

        def send() -> tuple[Any, int]:
            request, read = sender
            return self._settled(request, read)

        run.last = send
        said, repeated = send()
        named = "" if step.pair is None else f" [{run.names.of(pair[0])}, {pair[1]}]"
        return f"{step}{named}", said, repeated

    def _settled(self, request: Any, read: Callable[[Any], tuple[Any, set[int]]]) -> tuple[Any, int]:
        """What is answered once it is nothing that passes, and how often that was."""
        deadline_s = time.monotonic() + PATIENCE_S
        repeated = 0
        while True:
            try:
                answer = self._wire.call(request)
            except Closed:
                self.close()
                return "closed", repeated
            said, codes = read(answer)
            if not codes & PASSING or time.monotonic() > deadline_s:
                return said, repeated
            repeated += 1
            time.sleep(PAUSE_S)

    @staticmethod
    def _resolve(run: _Run, name: PairName) -> Pair:
        told = run.told[name.whose]
        producer_id, epoch = told[-1 - min(name.back, len(told) - 1)] if told else (STRANGE_ID, 0)
        return STRANGE_ID if name.other_id else producer_id, max(epoch + name.epoch_change, 0)

    def _states(self, run: _Run) -> list[Any]:
        """Each id as DescribeTransactions tells it, once no markers are under way."""
        request = build.request("describe_transactions", 0, {"transactional_ids": run.sequence.ids})
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            self._wire.send_frame(frame_of(request))
            told = _read_described(self._wire.receive_frame())
            found = [told[name] for name in run.sequence.ids]
            is_over = time.monotonic() > deadline_s
            if is_over or not any(one.status in UNDER_WAY or one.code in PASSING for one in found):
                return [one.shown(run.names) for one in found]
            time.sleep(PAUSE_S)


@dataclass(frozen=True, slots=True)
class _Described:
    """One id in an answer to DescribeTransactions."""

    code: int
    status: str
    timeout_ms: int
    has_start: bool
    pair: Pair
    partitions: list[tuple[str, list[int]]]

    def shown(self, names: Names) -> Any:
        if self.code:
            return self.code
        producer_id, epoch = self.pair
        return [self.status, names.of(producer_id), epoch, self.timeout_ms, self.has_start, self.partitions]


def _read_described(frame: bytes) -> dict[str, _Described]:
    """By hand: kio takes no start of -1, which is none."""
    data = Plain(frame)
    data.take(4)
    data.tags()
    data.number(">i")
    found = {}
    for _ in range(data.varint() - 1):
        code, name, status = data.number(">h"), data.text(), data.text()
        timeout_ms, start_ms = data.number(">i"), data.number(">q")
        pair = data.number(">q"), data.number(">h")
        topics = []
        for _ in range(data.varint() - 1):
            topic = data.text()
            topics.append((topic, sorted(data.number(">i") for _ in range(data.varint() - 1))))
            data.tags()
        data.tags()
        found[name] = _Described(code, status, timeout_ms, start_ms > 0, pair, sorted(topics))
    return found


Read = Callable[[Any], tuple[Any, set[int]]]
"""What an answer says, and its codes."""
Sender = Callable[[_Run, Step, Pair], tuple[Any, Read]]


def _tell(run: _Run, whose: int, pair: Pair) -> None:
    if not run.told[whose] or run.told[whose][-1] != pair:
        run.told[whose].append(pair)


def _send_init(run: _Run, step: Step, pair: Pair) -> tuple[Any, Read]:
    values = {
        "transactional_id": run.sequence.ids[step.whose],
        "transaction_timeout": step.timeout_ms,
        "producer_id": pair[0],
        "producer_epoch": pair[1],
    }

    def read(answer: Any) -> tuple[Any, set[int]]:
        return _coded_pair(run, step.whose, answer)

    return build.request("init_producer_id", step.version, values), read


def _coded_pair(run: _Run, whose: int, answer: Any) -> tuple[Any, set[int]]:
    code = int(answer.error_code)
    pair = (int(answer.producer_id), int(answer.producer_epoch))
    if code == 0:
        _tell(run, whose, pair)
    return [answer.error_code.name.upper(), run.names.of(pair[0]), pair[1]], {code}


def _send_end(run: _Run, step: Step, pair: Pair) -> tuple[Any, Read]:
    values = {
        "transactional_id": run.sequence.ids[step.whose],
        "producer_id": pair[0],
        "producer_epoch": pair[1],
        "committed": step.commit,
    }

    def read(answer: Any) -> tuple[Any, set[int]]:
        if hasattr(answer, "producer_id"):
            return _coded_pair(run, step.whose, answer)
        return answer.error_code.name.upper(), {int(answer.error_code)}

    return build.request("end_txn", step.version, values), read


def _send_add(run: _Run, step: Step, pair: Pair) -> tuple[Any, Read]:
    places: dict[str, list[int]] = {}
    for topic, number in step.partitions:
        places.setdefault(topic, []).append(number)
    topics = [{"name": topic, "partitions": numbers} for topic, numbers in places.items()]
    name = run.sequence.ids[step.whose]
    values = {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": pair[0],
        "v3_and_below_producer_epoch": pair[1],
        "v3_and_below_topics": topics,
        "transactions": [
            {
                "transactional_id": name,
                "producer_id": pair[0],
                "producer_epoch": pair[1],
                "verify_only": step.kind == "verify",
                "topics": topics,
            }
        ],
    }

    def read(answer: Any) -> tuple[Any, set[int]]:
        said: list[Any] = []
        codes: set[int] = set()
        if hasattr(answer, "results_by_transaction"):
            codes.add(int(answer.error_code))
            said.append(answer.error_code.name.upper())
            results = [topic for one in answer.results_by_transaction for topic in one.topic_results]
        else:
            results = list(answer.results_by_topic_v3_and_below)
        found = []
        for topic in results:
            for part in topic.results_by_partition:
                codes.add(int(part.partition_error_code))
                found.append(
                    [str(topic.name), int(part.partition_index), part.partition_error_code.name.upper()]
                )
        return said + sorted(found), codes

    return build.request("add_partitions_to_txn", step.version, values), read


def _send_add_offsets(run: _Run, step: Step, pair: Pair) -> tuple[Any, Read]:
    values = {
        "transactional_id": run.sequence.ids[step.whose],
        "producer_id": pair[0],
        "producer_epoch": pair[1],
        "group_id": step.group,
    }

    def read(answer: Any) -> tuple[Any, set[int]]:
        return answer.error_code.name.upper(), {int(answer.error_code)}

    return build.request("add_offsets_to_txn", step.version, values), read


def _send_commit_offsets(run: _Run, step: Step, pair: Pair) -> tuple[Any, Read]:
    part = {"partition_index": 0, "committed_offset": 1}
    values = {
        "transactional_id": run.sequence.ids[step.whose],
        "group_id": step.group,
        "producer_id": pair[0],
        "producer_epoch": pair[1],
        "generation_id": -1,
        "topics": [{"name": PARTITIONS[0][0], "partitions": [part]}],
    }

    def read(answer: Any) -> tuple[Any, set[int]]:
        codes = [part.error_code for topic in answer.topics for part in topic.partitions]
        return [code.name.upper() for code in codes], {int(code) for code in codes}

    return build.request("txn_offset_commit", step.version, values), read


def _send_produce(run: _Run, step: Step, pair: Pair) -> tuple[Any, Read]:
    (place,) = step.partitions
    key = (pair, place)
    number = run.sequences.get(key, 0)
    batch = build_batch(
        [NewRecord(None, b"x", time.time_ns() // 1_000_000)],
        producer_id=pair[0],
        producer_epoch=pair[1],
        base_sequence=number + step.gap,
        transactional=True,
    )
    values = produce_values(
        place[0], None, bytes(batch), transactional_id=run.sequence.ids[step.whose], partition=place[1]
    )

    def read(answer: Any) -> tuple[Any, set[int]]:
        (code,) = (p.error_code for topic in answer.responses for p in topic.partition_responses)
        if int(code) == 0:
            run.sequences[key] = number + step.gap + 1
        return code.name.upper(), {int(code)}

    return build.request("produce", step.version, values), read


_SENDERS: Final[Mapping[str, Sender]] = {
    "init": _send_init,
    "add": _send_add,
    "verify": _send_add,
    "add-offsets": _send_add_offsets,
    "commit-offsets": _send_commit_offsets,
    "produce": _send_produce,
    "end": _send_end,
}
