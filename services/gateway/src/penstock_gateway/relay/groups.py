"""Requests for group coordinators: see `coordinator_calls`.

Taken apart when coordinators differ: DescribeGroups, DeleteGroups, OffsetFetch from version 8, ConsumerGroupDescribe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock_core.errors import ErrorCode
from penstock_frontend.authorizer import Operation, ResourceType
from penstock_gateway.relay.coordinator_calls import BatchCall, CoordinatorCall, ListCall, OneCall
from penstock_gateway.relay.request import SLACK_MS, Outcome, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_kafka.error_responses.group import consumer_describe_failure, describe_failure
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer

REBALANCE_MS_MAX: Final = 24 * 60 * 60 * 1000
"""A client may ask for a longer rebalance; it then hears of it after that time."""

SYNC_MS: Final = 30 * 60 * 1000
"""How long a SyncGroup may take: the coordinator knows the group's timeout, we don't."""


def group_refusal(rights: RequestRights, operation: Operation, group_id: str) -> ErrorCode:
    """Why the client may not do that with a group; NONE: it may."""
    may = rights.may(operation, ResourceType.GROUP, group_id)
    return ErrorCode.NONE if may else ErrorCode.GROUP_AUTHORIZATION_FAILED


class GroupCall(OneCall):
    """A request about one group, whose id is the first field of its body."""

    def refusal_of(self, rights: RequestRights, index: int) -> ErrorCode:
        return group_refusal(rights, GROUP_OPERATIONS[self.header.api_key], self.ids[index])


class JoinCall(GroupCall):
    """JoinGroup: takes as long as the group's rebalance."""

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        session_ms = self.reader.int32()
        rebalance_ms = self.reader.int32() if header.api_version >= 1 else session_ms
        self.answer_ms = min(max(rebalance_ms, 0), REBALANCE_MS_MAX) + SLACK_MS


class SyncCall(GroupCall):
    """SyncGroup: waits for the leader's assignment."""

    answer_ms = SYNC_MS


class GroupsCall(BatchCall):
    """A request about several groups."""

    def refusal_of(self, rights: RequestRights, index: int) -> ErrorCode:
        return group_refusal(rights, GROUP_OPERATIONS[self.header.api_key], self.ids[index])


class DescribeCall(GroupsCall):
    """DescribeGroups."""

    request_field = response_field = "groups"

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        return describe_failure(self.header, self.ids[index], code, self.reason(code))


class DeleteCall(GroupsCall):
    """DeleteGroups."""

    request_field, response_field = "groups_names", "results"

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        item_type = codec.entity_type(self.header.api_key, self.header.api_version, "DeletableGroupResult")
        return codec.build(item_type, group_id=self.ids[index], error_code=code)


class FetchOffsetsCall(GroupsCall):
    """OffsetFetch from version 8 on."""

    request_field = response_field = "groups"

    @staticmethod
    def id_of(item: Any) -> str:
        return str(item.group_id)

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        version = self.header.api_version
        item_type = codec.entity_type(self.header.api_key, version, "OffsetFetchResponseGroup")
        return codec.build(item_type, group_id=self.ids[index], topics=(), error_code=code)


class ConsumerDescribeCall(GroupsCall):
    """ConsumerGroupDescribe."""

    request_field, response_field = "group_ids", "groups"

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        return consumer_describe_failure(self.header, self.ids[index], code, self.reason(code))


def offset_fetch(header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> CoordinatorCall:
    """OffsetFetch of any version."""
    if header.api_version >= 8:
        return FetchOffsetsCall(header, frame, finish)
    return GroupCall(header, frame, finish)


class ListGroupsCall(ListCall):
    """ListGroups."""

    response_field = "groups"
    id_field = "group_id"


GROUP_OPERATIONS: Final[dict[int, Operation]] = {
    ApiKey.JOIN_GROUP: Operation.READ,
    ApiKey.SYNC_GROUP: Operation.READ,
    ApiKey.HEARTBEAT: Operation.READ,
    ApiKey.LEAVE_GROUP: Operation.READ,
    ApiKey.OFFSET_COMMIT: Operation.READ,
    ApiKey.OFFSET_FETCH: Operation.DESCRIBE,
    ApiKey.OFFSET_DELETE: Operation.DELETE,
    ApiKey.DESCRIBE_GROUPS: Operation.DESCRIBE,
    ApiKey.DELETE_GROUPS: Operation.DELETE,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Operation.READ,
    ApiKey.CONSUMER_GROUP_DESCRIBE: Operation.DESCRIBE,
}
"""What each needs to be allowed on its groups (KafkaApis of Apache Kafka 4.3)."""

GROUP_CALLS: Final[dict[int, Callable[[RequestHeader, Buffer, Callable[[Outcome], None]], Relayed[Any]]]] = {
    ApiKey.JOIN_GROUP: JoinCall,
    ApiKey.SYNC_GROUP: SyncCall,
    ApiKey.HEARTBEAT: GroupCall,
    ApiKey.LEAVE_GROUP: GroupCall,
    ApiKey.OFFSET_COMMIT: GroupCall,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_DELETE: GroupCall,
    ApiKey.LIST_GROUPS: ListGroupsCall,
    ApiKey.DESCRIBE_GROUPS: DescribeCall,
    ApiKey.DELETE_GROUPS: DeleteCall,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: GroupCall,
    ApiKey.CONSUMER_GROUP_DESCRIBE: ConsumerDescribeCall,
}
"""How each group API is relayed."""
