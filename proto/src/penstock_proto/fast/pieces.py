"""Batches too large for one message: cut by the sender, put together by the receiver.

Pieces are views onto the batch. The receiver's buffer grows with the bytes that come, not by what
is announced, and a batch is given out only when every byte of it came, each exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock_proto.fast.primitives import Buffer, MalformedMessage, fields, signed, varint


class Piece(NamedTuple):
    """One BatchPiece; `data` is a view onto the message, or the message's own bytes."""

    base_offset: int
    total_bytes: int
    position: int
    data: Buffer


def cut(buffers: Sequence[Buffer], most_bytes: int) -> Iterator[tuple[list[memoryview], int]]:
    """The bytes of all buffers in runs of `most_bytes` (the last may be shorter), uncopied."""
    run: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view):
            piece = view[: most_bytes - size]
            run.append(piece)
            size += len(piece)
            view = view[len(piece) :]
            if size == most_bytes:
                yield run, size
                run, size = [], 0
    if run:
        yield run, size


def piece_head(tag: bytes, base_offset: int, total_bytes: int, position: int, size_bytes: int) -> bytes:
    """A BatchPiece as a field with that tag, up to its data: `size_bytes` have to follow."""
    head = b"\x08" + varint(base_offset) + b"\x10" + varint(total_bytes)
    head += b"\x18" + varint(position) + b"\x22" + varint(size_bytes)
    return tag + varint(len(head) + size_bytes) + head


def read_piece(message: bytes, view: memoryview, start: int, end: int) -> Piece:
    """The BatchPiece between two places of a message; `view` is onto all of it. Raises MalformedMessage."""
    base_offset = total_bytes = position = 0
    data = view[:0]
    for field, value, stop in fields(message, start, end):
        if stop >= 0:
            if field == 4:
                data = view[value:stop]
        elif field == 1:
            base_offset = signed(value)
        elif field == 2:
            total_bytes = value
        elif field == 3:
            position = value
    return Piece(base_offset, total_bytes, position, data)


class Assembly:
    """A batch that comes in pieces. One at a time, in order."""

    __slots__ = ("_base_offset", "_buffer", "_may_restart", "_most_bytes", "_total_bytes")

    def __init__(self, most_bytes: int, *, may_restart: bool = False) -> None:
        """`may_restart`: the first piece of an unfinished batch may come again (another sender goes on)."""
        self._most_bytes = most_bytes
        self._may_restart = may_restart
        self._buffer: bytearray | None = None
        self._base_offset = 0
        self._total_bytes = 0

    @property
    def is_under_way(self) -> bool:
        """A batch has begun and not ended."""
        return self._buffer is not None

    def add(self, piece: Piece) -> bytearray | None:
        """The whole batch with its last piece, else None.

        Raises MalformedMessage for a piece that doesn't come next; what came of the batch is then gone.
        """
        buffer, self._buffer = self._buffer, None
        begins_again = self._may_restart and piece.base_offset == self._base_offset
        if piece.position == 0 and (buffer is None or begins_again):
            if not 0 < piece.total_bytes <= self._most_bytes:
                raise MalformedMessage(
                    f"pieces of a batch of {piece.total_bytes} bytes, the most is {self._most_bytes}"
                )
            buffer = bytearray()
            self._base_offset, self._total_bytes = piece.base_offset, piece.total_bytes
        elif buffer is None or piece.position != len(buffer):
            have = "none" if buffer is None else f"{len(buffer)} bytes"
            raise MalformedMessage(
                f"a piece begins at byte {piece.position} of its batch, {have} came before"
            )
        elif (piece.base_offset, piece.total_bytes) != (self._base_offset, self._total_bytes):
            raise MalformedMessage(
                f"a piece of {piece.total_bytes} bytes at offset {piece.base_offset} among those of"
                f" {self._total_bytes} bytes at {self._base_offset}"
            )
        size = len(piece.data)
        if not 0 < size <= self._total_bytes - len(buffer):
            raise MalformedMessage(
                f"a piece of {size} bytes, {self._total_bytes - len(buffer)} of its batch are missing"
            )
        buffer += piece.data
        if len(buffer) == self._total_bytes:
            return buffer
        self._buffer = buffer
        return None
