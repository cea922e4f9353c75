"""A frame in pieces: what comes is what was sent, memory follows what came, slow senders are told."""

from __future__ import annotations

import random

import pytest

from penstock_frontend.listener.partial_frame import FRAME_BYTES_PER_S, PartialFrame, first_room_bytes


@pytest.mark.parametrize("easy", [True, False])
def test_pieces_make_the_frame_again_and_memory_follows_what_came(easy: bool) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(30):
        sent = dice.randbytes(dice.randrange(1, 3_000_000))
        have = dice.randrange(min(len(sent), 100_000))
        partial = PartialFrame(len(sent), sent[:have], first_room_bytes(len(sent), have, easy=easy))
        while not partial.is_whole:
            assert partial.held_bytes <= max(4 * partial.filled, 256 * 1024)
            if partial.is_full:
                wanted = partial.held_bytes + partial.growth_bytes
                partial.grow()
                assert partial.held_bytes == wanted
            room = partial.room()
            size = min(len(room), dice.randrange(1, 200_000))
            room[:size] = sent[partial.filled : partial.filled + size]
            partial.filled += size
        assert partial.take() == sent


def test_a_sender_below_the_rate_falls_behind_and_one_above_it_catches_up() -> None:
    partial = PartialFrame(10 * FRAME_BYTES_PER_S, b"", FRAME_BYTES_PER_S)
    assert partial.falls_behind(partial.sweep(), 1.0) == 1.0
    assert partial.falls_behind(partial.sweep(), 1.0) == 2.0
    partial.filled += FRAME_BYTES_PER_S * 2
    assert partial.falls_behind(partial.sweep(), 1.0) == 1.0
    partial.filled += FRAME_BYTES_PER_S * 5
    assert partial.falls_behind(partial.sweep(), 1.0) == 0.0
    assert partial.falls_behind(partial.sweep(), 0.5) == 0.5
