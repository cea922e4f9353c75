"""Topics that clients ask for and that are not there, made with the cluster's defaults (auto.create.topics.enable).

Rules (Kafka: AutoTopicCreationManager, KafkaApis.getTopicMetadata): only a Metadata request that allows it makes
topics, only by name, and only those that the principal may create. The request waits for them, so that its answer
shows them already. A topic that cannot be made is answered as one that is not there; the client asks again.
"""

from __future__ import annotations

from typing import Final

from penstock_core.errors import PenstockError
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import check_topic_name
from penstock_frontend.authorizer import CLUSTER_NAME, Authorizer, Operation, ResourceType
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_frontend.listener.connection import Connection
from penstock_kafka.wire.metadata import INTERNAL_TOPICS, MetadataRequest
from penstock_proto.v1 import controller_pb2 as pb

TOPICS_MAX: Final = 100
"""Most topics that one request makes; the client's next one makes more."""
CREATE_TIMEOUT_MS: Final = 10_000


class AutoCreate:
    """Makes what a Metadata request names and nobody has made."""

    def __init__(self, calls: ControllerCalls, authorizer: Authorizer) -> None:
        self._calls = calls
        self._authorizer = authorizer

    def missing(self, connection: Connection, request: MetadataRequest, image: MetadataImage) -> list[str]:
        """Names to make for that request, each once."""
        if not request.allow_auto_topic_creation or not request.topics:
            return []
        found: dict[str, None] = {}
        for name, topic_id in request.topics:
            if name and topic_id is None and image.topic(name) is None and self._may(connection, name):
                found[name] = None
        return list(found)[:TOPICS_MAX]

    async def create(self, connection: Connection, names: list[str]) -> None:
        """Make them, and wait until this process knows them. What fails is left as it was."""
        topics = [pb.NewTopic(name=name, partition_count=-1, replication_factor=-1) for name in names]
        call = pb.CreateTopicsRequest(topics=topics, principal=str(connection.principal))
        try:
            await self._calls.call("CreateTopics", call, CREATE_TIMEOUT_MS)
        except PenstockError:
            return  # no controller now: the answer says that there is no such topic, and the client asks again

    def _may(self, connection: Connection, name: str) -> bool:
        if name in INTERNAL_TOPICS:
            return False  # coordinators make theirs
        try:
            check_topic_name(name)
        except PenstockError:
            return False
        may, who = self._authorizer.authorize, connection.principal
        return may(who, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) or may(
            who, Operation.CREATE, ResourceType.TOPIC, name
        )
