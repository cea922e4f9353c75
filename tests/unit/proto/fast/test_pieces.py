"""Batches in pieces: whole and unchanged at the other end, or an error that says what is missing."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from penstock_proto.fast.pieces import Assembly, Piece, cut, piece_head, read_piece
from penstock_proto.fast.primitives import MalformedMessage
from penstock_proto.v1 import data_pb2

MOST = 10_000


def pieces_of(rng: random.Random, batch: bytes, base_offset: int) -> list[Piece]:
    """What a sender makes of a batch that lies in several buffers."""
    places = sorted({0, len(batch), *(rng.randrange(len(batch)) for _ in range(3))})
    buffers = [batch[a:b] for a, b in zip(places, places[1:], strict=False)]
    out, position = [], 0
    for run, size in cut(buffers, rng.choice((1, 7, 100, 999, len(batch)))):
        out.append(Piece(base_offset, len(batch), position, b"".join(run)))
        position += size
    assert position == len(batch)
    return out


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("_", range(30))
def test_batches_come_out_as_they_went_in(rng: random.Random, _: int) -> None:
    assembly = Assembly(MOST)
    for offset in range(5):
        batch = rng.randbytes(rng.randint(1, 3000))
        sent = pieces_of(rng, batch, offset)
        for piece in sent[:-1]:
            assert assembly.add(piece) is None
            assert assembly.is_under_way
        whole = assembly.add(sent[-1])
        assert whole is not None
        assert bytes(whole) == batch
        assert not assembly.is_under_way


@pytest.mark.parametrize("_", range(200))
def test_nothing_but_whole_batches_comes_out(rng: random.Random, _: int) -> None:
    """Pieces lost, doubled, reordered, shortened, lengthened, of another batch: an error, never other bytes."""
    batches = {offset: rng.randbytes(rng.randint(20, 3000)) for offset in range(3)}
    sent = [piece for offset, batch in batches.items() for piece in pieces_of(rng, batch, offset)]
    at = rng.randrange(len(sent))
    kind = rng.randrange(6)
    if kind == 0:
        del sent[at]
    elif kind == 1:
        sent.insert(at, sent[at])
    elif kind == 2:
        sent.insert(rng.randrange(len(sent)), sent.pop(at))
    elif kind == 3:
        sent[at] = sent[at]._replace(data=sent[at].data[:-1])
    elif kind == 4:
        sent[at] = sent[at]._replace(data=bytes(sent[at].data) + b"?")
    else:
        sent[at] = sent[at]._replace(total_bytes=sent[at].total_bytes + rng.choice((-1, 1, 5, MOST)))
    assembly = Assembly(MOST)
    came: dict[int, bytes] = {}
    try:
        for piece in sent:
            whole = assembly.add(piece)
            if whole is not None:
                came[piece.base_offset] = bytes(whole)
    except MalformedMessage:
        assert not assembly.is_under_way
    for offset, batch in came.items():
        # A total that was wrong in the only piece of its batch is for the batch's own length and CRC to tell, and so
        # is a byte too many where one was missing to the end.
        is_full = kind == 4 and len(batch) == len(batches[offset])
        assert batch == batches[offset] or kind == 5 or is_full


def test_what_is_wrong_is_said() -> None:
    assembly = Assembly(MOST)
    for total in (0, MOST + 1):
        with pytest.raises(MalformedMessage, match=f"pieces of a batch of {total} bytes, the most is {MOST}"):
            assembly.add(Piece(0, total, 0, b"x"))
    with pytest.raises(MalformedMessage, match="begins at byte 5 of its batch, none came before"):
        assembly.add(Piece(0, 10, 5, b"x"))
    assembly.add(Piece(0, 10, 0, b"abc"))
    with pytest.raises(MalformedMessage, match="begins at byte 4 of its batch, 3 bytes came before"):
        assembly.add(Piece(0, 10, 4, b"x"))
    assembly.add(Piece(0, 10, 0, b"abc"))
    with pytest.raises(MalformedMessage, match="begins at byte 0 of its batch, 3 bytes came before"):
        assembly.add(Piece(0, 10, 0, b"abc"))
    assembly.add(Piece(0, 10, 0, b"abc"))
    with pytest.raises(MalformedMessage, match="11 bytes at offset 0 among those of 10 bytes at 0"):
        assembly.add(Piece(0, 11, 3, b"abc"))
    for data, size in ((b"12345678", 8), (b"", 0)):
        assembly.add(Piece(0, 10, 0, b"abc"))
        with pytest.raises(MalformedMessage, match=f"a piece of {size} bytes, 7 of its batch are missing"):
            assembly.add(Piece(0, 10, 3, data))


def test_another_sender_may_begin_a_batch_anew() -> None:
    assembly = Assembly(MOST, may_restart=True)
    assembly.add(Piece(7, 6, 0, b"abc"))
    assert assembly.add(Piece(7, 6, 0, b"ab")) is None
    whole = assembly.add(Piece(7, 6, 2, b"cdef"))
    assert whole is not None
    assert bytes(whole) == b"abcdef"


def test_no_other_batch_begins_before_the_end_of_one() -> None:
    """The last piece was lost: the next batch must not hide it."""
    assembly = Assembly(MOST, may_restart=True)
    assembly.add(Piece(7, 6, 0, b"abc"))
    with pytest.raises(MalformedMessage, match="begins at byte 0 of its batch, 3 bytes came before"):
        assembly.add(Piece(8, 6, 0, b"abc"))


def test_a_message_holds_what_protobuf_reads() -> None:
    head = piece_head(b"\x4a", 1 << 40, 1 << 30, 77, 300)
    message = head + b"x" * 300
    generated = data_pb2.FetchRangeResponse.FromString(message).piece
    assert (generated.base_offset, generated.total_bytes, generated.position) == (1 << 40, 1 << 30, 77)
    assert generated.data == b"x" * 300
    wire = generated.SerializeToString()
    assert read_piece(wire, memoryview(wire), 0, len(wire)) == (1 << 40, 1 << 30, 77, b"x" * 300)


def test_an_announced_size_takes_no_memory_and_growth_is_no_quadratic_copy() -> None:
    tracemalloc.start()
    try:
        most = 1 << 30
        waiting = [Assembly(most) for _ in range(8)]
        for assembly in waiting:
            assembly.add(Piece(0, most, 0, b"0123456789"))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.reset_peak()
        assembly, piece = Assembly(most), bytes(64 * 1024)
        for number in range(256):
            assembly.add(Piece(0, 1 << 24, number * len(piece), piece))
        # Grown in place, or at worst copied to a place an eighth larger: never one copy per piece.
        assert tracemalloc.get_traced_memory()[1] < 2.3 * (1 << 24)
    finally:
        tracemalloc.stop()
