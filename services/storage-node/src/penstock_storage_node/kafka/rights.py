"""What the sender of a request may do, asked for every part of it that this node serves.

The gateway has asked already for what it relays, maybe by older metadata: the stricter of the two answers
counts. What may not be described looks as if it were not there, so a right is asked for before anything else
is said of a topic (KafkaApis of Apache Kafka 4.3); only an id that nobody knows is answered as such.
"""

from __future__ import annotations

from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_frontend.authorizer import CLUSTER_NAME, Authorizer, Operation, ResourceType
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replica.registry import PartitionRegistry

_REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Rights:
    """Asks the authorizer of the node on behalf of requests."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self.is_enabled = authorizer.is_enabled
        """Whether anything may be denied at all."""
        self.allows = authorizer.allows
        self.permitted = authorizer.permitted
        self.authorized_operations = authorizer.authorized_operations

    @property
    def version(self) -> object:
        """Another object whenever answers may be others than before."""
        return self._authorizer.version

    def may(self, caller: RequestContext, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the caller may; who may not is noted."""
        if self._authorizer.allows(caller.identity, operation, kind, name):
            return True
        caller.note_denied(self._authorizer, operation, kind, name)
        return False

    def may_see(self, caller: RequestContext, operation: Operation, kind: ResourceType, name: str) -> bool:
        """As `may`, for what is left out or allowed another way: nobody is told."""
        return self._authorizer.allows(caller.identity, operation, kind, name)

    def may_topic(self, caller: RequestContext, operation: Operation, topic: str) -> bool:
        """Whether the caller may do that with a topic."""
        return self.may(caller, operation, ResourceType.TOPIC, topic)

    def may_cluster(self, caller: RequestContext, operation: Operation) -> bool:
        """Whether the caller may do that with the cluster."""
        return self.may(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def require(self, caller: RequestContext, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raises the code of the resource's type unless the caller may."""
        if not self.may(caller, operation, kind, name):
            raise self._refusal(caller, operation, kind, name)

    def locate(
        self,
        registry: PartitionRegistry,
        caller: RequestContext,
        operation: Operation,
        topic: str,
        topic_id: TopicId | None,
        index: int,
    ) -> Partition:
        """The partition that the caller names and may use so. Raises PenstockError: what `registry.locate`
        raises, but TOPIC_AUTHORIZATION_FAILED in its place where the caller may not."""
        try:
            partition = registry.locate(topic, topic_id, index)
        except PenstockError:
            name = topic if topic_id is None else registry.topic_name(topic_id)
            if name or topic_id is None:
                self.require(caller, operation, ResourceType.TOPIC, name)
            raise
        name = partition.replica.topic
        if not self._authorizer.allows(caller.identity, operation, ResourceType.TOPIC, name):
            caller.note_denied(self._authorizer, operation, ResourceType.TOPIC, name)
            raise self._refusal(caller, operation, ResourceType.TOPIC, name)
        return partition

    @staticmethod
    def _refusal(
        caller: RequestContext, operation: Operation, kind: ResourceType, name: str
    ) -> PenstockError:
        return PenstockError(
            _REFUSALS[kind],
            f"{caller.identity.principal} has no right to {operation.name} {kind.name.lower()} {name}",
        )
