"""Turns bounds (earliest, latest, offsets, timestamps) into offsets, and a batch read into ranges."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyspark_penstock.by_bytes import capped, tile_by_bytes
from pyspark_penstock.errors import DataLossError, GatewayError, OptionError
from pyspark_penstock.gateway import GatewayClient, OffsetAnswer, Query, TopicInfo, select_topics
from pyspark_penstock.options import EARLIEST, LATEST, Bound, SourceOptions
from pyspark_penstock.pushdown import Narrowing
from pyspark_penstock.questions import group_offsets, size_ranges
from pyspark_penstock.tiling import OffsetRange, tile

Partition = tuple[str, int]
Offsets = dict[Partition, int]

_log = logging.getLogger("pyspark_penstock")

REGRESSION_GRACE_MS = 5_000
"""How long a log may end below an offset that is asked for: a new leader learns its high watermark only some moments
later, and what another one has told a moment before is no loss."""
_REGRESSION_POLL_MS = 100


def keys_of(topics: dict[str, TopicInfo]) -> list[Partition]:
    """All partitions, ordered, so that plans and offsets come out alike every time."""
    return [(name, part) for name in sorted(topics) for part in topics[name].partitions]


def ask(client: GatewayClient, queries: Sequence[Query]) -> Offsets:
    """Offsets of partitions that must exist. Raises GatewayError when one doesn't answer."""
    answers = client.list_offsets(queries)
    return {(q.topic, q.partition): checked(q, answer) for q, answer in zip(queries, answers, strict=True)}


def checked(query: Query, answer: OffsetAnswer) -> int:
    if answer.code:
        raise GatewayError(
            f"offset of {query.topic}-{query.partition}: {answer.message or f'Kafka error {answer.code}'}"
        )
    return answer.offset


def ends(client: GatewayClient, keys: Sequence[Partition], which: int) -> Offsets:
    """Earliest (-2) or latest (-1) offsets."""
    return ask(client, [Query(topic, part, which) for topic, part in keys])


def settled_ends(client: GatewayClient, wanted: Offsets) -> Offsets:
    """Latest offsets; those below what is wanted are looked at again for a while."""
    found = ends(client, list(wanted), LATEST)
    deadline_s = time.monotonic() + REGRESSION_GRACE_MS / 1000
    while True:
        short = [key for key, offset in wanted.items() if found[key] < offset]
        if not short or time.monotonic() >= deadline_s:
            return found
        time.sleep(_REGRESSION_POLL_MS / 1000)
        found |= ends(client, short, LATEST)


def resolve(
    client: GatewayClient,
    bound: Bound,
    keys: Sequence[Partition],
    *,
    name: str,
    latest_when_no_match: bool,
    group: str = "",
) -> Offsets:
    """Offsets of a bound. `name` is the option's prefix, for messages; `group` is whose offsets "group" are."""
    if bound.kind == "group":
        known = group_offsets(client, group, sorted({topic for topic, _ in keys}))
        # Where the group has none, nobody has read: from the first record on.
        return ends(client, [key for key in keys if key not in known], EARLIEST) | {
            key: known[key] for key in keys if key in known
        }
    if bound.kind == "earliest":
        return ends(client, keys, EARLIEST)
    if bound.kind == "latest":
        return ends(client, keys, LATEST)
    if bound.kind == "timestamp":
        return _by_time(client, dict.fromkeys(keys, bound.timestamp_ms), name, latest_when_no_match)
    given = {(topic, part): value for topic, item in bound.offsets.items() for part, value in item.items()}
    if set(given) != set(keys):
        option = f"{name}OffsetsByTimestamp" if bound.kind == "timestamps" else f"{name}Offsets"
        missing = ", ".join(f"{topic}-{part}" for topic, part in sorted(set(keys) - set(given)))
        extra = ", ".join(f"{topic}-{part}" for topic, part in sorted(set(given) - set(keys)))
        raise OptionError(
            f"{option} must name every partition that is read and no other (-1 for latest, -2 for earliest)"
            + (f"; missing: {missing}" if missing else "")
            + (f"; not read: {extra}" if extra else "")
        )
    if bound.kind == "timestamps":
        return _by_time(client, given, name, latest_when_no_match)
    relative = [key for key in keys if given[key] < 0]
    return given | ask(client, [Query(topic, part, given[(topic, part)]) for topic, part in relative])


def _by_time(client: GatewayClient, times: Offsets, name: str, latest_when_no_match: bool) -> Offsets:
    found = ask(client, [Query(topic, part, time) for (topic, part), time in times.items()])
    later = [key for key, offset in found.items() if offset < 0]
    if later and not latest_when_no_match:
        names = ", ".join(f"{topic}-{part}" for topic, part in later)
        raise OptionError(
            f"no record is as late as the {name} timestamp in: {names}; set "
            'startingOffsetsByTimestampStrategy to "latest" to start at the end there'
        )
    return found | ends(client, later, LATEST)


def batch_ranges(
    client: GatewayClient, options: SourceOptions, narrowing: Narrowing | None = None
) -> list[OffsetRange]:
    """The ranges of a batch read, tiled. Offsets that don't exist are data loss.

    `narrowing` leaves out what the query's filters would, and changes nothing else.
    """
    topics = select_topics(client, options)
    keys = keys_of(topics)
    starts = resolve(
        client,
        options.starting,
        keys,
        name="starting",
        latest_when_no_match=options.latest_when_no_match,
    )
    stops = resolve(client, options.ending, keys, name="ending", latest_when_no_match=True)
    # Asked last, so that "latest" can't lie beyond what they say.
    first = ends(client, keys, EARLIEST)
    last = settled_ends(client, {key: max(starts[key], stops[key]) for key in keys})
    ranges = []
    for topic, part in keys:
        key = (topic, part)
        start, stop = starts[key], stops[key]
        if options.starting.kind == "offsets" and not first[key] <= start <= last[key]:
            _lost(options, f"{topic}-{part}: start {start} is outside {first[key]}..{last[key]}")
        if stop > last[key]:
            _lost(options, f"{topic}-{part}: end {stop} is beyond the end of the log, {last[key]}")
        start = max(start, first[key])
        stop = min(stop, last[key])
        if stop > start:
            ranges.append(OffsetRange(topic, part, start, stop, topics[topic].topic_id))
    if narrowing is not None:
        ranges = narrowed(client, ranges, narrowing)
    return tiled(client, options, ranges)


def tiled(client: GatewayClient, options: SourceOptions, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """What each Spark partition reads: by bytes where they are told, else by offsets."""
    if options.partitions_min is not None or options.bytes_per_partition_max is not None:
        tiles = tile_by_bytes(
            partial(size_ranges, client),
            ranges,
            options.partitions_min,
            options.records_per_partition_max,
            options.bytes_per_partition_max,
        )
        if tiles is not None:
            return tiles
        if options.bytes_per_partition_max is not None:
            _tell_no_sizes("maxBytesPerPartition")
    return tile(ranges, options.partitions_min, options.records_per_partition_max)


def cap_bytes(
    client: GatewayClient, options: SourceOptions, ranges: Sequence[OffsetRange], turn: int
) -> Sequence[OffsetRange]:
    """How far a micro-batch goes of what it might read, by maxBytesPerTrigger. `turn` is another one each time: offsets
    would do as little as they do where all batches have as many records."""
    waiting = [item for item in ranges if item.size > 0]
    if options.bytes_per_trigger_max is None or not waiting:
        return ranges
    capped_ones = capped(partial(size_ranges, client), waiting, options.bytes_per_trigger_max, turn)
    if capped_ones is None:
        _tell_no_sizes("maxBytesPerTrigger")
        return ranges
    return capped_ones


_told: set[str] = set()


def _tell_no_sizes(option: str) -> None:
    if option not in _told:  # a stream would say it at every micro-batch
        _told.add(option)
        _log.warning(
            "a gateway or a leader behind it does not tell sizes of ranges: %s is left aside; upgrade it, or "
            "go by offsets",
            option,
        )


def narrowed(client: GatewayClient, ranges: Sequence[OffsetRange], narrowing: Narrowing) -> list[OffsetRange]:
    """The parts of the ranges that may have rows of the answer."""
    left = []
    for item in ranges:
        if narrowing.takes(item.topic, item.partition):
            start, end = narrowing.clip(item.start, item.end)
            if start < end:
                left.append(replace(item, start=start, end=end))
    if narrowing.time_min_ms is None:
        return left
    # -1: no record is that late.
    first = ask(client, [Query(item.topic, item.partition, narrowing.time_min_ms) for item in left])
    late = [(item, first[(item.topic, item.partition)]) for item in left]
    return [replace(item, start=max(item.start, offset)) for item, offset in late if 0 <= offset < item.end]


def _lost(options: SourceOptions, text: str) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(f'{text}; set option("failOnDataLoss", "false") to read what is there')
    _log.warning("%s; reading what is there, as failOnDataLoss=false says", text)
