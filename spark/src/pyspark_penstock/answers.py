"""Answers of FetchRange, read without copying their records.

A message made of one would copy each MiB twice. Only the small fields are read; records stay where gRPC put them.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock_proto.fast.pieces import Piece, read_piece
from penstock_proto.fast.primitives import fields, parse, signed
from penstock_proto.v1 import common_pb2


class RangeAnswer(NamedTuple):
    """One FetchRangeResponse; `records` and the piece's data are views onto the message."""

    error: int
    message: str
    records: memoryview
    next_offset: int
    log_start_offset: int
    done: bool
    piece: Piece | None
    read_committed: bool
    leader_epoch: int
    """Of the node that answered; 0 where it does not say."""


def read_answer(data: bytes) -> RangeAnswer:
    """Raises MalformedMessage."""
    view = memoryview(data)
    error, message, records, piece = 0, "", view[:0], None
    numbers = {3: 0, 4: 0, 7: 0, 8: 0, 10: 0}
    for number, value, end in fields(data, 0, len(data)):
        if end < 0:
            if number in numbers:
                numbers[number] = value
        elif number == 1:
            problem = parse(common_pb2.Error, data[value:end])
            error, message = problem.code, problem.message
        elif number == 2:
            records = view[value:end]
        elif number == 9:
            piece = read_piece(data, view, value, end)
    return RangeAnswer(
        error,
        message,
        records,
        signed(numbers[3]),
        signed(numbers[4]),
        bool(numbers[8]),
        piece,
        bool(numbers[10]),
        numbers[7],
    )
