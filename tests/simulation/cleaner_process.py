"""The compaction worker's process without a process.

Stands in for `compaction.Worker`. The shipped `Cleaner` runs on the disk of the host, with
descriptors of its own, one new segment at a time; what it has to say takes the time that its
bytes take. It may die at any change of the disk, alone or with its whole host, and leaves
there what it has written so far.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock_storage_node.log.compaction.rewrite import CleanedGroup, Cleaner
from penstock_storage_node.log.compaction.worker import GivenUp, request_from, word_for
from penstock_storage_node.log.segment import file_stem
from penstock_storage_node.replica.compactor import ENDED, RunFailed
from support.simulated_fs import SimulatedCrash, SimulatedFileSystem

if TYPE_CHECKING:
    from simulation.process import Process

START_US_MAX = 80_000
LINE_US_MAX = 3_000
US_PER_BYTE_MAX = 20.0
"""As on a busy machine, or with a low `compaction_bytes_per_second`: a run takes a while."""

DEATH_CHANCE = 0.04
"""That a run doesn't live to its end."""

DEATH_CHANGES_MAX = 16


class _Killed(BaseException):
    """The process ends here: not one more line of it runs, and not one more change of it reaches the disk."""


class _WorkerDisk(SimulatedFileSystem):
    """The host's disk as the worker has it, until it dies."""

    def __init__(self, disk: SimulatedFileSystem, changes_left: int | None) -> None:
        super().__init__(disk.random, open_files_max=16, first=disk)
        self.short_write_chance = disk.short_write_chance
        self.changes_left = changes_left
        """Before the process dies; None: it lives."""

    def _change(self, call: str, path: str) -> None:
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise _Killed
        super()._change(call, path)


class SimWorker:
    """As `compaction.Worker`, on the simulated clock."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = self._process.world
        self._rng = self._world.log_life.rng
        self._groups: Iterator[CleanedGroup] | None = None
        self._cleaner: Cleaner | None = None
        self._directory = ""
        self._sources: tuple[int, ...] = ()
        """Of the segment that was told last."""
        self._disk: _WorkerDisk | None = None
        self._is_wanted = True
        self._bytes = 0
        self._is_dead = False
        self._wait_us = int(self._rng.random() * START_US_MAX)
        self.counts: Counter[str] = self._world.counts

    async def tell(self, message: dict[str, Any]) -> None:
        """A line to the process. Raises RunFailed."""
        message = json.loads(json.dumps(message))
        await self._pass(self._wait_us + int(self._rng.random() * LINE_US_MAX))
        self._wait_us = 0
        if self._is_dead:
            raise self._ended()
        if "clean" in message:
            rng = self._rng
            dies_at = rng.randrange(DEATH_CHANGES_MAX) if rng.random() < DEATH_CHANCE else None
            self._disk = _WorkerDisk(self._process.fs, dies_at)  # type: ignore[attr-defined]
            self._directory = message["clean"]["directory"]
            self._cleaner = Cleaner(self._disk, request_from(message["clean"]), self._note)
            self._groups = self._cleaner.run()
            self._is_wanted = True
            return
        self._is_wanted = message["go"]
        assert self._disk is not None
        for base_offset in self._sources:
            self._disk.files.forget(f"{self._directory}/{file_stem(base_offset)}.log")

    def _note(self, size: int) -> None:
        self._bytes += size

    async def hear(self) -> dict[str, Any]:
        """Its next line. Raises RunFailed."""
        await self._pass(int(self._rng.random() * LINE_US_MAX))
        answer = None if self._is_dead else self._work()
        speed, self._bytes = self._rng.random() ** 3 * US_PER_BYTE_MAX * self._bytes, 0
        await self._pass(int(speed))
        if answer is None or self._is_dead:
            raise self._ended()
        found: dict[str, Any] = json.loads(json.dumps(answer))
        return found

    def _work(self) -> dict[str, Any] | None:
        """On to the next thing to say, as `cleaner_worker.serve`; None: it died."""
        assert self._groups is not None and self._cleaner is not None
        try:
            if not self._is_wanted:
                self._groups.close()  # type: ignore[attr-defined]
                raise GivenUp
            for group in self._groups:
                self._sources = group.sources
                return {"group": asdict(group)}
            return {"done": asdict(self._cleaner.stats)}
        except _Killed:
            self.counts["compaction workers killed"] += 1
            self._is_dead = True
            return None
        except SimulatedCrash as crash:
            self._is_dead = True
            self._process.failed(crash)
            return None
        except Exception as error:
            return word_for(error)

    def _ended(self) -> RunFailed:
        return RunFailed("other", f"{ENDED}: killed by signal 9")

    async def _pass(self, delay_us: int) -> None:
        """Time goes by, as it does for whoever waits for a process."""
        future: asyncio.Future[None] = self._process.loop.create_future()

        def over() -> None:
            if not future.done():
                future.set_result(None)

        self._process.after(delay_us, self._process.loop.call_now, over)
        await future

    async def end(self) -> None:
        """Its stdin is closed."""
        await self._pass(int(self._rng.random() * LINE_US_MAX))
        self.kill()

    def kill(self) -> None:
        """At once."""
        self._is_dead = True
        self._groups = self._cleaner = None
