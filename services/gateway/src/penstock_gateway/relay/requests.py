"""One client request that is relayed: what to send to whom, and how the answers join.

A request whose partitions have one leader goes out as the bytes it came in, and its
response comes back as the bytes that the node sent. Only when leaders differ, a
partition is unknown here, or a node refused some, is it taken apart: each part is
written anew for its partitions, and the results are joined in the client's version.

Pure: `Relayed` is driven by the session, which owns the table of flights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock_core.errors import CHECK_PARTITION, FIND_LEADER, ErrorCode
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import Operation
from penstock_gateway.routing.in_flight import InFlight
from penstock_gateway.routing.retry_gate import RetryGate
from penstock_kafka.producer_retries import SENT_AGAIN, ProducerSequence
from penstock_kafka.wire.apis import ON_LOSS
from penstock_kafka.wire.fetch import (
    FetchResult,
    decode_fetch,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer
from penstock_kafka.wire.produce import (
    ProduceResult,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
    skim_produce,
)

HOLD_MS: Final = 2_000
"""How long Produce and queries wait for a leader or a connection to it. A failover takes
well under this; longer, and one lost partition would hold up the others' answers."""

SLACK_MS: Final = 5_000
"""How much longer than it was asked to a node may take before it counts as hung."""

FETCH_SLACK_MS: Final = 30_000
"""As SLACK_MS for Fetch, whose answer may first have to come off a disk."""

QUERY_MS: Final = 30_000
"""How long a node may take for a query."""

SPLIT_FETCH_WAIT_MS: Final = 100
"""Longest wait of a split Fetch: an empty part would hold up the data of the others."""

PART_BYTES: Final = 256
"""What a part is reckoned to take beside its records, for bounds."""

FETCH_SESSION_ID_NOT_FOUND: Final = 70


class Ending(Enum):
    """Outcomes that are not a response."""

    NO_RESPONSE = auto()
    CLOSE = auto()


Outcome = list[Buffer] | Ending
"""The response's buffers without length prefix, or what to do instead."""


@dataclass(slots=True)
class Part:
    """Payload of a flight: some of a request's partitions, by index; `share` = 1/n of its limits."""

    request: Relayed[Any]
    indices: Sequence[int]
    share: int
    whole: bool

    def buffers(self) -> list[Buffer]:
        """What to send."""
        if self.whole:
            return [self.request.frame]
        return self.request.encode(self.indices, self.share)


Veto = Callable[[TopicPartition, MetadataImage], ErrorCode]
"""Why a partition that is known is refused all the same; NONE lets it through."""


class Named(NamedTuple):
    """How a request names a partition."""

    topic: str
    topic_id: TopicId | None
    """From the versions that use it; the name is "" then."""
    partition: int


R = TypeVar("R")
"""What an API's response says of one item."""


class ItemAnswer(NamedTuple, Generic[R]):
    """A node's answer for one item of a request."""

    named: Named
    error: int
    """Kafka's code."""
    result: R


@dataclass(frozen=True, slots=True)
class Refusal(Generic[R]):
    """An answer in which a node refused some items of a part. Positions are those in the part."""

    refused: Sequence[int]
    """Nothing was done for these, and another node is to be asked."""
    sent_again: Sequence[int]
    """These failed, and the client will send them again itself."""
    results: Sequence[R]
    """Of all but the refused ones."""


class Unknown:
    """Batches of one client connection whose partition was not known here when they came."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._retry_gate: RetryGate[Named] = RetryGate()
        self._clock_ms = clock_ms

    def check(self, request: Relayed[Any], index: int, code: ErrorCode) -> ErrorCode:
        """The code of an item that metadata give `code`: what is behind an unknown one waits for it."""
        named = request.names()[index]
        if code in CHECK_PARTITION:
            self._retry_gate.failed(named, request.sequence(index), self._clock_ms())
        elif self._retry_gate and self._retry_gate.turns_away(
            named, request.sequence(index), self._clock_ms()
        ):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return code


class Relayed(ABC, Generic[R]):
    """A request in flight. `finish` is called once, with the outcome.

    What becomes of it when its node is lost stands with its API in `penstock_kafka.wire.apis`.
    """

    operation: Operation
    """What the client needs to be allowed on each topic."""
    hold_ms = HOLD_MS
    answer_ms = QUERY_MS
    deadline_ms = 0
    """Told to the node: time that the client gives it; 0 for none."""
    unknown: Unknown | None = None
    """Keeps batches in order whose partition becomes known between them."""
    leader_change_hint = False
    """The client is made to look for a leader that has moved, though this gateway knows it."""
    silent = False
    """The client waits for no answer, and may be gone before the request is."""

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        self.header = header
        self.frame = frame
        self.on_loss = ON_LOSS[header.api_key]
        self._finish = finish
        self._left = 0
        self._results: list[R] = []
        self.keys: list[TopicPartition] = []
        self.finished = False
        self.error_codes: list[ErrorCode] = []
        """Codes that items were answered with here, for counting."""

    # -- what each API says -----------------------------------------------------------

    @abstractmethod
    def names(self) -> Sequence[Named]:
        """The partition of each item."""

    @abstractmethod
    def failure(self, index: int, code: ErrorCode) -> R:
        """The result of one item that failed here."""

    @abstractmethod
    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        """A request for these items alone."""

    @abstractmethod
    def decode(self, data: Buffer) -> list[ItemAnswer[R]]:
        """Each item of a node's response."""

    @abstractmethod
    def join(self, results: list[R]) -> list[Buffer]:
        """The client's response."""

    def part_bytes(self, indices: Sequence[int]) -> int:
        """About how many bytes `encode` gives."""
        return PART_BYTES * (1 + len(indices))

    # -- the life of a request -----------------------------------------------------------

    def start(self, image: MetadataImage, veto: Veto | None = None) -> InFlight[Part] | None:
        """Resolve topics; the flight for what can be routed, None when all is answered already.

        `veto` may refuse a partition that is known, with its code. A partition that is
        named twice is refused: which one counts would depend on how requests are split.
        """
        routable: list[int] = []
        seen: set[TopicPartition] = set()
        failures: list[tuple[int, ErrorCode]] = []
        for index, (topic, topic_id, partition) in enumerate(self.names()):
            key, code = resolve(image, topic, topic_id, partition)
            if self.unknown is not None:
                code = self.unknown.check(self, index, code)
            if code is ErrorCode.NONE:
                if key in seen:
                    code = ErrorCode.INVALID_REQUEST
                elif veto is not None:
                    code = veto(key, image)
                seen.add(key)
            self.keys.append(key)
            if code is ErrorCode.NONE:
                routable.append(index)
            else:
                failures.append((index, code))
        self._left = len(self.keys)
        for index, code in failures:
            self._fail_item(index, code)
        if not routable:
            if not self.finished:
                self._complete()
            return None
        return self._flight(routable, 1, whole=not failures)

    def _flight(self, indices: Sequence[int], share: int, *, whole: bool) -> InFlight[Part]:
        def split(groups: Sequence[Sequence[int]]) -> list[InFlight[Part]]:
            parts = share * len(groups)
            return [self._flight([indices[i] for i in group], parts, whole=False) for group in groups]

        keys = self.keys if whole else [self.keys[i] for i in indices]
        size = len(self.frame) if whole else self.part_bytes(indices)
        part = Part(self, indices, share, whole)
        return InFlight(
            self.on_loss,
            keys,
            part,
            size,
            self.hold_ms,
            self.answer_ms,
            split,
            lambda i: self.sequence(indices[i]),
        )

    def sequence(self, _index: int) -> ProducerSequence | None:
        """The idempotent producer's place of one item's batch."""
        return None

    def failed(self, part: Part, code: ErrorCode) -> None:
        """A part came to nothing."""
        for index in part.indices:
            self._fail_item(index, code)

    def refused(self, part: Part, chunks: Sequence[Buffer]) -> Refusal[R]:
        """What a node refused of a part, and the rest of its answer."""
        answers = {answer.named: answer for answer in self.decode(_whole(chunks))}
        names = self.names()
        refused: list[int] = []
        sent_again: list[int] = []
        results: list[R] = []
        for position, index in enumerate(part.indices):
            answer = answers.get(names[index])
            if answer is None:
                results.append(self.failure(index, ErrorCode.UNKNOWN_SERVER_ERROR))
            elif answer.error in FIND_LEADER:  # the client is not told: another node is asked
                refused.append(position)
            else:
                if answer.error in SENT_AGAIN:
                    sent_again.append(position)
                results.append(answer.result)
        return Refusal(refused, sent_again, results)

    def answered(self, part: Part, chunks: list[Buffer]) -> None:
        """A node's answer to a part, as it is."""
        if part.whole:
            self._end(chunks)
        else:
            self.settle([answer.result for answer in self.decode(_whole(chunks))], len(part.indices))

    def settle(self, results: Sequence[R], count: int) -> None:
        """Results for `count` items."""
        self._results.extend(results)
        self._left -= count
        if self._left <= 0 and not self.finished:
            self._complete()

    def answered_none(self, part: Part) -> None:
        """A node's word that a part is done and has no response."""
        self.settle((), len(part.indices))

    def close(self) -> None:
        """The client's connection has to be closed."""
        self._end(Ending.CLOSE)

    def _fail_item(self, index: int, code: ErrorCode) -> None:
        self.error_codes.append(code)
        self.settle((self.failure(index, code),), 1)

    def _complete(self) -> None:
        self._end(self.join(self._results))

    def _end(self, outcome: Outcome) -> None:
        if not self.finished:
            self.finished = True
            self._finish(outcome)


def _whole(chunks: Sequence[Buffer]) -> Buffer:
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def resolve(
    image: MetadataImage, topic: str, topic_id: TopicId | None, partition: int
) -> tuple[TopicPartition, ErrorCode]:
    """The partition that a request names, or why there is none."""
    if topic_id is None:
        found = image.topic_ids.get(topic)
        if found is None:
            return TopicPartition(TopicId(b""), partition), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic_id = found
    image_topic = image.topics.get(topic_id)
    if image_topic is None:
        return TopicPartition(topic_id, partition), ErrorCode.UNKNOWN_TOPIC_ID
    known = partition in image_topic.partitions
    return TopicPartition(topic_id, partition), (
        ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


class Produce(Relayed[ProduceResult]):
    """Produce: parts are written anew around views of the client's records."""

    operation = Operation.WRITE

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        self.skim = skim_produce(frame, header)
        self.silent = self.skim.acks == 0
        self.deadline_ms = max(0, self.skim.timeout_ms)
        self.answer_ms = self.deadline_ms + SLACK_MS
        self._names = [Named(p.topic, p.topic_id, p.partition) for p in self.skim.partitions]

    def names(self) -> Sequence[Named]:
        return self._names

    def failure(self, index: int, code: ErrorCode) -> ProduceResult:
        if self.silent:
            # There is no other way to tell the client (rule "A relay keeps order").
            self.close()
        topic, topic_id, partition = self._names[index]
        return ProduceResult(topic, topic_id, partition, code, error_message=_REASONS.get(code))

    def sequence(self, index: int) -> ProducerSequence | None:
        return ProducerSequence.of(self.skim.partitions[index].records)

    def part_bytes(self, indices: Sequence[int]) -> int:
        return PART_BYTES + sum(len(self.skim.partitions[i].records) + PART_BYTES for i in indices)

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        skim, header = self.skim, self.header
        some = ProduceSkim(
            skim.transactional_id,
            skim.acks,
            skim.timeout_ms,
            [skim.partitions[i] for i in indices],
            skim.want_receipt,
        )
        return encode_produce_request(header.api_version, header.correlation_id, header.client_id, some)

    def decode(self, data: Buffer) -> list[ItemAnswer[ProduceResult]]:
        response = decode_produce_response(data, self.header.api_version)
        return [ItemAnswer(Named(r.topic, r.topic_id, r.partition), r.error, r) for r in response.results]

    def join(self, results: list[ProduceResult]) -> list[Buffer]:
        return [encode_produce_response(self.header, results)]

    def settle(self, results: Sequence[ProduceResult], count: int) -> None:
        if self.silent and any(result.error for result in results):
            self.close()  # as in `failure`
        else:
            super().settle(results, count)

    def _complete(self) -> None:
        if self.silent:
            self._end(Ending.NO_RESPONSE)
        else:
            super()._complete()


_REASONS: Final = {
    ErrorCode.REQUEST_TIMED_OUT: "the leader was lost before it answered: the records may be written",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "no leader took the records: nothing was written",
}


class Fetch(Relayed[FetchResult]):
    """Fetch: parts share `max_bytes`, and don't wait long for one another."""

    operation = Operation.READ
    leader_change_hint = True

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        self.fetch = decode_fetch(frame, header)
        wait_ms = max(0, self.fetch.max_wait_ms)
        self.hold_ms = min(wait_ms, 1_000)
        self.answer_ms = wait_ms + FETCH_SLACK_MS
        self._names = [Named(p.topic, p.topic_id, p.partition) for p in self.fetch.partitions]

    def names(self) -> Sequence[Named]:
        return self._names

    def start(self, image: MetadataImage, veto: Veto | None = None) -> InFlight[Part] | None:
        if self.fetch.is_incremental:
            self._end(encode_fetch_response(self.header, [], error=FETCH_SESSION_ID_NOT_FOUND))
            return None
        return super().start(image, veto)

    def failure(self, index: int, code: ErrorCode) -> FetchResult:
        topic, topic_id, partition = self._names[index]
        return FetchResult(topic, topic_id, partition, code)

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        fetch, header = self.fetch, self.header
        # What is known already (an error, another part's data) must not wait for this part.
        wait_ms = 0 if self._results else min(fetch.max_wait_ms, SPLIT_FETCH_WAIT_MS)
        part = replace(
            fetch,
            max_wait_ms=wait_ms,
            max_bytes=max(1, fetch.max_bytes // share),
            partitions=[fetch.partitions[i] for i in indices],
        )
        return [encode_fetch_request(header.api_version, header.correlation_id, header.client_id, part)]

    def decode(self, data: Buffer) -> list[ItemAnswer[FetchResult]]:
        response = decode_fetch_response(data, self.header.api_version)
        return [ItemAnswer(Named(r.topic, r.topic_id, r.partition), r.error, r) for r in response.results]

    def join(self, results: list[FetchResult]) -> list[Buffer]:
        return encode_fetch_response(self.header, results)


class LeaderChangeHint:
    """Makes consumers look for a new leader.

    Behind a gateway a Fetch that still comes by the old leader's name could be served from
    the new one for ever, split each time. So the first one after a move is answered 6;
    the client asks for metadata and comes by the right name. Should it come the same way
    again, it is served. One per client connection.
    """

    def __init__(self, leader: Callable[[TopicPartition], NodeId]) -> None:
        self._leader = leader
        self._known: dict[TopicPartition, NodeId] = {}

    def __call__(self, key: TopicPartition, image: MetadataImage) -> ErrorCode:
        now = self._leader(key)
        if now == NO_NODE:
            return ErrorCode.NONE  # the table answers that
        before = self._known.setdefault(key, now)
        if before == now:
            return ErrorCode.NONE
        self._known[key] = now
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
