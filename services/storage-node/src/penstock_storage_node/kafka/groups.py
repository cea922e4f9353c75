"""Requests to the group coordinator, for every way in: decoded, handed to a shard, encoded.

Rules: a request that a shard cannot take (not the coordinator, still loading) fails as a whole with
that code, but for what clients would not understand (`_WHILE_LOADING`); an answer that waits for the
high watermark waits COMMIT_TIMEOUT_MS at most, then the client is told COORDINATOR_NOT_AVAILABLE and
asks again. JoinGroup and SyncGroup wait as long as the group does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_frontend.authorizer import CLUSTER_NAME, Operation, ResourceType
from penstock_frontend.listener.listener import Response
from penstock_kafka.error_responses.group import consumer_describe_failure, describe_failure
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer, Malformed
from penstock_storage_node.groups.classic.group import JoinResult, SyncResult
from penstock_storage_node.groups.consumer.group import ConsumerGroup
from penstock_storage_node.groups.consumer.protocol import ConsumerHeartbeatResult
from penstock_storage_node.groups.consumer.subscribed_regexes import RegexRights
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.groups.offsets import CommitRequest, Found, NewOffset
from penstock_storage_node.groups.records import OffsetValue, TopicKey
from penstock_storage_node.groups.shard import JoinRequest, Shard, SyncRequest
from penstock_storage_node.groups.store import GROUP_ID_BYTES_MAX
from penstock_storage_node.kafka.groups_codec.classic import (
    encode_deleted,
    encode_group,
    encode_join,
    encode_sync,
    failure,
    to_ms,
)
from penstock_storage_node.kafka.groups_codec.consumer import encode_consumer_heartbeat, encode_described
from penstock_storage_node.kafka.groups_codec.hot import (
    TopicCommit,
    put_commit,
    put_heartbeat,
    read_commit,
    read_consumer_heartbeat,
    read_heartbeat,
)
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights

COMMIT_TIMEOUT_MS: Final = 5_000
"""As Kafka's offsets.commit.timeout.ms."""

REFUSAL_DELAY_MS: Final = 1_000
"""Who is refused for want of room hears of it so much later: a client gives up then, and one that asks again and
again takes the processor from others. (As Kafka's connection.failed.authentication.delay.ms.)"""

REFUSAL_SPREAD_MS: Final = 1_000
"""And by chance up to so much later still: those who were refused together do not all come back together."""

_NO_OPERATIONS: Final = -(2**31)

Answer = Response | Awaitable[Response]
_Fetched = tuple[ErrorCode, tuple[Any, ...]]
"""Of a group: its error and its topics."""
_ByTopic = dict[str, list[tuple[int, OffsetValue | None, ErrorCode]]]
"""What is told of partitions, by topic."""


_WHILE_LOADING: Final = {
    ApiKey.HEARTBEAT: ErrorCode.NONE,
    ApiKey.SYNC_GROUP: ErrorCode.REBALANCE_IN_PROGRESS,
}
"""What members are told in place of COORDINATOR_LOAD_IN_PROGRESS, at which consumers give up (the Java client's
poll() throws, aiokafka's tasks end). A Heartbeat is answered blindly, as by Kafka; whoever waits for an
assignment joins again, as with Kafka's first coordinator: its rebalance is lost."""


class DeferredReply:
    """An answer that a shard gives at once or later: `result` is what to hand on."""

    __slots__ = ("_future", "_response")

    def __init__(self) -> None:
        self._response: bytes | None = None
        self._future: asyncio.Future[Response] | None = None

    def give(self, response: bytes) -> None:
        """The answer; a second one is dropped."""
        if self._future is None:
            self._response = self._response or response
        elif not self._future.done():
            self._future.set_result([response])

    def give_to_member(self, error: ErrorCode, response: bytes) -> None:
        """As `give`, but a refusal for want of room comes REFUSAL_DELAY_MS later, or up to REFUSAL_SPREAD_MS more."""
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            delay_ms = random.uniform(REFUSAL_DELAY_MS, REFUSAL_DELAY_MS + REFUSAL_SPREAD_MS)  # noqa: S311
            asyncio.get_running_loop().call_later(delay_ms / 1000, self.give, response)
        else:
            self.give(response)

    def result(self) -> Answer:
        """Called once, after the request was handed over."""
        if self._response is not None:
            return [self._response]
        self._future = asyncio.get_running_loop().create_future()
        return self._future

    def within(self, most_ms: int, otherwise: Callable[[], bytes]) -> Answer:
        """As `result`, but `otherwise` is given once `most_ms` have passed."""
        result = self.result()
        if self._future is not None:
            timer = asyncio.get_running_loop().call_later(most_ms / 1000, lambda: self.give(otherwise()))
            self._future.add_done_callback(lambda _: timer.cancel())
        return result


class GroupHandler:
    """Answers the group APIs and those of offsets."""

    def __init__(self, host: GroupHost, rights: Rights, in_touch: Callable[[], bool] = lambda: True) -> None:
        """`in_touch`: whether this node may take it that it leads what its metadata say."""
        self._host = host
        self._rights = rights
        self._in_touch = in_touch
        self._hot: dict[int, Callable[[RequestContext, RequestHeader, Buffer], Answer]] = {
            ApiKey.HEARTBEAT: self._heartbeat,
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self._consumer_heartbeat,
        }
        self._handlers: dict[int, Callable[[RequestContext, RequestHeader, Any, Buffer], Answer]] = {
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.LEAVE_GROUP: self._leave,
            ApiKey.OFFSET_FETCH: self._fetch,
            ApiKey.OFFSET_DELETE: self._offset_delete,
            ApiKey.LIST_GROUPS: self._list,
            ApiKey.DESCRIBE_GROUPS: self._describe,
            ApiKey.DELETE_GROUPS: self._delete,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self._consumer_describe,
        }

    @property
    def api_keys(self) -> list[int]:
        """What `handle` knows."""
        return [int(key) for key in (*self._hot, *self._handlers)]

    def handle(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Answer:
        """Answer one request. Raises Malformed when it cannot be read."""
        hot = self._hot.get(header.api_key)
        try:
            if hot is not None:
                return hot(caller, header, frame)
            request = codec.decode_request(header, frame)
            return self._handlers[header.api_key](caller, header, request, frame)
        except Malformed:
            raise
        except PenstockError as e:
            code = e.code
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                code = _WHILE_LOADING.get(ApiKey(header.api_key), code)
            return [failure(header, frame, code, e.message)]

    # -- helpers ------------------------------------------------------------------------------

    def _shard(self, caller: RequestContext, operation: Operation, group_id: str) -> Shard:
        self._rights.require(caller, operation, ResourceType.GROUP, group_id)
        if len(group_id.encode()) > GROUP_ID_BYTES_MAX:
            raise PenstockError(ErrorCode.INVALID_GROUP_ID, f"a group id of {len(group_id)} characters")
        return self._host.find(group_id)

    def _member_shard(self, caller: RequestContext, group_id: str, nameless: ErrorCode) -> Shard:
        """For requests of members, which are refused without a name of the group wherever they go."""
        if not group_id:
            self._rights.require(caller, Operation.READ, ResourceType.GROUP, group_id)
            raise PenstockError(nameless, "a member's group has no name")
        return self._shard(caller, Operation.READ, group_id)

    def _may_topic(self, caller: RequestContext, operation: Operation, topic: str) -> bool:
        return self._rights.may_topic(caller, operation, topic)

    # -- membership -----------------------------------------------------------------------------

    def _join(self, caller: RequestContext, header: RequestHeader, request: Any, frame: Buffer) -> Answer:
        shard = self._member_shard(caller, request.group_id, ErrorCode.INVALID_GROUP_ID)
        version = header.api_version
        session_ms = to_ms(request.session_timeout)
        join = JoinRequest(
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.protocol_type,
            tuple((p.name, p.metadata) for p in request.protocols or ()),
            session_ms,
            to_ms(request.rebalance_timeout) if version >= 1 else session_ms,
            caller.client_id or "",
            f"/{caller.host}",
            member_id_required=version >= 4,
            can_skip_assignment=version >= 9,
            owner=caller.owner,
        )
        later = DeferredReply()

        def joined(result: JoinResult) -> None:
            if not self._may_read_yet(caller, request.group_id):
                result = JoinResult(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            later.give_to_member(result.error, encode_join(header, result))

        shard.join(join, joined)
        return later.result()

    def _may_read_yet(self, caller: RequestContext, group_id: str) -> bool:
        """Whether who has waited for others may still have what is told: a rebalance takes minutes."""
        return self._rights.may(caller, Operation.READ, ResourceType.GROUP, group_id)

    def _sync(self, caller: RequestContext, header: RequestHeader, request: Any, frame: Buffer) -> Answer:
        shard = self._member_shard(caller, request.group_id, ErrorCode.INVALID_GROUP_ID)
        sync = SyncRequest(
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
            getattr(request, "protocol_type", None),
            getattr(request, "protocol_name", None),
            [(a.member_id, a.assignment) for a in request.assignments or ()],
        )
        later = DeferredReply()

        def synced(result: SyncResult) -> None:
            if not self._may_read_yet(caller, request.group_id):
                result = SyncResult(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            later.give(encode_sync(header, result))

        shard.sync(sync, synced)
        return later.result()

    def _heartbeat(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Answer:
        request = read_heartbeat(header, frame)
        shard = self._member_shard(caller, request.group_id, ErrorCode.INVALID_GROUP_ID)
        error = shard.heartbeat(request.group_id, request.member_id, request.instance_id, request.generation)
        return [put_heartbeat(header, error)]

    def _leave(self, caller: RequestContext, header: RequestHeader, request: Any, frame: Buffer) -> Answer:
        shard = self._member_shard(caller, request.group_id, ErrorCode.INVALID_GROUP_ID)
        if header.api_version < 3:
            error, codes = shard.leave(request.group_id, [(request.member_id, None)])
            return [codec.respond(header, error_code=error or codes[0])]
        error, codes = shard.leave(
            request.group_id, [(m.member_id, m.group_instance_id) for m in request.members or ()]
        )
        members = tuple(
            codec.item(
                header,
                "MemberResponse",
                member_id=m.member_id,
                group_instance_id=m.group_instance_id,
                error_code=code,
            )
            for m, code in zip(request.members or (), codes, strict=False)
        )
        return [codec.respond(header, error_code=error, members=members)]

    def _consumer_heartbeat(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Answer:
        request = read_consumer_heartbeat(caller, header, frame)
        shard = self._member_shard(caller, request.group_id, ErrorCode.INVALID_REQUEST)
        if self._rights.is_enabled and request.topics:
            # Each is asked for, that each denial is told.
            hidden = [t for t in request.topics if not self._may_topic(caller, Operation.DESCRIBE, t)]
            if hidden:
                raise PenstockError(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"no right to describe {', '.join(hidden[:10])}"
                )
        if self._rights.is_enabled:
            may_describe = partial(
                self._rights.permitted, caller.identity, Operation.DESCRIBE, ResourceType.TOPIC
            )
            request = replace(request, rights=RegexRights(may_describe, self._rights.version))
        later = DeferredReply()
        interval_ms = shard.heartbeat_ms(request.group_id)

        def beaten(result: ConsumerHeartbeatResult) -> None:
            later.give_to_member(result.error, encode_consumer_heartbeat(header, result, interval_ms))

        shard.consumer_heartbeat(request, beaten)
        return later.within(
            COMMIT_TIMEOUT_MS, lambda: failure(header, frame, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )

    def _consumer_describe(
        self, caller: RequestContext, header: RequestHeader, request: Any, frame: Buffer
    ) -> Answer:
        groups = []
        for group_id in request.group_ids or ():
            try:
                shard = self._shard(caller, Operation.DESCRIBE, group_id)
            except PenstockError as e:
                groups.append(consumer_describe_failure(header, group_id, e.code, e.message))
                continue
            group = shard.describe_consumer(group_id)
            if group is None:
                why = "not found" if shard.describe(group_id) is None else "is not a consumer group"
                why = f"Group {group_id} {why}."
                groups.append(consumer_describe_failure(header, group_id, ErrorCode.GROUP_ID_NOT_FOUND, why))
                continue
            if not self._may_see_topics_of(caller, group):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                why = "The group has described topic(s) that the client is not authorized to describe."
                groups.append(consumer_describe_failure(header, group_id, code, why))
                continue
            wanted = request.include_authorized_operations
            operations = self._operations(caller, group_id) if wanted else _NO_OPERATIONS
            groups.append(encode_described(header, group, operations, self._host.topics.topic_name))
        return [codec.respond(header, groups=tuple(groups))]

    def _may_see_topics_of(self, caller: RequestContext, group: ConsumerGroup) -> bool:
        """Whether the caller may describe every topic that a member of the group has or is to have."""
        if not self._rights.is_enabled:
            return True
        owned = (m.assigned | m.revoking for m in group.members.values())
        parts = chain(*owned, *group.targets.values())
        names = {topic_id: name for name, (topic_id, _) in group.topics.items()}
        held = {names.get(topic_id) or self._host.topics.topic_name(topic_id) for topic_id, _ in parts}
        # Each is asked for, that each denial is told. A topic that is gone has no name to tell.
        hidden = [n for n in held if n and not self._may_topic(caller, Operation.DESCRIBE, n)]
        return not hidden

    # -- offsets ------------------------------------------------------------------------------------

    def _commit(self, caller: RequestContext, header: RequestHeader, frame: Buffer) -> Answer:
        request = read_commit(header, frame)
        shard = self._shard(caller, Operation.READ, request.group_id)
        items, refused = self.items_to_commit(caller, request.topics)
        number = len(items) + len(refused)
        commit = CommitRequest(
            request.group_id,
            request.member_id,
            request.instance_id,
            request.generation,
            items,
            request.retention_ms,
            header.api_version,
            caller.owner,
        )
        later = DeferredReply()

        def committed(codes: Sequence[ErrorCode]) -> None:
            if refused:
                left = iter(codes)
                codes = [refused[i] if i in refused else next(left) for i in range(number)]
            later.give(put_commit(header, request.topics, codes))

        shard.commit(commit, committed)
        return later.within(
            COMMIT_TIMEOUT_MS, lambda: failure(header, frame, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )

    def items_to_commit(
        self, caller: RequestContext, topics: Sequence[TopicCommit]
    ) -> tuple[list[NewOffset], dict[int, ErrorCode]]:
        """What of a commit's items can be committed, and by their place in the request why others cannot."""
        items: list[NewOffset] = []
        refused: dict[int, ErrorCode] = {}
        number = 0
        for topic in topics:
            name, error = self._topic_to_commit(caller, topic)
            count = 0 if error else self._host.topics.partition_count(name)
            for partition, offset, leader_epoch, metadata in topic.items:
                if error:
                    refused[number] = error
                elif not 0 <= partition < count:
                    refused[number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    items.append(NewOffset(name, partition, offset, leader_epoch, metadata))
                number += 1
        return items, refused

    def _topic_to_commit(self, caller: RequestContext, topic: TopicCommit) -> tuple[str, ErrorCode]:
        name = topic.topic
        if name is None and topic.topic_id is not None:
            name = self._host.topics.topic_name(topic.topic_id)
        if name is None:
            return "", ErrorCode.UNKNOWN_TOPIC_ID
        if not self._may_topic(caller, Operation.READ, name):
            return name, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not self._host.topics.partition_count(name):
            return name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return name, ErrorCode.NONE

    def _topic_name(self, topic_id: Any) -> str | None:
        known = codec.topic_id(topic_id)
        return None if known is None else self._host.topics.topic_name(TopicId(known))

    def _fetch(self, caller: RequestContext, header: RequestHeader, request: Any, frame: Buffer) -> Answer:
        asked = [request] if header.api_version < 8 else list(request.groups or ())
        require_stable = getattr(request, "require_stable", False)
        fetched: list[_Fetched | None] = [None] * len(asked)
        left = len(asked)
        later = DeferredReply()

        def respond() -> None:
            if header.api_version < 8:
                (one,) = fetched
                assert one is not None
                error, topics = one
                later.give(
                    failure(header, frame, error)
                    if error
                    else codec.respond(header, topics=topics, error_code=0)
                )
                return
            groups = (
                codec.item(
                    header,
                    "OffsetFetchResponseGroup",
                    group_id=group.group_id,
                    topics=one[1],
                    error_code=one[0],
                )
                for group, one in zip(asked, fetched, strict=True)
                if one is not None
            )
            later.give(codec.respond(header, groups=tuple(groups)))

        def done(index: int, error: ErrorCode, topics: tuple[Any, ...]) -> None:
            nonlocal left
            fetched[index] = error, topics
            left -= 1
            if not left:
                respond()

        for index, group in enumerate(asked):
            self._fetch_group(caller, header, group, require_stable, partial(done, index))
        if not asked:
            respond()
        # At this code consumers ask again, without looking for another coordinator.
        return later.within(
            COMMIT_TIMEOUT_MS, lambda: failure(header, frame, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        )

    def _fetch_group(
        self,
        caller: RequestContext,
        header: RequestHeader,
        group: Any,
        require_stable: bool,
        done: Callable[[ErrorCode, tuple[Any, ...]], None],
    ) -> None:
        """One group of an OffsetFetch; `done` is told its error and topics."""
        try:
            shard = self._shard(caller, Operation.DESCRIBE, group.group_id)
        except PenstockError as e:
            done(e.code, ())
            return
        refused: dict[Any, tuple[ErrorCode, list[int]]] = {}
        names: dict[str, Any] = {}
        keys: list[TopicKey] | None = None
        if group.topics is not None:
            keys = []
            for topic in group.topics:
                by_id = hasattr(topic, "topic_id")
                name = self._topic_name(topic.topic_id) if by_id else topic.name
                error = ErrorCode.NONE
                if name is None:
                    error = ErrorCode.UNKNOWN_TOPIC_ID
                elif not self._may_topic(caller, Operation.DESCRIBE, name):
                    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                if error or name is None:
                    key = topic.topic_id if by_id else topic.name
                    refused[key] = error, list(topic.partition_indexes or ())
                    continue
                names[name] = topic.topic_id if by_id else name
                keys += [(name, index) for index in topic.partition_indexes or ()]

        def answer(error: ErrorCode, found: Found, unstable: Collection[TopicKey] = ()) -> None:
            if error:
                done(error, ())
                return
            by_topic: _ByTopic = {name: [] for name in names}
            seen: set[str] | None = None
            if keys is None and self._rights.is_enabled:
                # Of all offsets, those of hidden topics are left out without a word.
                wanted = dict.fromkeys(name for (name, _), _ in found)
                who = caller.identity
                seen = set(self._rights.permitted(who, Operation.DESCRIBE, ResourceType.TOPIC, wanted))
            for key, value in found:
                if seen is None or key[0] in seen:
                    code = ErrorCode.UNSTABLE_OFFSET_COMMIT if key in unstable else ErrorCode.NONE
                    by_topic.setdefault(key[0], []).append((key[1], None if code else value, code))
            done(ErrorCode.NONE, self._encode_fetched(header, by_topic, names, refused))

        who_asks = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
        if require_stable:
            in_doubt = not self._in_touch()
            shard.fetch_stable(group.group_id, *who_asks, keys, answer, in_doubt=in_doubt)
        else:
            answer(*shard.fetch(group.group_id, *who_asks, keys))

    def _encode_fetched(
        self,
        header: RequestHeader,
        by_topic: _ByTopic,
        names: dict[str, Any],
        refused: dict[Any, tuple[ErrorCode, list[int]]],
    ) -> tuple[Any, ...]:
        plural = header.api_version >= 8
        topic_type = "OffsetFetchResponseTopics" if plural else "OffsetFetchResponseTopic"
        item_type = "OffsetFetchResponsePartitions" if plural else "OffsetFetchResponsePartition"
        with_ids = header.api_version >= 10

        def one(index: int, value: OffsetValue | None, error: int = 0) -> Any:
            return codec.item(
                header,
                item_type,
                partition_index=index,
                committed_offset=-1 if value is None else value.offset,
                committed_leader_epoch=-1 if value is None else value.leader_epoch,
                metadata="" if value is None else value.metadata,
                error_code=error,
            )

        topics = []
        for name, found in by_topic.items():
            key = names.get(name, self._host.topics.topic_id(name) if with_ids else name)
            if key is None:
                continue  # the topic is gone, its offsets are about to go
            named = {"topic_id": key} if with_ids else {"name": key}
            topics.append(
                codec.item(header, topic_type, **named, partitions=tuple(one(*each) for each in found))
            )
        for key, (refusal, indexes) in refused.items():
            named = {"topic_id": key} if with_ids else {"name": key}
            topics.append(
                codec.item(
                    header, topic_type, **named, partitions=tuple(one(i, None, refusal) for i in indexes)
                )
            )
        return tuple(topics)

    def _offset_delete(
        self, caller: RequestContext, header: RequestHeader, request: Any, frame: Buffer
    ) -> Answer:
        shard = self._shard(caller, Operation.DELETE, request.group_id)
        places = [(t.name, p.partition_index) for t in request.topics or () for p in t.partitions or ()]
        names = dict.fromkeys(t.name for t in request.topics or ())
        denied = {name for name in names if not self._may_topic(caller, Operation.READ, name)}
        refused = {
            place: ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if place[0] in denied
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for place in places
            if place[0] in denied or place[1] >= self._host.topics.partition_count(place[0])
        }
        keys = [place for place in places if place not in refused]
        later = DeferredReply()

        def deleted(error: ErrorCode, codes: Any) -> None:
            if error and not codes:
                later.give(failure(header, frame, error))
                return
            each = dict(zip(keys, codes, strict=True)) | refused
            topics = tuple(
                codec.item(
                    header,
                    "OffsetDeleteResponseTopic",
                    name=t.name,
                    partitions=tuple(
                        codec.item(
                            header,
                            "OffsetDeleteResponsePartition",
                            partition_index=p.partition_index,
                            error_code=error or each[t.name, p.partition_index],
                        )
                        for p in t.partitions or ()
                    ),
                )
                for t in request.topics or ()
            )
            later.give(codec.respond(header, error_code=error, topics=topics))

        shard.delete_offsets(request.group_id, keys, deleted)
        return later.within(
            COMMIT_TIMEOUT_MS, lambda: failure(header, frame, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )

    # -- administration ---------------------------------------------------------------------------------

    def _list(self, caller: RequestContext, header: RequestHeader, request: Any, frame: Buffer) -> Answer:
        states = getattr(request, "states_filter", None) or ()
        kinds = getattr(request, "types_filter", None) or ()
        see = self._rights.may_see
        may_all = see(caller, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        groups = [
            codec.item(
                header,
                "ListedGroup",
                group_id=view.group_id,
                protocol_type=view.protocol_type,
                group_state=view.state,
                group_type=view.kind,
            )
            for shard in self._host.shards()
            for view in shard.list_groups(states, kinds)
            if may_all or see(caller, Operation.DESCRIBE, ResourceType.GROUP, view.group_id)
        ]
        # Of one whose log is not even open yet, nothing is listed either.
        error = ErrorCode.NONE if self._host.is_whole else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return [codec.respond(header, error_code=error, groups=tuple(groups))]

    def _describe(self, caller: RequestContext, header: RequestHeader, request: Any, frame: Buffer) -> Answer:
        with_operations = getattr(request, "include_authorized_operations", False)
        groups = []
        for group_id in request.groups or ():
            try:
                view = self._shard(caller, Operation.DESCRIBE, group_id).describe(group_id)
            except PenstockError as e:
                groups.append(describe_failure(header, group_id, e.code, e.message))
                continue
            operations = self._operations(caller, group_id) if with_operations else _NO_OPERATIONS
            if view is None:
                why = f"Group {group_id} not found."
                if header.api_version < 6:  # that is no failure yet
                    groups.append(describe_failure(header, group_id, ErrorCode.NONE, why, operations))
                else:
                    groups.append(describe_failure(header, group_id, ErrorCode.GROUP_ID_NOT_FOUND, why))
                continue
            groups.append(encode_group(header, view, operations))
        return [codec.respond(header, groups=tuple(groups))]

    def _operations(self, caller: RequestContext, group_id: str) -> int:
        return self._rights.authorized_operations(caller.identity, ResourceType.GROUP, group_id)

    def _delete(self, caller: RequestContext, header: RequestHeader, request: Any, frame: Buffer) -> Answer:
        names = list(dict.fromkeys(request.groups_names or ()))
        codes: dict[str, ErrorCode] = {}
        later = DeferredReply()

        def done(name: str, code: ErrorCode) -> None:
            codes[name] = code
            if len(codes) == len(names):
                later.give(encode_deleted(header, codes))

        for name in names:
            try:
                shard = self._shard(caller, Operation.DELETE, name)
            except PenstockError as e:
                done(name, e.code)
                continue
            shard.delete_group(name, lambda code, name=name: done(name, code))  # type: ignore[misc]
        if not names:
            later.give(encode_deleted(header, codes))
        return later.within(
            COMMIT_TIMEOUT_MS,
            lambda: encode_deleted(
                header, {n: codes.get(n, ErrorCode.COORDINATOR_NOT_AVAILABLE) for n in names}
            ),
        )
