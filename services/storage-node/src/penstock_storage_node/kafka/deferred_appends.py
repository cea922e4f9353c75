"""Requests that cannot be appended at once: batches to compress anew, partitions just being made.

A topic may have been made a moment ago: a client that knows this node for a leader need not hear
that it is none, and with acks=0 would never hear it. Such a request waits until the partition has
its directory, which is milliseconds, or until that has failed.

Rules of compression.type (Kafka: LogValidator with the topic's compression.type)
  * `producer` keeps batches as they come; `uncompressed` stores them plain; else the codec named.
  * Offsets, times, sequences and the order of appends stay what they are.
  * A batch that is damaged or too big goes on as it came, to be refused for what it is.

The codecs run in threads of their own and let go of the interpreter lock, so the event loop goes
on (rule "The loop stays free"). Order: a request that has to wait, and every later one for any of
its partitions, waits for its turn; each partition remembers the last in its line. A request waits
as a whole: a client's next batch for a partition that could have had this one's at once must not overtake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import PenstockError
from penstock_core.ids import TopicId
from penstock_core.limits import DECOMPRESSED_BATCH_BYTES_MAX
from penstock_kafka.records import compression
from penstock_kafka.records.batch import COMPRESSION_MASK, HEADER_BYTES
from penstock_kafka.records.recompress import recompress
from penstock_kafka.wire.produce import ProducePartition
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replica.registry import PartitionRegistry

THREADS: Final = 2
LZ4_LEVEL_DEFAULT: Final = 9
_CODEC_BYTE: Final = 22

_Key = tuple[str, TopicId | None, int]
"""A partition as its client names it: that does not change when this node hears of the topic."""

_CODECS: Final = {
    "uncompressed": compression.NONE,
    "gzip": compression.GZIP,
    "snappy": compression.SNAPPY,
    "lz4": compression.LZ4,
    "zstd": compression.ZSTD,
}


@dataclass(frozen=True, slots=True)
class _Conversion:
    index: int
    """Of the batch in its request."""
    records: memoryview
    codec: int
    level: int | None
    max_bytes: int

    def run(self) -> memoryview:
        """The batch in that codec; as it came, when it is too big or damaged."""
        if len(self.records) > self.max_bytes:
            return self.records
        try:
            most_bytes = max(DECOMPRESSED_BATCH_BYTES_MAX, self.max_bytes)
            return memoryview(recompress(self.records, self.codec, self.level, most_bytes=most_bytes))
        except PenstockError:
            return self.records


class DeferredAppend:
    """One request's place in the lines of its partitions."""

    def __init__(
        self,
        turns: DeferredAppends,
        items: Sequence[ProducePartition],
        keys: Sequence[_Key],
        conversions: Sequence[_Conversion],
        opening: Sequence[tuple[int, asyncio.Future[None]]],
    ) -> None:
        """`opening`: by index into `items`, when its partition can be appended to."""
        self._turns = turns
        self._items = items
        self._keys = keys
        self._conversions = conversions
        self._opening = opening
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tails = turns.tails
        self._before = list(dict.fromkeys(tails[key] for key in keys if key in tails))
        for key in keys:
            tails[key] = self._over

    async def come(self) -> Sequence[ProducePartition]:
        """Wait for partitions that are being made, convert, and wait until those before have appended.

        What is then to be appended, in the request's order.
        """
        items, conversions = list(self._items), list(self._conversions)
        for index, opened in self._opening:
            await asyncio.shield(opened)
            partition = self._turns.find(items[index])
            if partition is not None:
                conversions += self._turns.conversion(index, items[index], partition)
        if conversions:
            loop = asyncio.get_running_loop()
            converted = await loop.run_in_executor(self._turns.executor, _convert, conversions)
            for each, records in zip(conversions, converted, strict=True):
                items[each.index] = replace(items[each.index], records=records)
        for before in self._before:
            await asyncio.shield(before)
        return items

    def end(self) -> None:
        """This request has appended, or its client is gone: the next one's turn. Idempotent.

        Given up before its turn came, it lets nobody past those who are before it.
        """
        if self._over.done():
            return
        for before in self._before:
            if not before.done():
                before.add_done_callback(lambda _: self.end())
                return
        self._over.set_result(None)
        tails = self._turns.tails
        for key in self._keys:
            if tails.get(key) is self._over:
                del tails[key]


class DeferredAppends:
    """Requests of one node that have to wait, and the lines of those behind them."""

    def __init__(self, registry: PartitionRegistry) -> None:
        self.tails: dict[_Key, asyncio.Future[None]] = {}
        self._registry = registry
        self._executor: ThreadPoolExecutor | None = None

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The threads; made when first needed."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="recompress")
        return self._executor

    def take_turn(self, items: Sequence[ProducePartition]) -> DeferredAppend | None:
        """None when the request may be appended at once."""
        conversions: list[_Conversion] = []
        opening: list[tuple[int, asyncio.Future[None]]] = []
        for index, item in enumerate(items):
            partition = self.find(item)
            if partition is None:
                opened = self._registry.opening(item.topic, item.topic_id, item.partition)
                if opened is not None:
                    opening.append((index, opened))
            elif partition.replica.settings.compression_type != "producer":
                conversions += self.conversion(index, item, partition)
        if not conversions and not opening and not self.tails:
            return None
        keys: list[_Key] = [(item.topic, item.topic_id, item.partition) for item in items]
        if not conversions and not opening and not any(key in self.tails for key in keys):
            return None
        return DeferredAppend(self, items, keys, conversions, opening)

    def line_up(self, items: Sequence[ProducePartition]) -> DeferredAppend:
        """A place in line for a request that is long work, or was begun and goes on later."""
        keys: list[_Key] = [(item.topic, item.topic_id, item.partition) for item in items]
        return DeferredAppend(self, items, keys, [], [])

    def find(self, item: ProducePartition) -> Partition | None:
        """The partition, when this node has it."""
        try:
            return self._registry.locate(item.topic, item.topic_id, item.partition)
        except PenstockError:
            return None

    def conversion(self, index: int, item: ProducePartition, partition: Partition) -> list[_Conversion]:
        """How that batch gets into its topic's codec; empty when it stays as it is."""
        settings, records = partition.replica.settings, item.records
        if settings.compression_type == "producer" or len(records) <= HEADER_BYTES:
            return []
        codec = _CODECS[settings.compression_type]
        if records[_CODEC_BYTE] & COMPRESSION_MASK == codec:
            return []
        return [_Conversion(index, records, codec, _level(settings, codec), settings.max_message_bytes)]


def _convert(conversions: Sequence[_Conversion]) -> list[memoryview]:
    """In a thread."""
    return [each.run() for each in conversions]


def _level(settings: TopicConfig, codec: int) -> int | None:
    if codec == compression.GZIP:
        return settings.compression_gzip_level if settings.compression_gzip_level > 0 else None
    if codec == compression.LZ4:
        # Kafka's default, 9, means its fast compressor; a level that is set means the thorough one.
        is_set = settings.compression_lz4_level != LZ4_LEVEL_DEFAULT
        return settings.compression_lz4_level if is_set else None
    if codec == compression.ZSTD:
        return settings.compression_zstd_level
    return None
