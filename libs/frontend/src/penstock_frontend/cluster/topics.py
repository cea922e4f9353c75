"""CreateTopics, DeleteTopics and CreatePartitions: checked here, done by the controller.

Checks that need only the request are Kafka's (ControllerApis, ReplicationControlManager):
doubled names are INVALID_REQUEST, counts beside an assignment too. The rest is the
controller's to judge. The answer waits until this process has applied the change or the
client's own timeout has passed, whichever is first. Where anybody has a quota the controller is told whose it is:
it counts partitions, and says for how long the client is throttled (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock_core.config.catalog import describe_configs
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import CLUSTER_NAME, Authorizer, Operation, ResourceType, may_create_topic
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_frontend.cluster.describe import items
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Malformed
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.metadata_client import MetadataClient

_Failure = tuple[int, str]
_STRICT_SINCE: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""From which version on a client is told THROTTLING_QUOTA_EXCEEDED (Kafka: ControllerApis)."""
_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Admin:
    """Turns the admin requests of Kafka clients into calls to the active controller."""

    def __init__(
        self,
        metadata: MetadataClient,
        calls: ControllerCalls,
        authorizer: Authorizer,
        metrics: KafkaMetrics,
        quotas: QuotaGate,
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._authorizer = authorizer
        self._metrics = metrics
        self._quotas = quotas

    def _quota(self, connection: Connection, header: RequestHeader) -> pb.MutationQuota | None:
        strict = header.api_version >= _STRICT_SINCE[ApiKey(header.api_key)]
        return self._quotas.mutation_quota(connection, header.client_id, strict=strict)

    # CreateTopics

    async def create_topics(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to CreateTopics."""
        request = codec.decode_request(header, frame)
        doubled = _doubled(t.name for t in items(request.topics))
        failures: dict[str, _Failure] = {}
        wanted: list[pb.NewTopic] = []
        for topic in request.topics:
            if topic.name in doubled:
                failures[topic.name] = (ErrorCode.INVALID_REQUEST, "the topic is in the request twice")
            elif not may_create_topic(self._authorizer, connection.identity, topic.name):
                failures[topic.name] = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right to create it")
            else:
                try:
                    wanted.append(_new_topic(topic))
                except Malformed:
                    raise
                except PenstockError as e:
                    failures[topic.name] = (e.code, e.message)
        done: dict[str, pb.CreatedTopic] = {}
        throttle_ms = 0
        if wanted:
            call = pb.CreateTopicsRequest(
                topics=wanted,
                validate_only=request.validate_only,
                principal=str(connection.principal),
                quota=self._quota(connection, header),
            )
            response = await self._calls.call(
                "CreateTopics", call, request.timeout, wait=not request.validate_only
            )
            throttle_ms = response.throttle_ms
            done = {t.name: t for t in response.topics}
        own = {topic.name: topic.configs for topic in wanted}
        item_type = codec.entity_type(header.api_key, header.api_version, "CreatableTopicResult")
        results = []
        for name in dict.fromkeys(t.name for t in request.topics):
            code, message = failures.get(name) or _outcome(done.get(name))
            self._metrics.count_error(header.api_key, code)
            created = done.get(name) if code == 0 else None
            # Without the right to see the settings nothing is told that they say (KIP-525).
            shown = created if created and self._may_see_configs(connection, name) else None
            results.append(
                codec.build(
                    item_type,
                    name=name,
                    topic_id=created.topic_id or None if created else None,
                    error_code=code,
                    error_message=message or None,
                    topic_config_error_code=_DENIED if created and not shown else ErrorCode.NONE,
                    num_partitions=shown.partition_count if shown else -1,
                    replication_factor=shown.replication_factor if shown else -1,
                    configs=self._configs(header, own[name], shown.replication_factor)
                    if shown
                    else ()
                    if created
                    else None,
                )
            )
        self._quotas.throttle_mutations(connection, throttle_ms)
        return codec.respond(header, topics=tuple(results), throttle_time=throttle_ms)

    def _may_see_configs(self, connection: Connection, topic: str) -> bool:
        return self._authorizer.allows(
            connection.identity, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic
        )

    def _configs(
        self, header: RequestHeader, own: Mapping[str, str], replication_factor: int
    ) -> tuple[Any, ...]:
        """Settings of a topic just made, or only validated, the defaults too (version 5 on; KIP-525)."""
        if header.api_version < 5:
            return ()
        item_type = codec.entity_type(header.api_key, header.api_version, "CreatableTopicConfigs")
        return tuple(
            codec.build(
                item_type,
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=int(entry.source),
                is_sensitive=False,
            )
            for entry in describe_configs(self._metadata.image, own, replication_factor)
        )

    # DeleteTopics

    async def delete_topics(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to DeleteTopics: by name, from version 6 by id too."""
        request = codec.decode_request(header, frame)
        if header.api_version >= 6:
            asked = [(t.name, codec.topic_id(t.topic_id) or b"") for t in items(request.topics)]
        else:
            asked = [(name, b"") for name in items(request.topic_names)]
        image = self._metadata.image
        doubled = _doubled(asked)
        outcomes: dict[tuple[str | None, bytes], _Failure] = {}
        wanted: dict[tuple[str | None, bytes], pb.TopicRef] = {}
        may_all = self._authorizer.allows(
            connection.identity, Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME
        )
        nameless: set[tuple[str | None, bytes]] = set()
        for key in dict.fromkeys(asked):
            refusal = _malformed_reference(key, doubled=key in doubled)
            if refusal is None and not may_all:
                refusal = self._refuse_delete(connection, image, key)
                if refusal is not None and key[1] and not self._may_describe(connection, image, key):
                    nameless.add(key)
            if refusal is None:
                wanted[key] = pb.TopicRef(name=key[0] or "", topic_id=key[1])
            else:
                outcomes[key] = refusal
        throttle_ms = 0
        if wanted:
            call = pb.DeleteTopicsRequest(
                topics=wanted.values(),
                principal=str(connection.principal),
                quota=self._quota(connection, header),
            )
            response = await self._calls.call("DeleteTopics", call, request.timeout)
            throttle_ms = response.throttle_ms
            by_name = {t.name: t for t in response.topics if t.name}
            by_id = {t.topic_id: t for t in response.topics if t.topic_id}
            for key in wanted:
                outcomes[key] = _outcome(by_name.get(key[0]) if key[0] else by_id.get(key[1]))
        item_type = codec.entity_type(header.api_key, header.api_version, "DeletableTopicResult")
        results = []
        for key, (code, message) in outcomes.items():
            self._metrics.count_error(header.api_key, code)
            name, topic_id = _full_reference(image, key)
            if code == _DENIED:
                # The other half of what was asked for stays hidden: an id, or a name that may not be described.
                name, topic_id = (None, topic_id) if key in nameless else (name, key[1])
            results.append(
                codec.build(
                    item_type,
                    name=name,
                    topic_id=topic_id or None,
                    error_code=code,
                    error_message=message or None,
                )
            )
        self._quotas.throttle_mutations(connection, throttle_ms)
        return codec.respond(header, responses=tuple(results), throttle_time=throttle_ms)

    def _refuse_delete(
        self, connection: Connection, image: MetadataImage, key: tuple[str | None, bytes]
    ) -> _Failure | None:
        """Why a topic that is named well is not deleted: Kafka's order (ControllerApis.deleteTopics).

        What this process does not know is not handed on either: nobody would ask for the right to it.
        """
        name, _ = _full_reference(image, key)
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID, "no topic has that id"
        may, who = self._authorizer, connection.identity
        if may.allows(who, Operation.DELETE, ResourceType.TOPIC, name):
            # Denied by name is also who may not describe it, whatever else is allowed.
            if key[1] or self._may_describe(connection, image, key):
                return None
        elif not key[1] and image.topic(name) is None and self._may_describe(connection, image, key):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such topic"
        may.denied(who, Operation.DELETE, ResourceType.TOPIC, name)
        return _DENIED, "no right to delete it"

    def _may_describe(
        self, connection: Connection, image: MetadataImage, key: tuple[str | None, bytes]
    ) -> bool:
        name, _ = _full_reference(image, key)
        return name is None or self._authorizer.allows(
            connection.identity, Operation.DESCRIBE, ResourceType.TOPIC, name
        )

    # CreatePartitions

    async def create_partitions(
        self, connection: Connection, header: RequestHeader, frame: bytearray
    ) -> bytes:
        """The response to CreatePartitions."""
        request = codec.decode_request(header, frame)
        doubled = _doubled(t.name for t in items(request.topics))
        failures: dict[str, _Failure] = {}
        wanted: list[pb.NewPartitions] = []
        for topic in request.topics:
            if topic.name in doubled:
                failures[topic.name] = (ErrorCode.INVALID_REQUEST, "the topic is in the request twice")
            elif not self._authorizer.authorize(
                connection.identity, Operation.ALTER, ResourceType.TOPIC, topic.name
            ):
                failures[topic.name] = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right to alter it")
            else:
                wanted.append(
                    pb.NewPartitions(
                        name=topic.name,
                        total_count=topic.count,
                        assignments=[
                            pb.ReplicaList(node_ids=items(a.broker_ids)) for a in topic.assignments or ()
                        ],
                    )
                )
        done: dict[str, pb.CreatedTopic] = {}
        throttle_ms = 0
        if wanted:
            call = pb.CreatePartitionsRequest(
                topics=wanted,
                validate_only=request.validate_only,
                principal=str(connection.principal),
                quota=self._quota(connection, header),
            )
            response = await self._calls.call(
                "CreatePartitions", call, request.timeout, wait=not request.validate_only
            )
            throttle_ms = response.throttle_ms
            done = {t.name: t for t in response.topics}
        item_type = codec.entity_type(header.api_key, header.api_version, "CreatePartitionsTopicResult")
        results = []
        for name in dict.fromkeys(t.name for t in request.topics):
            code, message = failures.get(name) or _outcome(done.get(name))
            self._metrics.count_error(header.api_key, code)
            results.append(codec.build(item_type, name=name, error_code=code, error_message=message or None))
        self._quotas.throttle_mutations(connection, throttle_ms)
        return codec.respond(header, results=tuple(results), throttle_time=throttle_ms)


def _malformed_reference(key: tuple[str | None, bytes], *, doubled: bool) -> _Failure | None:
    name, topic_id = key
    if doubled:
        return ErrorCode.INVALID_REQUEST, "the topic is in the request twice"
    if name is None and not topic_id:
        return ErrorCode.INVALID_REQUEST, "neither name nor id is given"
    if name is not None and topic_id:
        return ErrorCode.INVALID_REQUEST, "give either the name or the id"
    return None


def _new_topic(topic: Any) -> pb.NewTopic:
    """The controller's form of a CreatableTopic. Raises PenstockError on what it cannot say."""
    assignments = {a.partition_index: list(items(a.broker_ids)) for a in items(topic.assignments)}
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                "give either an assignment or counts of partitions and replicas, not both",
            )
        if sorted(assignments) != list(range(len(topic.assignments))):
            raise PenstockError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"an assignment must name the partitions 0 to {len(topic.assignments) - 1}, each once",
            )
    for config in items(topic.configs):
        if config.value is None:
            raise PenstockError(ErrorCode.INVALID_CONFIG, f"{config.name} has no value; leave it out")
    return pb.NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[pb.ReplicaList(node_ids=assignments[i]) for i in sorted(assignments)],
        configs={c.name: c.value for c in topic.configs},
    )


def _doubled(keys: Iterable[Any]) -> set[Any]:
    return {key for key, count in Counter(keys).items() if count > 1}


def _outcome(result: pb.CreatedTopic | pb.DeletedTopic | None) -> _Failure:
    if result is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR, "the controller left it out of its answer"
    error: common_pb2.Error = result.error
    return error.code, error.message


def _full_reference(image: MetadataImage, key: tuple[str | None, bytes]) -> tuple[str | None, bytes]:
    """Name and id of a topic that was given by one of them, as far as they are known."""
    name, topic_id = key
    if topic_id:
        topic = image.topics.get(TopicId(topic_id))
        return (name if topic is None else topic.name), topic_id
    topic = image.topic(name or "")
    return name, b"" if topic is None else topic.topic_id
