"""Planted bugs, third part: compaction, retention, DeleteRecords, lost disks.

For `planted`, which says what such a bug is and has the list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import penstock_controller.state.nodes as nodes_module
import penstock_storage_node.log.recovery as recovery_module
import penstock_storage_node.log.retention as retention_module
from penstock_kafka.records.batch import DELETE_HORIZON_BIT
from penstock_storage_node.kafka.delete_records import DeleteRecordsHandler
from penstock_storage_node.log.compaction.offset_map import OffsetMap
from penstock_storage_node.log.compaction.record_filter import filter_batch
from penstock_storage_node.log.compaction.rewrite import Cleaner
from penstock_storage_node.log.compaction.swap import complete_swaps
from penstock_storage_node.log.fs import unlink_if_exists
from penstock_storage_node.log.log import PartitionLog
from penstock_storage_node.log.offset_files import OffsetFiles
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.leadership import Leadership
from simulation.settings import Settings

Patch = tuple[Any, str, Any]
Row = tuple[str, str, Callable[[], list[Patch]], Callable[[Settings], None]]


def _compacting(settings: Settings) -> None:
    settings.log_life = ("compaction",)


def _compacting_and_crashing(settings: Settings) -> None:
    settings.log_life = ("compaction",)
    settings.favoured = ("crash at a disk operation", "node power cut", "node killed")
    settings.fault_interval_us = 600_000


def _retaining(settings: Settings) -> None:
    settings.log_life = ("retention",)


def _deleting(settings: Settings) -> None:
    settings.log_life = ("retention", "deletion")
    settings.favoured = ("node killed", "host cut off", "node power cut")
    settings.fault_interval_us = 600_000


def _losing_disks(settings: Settings) -> None:
    settings.log_life = ("disk loss",)
    settings.favoured = ("node killed", "host cut off")


# --- compaction


def _keys_taken_for_one() -> list[Patch]:
    put, get = OffsetMap.put, OffsetMap.get
    return [
        (OffsetMap, "put", lambda table, key, offset: put(table, key[:2], offset)),
        (OffsetMap, "get", lambda table, key: get(table, key[:2])),
    ]


def _last_value_dropped() -> list[Patch]:
    keeper = Cleaner._keeper

    def one_more(cleaner: Any, *, keeps_tombstones: bool) -> Any:
        keep, newest = keeper(cleaner, keeps_tombstones=keeps_tombstones), cleaner._map_end - 1
        return lambda record: keep(record) and record.offset != newest

    return [(Cleaner, "_keeper", one_more)]


def _tombstones_early() -> list[Patch]:
    init = Cleaner.__init__

    def hasty(cleaner: Any, fs: Any, request: Any, *rest: Any) -> None:
        init(cleaner, fs, replace(request, delete_retention_ms=request.delete_retention_ms // 2), *rest)

    return [(Cleaner, "__init__", hasty)]


def _clean_part_kept() -> list[Patch]:
    # "It is clean, so but for tombstones there is nothing to look for."
    clean = Cleaner._filter

    def lazy(cleaner: Any, info: Any, view: Any, *, is_last: bool) -> Any:
        request = cleaner._request
        if info.is_control or not info.record_count or info.last_offset >= request.first_dirty:
            return clean(cleaner, info, view, is_last=is_last)
        is_due = bool(info.attributes & DELETE_HORIZON_BIT) and info.base_timestamp <= request.now_ms
        return filter_batch(
            view,
            info,
            lambda record: record.value is not None or not is_due,
            new_horizon_ms=request.now_ms + request.delete_retention_ms,
            keep_empty=is_last,
        )

    return [(Cleaner, "_filter", lazy)]


def _cleaner_past_watermark() -> list[Patch]:
    plan = PartitionLog.plan_cleaning

    def too_far(log: Any, cleaned_until: int, _last_stable_offset: int, *rest: Any) -> Any:
        return plan(log, cleaned_until, log.log_end_offset, *rest)

    return [(PartitionLog, "plan_cleaning", too_far)]


def _swap_files_forgotten() -> list[Patch]:
    def forget(fs: Any, directory: str) -> None:
        for name in fs.list_directory(directory):
            if name.endswith(".swap"):
                unlink_if_exists(fs, f"{directory}/{name}")

    return [(recovery_module, "complete_swaps", forget)]


def _cleaned_files_taken() -> list[Patch]:
    complete = complete_swaps

    def take(fs: Any, directory: str) -> None:
        for name in fs.list_directory(directory):
            if name.endswith(".cleaned"):
                fs.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix('.cleaned')}.swap")
        complete(fs, directory)

    return [(recovery_module, "complete_swaps", take)]


def _deleted_keys_return() -> list[Patch]:
    return [(Leadership, "misses_tombstones", lambda *_: False)]


def _epoch_starts_not_told() -> list[Patch]:
    return [(PartitionLog, "epoch_starts_between", lambda log, low, high: ())]


def _epoch_starts_not_recovered() -> list[Patch]:
    init = recovery_module._Scan.__init__

    def forgetful(scan: Any, *args: Any, **kwargs: Any) -> None:
        init(scan, *args, **kwargs)
        scan._known_epochs = []

    return [(recovery_module._Scan, "__init__", forgetful)]


# --- the lower end


def _retention_above_watermark() -> list[Patch]:
    delete = PartitionLog.delete_old_segments

    def too_far(log: Any, _high_watermark: int, *rest: Any) -> Any:
        return delete(log, log.log_end_offset, *rest)

    return [(PartitionLog, "delete_old_segments", too_far)]


def _retention_counts_twice() -> list[Patch]:
    decide = retention_module.decide

    def wrong(segments: Any, settings: Any, *rest: Any) -> Any:
        # As if the active segment were not there: so much less would be kept.
        active_bytes = segments[-1].size
        if settings.retention_bytes > 0:
            settings = replace(settings, retention_bytes=max(settings.retention_bytes - active_bytes, 0))
        return decide(segments, settings, *rest)

    return [(retention_module, "decide", wrong)]


def _retention_by_first_record() -> list[Patch]:
    def by_first(segment: Any, settings: Any, now_ms: int) -> bool:
        oldest_ms = segment.first_timestamp if segment.first_timestamp >= 0 else segment.closed_ms
        return bool(settings.retention_ms >= 0 and now_ms - oldest_ms > settings.retention_ms)

    return [(retention_module, "is_expired", by_first)]


def _log_start_not_saved() -> list[Patch]:
    return [(OffsetFiles, "write_log_start", lambda *_: None)]


def _deletion_answered_early() -> list[Patch]:
    async def at_once(
        _handler: Any, partition: Any, _leadership: Any, _wanted: int, _timeout_s: float
    ) -> int:
        return int(partition.log.log_start_offset)

    return [(DeleteRecordsHandler, "_wait", at_once)]


def _log_start_told_early() -> list[Patch]:
    save = Partition.save_log_start

    async def told_first(partition: Any) -> None:
        partition.saved_log_start_offset = partition.log.log_start_offset
        partition._ports.drain._on_follower_progress(partition)
        await save(partition)

    return [(Partition, "save_log_start", told_first)]


def _elr_not_asked() -> list[Patch]:
    def of_the_living(leadership: Any) -> int:
        starts: list[int] = [
            f.log_start_offset for f in leadership.followers.values() if leadership._eligible(f.node_id, -1)
        ]
        own: int = leadership._state.log.log_start_offset
        return min([own, *starts])

    return [(Leadership, "low_watermark", of_the_living)]


# --- disks


def _wiped_node_in_sync() -> list[Patch]:
    lost_by = nodes_module._lost_by

    def same_directory(image: Any, old: Any, request: Any) -> Any:
        return lost_by(image, replace(old, directory_id=request.directory_id), request)

    return [(nodes_module, "_lost_by", same_directory)]


ROWS: list[Row] = [
    (
        "keys-taken-for-one",
        "compaction tells keys apart by their first two bytes",
        _keys_taken_for_one,
        _compacting,
    ),
    ("last-value-dropped", "compaction drops the newest record of all", _last_value_dropped, _compacting),
    ("tombstones-early", "tombstones go after half of delete.retention.ms", _tombstones_early, _compacting),
    (
        "deleted-keys-return",
        "a replica that was away goes on where its log ends, whatever tombstones are gone",
        _deleted_keys_return,
        _compacting,
    ),
    ("clean-part-kept", "of the clean part compaction takes tombstones alone", _clean_part_kept, _compacting),
    (
        "cleaner-past-watermark",
        "compaction reads past the high watermark",
        _cleaner_past_watermark,
        _compacting,
    ),
    (
        "swap-files-forgotten",
        "a start removes segments that were being swapped in",
        _swap_files_forgotten,
        _compacting_and_crashing,
    ),
    (
        "cleaned-files-taken",
        "a start swaps in what compaction had not finished",
        _cleaned_files_taken,
        _compacting_and_crashing,
    ),
    (
        "retention-above-watermark",
        "retention goes by the log's end",
        _retention_above_watermark,
        _retaining,
    ),
    (
        "retention-bytes-miscounted",
        "retention.bytes leaves the active segment out",
        _retention_counts_twice,
        _retaining,
    ),
    (
        "retention-by-first-record",
        "retention.ms counts from a segment's first record",
        _retention_by_first_record,
        _retaining,
    ),
    (
        "epoch-starts-not-told",
        "a copy takes the first batch that compaction left for the beginning of its epoch",
        _epoch_starts_not_told,
        _compacting,
    ),
    (
        "epoch-starts-not-recovered",
        "a start takes the first batch that compaction left for the beginning of its epoch",
        _epoch_starts_not_recovered,
        _compacting_and_crashing,
    ),
    (
        "log-start-not-saved",
        "a log start is in memory alone until a checkpoint",
        _log_start_not_saved,
        _deleting,
    ),
    (
        "deletion-answered-early",
        "DeleteRecords is answered before the followers know",
        _deletion_answered_early,
        _deleting,
    ),
    (
        "log-start-told-early",
        "a follower tells a log start that it has not saved",
        _log_start_told_early,
        _deleting,
    ),
    ("elr-not-asked", "DeleteRecords waits for live replicas alone", _elr_not_asked, _deleting),
    ("wiped-node-in-sync", "a node with a new disk stays in its ISRs", _wiped_node_in_sync, _losing_disks),
]
