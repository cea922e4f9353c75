"""AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders and UnregisterBroker.

What is under way is in the metadata; changes are the controllers' to judge
(`penstock_controller.state.reassignments`).

Sources: KIP-455, KIP-460, KIP-860, KIP-631; ControllerApis of Apache Kafka 4.3.
"""

from __future__ import annotations

from typing import Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import Authorizer, Operation, require_cluster
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_frontend.cluster.describe import items
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
from penstock_proto.v1 import controller_pb2 as pb

_PREFERRED = 0
_UNCLEAN = 1

_Outcome = tuple[int, str | None]
_Place = tuple[str, int]
"""Topic and partition."""


class Reassignments:
    """Turns requests about replicas and leaders into calls to the active controller."""

    def __init__(self, calls: ControllerCalls, authorizer: Authorizer, metrics: KafkaMetrics) -> None:
        self._calls = calls
        self._authorizer = authorizer
        self._metrics = metrics

    # Reassignments

    async def alter(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to AlterPartitionReassignments."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.ALTER)
        outcomes: dict[_Place, _Outcome] = {}
        wanted: list[pb.Reassignment] = []
        for topic in items(request.topics):
            for p in items(topic.partitions):
                place = (topic.name, p.partition_index)
                if p.replicas is not None and not p.replicas:
                    outcomes[place] = (ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the replica list is empty")
                    continue
                wanted.append(pb.Reassignment(topic=place[0], partition=place[1], replicas=p.replicas or ()))
        call = pb.AlterReassignmentsRequest(
            reassignments=wanted,
            allow_factor_change=getattr(request, "allow_replication_factor_change", True),
            principal=str(connection.principal),
        )
        if wanted:
            response = await self._calls.call("AlterReassignments", call, request.timeout)
            for one, error in zip(wanted, response.results, strict=True):
                outcomes.setdefault((one.topic, one.partition), (error.code, error.message or None))
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "ReassignableTopicResponse")
        item_type = codec.entity_type(*version, "ReassignablePartitionResponse")
        topics = tuple(
            codec.build(
                topic_type,
                name=topic.name,
                partitions=tuple(
                    self._result(
                        header,
                        item_type,
                        outcomes[topic.name, p.partition_index],
                        partition_index=p.partition_index,
                    )
                    for p in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return codec.respond(
            header,
            error_code=0,
            error_message=None,
            allow_replication_factor_change=call.allow_factor_change,
            responses=topics,
        )

    def _result(self, header: RequestHeader, schema: Any, outcome: _Outcome, **values: Any) -> Any:
        code, message = outcome
        self._metrics.count_error(header.api_key, code)
        return codec.build(schema, error_code=code, error_message=message, **values)

    def list_ongoing(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to ListPartitionReassignments; what is not there is left out."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.DESCRIBE)
        image = self._calls.metadata.image
        asked: dict[str, set[int] | None] = (
            dict.fromkeys(image.topic_ids)
            if request.topics is None
            else {t.name: set(t.partition_indexes or ()) for t in request.topics}
        )
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "OngoingTopicReassignment")
        topics = []
        for name, indexes in asked.items():
            ongoing = _ongoing(header, image, name, indexes)
            if ongoing:
                topics.append(codec.build(topic_type, name=name, partitions=tuple(ongoing)))
        return codec.respond(header, error_code=0, error_message=None, topics=tuple(topics))

    # Elections

    async def elect(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to ElectLeaders; of a request for all, what needed no election is left out."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.ALTER)
        kind = getattr(request, "election_type", _PREFERRED)
        if kind not in (_PREFERRED, _UNCLEAN):
            raise PenstockError(ErrorCode.INVALID_REQUEST, f"election type {kind} is not known")
        image = self._calls.metadata.image
        outcomes: dict[_Place, _Outcome] = {}
        places: list[_Place] = []
        call = pb.ElectLeadersRequest(unclean=kind == _UNCLEAN, principal=str(connection.principal))
        for topic in request.topic_partitions or ():
            found = image.topic(topic.topic)
            for index in items(topic.partitions):
                place = (topic.topic, index)
                if found is None or index not in found.partitions:
                    outcomes[place] = (
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"there is no partition {topic.topic}-{index}",
                    )
                elif place not in places:
                    places.append(place)
                    call.partitions.add(topic_id=found.topic_id, partition=index)
        if places or request.topic_partitions is None:
            response = await self._calls.call("ElectLeaders", call, request.timeout)
            for result in response.results:
                of = image.topics.get(TopicId(result.topic_id))
                if of is not None:
                    code, message = result.error.code, result.error.message or None
                    outcomes[of.name, result.partition] = (code, message)
        version = (header.api_key, header.api_version)
        topic_type = codec.entity_type(*version, "ReplicaElectionResult")
        item_type = codec.entity_type(*version, "PartitionResult")
        by_topic: dict[str, list[Any]] = {}
        for (name, index), outcome in outcomes.items():
            item = self._result(header, item_type, outcome, partition_id=index)
            by_topic.setdefault(name, []).append(item)
        results = tuple(
            codec.build(topic_type, topic=name, partition_result=tuple(partitions))
            for name, partitions in by_topic.items()
        )
        return codec.respond(header, error_code=0, replica_election_results=results)

    # Nodes that are gone

    async def unregister(self, connection: Connection, header: RequestHeader, frame: bytearray) -> bytes:
        """The response to UnregisterBroker."""
        request = codec.decode_request(header, frame)
        require_cluster(self._authorizer, connection.identity, Operation.ALTER)
        call = pb.UnregisterNodeRequest(node_id=request.broker_id, principal=str(connection.principal))
        await self._calls.call("UnregisterNode", call)
        return codec.respond(header, error_code=0, error_message=None)


def _ongoing(header: RequestHeader, image: MetadataImage, name: str, indexes: set[int] | None) -> list[Any]:
    item_type = codec.entity_type(header.api_key, header.api_version, "OngoingPartitionReassignment")
    topic = image.topic(name)
    if topic is None:
        return []
    return [
        codec.build(
            item_type,
            partition_index=index,
            replicas=p.replicas,
            adding_replicas=p.adding_replicas,
            removing_replicas=p.removing_replicas,
        )
        for index, p in sorted(topic.partitions.items())
        if p.reassigning and (indexes is None or index in indexes)
    ]
