"""Requests of transactions: see `coordinator_calls`. Routed by the transactional id, TxnOffsetCommit by the group.

Taken apart when coordinators differ: DescribeTransactions, and AddPartitionsToTxn from version 4, which brokers
send; when leaders differ: WriteTxnMarkers, by which an operator ends a transaction that hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_frontend.authorizer import Operation, ResourceType
from penstock_gateway.relay.coordinator_calls import BatchCall, ListCall, OneCall
from penstock_gateway.relay.groups import group_refusal
from penstock_gateway.relay.items import ItemAnswer, Named, Veto, resolve
from penstock_gateway.relay.request import Outcome, Part, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_gateway.routing.flight import InFlight
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader, request_header
from penstock_kafka.wire.primitives import Buffer

_BATCHED_SINCE: Final = 4
"""Version of AddPartitionsToTxn that names several ids."""
_START: Final = datetime.fromtimestamp(0, UTC)


def id_refusal(rights: RequestRights, operation: Operation, transactional_id: str) -> ErrorCode:
    """Why the client may not do that with a transactional id; NONE: it may."""
    may = rights.may(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)
    return ErrorCode.NONE if may else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class TransactionCall(OneCall):
    """A request about one transactional id, which is the first field of its body."""

    state_topic = TRANSACTIONS_TOPIC

    def refusal_of(self, rights: RequestRights, index: int) -> ErrorCode:
        return id_refusal(rights, Operation.WRITE, self.ids[index])


class AddOffsetsCall(TransactionCall):
    """AddOffsetsToTxn: names a group too."""

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        self.reader.int64()  # producer id
        self.reader.int16()  # its epoch
        self._group_id = self.reader.string()

    def refusal_of(self, rights: RequestRights, index: int) -> ErrorCode:
        refusal = super().refusal_of(rights, index)
        return refusal or group_refusal(rights, Operation.READ, self._group_id)


class OffsetsCall(OneCall):
    """TxnOffsetCommit: goes to the coordinator of the group, its second field."""

    def read_id(self) -> str:
        self._transactional_id = self.reader.string()
        return self.reader.string()

    def refusal_of(self, rights: RequestRights, index: int) -> ErrorCode:
        refusal = id_refusal(rights, Operation.WRITE, self._transactional_id)
        return refusal or group_refusal(rights, Operation.READ, self.ids[index])


class AddBatchCall(BatchCall):
    """AddPartitionsToTxn from version 4 on."""

    state_topic = TRANSACTIONS_TOPIC
    request_field, response_field = "transactions", "results_by_transaction"

    @staticmethod
    def id_of(item: Any) -> str:
        return str(item.transactional_id)

    def refusal_of_all(self, rights: RequestRights) -> ErrorCode:
        may = rights.may_cluster(Operation.CLUSTER_ACTION)
        return ErrorCode.NONE if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def refusal_of(self, rights: RequestRights, index: int) -> ErrorCode:
        return ErrorCode.NONE

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        asked = self.asked[index]
        topics = tuple(
            codec.item(
                self.header,
                "AddPartitionsToTxnTopicResult",
                name=topic.name,
                results_by_partition=tuple(
                    codec.item(
                        self.header,
                        "AddPartitionsToTxnPartitionResult",
                        partition_index=number,
                        partition_error_code=codec.error_code(code),
                    )
                    for number in topic.partitions
                ),
            )
            for topic in asked.topics
        )
        return codec.item(
            self.header,
            "AddPartitionsToTxnResult",
            transactional_id=asked.transactional_id,
            topic_results=topics,
        )

    def join(self, results: list[Any]) -> list[Buffer]:
        return [codec.respond(self.header, error_code=0, results_by_transaction=tuple(results))]


def add_partitions(header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> Relayed[Any]:
    """AddPartitionsToTxn of any version."""
    kind = TransactionCall if header.api_version < _BATCHED_SINCE else AddBatchCall
    return kind(header, frame, finish)


class DescribeTransactionsCall(BatchCall):
    """DescribeTransactions."""

    state_topic = TRANSACTIONS_TOPIC
    request_field, response_field = "transactional_ids", "transaction_states"

    def refusal_of(self, rights: RequestRights, index: int) -> ErrorCode:
        return id_refusal(rights, Operation.DESCRIBE, self.ids[index])

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        return codec.item(
            self.header,
            "TransactionState",
            error_code=code,
            transactional_id=self.ids[index],
            transaction_state="",
            transaction_timeout=0,
            transaction_start_time=_START,
            producer_id=0,
            producer_epoch=0,
            topics=(),
        )


class ListTransactionsCall(ListCall):
    """ListTransactions."""

    state_topic = TRANSACTIONS_TOPIC
    response_field = "transaction_states"
    id_field = "transactional_id"

    def beside(self, answers: Sequence[Any]) -> dict[str, Any]:
        unknown = dict.fromkeys(name for answer in answers for name in answer.unknown_state_filters or ())
        return {"unknown_state_filters": tuple(unknown)}


class MarkerAnswer(NamedTuple):
    """What became of one marker in one partition."""

    producer_id: int
    topic: str
    partition: int
    code: int


class MarkersCall(Relayed[MarkerAnswer]):
    """WriteTxnMarkers. An item is one marker in one partition, so a partition may be named by several.

    It is not sent again where it may have been done: written twice, a marker may end the next transaction.
    """

    operation = Operation.ALTER

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        self._request = codec.decode_request(header, frame)
        self._items = [
            (number, Named(topic.name, None, index))
            for number, marker in enumerate(self._request.markers or ())
            for topic in marker.topics or ()
            for index in topic.partition_indexes or ()
        ]

    def names(self) -> Sequence[Named]:
        return [named for _, named in self._items]

    def item_keys(self) -> Sequence[Hashable]:
        return [(int(self._request.markers[number].producer_id), named) for number, named in self._items]

    def answer_key(self, answer: ItemAnswer[MarkerAnswer]) -> Hashable:
        return answer.result.producer_id, answer.named

    def start(
        self, image: MetadataImage, veto: Veto | None = None, rights: RequestRights | None = None
    ) -> InFlight[Part] | None:
        if not self._items:
            self._complete()
            return None
        if rights is not None and not (
            rights.may_see_cluster(Operation.ALTER) or rights.may_cluster(Operation.CLUSTER_ACTION)
        ):
            self._refuse_all(len(self._items), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return None
        found = [resolve(image, *named) for named in self.names()]
        self.keys = [key for key, _ in found]
        self._left = len(found)
        for index, (_, code) in enumerate(found):
            if code:
                self._fail_item(index, code)
        routable = [index for index, (_, code) in enumerate(found) if not code]
        return self._flight(routable, 1, whole=len(routable) == len(found)) if routable else None

    def failure(self, index: int, code: ErrorCode) -> MarkerAnswer:
        number, (topic, _, partition) = self._items[index]
        return MarkerAnswer(int(self._request.markers[number].producer_id), topic, partition, code)

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        header = self.header
        wanted: dict[int, dict[str, list[int]]] = {}
        for number, (topic, _, partition) in (self._items[i] for i in indices):
            wanted.setdefault(number, {}).setdefault(topic, []).append(partition)
        kinds = header.api_key, header.api_version
        topic_type = codec.entity_type(*kinds, "WritableTxnMarkerTopic", request=True)
        fields = codec.field_names(codec.entity_type(*kinds, "WritableTxnMarker", request=True))
        markers = []
        for number, by_topic in wanted.items():
            asked = self._request.markers[number]
            values = {name: getattr(asked, name) for name in fields}
            values["topics"] = tuple(
                codec.build(topic_type, name=name, partition_indexes=tuple(found))
                for name, found in by_topic.items()
            )
            markers.append(type(asked)(**values))
        head = request_header(header.api_key, header.api_version, header.correlation_id, header.client_id)
        return [head + codec.encode_body(codec.build(codec.request_type(*kinds), markers=tuple(markers)))]

    def decode(self, data: Buffer) -> list[ItemAnswer[MarkerAnswer]]:
        _, response = codec.decode_response(self.header.api_key, self.header.api_version, data)
        return [
            ItemAnswer(
                Named(topic.name, None, p.partition_index),
                int(p.error_code),
                MarkerAnswer(int(marker.producer_id), topic.name, p.partition_index, int(p.error_code)),
            )
            for marker in response.markers
            for topic in marker.topics
            for p in topic.partitions
        ]

    def join(self, results: list[MarkerAnswer]) -> list[Buffer]:
        """By producer id, as Kafka has it; what several of its markers name is there once."""
        found: dict[int, dict[str, dict[int, int]]] = {}
        for producer_id, topic, partition, code in results:
            found.setdefault(producer_id, {}).setdefault(topic, {})[partition] = code
        markers = tuple(
            codec.item(
                self.header,
                "WritableTxnMarkerResult",
                producer_id=producer_id,
                topics=tuple(
                    codec.item(
                        self.header,
                        "WritableTxnMarkerTopicResult",
                        name=name,
                        partitions=tuple(
                            codec.item(
                                self.header,
                                "WritableTxnMarkerPartitionResult",
                                partition_index=partition,
                                error_code=code,
                            )
                            for partition, code in codes.items()
                        ),
                    )
                    for name, codes in topics.items()
                ),
            )
            for producer_id, topics in found.items()
        )
        return [codec.respond(self.header, markers=markers)]


TRANSACTION_CALLS: Final[
    dict[int, Callable[[RequestHeader, Buffer, Callable[[Outcome], None]], Relayed[Any]]]
] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsCall,
    ApiKey.END_TXN: TransactionCall,
    ApiKey.TXN_OFFSET_COMMIT: OffsetsCall,
    ApiKey.WRITE_TXN_MARKERS: MarkersCall,
    ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactionsCall,
    ApiKey.LIST_TRANSACTIONS: ListTransactionsCall,
}
"""How each is relayed. InitProducerId is where it names an id, as a `TransactionCall`."""
