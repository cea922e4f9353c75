"""Compaction and retention on a disk that fails, and beside cuts and deletions, on real nodes in this process."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from node.harness import KEY, MiniCluster, MiniNode, eventually
from node.test_cluster import hosted
from node.test_compaction import SMALL, compaction_of, write
from node.test_disk_faults import FaultyFileSystem
from penstock_core.errors import ErrorCode
from penstock_kafka.records.batch import iter_batches
from penstock_runtime.settings import load_settings
from penstock_storage_node.log import FileSystem
from penstock_storage_node.log.compaction import worker
from penstock_storage_node.log.compaction.rewrite import Cleaner, CleanRequest
from penstock_storage_node.log.recovery import DAMAGED_MARKER
from penstock_storage_node.replica.background import BackgroundJobs
from penstock_storage_node.replica.compactor import Worker
from penstock_storage_node.settings import StorageNodeSettings


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = await MiniCluster(tmp_path).start(2)
    yield made
    for node in made.nodes.values():
        await node.stop(clean=False)


async def filled(cluster: MiniCluster) -> MiniNode:
    """Node 1 leads, and has something to compact."""
    cluster.make_topic(isr=(1, 2), **SMALL)
    await write(cluster, 0, 60)
    for node in cluster.nodes.values():
        await eventually(lambda n=node: n.partition.replica.high_watermark == 60)
    return cluster.nodes[1]


def flip(node: MiniNode, number: int) -> None:
    path = Path(node.partition.log.segments[number].path)
    data = bytearray(path.read_bytes())
    bad = list(iter_batches(bytes(data)))[1]
    data[bad.position + bad.size_bytes - 5] ^= 16
    with path.open("r+b") as file:
        file.write(data)


async def test_damage_that_the_worker_meets_counts_as_damage_that_a_reader_meets(
    cluster: MiniCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    node = await filled(cluster)
    flip(node, 1)
    base_offset = node.partition.log.segments[1].base_offset
    compaction = compaction_of(node)
    assert await compaction.run_once()
    await eventually(lambda: node.manager.health.failed)
    assert node.partition.replica.leadership is None
    assert (node.partition.log.directory / DAMAGED_MARKER).read_text() == f"{base_offset}\n"
    assert (node.metrics.damaged_segments, compaction.failure_count) == (1, 1)
    assert not await compaction.run_once()
    assert compaction.failure_count == 1
    assert "delete the partition" not in capsys.readouterr().out


async def test_the_only_in_sync_replica_goes_on_with_a_damaged_segment(
    cluster: MiniCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    node = await filled(cluster)
    cluster.set_isr(1)
    flip(node, 1)
    compaction = compaction_of(node)
    assert await compaction.run_once()
    assert not await compaction.run_once()
    assert not node.manager.health.failed
    assert node.partition.replica.leadership is not None
    said = capsys.readouterr().out
    assert said.count("data damaged") == 1 and said.count("log not compacted: a segment is damaged") == 1


async def test_what_only_the_worker_finds_damaged_is_tried_again(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = await filled(cluster)
    base_offset = node.partition.log.segments[1].base_offset

    async def hear(self: Worker) -> dict[str, Any]:
        return {"error": "x.log: wrong CRC at byte 7", "kind": "damaged", "base_offset": base_offset}

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "hear", hear)
        compaction = compaction_of(node)
        await compaction.run_once()
    assert compaction.failure_count == 1 and not node.manager.health.failed
    assert "this process did not" in capsys.readouterr().out
    compaction.begin_interval()
    assert await compaction.run_once()
    await compaction.end_worker()
    assert compaction.run_count == 1


async def test_a_cut_below_the_worker_is_no_damage(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await filled(cluster)
    log = node.partition.log

    async def hear(self: Worker) -> dict[str, Any]:
        monkeypatch.undo()
        await node.partition.exclusive(lambda: log.truncate_to(log.segments[1].base_offset + 1))
        return {"error": "x.log: no batch at byte 7", "kind": "damaged", "base_offset": 0}

    monkeypatch.setattr(Worker, "hear", hear)
    compaction = compaction_of(node)
    await compaction.run_once()
    await compaction.end_worker()
    assert compaction.failure_count == 1
    assert not compaction._damaged and not node.manager.health.failed and not node.metrics.damaged_segments


async def test_a_run_that_a_cut_or_a_deletion_overtakes_leaves_no_row(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await filled(cluster)
    log, real = node.partition.log, Worker.hear
    cut = log.segments[1].base_offset + 1

    async def hear(self: Worker) -> dict[str, Any]:
        answer = await real(self)
        if "done" in answer:
            await node.partition.exclusive(lambda: log.truncate_to(cut))
        return answer

    monkeypatch.setattr(Worker, "hear", hear)
    compaction = compaction_of(node)
    await compaction.run_once()
    await compaction.end_worker()
    assert (compaction.run_count, compaction.failure_count) == (0, 1)
    assert node.directory.offsets.cleaned_until(log) == 0


class InProcess:
    """As `Worker`, without a process. Every new segment lets go of a tombstone."""

    async def tell(self, message: dict[str, Any]) -> None:
        if "clean" in message:
            request = worker.request_from(json.loads(json.dumps(message["clean"])))
            self._groups = Cleaner(FileSystem(), request).run()

    async def hear(self) -> dict[str, Any]:
        group = next(self._groups)
        return {"group": asdict(group) | {"tombstones_gone_below": group.base_offset + 1}}

    async def end(self) -> None:
        """Nothing is there to be ended."""


async def test_a_new_segment_that_is_not_taken_for_want_of_space_takes_none(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await filled(cluster)

    def note(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(node.directory.offsets, "note_tombstones_gone", note)
    compaction = compaction_of(node)
    compaction._start_worker = cast(Any, InProcess)
    assert not await compaction.run_once()
    assert compaction.failure_count == 1
    assert not [path.name for path in node.partition.log.directory.iterdir() if path.suffix == ".cleaned"]


def test_the_worker_names_a_disk_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class BadSector(FileSystem):
        def pread(self, fd: int, size: int, position: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(worker, "FileSystem", BadSector)
    (tmp_path / f"{0:020d}.log").write_bytes(bytes(1000))
    request = CleanRequest(str(tmp_path), ((0, 1000),), 0, 1, 0, 0, 1000, 100, 100)
    said: list[dict[str, Any]] = []
    line = json.dumps({"clean": asdict(request), "bytes_per_s": 0}) + "\n"
    worker.serve(io.StringIO(line), said.append)
    assert [(each["kind"], "Input/output" in each["error"]) for each in said] == [("unreadable", True)]


async def test_a_disk_that_the_worker_cannot_read_has_failed(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await filled(cluster)

    async def hear(self: Worker) -> dict[str, Any]:
        return {"error": "[Errno 5] Input/output error", "kind": "unreadable"}

    monkeypatch.setattr(Worker, "hear", hear)
    compaction = compaction_of(node)
    await compaction.run_once()
    assert node.manager.health.failed
    assert node.partition.replica.leadership is None


async def started_anew_on_a_bad_disk(cluster: MiniCluster) -> MiniNode:
    """Node 1, with old segments of which it has to read the timestamps, and can't."""
    cluster.make_topic(isr=(1, 2), segment_bytes="4096", retention_ms="3600000")
    await hosted(cluster)
    for number in range(40):
        assert (await cluster.nodes[1].produce(b"%d" % number * 200)).error == ErrorCode.NONE
    await cluster.nodes.pop(1).stop()
    fs = FaultyFileSystem()
    node = await cluster.start_node(1, fs=fs)
    await eventually(lambda: KEY in node.manager.registry.partitions)
    assert node.partition.log.segment_count > 2
    fs.read_error = errno.EIO
    return node


async def test_retention_that_cannot_read_is_a_failed_disk(cluster: MiniCluster) -> None:
    node = await started_anew_on_a_bad_disk(cluster)
    flags = ["--data-dir", str(node.path), "--retention-check-interval-ms", "100"]
    settings = load_settings(StorageNodeSettings, flags, "storage-node")
    housekeeping = BackgroundJobs(node.manager, node.directory, settings)
    node.manager.lifecycle.create_task(housekeeping._retention(), "retention in this test")
    await eventually(lambda: node.manager.health.failed)


async def test_trimming_that_cannot_read_is_a_failed_disk(cluster: MiniCluster) -> None:
    node = await started_anew_on_a_bad_disk(cluster)
    assert not node.manager.health.failed
    node.manager.log_starts.drop_old_segments(node.partition)
    await eventually(lambda: node.manager.health.failed)
