"""Who reads a range or sends a relayed request: as the gateway says, and asked for again while it is read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from node.harness import TOPIC, lone_leader
from penstock_core.errors import ErrorCode
from penstock_core.security.acl import AclOperation, ResourceType
from penstock_core.security.principal import ANONYMOUS, Identity, Principal, user
from penstock_frontend.authorizer import AllowAll
from penstock_proto.v1 import data_pb2, storage_pb2
from penstock_storage_node.rpc import fetch_range, forward
from support.denials import Denying
from support.waiting import eventually

ALICE = Identity(user("alice"), "10.0.0.1")


@pytest.mark.parametrize(
    ("opened", "identity"),
    [
        (
            {"principal": "User:a:b", "client_host": "10.0.0.1"},
            Identity(Principal("User", "a:b"), "10.0.0.1"),
        ),
        (
            {"principal": "User:x", "principal_type": "User", "principal_name": "CN=a:b"},
            Identity(user("CN=a:b"), ""),
        ),
        ({"principal_type": "Group", "principal_name": ""}, Identity(Principal("Group", ""), "")),
        ({"client_host": "::ffff:10.0.0.1"}, Identity(ANONYMOUS, "10.0.0.1")),
    ],
)
def test_who_a_stream_is_for(opened: Any, identity: Identity) -> None:
    assert forward.identity_of(storage_pb2.ForwardOpen(**opened)) == identity


class Context:
    """A call that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[data_pb2.FetchRangeResponse] = []

    async def write(self, message: bytes) -> None:
        self.written.append(data_pb2.FetchRangeResponse.FromString(message))


async def test_a_range_ends_when_the_right_to_read_is_taken_away(tmp_path: Path) -> None:
    async with lone_leader(tmp_path) as node:
        await node.produce(b"a", acks=1)
        revoked: list[Any] = []
        authorizer = Denying(lambda *_: bool(revoked))
        service = fetch_range.FetchRangeService(node.manager, authorizer)
        request = data_pb2.FetchRangeRequest(
            topic=TOPIC, to_offset=100, principal_type="User", principal_name="alice", client_host="10.0.0.1"
        )
        assert fetch_range.identity_of(request) == ALICE
        context: Any = Context()
        reading = asyncio.create_task(service.fetch_range(request, context))
        await eventually(lambda: context.written, "the first batch")
        revoked.append(True)
        await node.produce(b"b", acks=1)
        await asyncio.wait_for(reading, 60)
        assert [m.error.code for m in context.written] == [0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        assert context.written[-1].next_offset == 1
        assert authorizer.told == [(AclOperation.READ, ResourceType.TOPIC, TOPIC)]
        refused: Any = Context()
        await service.fetch_range(request, refused)
        unknown = data_pb2.FetchRangeRequest(topic="no-such")
        await service.fetch_range(unknown, refused)
        assert [m.error.code for m in refused.written] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
        allowed: Any = Context()
        everybody = fetch_range.FetchRangeService(node.manager, AllowAll())
        await everybody.fetch_range(data_pb2.FetchRangeRequest(topic=TOPIC, to_offset=2), allowed)
        assert allowed.written[-1].done
