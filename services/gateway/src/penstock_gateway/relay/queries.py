"""ListOffsets, OffsetForLeaderEpoch and others: questions to partition leaders.

Most of these messages have the same build: some fields, topics by name, partitions of a fixed
size, some fields. So one class takes them apart and joins them, from a table of struct
layouts. A question changes nothing and may be asked again.

Source of the layouts: Kafka's ListOffsets*.json and OffsetForLeaderEpoch*.json.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_frontend.authorizer import Operation
from penstock_gateway.relay.items import ItemAnswer, Named
from penstock_gateway.relay.request import SLACK_MS, Outcome, Relayed
from penstock_gateway.relay.rights import RequestRights
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.fetch import READ_UNCOMMITTED
from penstock_kafka.wire.frames import RequestHeader, request_header, response_header, skip_response_header
from penstock_kafka.wire.primitives import INT32, Buffer, Reader, check_decoded_size, put_count, put_string


@dataclass(frozen=True, slots=True)
class Layout:
    """Fixed parts of one version."""

    head_bytes: int
    """Request: bytes before the topics."""
    question: struct.Struct
    """Request: one partition, its index first."""
    tail_bytes: int
    """Request: bytes after the topics."""
    answer: struct.Struct
    """Response: one partition."""
    partition_at: int
    """Which of an answer's integers is its partition."""
    error_at: int
    """Which of them is its error code."""
    has_throttle: bool


class Question(NamedTuple):
    """One partition of a request: the integers of its layout."""

    topic: str
    values: tuple[int, ...]


class Answer(NamedTuple):
    """One partition of a response: the integers of its layout."""

    topic: str
    values: tuple[int, ...]


class Query(Relayed[Answer]):
    """A question about partitions."""

    operation = Operation.DESCRIBE
    api_key: ClassVar[ApiKey]

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        check_decoded_size(frame)
        self.layout = layout = self.layout_of(header.api_version)
        reader = Reader(frame, header.body_offset, header.flexible, header.items_max)
        self._head = _bytes(reader, layout.head_bytes)
        self._items: list[Question] = []
        for _ in range(reader.array(3)):
            topic = reader.string()
            for _ in range(reader.array(layout.question.size)):
                self._items.append(Question(topic, reader.unpack(layout.question)))
                reader.skip_tags()
            reader.skip_tags()
        self._tail = _bytes(reader, layout.tail_bytes)
        self._names = [Named(topic, None, values[0]) for topic, values in self._items]

    @classmethod
    def layout_of(cls, version: int) -> Layout:
        """The layout of a version."""
        raise NotImplementedError

    def failed_values(self, partition: int, code: ErrorCode) -> tuple[int, ...]:
        """A response's integers for a partition that failed."""
        raise NotImplementedError

    def names(self) -> Sequence[Named]:
        return self._names

    def failure(self, index: int, code: ErrorCode) -> Answer:
        topic, _, partition = self._names[index]
        return Answer(topic, self.failed_values(partition, code))

    def encode(self, indices: Sequence[int], share: int) -> list[Buffer]:
        header = self.header
        head = request_header(header.api_key, header.api_version, header.correlation_id, header.client_id)
        items = [self._items[i] for i in indices]
        body = _put_topics(items, self.layout.question, header.flexible)
        return [head + self._head + body + self._tail + (b"\x00" if header.flexible else b"")]

    def decode(self, data: Buffer) -> list[ItemAnswer[Answer]]:
        layout = self.layout
        answers = read_answers(data, self.header.flexible, layout)
        return [
            ItemAnswer(Named(a.topic, None, a.values[layout.partition_at]), a.values[layout.error_at], a)
            for a in answers
        ]

    def join(self, results: list[Answer]) -> list[Buffer]:
        header = self.header
        out = [response_header(header.api_key, header.api_version, header.correlation_id)]
        if self.layout.has_throttle:
            out.append(INT32.pack(0))
        out.append(_put_topics(results, self.layout.answer, header.flexible))
        if header.flexible:
            out.append(b"\x00")
        return [b"".join(out)]


def _bytes(reader: Reader, count: int) -> bytes:
    start = reader.take(count)
    return bytes(reader.view[start : start + count])


def _put_topics(items: Sequence[Question | Answer], one: struct.Struct, flexible: bool) -> bytes:
    tags = b"\x00" if flexible else b""
    topics: dict[str, list[tuple[int, ...]]] = {}
    for topic, values in items:
        topics.setdefault(topic, []).append(values)
    out = [put_count(len(topics), flexible)]
    for topic, partitions in topics.items():
        out.append(put_string(topic, flexible))
        out.append(put_count(len(partitions), flexible))
        for values in partitions:
            out.append(one.pack(*values))
            out.append(tags)
        out.append(tags)
    return b"".join(out)


def read_answers(data: Buffer, flexible: bool, layout: Layout) -> list[Answer]:
    """Every partition of a response; raises Malformed."""
    reader = Reader(data, 0, flexible)
    skip_response_header(reader)
    if layout.has_throttle:
        reader.int32()
    answers = []
    for _ in range(reader.array(3)):
        topic = reader.string()
        for _ in range(reader.array(layout.answer.size)):
            answers.append(Answer(topic, reader.unpack(layout.answer)))
            reader.skip_tags()
        reader.skip_tags()
    return answers


class ListOffsetsQuery(Query):
    """ListOffsets 1-11: partition, [leader epoch], timestamp; answers partition, error, timestamp,
    offset, [leader epoch]."""

    api_key = ApiKey.LIST_OFFSETS
    looks_for_leader = True

    @classmethod
    def layout_of(cls, version: int) -> Layout:
        epochs = version >= 4
        return Layout(
            head_bytes=5 if version >= 2 else 4,
            question=struct.Struct(">iiq" if epochs else ">iq"),
            tail_bytes=4 if version >= 10 else 0,
            answer=struct.Struct(">ihqqi" if epochs else ">ihqq"),
            partition_at=0,
            error_at=1,
            has_throttle=version >= 2,
        )

    def failed_values(self, partition: int, code: ErrorCode) -> tuple[int, ...]:
        return (partition, code, -1, -1, -1) if self.header.api_version >= 4 else (partition, code, -1, -1)


class LeaderEpochQuery(Query):
    """OffsetForLeaderEpoch 2-4: partition, current epoch, epoch; answers error, partition, epoch, end."""

    api_key = ApiKey.OFFSET_FOR_LEADER_EPOCH

    @classmethod
    def layout_of(cls, version: int) -> Layout:
        return Layout(
            head_bytes=4 if version >= 3 else 0,
            question=struct.Struct(">iii"),
            tail_bytes=0,
            answer=struct.Struct(">hiiq"),
            partition_at=1,
            error_at=0,
            has_throttle=True,
        )

    def failed_values(self, partition: int, code: ErrorCode) -> tuple[int, ...]:
        return (code, partition, -1, -1)

    def refusal(self, rights: RequestRights, topic: str) -> ErrorCode:
        # First it was between brokers alone, so who may act for the cluster may ask (KIP-320).
        if rights.may_see_cluster(Operation.CLUSTER_ACTION):
            return ErrorCode.NONE
        return super().refusal(rights, topic)


class DeleteRecordsQuery(Query):
    """DeleteRecords 0-2: partition, offset; answers partition, low watermark, error.

    It changes something, but asked again it changes nothing more.
    """

    api_key = ApiKey.DELETE_RECORDS
    operation = Operation.DELETE

    def __init__(self, header: RequestHeader, frame: Buffer, finish: Callable[[Outcome], None]) -> None:
        super().__init__(header, frame, finish)
        timeout_ms: int = INT32.unpack(self._tail)[0]
        self.deadline_ms = max(0, timeout_ms)
        self.answer_ms = self.deadline_ms + SLACK_MS

    @classmethod
    def layout_of(cls, version: int) -> Layout:
        return Layout(
            head_bytes=0,
            question=struct.Struct(">iq"),
            tail_bytes=4,
            answer=struct.Struct(">iqh"),
            partition_at=0,
            error_at=2,
            has_throttle=True,
        )

    def failed_values(self, partition: int, code: ErrorCode) -> tuple[int, ...]:
        return (partition, -1, code)


NATIVE_VERSION: Final = 7
"""ListOffsets version that the native API speaks to nodes: the first with -3 (KIP-734)."""


EPOCH_VERSION: Final = 4
"""OffsetForLeaderEpoch version that the native API speaks to nodes."""


def encode_leader_epochs(items: Sequence[tuple[str, int, int]]) -> bytes:
    """An OffsetForLeaderEpoch frame for (topic, partition, leader epoch)s, of version EPOCH_VERSION."""
    layout = LeaderEpochQuery.layout_of(EPOCH_VERSION)
    values = [Question(topic, (partition, -1, epoch)) for topic, partition, epoch in items]
    head = request_header(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION, 0, None)
    return head + struct.pack(">i", -1) + _put_topics(values, layout.question, True) + b"\x00"


def encode_list_offsets(
    items: Sequence[tuple[str, int, int]], isolation_level: int = READ_UNCOMMITTED
) -> bytes:
    """A ListOffsets frame for (topic, partition, timestamp)s, of version NATIVE_VERSION."""
    layout = ListOffsetsQuery.layout_of(NATIVE_VERSION)
    values = [Question(topic, (partition, -1, timestamp)) for topic, partition, timestamp in items]
    head = request_header(ApiKey.LIST_OFFSETS, NATIVE_VERSION, 0, None)
    return (
        head + struct.pack(">ib", -1, isolation_level) + _put_topics(values, layout.question, True) + b"\x00"
    )
