"""What a controller remembers outlives it: nothing twice, nothing torn, and gaps are said to be there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock_controller.active import history as history_module
from penstock_controller.active.events_file import NAME, OLD_NAME, EventsFile
from penstock_controller.active.history import History
from penstock_controller.state.history.events import events_of
from penstock_controller.state.history.frames import frame, frames
from penstock_controller.state.history.memory import KEPT_MS
from penstock_proto.v1 import operations_pb2 as api
from support.told_cluster import BEGAN_MS, ToldCluster


class Clock:
    now_ms = BEGAN_MS + 3_600_000

    def __call__(self) -> int:
        return self.now_ms


class Remembering:
    """A run of a controller's history."""

    def __init__(
        self, directory: Path, events_max: int = 50_000, file_bytes_max: int = 32 * 1024 * 1024
    ) -> None:
        self.warnings: list[str] = []
        self.clock = Clock()
        self.history = History(self.clock, self.warnings.append, events_max)
        self._file = EventsFile(directory, file_bytes_max)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[History]:
        await self.history.open(self._file)
        task = asyncio.create_task(self.history.run())
        try:
            yield self.history
            await self.history.finish(10)
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._file.close()


def feed(history: History, cluster: ToldCluster, first: int = 0) -> None:
    for before, applied in cluster.steps[first:]:
        history.applied(before, applied)


async def everything(history: History, *subjects: str, limit: int = 5_000) -> api.ReadEventsResponse:
    await history.finish(10)
    return await history.read(api.ReadEventsRequest(subjects=subjects, limit=limit))


def cluster_with_a_past() -> ToldCluster:
    made = ToldCluster(1, 2, 3)
    made.create("t", (1, 2, 3), (2, 3, 1))
    for _ in range(20):
        made.fence(1)
        made.unfence(1)
        made.propose("t-0", (1, 2, 3), reason="node 1 caught up")
        made.propose("t-1", (1, 2, 3), reason="node 1 caught up")
    return made


async def test_a_replayed_journal_doubles_nothing(tmp_path: Path) -> None:
    cluster = cluster_with_a_past()
    async with Remembering(tmp_path).running() as history:
        feed(history, cluster)
        first = await everything(history)
    assert len(first.events) > 100
    assert first.incomplete_before_ms == 0
    async with Remembering(tmp_path).running() as history:
        feed(history, cluster)
        assert await everything(history) == first
        count = len(cluster.steps)
        cluster.fence(2)
        feed(history, cluster, count)
        more = await everything(history)
    assert list(more.events[: len(first.events)]) == list(first.events)
    assert more.events[-1].subject == "node 2"
    assert [e.version for e in more.events] == sorted(e.version for e in more.events)


async def test_a_torn_tail_is_cut_off_and_told_again_by_the_journal(tmp_path: Path) -> None:
    cluster = cluster_with_a_past()
    async with Remembering(tmp_path).running() as history:
        feed(history, cluster)
        whole = await everything(history)
    data = (tmp_path / NAME).read_bytes()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(10):
        keep = rng.randrange(len(data))
        torn = bytearray(data[:keep])
        if rng.random() < 0.5:
            torn += rng.randbytes(rng.randrange(200))
        (tmp_path / NAME).write_bytes(torn)
        async with Remembering(tmp_path).running() as history:
            feed(history, cluster)
            assert await everything(history) == whole, keep
        assert frames((tmp_path / NAME).read_bytes())[1] == (tmp_path / NAME).stat().st_size


async def test_of_a_command_that_was_half_written_nothing_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "FRAME_EVENTS", 2)
    cluster = ToldCluster(1, 2, 3)
    cluster.create("wide", *[(1, 2, 3)] * 9)
    cluster.fence(1)
    async with Remembering(tmp_path).running() as history:
        feed(history, cluster)
        whole = await everything(history)
    data = (tmp_path / NAME).read_bytes()
    found, _ = frames(data)
    assert [f.more for f in found].count(True) >= 4
    cut = data.rindex(found[-2].body)
    (tmp_path / NAME).write_bytes(data[: cut + len(found[-2].body)])
    async with Remembering(tmp_path).running() as history:
        feed(history, cluster)
        assert await everything(history) == whole


async def test_a_jump_by_snapshot_leaves_a_gap(tmp_path: Path) -> None:
    cluster = cluster_with_a_past()
    async with Remembering(tmp_path).running() as history:
        for before, applied in cluster.steps[:10]:
            history.applied(before, applied)
        image = cluster.steps[29][1].image
        history.jumped(image)
        assert (await everything(history)).incomplete_before_ms == Clock.now_ms, (
            "for now nothing newer is known"
        )
        feed(history, cluster, 30)
        read = await everything(history)
    assert read.incomplete_before_ms == cluster.steps[30][1].time_ms
    assert not any(10 < e.version <= 30 for e in read.events)
    async with Remembering(tmp_path).running() as history:
        history.jumped(image)
        feed(history, cluster, 30)
        assert await everything(history) == read, "a snapshot of what is known is no gap"


async def test_versions_without_events_are_no_gap_after_a_restart(tmp_path: Path) -> None:
    cluster = cluster_with_a_past()
    last = cluster.steps[-1][1]
    quiet = last._replace(image=last.image.apply([], last.image.version + 1), records=[], causes=())
    async with Remembering(tmp_path).running() as history:
        feed(history, cluster)
        history.applied(last.image, quiet)
        await everything(history)
    async with Remembering(tmp_path).running() as history:
        history.jumped(quiet.image)
        assert (await everything(history)).incomplete_before_ms == 0


async def test_two_files_take_turns_and_old_ones_go(tmp_path: Path) -> None:
    cluster = cluster_with_a_past()
    async with Remembering(tmp_path, file_bytes_max=8_000).running() as history:
        for before, applied in cluster.steps:
            history.applied(before, applied)
            await history.finish(10)
    sizes = [(tmp_path / name).stat().st_size for name in (NAME, OLD_NAME)]
    assert all(0 < size <= 8_000 for size in sizes), sizes
    kept = Remembering(tmp_path, file_bytes_max=8_000)
    async with kept.running() as history:
        read = await everything(history)
        assert [e.version for e in read.events] == sorted(e.version for e in read.events)
        assert read.events[-1].version == cluster.image.version
    late = Remembering(tmp_path)
    late.clock.now_ms = BEGAN_MS + KEPT_MS + 86_400_000
    async with late.running() as history:
        assert not (await everything(history)).events
    assert not (tmp_path / OLD_NAME).exists()


async def test_very_many_events_hold_nobody_up_and_the_newest_are_kept(tmp_path: Path) -> None:
    cluster = ToldCluster(1, 2, 3)
    cluster.create("wide", *[(1, 2, 3)] * 5_000)
    cluster.fence(1)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    remembering = Remembering(tmp_path, events_max=1_000)
    async with remembering.running() as history:
        task = asyncio.create_task(others())
        feed(history, cluster)
        read = await everything(history)
        task.cancel()
    assert turns > 10, "others ran in between"
    assert len(read.events) == 1_000
    assert read.events[-1].subject == "node 1"
    assert read.incomplete_before_ms > cluster.steps[-1][1].time_ms
    assert not remembering.warnings


async def test_a_directory_that_takes_no_file_is_told_once(tmp_path: Path) -> None:
    cluster = cluster_with_a_past()
    remembering = Remembering(tmp_path / "is not there")
    async with remembering.running() as history:
        feed(history, cluster)
        assert (await everything(history)).events
    (warning,) = remembering.warnings
    assert "events.log" in warning


async def test_a_command_that_cannot_be_told_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_with_a_past()
    real = events_of

    def failing(*step: Any) -> Any:
        if step[1].version == 20:
            raise KeyError("a fault")
        return real(*step)

    monkeypatch.setattr(history_module, "events_of", failing)
    remembering = Remembering(tmp_path)
    async with remembering.running() as history:
        feed(history, cluster)
        read = await everything(history)
    assert read.events[-1].version == cluster.image.version
    assert read.incomplete_before_ms == cluster.steps[20][1].time_ms
    assert "a fault" in remembering.warnings[0]


def test_a_frame_of_a_newer_build_is_passed_over() -> None:
    good = frame([api.ClusterEvent(version=1)], 1)
    (one,), end = frames(good)
    assert [e.version for e in one.events()] == [1]
    assert end == len(good)
    assert not one._replace(body=b"\xff\xff").events()
