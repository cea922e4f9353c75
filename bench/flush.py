"""What a commit costs: each file's own flush, one `syncfs` for all, one journal per node.

    python -m bench.flush [--folder DIR] [--json]

Real logs and the real disk pool of a storage node, without network and replication. Each busy
partition appends one batch, waits until it is committed, and appends the next one. Ways take
turns in short slices, so that a busy machine is busy for all of them: read the ratios. Bounded
by time and bytes; what it wrote is removed.

  files     each job is flushed by itself (what `group_flush = off` does)
  syncfs    whatever is written gets one syncfs, always
  adaptive  the node's own choice between the two (the default)
  journal   jobs are written to their files unflushed, and once more to one journal that is
            flushed for all of them: what such a design costs at least, without its recovery
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock_core.config.topic import TopicConfig
from penstock_core.ids import TopicId
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.check import accept_produced
from penstock_storage_node.disk.group_flush import FlushCosts, open_group_flush
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import Appended, FileSystem, LogIdentity, LogPorts, PartitionLog, WriteJob
from penstock_storage_node.log.fs import write_fully

WAYS = ("files", "syncfs", "adaptive", "journal")
PARTITIONS = (1, 10, 100)
THREADS = 4
SLICE_BYTES_MAX = 256 * 1024 * 1024
"""One way's slice ends there, if its time is not up."""


class Always(FlushCosts):
    """One syncfs, for a single file too."""

    def prefers_group(self, jobs: int) -> bool:
        return True


class JournalPool(DiskPool):
    """Commits by one journal file."""

    journal: tuple[FileSystem, int]
    position = 0

    def _flush_together(self, commits: Sequence[WriteJob]) -> None:
        fs, fd = self.journal
        started_s = time.perf_counter()
        buffers = [buffer for commit in commits for step in commit.plan.steps for buffer in step.buffers]
        self.position = write_fully(fs, fd, buffers, self.position)
        fs.fdatasync(fd)
        self._batcher.note(time.perf_counter() - started_s, grouped=True)
        self._batcher.on_flushed()
        for commit in commits:
            commit.release()
        self._settle(commits, None)


class Busy:
    """One partition that always has a batch to commit."""

    def __init__(self, pool: DiskPool, log: PartitionLog, batch: bytes, info: Any) -> None:
        self._pool, self._log, self._batch, self._info = pool, log, batch, info
        self.latencies_s: list[float] = []
        self.done = asyncio.get_running_loop().create_future()
        self.stop_at_s = 0.0

    def go_on(self) -> None:
        now_s = time.perf_counter()
        if now_s >= self.stop_at_s or len(self.latencies_s) * len(self._batch) > SLICE_BYTES_MAX:
            self.done.set_result(None)
            return
        appended = self._log.append_as_leader(memoryview(self._batch), self._info, 0)
        if not isinstance(appended, Appended):
            raise TypeError("the bench's batches have no producer id")
        job = self._log.next_job()
        if job is None:
            raise RuntimeError("a job is out already")
        taken: WriteJob = job

        def finish(_: object, error: BaseException | None) -> None:
            if error is not None:
                raise error
            self._log.complete(taken)
            self.latencies_s.append(time.perf_counter() - now_s)
            self.go_on()

        self._pool.commit(taken, finish)


async def one_slice(
    way: str, partitions: int, folder: Path, seconds: float, batch: bytes
) -> tuple[list[float], float, int]:
    """(latencies in s, seconds taken, bytes) of one way."""
    fs = FileSystem()
    pool = (JournalPool if way == "journal" else DiskPool)(THREADS)
    place = folder / f"{way}-{partitions}"
    place.mkdir()
    settings = TopicConfig()
    if way != "files":
        group, why_not = open_group_flush(fs, str(folder))
        if group is None:
            raise SystemExit(f"{folder}: {why_not}")
        pool.use_group_flush(group)
    if way in ("syncfs", "journal"):
        pool._batcher.costs = Always(THREADS)
    if isinstance(pool, JournalPool):
        pool.journal = (fs, fs.create(str(place / "journal")))
    accepted, info = accept_produced(memoryview(batch), settings, time.time_ns() // 1_000_000)
    busy: list[Busy] = []
    for number in range(partitions):
        path = place / f"t-{number}"
        path.mkdir()
        ports = LogPorts(fs, lambda: time.time_ns() // 1_000_000)
        log = PartitionLog.create(ports, path, settings, LogIdentity("t", number, TopicId(bytes(16))))
        busy.append(Busy(pool, log, bytes(accepted), info))
    os.sync()
    started_s = time.perf_counter()
    for each in busy:
        each.stop_at_s = started_s + seconds
        each.go_on()
    for each in busy:
        await each.done
    took_s = time.perf_counter() - started_s
    latencies_s = [latency for each in busy for latency in each.latencies_s]
    pool.stop()
    fs.files.close_all()
    shutil.rmtree(place)
    return latencies_s, took_s, len(latencies_s) * len(batch)


def measure(folder: Path, seconds: float, rounds: int, batch_bytes: int) -> list[dict[str, Any]]:
    """One row per way and number of partitions."""
    batch = build_batch([NewRecord(key=None, value=os.urandom(batch_bytes - 100), timestamp_ms=-1)])
    rows: list[dict[str, Any]] = []
    for partitions in PARTITIONS:
        found: dict[str, list[tuple[list[float], float, int]]] = {way: [] for way in WAYS}
        for turn in range(rounds):
            for way in WAYS[turn % len(WAYS) :] + WAYS[: turn % len(WAYS)]:
                found[way].append(asyncio.run(one_slice(way, partitions, folder, seconds, batch)))
        base_ms = 0.0
        for way in WAYS:
            latencies_ms = sorted(1000 * latency for slice_ in found[way] for latency in slice_[0])
            p50_ms = statistics.median(latencies_ms)
            base_ms = base_ms or p50_ms
            rows.append(
                {
                    "partitions": partitions,
                    "way": way,
                    "commits": len(latencies_ms),
                    "p50_ms": round(p50_ms, 2),
                    "p95_ms": round(latencies_ms[int(len(latencies_ms) * 0.95)], 2),
                    "mb_per_s": round(sum(s[2] for s in found[way]) / sum(s[1] for s in found[way]) / 1e6, 1),
                    "p50_to_files": round(p50_ms / base_ms, 2),
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write; on the disk to measure")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one slice")
    parser.add_argument("--rounds", type=int, default=4, help="slices of each way")
    parser.add_argument("--batch-bytes", type=int, default=16 * 1024)
    parser.add_argument("--json", action="store_true", help="rows as JSON on stdout")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-flush-", dir=given.folder) as folder:
        rows = measure(Path(folder), given.seconds, given.rounds, given.batch_bytes)
    if given.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return 0
    columns = list(rows[0])
    print("  ".join(f"{name:>12}" for name in columns))
    for row in rows:
        print("  ".join(f"{row[name]!s:>12}" for name in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
