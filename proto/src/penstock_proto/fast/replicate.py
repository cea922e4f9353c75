"""`Replicate`, leader to follower (proto/penstock/v1/storage.proto)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock_proto.fast.pieces import Piece, piece_head, read_piece
from penstock_proto.fast.primitives import Buffer, fields, parse, signed, submessage, varint
from penstock_proto.v1 import common_pb2, storage_pb2


class ReplicaFrame(Protocol):
    """One ReplicaData to send. At most one of its events; without one it carries only the two offsets."""

    @property
    def session(self) -> int:
        """The follower's number of it."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def tombstones_gone_below(self) -> int:
        """0: not told."""
        ...

    @property
    def base_offset(self) -> int:
        """Where the follower's log is to end for `buffers` to fit."""
        ...

    @property
    def buffers(self) -> Sequence[Buffer]:
        """Batches: the first event."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of all `buffers`."""
        ...

    @property
    def epoch_starts(self) -> Sequence[tuple[int, int]]:
        """(leader epoch, start offset) of those that begin among the offsets of `buffers`."""
        ...

    @property
    def piece_of(self) -> tuple[int, int] | None:
        """`buffers` are a piece of one batch: (its bytes, how many of them came before)."""
        ...

    @property
    def diverging(self) -> tuple[int, int] | None:
        """(leader epoch, its end offset)."""
        ...

    @property
    def out_of_range(self) -> tuple[int, int] | None:
        """(log start, log end) of the leader."""
        ...

    @property
    def error(self) -> tuple[int, str] | None: ...

    @property
    def move(self) -> int | None:
        """Lane to open again on: 0 is the live one."""
        ...


def encode_replica_data(frames: Sequence[ReplicaFrame]) -> bytes:
    """A ReplicateResponse."""
    out: list[Buffer] = []
    for frame in frames:
        if frame.piece_of is not None:
            total_bytes, position = frame.piece_of
            event = piece_head(b"\x4a", frame.base_offset, total_bytes, position, frame.size_bytes)
        elif frame.buffers:
            inner = b"\x08" + varint(frame.base_offset) + b"\x12" + varint(frame.size_bytes)
            event = b"\x12" + varint(len(inner) + frame.size_bytes) + inner
        elif frame.diverging is not None:
            event = submessage(
                b"\x1a",
                storage_pb2.ReplicaDiverging(epoch=frame.diverging[0], end_offset=frame.diverging[1]),
            )
        elif frame.out_of_range is not None:
            start, end = frame.out_of_range
            event = submessage(
                b"\x2a", storage_pb2.ReplicaOutOfRange(log_start_offset=start, log_end_offset=end)
            )
        elif frame.move is not None:
            lane = storage_pb2.ReplicaHello.CATCH_UP if frame.move else storage_pb2.ReplicaHello.LIVE
            event = submessage(b"\x42", storage_pb2.ReplicaMove(lane=lane))
        elif frame.error is not None:
            event = submessage(b"\x22", common_pb2.Error(code=frame.error[0], message=frame.error[1]))
        else:
            event = b""
        head = b"\x08" + varint(frame.session)
        tail = b"\x30" + varint(frame.high_watermark) + b"\x38" + varint(frame.log_start_offset)
        if frame.tombstones_gone_below:
            tail += b"\x50" + varint(frame.tombstones_gone_below)
        for epoch, start in frame.epoch_starts:
            tail += submessage(b"\x5a", storage_pb2.ReplicaEpochStart(epoch=epoch, start_offset=start))
        size = len(head) + len(tail) + len(event) + frame.size_bytes
        # Field order is free in proto3: the two offsets stand before the records.
        out.append(b"\x0a" + varint(size) + head + tail + event)
        out.extend(frame.buffers)
    return b"".join(out)


@dataclass(slots=True)
class ReceivedData:
    """One ReplicaData; `records` is a view onto the message."""

    session: int = 0
    high_watermark: int = 0
    log_start_offset: int = 0
    tombstones_gone_below: int = 0
    base_offset: int = 0
    epoch_starts: list[tuple[int, int]] | None = None
    """(leader epoch, start offset); None: none begins here."""
    records: memoryview | None = None
    piece: Piece | None = None
    diverging: tuple[int, int] | None = None
    out_of_range: tuple[int, int] | None = None
    error: tuple[int, str] | None = None
    move: int | None = None
    """Lane to open again on."""


def decode_replica_data(message: bytes) -> Iterator[ReceivedData]:
    """The frames of a ReplicateResponse. Raises MalformedMessage when it is none."""
    view = memoryview(message)
    for field, start, end in fields(message, 0, len(message)):
        if field == 1 and end >= 0:
            yield _replica_data(message, view, start, end)


def _take_number(data: ReceivedData, field: int, value: int) -> None:
    if field == 1:
        data.session = value
    elif field == 6:
        data.high_watermark = signed(value)
    elif field == 7:
        data.log_start_offset = signed(value)
    elif field == 10:
        data.tombstones_gone_below = signed(value)


def _replica_data(message: bytes, view: memoryview, start: int, end: int) -> ReceivedData:
    data = ReceivedData()
    for field, value, stop in fields(message, start, end):
        if stop < 0:
            _take_number(data, field, value)
        elif field == 2:
            data.records = view[stop:stop]
            for inner, inner_value, inner_stop in fields(message, value, stop):
                if inner == 1 and inner_stop < 0:
                    data.base_offset = signed(inner_value)
                elif inner == 2 and inner_stop >= 0:
                    data.records = view[inner_value:inner_stop]
        elif field == 3:
            diverging = parse(storage_pb2.ReplicaDiverging, message[value:stop])
            data.diverging = (diverging.epoch, diverging.end_offset)
        elif field == 4:
            error = parse(common_pb2.Error, message[value:stop])
            data.error = (error.code, error.message)
        elif field == 5:
            found = parse(storage_pb2.ReplicaOutOfRange, message[value:stop])
            data.out_of_range = (found.log_start_offset, found.log_end_offset)
        elif field == 9:
            data.piece = read_piece(message, view, value, stop)
        elif field == 11:
            begin = parse(storage_pb2.ReplicaEpochStart, message[value:stop])
            if data.epoch_starts is None:
                data.epoch_starts = []
            data.epoch_starts.append((begin.epoch, begin.start_offset))
        elif field == 8:
            data.move = parse(storage_pb2.ReplicaMove, message[value:stop]).lane
    return data
