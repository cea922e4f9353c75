"""What a gateway answers of requests that it relays, for every right that they ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock_core.metadata.image import MetadataImage
from penstock_core.security.acl import AclOperation, ResourceType
from penstock_core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock_frontend.authorizer import AllowAll
from penstock_gateway.kafka.handler import RELAYED
from penstock_gateway.relay.groups import GROUP_CALLS, GROUP_OPERATIONS, ListGroupsCall
from penstock_gateway.relay.request import Outcome, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header
from penstock_proto.v1 import metadata_pb2 as pb
from support.acls import acl
from support.rights_table import (
    ALICE,
    GROUP_ROWS,
    PARTITION_ROWS,
    TOPIC,
    TRANSACTION_ROWS,
    Row,
    authorizer_of,
    codes_of,
    frame_of,
    rules,
)

ROWS = (*PARTITION_ROWS, *GROUP_ROWS, *TRANSACTION_ROWS)


def image_with(*topics: str) -> MetadataImage:
    records = []
    for name in topics:
        topic_id = name.encode().rjust(16, b"\0")[-16:]
        records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=name)))
        partition = pb.PartitionRecord(topic_id=topic_id, partition=0, leader=1, replicas=[1], isr=[1])
        records.append(pb.MetadataRecord(partition=partition))
    return MetadataImage().apply(records, 1)


FULL = image_with(TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
EMPTY = image_with(OFFSETS_TOPIC, TRANSACTIONS_TOPIC)


def relayed(row: Row, version: int, image: MetadataImage, authorizer: Any) -> tuple[bool, set[int]]:
    """Whether something goes to a node, and the codes of rights in what is answered here."""
    frame = frame_of(row, version)
    outcomes: list[Outcome] = []
    request: Relayed[Any] = RELAYED[row.api](parse_request_header(frame), frame, outcomes.append)
    flight = request.start(image, None, RequestRights(authorizer, ALICE))
    if flight is not None:
        assert not outcomes
        return True, set()
    (outcome,) = outcomes
    assert isinstance(outcome, list)
    return False, codes_of(row, version, b"".join(outcome))


def names_by_id(row: Row, version: int) -> bool:
    """From version 13 Produce and Fetch name topics by their ids."""
    return row.api in (ApiKey.PRODUCE, ApiKey.FETCH) and version >= 13 and row.code == 29


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_is_denied_is_answered_here_and_goes_to_no_node(row: Row) -> None:
    for version in row.versions():
        # Topics that may not be seen look the same whether they are there or not.
        for image in (FULL, EMPTY):
            for name, entries, allowed in rules(row):
                authorizer, told = authorizer_of(row, entries)
                sent, codes = relayed(row, version, image, authorizer)
                what = f"{row} version {version}: {name}"
                known = image is FULL or (row not in PARTITION_ROWS and row.api != ApiKey.WRITE_TXN_MARKERS)
                assert sent == (allowed and known), what
                if not known and names_by_id(row, version):
                    continue  # nobody knows which topic was meant
                assert codes == (set() if allowed else {row.code}), what
                assert told == ([] if allowed else [row.needs]), what


def test_every_relayed_group_api_has_its_right() -> None:
    """Listings are filtered by the nodes."""
    without = {key for key, call in GROUP_CALLS.items() if call is ListGroupsCall}
    assert GROUP_OPERATIONS.keys() == GROUP_CALLS.keys() - without
    assert {row.api for row in ROWS} == RELAYED.keys() - without - {ApiKey.LIST_TRANSACTIONS}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_without_an_authorizer_nobody_is_asked(row: Row) -> None:
    frame = frame_of(row, row.versions()[0])
    request: Relayed[Any] = RELAYED[row.api](parse_request_header(frame), frame, lambda _: None)
    assert not AllowAll().is_enabled
    assert request.start(FULL) is not None


def test_of_several_groups_the_denied_are_answered_here_and_the_others_sent() -> None:
    row = next(r for r in GROUP_ROWS if r.api.name == "DESCRIBE_GROUPS")
    many = replace(row, values={"groups": ["a", "b", "c"]})
    authorizer, told = authorizer_of(
        many, [acl(AclOperation.DESCRIBE, ResourceType.GROUP, "b", principal="User:alice")]
    )
    frame = frame_of(many, 5)
    outcomes: list[Outcome] = []
    request: Relayed[Any] = RELAYED[row.api](parse_request_header(frame), frame, outcomes.append)
    flight = request.start(FULL, None, RequestRights(authorizer, ALICE))
    assert flight is not None and not outcomes
    assert (list(flight.payload.indices), flight.payload.whole) == ([1], False)
    assert [name for _, _, name in told] == ["a", "c"]
