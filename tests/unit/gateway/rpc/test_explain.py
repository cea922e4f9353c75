"""Explain asks all controllers, takes DESCRIBE on the cluster, and says what there is not in one line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId
from penstock_core.metadata import MetadataImage
from penstock_frontend.authorizer import Operation, ResourceType
from penstock_gateway.rpc.explain import EVENTS_MAX, Explainer
from penstock_gateway.rpc.guard import RIGHTS
from penstock_proto.v1 import metadata_pb2
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.turns import LoopTurns
from unit.runtime.fake_controllers import FakeController, controllers

NOW_MS = 1_800_000_000_000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, pb.ReadEventsRequest]]:
    """Controller n remembers what happened at version n, and controller 2 does not know what was before."""
    seen: list[tuple[int, pb.ReadEventsRequest]] = []

    async def read(self: FakeController, request: Any, context: Any) -> pb.ReadEventsResponse:
        seen.append((self.controller_id, request))
        event = pb.ClusterEvent(
            version=self.controller_id,
            time_ms=NOW_MS,
            event="isr",
            subject="partition t-0",
            change="ISR 1,2 -> 1",
        )
        known = event.subject in request.subjects
        unknown_ms = NOW_MS if self.controller_id == 2 else 0
        return pb.ReadEventsResponse(events=[event] if known else [], incomplete_before_ms=unknown_ms)

    monkeypatch.setattr(FakeController, "ReadEvents", read, raising=False)
    return seen


@pytest.fixture
async def explainer() -> AsyncIterator[Explainer]:
    async with controllers(3) as (_, members):
        channels = ChannelPool()
        client = ControllerClient([m.endpoint.address for m in members], "gateway-1", channels)
        yield Explainer(client, LoopTurns())
        await channels.close()


def image() -> MetadataImage:
    partition = metadata_pb2.PartitionRecord(
        topic_id=b"t" * 16, leader=1, replicas=[1, 2], isr=[1], leader_epoch=5
    )
    return MetadataImage().apply(
        [
            metadata_pb2.MetadataRecord(node=metadata_pb2.NodeRecord(node_id=1, node_epoch=1)),
            metadata_pb2.MetadataRecord(
                topic=metadata_pb2.TopicRecord(topic_id=TopicId(b"t" * 16), name="t")
            ),
            metadata_pb2.MetadataRecord(partition=partition),
        ],
        1,
    )


async def test_all_controllers_make_one_story(
    asked: list[tuple[int, pb.ReadEventsRequest]], explainer: Explainer
) -> None:
    answer = await explainer.explain(pb.ExplainRequest(topic="t", since_ms=7), image(), NOW_MS)
    assert not answer.error.code
    assert sorted(controller for controller, _ in asked) == [1, 2, 3]
    assert {(r.since_ms, r.limit, tuple(r.subjects)) for _, r in asked} == {
        (7, EVENTS_MAX, ("node 1", "node 2", "partition t-0", "topic t"))
    }
    assert [line.version for line in answer.story] == [1, 2, 3]
    assert answer.incomplete_before_ms == 0, "one of them knows all"
    assert answer.now[0] == "node 1 leads it since epoch 5"


async def test_two_hours_where_nobody_says_how_far(
    asked: list[tuple[int, pb.ReadEventsRequest]], explainer: Explainer
) -> None:
    await explainer.explain(pb.ExplainRequest(topic="t"), image(), NOW_MS)
    assert {r.since_ms for _, r in asked} == {NOW_MS - 7_200_000}


@pytest.fixture
def made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two topics of one name; the first was deleted within the same two hours."""
    events = [
        pb.ClusterEvent(version=version, time_ms=NOW_MS, event=event, subject=subject, change=change)
        for version, event, subject, change in (
            (1, "topic", "topic t", "created with 1 partition, replication factor 2"),
            (2, "leader", "partition t-0", "leader 1 -> 2, epoch 9, from ISR"),
            (3, "topic", "topic t", "deleted"),
            (4, "topic", "topic t", "created with 1 partition, replication factor 2"),
            (5, "isr", "partition t-0", "ISR 1,2 -> 1"),
        )
    ]

    async def read(self: FakeController, request: Any, context: Any) -> pb.ReadEventsResponse:
        return pb.ReadEventsResponse(events=events)

    monkeypatch.setattr(FakeController, "ReadEvents", read, raising=False)


@pytest.mark.usefixtures("made_twice")
async def test_a_topic_that_was_made_anew_is_told_since_then(explainer: Explainer) -> None:
    answer = await explainer.explain(pb.ExplainRequest(topic="t"), image(), NOW_MS)
    assert [line.version for line in answer.story] == [4, 5]
    # Of one that is gone all is told that is remembered.
    gone = await explainer.explain(pb.ExplainRequest(topic="t"), MetadataImage(), NOW_MS)
    assert [line.version for line in gone.story] == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("request_pb", "code", "said"),
    [
        (pb.ExplainRequest(topic="u"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic has the name 'u'"),
        (pb.ExplainRequest(topic="t", partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it has 0 to 0"),
        (pb.ExplainRequest(node_id=9), ErrorCode.BROKER_ID_NOT_REGISTERED, "no storage node has the id 9"),
        (pb.ExplainRequest(), ErrorCode.INVALID_REQUEST, "nothing is named"),
    ],
)
async def test_what_there_is_not(
    explainer: Explainer, request_pb: pb.ExplainRequest, code: ErrorCode, said: str
) -> None:
    answer = await explainer.explain(request_pb, image(), NOW_MS)
    assert answer.error.code == code
    assert said in answer.error.message


async def test_controllers_of_an_older_build_remember_nothing(explainer: Explainer) -> None:
    answer = await explainer.explain(pb.ExplainRequest(topic="t"), image(), NOW_MS)
    assert not answer.story
    assert answer.incomplete_before_ms == NOW_MS


def test_it_takes_the_right_to_describe_the_cluster() -> None:
    right = RIGHTS["/penstock.v1.Admin/Explain"]
    assert right is not None
    assert (right.operation, right.kind) == (Operation.DESCRIBE, ResourceType.CLUSTER)
