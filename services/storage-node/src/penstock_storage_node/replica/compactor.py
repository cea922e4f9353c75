"""Compaction of this node's logs: which one, when, and the worker process that does it.

Each replica compacts its own log, leader or not, as in Kafka. One run at a time on a node: the
dirtiest log first, a worker process (`log.cleaner_worker`) started for it and ended when there
is no more to do, its reading and writing kept under a rate. The worker writes new segments; the
event loop only has them swapped in, one by one, by the disk pool.

A run that fails changes nothing: what was swapped in before is right by itself, because a record
only goes after one that supersedes it is there, and the checkpoint moves when all is done. The log is
then passed over for 1, 2, 4... intervals, so that it doesn't keep the others waiting, and why is said
once. One with a damaged segment is left alone until the node starts anew. On a full disk all wait.
"""

from __future__ import annotations

import asyncio
import errno
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock_core.errors import PenstockError
from penstock_core.ids import TopicPartition
from penstock_storage_node.disk.health import is_full, is_unreadable
from penstock_storage_node.log import LogDirectory, LogState, reading
from penstock_storage_node.log.compaction import swap as swap_files
from penstock_storage_node.log.compaction.plan import CleaningPlan
from penstock_storage_node.log.compaction.rewrite import CleanedGroup
from penstock_storage_node.log.segment import Segment
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.settings import StorageNodeSettings

WORKER = "penstock_storage_node.log.compaction.worker"
LINE_BYTES_MAX = 16 * 1024 * 1024
ENDED = "the compaction worker ended"
END_TIMEOUT_S = 5.0

PASS_OVER_INTERVALS_MAX = 64
"""A log whose runs fail is tried again after that many intervals at the latest."""

_MENDS = {
    "damaged": "a segment is damaged and stays as it is",
    "full": "the disk is full; free space",
    "invalid": "a batch's records can't be read, though its CRC is right; copy the topic without it to another one",
    "large": "a batch can't be written anew; copy the topic to another one in smaller batches",
    "other": "if it doesn't go away by itself, mend what the reason names",
    "unreadable": "the disk failed",
}
"""What to do, by the kind of failure."""


class RunFailed(Exception):
    """A run ended before its time. `kind` is the worker's word for it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True)
class PassedOver:
    """A log whose last run failed."""

    failure_count: int = 0
    until: int = 0
    """The interval in which it is tried again."""
    said: set[str] = field(default_factory=set)
    """Kinds of failure that were logged."""


class Worker:
    """The process, and a thread that waits for its lines.

    Started by `Popen`, which makes the new process without a copy of this one (vfork): forking beside
    gRPC's threads is not safe.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compaction")

    async def tell(self, message: dict[str, Any]) -> None:
        """Send a line. Raises RunFailed."""
        data = json.dumps(message).encode() + b"\n"
        await self._run(lambda: self._write(data))

    def _write(self, data: bytes) -> None:
        pipe = self._process.stdin
        try:
            if pipe is None:
                raise BrokenPipeError
            pipe.write(data)
            pipe.flush()
        except OSError:
            raise self._ended() from None

    def _ended(self) -> RunFailed:
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return RunFailed("other", ENDED)
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return RunFailed("other", f"{ENDED}: {how}")

    async def hear(self) -> dict[str, Any]:
        """The next line. Raises RunFailed."""
        pipe = self._process.stdout
        line: bytes = await self._run(lambda: b"" if pipe is None else pipe.readline(LINE_BYTES_MAX))
        if not line.endswith(b"\n"):
            raise await self._run(self._ended)
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _run(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def end(self) -> None:
        """Close its stdin, which ends it; kill it should it not end."""
        await self._run(self._end)
        self._thread.shutdown(wait=False)

    def _end(self) -> None:
        process = self._process
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def kill(self) -> None:
        """At once: the node stops."""
        self._process.kill()
        self._process.wait()
        self._thread.shutdown(wait=True)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class Compactor:
    """A task for the life of the role."""

    def __init__(
        self,
        manager: ReplicaManager,
        directory: LogDirectory,
        settings: StorageNodeSettings,
        start_worker: Callable[[], Worker] = Worker,
    ) -> None:
        self._manager = manager
        self._directory = directory
        self._settings = settings
        self._wall_ms = manager.wall_ms
        self._clock_s = manager.clocks.s
        self._start_worker = start_worker
        self._damaged: set[TopicPartition] = set()
        self._passed_over: dict[TopicPartition, PassedOver] = {}
        self._interval = 0
        self._worker: Worker | None = None
        self.run_count = 0
        self.failure_count = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.dirty_ratio = 0.0
        """Of the dirtiest log when they were last looked at."""
        self._last_run_s: float | None = None
        metrics = manager.metrics
        metrics.counters |= {
            "compaction_runs": ("Compactions of a log that were done.", lambda: self.run_count),
            "compaction_failures": ("Compactions that were given up.", lambda: self.failure_count),
            "compaction_in_bytes": ("Bytes that compactions have read to rewrite.", lambda: self.bytes_in),
            "compaction_out_bytes": ("Bytes that were left of them.", lambda: self.bytes_out),
        }
        metrics.gauges |= {
            "compaction_dirty_ratio": (
                "Dirty part of the dirtiest compacted log, 0..1.",
                lambda: self.dirty_ratio,
            ),
            "compaction_last_run_age_seconds": (
                "Time since a compaction was done; -1 before the first.",
                lambda: -1.0 if self._last_run_s is None else self._clock_s() - self._last_run_s,
            ),
        }

    def start(self) -> None:
        """Begin."""
        self._manager.lifecycle.create_task(self._run(), "compaction")

    async def _run(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._settings.compaction_interval_ms / 1000)
                self.begin_interval()
                while not self._manager.health.failed and await self.run_once():
                    pass
                await self.end_worker()
        finally:
            if self._worker is not None:
                self._worker.kill()

    def begin_interval(self) -> None:
        """Time has passed: logs whose runs failed come nearer to the next try."""
        self._interval += 1
        for key in self._passed_over.keys() - self._manager.registry.partitions.keys():
            del self._passed_over[key]

    async def end_worker(self) -> None:
        """Let the process end; the next run starts another one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.end()

    async def run_once(self) -> bool:
        """Compact the dirtiest log, or give it up for now. False when no other is worth a look."""
        best: tuple[Partition, CleaningPlan] | None = None
        self.dirty_ratio = 0.0
        for partition in list(self._manager.registry.partitions.values()):
            if not partition.log.settings.is_compacted or self._is_passed_over(partition.key):
                continue
            found = await self._plan(partition)
            if found is None:
                continue
            self.dirty_ratio = max(self.dirty_ratio, found.ratio)
            rank = (found.must, found.ratio)
            if found.is_due and (best is None or rank > (best[1].must, best[1].ratio)):
                best = partition, found
        if best is None:
            return False
        partition, plan = best
        if partition.compacting or partition.closed:
            return False
        partition.compacting = True
        try:
            await self._compact(partition, plan)
        except (RunFailed, PenstockError, OSError) as e:
            self.failure_count += 1
            await self.end_worker()
            return self._give_up(partition, e)
        finally:
            partition.compacting = False
        self._passed_over.pop(partition.key, None)
        return True

    def _is_passed_over(self, key: TopicPartition) -> bool:
        found = self._passed_over.get(key)
        return key in self._damaged or (found is not None and self._interval < found.until)

    async def _plan(self, partition: Partition) -> CleaningPlan | None:
        log = partition.log
        if log.segment_count < 2:
            return None  # as most logs of many small ones: nothing to ask the pool for
        if partition.closed or partition.busy or log.state is not LogState.OK:
            return None
        done, cut_count = self._directory.offsets.cleaned_until(log), log.cut_count
        stable, now_ms = log.last_stable_offset(partition.replica.high_watermark), self._wall_ms()
        plan: CleaningPlan | None
        try:
            plan = await partition.look_up(lambda: log.plan_cleaning(done, stable, now_ms))
        except (OSError, PenstockError):
            return None
        return plan if plan is not None and plan.cut_count == cut_count else None

    async def _compact(self, partition: Partition, plan: CleaningPlan) -> None:
        log, started_s = partition.log, self._clock_s()
        await self._manager.pool.run(lambda: self._directory.offsets.mark_compacted(log.topic, log.partition))
        request = log.cleaning_request(plan, self._wall_ms(), self._settings.compaction_map_bytes)
        if self._worker is None:
            self._worker = self._start_worker()
        worker = self._worker
        await worker.tell(
            {"clean": asdict(request), "bytes_per_s": self._settings.compaction_bytes_per_second}
        )
        sources = {segment.base_offset: segment for segment in plan.sources}
        while "group" in (answer := await worker.hear()):
            values = answer["group"]
            group = CleanedGroup(sources=tuple(values.pop("sources")), **values)
            swapped = await self._swap(partition, group, [sources[base] for base in group.sources], plan)
            await worker.tell({"go": swapped})
        if "done" not in answer:
            raise await self._failure(partition, plan, answer)
        stats = answer["done"]
        cleaned_until = stats["cleaned_until"]
        if not await self._manager.pool.run(
            lambda: self._directory.offsets.set_cleaned(log, cleaned_until, plan.cut_count)
        ):
            raise RunFailed("gone", "the log was cut or closed meanwhile")
        self.run_count += 1
        self.bytes_in += stats["bytes_in"]
        self.bytes_out += stats["bytes_out"]
        self._last_run_s = self._clock_s()
        if stats["records_out"] < stats["records_in"]:
            self._manager.lifecycle.log.info(
                "log compacted",
                partition=partition.name,
                up_to_offset=cleaned_until,
                bytes_in=stats["bytes_in"],
                bytes_out=stats["bytes_out"],
                records_in=stats["records_in"],
                records_out=stats["records_out"],
                ms=round((self._last_run_s - started_s) * 1000),
            )

    async def _failure(self, partition: Partition, plan: CleaningPlan, answer: dict[str, Any]) -> RunFailed:
        """What to make of the worker's word that it can't go on."""
        kind, message, log = answer["kind"], answer["error"], partition.log
        if partition.closed or log.cut_count != plan.cut_count:
            return RunFailed("gone", message)
        if kind == "unreadable":
            self._manager.health.fail(partition.name, OSError(errno.EIO, message))
        if kind != "damaged":
            return RunFailed(kind, message)
        # Before this node gives up its roles for it, it looks for itself; the partition notes what is found.
        (segment,) = (each for each in plan.sources if each.base_offset == answer["base_offset"])
        segment.found_bytes, segment.is_walked = segment.written, False
        try:
            await partition.look_up(
                lambda: reading.trust(self._directory.fs, segment, segment.written, log.end_of(segment))
            )
        except (PenstockError, OSError) as e:
            return RunFailed("damaged", str(e))
        return RunFailed("other", f"{message}, as the worker read it and this process did not")

    async def _swap(
        self, partition: Partition, group: CleanedGroup, sources: list[Segment], plan: CleaningPlan
    ) -> bool:
        log, pool = partition.log, self._manager.pool
        remove: list[Callable[[], None]] = []

        def apply(swapped: bool) -> None:
            if swapped:
                remove.append(log.adopt_swapped(group, sources))

        def discard() -> None:
            swap_files.discard(self._directory.fs, str(log.directory), group)

        gone_below = group.tombstones_gone_below
        try:
            if gone_below > log.tombstones_gone_below:
                # First: from the swap on, replicas that come back may miss them.
                note = self._directory.offsets.note_tombstones_gone
                await pool.run(lambda: note(log, gone_below, plan.cut_count))
            if not partition.closed:
                await partition.swap(lambda: log.swap_files(group, sources, plan), apply)
        except (PenstockError, OSError):
            # A full disk, mostly: what will not be used takes no room there.
            await pool.run(discard)
            raise
        if not remove:
            await pool.run(discard)
            return False
        await pool.run(remove[0])
        return True

    def _give_up(self, partition: Partition, error: Exception) -> bool:
        """Leave a log alone for a while; whether others may be compacted meanwhile."""
        kind = error.kind if isinstance(error, RunFailed) else "full" if is_full(error) else "other"
        found = self._passed_over.setdefault(partition.key, PassedOver())
        if kind == "gone" or partition.closed:
            # Retention, a new leader or the topic's deletion was faster.
            found.until = self._interval + 1
            return True
        if kind == "damaged":
            self._damaged.add(partition.key)
        elif kind != "full":
            found.until = self._interval + min(2**found.failure_count, PASS_OVER_INTERVALS_MAX)
            found.failure_count += 1
        if is_unreadable(error):
            self._manager.health.fail(partition.name, error)
        if kind not in found.said:
            found.said.add(kind)
            log = self._manager.lifecycle.log
            say = log.error if kind in ("damaged", "invalid", "large") else log.warning
            say(f"log not compacted: {_MENDS[kind]}", partition=partition.name, reason=str(error))
        return kind != "full"
