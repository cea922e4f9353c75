"""A small storage node beside the gateway in memory: it answers Fetch for the same topics, and does what it is told.

Requests are read and answers written by Penstock's own forms, not by those of the source.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.fetch import (
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResult,
    decode_fetch,
    encode_fetch_response,
)
from penstock_kafka.wire.frames import RequestHeader, parse_request_header
from pyspark_penstock.direct.nodes import Leader, NodeListener
from unit.spark.spark_memory_gateway import Log, MemoryGateway

UNKNOWN_TOPIC_ID, OFFSET_OUT_OF_RANGE = 100, 1


class MemoryNode:
    """Listens until `stop`."""

    def __init__(self, cluster: MemoryGateway) -> None:
        self.cluster = cluster
        self.asked: list[int] = []
        """Offsets, in the order of the requests."""
        self.came = threading.Condition()
        """Told of each request."""
        self.asked_bytes: list[int] = []
        """Most that each wanted."""
        self.connections = 0
        self.high_watermark: int | None = None
        """Where it is not the log's end."""
        self.aborted: list[tuple[int, int, int]] = []
        """Producer id, first offset and the marker's of each aborted transaction."""
        self.error: Callable[[int], int] = lambda turn: 0
        """Kafka's code for the request of that number, from 1 on; 0 for none, -1 hangs up, -2 says nothing."""
        self.near: dict[str, int] = {}
        """By rack: the node that is named instead of records."""
        self.racks: list[str] = []
        self.spoil: Callable[[bytes], bytes] = lambda frame: frame
        """Called with each frame, its length included."""
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def leader(self, epoch: int = 0, security: str = "PLAINTEXT") -> Leader:
        return Leader(1, epoch, (NodeListener("127.0.0.1", self.port, security),))

    def stop(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def hang_up(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(client)
            self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), client.makefile("rb") as reading:
            while True:
                head = reading.read(4)
                if len(head) < 4:
                    return
                frame = reading.read(struct.unpack(">i", head)[0])
                answer = self._answer(frame)
                if answer is None:
                    return
                client.sendall(answer)

    def _answer(self, frame: bytes) -> bytes | None:
        header = parse_request_header(frame)
        assert header.api_key == ApiKey.FETCH
        request = decode_fetch(frame, header)
        (wanted,) = request.partitions
        with self.came:
            self.asked.append(wanted.fetch_offset)
            self.asked_bytes.append(wanted.max_bytes)
            self.came.notify_all()
        self.racks.append(request.rack_id)
        error = self.error(len(self.asked))
        if error == -1:
            return None
        if error == -2:
            return b""
        return self.spoil(self._encode(header, request, wanted, error))

    def _encode(
        self, header: RequestHeader, request: FetchRequest, wanted: FetchPartition, error: int
    ) -> bytes:
        result = FetchResult("", wanted.topic_id, wanted.partition, error)
        found = [each for each in self.cluster.topics.values() if each.topic_id == wanted.topic_id]
        if not error and not found:
            result.error = UNKNOWN_TOPIC_ID
        elif not error:
            self._fill(result, request, wanted, found[0].logs[wanted.partition])
        body = b"".join(bytes(each) for each in encode_fetch_response(header, [result]))
        return struct.pack(">i", len(body)) + body

    def _fill(self, result: FetchResult, request: FetchRequest, wanted: FetchPartition, log: Log) -> None:
        if not log.start <= wanted.fetch_offset <= log.end:
            result.error = OFFSET_OUT_OF_RANGE
            return
        end = log.end if self.high_watermark is None else self.high_watermark
        result.high_watermark = result.last_stable_offset = end
        result.log_start_offset = log.start
        result.preferred_replica = self.near.get(request.rack_id, -1)
        if result.preferred_replica >= 0:
            return
        size, sent = 0, (end, end)
        for first, last, data in log.batches:
            if last < wanted.fetch_offset or first >= end:
                continue
            if size and size + len(data) > wanted.max_bytes:
                break
            result.records.append(data)
            sent = (first if not size else sent[0], last)
            size += len(data)
        if request.isolation_level == READ_COMMITTED:
            result.aborted = [
                (producer_id, first)
                for producer_id, first, marker in self.aborted
                if first <= sent[1] and marker >= sent[0]
            ]
