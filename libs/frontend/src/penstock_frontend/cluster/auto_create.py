"""Topics that clients ask for and that are not there, made with the cluster's defaults (auto.create.topics.enable).

Rules (Kafka: AutoTopicCreationManager, KafkaApis.getTopicMetadata): only a Metadata request that allows it makes
topics, only by name, and only those that the principal may create. The request waits for them, so that its answer
shows them already. A topic that cannot be made is answered as one that is not there; the client asks again. So is one
that is above the client's quota of partitions.
"""

from __future__ import annotations

from typing import Final

from penstock_core.errors import PenstockError
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import check_topic_name
from penstock_frontend.authorizer import Authorizer, Operation, ResourceType, may_create_topic
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_kafka.wire.metadata import INTERNAL_TOPICS, MetadataRequest
from penstock_proto.v1 import controller_pb2 as pb

_NONE: Final[frozenset[str]] = frozenset()
TOPICS_MAX: Final = 100
"""Most topics that one request makes; the client's next one makes more."""
CREATE_TIMEOUT_MS: Final = 10_000


class AutoCreate:
    """Makes what a Metadata request names and nobody has made."""

    def __init__(self, calls: ControllerCalls, authorizer: Authorizer, quotas: QuotaGate) -> None:
        self._calls = calls
        self._quotas = quotas
        self._authorizer = authorizer

    def missing(
        self, connection: Connection, request: MetadataRequest, image: MetadataImage
    ) -> tuple[list[str], frozenset[str]]:
        """Names to make for that request, each once; and those that the client may describe but not make.

        What it may not describe is in neither, and looks the same whether it exists or not.
        """
        if not request.allow_auto_topic_creation or not request.topics:
            return [], _NONE
        missing = dict.fromkeys(
            name
            for name, topic_id in request.topics
            if name and topic_id is None and image.topic(name) is None
        )
        denied: frozenset[str] = _NONE
        if missing and self._authorizer.is_enabled:
            may, who = self._authorizer, connection.identity
            missing = dict.fromkeys(may.permitted(who, Operation.DESCRIBE, ResourceType.TOPIC, missing))
            denied = frozenset([name for name in missing if not may_create_topic(may, who, name)])
        wanted = [name for name in missing if name not in denied and _can_be_made(name)]
        return wanted[:TOPICS_MAX], denied

    async def create(self, connection: Connection, names: list[str]) -> None:
        """Make them, and wait until this process knows them. What fails is left as it was."""
        topics = [pb.NewTopic(name=name, partition_count=-1, replication_factor=-1) for name in names]
        call = pb.CreateTopicsRequest(
            topics=topics,
            principal=str(connection.principal),
            quota=self._quotas.mutation_quota(connection, connection.client_id, strict=True),
        )
        try:
            response = await self._calls.call("CreateTopics", call, CREATE_TIMEOUT_MS)
        except PenstockError:
            return  # no controller now: the answer says that there is no such topic, and the client asks again
        self._quotas.throttle_mutations(connection, response.throttle_ms)


def _can_be_made(name: str) -> bool:
    """Whether a topic may have that name; coordinators make the internal ones themselves."""
    if name in INTERNAL_TOPICS:
        return False
    try:
        check_topic_name(name)
    except PenstockError:
        return False
    return True
