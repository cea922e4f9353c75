"""The hand-written form of Forward messages against the generated classes."""

from __future__ import annotations

import random

import pytest

from penstock_proto.fast.forward import (
    OutFrame,
    ask_frame,
    decode_forward_request,
    forward_response_frame,
    pack,
    there_message,
    unpack,
)
from penstock_proto.fast.pieces import cut
from penstock_proto.fast.primitives import MalformedMessage
from penstock_proto.v1 import storage_pb2 as pb

TRACEPARENT = f"00-{7:032x}-{9:016x}-01"


@pytest.mark.parametrize("round_", range(20))
def test_packed_requests_are_what_protobuf_reads(round_: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    frames, sent = [], {}
    for request_id in range(1, rng.randint(1, 30)):
        buffers = [rng.randbytes(rng.choice((0, 1, 50, 200, 5000))) for _ in range(rng.randint(1, 4))]
        whole = b"".join(buffers)
        big = request_id << rng.choice((0, 20))
        frames.append(
            OutFrame(
                big,
                buffers,
                len(whole),
                rng.choice((0, 7, 1 << 40)),
                rng.choice((0, 30_000)),
                rng.choice(("", TRACEPARENT)),
            )
        )
        sent[big] = whole
    traced = {frame.request_id: frame.traceparent for frame in frames}
    got: dict[int, bytes] = {}
    done = []
    for message in pack(frames, 1000):
        for f in pb.ForwardRequest.FromString(message).frames:
            first = f.request_id not in got
            assert len(f.chunk) <= 1000
            assert f.frame_bytes == (len(sent[f.request_id]) if first else 0)
            assert f.traceparent == (traced[f.request_id] if first else "")
            got[f.request_id] = got.get(f.request_id, b"") + f.chunk
            if f.last:
                done.append(f.request_id)
    assert got == sent
    assert done == [f.request_id for f in frames]


def test_small_frames_travel_together() -> None:
    messages = list(pack([OutFrame(i, [b"x" * 100], 100, 3) for i in range(1, 6)], 10_000))
    assert len(messages) == 1
    first = pb.ForwardRequest.FromString(messages[0]).frames[0]
    assert (first.request_id, first.metadata_version, first.last, first.deadline_ms) == (1, 3, True, 0)


def test_cut_copies_nothing_and_loses_nothing() -> None:
    assert [(b"".join(p), n) for p, n in cut([b"abc", b"", b"defgh"], 4)] == [(b"abcd", 4), (b"efgh", 4)]
    assert list(cut([], 4)) == []


def test_responses_as_protobuf_writes_them() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        frames = [
            pb.ForwardResponseFrame(
                request_id=rng.randrange(1 << rng.randint(1, 60)),
                chunk=rng.randbytes(rng.choice((0, 3, 127, 128, 40_000))),
                last=rng.random() < 0.5,
                frame_bytes=rng.choice((0, 77, 1 << 27)),
                none=rng.random() < 0.5,
                close_connection=rng.random() < 0.5,
                concerns_router=rng.random() < 0.5,
                asks=rng.random() < 0.5,
            )
            for _ in range(rng.randint(0, 5))
        ]
        read = unpack(pb.ForwardResponse(frames=frames).SerializeToString())
        assert len(read) == len(frames)
        for r, f in zip(read, frames, strict=True):
            assert r.request_id == f.request_id
            assert bytes(r.chunk) == f.chunk
            assert (r.last, r.none, r.close_connection, r.concerns_router, r.asks) == (
                f.last,
                f.none,
                f.close_connection,
                f.concerns_router,
                f.asks,
            )


def test_whether_a_client_is_still_there_is_asked_and_answered() -> None:
    numbers = [1, 127, 128, 1 << 40]
    message = b"".join(map(ask_frame, numbers))
    assert [(f.request_id, f.asks) for f in pb.ForwardResponse.FromString(message).frames] == [
        (number, True) for number in numbers
    ]
    assert [(f.request_id, f.asks, f.last) for f in unpack(message)] == [(n, True, False) for n in numbers]
    message = there_message(numbers)
    assert [(f.request_id, f.there) for f in pb.ForwardRequest.FromString(message).frames] == [
        (number, True) for number in numbers
    ]
    assert [(f.request_id, f.there) for f in decode_forward_request(message).frames] == [
        (number, True) for number in numbers
    ]


def test_unknown_fields_are_skipped_and_broken_bytes_refused() -> None:
    frame = pb.ForwardResponseFrame(request_id=5, chunk=b"hello", last=True).SerializeToString()
    # Field 100 of every wire type, inside the frame and beside it.
    strange = b"\xa0\x06\x01" + b"\xa1\x06" + bytes(8) + b"\xa2\x06\x02zz" + b"\xa5\x06" + bytes(4)
    inner = strange + frame + strange
    (read,) = unpack(strange + b"\x0a" + bytes([len(inner)]) + inner)
    assert (read.request_id, bytes(read.chunk), read.last) == (5, b"hello", True)
    for broken in (b"\x0a\x05ab", b"\x0a\x04\x12\x09ab", b"\x0a", b"\x0a\xff", b"\x0b"):
        with pytest.raises(MalformedMessage):
            unpack(broken)


def test_forward_request_is_read_without_copies() -> None:
    message = pb.ForwardRequest(
        open=pb.ForwardOpen(node_id=3, principal="User:a", client_host="h", listener="PROXY"),
        frames=[
            pb.ForwardFrame(
                request_id=1,
                chunk=b"abc",
                frame_bytes=5,
                metadata_version=2**40,
                deadline_ms=30,
                traceparent=TRACEPARENT,
            ),
            pb.ForwardFrame(request_id=1, chunk=b"de", last=True),
        ],
    ).SerializeToString()
    read = decode_forward_request(message)
    assert read.open is not None
    assert read.open.node_id == 3
    first, second = read.frames
    assert (bytes(first.chunk), first.last, first.frame_bytes) == (b"abc", False, 5)
    assert (first.metadata_version, first.deadline_ms) == (2**40, 30)
    assert (first.traceparent, second.traceparent) == (TRACEPARENT, "")
    assert (bytes(second.chunk), second.last, second.request_id) == (b"de", True, 1)
    assert first.chunk.obj is message


def test_forward_response() -> None:
    parts = forward_response_frame(7, [b"ab", memoryview(b"cd")], 4, last=False, frame_bytes=900)
    parts += forward_response_frame(
        8, [], 0, last=True, frame_bytes=0, none=True, close_connection=True, concerns_router=True
    )
    first, second = pb.ForwardResponse.FromString(b"".join(parts)).frames
    assert (first.request_id, first.chunk, first.last, first.frame_bytes) == (7, b"abcd", False, 900)
    assert not first.none
    assert second.none
    assert second.close_connection
    assert second.concerns_router
    assert second.last
