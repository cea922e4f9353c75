"""Random walks of appends, flushes, cuts and crashes, against a model of the log."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_storage_node.log import LogState
from support.simulated_fs import (
    SimulatedCrash,
    SimulatedFile,
    SimulatedFileSystem,
    keep_all,
    keep_random,
    keep_synced,
)
from unit.storage_node.log.log_model import (
    NOW_MS,
    Model,
    add,
    check_prefix,
    make_batch,
    new_log,
    reopen,
    run_job,
)

ROUNDS = int(os.environ.get("PENSTOCK_LOG_ROUNDS", "60"))
SEED = int(os.environ.get("PENSTOCK_LOG_SEED", "20251121"))


class Walk:
    """One seeded run of random steps with a crash at a random system call, and the check after it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.fs = SimulatedFileSystem(rng)
        self.fs.cold_chance = rng.choice((0.0, 0.3))
        self.fs.short_write_chance = rng.choice((0.0, 0.3))
        self.settings = TopicConfig(
            segment_bytes=rng.choice((400, 1000, 5000)),
            index_interval_bytes=rng.choice((0, 100, 500)),
            durability=rng.choice(("fsync", "fsync", "replicated")),
        )
        self.model = Model()
        self.epoch = 0
        self.sequences: dict[int, int] = {}
        self.directory, self.log = new_log(self.fs, self.settings)
        self.floor = 0  # offsets below must survive any crash

    def batch(self) -> bytes:
        count = self.rng.randint(1, 4)
        return make_batch(
            count,
            value_bytes=self.rng.randrange(1, 60),
            timestamp_ms=NOW_MS + self.rng.randrange(1000),
            producer=self.next_sequence(count),
        )

    def next_sequence(self, count: int) -> tuple[int, int, int] | None:
        if self.rng.random() < 0.5:
            return None
        producer_id = self.rng.randrange(3)
        entry = self.log._data.producers.get(producer_id)
        first = 0 if entry is None else entry.last_sequence + 1
        del count
        return producer_id, 0, first

    def step(self) -> None:
        choice = self.rng.random()
        if choice < 0.55:
            self.append()
        elif choice < 0.75:
            if self.rng.random() < 0.2:
                self.meet_a_full_disk()
            run_job(self.log)
            self.floor = max(self.floor, self.log.flushed_offset)
        elif choice < 0.80:
            job = self.log.next_flush_job(everything=self.rng.random() < 0.5)
            if job is not None:
                job.run()
                self.log.complete_flush(job)
                self.floor = max(self.floor, self.log.flushed_offset)
        elif choice < 0.85:
            self.truncate()
        elif choice < 0.90:
            self.directory.offsets.write([(self.log, self.log.flushed_offset)])
        elif choice < 0.94:
            self.epoch += 1
            self.log.start_epoch(self.epoch)
        elif choice < 0.96:
            self.crash(self.rng.choice((keep_all, keep_synced, keep_random(self.rng))))
        elif choice < 0.98:
            self.clean_restart()
        else:
            self.model.check(self.log, self.rng.choice((1, 300, 5000)))

    def meet_a_full_disk(self) -> None:
        self.fs.space_bytes = self.rng.randrange(1500)
        try:
            while run_job(self.log):
                pass
        except OSError:
            assert self.log.state is LogState.FULL
            self.model.check(self.log)
        self.fs.space_bytes = None
        run_job(self.log, retry=True)

    def append(self) -> None:
        if self.rng.random() < 0.3:  # as a follower: several batches, stored as they come
            other = Model()
            _, leader = new_log(SimulatedFileSystem(random.Random(0)))
            leader.truncate_fully_and_start_at(self.log.log_end_offset)
            other.end = self.log.log_end_offset
            for _ in range(self.rng.randint(1, 5)):
                add(leader, other, make_batch(self.rng.randint(1, 4)), epoch=max(self.epoch, 0))
            records = b"".join(data for _, data in other.batches)
            self.log.append_as_follower(records, self.epoch)
            self.model.add([records])
        else:
            add(self.log, self.model, self.batch(), epoch=self.epoch)

    def truncate(self) -> None:
        starts = [info.base_offset for info, _ in self.model.batches] + [self.model.end]
        target = self.rng.randint(0, self.model.end)
        self.floor = min(self.floor, max(start for start in starts if start <= target))
        end = self.log.truncate_to(target)
        self.model.cut(end)
        self.epoch += 1

    def crash(self, content: Callable[[str, SimulatedFile], bytes]) -> None:
        keep_everything = content is keep_all
        names = (lambda count: count) if keep_everything else (lambda count: self.rng.randint(0, count))
        cold, short = self.fs.cold_chance, self.fs.short_write_chance
        disk = self.fs.restart() if keep_everything else self.fs.crash(content, keep_names=names)
        if self.rng.random() < 0.3:  # crash again while recovering
            disk.crash_countdown = self.rng.randrange(12)
            with suppress(SimulatedCrash):
                reopen(disk, self.settings)
            disk = disk.crash(keep_random(self.rng), keep_names=lambda count: self.rng.randint(0, count))
        disk.cold_chance, disk.short_write_chance = cold, short
        self.fs = disk
        self.directory, self.log = reopen(disk, self.settings)
        check_prefix(self.log, self.model, self.floor)
        self.model.cut(self.log.log_end_offset)
        self.floor = self.log.log_end_offset
        self.check_state()

    def check_state(self) -> None:
        """What the log remembers agrees with what a reader of the batches would say."""
        assert self.log.epoch_entries() == self.model.epoch_starts()
        last: dict[int, list[tuple[int, int, int, int]]] = {}
        for info, _ in self.model.batches:
            if info.producer_id >= 0:
                row = (info.base_sequence, info.last_sequence, info.base_offset, info.last_offset)
                last.setdefault(info.producer_id, []).append(row)
        for producer_id, rows in last.items():
            entry = self.log._data.producers.get(producer_id)
            assert entry is not None
            assert entry.batches == rows[-5:]
        best = max((info.max_timestamp for info, _ in self.model.batches), default=-1)
        found = self.log.offset_of_max_timestamp(self.model.end)
        assert (found[1] if found else -1) == best

    def clean_restart(self) -> None:
        self.log.close(clean=True)
        self.directory.offsets.write([(self.log, self.log.log_end_offset)])
        self.directory.close(clean=True)
        disk = self.fs.crash(keep_synced, keep_names=lambda count: 0)
        disk.cold_chance, disk.short_write_chance = self.fs.cold_chance, self.fs.short_write_chance
        self.fs = disk
        self.directory, self.log = reopen(disk, self.settings)
        assert not self.log.recovered_from_unclean
        self.model.check(self.log)
        self.floor = self.model.end
        self.epoch = max(self.epoch, self.log.latest_epoch)
        self.check_state_after_clean_stop()

    def check_state_after_clean_stop(self) -> None:
        entries = [row for row in self.log.epoch_entries() if row[1] < self.model.end]
        assert entries == self.model.epoch_starts()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.rng.random() < 0.03:
                self.fs.crash_countdown = self.rng.randrange(15)
            before, floor = replace(self.model, batches=list(self.model.batches)), self.floor
            try:
                self.step()
            except SimulatedCrash:
                # The step was cut off: what it appended may be there or not, what it cut off too.
                known = self.model if self.model.end >= before.end else before
                self.model = replace(known, batches=list(known.batches))
                self.floor = min(floor, self.floor)
                self.fs.crash_countdown = None
                self.crash(keep_random(self.rng))
            self.fs.crash_countdown = None
            assert self.log.state is LogState.OK


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_random_walk_against_a_model(seed: int) -> None:
    Walk(seed).run(250)
