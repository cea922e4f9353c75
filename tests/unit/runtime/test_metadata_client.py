"""Following metadata: resume, snapshots, stalls, controllers that are behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from penstock_core.errors import InvariantBroken
from penstock_core.metadata.image import MetadataImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2
from penstock_runtime import metadata_client
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import monotonic_ms
from penstock_runtime.metadata_client import NEVER_MS, MetadataClient
from support.waiting import eventually
from unit.runtime.fake_controllers import Cluster, FakeController, controllers

Run = Callable[[Coroutine[Any, Any, Any]], Any]
IN_TIME_MS = 60_000
AGES_MS = 3_600_000


class Clock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


async def heard_now(metadata: MetadataClient, clock: Clock) -> None:
    """Wait until something has come since the clock was moved."""
    await eventually(lambda: metadata._last_message_ms == clock.now_ms, "a keepalive")


def topic(name: str) -> metadata_pb2.MetadataRecord:
    return metadata_pb2.MetadataRecord(
        topic=metadata_pb2.TopicRecord(topic_id=name.encode().rjust(16, b"\0"), name=name)
    )


def cluster_record() -> metadata_pb2.MetadataRecord:
    return metadata_pb2.MetadataRecord(cluster=metadata_pb2.ClusterRecord(cluster_id=bytes(15) + b"c"))


@contextlib.asynccontextmanager
async def following(
    count: int = 3, clock: Callable[[], int] = monotonic_ms
) -> AsyncIterator[tuple[MetadataClient, Cluster, list[FakeController], asyncio.Task[None]]]:
    async with controllers(count) as (cluster, members):
        cluster.commit(cluster_record())
        channels = ChannelPool()
        client = ControllerClient([m.endpoint.address for m in members], "test", channels)
        client._active = members[0].endpoint.address
        metadata = MetadataClient(client, "test", clock)
        task = asyncio.create_task(metadata.run())
        try:
            yield metadata, cluster, members, task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, InvariantBroken, ZeroDivisionError):
                await task
            await channels.close()


def test_who_knows_less_makes_no_news_older(run: Run) -> None:
    """A controller that has just begun, and has not heard of the active one, is no reason to cut clients off."""

    async def main() -> None:
        clock = Clock()
        async with following(clock=clock) as (metadata, _, members, _t):
            for member in members:
                member.keepalives = False
            assert await metadata.wait_for_version(1, IN_TIME_MS)
            version = metadata.image.version

            def hear(age_ms: int) -> int:
                told = api.WatchKeepalive(version=version, leader_contact_age_ms=age_ms)
                metadata._take(api.WatchMetadataResponse(keepalive=told))
                return metadata.contact_age_ms()

            # Nobody has confirmed the image yet: a controller that was cut off may have sent it.
            assert hear(90_000) == 90_000
            assert hear(20) == 20
            clock.now_ms += 1_000
            assert hear(2**31 - 1) == 1_020
            assert hear(500) == 500
            clock.now_ms += 100
            assert hear(2**31 - 1) == 600

    run(main())


def test_snapshot_then_deltas_in_order(run: Run) -> None:
    async def main() -> None:
        clock = Clock()
        async with following(clock=clock) as (metadata, cluster, _, _t):
            assert metadata.contact_age_ms() == NEVER_MS
            seen: list[tuple[int, int, int]] = []

            def changed(
                old: MetadataImage, new: MetadataImage, records: Sequence[metadata_pb2.MetadataRecord]
            ) -> None:
                assert metadata.image is new
                seen.append((old.version, new.version, len(records)))

            stop = metadata.on_change(changed)
            assert await metadata.wait_for_version(1, IN_TIME_MS)
            for i in range(100):
                cluster.commit(topic(f"t{i}"), topic(f"u{i}"))
            waits = [asyncio.create_task(metadata.wait_for_version(v, IN_TIME_MS)) for v in (101, 50, 2, 1)]
            assert await asyncio.gather(*waits) == [True] * 4
            assert len(metadata.image.topics) == 200
            assert seen == [(0, 1, 1)] + [(v, v + 1, 2) for v in range(1, 101)]
            assert metadata.contact_age_ms() == 0
            clock.now_ms += 700
            assert metadata.contact_age_ms() == 700
            assert not await metadata.wait_for_version(200, 50)
            assert not metadata._waiting
            stop()
            cluster.commit(topic("x"))
            assert await metadata.wait_for_version(102, IN_TIME_MS)
            assert len(seen) == 101

    run(main())


def test_a_broken_stream_resumes_by_version_elsewhere(run: Run) -> None:
    async def main() -> None:
        # With a clock that stands still nobody is too slow.
        async with following(clock=Clock()) as (metadata, cluster, members, _):
            assert await metadata.wait_for_version(1, IN_TIME_MS)
            assert metadata.watched_address == members[0].endpoint.address
            await members[0].kill()
            cluster.commit(topic("a"))
            assert await metadata.wait_for_version(2, IN_TIME_MS)
            assert (members[1].watch_from + members[2].watch_from)[0] == 1

    run(main())


def test_it_goes_on_when_its_channel_is_closed(run: Run) -> None:
    """As a day after new certificates came: what goes on by the old ones is cut off, and gRPC calls it cancelled."""

    async def main() -> None:
        async with following(clock=Clock()) as (metadata, cluster, members, task):
            assert await metadata.wait_for_version(1, IN_TIME_MS)
            await metadata._controllers._channels.drop(members[0].endpoint.address)
            cluster.commit(topic("a"))
            following_on = asyncio.create_task(metadata.wait_for_version(2, IN_TIME_MS))
            await asyncio.wait([task, following_on], return_when=asyncio.FIRST_COMPLETED)
            assert not task.done()
            assert await following_on

    run(main())


def test_a_silent_stream_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # It looks often; how long it was silent is the clock's affair.
    monkeypatch.setattr(metadata_client, "KEEPALIVE_MS", 20)
    stall_ms = metadata_client.STALL_MS

    async def main() -> None:
        clock = Clock()
        async with following(clock=clock) as (metadata, cluster, members, _):
            assert await metadata.wait_for_version(1, IN_TIME_MS)
            for _ in range(5):
                clock.now_ms += stall_ms - 1
                await heard_now(metadata, clock)
            assert members[0].watch_from == [0]  # keepalives kept it
            members[0].keepalives = False

            def elsewhere() -> bool:
                if members[1].watch_from + members[2].watch_from:
                    return True
                # A keepalive may still have been on its way.
                if metadata._last_message_ms == clock.now_ms:
                    clock.now_ms += stall_ms
                return False

            await eventually(elsewhere, "another stream")
            assert members[1].watch_from + members[2].watch_from == [1]
            cluster.commit(topic("a"))
            assert await metadata.wait_for_version(2, IN_TIME_MS)

    run(main())


def test_a_controller_that_never_answers_is_left(run: Run) -> None:
    async def main() -> None:
        async with following() as (metadata, _, members, _t):
            members[0].silent = True
            assert await metadata.wait_for_version(1, IN_TIME_MS)
            assert metadata.watched_address != members[0].endpoint.address

    run(main())


def test_it_never_goes_back(run: Run) -> None:
    async def main() -> None:
        async with following(2, Clock()) as (metadata, cluster, members, _):
            for i in range(5):
                cluster.commit(topic(f"t{i}"))
            assert await metadata.wait_for_version(6, IN_TIME_MS)
            members[1].behind = 3
            versions: list[int] = []
            metadata.on_change(lambda old, new, records: versions.append(new.version))
            await members[0].kill()
            await eventually(lambda: len(members[1].watch_from) >= 3, "attempts at the one that is behind")
            assert {*members[1].watch_from} == {6}
            assert metadata.image.version == 6
            members[1].behind = 0
            cluster.commit(topic("after"))
            assert await metadata.wait_for_version(7, IN_TIME_MS)
            assert versions == [7]

    run(main())


def test_history_that_is_gone_comes_as_a_snapshot(run: Run) -> None:
    async def main() -> None:
        async with following(2) as (metadata, cluster, members, _):
            assert await metadata.wait_for_version(1, IN_TIME_MS)
            await members[0].kill()
            await members[1].kill()
            for i in range(5):
                cluster.commit(topic(f"t{i}"))
            members[1].history_kept_from = 100
            await members[1].start(members[1].endpoint.address)
            assert await metadata.wait_for_version(6, IN_TIME_MS)
            assert len(metadata.image.topics) == 5

    run(main())


def test_the_stream_moves_to_the_new_active_controller(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_client, "KEEPALIVE_MS", 20)
    monkeypatch.setattr(metadata_client, "STALL_MS", AGES_MS)

    async def main() -> None:
        clock = Clock()
        async with following(clock=clock) as (metadata, cluster, members, _):
            assert await metadata.wait_for_version(1, IN_TIME_MS)
            metadata._controllers._active = members[2].endpoint.address
            clock.now_ms += metadata_client.MOVE_AFTER_MS - 1
            await heard_now(metadata, clock)
            assert metadata.watched_address == members[0].endpoint.address
            clock.now_ms += 1
            await eventually(
                lambda: metadata.watched_address == members[2].endpoint.address, "a stream to the active one"
            )
            assert members[2].watch_from == [1]
            cluster.commit(topic("a"))
            assert await metadata.wait_for_version(2, IN_TIME_MS)

    run(main())


def test_parted_histories_end_the_role(run: Run) -> None:
    async def main() -> None:
        async with following(1) as (metadata, cluster, _, task):
            assert await metadata.wait_for_version(1, IN_TIME_MS)
            cluster.history.append(
                [metadata_pb2.MetadataRecord(partition=metadata_pb2.PartitionRecord(topic_id=bytes(16)))]
            )
            object.__setattr__(cluster.image, "version", 2)
            cluster.changed.set()
            cluster.changed = asyncio.Event()
            with pytest.raises(InvariantBroken):
                await task

    run(main())


def test_a_callback_that_raises_ends_the_role(run: Run) -> None:
    async def main() -> None:
        async with following(1) as (metadata, _, _m, task):

            def fail(old: object, new: object, records: object) -> None:
                raise ZeroDivisionError

            metadata.on_change(fail)
            with pytest.raises(ZeroDivisionError):
                await task

    run(main())
