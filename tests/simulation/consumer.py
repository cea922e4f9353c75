"""A reader that follows every partition through gateways and compares what it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicPartition
from penstock_kafka.records.batch import is_crc_valid, iter_batches
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from simulation.checked import entry_of

if TYPE_CHECKING:
    from simulation.world import World

VERSION = 16
TIMEOUT_US = 8_000_000
FINISHING_INTERVAL_US = 100_000


class Consumer:
    """One client. Reads from offset 0 on, each partition to its end, for ever."""

    def __init__(self, world: World, number: int, interval_us: int) -> None:
        self._world = world
        self.name = f"r{number}"
        self.offsets: dict[TopicPartition, int] = {}
        self.records = 0
        self._interval_us = interval_us
        self._connection: Any = None
        self._waiting: Any = None
        self._number = 0
        self._watermarks: dict[TopicPartition, int] = {}

    def start(self) -> None:
        self._world.scheduler.after(self._interval_us, self._poll)

    def finish(self) -> None:
        """Read on to the end: a Fetch brings one segment at most, which may hold a dozen records (seed 1335)."""
        self._interval_us = min(self._interval_us, FINISHING_INTERVAL_US)

    def _poll(self) -> None:
        self._world.scheduler.after(self._interval_us, self._poll)
        keys = self._world.live_partitions()
        if self._waiting is not None or not keys:
            return
        if self._connection is None or self._connection.closed:
            self._connection = self._world.connect(self, 0)
            if self._connection is None:
                return
        self._number += 1
        number = self._number
        request = FetchRequest(
            0,
            1,
            1 << 20,
            partitions=[
                FetchPartition("", k.topic_id, k.partition, -1, self.offsets.get(k, 0), -1, -1, 1 << 18)
                for k in keys
            ],
        )
        frame = encode_fetch_request(VERSION, number, self.name, request)
        connection = self._connection
        self._waiting = self._world.scheduler.after(TIMEOUT_US, self._timed_out, connection)
        connection.send(frame, lambda data: self._on_response(number, data))

    def _timed_out(self, connection: Any) -> None:
        self._world.checker.operations.goals.on_client_timeout(self.name)
        connection.close()
        self.lost(0, connection)

    def lost(self, _route: int, connection: Any) -> None:
        """The connection broke."""
        if connection is self._connection:
            self._connection = None
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    def _on_response(self, number: int, data: bytes) -> None:
        if number != self._number or self._waiting is None:
            return
        self._waiting.cancel()
        self._waiting = None
        for result in decode_fetch_response(data, VERSION).results:
            if result.topic_id is not None:
                self._take(TopicPartition(result.topic_id, result.partition), result)

    def _take(self, key: TopicPartition, result: Any) -> None:
        checker = self._world.checker
        truth = checker.truth(key)
        if truth.excused:
            return
        if result.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._world.log_life.reset(self.offsets, key):
                return
            checker.fail(
                "committed data never retracts", f"{key}: {self.offsets.get(key, 0)} is out of range"
            )
        if result.error:
            self._world.checker.operations.goals.on_client_error(self.name, key, ErrorCode(result.error))
            return
        if result.high_watermark > truth.end:
            checker.fail(
                "watermark within what is committed", f"{key}: a reader is told {result.high_watermark}"
            )
        first = expected = self.offsets.get(key, 0)
        rows = checker.logs.keyed.get(key)
        found: set[int] = set()
        for view in result.records:
            for info in iter_batches(view):
                if not is_crc_valid(memoryview(view)[info.position : info.position + info.size_bytes]):
                    checker.fail("readers see what is committed", f"{key}: wrong CRC at {info.base_offset}")
                entry = entry_of(info)
                if rows is not None:
                    checker.logs.note(key, entry, info, view[info.position : info.position + info.size_bytes])
                    found.update(rows.contents[entry.base, entry.crc].rows)
                elif info.base_offset > expected:
                    checker.fail("no gap", f"{key}: a reader at {expected} gets {info.base_offset}")
                checker.on_read(key, entry)
                expected = max(expected, info.next_offset)
                self.records += info.record_count
        self.offsets[key] = expected
        checker.logs.on_read_range(key, first, expected, found)
