"""The hand-written protobuf against the generated classes."""

from __future__ import annotations

import random

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_proto.v1 import data_pb2, storage_pb2
from penstock_storage_node.replication.sender import DataFrame
from penstock_storage_node.rpc.codec import (
    decode_forward_request,
    decode_replica_data,
    encode_fetch_range_response,
    encode_replica_data,
    forward_response_frame,
    varint,
)

NUMBERS = (0, 1, 127, 128, 300, 2**31 - 1, 2**63 - 1, -1)


def frames(rng: random.Random) -> list[DataFrame]:
    out = []
    for _ in range(rng.randint(0, 6)):
        frame = DataFrame(rng.choice((1, 200, 2**40)), rng.choice(NUMBERS), rng.choice(NUMBERS))
        kind = rng.randint(0, 4)
        if kind == 0:
            parts = [rng.randbytes(rng.randint(1, 300)) for _ in range(rng.randint(1, 4))]
            frame.base_offset = rng.choice(NUMBERS[:-1])
            frame.buffers = [memoryview(part) for part in parts]
            frame.size_bytes = sum(map(len, parts))
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
            if frame.buffers:
                assert generated.batches.base_offset == read.base_offset == frame.base_offset
                assert read.records is not None
                assert generated.batches.records == bytes(read.records) == b"".join(frame.buffers)
            else:
                assert read.records is None
            assert read.diverging == frame.diverging
            assert read.out_of_range == frame.out_of_range
            assert read.error == frame.error


def test_forward_request_is_read_without_copies() -> None:
    message = storage_pb2.ForwardRequest(
        open=storage_pb2.ForwardOpen(node_id=3, principal="User:a", client_host="h", listener="PROXY"),
        frames=[
            storage_pb2.ForwardFrame(
                request_id=1, chunk=b"abc", frame_bytes=5, metadata_version=2**40, deadline_ms=30
            ),
            storage_pb2.ForwardFrame(request_id=1, chunk=b"de", last=True),
        ],
    ).SerializeToString()
    read = decode_forward_request(message)
    assert read.open is not None
    assert read.open.node_id == 3
    first, second = read.frames
    assert (bytes(first.chunk), first.last, first.frame_bytes) == (b"abc", False, 5)
    assert (first.metadata_version, first.deadline_ms) == (2**40, 30)
    assert (bytes(second.chunk), second.last, second.request_id) == (b"de", True, 1)
    assert first.chunk.obj is message


def test_forward_response() -> None:
    parts = forward_response_frame(7, [b"ab", memoryview(b"cd")], 4, last=False, frame_bytes=900)
    parts += forward_response_frame(
        8, [], 0, last=True, frame_bytes=0, none=True, close_connection=True, stale_metadata=True
    )
    first, second = storage_pb2.ForwardResponse.FromString(b"".join(parts)).frames
    assert (first.request_id, first.chunk, first.last, first.frame_bytes) == (7, b"abcd", False, 900)
    assert not first.none
    assert second.none
    assert second.close_connection
    assert second.stale_metadata
    assert second.last


def test_fetch_range_response() -> None:
    message = encode_fetch_range_response(
        [b"x" * 300, b"y"],
        301,
        next_offset=9,
        log_start_offset=2,
        high_watermark=10,
        topic_id=b"i" * 16,
        leader_epoch=4,
        done=True,
    )
    read = data_pb2.FetchRangeResponse.FromString(message)
    assert read.records == b"x" * 300 + b"y"
    assert (read.next_offset, read.log_start_offset, read.high_watermark) == (9, 2, 10)
    assert (read.topic_id, read.leader_epoch, read.done) == (b"i" * 16, 4, True)


@pytest.mark.parametrize("value", [0, 127, 128, 2**32, 2**63 - 1, -1, -(2**63)])
def test_varints(value: int) -> None:
    sent = storage_pb2.ReplicaAck(log_end_offset=value)
    assert b"\x10" + varint(value) == (sent.SerializeToString() or b"\x10\x00")


def test_rubbish_is_refused_and_never_read_past_the_end() -> None:
    rng = random.Random(5)
    good = encode_replica_data([DataFrame(1, 2, 3, base_offset=0, buffers=[b"x" * 200], size_bytes=200)])
    for cut in range(1, len(good)):
        with pytest.raises(PenstockError):
            list(decode_replica_data(good[:cut]))
    for _ in range(2000):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        for decode in (lambda m: list(decode_replica_data(m)), decode_forward_request):
            try:
                decode(bytes(damaged))
            except (PenstockError, ValueError):
                pass
            except Exception as e:
                assert type(e).__name__ == "DecodeError", e
