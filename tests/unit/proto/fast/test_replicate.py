"""The hand-written form of Replicate's messages against the generated classes."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from penstock_core.errors import ErrorCode
from penstock_proto.fast.forward import decode_forward_request
from penstock_proto.fast.primitives import MalformedMessage
from penstock_proto.fast.replicate import decode_replica_data, encode_replica_data
from penstock_proto.v1 import storage_pb2
from penstock_storage_node.replication.sender import DataFrame

NUMBERS = (0, 1, 127, 128, 300, 2**31 - 1, 2**63 - 1, -1)


def frames(rng: random.Random) -> list[DataFrame]:
    out = []
    for _ in range(rng.randint(0, 6)):
        frame = DataFrame(rng.choice((1, 200, 2**40)), rng.choice(NUMBERS), rng.choice(NUMBERS))
        frame.tombstones_gone_below = rng.choice((0, 0, 1, 300, 2**63 - 1))
        frame.epoch_starts = [
            (rng.randint(0, 9), rng.choice(NUMBERS)) for _ in range(rng.choice((0, 0, 1, 3)))
        ]
        kind = rng.randint(0, 5)
        if kind == 0:
            parts = [rng.randbytes(rng.randint(1, 300)) for _ in range(rng.randint(1, 4))]
            frame.base_offset = rng.choice(NUMBERS[:-1])
            frame.buffers = [memoryview(part) for part in parts]
            frame.size_bytes = sum(map(len, parts))
        elif kind == 5:
            frame.base_offset = rng.choice(NUMBERS[:-1])
            frame.piece_of = (rng.choice((900, 1 << 30)), rng.choice((0, 127, 1 << 29)))
            frame.buffers = [rng.randbytes(rng.randint(1, 300))]
            frame.size_bytes = len(frame.buffers[0])
        elif kind == 1:
            frame.diverging = (rng.choice((-1, 0, 7)), rng.choice(NUMBERS))
        elif kind == 2:
            frame.out_of_range = (rng.choice(NUMBERS), rng.choice(NUMBERS))
        elif kind == 3:
            frame.error = (ErrorCode.FENCED_LEADER_EPOCH, "über")
        out.append(frame)
    return out


@pytest.mark.parametrize("seed", range(50))
def test_replica_data_both_ways(seed: int) -> None:
    sent = frames(random.Random(seed))
    message = encode_replica_data(sent)
    parsed = storage_pb2.ReplicateResponse.FromString(message)
    assert len(parsed.data) == len(sent)
    for wire in (message, parsed.SerializeToString()):
        for frame, generated, read in zip(sent, parsed.data, decode_replica_data(wire), strict=True):
            assert generated.session == read.session == frame.session
            assert generated.high_watermark == read.high_watermark == frame.high_watermark
            assert generated.log_start_offset == read.log_start_offset == frame.log_start_offset
            gone_below = frame.tombstones_gone_below
            assert generated.tombstones_gone_below == read.tombstones_gone_below == gone_below
            assert [(e.epoch, e.start_offset) for e in generated.epoch_starts] == frame.epoch_starts
            assert (read.epoch_starts or []) == frame.epoch_starts
            assert (read.piece is not None) == (frame.piece_of is not None)
            if frame.piece_of is not None:
                assert read.piece is not None and read.records is None
                assert (read.piece.total_bytes, read.piece.position) == frame.piece_of
                assert read.piece.base_offset == generated.piece.base_offset == frame.base_offset
                assert bytes(read.piece.data) == generated.piece.data == frame.buffers[0]
            elif frame.buffers:
                assert generated.batches.base_offset == read.base_offset == frame.base_offset
                assert read.records is not None
                assert generated.batches.records == bytes(read.records) == b"".join(frame.buffers)
            else:
                assert read.records is None
            assert read.diverging == frame.diverging
            assert read.out_of_range == frame.out_of_range
            assert read.error == frame.error


def test_rubbish_is_refused_and_never_read_past_the_end() -> None:
    rng = random.Random(5)
    good = encode_replica_data([DataFrame(1, 2, 3, base_offset=0, buffers=[b"x" * 200], size_bytes=200)])
    for cut in range(1, len(good)):
        with pytest.raises(MalformedMessage):
            list(decode_replica_data(good[:cut]))
    for _ in range(2000):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        for decode in (lambda m: list(decode_replica_data(m)), decode_forward_request):
            with suppress(MalformedMessage):
                decode(bytes(damaged))
