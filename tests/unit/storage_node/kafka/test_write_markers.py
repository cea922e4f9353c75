"""What a node answers to WriteTxnMarkers: a row for each partition of each producer, as Kafka's map has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from conformance.build import request as build_request
from penstock_core.errors import ErrorCode
from penstock_frontend.authorizer import AllowAll
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.kafka.write_markers import WriteMarkersHandler
from penstock_storage_node.transactions.admission import MarkerOrder
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.leading import LeadingSide
from support.rights_table import ALICE

E = ErrorCode
KEY = ApiKey.WRITE_TXN_MARKERS
VERSIONS = pytest.mark.parametrize("version", [1, 2])


class Leading:
    """Takes markers; `codes` has what it says of some partitions, `silent` is never answered."""

    def __init__(self, codes: dict[int, ErrorCode] | None = None, silent: int = -1) -> None:
        self.written: list[tuple[MarkerOrder, TopicPartitionName]] = []
        self._codes, self._silent = codes or {}, silent

    def write(
        self,
        order: MarkerOrder,
        name: TopicPartitionName,
        reply: Callable[[ErrorCode], None],
        is_over: Callable[[], bool],
    ) -> None:
        assert not is_over()
        self.written.append((order, name))
        if name.partition != self._silent:
            reply(self._codes.get(name.partition, E.NONE))


def marker(producer_id: int, *partitions: int, topic: str = "t") -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": 3,
        "transaction_result": True,
        "topics": [{"name": topic, "partition_indexes": list(partitions)}],
        "coordinator_epoch": 9,
        "transaction_version": 2,
    }


async def told(leading: Leading, version: int, *markers: dict[str, Any]) -> list[tuple[int, str, int, int]]:
    request = build_request(KEY.name.lower(), version, {"markers": markers})
    frame = request_header(KEY, version, 7, "test") + codec.encode_body(request)
    handler = WriteMarkersHandler(cast(LeadingSide, leading), Rights(AllowAll()), answer_s=0.01)
    response = await handler.handle(RequestContext(ALICE, "test"), parse_request_header(frame), frame)
    assert isinstance(response, list)
    _, entity = codec.decode_response(KEY, version, b"".join(response))
    ids = [marker.producer_id for marker in entity.markers]
    assert len(ids) == len(set(ids))
    return [
        (one.producer_id, topic.name, part.partition_index, int(part.error_code))
        for one in entity.markers
        for topic in one.topics
        for part in topic.partitions
    ]


@VERSIONS
async def test_each_partition_of_each_producer(version: int) -> None:
    leading = Leading({1: E.INVALID_PRODUCER_EPOCH})
    found = await told(leading, version, marker(1, 0, 1), marker(2, 0), marker(1, 5, topic="u"))
    assert found == [(1, "t", 0, 0), (1, "t", 1, 47), (1, "u", 5, 0), (2, "t", 0, 0)]
    assert {order.transaction_version for order, _ in leading.written} == {0 if version < 2 else 2}


@VERSIONS
async def test_what_a_producers_markers_name_twice_is_written_twice_and_answered_once(version: int) -> None:
    leading = Leading()
    found = await told(leading, version, marker(1, 0, 1), marker(1, 1, 0))
    assert found == [(1, "t", 0, 0), (1, "t", 1, 0)]
    assert len(leading.written) == 4


@VERSIONS
async def test_what_has_no_answer_in_time_may_be_written(version: int) -> None:
    assert await told(Leading(silent=1), version, marker(1, 0, 1)) == [
        (1, "t", 0, 0),
        (1, "t", 1, E.REQUEST_TIMED_OUT),
    ]


@VERSIONS
async def test_nothing_asked_is_nothing_answered(version: int) -> None:
    assert await told(Leading(), version) == []
    assert await told(Leading(), version, marker(1)) == []
