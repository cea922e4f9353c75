"""FindCoordinator: the leader of the partition that keeps a group or a transactional id, from metadata.

The topic is made when the first id is looked for; that request waits for it a while, so
that a first consumer or producer is not sent away. Addresses are those of the listener that the client came in by:
through a proxy it is a gateway, which routes by the id again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata.image import MetadataImage
from penstock_core.metadata.levels import METADATA_LEVEL, TRANSACTIONS_LEVEL, level_of
from penstock_core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock_frontend.authorizer import CLUSTER_NAME, Authorizer, Operation, ResourceType
from penstock_frontend.cluster.address_view import AddressView, is_relayed
from penstock_frontend.cluster.describe import items
from penstock_frontend.listener.client_software import is_librdkafka
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.groups import group_partition
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.metadata_client import MetadataClient

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
_SHARE_SINCE: Final = 6
_KINDS: Final = {
    GROUP: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, "group"),
    TRANSACTION: (
        ResourceType.TRANSACTIONAL_ID,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "transactional id",
    ),
}
_TOPICS: Final = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}
"""Where what is looked for is kept; `group_partition` says in which partition."""
_CREATE_TIMEOUT_MS: Final = 5_000

_AFTER_LOSS_MS: Final = 300_000
"""How long after the loss of a gateway clients may come that knew a coordinator by its address."""
_TOLD: Final = {GROUP: "group_coordinator_loss_told", TRANSACTION: "transaction_coordinator_loss_told"}
"""Where a connection keeps the loss that it was told of, by what was looked for."""

_NO_SUCH_NODE: Final = -2
"""An id that no node has, and other than the one that says that there is none."""

_Found = tuple[int, str, int, ErrorCode, str | None]
"""Node id, host, port, code, message."""


def _nowhere(code: ErrorCode, message: str) -> _Found:
    return -1, "", -1, code, message


class LostGateways:
    """Tells librdkafka that a coordinator's address is another one, once a gateway is lost.

    It compares coordinators by node id alone, and goes on dialling the lost gateway where the same node has another
    address now. COORDINATOR_NOT_AVAILABLE makes it forget the id (rd_kafka_cgrp_handle_FindCoordinator): so each of
    its connections gets that once after each loss, and the address when it asks again, half a second later.

    A transactional producer takes nothing of that answer but the node's id (rd_kafka_txn_handle_FindCoordinator): the
    address is the one that it was told by Metadata. Where it asked for these before the loss was known here, it
    dials the lost gateway until it reads them by the clock, after five minutes: so it is named a node that there is
    not, at which it reads them at once. The answer may be there before they are, and then stays: so it is told so at
    every other question of a connection.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._losses = 0
        self._lost_ms = 0

    def metadata_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Follow the metadata."""
        if old.gateways is not new.gateways and old.gateways.keys() - new.gateways.keys():
            self._losses += 1
            self._lost_ms = self._clock_ms()

    def has_to_forget(self, connection: Connection, key_type: int) -> bool:
        """Whether this client is to forget where coordinators were; it is asked once for an answer."""
        if not self._losses or self._clock_ms() - self._lost_ms > _AFTER_LOSS_MS:
            return False
        if not is_librdkafka(connection):
            return False
        told = _TOLD[key_type]
        if connection.state.get(told) == self._losses:
            if key_type == TRANSACTION:
                del connection.state[told]
            return False
        connection.state[told] = self._losses
        return True


class Coordinators:
    """Answers FindCoordinator 0-6."""

    def __init__(
        self,
        metadata: MetadataClient,
        controllers: ControllerClient,
        addresses: AddressView,
        authorizer: Authorizer,
        metrics: KafkaMetrics,
    ) -> None:
        self._metadata = metadata
        self._controllers = controllers
        self._addresses = addresses
        self._authorizer = authorizer
        self._metrics = metrics
        self._creations: dict[str, asyncio.Task[str]] = {}
        self._lost = LostGateways(controllers.clock_ms)
        metadata.on_change(lambda old, new, _: self._lost.metadata_changed(old, new))

    def find(
        self, connection: Connection, header: RequestHeader, frame: bytearray
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """The response; a coroutine when the topic has to be made first."""
        request = codec.decode_request(header, frame)
        key_type = getattr(request, "key_type", GROUP)
        keys = items(request.coordinator_keys) if header.api_version >= 4 else (request.key,)
        refused = self._refused(connection, header.api_version, key_type, keys)
        topic = _TOPICS.get(key_type)
        if (
            topic is not None
            and not self._too_early(key_type)
            and len(refused) < len(set(keys))
            and self._metadata.image.topic(topic) is None
        ):
            return self._create_first(topic, connection, header, key_type, keys, refused)
        return self._answer(connection, header, key_type, keys, refused, "")

    def _refused(
        self, connection: Connection, version: int, key_type: int, keys: Sequence[str]
    ) -> dict[str, _Found]:
        """Keys that the client may not look for: asked for before anything is made for them."""
        may, who = self._authorizer.authorize, connection.identity
        if key_type == SHARE and version >= _SHARE_SINCE:
            if may(who, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
                return {}
            return dict.fromkeys(keys, _nowhere(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no right to it"))
        if key_type not in _KINDS:
            return {}
        kind, code, what = _KINDS[key_type]
        return {
            key: _nowhere(code, f"no right to describe {what} {key}")
            for key in dict.fromkeys(keys)
            if not may(who, Operation.DESCRIBE, kind, key)
        }

    async def _create_first(
        self,
        topic: str,
        connection: Connection,
        header: RequestHeader,
        key_type: int,
        keys: Sequence[str],
        refused: dict[str, _Found],
    ) -> bytes:
        """Have the topic made; many may ask for it at once."""
        problem = await self.have_topic(topic, str(connection.principal))
        return self._answer(connection, header, key_type, keys, refused, problem)

    async def have_topic(self, topic: str, principal: str) -> str:
        """Has the topic made for who may use it; why it is not there then, "" when it is."""
        creation = self._creations.get(topic)
        if creation is None or creation.done():
            creation = self._creations[topic] = asyncio.create_task(
                self._create(topic, principal), name=f"create {topic}"
            )
        return await asyncio.shield(creation)

    async def _create(self, name: str, principal: str) -> str:
        """Why the topic is not there now; "" when it is."""
        clock_ms = self._controllers.clock_ms
        deadline_ms = clock_ms() + _CREATE_TIMEOUT_MS
        topic = pb.NewTopic(name=name, partition_count=-1, replication_factor=-1)
        call = pb.CreateTopicsRequest(topics=[topic], principal=principal)
        try:
            response = await self._controllers.call("CreateTopics", call, _CREATE_TIMEOUT_MS)
        except PenstockError as e:
            return e.message
        error = response.error if response.error.code else response.topics[0].error
        if error.code and error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            return str(error.message)
        if response.version:
            await self._metadata.wait_for_version(response.version, deadline_ms - clock_ms())
        return ""

    def _answer(
        self,
        connection: Connection,
        header: RequestHeader,
        key_type: int,
        keys: Sequence[str],
        refused: dict[str, _Found],
        problem: str,
    ) -> bytes:
        found = [refused.get(key) or self._locate(connection, key_type, key, problem) for key in keys]
        for one in found:
            self._metrics.count_error(header.api_key, one[3])
        schema = codec.response_type(header.api_key, header.api_version)
        if header.api_version < 4:
            response = codec.build(schema, **_fields(found[0]))
        else:
            item_type = codec.entity_type(header.api_key, header.api_version, "Coordinator")
            coordinators = tuple(
                codec.build(item_type, key=key, **_fields(one)) for key, one in zip(keys, found, strict=True)
            )
            response = codec.build(schema, coordinators=coordinators)
        return codec.encode_response(header, response)

    def _locate(self, connection: Connection, key_type: int, key: str, problem: str) -> _Found:
        name = _TOPICS.get(key_type)
        if name is None:
            return _nowhere(ErrorCode.INVALID_REQUEST, f"coordinators of type {key_type} are not known")
        if self._too_early(key_type):
            return _nowhere(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"transactions need {METADATA_LEVEL} {TRANSACTIONS_LEVEL}: run `penstock cluster upgrade`",
            )
        image = self._metadata.image
        topic = image.topic(name)
        if topic is None:
            why = problem or "it is being made"
            return _nowhere(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"topic {name} is not there: {why}")
        partition = topic.partitions.get(group_partition(key, len(topic.partitions)))
        node = None if partition is None else image.nodes.get(partition.leader)
        address = None if node is None or node.fenced else self._addresses.node_address(connection, node)
        if node is None or address is None:
            return _nowhere(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the partition of {_KINDS[key_type][2]} {key} has no leader",
            )
        if is_relayed(address, node) and self._lost.has_to_forget(connection, key_type):
            if key_type == TRANSACTION:
                return _NO_SUCH_NODE, *address, ErrorCode.NONE, None
            return _nowhere(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a gateway was lost: ask again")
        return node.node_id, address[0], address[1], ErrorCode.NONE, None

    def _too_early(self, key_type: int) -> bool:
        """Whether there may be processes that know no transactions: then none may begin."""
        return key_type == TRANSACTION and level_of(self._metadata.image) < TRANSACTIONS_LEVEL


def _fields(found: _Found) -> dict[str, Any]:
    return dict(zip(("node_id", "host", "port", "error_code", "error_message"), found, strict=True))
