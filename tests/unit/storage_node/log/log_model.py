"""A log on a simulated disk beside the list of batches that it should hold."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock_core.config.topic import TopicConfig
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import BatchInfo, Buffer, iter_batches, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_storage_node.log import (
    Appended,
    DirectoryPorts,
    Duplicate,
    LogDirectory,
    PartitionLog,
    ReadData,
    ReadJob,
)
from support.simulated_fs import SimulatedFileSystem

TOPIC_ID = TopicId(bytes(range(16)))
ROOT = Path("/data")
NOW_MS = 1_700_000_000_000
SMALL = TopicConfig(segment_bytes=1000, index_interval_bytes=200)


def make_batch(
    count: int = 1,
    *,
    value_bytes: int = 20,
    timestamp_ms: int = NOW_MS,
    codec: int = 0,
    producer: tuple[int, int, int] | None = None,
) -> bytes:
    """A batch as a producer sends it; `producer` is (id, epoch, base sequence)."""
    records = [NewRecord(b"k", bytes([65 + i % 26]) * value_bytes, timestamp_ms + i) for i in range(count)]
    if producer is None:
        return build_batch(records, codec=codec)
    return build_batch(
        records, codec=codec, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
    )


def new_disk(seed: int = 1) -> SimulatedFileSystem:
    return SimulatedFileSystem(random.Random(seed))


def open_directory(fs: SimulatedFileSystem) -> LogDirectory:
    return LogDirectory.open(DirectoryPorts(fs, lambda: NOW_MS), ROOT)


def new_log(
    fs: SimulatedFileSystem, settings: TopicConfig | None = None
) -> tuple[LogDirectory, PartitionLog]:
    directory = open_directory(fs)
    return directory, directory.create_log("t", 0, TOPIC_ID, settings or TopicConfig())


def reopen(fs: SimulatedFileSystem, settings: TopicConfig | None = None) -> tuple[LogDirectory, PartitionLog]:
    directory = open_directory(fs)
    (found,) = directory.scan()
    log = directory.open_log(found, settings or TopicConfig())
    log.validate()
    return directory, log


def append(log: PartitionLog, batch: bytes, epoch: int = 0) -> Appended | Duplicate:
    result = log.append_as_leader(memoryview(batch), read_header(batch), epoch)
    log.validate()
    return result


def run_job(log: PartitionLog, *, retry: bool = False) -> bool:
    """Write what is staged; False when there was nothing. Raises what the job raised."""
    job = log.next_job(retry=retry)
    if job is None:
        return False
    try:
        job.run()
    except OSError as error:
        log.fail(job, error)
        log.validate()
        raise
    log.complete(job)
    log.validate()
    return True


def read(log: PartitionLog, offset: int, max_bytes: int = 1 << 20, upper: int | None = None) -> ReadData:
    result = log.read(offset, max_bytes, log.log_end_offset if upper is None else upper)
    return result.run() if isinstance(result, ReadJob) else result


def read_all_batches(log: PartitionLog, max_bytes: int = 700) -> list[bytes]:
    """Every batch from the log's start to its end, by reads of small size."""
    batches: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = read(log, offset, max_bytes)
        assert data.size_bytes == sum(map(len, data.buffers)) > 0
        joined = b"".join(data.buffers)
        infos = list(iter_batches(joined))
        assert sum(info.size_bytes for info in infos) == len(joined)
        assert infos[0].base_offset == data.base_offset
        assert data.next_offset == infos[-1].next_offset > offset
        batches.extend(joined[info.position : info.position + info.size_bytes] for info in infos)
        offset = data.next_offset
    return batches


@dataclass
class Model:
    """What the log should hold: stored batches with their headers, in order."""

    batches: list[tuple[BatchInfo, bytes]] = field(default_factory=list)
    end: int = 0

    def add(self, data: list[Buffer]) -> None:
        joined = b"".join(data)
        for info in iter_batches(joined):
            stored = joined[info.position : info.position + info.size_bytes]
            self.batches.append((replace(info, position=0), stored))
            self.end = info.next_offset

    def cut(self, end: int) -> None:
        self.batches = [row for row in self.batches if row[0].next_offset <= end]
        self.end = end

    def epoch_starts(self) -> list[tuple[int, int]]:
        starts: list[tuple[int, int]] = []
        for info, _ in self.batches:
            if not starts or info.leader_epoch > starts[-1][0]:
                starts.append((info.leader_epoch, info.base_offset))
        return starts

    def check(self, log: PartitionLog, max_bytes: int = 700) -> None:
        log.validate()
        assert log.log_end_offset == self.end
        stored = read_all_batches(log, max_bytes)
        first = log.log_start_offset
        assert stored == [data for info, data in self.batches if info.last_offset >= first]


def add(log: PartitionLog, model: Model, batch: bytes, epoch: int = 0) -> None:
    """Append to both."""
    appended = append(log, batch, epoch)
    assert isinstance(appended, Appended)
    model.add(appended.data)


def check_prefix(log: PartitionLog, model: Model, at_least: int) -> None:
    """The log holds a prefix of the model's batches, `at_least` that offset long."""
    end = log.log_end_offset
    assert at_least <= end <= model.end
    assert end in {0, model.end, *(info.base_offset for info, _ in model.batches)}
    stored = read_all_batches(log)
    first = log.log_start_offset
    assert stored == [data for info, data in model.batches if first <= info.last_offset < end]
    assert log.flushed_offset == end


def filled(count: int = 50, settings: TopicConfig = SMALL) -> tuple[PartitionLog, Model]:
    """A log of so many batches, most of them written."""
    _, log = new_log(new_disk(), settings)
    model = Model()
    for number in range(count):
        appended = append(log, make_batch(1 + number % 3, timestamp_ms=NOW_MS + number), epoch=number // 20)
        assert isinstance(appended, Appended)
        model.add(appended.data)
        if number % 7 == 0:
            run_job(log)
    return log, model
