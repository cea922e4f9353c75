"""The in-memory gateway with a Produce stream: what a leader does with a batch, and what a test wants to go wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from penstock_proto.v1 import gateway_pb2
from unit.spark.spark_batches import HEADER, decode_plainly, stamp
from unit.spark.spark_memory_gateway import MemoryGateway

Fault = Callable[[Any, Any], "tuple[int, str] | None"]


class SinkGateway(MemoryGateway):
    """Appends what is produced. `refuse` and `lose` are called with (context, request) for each whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_bytes_max = 1 << 30
        self.refuse: Fault | None = None
        """A Kafka error in the batch's place; or it aborts the call before the batch is taken."""
        self.lose: Fault | None = None
        """Aborts the call after the batch was taken, before its answer."""
        self.streams = 0
        self._appending = threading.Lock()

    def Produce(self, request_iterator: Any, context: Any) -> Iterator[gateway_pb2.ProduceResponse]:  # noqa: N802
        self.streams += 1
        parts: list[Any] = []
        for request in request_iterator:
            parts.append(request)
            if request.more:
                continue
            first, records = parts[0], b"".join(part.records for part in parts)
            assert all(part.request_id == first.request_id for part in parts)
            parts = []
            answer = gateway_pb2.ProduceResponse(request_id=first.request_id, base_offset=-1)
            refused = self._refusal(context, first, records)
            if refused is not None:
                answer.error.code, answer.error.message = refused
            else:
                answer.base_offset = self._append(first, records)
                if self.lose is not None:
                    self.lose(context, first)
            yield answer

    def _refusal(self, context: Any, request: Any, records: bytes) -> tuple[int, str] | None:
        where = f"{request.topic}-{request.partition}"
        topic = self.topics.get(request.topic)
        if topic is None or not 0 <= request.partition < len(topic.logs):
            return 3, f"{where}: UNKNOWN_TOPIC_OR_PARTITION"
        if len(records) > self.batch_bytes_max:
            return (
                10,
                f"{where}: a batch of {len(records)} bytes is above max.message.bytes={self.batch_bytes_max}",
            )
        return None if self.refuse is None else self.refuse(context, request)

    def _append(self, request: Any, records: bytes) -> int:
        count = HEADER.unpack_from(records)[12]
        with self._appending, self.changed:
            log = self.topics[request.topic].logs[request.partition]
            base: int = log.end
            log.batches.append((base, base + count - 1, stamp(records, base)))
            log.end += count
            self.changed.notify_all()
        return base

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """All records, by partition and offset."""
        return [
            row
            for partition, log in enumerate(self.topics[topic].logs)
            for _, _, batch in log.batches
            for row in decode_plainly(batch, topic, partition, 0, 1 << 62)
        ]
