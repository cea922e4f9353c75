"""Varints and fields against what the generated classes write and refuse."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from penstock_proto.fast.primitives import MalformedMessage, fields, read_varint, signed, skip, varint
from penstock_proto.v1 import storage_pb2

_TAGS = (b"\x08", b"\x10", b"\x12\x01", b"\x0d", b"\x09", b"\xa2\x06\x02", b"\xa5\x06", b"\xa1\x06")
"""Of every wire type, known and not."""


@pytest.mark.parametrize("value", [0, 127, 128, 2**32, 2**63 - 1, -1, -(2**63)])
def test_varints(value: int) -> None:
    sent = storage_pb2.ReplicaAck(log_end_offset=value)
    assert b"\x10" + varint(value) == (sent.SerializeToString() or b"\x10\x00")
    data = varint(value)
    read, position = read_varint(data, 0, len(data))
    assert (signed(read), position) == (value, len(data))
    with pytest.raises(MalformedMessage):
        read_varint(data, 0, len(data) - 1)


def test_a_varint_of_more_than_ten_bytes_is_refused_and_of_more_than_64_bits_is_cut() -> None:
    with pytest.raises(MalformedMessage):
        read_varint(b"\xff" * 10 + b"\x01", 0, 11)
    assert read_varint(b"\xff" * 9 + b"\x7f", 0, 10) == ((1 << 64) - 1, 10)


def test_what_the_generated_class_reads_is_read() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    read = 0
    for _ in range(3000):
        data = rng.choice(_TAGS) + rng.randbytes(rng.randint(0, 9))
        try:
            storage_pb2.ReplicaHello.FromString(data)
            list(fields(data, 0, len(data)))
        except (DecodeError, MalformedMessage) as e:
            # Groups are read by it alone, text that is no UTF-8 by us alone.
            assert isinstance(e, DecodeError) or any(byte & 7 in (3, 4) for byte in data), data.hex()
            continue
        read += 1
    assert read > 50


def test_a_field_that_ends_beyond_its_message_is_refused() -> None:
    for data in (b"\xa1\x06" + bytes(7), b"\xa5\x06" + bytes(3), b"\xa2\x06\x02z", b"\xa3\x06"):
        tag, position = read_varint(data, 0, len(data))
        with pytest.raises(MalformedMessage):
            skip(data, position, len(data), tag)
        with pytest.raises(MalformedMessage):
            list(fields(data, 0, len(data)))
