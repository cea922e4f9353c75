"""One client request that is relayed: what to send to whom, and how the answers join.

A request whose partitions have one leader goes out as the bytes it came in, and its
response comes back as the bytes that the node sent. Only when leaders differ, a
partition is unknown here, or a node refused some, is it taken apart: each part is
written anew for its partitions, and the results are joined in the client's version.

`Relayed` is what all APIs have in common; `produce`, `fetch`, `queries` and `groups` say the rest. Pure: it is
driven by the client's relay, which owns the table of flights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Generic

from penstock_core.errors import FIND_LEADER, ErrorCode
from penstock_core.ids import TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import Operation, ResourceType
from penstock_gateway.relay.items import ItemAnswer, Named, R, Refusal, Veto, resolve
from penstock_gateway.relay.rights import RequestRights
from penstock_gateway.routing.flight import InFlight
from penstock_kafka.producer_retries import SENT_AGAIN, ProducerSequence
from penstock_kafka.wire.apis import ON_LOSS
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer
from penstock_runtime.tracing import Span

HOLD_MS: Final = 2_000
"""How long Produce and queries wait for a leader or a connection to it. A failover takes
well under this; longer, and one lost partition would hold up the others' answers."""

SLACK_MS: Final = 5_000
"""How much longer than it was asked to a node may take before it counts as hung."""

QUERY_MS: Final = 30_000
"""How long a node may take for a query."""

PART_BYTES: Final = 256
"""What a part is reckoned to take beside its records, for bounds."""


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


class HopTimes:
    """When a request came from one part of its way to the next, in s of one clock; 0: it did not."""

    __slots__ = ("arrived_s", "back_s", "handed_s", "trace")

    def __init__(self) -> None:
        self.arrived_s = 0.0
        """It was read whole."""
        self.handed_s = 0.0
        """Its first part was handed to a node's stream."""
        self.back_s = 0.0
        """The last byte of a node's answer was there."""
        self.trace: Span | None = None
        """Of a request that is traced."""


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
    leader_change_hint = False
    """The client is made to look for a leader that has moved, though this gateway knows it."""
    looks_for_leader = False
    """A client that is told that somebody else leads asks for metadata, and then again."""
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
        self.times = HopTimes()
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

    def item_keys(self) -> Sequence[Hashable]:
        """What tells each item from the others."""
        return self.names()

    def answer_key(self, answer: ItemAnswer[R]) -> Hashable:
        """That of the item that a node's answer is about."""
        return answer.named

    def part_bytes(self, indices: Sequence[int]) -> int:
        """About how many bytes `encode` gives."""
        return PART_BYTES * (1 + len(indices))

    # -- the life of a request -----------------------------------------------------------

    def refusal(self, rights: RequestRights, topic: str) -> ErrorCode:
        """Why the client's request for a topic is refused, whether that is there or not; NONE: it may."""
        may = rights.may(self.operation, ResourceType.TOPIC, topic)
        return ErrorCode.NONE if may else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def start(
        self, image: MetadataImage, veto: Veto | None = None, rights: RequestRights | None = None
    ) -> InFlight[Part] | None:
        """Resolve topics; the flight for what can be routed, None when all is answered already.

        `rights`, where there are any, come before all but an id that nobody knows; `veto` may refuse a partition
        that is known, with its code. A partition that is named twice is refused: which one counts would depend on
        how requests are split.
        """
        routable: list[int] = []
        seen: set[TopicPartition] = set()
        failures: list[tuple[int, ErrorCode]] = []
        for index, (topic, topic_id, partition) in enumerate(self.names()):
            key, code = resolve(image, topic, topic_id, partition)
            if rights is not None and code is not ErrorCode.UNKNOWN_TOPIC_ID:
                name = topic if topic_id is None else image.topics[topic_id].name
                refusal = self.refusal(rights, name)
                if refusal:
                    self.keys.append(key)
                    failures.append((index, refusal))
                    continue
            code = self.check_order(index, code)
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

    def _refuse_all(self, count: int, code: ErrorCode) -> None:
        """Answer every item with that."""
        self._left = count
        for index in range(count):
            self._fail_item(index, code)
        if not self.finished:
            self._complete()

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

    def check_order(self, _index: int, code: ErrorCode) -> ErrorCode:
        """The code of an item that metadata give `code`."""
        return code

    def sequence(self, _index: int) -> ProducerSequence | None:
        """The idempotent producer's place of one item's batch."""
        return None

    def failed(self, part: Part, code: ErrorCode) -> None:
        """A part came to nothing."""
        for index in part.indices:
            self._fail_item(index, code)

    def refused(self, part: Part, chunks: Sequence[Buffer]) -> Refusal[R]:
        """What a node refused of a part, and the rest of its answer."""
        answers = {self.answer_key(answer): answer for answer in self.decode(_whole(chunks))}
        keys = self.item_keys()
        refused: list[int] = []
        sent_again: list[int] = []
        results: list[R] = []
        for position, index in enumerate(part.indices):
            answer = answers.get(keys[index])
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

    def not_ready(self, chunks: Sequence[Buffer]) -> bool:
        """Whether a node's answer says that it cannot tell yet, so that it is asked again and the client not told."""
        del chunks
        return False

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
