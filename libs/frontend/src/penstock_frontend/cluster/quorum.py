"""DescribeQuorum and UpdateFeatures.

The metadata quorum is the controllers'. Kafka's tools want to know how far each voter's log
reaches, so each controller is asked for itself; one that does not answer in time has -1.

UpdateFeatures sets `metadata.level` and `transaction.version` (penstock_core.metadata.levels).

Sources: KIP-595, KIP-853, KIP-584.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import (
    LEVEL_MIN,
    METADATA_LEVEL,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_MAX,
    level_of,
    transaction_version,
)
from penstock_frontend.authorizer import Authorizer, Operation, require_cluster
from penstock_frontend.cluster.controller_calls import ControllerCalls, error_code
from penstock_frontend.cluster.describe import items
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire import codec
from penstock_kafka.wire.api_versions import Features
from penstock_kafka.wire.frames import RequestHeader
from penstock_proto.v1 import controller_pb2 as pb

METADATA_TOPIC: Final = "__cluster_metadata"
_ASK_TIMEOUT_S: Final = 1.0
_LISTENER: Final = "CONTROLLER"
_APPLY_TIMEOUT_MS: Final = 5_000
_UPGRADE: Final = 1
"""UpgradeType of UpdateFeatures 1 and later; 2 and 3 are downgrades (KIP-778)."""


class QuorumApis:
    """Answers about controllers and features."""

    def __init__(
        self,
        calls: ControllerCalls,
        authorizer: Authorizer,
        metrics: KafkaMetrics,
        wall_ms: Callable[[], int],
    ) -> None:
        self._wall_ms = wall_ms
        self._calls = calls
        self._authorizer = authorizer
        self._metrics = metrics

    # DescribeQuorum

    async def describe_quorum(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to DescribeQuorum."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.DESCRIBE)
        seen = await self._ask_all()
        if not seen:
            raise PenstockError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers")
        best = max(seen.values(), key=lambda q: (q.active_controller_id == q.controller_id, q.term))
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "TopicData")
        topics = []
        for topic in items(request.topics):
            partitions = tuple(
                self._partition(header, best, seen)
                if (topic.topic_name, p.partition_index) == (METADATA_TOPIC, 0)
                else self._unknown(header, p.partition_index)
                for p in items(topic.partitions)
            )
            topics.append(codec.build(topic_type, topic_name=topic.topic_name, partitions=partitions))
        nodes = self._nodes(header, best) if header.api_version >= 2 else ()
        return codec.respond(header, error_code=0, error_message=None, topics=tuple(topics), nodes=nodes)

    async def _ask_all(self) -> dict[int, pb.DescribeQuorumResponse]:
        """What each controller that answers says of the quorum, by its id."""

        answers = await self._calls.controllers.ask_each(
            "DescribeQuorum", pb.DescribeQuorumRequest(), _ASK_TIMEOUT_S
        )
        return {a.controller_id: a for a in answers}

    def _partition(
        self,
        header: RequestHeader,
        best: pb.DescribeQuorumResponse,
        seen: dict[int, pb.DescribeQuorumResponse],
    ) -> Any:
        version = (header.api_key, header.api_version)
        voter_type = codec.entity_type(*version, "ReplicaState")
        now_ms = self._wall_ms()
        voters = []
        for member in best.members:
            said = seen.get(member.controller_id)
            log_end = -1 if said is None else said.last_log_index + 1
            caught_up = said is not None and said.last_log_index >= best.commit_index
            voters.append(
                codec.build(
                    voter_type,
                    replica_id=member.controller_id,
                    replica_directory_id=member.directory_id or None,
                    log_end_offset=log_end,
                    last_fetch_timestamp=-1 if said is None else now_ms,
                    last_caught_up_timestamp=now_ms if caught_up else -1,
                )
            )
        return codec.build(
            codec.entity_type(*version, "PartitionData"),
            partition_index=0,
            error_code=0,
            error_message=None,
            leader_id=best.active_controller_id,
            leader_epoch=best.term & 0x7FFFFFFF,
            high_watermark=best.commit_index + 1,
            current_voters=tuple(voters),
            observers=(),
        )

    def _unknown(self, header: RequestHeader, index: int) -> Any:
        self._metrics.count_error(header.api_key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return codec.build(
            codec.entity_type(header.api_key, header.api_version, "PartitionData"),
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only {METADATA_TOPIC}-0 has a quorum of controllers",
            leader_id=-1,
            leader_epoch=-1,
            high_watermark=-1,
            current_voters=(),
            observers=(),
        )

    def _nodes(self, header: RequestHeader, best: pb.DescribeQuorumResponse) -> tuple[Any, ...]:
        version = (header.api_key, header.api_version)
        node_type = codec.entity_type(*version, "Node")
        listener_type = codec.entity_type(*version, "Listener")
        nodes = []
        for member in best.members:
            host, _, port = (member.grpc_address or member.address).rpartition(":")
            listener = codec.build(
                listener_type,
                name=_LISTENER,
                host=host.strip("[]"),
                port=int(port) if port.isdecimal() else 0,
            )
            nodes.append(codec.build(node_type, node_id=member.controller_id, listeners=(listener,)))
        return tuple(nodes)

    # UpdateFeatures

    async def update_features(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to UpdateFeatures: all of it is done, or nothing."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.ALTER)
        updates = items(request.feature_updates)
        response = await self._calls.controllers.call(
            "UpdateFeatures",
            pb.UpdateFeaturesRequest(
                updates=[_update(header, u) for u in updates],
                validate_only=header.api_version >= 1 and request.validate_only,
                principal=str(connection.principal),
            ),
        )
        code = error_code(response.error.code)
        if code:
            self._metrics.count_error(header.api_key, code)
        elif response.version:
            await self._calls.metadata.wait_for_version(response.version, _APPLY_TIMEOUT_MS)
        results: tuple[Any, ...] = ()
        if header.api_version < 2 and not code:
            item_type = codec.entity_type(header.api_key, header.api_version, "UpdatableFeatureResult")
            results = tuple(
                codec.build(item_type, feature=u.feature, error_code=r.code, error_message=r.message or None)
                for u, r in zip(updates, response.results, strict=True)
            )
            # What is wrong with one of them is the code of the whole, as Kafka has it since 4.0.
        return codec.respond(
            header, error_code=code, error_message=response.error.message or None, results=results
        )


def _update(header: RequestHeader, update: Any) -> pb.FeatureUpdate:
    downgrade = update.allow_downgrade if header.api_version == 0 else update.upgrade_type != _UPGRADE
    return pb.FeatureUpdate(
        name=update.feature, level=max(update.max_version_level, 0), allow_downgrade=bool(downgrade)
    )


def features_of(image: MetadataImage) -> Features:
    """What ApiVersions says of features: the same at every process, in the epoch too."""
    finalized = {METADATA_LEVEL: level_of(image), TRANSACTION_VERSION: transaction_version(image)}
    return Features(
        supported={
            METADATA_LEVEL: (LEVEL_MIN, FEATURE_LEVEL),
            TRANSACTION_VERSION: (0, TRANSACTION_VERSION_MAX),
        },
        finalized={name: level for name, level in finalized.items() if level} if image.cluster_id else {},
        epoch=max(image.feature_versions.values(), default=0),
    )
