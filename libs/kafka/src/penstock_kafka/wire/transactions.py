"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn by hand: what each transaction takes of its coordinator.

Same bytes and same refusals as through `codec`, at a fraction of its time; a test holds both against each other in
every version.

Sources: AddPartitionsToTxnRequest.json, AddOffsetsToTxnRequest.json, EndTxnRequest.json and their responses in Apache
Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from penstock_kafka.wire.frames import RequestHeader, response_header
from penstock_kafka.wire.primitives import (
    INT16,
    INT32,
    INT64,
    Buffer,
    Reader,
    check_decoded_size,
    put_count,
    put_string,
)

BATCHED_SINCE: Final = 4
"""Version of AddPartitionsToTxn that brokers send, with several transactions (KIP-890)."""
RAISING_SINCE: Final = 5
"""Version of EndTxn by which the epoch rises with each transaction (KIP-890)."""
KNOWS_LEADERS_SINCE: Final = 5
"""Version of InitProducerId whose clients may leave it to leaders to add partitions (KIP-890)."""
_NO_THROTTLE: Final = INT32.pack(0)

Topics = Sequence[tuple[str, Sequence[int]]]
CodeOf = Callable[[str, int], int]
"""By topic and partition."""


class AddedTransaction(NamedTuple):
    """One transaction of an AddPartitionsToTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: Topics


class AddOffsets(NamedTuple):
    """An AddOffsetsToTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


class EndTransaction(NamedTuple):
    """An EndTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


def _reader(header: RequestHeader, frame: Buffer) -> Reader:
    check_decoded_size(frame)
    return Reader(frame, header.body_offset, header.flexible, header.items_max)


def _head(header: RequestHeader) -> bytes:
    return response_header(header.api_key, header.api_version, header.correlation_id) + _NO_THROTTLE


def _end(flexible: bool) -> bytes:
    return b"\x00" if flexible else b""


def read_add_partitions(header: RequestHeader, frame: Buffer) -> list[AddedTransaction]:
    """Its transactions; below version 4 there is one. Raises Malformed."""
    reader = _reader(header, frame)
    if header.api_version < BATCHED_SINCE:
        found = [_read_transaction(reader, batched=False)]
    else:
        found = [_read_transaction(reader, batched=True) for _ in range(reader.array(14))]
        reader.skip_tags()
    return found


def _read_transaction(reader: Reader, *, batched: bool) -> AddedTransaction:
    name, producer_id, epoch = reader.string(), reader.int64(), reader.int16()
    verify_only = reader.boolean() if batched else False
    topics = []
    for _ in range(reader.array(3)):
        topic = reader.string()
        topics.append((topic, [reader.int32() for _ in range(reader.array(4))]))
        reader.skip_tags()
    reader.skip_tags()
    return AddedTransaction(name, producer_id, epoch, verify_only, topics)


def put_added(header: RequestHeader, topics: Topics, code_of: CodeOf) -> bytes:
    """The response below version 4."""
    flexible = header.flexible
    return b"".join([_head(header), *_put_results(flexible, topics, code_of), _end(flexible)])


def put_all_added(header: RequestHeader, code: int, results: Iterable[tuple[str, Topics, CodeOf]]) -> bytes:
    """The response from version 4 on: the whole request's code, and each transaction's results."""
    out: list[bytes] = []
    number = 0
    for name, topics, code_of in results:
        out += (put_string(name, True), *_put_results(True, topics, code_of), b"\x00")
        number += 1
    return b"".join([_head(header), INT16.pack(code), put_count(number, True), *out, b"\x00"])


def _put_results(flexible: bool, topics: Topics, code_of: CodeOf) -> list[bytes]:
    end = _end(flexible)
    out = [put_count(len(topics), flexible)]
    for topic, numbers in topics:
        out += (put_string(topic, flexible), put_count(len(numbers), flexible))
        for number in numbers:
            out += (INT32.pack(number), INT16.pack(code_of(topic, number)), end)
        out.append(end)
    return out


def read_add_offsets(header: RequestHeader, frame: Buffer) -> AddOffsets:
    """Raises Malformed."""
    reader = _reader(header, frame)
    found = AddOffsets(reader.string(), reader.int64(), reader.int16(), reader.string())
    reader.skip_tags()
    return found


def put_add_offsets(header: RequestHeader, code: int) -> bytes:
    """Its response."""
    return _head(header) + INT16.pack(code) + _end(header.flexible)


def read_end(header: RequestHeader, frame: Buffer) -> EndTransaction:
    """Raises Malformed."""
    reader = _reader(header, frame)
    found = EndTransaction(reader.string(), reader.int64(), reader.int16(), reader.boolean())
    reader.skip_tags()
    return found


def put_end(header: RequestHeader, code: int, producer_id: int, producer_epoch: int) -> bytes:
    """Its response; the producer is told from version 5 on."""
    told = INT64.pack(producer_id) + INT16.pack(producer_epoch)
    return (
        _head(header)
        + INT16.pack(code)
        + (told if header.api_version >= RAISING_SINCE else b"")
        + _end(header.flexible)
    )
