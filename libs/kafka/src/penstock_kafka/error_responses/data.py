"""Responses that fail a request as a whole: the right shape, every item with the error.

Clients find no error in a response that lacks the partitions or topics that they asked
for, and some wait for ever; so each is named, as Kafka's getErrorResponse methods do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock_kafka.error_responses.admin import ADMIN_TABLE
from penstock_kafka.error_responses.group import GROUP_TABLE
from penstock_kafka.error_responses.transaction import TRANSACTION_TABLE
from penstock_kafka.wire import api_versions, codec
from penstock_kafka.wire.apis import PRODUCE_VERSION_MIN, ApiKey
from penstock_kafka.wire.fetch import FetchResult, decode_fetch, encode_fetch_response
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.metadata import decode_metadata
from penstock_kafka.wire.primitives import Buffer, Malformed
from penstock_kafka.wire.produce import ProduceResult, encode_produce_response, skim_produce, skim_produce_old


def error_response(
    header: RequestHeader, frame: Buffer, code: int, message: str | None = None
) -> bytes | None:
    """A response to `frame` in which every item carries `code`, without length prefix.

    What a broker sends when a request fails as a whole. None when the client awaits no
    response (Produce with acks 0): the connection is to be closed. Raises Malformed
    when the request itself can't be read.
    """
    fail = ERROR_FORMS.get(header.api_key)
    if fail is None:
        raise Malformed(f"api key {header.api_key} is not answered")
    return fail(header, frame, code, message)


def _produce(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes | None:
    old = header.api_version < PRODUCE_VERSION_MIN
    skim = skim_produce_old(frame, header) if old else skim_produce(frame, header)
    if skim.acks == 0:
        return None
    results = [
        ProduceResult(p.topic, p.topic_id, p.partition, code, error_message=message) for p in skim.partitions
    ]
    return encode_produce_response(header, results)


def _fetch(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = decode_fetch(frame, header)
    results = [FetchResult(p.topic, p.topic_id, p.partition, code) for p in request.partitions]
    return b"".join(encode_fetch_response(header, results))


def _api_versions(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return api_versions.encode_api_versions_response(header, {}, code)


def _metadata(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = decode_metadata(frame, header)
    topic_type = codec.entity_type(header.api_key, header.api_version, "MetadataResponseTopic")
    topics = tuple(
        codec.build(
            topic_type,
            error_code=code,
            # Below version 12 a name is never null, and never asked for by id.
            name=name,
            topic_id=topic_id,
            is_internal=False,
            partitions=(),
        )
        for name, topic_id in request.topics or ()
    )
    response = codec.build(
        codec.response_type(header.api_key, header.api_version),
        brokers=(),
        cluster_id=None,
        controller_id=-1,
        topics=topics,
        error_code=code,
    )
    return codec.encode_response(header, response)


def _each_partition(
    header: RequestHeader, frame: Buffer, kinds: tuple[str, str], fields: tuple[str, str], **values: Any
) -> bytes:
    """The same `values` for each partition asked for. `kinds` are the schema's names of a topic and a partition
    in the response, `fields` what both call their name and number."""
    request = codec.decode_request(header, frame)
    topic_type, item_type = (codec.entity_type(header.api_key, header.api_version, kind) for kind in kinds)
    name, number = fields
    topics = tuple(
        codec.build(
            topic_type,
            partitions=tuple(
                codec.build(item_type, **{number: getattr(p, number)}, **values) for p in topic.partitions
            ),
            **{name: getattr(topic, name)},
        )
        for topic in request.topics
    )
    return codec.respond(header, topics=topics)


def _list_offsets(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    kinds = ("ListOffsetsTopicResponse", "ListOffsetsPartitionResponse")
    return _each_partition(header, frame, kinds, ("name", "partition_index"), error_code=code)


def _delete_records(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    kinds = ("DeleteRecordsTopicResult", "DeleteRecordsPartitionResult")
    return _each_partition(
        header, frame, kinds, ("name", "partition_index"), error_code=code, low_watermark=-1
    )


def _offset_for_leader_epoch(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    kinds = ("OffsetForLeaderTopicResult", "EpochEndOffset")
    return _each_partition(header, frame, kinds, ("topic", "partition"), error_code=code)


def _find_coordinator(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    nowhere: dict[str, Any] = {
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": code,
        "error_message": message,
    }
    if header.api_version < 4:
        return codec.respond(header, **nowhere)
    item_type = codec.entity_type(header.api_key, header.api_version, "Coordinator")
    coordinators = tuple(codec.build(item_type, key=key, **nowhere) for key in request.coordinator_keys)
    return codec.respond(header, coordinators=coordinators)


def _create_topics(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    item_type = codec.entity_type(header.api_key, header.api_version, "CreatableTopicResult")
    topics = tuple(
        codec.build(
            item_type, name=t.name, topic_id=None, error_code=code, error_message=message, configs=None
        )
        for t in request.topics
    )
    return codec.respond(header, topics=topics)


def _delete_topics(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    item_type = codec.entity_type(header.api_key, header.api_version, "DeletableTopicResult")
    if header.api_version >= 6:
        named = [(t.name, t.topic_id) for t in request.topics]
    else:
        named = [(name, None) for name in request.topic_names]
    responses = tuple(
        codec.build(item_type, name=name, topic_id=topic_id, error_code=code, error_message=message)
        for name, topic_id in named
    )
    return codec.respond(header, responses=responses)


def _create_partitions(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    item_type = codec.entity_type(header.api_key, header.api_version, "CreatePartitionsTopicResult")
    results = tuple(
        codec.build(item_type, name=t.name, error_code=code, error_message=message) for t in request.topics
    )
    return codec.respond(header, results=results)


def _describe_cluster(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    return codec.respond(header, error_code=code, error_message=message, cluster_id="", brokers=())


def _describe_topic_partitions(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    item_type = codec.entity_type(header.api_key, header.api_version, "DescribeTopicPartitionsResponseTopic")
    topics = tuple(
        codec.build(item_type, error_code=code, name=t.name, topic_id=None, partitions=())
        for t in request.topics
    )
    return codec.respond(header, topics=topics)


ERROR_FORMS: Final[dict[int, Callable[[RequestHeader, Buffer, int, str | None], bytes | None]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.API_VERSIONS: _api_versions,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DESCRIBE_CLUSTER: _describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    **GROUP_TABLE,
    **ADMIN_TABLE,
    **TRANSACTION_TABLE,
}
