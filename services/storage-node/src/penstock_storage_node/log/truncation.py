"""Cutting a log: to follow its leader, or to begin anew elsewhere.

Everything here runs in the pool and needs the log for itself: no job out, nobody appending or
reading. Both cuts are durable on return, before later appends can be. A failure half-way leaves
the log FAILED; one for want of space, met before anything was cut, leaves it as it was.
"""

from __future__ import annotations

from penstock_core.failpoints import hit
from penstock_storage_node.log import recovery
from penstock_storage_node.log.jobs import FULL_ERRORS, save_indexes
from penstock_storage_node.log.ports import LogPorts
from penstock_storage_node.log.producer_replay import ProducerReplay, remove_snapshots, save_aborted
from penstock_storage_node.log.state import LogData, LogState
from penstock_storage_node.log.writer import LogWriter


class LogTruncation:
    """Cuts of one log."""

    __slots__ = ("_data", "_ports", "_writer")

    def __init__(self, data: LogData, writer: LogWriter, ports: LogPorts) -> None:
        self._data = data
        self._writer = writer
        self._ports = ports

    def truncate_to(self, offset: int) -> int:
        """See `PartitionLog.truncate_to`."""
        self._writer.require_alone("truncation")
        data, fs = self._data, self._ports.fs
        if offset >= data.end:
            # No data to cut, but an epoch that begins here may be one the leader lacks:
            # kept, it would make the two logs diverge again at every comparison (Kafka:
            # UnifiedLog.truncateTo).
            data.epochs.truncate_from_end(data.end)
            recovery.save_epochs(fs, data.directory, data.epochs)
            return data.end
        if data.state not in (LogState.OK, LogState.FULL):
            raise data.refusal()
        if offset < data.start:
            self.truncate_fully_and_start_at(offset)
            return offset
        if offset > data.written and not self._writer.write_all():
            return data.end
        try:
            # Whatever needs space comes before anything is cut.
            target = data.segment_of(offset)
            first = data.start
            if target.base_offset < first and recovery.end_if_cut(fs, target, offset) < first:
                # The log start lies in the batch that goes with `offset`, or in a gap before it.
                self.truncate_fully_and_start_at(first)
                return first
            if target.is_on_disk:
                save_indexes(fs, target, target.offset_index.count, target.time_index.count)
            # Not to `offset`: the batch that it lies in goes too.
            self._lower_checkpoint(max(target.base_offset, data.start))
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                data.state = LogState.FAILED
            raise
        try:
            return self._cut_files(offset)
        except OSError:
            data.state = LogState.FAILED
            raise

    def _lower_checkpoint(self, offset: int) -> None:
        data = self._data
        data.cut_count += 1
        if offset < data.flushed:
            # First here: a checkpoint that is being written may look at us at any moment.
            before, data.flushed = data.flushed, offset
            try:
                self._ports.checkpoints.lower(offset)
            except OSError:
                data.flushed = before  # nothing is cut
                raise

    def _cut_files(self, offset: int) -> int:
        data, fs = self._data, self._ports.fs
        hit("log.truncate.before_cut")
        data.drop_staged()
        on_disk = [segment for segment in data.segments if segment.is_on_disk]
        kept = [segment for segment in on_disk if segment.base_offset <= offset] or on_disk[:1]
        gone = on_disk[len(kept) :]
        recovery.remove_segments(fs, gone)
        if gone:
            fs.sync_directory(data.directory)
        hit("log.truncate.after_segments")
        end_offset = recovery.cut_segment(fs, kept[-1], offset, data.settings)
        hit("log.truncate.after_cut")
        data.shorten(kept, end_offset)
        recovery.save_epochs(fs, data.directory, data.epochs)
        now_ms = self._ports.idle_clock_ms()
        ended = data.producers.transactions.ended_below(end_offset)
        replay = ProducerReplay(fs, data.directory, kept, end_offset, now_ms)
        # Those that the replay does not come by are remembered, whatever the high watermark is.
        replay.run(data.producers, high_watermark=end_offset, from_segment=kept[-1].base_offset)
        data.producers.transactions.put_back(ended)
        data.damage = replay.damage
        save_aborted(fs, kept[-1:], replay.all_aborted(kept[-1:]))
        fs.sync_directory(data.directory)
        data.cut_count += 1
        data.state = LogState.OK
        return end_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """See `PartitionLog.truncate_fully_and_start_at`."""
        self._writer.require_alone("truncation")
        data, fs = self._data, self._ports.fs
        if data.state not in (LogState.OK, LogState.FULL):
            raise data.refusal()
        before, data.start = data.start, min(data.start, offset)  # first, for checkpoints being written
        try:
            self._lower_checkpoint(data.start)
        except OSError as error:
            data.start = before
            if error.errno not in FULL_ERRORS:
                data.state = LogState.FAILED
            raise
        try:
            data.drop_staged()
            on_disk = [segment for segment in data.segments if segment.is_on_disk]
            recovery.remove_segments(fs, [*data.leaving.values(), *on_disk])
            data.leaving.clear()  # files of these names are new ones from now on
            data.epochs.clear()
            recovery.save_epochs(fs, data.directory, data.epochs)
            data.producers.clear()
            data.damage = None
            remove_snapshots(fs, data.directory)
            fs.sync_directory(data.directory)
            segment = recovery.first_segment(fs, data.directory, offset, self._ports.clock_ms())
        except OSError:
            data.state = LogState.FAILED
            raise
        data.begin_anew(segment)
        data.cut_count += 1
        data.state = LogState.OK
