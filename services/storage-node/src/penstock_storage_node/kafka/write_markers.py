"""WriteTxnMarkers: an operator ends a transaction that hangs, `kafka-transactions abort`.

Coordinators of this cluster do not come this way (see `rpc.transaction_service`): Kafka's form names no partition of
`__transaction_state`, so two of a marker's three fences can't be looked at.

Rules (KafkaApis.handleWriteTxnMarkersRequest): ALTER or CLUSTER_ACTION on the cluster, and the audit log is told of the
second alone; each partition has its own answer, once the high watermark covers its marker. Where several markers of one
producer name a partition, all are written and the last one's answer is told.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from penstock_core.errors import ErrorCode
from penstock_frontend.authorizer import CLUSTER_NAME, Operation, ResourceType
from penstock_frontend.listener.listener import Buffer, Response
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.transactions.admission import MarkerOrder
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.leading import LeadingSide

ANSWER_S: Final = 30.0
"""For a marker; what has none then is answered REQUEST_TIMED_OUT, and may be written."""

_Codes = dict[TopicPartitionName, ErrorCode]


class WriteMarkersHandler:
    """Answers WriteTxnMarkers for every way in."""

    def __init__(self, leading: LeadingSide, rights: Rights, answer_s: float = ANSWER_S) -> None:
        self._leading = leading
        self._rights = rights
        self._answer_s = answer_s

    async def handle(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Response:
        """Answer one request."""
        markers = codec.decode_request(header, frame).markers
        codes: list[_Codes] = [
            {
                TopicPartitionName(topic.name, index): ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                for topic in marker.topics
                for index in topic.partition_indexes
            }
            for marker in markers
        ]
        if self._may(caller):
            await self._write(markers, codes)
        for found in codes:
            for code in found.values():
                if code:
                    caller.note(code)
        by_producer: dict[int, _Codes] = {}
        for marker, found in zip(markers, codes, strict=True):
            if found:
                by_producer.setdefault(marker.producer_id, {}).update(found)
        rows = (_row(header, producer_id, found) for producer_id, found in by_producer.items())
        return [codec.respond(header, markers=tuple(rows))]

    def _may(self, caller: RequestContext) -> bool:
        rights = self._rights
        if not rights.is_enabled:
            return True
        kind = ResourceType.CLUSTER
        return rights.may_see(caller, Operation.ALTER, kind, CLUSTER_NAME) or rights.may(
            caller, Operation.CLUSTER_ACTION, kind, CLUSTER_NAME
        )

    async def _write(self, markers: Any, codes: list[_Codes]) -> None:
        left = sum(map(len, codes))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_over = False

        def tell(found: _Codes, name: TopicPartitionName, code: ErrorCode) -> None:
            nonlocal left
            if is_over:
                return
            found[name] = code
            left -= 1
            if not left and not done.done():
                done.set_result(None)

        for marker, found in zip(markers, codes, strict=True):
            order = MarkerOrder(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.coordinator_epoch,
                getattr(marker, "transaction_version", 0),
            )
            for name in list(found):
                found[name] = ErrorCode.REQUEST_TIMED_OUT
                self._leading.write(
                    order,
                    name,
                    lambda code, found=found, name=name: tell(found, name, code),  # type: ignore[misc]
                    lambda: is_over,
                )
        try:
            if left:
                await asyncio.wait_for(done, self._answer_s)
        except TimeoutError:
            pass
        finally:
            is_over = True


def _row(header: RequestHeader, producer_id: int, codes: _Codes) -> Any:
    by_topic: dict[str, list[Any]] = {}
    for name, code in codes.items():
        one = codec.item(
            header, "WritableTxnMarkerPartitionResult", partition_index=name.partition, error_code=code
        )
        by_topic.setdefault(name.topic, []).append(one)
    topics = tuple(
        codec.item(header, "WritableTxnMarkerTopicResult", name=topic, partitions=tuple(partitions))
        for topic, partitions in by_topic.items()
    )
    return codec.item(header, "WritableTxnMarkerResult", producer_id=producer_id, topics=topics)
