"""What is checked of logs that lose records on purpose: by compaction, by retention, by DeleteRecords.

The truth of a partition (`invariants.Truth`) stays what leaders have declared committed. Here is
what may be missing of it on a replica, and what may stand there in its place:

  * A compacted log: a batch may lack records, and may be gone, but what is left of it has its
    offsets, epoch, producer, keys, values and timestamps. A record goes when a later committed one
    of its key is there, or when it is a tombstone whose delete horizon the node's clock has passed.
    A leader holds the last record of every key, or that was such a tombstone. No replica holds a record of
    a key whose tombstone is gone, however long it was away.
  * Retention: a segment goes when its newest record is older than retention.ms by the node's clock,
    or when what is left is retention.bytes at least, or when it lies before the log start. Nothing
    that is not committed goes.
  * DeleteRecords: what a client was told to be deleted no later leader holds, and the node that
    told it doesn't after a restart.

Clocks: a host's wall clock steps, so times are compared with that of the host which acted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock_core.ids import TopicPartition
from penstock_kafka.records.batch import DELETE_HORIZON_BIT, BatchInfo, Buffer, is_crc_valid
from penstock_kafka.records.read import read_records

if TYPE_CHECKING:
    from penstock_storage_node.log.segment import Segment
    from simulation.checked import CheckedLog, CheckedReplica
    from simulation.invariants import Checker, Entry, Truth

KEYED = "keyed"
"""The topic that is compacted."""
AGED = "aged"
"""The topic that is subject to retention."""


class Row(NamedTuple):
    """A record."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Content(NamedTuple):
    """What a batch says beside its header."""

    rows: dict[int, Row]
    """By offset."""
    horizon_ms: int
    """From when on its tombstones may go; -1: none is set."""


@dataclass(slots=True)
class Keyed:
    """One compacted partition."""

    contents: dict[tuple[int, int], Content] = field(default_factory=dict)
    """(base offset, CRC) of every batch that was ever seen in it."""
    rows: dict[int, Row] = field(default_factory=dict)
    """Committed records by offset."""
    offsets: dict[bytes, list[int]] = field(default_factory=dict)
    """Offsets of a key's committed records, rising."""
    gone: set[int] = field(default_factory=set)
    """Tombstones that some replica has let go in their time."""


class LogChecks:
    """The invariants of the module's text. Part of a run's `Checker`."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.keyed: dict[TopicPartition, Keyed] = {}
        self.deleted_to: dict[TopicPartition, int] = {}
        """What clients were told that nothing before it can be read any more."""
        self.start_seen: dict[TopicPartition, int] = {}
        """The highest log start that a replica ever had."""
        self._saved_starts: dict[tuple[str, TopicPartition], int] = {}
        """By host: log starts that it has vouched for to a client."""
        self._losing: set[TopicPartition] = set()
        """Partitions of which some replica has let batches go."""

    def may_forget(self, key: TopicPartition) -> bool:
        """Whether a leader may not know a producer's last batches any more, because they are gone from its log.

        In the field retention and compaction take longer than a producer goes on trying; here they don't. As
        in Kafka a log that is opened knows of a producer what is still in it.
        """
        return key in self._losing

    # --- what a log holds

    def is_tracked(self, topic: str) -> bool:
        """Whether records of that topic may go."""
        return topic in (KEYED, AGED)

    def _keyed(self, log: CheckedLog) -> Keyed | None:
        if log.topic != KEYED:
            return None
        return self.keyed.setdefault(log.key, Keyed())

    def note(self, key: TopicPartition, entry: Entry, info: BatchInfo, batch: Buffer) -> None:
        """A batch of a compacted partition, wherever it was seen."""
        keyed = self.keyed.setdefault(key, Keyed())
        if (entry.base, entry.crc) in keyed.contents or not is_crc_valid(batch):
            return
        moved = entry.base - info.base_offset
        found = read_records(memoryview(batch)) if info.record_count else ()
        rows = {r.offset + moved: Row(r.key, r.value, r.timestamp_ms) for r in found}
        has_horizon = bool(info.attributes & DELETE_HORIZON_BIT)
        content = Content(rows, info.base_timestamp if has_horizon else -1)
        keyed.contents[entry.base, entry.crc] = content

    def on_commit(self, truth: Truth, entry: Entry) -> None:
        """A leader declared a batch committed."""
        keyed = self.keyed.get(truth.key)
        if keyed is None:
            return
        for offset, row in keyed.contents[entry.base, entry.crc].rows.items():
            keyed.rows[offset] = row
            if row.key is not None:
                keyed.offsets.setdefault(row.key, []).append(offset)

    def is_left_of(self, truth: Truth, original: Entry, entry: Entry) -> bool:
        """Whether a batch is what compaction may have left of a committed one."""
        keyed = self.keyed.get(truth.key)
        if keyed is None or entry._replace(crc=0) != original._replace(crc=0):
            return False
        content = keyed.contents.get((entry.base, entry.crc))
        return content is not None and all(keyed.rows.get(o) == row for o, row in content.rows.items())

    def as_left(self, truth: Truth, originals: Sequence[Entry], found: Sequence[Entry]) -> list[Entry | None]:
        """`found`, where each is what compaction may have left; its original, or None, where it isn't."""
        by_base = {entry.base: entry for entry in originals}
        expected: list[Entry | None] = []
        for entry in found:
            original = by_base.get(entry.base)
            is_left = original is not None and self.is_left_of(truth, original, entry)
            expected.append(entry if is_left else original)
        return expected

    def _held(self, keyed: Keyed, entries: Iterable[Entry]) -> dict[int, Row]:
        held: dict[int, Row] = {}
        for entry in entries:
            content = keyed.contents.get((entry.base, entry.crc))
            if content is not None:
                held.update(content.rows)
        return held

    # --- compaction

    def on_swap(
        self,
        log: CheckedLog,
        old: Sequence[Entry],
        new: Sequence[Entry],
        left: Sequence[Entry],
        request_ms: int,
    ) -> None:
        """A compacted segment is about to take the place of others, which leaves the log with `left`.

        `request_ms`: the node's clock when the run was asked for.
        """
        keyed = self._keyed(log)
        truth = self._checker.truth(log.key)
        if keyed is None or truth.excused:
            return
        self._checker.world.counts["segments compacted"] += 1
        if len(new) < len(old):
            self._losing.add(log.key)
        before = {entry.base: entry for entry in old}
        for entry in new:
            self._check_left(keyed, log, before.get(entry.base), entry, request_ms)
        upto = min(truth.end, log.high_watermark)
        held = self._held(keyed, left)
        # Newest first: a tombstone may go together with the record that it was for.
        for entry in reversed(old):
            content = keyed.contents.get((entry.base, entry.crc))
            if content is None:
                continue
            for offset, row in reversed(content.rows.items()):
                if offset not in held:
                    self._check_gone(keyed, log, content, offset, row, held, upto, request_ms)
        self._check_deleted(keyed, log, held, upto)

    def _check_left(
        self, keyed: Keyed, log: CheckedLog, old: Entry | None, new: Entry, request_ms: int
    ) -> None:
        if old is None or old._replace(crc=0) != new._replace(crc=0):
            self._fail("same bytes at the same offset", log, f"compaction wrote {new}, there was {old}")
            return
        was, now = keyed.contents.get((old.base, old.crc)), keyed.contents.get((new.base, new.crc))
        if was is None or now is None:
            return
        for offset, row in now.rows.items():
            if was.rows.get(offset) != row:
                message = f"compaction wrote {row} at {offset}, there was {was.rows.get(offset)}"
                self._fail("same bytes at the same offset", log, message)
        if was.horizon_ms >= 0:
            lives = now.horizon_ms == was.horizon_ms or not now.rows
        else:
            lives = now.horizon_ms < 0 or now.horizon_ms >= request_ms + log.settings.delete_retention_ms
        if not lives:
            message = f"batch {new.base} was first cleaned at {request_ms}, its horizon is {now.horizon_ms}"
            self._fail("tombstones live their time", log, f"{message}, it was {was.horizon_ms}")

    def _check_gone(
        self,
        keyed: Keyed,
        log: CheckedLog,
        was: Content,
        offset: int,
        row: Row,
        held: dict[int, Row],
        upto: int,
        request_ms: int,
    ) -> None:
        if offset < log.log_start_offset:
            return
        if offset >= upto:
            self._fail("only what is committed is compacted", log, f"{row} at {offset} is gone")
        later = keyed.offsets.get(row.key, []) if row.key is not None else []
        later = later[bisect_right(later, offset) : bisect_left(later, upto)]
        if any(o in held or o in keyed.gone for o in later):
            return
        if row.value is not None:
            message = f"{row} at {offset} is gone, later ones below {upto} are {later}"
            self._fail("a key keeps its last value", log, message)
        elif not 0 <= was.horizon_ms <= request_ms:
            message = f"that of {row.key!r} at {offset}, horizon {was.horizon_ms}, went at {request_ms}"
            self._fail("tombstones live their time", log, message)
        keyed.gone.add(offset)
        self._checker.world.counts["tombstones gone"] += 1

    def _check_deleted(self, keyed: Keyed, log: CheckedLog, held: dict[int, Row], upto: int) -> None:
        """No record of a key whose tombstone has gone."""
        seen: set[bytes] = set()
        for offset, row in held.items():
            if row.key is None or row.key in seen or offset < log.log_start_offset:
                continue
            seen.add(row.key)
            offsets = keyed.offsets.get(row.key, [])
            at = bisect_left(offsets, upto)
            newest = offsets[at - 1] if at else -1
            if offset < newest and newest in keyed.gone and newest not in held:
                message = f"{row} at {offset}, its tombstone at {newest} is gone"
                self._fail("no deleted key comes back", log, message)

    def on_follower_batch(self, log: CheckedLog, expected: int, entry: Entry) -> None:
        """A follower's log that ended at `expected` took a batch. Counts tombstones that it was never sent,
        for they had gone: it may hold nothing that they were for."""
        keyed = self._keyed(log)
        if keyed is None:
            return
        content = keyed.contents[entry.base, entry.crc]
        for offset in range(expected, entry.last + 1):
            if offset in keyed.gone and offset not in content.rows:
                self._checker.world.counts["tombstones missed"] += 1

    def may_be_cut(self, log: CheckedLog) -> bool:
        """Whether a replica outside ISR and ELR may lose what is committed, to fetch it again as it is now.

        A compacted log may be emptied when it ended before a tombstone that another replica may have let go.
        (A run that notes it may end before it does it, and of a key there may be a later record.) It may be cut
        where its leader was copied from a log in which nothing was left of an epoch: that one knows
        nothing of it, and calls the logs diverging.
        """
        keyed = self._keyed(log)
        if keyed is None:
            return False
        if log.log_end_offset > log.log_start_offset:
            return True
        self._checker.world.counts["logs emptied for tombstones"] += 1
        return any(
            offset >= log.cut_from and row.value is None
            for content in keyed.contents.values()
            if content.horizon_ms >= 0
            for offset, row in content.rows.items()
        )

    def _check_begin(self, log: CheckedLog) -> None:
        """Nothing takes whole segments from the start of a log that is compacted alone."""
        replica = log.replica
        if replica is not None and not replica.settings.is_deleted_by_retention and log.log_start_offset:
            self._fail("a key keeps its last value", log, f"it begins at {log.log_start_offset}")

    def _check_last_values(self, keyed: Keyed, log: CheckedLog, truth: Truth) -> None:
        """The last record of every key is there, or was a tombstone that went in its time."""
        self._check_begin(log)
        held = self._held(keyed, log.shadow)
        for key, offsets in keyed.offsets.items():
            newest = offsets[-1]
            if newest >= log.log_start_offset and newest not in held and newest not in keyed.gone:
                message = f"{key!r} lacks {keyed.rows[newest]} at {newest}"
                self._fail("a key keeps its last value", log, message)
        self._check_deleted(keyed, log, held, truth.end)

    # --- the log's lower end

    def on_start(self, log: CheckedLog) -> None:
        """Offsets of a log changed."""
        start = log.log_start_offset
        if start == log.seen_start:
            return
        key = log.key
        truth = self._checker.truth(key)
        if start > truth.end and not truth.excused:
            self._fail("log start within what is committed", log, f"{start}, committed up to {truth.end}")
        if start < log.seen_start and log.leads:
            self._fail("log start never falls", log, f"from {log.seen_start} to {start} while it leads")
        log.seen_start = start
        self._losing.add(key)
        self.start_seen[key] = max(self.start_seen.get(key, 0), start)

    def on_retention(self, log: CheckedLog, gone: Sequence[Segment], ends: Sequence[int], start: int) -> None:
        """A log lets segments go, which end at `ends`; `start`: its log start before."""
        truth = self._checker.truth(log.key)
        if truth.excused:
            return
        settings = log.settings
        now_ms = self._checker.world.wall_ms(log.host)
        self._checker.world.counts["segments let go"] += len(gone)
        for segment, end in zip(gone, ends, strict=True):
            if end > min(truth.end, log.high_watermark):
                message = (
                    f"{segment.base_offset} to {end}, committed up to {truth.end} ({log.high_watermark} here)"
                )
                self._fail("retention takes only what is committed", log, message)
            if end <= start:
                continue
            inside = [f for base, f in log.facts.items() if segment.base_offset <= base < end]
            left_bytes = sum(size for base, (size, _) in log.facts.items() if base >= end)
            newest_ms = max((timestamp_ms for _, timestamp_ms in inside), default=-1)
            is_old = 0 <= settings.retention_ms < now_ms - newest_ms
            is_beyond = 0 <= settings.retention_bytes <= left_bytes
            if not settings.is_deleted_by_retention or not (is_old or is_beyond):
                message = (
                    f"{segment.base_offset} to {end} goes: newest {newest_ms}, now {now_ms},"
                    f" {left_bytes} bytes are left"
                )
                self._fail("retention takes only what is too old or too much", log, message)
        for base in [base for base in log.facts if base < ends[-1]]:
            del log.facts[base]

    def on_deleted(self, key: TopicPartition, host: str, offset: int) -> None:
        """A client was told by the leader on `host` that nothing before `offset` is there any more."""
        self._checker.world.counts["deletions of records acknowledged"] += 1
        self.deleted_to[key] = max(self.deleted_to.get(key, 0), offset)
        images = self._checker.images
        state = images[max(images)].partition(*key)
        if state is None or host not in {f"n{n}" for n in state.replicas}:
            return  # its replica went elsewhere meanwhile, and a new one begins anew
        saved = self._saved_starts.get((host, key), 0)
        self._saved_starts[host, key] = max(saved, offset)

    # --- roles

    def on_open(self, log: CheckedLog) -> None:
        """A log was opened."""
        before = -1
        for entry in log.shadow:
            if entry.base <= before:
                self._fail("offsets rise", log, f"{entry} follows {before}")
            before = entry.last
        saved = self._saved_starts.get((log.host, log.key), 0)
        if log.log_start_offset < saved and not self._checker.truth(log.key).excused:
            message = f"{log.log_start_offset} after a start, it had told a client {saved}"
            self._fail("log start never falls", log, message)

    def on_replica(self, replica: CheckedReplica) -> None:
        """A log that was opened has got a role to come, and its high watermark."""
        log = replica.checked_log
        keyed = self._keyed(log)
        truth = self._checker.truth(log.key)
        if keyed is not None and not truth.excused:
            self._check_begin(log)
            upto = min(truth.end, replica.high_watermark)
            self._check_deleted(keyed, log, self._held(keyed, log.shadow), upto)

    def on_lead(self, replica: CheckedReplica, truth: Truth, needed: int) -> None:
        """A replica begins to lead, and holds what is committed up to `needed`."""
        log = replica.checked_log
        if not self.is_tracked(log.topic) or truth.excused or int(replica.leader_epoch) < max(truth.leaders):
            return
        deleted_to = self.deleted_to.get(log.key, 0)
        if log.log_start_offset < deleted_to:
            message = f"the leader of epoch {replica.leader_epoch} begins at {log.log_start_offset}"
            self._fail("deleted records stay deleted", log, f"{message}, a client was told {deleted_to}")
        keyed = self._keyed(log)
        if keyed is not None and needed == truth.end:
            self._check_last_values(keyed, log, truth)

    def on_wiped(self, host: str) -> None:
        """A host's disk was replaced."""
        for key in [key for key in self._saved_starts if key[0] == host]:
            del self._saved_starts[key]

    def on_removed(self, host: str, key: TopicPartition) -> None:
        """A host's replica is none any more: one that comes later is another."""
        self._saved_starts.pop((host, key), None)

    # --- readers

    def on_read_range(self, key: TopicPartition, start: int, end: int, offsets: set[int]) -> None:
        """A reader that asked for `start` was given records at `offsets`, and goes on at `end`."""
        keyed, truth = self.keyed.get(key), self._checker.truth(key)
        if keyed is None or truth.excused:
            return
        first = max(start, self.start_seen.get(key, 0))
        for offset in range(first, end):
            row = keyed.rows.get(offset)
            if row is None or offset in offsets or offset in keyed.gone or row.key is None:
                continue
            if keyed.offsets[row.key][-1] == offset:
                self._checker.fail("a key keeps its last value", f"{key}: a reader misses {row} at {offset}")

    def at_rest(self, log: CheckedLog) -> None:
        """Nothing goes on any more."""
        if not self.is_tracked(log.topic):
            return
        truth = self._checker.truth(log.key)
        if truth.excused:
            return
        deleted_to = self.deleted_to.get(log.key, 0)
        if log.log_start_offset < deleted_to:
            message = f"it begins at {log.log_start_offset}, a client was told {deleted_to}"
            self._fail("deleted records stay deleted", log, message)
        keyed = self._keyed(log)
        if keyed is not None:
            self._check_last_values(keyed, log, truth)

    def _fail(self, name: str, log: CheckedLog, message: str) -> None:
        self._checker.fail(name, f"{log} on {log.host}: {message}")
