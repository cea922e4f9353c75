"""Transactions of a log by a plain model: everything is found by walking all batches from the first on."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock_core.config.topic import TopicConfig
from penstock_kafka.records.batch import BatchInfo, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import Marker, read_marker
from penstock_kafka.records.read import read_records
from penstock_storage_node.log import Appended, PartitionLog
from penstock_storage_node.log.aborted_index import decode_entries
from penstock_storage_node.log.producer_state import Origin
from penstock_storage_node.log.reader import AbortedJob
from penstock_storage_node.log.transactions import AbortedTransaction
from support.simulated_fs import SimulatedFileSystem
from unit.storage_node.log.log_model import NOW_MS, Model, append, read, read_all_batches

Batches = Iterable[tuple[BatchInfo, bytes]]


@dataclass
class Told:
    """What all batches together say."""

    open: dict[int, int] = field(default_factory=dict)
    """First offset by producer."""
    ended: list[tuple[int, int]] = field(default_factory=list)
    """(first offset, marker)."""
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def last_stable_offset(self, high_watermark: int) -> int:
        firsts = [*self.open.values(), *(first for first, marker in self.ended if marker >= high_watermark)]
        return min([high_watermark, *firsts])


def told_by(batches: Batches) -> Told:
    told = Told()
    for info, data in batches:
        if info.producer_id < 0 or not info.is_transactional or not info.record_count:
            continue
        if not info.is_control:
            told.open.setdefault(info.producer_id, info.base_offset)
            continue
        marker = read_marker(data, info)
        first = told.open.pop(info.producer_id, None)
        if marker is None or first is None:
            continue
        told.ended.append((first, info.base_offset))
        if not marker.commits:
            others = min(told.open.values(), default=info.next_offset)
            told.aborted.append(AbortedTransaction(info.producer_id, first, info.base_offset, others))
    return told


def committed(batches: Batches, end_offset: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of the records below `end_offset` that a reader of decided records gets."""
    rows = list(batches)
    undecided: dict[int, list[int]] = {}
    hidden: set[int] = set()
    """Base offsets of batches whose transaction was aborted."""
    for info, data in rows:
        if not info.is_transactional:
            continue
        if not info.is_control:
            undecided.setdefault(info.producer_id, []).append(info.base_offset)
            continue
        marker = read_marker(data, info)
        if marker is not None:
            mine = undecided.pop(info.producer_id, [])
            hidden.update(() if marker.commits else mine)
    return [
        (record.offset, record.key, record.value)
        for info, data in rows
        if info.base_offset < end_offset and not info.is_control
        if info.base_offset not in hidden
        for record in read_records(data)
    ]


def aborted_between(log: PartitionLog, offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
    found = log.aborted_between(offset, end_offset)
    return found.run() if isinstance(found, AbortedJob) else found


def read_committed(
    log: PartitionLog, high_watermark: int, max_bytes: int = 700, offset: int | None = None
) -> list[tuple[int, bytes | None, bytes | None]]:
    """As a consumer of Kafka's reads with isolation.level=read_committed (Kafka: CompletedFetch)."""
    at = log.log_start_offset if offset is None else offset
    end = log.last_stable_offset(high_watermark)
    found: list[tuple[int, bytes | None, bytes | None]] = []
    while at < end:
        data = read(log, at, max_bytes, end)
        if not data.size_bytes:
            break  # compaction has left nothing up to there; a consumer waits for what comes
        assert data.next_offset > at
        rows = sorted(aborted_between(log, at, data.next_offset), key=lambda row: row.first_offset)
        joined = b"".join(data.buffers)
        hidden: set[int] = set()
        position = 0
        while position < len(joined):
            info = read_header(joined, position)
            batch = joined[position : position + info.size_bytes]
            position += info.size_bytes
            while rows and rows[0].first_offset <= info.last_offset:
                hidden.add(rows.pop(0).producer_id)
            if info.is_control:
                marker = read_marker(batch, info)
                if marker is not None and not marker.commits:
                    hidden.discard(info.producer_id)
            elif not (info.is_transactional and info.producer_id in hidden):
                rows_of = [(r.offset, r.key, r.value) for r in read_records(batch)]
                found.extend(row for row in rows_of if row[0] >= at)
        at = data.next_offset
    return found


@dataclass
class Producer:
    producer_id: int
    epoch: int = 0
    sequence: int = 0


class TransactionalLog:
    """A log, what it should hold, and producers that write to it at random."""

    def __init__(self, rng: random.Random, log: PartitionLog, producers: int = 4) -> None:
        self.rng = rng
        self.log = log
        self.model = Model()
        self.producers = [Producer(100 + number) for number in range(producers)]

    def data(self, producer: Producer | None, *, transactional: bool, keys: int = 6) -> None:
        rng = self.rng
        rows = [
            NewRecord(
                b"k%d" % rng.randrange(keys),
                None if rng.random() < 0.1 else rng.randbytes(rng.randrange(40)),
                NOW_MS,
            )
            for _ in range(rng.randint(1, 4))
        ]
        if producer is None:
            self.add(build_batch(rows))
            return
        self.add(
            build_batch(
                rows,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=producer.sequence,
                transactional=transactional,
            )
        )
        producer.sequence += len(rows)

    def by_coordinator(self, producer: Producer) -> None:
        """Offsets in a transaction: an epoch and no sequence."""
        batch = build_batch(
            [NewRecord(b"k%d" % self.rng.randrange(6), b"offset", NOW_MS)],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transactional=True,
        )
        staged = self.log.append_as_leader(batch, read_header(batch), 0, Origin.COORDINATOR)
        assert isinstance(staged, Appended)
        self.model.add(staged.data)

    def end(self, producer: Producer, *, commits: bool, raises_epoch: bool = False) -> None:
        if raises_epoch:
            producer.epoch, producer.sequence = producer.epoch + 1, 0
        staged = self.log.append_marker(
            producer.producer_id, producer.epoch, Marker(commits, coordinator_epoch=3), 0
        )
        self.model.add(staged.data)

    def add(self, batch: bytes) -> None:
        staged = append(self.log, batch)
        assert isinstance(staged, Appended)
        self.model.add(staged.data)

    @property
    def told(self) -> Told:
        return told_by(self.model.batches)

    def cut(self, end: int) -> None:
        """The log was cut there: producers go on as it knows them."""
        self.model.cut(end)
        self.follow_log()

    def follow_log(self) -> None:
        known = dict(self.log.producers())
        for producer in self.producers:
            entry = known.get(producer.producer_id)
            producer.epoch = 0 if entry is None else entry.epoch
            producer.sequence = 0 if entry is None else entry.last_sequence + 1

    def any_step(self) -> None:
        """Something that producers or their coordinator do."""
        rng, open_now = self.rng, self.told.open
        producer = rng.choice(self.producers)
        choice = rng.random()
        if choice < 0.15:
            self.data(None, transactional=False)
        elif choice < 0.2 and producer.producer_id not in open_now:
            self.data(producer, transactional=False)
        elif choice < 0.55:
            self.data(producer, transactional=True)
        elif choice < 0.6 and producer.sequence == 0:
            self.by_coordinator(producer)
        else:
            # Now and then nothing is open: a marker that comes twice.
            self.end(producer, commits=rng.random() < 0.5, raises_epoch=rng.random() < 0.5)

    def check(self, fs: SimulatedFileSystem, high_watermark: int | None = None) -> None:
        """The log says of its transactions what its batches say."""
        log, told = self.log, self.told
        log.validate()
        end = log.log_end_offset
        assert end == self.model.end
        mark = end if high_watermark is None else high_watermark
        assert log.first_open_transaction == min(told.open.values(), default=None)
        assert log.last_stable_offset(mark) == told.last_stable_offset(mark)
        assert list(aborted_between(log, 0, end + 1)) == told.aborted
        some = self.rng.randrange(end + 1)
        found = aborted_between(log, some, end)
        assert [row for row in found if row.last_offset >= some] == list(found)
        needed = [row for row in told.aborted if row.last_offset >= some and row.first_offset < end]
        assert list(found) == needed
        max_bytes = self.rng.choice((1, 400, 5000))
        expected = committed(self.model.batches, log.last_stable_offset(mark))
        assert read_committed(log, mark, max_bytes) == expected
        self.check_files(fs, told)

    def check_files(self, fs: SimulatedFileSystem, told: Told) -> None:
        """Once all is written, each segment's file has the entries of its markers."""
        log = self.log
        if log.written_offset != log.log_end_offset:
            return
        for segment in log.segments:
            end = log.end_of(segment)
            wanted = [row for row in told.aborted if segment.base_offset <= row.last_offset < end]
            path = segment.aborted.path
            assert fs.exists(path) == bool(wanted)
            if wanted:
                assert list(decode_entries(content_of(fs, path), segment.base_offset, end)) == wanted


def content_of(fs: SimulatedFileSystem, path: str) -> bytes:
    fd = fs.open(path)
    try:
        return fs.pread(fd, fs.size(fd), 0)
    finally:
        fs.close(fd)


def stored(log: PartitionLog) -> list[tuple[BatchInfo, bytes]]:
    return [(read_header(batch), batch) for batch in read_all_batches(log, 1 << 16)]


SMALL = TopicConfig(segment_bytes=900, index_interval_bytes=200)
