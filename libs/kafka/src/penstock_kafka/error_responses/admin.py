"""Whole failures of admin requests: see `data`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer

_Fail = Callable[[RequestHeader, Buffer, int, str | None], bytes | None]


def _resources(response_field: str, kind: str) -> _Fail:
    """Requests about resources: every one of them failed."""

    def fail(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
        request = codec.decode_request(header, frame)
        failed = tuple(
            codec.item(
                header,
                kind,
                error_code=code,
                error_message=message,
                resource_type=r.resource_type,
                resource_name=r.resource_name,
                configs=(),
            )
            for r in request.resources or ()
        )
        return codec.respond(header, **{response_field: failed})

    return fail


def _whole(**empty: Any) -> _Fail:
    """Responses with one error for everything."""

    def fail(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
        return codec.respond(header, error_code=code, error_message=message, **empty)

    return fail


def _elect_leaders(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    topics = tuple(
        codec.item(
            header,
            "ReplicaElectionResult",
            topic=t.topic,
            partition_result=tuple(
                codec.item(header, "PartitionResult", partition_id=p, error_code=code, error_message=message)
                for p in t.partitions or ()
            ),
        )
        for t in request.topic_partitions or ()
    )
    return codec.respond(header, error_code=code, replica_election_results=topics)


def _alter_quotas(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    entries = tuple(
        codec.item(
            header,
            "EntryData",
            error_code=code,
            error_message=message,
            entity=tuple(
                codec.item(header, "EntityData", entity_type=e.entity_type, entity_name=e.entity_name)
                for e in entry.entity or ()
            ),
        )
        for entry in request.entries or ()
    )
    return codec.respond(header, entries=entries)


def _describe_users(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    named = tuple(
        codec.item(
            header,
            "DescribeUserScramCredentialsResult",
            user="",  # Kafka names nobody (DescribeUserScramCredentialsRequest.getErrorResponse)
            error_code=code,
            error_message=message,
            credential_infos=(),
        )
        for user in request.users or ()
    )
    return codec.respond(header, error_code=code, error_message=message, results=named)


def _alter_users(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    users = {change.name for change in (*(request.deletions or ()), *(request.upsertions or ()))}
    results = tuple(
        codec.item(
            header, "AlterUserScramCredentialsResult", user=user, error_code=code, error_message=message
        )
        for user in sorted(users)
    )
    return codec.respond(header, results=results)


def _create_acls(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    failed = codec.item(header, "AclCreationResult", error_code=code, error_message=message)
    return codec.respond(header, results=(failed,) * len(request.creations or ()))


def _delete_acls(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    failed = codec.item(
        header, "DeleteAclsFilterResult", error_code=code, error_message=message, matching_acls=()
    )
    return codec.respond(header, filter_results=(failed,) * len(request.filters or ()))


def _describe_producers(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    topics = tuple(
        codec.item(
            header,
            "TopicResponse",
            name=t.name,
            partitions=tuple(
                codec.item(
                    header,
                    "PartitionResponse",
                    partition_index=p,
                    error_code=code,
                    error_message=message,
                    active_producers=(),
                )
                for p in t.partition_indexes or ()
            ),
        )
        for t in request.topics or ()
    )
    return codec.respond(header, topics=topics)


def _describe_log_dirs(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    # Below version 3 only a directory can have an error.
    failed = codec.item(header, "DescribeLogDirsResult", error_code=code, log_dir="", topics=())
    return codec.respond(header, error_code=code, results=(failed,) if header.api_version < 3 else ())


def _alter_log_dirs(header: RequestHeader, frame: Buffer, code: int, message: str | None) -> bytes:
    request = codec.decode_request(header, frame)
    results = tuple(
        codec.item(
            header,
            "AlterReplicaLogDirTopicResult",
            topic_name=t.name,
            partitions=tuple(
                codec.item(header, "AlterReplicaLogDirPartitionResult", partition_index=p, error_code=code)
                for p in t.partitions or ()
            ),
        )
        for d in request.dirs or ()
        for t in d.topics or ()
    )
    return codec.respond(header, results=results)


ADMIN_TABLE: Final[dict[int, _Fail]] = {
    ApiKey.SASL_HANDSHAKE: _whole(mechanisms=()),
    ApiKey.SASL_AUTHENTICATE: _whole(auth_bytes=b""),
    ApiKey.DESCRIBE_CONFIGS: _resources("results", "DescribeConfigsResult"),
    ApiKey.ALTER_CONFIGS: _resources("responses", "AlterConfigsResourceResponse"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _resources("responses", "AlterConfigsResourceResponse"),
    ApiKey.LIST_CONFIG_RESOURCES: _whole(config_resources=()),
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _whole(responses=()),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _whole(topics=()),
    ApiKey.DESCRIBE_QUORUM: _whole(topics=(), nodes=()),
    ApiKey.UPDATE_FEATURES: _whole(results=()),
    ApiKey.UNREGISTER_BROKER: _whole(),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_users,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_users,
    ApiKey.DESCRIBE_ACLS: _whole(resources=()),
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _whole(entries=None),
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_quotas,
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.DESCRIBE_LOG_DIRS: _describe_log_dirs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_log_dirs,
}
