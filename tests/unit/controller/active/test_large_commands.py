"""Commands of many records: parts that count together or not at all, made and applied in slices."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock_controller.active import command_queue as worker_module
from penstock_controller.active.command_queue import (
    PART_RECORDS,
    PARTS_WAITING_MAX,
    RECORDS_PER_COMMAND,
    CommandQueue,
    NotActive,
)
from penstock_controller.active.metadata_stream import CHUNK_RECORDS, MetadataStreams
from penstock_controller.quorum import Applied, Outcome, Quorum
from penstock_controller.quorum.machine import Machine
from penstock_controller.state import nodes, topics
from penstock_controller.state.generation import Context, Defaults, Generated
from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.metadata_client import MetadataClient

PARTITIONS = 100_000


def ids_record(value: int) -> pb.MetadataRecord:
    return pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=value))


def part(number: int, value: int, *, more: bool, base: int = 0, command_id: int = 7) -> bytes:
    return pb.MetadataCommand(
        base_version=base, records=[ids_record(value)], command_id=command_id, part=number, more=more
    ).SerializeToString()


def machine(image: MetadataImage | None = None) -> tuple[Machine, list[Applied], list[BaseException]]:
    applied: list[Applied] = []
    fatal: list[BaseException] = []
    return Machine(image or MetadataImage(), applied.append, fatal.append), applied, fatal


def is_between_parts(target: Machine) -> bool:
    return target.is_between_parts


# --- the state machine ---------------------------------------------------------------------


def test_parts_count_together_with_the_last_one() -> None:
    target, applied, fatal = machine()
    assert target.apply(part(0, 1, more=True)) is Outcome.STAGED
    assert is_between_parts(target)
    assert target.apply(part(1, 2, more=True)) is Outcome.STAGED
    assert (target.image.version, applied) == (0, [])
    assert target.apply(part(2, 3, more=False)) is Outcome.APPLIED
    assert not is_between_parts(target)
    assert (target.image.version, target.image.next_producer_id) == (1, 3)
    assert [(a.image.version, len(a.records)) for a in applied] == [(1, 3)]
    assert not fatal


def drop_by_no_op(target: Machine) -> None:
    target.interrupt()


def drop_by_snapshot(target: Machine) -> None:
    target.reset(target.image)


def drop_by_stale_command(target: Machine) -> None:
    assert target.apply(part(0, 9, more=False, base=5)) is Outcome.STALE


def drop_by_new_run(target: Machine) -> None:
    assert target.apply(part(0, 1, more=True, command_id=8)) is Outcome.STAGED


def drop_by_gap(target: Machine) -> None:
    assert target.apply(part(2, 1, more=True)) is Outcome.STALE


@pytest.mark.parametrize(
    "drop",
    [drop_by_no_op, drop_by_snapshot, drop_by_stale_command, drop_by_new_run, drop_by_gap],
)
def test_anything_in_between_undoes_the_parts(drop: Callable[[Machine], None]) -> None:
    target, applied, fatal = machine()
    assert target.apply(part(0, 1, more=True)) is Outcome.STAGED
    drop(target)
    assert target.apply(part(1, 2, more=False)) is Outcome.STALE
    assert not is_between_parts(target)
    assert (target.image.version, applied, fatal) == (0, [], [])
    # And the next command is as if nothing had been.
    assert target.apply(part(0, 4, more=False)) is Outcome.APPLIED
    assert target.image.next_producer_id == 4


def test_a_doubled_first_part_begins_anew() -> None:
    target, applied, _ = machine()
    for _ in range(2):
        assert target.apply(part(0, 1, more=True)) is Outcome.STAGED
    assert target.apply(part(1, 2, more=False)) is Outcome.APPLIED
    assert len(applied[0].records) == 2


# --- the worker ----------------------------------------------------------------------------


class Log:
    """A quorum that commits at once, or when told; applies to a machine as the tick thread does."""

    def __init__(self, image: MetadataImage) -> None:
        self.machine, self.applied, self.fatal = machine(image)
        self.worker: CommandQueue
        self.sizes: list[int] = []
        self.waiting = 0
        self.waiting_max = 0
        self.before: Callable[[int], None] = lambda _: None
        """Called with the number of an entry before it is applied."""

    def propose(self, command: bytes, token: object) -> None:
        self.sizes.append(len(command))
        self.waiting += 1
        self.waiting_max = max(self.waiting_max, self.waiting)
        asyncio.get_running_loop().call_later(0, self._commit, len(self.sizes), command, token)

    def _commit(self, number: int, command: bytes, token: object) -> None:
        self.waiting -= 1
        self.before(number)
        outcome = self.machine.apply(command)
        self.worker.image = self.machine.image
        self.worker.proposal_ended(token, outcome)

    def barrier(self, token: object) -> None:
        self.machine.interrupt()
        self.worker.proposal_ended(token, Outcome.APPLIED)


async def submit(log: Log, *generate: Callable[[Context], Generated[Any]]) -> list[Any]:
    worker = log.worker = CommandQueue(
        cast(Quorum, log), 1, Defaults(), random.Random(1), lambda: 0, lambda _: False
    )
    worker.image = log.machine.image
    worker.set_active(True)
    task = asyncio.create_task(worker.run())
    try:
        return await asyncio.gather(*(worker.submit(g) for g in generate), return_exceptions=True)
    finally:
        task.cancel()
        await asyncio.wait([task])


def counting(count: int) -> Callable[[Context], Generated[int]]:
    def generate(ctx: Context) -> Generated[int]:
        first = ctx.image.next_producer_id
        return Generated(first, [], (ids_record(first + n + 1) if n % 3 else None for n in range(count)))

    return generate


async def test_many_records_go_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a slow machine, too, several parts fit into a slice.
    monkeypatch.setattr(worker_module, "SLICE_MS", 1_000)
    log = Log(MetadataImage())
    count = 50 * PART_RECORDS
    assert await submit(log, counting(count)) == [0]
    assert len(log.applied) == 1
    assert len(log.applied[0].records) == count - (count + 2) // 3
    assert len(log.sizes) > 30
    assert 1 < log.waiting_max <= PARTS_WAITING_MAX + 1
    assert log.machine.image.version == 1


async def test_requests_behind_a_large_one_see_what_it_made() -> None:
    log = Log(MetadataImage())
    replies = await submit(log, counting(5), counting(30 * PART_RECORDS), counting(5))
    assert [r > before for before, r in zip((-1, 0, 2000), replies, strict=True)] == [True] * 3
    # Small ones share a command with what comes before, the large one ends it.
    assert log.machine.image.version == 2


async def test_a_list_that_is_too_long_goes_out_in_parts_too() -> None:
    log = Log(MetadataImage())
    count = RECORDS_PER_COMMAND + 1

    def generate(_ctx: Context) -> Generated[bool]:
        return Generated(True, [ids_record(n + 1) for n in range(count)])

    assert await submit(log, generate) == [True]
    assert (log.machine.image.next_producer_id, len(log.applied)) == (count, 1)
    assert max(log.sizes) < 64 * 1024


async def test_a_command_between_the_parts_makes_it_begin_anew() -> None:
    log = Log(MetadataImage())

    def late_command(number: int) -> None:
        if number == 5:
            # Of a controller that led before: it is applied, and the parts do not count.
            assert log.machine.apply(part(0, 500_000, more=False)) is Outcome.APPLIED

    log.before = late_command
    assert await submit(log, counting(30 * PART_RECORDS)) == [500_000]
    assert [a.image.version for a in log.applied] == [1, 2]


async def test_leadership_lost_between_the_parts() -> None:
    log = Log(MetadataImage())
    log.before = lambda number: log.worker.set_active(False) if number == 5 else None
    (reply,) = await submit(log, counting(30 * PART_RECORDS))
    assert isinstance(reply, NotActive)
    assert log.machine.image.version == 0
    assert len(log.sizes) < 5 + 2 * PARTS_WAITING_MAX


def large_image(partitions: int) -> MetadataImage:
    """Three nodes that hold everything, the third of them leading a third."""
    records: list[pb.MetadataRecord] = [
        pb.MetadataRecord(node=pb.NodeRecord(node_id=n, node_epoch=n, directory_id=uuid.UUID(int=n).bytes))
        for n in (1, 2, 3)
    ]
    for number in range(partitions):
        topic_id = uuid.UUID(int=number // 1000).bytes
        if number % 1000 == 0:
            topic = pb.TopicRecord(topic_id=topic_id, name=f"t{number // 1000}")
            records.append(pb.MetadataRecord(topic=topic))
        replicas = [1 + (number + n) % 3 for n in range(3)]
        partition = pb.PartitionRecord(
            topic_id=topic_id,
            partition=number % 1000,
            replicas=replicas,
            isr=replicas,
            leader=replicas[0],
            partition_epoch=1,
        )
        records.append(pb.MetadataRecord(partition=partition))
    return MetadataImage.from_records(records, 10)


def isr_count(image: MetadataImage, node_id: NodeId) -> int:
    return sum(node_id in p.isr for t in image.topics.values() for p in t.partitions.values())


def leaders(image: MetadataImage) -> set[int]:
    return {p.leader for t in image.topics.values() for p in t.partitions.values()}


@pytest.mark.timeout(600)
async def test_a_node_of_a_hundred_thousand_partitions_is_fenced() -> None:
    """Out of every ISR in the same version (rule "Who counts as dead"); every entry is far below its bound."""
    log = Log(large_image(PARTITIONS))
    dead = NodeId(3)
    assert isr_count(log.machine.image, dead) == PARTITIONS
    assert await submit(log, lambda ctx: nodes.fence_node(ctx, dead, 3)) == [True]
    image = log.machine.image
    assert (image.version, isr_count(image, dead), image.nodes[dead].fenced) == (11, 0, True)
    assert leaders(image) == {1, 2}
    assert len(log.applied) == 1
    assert max(log.sizes) < 64 * 1024
    assert len(log.sizes) > PARTITIONS // PART_RECORDS


async def test_a_topic_of_a_large_cluster_is_answered_with_the_version_that_has_it() -> None:
    """Whoever asked waits for that version, so that the topic is there when it looks (rule "One metadata version")."""
    log = Log(large_image(6_000))
    wanted = api.NewTopic(name="new", partition_count=2, replication_factor=3)
    request = api.CreateTopicsRequest(topics=[wanted])
    (reply,) = await submit(log, lambda ctx: topics.create_topics(ctx, request))
    assert not reply.topics[0].error.code
    assert log.machine.image.topic("new") is not None
    assert reply.version == log.machine.image.version == 11


async def test_large_nodes_drain_die_and_come_back() -> None:
    log = Log(large_image(3_000))
    assert await submit(log, lambda ctx: nodes.drain_node(ctx, NodeId(3), 3)) == [True]
    assert (log.machine.image.version, isr_count(log.machine.image, NodeId(3))) == (11, 0)
    assert await submit(log, lambda ctx: nodes.fence_node(ctx, NodeId(2), 2)) == [True]
    assert await submit(log, lambda ctx: nodes.fence_node(ctx, NodeId(1), 1)) == [True]
    assert leaders(log.machine.image) == {NO_NODE}
    assert await submit(log, lambda ctx: nodes.unfence_node(ctx, NodeId(1), 1)) == [True]
    assert leaders(log.machine.image) == {1}
    # A quick restart: the new registration is fenced again, and in no ISR where it is not the last.
    request = api.RegisterNodeRequest(node_id=1, directory_id=uuid.UUID(int=1).bytes)
    (reply,) = await submit(log, lambda ctx: nodes.register_node(ctx, request))
    assert (reply.error.code, reply.node_epoch, reply.version) == (0, 15, 15)
    assert leaders(log.machine.image) == {NO_NODE}
    assert not log.fatal


# --- subscribers ---------------------------------------------------------------------------------


async def test_large_deltas_and_snapshots_reach_a_subscriber_in_parts() -> None:
    source = MetadataStreams(lambda: (0, 0))
    source.reset(large_image(3_000))
    channels = ChannelPool()
    client = MetadataClient(ControllerClient(["127.0.0.1:1"], "t", channels), "t", lambda: 0)
    stream = source.watch(0)
    kinds: list[str] = []
    changes: list[int] = []
    client.on_change(lambda _old, new, records: changes.append(len(records)))

    async def follow(version: int) -> None:
        while client.image.version < version:
            message = await anext(stream)
            kind = message.WhichOneof("event") or ""
            kinds.append(kind)
            assert len(getattr(message, kind).records if kind != "keepalive" else ()) <= CHUNK_RECORDS
            assert client._take(api.WatchMetadataResponse.FromString(message.SerializeToString())) == ""

    await follow(10)
    assert client.image == source.image
    made = nodes.fence_node(Context(source.image, random.Random(1)), NodeId(3), 3).all_records()
    source.applied(source.image.apply(made, 11), made)
    # What comes after is not mixed into it.
    small = [ids_record(1)]
    source.applied(source.image.apply(small, 12), small)
    await follow(12)
    assert client.image == source.image
    assert changes == [3_006, 3_001, 1]
    assert kinds.count("delta") == 3_001 // CHUNK_RECORDS + 2
    # One who comes later with version 10 gets the same parts.
    late = source.watch(10)
    parts = [(await anext(late)).delta for _ in range(32)]
    assert [(p.version, p.part, p.more) for p in parts[-3:]] == [
        (11, 29, True),
        (11, 30, False),
        (12, 0, False),
    ]
    await late.aclose()  # type: ignore[attr-defined]
    await stream.aclose()  # type: ignore[attr-defined]
    await channels.close()


async def test_a_part_that_is_missing_ends_the_stream() -> None:
    channels = ChannelPool()
    client = MetadataClient(ControllerClient(["127.0.0.1:1"], "t", channels), "t", lambda: 0)

    def delta(number: int, *, more: bool) -> api.WatchMetadataResponse:
        return api.WatchMetadataResponse(
            delta=pb.MetadataDelta(version=1, records=[ids_record(number + 1)], part=number, more=more)
        )

    assert client._take(delta(0, more=True)) == ""
    assert "out of order" in client._take(delta(2, more=False))
    assert client.image.version == 0
    await channels.close()


async def test_a_deposed_controllers_keepalive_is_no_news() -> None:
    channels = ChannelPool()
    controllers = ControllerClient(["127.0.0.1:1"], "t", channels)
    client = MetadataClient(controllers, "t", lambda: 0)

    def keepalive(term: int) -> api.WatchMetadataResponse:
        return api.WatchMetadataResponse(keepalive=api.WatchKeepalive(controller_term=term))

    assert client._take(keepalive(4)) == ""
    assert controllers.note_term(5)
    assert "deposed: of term 4" in client._take(keepalive(4))
    assert client._take(keepalive(5)) == ""
    assert client._take(keepalive(0)) == ""
    assert not controllers.note_term(4)
    await channels.close()
