"""Requests for group coordinators: routed by group id, to the leader of its partition.

A request for one group is passed on as the bytes that it came in. Those for several
(DescribeGroups, DeleteGroups, OffsetFetch from version 8) are taken apart only when their
coordinators differ; ListGroups goes to every node that coordinates anything.

Rule "Maybe written, never 6": whatever is under way when the coordinator moves or is lost is answered
NOT_COORDINATOR, and the client asks again: group calls may be repeated.
What a client may not do with a group is said here; what it may do with the topics of one, by the coordinator,
which asks for all of it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from penstock_core.errors import FIND_LEADER, ErrorCode
from penstock_core.ids import TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import OFFSETS_TOPIC
from penstock_frontend.authorizer import Operation, ResourceType
from penstock_gateway.relay.items import ItemAnswer, Named, Veto
from penstock_gateway.relay.request import SLACK_MS, Outcome, Part, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_gateway.routing.flight import InFlight
from penstock_kafka.error_responses.data import error_response
from penstock_kafka.error_responses.group import consumer_describe_failure, describe_failure
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader, request_header
from penstock_kafka.wire.groups import group_partition
from penstock_kafka.wire.primitives import Buffer, Malformed, Reader

REBALANCE_MS_MAX: Final = 24 * 60 * 60 * 1000
"""A client may ask for a longer rebalance; it then hears of it after that time."""

SYNC_MS: Final = 30 * 60 * 1000
"""How long a SyncGroup may take: the coordinator knows the group's timeout, we don't."""

_MOVED: Final = FIND_LEADER | {ErrorCode.REQUEST_TIMED_OUT}
_GONE: Final = "the coordinator moved or was lost: look for it again"
_DENIED: Final = "no right to that group"
_MISSING: Final = f"topic {OFFSETS_TOPIC} is not there yet: ask FindCoordinator"


class CoordinatorCall(Relayed[Any]):
    """A request that goes to the coordinators of `groups`. Results are what the codec makes of them, or a code."""

    def __init__(
        self,
        header: RequestHeader,
        frame: Buffer,
        finish: Callable[[Outcome], None],
        groups: Sequence[str],
    ) -> None:
        super().__init__(header, frame, finish)
        self.groups = groups

    def names(self) -> Sequence[Named]:
        return [Named(OFFSETS_TOPIC, None, key.partition) for key in self.keys]

    def start(
        self, image: MetadataImage, veto: Veto | None = None, rights: RequestRights | None = None
    ) -> InFlight[Part] | None:
        topic = image.topic(OFFSETS_TOPIC)
        self._left = len(self.groups)
        routable: Sequence[int] = range(len(self.groups))
        if rights is not None:
            operation = GROUP_OPERATIONS[self.header.api_key]
            routable = [i for i in routable if rights.may(operation, ResourceType.GROUP, self.groups[i])]
        is_whole = len(routable) == len(self.groups)
        if not is_whole:
            for index in set(range(len(self.groups))).difference(routable):
                self._fail_item(index, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if topic is None:
            for index in routable:
                self._fail_item(index, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if topic is None or not routable:
            if not self.finished:
                self._complete()
            return None
        count = len(topic.partitions)
        self.keys = [TopicPartition(topic.topic_id, group_partition(g, count)) for g in self.groups]
        return self._flight(routable, 1, whole=is_whole)

    def failed(self, part: Part, code: ErrorCode) -> None:
        try:
            super().failed(part, ErrorCode.NOT_COORDINATOR if code in _MOVED else code)
        except Malformed:
            # Only the group's id was read till now: of what follows it no answer can be made, and in
            # a timer there is nobody to raise to.
            self.close()

    def failure(self, index: int, code: ErrorCode) -> Any:
        return code


class GroupCall(CoordinatorCall):
    """A request about one group, whose id is the first field of its body."""

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        self._reader = Reader(frame, header.body_offset, header.flexible, header.items_max)
        super().__init__(header, frame, finish, (self._reader.string(),))

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        return [self.frame]

    def decode(self, data: Buffer) -> list[ItemAnswer[Any]]:
        raise Malformed("a request for one group is never split")

    def join(self, results: list[Any]) -> list[Buffer]:
        response = error_response(self.header, self.frame, results[0], reason(results[0]))
        if response is None:
            raise Malformed(f"api key {self.header.api_key} has no error response")
        return [response]


def reason(code: ErrorCode) -> str:
    """For people."""
    if code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return _DENIED
    return _GONE if code is ErrorCode.NOT_COORDINATOR else _MISSING


class JoinCall(GroupCall):
    """JoinGroup: takes as long as the group's rebalance."""

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        session_ms = self._reader.int32()
        rebalance_ms = self._reader.int32() if header.api_version >= 1 else session_ms
        self.answer_ms = min(max(rebalance_ms, 0), REBALANCE_MS_MAX) + SLACK_MS


class SyncCall(GroupCall):
    """SyncGroup: waits for the leader's assignment."""

    answer_ms = SYNC_MS


class BatchCall(CoordinatorCall):
    """A request about several groups: an array in the request, one in the response."""

    request_field: ClassVar[str]
    response_field: ClassVar[str]

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        self._request = codec.decode_request(header, frame)
        self._asked = getattr(self._request, self.request_field) or ()
        super().__init__(header, frame, finish, [self.group_of(item) for item in self._asked])

    @staticmethod
    def group_of(item: Any) -> str:
        """Group id of an item of the request."""
        return str(item)

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        """The item of the response for a group that failed."""
        raise NotImplementedError

    def failure(self, index: int, code: ErrorCode) -> Any:
        return self.failed_item(index, code)

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        header = self.header
        part = replace(self._request, **{self.request_field: tuple(self._asked[i] for i in indices)})
        head = request_header(header.api_key, header.api_version, header.correlation_id, header.client_id)
        return [head + codec.encode_body(part)]

    def decode(self, data: Buffer) -> list[ItemAnswer[Any]]:
        _, response = codec.decode_response(self.header.api_key, self.header.api_version, data)
        items = getattr(response, self.response_field) or ()
        return [ItemAnswer(Named(item.group_id, None, 0), int(item.error_code), item) for item in items]

    def join(self, results: list[Any]) -> list[Buffer]:
        schema = codec.response_type(self.header.api_key, self.header.api_version)
        response = codec.build(schema, **{self.response_field: tuple(results)})
        return [codec.encode_response(self.header, response)]


class DescribeCall(BatchCall):
    """DescribeGroups."""

    request_field = response_field = "groups"

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        return describe_failure(self.header, self.groups[index], code, reason(code))


class DeleteCall(BatchCall):
    """DeleteGroups."""

    request_field, response_field = "groups_names", "results"

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        item_type = codec.entity_type(self.header.api_key, self.header.api_version, "DeletableGroupResult")
        return codec.build(item_type, group_id=self.groups[index], error_code=code)


class FetchOffsetsCall(BatchCall):
    """OffsetFetch from version 8 on."""

    request_field = response_field = "groups"

    @staticmethod
    def group_of(item: Any) -> str:
        return str(item.group_id)

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        version = self.header.api_version
        item_type = codec.entity_type(self.header.api_key, version, "OffsetFetchResponseGroup")
        return codec.build(item_type, group_id=self.groups[index], topics=(), error_code=code)


class ConsumerDescribeCall(BatchCall):
    """ConsumerGroupDescribe."""

    request_field, response_field = "group_ids", "groups"

    def failed_item(self, index: int, code: ErrorCode) -> Any:
        return consumer_describe_failure(self.header, self.groups[index], code, reason(code))


def offset_fetch(header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> CoordinatorCall:
    """OffsetFetch of any version."""
    if header.api_version >= 8:
        return FetchOffsetsCall(header, frame, finish)
    return GroupCall(header, frame, finish)


class ListCall(CoordinatorCall):
    """ListGroups: asked of the leaders of all partitions, the answers joined. These leave out what is hidden.

    Clients ask every node, and each by its own address; behind a gateway each is answered with
    the whole list.
    """

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish, ())

    def start(
        self, image: MetadataImage, veto: Veto | None = None, rights: RequestRights | None = None
    ) -> InFlight[Part] | None:
        topic = image.topic(OFFSETS_TOPIC)
        if topic is None:
            self._complete()
            return None
        self.keys = [TopicPartition(topic.topic_id, index) for index in sorted(topic.partitions)]
        self._left = len(self.keys)
        return self._flight(range(len(self.keys)), 1, whole=True)

    def answered(self, part: Part, chunks: list[Buffer]) -> None:
        if part.whole:
            super().answered(part, chunks)
            return
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        _, response = codec.decode_response(self.header.api_key, self.header.api_version, data)
        self.settle((response,), len(part.indices))

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        return [self.frame]

    def decode(self, data: Buffer) -> list[ItemAnswer[Any]]:
        raise Malformed("nodes answer with groups, not with partitions")

    def join(self, results: list[Any]) -> list[Buffer]:
        error = 0
        groups: list[Any] = []
        for result in results:
            if isinstance(result, ErrorCode):
                error = error or int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                error = error or int(result.error_code)
                groups += result.groups or ()
        schema = codec.response_type(self.header.api_key, self.header.api_version)
        response = codec.build(schema, error_code=error, groups=tuple(groups))
        return [codec.encode_response(self.header, response)]


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
    ApiKey.LIST_GROUPS: ListCall,
    ApiKey.DESCRIBE_GROUPS: DescribeCall,
    ApiKey.DELETE_GROUPS: DeleteCall,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: GroupCall,
    ApiKey.CONSUMER_GROUP_DESCRIBE: ConsumerDescribeCall,
}
"""How each group API is relayed."""
