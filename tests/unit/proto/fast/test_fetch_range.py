"""The hand-written form of FetchRange responses against the generated classes."""

from __future__ import annotations

import pytest

from penstock_proto.fast.fetch_range import encode_fetch_range_response, scan
from penstock_proto.fast.primitives import MalformedMessage
from penstock_proto.v1 import data_pb2


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
        read_committed=True,
    )
    read = data_pb2.FetchRangeResponse.FromString(message)
    assert read.records == b"x" * 300 + b"y"
    assert (read.next_offset, read.log_start_offset, read.high_watermark) == (9, 2, 10)
    assert (read.topic_id, read.leader_epoch, read.done) == (b"i" * 16, 4, True)
    assert read.read_committed


def test_a_piece_stands_in_the_place_of_records() -> None:
    message = encode_fetch_range_response(
        [b"ab", b"cd"],
        4,
        next_offset=9,
        log_start_offset=2,
        high_watermark=10,
        topic_id=b"i" * 16,
        leader_epoch=4,
        piece_of=(9, 1 << 30, 5),
    )
    read = data_pb2.FetchRangeResponse.FromString(message)
    assert not read.records
    assert (read.piece.base_offset, read.piece.total_bytes, read.piece.position) == (9, 1 << 30, 5)
    assert (read.piece.data, read.next_offset) == (b"abcd", 9)


def test_scan_reads_what_protobuf_wrote() -> None:
    step = scan(
        data_pb2.FetchRangeResponse(
            records=b"x" * 300, next_offset=1 << 40, high_watermark=10, leader_epoch=3, done=True
        ).SerializeToString()
    )
    assert (step.error, step.next_offset, step.high_watermark, step.done) == (0, 1 << 40, 10, True)
    failed = data_pb2.FetchRangeResponse(next_offset=-1)
    failed.error.code, failed.error.message = 1, "gone"
    step = scan(failed.SerializeToString())
    assert (step.error, step.message, step.next_offset) == (1, "gone", -1)


def test_a_response_that_is_cut_off_is_refused() -> None:
    error = data_pb2.FetchRangeResponse(next_offset=300)
    error.error.message = "gone"
    whole = error.SerializeToString()
    assert scan(whole).message == "gone"
    for broken in (whole[:-1], whole[:3], b"\x0a\x02\x12\x09", b"\x0b"):
        with pytest.raises(MalformedMessage, match="FetchRangeResponse"):
            scan(broken)
