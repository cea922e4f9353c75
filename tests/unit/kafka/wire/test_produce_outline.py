"""The outline of a Produce request: what a handler needs to answer it, whatever way its bytes come."""

from __future__ import annotations

import random

import pytest

from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.primitives import Malformed
from penstock_kafka.wire.produce import skim_produce
from penstock_kafka.wire.produce_outline import ProduceOutline
from unit.kafka.wire.produce_frames import VERSIONS, frame_of, spoiled

SIZES = (0, 1, 127, 128, 70_000)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_but_the_records_is_kept_however_it_comes(version: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(30):
        frame, skim = frame_of(version, rng, SIZES)
        outline = ProduceOutline(len(frame))
        pos = 0
        while pos < len(frame):
            size = rng.choice((1, 2, 7, 1_000, 65_536))
            outline.feed(memoryview(frame)[pos : pos + size])
            pos += size
        made = bytes(outline.take())
        header, found_header = parse_request_header(frame), parse_request_header(made)
        assert (header.correlation_id, header.client_id) == (
            found_header.correlation_id,
            found_header.client_id,
        )
        found = skim_produce(made, found_header)
        assert [(p.topic, p.topic_id, p.partition) for p in found.partitions] == [
            (p.topic, p.topic_id, p.partition) for p in skim.partitions
        ]
        assert not any(len(p.records) for p in found.partitions)
        assert (found.transactional_id, found.acks, found.timeout_ms, found.want_receipt) == (
            skim.transactional_id,
            skim.acks,
            skim.timeout_ms,
            skim.want_receipt,
        )


@pytest.mark.parametrize("version", [3, 9, 12])
def test_what_is_no_produce_is_malformed_and_never_anything_else(version: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    refused = 0
    for _ in range(500):
        frame = spoiled(version, rng, SIZES)
        outline = ProduceOutline(len(frame))
        try:
            outline.feed(frame)
            outline.take()
        except Malformed:
            refused += 1
    assert refused


def test_another_request_and_an_old_version_are_refused() -> None:
    for head in (b"\x00\x01\x00\x0c", b"\x00\x00\x00\x02"):
        with pytest.raises(Malformed, match="is no Produce request"):
            ProduceOutline(1_000).feed(head + bytes(20))


def test_what_ends_too_early_or_too_late_is_refused() -> None:
    frame, _ = frame_of(9, random.Random(1), SIZES)
    with pytest.raises(Malformed, match="ends in the middle"):
        ProduceOutline(len(frame) - 1).feed(frame[:-1])
    with pytest.raises(Malformed, match="after a Produce request"):
        ProduceOutline(len(frame) + 1).feed(frame + b"\x00")
