"""Frames of direct fetching, held against Penstock's own reader and writer of them, and damaged ones."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.ids import TopicId
from penstock_kafka.wire.fetch import FetchResult, decode_fetch, encode_fetch_response
from penstock_kafka.wire.frames import parse_request_header
from penstock_storage_node.log import ReadData
from penstock_storage_node.log.transactions import AbortedTransaction
from penstock_storage_node.rpc.fetch_range import without
from pyspark_penstock.direct.batches import whole, without_aborted
from pyspark_penstock.direct.frames import (
    MalformedFrame,
    fetch_request,
    read_authenticate,
    read_fetch,
    read_handshake,
)
from pyspark_penstock.errors import CorruptRecordsError
from unit.spark.spark_stored import TRANSACTIONAL, data, marker

TOPIC = b"0123456789abcdef"
RUN = b"".join(
    [
        data(0, 5, producer=(7, 0, 0), attributes=TRANSACTIONAL),
        data(5, 5),
        marker(10, 7, commit=False),
        data(11, 5),
    ]
)


def request(**more: str) -> bytes:
    return fetch_request(
        77, TOPIC, 3, 5, 1000, max_bytes=1 << 20, max_wait_ms=500, read_committed=True, **more
    )


def answer(result: FetchResult | None, throttle_ms: int = 0, error: int = 0) -> bytes:
    header = parse_request_header(request()[4:])
    results = [] if result is None else [result]
    return b"".join(bytes(each) for each in encode_fetch_response(header, results, throttle_ms, error))


def good() -> bytes:
    return answer(
        FetchResult(
            "",
            TopicId(TOPIC),
            3,
            0,
            2000,
            1900,
            10,
            records=[RUN],
            aborted=[(7, 0), (8, 2)],
            preferred_replica=2,
        ),
        throttle_ms=40,
    )


@pytest.mark.parametrize("rack", ["", "zone-a", "z" * 200])
def test_requests_are_read_by_the_broker(rack: str) -> None:
    frame = request(rack=rack)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = parse_request_header(frame[4:])
    assert (header.api_key, header.api_version, header.correlation_id) == (1, 13, 77)
    found = decode_fetch(frame[4:], header)
    assert (found.max_wait_ms, found.min_bytes, found.max_bytes) == (500, 1, 1 << 20)
    assert (found.isolation_level, found.session_id, found.session_epoch) == (1, 0, -1)
    assert (found.replica_id, found.rack_id, found.is_incremental) == (-1, rack, False)
    (wanted,) = found.partitions
    assert (wanted.topic_id, wanted.partition, wanted.current_leader_epoch) == (TOPIC, 3, 5)
    assert (wanted.fetch_offset, wanted.last_fetched_epoch, wanted.max_bytes) == (1000, -1, 1 << 20)


def test_answers_of_the_broker_are_read() -> None:
    found = read_fetch(memoryview(good()), 77, TOPIC, 3)
    assert bytes(found.records) == RUN
    assert tuple(found)[:7] == (40, 0, 2000, 1900, 10, ((7, 0), (8, 2)), 2)
    refused = read_fetch(memoryview(answer(FetchResult("", TopicId(TOPIC), 3, 6))), 77, TOPIC, 3)
    assert (refused.error, refused.aborted, len(refused.records)) == (6, (), 0)
    assert read_fetch(memoryview(answer(None, error=70)), 77, TOPIC, 3).error == 70


@pytest.mark.parametrize(
    ("number", "topic", "partition", "says"),
    [
        (78, TOPIC, 3, "the answer to request 77, awaited was 78"),
        (77, b"x" * 16, 3, "about another topic"),
        (77, TOPIC, 4, "about partition 3, asked was 4"),
    ],
)
def test_answers_to_something_else(number: int, topic: bytes, partition: int, says: str) -> None:
    with pytest.raises(MalformedFrame, match=says):
        read_fetch(memoryview(good()), number, topic, partition)
    with pytest.raises(MalformedFrame, match="without the partition"):
        read_fetch(memoryview(answer(None)), 77, TOPIC, 3)


def test_every_cut_is_told() -> None:
    frame = good()
    for size in range(len(frame)):
        with pytest.raises(MalformedFrame):
            read_fetch(memoryview(frame)[:size], 77, TOPIC, 3)
    with pytest.raises(MalformedFrame, match="1 bytes behind"):
        read_fetch(memoryview(frame + b"\0"), 77, TOPIC, 3)


# -- aborted batches -------------------------------------------------------------------------


Step = tuple[str, int]
"""What is written next: "plain", "data", "commit" or "abort", and by which producer."""


def written(steps: list[Step]) -> tuple[list[bytes], list[AbortedTransaction]]:
    """A log's batches, and what its index says was aborted."""
    stored: list[bytes] = []
    aborted: list[AbortedTransaction] = []
    begun: dict[int, int] = {}
    offset = 0
    for kind, producer in steps:
        if kind == "plain":
            stored.append(data(offset, 3, producer=(producer, 0, 0)))
            offset += 3
        elif kind == "data":
            begun.setdefault(producer, offset)
            stored.append(data(offset, 3, producer=(producer, 0, 0), attributes=TRANSACTIONAL))
            offset += 3
        elif producer in begun:
            stored.append(marker(offset, producer, commit=kind == "commit"))
            first = begun.pop(producer)
            if kind == "abort":
                aborted.append(AbortedTransaction(producer, first, offset, first))
            offset += 1
    return stored, aborted


KINDS = st.sampled_from(["plain", "data", "data", "data", "commit", "abort"])


@given(st.lists(st.tuples(KINDS, st.integers(1, 3)), max_size=40), st.data())
def test_what_is_left_is_what_the_node_leaves(steps: list[Step], draw: st.DataObject) -> None:
    """Wherever an answer begins and ends, as FetchRange does it (decision 0067)."""
    stored, aborted = written(steps)
    first = draw.draw(st.integers(0, len(stored)))
    part = stored[first : draw.draw(st.integers(first, len(stored)))]
    if not part:
        return
    run = b"".join(part)
    base = int.from_bytes(part[0][:8], "big")
    found, end = whole(memoryview(run))
    assert len(found) == len(run)
    rows = tuple(row for row in aborted if row.first_offset < end and row.last_offset >= base)
    theirs = without(ReadData(base, end, [run], len(run)), rows)
    ours = without_aborted(found, [(row.producer_id, row.first_offset) for row in rows])
    assert bytes(ours) == b"".join(bytes(each) for each in theirs.buffers)


def take(frame: bytes) -> None:
    """What a reader does with a frame, all but decoding."""
    with contextlib.suppress(MalformedFrame, CorruptRecordsError):
        found = read_fetch(memoryview(frame), 77, TOPIC, 3)
        run, _ = whole(found.records)
        without_aborted(run, found.aborted)


def test_every_changed_byte_is_borne() -> None:
    frame = good()
    for at in range(len(frame)):
        for byte in (0, 1, 0x7F, 0x80, 0xFF, frame[at] ^ 1):
            take(frame[:at] + bytes([byte]) + frame[at + 1 :])


@given(st.binary(max_size=200), st.integers(0, 100))
def test_anything_is_borne(rubbish: bytes, kept: int) -> None:
    take(good()[:kept] + rubbish)
    for read in (read_handshake, read_authenticate):
        with contextlib.suppress(MalformedFrame):
            read(memoryview(b"\0\0\0\1" + rubbish), 1)
