"""compression.type: batches that come in another codec than their topic's are compressed anew.

Rules (Kafka: LogValidator with the topic's compression.type)
  * `producer` keeps batches as they come; `uncompressed` stores them plain; else the codec named.
  * Offsets, times, sequences and the order of appends stay what they are.
  * A batch that is damaged or too big goes on as it came, to be refused for what it is.

The codecs run in threads of their own and let go of the interpreter lock, so the event loop goes
on (rule 19). Order: a request with a batch to convert, and every later one for the same
partitions, waits for its turn; each partition remembers the last in its line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from penstock_core.errors import PenstockError
from penstock_core.ids import TopicPartition
from penstock_core.kafka.produce import ProducePartition
from penstock_core.records import compression
from penstock_core.records.batch import COMPRESSION_MASK, HEADER_BYTES
from penstock_core.records.recompress import recompress
from penstock_core.topic_settings import TopicSettings
from penstock_storage_node.replicas import ReplicaManager

THREADS: Final = 2
LZ4_LEVEL_DEFAULT: Final = 9
_CODEC_BYTE: Final = 22

_CODECS: Final = {
    "uncompressed": compression.NONE,
    "gzip": compression.GZIP,
    "snappy": compression.SNAPPY,
    "lz4": compression.LZ4,
    "zstd": compression.ZSTD,
}


@dataclass(slots=True)
class _Work:
    item: ProducePartition
    codec: int
    level: int | None
    max_bytes: int

    def run(self) -> None:
        records = self.item.records
        if len(records) > self.max_bytes:
            return
        try:
            self.item.records = memoryview(recompress(records, self.codec, self.level))
        except PenstockError:
            return


class Turn:
    """One request's place in the lines of its partitions."""

    def __init__(
        self, conversions: Conversions, keys: Sequence[TopicPartition], work: Sequence[_Work]
    ) -> None:
        self._conversions = conversions
        self._keys = keys
        self._work = work
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tails = conversions.tails
        self._before = {tails[key] for key in keys if key in tails}
        for key in keys:
            tails[key] = self._over

    async def come(self) -> None:
        """Convert, and wait until those before have appended."""
        if self._work:
            await asyncio.get_running_loop().run_in_executor(self._conversions.executor, self._convert)
        for before in self._before:
            await asyncio.shield(before)

    def _convert(self) -> None:
        for each in self._work:
            each.run()

    def end(self) -> None:
        """This request has appended: the next one's turn."""
        self._over.set_result(None)
        tails = self._conversions.tails
        for key in self._keys:
            if tails.get(key) is self._over:
                del tails[key]


class Conversions:
    """Requests of one node whose batches are converted, or that wait for such."""

    def __init__(self, manager: ReplicaManager) -> None:
        self.tails: dict[TopicPartition, asyncio.Future[None]] = {}
        self._manager = manager
        self._executor: ThreadPoolExecutor | None = None

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The threads; made when first needed."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="recompress")
        return self._executor

    def take_turn(self, items: Sequence[ProducePartition]) -> Turn | None:
        """None when the request may be appended at once."""
        keys: list[TopicPartition] = []
        work: list[_Work] = []
        for item in items:
            try:
                partition = self._manager.locate(item.topic, item.topic_id, item.partition)
            except PenstockError:
                continue
            settings = partition.replica.settings
            if settings.compression_type != "producer":
                codec = _CODECS[settings.compression_type]
                records = item.records
                if len(records) > HEADER_BYTES and records[_CODEC_BYTE] & COMPRESSION_MASK != codec:
                    work.append(_Work(item, codec, _level(settings, codec), settings.max_message_bytes))
                keys.append(partition.key)
            elif self.tails:
                keys.append(partition.key)
        if not work and not any(key in self.tails for key in keys):
            return None
        return Turn(self, keys, work)


def _level(settings: TopicSettings, codec: int) -> int | None:
    if codec == compression.GZIP:
        return settings.compression_gzip_level if settings.compression_gzip_level > 0 else None
    if codec == compression.LZ4:
        # Kafka's default, 9, means its fast compressor; a level that is set means the thorough one.
        is_set = settings.compression_lz4_level != LZ4_LEVEL_DEFAULT
        return settings.compression_lz4_level if is_set else None
    if codec == compression.ZSTD:
        return settings.compression_zstd_level
    return None
