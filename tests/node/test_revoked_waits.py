"""A right that is taken away while its request waits: what comes then is no answer any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from node.harness import TOPIC, lone_leader
from node.test_group_api import Host, item
from penstock_core.errors import ErrorCode
from penstock_core.security.acl import AclOperation, ResourceType
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_storage_node.kafka.dispatch import DataApis
from penstock_storage_node.kafka.groups import GroupHandler
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.settings import GroupSettings
from support.denials import Denying
from support.rights_table import ALICE, GROUP
from support.waiting import eventually
from unit.storage_node.groups.group_rig import Rig


class Revocable(Denying):
    """Allows everything until it does not."""

    def __init__(self) -> None:
        super().__init__(lambda *_: self.is_revoked)
        self.is_revoked = False

    @property
    def version(self) -> object:  # type: ignore[override]
        return self.is_revoked


async def test_records_that_waited_for_more_are_not_sent_to_who_may_not_read_them_any_more(
    tmp_path: Path,
) -> None:
    async with lone_leader(tmp_path) as node:
        await node.produce(b"a", acks=1)
        authorizer = Revocable()
        data = DataApis(node.manager, authorizer, lambda: True)

        async def fetch(max_wait_ms: int) -> Any:
            item = FetchPartition(TOPIC, None, 0, -1, 0, -1, -1, 1 << 20)
            asked = FetchRequest(max_wait_ms, 1 << 20, 50 << 20, partitions=[item])
            frame = bytearray(encode_fetch_request(11, 8, "test", asked))
            answer = data.handle(RequestContext(ALICE, "test"), parse_request_header(frame), frame)
            if isinstance(answer, Awaitable):
                answer = await answer
            return decode_fetch_response(b"".join(answer), 11).results[0]  # type: ignore[arg-type]

        assert (await fetch(0)).records
        waiting = asyncio.create_task(fetch(500))
        await eventually(lambda: node.manager.metrics.fetch_requests == 2, "it waits")
        authorizer.is_revoked = True
        result = await waiting
        assert result.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not result.records
        assert authorizer.told == [(AclOperation.READ, ResourceType.TOPIC, TOPIC)]


def _ask(handler: GroupHandler, api: ApiKey, version: int, **fields: Any) -> asyncio.Task[Any]:
    body = codec.encode_body(codec.build(codec.request_type(api, version), **fields))
    frame = bytearray(request_header(api, version, 7, "test") + body)
    found = handler.handle(RequestContext(ALICE, "test"), parse_request_header(frame), frame)

    async def answer() -> Any:
        data: Any = await found if isinstance(found, Awaitable) else found
        return codec.decode_response(api, version, b"".join(data))[1]

    return asyncio.ensure_future(answer())


def _join(handler: GroupHandler) -> asyncio.Task[Any]:
    protocol = item(ApiKey.JOIN_GROUP, 3, "JoinGroupRequestProtocol", name="range", metadata=b"topics")
    return _ask(
        handler,
        ApiKey.JOIN_GROUP,
        3,
        group_id=GROUP,
        session_timeout=60_000,
        rebalance_timeout=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )


async def test_whoever_waits_for_the_group_or_an_assignment_gets_neither_without_the_right() -> None:
    rig = Rig(GroupSettings(initial_rebalance_delay_ms=3_000))
    authorizer = Revocable()
    handler = GroupHandler(Host(rig), Rights(authorizer))  # type: ignore[arg-type]
    tasks = [_join(handler), _join(handler)]
    rig.pass_ms(7_000, 500)
    members = [await asyncio.wait_for(task, 60) for task in tasks]
    assert [each.error_code for each in members] == [0, 0]
    (leader,) = [each for each in members if each.members]
    (follower,) = [each for each in members if not each.members]
    assignment = _ask(
        handler,
        ApiKey.SYNC_GROUP,
        1,
        group_id=GROUP,
        generation_id=follower.generation_id,
        member_id=follower.member_id,
        assignments=(),
    )
    authorizer.is_revoked = True
    rig.sync(GROUP, leader.member_id, leader.generation_id, [(follower.member_id, b"secret")])
    assigned = await asyncio.wait_for(assignment, 60)
    assert (assigned.error_code, assigned.assignment) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, b"")
    authorizer.is_revoked = False
    another = _join(handler)  # until the others have joined again, or are out of time
    authorizer.is_revoked = True
    rig.pass_ms(70_000, 500)
    joined = await asyncio.wait_for(another, 60)
    assert (joined.error_code, joined.members) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, ())
    assert authorizer.told == [(AclOperation.READ, ResourceType.GROUP, GROUP)] * 2
