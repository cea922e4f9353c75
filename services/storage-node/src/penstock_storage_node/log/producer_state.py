"""Idempotence and transactions: what each producer wrote last, and the files that keep it.

Rules (Kafka: ProducerAppendInfo, ProducerStateEntry, ProducerStateManager)
  * The last five batches per producer are remembered; a batch with the same epoch and
    the same first and last sequence as one of them is a duplicate, answered with the
    offsets it has.
  * Otherwise its first sequence must be the last one plus 1 (2^31-1 wraps to 0), or 0 in
    a new epoch; an unknown producer may begin anywhere. Lower epochs are fenced.
  * Followers keep the same state but don't check: the leader did.
  * What a coordinator writes for a producer (offsets in a transaction) has its epoch and no sequence.
  * The first batch with records of a transaction opens it, its marker closes it; a marker's higher epoch begins
    with sequence 0. A batch without records, which compaction leaves, opens nothing.
  * A snapshot `<offset>.snapshot` holds the state just before that offset.

Departures from Kafka, both on the safe side
  * A producer goes idle by our clock (when its batch arrived), not by its own
    timestamps: a producer of historic events would otherwise expire at once. It is a clock that
    nobody sets: were all forgotten by a step of the wall clock, a retry would be written twice.
  * A snapshot in Kafka's form holds one batch per producer. `restore_window` puts the
    four before it back from the log, so that a restart doesn't turn a retry of an older
    batch in flight into OUT_OF_ORDER_SEQUENCE_NUMBER.

What is open, and what ended where, is in `transactions`; what aborted is told to whoever replays a marker, for
the aborted index of the segment that has it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import Enum

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import PRODUCER_BATCHES_KEPT_MAX
from penstock_kafka.records.batch import NO_SEQUENCE, BatchInfo
from penstock_kafka.records.crc import crc32c
from penstock_kafka.records.markers import Marker
from penstock_storage_node.log.transactions import AbortedTransaction, TransactionOffsets

PRODUCER_IDLE_MAX_MS = 86_400_000
"""A producer that wrote nothing for a day is forgotten, if nothing else is set (Kafka: producer.id.expiration.ms)."""

SEQUENCE_MASK = 0x7FFFFFFF
"""Sequences count from 0 to 2^31-1 and begin again."""

_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1


class Origin(Enum):
    """Who wants a batch appended at a leader, and so what is checked (Kafka: AppendOrigin)."""

    CLIENT = "client"
    """Epoch and sequence."""
    COORDINATOR = "coordinator"
    """A group coordinator on behalf of a producer: the epoch alone."""


class CorruptSnapshot(Exception):
    """A snapshot file that can't be used; recovery takes an older one."""


class ProducerEntry:
    """One producer. `batches` holds (first sequence, last sequence, first offset, last offset)."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_seen_ms",
        "last_sequence",
        "last_timestamp",
        "transaction_first_offset",
        "vouched_epoch",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_sequence = -1
        self.last_timestamp = -1
        self.last_seen_ms = 0
        self.coordinator_epoch = -1
        self.transaction_first_offset = -1
        self.vouched_epoch = -1
        """Highest epoch of a coordinator that has told this node, as leader, that the producer's transaction knows the
        partition. In memory alone."""
        self.batches: list[tuple[int, int, int, int]] = []


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("_entries", "transactions")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self.transactions = TransactionOffsets()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def entries(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Every producer by id."""
        return iter(self._entries.items())

    def is_next(self, info: BatchInfo) -> bool:
        """Whether nothing is missing before the batch: it is the one that must come next of its producer
        (of an unknown one, sequence 0), or it is here already."""
        entry = self._entries.get(info.producer_id)
        if entry is None or entry.epoch != info.producer_epoch:
            return info.base_sequence == 0
        if info.base_sequence == (entry.last_sequence + 1) & SEQUENCE_MASK:
            return True
        return _is_known(info, entry)

    def is_new_since(self, info: BatchInfo, start_offset: int) -> bool:
        """Whether nothing of the batch's producer was written from `start_offset` on, and its epoch is not over."""
        entry = self._entries.get(info.producer_id)
        if entry is None:
            return True
        is_old = not entry.batches or entry.batches[-1][2] < start_offset
        return is_old and info.producer_epoch >= entry.epoch

    def is_duplicate(self, info: BatchInfo) -> bool:
        """Whether the batch is among those that are remembered of its producer."""
        entry = self._entries.get(info.producer_id)
        return entry is not None and entry.epoch == info.producer_epoch and _is_known(info, entry)

    def check(self, info: BatchInfo, where: object, origin: Origin = Origin.CLIENT) -> tuple[int, int] | None:
        """Whether the batch may be appended: None, or (first, last offset) of what it duplicates.

        Raises INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER and, for a batch outside of the transaction that
        its producer has open, INVALID_TXN_STATE. `where` names the partition in the message.
        """
        entry = self._entries.get(info.producer_id)
        if entry is None:
            return None
        if origin is Origin.COORDINATOR:
            if info.producer_epoch < entry.epoch:
                raise _fenced(info, entry, where)
            return None
        first = info.base_sequence
        if info.producer_epoch == entry.epoch:
            if first == (entry.last_sequence + 1) & SEQUENCE_MASK:
                self._check_transaction(info, entry, where)
                return None
            last = info.last_sequence
            for known_first, known_last, first_offset, last_offset in entry.batches:
                if known_first == first and known_last == last:
                    return first_offset, last_offset
            raise PenstockError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {info.producer_id} sent sequence {first} to {where}, "
                f"expected {(entry.last_sequence + 1) & SEQUENCE_MASK}",
            )
        if info.producer_epoch < entry.epoch:
            raise _fenced(info, entry, where)
        if first != 0:
            raise PenstockError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {info.producer_id} begins epoch {info.producer_epoch} in {where} "
                f"with sequence {first}, expected 0",
            )
        self._check_transaction(info, entry, where)
        return None

    def _check_transaction(self, info: BatchInfo, entry: ProducerEntry, where: object) -> None:
        if entry.transaction_first_offset >= 0 and not info.is_transactional:
            raise PenstockError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {info.producer_id} sent a batch outside of its transaction, which has been open in {where} "
                f"since offset {entry.transaction_first_offset}",
            )

    def update(self, info: BatchInfo, base_offset: int, now_ms: int) -> None:
        """Note a data batch with a producer id that was appended at `base_offset`."""
        entry = self._entries.get(info.producer_id)
        if entry is None:
            entry = self._entries[info.producer_id] = ProducerEntry(info.producer_epoch)
        elif entry.epoch != info.producer_epoch:
            entry.epoch = info.producer_epoch
            entry.batches.clear()
        first = last = info.base_sequence
        if first != NO_SEQUENCE:
            last = (first + info.last_offset_delta) & SEQUENCE_MASK
        entry.last_sequence = last
        entry.last_timestamp = info.max_timestamp
        entry.last_seen_ms = now_ms
        batches = entry.batches
        if len(batches) >= PRODUCER_BATCHES_KEPT_MAX:
            del batches[0]
        batches.append((first, last, base_offset, base_offset + info.last_offset_delta))
        if info.is_transactional and info.record_count and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = base_offset
            self.transactions.begin(info.producer_id, base_offset)

    def replay(self, info: BatchInfo, now_ms: int, marker: Marker | None = None) -> AbortedTransaction | None:
        """Note a batch as it stands in the log (followers, recovery), or a marker that a leader appends.

        `marker`: what the batch says as a transaction's end. Returns what belongs into the aborted index.
        """
        if info.producer_id < 0:
            return None
        if not info.is_control:
            self.update(info, info.base_offset, now_ms)
            return None
        # A transaction's end marker: it closes the transaction and may raise the epoch. Without its record, which
        # goes after all batches of the transaction, only the epoch is left of it.
        entry = self._entries.get(info.producer_id)
        if entry is None:
            entry = self._entries[info.producer_id] = ProducerEntry(info.producer_epoch)
        elif entry.epoch != info.producer_epoch:
            entry.epoch = info.producer_epoch
            entry.last_sequence = -1
            entry.batches.clear()
        entry.last_timestamp = info.max_timestamp
        entry.last_seen_ms = now_ms
        if marker is None:
            return None
        entry.transaction_first_offset = -1
        entry.coordinator_epoch = max(entry.coordinator_epoch, marker.coordinator_epoch)
        first_offset = self.transactions.end(info.producer_id, info.last_offset)
        if first_offset is None or marker.commits:
            return None
        first_open = self.transactions.first_open
        stable = info.next_offset if first_open is None else first_open
        return AbortedTransaction(info.producer_id, first_offset, info.last_offset, stable)

    def restore_window(self, batches: Iterable[BatchInfo]) -> None:
        """Put back the batches before each producer's last one, from the log's tail in order."""
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for info in batches:
            entry = self._entries.get(info.producer_id)
            if entry is None or info.producer_epoch != entry.epoch or info.is_control:
                continue
            row = (info.base_sequence, info.last_sequence, info.base_offset, info.last_offset)
            found.setdefault(info.producer_id, []).append(row)
        for producer_id, rows in found.items():
            entry = self._entries[producer_id]
            if entry.batches and rows[-1] == entry.batches[-1]:
                entry.batches = rows[-PRODUCER_BATCHES_KEPT_MAX:]

    @property
    def first_open_transaction(self) -> int | None:
        """Offset of the first record of the oldest open transaction."""
        return self.transactions.first_open

    @property
    def has_transactions(self) -> bool:
        """Whether any producer that is remembered has one, or had one that ended here."""
        return any(
            e.coordinator_epoch >= 0 or e.transaction_first_offset >= 0 for e in self._entries.values()
        )

    def last_data_offsets(self) -> dict[int, tuple[int, int]]:
        """By producer: offset of its last data record (-1 if none is known) and its epoch."""
        return {
            producer_id: (entry.batches[-1][3] if entry.batches else -1, entry.epoch)
            for producer_id, entry in self._entries.items()
        }

    def expire(self, now_ms: int, idle_max_ms: int = PRODUCER_IDLE_MAX_MS) -> None:
        """Forget producers that are idle and have no open transaction."""
        limit = now_ms - idle_max_ms
        idle = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.last_seen_ms <= limit and entry.transaction_first_offset < 0
        ]
        for producer_id in idle:
            del self._entries[producer_id]

    def clear(self) -> None:
        self._entries.clear()
        self.transactions.clear()

    def encode_snapshot(self) -> bytes:
        """Kafka's ProducerSnapshot version 1: version, CRC-32C of what follows, entries."""
        parts = [_SNAPSHOT_COUNT.pack(len(self._entries))]
        for producer_id, entry in self._entries.items():
            last = entry.batches[-1] if entry.batches else None
            parts.append(
                _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    entry.epoch,
                    entry.last_sequence if last else -1,
                    last[3] if last else -1,
                    last[3] - last[2] if last else 0,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    entry.transaction_first_offset,
                )
            )
        body = b"".join(parts)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    def load_snapshot(self, data: bytes, now_ms: int) -> None:
        """Replace the state by a snapshot's; raises CorruptSnapshot and then leaves it empty."""
        self.clear()
        try:
            version, crc = _SNAPSHOT_HEAD.unpack_from(data)
            (count,) = _SNAPSHOT_COUNT.unpack_from(data, _SNAPSHOT_HEAD.size)
        except struct.error as error:
            raise CorruptSnapshot("shorter than its header") from error
        body = data[_SNAPSHOT_HEAD.size :]
        if version != _SNAPSHOT_VERSION:
            raise CorruptSnapshot(f"version {version}, expected {_SNAPSHOT_VERSION}")
        if crc32c(body) != crc:
            raise CorruptSnapshot("CRC mismatch")
        if count < 0 or len(body) != _SNAPSHOT_COUNT.size + count * _SNAPSHOT_ENTRY.size:
            raise CorruptSnapshot(f"{count} entries do not fit {len(body)} bytes")
        for row in _SNAPSHOT_ENTRY.iter_unpack(body[_SNAPSHOT_COUNT.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first = row
            entry = ProducerEntry(epoch)
            entry.last_timestamp = timestamp
            entry.last_seen_ms = now_ms
            entry.coordinator_epoch = coordinator_epoch
            entry.transaction_first_offset = first
            if last_offset >= 0:
                entry.last_sequence = last_sequence
                first_sequence = last_sequence
                if last_sequence != NO_SEQUENCE:
                    first_sequence = (last_sequence - delta) & SEQUENCE_MASK
                entry.batches.append((first_sequence, last_sequence, last_offset - delta, last_offset))
            self._entries[producer_id] = entry
        rows = self._entries.items()
        self.transactions.replace_open(
            (producer_id, entry.transaction_first_offset)
            for producer_id, entry in rows
            if entry.transaction_first_offset >= 0
        )


def _is_known(info: BatchInfo, entry: ProducerEntry) -> bool:
    place = (info.base_sequence, info.last_sequence)
    return info.base_sequence != NO_SEQUENCE and any(row[:2] == place for row in entry.batches)


def _fenced(info: BatchInfo, entry: ProducerEntry, where: object) -> PenstockError:
    return PenstockError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {info.producer_id} has epoch {info.producer_epoch} in {where}, "
        f"epoch {entry.epoch} took its place",
    )
