"""Group requests at the gateway: routed by group, split by coordinator, joined, answered 16 when it moves."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_core.errors import ErrorCode
from penstock_core.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import MetadataImage, PartitionImage, TopicImage
from penstock_core.topics import OFFSETS_TOPIC
from penstock_gateway.relay.groups import GROUP_CALLS
from penstock_gateway.relay.request import Part, Relayed
from penstock_gateway.routing.flight import InFlight
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey, OnLoss
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.groups import group_partition

E = ErrorCode
TOPIC = TopicId(b"o" * 16)
COUNT = 5


def image(*, missing: bool = False) -> MetadataImage:
    partitions = {
        n: PartitionImage(
            topic_id=TOPIC,
            partition=n,
            replicas=(NodeId(1),),
            isr=(NodeId(1),),
            leader=NodeId(1),
            leader_epoch=LeaderEpoch(0),
            partition_epoch=0,
            last_known_leader=NodeId(1),
        )
        for n in range(COUNT)
    }
    if missing:
        return MetadataImage()
    topic = TopicImage(TOPIC, OFFSETS_TOPIC, partitions)
    return MetadataImage(topics={TOPIC: topic}, topic_ids={OFFSETS_TOPIC: TOPIC})


class Call:
    """One request, and what became of it."""

    def __init__(self, key: ApiKey, version: int, /, *, missing: bool = False, **values: Any) -> None:
        request = codec.build(codec.request_type(key, version), **values)
        self.frame = request_header(key, version, 3, "c") + codec.encode_body(request)
        self.header = parse_request_header(self.frame)
        self.outcomes: list[Any] = []
        self.request: Relayed[Any] = GROUP_CALLS[key](self.header, self.frame, self.outcomes.append)
        self.flight: InFlight[Part] | None = self.request.start(image(missing=missing))

    def result(self) -> Any:
        (outcome,) = self.outcomes
        return codec.decode_response(self.header.api_key, self.header.api_version, b"".join(outcome))[1]

    def answer(self, flight: InFlight[Part], **values: Any) -> None:
        schema = codec.response_type(self.header.api_key, self.header.api_version)
        data = codec.encode_response(self.header, codec.build(schema, **values))
        part = flight.payload
        self.request.answered(part, [data])

    def item(self, kind: str, **values: Any) -> Any:
        return codec.build(codec.entity_type(self.header.api_key, self.header.api_version, kind), **values)


HEARTBEAT: dict[str, Any] = {
    "group_id": "g1",
    "generation_id": 1,
    "member_id": "m",
    "group_instance_id": None,
}


@pytest.mark.parametrize("version", range(5))
def test_one_group_goes_as_it_came(version: int) -> None:
    call = Call(ApiKey.HEARTBEAT, version, **HEARTBEAT)
    flight = call.flight
    assert flight is not None
    assert flight.partitions == [TopicPartition(TOPIC, group_partition("g1", COUNT))]
    assert flight.on_loss is OnLoss.ASK_CLIENT  # answered at once when the coordinator moves
    part = flight.payload
    assert part.buffers() == [call.frame]
    call.answer(flight, error_code=27)
    assert int(call.result().error_code) == 27


def test_a_coordinator_that_moves_is_told_as_such() -> None:
    for code, told in (
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.REQUEST_TIMED_OUT, E.NOT_COORDINATOR),
        (E.UNKNOWN_SERVER_ERROR, E.UNKNOWN_SERVER_ERROR),
    ):
        call = Call(ApiKey.HEARTBEAT, 4, **HEARTBEAT)
        assert call.flight is not None
        call.request.failed(call.flight.payload, code)
        assert int(call.result().error_code) == told


def test_without_the_topic_there_is_no_coordinator() -> None:
    call = Call(ApiKey.HEARTBEAT, 4, missing=True, **HEARTBEAT)
    assert call.flight is None
    assert int(call.result().error_code) == E.COORDINATOR_NOT_AVAILABLE
    listing = Call(ApiKey.LIST_GROUPS, 5, missing=True, states_filter=(), types_filter=())
    assert (int(listing.result().error_code), listing.result().groups) == (0, ())


def test_joins_take_as_long_as_their_rebalance() -> None:
    call = Call(
        ApiKey.JOIN_GROUP,
        9,
        group_id="g",
        session_timeout=10_000,
        rebalance_timeout=120_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=(),
        reason=None,
    )
    assert call.flight is not None
    assert call.flight.answer_ms > 120_000


def test_several_groups_are_split_and_joined() -> None:
    names = tuple(f"g{n}" for n in range(6))
    call = Call(ApiKey.DESCRIBE_GROUPS, 5, groups=(*names, "g0"), include_authorized_operations=False)
    assert call.flight is not None
    assert len(call.flight.partitions) == 7
    first, second, third = call.flight.split([[0, 1, 6], [2, 3], [4, 5]])
    for flight, asked in ((first, ("g0", "g1", "g0")), (second, ("g2", "g3"))):
        part = flight.payload
        data = b"".join(part.buffers())
        sent = codec.decode_request(parse_request_header(data), data)
        assert sent.groups == asked
        call.answer(
            flight,
            groups=tuple(
                call.item(
                    "DescribedGroup",
                    error_code=0,
                    group_id=name,
                    group_state="Stable",
                    protocol_type="",
                    protocol_data="",
                    members=(),
                    authorized_operations=0,
                )
                for name in asked
            ),
        )
    assert call.outcomes == []
    assert isinstance(third.payload, Part)
    call.request.failed(third.payload, E.NOT_LEADER_OR_FOLLOWER)
    found = {g.group_id: (g.group_state, int(g.error_code)) for g in call.result().groups}
    stable = dict.fromkeys(names[:4], ("Stable", 0))
    assert found == stable | dict.fromkeys(names[4:], ("", int(E.NOT_COORDINATOR)))
    assert len(call.result().groups) == 7


def test_offsets_of_several_groups() -> None:
    key, version = ApiKey.OFFSET_FETCH, 9
    kind = codec.entity_type(key, version, "OffsetFetchRequestGroup", request=True)
    groups = tuple(
        codec.build(kind, group_id=name, member_id=None, member_epoch=-1, topics=None) for name in ("a", "b")
    )
    call = Call(key, version, groups=groups, require_stable=True)
    assert call.flight is not None
    one, other = call.flight.split([[0], [1]])
    assert isinstance(one.payload, Part)
    data = b"".join(one.payload.buffers())
    sent = codec.decode_request(parse_request_header(data), data)
    assert ([g.group_id for g in sent.groups], sent.require_stable) == (["a"], True)
    call.answer(one, groups=(call.item("OffsetFetchResponseGroup", group_id="a", topics=(), error_code=0),))
    assert isinstance(other.payload, Part)
    call.request.failed(other.payload, E.REQUEST_TIMED_OUT)
    assert [(g.group_id, int(g.error_code)) for g in call.result().groups] == [("a", 0), ("b", 16)]
    old = Call(key, 7, group_id="a", topics=None, require_stable=False)
    assert old.flight is not None
    assert old.flight.partitions == [TopicPartition(TOPIC, group_partition("a", COUNT))]


def test_deleting_and_describing_consumer_groups_fail_by_group() -> None:
    delete = Call(ApiKey.DELETE_GROUPS, 2, groups_names=("a", "b"))
    describe = Call(
        ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=("a", "b"), include_authorized_operations=False
    )
    for call, field in ((delete, "results"), (describe, "groups")):
        assert call.flight is not None
        call.request.failed(call.flight.payload, E.NOT_LEADER_OR_FOLLOWER)
        items = getattr(call.result(), field)
        assert [(i.group_id, int(i.error_code)) for i in items] == [("a", 16), ("b", 16)]


def test_listing_asks_every_coordinator() -> None:
    call = Call(ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=())
    assert call.flight is not None
    assert len(call.flight.partitions) == COUNT
    parts = call.flight.split([[0, 1], [2, 3], [4]])
    for number, flight in enumerate(parts[:2]):
        assert isinstance(flight.payload, Part)
        assert flight.payload.buffers() == [call.frame]
        # A group whose coordinator moved meanwhile is in the lists of both.
        listed = [
            call.item(
                "ListedGroup", group_id=name, protocol_type="", group_state="Empty", group_type="classic"
            )
            for name in ("moved", f"g{number}")
        ]
        call.answer(flight, error_code=0, groups=tuple(listed))
    assert isinstance(parts[2].payload, Part)
    call.request.failed(parts[2].payload, E.NOT_LEADER_OR_FOLLOWER)
    result = call.result()
    assert int(result.error_code) == E.COORDINATOR_NOT_AVAILABLE
    assert [g.group_id for g in result.groups] == ["moved", "g0", "g1"]


@pytest.mark.parametrize("version", range(6))
async def test_a_node_that_still_reads_its_groups_is_asked_again(rig: Any, version: int) -> None:
    """It lists what it has read till then, and clients that overlook the 14 beside take it for all."""
    rig.topics[OFFSETS_TOPIC] = TOPIC
    rig.publish()
    reading = {1: 0, 2: 2}

    def script(node_id: int) -> None:
        def answer(header: Any, _frame: bytes) -> bytes:
            error, reading[node_id] = (14 if reading[node_id] else 0), reading[node_id] - 1
            schema = codec.response_type(header.api_key, header.api_version)
            item_type = codec.entity_type(header.api_key, header.api_version, "ListedGroup")
            name = f"{'some' if error else 'all'}-{node_id}"
            group = codec.build(
                item_type, group_id=name, protocol_type="", group_state="", group_type="classic"
            )
            body = codec.build(schema, error_code=error, groups=(group,))
            return b"".join(map(bytes, [codec.encode_response(header, body)]))

        rig.nodes[node_id].kafka[ApiKey.LIST_GROUPS] = answer

    script(1)
    script(2)
    request = codec.build(codec.request_type(ApiKey.LIST_GROUPS, version), states_filter=(), types_filter=())
    frame = request_header(ApiKey.LIST_GROUPS, version, 3, "c") + codec.encode_body(request)
    outcome = await rig.submit(rig.client(), GROUP_CALLS[ApiKey.LIST_GROUPS], frame)
    listed = codec.decode_response(ApiKey.LIST_GROUPS, version, b"".join(outcome))[1]
    assert int(listed.error_code) == 0
    assert {group.group_id for group in listed.groups} == {"all-1", "all-2"}
    assert [len(node.frames) for node in rig.nodes.values()] == [1, 3]
