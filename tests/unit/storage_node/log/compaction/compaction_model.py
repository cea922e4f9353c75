"""A compacted log beside the dict that it should answer like, and one run of compaction as a node does it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from penstock_core.config.topic import TopicConfig
from penstock_kafka.records.batch import BatchInfo, is_crc_valid, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import Record, read_records
from penstock_storage_node.log import Appended, PartitionLog
from penstock_storage_node.log.compaction.rewrite import Cleaner, CleanStats
from support.simulated_fs import SimulatedFileSystem
from unit.storage_node.log.log_model import NOW_MS, append, read_all_batches, run_job

COMPACT = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=1500,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)


def batch_of(
    *records: tuple[bytes | None, bytes | None], codec: int = 0, producer: tuple[int, int, int] | None = None
) -> bytes:
    rows = [NewRecord(key, value, NOW_MS + i) for i, (key, value) in enumerate(records)]
    if producer is None:
        return build_batch(rows, codec=codec)
    return build_batch(
        rows, codec=codec, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
    )


def compact(
    fs: SimulatedFileSystem,
    log: PartitionLog,
    *,
    now_ms: int = NOW_MS,
    cleaned_until: int = 0,
    high_watermark: int | None = None,
    map_bytes: int = 1 << 16,
) -> CleanStats | None:
    """One run, swapped in as a node does it."""
    plan = log.plan_cleaning(
        cleaned_until,
        log.last_stable_offset(log.log_end_offset if high_watermark is None else high_watermark),
        now_ms,
    )
    if plan is None or not plan.is_due:
        return None
    cleaner = Cleaner(fs, log.cleaning_request(plan, now_ms, map_bytes))
    sources = {segment.base_offset: segment for segment in plan.sources}
    for group in cleaner.run():
        replaced = [sources[base] for base in group.sources]
        assert log.swap_files(group, replaced, plan)
        log.adopt_swapped(group, replaced)()
    return cleaner.stats


def compact_all(fs: SimulatedFileSystem, log: PartitionLog, cleaned_until: int = 0, **options: int) -> int:
    """Runs until nothing is dirty; returns where the clean part ends."""
    done = cleaned_until
    while (stats := compact(fs, log, cleaned_until=done, **options)) is not None:
        assert stats.cleaned_until > done
        done = stats.cleaned_until
    return done


@lru_cache(maxsize=20_000)
def opened(batch: bytes) -> tuple[BatchInfo, list[Record]]:
    assert is_crc_valid(batch)
    return read_header(batch), list(read_records(batch))


def records(log: PartitionLog) -> Iterator[tuple[BatchInfo, Record]]:
    for batch in read_all_batches(log, 1 << 16):
        info, found = opened(batch)
        for record in found:
            yield info, record


def latest(log: PartitionLog) -> dict[bytes, tuple[int, bytes | None]]:
    """By key: offset and value of the last record; offsets must rise."""
    found: dict[bytes, tuple[int, bytes | None]] = {}
    before = -1
    for info, record in records(log):
        assert before < record.offset <= info.last_offset
        before = record.offset
        assert record.key is not None
        found[record.key] = (record.offset, record.value)
    return found


def roll(log: PartitionLog) -> None:
    """Close the active segment with one record, so that all before it can be compacted."""
    append(log, batch_of((b"zz-roll", bytes(1400))))
    run_job(log)


@dataclass
class Expected:
    """What a compacted log owes its readers."""

    last: dict[bytes, tuple[int, bytes | None]] = field(default_factory=dict)
    all: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    end: int = 0

    def add(self, log: PartitionLog, rows: list[tuple[bytes, bytes | None]], **options: int) -> None:
        staged = append(log, batch_of(*rows, **options))  # type: ignore[arg-type]
        assert isinstance(staged, Appended)
        for delta, (key, value) in enumerate(rows):
            self.last[key] = (staged.base_offset + delta, value)
            self.all[staged.base_offset + delta] = (key, value)
        self.end = log.log_end_offset

    def check(self, log: PartitionLog, *, tombstones_may_go: bool = False) -> None:
        """Every key's last record is there, and nothing that never was."""
        found = latest(log)
        for key, (offset, value) in self.last.items():
            if value is None and tombstones_may_go:
                assert found.get(key, (offset, None)) == (offset, None), key
            else:
                assert found.get(key) == (offset, value), key
        for _, record in records(log):
            assert self.all[record.offset] == (record.key, record.value)
        assert log.log_end_offset == self.end


def fill(
    log: PartitionLog,
    rng: random.Random,
    expected: Expected,
    batches: int,
    keys: int = 12,
    codecs: tuple[int, ...] = (0, 0, 1, 2, 3, 4),
) -> None:
    for number in range(batches):
        rows: list[tuple[bytes, bytes | None]] = [
            (b"k%d" % rng.randrange(keys), None if rng.random() < 0.15 else rng.randbytes(rng.randrange(60)))
            for _ in range(rng.randint(1, 6))
        ]
        expected.add(log, rows, codec=rng.choice(codecs))
        if number % 5 == 4:
            run_job(log)
    run_job(log)
