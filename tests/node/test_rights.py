"""What a storage node answers, for every right that requests for partitions, groups and the node ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from node.harness import MiniCluster
from node.test_group_api import Host
from penstock_core.security.acl import AclOperation, ResourceType
from penstock_frontend.authorizer import AllowAll
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header
from penstock_storage_node.kafka.dispatch import DataApis
from penstock_storage_node.kafka.groups import GroupHandler
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.kafka.rights import Rights
from penstock_storage_node.kafka.write_markers import WriteMarkersHandler
from penstock_storage_node.transactions.leading import LeadingSide
from support.acls import acl
from support.rights_table import (
    ALICE,
    GROUP,
    GROUP_ROWS,
    NODE_ROWS,
    PARTITION_ROWS,
    TOPIC,
    TOPICS_OF_GROUPS_ROWS,
    TRANSACTION_ROWS,
    Row,
    authorizer_of,
    codes_of,
    frame_of,
    rules,
)
from unit.storage_node.groups.group_rig import Rig

mine = partial(acl, principal="User:alice")
READ_GROUP = (AclOperation.READ, ResourceType.GROUP, GROUP)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = await MiniCluster(tmp_path).start(1)
    try:
        yield made
    finally:
        await made.stop()


async def ask(handler: Any, row: Row, version: int, settle: Callable[[], None] = lambda: None) -> bytes:
    """The response to the request of a row."""
    frame = frame_of(row, version)
    found = handler.handle(RequestContext(ALICE, "test"), parse_request_header(frame), frame)
    settle()
    return b"".join(await found if isinstance(found, Awaitable) else found)


class Coordinator:
    """A coordinator, whose group has committed offsets of some topics."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.rig.topics.counts = {TOPIC: 1, "hidden": 1}

    async def ask(self, row: Row, version: int, authorizer: Any) -> bytes:
        handler = GroupHandler(Host(self.rig), Rights(authorizer))  # type: ignore[arg-type]
        return await ask(handler, row, version, self.rig.settle)

    async def commit(self, *topics: str) -> Coordinator:
        partitions = [{"partition_index": 0, "committed_offset": 1}]
        values = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": topic, "partitions": partitions} for topic in topics],
        }
        await self.ask(Row(ApiKey.OFFSET_COMMIT, values, READ_GROUP, 30), 8, AllowAll())
        return self


async def check(row: Row, version: int, answer: Callable[[Any], Awaitable[bytes]]) -> None:
    for name, entries, allowed in rules(row):
        authorizer, told = authorizer_of(row, entries)
        what = f"{row} version {version}: {name}"
        codes = codes_of(row, version, await answer(authorizer))
        assert codes == (set() if allowed or not row.code else {row.code}), what
        assert told == ([] if allowed else [row.needs]), what


@pytest.mark.parametrize("row", [*PARTITION_ROWS, *NODE_ROWS], ids=str)
async def test_partitions_and_the_node_itself(cluster: MiniCluster, row: Row) -> None:
    node = cluster.nodes[1]
    for version in row.versions():
        if row.api in (ApiKey.PRODUCE, ApiKey.FETCH) and version >= 13 and row.code == 29:
            continue  # by an id that nobody knows: no topic to ask about
        # The topic is not there, which is told to nobody who may not see it.
        await check(
            row,
            version,
            lambda authorizer: ask(DataApis(node.manager, authorizer, lambda: True), row, version),  # noqa: B023
        )


async def test_markers_of_an_operator(cluster: MiniCluster) -> None:
    """Either right will do, and who has none is told of one: that which Kafka asks for aloud."""
    (row,) = (row for row in TRANSACTION_ROWS if row.api is ApiKey.WRITE_TXN_MARKERS)
    leading = LeadingSide(cluster.nodes[1].manager)
    for version in row.versions():
        await check(
            row,
            version,
            lambda authorizer: ask(WriteMarkersHandler(leading, Rights(authorizer)), row, version),  # noqa: B023
        )


@pytest.mark.parametrize("row", [*GROUP_ROWS, *TOPICS_OF_GROUPS_ROWS], ids=str)
async def test_groups_and_their_topics(row: Row) -> None:
    low, high = row.versions()[0], row.versions()[-1]
    # From version 10 on offsets are asked for by topic ids.
    for version in {low, min(high, 9 if row.api in (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH) else high)}:

        async def answer(authorizer: Any, version: int = version) -> bytes:
            return await (await Coordinator().commit(TOPIC)).ask(row, version, authorizer)

        await check(row, version, answer)


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        (None, []),
        (mine(AclOperation.DESCRIBE, ResourceType.GROUP, "group-", prefixed=True), [GROUP]),
        (mine(AclOperation.DESCRIBE, ResourceType.CLUSTER), [GROUP]),
        (mine(AclOperation.READ, ResourceType.GROUP, "other"), []),
    ],
)
async def test_groups_that_may_not_be_described_are_left_out_of_the_list(
    entry: Any, shown: list[str]
) -> None:
    row = Row(ApiKey.LIST_GROUPS, {}, READ_GROUP, 0)
    authorizer, told = authorizer_of(row, [] if entry is None else [entry])
    response = await (await Coordinator().commit(TOPIC)).ask(row, 4, authorizer)
    _, listed = codec.decode_response(row.api, 4, response)
    assert [g.group_id for g in listed.groups] == shown
    assert told == []


async def test_of_all_offsets_those_of_hidden_topics_are_left_out_without_a_word() -> None:
    row = Row(ApiKey.OFFSET_FETCH, {"groups": [{"group_id": GROUP, "topics": None}]}, READ_GROUP, 30)
    rights = [mine(*READ_GROUP), mine(AclOperation.READ, ResourceType.TOPIC, TOPIC)]
    authorizer, told = authorizer_of(row, rights)
    response = await (await Coordinator().commit(TOPIC, "hidden")).ask(row, 8, authorizer)
    (group,) = codec.decode_response(row.api, 8, response)[1].groups
    assert [t.name for t in group.topics] == [TOPIC]
    assert told == []
