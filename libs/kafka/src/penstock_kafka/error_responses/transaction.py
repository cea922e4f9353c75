"""Whole failures of transaction requests, and the codes that each version of them knows: see `data`.

Source: getErrorResponse of Kafka's request classes; KafkaApis for the codes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from penstock_core.errors import ErrorCode
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer
from penstock_kafka.wire.transactions import (
    BATCHED_SINCE,
    CodeOf,
    Topics,
    put_add_offsets,
    put_added,
    put_all_added,
    put_end,
    read_add_partitions,
)

NO_ID: Final = -1
NO_EPOCH: Final = -1
_FENCED_SINCE: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""Version that knows PRODUCER_FENCED (KIP-588)."""
_LOADING_SINCE: Final = 2
"""Version of TxnOffsetCommit whose clients know COORDINATOR_LOAD_IN_PROGRESS."""
_ABORTABLE_SINCE: Final = 4
"""Version of TxnOffsetCommit that knows TRANSACTION_ABORTABLE (KIP-890)."""


def code_by_version(api_key: int, version: int, code: int) -> int:
    """What a client of that version is told in place of `code`."""
    if code == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE.get(ApiKey(api_key), 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if api_key == ApiKey.TXN_OFFSET_COMMIT:
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _LOADING_SINCE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
            return ErrorCode.INVALID_TXN_STATE
    return code


def init_producer_id(
    header: RequestHeader, code: int, producer_id: int = NO_ID, producer_epoch: int = NO_EPOCH
) -> bytes:
    """The answer to an InitProducerId."""
    code = code_by_version(header.api_key, header.api_version, code)
    return codec.respond(header, error_code=code, producer_id=producer_id, producer_epoch=producer_epoch)


def add_offsets(header: RequestHeader, code: int) -> bytes:
    """The answer to an AddOffsetsToTxn."""
    return put_add_offsets(header, code_by_version(header.api_key, header.api_version, code))


def end_txn(
    header: RequestHeader, code: int, producer_id: int = NO_ID, producer_epoch: int = NO_EPOCH
) -> bytes:
    """The answer to an EndTxn; from version 5 on with what the next transaction begins with."""
    code = code_by_version(header.api_key, header.api_version, code)
    return put_end(header, code, producer_id, producer_epoch)


def added(header: RequestHeader, topics: Topics, code_of: CodeOf) -> bytes:
    """The answer to an AddPartitionsToTxn of a client."""
    if header.api_version >= _FENCED_SINCE[ApiKey.ADD_PARTITIONS_TO_TXN]:
        return put_added(header, topics, code_of)
    told = partial(code_by_version, header.api_key, header.api_version)
    return put_added(header, topics, lambda topic, number: told(code_of(topic, number)))


def _init_producer_id(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return init_producer_id(header, code)


def _add_partitions(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    if header.api_version >= BATCHED_SINCE:
        return put_all_added(header, code, ())
    (asked,) = read_add_partitions(header, frame)
    return added(header, asked.topics, lambda *_: code)


def _add_offsets(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return add_offsets(header, code)


def _end_txn(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return end_txn(header, code)


def describe_failure(header: RequestHeader, transactional_id: str, code: int) -> Any:
    """One id of a DescribeTransactions response that carries an error."""
    return codec.item(
        header,
        "TransactionState",
        error_code=code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout=0,
        transaction_start_time=0,
        producer_id=0,
        producer_epoch=0,
        topics=(),
    )


def _describe(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    states = tuple(describe_failure(header, each, code) for each in request.transactional_ids)
    return codec.respond(header, transaction_states=states)


def _list(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return codec.respond(header, error_code=code, unknown_state_filters=(), transaction_states=())


def _write_markers(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    markers = tuple(
        codec.item(
            header,
            "WritableTxnMarkerResult",
            producer_id=marker.producer_id,
            topics=tuple(
                codec.item(
                    header,
                    "WritableTxnMarkerTopicResult",
                    name=topic.name,
                    partitions=tuple(
                        codec.item(
                            header,
                            "WritableTxnMarkerPartitionResult",
                            partition_index=number,
                            error_code=code,
                        )
                        for number in topic.partition_indexes
                    ),
                )
                for topic in marker.topics
            ),
        )
        for marker in request.markers
    )
    return codec.respond(header, markers=markers)


def _commit_offsets(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    code = code_by_version(header.api_key, header.api_version, code)
    topics = tuple(
        codec.item(
            header,
            "TxnOffsetCommitResponseTopic",
            name=topic.name,
            partitions=tuple(
                codec.item(
                    header,
                    "TxnOffsetCommitResponsePartition",
                    partition_index=each.partition_index,
                    error_code=code,
                )
                for each in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return codec.respond(header, topics=topics)


TRANSACTION_TABLE: Final[dict[int, Callable[[RequestHeader, Buffer, int, str | None], bytes | None]]] = {
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: _add_offsets,
    ApiKey.END_TXN: _end_txn,
    ApiKey.WRITE_TXN_MARKERS: _write_markers,
    ApiKey.TXN_OFFSET_COMMIT: _commit_offsets,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe,
    ApiKey.LIST_TRANSACTIONS: _list,
}
