"""DescribeProducers, as it is relayed: through the codec, because its answers have arrays of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.topics import check_topic_name
from penstock_frontend.authorizer import Operation
from penstock_gateway.relay.items import ItemAnswer, Named
from penstock_gateway.relay.request import Outcome, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader, request_header
from penstock_kafka.wire.primitives import Buffer


class ProducersAnswer(NamedTuple):
    """One partition of a DescribeProducers response."""

    topic: str
    partition: Any
    """The codec's entity."""


class ProducersQuery(Relayed[ProducersAnswer]):
    """DescribeProducers: through the codec, because its answers have arrays of their own."""

    operation = Operation.READ

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        self._request = codec.decode_request(header, frame)
        self._names = [
            Named(topic.name, None, index)
            for topic in self._request.topics or ()
            for index in topic.partition_indexes or ()
        ]

    def names(self) -> Sequence[Named]:
        return self._names

    def refusal(self, rights: RequestRights, topic: str) -> ErrorCode:
        try:
            check_topic_name(topic)
        except PenstockError as e:
            return e.code  # before rights, as in Kafka
        return super().refusal(rights, topic)

    def _type(self, name: str, *, request: bool = False) -> Any:
        return codec.entity_type(self.header.api_key, self.header.api_version, name, request=request)

    def failure(self, index: int, code: ErrorCode) -> ProducersAnswer:
        topic, _, partition = self._names[index]
        failed = codec.build(
            self._type("PartitionResponse"),
            partition_index=partition,
            error_code=code,
            error_message=None,
            active_producers=(),
        )
        return ProducersAnswer(topic, failed)

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        header = self.header
        by_topic: dict[str, list[int]] = {}
        for topic, _, partition in (self._names[i] for i in indices):
            by_topic.setdefault(topic, []).append(partition)
        topics = tuple(
            codec.build(self._type("TopicRequest", request=True), name=name, partition_indexes=tuple(found))
            for name, found in by_topic.items()
        )
        part = codec.build(codec.request_type(header.api_key, header.api_version), topics=topics)
        head = request_header(header.api_key, header.api_version, header.correlation_id, header.client_id)
        return [head + codec.encode_body(part)]

    def decode(self, data: Buffer) -> list[ItemAnswer[ProducersAnswer]]:
        _, response = codec.decode_response(self.header.api_key, self.header.api_version, data)
        return [
            ItemAnswer(
                Named(topic.name, None, p.partition_index), int(p.error_code), ProducersAnswer(topic.name, p)
            )
            for topic in response.topics
            for p in topic.partitions
        ]

    def join(self, results: list[ProducersAnswer]) -> list[Buffer]:
        by_topic: dict[str, list[Any]] = {}
        for topic, partition in results:
            by_topic.setdefault(topic, []).append(partition)
        topics = tuple(
            codec.build(self._type("TopicResponse"), name=name, partitions=tuple(found))
            for name, found in by_topic.items()
        )
        return [codec.respond(self.header, topics=topics)]
