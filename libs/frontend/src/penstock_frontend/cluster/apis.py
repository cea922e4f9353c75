"""Kafka APIs that any process with metadata answers: gateway and storage node alike.

Reads come from the metadata image, changes go to the active controller; CreateTopics,
DeleteTopics and CreatePartitions answer once this process has applied them, so that the
client's next Metadata request here shows them.

Every item of a request is asked of the authorizer; what may not be described looks as
if it were not there. A request that cannot be read ends its connection (Malformed is
left to the listener); any other failure is answered in the right shape.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import OFFSETS_TOPIC
from penstock_frontend.authorizer import Authorizer, Operation, ResourceType, require_cluster
from penstock_frontend.cluster import describe as cluster_describe
from penstock_frontend.cluster import topics as cluster_topics
from penstock_frontend.cluster.acls import Acls
from penstock_frontend.cluster.address_view import AddressView
from penstock_frontend.cluster.auto_create import AutoCreate
from penstock_frontend.cluster.configs import Configs
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_frontend.cluster.find_coordinator import Coordinators
from penstock_frontend.cluster.lost_nodes import LostNodes
from penstock_frontend.cluster.metadata_answers import MetadataAnswers, cluster_operations
from penstock_frontend.cluster.quorum import QuorumApis, features_of
from penstock_frontend.cluster.quotas import Quotas
from penstock_frontend.cluster.reassignments import Reassignments
from penstock_frontend.cluster.users import Users
from penstock_frontend.listener.answers import CLOSE, Response
from penstock_frontend.listener.client_software import note_client_software
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics, api_name
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_frontend.suspected_leaders import SuspectedLeaders
from penstock_kafka.error_responses.data import ERROR_FORMS, error_response
from penstock_kafka.wire import codec
from penstock_kafka.wire.api_versions import (
    decode_api_versions,
    encode_api_versions_response,
    is_software_word,
)
from penstock_kafka.wire.apis import LOCAL_ROUTES, SUPPORTED, ApiKey, Route, is_supported, require_entries
from penstock_kafka.wire.frames import RequestHeader, parse_request_header
from penstock_kafka.wire.metadata import MetadataRequest, decode_metadata
from penstock_kafka.wire.primitives import Malformed
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.ports import wall_ms
from penstock_runtime.turns import LoopTurns

_AT_ONCE_BYTES_MAX = 8 * 1024
"""Requests up to that size are read at once, about a millisecond's work."""
_READ_BY_HAND = frozenset({ApiKey.API_VERSIONS, ApiKey.METADATA})

_Handler = Callable[[Connection, RequestHeader, bytearray], Response | Coroutine[Any, Any, Response]]


def admit(connection: Connection, frame: bytearray, metrics: KafkaMetrics) -> RequestHeader | Response:
    """The header of a request that can be answered, else what to give the listener.

    An unknown version of ApiVersions is answered in version 0 with the supported range
    (KIP-511), Produce below 3 with UNSUPPORTED_VERSION since it is advertised; anything
    else that is not supported closes the connection, as Kafka does.
    """
    try:
        header = parse_request_header(frame, connection.items_max)
    except Malformed as e:
        return connection.refuse("header", str(e))
    connection.client_id = header.client_id
    if is_supported(header.api_key, header.api_version):
        return header
    if header.api_key == ApiKey.API_VERSIONS:
        metrics.count_error(header.api_key, ErrorCode.UNSUPPORTED_VERSION)
        return encode_api_versions_response(header, {})
    if header.api_key == ApiKey.PRODUCE and 0 <= header.api_version <= SUPPORTED[ApiKey.PRODUCE][1]:
        metrics.count_error(header.api_key, ErrorCode.UNSUPPORTED_VERSION)
        try:
            refusal = error_response(header, frame, ErrorCode.UNSUPPORTED_VERSION)
        except Malformed as e:
            return connection.refuse("body", str(e))
        return CLOSE if refusal is None else refusal
    return connection.refuse(
        "version",
        f"{api_name(header.api_key)} (api key {header.api_key}) version {header.api_version}"
        " is not supported",
    )


def lowest_live_node(image: MetadataImage) -> int:
    """The node that clients are told is the controller: any that they can reach will do."""
    return min((n.node_id for n in image.nodes.values() if n.active), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """What a process may have beside what all of them need; the defaults are those of one that has nothing of it."""

    controller_id: Callable[[MetadataImage], int] = lowest_live_node
    """The node that clients are told is the controller."""
    suspected_leaders: SuspectedLeaders | None = None
    own_node: Callable[[], NodeId | None] = lambda: None
    """The storage node that this process is, if it is one."""
    auto_create: bool = False
    """Makes topics that a Metadata request names."""
    wall_ms: Callable[[], int] = wall_ms
    turns: LoopTurns = field(default_factory=LoopTurns)
    quotas: QuotaGate = field(default_factory=QuotaGate.idle)


class ClusterApis:
    """Answers the APIs of `handles`."""

    def __init__(
        self,
        metadata: MetadataClient,
        controllers: ControllerClient,
        producer_ids: ProducerIdAllocator,
        addresses: AddressView,
        authorizer: Authorizer,
        metrics: KafkaMetrics,
        options: ApiOptions | None = None,
    ) -> None:
        """Every process that answers Kafka clients makes one: so what all of them need is checked here too,
        the schemas and the error responses. Raises InvariantBroken when an answered API lacks one of these
        or, if it is answered here, its handler.
        """
        options = options or ApiOptions()
        self._metadata = metadata
        self._suspected_leaders = options.suspected_leaders
        self._producer_ids = producer_ids
        self._addresses = addresses
        self._authorizer = authorizer
        self._metrics = metrics
        self._controller_id = options.controller_id
        lost_nodes = LostNodes(addresses, controllers.clock_ms)
        metadata.on_change(lambda old, new, _: lost_nodes.metadata_changed(old, new))
        self._metadata_answers = MetadataAnswers(
            lambda: metadata.image, addresses, authorizer, self._controller_id, lost_nodes
        )
        self._coordinators = Coordinators(metadata, controllers, addresses, authorizer, metrics)
        calls = ControllerCalls(metadata, controllers)
        self._auto_create = AutoCreate(calls, authorizer, options.quotas) if options.auto_create else None
        self._turns = options.turns
        topics = cluster_topics.Admin(metadata, calls, authorizer, metrics, options.quotas)
        self._handlers = (
            self._own_handlers()
            | _topic_handlers(topics)
            | _change_handlers(calls, authorizer, metrics, options)
        )
        require_entries("handlers of ClusterApis", self._handlers, LOCAL_ROUTES)
        require_entries("error responses", ERROR_FORMS, Route)
        codec.require_schemas()

    def _own_handlers(self) -> dict[int, _Handler]:
        return {
            ApiKey.API_VERSIONS: self.api_versions,
            ApiKey.SASL_HANDSHAKE: self._sasl_handshake,
            ApiKey.SASL_AUTHENTICATE: self._sasl_authenticate,
            ApiKey.METADATA: self._metadata_request,
            ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self._describe_topic_partitions,
            ApiKey.DESCRIBE_LOG_DIRS: self._describe_log_dirs,
            ApiKey.FIND_COORDINATOR: self._coordinators.find,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
        }

    async def have_offsets_topic(self, principal: str) -> str:
        """Has the topic that groups are kept in made; why it is not there then, "" when it is."""
        return await self._coordinators.have_topic(OFFSETS_TOPIC, principal)

    def handles(self, api_key: int) -> bool:
        """Whether `answer` and `handle` know the API."""
        return api_key in self._handlers

    def answer(
        self, connection: Connection, header: RequestHeader, frame: bytearray
    ) -> Response | Coroutine[Any, Any, Response]:
        """The response, at once where it needs nobody else and is no long work. Raises Malformed."""
        if len(frame) > _AT_ONCE_BYTES_MAX and header.api_key not in _READ_BY_HAND:
            return self._guard(self._answer_long(connection, header, frame), header, frame)
        try:
            result = self._handlers[header.api_key](connection, header, frame)
        except Malformed:
            raise
        except PenstockError as e:
            return self._failure(header, frame, e)
        if isinstance(result, Coroutine):
            return self._guard(result, header, frame)
        return result

    def _sasl_handshake(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """One that comes through to here has no place: nobody signs in, or somebody has (Kafka: KafkaApis)."""
        codec.decode_request(header, frame)
        self._metrics.count_error(header.api_key, ErrorCode.ILLEGAL_SASL_STATE)
        return codec.respond(header, error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())

    def _sasl_authenticate(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        codec.decode_request(header, frame)
        self._metrics.count_error(header.api_key, ErrorCode.ILLEGAL_SASL_STATE)
        return codec.respond(
            header,
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
            auth_bytes=b"",
        )

    async def _answer_long(self, connection: Connection, header: RequestHeader, frame: bytearray) -> Response:
        """The response to a request that is long work to read: it is read in turns of the event loop."""
        await self._turns.run(codec.decode_request_steps(header, frame))
        result = self._handlers[header.api_key](connection, header, frame)
        return await result if isinstance(result, Coroutine) else result

    async def handle(self, connection: Connection, header: RequestHeader, frame: bytearray) -> Response:
        """The response, without length prefix. Raises Malformed when the request cannot be read."""
        result = self.answer(connection, header, frame)
        return await result if isinstance(result, Coroutine) else result

    async def _guard(
        self, response: Awaitable[Response], header: RequestHeader, frame: bytearray
    ) -> Response:
        try:
            return await response
        except Malformed:
            raise
        except PenstockError as e:
            return self._failure(header, frame, e)

    def _failure(self, header: RequestHeader, frame: bytearray, error: PenstockError) -> bytes:
        self._metrics.count_error(header.api_key, error.code)
        failure = error_response(header, frame, error.code, error.message)
        if failure is None:
            raise error
        return failure

    # Reads

    def api_versions(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The answer to ApiVersions, which clients may ask before they sign in. Raises Malformed."""
        software, version = decode_api_versions(frame, header)
        if header.flexible:
            if not (is_software_word(software) and is_software_word(version)):
                self._metrics.count_error(header.api_key, ErrorCode.INVALID_REQUEST)
                return encode_api_versions_response(header, {}, ErrorCode.INVALID_REQUEST)
            note_client_software(connection, software, version)
        image = self._metadata.image
        return encode_api_versions_response(header, self._addresses.apis(image), features=features_of(image))

    def _metadata_request(
        self, connection: Connection, header: RequestHeader, frame: bytearray
    ) -> bytes | Coroutine[Any, Any, bytes]:
        request: MetadataRequest | None = None
        uncreatable: frozenset[str] = frozenset()
        names: list[str] = []
        if self._auto_create is not None:
            request = decode_metadata(frame, header)
            names, uncreatable = self._auto_create.missing(connection, request, self._metadata.image)
        if names or (self._suspected_leaders is not None and self._suspected_leaders.any):
            return self._metadata_later(connection, header, frame, request, names, uncreatable)
        return self._metadata_answers.answer(connection, header, frame, request, uncreatable)

    async def _metadata_later(
        self,
        connection: Connection,
        header: RequestHeader,
        frame: bytearray,
        request: MetadataRequest | None,
        names: list[str],
        uncreatable: frozenset[str],
    ) -> bytes:
        if names and self._auto_create is not None:
            await self._auto_create.create(connection, names)
        elif self._suspected_leaders is not None:
            await self._suspected_leaders.settled()
        return self._metadata_answers.answer(connection, header, frame, request, uncreatable)

    def _describe_cluster(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        image = self._metadata.image
        return cluster_describe.describe_cluster(
            header,
            frame,
            image,
            lambda node: self._addresses.node_address(connection, node),
            self._controller_id(image),
            lambda: cluster_operations(self._authorizer, connection.identity),
        )

    def _describe_topic_partitions(
        self, connection: Connection, header: RequestHeader, frame: bytearray
    ) -> bytes:
        authorizer, who = self._authorizer, connection.identity
        return cluster_describe.describe_topic_partitions(
            header,
            frame,
            self._metadata.image,
            cluster_describe.TopicRights(
                lambda names: authorizer.permitted(who, Operation.DESCRIBE, ResourceType.TOPIC, names),
                lambda name: authorizer.denied(who, Operation.DESCRIBE, ResourceType.TOPIC, name),
                lambda name: authorizer.authorized_operations(who, ResourceType.TOPIC, name),
            ),
        )

    def _describe_log_dirs(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        require_cluster(self._authorizer, connection.identity, Operation.DESCRIBE)
        return cluster_describe.describe_log_dirs(header, frame)

    # Producer ids

    async def _init_producer_id(
        self, connection: Connection, header: RequestHeader, frame: bytearray
    ) -> bytes:
        request = codec.decode_request(header, frame)
        authorizer, who = self._authorizer, connection.identity
        if request.transactional_id is not None:
            kind = ResourceType.TRANSACTIONAL_ID
            if not authorizer.authorize(who, Operation.WRITE, kind, request.transactional_id):
                raise PenstockError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no right to that transactional id"
                )
            if not request.transactional_id:
                raise PenstockError(ErrorCode.INVALID_REQUEST, "transactional id is empty")
            # Who has coordinators, or the way to them, does not come here with it.
            raise PenstockError(ErrorCode.NOT_COORDINATOR, "ask FindCoordinator")
        # Who may write to any topic may do so idempotently (KIP-679).
        if not authorizer.authorize_by_resource_type(who, Operation.WRITE, ResourceType.TOPIC):
            require_cluster(authorizer, who, Operation.IDEMPOTENT_WRITE)
        # An id and epoch in the request belong to transactions; without one a new id is
        # given each time (Kafka: TransactionCoordinator.handleInitProducerId).
        try:
            producer_id = await self._producer_ids.allocate()
        except PenstockError as e:
            # Older Java producers end at any other code (Kafka: RPCProducerIdManager.generateProducerId).
            raise PenstockError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, e.message) from None
        response = codec.build(
            codec.response_type(header.api_key, header.api_version),
            error_code=0,
            producer_id=producer_id,
            producer_epoch=0,
        )
        return codec.encode_response(header, response)


def _topic_handlers(topics: cluster_topics.Admin) -> dict[int, _Handler]:
    return {
        ApiKey.CREATE_TOPICS: topics.create_topics,
        ApiKey.DELETE_TOPICS: topics.delete_topics,
        ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    }


def _change_handlers(
    calls: ControllerCalls, authorizer: Authorizer, metrics: KafkaMetrics, options: ApiOptions
) -> dict[int, _Handler]:
    """Of the APIs that ask or change what controllers keep beside topics."""
    turns = options.turns
    configs = Configs(calls, authorizer, metrics, options.own_node, turns)
    moves = Reassignments(calls, authorizer, metrics)
    quorum = QuorumApis(calls, authorizer, metrics, options.wall_ms)
    users = Users(calls, authorizer, metrics, turns)
    acls = Acls(calls, authorizer, metrics, turns)
    quotas = Quotas(calls, authorizer, metrics, turns)
    return {
        ApiKey.DESCRIBE_CONFIGS: configs.describe,
        ApiKey.ALTER_CONFIGS: configs.alter,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.alter_incrementally,
        ApiKey.LIST_CONFIG_RESOURCES: configs.list_resources,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: moves.alter,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: moves.list_ongoing,
        ApiKey.ELECT_LEADERS: moves.elect,
        ApiKey.UNREGISTER_BROKER: moves.unregister,
        ApiKey.DESCRIBE_QUORUM: quorum.describe_quorum,
        ApiKey.UPDATE_FEATURES: quorum.update_features,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.describe,
        ApiKey.ALTER_CLIENT_QUOTAS: quotas.alter,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: users.describe,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.alter,
        ApiKey.DESCRIBE_ACLS: acls.describe,
        ApiKey.CREATE_ACLS: acls.create,
        ApiKey.DELETE_ACLS: acls.delete,
    }
