"""A Produce in parts: together they are the request, and their responses its response, wherever it was cut."""

from __future__ import annotations

import random
import struct

import pytest

from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.primitives import DATA_ITEMS_MAX, Malformed
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
    skim_produce,
)
from penstock_kafka.wire.produce_parts import ProduceParts, join_responses
from unit.kafka.wire.produce_frames import VERSIONS, frame_of, spoiled

SIZES = (0, 1, 127, 128, 5_000)


def cut_up(frame: bytes, rng: random.Random) -> list[bytes]:
    """All parts of a frame that comes in pieces; each is cut as soon as there is any."""
    parts, parted, held, pos = [], ProduceParts(len(frame)), b"", 0
    # A header comes whole: it is small, and buffers are not.
    first = parse_request_header(frame).body_offset
    while not parted.is_over:
        size = max(rng.choice((1, 7, 1_000, 20_000)), first if not pos else 0)
        held += frame[pos : pos + size]
        pos += size
        part, taken = parted.cut(held)
        held = held[taken:]
        if part is not None:
            parts.append(bytes(part))
    assert not held
    return parts


def plain(skim: ProduceSkim) -> list[tuple[str, bytes | None, int, bytes]]:
    return [(p.topic, p.topic_id, p.partition, bytes(p.records)) for p in skim.partitions]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_parts_are_the_request(version: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(60):
        frame, skim = frame_of(version, rng, SIZES)
        found = []
        for part in cut_up(frame, rng):
            header = parse_request_header(part)
            whole = parse_request_header(frame)
            assert (header.api_version, header.correlation_id, header.client_id) == (
                version,
                whole.correlation_id,
                whole.client_id,
            )
            one = skim_produce(part, header)
            assert (one.transactional_id, one.acks, one.timeout_ms) == (
                skim.transactional_id,
                skim.acks,
                skim.timeout_ms,
            )
            found += plain(one)
        assert found == plain(skim)
        assert one.want_receipt == skim.want_receipt, "what stands at the end comes with the last part"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_responses_to_the_parts_are_the_response(version: int) -> None:
    rng = random.Random(version)
    frame, skim = frame_of(version, rng, SIZES)
    header = parse_request_header(frame)
    results = [
        ProduceResult(p.topic, p.topic_id, p.partition, 0, n, -1, 0, None)
        for n, p in enumerate(skim.partitions)
    ]
    responses = [
        encode_produce_response(header, some, throttle)
        for some, throttle in ((results[:2], 5), ([], 0), (results[2:], 70))
    ]
    joined = join_responses(header, responses)
    assert joined == encode_produce_response(header, results, 70)
    assert decode_produce_response(joined, version).correlation_id == 7


def test_a_cut_takes_all_that_is_whole_and_nothing_else() -> None:
    records = [bytes([n]) * 100 for n in range(4)]
    skim = ProduceSkim(
        None, -1, 1, [ProducePartition("a", None, n, memoryview(r)) for n, r in enumerate(records)]
    )
    frame = b"".join(bytes(part) for part in encode_produce_request(9, 1, "c", skim))
    parted = ProduceParts(len(frame))
    # Two partitions and half of the third.
    end = frame.index(records[2]) + 50
    part, taken = parted.cut(frame[:end])
    assert part is not None
    assert [p.partition for p in skim_produce(part, parse_request_header(part)).partitions] == [0, 1]
    assert frame[taken:].startswith(struct.pack(">i", 2))
    assert parted.cut(frame[taken:end]) == (None, 0)
    part, rest = parted.cut(frame[taken:])
    assert part is not None
    assert taken + rest == len(frame)
    assert parted.is_over
    assert [p.partition for p in skim_produce(part, parse_request_header(part)).partitions] == [2, 3]


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_what_is_no_produce_is_malformed_and_never_anything_else(version: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    refused = 0
    for _ in range(500):
        frame = spoiled(version, rng, SIZES)
        parted = ProduceParts(len(frame))
        half = rng.randrange(len(frame) + 1)
        try:
            _, taken = parted.cut(frame[:half])
            parted.cut(frame[taken:])
            assert parted.is_over
        except Malformed:
            refused += 1
    assert refused


def test_what_cannot_come_true_is_refused_before_it_has_come() -> None:
    head = struct.pack(">hhih", 0, 3, 7, -1) + struct.pack(">hhi", -1, -1, 1)
    announced = 100_000_000
    for body, why in (
        (struct.pack(">i", announced), "bytes are left"),
        (struct.pack(">i", DATA_ITEMS_MAX + 1), "more items"),
        (struct.pack(">ih", 1, -1), "null string"),
        (struct.pack(">ih1sii", 1, 1, b"t", 1, 0) + struct.pack(">i", announced), "bytes wanted"),
    ):
        with pytest.raises(Malformed, match=why):
            ProduceParts(announced).cut(head + body + bytes(1_000))
    with pytest.raises(Malformed, match="is no Produce request"):
        ProduceParts(1_000).cut(struct.pack(">hhih", 1, 12, 7, -1) + bytes(100))


def test_what_ends_too_early_or_too_late_is_refused() -> None:
    frame, _ = frame_of(9, random.Random(1), SIZES)
    with pytest.raises(Malformed):
        ProduceParts(len(frame) - 1).cut(frame[:-1])
    with pytest.raises(Malformed, match="1 bytes after a Produce request"):
        ProduceParts(len(frame) + 1).cut(frame + bytes(1))
