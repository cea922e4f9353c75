"""Watchers of the metadata, and the worker that turns requests into commands."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from penstock_controller.active import metadata_stream as watchers_module
from penstock_controller.active.command_queue import CommandQueue, NotActive
from penstock_controller.active.metadata_stream import CutOff, MetadataStreams
from penstock_controller.quorum import Outcome, Quorum
from penstock_controller.state.generation import Context, Defaults, Generated
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb


def ids_record(value: int) -> pb.MetadataRecord:
    return pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=value))


def advance(target: MetadataStreams, count: int) -> None:
    for _ in range(count):
        record = ids_record(target.image.version + 1)
        target.applied(target.image.apply([record], target.image.version + 1), [record])


async def take(stream: AsyncIterator[api.WatchMetadataResponse], count: int) -> list[str]:
    """Versions and kinds of the next messages."""
    taken = []
    for _ in range(count):
        message = await anext(stream)
        kind = message.WhichOneof("event") or ""
        taken.append(f"{kind}{getattr(message, kind).version}")
    return taken


async def test_near_watchers_get_deltas_and_far_ones_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers_module, "HISTORY_COMMANDS_MAX", 5)
    target = MetadataStreams(lambda: (0, 0))
    advance(target, 10)
    near, far, even = target.watch(7), target.watch(2), target.watch(10)
    assert await take(near, 4) == ["delta8", "delta9", "delta10", "keepalive10"]
    assert await take(far, 2) == ["snapshot10", "keepalive10"]
    assert await take(even, 1) == ["keepalive10"]
    advance(target, 2)
    for stream in (near, far, even):
        assert await take(stream, 2) == ["delta11", "delta12"]
        await cast(Any, stream).aclose()
    assert target.count == 0


async def test_who_comes_after_the_level_fell_hears_nothing_of_before() -> None:
    """He may be of a build that cannot read it."""

    def level(version: int, wanted: int) -> None:
        record = pb.MetadataRecord(feature=pb.FeatureRecord(name="metadata.level", level=wanted))
        target.applied(target.image.apply([record], version), [record])

    target = MetadataStreams(lambda: (0, 0))
    level(1, 3)
    there = target.watch(0)
    assert await take(there, 2) == ["delta1", "keepalive1"]
    level(2, 2)
    advance(target, 1)
    assert await take(there, 2) == ["delta2", "delta3"]
    for known in (0, 1):
        assert await take(target.watch(known), 2) == ["snapshot3", "keepalive3"]
    assert await take(target.watch(2), 2) == ["delta3", "keepalive3"]


async def test_changes_during_a_snapshot_follow_it() -> None:
    target = MetadataStreams(lambda: (0, 0))
    topics = [
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=n.to_bytes(16, "big"), name=f"t{n}"))
        for n in range(250)
    ]
    target.reset(MetadataImage().apply(topics, 1))
    stream = target.watch(0)
    first = await anext(stream)
    assert (first.snapshot.first, first.snapshot.last, len(first.snapshot.records)) == (True, False, 100)
    advance(target, 1)
    second, third = await anext(stream), await anext(stream)
    assert (third.snapshot.last, len(third.snapshot.records)) == (True, 50)
    assert second.snapshot.version == third.snapshot.version == 1
    assert await take(stream, 2) == ["keepalive2", "delta2"]


async def test_slow_watchers_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers_module, "WATCHER_QUEUE_MAX", 3)
    target = MetadataStreams(lambda: (0, 0))
    stream = target.watch(0)
    await anext(stream)
    advance(target, 10)
    with pytest.raises(CutOff, match="fell behind"):
        await take(stream, 5)
    again = target.watch(3)
    assert (await take(again, 1)) == ["delta4"]
    target.reset(target.image)
    with pytest.raises(CutOff):
        await take(again, 20)


async def test_quiet_streams_carry_keepalives() -> None:
    stream = MetadataStreams(lambda: (17, 3), keepalive_s=0.01).watch(0)
    await anext(stream)
    told = (await anext(stream)).keepalive
    assert (told.leader_contact_age_ms, told.controller_term) == (17, 3)


class Proposals:
    """The quorum as the worker uses it: what was proposed, ended by the test."""

    def __init__(self) -> None:
        self.made: list[tuple[pb.MetadataCommand | None, Any]] = []
        self.bytes_max = 1 << 20

    def propose(self, command: bytes, token: object) -> None:
        if len(command) > self.bytes_max:
            raise PenstockError(ErrorCode.POLICY_VIOLATION, "too large")
        self.made.append((pb.MetadataCommand.FromString(command), token))

    def barrier(self, token: object) -> None:
        self.made.append((None, token))


Make = Callable[[], tuple[CommandQueue, Proposals]]


@pytest.fixture
async def worker_of() -> AsyncIterator[Make]:
    tasks: list[asyncio.Task[None]] = []

    def make() -> tuple[CommandQueue, Proposals]:
        proposals = Proposals()
        worker = CommandQueue(
            cast(Quorum, proposals), 1, Defaults(), random.Random(1), lambda: 0, lambda _: False
        )
        worker.set_active(True)
        tasks.append(asyncio.create_task(worker.run()))
        return worker, proposals

    yield make
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def allocate(ctx: Context) -> Generated[api.AllocateProducerIdsResponse]:
    first = ctx.image.next_producer_id
    return Generated(api.AllocateProducerIdsResponse(first_producer_id=first), [ids_record(first + 1000)])


def nothing(ctx: Context) -> Generated[api.ElectLeadersResponse]:
    return Generated(api.ElectLeadersResponse())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def commit(worker: CommandQueue, proposals: Proposals, outcome: Outcome = Outcome.APPLIED) -> None:
    command, token = proposals.made[-1]
    if outcome is Outcome.APPLIED and command is not None:
        worker.image = worker.image.apply(command.records, worker.image.version + 1)
    worker.proposal_ended(token, outcome)


async def test_waiting_requests_share_a_command(worker_of: Make) -> None:
    worker, proposals = worker_of()
    first = asyncio.create_task(worker.submit(allocate))
    await settle()
    others = [asyncio.create_task(worker.submit(allocate)) for _ in range(3)]
    await settle()
    assert len(proposals.made) == 1
    commit(worker, proposals)
    await settle()
    assert len(proposals.made) == 2
    command = proposals.made[1][0]
    assert command is not None
    assert (len(command.records), command.base_version) == (3, 1)
    assert not any(task.done() for task in others)
    commit(worker, proposals)
    replies = await asyncio.gather(first, *others)
    assert [r.first_producer_id for r in replies] == [0, 1000, 2000, 3000]


async def test_a_request_without_effect_waits_for_a_barrier(worker_of: Make) -> None:
    worker, proposals = worker_of()
    task = asyncio.create_task(worker.submit(nothing))
    await settle()
    assert proposals.made[0][0] is None
    assert not task.done()
    worker.image = worker.image.apply([ids_record(1)], 1)
    commit(worker, proposals)
    assert (await task).version == 0


async def test_stale_commands_are_generated_anew(worker_of: Make) -> None:
    worker, proposals = worker_of()
    tasks = [asyncio.create_task(worker.submit(allocate)) for _ in range(2)]
    await settle()
    worker.image = worker.image.apply([ids_record(7)], 1)
    commit(worker, proposals, Outcome.STALE)
    await settle()
    command = proposals.made[1][0]
    assert command is not None
    assert command.base_version == 1
    commit(worker, proposals)
    assert [(await t).first_producer_id for t in tasks] == [7, 1007]


async def test_lost_leadership_refuses_all_that_wait(worker_of: Make) -> None:
    worker, proposals = worker_of()
    flying = asyncio.create_task(worker.submit(allocate))
    await settle()
    waiting = asyncio.create_task(worker.submit(allocate))
    await settle()
    worker.set_active(False)
    for task in (flying, waiting, asyncio.create_task(worker.submit(allocate))):
        with pytest.raises(NotActive):
            await task
    worker.set_active(True)
    after = asyncio.create_task(worker.submit(allocate))
    await settle()
    assert len(proposals.made) == 2
    commit(worker, proposals)
    await after


async def test_errors_of_generators_reach_their_own_request(worker_of: Make) -> None:
    worker, proposals = worker_of()

    def bad(ctx: Context) -> Generated[bool]:
        raise PenstockError(ErrorCode.INVALID_REQUEST, "no")

    tasks = [asyncio.create_task(worker.submit(bad)), asyncio.create_task(worker.submit(allocate))]
    await settle()
    commit(worker, proposals)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], PenstockError)
    assert isinstance(results[1], api.AllocateProducerIdsResponse)


async def test_a_command_too_large_is_split_by_request(worker_of: Make) -> None:
    worker, proposals = worker_of()
    proposals.bytes_max = 60

    def large(ctx: Context) -> Generated[bool]:
        return Generated(True, [pb.MetadataRecord(topic=pb.TopicRecord(topic_id=b"t" * 16, name="n" * 100))])

    first = asyncio.create_task(worker.submit(allocate))
    await settle()
    tasks = [asyncio.create_task(worker.submit(g)) for g in (allocate, large, allocate)]
    for _ in range(4):
        await settle()
        if not proposals.made[-1][1].done():
            commit(worker, proposals)
    results = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert [type(r) for r in results] == [
        api.AllocateProducerIdsResponse,
        api.AllocateProducerIdsResponse,
        PenstockError,
        api.AllocateProducerIdsResponse,
    ]
