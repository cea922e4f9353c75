"""A topic made for a native client, with the cluster's defaults: the active controller judges and makes it.

Rights and quotas are those of Kafka's CreateTopics. Above its quota a client is refused, not held: it may ask again.
"""

from __future__ import annotations

from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.authorizer import Identity, may_create_topic
from penstock_frontend.cluster.controller_calls import ControllerCalls
from penstock_gateway.relay.relay import Relay
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import controller_pb2 as cpb
from penstock_proto.v1 import gateway_pb2 as pb
from penstock_runtime.controller_client import ControllerClient

CREATE_MS: Final = 10_000


async def create_topic(
    relay: Relay, controllers: ControllerClient | None, who: Identity, request: pb.CreateTopicRequest
) -> pb.CreateTopicResponse:
    """The answer, once this gateway knows the topic. Raises PenstockError where no controller answers."""
    if not may_create_topic(relay.authorizer, who, request.name):
        reason = (
            f"{who.principal} has no right to make topic {request.name!r}: Create on it, or on the cluster"
        )
        return pb.CreateTopicResponse(
            error=common_pb2.Error(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, message=reason)
        )
    if controllers is None:
        raise PenstockError(ErrorCode.NOT_CONTROLLER, "this gateway knows no controllers")
    call = cpb.CreateTopicsRequest(
        topics=[
            cpb.NewTopic(name=request.name, partition_count=request.partitions or -1, replication_factor=-1)
        ],
        principal=str(who.principal),
    )
    if relay.quotas.is_active:
        call.quota.CopyFrom(cpb.MutationQuota(user=who.principal.name, strict=True))
    response = await ControllerCalls(relay.metadata, controllers).call("CreateTopics", call, CREATE_MS)
    made = response.topics[0]
    return pb.CreateTopicResponse(
        error=made.error if made.error.code else None,
        topic_id=made.topic_id,
        partitions=made.partition_count,
    )
