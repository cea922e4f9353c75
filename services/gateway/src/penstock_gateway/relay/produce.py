"""Produce, as it is relayed: parts are written anew around views of the client's records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock_core.errors import CHECK_PARTITION, ErrorCode
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import Operation, ResourceType
from penstock_gateway.relay.items import ItemAnswer, Named, Veto
from penstock_gateway.relay.request import PART_BYTES, SLACK_MS, Ending, Outcome, Part, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_gateway.routing.flight import InFlight
from penstock_gateway.routing.retry_gate import RetryGate
from penstock_kafka.producer_retries import ProducerSequence
from penstock_kafka.records.batch import is_transactional
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

_REASONS: Final = {
    ErrorCode.REQUEST_TIMED_OUT: "the leader was lost before it answered: the records may be written",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "no right to write to the topic",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "no leader took the records: nothing was written",
}
UNKNOWN_MAX: Final = 10_000
"""Partitions of one connection that were not known here whose later batches are looked at: clients make up names."""


class UnknownTopicGate:
    """Batches of one client connection whose partition was not known here when they came."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._retry_gate: RetryGate[Named] = RetryGate(UNKNOWN_MAX)
        self._clock_ms = clock_ms

    def concerns(self, code: ErrorCode) -> bool:
        """Whether `check` may say anything of an item that metadata give `code`."""
        return bool(self._retry_gate) or code in CHECK_PARTITION

    def check(self, named: Named, sequence: ProducerSequence | None, code: ErrorCode) -> ErrorCode:
        """The code of an item that metadata give `code`: what is behind an unknown one waits for it."""
        if code in CHECK_PARTITION:
            self._retry_gate.failed(named, sequence, self._clock_ms())
        elif self._retry_gate.turns_away(named, sequence, self._clock_ms()):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return code


class Produce(Relayed[ProduceResult]):
    """Produce: parts are written anew around views of the client's records."""

    operation = Operation.WRITE

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        self.skim = skim_produce(frame, header)
        self.silent = self.skim.acks == 0
        self.looks_for_leader = not self.silent
        self.deadline_ms = max(0, self.skim.timeout_ms)
        self.answer_ms = self.deadline_ms + SLACK_MS
        self.unknown_topics: UnknownTopicGate | None = None
        """Keeps batches in order whose partition becomes known between them."""
        self._names = [Named(p.topic, p.topic_id, p.partition) for p in self.skim.partitions]

    def names(self) -> Sequence[Named]:
        return self._names

    def start(
        self, image: MetadataImage, veto: Veto | None = None, rights: RequestRights | None = None
    ) -> InFlight[Part] | None:
        if rights is not None and not self._may_in_transaction(rights):
            self._refuse_all(len(self._names), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return None
        return super().start(image, veto, rights)

    def _may_in_transaction(self, rights: RequestRights) -> bool:
        """Who writes in a transaction needs the right to its id (Kafka: KafkaApis.handleProduceRequest)."""
        if not any(is_transactional(p.records) for p in self.skim.partitions):
            return True
        name = self.skim.transactional_id
        return name is not None and rights.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)

    def failure(self, index: int, code: ErrorCode) -> ProduceResult:
        if self.silent:
            # There is no other way to tell the client (rule "A relay keeps order").
            self.close()
        topic, topic_id, partition = self._names[index]
        return ProduceResult(topic, topic_id, partition, code, error_message=_REASONS.get(code))

    def check_order(self, index: int, code: ErrorCode) -> ErrorCode:
        gate = self.unknown_topics
        if gate is None or not gate.concerns(code):
            return code
        return gate.check(self._names[index], self.sequence(index), code)

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
